/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops of clients and their answers: which are refused, which wait because a ring is full, and which
 * are answered after their channel is closed. See ctl_world.h.
 */
#include "tests/unit/control/ctl_world.h"

/* ---- credits and pages ----------------------------------------------------------------------- */

static void every_requested_credit_has_a_done_of_its_own(void **state)
{
	struct ctl_done done;
	struct client c;
	uint32_t last = UINT32_MAX;

	client_open(&c, 3);
	put(&c, (struct ctl_op){
			.kind = CTL_CREDIT, .cookie = 9, .rail = 1, .count = 5, .length = 4096});
	turns();
	for (unsigned i = 0; i < 5; i++) {
		assert_true(got(&c, &done));
		assert_int_equal(done.status, OP_HIT);
		assert_int_equal(done.cookie, 9);
		assert_int_equal(done.kind, CTL_CREDIT);
		assert_int_equal(place_rail(done.place), 1);
		assert_int_not_equal(done.place, last);
		last = done.place;
	}
	assert_false(got(&c, &done));
	assert_int_equal(c.channel.owed, 0);
	client_close(&c);
}

static void a_published_page_is_indexed_and_sent_to_the_directory(void **state)
{
	const struct page_key key = key_of(1);
	const struct index_entry *e;
	struct client c;
	uint32_t place;

	client_open(&c, 0);
	place = store(&c, 1, 8192);
	e = index_find(control.index, &key);
	assert_non_null(e);
	assert_int_equal(e->place, place);
	assert_int_equal(directory.published, 1);
	assert_int_equal(directory.place, place);
	assert_int_equal(control.evict->credits, 0);
	client_close(&c);
}

static void a_credit_of_another_channel_cannot_be_used(void **state)
{
	struct ctl_done credit;
	struct client a, b;

	client_open(&a, 0);
	client_open(&b, 1);
	credit = take(&a, 0, 4096);
	assert_int_equal(
		publish_at(&b, 1, credit.place, credit.generation, 4096).status, OP_INVALID);
	put(&b, (struct ctl_op){.kind = CTL_RETURN,
			.place = credit.place,
			.generation = credit.generation});
	turns();
	assert_int_equal(a.channel.credits.count, 1);
	assert_int_equal(control.counter[COUNTER_ops_invalid], 2);
	assert_int_equal(publish_at(&a, 1, credit.place, credit.generation, 4096).status, OP_HIT);
	client_close(&a);
	client_close(&b);
}

/* However far its deadline is: nothing waits for ever for an owner that is silent. */
static void a_publish_waits_for_owners_for_a_bounded_time(void **state)
{
	struct ctl_done credit, done;
	struct client c;

	client_open(&c, 0);
	credit = take(&c, 0, 4096);
	directory.hold = true;
	put(&c, (struct ctl_op){.kind = CTL_PUBLISH,
			.count = 1,
			.key = key_of(1),
			.place = credit.place,
			.generation = credit.generation,
			.length = 4096,
			.deadline_ns = UINT64_MAX});
	turns();
	assert_int_equal(directory.helds, 1);
	assert_in_range(directory.held[0].deadline_ns, 1, now + CTL_DEADLINE_NS);
	directory_answer(OP_TIMEOUT);
	turns();
	assert_true(got(&c, &done));
	assert_int_equal(done.status, OP_TIMEOUT);
	client_close(&c);
}

