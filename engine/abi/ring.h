/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A single-producer single-consumer (SPSC) ring in shared memory, and the named memory orderings
 * that everything else in shared memory uses: page heads, the cluster map's sequence lock, sleep
 * flags. This file and dv/order.h contain all atomics and fences of the tree.
 *
 * A message costs one transfer of a cache line, because its ring entry itself says that it is
 * filled: bytes 14 and 15 of every entry are its turn, a number that the producer stores last and
 * that differs in every round, so the consumer polls the very line that contains the message. The
 * only shared index is the consumer's, which the producer loads only when it knows of too few free
 * entries.
 *
 * Neither side trusts the other: each keeps its own index and the geometry in private memory and
 * masks every access. The producer declares the ring broken if the consumer's index is impossible.
 * A producer that writes wrong turns makes the consumer read entries of arbitrary content, which
 * the consumer has to validate anyway. Indices are 32 bits wide and wrap.
 *
 *   producer                                     consumer
 *     n = ring_room(p, want);  (< 0: broken)       n = ring_ready(c);
 *     memcpy(ring_slot_new(p, 0), &op, 64);        op = copy of ring_slot_old(c, 0);
 *     ring_publish(p, 1);                          ring_release(c, 1);
 */
#ifndef ABI_RING_H
#define ABI_RING_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <assert.h>

/* ---- named orderings for shared memory ---------------------------------------------------- */

/*
 * ThreadSanitizer does not model fences. In its builds each fence is a read-modify-write of one
 * word, which orders at least what the fence orders.
 */
#if defined(__SANITIZE_THREAD__) /* gcc */
#define SHM_TSAN 1
#elif defined(__has_feature) /* clang */
#if __has_feature(thread_sanitizer)
#define SHM_TSAN 1
#endif
#endif
#if defined(SHM_TSAN)
__attribute__((weak)) uint32_t shm_tsan_word;
#define SHM_FENCE(order) ((void)__atomic_fetch_add(&shm_tsan_word, 1, __ATOMIC_SEQ_CST))
#else
#define SHM_FENCE(order) __atomic_thread_fence(order)
#endif

/*
 * Acquire load: pairs with shm_store_release() to the same word. What the other side stored before
 * that store is visible to loads after this one.
 */
