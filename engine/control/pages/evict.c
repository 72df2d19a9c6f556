/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction. Frees slots for waiting credit requests and keeps a reserve, so that the limbo delay
 * stays off the allocation path. Runs on the control plane's thread only.
 *
 * Slots rest in limbo before pool_take() finds them. They count as if they were free, so that one
 * waiting request does not evict twice.
 *
 * struct evict is opened here. The clients' room, the tier and warm restart write to it too:
 * `waiting`, `pass`, `taken`, `waited` and `slowed` of a class, `requests`, `retry` and `credits`.
 */
#include "engine/control/pages/pages_inner.h"

#include <errno.h>
#include <stdlib.h>

#include "config/log.h"
#include "engine/abi/probe.h"

/*
 * maximum number of slots that one call of evict_refill() makes room for; the next turn continues
 */
#define EVICT_BURST 512u
/*
 * Once a credit request has waited, demand enlarges the reserve up to 1/EVICT_DEMAND_SHARE of the
 * class. An evicted slot rests before it is reused, so a class that is filled within two limbo
 * times needs half of its slots for that. A class of fewer than EVICT_DEMAND_SLOTS_MIN slots is
 * not halved: it rather gets chunks of other classes.
 */
#define EVICT_DEMAND_SHARE 2u
#define EVICT_DEMAND_SLOTS_MIN 32u
/* shortest time in which demand is measured, in ns */
#define EVICT_WINDOW_NS_MIN 1000000ull
/* victims between the one that is removed and those whose cache lines are prefetched */
#define PREFETCH_FAR 8u
#define PREFETCH_NEAR 4u
#define GROUP_LOOK 256u /* pages of other sizes and pools that one search in a group passes */
#define VICTIMS 128u    /* number of victims that one call of pool_victims() is asked to return */

/* ---- records of page sizes ------------------------------------------------------------------- */

static uint32_t length_units(uint32_t length)
{
	return length / PAGE_UNIT + (length % PAGE_UNIT != 0);
}

/*
 * Returns the record of this page size. A new size takes an unused record, or else a record without
 * credits, pages and waiting requests.
 */
struct evict_class *evict_class_of(struct evict *evict, unsigned rail, uint32_t length)
{
	struct evict_class *class = evict->rail[rail].class, *spare = NULL;
	uint32_t units = length_units(length);

	for (unsigned i = 0; i < CLASSES_MAX; i++) {
		if (class[i].units == units && units)
			return &class[i];
		if (class[i].waiting + class[i].held == 0 &&
			(!spare || (spare->units && !class[i].units)))
			spare = &class[i];
	}
	/* All CLASSES_MAX records are in use: this size class shares the record of another one. */
	if (!spare)
		return &class[units % CLASSES_MAX];
	*spare = (struct evict_class){.units = units};
	return spare;
}

void evict_wait(struct evict_class *class, int slots, bool own)
{
	class->waiting += (uint32_t)slots;
	class->own += own ? (uint32_t)slots : 0;
}

void evict_hold(struct evict *evict, unsigned rail, uint32_t length, int change)
{
	struct evict_class *class = evict_class_of(evict, rail, length);

	if (change > 0 || class->held)
		class->held += (uint32_t)change;
}

/* ---- pages and credits that leave ------------------------------------------------------------ */

/* Takes one page out of the index, and sends its slot to limbo. Its entries are the caller's. */
static void evict_retire(
	struct evict *evict, const struct page_key *key, uint32_t place, uint32_t generation)
{
	struct control *control = evict->control;
	/* `key` may point into the index entry that is removed below, so it is copied */
	const struct page_key name = *key;
	const struct index_entry *e = index_find(control->index, &name);
	unsigned rail = place_rail(place);

	if (e && e->place == place && e->generation == generation) {
		evict_hold(evict, rail, e->length, -1);
		index_remove(control->index, &name);
	}
	(void)pool_retire(control->rail[rail].pool, place, generation);
	if (evict->rail[rail].requests)
		evict->rail[rail].retry = true;
}

