/* SPDX-License-Identifier: Apache-2.0 */
/* The member table against a model: members come, are found by name, ref and peer, and go. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/control/member.h"

#define NAMES 1500u

static struct member_table table;
static struct member_entry *model[NAMES]; /* NULL: not in the table */
static uint32_t ref_of[NAMES];
static bool alive[NAMES];

static char *name_of(unsigned i)
{
	static char name[32];

	snprintf(name, sizeof(name), "host-%u", i);
	return name;
}

static int setup(void **state)
{
	(void)state;
	memset(&table, 0, sizeof(table));
	memset(model, 0, sizeof(model));
	memset(alive, 0, sizeof(alive));
	return member_table_open(&table);
}

static int teardown(void **state)
{
	(void)state;
	member_table_close(&table);
	return 0;
}

static void join(unsigned i)
{
	struct member_entry *entry = member_entry_new(&table);

	assert_non_null(entry);
	assert_int_equal(entry->state, MEMBER_FREE);
	assert_false(member_has_contact(entry));
	assert_true(member_entry_name(&table, entry, name_of(i), "10.0.0.1"));
	model[i] = entry;
}

static void up(unsigned i)
{
	/* few chains: many refs have equal low bits */
	ref_of[i] = model[i]->record.ref = i << 7 | 1;
	if (member_table_add(&table, model[i]) < 0)
		return;
	model[i]->state = MEMBER_ALIVE;
	alive[i] = true;
}

static void down(unsigned i)
{
	member_table_remove(&table, model[i]);
	model[i]->state = MEMBER_DEAD;
	alive[i] = false;
}

static void step(unsigned i)
{
	if (!model[i]) {
		join(i);
	} else if (!alive[i] && rand() % 2) {
		up(i);
	} else if (alive[i]) {
		down(i);
	} else if (rand() % 3) {
		assert_non_null(member_contact(&table, model[i]));
		assert_true(member_entry_name(&table, model[i], name_of(i), "10.0.0.2"));
	} else {
		member_entry_release(&table, model[i]);
		model[i] = NULL;
	}
}

static void all_is_as_the_model_says(void)
{
	unsigned contacts = 0;

	for (unsigned i = 0; i < NAMES; i++) {
		struct member_entry *by_ref = member_table_ref(&table, i << 7 | 1);

		assert_ptr_equal(member_table_find(&table, name_of(i)), model[i]);
		assert_ptr_equal(by_ref, alive[i] ? model[i] : NULL);
		if (!model[i])
			continue;
		assert_string_equal(model[i]->record.name, name_of(i));
		contacts += member_has_contact(model[i]);
		if (member_has_contact(model[i]))
			assert_ptr_equal(table.contact[model[i]->contact->at], model[i]->contact);
		if (alive[i])
			assert_ptr_equal(
				member_table_peer(&table, model[i]->record.peer), model[i]);
	}
	assert_int_equal(table.contacts, contacts);
}

static void members_are_found_as_long_as_they_are_there(void **state)
{
	unsigned seed = getenv("SEED") ? (unsigned)atoi(getenv("SEED")) : (unsigned)time(NULL);

	(void)state;
	print_message("SEED=%u\n", seed);
	srand(seed);
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned n = 0; n < NAMES / 2; n++)
			step((unsigned)rand() % NAMES);
		all_is_as_the_model_says();
	}
}

static void the_peer_number_that_is_free_longest_is_taken_first(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 3; i++)
		join(i);
	up(0);
	up(1);
	down(0);
	up(2);
	/* numbers that were never used come first */
	assert_int_equal(model[2]->record.peer, 2);
	table.peers_used = NODES_MAX;
	down(1);
	up(1);
	assert_int_equal(model[1]->record.peer, 0);
	up(0);
	assert_int_equal(model[0]->record.peer, 1);
	join(3);
	assert_int_equal(member_table_add(&table, model[3]), -ENFILE);
}

static void memory_follows_use(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		join(i);
		up(i);
	}
	assert_int_equal(table.contacts, 0);
	assert_int_equal(table.heads, 128);
	assert_int_equal(table.peers_room, 144);
	assert_non_null(table.chunk[99 / MEMBER_CHUNK]);
	assert_null(table.chunk[99 / MEMBER_CHUNK + 1]);
}

/* What the table itself takes: without names, addresses and contacts. */
static void ten_thousand_members_take_66_bytes_each(void **state)
{
	const unsigned members = 10000;
	uint64_t bytes = 0;

	(void)state;
	for (unsigned i = 0; i < members; i++) {
		struct member_entry *entry = member_entry_new(&table);

		assert_non_null(entry);
		assert_true(member_entry_name(&table, entry, name_of(i), "10.0.0.1"));
		entry->record.incarnation = i + 1;
		assert_int_equal(member_table_add(&table, entry), 0);
		entry->state = MEMBER_ALIVE;
	}
	for (unsigned i = 0; i < MEMBER_ENTRIES / MEMBER_CHUNK; i++)
		bytes += table.chunk[i] ? MEMBER_CHUNK * sizeof(struct member_entry) : 0;
	bytes += table.heads * (sizeof(*table.by_name) + sizeof(*table.by_ref));
	bytes += table.peers_room * sizeof(*table.by_peer);
	assert_true(bytes <= 66 * members);
	for (unsigned i = 0; i < members; i++) {
		assert_int_equal(member_table_find(&table, name_of(i))->index, i);
		assert_int_equal(member_table_ref(&table, i + 1)->index, i);
		assert_int_equal(member_table_peer(&table, i)->index, i);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			members_are_found_as_long_as_they_are_there, setup, teardown),
		cmocka_unit_test_setup_teardown(
			the_peer_number_that_is_free_longest_is_taken_first, setup, teardown),
		cmocka_unit_test_setup_teardown(memory_follows_use, setup, teardown),
		cmocka_unit_test_setup_teardown(
			ten_thousand_members_take_66_bytes_each, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
