/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier as the control plane runs it: pages that eviction will take soon are written to the
 * segment log of engine/disk (spill), and a page that a client of any host requests comes back into
 * a slot of a pool (promote). The control plane's thread only; engine/disk has threads of its
 * own, and a helper thread opens it. Without disk.paths there is no tier: control->tier is NULL.
 * What other rooms call is in pages.h.
 *
 * Who owns a slot. A slot that is being read into is a credit of the tier (state CREDIT), until
 * disk_reap() has returned the request and the page is published or the slot returned. A slot whose
 * page is being written stays a page or rests in limbo, and is not handed out before disk_reap()
 * has returned the request (pool_write_begin()).
 */
#ifndef CONTROL_TIER_INNER_H
#define CONTROL_TIER_INNER_H

#include <sys/queue.h>

#include "engine/abi/message.pb-c.h"
#include "engine/control/base/work.h"
#include "engine/control/pages/pages_inner.h"

#define TIER_KEYS 4096u /* chains of each hash table; a power of two */
/*
 * Share of the pools that is being written: what a path that hangs can keep from being used. A
 * small pool gives more, so that the disk is not waited for: up to TIER_SPILL_BYTES_MIN, but no
 * more than 1/TIER_SPILL_SHARE_MAX.
 */
#define TIER_SPILL_SHARE 100u
#define TIER_SPILL_SHARE_MAX 16u
#define TIER_SPILL_BYTES_MIN (32u << 20)
/* no page is written ahead of eviction for so long after a write was refused or failed */
#define TIER_REFUSED_NS 1000000000ull
/* after a page was dropped, the reserve of free slots takes pages that are not on disk as well */
#define TIER_BEHIND_NS 1000000000ull
/* pool-fulls from which on a disk gets all pages ahead of eviction; a smaller one gets a share */
#define TIER_AHEAD_POOLS 8u
#define TIER_SPILL_BURST 64u /* pages that one call of tier_spill() writes for one page size */
/* share of the pools for pages that are being read from disk or are pinned */
#define TIER_PIN_SHARE 8u
#define TIER_PIN_NS 50000000ull   /* granularity of the end of a pin */
#define TIER_PIN_STEPS 128u       /* a pin ends at the deadline, at most after this many of these */
#define TIER_HINT_NS 200000000ull /* how long a page that only exists has named waits for a slot */
#define TIER_FLUSH_NS 5000000000ull /* longest time of writing pages at the stop */
#define TIER_SLOW_US 500000         /* between two looks at the state of the paths */
#define TIER_TICK_US 10000 /* between two looks at deadlines, while requests wait or pins exist */
#define TIER_SOON_US 1000  /* the same, while pages wait for a slot */
#define TIER_REMOTE_MAX 8192u     /* requests of other hosts that wait; further ones are refused */
#define TIER_LOST_BURST 256u      /* pages that left the disk, whose entries one turn removes */
#define TIER_EARLY_MAX (1u << 20) /* removals that are remembered while the disk is opened */

/* A page that is being written. */
struct tier_spill {
	struct disk_request request; /* the first member */
	LIST_ENTRY(tier_spill) same;
	TAILQ_ENTRY(tier_spill) next;
	uint32_t place, generation, bytes;
	uint32_t crc;  /* what the page head says; valid if request.has_crc */
	bool stranded; /* held by a path: it counts neither as being written nor in the budget */
};

/* A client's request for a page. */
struct tier_waiter {
	STAILQ_ENTRY(tier_waiter) next;
	uint64_t deadline_ns;
	uint32_t answer;       /* number of ctl_later(); of a client of this host */
	bool remote;           /* of a client of another host: */
	struct rpc_link *link; /* to answer on; NULL: it has closed */
	uint64_t id;           /* PromotePage.id */
};

