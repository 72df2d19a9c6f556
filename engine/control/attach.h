/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of this host: sessions, their channels and their memory. What they say is abi/segment.h.
 * The loop's thread only, except attach_helper.c's threads, which register memory.
 *
 *   attach.c          the socket: who may come in, requests, replies
 *   attach_session.c  a session from its first request to its last resource
 *   attach_channel.c  channel segments and their rings on every rail
 *   attach_quarantine.c  channels whose client may still write to a page slot
 *   attach_region.c   client memory: checked, mapped, registered, given to the rails, taken back
 *   attach_mr.c       its memory registrations on every NIC
 *   attach_helper.c   the threads that do what can take seconds
 *   attach_closer.c   the thread that closes what clients sent
 *
 * Channels and regions belong to the rails from the command that adds them until every rail has
 * returned them; only then are they unmapped and their numbers used again.
 */
#ifndef CONTROL_ATTACH_H
#define CONTROL_ATTACH_H

#include <pthread.h>
#include <sched.h>
#include <sys/types.h>

#include "engine/control/control.h"
#include "engine/control/publish.h"

#define ATTACH_SMALL_BYTES (1u << 20) /* registered by threads of their own up to this size */
#define ATTACH_SMALL_HELPERS 2u       /* ... so that channels do not wait for large memory */
#define ATTACH_HELPERS 8u             /* threads that register what is larger */
#define ATTACH_TELL_NS 5000000000ull  /* between two lines about one long registration */
#define ATTACH_SILENT_MAX 32u         /* connections that have not sent a request yet */
#define ATTACH_SILENT_SECONDS 2       /* ... and are closed after this time */
#define ATTACH_REFUSED_MAX 8u         /* refused clients that are being told why */
#define ATTACH_REFUSED_SECONDS 1      /* ... for at most this long */
#define ATTACH_REGION_BYTES_MAX (1ull << 40)
#define ATTACH_ACCEPTS 16u         /* connections taken in one turn */
#define ATTACH_QUARANTINE_MAX 8u   /* slots of one process; then it gets no more credits */
#define ATTACH_QUARANTINE_US 10000 /* between looks at channels in quarantine */
/* Every channel needs a region for its staging: those are not handed out for anything else. */
#define ATTACH_RANGES_MAX (REGIONS_MAX - REGION_CLIENT_0 - CHANNELS_MAX)
static_assert(ATTACH_RANGES_MAX >= RANGES_SESSION_MIN, "one session gets its share");

struct session;
struct channel;
struct closer;

enum region_state {
	REGION_REGISTERING, /* on the helper threads */
	REGION_LIVE,        /* the rails have it */
	REGION_DROPPING,    /* the rails were asked to return it */
	REGION_RELEASING,   /* on the helper threads */
};

/*
 * A region is registered on every NIC, in extents of equal size, each a memory registration (MR) of
 * its own; the last one may be shorter. On huge pages, or when it is small, it is one extent.
 */

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
	unsigned left;         /* rails that have it */
	unsigned extent_shift; /* of 1 << extent_shift bytes; 0: one extent */
	unsigned extents;
	unsigned mrs; /* extents * NICs: number e of NIC n is [n * extents + e] */
	/* the helper threads' while REGISTERING or RELEASING: an MR is one thread's, the rest is
	 * under the lock */
	struct dv_mr *mr;  /* length 0: not registered */
	uint32_t *lkey;    /* read by the rails from RAIL_REGION_ADD until they return it */
	unsigned mrs_next; /* the first one that no thread was given */
	unsigned mrs_done;
	uint64_t began_ns, told_ns;
	struct region *next;
	bool held;            /* RELEASING, and a NIC did not let go: until its device is closed */
	unsigned cut_devices; /* attach->cut_devices when the release began */
	int result;
	char text[160];
};

struct channel {
	uint32_t id; /* < CHANNELS_MAX */
	struct session *session;
	int memfd;
	int wake;        /* the engine's end of a socket pair */
	int wake_client; /* the other one, until it is sent; -1 then */
	unsigned char *map;
	size_t bytes;
	struct region *staging;
	struct rail_channel rail[RAILS_MAX];
	unsigned left; /* rails that have it */
	bool opening;  /* its staging is being registered: rails and publish.c do not know it yet */
	bool stopping;
	bool quarantined; /* the client's thread may still copy into publish.kept */
	struct publish_channel publish;
	struct statistics_source statistics;
};

struct session {
	struct control *control;
	uint32_t id;            /* never used twice; 0: has not sent a request yet */
	uint64_t arrival;       /* order of the connections */
	struct session **place; /* in attach->silent, ->session or ->refused */
	int fd;
	pid_t pid;
	int pidfd; /* of the client; -1: it cannot be watched, so it gets no credits */
	struct event *readable;
	struct event *closed;
	struct event *exited; /* the process; a child of it may keep the socket open */
	int refuse;           /* 0, or the status every request is answered with */
	char refusal[160];
	struct attach_request request; /* the one being answered */
	bool busy;                     /* it is not answered yet: no further one is read */
	bool waits_told;               /* ... until the rails' inboxes have our commands */
	uint64_t reply_a, reply_b;
	struct region *waits_region;
	struct channel *waits_channel;
	unsigned channels, regions; /* not yet freed; staging included */
	unsigned quarantined;       /* of the channels */
	unsigned ranges, extents;   /* of the regions: without staging */
	bool ending;
};

/*
 * The quota of a session: it may take `wants` of the `left` if it then has no more than its share
 * of what remains, remains / sessions, or no more than `min`. One session alone stops at half of
 * all there is, and one that has more than `min` never takes the last.
 */
