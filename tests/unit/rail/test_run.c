/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs that arrive: which READs they become, and which pages are hits. What is refused is in
 * test_run_refuse.c, what goes wrong on the way in test_run_fail.c.
 */
#include "tests/unit/rail/runs.h"

#define CLIENT_NUMBER 63
#define CLIENT_OWN_SETUP
#include "tests/unit/rail/client_world.h"

static int setup(void **state)
{
	struct world *w = client_setup(state, 4);

	rail_conn_add(w, handle);
	for (unsigned i = 0; i < WORLD_BUCKETS; i++)
		w->shard[i].entry[0].tag = 7000 + i;
	return 0;
}

static void assert_arrived(struct world *w, const struct draft *d)
{
	for (unsigned i = 0; i < d->run.pages; i++)
		assert_true(page_arrived(w, d->entry[i].unit, d->run.page_bytes, d->entry[i].to));
}

static void every_page_of_a_run_arrives_with_one_answer(void **state)
{
	struct world *w = *state;

	for (unsigned n = 1; n <= RUN_PAGES_MAX; n++) {
		struct draft d;

		pages_put(w, 100 * n, 2, n, 5000);
		d = draft_of(w, n, 100 * n, 2, n, 5000);
		memset(w->home, 0, WORLD_HOME_BYTES);
		draft_submit(client, &d);
		world_run(w);
		run_expect(client, n, run_mask(0, n), 0, OP_HIT);
		assert_arrived(w, &d);
		assert_no_answer(client);
	}
	assert_int_equal(world_counter(w, COUNTER_pages_read), 32 * 33 / 2);
	assert_int_equal(world_counter(w, COUNTER_bytes_read), 32 * 33 / 2 * 5000);
	assert_int_equal(world_counter(w, COUNTER_ops_taken), 32);
	assert_runs_free(w);
}

static void pages_in_sequence_share_one_read_and_so_do_their_heads(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 1, 32, 4096);
	d = draft_of(w, 1, 64, 1, 32, 4096);
	draft_submit(client, &d);
	post(w);
	assert_int_equal(w->wqes, 1);
	assert_int_equal(w->wqe[0].bytes, 32 * 4096);
	complete_some(w, 1);
	post(w);
	assert_int_equal(w->wqes, 1);
	assert_int_equal(w->wqe[0].bytes, 32 * 32);
	assert_no_answer(client);
	world_run(w);
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	assert_arrived(w, &d);
}

static void a_shared_read_ends_where_the_pool_or_the_destination_has_a_gap(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 1, 9, 4096);
	d = draft_of(w, 1, 64, 1, 8, 4096);
	d.entry[7] = entry_at(w, 72, 7 * 4096);         /* a gap in the pool */
	d.entry[2].to = 100000, d.entry[3].to = 104096; /* a gap in the destination */
	draft_submit(client, &d);
	post(w);
	assert_int_equal(w->wqes, 4);
	assert_int_equal(
		w->wqe[0].bytes + w->wqe[1].bytes + w->wqe[2].bytes + w->wqe[3].bytes, 8 * 4096);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_arrived(w, &d);
}

static void no_read_is_longer_than_a_slice(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 0, 32, 6, 131072);
	d = draft_of(w, 1, 0, 32, 6, 131072);
	draft_submit(client, &d);
	post(w);
	assert_int_equal(w->wqes, 3);
	world_run(w); /* the fake NIC checks the length of each READ */
	run_expect(client, 1, 0x3f, 0, OP_HIT);
	assert_arrived(w, &d);
	/* pages of the longest length, which share nothing */
	pages_put(w, 1024, 64, 5, RUN_PAGE_BYTES_MAX);
	d = draft_of(w, 2, 1024, 64, 5, RUN_PAGE_BYTES_MAX);
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 2, 0x1f, 0, OP_HIT);
	assert_arrived(w, &d);
	assert_runs_free(w);
}

static void heads_far_apart_or_in_descending_order_are_read_one_by_one(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 0, 1000, 4, 4096);
	d = draft_of(w, 1, 0, 1000, 4, 4096);
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 1, 0xf, 0, OP_HIT);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 8);
	pages_put(w, 10, 1, 4, 4096);
	d = draft_of(w, 2, 10, 1, 4, 4096);
	for (unsigned i = 0; i < 4; i++)
		d.entry[i] = entry_at(w, 13 - i, i * 4096u);
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 2, 0xf, 0, OP_HIT);
	assert_arrived(w, &d);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 16);
}

