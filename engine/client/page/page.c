/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What becomes of a page when it is known how a step of it ended: it is done, or it is queued for
 * its next step. The files of the steps (look.c, head.c, answer.c, fetch.c, set.c, ctl.c) call
 * these functions with the outcome; call.c starts the steps of what is queued. A page of this host
 * is copied here, because that needs no waiting. Stale entries, damaged and used pages are reported
 * to the control plane here. Channel thread. The phases:
 *
 *   get      LOOK ~> found: here --> copied, DONE
 *                           elsewhere --> RUN (or FETCH) ~> DONE,
 *                                               or stale, or its CRC is due --> HEAD ~> DONE
 *   exists   LOOK ~> DONE
 *   set      LOOK ~> found: here --> DONE
 *                           elsewhere --> HEAD ~> DONE
 *                    absent, stale or unreachable: STORE --> PUBLISH ~> DONE
 *   remove   REMOVE ~> DONE
 *
 * A page that a get or exists does not find goes through DISK, once, if this host has a disk:
 *   DISK ~> here --> copied, DONE; or not on disk: DONE
 * A page that a get finds on a disk goes through DISK, too:
 *   DISK ~> found in the memory of that host; or not: the next location
 *
 * An arrow --> is taken when there is room, an arrow ~> when an answer comes. Between them the page
 * waits in the queue of its phase, or is IN_FLIGHT. After a wrong location the page tries its next
 * one; after the last one it goes back to LOOK, once.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/crc32c.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/abi/statistics.h"
#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/copy.h"
#include "engine/client/device.h"
#include "engine/client/error.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"
#include "engine/client/rings/rings.h"

#include <string.h>

/* ---- messages to the control plane without an answer ----------------------------------------- */

/*
 * Messages to the control plane that get no answer: stale entries, damaged and used pages. Best
 * effort: half of the ctl ring stays free for requests that wait for an answer.
 */

