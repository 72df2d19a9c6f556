/* SPDX-License-Identifier: Apache-2.0 */
/* The ports that an engine with given settings uses. Pure: any thread. */
#ifndef CONFIG_PORTS_H
#define CONFIG_PORTS_H

#include <stdbool.h>
#include <stdio.h>

#include "config/settings.h"

struct port_use {
	const char *setting;  /* "cluster.port"; "-": none */
	const char *protocol; /* "TCP", "UDP" */
	const char *who;      /* who connects, and what for */
	/* that it is bound to, a name or "auto" before address_settle(); "": all of the NICs */
	const char *address;
	unsigned port;  /* the first one; 0: any free port */
	unsigned ports; /* how many, one after the other */
	bool listens;   /* a socket of the engine; false: the NIC's */
};
#define PORTS_MAX 4

/* Names of rail.devices, and how many of them are software NICs ("soft", "soft:N"). */
unsigned ports_rails(const struct settings *s, unsigned *ret_soft);
/* What is in use with these settings; `address` points into *s. Returns the number of rows. */
unsigned ports_list(const struct settings *s, struct port_use ret[PORTS_MAX]);
/* Prints ports_list() as a table. */
void ports_print(const struct settings *s, FILE *out);

#endif
