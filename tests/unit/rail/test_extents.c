/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Destinations registered in extents, one MR each, on a software NIC that refuses an SGE that
 * leaves its MR: pages that cross the ends of extents arrive complete, in one segment and in many.
 * One thread. SEED=n repeats the random test.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/unit/rail/pair.h"
#include "tests/unit/rail/runs.h"

#define EXTENTS_REGION 101u
#define MEMORY_BYTES (4u << 20)
#define GUARD 0xcd /* value of destination bytes that no READ may write */

static struct pair *pair;
static struct world *w;
static struct client *client;
static struct pair_conn *conn;

/* The client memory that is registered in extents. */
static uint8_t *memory;
static uint64_t memory_bytes;
static struct dv_mr *mr; /* array of the MRs of the extents */
static uint32_t *lkey;   /* array of the lkeys of the extents */
static unsigned extents; /* number of extents; 0: no region is registered */

static int setup(void **state)
{
	pair = pair_open(false, true);
	w = &pair->world;
	client = client_new(w, 5, WORLD_SESSION);
	conn = pair_conn_new(pair, 3, 33, 2);
	rail_conn_add(w, &conn->handle);
	memory = aligned_alloc(4096, MEMORY_BYTES);
	assert_non_null(memory);
	extents = 0;
	return 0;
}

/*
 * Registers the first `bytes` bytes of the memory as a region with extents of 1 << shift bytes. The
 * rest is not registered.
 */
static void extents_add(unsigned shift, uint64_t bytes)
{
	struct rail_region region = {.id = EXTENTS_REGION,
		.session = WORLD_SESSION,
		.base = (uintptr_t)memory,
		.length = bytes,
		.extent_shift = (uint8_t)shift};

	extents = (unsigned)((bytes + (1u << shift) - 1) >> shift);
	memory_bytes = bytes;
	mr = calloc(extents, sizeof(*mr));
	lkey = calloc(extents, sizeof(*lkey));
	for (unsigned i = 0; i < extents; i++) {
		uint64_t at = (uint64_t)i << shift;
		uint64_t n = bytes - at < 1u << shift ? bytes - at : 1u << shift;

		assert_int_equal(dv_mr_register(pair->near,
					 &(struct dv_memory){.base = memory + at,
						 .length = n,
						 .access = DV_LOCAL_WRITE | DV_RELAXED_ORDERING,
						 .memfd = -1},
					 &mr[i]),
			0);
		lkey[i] = mr[i].lkey;
	}
	region.extent_lkey = lkey;
	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = region});
	memset(memory, GUARD, MEMORY_BYTES);
}

/* Drops the region at the rail, waits until the rail returns it, and deregisters its MRs. */
static void extents_remove(void)
{
	world_command(
		w, (struct rail_command){.kind = RAIL_REGION_DROP, .region.id = EXTENTS_REGION});
	pair_run(pair, 10);
	assert_int_equal(world_event(w, RAIL_REGION_RETURNED).detail, EXTENTS_REGION);
	for (unsigned i = 0; i < extents; i++)
		assert_int_equal(dv_mr_deregister(pair->near, &mr[i]), 0);
	free(mr);
	free(lkey);
	extents = 0;
}

static int teardown(void **state)
{
	if (extents)
		extents_remove();
	pair_conn_drop(pair, conn);
	pair_run(pair, 10);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, conn);
	pair_conn_free(conn);
	pair_close(pair);
	client_free(client);
	free(memory);
	return 0;
}

static struct op_segment at_extents(uint64_t offset, uint32_t length)
{
	return (struct op_segment){.region = EXTENTS_REGION, .offset = offset, .length = length};
}

static void only_these_bytes_changed(uint64_t from, uint64_t bytes)
{
	for (uint64_t i = 0; i < MEMORY_BYTES; i++)
		if ((i < from || i >= from + bytes) && memory[i] != GUARD)
			fail_msg("byte %llu was written", (unsigned long long)i);
}

static void a_page_across_the_end_of_an_extent_arrives_complete(void **state)
{
	extents_add(16, 1u << 20);
	page_put(w, 8, 5000, 77);
	for (uint64_t at = 65536 - 5001; at <= 65537; at += at == 65536 - 5001 ? 1 : 1249) {
		struct op op = page_op(w, 1, 8, 5000, 77);
		struct op_segment s = at_extents(at, 5000);

		memset(memory, GUARD, MEMORY_BYTES);
		client_submit(client, &op, &s);
		pair_run(pair, 10);
		client_expect(client, 1, OP_HIT);
		assert_memory_equal(memory + at, w->pool + 8 * PAGE_UNIT, 5000);
		only_these_bytes_changed(at, 5000);
	}
}

