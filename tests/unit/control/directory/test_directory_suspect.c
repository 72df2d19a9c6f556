/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Suspect owners: a set does not wait for an owner that serves nothing; it is partial until that
 * owner has the entry. A node is one control plane in the test's process.
 */
#include "tests/unit/control/directory/mute_world.h"

#define DEAD_MS 3000 /* so a request may wait 300 ms */

static uint64_t counter(unsigned which)
{
	return node[0].control.counter[which];
}

static enum suspect_why why_mute(void)
{
	struct directory_owner owner;

	directory_owner(&node[0].control, mute_owner()->peer, &owner);
	return owner.why;
}

/* What clients of node 0 see of a member: look-ups ask it last. */
static bool shown(uint32_t ref)
{
	const struct member_record *record = member_by_ref(&node[0].control, ref);

	assert_non_null(record);
	return map_suspect(&node[0].control.status->map, record->peer);
}

static bool any_shown(void)
{
	bool any = false;

	for (unsigned peer = 0; peer < NODES_MAX; peer++)
		any |= map_suspect(&node[0].control.status->map, (uint16_t)peer);
	return any;
}

/* ---- the rules ------------------------------------------------------------------------------- */

static void a_member_is_suspect_by_what_it_does_not_answer(void **state)
{
	static const struct {
		struct suspect_evidence evidence;
		enum suspect_why why;
	} cases[] = {
		{{.linked = true}, SUSPECT_NOT},
		{{.linked = false}, SUSPECT_UNLINKED},
		{{.linked = true, .unserved_ns = 300}, SUSPECT_NOT},
		{{.linked = true, .unserved_ns = 301}, SUSPECT_UNSERVED},
		{{.linked = false, .unserved_ns = 301}, SUSPECT_UNSERVED},
		{{.linked = true, .silent_ns = 1000}, SUSPECT_NOT},
		{{.linked = true, .silent_ns = 1001}, SUSPECT_SILENT},
		/* its heartbeats do not refute that it does not serve */
		{{.linked = true, .unserved_before = true}, SUSPECT_UNSERVED},
		/* a pause of this engine proves nothing about the member */
		{{.linked = true, .unserved_ns = 9999, .silent_ns = 9999, .paused = true},
			SUSPECT_NOT},
		{{.linked = true, .unserved_before = true, .paused = true}, SUSPECT_UNSERVED},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct suspect_evidence evidence = cases[i].evidence;

		evidence.beat_ns = 500;
		evidence.dead_ns = 3000;
		assert_int_equal(suspect_judge(&evidence), cases[i].why);
	}
	/* heartbeats that come more often than requests may wait */
	assert_int_equal(suspect_judge(&(struct suspect_evidence){
				 .linked = true, .beat_ns = 20, .dead_ns = 3000, .silent_ns = 300}),
		SUSPECT_NOT);
}

static void a_publish_waits_for_each_owner_that_is_not_suspect(void **state)
{
	assert_int_equal(publish_judge(0, 0, 0), PUBLISH_WHOLE);
	assert_int_equal(publish_judge(2, 0, 0), PUBLISH_WHOLE);
	assert_int_equal(publish_judge(1, 1, 0), PUBLISH_WAIT);
	assert_int_equal(publish_judge(1, 2, 1), PUBLISH_WAIT);
	assert_int_equal(publish_judge(1, 1, 1), PUBLISH_PARTIAL);
	assert_int_equal(publish_judge(0, 1, 1), PUBLISH_UNREACHABLE);
	assert_int_equal(publish_judge(0, 2, 1), PUBLISH_WAIT);
	assert_false(suspect_steers(SUSPECT_NOT));
	assert_false(suspect_steers(SUSPECT_UNLINKED));
	assert_true(suspect_steers(SUSPECT_SILENT));
	assert_true(suspect_steers(SUSPECT_UNSERVED));
}

/* ---- a gray member --------------------------------------------------------------------------- */

static void a_set_waits_once_for_a_member_that_does_not_serve(void **state)
{
	open_nodes(1, DEAD_MS, 2);
	mute_join();
	publish(0, 100, 2000);
	assert_false(mute_until(node[0].dones > 0, 290));
	assert_false(any_shown());
	assert_true(mute_until(node[0].dones == 100, 100));
	assert_true(shown((uint32_t)mute.incarnation));
	assert_int_equal(node[0].hits, 100);
	assert_int_equal(counter(COUNTER_sets_partial), 100);
	assert_int_equal(counter(COUNTER_owners_suspected), 1);
	/* heartbeats come all the time; the member stays suspect, and no set waits for it */
	assert_false(mute_until(false, 1000));
	publish(100, 100, 2000);
	assert_true(mute_until(node[0].dones == 200, 20));
	assert_int_equal(node[0].hits, 200);
	assert_int_equal(why_mute(), SUSPECT_UNSERVED);
	assert_int_equal(node[0].control.directory->partial, 200);
	/* once it serves, all partial sets become whole, and sets wait for it again */
	mute.answers = true;
	assert_true(mute_until(node[0].control.directory->partial == 0, 1000));
	assert_int_equal(missing_at_mute(200), 0);
	assert_int_equal(why_mute(), SUSPECT_NOT);
	assert_false(any_shown());
	publish(200, 100, 2000);
	assert_true(mute_until(node[0].dones == 300, 100));
	assert_int_equal(counter(COUNTER_sets_partial), 200);
	assert_int_equal(node[0].control.directory->background, 0);
}

