/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests index.c: the engine's index is compared with a plain array of the entries that it should
 * have.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/abi/epoch.h"
#include "engine/abi/map.h"
#include "engine/control/pages/pages.h"
#include "tests/unit/control/pages/random_world.h"

#define KEYS 20000u

static struct page_key key_of(uint32_t n)
{
	/* of one group, as nearly all pages of a host */
	return (struct page_key){{n * 0x9e3779b97f4a7c15ull & ~PAGE_GROUP_0, n + 1}};
}

static struct index_entry entry_of(uint32_t n, uint32_t generation)
{
	return (struct index_entry){
		.key = key_of(n), .place = n, .generation = generation, .length = n * 7};
}

static void an_empty_index_finds_walks_and_removes_nothing(void **state)
{
	struct page_key key = key_of(1);
	struct index_entry entry[2];
	struct index *index;
	uint64_t cursor = 0;

	assert_int_equal(index_open(0, &index), 0);
	assert_null(index_find(index, &key));
	assert_false(index_remove(index, &key));
	assert_int_equal(index_walk(index, &cursor, 2, entry), 0);
	assert_int_equal(cursor, 0);
	assert_int_equal(index_count(index), 0);
	index_close(index);
	index_close(NULL);
}

static void too_many_expected_entries_are_refused(void **state)
{
	struct index *index = NULL;

	assert_int_equal(index_open(UINT64_MAX, &index), -EINVAL);
	assert_null(index);
}

static void a_second_put_of_a_key_returns_the_first_entry(void **state)
{
	struct index_entry one = entry_of(5, 1), two = entry_of(5, 2), *found;
	struct index *index;

	assert_int_equal(index_open(10, &index), 0);
	assert_int_equal(index_put(index, &one, &found), 0);
	assert_int_equal(found->generation, 1);
	assert_int_equal(index_put(index, &two, &found), -EEXIST);
	assert_int_equal(found->generation, 1);
	assert_int_equal(index_put(index, &two, NULL), -EEXIST);
	assert_int_equal(index_count(index), 1);
	found->length = 77;
	assert_int_equal(index_find(index, &one.key)->length, 77);
	index_close(index);
}

static void keys_that_differ_in_one_word_are_different(void **state)
{
	struct index_entry a = {.key = {{1, 2}}}, b = {.key = {{1, 3}}}, c = {.key = {{4, 2}}};
	struct index *index;

	assert_int_equal(index_open(10, &index), 0);
	assert_int_equal(index_put(index, &a, NULL), 0);
	assert_int_equal(index_put(index, &b, NULL), 0);
	assert_int_equal(index_put(index, &c, NULL), 0);
	assert_true(index_remove(index, &b.key));
	assert_non_null(index_find(index, &a.key));
	assert_null(index_find(index, &b.key));
	assert_non_null(index_find(index, &c.key));
	index_close(index);
}

static void check_against(struct index *index, const uint32_t *model)
{
	uint64_t count = 0;

	for (uint32_t n = 0; n < KEYS; n++) {
		struct page_key key = key_of(n);
		struct index_entry *found = index_find(index, &key);

		assert_int_equal(found != NULL, model[n] != 0);
		if (!found)
			continue;
		assert_int_equal(found->place, n);
		assert_int_equal(found->generation, model[n]);
		assert_int_equal(found->length, n * 7);
		count++;
	}
	assert_int_equal(index_count(index), count);
}

static void random_puts_and_removes_agree_with_a_model(void **state)
{
	uint32_t *model = calloc(KEYS, sizeof(*model));
	struct index *index;

	assert_int_equal(index_open(16, &index), 0);
	for (uint32_t i = 1; i <= 400000; i++) {
		uint32_t n = (uint32_t)(random_next() % KEYS);
		struct index_entry entry = entry_of(n, i), *found;
		bool put = random_next() % 100 < (i / 50000 % 2 ? 30 : 70);

		if (put) {
			assert_int_equal(index_put(index, &entry, &found), model[n] ? -EEXIST : 0);
			model[n] = model[n] ? model[n] : i;
			assert_int_equal(found->generation, model[n]);
		} else {
			assert_int_equal(index_remove(index, &entry.key), model[n] != 0);
			model[n] = 0;
		}
		if (i % 50000 == 0)
			check_against(index, model);
	}
	index_close(index);
	free(model);
}

