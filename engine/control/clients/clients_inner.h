/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions, channels and memory regions of clients. For clients.c, client_*.c and statistics.c
 * only. Runs on the control plane's thread only, except the threads of client_memory.c, which
 * register memory, and the thread of client_closer.c.
 *
 *   clients.c         connections and sessions: requests, replies
 *   client_socket.c   the socket file and its lock
 *   client_access.c   which processes may attach
 *   client_channel.c  channel segments, their rings on every rail, quarantine
 *   client_memory.c   client memory: checked, mapped, registered, given to the rails, taken back
 *   client_quota.c    what a session and a user may take
 *   client_closer.c   the thread that closes descriptors that clients sent
 *   statistics.c      figures that clients count in their channels
 *
 * Channels and regions belong to the rails from the command that adds them until every rail has
 * returned them. Only then are they unmapped and their numbers reused.
 */
#ifndef CONTROL_CLIENTS_INNER_H
#define CONTROL_CLIENTS_INNER_H

#include <pthread.h>
#include <sched.h>
#include <sys/types.h>

#include "engine/control/base/control.h"
#include "engine/control/base/work.h"
#include "engine/control/clients/clients.h"
#include "engine/control/clients/ctl_inner.h"

/*
 * Memory up to this size is registered by threads of its own (CLIENT_SMALL_HELPERS), so that
 * opening a channel, whose staging memory is small, does not wait for large memory.
 */
#define CLIENT_SMALL_BYTES (1u << 20)
/* helper threads that register memory of at most CLIENT_SMALL_BYTES */
#define CLIENT_SMALL_HELPERS 2u
#define CLIENT_HELPERS 8u /* helper threads that register larger memory */
/* time between two log lines about one long registration, in ns */
#define CLIENT_TELL_NS 5000000000ull
/* maximum number of client connections that have not sent a request */
#define CLIENT_SILENT_MAX 32u
/* a client connection that has sent no request for this time is closed */
#define CLIENT_SILENT_SECONDS 2
/* maximum number of refused clients that stay connected, so that they can read the reason */
#define CLIENT_REFUSED_MAX 8u
#define CLIENT_PLACES (SESSIONS_MAX + CLIENT_SILENT_MAX + CLIENT_REFUSED_MAX)
#define CLIENT_REFUSED_SECONDS 1 /* a refused client is disconnected after this time, in s */
/* refused processes that are remembered, so that the log has each once */
#define CLIENT_REFUSALS SESSIONS_MAX
/* one that has not tried for this time is another one: its number is used again */
#define CLIENT_REFUSAL_NS 60000000000ull
/* one that goes on trying for this time is a finding, until it has not tried for this time */
#define CLIENT_TRIES_NS 5000000000ull
#define CLIENT_REGION_BYTES_MAX (1ull << 40)
#define CLIENT_ACCEPTS 16u /* client connections accepted in one turn of the control plane */
/* length from which on the file of recorded keys takes no more before it is fetched, bytes */
#define CLIENT_ASKED_BYTES (32 << 20)
/* a client process with this number of slots in quarantine gets no more credits */
#define CLIENT_QUARANTINE_MAX 8u
/*
 * Client memory ranges of all sessions together. One region for each channel is kept back, because
 * every channel needs a region for its staging memory.
 */
#define CLIENT_RANGES_MAX (REGIONS_MAX - REGION_CLIENT_0 - CHANNELS_MAX)
static_assert(
	SESSION_ALONE(CHANNELS_MAX, CHANNELS_SESSION_SURE) > 2 * CHANNELS_SESSION_MIN &&
		SESSION_ALONE(CLIENT_RANGES_MAX, RANGES_SESSION_SURE) > 2 * RANGES_SESSION_MIN &&
		SESSION_ALONE(EXTENTS_MAX, EXTENTS_SESSION_SURE) > 2 * EXTENTS_SESSION_MIN,
	"a second session gets more than the least");

struct session;
struct channel;
struct closer;

enum region_state {
	REGION_REGISTERING, /* state of a region: the helper threads register its memory */
	REGION_LIVE,        /* state of a region: the rails know it and use it for READs */
	REGION_DROPPING,    /* state of a region: the rails were told to return it */
	REGION_RELEASING,   /* state of a region: the helper threads deregister its memory */
};

/*
 * A region is registered on every NIC, in extents of equal size; each extent is a memory
 * registration (MR) of its own, and the last one may be shorter. A region on huge pages, or a small
 * one, is one extent.
 */