/* The link is closed and dialled again: that alone is no answer. */
static void a_new_link_does_not_refute_the_suspicion(void **state)
{
	open_nodes(1, DEAD_MS, 2);
	mute_join();
	publish(0, 10, 2000);
	assert_true(mute_until(node[0].dones == 10, 400));
	close(mute.fd);
	mute.fd = raw_open(0);
	raw_hello(mute.fd, "mute", mute.incarnation, 9, NULL);
	assert_true(mute_until(mute_owner()->in_flight > 0, 1000));
	assert_int_equal(why_mute(), SUSPECT_UNSERVED);
	publish(10, 10, 2000);
	assert_true(mute_until(node[0].dones == 20, 20));
}

static void without_any_owner_that_serves_a_set_fails_without_waiting(void **state)
{
	uint64_t keys[2], found = 0;

	open_nodes(1, DEAD_MS, 1);
	mute_join();
	for (uint64_t k = 0; found < 2; k++)
		if (owned_by((uint32_t)mute.incarnation, k))
			keys[found++] = k;
	publish(keys[0], 1, 2000);
	assert_false(mute_until(node[0].dones > 0, 290));
	assert_true(mute_until(node[0].dones == 1, 100));
	assert_int_equal(node[0].status, OP_PEER_DOWN);
	publish(keys[1], 1, 2000);
	assert_true(mute_until(node[0].dones == 2, 20));
	assert_int_equal(node[0].hits, 0);
	assert_int_equal(counter(COUNTER_sets_partial), 0);
	/* the entries are sent all the same */
	mute.answers = true;
	assert_true(mute_until(mute_owner()->background == 0, 1000));
	for (unsigned i = 0; i < 2; i++) {
		struct page_key key = key_of(keys[i]);

		assert_non_null(index_find(mute.told, &key));
	}
}

/* ---- a stopped member, a stopped engine ------------------------------------------------------ */

static void a_set_does_not_wait_for_a_member_that_is_silent(void **state)
{
	open_nodes(2, DEAD_MS, 2);
	node[1].stalled = true;
	nodes_run(400);
	for (unsigned k = 0; k < 100; k++)
		node_put(0, k, 1, 2000);
	assert_true(nodes_until(node[0].dones == 100, 20));
	assert_int_equal(node[0].hits, 100);
	assert_true(sees(0, 1));
	assert_int_equal(counter(COUNTER_sets_partial), 100);
	node[1].stalled = false;
	assert_true(nodes_until(node[0].control.directory->partial == 0, 1000));
	for (unsigned k = 0; k < 100; k++)
		assert_int_equal(found_at_owners(0, 0, k), 2);
}

/* Nothing is requested from it: look-ups need to know all the same. */
static void clients_see_that_an_idle_member_falls_silent_is_heard_again_and_dies(void **state)
{
	uint32_t ref;

	open_nodes(2, DEAD_MS, 2);
	ref = node[1].control.ref;
	for (unsigned round = 0; round < 3; round++) {
		assert_false(any_shown());
		node[1].stalled = true;
		assert_true(nodes_until(any_shown(), 1000));
		assert_true(shown(ref) && sees(0, 1));
		node[1].stalled = false;
		assert_true(nodes_until(!any_shown(), 1000));
	}
	assert_int_equal(counter(COUNTER_owners_suspected), 3);
	node[1].stalled = true;
	assert_true(nodes_until(any_shown(), 1000));
	assert_true(nodes_until(!sees(0, 1), 2 * DEAD_MS));
	assert_false(any_shown());
}

static void an_engine_that_stood_still_suspects_no_other(void **state)
{
	open_nodes(2, DEAD_MS, 2);
	for (unsigned round = 0; round < 5; round++) {
		publish(round * 100, 100, 5000);
		directory_flush(&node[0].control);
		node[0].stalled = true;
		nodes_run(1000);
		node[0].stalled = false;
		assert_true(nodes_until(node[0].dones == 100 * (round + 1), 1000));
		nodes_run(200);
	}
	assert_int_equal(node[0].hits, 500);
	node[0].stalled = true; /* nothing is requested meanwhile */
	nodes_run(1000);
	node[0].stalled = false;
	nodes_run(200);
	assert_false(any_shown());
	assert_int_equal(counter(COUNTER_owners_suspected), 0);
	assert_int_equal(counter(COUNTER_sets_partial), 0);
}

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_member_is_suspect_by_what_it_does_not_answer),
		T(a_publish_waits_for_each_owner_that_is_not_suspect),
		T(a_set_waits_once_for_a_member_that_does_not_serve),
		T(a_new_link_does_not_refute_the_suspicion),
		T(without_any_owner_that_serves_a_set_fails_without_waiting),
		T(a_set_does_not_wait_for_a_member_that_is_silent),
		T(clients_see_that_an_idle_member_falls_silent_is_heard_again_and_dies),
		T(an_engine_that_stood_still_suspects_no_other),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
