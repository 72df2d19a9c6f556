/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring (engine/abi/ring.h): full, empty, wrapping, impossible indices, and two threads that
 * pass items as fast as they can.
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
#define ITEMS 10000000u /* number of ring entries passed from thread to thread */
#define GROUP_MAX 60u   /* limit of ring entries published together */

struct item {
	uint64_t number;
	uint32_t check;
	uint16_t spare;
	uint16_t turn;
};

static void *memory;
static struct ring_producer producer;
static struct ring_consumer consumer;

/*
 * Initialises producer and consumer as if `start` ring entries had been published and released
 * before.
 */
static void open_at(uint32_t start, uint32_t capacity)
{
	free(memory);
	memory = aligned_alloc(64, ring_bytes(capacity, sizeof(struct item)));
	memset(memory, 0, ring_bytes(capacity, sizeof(struct item)));
	((struct ring_shared *)memory)->head = start;
	ring_producer_init(&producer, memory, capacity, sizeof(struct item));
	ring_consumer_init(&consumer, memory, capacity, sizeof(struct item));
	producer.tail = producer.head_seen = consumer.head = consumer.tail_seen = start;
}

static int teardown(void **state)
{
	free(memory);
	memory = NULL;
	return 0;
}

static void put(uint64_t number)
{
	struct item *item = ring_slot_new(&producer, 0);

	item->number = number;
	item->check = ~(uint32_t)number;
	ring_publish(&producer, 1);
}

static uint64_t take(void)
{
	/*
	 * The entry is copied member by member, because ThreadSanitizer checks those loads but not
	 * a memcpy() that the compiler turned into moves.
	 */
	const struct item *item = ring_slot_old(&consumer, 0);
	uint64_t number = item->number;
	uint32_t check = item->check;

	ring_release(&consumer, 1);
	assert_true(check == ~(uint32_t)number);
	return number;
}

static void an_empty_ring_has_full_room_and_nothing_ready(void **state)
{
	open_at(0, SLOTS);
	assert_int_equal(ring_room(&producer, 1), SLOTS);
	assert_int_equal(ring_room(&producer, SLOTS), SLOTS);
	assert_int_equal(ring_ready(&consumer), 0);
	assert_int_equal(ring_ready_now(&consumer), 0);
}

