/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of this host's clients for pages on the disks of other hosts. */
#include "tests/unit/control/ctl_world.h"

#define PAGE 16384u
#define SECOND 1000000000ull

static struct client client;

static int begin(void **state)
{
	setup(state);
	client_open(&client, 3);
	return 0;
}

static int end(void **state)
{
	client_close(&client);
	return teardown(state);
}

static void events(void)
{
	event_base_loop(control.base, EVLOOP_NONBLOCK);
	turns();
}

static void ask(uint64_t n, uint32_t ref, uint64_t timeout_ns)
{
	put(&client, (struct ctl_op){.kind = CTL_PROMOTE,
			     .cookie = n,
			     .key = key_of(n),
			     .length = PAGE,
			     .ref = ref,
			     .deadline_ns = now + timeout_ns});
	turns();
}

static struct ctl_done answered(uint64_t n)
{
	struct ctl_done done = {.kind = 0};

	assert_true(got(&client, &done));
	assert_int_equal(done.kind, CTL_PROMOTE);
	assert_int_equal(done.cookie, n);
	return done;
}

static void not_answered(void)
{
	struct ctl_done done;

	assert_false(got(&client, &done));
}

/* The peer answers the request `at` of the last message. Returns what the handler returns. */
static bool answer_from(
	struct rpc_link *link, unsigned at, uint32_t result, uint32_t place, uint32_t generation)
{
	Pc__PromotedPage page = PC__PROMOTED_PAGE__INIT, *pages = &page;
	Pc__Promoted promoted = PC__PROMOTED__INIT;
	bool rc;

	page.id = peer.asked[at].id;
	page.result = result;
	page.place = place;
	page.generation = generation;
	promoted.n_pages = 1;
	promoted.pages = &pages;
	rc = promote_serve_promoted(&control, link, &promoted);
	turns();
	return rc;
}

static bool answer(unsigned at, uint32_t result, uint32_t place, uint32_t generation)
{
	return answer_from(&peer.link, at, result, place, generation);
}

static void requests_of_one_turn_are_one_message(void **state)
{
	struct ctl_done done;

	for (unsigned n = 1; n <= 3; n++)
		ask(n, PEER_REF, SECOND);
	events();
	assert_int_equal(peer.promotes, 1);
	assert_int_equal(peer.pages, 3);
	for (unsigned n = 0; n < 3; n++) {
		struct page_key key = key_of(n + 1);

		assert_int_equal(peer.asked[n].key0, key.word[0]);
		assert_int_equal(peer.asked[n].key1, key.word[1]);
		assert_int_equal(peer.asked[n].bytes, PAGE);
		assert_in_range(peer.asked[n].timeout_ms, 900, 1000);
	}
	not_answered();
	assert_true(answer(1, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(1, 5), 9));
	done = answered(2);
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(done.place, place_make(1, 5));
	assert_int_equal(done.generation, 9);
	assert_true(answer(0, PC__PROMOTE_RESULT__PROMOTE_GONE, 0, 0));
	assert_int_equal(answered(1).status, OP_MISS);
	assert_true(answer(2, PC__PROMOTE_RESULT__PROMOTE_OTHER_LENGTH, 0, 0));
	assert_int_equal(answered(3).status, OP_INVALID);
	assert_int_equal(promote_waiting(&control), 0);
	assert_int_equal(control.counter[COUNTER_disk_asks], 3);
	assert_int_equal(control.counter[COUNTER_disk_asks_failed], 2);
}

static void a_request_ends_at_its_deadline_and_a_late_answer_is_nothing(void **state)
{
	ask(1, PEER_REF, SECOND);
	events();
	pass_time(SECOND + 1);
	while (promote_waiting(&control))
		event_base_loop(control.base, EVLOOP_ONCE);
	turns();
	assert_int_equal(answered(1).status, OP_TIMEOUT);
	/* the record has another request now: the late answer is not its answer */
	ask(2, PEER_REF, SECOND);
	assert_true(answer(0, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(0, 1), 1));
	not_answered();
	assert_int_equal(promote_waiting(&control), 1);
}

static void the_end_of_the_link_ends_its_requests(void **state)
{
	ask(1, PEER_REF, SECOND);
	events();
	ask(2, PEER_REF, SECOND); /* not sent yet */
	promote_link_down(&control, &peer.link);
	turns();
	assert_int_equal(answered(1).status, OP_PEER_DOWN);
	assert_int_equal(answered(2).status, OP_PEER_DOWN);
	events();
	assert_int_equal(peer.promotes, 1);
}

static void a_link_without_room_refuses(void **state)
{
	peer.full = true;
	ask(1, PEER_REF, SECOND);
	events();
	assert_int_equal(answered(1).status, OP_PEER_DOWN);
	assert_int_equal(promote_waiting(&control), 0);
}

static void a_holder_that_is_unknown_is_not_asked(void **state)
{
	ask(1, PEER_REF + 1, SECOND);
	assert_int_equal(answered(1).status, OP_PEER_DOWN);
	events();
	assert_int_equal(peer.promotes, 0);
}

