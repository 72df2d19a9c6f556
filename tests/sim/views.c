/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Map views: nodes with the same owners share one. Engines that no look-up reads have lazy views,
 * so that in a large cluster a change of the members costs little. One thread.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/world.h"

#define CHAINS 4096u

/* A view that nodes share. */
struct shared {
	LIST_ENTRY(shared) next;
	struct map_view *view;
	uint64_t digest;
};

__typeof__(map_view_make) __real_map_view_make, __wrap_map_view_make, __real_map_view_lazy,
	__wrap_map_view_lazy;
__typeof__(map_view_drop) __real_map_view_drop, __wrap_map_view_drop;

static LIST_HEAD(, shared) chain[CHAINS];
/* The views that were made last, with a reference: members that come back see them again. */
static struct map_view *kept[64];
static unsigned kept_next;

static uint64_t digest_of(const struct placed *owner, unsigned owners)
{
	uint64_t digest = owners;

	for (unsigned i = 0; i < owners; i++)
		digest = map_mix(digest ^ owner[i].hash ^ owner[i].ref) + owner[i].bucket_bits;
	return digest;
}

static bool is_of(const struct map_view *view, const struct placed *owner, unsigned owners,
	unsigned replicas, bool lazy)
{
	return view->lazy == lazy && view->owners == owners && view->replicas == replicas &&
	       !memcmp(view->owner, owner, owners * sizeof(*owner));
}

static const struct placed *reshuffled(const struct placed *owner, unsigned owners)
{
	static struct placed other[OWNERS_MAX];

	for (unsigned i = 0; i < owners; i++) {
		other[i] = owner[i];
		other[i].hash = map_mix(owner[i].hash + owners);
	}
	(void)placement_choose(other, owners);
	return other;
}

static void keep(struct map_view *view)
{
	struct map_view **at = &kept[kept_next++ % (sizeof(kept) / sizeof(kept[0]))];

	__wrap_map_view_drop(*at);
	*at = map_view_share(view);
}

void views_close(void)
{
	for (unsigned i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
		__wrap_map_view_drop(kept[i]);
}

/* A view whose owners differ by their refs at most, or `from`. */
static struct map_view *similar(struct map_view *from, const struct placed *owner, unsigned owners)
{
	for (unsigned i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
		unsigned same = 0;

		if (!kept[i] || kept[i]->owners != owners)
			continue;
		while (same < owners && kept[i]->owner[same].hash == owner[same].hash)
			same++;
		if (same == owners)
			return kept[i];
	}
	return from;
}

static struct map_view *view_of(struct map_view *from, const struct placed *owner, unsigned owners,
	unsigned replicas, bool lazy, __typeof__(map_view_make) *make)
{
	uint64_t digest;
	struct shared *shared;
	struct map_view *view;

	if (world.mutant == MUTANT_RESHUFFLE)
		owner = reshuffled(owner, owners);
	digest = digest_of(owner, owners);
	LIST_FOREACH (shared, &chain[digest % CHAINS], next)
		if (shared->digest == digest && is_of(shared->view, owner, owners, replicas, lazy))
			return map_view_share(shared->view);
	from = similar(from, owner, owners);
	view = make(from, owner, owners, replicas);
	shared = view && view != from ? calloc(1, sizeof(*shared)) : NULL;
	if (shared) {
		shared->view = view;
		shared->digest = digest;
		LIST_INSERT_HEAD(&chain[digest % CHAINS], shared, next);
		if (!lazy)
			keep(view);
	}
	return view;
}

struct map_view *__wrap_map_view_make(
	struct map_view *from, const struct placed *owner, unsigned owners, unsigned replicas)
{
	return view_of(from, owner, owners, replicas, false, __real_map_view_make);
}

struct map_view *__wrap_map_view_lazy(
	struct map_view *from, const struct placed *owner, unsigned owners, unsigned replicas)
{
	return view_of(from, owner, owners, replicas, true, __real_map_view_lazy);
}

void __wrap_map_view_drop(struct map_view *view)
{
	struct shared *shared = NULL;

	if (view && view->uses == 1)
		LIST_FOREACH (shared, &chain[digest_of(view->owner, view->owners) % CHAINS], next)
			if (shared->view == view)
				break;
	if (shared) {
		LIST_REMOVE(shared, next);
		free(shared);
	}
	__real_map_view_drop(view);
}

uint64_t views_bytes(void)
{
	const struct shared *shared;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < CHAINS; i++)
		LIST_FOREACH (shared, &chain[i], next)
			bytes += sizeof(*shared->view) +
				 (uint64_t)MAP_SLOTS * map_owning(shared->view);
	return bytes;
}
