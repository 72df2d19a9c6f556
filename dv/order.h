/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every ordering between a CPU and a NIC, by name. This file and engine/abi/ring.h hold all fences,
 * atomics and asm of the tree. The names follow rdma-core's util/udma_barrier.h.
 *
 * The instructions are those of rdma-core, too. The doorbell register is write-combining memory on
 * a real device: stores to it are neither ordered after the record nor sent out by themselves.
 *
 *   order                                   x86-64     arm64
 *   WQE, then record                        compiler   dmb oshst
 *   record, then doorbell                   sfence     dsb st
 *   doorbell leaves the core now            sfence     dsb st
 *   owner bit, then CQE                     compiler   dmb oshld
 *   CQE, then record                        compiler   dmb oshld
 *
 * x86-64 keeps stores to write-back memory in order, and loads, and loads before stores. rdma-core
 * has an lfence after the owner bit there; it orders loads that bypass the cache, of which this
 * tree has none. arm64: osh, because a NIC need not be in the inner shareable domain of the cores.
 */
#ifndef DV_ORDER_H
#define DV_ORDER_H

#include <stdbool.h>
#include <stdint.h>
#include <endian.h>
#include <linux/types.h>

#if defined(__x86_64__)
#define DV_STORES_BEFORE_STORES() __asm__ volatile("" ::: "memory")
#define DV_LOADS_BEFORE_ALL() __asm__ volatile("" ::: "memory")
#define DV_WRITE_OUT() __asm__ volatile("sfence" ::: "memory")
#elif defined(__aarch64__)
#define DV_STORES_BEFORE_STORES() __asm__ volatile("dmb oshst" ::: "memory")
#define DV_LOADS_BEFORE_ALL() __asm__ volatile("dmb oshld" ::: "memory")
#define DV_WRITE_OUT() __asm__ volatile("dsb st" ::: "memory")
#else
#error "dv/order.h: the orderings of this processor are not known"
#endif

/*
 * ThreadSanitizer does not understand fences. Under it the neighbouring loads acquire and the
 * stores release instead: what is ordered stays the same.
 */
#if defined(__SANITIZE_THREAD__)
#define DV_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DV_UNDER_TSAN 1
#endif
#endif

#ifdef DV_UNDER_TSAN
#define DV_THREAD_FENCE(order) __atomic_signal_fence(order)
#define DV_LOAD_ORDER __ATOMIC_ACQUIRE
#define DV_STORE_ORDER __ATOMIC_RELEASE
#else
#define DV_THREAD_FENCE(order) __atomic_thread_fence(order)
#define DV_LOAD_ORDER __ATOMIC_RELAXED
#define DV_STORE_ORDER __ATOMIC_RELAXED
#endif

/* WQE bytes are visible to the device before the doorbell record says so. */
static inline void dv_wqe_before_record(void)
{
	DV_STORES_BEFORE_STORES();
}

/* The doorbell record is visible before the doorbell register is written. */
static inline void dv_record_before_doorbell(void)
{
	DV_WRITE_OUT();
}

/* The doorbell leaves the write-combining buffer now and not behind the next one. */
static inline void dv_doorbell_flush(void)
{
	DV_WRITE_OUT();
}

/* The owner bit was read before the rest of the CQE is. */
static inline void dv_owner_before_cqe(void)
{
	DV_LOADS_BEFORE_ALL();
}

/* All CQE reads are done before the consumer index lets the device overwrite them. */
static inline void dv_cqe_before_record(void)
{
	DV_LOADS_BEFORE_ALL();
}

/* A doorbell record is one 32-bit store. */
static inline void dv_record_store(volatile __be32 *record, uint32_t value)
{
	__atomic_store_n((uint32_t *)(uintptr_t)record, htobe32(value), DV_STORE_ORDER);
}

/* A doorbell register is one 64-bit store, in the byte order the WQE has already. */
static inline void dv_mmio_store64(volatile uint64_t *reg, uint64_t value)
{
	__atomic_store_n((uint64_t *)(uintptr_t)reg, value, DV_STORE_ORDER);
}

