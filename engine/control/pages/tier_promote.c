/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promote: a page that is on this host's disk is read into a slot of a pool, and then answered and
 * published like a page that a client has set. Clients of this host request it (CTL_PROMOTE), and
 * other engines for their clients (Promote of message.proto): these get the place, from which the
 * reader's NIC READs the page. The control plane's thread only.
 *
 *   CTL_PROMOTE --> WANTED: waits for a slot --> READING --> published, pinned, answered
 *   Promote     |-> CAPPED: too many bytes are pinned ^
 *               '-> WRITING: its spill is in flight ---'
 *
 * engine/disk has compared the page's CRC, and its sequence number after the read, before it
 * returns DISK_OK; a key that was removed since then is found here (tier_promote_cancel()). Only
 * then is the page published. Requests for one key share one read.
 *
 * Pins. A page that was read from disk stays in memory until all who requested it have read it
 * (CTL_TOUCH, or Touch of another engine), or until the deadline of the last request, at most
 * TIER_PIN_STEPS * TIER_PIN_NS: it could otherwise be evicted before it was of use. Pins end by a
 * wheel of TIER_PIN_STEPS lists, one for each TIER_PIN_NS.
 */
#include <stdlib.h>

#include "engine/abi/message.pb-c.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/pages/tier_inner.h"

/* ---- pins ------------------------------------------------------------------------------------ */

static void pin_end(struct tier *t, struct tier_pin *pin)
{
	pool_unpin(t->control->rail[place_rail(pin->place)].pool, pin->place, pin->generation,
		POOL_PIN_READER);
	LIST_REMOVE(pin, same);
	TAILQ_REMOVE(&t->wheel[pin->step], pin, next);
	t->pinned_bytes -= pin->bytes;
	t->pins--;
	t->promote_due = true;
	free(pin);
}

static struct tier_pin *pin_find(struct tier *t, uint32_t place, uint32_t generation)
{
	struct tier_pin *pin;

	LIST_FOREACH (pin, &t->pin_of[tier_chain(place)], same)
		if (pin->place == place && (generation == 0 || pin->generation == generation))
			return pin;
	return NULL;
}

void tier_pin(struct tier *t, uint32_t place, uint32_t generation, uint32_t bytes, uint32_t readers,
	uint64_t deadline_ns)
{
	uint64_t now_ns = net_now(), steps;
	struct tier_pin *pin = readers ? malloc(sizeof(*pin)) : NULL;

	if (!pin || pool_pin(t->control->rail[place_rail(place)].pool, place, generation,
			    POOL_PIN_READER) < 0) {
		free(pin);
		t->pinned_bytes -= bytes;
		t->promote_due = true;
		return;
	}
	if (!t->pins)
		t->wheel_ns = now_ns / TIER_PIN_NS * TIER_PIN_NS;
	steps = deadline_ns > t->wheel_ns ? (deadline_ns - t->wheel_ns) / TIER_PIN_NS : 0;
	if (steps > TIER_PIN_STEPS - 2)
		steps = TIER_PIN_STEPS - 2;
	*pin = (struct tier_pin){.place = place,
		.generation = generation,
		.bytes = bytes,
		.readers = readers,
		.step = (unsigned)((t->wheel_ns / TIER_PIN_NS + steps) % TIER_PIN_STEPS)};
	LIST_INSERT_HEAD(&t->pin_of[tier_chain(place)], pin, same);
	TAILQ_INSERT_TAIL(&t->wheel[pin->step], pin, next);
	t->pins++;
	tier_tick(t);
}

void tier_touched(struct control *control, uint32_t place, uint32_t generation)
{
	struct tier *t = control->tier;
	struct tier_pin *pin = t && t->pins ? pin_find(t, place, generation) : NULL;

	if (pin && --pin->readers == 0)
		pin_end(t, pin);
}

