/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map: which members are alive, and which of them own which keys. The control plane
 * writes it into the status segment; every client of the host reads it in place. Behind it the rule
 * of absence, by which a reader asks the owners of a key.
 *
 * A key belongs to one of MAP_SLOTS slots, by 16 bits of its hash. Each slot has one word, which
 * names the slot's owners, best first. The words name owners by a number, the index in `owner`,
 * because a ref has 32 bits. Owners are chosen in control/members/placement.h.
 *
 * There is no lock, and no reader waits for a whole map. A word is loaded and stored at once.
 * map_owners_load() loads the slot's word and the epoch again after the words of its owners. These
 * rules keep a mix of two maps from proving absence falsely:
 *
 * 1. A key has one slot, so a look-up depends on one slot's word. That another slot is from an
 *    older or newer map does not matter to it.
 * 2. The members that map_owners_load() returns are those that the slot's word means. An owner
 *    number gets another member at most once per change of the map, and only while no slot's word
 *    names it: the control plane adds 1 to the epoch, stores the words without the number, then the
 *    member, then the words that name it again, each with release order. So a reader whose first
 *    load has the word of before, and that loads the new member, finds another word in its second
 *    load, unless a further change has stored the former word again: then the epoch differs. A
 *    reader whose first load has the new word loads the new member.
 * 3. If a change of the map replaces all owners of a key, it is absent until its holder has
 *    published it to the new ones.
 * 4. A member's word carries its ref. A reader that does not know the ref yet, because its copy of
 *    the members is older, could not ask that owner: the key is unreachable, not absent.
 *
 * The segment is not trusted: every number in it is checked where it is used.
 */
#ifndef ABI_MAP_H
#define ABI_MAP_H

#include <stdbool.h>
#include <string.h>

#include "engine/abi/page.h"

#define MAP_SLOTS 65536u

/* A member as one word; all 0: none. Its name is in the engine's report (ATTACH_REPORT). */
struct map_member {
	/* low 32 bits of the member's incarnation; directory entries name the member by it */
	uint32_t ref;
	/* number by which this host's engine knows the member, 0..NODES_MAX-1; `peer` of an op */
	uint16_t peer;
	uint8_t rails;       /* number of rails of the member */
	uint8_t bucket_bits; /* log2 of the number of buckets of the member's shard, 0..31 */
};
static_assert(sizeof(struct map_member) == sizeof(uint64_t), "loaded and stored at once");

/* Who has the entries of a slot, as one word. */
struct map_slot {
	uint8_t owner[REPLICAS_MAX]; /* owner numbers, the best owner first */
	uint8_t unused[3];
	uint8_t owners; /* map_slot_owners() */
};
static_assert(sizeof(struct map_slot) == sizeof(uint64_t), "loaded and stored at once");
static_assert(OWNERS_MAX <= 256, "an owner number has 8 bits");

struct map_shared {
	/* owner: control plane; clients read it before every batch. Number of changes so far,
	 * stored after the words of members and before those of owners and slots */
	alignas(64) uint32_t epoch;
	uint32_t members;  /* number of members on the map */
	uint32_t peers;    /* the peer number of each member is below this */
	uint32_t replicas; /* number of owners that each key has, 1..REPLICAS_MAX */
	/*
	 * owner: control plane; bit `peer % 64` of word `peer / 64`: that member is suspect
	 * (control/members/suspect.h), so look-ups ask it last. Each bit is valid alone.
	 */
	alignas(64) uint64_t suspects[NODES_MAX / 64];
	/* the same: members that are being drained, whose pages are read last */
	uint64_t leaving[NODES_MAX / 64];
	/* owner: control plane; struct map_member by owner number */
	alignas(64) uint64_t owner[OWNERS_MAX];
	/* owner: control plane; struct map_slot */
	alignas(64) uint64_t slot[MAP_SLOTS];
	/* owner: control plane; struct map_member by peer number */
	alignas(64) uint64_t member[NODES_MAX];
};
static_assert(sizeof(struct map_shared) <= 1u << 20, "1 MiB of each status segment");

/* True if the member with this number, below NODES_MAX, is suspect. */
static inline bool map_suspect(const struct map_shared *shared, uint16_t peer)
{
	return shm_load64(&shared->suspects[peer / 64]) >> peer % 64 & 1;
}

