/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of libpeercache share. Nothing here is installed.
 *
 * - struct pc: the process's view: the current session, registered memory. Any thread, under `lock`
 *   (tables; never held while waiting) and `wire` (one request and its reply on the socket). Code
 *   that needs both takes wire first.
 * - struct session: one attachment to one engine: socket and mappings. Read-only once made, except
 *   `dead`; freed when the last user lets go, counted under lock.
 * - struct pc_channel, in channel.h: everything of one thread: rings, requests, cache, credits,
 *   batches. No locks; touched by that thread alone.
 * - struct pc_batch: one call's pages, each a small state machine that batch.c draws.
 *
 * A thread that moves pages takes `lock` twice a batch, to pin the registered memory it names.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <pthread.h>
#include <sys/types.h>

#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/segment.h"
#include "engine/client/peercache.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define CLIENT_NONE UINT32_MAX
#define SOCKET_DEFAULT "/run/peercache/engine.sock"

/* The front of the staging region: one slot per bucket that is being READ. */
#define SCRATCH_SLOTS 4096u
#define SCRATCH_BYTES (SCRATCH_SLOTS * 64u)
#define STAGING_BLOCKS 1024u /* pages in staging at a time; a power of two */
#define STAGING_PAGE_MAX (STAGING_BYTES - SCRATCH_BYTES)
#define CACHE_SLOTS 65536u     /* locations a channel remembers; a power of two */
#define TOUCH_BYTES (2u << 20) /* of a pool are mapped at a time */
#define CREDIT_STOCK_MAX 64u   /* credits of one size and rail */
#define CREDIT_STOCK_BYTES (8u << 20)
#define CREDIT_AHEAD 2u /* asked for on top of what is missing; more when a stock runs out, ... */
#define CREDIT_AHEAD_SHARE 64u         /* ... up to this part of a pool */
#define SKIP_MAX 64u                   /* pages without a credit that one step looks past */
#define FLUSH_SLOTS 64u                /* slots written before the rail learns of them */
#define FLUSH_LONG (64u << 10)         /* pages so long are told at once ... */
#define FLUSH_DRY (1u << 20)           /* ... to a rail that has no more than this */
#define PAGE_OTHERS 3                  /* further locations of a key that are kept to try */
#define STRIPE_BYTES (2u << 20)        /* a channel has at most so many on their way over a rail */
#define STRIPE_BYTES_BIG (4u << 20)    /* ... of pages longer than a slice: more than two of them */
#define STRIPE_BYTES_MIN SLICE_BYTES   /* ... or, in proportion to its bandwidth, so many */
#define STRIPE_SAMPLE_BYTES (1u << 20) /* moved, before a rail's bandwidth is reckoned anew */
#define STRIPE_SAMPLE_NS 50000u        /* ... and in no less time than that */
#define STRIPE_RATE_MAX (1ull << 30)   /* bytes per 1024 ns: a sample of no time at all */
#define STRIPE_RATIO_MAX 64u           /* no rail counts as slower than the fastest by more */

#define FRESH_NS 1000000000ull       /* how long exists and set believe the location cache */
#define TOUCH_NS 1000000000ull       /* one touch a page in this time */
#define PEER_REST_NS 1000000000ull   /* a peer that failed is asked last for this long */
#define RAIL_REST_NS 100000000ull    /* a rail that failed, until the engine says it is out */
#define REFUSED_NS 20000000ull       /* how long a refusal of credits stands for all pages */
#define STOCK_IDLE_NS 1000000000ull  /* credits unused for so long are given back */
#define REATTACH_NS 200000000ull     /* between attempts to attach again */
#define LOOK_AROUND_NS 10000000ull   /* between looks at the socket by a caller that polls */
#define SHARE_NS_MAX 60000000000ull  /* no attempt takes longer: a rail's own limit */
#define ANSWER_GRACE_NS 10000000ull  /* after a deadline, until we stop listening for answers */
#define DRAIN_WARN_NS 1000000000ull  /* a wait for the engine's NIC this long is reported */
#define ATTACH_WAIT_NS 1000000000ull /* a call waits at most so long for the attach thread */

static_assert((SCRATCH_SLOTS & (SCRATCH_SLOTS - 1)) == 0, "a free list in a power of two");
static_assert(SCRATCH_BYTES < STAGING_BYTES / 2, "most of staging is for pages");
static_assert(CREDIT_STOCK_MAX <= CREDITS_MAX, "one size may be stocked");

/* ---- the process ---------------------------------------------------------------------------- */