static void requests_that_make_no_sense_are_refused(void **state)
{
	put(&client,
		(struct ctl_op){.kind = CTL_PROMOTE, .cookie = 1, .ref = PEER_REF, .length = PAGE});
	turns();
	assert_int_equal(answered(1).status, OP_PEER_DOWN);
	put(&client, (struct ctl_op){.kind = CTL_PROMOTE,
			     .cookie = 2,
			     .ref = PEER_REF,
			     .key = key_of(2),
			     .length = UINT32_MAX});
	turns();
	assert_int_equal(answered(2).status, OP_PEER_DOWN);
	put(&client, (struct ctl_op){
			     .kind = CTL_PROMOTE, .cookie = 3, .ref = PEER_REF, .key = key_of(2)});
	turns();
	assert_int_equal(answered(3).status, OP_PEER_DOWN);
	put(&client, (struct ctl_op){.kind = CTL_PROMOTE,
			     .cookie = 4,
			     .count = PROMOTE_KINDS,
			     .key = key_of(4),
			     .length = PAGE});
	turns();
	assert_int_equal(answered(4).status, OP_INVALID);
	assert_int_equal(promote_waiting(&control), 0);
}

static void answers_that_break_a_rule_are_refused(void **state)
{
	struct rpc_link other = peer.link;
	Pc__Promoted none = PC__PROMOTED__INIT;

	ask(1, PEER_REF, SECOND);
	events();
	other.member = &peer.member;
	assert_false(answer(0, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(RAILS, 1), 1));
	assert_false(answer(0, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(PLACE_DISK, 1), 1));
	assert_false(answer(0, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(0, 1), 0));
	assert_false(promote_serve_promoted(&control, &peer.link, &none));
	not_answered();
	/* an answer on another link, and one to nothing */
	assert_true(answer_from(&other, 0, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(0, 1), 1));
	peer.asked[0].id ^= UINT64_MAX;
	assert_true(answer(0, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(0, 1), 1));
	not_answered();
	peer.asked[0].id ^= UINT64_MAX;
	assert_true(answer(0, 77, 0, 0));
	assert_int_equal(answered(1).status, OP_TIMEOUT);
}

static void a_hint_waits_for_nothing(void **state)
{
	put(&client, (struct ctl_op){.kind = CTL_WANT, .key = key_of(1), .ref = PEER_REF});
	turns();
	events();
	assert_int_equal(peer.promotes, 1);
	assert_int_equal(peer.asked[0].id, 0);
	assert_int_equal(promote_waiting(&control), 0);
	not_answered();
	put(&client, (struct ctl_op){.kind = CTL_WANT, .key = key_of(1), .ref = control.ref});
	put(&client, (struct ctl_op){.kind = CTL_WANT, .key = key_of(1), .ref = 0});
	put(&client, (struct ctl_op){.kind = CTL_WANT, .ref = PEER_REF});
	turns();
	events();
	assert_int_equal(peer.promotes, 1);
}

static void a_client_that_leaves_is_not_answered(void **state)
{
	ask(1, PEER_REF, SECOND);
	events();
	client_close(&client);
	assert_true(answer(0, PC__PROMOTE_RESULT__PROMOTE_HERE, place_make(0, 1), 1));
	client_open(&client, 3);
	not_answered();
}

static void more_requests_than_fit_are_refused(void **state)
{
	static struct client more[PROMOTE_ASKS_MAX / (CTL_RING_SLOTS / 2) + 1];
	unsigned clients = sizeof(more) / sizeof(more[0]), refused = 0;

	for (unsigned c = 0; c < clients; c++) {
		client_open(&more[c], 10 + c);
		for (unsigned n = 0; n < CTL_RING_SLOTS / 2; n++) {
			struct ctl_done done;

			put(&more[c], (struct ctl_op){.kind = CTL_PROMOTE,
					      .key = key_of(n),
					      .length = PAGE,
					      .ref = PEER_REF,
					      .deadline_ns = now + SECOND});
			turns();
			refused += got(&more[c], &done);
		}
	}
	assert_int_equal(promote_waiting(&control), PROMOTE_ASKS_MAX);
	assert_int_equal(refused, CTL_RING_SLOTS / 2 * clients - PROMOTE_ASKS_MAX);
	for (unsigned c = 0; c < clients; c++)
		client_close(&more[c]);
}

#define PROMOTE_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMOTE_TEST(requests_of_one_turn_are_one_message),
		PROMOTE_TEST(a_request_ends_at_its_deadline_and_a_late_answer_is_nothing),
		PROMOTE_TEST(the_end_of_the_link_ends_its_requests),
		PROMOTE_TEST(a_link_without_room_refuses),
		PROMOTE_TEST(a_holder_that_is_unknown_is_not_asked),
		PROMOTE_TEST(requests_that_make_no_sense_are_refused),
		PROMOTE_TEST(answers_that_break_a_rule_are_refused),
		PROMOTE_TEST(a_hint_waits_for_nothing),
		PROMOTE_TEST(a_client_that_leaves_is_not_answered),
		PROMOTE_TEST(more_requests_than_fit_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