struct region {
	struct work work; /* must be first: a pointer to it is cast to struct region */
	uint32_t id;      /* number of the region: REGION_CLIENT_0 .. REGIONS_MAX - 1 */
	struct session *session;
	/* the channel whose staging memory this is; NULL: memory registered by the client */
	struct channel *staging_of;
	/* the client's memfd; -1: staging memory, which is part of the channel's memfd */
	int memfd;
	/* the engine's mapping of the memory; NULL: staging memory, which the channel has mapped */
	void *map;
	size_t map_bytes;
	void *base;
	size_t length;
	uint64_t offset; /* offset of the region in the memfd, in bytes */
	enum region_state state;
	unsigned left; /* number of rails that have not returned the region */
	/* every extent of the region has 1 << extent_shift bytes; 0: the region is one extent */
	unsigned extent_shift;
	unsigned extents;
	/* length of `mr`, extents * NICs: the MR of extent e on NIC n is number n * extents + e */
	unsigned mrs;
	/*
	 * While REGISTERING, RELEASING or renewing, the following belongs to the helper threads:
	 * each MR to one thread, the rest to the holder of the lock.
	 */
	struct dv_mr *mr; /* array of `mrs` MRs; an MR of length 0 is not registered */
	/* array of `mrs`: what the client has registered; NULL: the engine registers the memory */
	struct region_key *key;
	/*
	 * array of the `mrs` lkeys; rails read it from RAIL_REGION_ADD until they return the region
	 */
	uint32_t *lkey;
	unsigned mrs_done;
	uint64_t began_ns, told_ns;
	/*
	 * the state is REGION_RELEASING, but a NIC did not deregister the memory: the region waits
	 * until that NIC's device is closed
	 */
	bool held;
	/*
	 * the region is REGION_LIVE, or DROPPING since, and helper threads register it anew on the
	 * NICs that do not know it: see client_memory_renew()
	 */
	bool renewing;
	int renewed; /* negative: the renewal failed, and client_memory_renew() has to report it */
	/* value of clients->cut_devices when the release of this region began */
	unsigned cut_devices;
	int result;
	char text[160];
};

/* What one channel has contributed so far. All zero when the channel is opened. */
struct statistics_source {
	struct statistics_words seen;
	uint32_t sequence; /* of `seen`; unchanged: no batch ended since then */
	uint64_t read_ns;  /* CLOCK_MONOTONIC of the last accepted reading, or of the opening */
	bool refused;
};

struct channel {
	uint32_t id; /* number of the channel, < CHANNELS_MAX */
	struct session *session;
	int memfd;
	int wake; /* the engine's end of the socket pair that wakes the client */
	/* the client's end of that pair, until it is sent to the client; then -1 */
	int wake_client;
	unsigned char *map;
	size_t bytes;
	struct region *staging;
	struct rail_channel rail[RAILS_MAX];
	unsigned left; /* number of rails that have not returned the channel */
	/*
	 * the channel's staging memory is being registered; rails and ctl.c do not know it yet
	 */
	bool opening;
	bool stopping;
	/*
	 * the channel is in quarantine: the client's thread may still copy into the slot
	 * ctl.kept
	 */
	bool quarantined;
	struct ctl_channel ctl;
	struct statistics_source statistics;
	uint64_t asked_taken; /* words of struct channel_asked */
};

struct session {
	struct control *control;
	/* number of the session, never reused; 0: the client has not sent a request yet */
	uint32_t id;
	/*
	 * number of the connection in the order of accept(); the smallest one is the oldest
	 * connection
	 */
	uint64_t arrival;
	struct session **place; /* the element of clients->place that points to this session */
	int fd;
	pid_t pid;
	uint32_t uid;
	bool administers; /* the engine: client_access_administers() */
	/* pidfd of the client; -1: the process cannot be watched, so it gets no credits */
	int pidfd;
	struct event *readable;
	struct event *closed;
	/* libevent event: the client's process has exited, even if a child keeps the socket open */
	struct event *exited;
	int refuse; /* 0, or the -errno with which every request of this client is refused */
	char refusal[CLIENT_REFUSAL_BYTES];
	struct attach_request request; /* the client's request that the engine serves now */
	/* true until `request` is answered; the engine reads no further request meanwhile */
	bool busy;
	/* true while the reply waits until the rails' inboxes have all commands of this session */
	bool waits_told;
	uint64_t reply_a, reply_b;
	struct region *waits_region;
	struct channel *waits_channel;
	/* number of channels and of regions not yet freed; regions include staging memory */
	unsigned channels, regions;
	unsigned quarantined; /* number of channels of this session that are in quarantine */
	uint32_t process;     /* number under which warm.c stores the pidfd; 0: it does not */
	bool leaves; /* a channel of it stays stored: its slot is reserved for the next engine */
	/* number of this session's regions and of their extents, without staging memory */
	unsigned ranges, extents;
	bool lent; /* the process may have descriptors of the NICs' devices: ATTACH_LEND */
	int loan;  /* if `lent`: end of a socket pair by which the process gives them back */
	bool ending;
};