static void a_full_ring_has_no_room_until_the_consumer_releases(void **state)
{
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

static void no_item_is_lost_when_the_32_bit_indices_wrap(void **state)
{
	uint64_t in = 0, out = 0;

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
	open_at(SLOTS - 2, SLOTS); /* the five ring entries cross the end of the memory */
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

static void ring_ready_does_not_look_again_while_it_knows_of_filled_slots(void **state)
{
	open_at(0, SLOTS);
	put(1);
	assert_int_equal(ring_ready(&consumer), 1);
	put(2);
	assert_int_equal(ring_ready(&consumer), 1);
	assert_int_equal(ring_ready_now(&consumer), 2);
	assert_int_equal(ring_ready(&consumer), 2);
}

/*
 * Slots keep the content of the last round, which must not count for the next one. 70000 rounds, so
 * the turn repeats.
 */
static void slots_of_earlier_rounds_are_never_ready_again(void **state)
{
	open_at(0, SLOTS);
	for (uint64_t i = 0; i < 70000ull * SLOTS; i++) {
		put(i);
		assert_int_equal(ring_ready(&consumer), 1);
		assert_int_equal(take(), i);
		assert_int_equal(ring_ready(&consumer), 0);
		assert_int_equal(ring_room(&producer, SLOTS), SLOTS);
	}
}

static void an_unpublished_slot_is_not_ready_whatever_its_turn_bytes(void **state)
{
	for (uint32_t turn = 0; turn <= 0xffff; turn++) {
		open_at(0, SLOTS);
		for (uint32_t i = 0; i < SLOTS; i++)
			*(struct item *)ring_slot_new(&producer, i) =
				(struct item){.turn = (uint16_t)turn};
		assert_int_equal(ring_ready_now(&consumer), 0);
		ring_publish(&producer, 1);
		put(0);
		assert_true(ring_ready_now(&consumer) >= 2);
	}
}

static void a_producer_with_wrong_turns_is_read_once_per_slot(void **state)
{
	struct item *slot;

	open_at(1000, SLOTS);
	slot = (struct item *)(void *)producer.slots;
	for (uint32_t i = 0; i < SLOTS; i++)
		slot[i].turn = (uint16_t)ring_turn(SLOTS, 1000 + i);
	assert_int_equal(ring_ready(&consumer), SLOTS);
	for (uint32_t i = 0; i < SLOTS; i++)
		slot[i].turn = (uint16_t)ring_turn(SLOTS, 1000 + SLOTS + i);
	assert_int_equal(ring_ready_now(&consumer), SLOTS);
	ring_release(&consumer, 3);
	assert_int_equal(ring_ready(&consumer), SLOTS - 3);
	assert_int_equal(ring_ready_now(&consumer), SLOTS);
}

static void one_look_is_bounded_and_the_next_continues(void **state)
{
	open_at(0, 4 * RING_LOOK);
	ring_publish(&producer, 2 * RING_LOOK + 5);
	assert_int_equal(ring_ready(&consumer), RING_LOOK);
	ring_release(&consumer, RING_LOOK - 1);
	assert_int_equal(ring_ready(&consumer), 1);
	ring_release(&consumer, 1);
	assert_int_equal(ring_ready(&consumer), RING_LOOK);
	assert_int_equal(ring_ready_now(&consumer), RING_LOOK + 5);
}

static void a_ring_with_an_impossible_head_is_broken_and_stays_broken(void **state)
{
	static const uint32_t bad[] = {1, SLOTS + 1, 1u << 31, UINT32_MAX - SLOTS};

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

	open_at(0, SLOTS);
	end = consumer.shared ? (unsigned char *)memory + ring_bytes(SLOTS, sizeof(struct item))
			      : NULL;
	for (uint64_t i = 0; i < 100; i++) {
		uint32_t wild = (uint32_t)(i * 0x9e3779b97f4a7c15ull >> 16);
		const unsigned char *at;

		producer.tail = consumer.head = wild;
		at = ring_slot_old(&consumer, (uint32_t)i);
		assert_true(at >= producer.slots && at + sizeof(struct item) <= end);
		assert_ptr_equal(at,
			i ? ring_slot_new(&producer, (uint32_t)i) : (const void *)producer.slots);
	}
}

static void *produce(void *unused)
{
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

struct wide {
	uint64_t number;
	uint32_t of; /* number of ring entries in the group that this entry belongs to */
	uint16_t spare, turn;
	uint64_t more[6];
};

/*
 * Publishes groups of up to GROUP_MAX slots, as an op and its segments are. Long groups take a
 * while to publish.
 */
static void *produce_groups(void *unused)
{
	for (uint64_t i = 0; i < ITEMS / 100;) {
		uint32_t of = 1 + (uint32_t)(i * 0x9e3779b97f4a7c15ull >> 40) % GROUP_MAX;

		while (ring_room(&producer, of) < (int32_t)of)
			sched_yield();
		for (uint32_t k = 0; k < of; k++) {
			struct wide wide = {.number = i, .of = of, .turn = (uint16_t)i};

			for (unsigned m = 0; m < 6; m++)
				wide.more[m] = i + m;
			memcpy(ring_slot_new(&producer, k), &wide, sizeof(wide));
			i++;
		}
		ring_publish(&producer, of);
	}
	return NULL;
}

static void slots_published_together_are_seen_together(void **state)
{
	pthread_t thread;
	uint64_t wrong = 0, turns = 0;

	free(memory);
	memory = aligned_alloc(64, ring_bytes(64, sizeof(struct wide)));
	memset(memory, 0, ring_bytes(64, sizeof(struct wide)));
	ring_producer_init(&producer, memory, 64, sizeof(struct wide));
	ring_consumer_init(&consumer, memory, 64, sizeof(struct wide));
	assert_int_equal(pthread_create(&thread, NULL, produce_groups, NULL), 0);
	for (uint64_t i = 0; i < ITEMS / 100;) {
		const struct wide *wide = ring_slot_old(&consumer, 0);
		uint32_t of;

		if (ring_ready(&consumer) == 0) {
			if (++turns % 100 == 0)
				sched_yield();
			continue;
		}
		of = wide->of;
		if (wide->number != i || of < 1 || of > GROUP_MAX ||
			ring_ready_now(&consumer) < (int32_t)of)
			fail_msg("group %lu is not whole", (unsigned long)i);
		for (uint32_t k = 0; k < of; k++) {
			wide = ring_slot_old(&consumer, k);
			for (unsigned m = 0; m < 6; m++)
				wrong += wide->more[m] != i + m;
			i++;
		}
		ring_release(&consumer, of);
	}
	pthread_join(thread, NULL);
	assert_int_equal(wrong, 0);
}

static uint32_t turn, flag;
static uint64_t slept;

/*
 * The sleeper's side of the sleep protocol: set the flag, fence, check again. The waker publishes,
 * fences and checks the flag.
 */
static void *sleeper(void *unused)
{
	for (uint32_t i = 1; i <= 20000; i++) {
		shm_store(&flag, 1);
		shm_fence_sleep();
		while (shm_load_acquire(&turn) < i) {
			slept++;
			while (shm_load(&flag))
				/* the thread is asleep until the waker clears the flag */
				sched_yield();
			shm_store(&flag, 1);
			shm_fence_sleep();
		}
		shm_store(&flag, 0);
	}
	return NULL;
}

static void a_sleeper_that_checks_again_after_its_fence_is_always_woken(void **state)
{
	pthread_t thread;

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
		cmocka_unit_test(an_empty_ring_has_full_room_and_nothing_ready),
		cmocka_unit_test(a_full_ring_has_no_room_until_the_consumer_releases),
		cmocka_unit_test(no_item_is_lost_when_the_32_bit_indices_wrap),
		cmocka_unit_test(several_slots_can_be_published_and_released_together),
		cmocka_unit_test(ring_ready_does_not_look_again_while_it_knows_of_filled_slots),
		cmocka_unit_test(slots_of_earlier_rounds_are_never_ready_again),
		cmocka_unit_test(an_unpublished_slot_is_not_ready_whatever_its_turn_bytes),
		cmocka_unit_test(a_producer_with_wrong_turns_is_read_once_per_slot),
		cmocka_unit_test(one_look_is_bounded_and_the_next_continues),
		cmocka_unit_test(a_ring_with_an_impossible_head_is_broken_and_stays_broken),
		cmocka_unit_test(no_index_leads_outside_the_slots),
		cmocka_unit_test(two_threads_pass_ten_million_items_in_order),
		cmocka_unit_test(slots_published_together_are_seen_together),
		cmocka_unit_test(a_sleeper_that_checks_again_after_its_fence_is_always_woken),
	};

	return cmocka_run_group_tests(tests, NULL, teardown);
}