/* Ends the pins whose time has passed. */
static void tier_pins_end(struct tier *t, uint64_t now_ns)
{
	while (t->pins && t->wheel_ns + TIER_PIN_NS <= now_ns) {
		struct tier_pins *step = &t->wheel[t->wheel_ns / TIER_PIN_NS % TIER_PIN_STEPS];
		struct tier_pin *pin;

		while ((pin = TAILQ_FIRST(step)))
			pin_end(t, pin);
		t->wheel_ns += TIER_PIN_NS;
	}
}

static void tier_pins_close(struct tier *t)
{
	struct tier_pin *pin;

	for (unsigned i = 0; i < TIER_PIN_STEPS; i++)
		while ((pin = TAILQ_FIRST(&t->wheel[i])))
			pin_end(t, pin);
}

/* ---- answers to other engines ---------------------------------------------------------------- */

static void reply_send(struct rpc_link *link, Pc__PromotedPage **pages, size_t count)
{
	Pc__Promoted body = PC__PROMOTED__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.n_pages = count;
	body.pages = pages;
	message.body_case = PC__MESSAGE__BODY_PROMOTED;
	message.promoted = &body;
	/*
	 * Not rpc_reply(): that may close the link, and callers keep pointers to it. What is not
	 * sent ends at its deadline.
	 */
	(void)rpc_send(link, &message);
}

static void reply_page_fill(Pc__PromotedPage *page, uint64_t id, const struct ctl_done *done)
{
	*page = (Pc__PromotedPage)PC__PROMOTED_PAGE__INIT;
	page->id = id;
	switch (done->status) {
	case OP_HIT:
		page->result = PC__PROMOTE_RESULT__PROMOTE_HERE;
		page->place = done->place;
		page->generation = done->generation;
		break;
	case OP_MISS: page->result = PC__PROMOTE_RESULT__PROMOTE_GONE; break;
	case OP_INVALID:
		page->result = PC__PROMOTE_RESULT__PROMOTE_OTHER_LENGTH;
		page->bytes = done->length;
		break;
	default: page->result = PC__PROMOTE_RESULT__PROMOTE_LATE; break;
	}
}

static void reply_one(struct rpc_link *link, uint64_t id, const struct ctl_done *done)
{
	Pc__PromotedPage page, *at = &page;

	reply_page_fill(&page, id, done);
	reply_send(link, &at, 1);
}

void tier_replies_send(struct tier *t)
{
	struct tier_reply *reply = &t->reply;
	struct rpc_link *link = reply->link;

	if (!link)
		return;
	reply->link = NULL;
	reply_send(link, reply->page_at, reply->pages);
	reply->pages = 0;
}

static void reply_add(
	struct tier *t, struct rpc_link *link, uint64_t id, const struct ctl_done *done)
{
	struct tier_reply *reply = &t->reply;

	if (reply->link != link || reply->pages == MESSAGE_PAGES_MAX)
		tier_replies_send(t);
	reply->link = link;
	reply_page_fill(&reply->page[reply->pages++], id, done);
}

/* Answers a waiter with `remote`, before it is freed. */
static void tier_reply(
	struct tier *t, const struct tier_waiter *waiter, const struct ctl_done *done)
{
	t->remote--;
	if (done->status == OP_HIT)
		t->control->counter[COUNTER_disk_hits_remote]++;
	if (waiter->link)
		reply_add(t, waiter->link, waiter->id, done);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void waiter_answer(struct tier *t, struct tier_waiter *waiter, const struct ctl_done *done)
{
	if (waiter->remote)
		tier_reply(t, waiter, done);
	else
		t->control->pages_events->later_answer(t->control->ctl, waiter->answer, done);
	free(waiter);
}

static void promote_answer_all(
	struct tier *t, struct tier_promote *promote, const struct ctl_done *done)
{
	struct tier_waiter *waiter;

	while ((waiter = STAILQ_FIRST(&promote->waiters))) {
		STAILQ_REMOVE_HEAD(&promote->waiters, next);
		if (done->status == OP_HIT)
			t->control->counter[COUNTER_disk_hits]++;
		else
			t->control->counter[COUNTER_disk_misses]++;
		waiter_answer(t, waiter, done);
	}
}

/* ---- states ---------------------------------------------------------------------------------- */

static struct tier_promote *promote_find(struct tier *t, const struct page_key *key)
{
	struct tier_promote *promote;

