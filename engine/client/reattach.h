/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attach thread, which attaches again after the engine was lost, and the channels that it has
 * opened. Slow path; any thread.
 */
#ifndef CLIENT_REATTACH_H
#define CLIENT_REATTACH_H

#include <pthread.h>

#include "engine/client/session.h"

struct pc;
struct pc_channel;

/* A channel that the attach thread has opened and that no thread of the program has adopted yet. */
struct opened {
	struct opened *next;
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
	bool closing;  /* pc_close() has set it: the attach thread is not started any more */
	/* duplicate of the socket on which the reply to HELLO is awaited; -1: none */
	int fd;
	/* time of the attach thread's last start, ns; 0: it may start at once */
	uint64_t tried_ns;
	unsigned channels;  /* number of open channels, which all need a channel of a new session */
	unsigned wanting;   /* number of open channels without a session */
	unsigned available; /* number of channels in the list `opened` */
	struct opened *opened;
};

/*
 * Connects to the engine, sends HELLO and makes the new session the current one. Takes at most 10
 * s.
 */
int pc_attach(struct pc *pc);
void attacher_init(struct pc *pc);
/*
 * pc_close() calls both in this order: attacher_stop() ends the attach thread, attacher_close()
 * frees the channels that it opened.
 */
void attacher_stop(struct pc *pc);
void attacher_close(struct pc *pc);
/*
 * Starts the attach thread if it has work and its last start is at least REATTACH_NS ago. The call
 * that started it waits for its end, at most until `until_ns`.
 */
void pc_reattach(struct pc *pc, uint64_t until_ns);
/* In a child of fork(), which has no attach thread. The caller holds `lock`. */
void attacher_inherited(struct pc *pc);
/* Adds a channel to the open channels of the process, or removes it. */
void pc_channel_add(struct pc *pc, struct pc_channel *ch);
void pc_channel_remove(struct pc *pc, struct pc_channel *ch);
/* Adds `change` to the number of open channels that have no session. */
void pc_channels_wanting(struct pc *pc, int change);
/*
 * Returns a channel of the current session that the attach thread opened; NULL: none. The caller
 * owns it.
 */
struct opened *pc_opened_take(struct pc *pc);
/*
 * The caller could not use the channel that pc_opened_take() gave it: the next attempt waits
 * REATTACH_NS.
 */
void pc_opened_refused(struct pc *pc);
/* Frees `opened` with the file descriptors that the caller has left in it. */
void opened_free(struct pc *pc, struct opened *opened);

#endif
