/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: full, empty, wrapping, hostile indices, and two threads that pass items as fast as they
 * can.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/abi/ring.h"

#define SLOTS 8u
#define ITEMS 10000000u

struct item {
	uint64_t number;
	uint64_t check;
};

static void *memory;
static struct ring_producer producer;
static struct ring_consumer consumer;

/* Both ends as if `start` slots had passed already. */
static void open_at(uint32_t start, uint32_t capacity)
{
	struct ring_shared *shared;

	free(memory);
	memory = aligned_alloc(64, ring_bytes(capacity, sizeof(struct item)));
	memset(memory, 0, ring_bytes(capacity, sizeof(struct item)));
	shared = memory;
	shared->tail = shared->head = start;
	ring_producer_init(&producer, memory, capacity, sizeof(struct item));
	ring_consumer_init(&consumer, memory, capacity, sizeof(struct item));
	producer.tail = producer.head_seen = consumer.head = consumer.tail_seen = start;
}

static int teardown(void **state)
{
	(void)state;
	free(memory);
	memory = NULL;
	return 0;
}

static void put(uint64_t number)
{
	struct item *item = ring_slot_new(&producer, 0);

	item->number = number;
	item->check = ~number;
	ring_publish(&producer, 1);
}

static uint64_t take(void)
{
	struct item item = *(const struct item *)ring_slot_old(&consumer, 0);

	ring_release(&consumer, 1);
	assert_true(item.check == ~item.number);
	return item.number;
}

static void an_empty_ring_has_all_its_room_and_nothing_ready(void **state)
{
	(void)state;
	open_at(0, SLOTS);
	assert_int_equal(ring_room(&producer, 1), SLOTS);
	assert_int_equal(ring_room(&producer, SLOTS), SLOTS);
	assert_int_equal(ring_ready(&consumer), 0);
	assert_int_equal(ring_ready_now(&consumer), 0);
}

static void a_full_ring_has_no_room_until_the_consumer_releases(void **state)
{
	(void)state;
	open_at(0, SLOTS);
	for (uint64_t i = 0; i < SLOTS; i++)
		put(i);
	assert_int_equal(ring_room(&producer, 1), 0);
	assert_int_equal(ring_ready(&consumer), SLOTS);
	assert_int_equal(take(), 0);
	assert_int_equal(ring_room(&producer, 1), 1);
	for (uint64_t i = 1; i < SLOTS; i++)
		assert_int_equal(take(), i);
	assert_int_equal(ring_ready(&consumer), 0);
	assert_int_equal(ring_room(&producer, SLOTS), SLOTS);
}

static void indices_that_wrap_32_bits_lose_nothing(void **state)
{
	uint64_t in = 0, out = 0;

	(void)state;
	open_at(UINT32_MAX - 20, SLOTS);
	for (unsigned round = 0; round < 50; round++) {
		while (ring_room(&producer, 1) > 0)
			put(in++);
		assert_int_equal(in - out, SLOTS);
		for (unsigned i = 0; i < 1 + round % SLOTS; i++) {
			assert_true(ring_ready(&consumer) > 0);
			assert_int_equal(take(), out++);
		}
	}
	assert_true(consumer.head < 1000);
}

static void several_slots_can_be_published_and_released_together(void **state)
{
	(void)state;
	open_at(SLOTS - 2, SLOTS); /* across the end of the memory */
	for (uint32_t i = 0; i < 5; i++)
		((struct item *)ring_slot_new(&producer, i))->number = i;
	assert_int_equal(ring_ready(&consumer), 0);
	ring_publish(&producer, 5);
	assert_int_equal(ring_ready(&consumer), 5);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(((const struct item *)ring_slot_old(&consumer, i))->number, i);
	ring_release(&consumer, 5);
	assert_int_equal(ring_room(&producer, SLOTS), SLOTS);
}

static void a_known_fill_is_not_asked_for_again(void **state)
{
	(void)state;
	open_at(0, SLOTS);
	put(1);
	assert_int_equal(ring_ready(&consumer), 1);
	put(2);
	assert_int_equal(ring_ready(&consumer), 1);
	assert_int_equal(ring_ready_now(&consumer), 2);
	assert_int_equal(ring_ready(&consumer), 2);
}

static void an_impossible_tail_is_broken_and_stays_broken(void **state)
{
	static const uint32_t bad[] = {SLOTS + 1, 1u << 31, UINT32_MAX, UINT32_MAX - SLOTS};

	(void)state;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		open_at(1000, SLOTS);
		shm_store(&producer.shared->tail, 1000 + bad[i]);
		assert_int_equal(ring_ready(&consumer), RING_BROKEN);
		assert_int_equal(ring_ready(&consumer), RING_BROKEN);
		assert_int_equal(ring_ready_now(&consumer), RING_BROKEN);
	}
}

