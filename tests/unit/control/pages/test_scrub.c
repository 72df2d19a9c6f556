/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrubber: it finds each flipped bit, leaves other pages alone, and reads no slot that is not
 * a page. See ctl_world.h.
 */
#include "tests/unit/control/ctl_world.h"

#include <time.h>

#include "engine/abi/crc32c.h"
#include "engine/control/pages/pages_inner.h"

#define PAGES 60u

struct stored {
	struct ctl_done credit;
	uint32_t length;
	unsigned char *bytes;
	bool flipped;
};

static unsigned char *bytes_at(uint32_t place)
{
	return (unsigned char *)pool_memory(control.rail[place_rail(place)].pool)->base +
	       place_offset(place);
}

/* Publishes a page of random bytes; `has_crc`: with its CRC. */
static struct stored store_random(
	struct client *c, uint8_t rail, uint64_t n, uint32_t length, bool has_crc)
{
	struct stored page = {.credit = take(c, rail, length), .length = length};

	assert_int_equal(page.credit.status, OP_HIT);
	page.bytes = bytes_at(page.credit.place);
	for (uint32_t i = 0; i < length; i++)
		page.bytes[i] = (unsigned char)random();
	put(c, (struct ctl_op){.kind = CTL_PUBLISH,
		       .count = 1,
		       .key = key_of(n),
		       .place = page.credit.place,
		       .generation = page.credit.generation,
		       .length = length,
		       .crc = crc32c(0, page.bytes, length),
		       .publish = has_crc});
	assert_int_equal(get_one(c).status, OP_HIT);
	return page;
}

static bool is_there(uint64_t n)
{
	const struct page_key key = key_of(n);

	return index_find(control.index, &key) != NULL;
}

/* Lets the scrubber work until it has compared `pages` more pages. */
static void scrub_pages(uint64_t pages, uint32_t bytes)
{
	uint64_t until = control.counter[COUNTER_pages_scrubbed] + pages;

	while (control.counter[COUNTER_pages_scrubbed] < until)
		scrub_step(&control, bytes);
}

static void each_flipped_bit_is_found_and_no_other_page_is_taken(void **state)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL), flipped = 0;
	static const uint32_t units[] = {1, 4, 10}; /* few size classes: the pools are small */
	struct stored page[PAGES];
	struct client c;

	printf("SEED=%u\n", seed);
	srandom(seed);
	client_open(&c, 0);
	for (unsigned i = 0; i < PAGES; i++) {
		uint32_t length = units[i % 3] * PAGE_UNIT - (uint32_t)random() % PAGE_UNIT;

		page[i] = store_random(&c, (uint8_t)(i % RAILS), i + 1, length, true);
	}
	for (unsigned i = 0; i < PAGES; i++) {
		page[i].flipped = i == 0 || i == PAGES - 1 || random() % 2;
		if (page[i].flipped)
			page[i].bytes[(uint32_t)random() % page[i].length] ^=
				(unsigned char)(1u << random() % 8);
		flipped += page[i].flipped;
	}
	/* steps of other lengths than the pages: pages are read in pieces */
	scrub_pages(PAGES, 1 + (uint32_t)random() % 10000);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], flipped);
	assert_int_equal(directory.removed, flipped);
	for (unsigned i = 0; i < PAGES; i++) {
		assert_int_equal(is_there(i + 1), !page[i].flipped);
		assert_int_equal(pool_page(control.rail[i % RAILS].pool, page[i].credit.place,
					 page[i].credit.generation) != NULL,
			!page[i].flipped);
	}
	/* what is left is compared again and stays */
	scrub_pages(2ull * (PAGES - flipped), 1 << 20);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], flipped);
	client_close(&c);
}

static void a_page_without_crc_is_left_alone(void **state)
{
	struct client c;

	client_open(&c, 0);
	(void)store_random(&c, 0, 1, 5000, false);
	(void)store_random(&c, 1, 2, 5000, true);
	/* two whole rounds */
	scrub_pages(2, 1 << 20);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 0);
	assert_true(is_there(1));
	client_close(&c);
}

/* A client may be writing into a slot that is a credit, whatever its head says. */
static void a_slot_that_is_being_written_is_not_read(void **state)
{
	struct page_key key = key_of(1);
	struct ctl_done credit;
	struct page_head *head;
	struct client c;

	client_open(&c, 0);
	credit = take(&c, 0, 4096);
	head = (struct page_head *)pool_heads(control.rail[0].pool)->base +
	       place_unit(credit.place);
	page_head_prove(head, &key, 4096, 0x12345678);
	page_head_publish(head, &key, 4096);
	(void)store_random(&c, 0, 2, 4096, true);
	scrub_pages(3, 1 << 20);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 0);
	assert_int_equal(c.channel.credits.count, 1);
	client_close(&c);
}