	LIST_FOREACH (promote, &t->promote_of[tier_chain(key->word[1])], same)
		if (!promote->removed && page_key_equal(&promote->request.key, key))
			return promote;
	return NULL;
}

static void promote_leave(struct tier *t, struct tier_promote *promote)
{
	TAILQ_REMOVE(&t->promotes[promote->state], promote, next);
	if (promote->state == PROMOTE_WANTED)
		evict_wait(promote->class, -1, promote->own);
}

static void promote_enter(struct tier *t, struct tier_promote *promote, enum promote_state state)
{
	promote->state = state;
	TAILQ_INSERT_TAIL(&t->promotes[state], promote, next);
	if (state != PROMOTE_WANTED)
		return;
	promote->class = evict_class_of(t->control->evict, promote->rail, promote->request.length);
	promote->own = index_above(t->control->index, &promote->request.key, 0);
	evict_wait(promote->class, 1, promote->own);
}

/* Ends a promote that is in no list. */
static void promote_free(struct tier *t, struct tier_promote *promote, const struct ctl_done *done)
{
	promote_answer_all(t, promote, done);
	LIST_REMOVE(promote, same);
	free(promote);
}

static bool pin_budget_has(const struct tier *t, uint32_t bytes)
{
	return t->pinned_bytes == 0 || t->pinned_bytes + bytes <= t->pinned_bytes_max;
}

static void promote_coming(struct tier *t, const struct tier_promote *promote, int sign)
{
	index_coming(t->control->index, &promote->request.key, sign * (int64_t)promote->bytes);
}

/* Ends a promote that gets no slot. */
static void promote_give_up(struct tier *t, struct tier_promote *promote, enum op_status status)
{
	promote_leave(t, promote);
	if (promote->state == PROMOTE_WANTED) {
		t->pinned_bytes -= promote->bytes;
		promote_coming(t, promote, -1);
	}
	promote_free(t, promote, &(struct ctl_done){.status = status});
}

/* Wants a slot for a promote that is in no list, if the cap allows. */
static void promote_want(struct tier *t, struct tier_promote *promote)
{
	struct control *control = t->control;

	if (!pin_budget_has(t, promote->bytes)) {
		promote_enter(t, promote, PROMOTE_CAPPED);
		return;
	}
	t->pinned_bytes += promote->bytes;
	promote_coming(t, promote, 1);
	promote->rail = t->turn++ % control->rails;
	promote_enter(t, promote, PROMOTE_WANTED);
	t->promote_due = true;
}

/* ---- slots and reads ------------------------------------------------------------------------- */

static void promote_read_start(
	struct tier *t, struct tier_promote *promote, uint32_t place, uint32_t generation)
{
	promote_leave(t, promote);
	promote->place = place;
	promote->generation = generation;
	evict_hold(t->control->evict, promote->rail, promote->request.length, 1);
	if (!promote->own)
		evict_class_of(t->control->evict, promote->rail, promote->request.length)->taken++;
	promote_enter(t, promote, PROMOTE_READING);
	promote->request.data = tier_memory(t, place);
	disk_submit(t->disk, &promote->request);
}

/* Takes a slot for the promote. False: none is free now. */
static bool promote_slot_take(struct tier *t, struct tier_promote *promote, uint64_t now_ns)
{
	uint32_t length = promote->request.length, place, generation;
	unsigned rail = promote->rail;
	struct index_group *group = index_above(t->control->index, &promote->request.key, 0);
	int rc = pool_take(t->control->rail[rail].pool, length, &place, &generation);

	if (rc == 0) {
		pool_own(t->control->rail[rail].pool, place, warm_owner_disk(t->control));
		promote_read_start(t, promote, place, generation);
	} else if (rc != -ENOSPC)
		promote_give_up(t, promote, OP_NO_SPACE);
	evict_refill_by(t->control->evict, rail, length, group, 0, now_ns);
	return rc != -ENOSPC;
}

unsigned tier_promote(struct tier *t, uint64_t now_ns)
{
	struct tier_promote *promote, *next;
	uint32_t full_units = 0;
	unsigned full_rail = 0, work = 0;

	t->promote_due = false;
	while ((promote = TAILQ_FIRST(&t->promotes[PROMOTE_CAPPED])) &&
		pin_budget_has(t, promote->bytes)) {
		promote_leave(t, promote);
		promote_want(t, promote);
	}
	for (promote = TAILQ_FIRST(&t->promotes[PROMOTE_WANTED]); promote; promote = next) {
		uint32_t units = promote->bytes / PAGE_UNIT;
		unsigned rail = promote->rail;

		next = TAILQ_NEXT(promote, next);
		if (units == full_units && rail == full_rail)
			continue;
		if (promote_slot_take(t, promote, now_ns)) {
			work++;
			continue;
		}
		full_units = units;
		full_rail = rail;
	}
	t->promote_due = false;
	if (!TAILQ_EMPTY(&t->promotes[PROMOTE_WANTED]) ||
		!TAILQ_EMPTY(&t->promotes[PROMOTE_CAPPED]))
		tier_tick(t);
	return work;
}

/* Publishes what was read. Returns false if that is not possible: the slot is still a credit. */
static bool promote_publish(struct tier *t, const struct tier_promote *promote)
{
	struct control *control = t->control;
	const struct disk_request *request = &promote->request;
	struct index_entry entry = {.key = request->key,
		.place = promote->place,
		.generation = promote->generation,
		.length = request->length};
	struct pool *pool = control->rail[promote->rail].pool;

	if (request->status != DISK_OK || promote->removed ||
		index_ends(control->index, &request->key) ||
		index_put(control->index, &entry, NULL) < 0)
		return false;
	(void)pool_prove(pool, &(struct pool_proven){.key = request->key,
				       .place = promote->place,
				       .generation = promote->generation,
				       .length = request->length,
				       .crc = request->crc});
	if (pool_publish(pool, promote->place, promote->generation, &request->key,
		    request->length) < 0) {
		index_remove(control->index, &request->key);
		return false;
	}
	pool_clean_set(pool, promote->place, promote->generation, true);
	control->counter[COUNTER_disk_promotes]++;
	return true;
}

static void promote_slot_return(struct tier *t, const struct tier_promote *promote)
{
	evict_hold(t->control->evict, promote->rail, promote->request.length, -1);
	(void)pool_return(
		t->control->rail[promote->rail].pool, promote->place, promote->generation);
	if (!promote->stranded)
		t->pinned_bytes -= promote->bytes;
	t->promote_due = true;
	t->control->evict->rail[promote->rail].retry = true;
}

void tier_promoted(struct tier *t, struct tier_promote *promote)
{
	struct control *control = t->control;
	const struct page_key *key = &promote->request.key;
	struct ctl_done done = {.status = OP_MISS};
	const struct tier_waiter *waiter;
	uint64_t deadline_ns = 0;
	uint32_t readers = 0;

	promote_leave(t, promote);
	if (!promote->stranded)
		promote_coming(t, promote, -1);
	STAILQ_FOREACH (waiter, &promote->waiters, next) {
		readers++;
		if (waiter->deadline_ns > deadline_ns)
			deadline_ns = waiter->deadline_ns;
	}
	if (promote_publish(t, promote)) {
		page_again(control,
			&(struct location){
				.place = promote->place, .generation = promote->generation},
			EVICTED_NOT);
		done = page_here(index_find(control->index, key));
		tier_pin(t, promote->place, promote->generation, promote->bytes, readers,
			deadline_ns);
		control->pages_events->publish(control, key,
			&(struct location){
				.place = promote->place, .generation = promote->generation},
			NULL);
	} else {
		const struct index_entry *e =
			promote->removed ? NULL : index_find(control->index, key);

		promote_slot_return(t, promote);
		if (promote->request.status == DISK_OK && !promote->removed)
			done.status =
				OP_NO_SPACE; /* it is on disk, but there is no memory for it */
		if (e)                       /* a client has set the page meanwhile */
			done = page_here(e);
	}
	promote_free(t, promote, &done);
}

void tier_written(struct tier *t, const struct page_key *key, bool on_disk)
{
	struct tier_promote *promote = promote_find(t, key);

	if (!promote || promote->state != PROMOTE_WRITING)
		return;
	if (!on_disk || !tier_has(t, key, promote->request.length)) {
		promote_give_up(t, promote, OP_MISS);
		return;
	}
	promote_leave(t, promote);
	promote_want(t, promote);
}

void tier_promote_cancel(struct tier *t, const struct page_key *key)
{
	struct tier_promote *promote = promote_find(t, key);

	if (promote && promote->state == PROMOTE_READING)
		promote->removed = true;
	else if (promote)
		promote_give_up(t, promote, OP_MISS);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Answers the waiters that are due. Returns true if none is left. */
static bool promote_expire(struct tier *t, struct tier_promote *promote, uint64_t now_ns)
{
	STAILQ_HEAD(, tier_waiter) keep = STAILQ_HEAD_INITIALIZER(keep);
	struct tier_waiter *waiter;

	while ((waiter = STAILQ_FIRST(&promote->waiters))) {
		STAILQ_REMOVE_HEAD(&promote->waiters, next);
		if (waiter->deadline_ns > now_ns) {
			STAILQ_INSERT_TAIL(&keep, waiter, next);
			continue;
		}
		t->control->counter[COUNTER_disk_misses]++;
		waiter_answer(t, waiter, &(struct ctl_done){.status = OP_TIMEOUT});
	}
	STAILQ_CONCAT(&promote->waiters, &keep);
	return STAILQ_EMPTY(&promote->waiters);
}

void tier_promote_expire(struct tier *t, uint64_t now_ns)
{
	tier_pins_end(t, now_ns);
	for (unsigned state = PROMOTE_STATES;
		state-- > 0;) { /* those that have come furthest first */
		struct tier_promote *promote = TAILQ_FIRST(&t->promotes[state]), *next;

		for (; promote; promote = next) {
			next = TAILQ_NEXT(promote, next);
			/* an I/O in flight goes on, and a hint waits a little for a slot */
			if (!promote_expire(t, promote, now_ns) || state == PROMOTE_WRITING ||
				state == PROMOTE_READING || now_ns < promote->until_ns)
				continue;
			t->control->counter[COUNTER_disk_refused]++;
			promote_give_up(t, promote, OP_MISS);
		}
	}
	t->promote_due = true;
}

void tier_promote_strand(struct tier *t, struct tier_promote *promote)
{
	promote->stranded = promote->removed = true;
	t->pinned_bytes -= promote->bytes;
	promote_coming(t, promote, -1);
	t->promote_due = true;
	promote_answer_all(t, promote, &(struct ctl_done){.status = OP_MISS});
}

void tier_promote_close(struct tier *t)
{
	tier_pins_close(t);
	for (unsigned i = 0; i < PROMOTE_STATES; i++) {
		struct tier_promote *promote;

		while ((promote = TAILQ_FIRST(&t->promotes[i])))
			promote_give_up(t, promote, OP_CANCELLED);
	}
}

/* ---- what the tier knows of a key ------------------------------------------------------------ */

void tier_look(struct tier *t, const struct page_key *key, struct tier_found *ret)
{
	const struct tier_spill *spill;
	struct disk_page page;

	*ret = (struct tier_found){0};
	if (!t || t->state != TIER_SERVING || t->control->door_shut ||
		index_ends(t->control->index, key))
		return;
	ret->written = disk_find(t->disk, key, &page);
	spill = ret->written ? NULL : tier_spilling(t, key);
	ret->writing = spill != NULL;
	ret->length = ret->written ? page.length : spill ? spill->request.length : 0;
}

/*
 * The answer that needs no disk; false: the page must be read, by tier_bring(). `length` 0: an
 * exists. The tier may be NULL.
 */
static bool tier_known(struct control *control, const struct page_key *key, uint32_t length,
	const struct tier_found *found, struct ctl_done *ret)
{
	const struct index_entry *e = index_find(control->index, key);
	bool here = found->written || found->writing;

	*ret = (struct ctl_done){.status = OP_MISS};
	if (e) {
		/* published since the client has looked, or the directory lacks its entry */
		(void)pool_touch(control->rail[place_rail(e->place)].pool, e->place);
		*ret = page_here(e);
		return true;
	}
	if (!here)
		control->counter[COUNTER_disk_misses]++;
	else if (!length)
		*ret = (struct ctl_done){.status = OP_HIT, .length = found->length};
	else if (length != found->length)
		/* as for a page in memory of another length */
		*ret = (struct ctl_done){.status = OP_INVALID, .length = found->length};
	return !here || !length || length != found->length;
}

/* The length of the page that a get with room for `bytes` bytes expects. */
static uint32_t tier_room(uint32_t bytes, const struct tier_found *found)
{
	return found->length && found->length < bytes ? found->length : bytes;
}

/* ---- requests of clients of this host -------------------------------------------------------- */

static struct tier_promote *promote_new(struct tier *t, const struct page_key *key, uint32_t length)
{
	struct tier_promote *promote = calloc(1, sizeof(*promote));

	if (!promote)
		return NULL;
	promote->request = (struct disk_request){.op = DISK_READ, .key = *key, .length = length};
	promote->bytes = tier_bytes(length);
	STAILQ_INIT(&promote->waiters);
	LIST_INSERT_HEAD(&t->promote_of[tier_chain(key->word[1])], promote, same);
	return promote;
}

/* Brings the page into memory for `waiter`, which the tier then owns; NULL: as a hint. */
static void tier_bring(struct tier *t, const struct page_key *key, const struct tier_found *found,
	struct tier_waiter *waiter)
{
	struct tier_promote *promote = promote_find(t, key);

	if (!promote) {
		if (!waiter && (!found->written || !pin_budget_has(t, tier_bytes(found->length))))
			return; /* a hint is not worth waiting */
		promote = promote_new(t, key, found->length);
		if (promote && !waiter)
			promote->until_ns = net_now() + TIER_HINT_NS;
		if (promote && found->written)
			promote_want(t, promote);
		else if (promote)
			promote_enter(t, promote, PROMOTE_WRITING);
	}
	if (!waiter)
		return;
	if (promote)
		STAILQ_INSERT_TAIL(&promote->waiters, waiter, next);
	else
		waiter_answer(t, waiter, &(struct ctl_done){.status = OP_NO_SPACE});
	tier_tick(t);
}

void tier_hint(struct control *control, const struct page_key *key)
{
	struct tier_found found;

	tier_look(control->tier, key, &found);
	if (found.written && !index_find(control->index, key))
		tier_bring(control->tier, key, &found, NULL);
}

void tier_serve(struct control *control, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns)
{
	struct tier_waiter *waiter;
	struct tier_found found;
	struct ctl_done done;

	tier_look(control->tier, &op->key, &found);
	if (op->count == PROMOTE_ROOM) {
		op->count = PROMOTE_GET;
		op->length = tier_room(op->length, &found);
	}
	/* no page has this length: OP_INVALID if the key is there */
	if (!op->count && !op->length)
		op->length = UINT32_MAX;
	if (tier_known(control, &op->key, op->count ? 0 : op->length, &found, &done)) {
		control->pages_events->answer(control->ctl, c, op, &done);
		if (op->count && !done.generation)
			tier_hint(control, &op->key);
		return;
	}
	waiter = calloc(1, sizeof(*waiter));
	if (waiter)
		waiter->answer = control->pages_events->later(control->ctl, c, op, 1);
	if (!waiter || waiter->answer == PAGES_NO_ANSWER) {
		free(waiter);
		control->pages_events->answer(control->ctl, c, op, &done);
		return;
	}
	waiter->deadline_ns = op->deadline_ns < now_ns + PAGES_WAIT_NS_MAX
				      ? op->deadline_ns
				      : now_ns + PAGES_WAIT_NS_MAX;
	tier_bring(control->tier, &op->key, &found, waiter);
}

/* ---- requests of other engines --------------------------------------------------------------- */

static bool promote_message_fits(const Pc__Promote *promote)
{
	if (promote->n_pages == 0 || promote->n_pages > MESSAGE_PAGES_MAX)
		return false;
	for (size_t i = 0; i < promote->n_pages; i++) {
		const Pc__PromotePage *page = promote->pages[i];

		if ((page->key0 | page->key1) == 0 || page->bytes > PAGE_BYTES_MAX ||
			(page->id && page->bytes == 0))
			return false;
	}
	return true;
}

static struct tier_waiter *remote_waiter_new(
	struct tier *t, struct rpc_link *link, const Pc__PromotePage *page)
{
	uint64_t ns = (uint64_t)page->timeout_ms * 1000000;
	struct tier_waiter *waiter =
		t->remote < TIER_REMOTE_MAX ? calloc(1, sizeof(*waiter)) : NULL;

	if (!waiter)
		return NULL;
	waiter->remote = true;
	waiter->link = link;
	waiter->id = page->id;
	waiter->deadline_ns = net_now() + (ns < PAGES_WAIT_NS_MAX ? ns : PAGES_WAIT_NS_MAX);
	t->remote++;
	return waiter;
}

/* Serves one page. False, and the answer: it can be given at once. */
static bool remote_page_serve(struct control *control, struct rpc_link *link,
	const Pc__PromotePage *page, struct ctl_done *ret_done)
{
	const struct page_key key = {.word = {page->key0, page->key1}};
	struct tier *t = control->tier;
	struct tier_waiter *waiter;
	struct tier_found found;
	uint32_t bytes;

	tier_look(t, &key, &found);
	bytes = page->room ? tier_room(page->bytes, &found) : page->bytes;
	if (tier_known(control, &key, bytes, &found, ret_done)) {
		/* a disk that is not open yet may have the page, or one whose pages wait */
		if (ret_done->status == OP_MISS && t &&
			(t->state == TIER_OPENING || control->door_shut))
			ret_done->status = OP_TIMEOUT;
		return false;
	}
	waiter = remote_waiter_new(t, link, page);
	if (!waiter) {
		control->counter[COUNTER_disk_refused]++;
		*ret_done = (struct ctl_done){.status = OP_TIMEOUT};
		return false;
	}
	tier_bring(t, &key, &found, waiter);
	return true;
}

bool tier_serve_promote(struct control *control, struct rpc_link *link, const Pc__Promote *promote)
{
	struct tier *t = control->tier;

	if (!promote_message_fits(promote))
		return false;
	for (size_t i = 0; i < promote->n_pages; i++) {
		const Pc__PromotePage *page = promote->pages[i];
		const struct page_key key = {.word = {page->key0, page->key1}};
		struct ctl_done done;

		if (page->id == 0)
			tier_hint(control, &key);
		else if (remote_page_serve(control, link, page, &done))
			continue;
		else if (t)
			reply_add(t, link, page->id, &done);
		else
			reply_one(link, page->id, &done);
	}
	if (t)
		tier_replies_send(t);
	return true;
}

void tier_link_down(struct control *control, const struct rpc_link *link)
{
	struct tier *t = control->tier;
	struct tier_promote *promote;
	struct tier_waiter *waiter;

	if (!t)
		return;
	if (t->reply.link == link) {
		t->reply.link = NULL;
		t->reply.pages = 0;
	}
	for (unsigned i = 0; i < PROMOTE_STATES; i++)
		TAILQ_FOREACH (promote, &t->promotes[i], next)
			STAILQ_FOREACH (waiter, &promote->waiters, next)
				if (waiter->link == link)
					waiter->link = NULL;
}