/* A credit may be of more units than its page: the page counts as held with its own. */
static void a_page_shorter_than_its_credit_is_held_with_its_length(void **state)
{
	const uint32_t length = 3 * PAGE_UNIT;
	const struct page_key key = key_of(1);
	struct ctl_done credit;
	struct client c;

	client_open(&c, 0);
	credit = take(&c, 0, length);
	assert_int_equal(evict_class_of(control.evict, 0, length)->held, 1);
	assert_int_equal(publish_at(&c, 1, credit.place, credit.generation, 100).status, OP_HIT);
	assert_int_equal(evict_class_of(control.evict, 0, length)->held, 0);
	assert_int_equal(evict_class_of(control.evict, 0, 100)->held, 1);
	(void)page_forget(&control, &key);
	assert_int_equal(evict_class_of(control.evict, 0, 100)->held, 0);
	/* so does a credit that is returned; no count falls below 0 */
	credit = take(&c, 0, length);
	put(&c, (struct ctl_op){.kind = CTL_RETURN,
			.place = credit.place,
			.generation = credit.generation});
	turns();
	assert_int_equal(evict_class_of(control.evict, 0, length)->held, 0);
	evict_hold(control.evict, 0, length, -1);
	assert_int_equal(evict_class_of(control.evict, 0, length)->held, 0);
	client_close(&c);
}

static void hostile_places_and_generations_are_refused(void **state)
{
	struct ctl_done credit;
	struct client c;
	uint64_t seed = 42;

	client_open(&c, 0);
	credit = take(&c, 0, 4096);
	for (unsigned i = 0; i < 2000; i++) {
		uint32_t place = (uint32_t)(seed = map_mix(seed + i));
		uint32_t generation = (uint32_t)(seed >> 32);

		if (i % 3 == 0) /* names the right place with a wrong generation */
			place = credit.place;
		if (i % 3 == 1) /* names a place on a rail that does not exist */
			place = place_make(RAILS + i % (16 - RAILS), place_unit(credit.place));
		if (generation == credit.generation && place == credit.place)
			continue;
		assert_int_equal(publish_at(&c, i, place, generation, 4096).status, OP_INVALID);
		put(&c, (struct ctl_op){
				.kind = CTL_RETURN, .place = place, .generation = generation});
		put(&c, (struct ctl_op){.kind = CTL_TOUCH, .ref = control.ref, .place = place});
	}
	turns();
	assert_int_equal(index_count(control.index), 0);
	assert_int_equal(c.channel.credits.count, 1);
	client_close(&c);
}

static void a_page_longer_than_its_credit_is_refused_and_frees_the_slot(void **state)
{
	struct ctl_done credit;
	struct client c;

	client_open(&c, 0);
	credit = take(&c, 0, 4096);
	assert_int_equal(
		publish_at(&c, 1, credit.place, credit.generation, 4097).status, OP_INVALID);
	assert_int_equal(c.channel.credits.count, 0);
	assert_int_equal(pool_limbo(control.rail[0].pool), 1);
	/* the slot is longer than requested, but the requested length is the limit of the page */
	credit = take(&c, 0, 100);
	assert_int_equal(
		publish_at(&c, 1, credit.place, credit.generation, 101).status, OP_INVALID);
	credit = take(&c, 0, 4096);
	put(&c, (struct ctl_op){.kind = CTL_PUBLISH,
			.count = 1,
			.place = credit.place,
			.generation = credit.generation,
			.length = 4096});
	/* the publish is invalid, because its key is all zero */
	assert_int_equal(get_one(&c).status, OP_INVALID);
	assert_int_equal(c.channel.credits.count, 0);
	client_close(&c);
}

static void the_crc_of_a_publish_is_kept_in_the_head(void **state)
{
	const struct page_head *heads = pool_heads(control.rail[0].pool)->base;
	struct client c;

	client_open(&c, 0);
	for (uint64_t k = 0; k < 2; k++) {
		struct ctl_done credit = take(&c, 0, 4096);
		struct page_head head;

		put(&c, (struct ctl_op){.kind = CTL_PUBLISH,
				.count = 1,
				.key = key_of(k + 1),
				.place = credit.place,
				.generation = credit.generation,
				.length = 4096,
				.crc = 0xe3069283,
				.publish = (uint16_t)k});
		assert_int_equal(get_one(&c).status, OP_HIT);
		head = page_head_load(&heads[place_unit(credit.place)]);
		assert_int_equal(page_head_is_proven(&head), k == 1);
		assert_int_equal(head.crc, k ? 0xe3069283 : 0);
	}
	client_close(&c);
}

