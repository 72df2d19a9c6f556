/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The place of a page in a pool, the page head that identifies the page there, and the lease by
 * which a head proves a page.
 *
 * Each pool has a dense array of heads beside it, one per PAGE_UNIT; the head of a page is that of
 * its first unit. The control plane of the holder writes heads, clients of the host map them
 * read-only, and other hosts READ them after the payload. If the head read after the payload is the
 * expected one, no overwrite had begun while the payload was read, because the control plane does,
 * in this order:
 *
 *   evict     generation + 1, then hash and length zeroed; fence, clock -> limbo -> free
 *             -> overwritten
 *   publish   payload written, then length and hash, then the directory entry {place, generation}
 */
#ifndef ABI_PAGE_H
#define ABI_PAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "config/limits.h"
#include "engine/abi/ring.h"

/*
 * The page key: hash of (namespace, epochs, key) in 128 bits, of which the bits of PAGE_GROUP_* are
 * a hash of the namespace's group alone, and those of PAGE_EPOCH_0 a count of its epochs (epoch.h).
 * So an engine knows the pages of a group, and which of them are of before a clear, by their keys,
 * in memory and on disk. All zero: no page.
 */
struct page_key {
	uint64_t word[2];
};
/* Bits that choose no slot, bucket, tag or chain of any table. */
#define PAGE_EPOCH_0 0x00ff000000000000u
#define PAGE_GROUP_0 0x0000ff0000000000u
#define PAGE_GROUP_1 0x0000ffff00000000u

struct page_head {
	struct page_key key;
	/* generation of the slot, incremented before the slot may be overwritten */
	uint32_t generation;
	uint32_t length; /* length of the page, bytes */
	uint32_t crc;    /* CRC32C of the page; valid where page_head_is_proven() */
	uint32_t check;  /* page_head_check() of the words above */
};
static_assert(sizeof(struct page_head) == 32, "fits a CQE, never straddles a cache line");

/*
 * In a place, this number instead of a rail's means "on the disk of the holder": no memory, so it
 * is never READ.
 */
#define PLACE_DISK (PLACE_RAILS - 1u)

/*
 * A place in 32 bits: the rail whose pool it is in (upper 4 bits) and the unit of the pool it
 * starts at (28 bits).
 */
static inline uint32_t place_make(uint32_t rail, uint32_t unit)
{
	return rail << 28 | unit;
}

static inline uint32_t place_rail(uint32_t place)
{
	return place >> 28;
}

/* True if the page is on the disk of its holder. */
static inline bool place_on_disk(uint32_t place)
{
	return place >= PLACE_DISK << 28; /* the highest number */
}

static inline uint32_t place_unit(uint32_t place)
{
	return place & (PAGE_UNITS_MAX - 1);
}

/* Returns the offset of a place from the start of its pool, bytes. */
static inline uint64_t place_offset(uint32_t place)
{
	return (uint64_t)place_unit(place) * PAGE_UNIT;
}

/*
 * Where a page is, as its directory entry says: the holder (map_member.ref; 0: no location), the
 * place there, and the generation that the page head at this place must have. It may be stale.
 */
struct location {
	uint32_t ref;
	uint32_t place;
	uint32_t generation;
};

static inline bool page_key_equal(const struct page_key *a, const struct page_key *b)
{
	return ((a->word[0] ^ b->word[0]) | (a->word[1] ^ b->word[1])) == 0;
}

/* True if the page key is of a namespace of the group, of which `group` has the bits. */
static inline bool page_key_grouped(const struct page_key *key, const struct page_key *group)
{
	return (((key->word[0] ^ group->word[0]) & PAGE_GROUP_0) |
		       ((key->word[1] ^ group->word[1]) & PAGE_GROUP_1)) == 0;
}

static inline bool page_key_none(const struct page_key *key)
{
	return (key->word[0] | key->word[1]) == 0;
}

/*
 * True if `head` is the head of the expected page. `head` is a copy taken after the payload: by a
 * READ that followed it, or by page_head_load() after shm_fence_load().
 */
static inline bool page_head_is(const struct page_head *head, const struct page_key *key,
	uint32_t generation, uint32_t length)
{
	return head->generation == generation && head->length == length &&
	       page_key_equal(&head->key, key);
}

/*
 * The same for a page of any length. A length of 0 is that of a copy torn by page_head_retire(): no
 * page has it.
 */
static inline bool page_head_names(
	const struct page_head *head, const struct page_key *key, uint32_t generation)
{
	return head->length && page_head_is(head, key, generation, head->length);
}

/*
 * Returns the checksum of a head. A change of a single word always changes the sum of 64 bits,
 * because each step is a bijection of it.
 */
static inline uint32_t page_head_check(const struct page_head *head)
{
	const uint64_t word[] = {head->key.word[0], head->key.word[1],
		(uint64_t)head->generation << 32 | head->length, head->crc};
	uint64_t sum = 0x9e3779b97f4a7c15u;

	for (unsigned i = 0; i < 4; i++) {
		sum ^= word[i];
		sum = (sum ^ sum >> 33) * 0xff51afd7ed558ccdu;
		sum = (sum ^ sum >> 33) * 0xc4ceb9fe1a85ec53u;
		sum ^= sum >> 33;
	}
	return (uint32_t)sum;
}

