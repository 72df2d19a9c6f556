/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of this host, for other rooms: sessions with their channels and memory, and the ctl rings
 * of the channels. README.md of this folder says how they work together. Control plane's thread
 * only.
 *
 * The protocol of sessions is in abi/segment.h, that of ctl rings in abi/op.h.
 */
#ifndef CONTROL_CLIENTS_H
#define CONTROL_CLIENTS_H

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"
#include "engine/abi/message.pb-c.h"
#include "engine/abi/op.h"
#include "engine/abi/statistics.h"

struct control;
struct rail_channel;
struct rpc_link;
struct ctl;
struct ctl_channel;
struct ctl_request;

/* ---- the loop and control_open.c: sessions, channels, client memory -------------------------- */

/* What this room calls of rooms above it: control->client_events, of upward.c. */
struct client_events {
	/* The rail's NIC did not deregister client memory: it has died. `why`: its driver's text */
	void (*nic_lost)(struct control *control, unsigned rail, const char *why);
	/* The engine's report for a client: text that the caller frees. Returns 0 or -ENOMEM. */
	int (*report)(struct control *control, char **ret_text, size_t *ret_bytes);
};

/* Whether engine.allowed_users and engine.allowed_groups are known here: 0 or -errno, logged. */
int client_access_check(struct control *control);
/* Binds engine.socket without listening on it: early clients are refused. Returns 0 or -errno. */
int client_socket_open(struct control *control);
void client_socket_close(struct control *control);
/*
 * Listens on the socket. Clients are accepted at once, or, if pages of the engine before wait for
 * the door (directory/epochs.c), from clients_accept() on. Returns 0 or -errno.
 */
int clients_open(struct control *control);
/* Clients may come: called once, when the door (directory/epochs.c) opens. */
void clients_accept(struct control *control);
/*
 * Handles regions that the helper threads have finished, sends replies that waited for the rails'
 * inboxes, and frees ended sessions. Returns 0 if there was nothing to do.
 */
unsigned clients_turn(struct control *control);
/* Called at shutdown: accepts no more clients and ends all sessions. */
void clients_stop(struct control *control);
/* Called when the rails have ended or were never started: no READ is in flight. */
void clients_close(struct control *control);

/*
 * Called when a rail or ctl.c found an impossible ring index in the channel. Ends the client's
 * session.
 */
void client_channel_broken(struct control *control, uint32_t channel);
/* A right or a quota is why an op of the channel is refused: counted, a finding, in the log. */
void client_deny(struct control *control, uint32_t channel, const char *text);
/* A rail has returned what it was told to stop or drop: it does not touch it any more. */
void client_channel_returned(struct control *control, struct rail_channel *returned);
void client_region_returned(struct control *control, uint32_t region);
/*
 * Called after the device of a lost NIC was closed: deregisters again the memory that this NIC had
 * not deregistered.
 */
void client_memory_release_held(struct control *control);
/*
 * The device of the rail's NIC was opened anew: helper threads register the memory there that
 * clients have registered before. Called until it returns 0: then the rail was sent the keys of all
 * regions. More: registrations are in progress. Less: -errno of one that failed, and why.
 */
int client_memory_renew(struct control *control, unsigned rail, char *why, size_t bytes);

/*
 * Number of sessions whose process may have a descriptor of a NIC's device. While there is one, the
 * kernel keeps the queues of a device that is closed.
 */
unsigned clients_lent(const struct control *control);

/* ---- figures --------------------------------------------------------------------------------- */

#define CLIENT_REFUSAL_BYTES 224u /* as much as attach_reply.text */

struct client_counts {
	unsigned sessions, channels, regions;
	unsigned extents; /* number of extents in use on each NIC, without staging memory */
	/* processes that try to attach again and again and are refused; the last one, and why */
	unsigned refused;
	int refused_pid;
	char refusal[CLIENT_REFUSAL_BYTES];
	/* attached ones of which a request was refused lately; the last one, and why */
	unsigned denied;
	int denied_pid;
	char denial[CLIENT_REFUSAL_BYTES];
};
void client_counts(const struct control *control, struct client_counts *ret);

/*
 * Totals of what the clients of this host count in their channels (abi/statistics.h). They only
 * grow, also when channels come and go.
 */
