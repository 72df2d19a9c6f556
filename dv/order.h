/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All memory orderings between a CPU and a NIC, each with a name. This file and engine/abi/ring.h
 * contain all fences, atomics and asm of the tree. The names follow rdma-core's
 * util/udma_barrier.h. Any thread.
 *
 * The instructions are those of rdma-core too. On a real device the doorbell register is
 * write-combining memory: without a fence, a store to it may become visible before the store to the
 * doorbell record, and may stay in the core's buffer for an unlimited time.
 *
 *   order                                   x86-64     arm64
 *   WQE, then record                        compiler   dmb oshst
 *   record, then doorbell                   sfence     dsb st
 *   doorbell leaves the core now            sfence     dsb st
 *   owner bit, then CQE                     compiler   dmb oshld
 *   CQE, then record                        compiler   dmb oshld
 *
 * On x86-64, for write-back memory, stores stay in order, loads stay in order, and a load stays
 * before a later store. rdma-core has an lfence after the owner bit; it orders non-temporal loads,
 * and this tree has none. On arm64 the domain is osh (outer shareable), because a NIC need not be
 * in the inner shareable domain of the cores.
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
 * ThreadSanitizer does not support fences. In its builds the loads and stores next to a fence are
 * acquire and release instead, which gives the same ordering.
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

/* Makes the WQE visible to the device before the doorbell record that covers it. */
static inline void dv_wqe_before_record(void)
{
	DV_STORES_BEFORE_STORES();
}

/* Makes the doorbell record visible to the device before the doorbell register is written. */
static inline void dv_record_before_doorbell(void)
{
	DV_WRITE_OUT();
}

/*
 * Flushes the doorbell from the CPU's write-combining buffer now, not together with the next one.
 */
static inline void dv_doorbell_flush(void)
{
	DV_WRITE_OUT();
}

/* Orders the load of the owner bit before the loads of the rest of the CQE. */
static inline void dv_owner_before_cqe(void)
{
	DV_LOADS_BEFORE_ALL();
}

/*
 * Orders all loads of CQEs before the store of the consumer index, which allows the device to
 * overwrite them.
 */
static inline void dv_cqe_before_record(void)
{
	DV_LOADS_BEFORE_ALL();
}

/* Writes a word of a doorbell record with one 32-bit store, big endian. */
static inline void dv_record_store(volatile __be32 *record, uint32_t value)
{
	__atomic_store_n((uint32_t *)(uintptr_t)record, htobe32(value), DV_STORE_ORDER);
}

/*
 * Writes a doorbell register with one 64-bit store; `value` has the byte order of the WQE it is
 * copied from.
 */
static inline void dv_mmio_store64(volatile uint64_t *reg, uint64_t value)
{
	__atomic_store_n((uint64_t *)(uintptr_t)reg, value, DV_STORE_ORDER);
}

/* Loads the byte of a CQE that has the opcode and the owner bit. */
static inline uint8_t dv_owner_load(const volatile uint8_t *op_own)
{
	return __atomic_load_n((const uint8_t *)(uintptr_t)op_own, DV_LOAD_ORDER);
}

/* ---- the device's side, for the software NIC ------------------------------------------------- */

/*
 * NIC side: takes a doorbell: returns its value and leaves 0. Acquire; pairs with
 * dv_mmio_store64().
 */
static inline uint64_t dv_device_take_doorbell(volatile uint64_t *reg)
{
	return __atomic_exchange_n((uint64_t *)(uintptr_t)reg, 0, __ATOMIC_ACQ_REL);
}

/*
 * NIC side: does the register have a doorbell to take? Relaxed: dv_device_take_doorbell() does the
 * ordering.
 */
static inline uint64_t dv_device_peek_doorbell(const volatile uint64_t *reg)
{
	return __atomic_load_n((const uint64_t *)(uintptr_t)reg, __ATOMIC_RELAXED);
}

/*
 * NIC side: does any of `count` registers have a doorbell? Relaxed, like dv_device_peek_doorbell().
 */
static inline bool dv_device_peek_doorbells(const uint64_t *regs, unsigned count)
{
	uint64_t any = 0;

	for (unsigned i = 0; i < count; i++)
		any |= __atomic_load_n(&regs[i], __ATOMIC_RELAXED);
	return any != 0;
}

/*
 * Loads a doorbell record. Acquire: afterwards the WQEs that it covers are visible. Pairs with
 * dv_wqe_before_record().
 */
static inline uint32_t dv_device_load_record(const volatile __be32 *record)
{
	return be32toh(__atomic_load_n((const uint32_t *)(uintptr_t)record, __ATOMIC_ACQUIRE));
}

/*
 * Stores the last byte of a CQE. Release: the payload and bytes 0 to 62 of the CQE are visible
 * before it. Pairs with dv_owner_before_cqe().
 */
static inline void dv_device_store_owner(volatile uint8_t *op_own, uint8_t value)
{
	__atomic_store_n((uint8_t *)(uintptr_t)op_own, value, __ATOMIC_RELEASE);
}

/* ---- between software NICs: table entries in shared memory, one writer, guarded by one word -- */

/*
 * Reader: loads the guard; 0: the entry is invalid. Acquire: the entry's other members are visible
 * afterwards. Pairs with dv_guard_open().
 */
static inline uint32_t dv_guard_load(const uint32_t *guard)
{
	return __atomic_load_n(guard, __ATOMIC_ACQUIRE);
}

/*
 * Reader, after it has read the entry or the memory that the entry names: is the guard unchanged?
 * If not, the reader discards what it read.
 */
static inline bool dv_guard_held(const uint32_t *guard, uint32_t value)
{
	/* orders the caller's earlier loads before the load of the guard */
	DV_THREAD_FENCE(__ATOMIC_ACQUIRE);
	return __atomic_load_n(guard, DV_LOAD_ORDER) == value;
}

/*
 * Writer: invalidates the entry before it changes the entry's other members. The fence orders the
 * store of 0 before these later stores; it pairs with dv_guard_held().
 */
static inline void dv_guard_shut(uint32_t *guard)
{
	__atomic_store_n(guard, 0, __ATOMIC_RELAXED);
	DV_THREAD_FENCE(__ATOMIC_SEQ_CST);
}

/*
 * Writer: makes the entry valid. Release: a reader that sees the guard sees the entry's other
 * members.
 */
static inline void dv_guard_open(uint32_t *guard, uint32_t value)
{
	__atomic_store_n(guard, value, __ATOMIC_RELEASE);
}

/* Adds `n` to a hint, such as a number of waiting threads. Relaxed: a hint orders nothing. */
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

/* Stores a 64-bit hint, such as the time of the last progress. Relaxed: a hint orders nothing. */
static inline void dv_hint_store64(uint64_t *hint, uint64_t value)
{
	__atomic_store_n(hint, value, __ATOMIC_RELAXED);
}

static inline uint64_t dv_hint_load64(const uint64_t *hint)
{
	return __atomic_load_n(hint, __ATOMIC_RELAXED);
}

/*
 * Reserves `span` of a time that several processes share, from `from` on or when it is free.
 * Returns the end. Nothing is ordered by it.
 */
static inline uint64_t dv_hint_take64(uint64_t *free_at, uint64_t from, uint64_t span)
{
	uint64_t seen = dv_hint_load64(free_at), end;

	do
		end = (seen > from ? seen : from) + span;
	while (!__atomic_compare_exchange_n(
		free_at, &seen, end, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
	return end;
}

#endif
