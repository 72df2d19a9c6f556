/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: ranks of members in slots, and views made of earlier ones. The control plane's thread
 * only.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/control/members/placement.h"

#define NO_OWNER UINT16_MAX

/* ---- ranks ----------------------------------------------------------------------------------- */

uint64_t placement_hash(const char *name)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (const char *c = name; *c; c++)
		h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
	return map_mix(h);
}

/*
 * -log2(u / 2^64) with RANK_BITS bits behind the point, for u > 0. Between powers of two the
 * logarithm is a cubic with its values and slopes at both ends, which differs by 0.006 at most. The
 * slopes decide how well a member's share follows its weight: where members are many, the winners
 * have u close to 2^64. log2(1 + x) = x + x * (1 - x) * (A - B * x), A = 1 / ln(2) - 1, A - B = 1 -
 * 1 / (2 * ln(2)).
 */
#define RANK_BITS 24
#define LOG_A 7427190u /* A * 2^24 */
#define LOG_B 2752177u /* B * 2^24 */
#define LOG_ONE (1ull << RANK_BITS)

static uint64_t minus_log2(uint64_t u)
{
	unsigned zeros = (unsigned)__builtin_clzll(u);
	uint64_t x = u << zeros << 1 >> (64 - RANK_BITS);
	uint64_t slope = LOG_A - (LOG_B * x >> RANK_BITS);
	uint64_t curve = (x * (LOG_ONE - x) >> RANK_BITS) * slope >> RANK_BITS;

	return ((uint64_t)(zeros + 1) << RANK_BITS) - x - curve;
}

/* The random number of a member in a slot. */
static uint64_t rank_number(uint64_t hash, uint64_t slot_hash)
{
	return map_mix(hash ^ slot_hash) | 1;
}

static uint64_t rank_from_number(uint64_t u, unsigned bucket_bits)
{
	/* below 65 * 2^24 * 2^31: fits */
	return minus_log2(u) << (31 - bucket_bits);
}

/* At most rank_from_number(), and cheaper: -log2(u / 2^64) is at least 1 - u / 2^64, for each u. */
static uint64_t rank_least(uint64_t u, unsigned bucket_bits)
{
	return ~u >> (64 - RANK_BITS) << (31 - bucket_bits);
}

static uint64_t rank_slot_hash(uint32_t slot)
{
	return map_mix(slot + 1ull);
}

uint64_t placement_rank(uint64_t hash, unsigned bucket_bits, uint32_t slot)
{
	return rank_from_number(rank_number(hash, rank_slot_hash(slot)), bucket_bits);
}

/* ---- who owns slots -------------------------------------------------------------------------- */

static int placed_by_hash(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return (x->ref > y->ref) - (x->ref < y->ref);
}

/* True if `a` owns slots rather than `b`. */
static bool placed_before(const struct placed *a, const struct placed *b)
{
	uint64_t x = placement_rank(a->hash, a->bucket_bits, MAP_SLOTS);
	uint64_t y = placement_rank(b->hash, b->bucket_bits, MAP_SLOTS);

	return x != y ? x < y : placed_by_hash(a, b) < 0;
}

static void placed_swap(struct placed *a, struct placed *b)
{
	struct placed was = *a;

	*a = *b;
	*b = was;
}

/* Restores the heap of `count` members, whose worst is the first, below index `at`. */
static void placed_sink(struct placed *heap, unsigned count, unsigned at)
{
	for (unsigned child = 2 * at + 1; child < count; child = 2 * at + 1) {
		if (child + 1 < count && placed_before(&heap[child], &heap[child + 1]))
			child++;
		if (!placed_before(&heap[at], &heap[child]))
			return;
		placed_swap(&heap[at], &heap[child]);
		at = child;
	}
}

void placement_cap(struct placed *members, unsigned count)
{
	unsigned with[32] = {0}, below = 0, median = 0;
	uint64_t total = 0;

	for (unsigned i = 0; i < count; i++) {
		with[members[i].bucket_bits]++;
		total += 1ull << members[i].bucket_bits;
	}
	while (median < 31 && 2 * (below + with[median]) < count)
		below += with[median++];
	for (unsigned i = 0; i < count; i++) {
		uint64_t others = total - (1ull << members[i].bucket_bits);
		unsigned most = others ? 63 - (unsigned)__builtin_clzll(others) : 0;

		if (most < median + PLACEMENT_CAP_BITS)
			most = median + PLACEMENT_CAP_BITS;
		if (members[i].bucket_bits > most)
			members[i].bucket_bits = (uint8_t)most;
	}
}