static inline bool session_may_take(
	unsigned has, unsigned wants, unsigned left, unsigned sessions, unsigned min)
{
	unsigned share;

	if (wants > left)
		return false;
	share = (left - wants) / (sessions ? sessions : 1);
	return has + wants <= (share > min ? share : min);
}

/* Work for the threads, and what they have done; both under the lock. */
struct attach_helper {
	struct control *control;
	pthread_t thread[ATTACH_HELPERS];
	unsigned threads; /* running; the loop's */
	unsigned threads_max;
	cpu_set_t cores; /* that they may use */
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct region *first, *last; /* with MRs that no thread was given */
	struct region *done;
	uint32_t done_flag; /* there may be something in `done`: looked at without the lock */
	bool stop;
};

struct attach {
	struct control *control;
	struct event *accepts;
	struct session *session[SESSIONS_MAX];
	struct session *silent[ATTACH_SILENT_MAX];
	struct session *refused[ATTACH_REFUSED_MAX];
	struct channel *channel[CHANNELS_MAX];
	struct region *region[REGIONS_MAX];
	unsigned sessions, channels, regions;
	unsigned ranges, extents; /* of the regions: without staging */
	unsigned waits_told;      /* sessions whose reply waits for the rails' inboxes */
	unsigned endings;         /* sessions that end and are not freed yet */
	unsigned cut_devices;     /* devices of lost NICs that were closed */
	uint32_t last_session;
	uint64_t arrivals;
	unsigned quarantined;     /* channels */
	struct event *quarantine; /* looks at them, while there are any */
	int pidfd;                /* of this process, for clients; -1: the kernel has none */
	int status_fd, shard_fd, heads_fd[RAILS_MAX]; /* read-only, for clients */
	struct attach_helper large, small;
	struct closer *closer;
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
	unsigned extents; /* on each NIC, without staging */
};
void attach_counts(const struct control *control, struct attach_counts *ret);
/* Adds what the clients counted since the last call to control->statistics. */
void attach_statistics_collect(struct control *control, uint64_t now_ns);

/* ---- attach_socket.c ------------------------------------------------------------------------- */

/* The descriptor that clients connect to, listening, or -errno with the reason logged. */
int attach_socket_listen(struct control *control);
/* No new clients: the socket is closed and its file removed. Twice does no harm. */
void attach_socket_remove(struct control *control);

/* ---- between the attach_*.c ------------------------------------------------------------------ */

/* One reply to session->request, with `fds` riding along. text: why, when status < 0. */
void session_reply(struct session *s, int status, uint64_t a, uint64_t b, const int *fds,
	unsigned fd_count, const char *text);
void session_refuse(struct session *s, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Serves session->request; takes the fd (-1: none came along). */
void session_serve(struct session *s, int fd, unsigned fd_count);
/* Watches the socket, and for how long it stays silent. 0 or -ENOMEM. */
int session_start(struct session *s);
/* At the first request: a place among the sessions; session_refuse() when there is none. */
void session_admit(struct session *s);
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
/* The rails have its staging memory. */
void channel_opened(struct channel *c);
/* Frees it when no rail has it and its staging region is gone. */
void channel_finish(struct channel *c);
/* attach_close(): the rails have ended. */
void channel_free(struct channel *c);

/* The channel was just closed: it stays if its client is copying into a slot. */
void quarantine_enter(struct channel *c);
/* The channel is freed. Twice does no harm. */
void quarantine_leave(struct channel *c);
bool quarantine_allows_credits(const struct session *s);
/* 0 or -ENOMEM. */
int quarantine_open(struct attach *a);
void quarantine_close(struct attach *a);

void region_add_request(struct session *s, int memfd);
void region_remove_request(struct session *s);
/*
 * The channel's staging memory is registered and given to the rails; channel_opened() follows, or
 * the request is refused and the channel freed, perhaps at once. -errno with text: it has none.
 */
int region_add_staging(struct channel *c, size_t offset, char *text, size_t text_bytes);
void region_drop(struct region *r);
/* For memory on pages of `page` bytes: extents have 1 << shift bytes; 0: one extent. */
unsigned region_extent_shift(const struct control *control, uint64_t length, uint64_t page);
unsigned region_extents(uint64_t length, unsigned shift);
/* Registers one MR or, when the region is RELEASING, deregisters it. 0, or -errno and why. */
int region_mr_work(
	struct control *control, struct region *r, unsigned mr, char *text, size_t text_bytes);
/* All MRs, on this thread: the first error is in r->result and r->text. */
void region_work(struct control *control, struct region *r);
/* Does a NIC still have some of it? */
bool region_is_held(const struct region *r);
/* Back on the loop: what the helper threads did. */
void region_worked(struct control *control, struct region *r);
/*
 * attach_close(): the rails have ended. False: a NIC did not let go, so the memory under it stays
 * mapped for as long as the process lives.
 */
bool region_close(struct control *control, struct region *r);

/* 0 or -errno. */
int closer_open(struct closer **ret_closer);
/* Closes the descriptor on the closer's thread; -1 is ignored. */
void closer_take(struct closer *closer, int fd);
void closer_close(struct closer *closer);

int helper_submit(struct control *control, struct region *r);
/* A region that is being registered is not wanted any more: what was not begun is left out. */
void helper_cancel(struct control *control, struct region *r);
/* One region that the threads are done with, or NULL. */
struct region *helper_collect(struct attach_helper *h);
void helper_open(struct control *control, struct attach_helper *h, unsigned threads);
/* Waits for the threads, which finish what they were given; then helper_submit() refuses. */
void helper_stop(struct attach_helper *h);
void helper_close(struct attach_helper *h);

#endif