/*
 * The destination of the page covers more extents than a WQE has SGEs, so further WQEs read the
 * rest.
 */
static void a_page_over_many_extents_is_read_by_several_wqes(void **state)
{
	const uint32_t bytes = 1000000;
	struct op op;
	struct op_segment s = at_extents(100, bytes);

	extents_add(12, 2u << 20);
	page_put(w, 8, bytes, 77);
	op = page_op(w, 1, 8, bytes, 77);
	client_submit(client, &op, &s);
	pair_run(pair, 50);
	client_expect(client, 1, OP_HIT);
	assert_memory_equal(memory + 100, w->pool + 8 * PAGE_UNIT, bytes);
	only_these_bytes_changed(100, bytes);
	/*
	 * The page needs 245 extents, up to DV_SGES_MAX of them in a WQE, and one WQE for the head.
	 */
	assert_in_range(world_counter(w, COUNTER_wqes_posted), 245 / DV_SGES_MAX + 1, 90);
}

static void the_last_extent_may_be_short(void **state)
{
	const uint64_t bytes = 3 * 65536 + 4096;
	struct op op;
	struct op_segment s = at_extents(bytes - 5000, 5000);

	extents_add(16, bytes);
	page_put(w, 8, 5000, 77);
	op = page_op(w, 1, 8, 5000, 77);
	client_submit(client, &op, &s);
	pair_run(pair, 10);
	client_expect(client, 1, OP_HIT);
	assert_memory_equal(memory + bytes - 5000, w->pool + 8 * PAGE_UNIT, 5000);
	s.offset++;
	op.cookie = 2;
	client_submit(client, &op, &s);
	pair_run(pair, 10);
	client_expect(client, 2, OP_INVALID);
}

static void one_page_may_have_segments_in_one_mr_and_in_extents(void **state)
{
	struct op_segment s[4] = {home_at(300, 3000), at_extents(4096 - 100, 5000),
		home_at(70000, 1), at_extents(40000, 11999)};
	struct op op;
	uint32_t from = 0;

	extents_add(12, 1u << 20);
	page_put(w, 8, 20000, 77);
	op = page_op(w, 1, 8, 20000, 77);
	op.segments = 4;
	client_submit(client, &op, s);
	pair_run(pair, 10);
	client_expect(client, 1, OP_HIT);
	for (unsigned i = 0; i < 4; i++) {
		const uint8_t *base = s[i].region == EXTENTS_REGION ? memory : w->home;

		assert_memory_equal(
			base + s[i].offset, w->pool + 8 * PAGE_UNIT + from, s[i].length);
		from += s[i].length;
	}
}

/* Pairs share a READ only if they follow each other in the heads of one pool. */
static void page_heads_of_several_pools_arrive_in_extents(void **state)
{
	const uint64_t at = 4096 - 5 * 64;
	struct draft d;

	extents_add(12, 1u << 20);
	conn->handle.region[REGION_HEADS_0 + 1] = conn->handle.region[REGION_SHARD];
	for (unsigned unit = 0; unit < WORLD_UNITS; unit++)
		w->heads[unit].length = unit + 1;
	memset(w->shard, 0x5a, WORLD_BUCKETS * sizeof(struct bucket));
	d = lookup_of(w, 1, 8, 2, RUN_PAGES_MAX);
	for (unsigned i = 3; i < RUN_PAGES_MAX; i += 7)
		d.bucket[i] = place_make(1, d.bucket[i]);
	d.run.region = REGION_HEADS_0;
	d.run.to_region = EXTENTS_REGION;
	d.run.stride_or_to = at;
	d.run.deadline_ns = clock_now_ns() + 60000 * MS;
	draft_submit(client, &d);
	pair_run(pair, 10);
	run_expect(client, 1, UINT32_MAX, 0, OP_HIT);
	for (unsigned i = 0; i < RUN_PAGES_MAX; i++) {
		uint32_t pair_at = place_unit(d.bucket[i]) / 2;

		assert_memory_equal(memory + at + 64 * i,
			place_rail(d.bucket[i]) ? (void *)&w->shard[pair_at]
						: (void *)&w->heads[2 * pair_at],
			64);
	}
	only_these_bytes_changed(at, RUN_PAGES_MAX * 64);
}

