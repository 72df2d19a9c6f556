/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool without free slots: which requests wait, what is evicted for them, and which are refused.
 * And the table of credits. See ctl_world.h.
 */
#include "tests/unit/control/ctl_world.h"

/* ---- pool without free slots ----------------------------------------------------------------- */

static void fill(struct client *c, uint32_t length, unsigned pages)
{
	for (unsigned i = 0; i < pages; i++)
		store(c, 1000 + i, length);
}

static void a_full_pool_makes_a_request_wait_until_limbo_has_passed(void **state)
{
	const uint32_t length = 512u << 10;
	struct ctl_done done;
	unsigned credits = 0;
	struct client c;

	client_open(&c, 0);
	fill(&c, length, 12);
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 8, .length = length});
	turns();
	while (got(&c, &done))
		credits++;
	assert_true(credits < 8);
	assert_true(c.channel.owed == 8 - credits);
	pass_time(LIMBO_MS * 500000ull);
	assert_false(got(&c, &done));
	pass_time(LIMBO_MS * 500000ull);
	while (got(&c, &done)) {
		assert_int_equal(done.status, OP_HIT);
		credits++;
	}
	assert_int_equal(credits, 8);
	assert_int_equal(c.channel.asked, 0);
	client_close(&c);
}

static void a_request_that_is_granted_after_its_deadline_counts_as_late(void **state)
{
	const uint32_t length = 512u << 10;
	const uint64_t limbo_ns = LIMBO_MS * 1000000ull;
	struct ctl_done done;
	struct client c;

	client_open(&c, 0);
	fill(&c, length, 12);
	for (unsigned late = 0; late < 2; late++) {
		put(&c, (struct ctl_op){.kind = CTL_CREDIT,
				.count = 5,
				.length = length,
				.deadline_ns = now + limbo_ns + (late ? 0 : 2)});
		turns();
		pass_time(limbo_ns + 1);
		while (got(&c, &done))
			assert_int_equal(done.status, OP_HIT);
		assert_int_equal(c.channel.owed, 0);
		assert_int_equal(control.counter[COUNTER_credits_late], late);
		assert_int_equal(control.counter[COUNTER_credits_refused], 0);
	}
	client_close(&c);
}

static void a_waiting_request_evicts_only_once(void **state)
{
	const uint32_t length = 64u << 10;
	struct client a, b;
	uint64_t before;

	client_open(&a, 0);
	client_open(&b, 1);
	fill(&a, length, 120);
	pass_time(LIMBO_MS * 1000000ull);
	put(&a, (struct ctl_op){.kind = CTL_CREDIT, .count = 40, .length = length});
	turns();
	before = control.counter[COUNTER_pages_evicted];
	for (unsigned i = 0; i < 50; i++) {
		control.evict->rail[0].retry = true;
		turns();
	}
	assert_int_equal(control.counter[COUNTER_pages_evicted], before);
	put(&b, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = length});
	turns();
	assert_true(control.counter[COUNTER_pages_evicted] <= before + 1);
	pass_time(LIMBO_MS * 1000000ull);
	assert_int_equal(a.channel.owed, 0);
	assert_int_equal(b.channel.owed, 0);
	client_close(&a);
	client_close(&b);
}

static void a_pool_full_of_credits_answers_no_space_at_the_deadline(void **state)
{
	const uint32_t length = 1u << 20;
	struct client a, b;
	struct ctl_done done;

	client_open(&a, 0);
	client_open(&b, 1);
	put(&a, (struct ctl_op){.kind = CTL_CREDIT,
			.count = 100,
			.length = length,
			.deadline_ns = now + 5000000});
	turns();
	while (got(&a, &done))
		assert_int_equal(done.status, OP_HIT);
	put(&b, (struct ctl_op){.kind = CTL_CREDIT,
			.cookie = 5,
			.count = 3,
			.length = length,
			.deadline_ns = now + 100000000});
	pass_time(5000000);
	/* client a gets one answer for all slots that its credit request did not get */
	assert_true(got(&a, &done));
	assert_int_equal(done.status, OP_NO_SPACE);
	assert_false(got(&a, &done));
	assert_int_equal(a.channel.owed, 0);
	assert_false(got(&b, &done));
	pass_time(100000000);
	assert_true(got(&b, &done));
	assert_int_equal(done.status, OP_NO_SPACE);
	assert_int_equal(done.cookie, 5);
	assert_false(got(&b, &done));
	assert_int_equal(control.ctl->rail[0].first == NULL, true);
	client_close(&a);
	client_close(&b);
}

