/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared declarations of the files of libpeercache. Not installed.
 *
 * - struct pc: the view of one process: the current session and the registered memory. Any thread,
 *   under `lock` (the tables; never held while waiting) and `wire` (one request and its reply on
 *   the socket). Code that needs both locks `wire` first.
 * - struct client_session: one attachment to one engine: the socket and the mappings. Read-only
 * after it
 *   is made, except `dead`. Freed when its last user releases it; users are counted under `lock`.
 * - struct pc_channel, in channel.h: everything of one thread: rings, requests, location cache,
 *   credits, batches. It has no locks; only its thread touches it.
 * - struct pc_batch, in channel.h: the pages of one call. Each page is a small state machine;
 *   batch.c draws it.
 *
 * A thread that moves pages takes `lock` twice per batch, to pin and to unpin the registered memory
 * that the batch names.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <pthread.h>
#include <sys/types.h>

#include "config/limits.h"
#include "engine/abi/run.h"
#include "engine/abi/segment.h"
#include "engine/client/peercache.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#include "engine/client/constants.h"
#include "engine/client/key.h"

/* ---- the process ---------------------------------------------------------------------------- */

/*
 * A registered range. Owned by struct pc, under `lock`; a channel works on its own copy, struct
 * memory_view.
 */
struct memory {
	unsigned char *base;
	uint64_t bytes;
	uint64_t offset; /* offset of the range's start in the memfd, bytes */
	int memfd;       /* the library's duplicate of the caller's memfd */
	uint16_t region; /* region number; 0: the range is not registered with the current engine */
	bool ours;       /* true: mapped by pc_memory_alloc(), so memory_free() unmaps it */
	/* true: the library's own range, for pages longer than a channel's staging */
	bool staging;
	uint32_t pins; /* number of batches in flight that name this range */
	uint32_t slot; /* index of the range in pc->memory */
};

/* One registered range in a channel's copy of the table; the copy is sorted by base. */
struct memory_view {
	uintptr_t base;
	uint64_t bytes;
	uint16_t region;
	uint32_t slot;
};

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

struct pc {
	pthread_mutex_t wire;
	pthread_mutex_t lock;
	char socket[108];
	struct page_key name_space;
	unsigned cores;
	bool no_reattach;
	uint32_t verify_one_in; /* one hit in this number is compared with its CRC; 0: none */
	/* the fields below are protected by `lock` */
	struct client_session *session; /* the current session with an engine; NULL: none */
	/* number of changes of the table `memory` so far; also loaded without `lock` */
	uint32_t memory_changes;
	struct attacher attacher;
	struct memory *memory[REGIONS_MAX];
};

#include "engine/client/channel.h"

/* ---- seams, by file ------------------------------------------------------------------------- */

/* error.c: stores the text that pc_error() returns; returns `error`. */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void error_clear(void);

/* key.c */
void key_name_space(const char *name_space, struct page_key *ret_digest);
/*
 * Prepares `text` for key_hash(): writes the digest of the namespace in front of the place of the
 * key, once for all keys of the namespace.
 */
void key_text_init(struct key_text *text, const struct page_key *name_space);

/* pages.c: checks the caller's arguments for the pages of a batch. Invalid pages are done. */
void pages_init(struct pc_batch *b);

/* keys.c: hashes the keys of all pages of a batch that are not done. */
void keys_hash(struct pc_channel *ch, struct pc_batch *b);

/* connect.c: the socket of a session. */
/* Connects to the engine's socket. Returns the socket or -errno. Never blocks. */
int session_connect(const char *path);
/* Sends HELLO on `fd` and waits at most 5 s. Takes ownership of `fd`, also on failure. */
int session_open(const char *path, int fd, struct client_session **ret_session);
void session_free(struct client_session *session);
int session_ask(struct client_session *session, struct session_call *call);
void session_close_fds(struct session_call *call);
/* True if the engine has ended the session. Calls poll() once, without waiting. */
bool session_ended(struct client_session *session);

/* reattach.c */
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
/* Adds `change` to the number of open channels of the process. */
void pc_channels_count(struct pc *pc, int change);
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

/* attach.c */
/*
 * Locks pc->wire. Returns 0, or -ETIMEDOUT: the request of another thread did not end by
 * `until_ns`.
 */
