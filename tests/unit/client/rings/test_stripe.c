/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stripe_page() chooses the rail of a page: the home rail, or another one if the home rail has a
 * backlog, is full, out of use or slow. The tests need only op rings, no engine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/rings/rings.h"
#include "engine/client/attach/session.h"

#define PAGE (128u << 10)
#define US 1000ull

static struct pc_channel *ch;
static struct client_session session;
static struct status_segment *status;

static int setup(void **state)
{
	ch = calloc(1, sizeof(*ch));
	status = aligned_alloc(64, sizeof(*status));
	memset(status, 0, sizeof(*status));
	session.status = status;
	ch->session = &session;
	ch->rails = 4;
	for (uint32_t r = 0; r < ch->rails; r++) {
		void *ring = aligned_alloc(64, ring_bytes(OP_RING_SLOTS, sizeof(struct run_line)));

		memset(ring, 0, sizeof(struct ring_shared));
		ring_producer_init(&ch->rail[r].ops, ring, OP_RING_SLOTS, sizeof(struct run_line));
	}
	return 0;
}

static int teardown(void **state)
{
	for (uint32_t r = 0; r < ch->rails; r++)
		free(ch->rail[r].ops.shared);
	free(status);
	free(ch);
	return 0;
}

static void give(uint32_t rail, uint32_t bytes, uint64_t now_ns)
{
	ch->now_ns = now_ns;
	stripe_give(ch, rail, bytes);
}

static void take(uint32_t rail, uint32_t bytes, uint64_t now_ns)
{
	ch->now_ns = now_ns;
	stripe_take(ch, rail, bytes);
}

static uint32_t choose(uint32_t near, uint32_t bytes, uint16_t tried, uint64_t now_ns)
{
	struct stripe s = {.peer = 7, .tried = tried, .slots = 2, .bytes = bytes, .least = bytes};

	ch->now_ns = now_ns;
	return stripe_page(ch, &s, place_make(near, 3));
}

static void a_page_goes_to_the_rail_of_its_place(void **state)
{
	for (uint32_t r = 0; r < 8; r++)
		assert_int_equal(choose(r, PAGE, 0, 1), r % 4);
}

static void a_rail_with_a_backlog_gets_fewer_pages(void **state)
{
	ch->rail[2].bytes = SLICE_BYTES;
	assert_int_equal(choose(2, PAGE, 0, 1), 2);
	ch->rail[2].bytes = SLICE_BYTES + 1;
	assert_int_not_equal(choose(2, PAGE, 0, 1), 2);
	for (uint32_t r = 0; r < 4; r++)
		ch->rail[r].bytes = SLICE_BYTES + (r == 1 ? 0 : 5);
	assert_int_equal(choose(2, PAGE, 0, 1), 2);
}

/*
 * A scan of all rails caches the smallest backlog in ch->least. A backlog that becomes smaller than
 * that must lower ch->least.
 */
static void a_rail_that_catches_up_gets_more_pages(void **state)
{
	for (uint32_t r = 0; r < 4; r++)
		give(r, 5 * SLICE_BYTES, 1);
	assert_int_equal(choose(2, PAGE, 0, 1), 2);
	take(1, 2 * SLICE_BYTES - 1, 1);
	assert_int_equal(choose(2, PAGE, 0, 1), 1);
	assert_int_equal(choose(0, PAGE, 0, 1), 1);
	give(1, SLICE_BYTES, 1);
	assert_int_equal(choose(2, PAGE, 0, 1), 2);
}

/* READs that are of no home rail: on the rail next in turn, unless it has a backlog. */
static void a_small_read_goes_to_the_rail_with_the_shortest_backlog(void **state)
{
	struct stripe s = {.peer = 7, .slots = 2};

	for (unsigned r = 0; r < 8; r++)
		assert_int_equal(stripe_small(ch, &s), r % 4);
	for (unsigned r = 0; r < 4; r++)
		ch->rail[r].bytes = SLICE_BYTES + (r == 2 ? 0 : 1);
	for (unsigned r = 0; r < 4; r++)
		assert_int_equal(stripe_small(ch, &s), 2);
}