static void credits_of_a_closed_channel_serve_waiting_requests(void **state)
{
	const uint32_t length = 1u << 20;
	struct client a, b;
	struct ctl_done done;
	unsigned n = 0;

	client_open(&a, 0);
	client_open(&b, 1);
	put(&a, (struct ctl_op){.kind = CTL_CREDIT, .count = 8, .length = length});
	turns();
	put(&b, (struct ctl_op){.kind = CTL_CREDIT, .count = 2, .length = length});
	turns();
	assert_false(got(&b, &done));
	client_close(&a);
	pass_time(LIMBO_MS * 1000000ull);
	while (got(&b, &done))
		n += done.status == OP_HIT;
	assert_int_equal(n, 2);
	client_close(&b);
}

static void a_waiting_request_is_dropped_with_its_channel(void **state)
{
	const uint32_t length = 1u << 20;
	struct client a, b, c;
	struct ctl_done done;

	client_open(&a, 0);
	client_open(&b, 1);
	client_open(&c, 2);
	put(&a, (struct ctl_op){.kind = CTL_CREDIT, .count = 8, .length = length});
	turns();
	put(&b, (struct ctl_op){.kind = CTL_CREDIT, .count = 5, .length = length});
	turns();
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = length});
	turns();
	client_close(&b);
	client_close(&a);
	pass_time(LIMBO_MS * 1000000ull);
	assert_true(got(&c, &done));
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(control.evict->credits, 1);
	assert_null(control.ctl->rail[0].first);
	client_close(&c);
}

static void a_larger_page_takes_memory_from_smaller_ones(void **state)
{
	const uint32_t large = 1u << 20;
	struct client c;
	struct ctl_done done = {.kind = 0};
	bool found = false;

	client_open(&c, 0);
	for (unsigned i = 0; i < 2040; i++)
		store(&c, i, 4096);
	put(&c, (struct ctl_op){.kind = CTL_CREDIT,
			.cookie = 77,
			.count = 1,
			.length = large,
			.deadline_ns = now + 2000000000ull});
	turns();
	for (unsigned i = 0; i < 20 && !found; i++) {
		pass_time(LIMBO_MS * 1000000ull);
		while (got(&c, &done))
			found |= done.cookie == 77 && done.status == OP_HIT;
	}
	assert_true(found);
	assert_true(index_count(control.index) > 500);
	client_close(&c);
}

static void a_new_page_size_keeps_its_first_pages(void **state)
{
	const uint32_t large = 1u << 20;
	const struct page_key first = key_of(5000), second = key_of(5001);
	struct ctl_done done = {.kind = 0};
	struct client c;

	client_open(&c, 0);
	fill(&c, 4096, 1984);
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 2, .length = large});
	turns();
	for (unsigned i = 0; i < 2; i++) {
		while (!got(&c, &done) || done.kind != CTL_CREDIT)
			pass_time(LIMBO_MS * 1000000ull);
		assert_int_equal(done.status, OP_HIT);
		put(&c, (struct ctl_op){.kind = CTL_PUBLISH,
				.count = 1,
				.key = i ? second : first,
				.place = done.place,
				.generation = done.generation,
				.length = large});
		turns();
	}
	/* The request for a third large page evicts one of the two large pages, and not both. */
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = large});
	turns();
	while (!got(&c, &done) || done.kind != CTL_CREDIT)
		pass_time(LIMBO_MS * 1000000ull);
	assert_true(index_find(control.index, &first) || index_find(control.index, &second));
	client_close(&c);
}