/* A registered range. Owner: struct pc, under lock; channels copy what they need. */
struct memory {
	unsigned char *base;
	uint64_t bytes;
	uint64_t offset; /* in the memfd */
	int memfd;       /* ours: a duplicate */
	uint16_t region; /* 0: not registered with the current engine */
	bool ours;       /* mapped by pc_memory_alloc() */
	bool staging;    /* the library's own, for pages longer than a channel's staging */
	uint32_t pins;   /* batches under way that name it */
	uint32_t slot;   /* index in pc->memory */
};

/* The channel's copy, sorted by base. */
struct memory_view {
	uintptr_t base;
	uint64_t bytes;
	uint16_t region;
	uint32_t slot;
};

/* One request on the socket and what came back. */
struct session_call {
	uint16_t kind;
	uint64_t a, b; /* in and out */
	int send_fd;   /* -1: none */
	int fd[ATTACH_FDS_MAX];
	unsigned fds; /* received */
	unsigned timeout_ms;
};

struct session_rail {
	unsigned char *pool;
	uint64_t pool_bytes; /* mapped, and covered by page heads */
	uint64_t map_bytes;
	uint32_t *touched; /* by TOUCH_BYTES: mapped for writing; shm_load()/shm_store() */
	const struct page_head *heads;
	uint64_t heads_bytes;
	int kick;
};

