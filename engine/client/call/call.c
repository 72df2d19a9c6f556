/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call about pages: a batch from the call to the results, and the step of a channel, which moves
 * all its batches. Starts the steps of the pages and ends them, hands the batch back to its caller,
 * and counts it in the statistics area. page.c decides what a page does after each step. Channel
 * thread.
 *
 * batch_deadline_keep(): after the deadline nothing new is posted (batch_expire()). Answers are
 * awaited for ANSWER_GRACE_NS more. After that only READs into the caller's own memory are awaited,
 * because the NIC may still write there: batch_abandon(). So a call returns at its deadline, or at
 * most ANSWER_GRACE_NS later, unless a READ into the caller's memory is in flight.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/latency.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/statistics.h"
#include "engine/client/attach/attach.h"
#include "engine/client/attach/memory.h"
#include "engine/client/attach/session.h"
#include "engine/client/call/call.h"
#include "engine/client/constants.h"
#include "engine/client/device.h"
#include "engine/client/error.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/batch.h"
#include "engine/client/peercache.h"
#include "engine/client/read/read.h"
#include "engine/client/rings/rings.h"
#include "engine/client/write/write.h"

#include <stdlib.h>
#include <string.h>

/* pages that the memory of a batch has room for, at least */
#define BATCH_CAPACITY_MIN 128u

static_assert((unsigned)PC_MISS == STATISTICS_MISS && (unsigned)PC_STALE == STATISTICS_STALE &&
		      (unsigned)PC_UNREACHABLE == STATISTICS_UNREACHABLE &&
		      (unsigned)PC_TIMEOUT == STATISTICS_TIMEOUT &&
		      (unsigned)PC_FULL == STATISTICS_NO_SPACE &&
		      (unsigned)PC_INVALID == STATISTICS_OTHER,
	"page_count() uses one as the other");
static_assert((unsigned)BATCH_GET == STATISTICS_GET && (unsigned)BATCH_SET == STATISTICS_SET &&
		      (unsigned)BATCH_EXISTS == STATISTICS_EXISTS &&
		      (unsigned)BATCH_REMOVE == STATISTICS_REMOVE,
	"the kinds of batches are the kinds of calls");

/* ---- statistics ------------------------------------------------------------------------------ */

/*
 * The channel's statistics area: what the engine cannot see, latency and results of whole batches.
 * Written once for each batch, when it ends; abi/statistics.h has the protocol.
 */

/* Adds to the area what the channel counted since the last batch that ended. */
static void statistics_add_counts(struct pc_channel *ch, struct statistics_words *to)
{
	const struct pc_counts *now = &ch->counts, *told = &ch->counts_told;

	shm_count(&to->get_local, now->hits_local - told->hits_local);
	shm_count(&to->get_remote, now->hits_remote - told->hits_remote);
	shm_count(&to->get_bytes, now->bytes_read - told->bytes_read);
	shm_count(&to->get_staged, now->bytes_staged - told->bytes_staged);
	shm_count(&to->set_bytes, now->bytes_written - told->bytes_written);
	shm_count(&to->set_present, now->sets_already - told->sets_already);
	shm_count(&to->reissued, now->reissued - told->reissued);
	shm_count(&to->lookups, now->lookups - told->lookups);
	shm_count(&to->lookups_cached, now->lookups_cached - told->lookups_cached);
	ch->counts_told = *now;
}

/* The hits of a batch in front of its first page that was none. */
static uint64_t statistics_usable(const struct pc_batch *b, uint64_t hits)
{
	uint64_t run = 0;

	if (hits == b->count)
		return hits;
	for (uint32_t i = 0; i < b->count; i++) {
		if (b->results[i] != PC_HIT && b->results[i] != PC_LONGER)
			break;
		run += b->results[i] == PC_HIT;
	}
	return run;
}

/* Pages of a sized get that were longer: the next get counts them. */
static uint64_t statistics_longer(const struct pc_batch *b)
{
	uint64_t longer = 0;

	for (uint32_t i = 0; b->lengths && i < b->count; i++)
		longer += b->results[i] == PC_LONGER;
	return longer;
}