/* Removes the entry if it is `in` the index, or else puts it. */
static void put_or_remove(struct index *index, const struct index_entry *entry, uint8_t *in)
{
	if (*in)
		assert_true(index_remove(index, &entry->key));
	else
		assert_int_equal(index_put(index, entry, NULL), 0);
	*in ^= 1;
}

/*
 * A third of the entries stays; the others are removed and put again at random, so that the table
 * grows and holes appear and are filled.
 */
static void a_walk_visits_an_entry_that_stays_exactly_once(void **state)
{
	for (unsigned round = 0; round < 10; round++) {
		uint8_t *seen = calloc(KEYS, 1), *in = calloc(KEYS, 1);
		struct index_entry batch[97];
		struct index *index;
		uint64_t cursor = 0;

		assert_int_equal(index_open(16, &index), 0);
		for (uint32_t n = 0; n < KEYS / 2; n++) {
			struct index_entry entry = entry_of(n, 1);

			in[n] = n % 3 == 0 || random_next() % 2;
			if (in[n])
				assert_int_equal(index_put(index, &entry, NULL), 0);
		}
		do {
			unsigned max = 1 + (unsigned)(random_next() % 97);
			unsigned got = index_walk(index, &cursor, max, batch);

			assert_true(got <= max);
			while (got--)
				seen[batch[got].place]++;
			for (unsigned i = 0; i < 300; i++) {
				uint32_t n = (uint32_t)(random_next() % KEYS);
				struct index_entry entry = entry_of(n, 2);

				if (n % 3 == 0)
					continue;
				put_or_remove(index, &entry, &in[n]);
			}
		} while (cursor);
		for (uint32_t n = 0; n < KEYS / 2; n += 3)
			assert_int_equal(seen[n], 1);
		index_close(index);
		free(seen);
		free(in);
	}
}

#define SLOTTED 2000u /* entries of three slots, of which a third stays */

static struct index_entry slotted_entry(uint32_t n)
{
	struct index_entry entry = entry_of(n, 1);

	entry.key.word[1] = (uint64_t)(n % 3 * 0x7fff) << 48 | (entry.key.word[1] >> 16);
	entry.place = n;
	return entry;
}

/* The others are removed and put again, also the one at which the walk of the slot is. */
static void a_slot_s_walk_visits_each_of_its_entries_that_stay(void **state)
{
	for (uint32_t round = 0; round < 30; round++) {
		uint8_t seen[SLOTTED] = {0}, in[SLOTTED] = {0};
		struct index_entry batch[31];
		struct index *index;
		uint32_t slot = round % 3 * 0x7fff;
		uint64_t cursor = 0;

		assert_int_equal(index_open(16, &index), 0);
		assert_false(index_slot_any(index, slot));
		for (uint32_t n = 0; n < SLOTTED; n++) {
			struct index_entry entry = slotted_entry(n);

			in[n] = 1;
			assert_int_equal(index_put(index, &entry, NULL), 0);
		}
		do {
			unsigned max = 1 + (unsigned)(random_next() % 31);
			unsigned got = index_slot(index, slot, &cursor, max, batch);

			assert_true(got <= max && (got == max || cursor == 0));
			while (got--) {
				assert_int_equal(map_slot_of(&batch[got].key), slot);
				assert_true(in[batch[got].place]);
				seen[batch[got].place] = 1;
			}
			for (unsigned i = 0; i < 40; i++) {
				uint32_t n = (uint32_t)(random_next() % SLOTTED);
				struct index_entry entry = slotted_entry(n);

				if (n % 9 < 3)
					continue;
				put_or_remove(index, &entry, &in[n]);
			}
		} while (cursor);
		for (uint32_t n = round % 3; n < SLOTTED; n += 9)
			assert_true(seen[n]);
		for (uint32_t n = 0; n < SLOTTED; n++) {
			struct index_entry entry = slotted_entry(n);

			assert_int_equal(index_remove(index, &entry.key), in[n]);
		}
		assert_false(index_slot_any(index, slot));
		index_close(index);
	}
}