/* 128 pages' heads fit one READ of heads; the pages of a run of 33 units span more. */
static void heads_of_a_run_that_spans_many_units_take_several_reads(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 0, 33, 32, 33 * 4096);
	d = draft_of(w, 1, 0, 33, 32, 33 * 4096);
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	assert_arrived(w, &d);
	assert_runs_free(w);
}

static void segments_of_a_page_go_to_their_strides(void **state)
{
	struct world *w = *state;

	for (unsigned segments = 2; segments <= SEGMENTS_MAX; segments *= 2) {
		struct draft d;
		uint32_t part = 8192 / segments, stride = WORLD_HOME_BYTES / segments;

		pages_put(w, 300, 2, 8, 8192);
		d = draft_of(w, segments, 300, 2, 8, 8192);
		d.run.segments = (uint16_t)segments;
		d.run.stride_or_to = stride;
		for (unsigned i = 0; i < 8; i++)
			d.entry[i].to = (uint64_t)i * part;
		memset(w->home, 0, WORLD_HOME_BYTES);
		draft_submit(client, &d);
		world_run(w);
		run_expect(client, segments, 0xff, 0, OP_HIT);
		for (unsigned i = 0; i < 8; i++)
			for (unsigned j = 0; j < segments; j++)
				assert_memory_equal(w->home + i * part + j * stride,
					w->pool + (300 + 2 * i) * PAGE_UNIT + j * part, part);
	}
	assert_runs_free(w);
}

/* Segments without gaps are one range of memory: they need one SGE. */
static void segments_that_follow_each_other_cost_no_more_than_one(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 300, 2, 8, 8192);
	d = draft_of(w, 1, 300, 2, 8, 8192);
	d.run.segments = 16;
	d.run.stride_or_to = 512;
	draft_submit(client, &d);
	post(w);
	assert_int_equal(w->wqes, 1);
	assert_int_equal(w->wqe[0].sges, 1);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	assert_arrived(w, &d);
}

static void pages_whose_heads_differ_are_stale_and_the_others_hits(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 1, 8, 4096);
	d = draft_of(w, 1, 64, 1, 8, 4096);
	page_head_retire(&w->heads[64]);      /* evicted */
	d.entry[2].generation++;              /* another generation */
	d.entry[5].key.word[1] ^= 1;          /* another page */
	d.entry[7].key.word[0] ^= 1ull << 63; /* another page */
	w->heads[68].length = 4095;           /* another length */
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 1, 0x4a, 0xb5, OP_HIT);
	assert_int_equal(world_counter(w, COUNTER_pages_stale), 5);
	assert_int_equal(world_counter(w, COUNTER_pages_read), 3);
	assert_runs_free(w);
}

static void a_page_that_is_evicted_while_its_run_is_read_is_stale(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 1, 4, 4096);
	d = draft_of(w, 1, 64, 1, 4, 4096);
	draft_submit(client, &d);
	post(w);
	complete_some(w, w->wqes);
	page_head_retire(&w->heads[66]);
	world_run(w);
	run_expect(client, 1, 0xb, 0x4, OP_HIT);
}

/* Heads that an earlier READ left in a landing block validate nothing. */
static void a_head_that_does_not_arrive_validates_no_page(void **state)
{
	struct world *w = *state;
	struct draft d;

	pages_put(w, 64, 1, 8, 4096);
	d = draft_of(w, 1, 64, 1, 8, 4096);
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
	d.run.cookie = 2;
	draft_submit(client, &d);
	post(w);
	complete_some(w, w->wqes);
	post(w);
	assert_int_equal(w->wqes, 1);
	w->wqe[0].sges = 0; /* the READ of the heads completes without any byte */
	world_run(w);
	run_expect(client, 2, 0, 0xff, OP_HIT);
}