struct statistics {
	struct statistics_words total;
	uint64_t refused; /* channels whose figures were impossible */
};
/* Adds what the clients counted since the last call to control->statistics. */
void client_statistics_collect(struct control *control, uint64_t now_ns);

/*
 * Credits held by all channels, requests that wait for room, and operations that the directory
 * has not called back for.
 */
struct ctl_counts {
	uint64_t credits;
	uint64_t waiting;
};
void ctl_counts(const struct control *control, struct ctl_counts *ret);

/* ---- the loop and control_open.c: ctl rings -------------------------------------------------- */

int ctl_open(struct control *control);
/*
 * Closes ctl.c but keeps its memory, because updates_answer() may still call. ctl_free() frees the
 * memory; it is called after directory_close().
 */
void ctl_close(struct control *control);
void ctl_free(struct ctl *ctl);
/* Takes ops from the ctl rings of all channels. Returns 0 if there was nothing to do. */
unsigned ctl_turn(struct control *control);
/* Wakes the clients whose channels received answers since the last call. */
void ctl_flush(struct control *control);
/* Time of the last credit request or publish of a client, of net_now(). */
uint64_t ctl_stored_ns(const struct control *control);
/* Removes a part of the pages that were cleared. Returns how much it did. */
unsigned clear_turn(struct control *control);
/* Drops the CTL_CLEAR requests; their clients get no answer. */
void clear_close(struct control *control);
/* Messages of other engines: a client there empties the cluster; the answer to ours. */
bool clear_serve_member(struct control *control, struct rpc_link *link, const Pc__Clear *m);
bool clear_serve_cleared(struct control *control, struct rpc_link *link, const Pc__Cleared *m);

/* ---- limits of groups of namespaces: quotas, and how long pages stay ------------------------- */

/*
 * Reads engine.quotas and engine.ttls at first; then evicts what is above a quota, and removes what
 * is too old. Returns how much it did.
 */
unsigned groups_turn(struct control *control);

/* ---- answers to ops that other rooms serve --------------------------------------------------- */

#define CTL_NO_ANSWER UINT32_MAX
/*
 * maximum time, in ns, to the deadline of a credit request; a later deadline is shortened to this
 */
#define CTL_DEADLINE_NS 600000000000ull

/* Answers an op now: `done` needs neither cookie nor kind. */
void ctl_answer_now(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_done *done);
/*
 * The op is answered later. Returns the number of its first page; the others, if it has `pages` > 1
 * of them, follow. Each is to be ended once, by ctl_later_answer() if the op has one. Pages of a
 * CTL_PUBLISH are ended one by one, and the last one sends the answers. CTL_NO_ANSWER: no memory.
 * The channel may close meanwhile.
 */
uint32_t ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages);
void ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done);

/* ---- credits --------------------------------------------------------------------------------- */

/* time between two checks of slots that a client may still write to, in us */
#define CLIENT_QUARANTINE_US 10000

/* One credit, a cell of the hash table struct credits. length 0: the cell is empty. */
struct credit {
	uint32_t place;
	uint32_t generation;
	uint32_t length; /* length of the page for which the client requested the slot */
};

struct ctl_rail {
	struct ctl_request *first;
	/*
	 * the pointer to set when the next credit request is queued: &first, or &next of the last
	 * request
	 */
	struct ctl_request **last;
	uint32_t pass; /* number of the current ctl_pass() of this pool */
};

struct ctl {
	struct control *control;
	struct evict *evict; /* control->evict */
	struct ctl_channel *channel[CHANNELS_MAX];
	unsigned channels_end;        /* no channel is open from this number on */
	uint32_t dirty[CHANNELS_MAX]; /* numbers of the channels whose `dirty` is set */
	unsigned dirties;
	uint32_t generation;
	struct ctl_rail rail[RAILS_MAX];
	struct ctl_answer *answer;
	uint32_t answers, answer_free, answers_used;
	uint64_t stored_ns; /* time of the last credit request or publish */
	struct net_timer *timer;
	uint64_t timer_ns; /* time at which the timer fires; 0: it is not armed */
	/* true: an op stays in a ctl ring because its answers do not fit the ctl_done ring */
	bool stalled;
};

#endif
