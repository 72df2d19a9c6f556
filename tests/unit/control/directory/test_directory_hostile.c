/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparisons at bad moments: members that come back at once, links that close, owners that are
 * behind. A node is one control plane in the test's process; time is simulated.
 */
#include "engine/control/members/members_inner.h"
#include "tests/unit/control/directory/holder_world.h"

static struct owner *owner_node(unsigned of, unsigned n)
{
	return owner_of(node[of].control.directory, node[n].control.ref);
}

/* ---- leaves and comes back in one turn ------------------------------------------------------- */

static void blip(unsigned of, unsigned n)
{
	struct control *control = &node[of].control;
	struct member *member =
		member_peer(control, member_by_ref(control, node[n].control.ref)->peer);

	member_take_off_map(control, member, "test");
	assert_int_equal(member_put_on_map(control, member), 0);
}

/* While it lacks slots. */
static void a_member_that_comes_back_in_one_turn_gets_what_it_lacked(void **state)
{
	struct directory *dir;

	(void)state;
	open_with_pages();
	dir = holder();
	assert_int_equal(node_open(HOLDER + 1, node_at(1)), 0);
	assert_true(nodes_until(sees(HOLDER, HOLDER + 1) && owner_node(HOLDER, HOLDER + 1), 3000));
	assert_true(nodes_until(settled() && all_found(), 9000));
	lacks_all(dir, owner_node(HOLDER, HOLDER + 1));
	assert_true(dir->lack.count > 0);
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);

		(void)shard_remove(node[HOLDER + 1].control.shard, &key, node[HOLDER].control.ref,
			place_make(k & 1, k), 1);
	}
	blip(HOLDER, HOLDER + 1);
	nodes_run(9000);
	assert_true(all_found());
	assert_int_equal(dir->lack.count, 0);
}

/* It comes back under another peer number, and has dropped our entries. */
static void a_member_that_comes_back_as_another_peer_is_compared_with(void **state)
{
	struct control *control;
	struct member *member;
	uint16_t before;

	(void)state;
	open_with_pages();
	control = &node[HOLDER].control;
	member = member_peer(control, member_by_ref(control, node[0].control.ref)->peer);
	before = member->record.peer;
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);

		(void)shard_remove(
			node[0].control.shard, &key, control->ref, place_make(k & 1, k), 1);
	}
	member_take_off_map(control, member, "test");
	assert_int_equal(member_put_on_map(control, member), 0);
	assert_int_not_equal(member->record.peer, before);
	nodes_run(9000);
	assert_true(all_agree());
	assert_true(all_found());
}

/* ---- owners that have lost slots ------------------------------------------------------------- */

/* The link closes between question and answer of an owner that has lost slots. */
static void an_owner_whose_link_closed_meanwhile_drops_what_it_has_lost(void **state)
{
	struct owner *owner;
	unsigned cuts = 0, left = 0;

	(void)state;
	open_with_pages();
	assert_int_equal(node_open(HOLDER + 1, node_at(1)), 0);
	assert_true(nodes_until(sees(HOLDER, HOLDER + 1), 3000));
	for (unsigned i = 0; i < 2000; i++) {
		STAILQ_FOREACH (owner, &holder()->owners, next)
			if (owner->digest) {
				rpc_link_close((struct rpc_link *)owner->digest->via);
				cuts++;
			}
		nodes_turn();
	}
	assert_true(nodes_until(all_agree(), 3000));
	nodes_run(1000);
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);
		struct index_entry entry = *index_find(node[HOLDER].control.index, &key);

		index_remove(node[HOLDER].control.index, &key);
		directory_remove(&node[HOLDER].control, &key,
			&(struct location){.place = entry.place, .generation = entry.generation});
	}
	nodes_run(2000);
	for (unsigned i = 0; i <= HOLDER + 1; i++)
		left += held_by(i);
	assert_true(cuts > 0);
	assert_int_equal(left, 0);
}

/* ---- an owner that is behind ----------------------------------------------------------------- */

static void have_pages(uint64_t from, uint64_t count)
{
	for (uint64_t k = from; k < from + count; k++) {
		struct index_entry entry = {.key = key_of(k),
			.place = place_make((uint32_t)k & 1, (uint32_t)k & 0xffff),
			.generation = 1,
			.length = 4096};

		assert_true(index_put(node[0].control.index, &entry, NULL) != -ENOMEM);
	}
}

