/* SPDX-License-Identifier: Apache-2.0 */
/* Names, ports and connections, each with a time limit where it may wait. One thread. */
#ifndef DOCTOR_REACH_H
#define DOCTOR_REACH_H

/* Of several addresses of a host, the first of these counts. */
enum reach {
	REACH_OPEN,
	REACH_REFUSED,  /* the host answers: nothing listens, or a firewall rejects */
	REACH_SILENT,   /* no answer in time: a firewall drops, or the host is off */
	REACH_NO_ROUTE, /* no route, or the network says that it cannot be reached */
	REACH_NO_NAME,
};
const char *reach_text(enum reach reach);

/* Connects, closes again, and says what came. The addresses of a name share the time. */
enum reach reach_try(const char *host, unsigned port, unsigned timeout_ms);
/* A listening socket that does not block, or -errno. */
int reach_listen(const char *host, unsigned port);

#endif
