/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map (engine/abi/map.h): words of slots and members, readers that race with a writer,
 * and words that are garbage.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/abi/ring.h"

/* Called before each 8-byte load of map_owners_load() while it is set. */
static void (*before_load)(unsigned number);
static unsigned loads;

static uint64_t load_word(const uint64_t *word)
{
	if (before_load)
		before_load(++loads);
	return shm_load_acquire64(word);
}

#define shm_load_acquire64 load_word
#include "engine/abi/map.h"

static struct map_shared *shared;

static int setup(void **state)
{
	shared = aligned_alloc(64, sizeof(*shared));
	memset(shared, 0, sizeof(*shared));
	return !shared;
}

static int teardown(void **state)
{
	free(shared);
	return 0;
}

static uint64_t member_of(uint32_t ref)
{
	struct map_member member = {.ref = ref, .peer = (uint16_t)ref, .rails = 2};

	return map_member_pack(&member);
}

static uint64_t slot_of(const char *owners)
{
	struct map_slot slot = {.owners = (uint8_t)strlen(owners)};

	for (unsigned i = 0; owners[i]; i++)
		slot.owner[i] = (uint8_t)(owners[i] - 'a');
	return map_slot_pack(&slot);
}

static void a_word_names_owners(void **state)
{
	struct map_owners owners;

	for (uint32_t n = 0; n < 26; n++)
		shared->owner[n] = member_of(n + 1);
	shared->slot[7] = slot_of("bdfh");
	assert_true(map_owners_load(shared, 7, &owners));
	assert_int_equal(owners.owners, 4);
	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(owners.member[k].ref, (unsigned)("bdfh"[k] - 'a' + 1));
	shared->slot[7] = slot_of("z");
	assert_true(map_owners_load(shared, 7, &owners));
	assert_int_equal(owners.owners, 1);
	assert_int_equal(owners.member[0].ref, 26);
	assert_true(map_owners_load(shared, 8, &owners));
	assert_int_equal(owners.owners, 0);
}

static void garbage_names_no_more_owners_than_there_is_room_for(void **state)
{
	struct map_owners owners;

	srand(1);
	for (unsigned i = 0; i < OWNERS_MAX; i++)
		for (unsigned k = 0; k < 8; k++)
			((uint8_t *)&shared->owner[i])[k] = (uint8_t)rand();
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		for (unsigned k = 0; k < 8; k++)
			((uint8_t *)&shared->slot[i])[k] = (uint8_t)rand();
		assert_true(map_owners_load(shared, i, &owners));
		assert_in_range(owners.owners, 0, REPLICAS_MAX);
	}
}

static void members_out_of_range_are_none(void **state)
{
	const struct map_member sane = {
		.ref = 1, .peer = NODES_MAX - 1, .rails = RAILS_MAX, .bucket_bits = 31};
	struct map_member m = sane;

	assert_true(map_member_sane(&m));
	m.ref = 0;
	assert_false(map_member_sane(&m));
	m = sane;
	m.peer = NODES_MAX;
	assert_false(map_member_sane(&m));
	m = sane;
	m.rails = RAILS_MAX + 1;
	assert_false(map_member_sane(&m));
	m = sane;
	m.bucket_bits = 32;
	assert_false(map_member_sane(&m));
}

static void the_slots_of_hashed_keys_are_all_used_and_independent_of_the_tag(void **state)
{
	static unsigned count[MAP_SLOTS / 256], same;

	for (uint64_t i = 0; i < 100000; i++) {
		struct page_key key = {{map_mix(2 * i + 1), map_mix(2 * i + 2)}};

		count[map_slot_of(&key) / 256]++;
		same += map_slot_of(&key) == (uint32_t)key.word[1] >> 16;
	}
	for (unsigned i = 0; i < MAP_SLOTS / 256; i++)
		assert_in_range(count[i], 280, 520);
	assert_in_range(same, 0, 20);
}

/* A change of the map, up to the new word: it takes the number 0 from one member for another. */
static void rebind_to(uint32_t ref)
{
	shm_store_release64(&shared->slot[5], slot_of("b"));
	shm_store_release64(&shared->owner[0], member_of(ref));
}

static void within_a_change(unsigned number)
{
	if (number == 2) /* the slot's word is loaded, the epoch is that of the change already */
		rebind_to(3);
}

static void two_changes(unsigned number)
{
	if (number == 2) {
		shm_store_release(&shared->epoch, shared->epoch + 1);
		rebind_to(3);
		shm_store_release64(&shared->slot[5], slot_of("ab"));
	} else if (number == 3) {
		shm_store_release(&shared->epoch, shared->epoch + 1);
		rebind_to(1);
		shm_store_release64(&shared->slot[5], slot_of("a"));
	}
}

static void a_number_that_changes_its_member_during_the_load_is_noticed(void **state)
{
	static void (*const changes[])(unsigned) = {within_a_change, two_changes};

	for (unsigned i = 0; i < 2; i++) {
		struct map_owners owners;

		shared->owner[0] = member_of(1);
		shared->owner[1] = member_of(2);
		shared->slot[5] = slot_of("a");
		loads = 0;
		before_load = changes[i];
		assert_false(map_owners_load(shared, 5, &owners));
		before_load = NULL;
		assert_int_equal(owners.member[0].ref, 3); /* not what the first word means */
	}
}

/*
 * The owner number 0 belongs to member 1 while the slot's word names one owner, and to member 3
 * while it names two: as control/members/member_map.c, each change first takes the number out of
 * the word, which names member 2 then.
 */
static void *rebind(void *stop)
{
	for (unsigned i = 0; !shm_load(stop); i++) {
		shm_store_release(&shared->epoch, shared->epoch + 1);
		shm_store_release64(&shared->slot[5], slot_of("b"));
		shm_store_release64(&shared->owner[0], member_of(i % 2 ? 1 : 3));
		shm_store_release64(&shared->slot[5], slot_of(i % 2 ? "a" : "ab"));
		if (i % 64 == 0)
			sched_yield();
	}
	return NULL;
}

static void a_reader_finds_the_members_that_the_word_means(void **state)
{
	unsigned loaded = 0, torn = 0, both = 0;
	uint32_t stop = 0;
	pthread_t thread;

	shared->owner[0] = member_of(1);
	shared->owner[1] = member_of(2);
	shared->slot[5] = slot_of("a");
	assert_int_equal(pthread_create(&thread, NULL, rebind, &stop), 0);
	while (loaded < 2000000 || !torn || !both) {
		struct map_owners owners;

		if (!map_owners_load(shared, 5, &owners)) {
			torn++;
			continue;
		}
		loaded++;
		if (owners.member[0].ref == 2)
			continue;
		both += owners.owners == 2;
		assert_int_equal(owners.member[0].ref, owners.owners == 1 ? 1 : 3);
	}
	shm_store(&stop, 1);
	pthread_join(thread, NULL);
	print_message("%u loads, %u again\n", loaded, torn);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_word_names_owners),
		T(garbage_names_no_more_owners_than_there_is_room_for),
		T(members_out_of_range_are_none),
		T(the_slots_of_hashed_keys_are_all_used_and_independent_of_the_tag),
		T(a_number_that_changes_its_member_during_the_load_is_noticed),
		T(a_reader_finds_the_members_that_the_word_means),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
