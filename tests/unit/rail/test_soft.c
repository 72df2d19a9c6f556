/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail on a software NIC, end to end and step by step: the WQEs are those that a ConnectX
 * executes, the faults are some that it shows rarely. One thread. SEED=n repeats a run of the
 * random test.
 */
#include <stdlib.h>
#include <time.h>

#include "tests/unit/rail/pair.h"

static struct pair *pair;
static struct world *w;
static struct client *client;
static struct pair_conn *conn;

static int setup(void **state)
{
	pair = pair_open(false, true);
	w = &pair->world;
	client = client_new(w, 5, WORLD_SESSION);
	conn = pair_conn_new(pair, 3, 33, 2);
	rail_conn_add(w, &conn->handle);
	page_put(w, 8, 100000, 77);
	return 0;
}

static void drop_peer(void)
{
	if (!conn)
		return;
	pair_conn_drop(pair, conn);
	pair_run(pair, 10);
	assert_ptr_equal(world_event(w, RAIL_CONN_RETURNED).object, conn);
	pair_conn_free(conn);
	conn = NULL;
}

static int teardown(void **state)
{
	drop_peer();
	pair_close(pair);
	client_free(client);
	return 0;
}

static void an_overwrite_at_any_moment_is_detected(void **state)
{
	struct dv_fault fault = {.seed = 7, .piece_bytes = 4096};
	struct op_done done;

	dv_soft_faults(pair->near, &fault);
	for (unsigned moment = 0; moment < 60; moment++) {
		page_put(w, 8, 100000, moment + 100);
		page_get(w, client, 1, 8, 100000, moment + 100, 0);
		for (unsigned i = 0; i < moment; i++)
			pair_step(pair);
		page_head_retire(&w->heads[8]);
		memset(w->pool + 8 * PAGE_UNIT, (int)moment, 100000);
		page_put(w, 8, 100000, moment + 500);
		pair_run(pair, 50);
		assert_true(client_done(client, &done));
		if (done.status == OP_HIT)
			for (unsigned i = 0; i < 100000; i++)
				assert_int_equal(w->home[i],
					(uint8_t)map_mix((moment + 100ull) * 1000003 + i));
		else
			assert_int_equal(done.status, OP_STALE);
		page_head_retire(&w->heads[8]);
	}
}

static void retransmitted_payload_is_never_sampled_after_its_head(void **state)
{
	struct dv_fault fault = {
		.seed = 9, .retransmit_percent = 60, .shuffle = true, .delay_steps_max = 5};
	unsigned hits = 0, stale = 0;

	dv_soft_faults(pair->near, &fault);
	for (unsigned round = 0; round < 400; round++) {
		struct op_done done;

		page_put(w, 8, 5000, round + 1);
		page_get(w, client, 1, 8, 5000, round + 1, 0);
		for (unsigned i = 0; i < round % 16; i++)
			pair_step(pair);
		page_head_retire(&w->heads[8]);
		memset(w->pool + 8 * PAGE_UNIT, 0xee, 5000);
		pair_run(pair, 50);
		assert_true(client_done(client, &done));
		if (done.status == OP_HIT) {
			hits++;
			for (unsigned i = 0; i < 5000; i++)
				assert_int_equal(
					w->home[i], (uint8_t)map_mix((round + 1ull) * 1000003 + i));
		} else {
			stale++;
		}
	}
	assert_true(hits && stale);
}

/*
 * Reads eight adjacent pages and overwrites one of them, each time at another moment: only that one
 * may be stale.
 */
static void with_heads_read_together_only_the_overwritten_page_is_stale(void **state)
{
	struct dv_fault fault = {
		.seed = 9, .retransmit_percent = 40, .shuffle = true, .delay_steps_max = 5};
	unsigned hits = 0, stale = 0;

	dv_soft_faults(pair->near, &fault);
	for (unsigned i = 0; i < 8; i++)
		page_put(w, 40 + i, 4000, 1000 + i);
	for (unsigned round = 0; round < 400; round++) {
		unsigned victim = round % 8;
		struct op_done done;

		for (unsigned i = 0; i < 8; i++)
			page_get(w, client, i, 40 + i, 4000, 1000 + i, i * 4096);
		for (unsigned i = 0; i < round / 8 % 32; i++)
			pair_step(pair);
		page_head_retire(&w->heads[40 + victim]);
		memset(w->pool + (40 + victim) * PAGE_UNIT, 0xee, 4000);
		pair_run(pair, 50);
		page_put(w, 40 + victim, 4000, 1000 + victim);
		for (unsigned i = 0; i < 8; i++) {
			assert_true(client_done(client, &done));
			assert_true(done.status == OP_HIT || done.cookie == victim);
			*(done.status == OP_HIT ? &hits : &stale) += done.cookie == victim;
			if (done.status == OP_HIT)
				assert_true(page_arrived(
					w, 40 + (uint32_t)done.cookie, 4000, done.cookie * 4096));
			else
				assert_int_equal(done.status, OP_STALE);
		}
	}
	assert_true(hits && stale);
}