/* True if the member with this number, below NODES_MAX, is being drained. */
static inline bool map_leaving(const struct map_shared *shared, uint16_t peer)
{
	return shm_load64(&shared->leaving[peer / 64]) >> peer % 64 & 1;
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
 * The slot of a key, below MAP_SLOTS: bits that neither its tag nor its buckets (abi/bucket.h) use,
 * so that the entries of one owner are spread over all its buckets.
 */
static inline uint32_t map_slot_of(const struct page_key *key)
{
	return (uint32_t)(key->word[1] >> 48);
}

/* Number of owners of a slot's word, at most REPLICAS_MAX, whatever the word is. */
static inline unsigned map_slot_owners(const struct map_slot *slot)
{
	unsigned owners = slot->owners & 7u; /* the bits above are former owners of ABI 26 */

	return owners < REPLICAS_MAX ? owners : REPLICAS_MAX;
}

static inline struct map_slot map_slot_unpack(uint64_t word)
{
	struct map_slot slot;

	memcpy(&slot, &word, sizeof(slot));
	return slot;
}

static inline uint64_t map_slot_pack(const struct map_slot *slot)
{
	uint64_t word;

	memcpy(&word, slot, sizeof(word));
	return word;
}

static inline struct map_member map_member_unpack(uint64_t word)
{
	struct map_member member;

	memcpy(&member, &word, sizeof(member));
	return member;
}

static inline uint64_t map_member_pack(const struct map_member *member)
{
	uint64_t word;

	memcpy(&word, member, sizeof(word));
	return word;
}

/* True if the word names a member whose numbers are in range. */
static inline bool map_member_sane(const struct map_member *member)
{
	return member->ref && member->peer < NODES_MAX && member->bucket_bits <= 31 &&
	       member->rails <= RAILS_MAX;
}

/* The owners of a slot. */
struct map_owners {
	/* of the slot; it names the same members in the same order until the epoch changes */
	uint64_t word;
	uint32_t epoch;
	unsigned owners;
	struct map_member member[REPLICAS_MAX];
};

/*
 * Loads the owners of a slot, see the rules above. False: the map changed meanwhile; try again. The
 * acquires pair with the releases of control/members/member_map.c.
 */
static inline bool map_owners_load(
	const struct map_shared *shared, uint32_t slot, struct map_owners *ret)
{
	struct map_slot names;

	ret->epoch = shm_load_acquire(&shared->epoch);
	ret->word = shm_load_acquire64(&shared->slot[slot]);
	names = map_slot_unpack(ret->word);
	ret->owners = map_slot_owners(&names);
	for (unsigned k = 0; k < ret->owners; k++)
		ret->member[k] =
			map_member_unpack(shm_load_acquire64(&shared->owner[names.owner[k]]));
	return shm_load_acquire64(&shared->slot[slot]) == ret->word &&
	       shm_load(&shared->epoch) == ret->epoch;
}

/*
 * ---- the rule of absence ----------------------------------------------------------------------
 *
 * Which owner of a key a reader asks next, and when the key counts as absent. Pure functions, which
 * the client's look-up and the simulator (tests/sim) share.
 *
 * The caller considers the owners of the key's slot, each with a bit of its own; then
 * owner_verdict() tells what to do.
 */

/*
 * Order in which a key's owners are asked: this host, peers that answer, peers that failed
 * recently or are suspect for this host's engine.
 */
enum owner_rank { RANK_HERE, RANK_ANSWERS, RANK_RESTS, RANKS };

struct owner_choice {
	enum owner_rank rank; /* RANKS: every owner considered so far was asked */
	unsigned bit;         /* the owner's bit in the set of owners asked */
};

enum owner_verdict {
	OWNER_ASK, /* ask the owner that was chosen */
	/* every owner answered that it does not have the key */
	OWNER_ABSENT,
	/* an owner could not be asked, and no other one has the key */
	OWNER_UNREACHABLE,
};

/*
 * The rank of an owner on another host. `failed`: a READ from it failed recently; `suspect`: it
 * does not serve this host's engine (control/members/suspect.h).
 */
static inline enum owner_rank owner_rank_remote(bool failed, bool suspect)
{
	return failed || suspect ? RANK_RESTS : RANK_ANSWERS;
}

/* Makes the owner the choice if it was not asked and is better; the first of equals stays. */
static inline bool owner_consider(
	struct owner_choice *best, unsigned asked, unsigned bit, enum owner_rank rank)
{
	if (asked & 1u << bit || rank >= best->rank)
		return false;
	*best = (struct owner_choice){rank, bit};
	return true;
}

/*
 * An owner that failed recently or is suspect can cost its share of the deadline: once an owner was
 * asked and one has `answered`, it is not asked, and the key is unreachable, not absent. `failed`:
 * the READ of an owner failed.
 */
static inline enum owner_verdict owner_verdict(
	const struct owner_choice *best, bool answered, bool failed)
{
	if (best->rank == RANK_RESTS && answered)
		return OWNER_UNREACHABLE;
	if (best->rank != RANKS)
		return OWNER_ASK;
	return failed ? OWNER_UNREACHABLE : OWNER_ABSENT;
}

#endif
