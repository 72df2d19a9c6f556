/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eviction. Frees slots for waiting credit requests and keeps a reserve, so that the limbo delay
 * stays off the allocation path. Runs on the control plane's thread only.
 *
 * Slots evicted for a page size rest in limbo before pool_take() finds them. They count as
 * `resting` until limbo ends, so that one waiting request does not evict twice.
 */
#include "engine/abi/probe.h"
#include "engine/control/clients/ctl_inner.h"
#include "engine/control/directory/directory.h"
#include "engine/control/pages/tier.h"
#include "numa/clock.h"

/* victims between the one that is removed and those whose cache lines are prefetched */
#define PREFETCH_FAR 8u
#define PREFETCH_NEAR 4u
#define VICTIMS 128u /* number of victims that one call of pool_victims() is asked to return */

void ctl_retire(struct ctl *ctl, const struct page_key *key, uint32_t place, uint32_t generation)
{
	struct control *control = ctl->control;
	/* `key` may point into the index entry that is removed below, so it is copied */
	const struct page_key name = *key;
	const struct index_entry *e = index_find(control->index, &name);
	unsigned rail = place_rail(place);

	if (e && e->place == place && e->generation == generation) {
		ctl_hold(ctl, rail, e->length, -1);
		index_remove(control->index, &name);
	}
	(void)pool_retire(control->rail[rail].pool, place, generation);
	if (ctl->rail[rail].first)
		ctl->rail[rail].retry = true;
}

/* As ctl_take_away(). on_disk: the page is there; NULL: it is not. */
static void take_away(struct ctl *ctl, const struct page_key *key, uint32_t place,
	uint32_t generation, const struct disk_page *on_disk)
{
	if (!on_disk || !directory_on_disk(ctl->control, on_disk))
		directory_remove(ctl->control, key,
			&(struct location){.place = place, .generation = generation});
	ctl_retire(ctl, key, place, generation);
}

void ctl_take_away(struct ctl *ctl, const struct page_key *key, uint32_t place, uint32_t generation)
{
	take_away(ctl, key, place, generation, NULL);
}

static uint32_t units_of(uint32_t length)
{
	return length / PAGE_UNIT + (length % PAGE_UNIT != 0);
}

/*
 * Returns the record of this page size. A new size takes an unused record, or else a record without
 * credits, pages and waiting requests.
 */
struct ctl_class *ctl_class_of(struct ctl *ctl, unsigned rail, uint32_t length)
{
	struct ctl_class *class = ctl->rail[rail].class, *spare = NULL;
	uint32_t units = units_of(length);

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
	*spare = (struct ctl_class){.units = units};
	return spare;
}

void ctl_hold(struct ctl *ctl, unsigned rail, uint32_t length, int change)
{
	struct ctl_class *class = ctl_class_of(ctl, rail, length);

	if (change > 0 || class->held)
		class->held += (uint32_t)change;
}

/*
 * The reserve: slots to keep free in advance. It is measured by the slots the class has, so that a
 * class that is new in a full pool does not evict its own first pages to build a large reserve.
 */
static uint32_t ahead_of(struct ctl_class *class, uint32_t free)
{
	uint64_t capacity = (uint64_t) class->held + class->resting + free;
	uint64_t ahead = capacity / 50, demand = class->demand;

	if (ahead < CTL_AHEAD_MIN)
		ahead = CTL_AHEAD_MIN;
	if (ahead > capacity / CTL_AHEAD_SHARE)
		ahead = capacity / CTL_AHEAD_SHARE;
	if (demand <= ahead)
		class->waited = false;
	if (!class->waited || capacity < CTL_DEMAND_SLOTS_MIN)
		return (uint32_t)ahead;
	if (demand > capacity / CTL_DEMAND_SHARE)
		demand = capacity / CTL_DEMAND_SHARE;
	return (uint32_t)(ahead > demand ? ahead : demand);
}

/*
 * Measures `demand`. The reserve must cover the slots handed out during one limbo period: 1.5 times
 * those of the last measured period, or 3 times if requests waited in it, because they slowed the
 * clients down. After a period with more it falls slowly, by 1/8 of the
 * difference for each period that is measured, because sets come in bursts.
 */
