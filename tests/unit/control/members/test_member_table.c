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

#include "engine/control/members/members_inner.h"

#define NAMES 1500u

static struct member_table table;
static struct member *model[NAMES]; /* NULL: not in the table */
static uint32_t ref_of[NAMES];
static bool alive[NAMES];

/* The name that is the default, or another one. */
static char *name_of(unsigned i)
{
	static char name[32];

	snprintf(name, sizeof(name), i % 3 ? "10.0.%u.%u:7000" : "host-%u-%u", i >> 8, i & 255);
	return name;
}

static void name_it(struct member *entry, unsigned i, bool moved)
{
	char address[32];

	snprintf(address, sizeof(address), "10.%u.%u.%u", moved, i >> 8, i & 255);
	assert_true(member_name_set(&table, entry, name_of(i), address, 7000));
	assert_int_equal(entry->record.plain, i % 3 && !moved);
}

static int setup(void **state)
{
	memset(&table, 0, sizeof(table));
	memset(model, 0, sizeof(model));
	memset(alive, 0, sizeof(alive));
	return member_table_open(&table);
}

static int teardown(void **state)
{
	member_table_close(&table);
	return 0;
}

static void join(unsigned i)
{
	struct member *entry = member_new(&table);

	assert_non_null(entry);
	assert_int_equal(entry->state, MEMBER_FREE);
	assert_false(member_has_contact(entry));
	name_it(entry, i, false);
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
		name_it(model[i], i, rand() % 2);
	} else {
		member_release(&table, model[i]);
		model[i] = NULL;
	}
}

static void all_is_as_the_model_says(void)
{
	struct member_texts texts;
	unsigned contacts = 0;

	for (unsigned i = 0; i < NAMES; i++) {
		struct member *by_ref = member_table_ref(&table, i << 7 | 1);

		assert_ptr_equal(member_table_find(&table, name_of(i)), model[i]);
		assert_ptr_equal(by_ref, alive[i] ? model[i] : NULL);
		if (!model[i])
			continue;
		member_texts(&model[i]->record, &texts);
		assert_string_equal(texts.name, name_of(i));
		assert_true(member_hash(model[i]) == placement_hash(name_of(i)));
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

	print_message("SEED=%u\n", seed);
	srand(seed);
	for (unsigned round = 0; round < 20; round++) {
		for (unsigned n = 0; n < NAMES / 2; n++)
			step((unsigned)rand() % NAMES);
		all_is_as_the_model_says();
	}
}

/* Name, address and port that a record is given, and whether it is plain. */
static void only_a_canonical_ipv4_address_with_the_default_name_is_plain(void **state)
{
	static const struct {
		const char *name, *address;
		uint16_t port;
		bool plain;
	} given[] = {{"10.0.0.1:7000", "10.0.0.1", 7000, true},
		{"255.255.255.255:65535", "255.255.255.255", 65535, true},
		{"0.0.0.0:1", "0.0.0.0", 1, true}, {"10.0.0.1:7000", "10.0.0.1", 7001, false},
		{"10.0.0.1:7000", "10.0.0.2", 7000, false}, {"10.0.0.1", "10.0.0.1", 7000, false},
		{"10.0.0.1:07000", "10.0.0.1", 7000, false},
		{"10.0.0.01:7000", "10.0.0.01", 7000, false}, {"10.1:7000", "10.1", 7000, false},
		{"host:7000", "host", 7000, false}, {"[::1]:7000", "::1", 7000, false},
		{"node", "10.0.0.1", 7000, false}};
	struct member_record record = {.ref = 1};
	struct member_texts texts;

	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
		assert_true(
			member_text_set(&record, given[i].name, given[i].address, given[i].port));
		assert_int_equal(record.plain, given[i].plain);
		assert_int_equal(record.port, given[i].port);
		member_texts(&record, &texts);
		assert_string_equal(texts.name, given[i].name);
		assert_string_equal(texts.address, given[i].address);
		assert_true(member_is_named(&record, given[i].name));
		assert_false(member_is_named(&record, "10.0.0.1:700"));
	}
	member_text_clear(&record);
	assert_false(member_has_name(&record));
}

static void the_peer_number_that_is_free_longest_is_taken_first(void **state)
{
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
	for (unsigned i = 0; i < 100; i++) {
		join(i);
		up(i);
	}
	assert_int_equal(table.contacts, 0);
	assert_int_equal(table.heads, MEMBER_BUCKETS);
	assert_int_equal(table.peers_room, 144);
	assert_non_null(table.chunk[99 / MEMBER_CHUNK]);
	assert_null(table.chunk[99 / MEMBER_CHUNK + 1]);
}

/* What the table itself takes: without contacts, and without names that are not the default. */
static void ten_thousand_members_take_62_bytes_each(void **state)
{
	const unsigned members = 10000;
	uint64_t bytes = 0;

	for (unsigned i = 0; i < members; i++) {
		struct member *entry = member_new(&table);

		assert_non_null(entry);
		name_it(entry, i, false);
		entry->record.incarnation = i + 1;
		assert_int_equal(member_table_add(&table, entry), 0);
		entry->state = MEMBER_ALIVE;
	}
	for (unsigned i = 0; i < MEMBER_ENTRIES / MEMBER_CHUNK; i++)
		bytes += table.chunk[i] ? MEMBER_CHUNK * sizeof(struct member) : 0;
	bytes += table.heads * (sizeof(*table.by_name) + sizeof(*table.by_ref));
	bytes += table.peers_room * sizeof(*table.by_peer);
	assert_true(bytes <= 62 * members);
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
		cmocka_unit_test(only_a_canonical_ipv4_address_with_the_default_name_is_plain),
		cmocka_unit_test_setup_teardown(
			the_peer_number_that_is_free_longest_is_taken_first, setup, teardown),
		cmocka_unit_test_setup_teardown(memory_follows_use, setup, teardown),
		cmocka_unit_test_setup_teardown(
			ten_thousand_members_take_62_bytes_each, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