static void publishing_a_key_again_returns_the_credit(void **state)
{
	const struct page_key key = key_of(1);
	struct ctl_done credit;
	struct client c;
	uint32_t place;

	client_open(&c, 0);
	place = store(&c, 1, 4096);
	credit = take(&c, 0, 4096);
	assert_int_equal(publish_at(&c, 1, credit.place, credit.generation, 4096).status, OP_HIT);
	assert_int_equal(control.counter[COUNTER_pages_already], 1);
	assert_int_equal(index_find(control.index, &key)->place, place);
	assert_int_equal(pool_pages(control.rail[0].pool), 1);
	assert_int_equal(control.evict->credits, 0);
	client_close(&c);
}

static void publishing_a_key_with_another_length_replaces_the_page(void **state)
{
	const struct page_key key = key_of(1);
	struct client c;
	uint32_t old, new;

	client_open(&c, 0);
	old = store(&c, 1, 4096);
	new = store(&c, 1, 8192);
	assert_int_not_equal(old, new);
	assert_int_equal(directory.removed, 1);
	assert_int_equal(index_find(control.index, &key)->place, new);
	assert_int_equal(pool_pages(control.rail[0].pool), 1);
	client_close(&c);
}

static void impossible_credit_requests_are_invalid(void **state)
{
	static const struct ctl_op bad[] = {
		{.kind = CTL_CREDIT, .rail = RAILS, .count = 1, .length = 4096},
		{.kind = CTL_CREDIT, .rail = 255, .count = 1, .length = 4096},
		{.kind = CTL_CREDIT, .count = 0, .length = 4096},
		{.kind = CTL_CREDIT, .count = CREDITS_MAX + 1, .length = 4096},
		{.kind = CTL_CREDIT, .count = 65535, .length = 4096},
		{.kind = CTL_CREDIT, .count = 7, .length = 0},
		{.kind = CTL_CREDIT, .count = 7, .length = UINT32_MAX},
		{.kind = CTL_CREDIT, .count = 7, .length = POOL_BYTES},
		{.kind = 77},
	};
	struct ctl_done done;
	struct client c;

	client_open(&c, 0);
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put(&c, bad[i]);
		assert_int_equal(get_one(&c).status, OP_INVALID);
		assert_false(got(&c, &done));
		assert_int_equal(c.channel.owed, 0);
	}
	client_close(&c);
}

static void a_channel_never_holds_more_credits_than_the_maximum(void **state)
{
	struct ctl_done done;
	static const struct {
		uint16_t count;
		bool full;
	} step[] = {{CREDITS_MAX / 2 - 8, false}, {CREDITS_MAX / 2 - 8, false},
		{CREDITS_MAX / 2 - 8, true}, {17, true}, {16, false}, {1, true}};
	unsigned hits = 0;
	struct client c;

	client_open(&c, 0);
	for (unsigned i = 0; i < sizeof(step) / sizeof(step[0]); i++) {
		unsigned full = 0;

		put(&c, (struct ctl_op){.kind = CTL_CREDIT,
				.rail = (uint8_t)(i % RAILS),
				.count = step[i].count,
				.length = 4096});
		turns();
		while (got(&c, &done))
			done.status == OP_HIT ? hits++ : full++;
		assert_int_equal(full, step[i].full);
	}
	/* a rail has 2,048 slots, so that 8 of the last 16 wait, and count */
	assert_int_equal(c.channel.asked, 8);
	assert_int_equal(hits, CREDITS_MAX - 8);
	assert_int_equal(hits, c.channel.credits.count);
	assert_int_equal(control.evict->credits, hits);
	client_close(&c);
	assert_int_equal(control.evict->credits, 0);
}

