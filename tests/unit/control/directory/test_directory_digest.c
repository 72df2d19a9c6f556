/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions for digests and their answers, and what owners have after a warm restart of a holder.
 * A node is one control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/directory/holder_world.h"

/* Ends HOLDER's process and starts it with the pages `from` to KEYS - 1, of generation 1. */
static void restart_warm(unsigned from)
{
	node[HOLDER].keep_ref = node[HOLDER].control.ref;
	node_close(HOLDER);
	assert_true(nodes_until(!sees(0, HOLDER) && !sees(1, HOLDER), 3000));
	assert_int_equal(node_open(HOLDER, node_at(0)), 0);
	for (unsigned k = from; k < KEYS; k++) {
		const struct index_entry entry = {.key = key_of(k),
			.place = place_make(k & 1, k & 0xffff),
			.generation = 1,
			.length = 4096};

		assert_int_equal(index_put(node[HOLDER].control.index, &entry, NULL), 0);
	}
	directory_forgotten(&node[HOLDER].control, node[HOLDER].control.ref);
}

static void after_a_warm_restart_every_page_is_found(void **state)
{
	(void)state;
	open_with_pages();
	restart_warm(0);
	/* They are found as soon as the holder is on the map, before anything is published. */
	assert_true(nodes_until(sees(0, HOLDER), 3000));
	for (unsigned k = 0; k < KEYS; k++)
		assert_true(found_at_owners(0, HOLDER, k) >= 1);
	assert_true(nodes_until(settled(), 5000));
	assert_true(all_found());
}

/* Owners still have entries of pages that are gone. */
static void the_entries_of_pages_that_the_restart_lost_are_removed(void **state)
{
	(void)state;
	open_with_pages();
	restart_warm(10);
	assert_true(nodes_until(settled(), 5000));
	for (unsigned k = 0; k < KEYS; k++)
		assert_int_equal(found_at_owners(0, HOLDER, k), k < 10 ? 0 : 2);
}

/* HOLDER is done, and the others may publish nothing: a Hello opens a door, which is shut again. */
static bool settled_while_shut(void)
{
	for (unsigned i = 0; i < HOLDER; i++)
		node[i].control.door_shut = true;
	return settled();
}

static void an_owner_that_may_not_publish_answers_a_digest(void **state)
{
	(void)state;
	open_with_pages();
	for (unsigned k = 0; k < KEYS; k += 10) {
		struct page_key key = key_of(k);

		for (unsigned n = 0; n < HOLDER; n++)
			(void)shard_remove(node[n].control.shard, &key, node[HOLDER].control.ref,
				place_make(k & 1, k), 1);
	}
	compare_begins();
	assert_true(nodes_until(settled_while_shut(), 5000));
	assert_true(all_found());
}

/* While the holder compares, the map changes, and with it the owners of its keys. */
static void a_change_of_the_map_while_comparing_loses_no_entry(void **state)
{
	(void)state;
	open_with_pages();
	for (unsigned turns = 0; turns < 40; turns++) {
		restart_warm(0);
		assert_true(nodes_until(sees(0, HOLDER), 3000));
		nodes_run(turns);
		if (node[HOLDER + 1].open)
			node_close(HOLDER + 1);
		else
			assert_int_equal(node_open(HOLDER + 1, node_at(1)), 0);
		assert_true(nodes_until(settled(), 9000));
		assert_true(all_found());
	}
}

/* The slots that an owner gets after it was asked were not counted for it. */
static void slots_that_come_while_the_answer_is_missing_are_published(void **state)
{
	struct owner *owner;

	(void)state;
	assert_int_equal(node_open(HOLDER + 1, node_at(1)), 0);
	open_with_pages();
	compare_begins();
	owner = owner_of(holder(), node[0].control.ref);
	assert_true(nodes_until(owner->digest, 3000));
	node[0].stalled = true;
	assert_true(nodes_until(owner->digest->counted, 100));
	node_close(HOLDER + 1);
	assert_true(nodes_until(holder()->map.settled->owners == HOLDER + 1, 100));
	assert_non_null(owner->digest);
	node[0].stalled = false;
	assert_true(nodes_until(settled(), 5000));
	assert_true(all_found());
}

/* ---- an owner that does not answer ----------------------------------------------------------- */

/* Every owner of node 0's pages other than the mute member has them. */
static bool others_have_all(void)
{
	for (unsigned k = 0; k < KEYS; k++)
		if (found_at_owners(0, 0, k) + owned_by((uint32_t)mute.incarnation, k) != 2)
			return false;
	return true;
}

static void an_owner_that_does_not_answer_delays_no_other(void **state)
{
	(void)state;
	assert_int_equal(node_open(0, node_at(1)), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
	for (unsigned k = 0; k < KEYS; k++)
		node_put(0, k, 1, 3000);
	assert_true(nodes_until(node[0].hits == KEYS, 3000));
	node_close(1);
	mute_join();
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(mute_until(sees(0, 1) && others_have_all(), 1000));
	mute.answers = true;
	assert_true(mute_until(mute_all_sent(), 5000));
	assert_int_equal(missing_at_mute(KEYS), 0);
}

/* ---- the owner ------------------------------------------------------------------------------- */

static void ask(int fd, uint64_t serial)
{
	Pc__DigestAsk body = PC__DIGEST_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.serial = serial;
	message.body_case = PC__MESSAGE__BODY_DIGEST_ASK;
	message.digest_ask = &body;
	raw_message(fd, &message);
}

/* Questions pile up on one link: the last one counts. A link that closes is not answered. */
static void a_further_question_takes_the_place_of_the_first(void **state)
{
	struct directory *dir;
	struct page_key key = key_of(1);

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	dir = node[0].control.directory;
	mute_join();
	assert_int_equal(shard_insert(node[0].control.shard, &key, 7, 1, 1), 0);
	net_timer_stop(dir->move.timer);
	dir->move.soon = true;
	for (unsigned i = 0; i < 100; i++)
		ask(mute.fd, i);
	assert_true(nodes_until(
		TAILQ_FIRST(&dir->asked) && TAILQ_FIRST(&dir->asked)->serial == 99, 1000));
	assert_null(TAILQ_NEXT(TAILQ_FIRST(&dir->asked), next));
	close(mute.fd);
	mute.fd = 0;
	assert_true(nodes_until(TAILQ_EMPTY(&dir->asked), 1000));
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(after_a_warm_restart_every_page_is_found),
		T(the_entries_of_pages_that_the_restart_lost_are_removed),
		T(an_owner_that_may_not_publish_answers_a_digest),
		T(a_change_of_the_map_while_comparing_loses_no_entry),
		T(slots_that_come_while_the_answer_is_missing_are_published),
		T(an_owner_that_does_not_answer_delays_no_other),
		T(a_further_question_takes_the_place_of_the_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
