/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier: brings pages of other hosts into the pools of this one. It is a client of the
 * engine's own rails, with a channel of its own: it takes a slot as the disk tier does, READs the
 * page there, and publishes this host as a further holder. README.md beside this file is the way
 * in. Control plane's thread only.
 */
#ifndef CONTROL_COPIES_H
#define CONTROL_COPIES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/op.h"
#include "engine/abi/page.h"

struct control;
struct copy_offer;
struct rpc_link;
struct Pc__Offer;
struct Pc__Offered;
struct Pc__Heartbeat;
struct Pc__Touch;

/* Pages that wait for their copy, at most, and bytes, as a share of the pools. */
#define COPIES_WAITING_MAX 65536u
#define COPIES_WAITING_SHARE 8u
/* Copies that are READ at a time. */
#define COPIES_FLIGHTS_MAX 64u
/* Bytes of them: while no client of this host READs, and beside one. A single page may be longer */
#define COPIES_FLIGHT_BYTES (4u << 20)
#define COPIES_BESIDE_BYTES (256u << 10)
/* the same, without copies.mib_per_second: part of the rate of the NICs; if that is not known */
#define COPIES_BESIDE_SHARE 64u
#define COPIES_RATE (1ull << 30)
#define COPIES_RATED_NS 10000000000ull /* how long the rate of the NICs is believed */
/* a client READs as long as a READ of one was in flight this long ago */
#define COPIES_BESIDE_NS 10000000ull
#define COPIES_LATE_NS 1000000ull     /* what is made up for, at most */
#define COPIES_READ_NS 2000000000ull  /* deadline of one READ */
#define COPIES_WAIT_NS 10000000000ull /* longest time for which the first copy waits for a slot */
#define COPIES_SOON_US 1000           /* between two looks while a copy waits for a slot */
/* a page whose key was removed this long ago is not copied: a copy may be older than that */
#define COPIES_FORGOT_NS 5000000000ull

/* A page of another host that is wanted here. */
struct copy_wish {
	struct page_key key;
	struct location from;
	uint32_t length, crc; /* as its head says; `crc` counts if `proven` */
	bool proven;
	enum page_why why;
	bool spare;               /* it comes into free room only: no page is evicted for it */
	struct copy_offer *offer; /* that learns of the end; NULL: none */
	uint32_t page;            /* its number in the offer */
};

int copies_open(struct control *control);
void copies_close(struct control *control);

/*
 * OP_HIT: the page is here, or is being brought. OP_NO_SPACE: too many wait, it is longer than the
 * pages of this host, no memory, or the key was cleared or removed lately. OP_PEER_DOWN: its holder
 * is no member, or this engine does not READ yet. OP_INVALID: no page has this length or place.
 */
enum op_status copies_ask(struct control *control, const struct copy_wish *wish);
/* The key is removed from this host: no copy of it that was requested before is published. */
void copies_forget(struct control *control, const struct page_key *key);
/* Pages of this host are cleared: no copy that was requested before is published. */
void copies_cleared(struct control *control);

/* Once in each turn of the loop. Returns how much it did. */
unsigned copies_turn(struct control *control);
/* The engine stops: nothing more is READ, and the rails return the channel. */
void copies_stop(struct control *control);
/* True if no rail has the copier's channel. */
bool copies_rest(const struct control *control);
/* A rail has returned the copier's channel. */
void copies_returned(struct control *control);

struct copies_counts {
	uint32_t waiting, flying;
	uint64_t bytes;     /* of both */
	uint64_t hot_bytes; /* of the slots of pages that are here because they are hot */
	bool offers;        /* pages that clients of this host store are offered to storage hosts */
	/* members that keep pages for others, and pages that wait to be offered to them */
	uint32_t storage_hosts, storage_waiting;
};
void copies_counts(const struct control *control, struct copies_counts *ret);

/* A client of this host has stored the page: it is offered to a storage host, by the policy. */
void copies_stored(
	struct control *control, const struct page_key *key, uint32_t place, uint32_t generation);

/*
 * Message of another engine whose places were checked: its clients have used these pages. Those
 * that several hosts use again and again are offered to it.
 */
bool copies_serve_touch(struct control *control, struct rpc_link *link, const struct Pc__Touch *m);

/* ---- drain ----------------------------------------------------------------------------------- */

/*
 * Offers the pages of this host to the other members for `ns`, the most recently used first; 0:
 * ends that.
 */
void copies_drain(struct control *control, uint64_t ns);
/* Messages of other engines: pages that they offer; the answer to ours. */
bool copies_serve_offer(struct control *control, struct rpc_link *link, const struct Pc__Offer *m);
bool copies_serve_offered(
	struct control *control, struct rpc_link *link, const struct Pc__Offered *m);
/* The link has closed: offers that came on it are not answered. */
void copies_link_down(struct control *control, const struct rpc_link *link);
/*
 * The member with this number is drained, or not: readers of this host prefer other holders, and
 * nothing is offered to it.
 */
void copies_peer_leaves(struct control *control, uint16_t peer, bool leaves);
/* Message of another engine: whether it is drained. */
bool copies_serve_heartbeat(
	struct control *control, struct rpc_link *link, const struct Pc__Heartbeat *m);

enum drain_state { DRAIN_NONE, DRAIN_RUNNING, DRAIN_DONE };
struct drain_counts {
	enum drain_state state;
	uint64_t pages, left; /* at the start; not offered yet */
	uint64_t copied, copied_bytes;
	uint64_t unfit; /* no member had room for them, or not in time */
	uint64_t gone;  /* evicted or removed meanwhile */
};
void drain_counts(const struct control *control, struct drain_counts *ret);

#endif