static void credits_return_to_the_pool_when_their_channel_closes(void **state)
{
	struct ctl_counts counts;
	struct client c;

	for (unsigned round = 0; round < 3; round++) {
		client_open(&c, 0);
		put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 1500, .length = 4096});
		turns();
		assert_int_equal(c.channel.credits.count, 1500);
		client_close(&c);
		ctl_counts(&control, &counts);
		assert_int_equal(counts.credits, 0);
		assert_int_equal(pool_limbo(control.rail[0].pool), 1500);
		pass_time(LIMBO_MS * 1000000ull);
	}
}

/* ---- full and broken rings ------------------------------------------------------------------- */

static void a_full_done_ring_delays_further_ops_and_loses_none(void **state)
{
	const unsigned total = 3 * CTL_DONE_SLOTS / 2;
	struct client c;
	struct ctl_done done;
	unsigned put_ops = 0, answered = 0;

	client_open(&c, 0);
	while (put_ops < total) {
		while (put_ops < total && ring_room(&c.ctl, 1) >= 1)
			put(&c, (struct ctl_op){
					.kind = CTL_REMOVE, .cookie = put_ops++, .key = key_of(1)});
		turns();
		assert_true(ring_ready_now(&c.done) <= (int)CTL_DONE_SLOTS);
	}
	turns();
	assert_int_equal(ring_ready_now(&c.done), CTL_DONE_SLOTS);
	assert_true(control.ctl->stalled);
	/*
	 * a client that reads answers does not kick the control plane, so a timer must check the
	 * full ring again
	 */
	assert_true(control.ctl->timer_ns != 0);
	while (answered < total) {
		while (got(&c, &done))
			assert_int_equal(done.cookie, answered++);
		turns();
	}
	assert_false(got(&c, &done));
	assert_int_equal(c.channel.owed, 0);
	client_close(&c);
}

static void pending_answers_count_against_the_done_ring(void **state)
{
	struct client c;

	client_open(&c, 0);
	directory.hold = true;
	for (unsigned i = 0; i < CTL_DONE_SLOTS - 10; i++) {
		put(&c, (struct ctl_op){.kind = CTL_REMOVE, .cookie = i, .key = key_of(i)});
		if (i % 1000 == 0)
			turns();
	}
	turns();
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 11, .length = 4096});
	turns();
	assert_int_equal(c.channel.credits.count, 0);
	assert_true(control.ctl->stalled);
	directory_answer(OP_HIT);
	assert_int_equal(ring_ready_now(&c.done), CTL_DONE_SLOTS - 10);
	client_close(&c);
}

static void an_impossible_done_index_ends_the_session(void **state)
{
	struct client c;

	client_open(&c, 9);
	take(&c, 0, 4096);
	for (unsigned i = 0; i < CTL_DONE_SLOTS; i++) {
		put(&c, (struct ctl_op){.kind = CTL_REMOVE, .key = key_of(i)});
		if (i % 1000 == 0)
			turns();
	}
	turns();
	shm_store_release(&c.done.shared->head, 12345678);
	put(&c, (struct ctl_op){.kind = CTL_REMOVE, .key = key_of(1)});
	turns();
	assert_int_equal(broken_calls, 1);
	assert_int_equal(broken_channel, 9);
	assert_int_equal(control.counter[COUNTER_rings_broken], 1);
	assert_int_equal(control.evict->credits, 0);
	client_close(&c);
}

static void an_answer_for_a_closed_channel_is_dropped(void **state)
{
	struct ctl_done credit, done;
	struct client a, b;

	client_open(&a, 5);
	credit = take(&a, 0, 4096);
	directory.hold = true;
	put(&a, (struct ctl_op){.kind = CTL_PUBLISH,
			.count = 1,
			.key = key_of(1),
			.place = credit.place,
			.generation = credit.generation,
			.length = 4096});
	turns();
	assert_int_equal(directory.helds, 1);
	client_close(&a);
	client_open(&b, 5); /* channel b has the number that channel a had before */
	directory_answer(OP_HIT);
	turns();
	assert_false(got(&b, &done));
	assert_int_equal(b.channel.owed, 0);
	assert_int_equal(control.ctl->answers_used, 0);
	client_close(&b);
}