/* Evicts a page. on_disk: the page is there; NULL: it is not. */
static void evict_page(
	struct evict *evict, const struct pool_victim *page, const struct disk_page *on_disk)
{
	struct control *control = evict->control;

	used_weight_evicted(&evict->weight, page->queue, index_count(control->index));
	if (!on_disk || !control->pages_events->on_disk(control, on_disk))
		control->pages_events->evicted(control, &page->key,
			&(struct location){.place = page->place, .generation = page->generation},
			page->queue);
	evict_retire(evict, &page->key, page->place, page->generation);
}

void evict_take_away(
	struct evict *evict, const struct page_key *key, uint32_t place, uint32_t generation)
{
	evict->control->pages_events->remove(
		evict->control, key, &(struct location){.place = place, .generation = generation});
	evict_retire(evict, key, place, generation);
}

void evict_give_back(struct evict *evict, uint32_t place, uint32_t generation, uint32_t length)
{
	unsigned rail = place_rail(place);

	evict->credits--;
	evict_hold(evict, rail, length, -1);
	if (pool_return(evict->control->rail[rail].pool, place, generation) < 0)
		log_error(
			"publish: cannot return place %08x to the pool of rail %u: it is no credit there",
			place, rail);
	evict->rail[rail].retry = true;
}

/* ---- how many slots a page size needs -------------------------------------------------------- */

/*
 * The reserve: slots to keep free in advance. It is measured by the slots the class has, so that a
 * class that is new in a full pool does not evict its own first pages to build a large reserve.
 */
static uint32_t class_ahead_slots(struct evict_class *class, uint32_t room)
{
	uint64_t capacity = (uint64_t) class->held + room;
	uint64_t ahead = evict_reserve(capacity), demand = class->demand;

	if (demand <= ahead)
		class->waited = false;
	if (!class->waited || capacity < EVICT_DEMAND_SLOTS_MIN)
		return (uint32_t)ahead;
	if (demand > capacity / EVICT_DEMAND_SHARE)
		demand = capacity / EVICT_DEMAND_SHARE;
	return (uint32_t)(ahead > demand ? ahead : demand);
}

/*
 * Measures `demand`. The reserve must cover the slots handed out during one limbo period: 1.5 times
 * those of the last measured period, or 3 times if requests waited in it, because they slowed the
 * clients down. After a period with more it falls slowly, by 1/8 of the
 * difference for each period that is measured, because sets come in bursts.
 */
static void class_demand_measure(struct evict_class *class, uint64_t limbo_ns, uint64_t now_ns)
{
	uint64_t window_ns = limbo_ns > EVICT_WINDOW_NS_MIN ? limbo_ns : EVICT_WINDOW_NS_MIN;
	uint64_t passed_ns = now_ns - class->window_ns;
	uint32_t demand;

	if (passed_ns < window_ns)
		return;
	demand = (uint32_t)(class->taken * 3ull / (class->slowed ? 1 : 2) * window_ns / passed_ns);
	if (demand < class->demand)
		demand = class->demand - (class->demand - demand + 7) / 8;
	class->demand = demand;
	class->taken = 0;
	class->slowed = class->waiting > 0;
	class->window_ns = now_ns;
}

/* ---- making room ----------------------------------------------------------------------------- */

/*
 * Prefetches what the removal of the victims behind the i-th one will read: their entries in index
 * and directory.
 */
static void victims_prefetch(
	const struct control *control, const struct pool_victim *victim, unsigned n, unsigned i)
{
	for (unsigned k = i ? i + PREFETCH_FAR : 0; k < n && k <= i + PREFETCH_FAR; k++) {
		index_prefetch_chain(control->index, &victim[k].key);
		shard_prefetch(control->shard, &victim[k].key);
	}
	if (i + PREFETCH_NEAR < n)
		index_prefetch_entry(control->index, &victim[i + PREFETCH_NEAR].key);
}

/*
 * Evicts pages, or if `clean` only those that are on disk or being written, until there is room for
 * `want` pages. Returns for how many pages it made room.
 */
