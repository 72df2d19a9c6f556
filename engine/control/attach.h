/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of this host: sessions, their channels and their memory. What they say is abi/segment.h.
 * The loop's thread only, except attach_helper.c's thread, which registers large memory.
 *
 *   attach.c          the socket: who may come in, requests, replies
 *   attach_session.c  a session from its first request to its last resource
 *   attach_channel.c  channel segments and their rings on every rail
 *   attach_region.c   client memory: checked, mapped, registered, given to the rails, taken back
 *   attach_helper.c   the thread that does what can take seconds
 *
 * Channels and regions belong to the rails from the command that adds them until every rail has
 * returned them; only then are they unmapped and their numbers used again.
 */
#ifndef CONTROL_ATTACH_H
#define CONTROL_ATTACH_H

#include <pthread.h>
#include <sys/types.h>

#include "engine/control/control.h"
#include "engine/control/publish.h"

#define ATTACH_INLINE_BYTES (64u << 20) /* registered on the loop's thread up to this size */
#define ATTACH_REFUSED_MAX 8u           /* refused clients that are being told why */
#define ATTACH_REFUSED_SECONDS 1        /* ... for at most this long */
#define ATTACH_REGION_BYTES_MAX (1ull << 40)
#define ATTACH_ACCEPTS 16u              /* connections taken in one turn */

struct session;
struct channel;

enum region_state {
	REGION_REGISTERING, /* on the helper thread */
	REGION_LIVE,        /* the rails have it */
	REGION_DROPPING,    /* the rails were asked to return it */
	REGION_RELEASING,   /* on the helper thread */
};

struct region {
	uint32_t id; /* REGION_CLIENT_0 .. REGIONS_MAX - 1 */
	struct session *session;
	struct channel *staging_of; /* the channel whose segment it lies in, or NULL */
	int memfd;                  /* -1: the channel's */
	void *map;                  /* NULL: the channel's */
	size_t map_bytes;
	void *base;
	size_t length;
	uint64_t offset; /* in the file */
	enum region_state state;
	unsigned left; /* rails that have it */
	/* the helper thread's while REGISTERING or RELEASING */
	struct region *next;
	struct dv_mr mr[RAILS_MAX];
	unsigned registered; /* NICs, from 0 on */
	bool held; /* RELEASING, and a NIC did not let go: until its device is closed */
	int result;
	char text[160];
};

struct channel {
	uint32_t id; /* < CHANNELS_MAX */
	struct session *session;
	int memfd;
	int wake;
	unsigned char *map;
	size_t bytes;
	struct region *staging;
	struct rail_channel rail[RAILS_MAX];
	unsigned left; /* rails that have it */
	bool stopping;
	struct publish_channel publish;
};

struct session {
	struct control *control;
	uint32_t id;   /* never used twice */
	unsigned slot; /* in attach->session or, refused, attach->refused */
	int fd;
	pid_t pid;
	struct event *readable;
	struct event *closed;
	int refuse;               /* 0, or the status every request is answered with */
	char refusal[160];
	struct attach_request request; /* the one being answered */
	bool busy;                /* it is not answered yet: no further one is read */
	bool waits_told;          /* ... until the rails' inboxes have our commands */
	uint64_t reply_a, reply_b;
	struct region *waits_region;
	struct channel *waits_channel;
	unsigned channels, regions; /* not yet freed; staging included */
	bool ending;
};

/* Work for the thread, and what it has done; both under the lock. */
struct attach_helper {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct region *first, *last; /* to do */
	struct region *done;
	uint32_t done_flag; /* there may be something in `done`: looked at without the lock */
	bool running, stop;
};

struct attach {
	struct control *control;
	char path[128];
	int listener;
	dev_t path_device; /* of the socket file we made: another engine's is not removed */
	ino_t path_inode;
	struct event *accepts;
	struct session *session[SESSIONS_MAX];
	struct session *refused[ATTACH_REFUSED_MAX];
	struct channel *channel[CHANNELS_MAX];
	struct region *region[REGIONS_MAX];
	unsigned sessions, channels, regions;
	unsigned waits_told; /* sessions whose reply waits for the rails' inboxes */
	unsigned endings;    /* sessions that end and are not freed yet */
	uint32_t last_session;
	int status_fd, shard_fd, heads_fd[RAILS_MAX]; /* read-only, for clients */
	struct attach_helper helper;
};

/* ---- for loop.c, publish.c and report.c ------------------------------------------------------ */

/* What the helper thread finished and replies that waited for the rails' inboxes. */
unsigned attach_turn(struct control *control);
/* From a rail, or publish.c: an index was impossible. Ends the session. */
void attach_channel_broken(struct control *control, uint32_t channel);
void attach_channel_returned(struct control *control, struct rail_channel *returned);
void attach_region_returned(struct control *control, uint32_t region);
/* A lost NIC's device is closed: what it did not let go of is released now. */
void attach_regions_retry(struct control *control);
/* Shutdown: no more clients, all sessions end. */
void attach_stop(struct control *control);

struct attach_counts {
	unsigned sessions, channels, regions;
};
void attach_counts(const struct control *control, struct attach_counts *ret);

/* ---- between the attach_*.c ------------------------------------------------------------------ */

/* One reply to session->request, with `fds` riding along. text: why, when status < 0. */
void session_reply(struct session *s, int status, uint64_t a, uint64_t b, const int *fds,
	unsigned fd_count, const char *text);
void session_refuse(struct session *s, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Serves session->request; takes the fd (-1: none came along). */
void session_serve(struct session *s, int fd, unsigned fd_count);
/* Watches the socket. 0 or -ENOMEM. */
int session_start(struct session *s);
/* Replies as soon as the rails' inboxes have all that was told. */
void session_reply_told(struct session *s, uint64_t a, uint64_t b);
void session_told(struct session *s);
/* Stops its channels, drops its regions; freed by attach_turn(). Twice does no harm. */
void session_end(struct session *s, const char *why);
/* Frees a session that has ended and has nothing left; false: not yet. */
bool session_free(struct session *s);

void channel_open_request(struct session *s);
void channel_close_request(struct session *s);
void channel_stop(struct channel *c);
/* Frees it when no rail has it and its staging region is gone. */
void channel_finish(struct channel *c);
/* attach_close(): the rails have ended. */
void channel_free(struct channel *c);

void region_add_request(struct session *s, int memfd);
void region_remove_request(struct session *s);
/* The channel's staging memory, registered and given to the rails. 0 or -errno with text. */
int region_add_staging(struct channel *c, size_t offset, char *text, size_t text_bytes);
void region_drop(struct region *r);
/* The helper thread, or the loop for small memory: registers or deregisters on every NIC. */
void region_work(struct control *control, struct region *r);
/* Back on the loop: what the helper thread did. */
void region_worked(struct control *control, struct region *r);
/*
 * attach_close(): the rails have ended. False: a NIC did not let go, so the memory under it stays
 * mapped for as long as the process lives.
 */
bool region_close(struct control *control, struct region *r);

int helper_submit(struct control *control, struct region *r);
/* One region that the thread is done with, or NULL. */
struct region *helper_collect(struct attach_helper *h);
void helper_open(struct attach_helper *h);
/* Waits for the thread, which finishes what it was given; then helper_submit() refuses. */
void helper_stop(struct attach_helper *h);
void helper_close(struct attach_helper *h);

#endif