static void an_answer_after_publish_close_does_no_harm(void **state)
{
	struct ctl_done credit;
	struct client a;

	client_open(&a, 5);
	credit = take(&a, 0, 4096);
	directory.hold = true;
	put(&a, (struct ctl_op){.kind = CTL_PUBLISH,
			.count = 1,
			.key = key_of(1),
			.place = credit.place,
			.generation = credit.generation,
			.length = 4096});
	turns();
	ctl_close(&control);
	directory_answer(OP_CANCELLED);
	ctl_free(control.ctl);
	close(a.channel.wake);
	close(a.woken);
	free(a.memory);
	/* opened again, because the teardown closes it */
	assert_int_equal(ctl_open(&control), 0);
}

static void a_waiting_client_is_woken_once(void **state)
{
	struct client c;
	char bytes[8];

	client_open(&c, 0);
	take(&c, 0, 4096);
	assert_int_equal(recv(c.woken, bytes, sizeof(bytes), MSG_DONTWAIT), -1);
	c.header.client_waits = 1;
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 3, .length = 4096});
	turns();
	assert_int_equal(recv(c.woken, bytes, sizeof(bytes), MSG_DONTWAIT), 1);
	assert_int_equal(c.header.client_waits, 0);
	client_close(&c);
}

/* ---- stale and remove ------------------------------------------------------------------------ */

/* The directory judges it: test_directory.c. */
static void a_stale_report_is_passed_on(void **state)
{
	struct ctl_op op = {.kind = CTL_STALE, .key = key_of(1)};
	struct client c;

	client_open(&c, 0);
	store(&c, 1, 4096);
	op.ref = control.ref;
	op.place = directory.place;
	op.generation = directory.generation;
	put(&c, op);
	op.ref = 99;
	put(&c, op);
	turns();
	assert_int_equal(directory.stale, 2);
	client_close(&c);
}

static void removing_a_key_removes_its_page_and_is_answered(void **state)
{
	struct client c;

	client_open(&c, 0);
	store(&c, 1, 4096);
	put(&c, (struct ctl_op){.kind = CTL_REMOVE, .cookie = 8, .key = key_of(1)});
	assert_int_equal(get_one(&c).status, OP_HIT);
	assert_int_equal(index_count(control.index), 0);
	assert_int_equal(pool_pages(control.rail[0].pool), 0);
	assert_int_equal(directory.removed, 1);
	put(&c, (struct ctl_op){.kind = CTL_REMOVE});
	assert_int_equal(get_one(&c).status, OP_INVALID);
	client_close(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(every_requested_credit_has_a_done_of_its_own),
		TEST(a_published_page_is_indexed_and_sent_to_the_directory),
		TEST(a_credit_of_another_channel_cannot_be_used),
		TEST(a_publish_waits_for_owners_for_a_bounded_time),
		TEST(a_page_shorter_than_its_credit_is_held_with_its_length),
		TEST(hostile_places_and_generations_are_refused),
		TEST(a_page_longer_than_its_credit_is_refused_and_frees_the_slot),
		TEST(the_crc_of_a_publish_is_kept_in_the_head),
		TEST(publishing_a_key_again_returns_the_credit),
		TEST(publishing_a_key_with_another_length_replaces_the_page),
		TEST(impossible_credit_requests_are_invalid),
		TEST(a_channel_never_holds_more_credits_than_the_maximum),
		TEST(credits_return_to_the_pool_when_their_channel_closes),
		TEST(a_full_done_ring_delays_further_ops_and_loses_none),
		TEST(pending_answers_count_against_the_done_ring),
		TEST(an_impossible_done_index_ends_the_session),
		TEST(an_answer_for_a_closed_channel_is_dropped),
		TEST(an_answer_after_publish_close_does_no_harm),
		TEST(a_waiting_client_is_woken_once),
		TEST(a_stale_report_is_passed_on),
		TEST(removing_a_key_removes_its_page_and_is_answered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
