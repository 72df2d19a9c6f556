/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that are refused: a header or one line out of range refuses the whole run, nothing of it is
 * posted, and the channel continues.
 */
#include "tests/unit/rail/runs.h"

#define CLIENT_NUMBER 63
#define CLIENT_OWN_SETUP
#include "tests/unit/rail/client_world.h"

static int setup(void **state)
{
	struct world *w = client_setup(state, 4);

	rail_conn_add(w, handle);
	return 0;
}

static struct draft good(struct world *w)
{
	struct draft d = draft_of(w, 5, 64, 2, 5, 8192);

	d.run.segments = 2;
	d.run.stride_or_to = 8192;
	for (unsigned i = 0; i < 5; i++)
		d.entry[i].to = i * 20000u;
	return d;
}

static void refused(struct world *w, const struct draft *d)
{
	uint64_t posted = world_counter(w, COUNTER_wqes_posted);
	struct draft next = good(w);

	draft_submit(client, d);
	world_run(w);
	run_expect(client, d->run.cookie, 0, 0, OP_INVALID);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), posted);
	/* a later valid run of the same channel succeeds */
	draft_submit(client, &next);
	world_run(w);
	run_expect(client, 5, 0x1f, 0, OP_HIT);
	assert_runs_free(w);
}

#define REFUSED(change)                                                                            \
	do {                                                                                       \
		d = good(w);                                                                       \
		change;                                                                            \
		refused(w, &d);                                                                    \
	} while (0)

static void a_header_out_of_range_refuses_the_run(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 2, 5, 8192);
	world_region_beyond(w);
	REFUSED(d.run.pages = 0);
	REFUSED(d.run.pages = RUN_PAGES_MAX + 1);
	REFUSED(d.run.pages = 255);
	REFUSED(d.run.region = REGION_POOL_0 + RAILS_MAX);
	REFUSED(d.run.region = REGION_SHARD);
	REFUSED(d.run.region = 255);
	REFUSED(d.run.region = REGION_POOL_0 + 1); /* a pool that the peer does not have */
	REFUSED(d.run.page_bytes = 0);
	REFUSED(d.run.page_bytes = RUN_PAGE_BYTES_MAX + 2);
	REFUSED(d.run.page_bytes = 0xfffffffe);
	REFUSED(d.run.segments = 3); /* does not divide the length of a page */
	REFUSED(d.run.segments = 0xffff; d.run.page_bytes = 0xffff);
	REFUSED(d.run.segments = 1);        /* one segment has no stride */
	REFUSED(d.run.stride_or_to = 4095); /* segments that overlap */
	REFUSED(d.run.stride_or_to = 0);    /* segments that overlap */
	REFUSED(d.run.to_region = 101);     /* a region that does not exist */
	REFUSED(d.run.to_region = REGIONS_MAX);
	REFUSED(d.run.to_region = 0xffff);
	REFUSED(d.run.peer = NODES_MAX);
	REFUSED(d.run.peer = UINT16_MAX);
}

static void one_entry_out_of_range_refuses_the_run(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 2, 5, 8192);
	for (unsigned i = 0; i < 5; i++) {
		REFUSED(d.entry[i].unit = WORLD_UNITS);
		REFUSED(d.entry[i].unit = WORLD_UNITS - 1); /* the page would end outside */
		REFUSED(d.entry[i].unit = PAGE_UNITS_MAX);
		REFUSED(d.entry[i].unit = UINT32_MAX);
		REFUSED(d.entry[i].to = WORLD_HOME_BYTES);
		REFUSED(d.entry[i].to = WORLD_HOME_BYTES - 4096 - 8192 + 1);
		REFUSED(d.entry[i].to = RUN_TO_MAX - 1);
		REFUSED(d.entry[i].to = RUN_TO_MAX - 4096);
	}
	/* the next page follows, but for the overflow of 32 bits, or of the bits of an offset */
	for (unsigned i = 0; i < 4; i++) {
		REFUSED(d.entry[i].unit = UINT32_MAX - 1; d.entry[i + 1].unit = 0;
			d.entry[i + 1].to = d.entry[i].to + 8192);
		REFUSED(d.entry[i].to = RUN_TO_MAX - 8192; d.entry[i + 1].to = 0);
	}
	REFUSED(d.run.stride_or_to = RUN_TO_MAX - 1);
	REFUSED(d.run.stride_or_to = WORLD_HOME_BYTES - 4096 - 80000 + 1);
	/* the largest reach without overflow of 64 bits */
	REFUSED(d.run.segments = 128; d.run.stride_or_to = RUN_TO_MAX - 1);
}

static void a_run_that_ends_with_the_regions_last_byte_is_accepted(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, WORLD_UNITS - 2, 2, 1, 8192);
	d = draft_of(w, 1, WORLD_UNITS - 2, 2, 1, 8192);
	d.run.segments = 2;
	d.run.stride_or_to = 8192;
	d.entry[0].to = WORLD_HOME_BYTES - 8192 - 4096;
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 1, 1, 0, OP_HIT);
}

/* Their places overlap; one READ of both would end behind the pool. */
static void pages_of_parts_of_units_share_no_read(void **state)
{
	const uint32_t bytes = 2 * PAGE_UNIT - 1;
	struct world *w = *state;
	uint64_t posted = world_counter(w, COUNTER_wqes_posted);
	struct draft d = draft_of(w, 1, WORLD_UNITS - 3, 1, 2, bytes);

	d.entry[0].to = 0;
	d.entry[1].to = bytes;
	draft_submit(client, &d);
	rail_step(w->rail, 0);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), posted + 2);
	world_run(w);
	run_expect(client, 1, 0, 3, OP_HIT);
}