static void a_rail_that_failed_or_is_out_of_use_is_the_last_choice(void **state)
{
	ch->now_ns = 100;
	stripe_rest(ch, 0);
	assert_int_not_equal(choose(0, PAGE, 0, 99 + RAIL_REST_NS), 0);
	assert_int_equal(choose(0, PAGE, 0, 100 + RAIL_REST_NS), 0);
	status->rails_out = 1;
	assert_int_not_equal(choose(0, PAGE, 0, 100 + RAIL_REST_NS), 0);
	status->peer_rails_out[7] = 8;
	status->peer_rails_out[6] = 6; /* another peer: no effect on peer 7 */
	assert_int_equal(choose(3, PAGE, 4, 100 + RAIL_REST_NS), 1);
	assert_true(stripe_again(ch, 7, 4));
	assert_false(stripe_again(ch, 7, 6));
	assert_int_equal(choose(3, PAGE, 6, 100 + RAIL_REST_NS), 3);
	assert_int_equal(choose(3, PAGE, 15, 100 + RAIL_REST_NS), CLIENT_NONE);
}

static void a_page_waits_for_a_full_rail_rather_than_one_out_of_use(void **state)
{
	status->rails_out = 0xe;
	ch->rail[0].bytes = STRIPE_BYTES;
	assert_int_equal(choose(0, PAGE, 0, 1), CLIENT_NONE);
	status->rails_out = 0xf;
	assert_int_not_equal(choose(0, PAGE, 0, 1), CLIENT_NONE);
}

static void a_full_rail_gets_no_page(void **state)
{
	status->rails_out = 0xc;
	ch->rail[0].in_flight = DONE_RING_SLOTS;
	assert_int_equal(choose(0, PAGE, 0, 1), 1);
	ch->rail[1].ops.tail += OP_RING_SLOTS - 1;
	assert_int_equal(choose(0, PAGE, 0, 1), CLIENT_NONE);
	ch->rail[1].ops.tail--;
	assert_int_equal(choose(0, PAGE, 0, 1), 1);
	ch->rail[1].bytes = STRIPE_BYTES - PAGE + 1;
	assert_int_equal(choose(0, PAGE, 0, 1), CLIENT_NONE);
	assert_int_equal(choose(0, PAGE - 1, 0, 1), 1);
	/* A READ of a bucket has 0 bytes here: it does not count as backlog. */
	assert_int_equal(choose(0, 0, 0, 1), 1);
	ch->rail[1].bytes = 0;
	/* An idle rail accepts a page of any length. */
	assert_int_equal(choose(0, PAGE_BYTES_MAX, 0, 1), 1);
}

static void a_run_must_fit_the_budget_even_of_an_idle_rail(void **state)
{
	struct stripe s = {.slots = 2, .bytes = STRIPE_BYTES, .least = PAGE};

	status->rails_out = 0xe;
	assert_int_equal(stripe_page(ch, &s, place_make(0, 3)), 0);
	s.bytes = STRIPE_BYTES + PAGE;
	assert_int_equal(stripe_page(ch, &s, place_make(0, 3)), CLIENT_NONE);
	s.bytes = PAGE;
	ch->rail[0].bytes = STRIPE_BYTES - PAGE;
	assert_int_equal(stripe_page(ch, &s, place_make(0, 3)), 0);
	s.bytes = 2 * PAGE;
	assert_int_equal(stripe_page(ch, &s, place_make(0, 3)), CLIENT_NONE);
	/* the pages of a batch are shared by the rails that are in use */
	assert_int_equal(stripe_rails(ch, stripe_out(ch, 0)), 1);
	status->rails_out = 0xc;
	assert_int_equal(stripe_rails(ch, stripe_out(ch, 0)), 2);
	status->rails_out = 0xf;
	assert_int_equal(stripe_rails(ch, stripe_out(ch, 0)), 4);
}

