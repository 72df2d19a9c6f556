/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of clients on simulated hosts: set, get and remove of one page, with the steps of
 * engine/client (page.c, set.c). A client is not stopped with its engine. One thread.
 */
#ifndef TESTS_SIM_CLIENT_H
#define TESTS_SIM_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

/* CALL_CLEAR: of the cluster; `number` 0: of the group of all keys, else of all groups. */
enum call_kind { CALL_GET, CALL_SET, CALL_REMOVE, CALL_CLEAR, CALL_KINDS };

/* As enum pc_result. */
enum call_end {
	CALL_HIT,
	CALL_MISS,
	CALL_STALE,
	CALL_UNREACHABLE,
	CALL_TIMEOUT,
	CALL_FULL,
	CALL_GONE,
	CALL_ENDS
};

struct call_result {
	enum call_end end;
	/* CALL_HIT of a get or set: the page that was read, found or stored */
	uint64_t value;
	bool mixed;      /* of a get: the bytes are those of another page, or of several */
	unsigned holder; /* the node that has it */
	bool unread;     /* of a set: the entry was believed, the page was not looked at */
};

/* Called once. */
typedef void (*call_done)(void *context, const struct call_result *result);

struct call_for {
	enum call_kind kind;
	unsigned node;
	uint64_t number;       /* of the page */
	const uint64_t *value; /* of a set: what is stored, read when it is */
};

/* The call ends within a second and a little, by its deadline at the latest. */
void call_start(const struct call_for *what, call_done done, void *context);

/* ---- what channel.c and node.c call ---------------------------------------------------------- */

struct ctl_done;

/* An answer of the engine. */
void client_answered(unsigned node, const struct ctl_done *done);
/* The engine will answer none of its requests any more. */
void client_gone(unsigned node);
/* The process takes what is in the ctl ring: before and after that. */
void client_turn_begin(unsigned node);
void client_turn_end(unsigned node);
/* Frees what the clients remember. */
void client_close(void);

#endif