/* Counts a batch that has ended, in the segment of the channel. */
static void statistics_batch(const struct pc_batch *b)
{
	struct channel_statistics *s = b->channel->statistics;
	uint64_t ns, pages = b->count - statistics_longer(b), hits = pages;
	struct statistics_calls *calls;

	if (!s || b->kind >= BATCH_PEEK)
		return; /* the engine is gone, and its totals with it; or it is no call */
	ns = clock_monotonic_ns() - b->submitted_ns;
	if (ns > STATISTICS_LATENCY_MAX_NS)
		ns = STATISTICS_LATENCY_MAX_NS; /* the engine refuses a longer one */
	calls = &s->words.calls[b->kind];
	statistics_write_begin(s);
	for (unsigned result = STATISTICS_MISS; result < STATISTICS_RESULTS; result++) {
		if (!b->missed[result])
			continue;
		hits -= b->missed[result];
		shm_count(&calls->result[result], b->missed[result]);
	}
	shm_count(&calls->batches, 1);
	shm_count(&calls->pages, pages);
	shm_count(&calls->result[STATISTICS_HIT], hits);
	shm_count(&calls->latency_ns_sum, ns);
	shm_count(&calls->latency[latency_bucket(ns)], 1);
	if (b->kind == BATCH_GET)
		shm_count(&s->words.get_usable, statistics_usable(b, hits));
	else if (b->kind == BATCH_EXISTS)
		shm_count(&s->words.exists_usable, statistics_usable(b, hits));
	statistics_add_counts(b->channel, &s->words);
	statistics_write_end(s);
}

/* Notes the keys of a batch for the process that records them. */
static void asked_note(const struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct channel_asked *asked = ch->asked;
	uint64_t at = shm_load64(&asked->written), used = at - shm_load_acquire64(&asked->taken);

	if (used > ASKED_WORDS || b->count >= ASKED_WORDS - used) {
		ch->asked_lost++;
		return;
	}
	shm_store64(&asked->word[at++ % ASKED_WORDS],
		(uint64_t)ch->asked_lost << ASKED_LOST_SHIFT | b->count);
	for (uint32_t i = 0; i < b->count; i++)
		shm_store64(&asked->word[at++ % ASKED_WORDS],
			b->work[i].phase == PAGE_DONE ? 0 : b->work[i].key.word[0]);
	shm_store_release64(&asked->written, at);
	ch->asked_lost = 0;
}

/* ---- the memory of a batch ------------------------------------------------------------------- */

/* cold: once for each batch. Takes its memory from the list of spare ones, or allocates it. */
static struct pc_batch *batch_take(struct pc_channel *ch, uint32_t count)
{
	uint32_t capacity = count < BATCH_CAPACITY_MIN ? BATCH_CAPACITY_MIN : count;
	struct pc_batch *b = ch->spare;

	if (b) {
		ch->spare = b->next;
		ch->spares--;
		if (b->capacity >= count)
			return b;
		free(b); /* a larger one takes its place in the list */
	}
	b = malloc(sizeof(*b) + capacity * sizeof(b->work[0]));
	if (!b)
		return NULL;
	b->capacity = capacity;
	return b;
}

struct pc_batch *batch_make(struct pc_channel *ch, enum batch_kind kind, uint32_t count,
	enum pc_result *results, uint64_t deadline_ns)
{
	struct pc_batch *b = batch_take(ch, count);

	if (!b)
		return NULL;
	b->channel = ch;
	b->next = NULL;
	b->kind = kind;
	b->results = results;
	b->lengths = NULL;
	b->device = NULL;
	b->gpus = 0;
	b->deadline_ns = deadline_ns;
	if (deadline_ns < ch->due_ns)
		ch->due_ns = deadline_ns;
	ch->writers += batch_writes(b);
	b->count = b->left = count;
	memset(b->missed, 0, sizeof(b->missed));
	b->expired = b->abandoned = false;
	b->pins = 0;
	for (unsigned q = 0; q < PAGE_QUEUES; q++)
		b->queue[q].head = CLIENT_NONE;
	b->runs.head = CLIENT_NONE;
	if (ch->last)
		ch->last->next = b;
	else
		ch->first = b;
	ch->last = b;
	return b;
}

/* Writes the lengths of the pages of a sized get; longer pages have theirs already. */
static void lengths_tell(const struct pc_batch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
		if (b->results[i] == PC_HIT)
			b->lengths[i] = b->work[i].bytes;
		else if (b->results[i] != PC_LONGER)
			b->lengths[i] = 0;
}

