/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that do not serve: raw connections play members that send heartbeats, and answer probes
 * or not. A node is one control plane in the test's process.
 */
#include "tests/unit/control/members/probe_world.h"

static int setup(void **state)
{
	nodes_setup(BEAT_MS, DEAD_MS);
	raw_serves = false;
	assert_int_equal(node_open(0, NULL), 0);
	memset(played, 0, sizeof(played));
	*gray = (struct played){.name = "gray", .incarnation = 0x1200000000 + OWN_REF};
	*other = (struct played){.name = "other", .incarnation = 0x1300000000 + OWN_REF + 1};
	for (unsigned i = 0; i < 2; i++) {
		played[i].fd = -1;
		played[i].serves = true;
		hello(&played[i]);
		(void)until_on_map(&played[i], true, 1000);
	}
	run(2 * DEAD_MS);
	assert_true(on_map(gray) && on_map(other));
	return 0;
}

static int teardown(void **state)
{
	for (unsigned i = 0; i < 2; i++)
		close(played[i].fd);
	nodes_teardown();
	return 0;
}

static struct member *entry_of(const struct played *p)
{
	return member_find(node[0].control.members, p->name);
}

static uint64_t unserving(void)
{
	return node[0].control.counter[COUNTER_members_unserving];
}

/* The member stops serving, leaves the map, and connects again. */
static void removed(void)
{
	gray->serves = false;
	(void)until_on_map(gray, false, 2 * DEAD_MS);
	hello(gray);
	run(LATE_MS);
}

/* ---- removal --------------------------------------------------------------------------------- */

static void a_removal_needs_a_long_time_without_service_of_any_member(void **state)
{
	const uint64_t dead = 3000, removal = suspect_removal_ns(dead);

	assert_int_equal(removal, 3500);
	assert_int_equal(suspect_wait_ns(dead), 1500);
	/* one that is heard and does not serve, one that is not heard, one that never served */
	assert_int_equal(suspect_spares_ns(9000, 1000, dead), 1000 + removal);
	assert_int_equal(suspect_spares_ns(1000, 1000, dead), 1000 + dead);
	assert_int_equal(suspect_spares_ns(1000, 0, dead), 0);
	assert_int_equal(suspect_trial_ns(dead, 1), 5000);
	assert_int_equal(suspect_trial_ns(dead, 2), 10000);
	assert_int_equal(suspect_trial_ns(dead, 3), 20000);
	assert_int_equal(suspect_trial_ns(dead, 1000), 5000ull << TRIAL_DOUBLINGS_MAX);
}

static void a_member_that_answers_no_probe_is_removed_although_its_heartbeats_arrive(void **state)
{
	unsigned ms;

	assert_true(gray->probed > 25);
	/* A probe that waits for its answer takes no turn. */
	assert_in_range(gray->padded, gray->probed / PROBE_PAD_EVERY - 1,
		gray->probed * 2 / PROBE_PAD_EVERY);
	gray->serves = false;
	ms = until_on_map(gray, false, 2 * DEAD_MS);
	assert_in_range(ms, REMOVAL_MS - LATE_MS, REMOVAL_MS + LATE_MS);
	assert_int_equal(unserving(), 1);
	assert_true(on_map(other));
}

static enum suspect_why suspect(const struct played *p)
{
	struct directory_owner owner;

	directory_owner(&node[0].control, entry_of(p)->record.peer, &owner);
	return owner.why;
}

static void a_probe_without_an_answer_makes_suspect_until_it_is_answered(void **state)
{
	unsigned publishes;

	assert_int_equal(suspect(gray), SUSPECT_NOT);
	gray->serves = false;
	run(LATE_MS);
	assert_int_equal(suspect(gray), SUSPECT_UNSERVED);
	assert_int_equal(suspect(other), SUSPECT_NOT);
	publishes = gray->publishes;
	for (unsigned i = 0; i < 32; i++)
		node_put(0, i, 1, 1000);
	run(LATE_MS);
	assert_true(gray->publishes > publishes); /* acknowledged */
	assert_int_equal(suspect(gray), SUSPECT_UNSERVED);
	assert_int_equal(node[0].control.counter[COUNTER_owners_suspected], 1);
	gray->serves = true;
	run(AGAIN_MS + LATE_MS);
	assert_int_equal(suspect(gray), SUSPECT_NOT);
	assert_int_equal(node[0].control.counter[COUNTER_owners_suspected], 1);
}

static void answers_with_another_serial_or_a_shorter_pad_do_not_count(void **state)
{
	gray->stale = true;
	(void)until_on_map(gray, false, 2 * DEAD_MS);
	other->short_pad = true;
	(void)until_on_map(other, false, 2 * DEAD_MS);
	assert_int_equal(unserving(), 2);
}