/* Numbers of users or of groups. */
struct client_ids {
	unsigned count;
	uint32_t id[CLIENT_IDS_MAX];
};

struct client_list {
	struct client_ids users, groups;
};

struct client_access {
	struct client_list clients, admins;
	/* what unknown users and groups appear as in this user namespace; UINT32_MAX: none is */
	uint32_t unknown_user, unknown_group;
};

/* A process that was refused. */
struct client_refusal {
	pid_t pid;
	uint32_t uid;
	bool attached; /* one request was refused, not the session */
	char text[CLIENT_REFUSAL_BYTES];
	uint64_t since_ns, tried_ns; /* its first and its last try; 0: this place is free */
};

struct clients {
	struct control *control;
	struct client_access access;
	struct event *accepts;
	union {
		struct session *place[CLIENT_PLACES];
		struct {
			struct session *session[SESSIONS_MAX]; /* attached */
			struct session *silent[CLIENT_SILENT_MAX];
			struct session *refused[CLIENT_REFUSED_MAX];
		};
	};
	struct client_refusal refusal[CLIENT_REFUSALS];
	struct channel *channel[CHANNELS_MAX];
	struct region *region[REGIONS_MAX];
	const struct session *recorder; /* gets what all clients ask for; NULL: none does */
	int asked_fd; /* file of that since its last request, of about CLIENT_ASKED_BYTES at most */
	unsigned sessions, channels, regions;
	/* number of client memory regions and of their extents, without staging memory */
	unsigned ranges, extents;
	/* number of sessions whose reply waits until the rails' inboxes have their commands */
	unsigned waits_told;
	unsigned endings;     /* number of sessions that are ending and not freed yet */
	unsigned cut_devices; /* number of lost NICs whose devices were closed */
	uint32_t last_session;
	uint64_t arrivals;
	unsigned quarantined; /* number of channels in quarantine */
	/* timer that checks the channels in quarantine; armed while there is at least one */
	struct net_timer *quarantine;
	int pidfd; /* pidfd of the engine, sent to clients; -1: the kernel refused to create it */
	/*
	 * read-only descriptors of the status segment, the shard and the page heads, sent to
	 * clients
	 */
	int status_fd, shard_fd, heads_fd[RAILS_MAX];
	unsigned lent; /* number of sessions with `lent` */
	/* what was registered and not named is to be deregistered; `sweeping`: it is on the way */
	bool sweep_wanted, sweeping;
	struct work sweep;
	struct works *large, *small; /* helper threads that register memory */
	pthread_mutex_t results;     /* protects `result`, `text` and progress of all regions */
	struct closer *closer;
};

/* ---- clients.c ------------------------------------------------------------------------------- */

/* The one reply to s->request: it succeeded, with results and `count` descriptors. */
void session_reply(struct session *s, uint64_t a, uint64_t b, const int *fds, unsigned count);
/* The one reply to s->request: it failed with `status`, for the reason in `text`. */
void session_fail(struct session *s, int status, const char *text);
/* The same, where a right or a quota is the reason: counted, a finding, and once in the log. */
void session_deny(struct session *s, int status, const char *text);
/* Replies to s->request as soon as the rails' inboxes have all commands sent so far. */
void session_reply_told(struct session *s, uint64_t a, uint64_t b);
/*
 * Stops the session's channels and drops its regions. clients_turn() frees the session later.
 * Calling it twice does no harm.
 */
void session_end(struct session *s, const char *why);

/* ---- client_quota.c -------------------------------------------------------------------------- */

/* What clients share. */
enum client_share { SHARE_CHANNELS, SHARE_RANGES, SHARE_EXTENTS };

/* How much of it is left. */
unsigned clients_left(const struct clients *clients, enum client_share what);
/*
 * The quota of a session. Of what is left, each of SESSIONS_MAX sessions, those included that are
 * not attached yet, is sure to get _SESSION_SURE. Of the rest, the session may take `wants` if it
 * then has no more than (rest - wants) / sessions, or no more than _SESSION_MIN. So a single
 * session stops at half of the rest, and many sessions take nothing from those that come later.
 * Where several users have more than they are sure of, the same holds for all sessions of a user
 * together, and the number of users.
 */
bool session_may_take(const struct session *s, enum client_share what, unsigned wants);
/* Number of users that have more of it than their sessions are sure of, that of `s` included. */
unsigned clients_users(const struct session *s, enum client_share what);
/*
 * Whether the user gets one more session: each of client_access_users() is sure of
 * SESSIONS_USER_SURE of them, whatever another one has taken. *ret_has: how many it has.
 */