/* cold: once for each batch */
void batch_free(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	struct pc_batch *before = NULL;

	statistics_batch(b);
	if (unlikely(b->device))
		device_flush(ch->device);
	if (b->lengths)
		lengths_tell(b);
	pages_unpin(b);
	ch->writers -= batch_writes(b);
	if (ch->first != b)
		for (before = ch->first; before->next != b; before = before->next)
			continue;
	if (before)
		before->next = b->next;
	else
		ch->first = b->next;
	if (ch->last == b)
		ch->last = before;
	if (ch->spares == SPARE_BATCHES_MAX || (ch->spares && b->capacity > SPARE_PAGES_MAX)) {
		free(b);
	} else {
		b->next = ch->spare;
		ch->spare = b;
		ch->spares++;
	}
	if (unlikely(ch->descriptor >= 0))
		channel_arm(ch);
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Ends a page that no set can store here. */
static void page_too_large(struct pc_batch *b, uint32_t i)
{
	error_set(0,
		"page %u has %u bytes; the pools of this host take pages of at most %llu bytes: raise engine.pool_bytes, of which that is about 1/32",
		i, b->work[i].bytes, (unsigned long long)b->channel->session->page_bytes_max);
	page_done(b, i, PC_INVALID);
}

/*
 * Opens the copies to and from GPU memory, which are those of one GPU. False: the driver refused,
 * or another GPU is in use, and all pages have ended, also those that NICs could write, because
 * nothing would make them visible to the GPU.
 */
static bool batch_device_open(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t gpus = b->gpus | (device_busy(ch->device) ? ch->gpus : 0);
	bool one;

	for (const struct pc_batch *other = ch->first; other; other = other->next)
		gpus |= other->left ? other->gpus : 0;
	one = !(gpus & (gpus - 1));
	if (one && ch->gpus != gpus) {
		device_flush(ch->device); /* for batches that have ended and are not waited for */
		device_close(ch->device);
		ch->device = NULL;
	}
	if (!one)
		error_set(-EINVAL,
			"the pages in flight have memory of several GPUs: use a channel for each GPU");
	else if (!ch->device)
		ch->device = device_open(b->device, ch->staging.base, ch->staging.bytes);
	ch->gpus = one ? gpus : ch->gpus;
	one &= ch->device != NULL;
	for (uint32_t i = 0; i < b->count && !one; i++)
		if (b->work[i].phase != PAGE_DONE)
			page_done(b, i, PC_INVALID);
	return one;
}

/* Starts the look-ups, stores or removals of the pages. The batch is pinned. */
static void batch_begin(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	ch->now_ns = clock_monotonic_ns();
	if (unlikely(b->device && !batch_device_open(b)))
		return;
	if (unlikely(shm_load(&ch->session->status->asked) == b->kind + 1u) && b->count)
		asked_note(b);
	credit_return(ch, ch->now_ns > STOCK_IDLE_NS ? ch->now_ns - STOCK_IDLE_NS : 0, 0);
	if (b->kind == BATCH_GET || b->kind == BATCH_EXISTS || b->kind == BATCH_MATCH) {
		(b->kind == BATCH_GET ? get_begin : look_all)(b);
		return;
	}
	if (b->kind == BATCH_SET) {
		b->first_rail = ch->turn;
		ch->turn += b->count;
	}
	for (uint32_t i = 0; i < b->count; i++) {
		struct page_work *p = &b->work[i];

		if (p->phase == PAGE_DONE)
			continue;
		if (b->kind == BATCH_PIN)
			page_queue(b, i, PAGE_DISK);
		else if (b->kind == BATCH_REMOVE)
			page_queue(b, i, PAGE_REMOVE);
		else if (b->kind == BATCH_SET && p->bytes > ch->session->page_bytes_max)
			page_too_large(b, i);
		else
			lookup_begin(b, i);
	}
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Ends all queued pages of a batch at its deadline. Credits that they hold go back into stock. */
static void batch_expire(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i;

	b->expired = true;
	for (unsigned q = 0; q < PAGE_QUEUES; q++) {
		while ((i = page_unqueue(b, q)) != CLIENT_NONE) {
			const struct page_work *p = &b->work[i];

			if (q == PAGE_PUBLISH)
				credit_put(ch, p->bytes,
					&(struct stock_credit){p->at.place, p->at.generation});
			if (!fetch_stop(b, i))
				page_done(b, i, PC_TIMEOUT);
		}
	}
	while ((i = run_unqueue(b)) != CLIENT_NONE)
		for (uint32_t left = b->work[i].run_pages; left; left--, i = b->work[i].next)
			page_done(b, i, PC_TIMEOUT);
}

/*
 * Ends all pages at the end of the grace, except those that a NIC may still write into the caller's
 * memory.
 */
static void batch_abandon(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;

	b->abandoned = true;
	if (unlikely(b->device))
		fetch_copies_end(ch, FETCH_WAIT_ALL); /* they write into the caller's memory */
	for (uint32_t i = 0; i < ch->requests; i++)
		if (ch->request[i].batch == b && !request_writes_caller(&ch->request[i]))
			ch->request[i].batch = NULL;
	for (uint32_t i = 0; i < b->count; i++) {
		const struct page_work *p = &b->work[i];

		if (p->phase == PAGE_LOOKING ||
			(p->phase == PAGE_IN_FLIGHT &&
				!(p->pieces_out && p->flags & PAGE_REGISTERED)))
			page_done(b, i, PC_TIMEOUT);
	}
}

static inline void batch_deadline_keep(struct pc_batch *b)
{
	uint64_t now_ns = b->channel->now_ns;

	if (!b->expired && now_ns >= b->deadline_ns)
		batch_expire(b);
	if (b->expired && !b->abandoned && now_ns >= b->deadline_ns + ANSWER_GRACE_NS)
		batch_abandon(b);
}

static void batch_step(struct pc_batch *b)
{
	batch_deadline_keep(b);
	if (!b->expired) {
		if (page_waits(b, PAGE_LOOK))
			lookup_step(b);
		get_step(b);
		if (page_waits(b, PAGE_HEAD))
			head_step(b);
		if (b->kind == BATCH_SET)
			set_step(b);
		else
			ctl_step(b);
	}
}

/*
 * Ends every page that is not done: the engine is gone. No READ into the caller's memory is in
 * flight any more.
 */
static void batch_gone(struct pc_batch *b)
{
	for (unsigned q = 0; q < PAGE_QUEUES; q++)
		while (page_unqueue(b, q) != CLIENT_NONE)
			continue;
	while (run_unqueue(b) != CLIENT_NONE)
		continue;
	for (uint32_t i = 0; i < b->count; i++)
		if (b->work[i].phase != PAGE_DONE)
			page_done(b, i, PC_GONE);
	b->expired = b->abandoned = true;
}

/* ---- the step of a channel ------------------------------------------------------------------ */

void channel_end_batches(struct pc_channel *ch)
{
	for (struct pc_batch *b = ch->first; b; b = b->next)
		batch_gone(b);
}

/*
 * Steps the batches, oldest first, and stops when none of the rest can have work: many batches may
 * be in flight, and most of them only wait for answers or for room on a rail.
 */
static void channel_step_batches(struct pc_channel *ch)
{
	bool due = ch->now_ns >= ch->due_ns;

	if (due)
		ch->due_ns = UINT64_MAX;
	for (struct pc_batch *b = ch->first; b && !ch->broken; b = b->next) {
		if (!due && !ch->writers && !ch->waits[0] && (!ch->waits[1] || ch->no_room))
			return;
		if (!b->left)
			continue;
		batch_step(b);
		if (due && batch_due_ns(b) < ch->due_ns)
			ch->due_ns = batch_due_ns(b);
	}
}

bool channel_step(struct pc_channel *ch)
{
	uint64_t moves = ch->moves;

	if (!ch->session) {
		if (ch->pc->inherited)
			channel_end_batches(ch);
		return false;
	}
	ch->now_ns = clock_monotonic_ns();
	reap_rails(ch);
	reap_ctl(ch);
	if (unlikely(ch->device))
		fetch_copies_end(ch, FETCH_WAIT_NOT);
	channel_step_batches(ch);
	notice_touches_end(ch);
	submit_flush(ch);
	if (ch->now_ns - ch->looked_ns >= LOOK_AROUND_NS) {
		ch->looked_ns = ch->now_ns;
		ch->no_room = false;
		ch->broken |= session_ended(ch->session);
	}
	if (unlikely(ch->broken))
		channel_lost(ch);
	return ch->moves != moves;
}

/* ---- calls ----------------------------------------------------------------------------------- */

/*
 * As many parameters as the public calls, whose arguments they are, and the kind. `lengths`: of a
 * sized get, else NULL.
 */
static int batch_submit(struct pc_channel *ch, enum batch_kind kind, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results, uint64_t *lengths,
	struct pc_batch **ret_batch)
{
	uint64_t submitted_ns = clock_monotonic_ns();
	uint64_t deadline_ns = submitted_ns + timeout_ns(timeout_ms);
	struct pc_batch *b;
	bool ready;

	if (!ch || !ret_batch || count > BATCH_MAX || (count && (!pages || !results)))
		return error_set(-EINVAL,
			"a batch needs a channel, at most %u pages and a place for their results",
			BATCH_MAX);
	/* Called before the batch is made, because a channel that loses its engine ends all its
	 * batches. */
	ready = channel_ready(ch, deadline_ns);
	b = batch_make(ch, kind, count, results, deadline_ns);
	if (!b)
		return error_set(-ENOMEM, "out of memory for a batch of %u pages", count);
	b->pages = pages;
	b->lengths = lengths;
	b->submitted_ns = submitted_ns;
	b->gap = ch->gap;
	b->head = ch->head && kind == BATCH_EXISTS;
	if (ready) {
		map_refresh(ch);
		memory_refresh(ch);
	}
	pages_init(b, ready);
	if (ready) {
		batch_begin(b);
		channel_step(ch);
	} else {
		batch_gone(b);
	}
	if (unlikely(ch->descriptor >= 0))
		channel_arm(ch);
	*ret_batch = b;
	return 0;
}

void pc_channel_gap(struct pc_channel *ch, bool gap)
{
	if (ch)
		ch->gap = gap;
}

void pc_channel_head(struct pc_channel *ch, bool head)
{
	if (ch)
		ch->head = head;
}

bool pc_poll(struct pc_batch *b)
{
	if (!b)
		return true;
	if (b->left)
		channel_step(b->channel);
	if (b->left && unlikely(b->channel->descriptor >= 0))
		channel_arm(b->channel);
	if (b->left)
		return false;
	batch_free(b);
	return true;
}

void pc_wait(struct pc_batch *b)
{
	if (!b)
		return;
	wait_for(b->channel, b, UINT64_MAX); /* steps, spins, then sleeps until it is woken */
	batch_free(b);
}

static int batch_call(struct pc_channel *ch, enum batch_kind kind, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results, uint64_t *lengths)
{
	struct pc_batch *b = NULL;
	int rc = batch_submit(ch, kind, pages, count, timeout_ms, results, lengths, &b);

	if (!rc)
		pc_wait(b);
	return rc;
}

int pc_submit_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(channel, BATCH_GET, pages, count, timeout_ms, results, NULL, ret_batch);
}

/* Why a sized get is refused: it has nowhere to put the lengths. */
static int lengths_missing(void)
{
	return error_set(-EINVAL, "a sized get needs a place for the lengths of its pages");
}

int pc_submit_get_sized(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, uint64_t *bytes, struct pc_batch **ret_batch)
{
	if (!bytes && count)
		return lengths_missing();
	return batch_submit(
		channel, BATCH_GET, pages, count, timeout_ms, results, bytes, ret_batch);
}

int pc_submit_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(channel, BATCH_SET, pages, count, timeout_ms, results, NULL, ret_batch);
}

