/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The neighbours of the members of large clusters: few, mutual, and enough to stay connected. How
 * long the others may take to prove their right.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/control/members/member_links.c"

#define COUNT 1024u /* members; a few are tried among NODES_MAX */

static uint64_t hash[NODES_MAX];
static unsigned neighbour[COUNT][MEMBER_NEIGHBOURS_MAX], found[COUNT];

static void hash_all(unsigned count, unsigned seed)
{
	char name[32];

	for (unsigned i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "host-%u-%u:7000", seed, i);
		hash[i] = placement_hash(name);
	}
}

/* The neighbours of member `self`: their indices, each once. */
static unsigned member_rings(const uint64_t *all, unsigned count, unsigned self, unsigned *ret)
{
	struct member_ring ring[MEMBER_RINGS];

	for (unsigned k = 0; k < MEMBER_RINGS; k++) {
		ring_clear(&ring[k]);
		for (unsigned i = 0; i < count; i++)
			if (i != self)
				ring_offer(&ring[k], k, all[self], all[i], i);
	}
	return rings_neighbours(ring, ret);
}

static void build(unsigned count, unsigned seed)
{
	hash_all(count, seed);
	for (unsigned i = 0; i < count; i++)
		found[i] = member_rings(hash, count, i, neighbour[i]);
}

static bool has(unsigned of, unsigned wanted)
{
	for (unsigned i = 0; i < found[of]; i++)
		if (neighbour[of][i] == wanted)
			return true;
	return false;
}

static void each_member_has_few_neighbours_and_is_theirs(void **state)
{
	for (unsigned count = 2; count <= COUNT; count = count * 3 / 2 + 1) {
		build(count, count);
		for (unsigned i = 0; i < count; i++) {
			assert_in_range(found[i], 1, MEMBER_NEIGHBOURS_MAX);
			assert_false(has(i, i));
			for (unsigned k = 0; k < found[i]; k++)
				assert_true(has(neighbour[i][k], i));
		}
	}
	build(COUNT, 0);
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(found[i] > MEMBER_RINGS);
	assert_int_equal(member_rings(hash, 1, 0, neighbour[0]), 0);
}

static void neighbours_are_mutual_among_as_many_members_as_there_may_be(void **state)
{
	hash_all(NODES_MAX, 1);
	for (unsigned i = 0; i < NODES_MAX; i += NODES_MAX / 8 - 1) {
		found[0] = member_rings(hash, NODES_MAX, i, neighbour[0]);
		assert_in_range(found[0], MEMBER_RINGS, MEMBER_NEIGHBOURS_MAX);
		for (unsigned k = 0; k < found[0]; k++) {
			bool mutual = false;

			found[1] = member_rings(hash, NODES_MAX, neighbour[0][k], neighbour[1]);
			for (unsigned n = 0; n < found[1]; n++)
				mutual |= neighbour[1][n] == i;
			assert_true(mutual);
		}
	}
}

/* How many members can be reached from `from` without those that are gone. */
static unsigned reached(unsigned from, const bool *gone)
{
	static bool seen[COUNT];
	static unsigned queue[COUNT];
	unsigned head = 0, tail = 0;

	memset(seen, 0, sizeof(seen));
	seen[from] = true;
	queue[tail++] = from;
	while (head < tail) {
		unsigned at = queue[head++];

		for (unsigned k = 0; k < found[at]; k++) {
			unsigned next = neighbour[at][k];

			if (seen[next] || gone[next])
				continue;
			seen[next] = true;
			queue[tail++] = next;
		}
	}
	return tail;
}

/* A quarter of the members fails at once: the others still reach each other. */
static void the_others_stay_connected(void **state)
{
	for (unsigned seed = 1; seed <= 20; seed++) {
		bool gone[COUNT] = {false};
		unsigned left = COUNT, from = 0;

		build(COUNT, seed);
		for (unsigned i = 0; i < COUNT; i++) {
			gone[i] = map_mix(seed << 16 | i) % 4 == 0;
			left -= gone[i];
			if (!gone[i])
				from = i;
		}
		assert_int_equal(reached(from, gone), left);
	}
}

/* A member that leaves changes only what its own neighbours have. */
static void a_change_moves_few_links(void **state)
{
	static unsigned before[COUNT][MEMBER_NEIGHBOURS_MAX], had[COUNT];
	unsigned changed = 0;

	build(COUNT, 3);
	memcpy(before, neighbour, sizeof(before));
	memcpy(had, found, sizeof(had));
	for (unsigned i = 0; i < COUNT - 1; i++)
		found[i] = member_rings(hash, COUNT - 1, i, neighbour[i]);
	for (unsigned i = 0; i < COUNT - 1; i++)
		changed += found[i] != had[i] ||
			   memcmp(before[i], neighbour[i], found[i] * sizeof(before[i][0])) != 0;
	assert_in_range(changed, 1, MEMBER_NEIGHBOURS_MAX);
}

static void members_have_the_time_to_prove_their_right_that_the_dials_take(void **state)
{
	struct members *members = calloc(1, sizeof(*members));
	struct settings settings = {.cluster_heartbeat_ms = 500};
	struct control control = {.settings = &settings, .members = members};
	const struct member_contact *contact;
	char address[32];

	(void)state;
	assert_int_equal(member_table_open(&members->table), 0);
	for (unsigned i = 0; i < COUNT; i++) {
		struct member *member = member_new(&members->table);

		snprintf(address, sizeof(address), "10.0.%u.%u", i >> 8, i & 255);
		assert_true(member_name_set(&members->table, member, address, address, 7000));
		member->record.ref = i << 7 | 1;
		assert_int_equal(member_table_add(&members->table, member), 0);
		member_prove(&control, member->record.ref);
		contact = member->contact;
		/* none is dialled at once, as members->dials is 0 */
		assert_int_equal(contact->prove_ns - contact->used_ns,
			MEMBER_PROVE_FAR_NS + (i + 1) / MEMBER_DIALS_TICK * 500000000ull);
	}
	member_table_close(&members->table);
	free(members);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_member_has_few_neighbours_and_is_theirs),
		cmocka_unit_test(neighbours_are_mutual_among_as_many_members_as_there_may_be),
		cmocka_unit_test(the_others_stay_connected),
		cmocka_unit_test(a_change_moves_few_links),
		cmocka_unit_test(members_have_the_time_to_prove_their_right_that_the_dials_take),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