bool user_may_attach(const struct session *s, unsigned *ret_has);
/*
 * Whether the session may register one more range of `extents` extents. Returns 0, or -EMFILE with
 * the reason in `text`.
 */
int region_quota_check(
	const struct session *s, unsigned extents, uint64_t length, char *text, size_t bytes);

/* ---- client_access.c ------------------------------------------------------------------------- */

/* Resolves the settings. Returns 0 or -errno, logged but for -ENOMEM. */
int client_access_open(const struct settings *settings, struct client_access *ret);
/* Whether the process that has connected as `fd` administers the engine. */
bool client_access_administers(
	const struct client_access *access, int fd, const struct ucred *peer);
/* Number of users that may come, as far as the settings tell, at most USERS_SURE. */
unsigned client_access_users(const struct client_access *access);
/*
 * Whether the process that has connected as `fd` may attach; if not, *ret_why has what was
 * compared.
 */
bool client_access_allows(const struct control *control, const struct client_access *access, int fd,
	const struct ucred *peer, char *ret_why, size_t why_bytes);

/* ---- client_socket.c ------------------------------------------------------------------------- */

/*
 * Listens on the engine's socket. Returns the descriptor that clients connect to; on failure logs
 * and returns -errno.
 */
int client_socket_listen(struct control *control);
/*
 * From now on connections are accepted, and SO_PEERCRED of clients that connect names this process:
 * one that gets no answer knows whether this engine hangs or is still to come. Returns 0; on
 * failure logs and returns -errno.
 */
int client_socket_answer(struct control *control);
/*
 * Closes the engine's socket and removes its file, so that no new client connects. May be called
 * twice.
 */
void client_socket_remove(struct control *control);

/* ---- client_channel.c ------------------------------------------------------------------------ */

void channel_open_request(struct session *s);
void channel_close_request(struct session *s);
/* Appends to clients->asked_fd the keys of each channel since the last call. */
void client_asked_take(struct control *control);
/* Stops serving the channel and tells the rails to return it. */
void channel_stop(struct channel *c);
/* Called when the channel's staging memory is registered and the rails know it: sends the reply. */
void channel_opened(struct channel *c);
/* Frees the stopped channel if all rails have returned it and its staging region is freed. */
void channel_finish(struct channel *c);
/* Creates the timer that checks the channels in quarantine. Returns 0 or -ENOMEM. */
int channels_open(struct clients *clients);
/* Frees all channels. Called by clients_close(), after the poll cores have ended. */
void channels_close(struct clients *clients);

/* ---- client_memory.c ------------------------------------------------------------------------- */

void region_add_request(struct session *s, int memfd);
void region_remove_request(struct session *s);
void region_lend_request(struct session *s);
void region_import_request(struct session *s, int memfd);
/* Whether no process has a descriptor of a device that this session was lent. */
bool region_lend_returned(const struct session *s);
/* Called then. `sweep`: it may have registered what it has not named. */
void region_lend_end(struct session *s, bool sweep);
/*
 * Registers the channel's staging memory and gives it to the rails. Then channel_opened() is
 * called, or the request is refused and the channel freed, perhaps before this function returns. On
 * -errno, with the reason in `text`, the channel has no staging memory.
 */
int region_add_staging(struct channel *c, size_t offset, char *text, size_t text_bytes);
/* Tells the rails to return the region, or cancels its registration. */
void region_drop(struct region *r);
/*
 * Called by clients_close() after the rails have ended. False: a NIC did not deregister the memory,
 * so the memory stays mapped as long as the process lives.
 */
bool region_close(struct control *control, struct region *r);

/* Returns 0 or -errno; client_memory_close() follows in both cases. */
int client_memory_open(struct control *control);
/* Waits until the helper threads have finished all regions that they were given. */
void client_memory_stop(struct clients *clients);
void client_memory_close(struct control *control);

/* ---- client_closer.c ------------------------------------------------------------------------- */

/* Starts the thread that closes descriptors of clients. Returns 0 or -errno. */
int closer_open(struct closer **ret_closer);
/* Passes the descriptor to that thread, which closes it. A descriptor of -1 is ignored. */
void closer_take(struct closer *closer, int fd);
void closer_close(struct closer *closer);

/* ---- statistics.c ---------------------------------------------------------------------------- */

/*
 * Adds what the channel counted since the last call. False: its figures are impossible (less than
 * before, sums that do not agree, or more than a thread can do since then); nothing of them is
 * added, now or later. A client that is writing at this moment is read at the next call.
 */
bool statistics_collect(struct statistics *statistics, struct statistics_source *source,
	const struct channel_statistics *area, uint64_t now_ns);

#endif