static void an_engine_that_stood_still_removes_no_other(void **state)
{
	for (unsigned i = 0; i < 3; i++) {
		nodes_pass(5 * DEAD_MS); /* neither this engine nor its members run */
		run(DEAD_MS / 2);
	}
	assert_true(on_map(gray) && on_map(other));
	assert_int_equal(unserving(), 0);
}

/* ---- what others say ------------------------------------------------------------------------- */

static void a_member_that_serves_another_one_stays(void **state)
{
	gray->serves = false;
	other->refutes = gray;
	run(3 * DEAD_MS);
	assert_true(on_map(gray));
	assert_int_equal(node[0].control.counter[COUNTER_members_claimed], 1);
	assert_int_equal(other->claims, 1);
	/* It is claimed again after a while, or when one is gone that may have refuted it. */
	other->refutes = NULL;
	other->mute = true;
	(void)until_on_map(other, false, 2 * DEAD_MS);
	(void)until_on_map(gray, false, DEAD_MS);
	assert_int_equal(unserving(), 1);
}

static void heartbeats_that_another_one_hears_do_not_count(void **state)
{
	gray->serves = false;
	record(other, gray, RECORD_ALIVE, 1);
	assert_in_range(
		until_on_map(gray, false, 2 * DEAD_MS), REMOVAL_MS - LATE_MS, REMOVAL_MS + LATE_MS);
}

/* A member that lies, or that alone does not hear it. */
static void a_claim_removes_no_member_that_serves(void **state)
{
	for (uint32_t admission = 1; admission < 20; admission++) {
		record(other, gray, RECORD_REMOVED, admission);
		run(LATE_MS);
		assert_int_equal(entry_of(gray)->admission, admission + 1);
	}
	assert_true(on_map(gray));
	assert_int_equal(node[0].control.counter[COUNTER_claims_refuted], 19);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
}

static void a_claim_removes_a_member_that_is_heard_no_earlier(void **state)
{
	unsigned ms;

	gray->mute = true;
	run(LATE_MS / 2);
	record(other, gray, RECORD_CLAIMED, entry_of(gray)->admission);
	ms = until_on_map(gray, false, 2 * DEAD_MS) + LATE_MS / 2;
	assert_in_range(ms, DEAD_MS - LATE_MS, DEAD_MS + LATE_MS);
}

/* Its sender has not learned that the member was admitted again, and must claim that admission. */
static void a_claim_that_is_out_of_date_is_corrected(void **state)
{
	Pc__Message *m;

	record(other, gray, RECORD_CLAIMED, 1);
	run(LATE_MS);
	assert_int_equal(entry_of(gray)->admission, 2);
	record(other, gray, RECORD_CLAIMED, 1);
	m = raw_await(other->fd, PC__MESSAGE__BODY_MEMBER_NEWS, 1000);
	assert_non_null(m);
	assert_string_equal(m->member_news->records[0]->member->name, gray->name);
	assert_int_equal(m->member_news->records[0]->state, RECORD_ALIVE);
	assert_int_equal(m->member_news->records[0]->admission, 2);
	assert_int_equal(entry_of(gray)->stage, RECORD_ALIVE);
	pc__message__free_unpacked(m, NULL);
}

/* What came meanwhile may refute the claim. */
static void no_claim_ends_while_this_engine_does_not_run(void **state)
{
	gray->mute = true;
	run(DEAD_MS * 3 / 4);
	assert_int_equal(entry_of(gray)->stage, RECORD_CLAIMED);
	gray->mute = false;
	nodes_pass(5 * DEAD_MS);
	run(DEAD_MS);
	assert_true(on_map(gray));
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
}

/* ---- trial ----------------------------------------------------------------------------------- */

static void a_removed_member_comes_back_only_when_it_has_served(void **state)
{
	unsigned joined, needs = TRIAL_MS;

	for (unsigned k = 0; k < 3; k++, needs *= 2) {
		removed();
		joined = (unsigned)node[0].control.counter[COUNTER_members_joined];
		for (unsigned i = 0; i < 5; i++) { /* neither heartbeats nor Hello */
			run(TRIAL_MS / 2);
			assert_false(gray->closed);
			hello(gray);
		}
		assert_false(on_map(gray));
		gray->serves = true;
		run(needs / 2);
		gray->serves = false; /* begins anew */
		run(LATE_MS);
		gray->serves = true;
		run(needs - LATE_MS);
		assert_false(on_map(gray) || gray->closed);
		run(2 * LATE_MS + AGAIN_MS);
		assert_false(on_map(gray));
		assert_true(gray->closed);
		assert_int_equal(node[0].control.counter[COUNTER_members_joined], joined);
		hello(gray);
		(void)until_on_map(gray, true, LATE_MS);
		run(LATE_MS);
	}
	assert_int_equal(entry_of(gray)->contact->trial.removals, 3);
	assert_true(on_map(other));
}

