/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A single-producer single-consumer ring in shared memory, and the named orderings that everything
 * else in shared memory uses (page heads, the cluster map's sequence lock, sleep flags).
 *
 * This file and dv/order.h hold all atomics and fences of the tree.
 *
 * A message costs one transfer of a cache line: its slot says by itself that it is filled. Bytes 14
 * and 15 of every slot are its turn, stored last and different in every round, so the consumer
 * polls the very line that brings the message. The other way goes one index, the consumer's, which
 * the producer reads only when it knows of no free slot.
 *
 * Neither side trusts the other: each keeps its own index and the geometry in private memory and
 * masks every access. The producer calls the ring broken when the consumer's index is impossible; a
 * producer that lies about turns makes the consumer read slots of rubbish, which it has to expect.
 * Indices run freely over 32 bits.
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
#include <assert.h>

/* ---- named orderings for shared memory ---------------------------------------------------- */

/*
 * ThreadSanitizer does not know fences: there, each is a read-modify-write of one word, which
 * orders more than the fence does, never less.
 */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SHM_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(SHM_TSAN)
__attribute__((weak)) uint32_t shm_tsan_word;
#define SHM_FENCE(order) ((void)__atomic_fetch_add(&shm_tsan_word, 1, __ATOMIC_SEQ_CST))
#else
#define SHM_FENCE(order) __atomic_thread_fence(order)
#endif

/* Acquire: pairs with shm_store_release() of the same word. */
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

/* Relaxed: a word that another thread or process writes, where no other memory hangs on it. */
static inline uint32_t shm_load(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline uint64_t shm_load64(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static inline void shm_store(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static inline void shm_store64(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELAXED);
}

/* Take a flag down and learn whether it was up; used by whoever wakes the flag's owner. */
static inline uint32_t shm_exchange(uint32_t *word, uint32_t value)
{
	return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

/* Add to a counter that has one writer: no locked instruction, yet readers never see half of it. */
static inline void shm_count(uint64_t *counter, uint64_t n)
{
	shm_store64(counter, shm_load64(counter) + n);
}

/*
 * Store-load fence of the sleep protocol. Sleeper: flag up, fence, look at the ring once more,
 * sleep. Waker: publish, fence, look at the flag. Without both fences each can miss the other.
 */
static inline void shm_fence_sleep(void)
{
	SHM_FENCE(__ATOMIC_SEQ_CST);
}

/*
 * Store-load fence between two sides that each announce something and then look at the other's
 * announcement: the slot a client copies into, and the end of its channel (struct channel_header).
 */
static inline void shm_fence_store_load(void)
{
	SHM_FENCE(__ATOMIC_SEQ_CST);
}

/* Loads before it are done before loads after it: payload bytes, then the page head. */
static inline void shm_fence_load(void)
{
	SHM_FENCE(__ATOMIC_ACQUIRE);
}

/*
 * Stores before it are seen before stores after it: generation, then anything else. By NICs, too,
 * which READ page heads and buckets: on arm64 they need not be in the inner shareable domain, which
 * is all that the compiler's fence orders for.
 */
static inline void shm_fence_store(void)
{
	SHM_FENCE(__ATOMIC_RELEASE);
#if defined(__aarch64__)
	__asm__ volatile("dmb oshst" ::: "memory");
#endif
}

/*
 * A copied page is seen, by NICs too, before the publish that follows. Non-temporal stores are
 * weakly ordered even on x86.
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

/* One turn of a spin loop. */
static inline void shm_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

/* ---- the ring ------------------------------------------------------------------------------ */

#define RING_TURN_AT 14u   /* of a slot: the ring's own two bytes, */
#define RING_TURN_SHIFT 48 /* the high ones of its second word */
#define RING_SLOT_BYTES_MAX 64u
#define RING_LOOK 64u            /* slots one look finds filled at most */
#define RING_CAPACITY_MAX 65536u /* a turn comes back long after everybody forgot it */

/* What lies in shared memory; `slots` slots of `slot_bytes` follow at once. */
struct ring_shared {
	/* owner: consumer; written on every release */
	alignas(64) uint32_t head;
	uint32_t pad[31]; /* its neighbour line, too: CPUs fetch lines in pairs */
};
static_assert(sizeof(struct ring_shared) == 128, "two cache lines, then the slots");

/* Private to the producing thread. */
struct ring_producer {
	struct ring_shared *shared;
	unsigned char *slots;
	uint32_t slot_bytes;
	uint32_t capacity;
	uint32_t tail;      /* slots published so far */
	uint32_t head_seen; /* the consumer's, when last read */
	/* The first slot that is not published: the consumer polls its line, so it is made here and
	 * goes there in one piece. */
	uint64_t first[RING_SLOT_BYTES_MAX / 8];
};

/* Private to the consuming thread. */
struct ring_consumer {
	const unsigned char *slots;
	struct ring_shared *shared;
	uint32_t slot_bytes;
	uint32_t capacity;
	uint32_t head;      /* slots released so far */
	uint32_t tail_seen; /* slots seen filled */
};

#define RING_BROKEN (-1)

static inline size_t ring_bytes(uint32_t capacity, uint32_t slot_bytes)
{
	return sizeof(struct ring_shared) + (size_t)capacity * slot_bytes;
}

/*
 * `at` is zeroed shared memory of ring_bytes(), 64-byte aligned. capacity is a power of two up to
 * RING_CAPACITY_MAX, slot_bytes a multiple of 16 up to RING_SLOT_BYTES_MAX.
 */
static inline void ring_producer_init(
	struct ring_producer *p, void *at, uint32_t capacity, uint32_t slot_bytes)
{
	*p = (struct ring_producer){.shared = at,
		.slots = (unsigned char *)at + sizeof(struct ring_shared),
		.slot_bytes = slot_bytes,
		.capacity = capacity};
}

static inline void ring_consumer_init(
	struct ring_consumer *c, void *at, uint32_t capacity, uint32_t slot_bytes)
{
	*c = (struct ring_consumer){.shared = at,
		.slots = (const unsigned char *)at + sizeof(struct ring_shared),
		.slot_bytes = slot_bytes,
		.capacity = capacity};
}

/* What a filled slot of that index carries: the round; never 0, which is what memory begins with.
 */
static inline uint64_t ring_turn(uint32_t capacity, uint32_t index)
{
	return (index >> __builtin_ctz(capacity) | 0x8000u) & 0xffffu;
}

static inline uint64_t ring_word(uint64_t word, uint64_t turn)
{
	return (word & ((1ull << RING_TURN_SHIFT) - 1)) | turn << RING_TURN_SHIFT;
}

static inline size_t ring_at(uint32_t capacity, uint32_t slot_bytes, uint32_t index)
{
	return (size_t)(index & (capacity - 1)) * slot_bytes;
}

/*
 * Free slots; the consumer's index is read again only when fewer than `want` are known to be free.
 * RING_BROKEN when that index is impossible. Acquire pairs with ring_release(): the consumer has
 * finished reading a slot before it is overwritten.
 */
static inline int32_t ring_room(struct ring_producer *p, uint32_t want)
{
	uint32_t used = p->tail - p->head_seen;

	if (p->capacity - used < want) {
		p->head_seen = shm_load_acquire(&p->shared->head);
		used = p->tail - p->head_seen;
	}
	/* Also when the impossible index was read by an earlier call: broken stays broken. */
	if (used > p->capacity)
		return RING_BROKEN;
	return (int32_t)(p->capacity - used);
}

/* The i-th slot not yet published, to be written; i < ring_room(). */
static inline void *ring_slot_new(struct ring_producer *p, uint32_t i)
{
	return i ? p->slots + ring_at(p->capacity, p->slot_bytes, p->tail + i) : (void *)p->first;
}

/*
 * The next n >= 1 slots become visible together: the consumer looks at the first one's turn, and
 * that is stored last. Release pairs with ring_ready(); the other turns hang on it.
 */
static inline void ring_publish(struct ring_producer *p, uint32_t n)
{
	size_t at = ring_at(p->capacity, p->slot_bytes, p->tail);
	uint64_t *slot = (uint64_t *)(void *)(p->slots + at);

	for (uint32_t i = 1; i < n; i++) {
		uint64_t *other = ring_slot_new(p, i);

		shm_store64(&other[1], ring_word(other[1], ring_turn(p->capacity, p->tail + i)));
	}
	for (uint32_t k = 2; k < p->slot_bytes / 8; k++)
		slot[k] = p->first[k];
	slot[0] = p->first[0];
	shm_store_release64(&slot[1], ring_word(p->first[1], ring_turn(p->capacity, p->tail)));
	p->tail += n;
}

/* Looks for filled slots behind those already seen. Acquire pairs with ring_publish(). */
static inline int32_t ring_look(struct ring_consumer *c, uint32_t most)
{
	uint32_t unseen = c->capacity - (c->tail_seen - c->head);
	uint32_t end = c->tail_seen + (most < unseen ? most : unseen);

	for (; c->tail_seen != end; c->tail_seen++) {
		size_t at = ring_at(c->capacity, c->slot_bytes, c->tail_seen);
		const uint64_t *slot = (const uint64_t *)(const void *)(c->slots + at);

		if (shm_load_acquire64(&slot[1]) >> RING_TURN_SHIFT !=
			ring_turn(c->capacity, c->tail_seen))
			break;
	}
	return (int32_t)(c->tail_seen - c->head);
}

/*
 * Filled slots, 0 only if there are none. Looks only when it knows of none, and then not at the
 * whole ring: slots that were published together may be among them in part.
 */
static inline int32_t ring_ready(struct ring_consumer *c)
{
	return c->tail_seen != c->head ? (int32_t)(c->tail_seen - c->head)
				       : ring_look(c, RING_LOOK);
}

/* All of them. */
static inline int32_t ring_ready_now(struct ring_consumer *c)
{
	return ring_look(c, c->capacity);
}

/* The i-th filled slot; i < ring_ready(). Copy it once, then validate the copy. */
static inline const void *ring_slot_old(const struct ring_consumer *c, uint32_t i)
{
	return c->slots + ring_at(c->capacity, c->slot_bytes, c->head + i);
}

/* Release: we are done reading the slots. Pairs with ring_room(). */
static inline void ring_release(struct ring_consumer *c, uint32_t n)
{
	c->head += n;
	shm_store_release(&c->shared->head, c->head);
}

#endif
