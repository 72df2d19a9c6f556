/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map: the live members and the key ranges they own. The control plane writes it into
 * the status segment; every client of the host reads it.
 *
 * At most OWNERS_MAX members own keys; the pages of the others are found and read as theirs are.
 * Ownership is consistent hashing: each owner has VNODES points on a 64-bit ring, derived from its
 * name, so that a restarted engine owns the same keys again. The owners of a key are the first
 * `replicas` different members clockwise from the hash of the key's first word. Readers take a
 * private copy under a sequence lock, so they see one map completely or the next one.
 *
 * The segment is not trusted: map_read() validates its copy, and every index into it.
 */
#ifndef ABI_MAP_H
#define ABI_MAP_H

#include <errno.h>
#include <string.h>

#include "engine/abi/page.h"

struct map_member {
	uint64_t incarnation; /* identity of this start of the member's engine */
	/* low 32 bits of the incarnation; directory entries name the member by it */
	uint32_t ref;
	/* number by which this host's engine knows the member, 0..NODES_MAX-1; `peer` of an op */
	uint16_t peer;
	uint8_t rails;       /* number of rails of the member */
	uint8_t bucket_bits; /* log2 of the number of buckets of the member's shard, 0..31 */
	uint8_t self;        /* 1: the member is the engine of this host; 0: another one */
	uint8_t spare[7];
	char name[NAME_BYTES_MAX]; /* name of the member, zero-terminated; no other member has it */
};
static_assert(sizeof(struct map_member) == 88, "same in every process of the host");

struct map_point {
	uint64_t at;     /* position of the point on the hash ring, which has 64 bits */
	uint32_t member; /* index of the point's member in map_view.member */
	uint32_t spare;
};

struct map_view {
	uint32_t members;  /* valid entries of member[], 1..NODES_MAX */
	uint32_t points;   /* valid entries of point[]: map_owning(members) * VNODES */
	uint32_t replicas; /* number of owners that each key has, 1..REPLICAS_MAX */
	uint32_t spare;
	/* the owners first; both they and the other members are sorted by name */
	struct map_member member[NODES_MAX];
	/* points of the hash ring, sorted by `at`, equal ones by member name */
	struct map_point point[OWNERS_MAX * VNODES];
};

/* Number of owners on a map of `members` members. They are the first ones of map_view.member. */
static inline uint32_t map_owning(uint32_t members)
{
	return members < OWNERS_MAX ? members : OWNERS_MAX;
}

/*
 * The map in shared memory, under a sequence lock: the sequence is odd while the control plane
 * writes.
 */
struct map_shared {
	/* owner: control plane; clients read it before every batch. sequence: odd while the map
	 * is being written */
	alignas(64) uint32_t sequence;
	uint32_t epoch; /* number of changes so far; the same epoch means the same map */
	/*
	 * owner: control plane; bit `peer % 64` of word `peer / 64`: that member is suspect
	 * (control/suspect.h), so look-ups ask it last. Written without sequence and epoch: each
	 * bit is valid alone. 0 in engines that do not know it.
	 */
	uint64_t suspects[NODES_MAX / 64];
	/* owner: control plane; the map in force, written on every change */
	alignas(64) struct map_view current;
	/* owner: control plane; an earlier map, which clients fall back to while directory
	 * entries migrate to new owners; 0 members: none */
	alignas(64) struct map_view previous;
};
static_assert(offsetof(struct map_shared, current) == 192, "same in every process of the host");
static_assert(offsetof(struct map_shared, suspects) == 8, "same in every process of the host");
static_assert(sizeof(struct map_shared) <= 1u << 20, "1 MiB of each status segment");

/* True if the member with this number, below NODES_MAX, is suspect. */
static inline bool map_suspect(const struct map_shared *shared, uint16_t peer)
{
	return shm_load64(&shared->suspects[peer / 64]) >> peer % 64 & 1;
}

/*
 * Finaliser of MurmurHash3 (Appleby, public domain): a bijection in which every input bit affects
 * every output bit.
 */
static inline uint64_t map_mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

/*
 * Returns the position on the hash ring of a member's point i: FNV-1a of the member's name, mixed
 * with i.
 */
static inline uint64_t map_point_at(const char *name, uint32_t i)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (const char *c = name; *c; c++)
		h = (h ^ (unsigned char)*c) * 0x100000001b3ull;
	return map_mix(h + map_mix(i + 1));
}

/*
 * Writes the first `replicas` different members from point `i` on, clockwise. Returns their number:
 * min(view->replicas, owners). `ret_owner` has room for REPLICAS_MAX. `view` has passed
 * map_view_sane().
 */
static inline unsigned map_owners_from(const struct map_view *view, uint32_t i, uint32_t *ret_owner)
{
	uint32_t owners = map_owning(view->members);
	unsigned want = view->replicas < owners ? view->replicas : owners;
	unsigned found = 0;

	for (uint32_t step = 0; step < view->points && found < want; step++, i++) {
		uint32_t member = view->point[i < view->points ? i : i - view->points].member;
		unsigned seen = 0;

		while (seen < found && ret_owner[seen] != member)
			seen++;
		if (seen == found)
			ret_owner[found++] = member;
	}
	return found;
}

/*
 * Writes the owners of a key, first owner first, as indices in view->member. Returns their number.
 * The same conditions as for map_owners_from().
 */
static inline unsigned map_owners(
	const struct map_view *view, const struct page_key *key, uint32_t *ret_owner)
{
	uint32_t low = 0, high = view->points;
	uint64_t at = map_mix(key->word[0]);

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (view->point[middle].at < at)
			low = middle + 1;
		else
			high = middle;
	}
	return map_owners_from(view, low, ret_owner);
}