static void eviction_keeps_a_reserve_of_free_slots(void **state)
{
	struct client c;
	unsigned waited = 0;

	client_open(&c, 0);
	for (unsigned i = 0; i < 6000; i++) {
		struct ctl_done done;

		put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = 4096});
		turns();
		if (!got(&c, &done)) {
			waited++;
			pass_time(LIMBO_MS * 1000000ull);
			assert_true(got(&c, &done));
		}
		assert_int_equal(
			publish_at(&c, i, done.place, done.generation, 4096).status, OP_HIT);
		/* 1 ms per slot: a reserve of 40 slots lasts 40 ms, longer than limbo */
		now += 1000000;
		clock_test_set(now);
	}
	assert_int_equal(waited, 0);
	assert_true(pool_free(control.rail[0].pool, 4096) + pool_limbo(control.rail[0].pool) >=
		    EVICT_AHEAD_MIN - 1);
	assert_true(control.counter[COUNTER_pages_evicted] >= 6000 - 2048);
	assert_true(index_count(control.index) > 2048 - 64 - 64);
	client_close(&c);
}

/*
 * Requests and publishes `per_ms` new pages of one unit in each of `ms` milliseconds. Returns the
 * number of pages that had to wait in the last quarter of that time.
 */
static unsigned waits_at_rate(struct client *c, unsigned per_ms, unsigned ms)
{
	struct ctl_done done, credit[100];
	unsigned key = 0, waits = 0;

	assert_true(per_ms <= sizeof(credit) / sizeof(credit[0]));
	for (unsigned i = 0; i < ms; i++) {
		put(c, (struct ctl_op){
			       .kind = CTL_CREDIT, .count = (uint16_t)per_ms, .length = 4096});
		turns();
		for (unsigned k = 0; k < per_ms; k++) {
			while (!got(c, &credit[k])) {
				waits += i >= ms / 4 * 3;
				pass_time(1000000);
			}
			assert_int_equal(credit[k].kind, CTL_CREDIT);
		}
		for (unsigned k = 0; k < per_ms; k++)
			put(c, (struct ctl_op){.kind = CTL_PUBLISH,
				       .count = 1,
				       .key = {{1, ++key}},
				       .place = credit[k].place,
				       .generation = credit[k].generation,
				       .length = 4096});
		turns();
		for (unsigned k = 0; k < per_ms; k++) {
			assert_true(got(c, &done));
			assert_int_equal(done.status, OP_HIT);
		}
		pass_time(1000000);
	}
	return waits;
}

static void the_reserve_follows_the_rate_up_to_half_of_the_pool(void **state)
{
	const uint32_t slots = POOL_BYTES / PAGE_UNIT;
	struct client c;

	client_open(&c, 0);
	/* 45 pages per ms: 900 of 2,048 slots rest in limbo */
	assert_int_equal(waits_at_rate(&c, 45, 1000), 0);
	assert_true(index_count(control.index) >= slots / 2 - 45);
	client_close(&c);
}

/* The demand of a burst evicts nothing while each request finds a free slot. */
static void a_pool_that_has_room_is_filled_first(void **state)
{
	struct client c;

	client_open(&c, 0);
	/* 1,800 of 2,048 slots, so fast that half of the pool is needed in one limbo period */
	assert_int_equal(waits_at_rate(&c, 60, 30), 0);
	assert_int_equal(index_count(control.index), 1800);
	client_close(&c);
}