enum promote_state {
	PROMOTE_WRITING, /* the page is being written; read it then */
	PROMOTE_CAPPED,  /* too much is pinned */
	PROMOTE_WANTED,  /* waits for a slot; counted in evict_class.waiting */
	PROMOTE_READING,
	PROMOTE_STATES
};

/* A page that is to be read from disk. */
struct tier_promote {
	struct disk_request request; /* the first member */
	LIST_ENTRY(tier_promote) same;
	TAILQ_ENTRY(tier_promote) next; /* in the list of its state */
	enum promote_state state;
	bool removed;  /* what is read is not published: the key was removed since, or `stranded` */
	bool stranded; /* held by a path: its bytes are not in pinned_bytes any more */
	unsigned rail; /* whose pool it comes into; from PROMOTE_WANTED on */
	struct evict_class *class; /* while PROMOTE_WANTED; see ctl_request.class */
	bool own; /* then: its group is above its quota, and gives pages of its own */
	uint32_t bytes, place, generation;
	uint64_t until_ns; /* until then it is kept without waiters: a hint */
	STAILQ_HEAD(, tier_waiter) waiters;
};
TAILQ_HEAD(tier_promotes, tier_promote);

/* One message for several answers to another engine. */
struct tier_reply {
	struct rpc_link *link; /* NULL: the message is empty */
	unsigned pages;
	Pc__PromotedPage page[MESSAGE_PAGES_MAX];
	Pc__PromotedPage *page_at[MESSAGE_PAGES_MAX];
};

/* A page that is pinned. */
struct tier_pin {
	LIST_ENTRY(tier_pin) same;
	TAILQ_ENTRY(tier_pin) next; /* in the wheel */
	uint32_t place, generation, bytes;
	uint32_t readers;
	unsigned step; /* of the wheel */
};
TAILQ_HEAD(tier_pins, tier_pin);

struct tier {
	struct work opening; /* disk_open(); must be first: it is cast to struct tier */
	struct control *control;
	enum tier_state state;
	struct disk *disk; /* from TIER_SERVING on */
	struct disk_options options;
	char paths[1024];          /* the text that options.path[].directory points into */
	struct disk_report report; /* refreshed every TIER_SLOW_US */

	struct works *works; /* of `opening` */
	int opened_rc;       /* result of `opening` */
	/* owner: the helper thread until `opening` is done: why no path can be used */
	struct disk_report failed;
	struct event *ready;
	struct net_timer *slow, *tick;
	bool ticking, soon; /* `tick` is armed; with TIER_SOON_US */
	/* removed while the disk is opened */
	struct page_key *early;
	uint32_t early_count;

	/* writes */
	LIST_HEAD(, tier_spill) spill_of[TIER_KEYS];
	TAILQ_HEAD(, tier_spill) spills; /* oldest first */
	uint64_t spill_bytes, spill_bytes_max, pools_bytes;
	uint64_t disk_bytes; /* of the paths in service */
	uint32_t spill_count;
	/* when a write was refused or failed last; when a page was dropped last; 0: never */
	uint64_t refused_ns, dropped_ns;
	uint64_t writing_ns, counted_ns; /* time in which pages were being written, until when */
	bool spill_due, lost_due;

	/* reads: tier_promote.c */
	LIST_HEAD(, tier_promote) promote_of[TIER_KEYS];
	struct tier_promotes promotes[PROMOTE_STATES];
	unsigned turn; /* distributes promoted pages over the rails */
	bool promote_due;
	/* bytes of pages in PROMOTE_WANTED and PROMOTE_READING, and of those pinned */
	uint64_t pinned_bytes, pinned_bytes_max;

	/* requests of other engines that wait, and the answer that is being filled */
	unsigned remote;
	struct tier_reply reply;

	/* pins */
	LIST_HEAD(, tier_pin) pin_of[TIER_KEYS];
	struct tier_pins wheel[TIER_PIN_STEPS];
	uint64_t wheel_ns; /* the steps before this time are done */
	uint32_t pins;
};

