/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct client_session: one attachment to one engine, with its socket and its mappings. Read-only
 * after it is made, except `dead`. Freed when its last user releases it; users are counted under
 * pc->lock. Slow path. Callers hold pc->wire, except for session_ended().
 */
#ifndef CLIENT_SESSION_H
#define CLIENT_SESSION_H

#include "config/limits.h"
#include "engine/abi/segment.h"

/* One request on the engine's socket, and its reply. */
struct session_call {
	uint16_t kind;
	uint64_t a, b; /* arguments of the request; the reply overwrites them with its results */
	int send_fd;   /* file descriptor sent with the request; -1: none */
	int fd[ATTACH_FDS_MAX];
	unsigned fds; /* number of file descriptors received in `fd` */
	unsigned timeout_ms;
};

struct session_rail {
	unsigned char *pool;
	uint64_t pool_bytes; /* bytes of the pool that are mapped and that have page heads */
	uint64_t map_bytes;
	/* per TOUCH_BYTES of the pool: 1: mapped for writing; shm_load()/shm_store() */
	uint32_t *touched;
	const struct page_head *heads;
	uint64_t heads_bytes;
	int kick;
};

struct client_session {
	int fd;
	int pidfd; /* pidfd of the engine; -1: unknown, so READs go to staging only */
	/* number of channels, calls and struct pc that use the session; under pc->lock */
	unsigned users;
	const uint32_t *stop; /* not 0: no wait for the engine goes on; shm_load() */
	/* 1: a thread has seen the end of the session; shm_load()/shm_store() */
	uint32_t dead;
	/* numbers of requests sent and of replies received; under pc->wire */
	uint32_t sent, answered;
	uint32_t ref;
	const struct status_segment *status;
	uint64_t status_bytes;
	int control_kick;
	const struct bucket *shard;
	uint64_t shard_bytes;
	uint32_t bucket_bits;
	uint64_t page_bytes_max;
	uint32_t rails;
	struct session_rail rail[RAILS_MAX];
};

/*
 * Connects to the engine's socket, sends HELLO and waits at most 10 s. -EINPROGRESS: the engine
 * restarts. `stop`: client_session.stop.
 */
int session_open(const char *path, const uint32_t *stop, struct client_session **ret_session);
void session_free(struct client_session *session);
int session_ask(struct client_session *session, struct session_call *call);
void session_close_fds(struct session_call *call);
/*
 * Closes a channel without waiting for the reply, which is read before the next request's. Sets no
 * error text. If it cannot be sent, the channel ends with the session.
 */
void session_channel_close(struct client_session *session, uint64_t channel);
/* True if the engine has ended the session. Calls poll() once, without waiting. */
bool session_ended(struct client_session *session);

#endif