static inline uint32_t shm_load_acquire(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void shm_store_release(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline uint64_t shm_load_acquire64(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void shm_store_release64(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/*
 * Relaxed load: for a word that another thread or process writes, if no other memory depends on its
 * value.
 */
static inline uint32_t shm_load(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline uint64_t shm_load64(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline uint8_t shm_load8(const uint8_t *byte)
{
	return __atomic_load_n(byte, __ATOMIC_RELAXED);
}

static inline void shm_store8(uint8_t *byte, uint8_t value)
{
	__atomic_store_n(byte, value, __ATOMIC_RELAXED);
}

static inline void shm_store(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void shm_store64(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/*
 * Stores `value` and returns the previous one; the waker clears a sleeper's flag with it and learns
 * whether it was set.
 */
static inline uint32_t shm_exchange(uint32_t *word, uint32_t value)
{
	return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

/*
 * Adds to a counter that has only one writer. Needs no locked instruction, and readers never see
 * half of an update.
 */
static inline void shm_count(uint64_t *counter, uint64_t n)
{
	shm_store64(counter, shm_load64(counter) + n);
}

/*
 * Store-load fence of the sleep protocol. The sleeper sets its flag, fences, checks the ring once
 * more and sleeps. The waker publishes, fences and checks the flag. Without both fences each could
 * miss the other's store.
 */
static inline void shm_fence_sleep(void)
{
	SHM_FENCE(__ATOMIC_SEQ_CST);
}

/*
 * Store-load fence between two sides that each store something and then load what the other stores:
 * the slot a client copies into, and the end of its channel (struct channel_header).
 */
static inline void shm_fence_store_load(void)
{
	SHM_FENCE(__ATOMIC_SEQ_CST);
}

/*
 * Stores, then the clock: what was stored before this call is visible to all CPUs and NICs before a
 * clock that is read after it. The owner of a slot calls it between the new generation and the time
 * at which limbo begins (control/pages/VALIDATION.md). It pairs with no fence of a reader, only
 * with the readers' clocks.
 *
 * A fence for memory accesses is not enough, because a processor's time counter is not memory. x86:
 * the sequence of Intel's manual (RDTSC). arm64: dsb waits until the stores are complete
 * (outer shareable: for NICs too), isb keeps the counter from being read before that.
 */
static inline void shm_fence_clock(void)
{
#if defined(__x86_64__)
	__asm__ volatile("mfence\n\tlfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dsb osh\n\tisb" ::: "memory");
#else
	SHM_FENCE(__ATOMIC_SEQ_CST);
#endif
}

/*
 * Loads, then the clock: what was loaded before this call was loaded before a clock that is read
 * after it. A rail calls it between the CQEs of READs and the time at which their lease must still
 * hold (T1). Pairs with no fence, only with the owner's clock: see shm_fence_clock().
 */
static inline void shm_fence_lease(void)
{
#if defined(__x86_64__)
	__asm__ volatile("lfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dsb oshld\n\tisb" ::: "memory");
#else
	SHM_FENCE(__ATOMIC_SEQ_CST);
#endif
}

/* Orders earlier loads before later loads: a page's payload before its page head. */
static inline void shm_fence_load(void)
{
	SHM_FENCE(__ATOMIC_ACQUIRE);
}

/*
 * Orders stores before it before stores after it, for NICs as well, which READ page heads and
 * buckets: the generation, then anything else. On arm64 a NIC need not be in the inner shareable
 * domain, the only one for which the compiler's fence orders, hence the explicit barrier.
 */
static inline void shm_fence_store(void)
{
	SHM_FENCE(__ATOMIC_RELEASE);
#if defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#endif
}

/*
 * Makes a copied page visible, to NICs as well, before the publish that follows. Needed because the
 * copy uses non-temporal stores, which are weakly ordered even on x86.
 */
static inline void shm_fence_stream(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
#elif defined(__aarch64__)
	__asm__ volatile("dmb osh" ::: "memory");
#else
	SHM_FENCE(__ATOMIC_SEQ_CST);
#endif
}

/* Tells the CPU that the caller spins; to be called once per round of a spin loop. */
static inline void shm_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

/* ---- the ring ------------------------------------------------------------------------------ */

/* offset in a ring entry of the turn, whose two bytes belong to the ring */
#define RING_TURN_AT 14u
#define RING_TURN_SHIFT 48      /* bits below the turn in the second 8-byte word of a ring entry */
#define RING_SLOT_BYTES_MAX 64u /* length of the longest ring entry, bytes */
#define RING_LOOK 64u           /* filled entries that one ring_ready() looks for, at most */
/* largest capacity of a ring; its round counter then has 16 bits */
#define RING_CAPACITY_MAX 65536u

/*
 * The part of a ring in shared memory; `capacity` entries of `slot_bytes` bytes follow it directly.
 */
struct ring_shared {
	/* owner: consumer; number of entries released so far, stored on every release */
	alignas(64) uint32_t head;
	/* unused: CPUs prefetch cache lines in pairs, and the second line is to stay idle */
	uint32_t pad[31];
};
static_assert(sizeof(struct ring_shared) == 128, "two cache lines, then the slots");

/* The producer's end of a ring, in private memory of the producing thread. */
struct ring_producer {
	struct ring_shared *shared;
	unsigned char *slots;
	uint32_t slot_bytes;
	uint32_t capacity;
	uint32_t tail; /* number of entries published so far; wraps */
	/* number of entries released by the consumer, when the producer last loaded it */
	uint32_t head_seen;
	/* The first unpublished entry is built here and copied to the ring by ring_publish(),
	 * because the consumer polls that entry's cache line. */
	uint64_t first[RING_SLOT_BYTES_MAX / 8];
};

/* The consumer's end of a ring, in private memory of the consuming thread. */
struct ring_consumer {
	const unsigned char *slots;
	struct ring_shared *shared;
	uint32_t slot_bytes;
	uint32_t capacity;
	uint32_t head;      /* number of entries released so far; wraps */
	uint32_t tail_seen; /* number of entries seen filled so far; wraps */
};

#define RING_BROKEN (-1) /* result of ring_room() if the consumer's index is impossible */

/* Number of bytes of shared memory that a ring needs. */
static inline size_t ring_bytes(uint32_t capacity, uint32_t slot_bytes)
{
	return sizeof(struct ring_shared) + (size_t)capacity * slot_bytes;
}

/*
 * Initialises the producer's end. `at`: zeroed shared memory of ring_bytes() bytes, 64-byte
 * aligned. `capacity`: a power of two up to RING_CAPACITY_MAX. `slot_bytes`: a multiple of 16 up to
 * RING_SLOT_BYTES_MAX.
 */
static inline void ring_producer_init(
	struct ring_producer *p, void *at, uint32_t capacity, uint32_t slot_bytes)
{
	*p = (struct ring_producer){.shared = at,
		.slots = (unsigned char *)at + sizeof(struct ring_shared),
		.slot_bytes = slot_bytes,
		.capacity = capacity};
}

/*
 * Initialises the consumer's end of a ring; parameters as for the producer's end, geometry the
 * same.
 */
static inline void ring_consumer_init(
	struct ring_consumer *c, void *at, uint32_t capacity, uint32_t slot_bytes)
{
	*c = (struct ring_consumer){.shared = at,
		.slots = (const unsigned char *)at + sizeof(struct ring_shared),
		.slot_bytes = slot_bytes,
		.capacity = capacity};
}

/*
 * The turn that a filled entry with this index has: the number of the round, with the top bit set
 * so that it is never 0, the content of unused memory. A turn repeats after 32768 rounds, when no
 * reader can have an old one in use.
 */
static inline uint64_t ring_turn(uint32_t capacity, uint32_t index)
{
	return (index >> __builtin_ctz(capacity) | 0x8000u) & 0xffffu;
}

/* Returns the second word of an entry with its upper 16 bits replaced by the turn. */
static inline uint64_t ring_word(uint64_t word, uint64_t turn)
{
	return (word & ((1ull << RING_TURN_SHIFT) - 1)) | turn << RING_TURN_SHIFT;
}

/* Returns the offset of entry `index` from the first entry, bytes. */
static inline size_t ring_at(uint32_t capacity, uint32_t slot_bytes, uint32_t index)
{
	return (size_t)(index & (capacity - 1)) * slot_bytes;
}

/*
 * Returns the number of free entries. The consumer's index is loaded again only if fewer than
 * `want` are known to be free. Returns RING_BROKEN if that index is impossible, also on every later
 * call. The acquire pairs with the release of ring_release(): the consumer has finished reading an
 * entry before the producer overwrites it.
 */
static inline int32_t ring_room(struct ring_producer *p, uint32_t want)
{
	uint32_t used = p->tail - p->head_seen;

	if (p->capacity - used < want) {
		p->head_seen = shm_load_acquire(&p->shared->head);
		used = p->tail - p->head_seen;
	}
	/* Also true if an earlier call loaded an impossible index, so a broken ring stays
	 * broken. */
	if (used > p->capacity)
		return RING_BROKEN;
	return (int32_t)(p->capacity - used);
}

/* Returns the i-th unpublished entry, for the producer to write; 0 <= i < ring_room(). */
static inline void *ring_slot_new(struct ring_producer *p, uint32_t i)
{
	return i ? p->slots + ring_at(p->capacity, p->slot_bytes, p->tail + i) : (void *)p->first;
}

/* The turn of the i-th unpublished entry, where it stands in the entry's second word. */
static inline uint64_t ring_turn_new(uint32_t capacity, const struct ring_producer *p, uint32_t i)
{
	return ring_turn(capacity, p->tail + i) << RING_TURN_SHIFT;
}

/*
 * ring_publish() for a producer that has stored the turns (ring_turn_new()) of all entries but the
 * first itself: they are part of the second words that it wrote. `capacity` and `slot_bytes` are
 * those of the ring; if they are constants, so is most of the work.
 */
static inline void ring_publish_turned(
	struct ring_producer *p, uint32_t capacity, uint32_t slot_bytes, uint32_t n)
{
	size_t at = ring_at(capacity, slot_bytes, p->tail);
	uint64_t *slot = (uint64_t *)(void *)(p->slots + at);

	if (slot_bytes == RING_SLOT_BYTES_MAX) /* a constant: the copy is a few moves */
		memcpy(&slot[2], &p->first[2], RING_SLOT_BYTES_MAX - 16);
	else
		for (uint32_t k = 2; k < slot_bytes / 8; k++)
			slot[k] = p->first[k];
	slot[0] = p->first[0];
	shm_store_release64(&slot[1], ring_word(p->first[1], ring_turn(capacity, p->tail)));
	p->tail += n;
}

/*
 * Publishes n >= 1 entries. The first entry's turn is stored last, with release; a consumer that
 * sees it (acquire in ring_look()) also sees the other n - 1 entries.
 */
static inline void ring_publish(struct ring_producer *p, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		uint64_t *other = ring_slot_new(p, i);

		shm_store64(&other[1], ring_word(other[1], ring_turn(p->capacity, p->tail + i)));
	}
	ring_publish_turned(p, p->capacity, p->slot_bytes, n);
}

/*
 * Looks for up to `most` filled entries after those already seen. Returns the number of entries
 * filled and not released. The acquire pairs with the release of ring_publish(). `capacity` and
 * `slot_bytes` are those of the ring, as in ring_publish_turned().
 */
static inline int32_t ring_look_of(
	struct ring_consumer *c, uint32_t capacity, uint32_t slot_bytes, uint32_t most)
{
	uint32_t index = c->tail_seen;
	uint32_t unseen = capacity - (index - c->head);
	uint32_t end = index + (most < unseen ? most : unseen);

	for (; index != end; index++) {
		size_t at = ring_at(capacity, slot_bytes, index);
		const uint64_t *slot = (const uint64_t *)(const void *)(c->slots + at);

		if (shm_load_acquire64(&slot[1]) >> RING_TURN_SHIFT != ring_turn(capacity, index))
			break;
	}
	c->tail_seen = index;
	return (int32_t)(index - c->head);
}

static inline int32_t ring_look(struct ring_consumer *c, uint32_t most)
{
	return ring_look_of(c, c->capacity, c->slot_bytes, most);
}

/* ring_ready() of a ring with this geometry. */
static inline int32_t ring_ready_of(struct ring_consumer *c, uint32_t capacity, uint32_t slot_bytes)
{
	return c->tail_seen != c->head ? (int32_t)(c->tail_seen - c->head)
				       : ring_look_of(c, capacity, slot_bytes, RING_LOOK);
}

/*
 * Returns a number of filled entries; 0 only if there are none. Looks for new ones only if it knows
 * of none, and then for at most RING_LOOK, so a group of entries that were published together can
 * be counted in part.
 */
static inline int32_t ring_ready(struct ring_consumer *c)
{
	return ring_ready_of(c, c->capacity, c->slot_bytes);
}

/*
 * Returns the number of all filled entries. For a long look: up to the end of the round, all
 * entries have the same turn. The acquire pairs with the release of ring_publish().
 */
static inline int32_t ring_ready_now(struct ring_consumer *c)
{
	uint32_t index = c->tail_seen, end = c->head + c->capacity, mask = c->capacity - 1;

	while (index != end) {
		const unsigned char *slot = c->slots + ring_at(c->capacity, c->slot_bytes, index);
		uint64_t turn = ring_turn(c->capacity, index);
		uint32_t round = (index | mask) + 1,
			 stop = round - index < end - index ? round : end;

		for (; index != stop; index++, slot += c->slot_bytes) {
			const uint64_t *word = (const uint64_t *)(const void *)slot;

			if (shm_load_acquire64(&word[1]) >> RING_TURN_SHIFT != turn) {
				end = index; /* ends both loops */
				break;
			}
		}
	}
	c->tail_seen = index;
	return (int32_t)(index - c->head);
}

/* Returns the i-th filled entry; 0 <= i < ring_ready(). Copy it once, then validate the copy. */
static inline const void *ring_slot_old(const struct ring_consumer *c, uint32_t i)
{
	return c->slots + ring_at(c->capacity, c->slot_bytes, c->head + i);
}

/*
 * Gives the first n filled entries back to the producer. The release pairs with the acquire of
 * ring_room(): the loads from the entries are complete.
 */
static inline void ring_release(struct ring_consumer *c, uint32_t n)
{
	c->head += n;
	shm_store_release(&c->shared->head, c->head);
}

#endif
