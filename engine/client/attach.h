/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct pc: the view of one process: the current session and the registered memory. Any thread,
 * under `lock` (the tables; never held while waiting) and `wire` (one request and its reply on the
 * socket). Code that needs both locks `wire` first.
 */
#ifndef CLIENT_ATTACH_H
#define CLIENT_ATTACH_H

#include <pthread.h>

#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/client/key.h"
#include "engine/client/reattach.h"

struct client_session;
struct memory;
struct pc_channel;

struct pc {
	struct pc *next; /* in the list of fork.c */
	pthread_mutex_t wire;
	pthread_mutex_t lock;
	char socket[108];
	struct key_space name_space;
	unsigned cores;
	bool no_reattach;
	bool inherited;         /* this process is a child of fork(): the session is its parent's */
	uint32_t verify_one_in; /* one hit in this number is compared with its CRC; 0: none */
	/* the fields below are protected by `lock` */
	struct client_session *session; /* the current session with an engine; NULL: none */
	/* number of changes of the table `memory` so far; also loaded without `lock` */
	uint32_t memory_changes;
	struct attacher attacher;
	struct pc_channel *channels; /* list of the open channels */
	struct memory *memory[REGIONS_MAX];
};

/*
 * Locks pc->wire. Returns 0, or -ETIMEDOUT: the request of another thread did not end by
 * `until_ns`.
 */
int pc_wire_lock(struct pc *pc, uint64_t until_ns);
/* Sets the error text for a request without a session. Returns -ENOTCONN. */
int pc_no_session(const struct pc *pc);
struct client_session *pc_session_get(struct pc *pc);
void pc_session_put(struct pc *pc, struct client_session *session);
/* Ends the session: pc_session_get() no longer returns it, and its users see `dead`. */
void pc_session_end(struct pc *pc, struct client_session *session);

#endif
