/* SPDX-License-Identifier: Apache-2.0 */
/* Spill: pages are written before they are evicted. */
#include "tests/unit/control/tier_world.h"

static void pages_are_written_before_they_are_evicted(void **state)
{
	unsigned pages;
	uint64_t gone = 0;

	(void)state;
	pages = fill_pools(100, true);
	assert_true(control.counter[COUNTER_pages_evicted] > 0);
	assert_int_equal(control.counter[COUNTER_disk_drops], 0);
	for (unsigned n = 100; n < 100 + pages; n++) {
		gone += !in_memory(n);
		assert_true(in_memory(n) || fake.has[n]);
	}
	assert_int_equal(gone, control.counter[COUNTER_pages_evicted]);
	/* Ahead of the hand, not all that there is. */
	assert_in_range(control.counter[COUNTER_disk_spills], gone, pages - 1);
}

static void no_more_than_the_budget_is_being_written(void **state)
{
	unsigned most = (unsigned)(control.tier->spill_bytes_max / PAGE);

	(void)state;
	assert_in_range(most, 2, 16);
	fill_pools(100, false);
	assert_int_equal(count(DISK_WRITE), most);
	end_one(DISK_WRITE, DISK_OK);
	assert_int_equal(count(DISK_WRITE), most);
}

static void a_disk_that_hangs_costs_its_budget_and_pages_are_dropped(void **state)
{
	unsigned most = (unsigned)(control.tier->spill_bytes_max / PAGE), evicted;

	(void)state;
	fill_pools(100, false);
	for (unsigned n = 0; n < 600; n++) {
		put(&client, (struct ctl_op){.kind = CTL_CREDIT,
				     .rail = (uint8_t)(n % RAILS),
				     .count = 1,
				     .length = PAGE,
				     .deadline_ns = now + SECOND});
		for (unsigned i = 0; i < 50; i++) {
			struct ctl_done done;

			wait_for(LIMBO_MS * 1000000ull);
			if (!got(&client, &done))
				continue;
			assert_int_equal(done.status, OP_HIT);
			for (unsigned k = 0; k < fake.requests; k++)
				assert_ptr_not_equal(bytes_at(done.place), fake.request[k]->data);
			put(&client, (struct ctl_op){.kind = CTL_PUBLISH,
					     .key = key_of(1000 + n),
					     .place = done.place,
					     .generation = done.generation,
					     .length = PAGE});
			get_one(&client);
			break;
		}
	}
	evicted = (unsigned)control.counter[COUNTER_pages_evicted];
	assert_true(evicted > 500);
	/* A path that hangs is out of service after its time-out; another one may get as much. */
	assert_in_range(count(DISK_WRITE), most, 32 * most);
	assert_true(control.tier->spill_bytes <= control.tier->spill_bytes_max);
	assert_true(control.counter[COUNTER_disk_drops] + count(DISK_WRITE) >= evicted);
}

/* A page that is being written and not evicted yet. */
static struct tier_spill *spill_in_memory(void)
{
	struct tier_spill *spill;

	for (;;) {
		TAILQ_FOREACH (spill, &control.tier->spills, next)
			if (in_memory(number_of(&spill->request.key)))
				return spill;
		end_one(DISK_WRITE, DISK_OK);
	}
}

static void a_page_evicted_while_it_is_written_is_read_when_it_is_on_disk(void **state)
{
	struct tier_spill *spill;
	uint64_t n;

	(void)state;
	fill_pools(100, false);
	spill = spill_in_memory();
	n = number_of(&spill->request.key);
	publish_take_away(control.publish, &spill->request.key, spill->place, spill->generation);
	assert_false(in_memory(n));
	request(n, true, SECOND);
	assert_int_equal(answered(n).status, OP_HIT);
	request(n, false, 10 * SECOND);
	not_answered();
	assert_int_equal(count(DISK_READ), 0);
	end_request(&spill->request, DISK_OK);
	for (unsigned i = 0; i < 100 && !count(DISK_READ); i++)
		wait_for(LIMBO_MS * 1000000ull);
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(answered(n).status, OP_HIT);
}

static void a_write_that_fails_leaves_the_page_as_it_was(void **state)
{
	struct tier_spill *spill;
	uint32_t place, generation;
	uint64_t drops, spills;

	(void)state;
	fill_pools(100, false);
	spill = spill_in_memory();
	drops = control.counter[COUNTER_disk_drops];
	spills = control.counter[COUNTER_disk_spills];
	place = spill->place;
	generation = spill->generation;
	end_request(&spill->request, DISK_OFFLINE);
	assert_false(pool_clean(control.rail[place_rail(place)].pool, place, generation));
	assert_int_equal(control.counter[COUNTER_disk_spills], spills);
	assert_int_equal(control.counter[COUNTER_disk_drops], drops);
}

static void an_orderly_stop_writes_the_pages_that_are_only_in_memory(void **state)
{
	uint64_t spills;
	unsigned on_disk = 0;

	(void)state;
	for (unsigned n = 0; n < 20; n++)
		store(&client, n, PAGE);
	assert_int_equal(control.counter[COUNTER_disk_spills], 0);
	fake.works = true;
	tier_close(&control);
	spills = control.counter[COUNTER_disk_spills];
	for (unsigned n = 0; n < 20; n++)
		on_disk += fake.has[n];
	assert_int_equal(on_disk, 20);
	assert_int_equal(spills, 20);
	/* Clean pages are not written again. */
	assert_int_equal(tier_open(&control), 0);
	while (control.tier->state == TIER_OPENING)
		event_base_loop(control.base, EVLOOP_ONCE);
	tier_close(&control);
	assert_int_equal(control.counter[COUNTER_disk_spills], spills);
}

static void a_stop_does_not_wait_for_a_disk_that_hangs(void **state)
{
	uint64_t began;

	(void)state;
	for (unsigned n = 0; n < 20; n++)
		store(&client, n, PAGE);
	began = now;
	tier_close(&control);
	assert_in_range(now - began, TIER_FLUSH_NS, 2 * TIER_FLUSH_NS);
	assert_int_equal(control.counter[COUNTER_disk_spills], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(pages_are_written_before_they_are_evicted),
		DISK_TEST(no_more_than_the_budget_is_being_written),
		DISK_TEST(a_disk_that_hangs_costs_its_budget_and_pages_are_dropped),
		DISK_TEST(a_page_evicted_while_it_is_written_is_read_when_it_is_on_disk),
		DISK_TEST(a_write_that_fails_leaves_the_page_as_it_was),
		DISK_TEST(an_orderly_stop_writes_the_pages_that_are_only_in_memory),
		DISK_TEST(a_stop_does_not_wait_for_a_disk_that_hangs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