/*
 * Simulates `us` microseconds. Rail r moves rate[r] bytes per microsecond and gets all pages that
 * stripe_page() allows. given[r]: bytes that rail r got.
 */
static void run(const uint32_t rate[4], unsigned us, uint64_t *now_ns, uint64_t given[4])
{
	uint64_t carry[4] = {0};

	memset(given, 0, 4 * sizeof(*given));
	for (unsigned t = 0, near = 0; t < us; t++) {
		uint32_t r;

		while ((r = choose(near, PAGE, 0, *now_ns)) != CLIENT_NONE) {
			give(r, PAGE, *now_ns);
			given[r] += PAGE;
			near = (near + 1) % 4;
		}
		*now_ns += US;
		for (r = 0; r < 4; r++) {
			carry[r] += rate[r];
			for (; carry[r] >= PAGE && ch->rail[r].bytes; carry[r] -= PAGE)
				take(r, PAGE, *now_ns);
			if (!ch->rail[r].bytes)
				carry[r] = 0;
		}
	}
}

static void each_rail_gets_work_in_proportion_to_its_bandwidth(void **state)
{
	static const uint32_t rate[4] = {50000, 50000, 5000, 25000};
	static const uint32_t even[4] = {50000, 50000, 50000, 50000};
	uint64_t now_ns = 1000, given[4];

	run(rate, 2000, &now_ns, given); /* until the backlogs are full */
	run(rate, 20000, &now_ns, given);
	assert_in_range(given[0] * 100 / given[1], 90, 110);
	assert_in_range(given[3] * 100 / given[0], 40, 60);
	assert_in_range(given[2] * 100 / given[0], 7, 15);
	run(even, 20000, &now_ns, given);
	assert_in_range(given[2] * 100 / given[0], 90, 110);
}

/* stripe_home() is a short way: what it takes, stripe_choose() takes too. */
static void the_short_way_takes_the_same_rail(void **state)
{
	uint64_t dice = (uint64_t)time(NULL), taken = 0;

	print_message("seed %lu\n", dice);
	for (unsigned n = 0; n < 20000; n++) {
		uint32_t near = (uint32_t)map_mix(dice++) % 4, out = 0, pages;
		struct stripe s = {.slots = 2, .least = PAGE};

		for (uint32_t r = 0; r < 4; r++) {
			ch->rail[r].bytes = map_mix(dice++) % 5 * PAGE * 4;
			out |= (uint32_t)(map_mix(dice++) % 8 == 0) << r;
		}
		ch->least = 0;
		choose(near, PAGE, 0, 1); /* computes ch->least, or leaves a lower one */
		pages = 1 + (uint32_t)map_mix(dice++) % 8;
		s.bytes = pages * PAGE;
		if (!stripe_home(ch, near, out, s.bytes, pages > 1))
			continue;
		taken++;
		assert_int_equal(stripe_choose(ch, &s, out, place_make(near, 3)), near);
	}
	assert_in_range(taken, 2000, 15000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_page_goes_to_the_rail_of_its_place),
		TEST(a_rail_with_a_backlog_gets_fewer_pages),
		TEST(a_rail_that_catches_up_gets_more_pages),
		TEST(a_small_read_goes_to_the_rail_with_the_shortest_backlog),
		TEST(a_rail_that_failed_or_is_out_of_use_is_the_last_choice),
		TEST(a_page_waits_for_a_full_rail_rather_than_one_out_of_use),
		TEST(a_full_rail_gets_no_page),
		TEST(a_run_must_fit_the_budget_even_of_an_idle_rail),
		TEST(each_rail_gets_work_in_proportion_to_its_bandwidth),
		TEST(the_short_way_takes_the_same_rail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