/* Owners that keep up are compared with meanwhile. */
static void an_owner_that_is_behind_stops_no_turn(void **state)
{
	unsigned lost = 0, missing = 0;

	(void)state;
	nodes_teardown();
	open_nodes(1, 20000, 2);
	have_pages(0, 20000);
	mute_join();
	assert_true(mute_until(owner_behind(mute_owner()), 5000));
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(mute_until(sees(0, 1), 5000));
	(void)mute_until(false, 3000);
	assert_true(owner_behind(mute_owner()));
	for (unsigned k = 0; k < 50; k++) {
		struct page_key key = key_of(k);

		lost += shard_remove(
			node[1].control.shard, &key, node[0].control.ref, place_make(k & 1, k), 1);
	}
	assert_true(lost > 0);
	node[0].control.directory->move.compare_ns = 0; /* the map changed long ago */
	node[0].control.directory->turn.at_ns = 0;
	(void)mute_until(false, 5000);
	for (unsigned k = 0; k < 50; k++) {
		struct page_key key = key_of(k);
		struct dir_entry found;

		missing += owned_by(node[1].control.ref, k) &&
			   shard_find(node[1].control.shard, &key, &found, 1) == 0;
	}
	assert_true(owner_behind(mute_owner()));
	assert_int_equal(missing, 0);
}

/* As those with large shards, or that many holders ask at once. */
static void an_owner_that_answers_late_drops_what_it_has_lost(void **state)
{
	unsigned left = 0;

	(void)state;
	open_with_pages();
	assert_int_equal(node_open(HOLDER + 1, node_at(1)), 0);
	assert_true(nodes_until(sees(HOLDER, HOLDER + 1), 3000));
	for (unsigned ms = 0; ms < 6000; ms++) {
		for (unsigned i = 0; i < 2; i++) {
			struct directory *dir = node[i].control.directory;

			if (TAILQ_EMPTY(&dir->asked) || ms > 3500)
				continue;
			net_timer_stop(dir->move.timer); /* it is busy with the shard */
			dir->move.soon = true;
		}
		for (unsigned i = 0; i < 2 && ms == 3500; i++) {
			node[i].control.directory->move.soon = false;
			move_soon(node[i].control.directory);
		}
		nodes_run(1);
	}
	nodes_run(10000);
	for (unsigned i = 0; i <= HOLDER + 1; i++)
		left += held_by(i);
	assert_int_equal(left, 2 * KEYS);
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define MANY 24

static void few_digests_exist_at_a_time(void **state)
{
	int fd[MANY];
	unsigned most = 0;
	struct owner *owner;
	char name[16];

	(void)state;
	nodes_teardown();
	open_nodes(1, 20000, 2);
	for (unsigned k = 0; k < 10; k++)
		node_put(0, k, 1, 3000);
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		fd[i] = raw_open(0);
		raw_hello(fd[i], name, 0x1234567800 + i, (uint16_t)(100 + i), NULL);
	}
	nodes_run(200);
	for (uint32_t i = 0; i < member_map(&node[0].control)->owners; i++)
		directory_forgotten(&node[0].control, member_map(&node[0].control)->owner[i].ref);
	for (unsigned i = 0; i < 500; i++) {
		unsigned now = 0;

		node[0].control.directory->move.compare_ns = 0;
		nodes_turn();
		STAILQ_FOREACH (owner, &node[0].control.directory->owners, next)
			now += owner->digest != NULL;
		most = now > most ? now : most;
	}
	for (unsigned i = 0; i < MANY; i++)
		close(fd[i]);
	assert_in_range(most, 1, COMPARE_OWNERS_MAX);
}

/* The pages that it lacks are gone at a change of the map. */
static void an_owner_is_not_behind_with_pages_that_are_gone(void **state)
{
	(void)state;
	nodes_teardown();
	open_nodes(1, 20000, 2);
	mute_join();
	have_pages(0, KEYS);
	publish(100000, BATCHES_MAX * MESSAGE_PAGES_MAX + 20000, 20);
	have_pages(0, KEYS);
	publish(0, KEYS, 20);
	assert_true(mute_until(owner_behind(mute_owner()) && mute_owner()->walk.slots, 5000));
	for (uint64_t k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);

		(void)index_remove(node[0].control.index, &key);
	}
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(mute_until(sees(0, 1), 3000));
	mute.answers = true;
	(void)mute_until(mute_owner()->background == 0, 9000);
	(void)mute_until(false, 3000);
	assert_false(owner_behind(mute_owner()));
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_member_that_comes_back_in_one_turn_gets_what_it_lacked),
		T(a_member_that_comes_back_as_another_peer_is_compared_with),
		T(an_owner_whose_link_closed_meanwhile_drops_what_it_has_lost),
		T(an_owner_that_is_behind_stops_no_turn),
		T(an_owner_that_answers_late_drops_what_it_has_lost),
		T(few_digests_exist_at_a_time),
		T(an_owner_is_not_behind_with_pages_that_are_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