unsigned placement_choose(struct placed *members, unsigned count)
{
	unsigned owners = count < OWNERS_MAX ? count : OWNERS_MAX;

	placement_cap(members, count);
	if (count > owners) {
		for (unsigned i = owners / 2; i > 0; i--)
			placed_sink(members, owners, i - 1);
		for (unsigned i = owners; i < count; i++)
			if (placed_before(&members[i], &members[0])) {
				placed_swap(&members[i], &members[0]);
				placed_sink(members, owners, 0);
			}
	}
	qsort(members, owners, sizeof(*members), placed_by_hash);
	return owners;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* What a new view takes from an earlier one. */
struct view_change {
	/* by index of an owner of the earlier view: its index in the new one, or NO_OWNER */
	uint16_t to[OWNERS_MAX];
	/* indices of the owners of the new view that must be ranked in every slot */
	uint8_t fresh[OWNERS_MAX];
	unsigned freshs;
};

/* The owners of a slot while it is made, with their ranks. */
struct winners {
	unsigned count, most;
	uint64_t rank[REPLICAS_MAX];
	uint8_t owner[REPLICAS_MAX];
};

/* Equal ranks: the owner with the lower hash, which has the lower index, comes first. */
static bool winner_before(const struct winners *w, unsigned at, uint64_t rank, uint8_t owner)
{
	return rank < w->rank[at] || (rank == w->rank[at] && owner < w->owner[at]);
}

static void winners_offer(struct winners *w, uint64_t rank, uint8_t owner)
{
	unsigned at = w->count;

	if (w->count == w->most && !winner_before(w, w->most - 1, rank, owner))
		return;
	if (w->count < w->most)
		w->count++;
	else
		at--;
	for (; at && winner_before(w, at - 1, rank, owner); at--) {
		w->rank[at] = w->rank[at - 1];
		w->owner[at] = w->owner[at - 1];
	}
	w->rank[at] = rank;
	w->owner[at] = owner;
}

static void slot_offer(const struct map_view *view, struct winners *w, uint8_t owner, uint64_t hash)
{
	const struct placed *p = &view->owner[owner];
	uint64_t u = rank_number(p->hash, hash);

	if (w->count < w->most || rank_least(u, p->bucket_bits) <= w->rank[w->most - 1])
		winners_offer(w, rank_from_number(u, p->bucket_bits), owner);
}

static void slot_store(struct map_view *view, uint32_t slot, const struct winners *w)
{
	memcpy(&view->slots[(size_t)slot * w->most], w->owner, w->most);
}

/* Ranks all owners. */
static void slot_make(struct map_view *view, uint32_t slot)
{
	struct winners w = {.most = map_owning(view)};
	uint64_t hash = rank_slot_hash(slot);

	for (uint32_t i = 0; i < view->owners; i++)
		slot_offer(view, &w, (uint8_t)i, hash);
	slot_store(view, slot, &w);
}

/* True if an owner that is new is one of the slot, whose owners up to now are all in `w`. */
static bool fresh_win(const struct map_view *view, const struct view_change *change,
	const struct winners *w, uint64_t hash)
{
	const struct placed *last = &view->owner[w->owner[w->count - 1]];
	uint64_t worst;

	if (w->count < w->most)
		return change->freshs > 0;
	worst = rank_from_number(rank_number(last->hash, hash), last->bucket_bits);
	for (unsigned i = 0; i < change->freshs; i++) {
		const struct placed *p = &view->owner[change->fresh[i]];
		uint64_t u = rank_number(p->hash, hash);

		if (rank_least(u, p->bucket_bits) <= worst &&
			rank_from_number(u, p->bucket_bits) <= worst)
			return true;
	}
	return false;
}

/* Takes the owners that the slot has had, and ranks those that are new against them. */
static void slot_take(struct map_view *view, const struct map_view *from,
	const struct view_change *change, uint32_t slot)
{
	struct winners had = {.most = map_owning(view)}, w = had;
	const uint8_t *ranked = map_view_slot(from, slot);
	unsigned owners = map_owning(from);
	uint64_t hash = rank_slot_hash(slot);

	for (unsigned i = 0; i < owners && i < REPLICAS_MAX; i++) {
		if (change->to[ranked[i]] == NO_OWNER) {
			slot_make(view, slot);
			return;
		}
		had.owner[had.count++] = (uint8_t)change->to[ranked[i]];
	}
	if (!fresh_win(view, change, &had, hash)) {
		slot_store(view, slot, &had);
		return;
	}
	for (unsigned i = 0; i < owners; i++)
		slot_offer(view, &w, had.owner[i], hash);
	for (unsigned i = 0; i < change->freshs; i++)
		slot_offer(view, &w, change->fresh[i], hash);
	slot_store(view, slot, &w);
}

/*
 * Merges the owners of both views, which are in the same order. A changed weight makes an owner a
 * new one; a changed ref does not: the name decides.
 */
static void views_compare(
	const struct map_view *from, const struct map_view *view, struct view_change *ret)
{
	uint32_t i = 0;

	ret->freshs = 0;
	for (uint32_t k = 0; k < view->owners; k++) {
		const struct placed *p = &view->owner[k];

		while (i < from->owners && from->owner[i].hash < p->hash)
			ret->to[i++] = NO_OWNER;
		if (i < from->owners && from->owner[i].hash == p->hash &&
			from->owner[i].bucket_bits == p->bucket_bits)
			ret->to[i++] = (uint16_t)k;
		else
			ret->fresh[ret->freshs++] = (uint8_t)k;
	}
	while (i < from->owners)
		ret->to[i++] = NO_OWNER;
}

static bool view_same_owners(
	const struct map_view *view, const struct placed *owner, unsigned owners, unsigned replicas)
{
	if (view->owners != owners || view->replicas != replicas)
		return false;
	for (unsigned i = 0; i < owners; i++)
		if (view->owner[i].hash != owner[i].hash || view->owner[i].ref != owner[i].ref ||
			view->owner[i].bucket_bits != owner[i].bucket_bits)
			return false;
	return true;
}

/* True if an owner of `from` that is not among a slot's owners there cannot be one in `view`. */
static bool view_takes(const struct map_view *view, const struct map_view *from)
{
	return map_owning(from) >= map_owning(view) || map_owning(from) == from->owners;
}

static size_t view_bytes(unsigned owners, unsigned replicas)
{
	return sizeof(struct map_view) +
	       (size_t)MAP_SLOTS * (replicas < owners ? replicas : owners);
}

static void view_fill(
	struct map_view *view, const struct placed *owner, unsigned owners, unsigned replicas)
{
	view->uses = 1;
	view->owners = owners;
	view->replicas = replicas;
	memcpy(view->owner, owner, owners * sizeof(*owner));
}

struct map_view *map_view_make(
	struct map_view *from, const struct placed *owner, unsigned owners, unsigned replicas)
{
	struct map_view *view;
	struct view_change change;

	if (from && view_same_owners(from, owner, owners, replicas))
		return map_view_share(from);
	view = malloc(view_bytes(owners, replicas));
	if (!view)
		return NULL;
	view_fill(view, owner, owners, replicas);
	view->lazy = false;
	if (from && from->owners && owners && view_takes(view, from)) {
		views_compare(from, view, &change);
		if (!from->lazy && !change.freshs && from->owners == owners &&
			from->replicas == replicas) {
			/* only refs have changed: members were started again */
			memcpy(view->slots, from->slots, (size_t)MAP_SLOTS * map_owning(view));
			return view;
		}
		for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
			slot_take(view, from, &change, slot);
	} else {
		for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
			slot_make(view, slot);
	}
	return view;
}

struct map_view *map_view_lazy(
	struct map_view *from, const struct placed *owner, unsigned owners, unsigned replicas)
{
	struct map_view *view;

	if (from && view_same_owners(from, owner, owners, replicas))
		return map_view_share(from);
	view = calloc(1, view_bytes(owners, replicas));
	if (!view)
		return NULL;
	view_fill(view, owner, owners, replicas);
	view->lazy = true;
	return view;
}

/*
 * An owner has one rank in a slot; twice the first owner: the slot was not ranked yet. With one
 * owner a slot it is ranked each time.
 */
void map_view_rank(const struct map_view *view, uint32_t slot)
{
	const uint8_t *ranked = &view->slots[(size_t)slot * map_owning(view)];

	if (map_owning(view) == 1 || ranked[0] == ranked[1])
		slot_make((struct map_view *)view, slot);
}

struct map_view *map_view_share(struct map_view *view)
{
	view->uses++;
	return view;
}

void map_view_drop(struct map_view *view)
{
	if (view && --view->uses == 0)
		free(view);
}