static void a_removed_member_is_sent_heartbeats_and_served_probes_only(void **state)
{
	Pc__Entry entry = PC__ENTRY__INIT, *at = &entry;
	Pc__Publish publish = PC__PUBLISH__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	entry.key0 = 7;
	entry.generation = 1;
	publish.ref = (uint32_t)gray->incarnation;
	publish.n_entries = 1;
	publish.entries = &at;
	message.body_case = PC__MESSAGE__BODY_PUBLISH;
	message.publish = &publish;
	raw_message(gray->fd, &message);
	run(LATE_MS);
	assert_int_equal(gray->acks, 1);
	removed();
	gray->beats = gray->probed = 0;
	raw_message(gray->fd, &message);
	run(DEAD_MS);
	assert_int_equal(gray->acks, 1);
	assert_in_range(gray->beats, DEAD_MS / BEAT_MS - 2, DEAD_MS / BEAT_MS + 2);
	assert_in_range(gray->probed, 2, 6); /* again, without an answer */
	assert_false(gray->closed);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
}

static void a_member_that_was_started_again_is_admitted_at_once(void **state)
{
	removed();
	gray->incarnation += 0x1000;
	gray->serves = true;
	hello(gray);
	(void)until_on_map(gray, true, LATE_MS);
	run(2 * DEAD_MS);
	assert_true(on_map(gray));
}

/* As a path looks that packets of full size do not cross, and that is dialled again and again. */
static void a_member_that_fell_silent_comes_back_when_it_has_answered_a_probe_of_each_size(
	void **state)
{
	gray->mute = true;
	(void)until_on_map(gray, false, DEAD_MS + LATE_MS);
	assert_int_equal(unserving(), 0);
	gray->mute = gray->serves = false;
	hello(gray);
	run(2 * DEAD_MS);
	assert_false(on_map(gray));
	gray->serves = gray->short_pad = true;
	run(2 * DEAD_MS);
	assert_false(on_map(gray) || gray->closed);
	gray->short_pad = false;
	run(LATE_MS + AGAIN_MS);
	assert_true(gray->closed);
	hello(gray);
	(void)until_on_map(gray, true, LATE_MS);
}

static void a_trial_goes_on_for_as_long_as_the_connection(void **state)
{
	removed();
	entry_of(gray)->since_ns -= MEMBER_DEAD_NS;
	run(LATE_MS);
	assert_non_null(entry_of(gray));
	close(gray->fd);
	gray->fd = -1;
	run(LATE_MS);
	assert_null(entry_of(gray));
}

/* ---- bad input ------------------------------------------------------------------------------- */

static void longer_pads_close_the_connection(void **state)
{
	static uint8_t pad[PROBE_PAD_BYTES + 1];
	Pc__Probe probe = PC__PROBE__INIT;
	Pc__ProbeAck ack = PC__PROBE_ACK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	probe.pad = (ProtobufCBinaryData){sizeof(pad), pad};
	message.body_case = PC__MESSAGE__BODY_PROBE;
	message.probe = &probe;
	raw_message(gray->fd, &message);
	assert_true(raw_closed(gray->fd, 100));
	ack.pad = probe.pad;
	message.body_case = PC__MESSAGE__BODY_PROBE_ACK;
	message.probe_ack = &ack;
	raw_message(other->fd, &message);
	assert_true(raw_closed(other->fd, 100));
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 2);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_removal_needs_a_long_time_without_service_of_any_member),
		T(a_member_that_answers_no_probe_is_removed_although_its_heartbeats_arrive),
		T(a_probe_without_an_answer_makes_suspect_until_it_is_answered),
		T(answers_with_another_serial_or_a_shorter_pad_do_not_count),
		T(an_engine_that_stood_still_removes_no_other),
		T(a_member_that_serves_another_one_stays),
		T(heartbeats_that_another_one_hears_do_not_count),
		T(a_claim_removes_no_member_that_serves),
		T(a_claim_removes_a_member_that_is_heard_no_earlier),
		T(a_claim_that_is_out_of_date_is_corrected),
		T(no_claim_ends_while_this_engine_does_not_run),
		T(a_removed_member_comes_back_only_when_it_has_served),
		T(a_removed_member_is_sent_heartbeats_and_served_probes_only),
		T(a_member_that_was_started_again_is_admitted_at_once),
		T(a_member_that_fell_silent_comes_back_when_it_has_answered_a_probe_of_each_size),
		T(a_trial_goes_on_for_as_long_as_the_connection),
		T(longer_pads_close_the_connection),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