struct session {
	int fd;
	int pidfd;               /* of the engine; -1: unknown, READs go to staging only */
	unsigned users;          /* under pc->lock */
	uint32_t dead;           /* any thread that noticed; shm_load()/shm_store() */
	uint32_t sent, answered; /* requests and replies; under pc->wire */
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

/* A channel that the engine opened, until a channel's thread adopts it. */
struct opened {
	struct opened *next;
	struct session *session; /* counted in its users */
	struct session_call call;
};

/*
 * The thread that attaches again after the engine was lost: session, then the channels that miss
 * one, then registered memory. It exists only while it has work. All under pc->lock.
 */
struct attacher {
	pthread_t thread;
	pthread_cond_t ended; /* the thread has done what it could */
	bool runs;
	bool joinable;      /* it was started and not joined yet */
	bool closing;       /* pc_close(): start no more */
	int fd;             /* the socket that waits for HELLO's reply; -1: none */
	uint64_t tried_ns;  /* when it was last started */
	unsigned channels;  /* that exist; each needs one when the session is new */
	unsigned wanting;   /* channels without a session */
	unsigned available; /* in `opened` */
	struct opened *opened;
};

struct pc {
	pthread_mutex_t wire;
	pthread_mutex_t lock;
	char socket[108];
	struct page_key name_space;
	unsigned cores;
	bool no_reattach;
	/* under lock */
	struct session *session; /* NULL: no engine */
	uint32_t memory_changes; /* counts changes of the table below */
	struct attacher attacher;
	struct memory *memory[REGIONS_MAX];
};

#include "engine/client/channel.h"

/* ---- seams, by file ------------------------------------------------------------------------- */

/* error.c: records the text for pc_error() and returns `error`. */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void error_clear(void);

/* key.c */
void key_name_space(const char *name_space, struct page_key *ret_digest);
void key_hash(
	const struct page_key *name_space, const void *key, size_t bytes, struct page_key *ret_key);

/* connect.c: the socket. `fds` are closed on failure. */
/* A connected socket or -errno; never blocks. */
int session_connect(const char *path);
/* HELLO on the socket, which it takes over. At most 5 s. */
int session_open(const char *path, int fd, struct session **ret_session);
void session_free(struct session *session);
int session_ask(struct session *session, struct session_call *call);
void session_close_fds(struct session_call *call);
/* Has the engine ended the session? One poll() without waiting. */
bool session_ended(struct session *session);

/* reattach.c */
/* HELLO on a new connection; the session is the current one then. At most 10 s. */
int pc_attach(struct pc *pc);
void attacher_init(struct pc *pc);
/* pc_close(), in this order: no attach thread runs any more; frees what it left. */
void attacher_stop(struct pc *pc);
void attacher_close(struct pc *pc);
/*
 * Starts the attach thread if there is work for it and the last start is REATTACH_NS old. The
 * caller that started it waits for its end, at most until `until_ns`.
 */
void pc_reattach(struct pc *pc, uint64_t until_ns);
/* `change` channels more exist. */
void pc_channels_count(struct pc *pc, int change);
/* `change` channels more have no session. */
void pc_channels_wanting(struct pc *pc, int change);
/* A channel of the current session that the attach thread opened; NULL: none. */
struct opened *pc_opened_take(struct pc *pc);
/* It was of no use: the next attempt waits REATTACH_NS. */
void pc_opened_refused(struct pc *pc);
/* Frees it with what the caller has not taken out of it. */
void opened_free(struct pc *pc, struct opened *opened);

/* attach.c */
/* 0, or -ETIMEDOUT: another thread's request takes longer. */
int pc_wire_lock(struct pc *pc, uint64_t until_ns);
struct session *pc_session_get(struct pc *pc);
void pc_session_put(struct pc *pc, struct session *session);
/* The session is over: it is handed out no more, and threads that use it see `dead`. */
void pc_session_end(struct pc *pc, struct session *session);
/* memory.c */
/* Attach thread: registers the range of table place `i` with the session, if it is not yet. */
void memory_register_again(struct pc *pc, struct session *session, unsigned i);
/* Caller holds lock: no range is registered with the session that comes now. */
void memory_forget_regions(struct pc *pc);
void memory_free_all(struct pc *pc);
/* pc_memory_alloc(); `staging` as in struct memory. */
int memory_alloc(struct pc *pc, size_t bytes, bool staging, uint64_t until_ns, void **ret_memory);
/* Unmaps memory that is not used again, now or in pc_close(). Does not wait. */
void memory_leave(struct pc *pc, void *base);
/* Copies the table if it changed. */
void memory_refresh(struct pc_channel *ch);
/* Looks through all of them; memory_find(), in queue.h, at the last one first. */
const struct memory_view *memory_search(struct pc_channel *ch, uintptr_t at, uint64_t bytes);
/* Pins what the batch's segments name and marks pages that are registered throughout. */
void memory_pin(struct pc_batch *b);
void memory_unpin(struct pc_batch *b);

/* channel.c */
/*
 * The session is over: every page that is not done is PC_GONE. Waits first while a READ into memory
 * of the caller's is in flight: until the engine has drained the channel or has exited.
 */
void channel_lost(struct pc_channel *ch);
/* At the start of a batch: attached, or made so in less than the time until the deadline. */
bool channel_ready(struct pc_channel *ch, uint64_t deadline_ns);
/* Everything that can be done now: answers, then every batch. False: nothing moved. */
bool channel_step(struct pc_channel *ch);
/* The engine's end of a ring is impossible: the session ends with this step. */
void channel_break(struct pc_channel *ch);

/* map.c */
void map_refresh(struct pc_channel *ch);
/* NULL: no live member has that ref. */
const struct map_member *map_search(struct pc_channel *ch, uint32_t ref);
static inline const struct map_member *map_by_ref(struct pc_channel *ch, uint32_t ref)
{
	const struct map_member *m = ch->map_last;

	return likely(m && m->ref == ref) ? m : map_search(ch, ref);
}

/* staging.c */
void staging_init(struct staging *s, unsigned char *base, uint16_t region);
/* Block number, or CLIENT_NONE: no room now. */
uint32_t staging_take(struct staging *s, uint32_t bytes);
void staging_free(struct staging *s, uint32_t block);
unsigned char *staging_at(struct staging *s, uint32_t block);
uint32_t staging_offset(const struct staging *s, uint32_t block);
uint32_t scratch_take(struct staging *s);
void scratch_free(struct staging *s, uint32_t slot);

/* stripe.c: a rail with room for the op, or CLIENT_NONE. */
struct stripe {
	uint16_t peer;  /* who is read */
	uint16_t tried; /* rails that failed for this one */
	uint32_t slots; /* in the op ring */
	uint32_t bytes; /* 0: so few that they do not count */
};
uint32_t stripe_page(
	struct pc_channel *ch, const struct stripe *s, uint32_t place, uint64_t now_ns);
uint32_t stripe_small(struct pc_channel *ch, const struct stripe *s, uint64_t now_ns);
/* May a transfer that failed on the rails of `tried` be tried on another one? */
bool stripe_again(const struct pc_channel *ch, uint16_t peer, uint16_t tried);
/* `bytes` were given to the rail; came back from it, as data or not. */
void stripe_give(struct pc_channel *ch, uint32_t rail, uint32_t bytes, uint64_t now_ns);
void stripe_take(struct pc_channel *ch, uint32_t rail, uint32_t bytes, uint64_t now_ns);
/* Something failed on the rail: it is used last for a while. */
void stripe_rest(struct pc_channel *ch, uint32_t rail, uint64_t now_ns);
/* After make_rings(), and whenever a rate changed. */
void stripe_weigh(struct pc_channel *ch);

/* submit.c; ops go through submit.h */
/* The segments of the op that is being written, into the slots after its own. */
void submit_segments(struct channel_rail *r, const struct op_segment *segments, uint32_t count);
/* What was written, shown to the rail. */
void submit_flush_rail(struct pc_channel *ch, uint32_t rail);
/* Is there room for one control op and its answers, with `reserve` slots left over? */
bool submit_ctl_room(struct pc_channel *ch, uint32_t answers, uint32_t reserve);
void submit_ctl(struct pc_channel *ch, const struct ctl_op *op, uint32_t answers);
void submit_flush(struct pc_channel *ch);

/* reap.c */
uint32_t reap(struct pc_channel *ch, uint64_t now_ns);

/* lookup.c */
void lookup_begin(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
void lookup_again(struct pc_batch *b, uint32_t i);
void lookup_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void lookup_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i,
	const struct bucket *bucket, uint32_t status, uint64_t now_ns);

/* local.c: a page of this host's pools, into the segments. */
enum pc_result local_get(
	struct pc_channel *ch, const struct page_work *p, const struct pc_page *page);
bool local_has(
	const struct session *session, const struct page_key *key, const struct location *at);

/* fetch.c */
void fetch_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
/* Nothing more of it is asked for; false: nothing of it is on its way either. */
bool fetch_stop(struct pc_batch *b, uint32_t i);
/* An op of the page was answered; the last one decides. */
void fetch_answer(struct pc_channel *ch, const struct request *r, uint32_t status, uint64_t now_ns);

/* head.c: why a page of another node was stale. */
void head_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void head_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i,
	const struct page_head *head, uint32_t status, uint64_t now_ns);