/*
 * True if the copy `head` is whole and contains the CRC of its page. False: no page, a head that a
 * kill left half-written, or a page whose client did not compute the CRC.
 */
static inline bool page_head_is_proven(const struct page_head *head)
{
	return head->length && head->check == page_head_check(head);
}

/*
 * Copies a head that another process may be writing. Each word is loaded at once. The copy as a
 * whole can be torn; page_head_is() then finds no match, because the generation changes before the
 * other words.
 */
static inline struct page_head page_head_load(const struct page_head *shared)
{
	struct page_head head = {
		.key = {{shm_load64(&shared->key.word[0]), shm_load64(&shared->key.word[1])}},
		.generation = shm_load(&shared->generation),
		.length = shm_load(&shared->length),
		.crc = shm_load(&shared->crc),
		.check = shm_load(&shared->check)};

	return head;
}

/*
 * Returns the length of the page of which another process may be writing the head; 0: it is not
 * there. The generation is loaded again after the length, because page_head_retire() changes it
 * first: a length with this generation is the page's.
 */
static inline uint32_t page_head_length(
	const struct page_head *shared, const struct page_key *key, uint32_t generation)
{
	struct page_head head = page_head_load(shared);

	shm_fence_load();
	head.generation = shm_load(&shared->generation);
	return page_head_names(&head, key, generation) ? head.length : 0;
}

/*
 * Stores the proof of the page that page_head_publish() publishes next with this key and length;
 * control plane only. page_head_retire() invalidates it, because the checksum is of the generation
 * too.
 */
static inline void page_head_prove(
	struct page_head *shared, const struct page_key *key, uint32_t length, uint32_t crc)
{
	const struct page_head head = {.key = *key,
		.generation = shm_load(&shared->generation),
		.length = length,
		.crc = crc};

	shm_store(&shared->crc, crc);
	shm_store(&shared->check, page_head_check(&head));
}

/*
 * Writes a head; control plane only. The payload is complete, and the fence makes its bytes visible
 * before the head.
 */
static inline void page_head_publish(
	struct page_head *shared, const struct page_key *key, uint32_t length)
{
	shm_fence_store();
	shm_store(&shared->length, length);
	shm_store64(&shared->key.word[0], key->word[0]);
	shm_store64(&shared->key.word[1], key->word[1]);
}

/*
 * Invalidates a head; control plane only. The new generation is visible before the other words
 * change. Returns it. The slot may enter limbo then; it must not be reused before limbo has ended.
 */
static inline uint32_t page_head_retire(struct page_head *shared)
{
	uint32_t generation = shm_load(&shared->generation) + 1;

	shm_store(&shared->generation, generation);
	shm_fence_store();
	shm_store64(&shared->key.word[0], 0);
	shm_store64(&shared->key.word[1], 0);
	shm_store(&shared->length, 0);
	return generation;
}

/*
 * ---- validation by lease ----------------------------------------------------------------------
 *
 * When a page head proves a page although the READs of payload and head had no order. The proof and
 * its assumptions are in engine/control/pages/VALIDATION.md.
 *
 * L is the limbo time of the holder, fixed while its incarnation lives; the holder announces it in
 * Connected. It overwrites no byte of a slot before L has passed since readers could last see the
 * slot's old generation. A reader whose READs all lie between T0 and T1, on its own clock, has seen
 * no overwritten byte if the head matches and T1 - T0 is shorter than L.
 *
 *   T0   read at or before the first WQE or doorbell record of these READs; older is safe
 *   T1   read after the last CQE of these READs was observed, behind a load fence; never a cached
 *        time
 *
 * Both are CLOCK_MONOTONIC_RAW (clock_raw_ns()): CLOCK_MONOTONIC may be slewed by up to 10%.
 */

/* Largest L that a reader accepts from a peer, ns: the maximum of engine.limbo_ms. */
#define LEASE_NS_MAX (10000ull * 1000 * 1000)
/*
 * The part of L that a reader uses, in percent. The rest covers the difference in rate between two
 * hosts' clocks, which is far below 1%.
 */
#define LEASE_PERCENT 95u

/*
 * Returns the L to use for a peer that announced `announced_ns`. 0 disables leases: the peer
 * announced none, or a value that no engine has.
 */
static inline uint64_t lease_bounded(uint64_t announced_ns)
{
	return announced_ns <= LEASE_NS_MAX ? announced_ns : 0;
}

/*
 * True: if all heads match, the pages are valid. False: too much time has passed, the times are not
 * in order, or L is 0; the heads must be read again, after the last CQE.
 */
static inline bool lease_valid(uint64_t t0_ns, uint64_t t1_ns, uint64_t limbo_ns)
{
	return t1_ns >= t0_ns && t1_ns - t0_ns < limbo_ns / 100 * LEASE_PERCENT;
}

#endif
