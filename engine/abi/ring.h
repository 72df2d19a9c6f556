/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A single-producer single-consumer ring in shared memory, and the named orderings that everything
 * else in shared memory uses (page heads, the cluster map's sequence lock, sleep flags).
 *
 * This file and dv/order.h hold all atomics and fences of the tree.
 *
 * The shared part is two indices, each on the cache line of the side that writes it, and the slots.
 * Neither side trusts the other: each keeps its own index and the geometry in private memory, masks
 * every access and calls the ring broken when the other side's index is impossible.
 * Indices run freely over 32 bits; `tail - head` is the number of filled slots.
 *
 *   producer                                     consumer
 *     n = ring_room(p, want);                      n = ring_ready(c);     (< 0: broken)
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

/* Loads before it are done before loads after it: payload bytes, then the page head. */
static inline void shm_fence_load(void)
{
	SHM_FENCE(__ATOMIC_ACQUIRE);
}

/* Stores before it are seen before stores after it: generation, then anything else. */
static inline void shm_fence_store(void)
{
	SHM_FENCE(__ATOMIC_RELEASE);
}

/* Non-temporal stores are weakly ordered even on x86: drained before the page is published. */
static inline void shm_fence_stream(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
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

/* What lies in shared memory; `slots` slots of `slot_bytes` follow at once. */
struct ring_shared {
	/* owner: producer; written on every publish */
	alignas(64) uint32_t tail;
	/* owner: consumer; written on every release */
	alignas(64) uint32_t head;
	uint32_t pad[15];
};
static_assert(sizeof(struct ring_shared) == 128, "two cache lines, then the slots");

/* Private to the producing thread. */
struct ring_producer {
	struct ring_shared *shared;
	unsigned char *slots;
	uint32_t slot_bytes;
	uint32_t capacity;
	uint32_t tail;      /* ours: slots published so far */
	uint32_t head_seen; /* the consumer's, when last read */
};

/* Private to the consuming thread. */
struct ring_consumer {
	const unsigned char *slots;
	struct ring_shared *shared;
	uint32_t slot_bytes;
	uint32_t capacity;
	uint32_t head;      /* ours: slots released so far */
	uint32_t tail_seen; /* the producer's, when last read */
};

#define RING_BROKEN (-1)

static inline size_t ring_bytes(uint32_t capacity, uint32_t slot_bytes)
{
	return sizeof(struct ring_shared) + (size_t)capacity * slot_bytes;
}

/* `at` is zeroed shared memory of ring_bytes(), 64-byte aligned. capacity is a power of two. */
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

/* The i-th slot not yet published; i < ring_room(). */
static inline void *ring_slot_new(const struct ring_producer *p, uint32_t i)
{
	return p->slots + (size_t)((p->tail + i) & (p->capacity - 1)) * p->slot_bytes;
}

/* Release: the slots' bytes are visible before the index. Pairs with ring_ready(). */
static inline void ring_publish(struct ring_producer *p, uint32_t n)
{
	p->tail += n;
	shm_store_release(&p->shared->tail, p->tail);
}

/* Filled slots, or RING_BROKEN. Acquire pairs with ring_publish(). */
static inline int32_t ring_ready(struct ring_consumer *c)
{
	uint32_t filled = c->tail_seen - c->head;

	if (filled == 0) {
		c->tail_seen = shm_load_acquire(&c->shared->tail);
		filled = c->tail_seen - c->head;
	}
	/* Also when the impossible index was read by an earlier call: broken stays broken. */
	if (filled > c->capacity)
		return RING_BROKEN;
	return (int32_t)filled;
}

/* As ring_ready(), reading the producer's index even when slots are known to be filled. */
static inline int32_t ring_ready_now(struct ring_consumer *c)
{
	c->tail_seen = shm_load_acquire(&c->shared->tail);
	if (c->tail_seen - c->head > c->capacity)
		return RING_BROKEN;
	return (int32_t)(c->tail_seen - c->head);
}

/* The i-th filled slot; i < ring_ready(). Copy it once, then validate the copy. */
static inline const void *ring_slot_old(const struct ring_consumer *c, uint32_t i)
{
	return c->slots + (size_t)((c->head + i) & (c->capacity - 1)) * c->slot_bytes;
}

/* Release: we are done reading the slots. Pairs with ring_room(). */
static inline void ring_release(struct ring_consumer *c, uint32_t n)
{
	c->head += n;
	shm_store_release(&c->shared->head, c->head);
}

#endif