static void a_page_that_goes_while_it_is_read_is_not_compared(void **state)
{
	const struct page_key key = key_of(1);
	struct stored page;
	struct client c;

	client_open(&c, 0);
	page = store_random(&c, 0, 1, 40000, true);
	scrub_step(&control, 20000);
	assert_true(page_forget(&control, &key));
	memset(page.bytes, 0x5a, page.length); /* as the next owner of the slot may */
	scrub_step(&control, 1 << 20);
	assert_int_equal(control.counter[COUNTER_pages_scrubbed], 0);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 0);
	client_close(&c);
}

static void a_page_is_taken_only_after_a_second_reading(void **state)
{
	struct stored page;
	struct client c;

	client_open(&c, 0);
	page = store_random(&c, 0, 1, 40000, true);
	page.bytes[39999] ^= 1;
	scrub_step(&control, 40000);
	assert_int_equal(control.counter[COUNTER_pages_scrubbed], 0);
	page.bytes[39999] ^= 1;
	scrub_step(&control, 40000);
	assert_int_equal(control.counter[COUNTER_pages_scrubbed], 1);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 0);
	assert_true(is_there(1));

	page.bytes[0] ^= 1;
	scrub_pages(1, 40000);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 1);
	assert_false(is_there(1));
	client_close(&c);
}

static void the_pace_reads_full_pools_in_the_time_of_the_setting(void **state)
{
	static const struct {
		uint64_t pools, seconds;
	} cases[] = {{1ull << 40, 43200}, {8ull << 40, 43200}, {64ull << 20, 1}, {4u << 20, 43200},
		{4u << 20, 31536000}, {1ull << 30, 43200}, {8u << 20, 7}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct scrub_pace pace = scrub_pace(cases[i].pools, cases[i].seconds);
		double rate = (double)pace.bytes * 1e9 / (double)pace.tick_ns;
		double wanted = (double)cases[i].pools / (double)cases[i].seconds;

		assert_in_range(pace.bytes, 1, SCRUB_PIECE_BYTES);
		assert_in_range(pace.tick_ns, SCRUB_TICK_NS_MIN, SCRUB_TICK_NS_MAX);
		assert_true(rate >= 0.99 * wanted);
		assert_true(rate <= 1.01 * wanted + 1);
	}
	/* more than the processor should give: one piece each SCRUB_TICK_NS_MIN */
	assert_int_equal(scrub_pace(1ull << 40, 1).bytes, SCRUB_PIECE_BYTES);
	assert_int_equal(scrub_pace(1ull << 40, 1).tick_ns, SCRUB_TICK_NS_MIN);
}

static void the_event_loop_runs_the_scrubber(void **state)
{
	struct stored page;
	struct client c;

	client_open(&c, 0);
	page = store_random(&c, 1, 1, 40000, true);
	page.bytes[7] ^= 0x80;
	while (!control.counter[COUNTER_pages_corrupt])
		assert_int_equal(event_base_loop(control.base, EVLOOP_ONCE), 0);
	assert_false(is_there(1));
	client_close(&c);
}

/* The scrubber without its walk: it compares what readers report, and nothing else. */
static void only_reports(void)
{
	scrub_close(&control);
	settings.engine_scrub_seconds = 0;
	assert_int_equal(scrub_open(&control), 0);
}

/* A client of this host reports a page of engine `ref`. */
static void report(struct client *c, uint64_t n, uint32_t ref, const struct stored *page)
{
	put(c, (struct ctl_op){.kind = CTL_CORRUPT,
		       .key = key_of(n),
		       .ref = ref,
		       .place = page->credit.place,
		       .generation = page->credit.generation,
		       .length = page->length});
	turns();
}

static void a_reported_page_is_compared_at_once_and_taken_out_only_if_damaged(void **state)
{
	struct stored good, bad;
	struct client c;

	only_reports();
	client_open(&c, 0);
	good = store_random(&c, 0, 1, 40000, true);
	bad = store_random(&c, 1, 2, SCRUB_PIECE_BYTES + 5, true);
	bad.bytes[SCRUB_PIECE_BYTES] ^= 2;
	/* a reader that lies, or whose own memory is damaged */
	report(&c, 1, control.ref, &good);
	report(&c, 2, control.ref, &bad);
	while (control.counter[COUNTER_pages_scrubbed] < 2)
		assert_int_equal(event_base_loop(control.base, EVLOOP_ONCE), 0);
	assert_int_equal(control.counter[COUNTER_pages_reported], 2);
	assert_int_equal(control.counter[COUNTER_reads_corrupt], 2);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 1);
	assert_true(is_there(1));
	assert_false(is_there(2));
	assert_int_equal(directory.reported, 0);
	client_close(&c);
}