static uint32_t evict_victims(
	struct evict *evict, const struct room *room, uint32_t want, bool clean)
{
	struct pool *pool = evict->control->rail[room->rail].pool;
	uint64_t target = (uint64_t)want * room->units, made = 0;
	struct pool_victim victim[VICTIMS];
	struct disk_page page;

	pool_weigh(pool, evict->weight.value);
	while (made < target) {
		uint64_t more = (target - made + room->units - 1) / room->units;
		unsigned n = pool_victims(pool, room->units * PAGE_UNIT, clean,
			more < VICTIMS ? (unsigned)more : VICTIMS, victim);

		if (n == 0)
			break;
		for (unsigned i = 0; i < n; i++) {
			bool on_disk = tier_evicting(evict->control, &victim[i], &page);

			victims_prefetch(evict->control, victim, n, i);
			evict_page(evict, &victim[i], on_disk ? &page : NULL);
			PROBE_EVICT(room->rail, victim[i].place, victim[i].length);
			made += length_units(victim[i].length);
		}
		evict->control->counter[COUNTER_pages_evicted] += n;
	}
	return (uint32_t)((made + room->units - 1) / room->units);
}

/*
 * Makes room. While the disk keeps up, pages that are on disk go first, and the reserve waits for
 * more of them.
 */
static uint32_t evict_room(struct evict *evict, const struct room *room)
{
	uint32_t want = room->want, made = 0;

	if (tier_keeps_up(evict->control)) {
		made = evict_victims(evict, room, want, true);
		want = room->must;
	}
	return made < want ? made + evict_victims(evict, room, want - made, false) : made;
}

/* No owner is to remember these pages: a larger pool would not have kept them. */
unsigned evict_group(struct evict *evict, struct index_group *group, uint64_t more, unsigned max,
	const struct room *room)
{
	struct control *control = evict->control;
	struct index_entry *e = index_oldest(control->index, group), *next;
	unsigned n = 0, looked = 0;

	for (; e && n < max && group->bytes + group->coming + more > group->quota; e = next) {
		struct pool_victim page = {.key = e->key,
			.place = e->place,
			.generation = e->generation,
			.length = e->length};
		struct disk_page on_disk;

		next = index_newer(control->index, e);
		if (room && (place_rail(page.place) != room->rail ||
				    length_units(page.length) != room->units)) {
			if (++looked == GROUP_LOOK)
				break;
			continue;
		}
		if (tier_evicting(control, &page, &on_disk) &&
			control->pages_events->on_disk(control, &on_disk))
			evict_retire(evict, &page.key, page.place, page.generation);
		else
			evict_take_away(evict, &page.key, page.place, page.generation);
		n++;
	}
	group->evicted += n;
	control->counter[COUNTER_pages_evicted] += n;
	control->counter[COUNTER_pages_over_quota] += n;
	return n;
}

bool evict_keeps(const struct evict *evict, uint32_t batch)
{
	return used_weight_keeps(&evict->weight, batch) && !tier_keeps_up(evict->control);
}

/* that order by last use has evicted nearly all that comes back */
static bool keeps(const struct evict *evict)
{
	return evict->weight.keeps && !tier_keeps_up(evict->control);
}

static void keeps_tell(struct evict *evict)
{
	evict->keeps_told = !evict->keeps_told;
	log_info(
		evict->keeps_told
			? "eviction: old pages stay and new ones go first: nearly all pages that came back had been evicted; a larger pool would keep them"
			: "eviction: pages go by their last use again");
}

void evict_refill(struct evict *evict, unsigned rail, uint32_t length, uint64_t now_ns)
{
	evict_refill_by(evict, rail, length, NULL, 0, now_ns);
}