int pc_submit_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(
		channel, BATCH_EXISTS, pages, count, timeout_ms, results, NULL, ret_batch);
}

int pc_submit_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(
		channel, BATCH_REMOVE, pages, count, timeout_ms, results, NULL, ret_batch);
}

int pc_submit_prefetch(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return batch_submit(
		channel, BATCH_PREFETCH, pages, count, timeout_ms, results, NULL, ret_batch);
}

int pc_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_GET, pages, count, timeout_ms, ret_results, NULL);
}

int pc_get_sized(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results, uint64_t *ret_bytes)
{
	if (!ret_bytes && count)
		return lengths_missing();
	return batch_call(channel, BATCH_GET, pages, count, timeout_ms, ret_results, ret_bytes);
}

int pc_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_SET, pages, count, timeout_ms, ret_results, NULL);
}

int pc_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	enum batch_kind kind = channel && channel->match ? BATCH_MATCH : BATCH_EXISTS;

	return batch_call(channel, kind, pages, count, timeout_ms, ret_results, NULL);
}

int pc_prefetch(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_PREFETCH, pages, count, timeout_ms, ret_results, NULL);
}

int pc_pin(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned seconds, unsigned timeout_ms, enum pc_result *ret_results)
{
	if (!channel || !seconds || seconds > PC_PIN_MAX_S)
		return error_set(
			-EINVAL, "a pin needs a channel, and lasts 1 to %u seconds", PC_PIN_MAX_S);
	channel->seconds = seconds;
	return batch_call(channel, BATCH_PIN, pages, count, timeout_ms, ret_results, NULL);
}

int pc_unpin(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	if (channel)
		channel->seconds = 0;
	return batch_call(channel, BATCH_PIN, pages, count, timeout_ms, ret_results, NULL);
}

int pc_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return batch_call(channel, BATCH_REMOVE, pages, count, timeout_ms, ret_results, NULL);
}