static void a_report_of_a_page_that_is_not_there_is_ignored(void **state)
{
	struct stored page, other;
	struct client c;

	only_reports();
	client_open(&c, 0);
	page = store_random(&c, 0, 1, 4096, true);
	other = page;
	other.credit.generation++;
	report(&c, 1, control.ref, &other); /* another generation */
	report(&c, 2, control.ref, &page);  /* another key */
	other = page;
	other.credit.place = place_make(RAILS, 0);
	report(&c, 1, control.ref, &other); /* no pool has that rail */
	other.credit.place = place_make(0, PAGE_UNITS_MAX - 1);
	report(&c, 1, control.ref, &other); /* behind the pool */
	/* the last report is served after the others */
	report(&c, 1, control.ref, &page);
	while (!control.counter[COUNTER_pages_scrubbed])
		assert_int_equal(event_base_loop(control.base, EVLOOP_ONCE), 0);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 0);
	assert_true(is_there(1));
	client_close(&c);
}

static void reports_that_wait_are_bounded_and_no_page_waits_twice(void **state)
{
	struct stored page[SCRUB_REPORTS_MAX + 10];
	struct client c;

	only_reports();
	client_open(&c, 0);
	for (unsigned i = 0; i < SCRUB_REPORTS_MAX + 10; i++)
		page[i] = store_random(&c, 0, i + 1, 4096, true);
	for (unsigned again = 0; again < 3; again++)
		for (unsigned i = 0; i < SCRUB_REPORTS_MAX + 10; i++)
			report(&c, i + 1, control.ref, &page[i]);
	while (control.counter[COUNTER_pages_scrubbed] < SCRUB_REPORTS_MAX)
		assert_int_equal(event_base_loop(control.base, EVLOOP_ONCE), 0);
	/* nothing is left that would fire */
	assert_int_equal(event_base_loop(control.base, EVLOOP_NONBLOCK), 1);
	assert_int_equal(control.counter[COUNTER_pages_scrubbed], SCRUB_REPORTS_MAX);
	assert_int_equal(control.counter[COUNTER_pages_reported], 3 * (SCRUB_REPORTS_MAX + 10));
	client_close(&c);
}

static void a_page_of_another_engine_is_reported_to_it(void **state)
{
	struct stored page = {.credit = {.place = place_make(1, 5), .generation = 3}};
	struct client c;

	client_open(&c, 0);
	report(&c, 1, control.ref + 1, &page);
	assert_int_equal(directory.reported, 1);
	assert_int_equal(control.counter[COUNTER_reads_corrupt], 1);
	assert_int_equal(control.counter[COUNTER_pages_reported], 0);
	client_close(&c);
}

static int scrub_setup(void **state)
{
	int rc = setup(state);

	settings.engine_scrub_seconds = 1;
	return rc ? rc : scrub_open(&control);
}

static int scrub_teardown(void **state)
{
	scrub_close(&control);
	return teardown(state);
}

#define SCRUB_TEST(test) cmocka_unit_test_setup_teardown(test, scrub_setup, scrub_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCRUB_TEST(each_flipped_bit_is_found_and_no_other_page_is_taken),
		SCRUB_TEST(a_page_without_crc_is_left_alone),
		SCRUB_TEST(a_slot_that_is_being_written_is_not_read),
		SCRUB_TEST(a_page_that_goes_while_it_is_read_is_not_compared),
		SCRUB_TEST(a_page_is_taken_only_after_a_second_reading),
		SCRUB_TEST(the_pace_reads_full_pools_in_the_time_of_the_setting),
		SCRUB_TEST(the_event_loop_runs_the_scrubber),
		SCRUB_TEST(a_reported_page_is_compared_at_once_and_taken_out_only_if_damaged),
		SCRUB_TEST(a_report_of_a_page_that_is_not_there_is_ignored),
		SCRUB_TEST(reports_that_wait_are_bounded_and_no_page_waits_twice),
		SCRUB_TEST(a_page_of_another_engine_is_reported_to_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