static void a_region_is_not_written_after_its_return(void **state)
{
	struct rail_command drop = {.kind = RAIL_REGION_DROP, .region.id = WORLD_REGION};
	struct rail_event event;

	for (unsigned i = 0; i < 20; i++)
		page_get(w, client, i, 8, 100000, 77, i * 100000);
	pair_step(pair);
	world_command(w, drop);
	while (!rail_event_take(w->rail, &event))
		pair_step(pair);
	assert_int_equal(event.kind, RAIL_REGION_RETURNED);
	memset(w->home, 0xcd, WORLD_HOME_BYTES);
	pair_run(pair, 20);
	for (unsigned i = 0; i < WORLD_HOME_BYTES; i++)
		assert_int_equal(w->home[i], 0xcd);
}

static void nothing_is_written_for_a_channel_after_its_return(void **state)
{
	struct rail_event event;

	for (unsigned i = 0; i < 20; i++)
		page_get(w, client, i, 8, 100000, 77, i * 100000);
	pair_step(pair);
	world_command(
		w, (struct rail_command){.kind = RAIL_CHANNEL_STOP, .object = &client->channel});
	while (!rail_event_take(w->rail, &event))
		pair_step(pair);
	assert_int_equal(event.kind, RAIL_CHANNEL_RETURNED);
	memset(w->home, 0xcd, WORLD_HOME_BYTES);
	memset(client->done_memory, 0xab, ring_bytes(DONE_RING_SLOTS, 16));
	pair_run(pair, 20);
	for (unsigned i = 0; i < WORLD_HOME_BYTES; i++)
		assert_int_equal(w->home[i], 0xcd);
	for (size_t i = 0; i < ring_bytes(DONE_RING_SLOTS, 16); i++)
		assert_int_equal(((uint8_t *)client->done_memory)[i], 0xab);
}

static void random_reads_under_faults_are_correct_or_no_hits(void **state)
{
	const char *seed = getenv("SEED");
	uint64_t x = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	struct dv_fault fault = {.seed = x,
		.delay_steps_max = 9,
		.shuffle = true,
		.retransmit_percent = 10,
		.piece_bytes = 3000};
	uint64_t key[8] = {0}, want[64], hits = 0;
	bool live[64] = {false};

	drop_peer();
	conn = pair_conn_new(pair, 3, 33, 4);
	rail_conn_add(w, &conn->handle);
	print_message("SEED=%llu\n", (unsigned long long)x);
	dv_soft_faults(pair->near, &fault);
	for (unsigned round = 0; round < 6000; round++) {
		unsigned i = (unsigned)(map_mix(x + round) % 8), slot = round % 64;
		struct op_done done;

		if (map_mix(x + round) >> 60 == 0 || !key[i]) {
			page_head_retire(&w->heads[i * 8]);
			page_put(w, i * 8, 20000, key[i] = round + 1);
		}
		if (!live[slot]) {
			live[slot] = true;
			want[slot] = key[i];
			page_get(w, client, slot, i * 8, 20000, key[i], slot * 20000);
		}
		pair_step(pair);
		while (client_done(client, &done)) {
			assert_true(live[done.cookie]);
			live[done.cookie] = false;
			if (done.status != OP_HIT) {
				assert_int_equal(done.status, OP_STALE);
				continue;
			}
			hits++;
			for (unsigned b = 0; b < 20000; b += 61)
				assert_int_equal(w->home[done.cookie * 20000 + b],
					(uint8_t)map_mix(want[done.cookie] * 1000003 + b));
		}
	}
	assert_true(hits > 100);
	pair_run(pair, 50);
	assert_int_equal(rail_in_flight(w->rail), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_overwrite_at_any_moment_is_detected),
		TEST(retransmitted_payload_is_never_sampled_after_its_head),
		TEST(with_heads_read_together_only_the_overwritten_page_is_stale),
		TEST(a_region_is_not_written_after_its_return),
		TEST(nothing_is_written_for_a_channel_after_its_return),
		TEST(random_reads_under_faults_are_correct_or_no_hits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