static inline uint8_t dv_owner_load(const volatile uint8_t *op_own)
{
	return __atomic_load_n((const uint8_t *)(uintptr_t)op_own, DV_LOAD_ORDER);
}

/* ---- the device's side, for the software NIC ------------------------------------------------- */

/* Takes a doorbell: whatever was written, and 0 is left. Acquire pairs with dv_mmio_store64(). */
static inline uint64_t dv_device_take_doorbell(volatile uint64_t *reg)
{
	return __atomic_exchange_n((uint64_t *)(uintptr_t)reg, 0, __ATOMIC_ACQ_REL);
}

/* Is there a doorbell to take? Relaxed: dv_device_take_doorbell() does the ordering. */
static inline uint64_t dv_device_peek_doorbell(const volatile uint64_t *reg)
{
	return __atomic_load_n((const uint64_t *)(uintptr_t)reg, __ATOMIC_RELAXED);
}

/* The same of `count` registers at once. */
static inline bool dv_device_peek_doorbells(const uint64_t *regs, unsigned count)
{
	uint64_t any = 0;

	for (unsigned i = 0; i < count; i++)
		any |= __atomic_load_n(&regs[i], __ATOMIC_RELAXED);
	return any != 0;
}

/* Acquire: the WQEs that this record covers can be read. Pairs with dv_wqe_before_record(). */
static inline uint32_t dv_device_load_record(const volatile __be32 *record)
{
	return be32toh(__atomic_load_n((const uint32_t *)(uintptr_t)record, __ATOMIC_ACQUIRE));
}

/* Release: bytes 0..62 of the CQE and the payload come first. Pairs with dv_owner_before_cqe(). */
static inline void dv_device_store_owner(volatile uint8_t *op_own, uint8_t value)
{
	__atomic_store_n((uint8_t *)(uintptr_t)op_own, value, __ATOMIC_RELEASE);
}

/* ---- between software NICs: table entries in shared memory, one writer, guarded by one word -- */

/* Acquire: the entry's other members can be read. Pairs with dv_guard_open(). */
static inline uint32_t dv_guard_load(const uint32_t *guard)
{
	return __atomic_load_n(guard, __ATOMIC_ACQUIRE);
}

/* Reader, after it read the entry (or the memory it names): did the guard stay what it was? */
static inline bool dv_guard_held(const uint32_t *guard, uint32_t value)
{
	DV_THREAD_FENCE(__ATOMIC_ACQUIRE); /* the reads before stay before */
	return __atomic_load_n(guard, DV_LOAD_ORDER) == value;
}

/* Writer: the entry is not to be used from here on, whatever is stored to it next. */
static inline void dv_guard_shut(uint32_t *guard)
{
	__atomic_store_n(guard, 0, __ATOMIC_RELAXED);
	DV_THREAD_FENCE(__ATOMIC_SEQ_CST); /* before any later store, dv_guard_held() pairs */
}

/* Writer, release: the entry's other members are complete. */
static inline void dv_guard_open(uint32_t *guard, uint32_t value)
{
	__atomic_store_n(guard, value, __ATOMIC_RELEASE);
}

/* How many threads want in: a hint that orders nothing. */
static inline void dv_hint_add(uint32_t *hint, int n)
{
	__atomic_fetch_add(hint, (uint32_t)n, __ATOMIC_RELAXED);
}

static inline void dv_hint_store(uint32_t *hint, uint32_t value)
{
	__atomic_store_n(hint, value, __ATOMIC_RELAXED);
}

static inline uint32_t dv_hint_load(const uint32_t *hint)
{
	return __atomic_load_n(hint, __ATOMIC_RELAXED);
}

/* When something last moved: another hint. */
static inline void dv_hint_store64(uint64_t *hint, uint64_t value)
{
	__atomic_store_n(hint, value, __ATOMIC_RELAXED);
}

static inline uint64_t dv_hint_load64(const uint64_t *hint)
{
	return __atomic_load_n(hint, __ATOMIC_RELAXED);
}

#endif