/*
 * The guide of a map view: for each of 2^MAP_GUIDE_BITS equal parts of the hash ring, the first
 * point in or behind it. It replaces the binary search, whose branches no processor predicts. Made
 * by a reader for its private copy of a view.
 */
#define MAP_GUIDE_BITS 12
#define MAP_GUIDE_PARTS (1u << MAP_GUIDE_BITS)

struct map_guide {
	uint16_t first[MAP_GUIDE_PARTS]; /* index in map_view.point, 0..points */
};
static_assert(OWNERS_MAX * VNODES <= UINT16_MAX, "an index of a point has 16 bits");

/* Runs when a reader has taken a new copy of the map. */
static inline void map_guide_make(const struct map_view *view, struct map_guide *ret)
{
	uint32_t i = 0;

	for (uint32_t part = 0; part < MAP_GUIDE_PARTS; part++) {
		while (i < view->points && view->point[i].at >> (64 - MAP_GUIDE_BITS) < part)
			i++;
		ret->first[part] = (uint16_t)i;
	}
}

/* As map_owners(); `guide` was made of `view`. */
static inline unsigned map_guide_owners(const struct map_view *view, const struct map_guide *guide,
	const struct page_key *key, uint32_t *ret_owner)
{
	uint64_t at = map_mix(key->word[0]);
	uint32_t i = guide->first[at >> (64 - MAP_GUIDE_BITS)];

	while (i < view->points && view->point[i].at < at)
		i++;
	return map_owners_from(view, i, ret_owner);
}

/*
 * True if every count and index of the map view is in range; code that uses a map view relies on
 * this.
 */
static inline bool map_view_sane(const struct map_view *view)
{
	uint32_t owners = map_owning(view->members);

	if (view->members > NODES_MAX || view->points != owners * VNODES || view->replicas < 1 ||
		view->replicas > REPLICAS_MAX)
		return false;
	for (uint32_t i = 0; i < view->points; i++)
		if (view->point[i].member >= owners)
			return false;
	for (uint32_t i = 0; i < view->members; i++)
		if (view->member[i].peer >= NODES_MAX || view->member[i].bucket_bits > 31 ||
			view->member[i].rails > RAILS_MAX)
			return false;
	return true;
}

/* Copies the valid part of a view that nothing writes meanwhile; the rest of `to` stays. */
static inline void map_view_copy(struct map_view *to, const struct map_view *from)
{
	memcpy(to, from, offsetof(struct map_view, member));
	memcpy(to->member, from->member, from->members * sizeof(from->member[0]));
	memcpy(to->point, from->point, from->points * sizeof(from->point[0]));
}

/*
 * Copies `bytes` bytes while the control plane may write them; the caller's sequence check decides
 * whether the copy counts. Copies word by word through a volatile pointer, so that the compiler
 * neither repeats nor merges loads. ThreadSanitizer is told to ignore the race.
 */
__attribute__((no_sanitize("thread"))) static inline void map_copy_words(
	void *to, const void *from, size_t bytes)
{
	const volatile uint64_t *source = from;
	uint64_t *words = to;

	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = source[i];
}
static_assert(offsetof(struct map_view, member) % sizeof(uint64_t) == 0 &&
		      sizeof(struct map_member) % sizeof(uint64_t) == 0 &&
		      sizeof(struct map_point) % sizeof(uint64_t) == 0,
	"copied in words");

/* Copies the valid part of a view; counts out of range are copied with as much as there is room. */
static inline void map_copy(struct map_view *to, const struct map_view *from)
{
	uint32_t members, points;

	map_copy_words(to, from, offsetof(struct map_view, member));
	members = to->members < NODES_MAX ? to->members : NODES_MAX;
	points = to->points < OWNERS_MAX * VNODES ? to->points : OWNERS_MAX * VNODES;
	map_copy_words(to->member, from->member, members * sizeof(to->member[0]));
	map_copy_words(to->point, from->point, points * sizeof(to->point[0]));
}

/*
 * Copies both map views, `current` and `previous`. Returns 0, or -EAGAIN if the control plane was
 * writing or the copy is not a valid map: try again later. On -EAGAIN *ret_epoch is unchanged but
 * the copies may be overwritten. The acquire pairs with the release of map_write_end().
 */
static inline int map_read(const struct map_shared *shared, struct map_view *ret_current,
	struct map_view *ret_previous, uint32_t *ret_epoch)
{
	uint32_t before = shm_load_acquire(&shared->sequence);
	uint32_t epoch;

	if (before & 1)
		return -EAGAIN;
	epoch = shm_load(&shared->epoch);
	map_copy(ret_current, &shared->current);
	map_copy(ret_previous, &shared->previous);
	shm_fence_load();
	if (shm_load(&shared->sequence) != before)
		return -EAGAIN;
	if (!map_view_sane(ret_current) || (ret_previous->members && !map_view_sane(ret_previous)))
		return -EAGAIN;
	*ret_epoch = epoch;
	return 0;
}

/*
 * Begins a change; control plane only. The sequence becomes odd before any store to the map is
 * visible.
 */
static inline void map_write_begin(struct map_shared *shared)
{
	shm_store(&shared->sequence, shm_load(&shared->sequence) + 1);
	shm_fence_store();
}

/*
 * Ends a change of the map; control plane only. The release pairs with the acquire of map_read().
 */
static inline void map_write_end(struct map_shared *shared)
{
	shm_store(&shared->epoch, shm_load(&shared->epoch) + 1);
	shm_store_release(&shared->sequence, shm_load(&shared->sequence) + 1);
}

#endif