static void no_head_is_read_before_the_payload_of_its_page_has_arrived(void **state)
{
	struct world *w = *state;
	struct draft d;
	unsigned heads = 0;

	pages_put(w, 0, 32, 8, 131072);
	d = draft_of(w, 1, 0, 32, 8, 131072);
	draft_submit(client, &d);
	for (unsigned step = 0; step < 100 && !heads; step++) {
		post(w);
		for (unsigned i = 0; i < w->wqes; i++)
			heads += w->wqe[i].rkey == WORLD_HEADS_RKEY;
		if (!heads)
			complete_some(w, 1);
	}
	assert_true(heads > 0);
	for (unsigned i = 0; i < w->wqes; i++) {
		uint64_t unit = (w->wqe[i].remote - (uintptr_t)w->heads) / 32;

		if (w->wqe[i].rkey == WORLD_HEADS_RKEY)
			assert_true(page_arrived(w, (uint32_t)unit, 131072, unit / 32 * 131072));
	}
	world_run(w);
	run_expect(client, 1, 0xff, 0, OP_HIT);
}

static void a_lookup_reads_every_bucket(void **state)
{
	struct world *w = *state;

	for (unsigned n = 1; n <= RUN_PAGES_MAX; n++) {
		struct draft d = lookup_of(w, n, 900, 29, n);

		for (unsigned i = 0; i < n; i++)
			d.bucket[i] %= WORLD_BUCKETS;
		d.run.stride_or_to = 4096 + 64;
		draft_submit(client, &d);
		world_run(w);
		run_expect(client, n, run_mask(0, n), 0, OP_HIT);
		for (unsigned i = 0; i < n; i++)
			assert_memory_equal(w->home + 4096 + 64 + 64 * i, &w->shard[d.bucket[i]],
				sizeof(struct bucket));
	}
	assert_int_equal(world_counter(w, COUNTER_buckets_read), 32 * 33 / 2);
	assert_int_equal(world_counter(w, COUNTER_pages_read), 0);
	assert_runs_free(w);
}

/* Each head arrives with its neighbour: pair unit / 2 has the head of a unit. */
static void a_lookup_in_page_heads_reads_pairs_of_them_in_all_pools(void **state)
{
	struct world *w = *state;
	struct draft d = lookup_of(w, 1, 5, 61, RUN_PAGES_MAX);

	for (unsigned unit = 0; unit < WORLD_UNITS; unit++)
		w->heads[unit] = (struct page_head){
			.key = {{unit, ~(uint64_t)unit}}, .generation = 7, .length = unit + 1};
	handle->region[REGION_HEADS_0 + 2] = handle->region[REGION_SHARD]; /* serves as heads */
	d.bucket[3] = 0;
	d.bucket[4] = WORLD_UNITS - 1;                      /* the last one */
	d.bucket[6] = place_make(2, 2 * WORLD_BUCKETS - 1); /* of this pool, too */
	for (unsigned i = 7; i < RUN_PAGES_MAX; i += 2)
		d.bucket[i] = place_make(2, d.bucket[i]);
	d.run.region = REGION_HEADS_0;
	draft_submit(client, &d);
	world_run(w);
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	for (unsigned i = 0; i < RUN_PAGES_MAX; i++) {
		uint32_t pair = place_unit(d.bucket[i]) / 2;

		assert_memory_equal(w->home + 64 * i,
			place_rail(d.bucket[i]) ? (void *)&w->shard[pair]
						: (void *)&w->heads[2 * pair],
			2 * sizeof(struct page_head));
	}
	assert_int_equal(world_counter(w, COUNTER_buckets_read), RUN_PAGES_MAX);
	assert_int_equal(world_counter(w, COUNTER_pages_stale), 0);
	assert_runs_free(w);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(every_page_of_a_run_arrives_with_one_answer),
		TEST(pages_in_sequence_share_one_read_and_so_do_their_heads),
		TEST(a_shared_read_ends_where_the_pool_or_the_destination_has_a_gap),
		TEST(no_read_is_longer_than_a_slice),
		TEST(heads_far_apart_or_in_descending_order_are_read_one_by_one),
		TEST(heads_of_a_run_that_spans_many_units_take_several_reads),
		TEST(segments_of_a_page_go_to_their_strides),
		TEST(segments_that_follow_each_other_cost_no_more_than_one),
		TEST(pages_whose_heads_differ_are_stale_and_the_others_hits),
		TEST(a_page_that_is_evicted_while_its_run_is_read_is_stale),
		TEST(a_head_that_does_not_arrive_validates_no_page),
		TEST(no_head_is_read_before_the_payload_of_its_page_has_arrived),
		TEST(a_lookup_reads_every_bucket),
		TEST(a_lookup_in_page_heads_reads_pairs_of_them_in_all_pools),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