int pc_wire_lock(struct pc *pc, uint64_t until_ns);
struct client_session *pc_session_get(struct pc *pc);
void pc_session_put(struct pc *pc, struct client_session *session);
/* Ends the session: pc_session_get() no longer returns it, and its users see `dead`. */
void pc_session_end(struct pc *pc, struct client_session *session);
/* memory.c */
/*
 * Attach thread: registers the range at index `i` of the table with the session unless it is
 * registered already.
 */
void memory_register_again(struct pc *pc, struct client_session *session, unsigned i);
/* Marks every registered range as not registered, for a new session. The caller holds `lock`. */
void memory_forget_regions(struct pc *pc);
void memory_free_all(struct pc *pc);
/* Does the work of pc_memory_alloc(); `staging` as in struct memory. */
int memory_alloc(struct pc *pc, size_t bytes, bool staging, uint64_t until_ns, void **ret_memory);
/* Gives up memory that is never used again: it is unmapped now or in pc_close(). Does not wait. */
void memory_leave(struct pc *pc, void *base);
/* Copies the table of registered ranges into the channel if that table has changed. */
void memory_refresh(struct pc_channel *ch);
/*
 * Finds a registered range by binary search; memory_find() in queue.h first tries the last result.
 */
const struct memory_view *memory_search(struct pc_channel *ch, uintptr_t at, uint64_t bytes);
/* memory_find_page() in queue.h calls it for a page that is not in the range `last`. */
const struct memory_view *memory_find_new(struct pc_batch *b, struct page_work *p,
	const struct pc_page *page, const struct memory_view *last);
/* Pins the ranges that memory_find_page() found: they are not deregistered until the unpin. */
void memory_pin(struct pc_batch *b);
void memory_unpin(struct pc_batch *b);

/* channel.c */
/*
 * Ends the channel's session: every page that is not done becomes PC_GONE. While a READ into the
 * caller's memory is in flight, waits first until the engine has drained the channel or has exited.
 */
void channel_lost(struct pc_channel *ch);
/*
 * Called at the start of a batch. True if the channel has a session. If it has none, tries to get
 * one, for at most half of the time to the deadline.
 */
bool channel_ready(struct pc_channel *ch, uint64_t deadline_ns);
/*
 * Does all work that needs no waiting: takes the answers, then steps every batch. False: nothing
 * moved.
 */
bool channel_step(struct pc_channel *ch);
/*
 * Marks the channel as broken because the engine's side of a ring has an impossible value. The
 * session ends with this step.
 */
void channel_break(struct pc_channel *ch);

/* staging.c */
void staging_init(struct staging *s, unsigned char *base, uint16_t region);
/* Takes a staging block. Returns its number, or CLIENT_NONE: no room at the moment. */
uint32_t staging_take(struct staging *s, uint32_t bytes);
void staging_free(struct staging *s, uint32_t block);
unsigned char *staging_at(struct staging *s, uint32_t block);
uint32_t staging_offset(const struct staging *s, uint32_t block);
/* Takes `count` consecutive scratch slots. Returns the first, or CLIENT_NONE: no room. */
uint32_t scratch_take(struct staging *s, uint32_t count);
void scratch_free(struct staging *s, uint32_t slot, uint32_t count);

/* submit.c: publishes ring entries. submit_op() in submit.h writes the ops themselves. */
/* Writes the segments of an op after its first one into the ring entries behind the op's own. */
void submit_segments(struct channel_rail *r, const struct op_segment *segments, uint32_t count);
/* Publishes the entries written to this rail's op ring. submit_flush() wakes the rail. */
void submit_publish(struct pc_channel *ch, uint32_t rail);
/*
 * True if the ctl ring has room for one op with `answers` answers, and `reserve` entries stay free.
 */
bool submit_ctl_room(struct pc_channel *ch, uint32_t answers, uint32_t reserve);
void submit_ctl(struct pc_channel *ch, const struct ctl_op *op, uint32_t answers);
/*
 * The same for a request of `lines` ring entries: the caller has written those behind its first
 * one.
 */
void submit_ctl_lines(
	struct pc_channel *ch, const struct ctl_op *op, uint32_t lines, uint32_t answers);
/* Publishes the ctl ring in the middle of a step, so that the control plane works during copies. */
void submit_ctl_flush(struct pc_channel *ch);
/* The thread has nothing to do but wait: ends a nap of the control plane that has requests. */
void submit_ctl_hurry(struct pc_channel *ch);
/*
 * Ends a step of the channel: publishes all entries, then wakes the rails and the control plane
 * that sleep, behind one fence.
 */
void submit_flush(struct pc_channel *ch);

/* reap.c */
uint32_t reap(struct pc_channel *ch, uint64_t now_ns);