/* Six parameters: those of evict_refill(), and whose pages. */
void evict_refill_by(struct evict *evict, unsigned rail, uint32_t length, struct index_group *group,
	uint64_t more, uint64_t now_ns)
{
	struct pool *pool = evict->control->rail[rail].pool;
	struct evict_class *class = evict_class_of(evict, rail, length);
	struct room room = {.rail = rail};
	uint32_t bytes = class->units * PAGE_UNIT, want, have, made, most;
	bool own;

	if (class->units == 0)
		return;
	class_demand_measure(class, evict->limbo_ns, now_ns);
	have = pool_free(pool, bytes) + pool_resting(pool, bytes);
	want = class->waiting + class_ahead_slots(class, have);
	room.units = class->units;
	most = class->waiting + EVICT_BURST; /* a quota may have become much smaller */
	if (have < want && group)
		have += evict_group(
			evict, group, more, want - have < most ? want - have : most, &room);
	own = group || (class->waiting && class->own == class->waiting);
	if (own)
		want = class->waiting;
	if (have >= want)
		return;
	want -= have;
	room.want = want < EVICT_BURST ? want : EVICT_BURST;
	room.must = class->waiting > have ? class->waiting - have : 0;
	if (room.must > room.want)
		room.must = room.want;
	made = evict_room(evict, &room);
	if (keeps(evict) != evict->keeps_told)
		keeps_tell(evict);
	if (made)
		pool_rest(pool);
	if (want > EVICT_BURST && made >= EVICT_BURST)
		evict->rail[rail].retry = true;
}

/* ---- pages that clients and other hosts name ------------------------------------------------- */

void page_touched(struct control *control, uint32_t place)
{
	struct pool *pool =
		place_rail(place) < control->rails ? control->rail[place_rail(place)].pool : NULL;

	if (!pool || !pool_touch(pool, place))
		return;
	control->evict->weight.used++;
	index_used(control->index, pool_key_at(pool, place));
}

static void page_stored_again(struct control *control, enum evicted from)
{
	control->counter[COUNTER_pages_stored_again]++;
	used_weight_again(&control->evict->weight, from, index_count(control->index));
}

void page_again(struct control *control, const struct location *at, enum evicted from)
{
	unsigned rail = place_rail(at->place);
	struct pool *pool = rail < control->rails ? control->rail[rail].pool : NULL;

	/* a page that was brought here on purpose stays as long as others, as far as this goes */
	if (pool && from == EVICTED_COPY &&
		pool_why(pool, at->place, at->generation) != PAGE_STORED)
		return;
	if (pool && from == EVICTED_COPY)
		control->counter[COUNTER_pages_copied] +=
			pool_last(pool, at->place, at->generation);
	else if (pool && from != EVICTED_NOT && keeps(control->evict))
		page_stored_again(control, from);
	else if (pool && pool_again(pool, at->place, at->generation) && from != EVICTED_NOT)
		page_stored_again(control, from);
}

bool page_key_at(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	return place_rail(place) < control->rails &&
	       pool_key(control->rail[place_rail(place)].pool, place, generation, ret_key);
}

bool page_at(const struct control *control, uint32_t place, uint32_t generation,
	struct pool_proven *ret, bool *ret_proven)
{
	const struct pool *pool = control->rail[place_rail(place)].pool;
	const struct index_entry *e;
	struct page_key key;

	e = pool_key(pool, place, generation, &key) ? index_find(control->index, &key) : NULL;
	if (!e || index_ends(control->index, &key))
		return false;
	*ret = (struct pool_proven){
		.key = key, .place = place, .generation = generation, .length = e->length};
	*ret_proven = pool_proven(pool, place, generation, ret);
	return true;
}

bool page_forget(struct control *control, const struct page_key *key)
{
	const struct index_entry *e = index_find(control->index, key);
	bool here = e;

	control->pages_events->forget(control, key);
	if (e)
		evict_retire(control->evict, key, e->place, e->generation);
	return tier_forget(control, key) || here;
}

/* ---- open and close -------------------------------------------------------------------------- */

int evict_open(struct control *control)
{
	struct evict *evict = calloc(1, sizeof(*evict));

	if (!evict)
		return -ENOMEM;
	evict->control = control;
	evict->limbo_ns = control_limbo_ns(control);
	evict->weight.value = USED_WEIGHT_MIN;
	evict->beat = UINT32_MAX;
	control->evict = evict;
	return 0;
}

void evict_close(struct control *control)
{
	free(control->evict);
	control->evict = NULL;
}