static void an_impossible_head_is_broken_and_stays_broken(void **state)
{
	static const uint32_t bad[] = {1, SLOTS + 1, 1u << 31, UINT32_MAX - SLOTS};

	(void)state;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		open_at(1000, SLOTS);
		for (uint64_t n = 0; n < SLOTS; n++)
			put(n);
		shm_store(&consumer.shared->head, producer.tail + bad[i]);
		assert_int_equal(ring_room(&producer, 1), RING_BROKEN);
		assert_int_equal(ring_room(&producer, 1), RING_BROKEN);
		assert_int_equal(ring_room(&producer, SLOTS), RING_BROKEN);
	}
}

static void no_index_leads_outside_the_slots(void **state)
{
	unsigned char *end;

	(void)state;
	open_at(0, SLOTS);
	end = consumer.shared ? (unsigned char *)memory + ring_bytes(SLOTS, sizeof(struct item))
			      : NULL;
	for (uint64_t i = 0; i < 100; i++) {
		uint32_t wild = (uint32_t)(i * 0x9e3779b97f4a7c15ull >> 16);
		const unsigned char *at;

		producer.tail = consumer.head = wild;
		at = ring_slot_old(&consumer, (uint32_t)i);
		assert_true(at >= producer.slots && at + sizeof(struct item) <= end);
		assert_ptr_equal(at, ring_slot_new(&producer, (uint32_t)i));
	}
}

static void *produce(void *unused)
{
	(void)unused;
	for (uint64_t i = 0; i < ITEMS;) {
		int32_t room = ring_room(&producer, 1);

		if (room == 0)
			sched_yield();
		for (; room > 0 && i < ITEMS; room--)
			put(i++);
	}
	return NULL;
}

static void two_threads_pass_ten_million_items_in_order(void **state)
{
	pthread_t thread;

	(void)state;
	open_at(UINT32_MAX - ITEMS / 2, 256);
	assert_int_equal(pthread_create(&thread, NULL, produce, NULL), 0);
	for (uint64_t i = 0; i < ITEMS;) {
		int32_t ready = ring_ready(&consumer);

		if (ready == 0)
			sched_yield();
		for (; ready > 0; ready--)
			if (take() != i++)
				fail_msg("item %lu is out of order", (unsigned long)i);
	}
	pthread_join(thread, NULL);
	assert_int_equal(ring_ready(&consumer), 0);
}

static uint32_t turn, flag;
static uint64_t slept;

/* The sleep protocol: flag up, fence, look once more. The waker: publish, fence, look at the flag.
 */
static void *sleeper(void *unused)
{
	(void)unused;
	for (uint32_t i = 1; i <= 20000; i++) {
		shm_store(&flag, 1);
		shm_fence_sleep();
		while (shm_load_acquire(&turn) < i) {
			slept++;
			while (shm_load(&flag))
				sched_yield(); /* asleep: only the waker ends this */
			shm_store(&flag, 1);
			shm_fence_sleep();
		}
		shm_store(&flag, 0);
	}
	return NULL;
}

static void a_sleeper_that_looks_once_more_is_never_forgotten(void **state)
{
	pthread_t thread;

	(void)state;
	turn = flag = 0;
	assert_int_equal(pthread_create(&thread, NULL, sleeper, NULL), 0);
	for (uint32_t i = 1; i <= 20000; i++) {
		shm_store_release(&turn, i);
		shm_fence_sleep();
		if (shm_load(&flag))
			shm_exchange(&flag, 0);
		if (i % 64 == 0)
			sched_yield();
	}
	pthread_join(thread, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_ring_has_all_its_room_and_nothing_ready),
		cmocka_unit_test(a_full_ring_has_no_room_until_the_consumer_releases),
		cmocka_unit_test(indices_that_wrap_32_bits_lose_nothing),
		cmocka_unit_test(several_slots_can_be_published_and_released_together),
		cmocka_unit_test(a_known_fill_is_not_asked_for_again),
		cmocka_unit_test(an_impossible_tail_is_broken_and_stays_broken),
		cmocka_unit_test(an_impossible_head_is_broken_and_stays_broken),
		cmocka_unit_test(no_index_leads_outside_the_slots),
		cmocka_unit_test(two_threads_pass_ten_million_items_in_order),
		cmocka_unit_test(a_sleeper_that_looks_once_more_is_never_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, teardown);
}