/* lookup.c */
void lookup_begin(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
/* The same for all pages of a get. Most have a location in the cache and are READ at once. */
void lookup_get(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void lookup_again(struct pc_batch *b, uint32_t i);
/* Chooses the key's next owner to ask and marks it as asked. NULL: every owner was asked. */
const struct map_member *lookup_owner(struct pc_channel *ch, struct page_work *p, uint64_t now_ns);
/* True if the member is another host, and one that answers: see owner.h. */
bool lookup_answers(const struct pc_channel *ch, const struct map_member *m, uint64_t now_ns);
void lookup_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void lookup_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i,
	const struct bucket *bucket, uint32_t status, uint64_t now_ns);

/* look_run.c: runs of look-ups. */
/* Begins the look-ups of all pages of an exists, as lookup_begin() does one by one. */
void look_all(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
/* Adds the page to a run of look-ups at `m`. False: a run found no room and is queued again. */
bool look_add(struct pc_channel *ch, struct pc_batch *b, uint32_t i, const struct map_member *m,
	uint64_t now_ns);
/* Posts the open runs; with `room` false, queues their pages again. */
void look_close_all(struct pc_channel *ch, struct pc_batch *b, bool room, uint64_t now_ns);
void look_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status, uint64_t now_ns);

/* run.c: runs of pages. */
/*
 * run_add(), in queue.h, adds a page to those that are planned together. run_add_end(), always in
 * the same step and with the same batch, makes runs of them and posts those. run_group_new() opens
 * group `slot` with a page; another group may have that slot, which is then posted with all others.
 */
void run_group_new(
	struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t slot, uint64_t now_ns);
void run_add_end(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
/* Posts waiting runs, plans the pages of PAGE_RUN into runs and posts those. */
void run_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
/* Removes the first waiting run. Returns its first page; CLIENT_NONE: none. */
uint32_t run_unqueue(struct pc_batch *b);
/* `status` is the result of the pages in neither mask of `done`, and never OP_HIT. */
void run_answer(struct pc_channel *ch, const struct client_request *r, const struct run_done *done,
	uint32_t status, uint64_t now_ns);

/* local.c: copies a page of this host. *ret_corrupt: PC_STALE, for the CRC of the head. */
enum pc_result local_get(struct pc_channel *ch, const struct page_work *p,
	const struct pc_page *page, bool *ret_corrupt);
bool local_has(const struct client_session *session, const struct page_key *key,
	const struct location *at);

/* fetch.c */
/* A READ into the caller's memory has delivered the page. */
void fetch_hit(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
/* All READs of the page were answered, one of them with p->piece_status, which is no hit. */
void fetch_not_hit(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
void fetch_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
/*
 * Requests nothing more of the page. False: none of its ops is in flight, so the caller ends the
 * page; true: the last answer ends it.
 */
bool fetch_stop(struct pc_batch *b, uint32_t i);
/* One op of the page was answered. The last answer decides the page's result. */
void fetch_answer(
	struct pc_channel *ch, const struct client_request *r, uint32_t status, uint64_t now_ns);

/* head.c: READs the head of a page that was stale, or that verify.c compares. */
void head_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void head_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i,
	const struct page_head *head, uint32_t status, uint64_t now_ns);

/* credit.c */
enum credit_state { CREDIT_TAKEN, CREDIT_AWAITED, CREDIT_REFUSED };
enum credit_state credit_take(struct pc_channel *ch, uint32_t bytes, uint32_t rail, uint64_t now_ns,
	struct stock_credit *ret_credit);
void credit_put(struct pc_channel *ch, uint32_t bytes, const struct stock_credit *credit);
/* Requests the credits that were missing in calls of credit_take(). */
void credit_ask(struct pc_channel *ch, uint64_t deadline_ns);
void credit_answer(struct pc_channel *ch, const struct client_request *r,
	const struct ctl_done *done, uint64_t now_ns);
/* Gives back the stocks unused since `before_ns`, not that of size `keep`; number of credits */
uint32_t credit_return(struct pc_channel *ch, uint64_t before_ns, uint32_t keep);
void credit_forget(struct pc_channel *ch);

/* set.c */
void set_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
/* `pages`: bit i: page i of the request has ended with `status`. */
void set_answer(struct pc_channel *ch, const struct client_request *r, uint32_t pages,
	uint32_t status, uint64_t now_ns);
void remove_step(struct pc_channel *ch, struct pc_batch *b);
void remove_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint32_t status);

/* disk.c: asks the engine for pages that no member has in memory. */
/* No location is known. True if the page was queued for that: the caller is done with it. */
bool disk_begin(struct pc_channel *ch, struct pc_batch *b, uint32_t i);
/* The page is on a disk, at p->at. */
void disk_found(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
void disk_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void disk_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i, const struct ctl_done *done,
	uint32_t status, uint64_t now_ns);

/* notice.c: reports to the control plane that get no answer. */
void notice_stale(struct pc_channel *ch, const struct page_work *p);
/*
 * notice_touch() in queue.h calls it. `e`: the page's entry in the location cache, or NULL: the
 * cache does not have the page.
 */
void notice_touch_due(
	struct pc_channel *ch, const struct page_work *p, struct cache_entry *e, uint32_t now_ms);
/* An exists found the page on a disk, at p->at: a get may follow. */
void notice_want(struct pc_channel *ch, const struct page_work *p);
/*
 * Reports a page that was looked up but not read as used, so that eviction spares it for a while.
 */
void notice_wanted(struct pc_channel *ch, const struct page_work *p, uint64_t now_ns);
/*
 * True if each page of a run can be reported as used: up to RUN_PAGES_MAX of other hosts are added
 * to pc_channel.touches, which notice_touches_submit() submits whenever it is full.
 */
bool notice_wanted_room(struct pc_channel *ch);
/* Submits CTL_TOUCHES_MAX or fewer touches that were collected; there is room for them. */
void notice_touches_submit(struct pc_channel *ch);
void notice_touches_end(struct pc_channel *ch); /* submits the touches that were collected */

/*
 * batch.c: what becomes of a page after each of its states. The queues of a batch are in queue.h.
 */
/*
 * The page's location is known, and this host has it or the batch reads no payload. See
 * page_found() in queue.h.
 */
void page_here(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
void page_absent(struct pc_channel *ch, struct pc_batch *b, uint32_t i);
/*
 * The location in use was wrong: tries the next location, then one more look-up, then ends the
 * page.
 */
void page_wrong(struct pc_channel *ch, struct pc_batch *b, uint32_t i, uint64_t now_ns);
void batch_step(struct pc_channel *ch, struct pc_batch *b, uint64_t now_ns);
void batch_gone(struct pc_batch *b, enum pc_result result);
/* call.c: adds a batch to the channel; the caller sets kind, pages and times. NULL: no memory. */
struct pc_batch *batch_make(struct pc_channel *ch, uint32_t count);
void batch_free(struct pc_batch *b);
/* Adds a page that ended with a result other than PC_HIT to the channel's counters. */
void page_count(struct pc_batch *b, enum pc_result result);

/* statistics.c: counts a batch that has ended, in the segment of the channel. */
void statistics_batch(const struct pc_batch *b);

/* wait.c */
uint64_t clock_now_ns(void);
/*
 * Reads the wake-ups that wait in the channel's wake socket. False: the engine has closed its end.
 */
bool wake_clear(const struct pc_channel *ch);
/*
 * Steps the channel until the batch is done (`b` NULL: until all its batches are), at most until
 * `until_ns`.
 */
void wait_for(struct pc_channel *ch, const struct pc_batch *b, uint64_t until_ns);

/* copy.c */
void copy_stream(void *to, const void *from, size_t bytes);
/*
 * Returns the CRC32C of the bytes stored at `to`. `next`: what the caller copies next, which is
 * prefetched; NULL: not known.
 */
uint32_t copy_gather(unsigned char *to, const struct pc_segment *segments, unsigned count,
	const unsigned char *next);
#if defined(__x86_64__)
/*
 * copy_gather()'s ways without AVX-512, and without VPCLMULQDQ, for tests. `to` is 32-byte aligned,
 * `bytes` % 128 is 0, and not 0 in the first.
 */
uint32_t copy_crc_fold_avx2(uint32_t crc, unsigned char *to, const unsigned char *from,
	size_t bytes, const unsigned char *next);
uint32_t copy_crc_avx2(uint32_t crc, unsigned char *to, const unsigned char *from, size_t bytes);
#endif
void copy_scatter(const struct pc_segment *segments, unsigned count, const unsigned char *from);

#include "engine/client/cache.h"
#include "engine/client/map.h"
#include "engine/client/peek.h"
#include "engine/client/queue.h"
#include "engine/client/submit.h"
#include "engine/client/stripe.h"
#include "engine/client/verify.h"

#endif