/* ---- tier.c for tier_promote.c -------------------------------------------------------------- */

static inline unsigned tier_chain(uint64_t word)
{
	return (unsigned)(map_mix(word) & (TIER_KEYS - 1));
}

static inline uint32_t tier_bytes(uint32_t length)
{
	return (length + PAGE_UNIT - 1) / PAGE_UNIT * PAGE_UNIT;
}

/* The address of a place in this host's pools. */
static inline void *tier_memory(const struct tier *t, uint32_t place)
{
	unsigned char *pool = pool_memory(t->control->rail[place_rail(place)].pool)->base;

	return pool + place_offset(place);
}

/* The answer that names a page in memory. */
static inline struct ctl_done page_here(const struct index_entry *e)
{
	return (struct ctl_done){.status = OP_HIT,
		.place = e->place,
		.generation = e->generation,
		.length = e->length};
}

/* True if the key is on disk with this length. */
static inline bool tier_has(struct tier *t, const struct page_key *key, uint32_t length)
{
	struct disk_page page;

	return disk_find(t->disk, key, &page) && page.length == length;
}

/* Arms the timer that looks at deadlines. */
void tier_tick(struct tier *t);
/*
 * The write of the key's page that is in flight, or NULL: also when the key was removed since, or
 * if only a path that has failed has it.
 */
struct tier_spill *tier_spilling(struct tier *t, const struct page_key *key);

/* ---- tier.c, called by tests too ------------------------------------------------------------- */

/* Writes pages ahead of the eviction hands, as far as the budget goes. */
unsigned tier_spill(struct tier *t);
/* Starts to write the page. False: it is not written. */
bool tier_spill_start(struct tier *t, const struct pool_victim *page);

/* ---- tier_paths.c ---------------------------------------------------------------------------- */

/*
 * Splits disk.paths into ret->path; the names are in `text`, as long as settings->disk_paths.
 * Returns 0, or -EINVAL after logging.
 */
int tier_paths_split(const struct settings *s, char *text, struct disk_options *ret);

/* ---- tier_promote.c -------------------------------------------------------------------------- */

/* What the tier knows about a key. */
struct tier_found {
	bool written; /* the page is on disk */
	bool writing; /* it is being written */
	uint32_t length;
};
void tier_look(struct tier *t, const struct page_key *key, struct tier_found *ret);
/* Takes slots for pages that wait for one, and submits their reads. */
unsigned tier_promote(struct tier *t, uint64_t now_ns);
void tier_promoted(struct tier *t, struct tier_promote *promote);
/* The path has failed while it read: gives back the bytes of the read; its key can be read anew. */
void tier_promote_strand(struct tier *t, struct tier_promote *promote);
/* The write that a promote waits for has ended. */
void tier_written(struct tier *t, const struct page_key *key, bool on_disk);
/* The key was removed: what is being read of it is not published. */
void tier_promote_cancel(struct tier *t, const struct page_key *key);
/* Ends pins, and answers the requests whose deadline has passed. */
void tier_promote_expire(struct tier *t, uint64_t now_ns);
/* Ends all pins and requests. */
void tier_promote_close(struct tier *t);
/* Sends the answers that were collected for other engines. */
void tier_replies_send(struct tier *t);
/*
 * Keeps the page in memory until `readers` clients have read it, or until `deadline_ns`. Its
 * bytes are counted in pinned_bytes already; they are given back when the pin ends, or at once
 * without readers. Six parameters: the page, and who reads it until when.
 */
void tier_pin(struct tier *t, uint32_t place, uint32_t generation, uint32_t bytes, uint32_t readers,
	uint64_t deadline_ns);
/* Serves CTL_PROMOTE without a ref, or with this engine's. */
void tier_serve(struct control *control, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns);
/* A get may follow: brings the page into memory if there is room. */
void tier_hint(struct control *control, const struct page_key *key);

#endif
