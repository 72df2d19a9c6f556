/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct pc: the view of one process: the current session, the registered memory, and the attach
 * thread, which attaches again after the engine was lost. Any thread,
 * under `lock` (the tables; never held while waiting) and `wire` (one request and its reply on the
 * socket). Code that needs both locks `wire` first.
 */
#ifndef CLIENT_ATTACH_H
#define CLIENT_ATTACH_H

#include <pthread.h>

#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/client/error.h"
#include "engine/client/page/key.h"
#include "engine/client/attach/session.h"

struct memory;
struct pc_channel;

/* A channel that the attach thread has opened at the engine, for one of the open channels. */
struct opened {
	/* session of the channel; this struct counts as one of its users */
	struct client_session *session;
	struct session_call call;
};

/*
 * The attach thread, which attaches again after the engine was lost. It opens the session, then the
 * channels that have none, then registers memory. It exists only while it has work. All fields are
 * under pc->lock.
 */
struct attacher {
	pthread_t thread;
	pthread_cond_t ended; /* signalled when the attach thread ends */
	bool runs;
	bool joinable; /* the attach thread was started and not joined yet */
	/* 1: pc_close() runs: the attach thread ends, and is not started any more; shm_load() */
	uint32_t closing;
	/* time of the attach thread's last start, ns; 0: it may start at once */
	uint64_t tried_ns;
};

struct pc {
	struct pc *next; /* in the list of the sessions of this process */
	pthread_mutex_t wire;
	pthread_mutex_t lock;
	char socket[108];
	struct key_space name_space;
	struct key_secret *secret; /* of all namespaces; NULL: none */
	unsigned cores;
	bool no_reattach;
	bool inherited;         /* this process is a child of fork(): the session is its parent's */
	uint32_t verify_one_in; /* one hit in this number is compared with its CRC; 0: none */
	/* the fields below are protected by `lock` */
	uint32_t limits; /* number of calls of pc_limits(); also loaded without `lock` */
	int64_t quota_bytes, ttl_s;
	struct client_session *session; /* the current session with an engine; NULL: none */
	/* number of changes of the table `memory` so far; also loaded without `lock` */
	uint32_t memory_changes;
	struct attacher attacher;
	/* why the engine gave no session, or no channel of it, when that was last requested; "": it
	 * did, or none answered */
	char refusal[ERROR_TEXT_BYTES];
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
/*
 * Starts the attach thread if it has work and its last start is at least REATTACH_NS ago. The call
 * that started it waits for its end, at most until `until_ns`.
 */
void pc_reattach(struct pc *pc, uint64_t until_ns);
/* Frees `opened`, or nothing if it is NULL, with the file descriptors that are left in it. */
void pc_opened_free(struct pc *pc, struct opened *opened);

#endif