static void a_page_needs_its_head_in_the_peers_heads(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 2, 5, 8192);
	/* peer_new() gave this region all heads; now it ends with the head of unit 71 */
	handle->region[REGION_HEADS_0].length = 72 * 32;
	d = good(w);
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 5, 0, 0, OP_INVALID);
	handle->region[REGION_HEADS_0].length = 73 * 32;
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 5, 0x1f, 0, OP_HIT);
}

static void a_lookup_out_of_range_is_refused(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 2, 5, 8192);
#define LOOKUP_REFUSED(change)                                                                     \
	do {                                                                                       \
		d = lookup_of(w, 6, 0, 1, 25);                                                     \
		change;                                                                            \
		refused(w, &d);                                                                    \
	} while (0)
	LOOKUP_REFUSED(d.bucket[0] = WORLD_BUCKETS);
	LOOKUP_REFUSED(d.bucket[8] = WORLD_BUCKETS);
	LOOKUP_REFUSED(d.bucket[24] = UINT32_MAX);
	LOOKUP_REFUSED(d.run.region = REGION_POOL_0);
	LOOKUP_REFUSED(d.run.region = REGION_HEADS_0 - 1);
	LOOKUP_REFUSED(d.run.region = REGION_HEADS_0 + 1);
	LOOKUP_REFUSED(d.run.region = REGIONS_EXPORTED);
	/* the heads of a pool that the peer does not have, and a pair behind those that it has */
	LOOKUP_REFUSED(d.run.region = REGION_HEADS_0; d.bucket[7] = place_make(1, 0));
	LOOKUP_REFUSED(d.run.region = REGION_HEADS_0; d.bucket[24] = WORLD_UNITS);
	LOOKUP_REFUSED(d.run.region = REGION_HEADS_0; d.bucket[8] = UINT32_MAX);
	LOOKUP_REFUSED(d.run.region = REGION_HEADS_0; d.bucket[8] = place_make(15, 0));
	LOOKUP_REFUSED(d.run.segments = 1);
	LOOKUP_REFUSED(d.run.page_bytes = 64);
	LOOKUP_REFUSED(d.run.pages = 0);
	LOOKUP_REFUSED(d.run.pages = 33);
	LOOKUP_REFUSED(d.run.stride_or_to = WORLD_HOME_BYTES - 25 * 64 + 1);
	LOOKUP_REFUSED(d.run.stride_or_to = RUN_TO_MAX - 1);
#undef LOOKUP_REFUSED
}

static void a_region_of_another_session_is_refused(void **state)
{
	struct world *w = *state;
	struct rail_region others = {.id = 101,
		.session = WORLD_SESSION + 1,
		.base = (uintptr_t)w->home,
		.length = WORLD_HOME_BYTES,
		.lkey = WORLD_LKEY};
	struct draft d;

	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = others});
	pages_put(w, 64, 2, 5, 8192);
	REFUSED(d.run.to_region = 101);
}

static void a_run_of_which_lines_are_missing_breaks_the_channel(void **state)
{
	struct world *w = *state;
	struct draft d = good(w);

	run_encode(&d.run, ring_slot_new(&client->ops, 0));
	*run_entry_new(&client->ops, 0, 0) = d.entry[0];
	ring_publish(&client->ops, 1);
	world_settle(w);
	assert_true(client->channel.broken);
	world_event(w, RAIL_CHANNEL_BROKEN);
	assert_no_answer(client);
	assert_runs_free(w);
}

static void a_run_is_taken_whole_where_the_ring_wraps(void **state)
{
	struct world *w = *state;

	pages_put(w, 64, 1, 32, 4096);
	for (unsigned i = 0; i < 3 * OP_RING_SLOTS / RUN_LINES_MAX; i++) {
		struct draft d = draft_of(w, i, 64, 1, 32, 4096);

		draft_submit(client, &d);
		world_run(w);
		run_expect(client, i, UINT32_MAX, 0, OP_HIT);
	}
	assert_runs_free(w);
}

/* They count as ops, because they have no pages to count. */
static void runs_without_pages_are_taken_in_bursts(void **state)
{
	struct world *w = *state;
	struct draft d = good(w);

	d.run.pages = 0;
	for (unsigned i = 0; i < 2 * RAIL_TAKE_BURST; i++)
		draft_submit(client, &d);
	rail_step(w->rail, w->now_ns);
	assert_int_equal(world_counter(w, COUNTER_ops_taken), RAIL_TAKE_BURST);
	world_settle(w);
	for (unsigned i = 0; i < 2 * RAIL_TAKE_BURST; i++)
		run_expect(client, 5, 0, 0, OP_INVALID);
	assert_runs_free(w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_header_out_of_range_refuses_the_run),
		TEST(one_entry_out_of_range_refuses_the_run),
		TEST(a_run_that_ends_with_the_regions_last_byte_is_accepted),
		TEST(pages_of_parts_of_units_share_no_read),
		TEST(a_page_needs_its_head_in_the_peers_heads),
		TEST(a_lookup_out_of_range_is_refused),
		TEST(a_region_of_another_session_is_refused),
		TEST(a_run_of_which_lines_are_missing_breaks_the_channel),
		TEST(a_run_is_taken_whole_where_the_ring_wraps),
		TEST(runs_without_pages_are_taken_in_bursts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