static void the_reserve_is_not_larger_than_the_rate_needs(void **state)
{
	const uint32_t slots = POOL_BYTES / PAGE_UNIT;
	struct client c;

	client_open(&c, 0);
	/* 10 pages per ms: 200 slots rest in limbo; the reserve is 1.5 times that */
	assert_int_equal(waits_at_rate(&c, 10, 1000), 0);
	assert_true(index_count(control.index) > slots - 400 - 20);
	client_close(&c);
}

/* A slot counts once, when it is granted, and not again when its page is published. */
static void demand_is_one_and_a_half_times_the_slots_granted_in_a_limbo_period(void **state)
{
	const struct evict_class *class = evict_class_of(control.evict, 0, 4096);
	struct client c;

	client_open(&c, 0);
	take(&c, 0, 4096); /* begins a period */
	for (unsigned period = 1; period <= 3; period++) {
		for (unsigned i = 1; i < 100 * period; i++)
			store(&c, period * 1000 + i, 4096);
		pass_time(LIMBO_MS * 1000000ull);
		store(&c, period * 1000, 4096);
		assert_int_equal(class->demand, 100 * period * 3 / 2);
	}
	/*
	 * 200 slots in twice the time are a demand of 150: it falls by 1/8 of the difference. After
	 * a pause it is still there for the next burst.
	 */
	for (unsigned i = 1; i < 200; i++)
		store(&c, 9000 + i, 4096);
	pass_time(2 * LIMBO_MS * 1000000ull);
	store(&c, 9000, 4096);
	assert_int_equal(class->demand, 450 - 38);
	pass_time(100 * LIMBO_MS * 1000000ull);
	store(&c, 9500, 4096);
	assert_int_equal(class->demand, 412 - 52);
	for (unsigned i = 0; i < 200; i++) {
		pass_time(LIMBO_MS * 1000000ull);
		store(&c, 9501 + i, 4096);
	}
	assert_int_equal(class->demand, 1);
	client_close(&c);
}

/* Clients that wait for room take fewer slots than they need. */
static void a_period_in_which_requests_waited_shows_twice_the_demand(void **state)
{
	const struct evict_class *class = evict_class_of(control.evict, 0, 4096);
	struct ctl_done done;
	struct client c;

	client_open(&c, 0);
	fill(&c, 4096, POOL_BYTES / PAGE_UNIT);
	pass_time(1000 * LIMBO_MS * 1000000ull);
	/* begins a period; the demand of the one that it ends is next to nothing */
	take(&c, 0, 4096);
	assert_true(class->demand < 10);
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .count = 298, .length = 4096});
	turns();
	assert_int_not_equal(class->waiting, 0); /* the reserve is smaller */
	for (unsigned i = 0; i < 298; i++) {
		while (!got(&c, &done))
			pass_time(LIMBO_MS * 100000ull);
		assert_int_equal(done.status, OP_HIT);
	}
	take(&c, 0, 4096);
	/* 300 slots in little more than a limbo period */
	assert_in_range(class->demand, 300 * 2, 300 * 3);
	client_close(&c);
}

/* ---- table of credits ------------------------------------------------------------------------ */