/* CTL_STALE: its directory entry is wrong. CTL_CORRUPT: its bytes differ from its CRC. */
static void notice_page(struct pc_channel *ch, enum ctl_kind kind, const struct page_work *p)
{
	struct ctl_op op = {.kind = (uint8_t)kind,
		.length = p->bytes,
		.key = p->key,
		.place = p->at.place,
		.generation = p->at.generation,
		.ref = p->at.ref};

	if (submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		submit_ctl(ch, &op, 0);
}

__attribute__((noinline)) void notice_touches_submit(struct pc_channel *ch)
{
	struct ctl_op op;

	memcpy(&op, &ch->touches, sizeof(op));
	ch->touches.count = 0;
	submit_ctl(ch, &op, 0);
}

void notice_touches_end(struct pc_channel *ch)
{
	if (!ch->touches.count)
		return;
	if (submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		notice_touches_submit(ch);
	ch->touches.count = 0;
}

/* Collects a touch of a page of another engine. False: no room. */
static bool notice_far(struct pc_channel *ch, const struct cache_entry *e)
{
	struct ctl_touches *t = &ch->touches;

	if (!t->count && !submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		return false;
	t->kind = CTL_TOUCHES;
	t->page[t->count].ref = e->at.ref;
	t->page[t->count++].place = e->at.place;
	if (t->count == CTL_TOUCHES_MAX)
		notice_touches_end(ch);
	return true;
}

/* Tells of a touch at once, in an op of its own. False: no room. */
static bool notice_alone(struct pc_channel *ch, const struct cache_entry *e)
{
	struct ctl_op op = {.kind = CTL_TOUCH,
		.key = e->key,
		.place = e->at.place,
		.generation = e->at.generation,
		.ref = e->at.ref};

	if (!submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		return false;
	submit_ctl(ch, &op, 0);
	return true;
}

/* `alone`: at once, in an op of its own. */
static void notice_tell(struct pc_channel *ch, struct cache_entry *e, bool alone, uint32_t now_ms)
{
	bool far = !alone && e->at.ref != ch->session->ref;

	if (!(far ? notice_far(ch, e) : notice_alone(ch, e)))
		return;
	e->touched_ms = notice_stamp(now_ms);
}

static void notice_again(struct pc_channel *ch, struct cache_entry *e, uint32_t now_ms)
{
	if (cache_touch_due(e, now_ms))
		notice_tell(ch, e, false, now_ms);
}

__attribute__((noinline)) void notice_touch_due(
	struct pc_channel *ch, const struct page_work *p, struct cache_entry *e, uint32_t now_ms)
{
	if (!e || unlikely(p->disk == DISK_PROMOTED))
		e = cache_put(ch, &p->key, &p->at, now_ms);
	/* never left out and never late: it ends the pin of a page that came from disk */
	if (unlikely(p->disk == DISK_PROMOTED))
		notice_tell(ch, e, true, now_ms);
	else
		notice_again(ch, e, now_ms);
}

/* An exists found the page on a disk, at p->at: a get may follow. */
static void notice_want(struct pc_channel *ch, const struct page_work *p)
{
	struct ctl_op op = {.kind = CTL_WANT, .key = p->key, .ref = p->at.ref};

	if (submit_ctl_room(ch, 0, CTL_RING_SLOTS / 2))
		submit_ctl(ch, &op, 0);
}

/*
 * Reports a page that was looked up but not read as used, so that eviction spares it for a while.
 * Not inline: page_stored() would save registers for it at each page.
 */
__attribute__((noinline)) static void notice_wanted(
	const struct pc_batch *b, const struct page_work *p)
{
	struct pc_channel *ch = b->channel;
	struct cache_entry *e = cache_numbered(ch, p->cached, &p->key);
	uint32_t now_ms = channel_now_ms(ch);

	if (unlikely(!e))
		e = cache_find(ch, &p->key);
	/* cache_set.seen_ms stays: the look-up did not confirm the location */
	if (e && (cache_touch_due(e, now_ms) ||
			 (b->head && now_ms - e->touched_ms >= TOUCH_HEAD_NS / 1000000)))
		notice_tell(ch, e, false, now_ms);
}

/* ---- comparing with the CRC ------------------------------------------------------------------ */

/*
 * Compares the bytes of hits with the CRC32C in their page head: of all, of a sample, or of none
 * (pc_options.verify; rail.validate = crc: of all, and a page whose head has no CRC, or is torn, is
 * no hit). A page of this host is compared with the head that was loaded after its copy
 * (local_get()). Of a page of another member only its rail has read the head, and under a lease not
 * even that, so the head is READ now:
 *
 *   READ of the page ~> hit, and it is due --> READ of the head (head.c) ~> same CRC: hit
 *                                                                           else: next location
 *
 * The head of one (place, generation) never changes while the page is there, so the CRC is that of
 * the page that was read. A page that is VERIFY_DUE stays it until it is done: after a mismatch, no
 * other copy and no second attempt is a hit without being compared.
 */

/*
 * The distance to the next hit that is compared is uniform in 1 .. 2n - 1, n on average: a fixed
 * one would compare the same pages of each batch if the batches are alike.
 */
static void verify_distance(struct pc_channel *ch)
{
	uint32_t one_in = ch->verify_all ? 1 : ch->pc->verify_one_in;

	/* xorshift64 (Marsaglia, "Xorshift RNGs", 2003) */
	ch->verify_random ^= ch->verify_random << 13;
	ch->verify_random ^= ch->verify_random >> 7;
	ch->verify_random ^= ch->verify_random << 17;
	ch->verify_left = one_in ? 1 + (uint32_t)((ch->verify_random >> 32) % (2 * one_in - 1)) : 0;
}

void verify_open(struct pc_channel *ch)
{
	ch->verify_random = (clock_monotonic_ns() ^ (uintptr_t)ch << 20) | 1;
	for (unsigned i = 0; i < 8; i++)
		verify_distance(ch);
}

void verify_choose(struct pc_channel *ch, struct page_work *p)
{
	verify_distance(ch);
	p->verify = VERIFY_DUE;
	p->regular = false;
}

/* ---- pages of this host ---------------------------------------------------------------------- */

/*
 * A page of this host's own pools: the channel's thread copies it out of the mapping. The page head
 * loaded after the copy decides, by the same rule as for a remote page. The page head loaded before
 * the copy only saves a useless copy.
 */

/* Returns the page head of a place in this host's pools; NULL: the place is outside the mapping. */
static const struct page_head *local_head(
	const struct client_session *session, uint32_t place, uint64_t bytes)
{
	uint64_t offset = place_offset(place);
	const struct session_rail *rail;

	if (place_rail(place) >= session->rails)
		return NULL;
	rail = &session->rail[place_rail(place)];
	if (offset >= rail->pool_bytes || bytes > rail->pool_bytes - offset)
		return NULL;
	return &rail->heads[place_unit(place)];
}

uint32_t local_length(
	const struct client_session *session, const struct page_key *key, const struct location *at)
{
	const struct page_head *shared = local_head(session, at->place, 1);

	return shared ? page_head_length(shared, key, at->generation) : 0;
}

/*
 * Copies the bytes of a page of this host; *ret_crc: their CRC, if it is due. False: the driver of
 * a GPU failed.
 */
static bool local_copy(const struct pc_batch *b, const struct page_work *p,
	const struct pc_page *page, const unsigned char *from, uint32_t *ret_crc)
{
	if (unlikely(b->device)) {
		if (!device_scatter(
			    b->channel->device, page->segments, 0, from, p->bytes, CLIENT_NONE))
			return false;
		*ret_crc = p->verify ? crc32c(0, from, p->bytes) : 0;
	} else if (unlikely(p->verify)) {
		*ret_crc = copy_scatter_crc(page->segments, from, p->bytes);
	} else {
		copy_scatter(page->segments, 0, from, p->bytes);
	}
	return true;
}

enum pc_result local_get(struct pc_batch *b, const struct page_work *p, const struct pc_page *page,
	bool *ret_corrupt)
{
	struct pc_channel *ch = b->channel;
	const struct client_session *session = ch->session;
	const struct page_head *shared = local_head(session, p->at.place, p->bytes);
	const unsigned char *from;
	struct page_head head;
	uint32_t crc = 0, length;

	*ret_corrupt = false;
	length = shared ? page_head_length(shared, &p->key, p->at.generation) : 0;
	if (!length)
		return PC_STALE;
	if (unlikely(length != p->bytes)) {
		error_length(p->bytes, length);
		return PC_INVALID;
	}
	from = session->rail[place_rail(p->at.place)].pool + place_offset(p->at.place);
	if (unlikely(!local_copy(b, p, page, from, &crc)))
		return PC_UNREACHABLE;
	/* loads the page head after the payload; pairs with the fence of the engine, which
	 * increments the generation before it reuses the slot */
	shm_fence_load();
	head = page_head_load(shared);
	shm_fence_stream();
	if (!page_head_is(&head, &p->key, p->at.generation, p->bytes))
		return PC_STALE;
	if (unlikely(p->verify) && page_head_is_proven(&head)) {
		*ret_corrupt = head.crc != crc;
		ch->verify_counts.verified += head.crc == crc;
	} else if (unlikely(ch->verify_all) && !page_head_is_proven(&head)) {
		return PC_MISS;
	}
	return *ret_corrupt ? PC_STALE : PC_HIT;
}

/* ---- outcomes -------------------------------------------------------------------------------- */

/*
 * Counts a page with a result other than PC_HIT, if it is no answer about a longer page. Hits are
 * counted in page_get_here(), page_hit() and answer.c.
 */
void page_count(struct pc_batch *b, enum pc_result result)
{
	struct pc_counts *counts = &b->channel->counts;

	if (b->kind >= BATCH_PEEK || result == PC_LONGER)
		return;
	b->missed[result < PC_INVALID ? (unsigned)result : STATISTICS_OTHER]++;
	if (result == PC_MISS && b->kind != BATCH_REMOVE)
		counts->misses++;
	else if (result == PC_STALE)
		counts->stale++;
	else if (result == PC_UNREACHABLE)
		counts->unreachable++;
	else if (result == PC_TIMEOUT)
		counts->timeouts++;
}

/*
 * Prefetches what a set will look at soon: the word with the key's owners, and the bucket that the
 * key has if this host is one of them.
 */
static inline void page_prefetch_here(
	const struct client_session *session, const struct page_key *key)
{
	__builtin_prefetch(&session->status->map.slot[map_slot_of(key)]);
	__builtin_prefetch(&session->shard[dir_bucket_first(key, session->bucket_bits)]);
}

void page_look_again(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	if (b->kind == BATCH_SET)
		page_prefetch_here(b->channel->session, &p->key);
	p->cached = cache_index(&p->key);
	p->asked = 0;
	p->others = 0;
	p->rails_tried = 0;
	p->flags &= (uint8_t) ~(PAGE_SECOND | PAGE_SAW_ANSWER | PAGE_SAME_PEER);
	b->channel->counts.lookups++;
	page_queue(b, i, PAGE_LOOK);
}

void page_hit(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	const struct page_work *p = &b->work[i];

	ch->counts.hits_remote++;
	ch->counts.bytes_read += p->bytes;
	if (!(p->flags & PAGE_REGISTERED))
		ch->counts.bytes_staged += p->bytes;
	ch->peer_rest_until_ns[p->peer] = 0;
	peer_load_add(b, p->peer, p->bytes);
	notice_touch(ch, p, channel_now_ms(ch));
	page_done(b, i, PC_HIT);
}

/* True if the page was queued to have this host's disk searched, which is done once. */
static bool page_search_disk(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (p->disk != DISK_UNASKED || b->kind == BATCH_MATCH ||
		!shm_load(&ch->session->status->disk))
		return false;
	p->disk = DISK_ASKED;
	p->at = (struct location){0};
	page_queue(b, i, PAGE_DISK);
	return true;
}

void page_absent(struct pc_batch *b, uint32_t i)
{
	const struct page_work *p = &b->work[i];

	if (b->kind == BATCH_SET && !p->other_length)
		page_queue(b, i, PAGE_STORE);
	else if (b->kind != BATCH_SET && page_search_disk(b, i))
		return;
	else if (p->other_length)
		page_done(b, i, b->lengths ? PC_LONGER : PC_INVALID);
	else if (p->flags & PAGE_SAW_STALE && b->kind == BATCH_GET)
		page_done(b, i, PC_STALE);
	else
		page_done(b, i, p->flags & PAGE_SAW_FAILURE ? PC_UNREACHABLE : PC_MISS);
}

/* get, sized: the page at the next location may be as long as its room. */
static void page_room_again(struct page_work *p, const struct pc_page *page)
{
	p->landed = 0;
	p->bytes = 0;
	for (unsigned s = 0; s < page->segment_count; s++)
		p->bytes += (uint32_t)page->segments[s].bytes;
}

/*
 * The location in use was wrong: tries the next location, then one more look-up, then ends the
 * page. A set that could not ask a holder or owner stores the page instead of looking it up again.
 */
static void page_wrong(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	p->wrong = p->at;
	if (unlikely(p->verify))
		p->verify = VERIFY_DUE;
	if (unlikely(b->lengths))
		page_room_again(p, &b->pages[i]);
	p->rails_tried = 0;
	p->flags &= (uint8_t)~PAGE_SAW_REFUSAL;
	cache_drop(ch, &p->key);
	if (p->others) {
		p->at = p->other[--p->others];
		page_found(b, i);
	} else if (!(p->flags & PAGE_RETRIED) &&
		   !(b->kind == BATCH_SET && p->flags & PAGE_SAW_FAILURE)) {
		p->flags |= PAGE_RETRIED;
		page_look_again(b, i);
	} else {
		page_absent(b, i);
	}
}

void page_stale(struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	p->flags |= PAGE_SAW_STALE;
	notice_page(b->channel, CTL_STALE, p);
	page_wrong(b, i);
}

void page_length_differs(struct pc_batch *b, uint32_t i, uint32_t stored)
{
	error_length(b->work[i].bytes, stored);
	/* a page that has gone meanwhile has no length, or that of another one */
	b->work[i].other_length = !b->lengths || stored > b->work[i].bytes;
	if (b->lengths)
		b->lengths[i] = stored;
	page_wrong(b, i);
}

void page_unreached(struct pc_batch *b, uint32_t i)
{
	b->work[i].flags |= PAGE_SAW_FAILURE;
	page_wrong(b, i);
}

void page_corrupt(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;

	ch->verify_counts.corrupt++;
	notice_page(ch, CTL_CORRUPT, &b->work[i]);
	page_wrong(b, i);
}

void page_unproven(struct pc_batch *b, uint32_t i)
{
	page_wrong(b, i);
}

/* The page of this host was not copied. `result`, `corrupt`: see local_get(). */
static void page_not_here(struct pc_batch *b, uint32_t i, enum pc_result result, bool corrupt)
{
	struct page_work *p = &b->work[i];

	if (corrupt)
		page_corrupt(b, i);
	else if (result == PC_MISS)
		page_unproven(b, i);
	else if (result == PC_STALE)
		page_stale(b, i);
	else if (result == PC_UNREACHABLE)
		page_done(b, i, PC_INVALID); /* the error text is the driver's */
	else
		page_length_differs(b, i, local_length(b->channel->session, &p->key, &p->at));
}

/* Copies the page of this host. */
static void page_get_here(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	enum pc_result result;
	bool corrupt;

	if (clock_monotonic_ns() >= b->deadline_ns) {
		/* the deadline is checked for each page, because many local copies in one batch
		 * take long */
		page_done(b, i, PC_TIMEOUT);
		return;
	}
	(void)verify_due(ch, p);
	if (unlikely(b->lengths)) {
		uint32_t length = local_length(ch->session, &p->key, &p->at);

		if (length && length < p->bytes)
			page_shorter(p, length);
	}
	result = local_get(b, p, &b->pages[i], &corrupt);
	if (unlikely(result != PC_HIT)) {
		page_not_here(b, i, result, corrupt);
		return;
	}
	ch->counts.hits_local++;
	ch->counts.bytes_read += p->bytes;
	notice_touch(ch, p, channel_now_ms(ch));
	page_done(b, i, PC_HIT);
}

void page_refused(struct pc_batch *b, uint32_t i)
{
	error_set(0,
		"the engine%s refused page %u of %u bytes: is its memory mapped, and has no page of another length its key?",
		b->device ? ", or the driver of its GPU," : "", i, b->work[i].bytes);
	page_done(b, i, PC_INVALID);
}

void page_stored(struct pc_batch *b, uint32_t i, uint32_t length)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (unlikely(length != p->bytes)) {
		page_length_differs(b, i, length);
		return;
	}
	ch->counts.sets_already++;
	notice_wanted(b, p);
	page_done(b, i, PC_HIT);
}

void page_bring(struct pc_batch *b, uint32_t i, const struct page_head *head)
{
	struct page_work *p = &b->work[i];

	if (p->others + 1u >= PREFETCH_HOLDERS) {
		page_done(b, i, PC_FULL); /* entries of copies must not take the room of others */
		return;
	}
	p->bytes = head->length;
	p->crc = head->crc;
	p->flags &= (uint8_t)~PAGE_PROVEN;
	if (page_head_is_proven(head))
		p->flags |= PAGE_PROVEN;
	page_queue(b, i, PAGE_DISK); /* ctl.c requests the copy */
}

/* This host has the page at p->at, or the batch is an exists. */
static void page_here(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];
	uint32_t length = 0;

	if (b->kind == BATCH_GET) {
		page_get_here(b, i);
		return;
	}
	if (p->at.ref == ch->session->ref) {
		length = local_length(ch->session, &p->key, &p->at);
		if (!length) {
			page_stale(b, i);
			return;
		}
	}
	if (b->kind == BATCH_SET) {
		page_stored(b, i, length);
		return;
	}
	notice_wanted(b, p);
	page_done(b, i, PC_HIT);
}

/* The page is on a disk, at p->at. */
static void page_found_on_disk(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	struct page_work *p = &b->work[i];

	if (b->kind == BATCH_PREFETCH ||
		(b->kind == BATCH_EXISTS && p->at.ref != ch->session->ref)) {
		notice_want(ch, p);
		page_done(b, i, PC_HIT);
	} else if (ch->now_ns >= b->deadline_ns) {
		page_done(b, i, PC_TIMEOUT);
	} else {
		page_queue(b, i, PAGE_DISK);
	}
}

void page_found(struct pc_batch *b, uint32_t i)
{
	struct pc_channel *ch = b->channel;
	const struct page_work *p = &b->work[i];

	if (unlikely(place_on_disk(p->at.place)))
		page_found_on_disk(b, i);
	else if (b->kind == BATCH_EXISTS || p->at.ref == ch->session->ref)
		page_here(b, i);
	else if (b->kind == BATCH_GET)
		page_queue(b, i, page_read_phase(p));
	else
		page_queue(b, i, PAGE_HEAD); /* another host has it: its head decides */
}