/* credit.c */
enum credit_state { CREDIT_TAKEN, CREDIT_AWAITED, CREDIT_REFUSED };
enum credit_state credit_take(struct pc_channel *ch, uint32_t bytes, uint32_t rail, uint64_t now_ns,
	struct credit *ret_credit);
void credit_put(struct pc_channel *ch, uint32_t bytes, const struct credit *credit);
/* Asks for what credit_take() missed. */
void credit_ask(struct pc_channel *ch, uint64_t deadline_ns);
void credit_answer(struct pc_channel *ch, const struct request *r, const struct ctl_done *done,
	uint64_t now_ns);
/* Gives back stock unused since `before_ns`, except of size `keep`. Returns how many. */
uint32_t credit_return(struct pc_channel *ch, uint64_t before_ns, uint32_t keep);
void credit_forget(struct pc_channel *ch);

/* set.c */
void set_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void set_answer(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t status, uint64_t now_ns);
void remove_step(struct pc_channel *ch, struct pc_batch *b);
void remove_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t status);

/* notice.c: reports to the control plane that nobody waits for. */
void notice_stale(struct pc_channel *ch, const struct page_work *p);
void notice_touch(struct pc_channel *ch, const struct page_key *key, const struct location *at,
	uint64_t now_ns);
/* A page that was only looked up: eviction spares it for a while. */
void notice_wanted(struct pc_channel *ch, const struct page_key *key, uint64_t now_ns);

/* batch.c; the queues of a batch are in queue.h */
/* p->at is of this host, or the batch reads no payload; see page_found() in queue.h. */
void page_here(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
void page_absent(struct pc_channel *ch, struct pc_batch *b, uint32_t i);
/* The location in use is of no use: the next one, or another look-up, or the end. */
void page_wrong(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
void batch_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void batch_gone(struct pc_batch *b, enum pc_result result);
void batch_free(struct pc_batch *b);
/* A page ended otherwise than as a hit. */
void page_count(struct pc_batch *b, enum pc_result result);

/* statistics.c: counts a batch that has ended, in the segment of the channel. */
void statistics_batch(const struct pc_batch *b);

/* wait.c */
uint64_t clock_now_ns(void);
/* Takes the wake-ups that have come. False: none will come any more. */
bool wake_clear(const struct pc_channel *ch);
/* Until the batch is done; NULL: every batch of the channel. At most until `until_ns`. */
void wait_for(struct pc_channel *ch, const struct pc_batch *b, uint64_t until_ns);

/* copy.c */
void copy_stream(void *to, const void *from, size_t bytes);
void copy_gather(unsigned char *to, const struct pc_segment *segments, unsigned count);
void copy_scatter(const struct pc_segment *segments, unsigned count, const unsigned char *from);

#include "engine/client/cache.h"
#include "engine/client/queue.h"
#include "engine/client/submit.h"

#endif