static void a_region_in_extents_is_returned_after_its_last_cqe(void **state)
{
	struct rail_event event;

	extents_add(12, MEMORY_BYTES);
	page_put(w, 8, 100000, 77);
	for (unsigned i = 0; i < 20; i++) {
		struct op op = page_op(w, i, 8, 100000, 77);
		struct op_segment s = at_extents(i * 100001, 100000);

		client_submit(client, &op, &s);
	}
	pair_step(pair);
	world_command(
		w, (struct rail_command){.kind = RAIL_REGION_DROP, .region.id = EXTENTS_REGION});
	while (!rail_event_take(w->rail, &event))
		pair_step(pair);
	assert_int_equal(event.kind, RAIL_REGION_RETURNED);
	/*
	 * The rail has returned the region: its keys and its memory belong to the control plane
	 * again.
	 */
	for (unsigned i = 0; i < extents; i++)
		assert_int_equal(dv_mr_deregister(pair->near, &mr[i]), 0);
	free(mr);
	free(lkey);
	extents = 0;
	memset(memory, GUARD, MEMORY_BYTES);
	pair_run(pair, 20);
	only_these_bytes_changed(0, 0);
}

/* Cuts the range of bytes [0, bytes) into `count` pieces of random lengths. */
static void cut(uint64_t *dice, uint32_t bytes, unsigned count, uint32_t *ret_length)
{
	uint32_t left = bytes;

	for (unsigned i = 0; i < count; i++) {
		uint32_t later = count - i - 1, room = left - later;

		*dice = map_mix(*dice + 1);
		ret_length[i] = later ? 1 + (uint32_t)(*dice % room) : left;
		if (later && ret_length[i] > 4 * (bytes / count + 1))
			ret_length[i] = 1 + (uint32_t)(*dice >> 32) % (bytes / count + 1);
		if (ret_length[i] > room)
			ret_length[i] = room;
		left -= ret_length[i];
	}
}

static void random_pages_in_random_segments_arrive_byte_by_byte(void **state)
{
	static struct op_segment s[SEGMENTS_MAX];
	static uint32_t length[SEGMENTS_MAX];
	const char *seed = getenv("SEED");
	uint64_t dice = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);

	print_message("SEED=%llu\n", (unsigned long long)dice);
	for (unsigned shift = 12; shift <= 20; shift++) {
		extents_add(shift, MEMORY_BYTES - PAGE_UNIT);
		for (unsigned round = 0; round < 60; round++) {
			uint32_t bytes =
				SEGMENTS_MAX + (uint32_t)((dice = map_mix(dice + 1)) % 900000);
			unsigned count = 1 + (unsigned)(dice >> 40) % 8;
			uint64_t at = dice >> 20 & 4095, from = 0;
			struct op op;

			if (round % 8 == 7)
				count = SEGMENTS_MAX;
			page_put(w, 8, bytes, dice);
			op = page_op(w, round, 8, bytes, dice);
			op.segments = (uint16_t)count;
			cut(&dice, bytes, count, length);
			for (unsigned i = 0; i < count; i++) {
				s[i] = at_extents(at, length[i]);
				at += length[i] + (dice >> (i % 50) & 127) * 16;
			}
			assert_true(at < memory_bytes);
			memset(memory, GUARD, MEMORY_BYTES);
			client_submit(client, &op, s);
			pair_run(pair, 20);
			client_expect(client, round, OP_HIT);
			for (unsigned i = 0; i < count; i++) {
				assert_memory_equal(memory + s[i].offset,
					w->pool + 8 * PAGE_UNIT + from, length[i]);
				memset(memory + s[i].offset, GUARD, length[i]);
				from += length[i];
			}
			only_these_bytes_changed(0, 0);
			page_head_retire(&w->heads[8]);
		}
		extents_remove();
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_page_across_the_end_of_an_extent_arrives_complete),
		TEST(a_page_over_many_extents_is_read_by_several_wqes),
		TEST(the_last_extent_may_be_short),
		TEST(one_page_may_have_segments_in_one_mr_and_in_extents),
		TEST(page_heads_of_several_pools_arrive_in_extents),
		TEST(a_region_in_extents_is_returned_after_its_last_cqe),
		TEST(random_pages_in_random_segments_arrive_byte_by_byte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