static void a_walk_over_many_holes_is_split_into_slices(void **state)
{
	struct index_entry batch[4];
	struct index *index;
	uint64_t cursor = 0;
	unsigned calls = 0;

	assert_int_equal(index_open(16, &index), 0);
	for (uint32_t n = 0; n < KEYS; n++) {
		struct index_entry entry = entry_of(n, 1);

		assert_int_equal(index_put(index, &entry, NULL), 0);
	}
	for (uint32_t n = 0; n < KEYS; n++) {
		struct page_key key = key_of(n);

		assert_true(index_remove(index, &key));
	}
	do {
		uint64_t before = cursor;

		assert_int_equal(index_walk(index, &cursor, 4, batch), 0);
		assert_true(cursor == 0 || cursor - before <= 4096);
		calls++;
	} while (cursor);
	assert_true(calls > 4);
	index_close(index);
}

/*
 * If there were holes, a walk in steps of one entry would need more steps than there are entries.
 */
static void holes_are_filled_before_the_table_grows(void **state)
{
	struct index_entry entry;
	struct index *index;
	uint64_t cursor = 0;
	unsigned calls = 0;

	assert_int_equal(index_open(16, &index), 0);
	for (uint32_t round = 0; round < 3; round++) {
		for (uint32_t n = 0; round && n < 1000; n++) {
			struct page_key old = key_of(1000 * (round - 1) + n);

			assert_true(index_remove(index, &old));
		}
		for (uint32_t n = 0; n < 1000; n++) {
			entry = entry_of(1000 * round + n, 1);
			assert_int_equal(index_put(index, &entry, NULL), 0);
		}
	}
	do {
		assert_int_equal(index_walk(index, &cursor, 1, &entry), 1);
		calls++;
	} while (cursor);
	assert_int_equal(calls, 1000);
	index_close(index);
}

static struct index_entry grouped(uint32_t n, uint32_t group)
{
	struct index_entry entry = entry_of(n, 1);

	entry.key = (struct page_key){
		{n * 0x9e3779b97f4a7c15ull & ~PAGE_GROUP_0, (n + 1) & ~PAGE_GROUP_1}};
	entry.key.word[0] |= (uint64_t)(group & 0xff0000) << 24;
	entry.key.word[1] |= (uint64_t)(group & 0xffff) << 32;
	entry.length = 5000;
	assert_int_equal(epoch_group(&entry.key), group);
	return entry;
}

static uint32_t oldest_place(struct index *index, uint32_t group)
{
	return index_oldest(index, index_group(index, group))->place;
}

static void groups_are_counted_and_listed_by_age(void **state)
{
	const uint32_t group[] = {0, 0xabcdef, EPOCH_GROUP_MAX};
	struct index_entry entry;
	struct index *index;

	assert_int_equal(index_open(16, &index), 0);
	for (uint32_t n = 0; n < 3000; n++) {
		index_account(index)->now = 1 + n / 100;
		entry = grouped(n, group[n % 3]);
		assert_int_equal(index_put(index, &entry, NULL), 0);
	}
	for (unsigned i = 0; i < 3; i++) {
		const struct index_group *of = index_group(index, group[i]);

		assert_int_equal(of->pages, 1000);
		assert_int_equal(of->bytes, 1000 * 2 * PAGE_UNIT);
		assert_int_equal(oldest_place(index, group[i]), i);
		assert_int_equal(index_oldest(index, of)->stored, 1);
	}
	entry = grouped(4, group[1]);
	index_used(index, &entry.key); /* without a quota its order is that of storing */
	assert_int_equal(oldest_place(index, group[1]), 1);
	index_group(index, group[1])->quota = 1000 * 2 * PAGE_UNIT;
	entry = grouped(1, group[1]);
	index_used(index, &entry.key);
	assert_int_equal(oldest_place(index, group[1]), 4);
	assert_false(index_account(index)->over);
	entry = grouped(3001, group[1]);
	assert_int_equal(index_put(index, &entry, NULL), 0);
	assert_true(index_account(index)->over);
	for (uint32_t n = 0; n < 3002; n++) { /* from the middle of the lists, too */
		entry = grouped((n * 7 + 5) % 3002, group[(n * 7 + 5) % 3002 % 3]);
		assert_int_equal(index_remove(index, &entry.key), entry.place != 3000);
	}
	for (unsigned i = 0; i < 3; i++)
		assert_null(index_group(index, group[i]));
	assert_true(TAILQ_EMPTY(&index_account(index)->groups));
	index_close(index);
}