/* The pool has 16 slots of this length at most, some of which are kept free. */
static void a_user_holds_at_most_half_of_a_pool_while_another_one_stores(void **state)
{
	const uint32_t length = 512u << 10;
	const uint16_t half = (uint16_t)(pool_memory(control.rail[0].pool)->bytes / 2 / length);
	struct client a, b, other;
	struct ctl_done done;

	client_open(&a, 0);
	client_open(&b, 1);
	client_open(&other, 2);
	a.channel.user = b.channel.user = 7;
	put(&a, (struct ctl_op){.kind = CTL_CREDIT, .count = half, .length = length});
	turns();
	for (unsigned i = 0; i < half; i++) {
		assert_true(got(&a, &done));
		assert_int_equal(done.status, OP_HIT);
	}
	put(&b, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = length});
	turns();
	assert_true(got(&b, &done));
	assert_int_equal(done.status, OP_NO_SPACE);
	assert_int_equal(control.counter[COUNTER_clients_denied], 1);
	put(&other, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = length});
	turns();
	assert_true(got(&other, &done));
	assert_int_equal(done.status, OP_HIT);
	client_close(&other);
	/* alone again; what has no room waits */
	put(&b, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = length});
	turns();
	assert_true(got(&b, &done) ? done.status == OP_HIT : b.channel.asked == 1);
	assert_int_equal(control.counter[COUNTER_clients_denied], 1);
	client_close(&a);
	/* where others may come, and pages have one byte, but slots have a unit */
	b.channel.others = true;
	put(&b, (struct ctl_op){.kind = CTL_CREDIT,
			.count = (uint16_t)(half * length / PAGE_UNIT + 1),
			.length = 1});
	turns();
	assert_true(got(&b, &done));
	while (done.status == OP_HIT)
		assert_true(got(&b, &done));
	assert_int_equal(done.status, OP_NO_SPACE);
	assert_int_equal(control.counter[COUNTER_clients_denied], 2);
	client_close(&b);
}

static void the_table_of_credits_agrees_with_a_plain_array(void **state)
{
	enum { PLACES = 300 };
	struct credits table = {0};
	/* per place: generation of the credit that the test holds; 0: it holds none */
	uint32_t held[PLACES] = {0};
	uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 0) : 12345;

	printf("seed %llu\n", (unsigned long long)seed);
	for (unsigned i = 0; i < 200000; i++) {
		uint32_t at, generation, place;
		struct credit credit;

		seed = map_mix(seed + i);
		at = (uint32_t)(seed % PLACES);
		place = place_make(at % 16, at * 3);
		generation = (uint32_t)(seed >> 40) % 4 + 1;
		if (!held[at]) {
			assert_int_equal(credits_reserve(&table, 1), 0);
			credit = (struct credit){place, generation, at + 1};
			credits_add(&table, &credit);
			held[at] = generation;
		} else if (held[at] == generation) {
			assert_true(credits_take(&table, place, generation, &credit));
			assert_int_equal(credit.length, at + 1);
			held[at] = 0;
		} else {
			assert_false(credits_take(&table, place, generation, &credit));
		}
		at = (uint32_t)(seed >> 20) % PLACES;
		place = place_make(at % 16, at * 3);
		assert_int_equal(held[at] != 0, credits_find(&table, place, held[at]) != NULL);
	}
	for (unsigned rail = 0; rail < PLACE_RAILS; rail++) {
		uint64_t bytes = 0;

		for (uint32_t at = rail; at < PLACES; at += 16)
			bytes += held[at] ? PAGE_UNIT : 0;
		assert_int_equal(table.bytes[rail], bytes);
	}
	credits_free(&table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_full_pool_makes_a_request_wait_until_limbo_has_passed),
		TEST(a_request_that_is_granted_after_its_deadline_counts_as_late),
		TEST(a_waiting_request_evicts_only_once),
		TEST(a_pool_full_of_credits_answers_no_space_at_the_deadline),
		TEST(credits_of_a_closed_channel_serve_waiting_requests),
		TEST(a_waiting_request_is_dropped_with_its_channel),
		TEST(a_larger_page_takes_memory_from_smaller_ones),
		TEST(a_new_page_size_keeps_its_first_pages),
		TEST(eviction_keeps_a_reserve_of_free_slots),
		TEST(the_reserve_follows_the_rate_up_to_half_of_the_pool),
		TEST(a_pool_that_has_room_is_filled_first),
		TEST(the_reserve_is_not_larger_than_the_rate_needs),
		TEST(a_period_in_which_requests_waited_shows_twice_the_demand),
		TEST(demand_is_one_and_a_half_times_the_slots_granted_in_a_limbo_period),
		TEST(a_user_holds_at_most_half_of_a_pool_while_another_one_stores),
		TEST(the_table_of_credits_agrees_with_a_plain_array),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