static void measure_demand(struct ctl_class *class, uint64_t limbo_ns, uint64_t now_ns)
{
	uint64_t window_ns = limbo_ns > CTL_STALL_NS ? limbo_ns : CTL_STALL_NS;
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

/*
 * Forgets the batches of evicted slots whose limbo has ended: subtracts their slots from
 * class->resting.
 */
static void rest_expire(struct ctl_class *class, uint64_t raw_ns)
{
	unsigned gone = 0;

	while (gone < class->rests && class->rest[gone].until_ns <= raw_ns)
		class->resting -= class->rest[gone++].slots;
	class->rests -= gone;
	for (unsigned i = 0; i < class->rests && gone; i++)
		class->rest[i] = class->rest[i + gone];
}

/*
 * Adds evicted slots to `resting`. Slots that leave limbo within limbo / (RESTS - 1) of each other
 * form one batch, so that RESTS batches suffice.
 */
static void rest_add(struct ctl_class *class, uint32_t slots, uint64_t until_ns, uint64_t limbo_ns)
{
	unsigned last = class->rests - 1;

	class->resting += slots;
	if (class->rests == CTL_RESTS || (class->rests && until_ns - class->rest[last].first_ns <=
								  limbo_ns / (CTL_RESTS - 1))) {
		class->rest[last].slots += slots;
		class->rest[last].until_ns = until_ns;
		return;
	}
	class->rest[class->rests].slots = slots;
	class->rest[class->rests].first_ns = until_ns;
	class->rest[class->rests++].until_ns = until_ns;
}

/*
 * Prefetches what the removal of the victims behind the i-th one will read: their entries in index
 * and directory.
 */
static void prefetch(
	const struct control *control, const struct pool_victim *victim, unsigned n, unsigned i)
{
	for (unsigned k = i ? i + PREFETCH_FAR : 0; k < n && k <= i + PREFETCH_FAR; k++) {
		index_prefetch_chain(control->index, &victim[k].key);
		shard_prefetch(&control->shard, &victim[k].key);
	}
	if (i + PREFETCH_NEAR < n)
		index_prefetch_entry(control->index, &victim[i + PREFETCH_NEAR].key);
}

/* How much room an eviction makes, in pages of `units`. */
struct room {
	unsigned rail;
	uint32_t units;
	uint32_t want; /* with the reserve */
	uint32_t must; /* of these: for requests that wait */
};

/*
 * Evicts pages until there is room for `want` pages, or `victims` names none. Returns for how many
 * pages it made room.
 */
static uint32_t evict_named(
	struct ctl *ctl, const struct room *room, uint32_t want, __typeof__(pool_victims) *victims)
{
	struct pool *pool = ctl->control->rail[room->rail].pool;
	uint64_t target = (uint64_t)want * room->units, made = 0;
	struct pool_victim victim[VICTIMS];
	struct disk_page page;

	while (made < target) {
		uint64_t more = (target - made + room->units - 1) / room->units;
		unsigned n = victims(pool, room->units * PAGE_UNIT,
			more < VICTIMS ? (unsigned)more : VICTIMS, victim);

		if (n == 0)
			break;
		for (unsigned i = 0; i < n; i++) {
			bool on_disk = tier_evicting(ctl->control, &victim[i], &page);

			prefetch(ctl->control, victim, n, i);
			take_away(ctl, &victim[i].key, victim[i].place, victim[i].generation,
				on_disk ? &page : NULL);
			PROBE_EVICT(room->rail, victim[i].place, victim[i].length);
			made += units_of(victim[i].length);
		}
		ctl->control->counter[COUNTER_pages_evicted] += n;
	}
	return (uint32_t)((made + room->units - 1) / room->units);
}

/*
 * Makes room. While the disk keeps up, pages that are on disk go first, and the reserve waits for
 * more of them.
 */
static uint32_t evict(struct ctl *ctl, const struct room *room)
{
	uint32_t want = room->want, made = 0;

	if (tier_keeps_up(ctl->control)) {
		made = evict_named(ctl, room, want, pool_victims_clean);
		want = room->must;
	}
	return made < want ? made + evict_named(ctl, room, want - made, pool_victims) : made;
}

void ctl_refill(struct ctl *ctl, unsigned rail, uint32_t length, uint64_t now_ns)
{
	struct pool *pool = ctl->control->rail[rail].pool;
	struct ctl_class *class = ctl_class_of(ctl, rail, length);
	struct room room = {.rail = rail};
	uint32_t want, have, made;

	if (class->units == 0)
		return;
	if (class->rests)
		rest_expire(class, clock_raw_ns());
	measure_demand(class, ctl->limbo_ns, now_ns);
	have = pool_free(pool, class->units * PAGE_UNIT);
	want = class->waiting + ahead_of(class, have);
	have += class->resting;
	if (have >= want)
		return;
	want -= have;
	room.units = class->units;
	room.want = want < CTL_EVICT_BURST ? want : CTL_EVICT_BURST;
	room.must = class->waiting > have ? class->waiting - have : 0;
	if (room.must > room.want)
		room.must = room.want;
	made = evict(ctl, &room);
	if (made) {
		/* the pool's clock, read after the pool has read it: no slot counts too short */
		pool_rest(pool);
		rest_add(class, made, clock_raw_ns() + ctl->limbo_ns, ctl->limbo_ns);
	}
	if (want > CTL_EVICT_BURST && made >= CTL_EVICT_BURST)
		ctl->rail[rail].retry = true;
}