static void pins_end_and_are_counted(void **state)
{
	struct index_pins pins = {.until = 20, .most = 300 * 2 * PAGE_UNIT, .percent = 50};
	struct index_account *account;
	struct index_group *group;
	struct index_entry entry, *over;
	struct index *index;
	uint32_t look;

	assert_int_equal(index_open(16, &index), 0);
	account = index_account(index);
	account->now = 10;
	for (uint32_t n = 0; n < 400; n++) {
		entry = grouped(n, n % 2);
		assert_int_equal(index_put(index, &entry, NULL), 0);
	}
	group = index_group(index, 1);
	for (uint32_t n = 0; n < 400; n++) {
		entry = grouped(n, n % 2);
		pins.until = 20 + n % 3;
		assert_int_equal(index_pin(index, &entry.key, &pins), n < 300 ? 0 : -EDQUOT);
	}
	assert_int_equal(account->pinned, pins.most);
	assert_int_equal(group->pinned, 150 * 2 * PAGE_UNIT);
	assert_int_equal(oldest_place(index, 1), 301);
	for (uint32_t n = 0; n < 100; n++) { /* removed ones are pinned no more */
		entry = grouped(n, n % 2);
		assert_true(index_remove(index, &entry.key));
	}
	assert_int_equal(account->pins, 200);
	entry = grouped(500, 1);
	assert_int_equal(index_pin(index, &entry.key, &pins), -ENOENT);
	group->quota = 400 * PAGE_UNIT; /* half of it is 100 pages, of which it has 100 */
	entry = grouped(301, 1);
	assert_int_equal(index_pin(index, &entry.key, &pins), -EDQUOT);
	entry = grouped(300, 0);
	assert_int_equal(index_pin(index, &entry.key, &pins), 0);
	entry = grouped(101, 1); /* the later time holds */
	pins.until = 40;
	assert_int_equal(index_pin(index, &entry.key, &pins), 0);
	pins.until = 5;
	assert_int_equal(index_pin(index, &entry.key, &pins), 0);
	look = 1000;
	assert_null(index_pin_over(index, &look));
	account->now = 22;
	look = 1000;
	while ((over = index_pin_over(index, &look))) {
		struct page_key key = over->key;

		index_unpin(index, &key);
	}
	assert_int_equal(account->pins, 1);
	assert_int_equal(account->pinned, 2 * PAGE_UNIT);
	index_unpin(index, &entry.key);
	assert_int_equal(account->pinned, 0);
	for (uint32_t n = 100; n < 400; n++) { /* all are in their lists again */
		entry = grouped(n, n % 2);
		assert_true(index_remove(index, &entry.key));
	}
	index_close(index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_index_finds_walks_and_removes_nothing),
		cmocka_unit_test(too_many_expected_entries_are_refused),
		cmocka_unit_test(a_second_put_of_a_key_returns_the_first_entry),
		cmocka_unit_test(keys_that_differ_in_one_word_are_different),
		cmocka_unit_test(random_puts_and_removes_agree_with_a_model),
		cmocka_unit_test(a_walk_visits_an_entry_that_stays_exactly_once),
		cmocka_unit_test(a_slot_s_walk_visits_each_of_its_entries_that_stay),
		cmocka_unit_test(a_walk_over_many_holes_is_split_into_slices),
		cmocka_unit_test(holes_are_filled_before_the_table_grows),
		cmocka_unit_test(groups_are_counted_and_listed_by_age),
		cmocka_unit_test(pins_end_and_are_counted),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
