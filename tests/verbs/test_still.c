/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports that move only short READs (SOFT_CONNECTX_MOVE_MAX): a longer READ completes and leaves its
 * destination as it is, and keys, bounds and the order of READs are those of other ports.
 */
#define SIDE_DEPTH 64u
#include "tests/verbs/side.h"

#define MOVE_MAX 1024u
#define UNTOUCHED 0xee

static struct side s;

static int setup(void **state)
{
	(void)state;
	side_open(&s);
	memset(s.local, UNTOUCHED, SIDE_BYTES);
	for (unsigned i = 0; i < SIDE_BYTES; i++)
		s.remote[i] = (uint8_t)(i / MOVE_MAX % 128 + 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	side_close(&s);
	return 0;
}

static void post(enum dv_opcode opcode, uint32_t at, uint32_t bytes, uint32_t rkey)
{
	struct dv_sge sge = {(uintptr_t)s.local + at, bytes, s.local_mr.lkey};

	dv_post(s.sq, opcode, (uintptr_t)s.remote + at, rkey, &sge, 1, DV_CE_ALWAYS);
}

static bool untouched(uint32_t from, uint32_t bytes)
{
	for (uint32_t i = from; i < from + bytes; i++)
		if (s.local[i] != UNTOUCHED)
			return false;
	return true;
}

static void only_short_reads_move_bytes(void **state)
{
	(void)state;
	post(DV_READ, 0, MOVE_MAX, s.remote_mr.rkey);
	post(DV_READ, 4096, MOVE_MAX + 1, s.remote_mr.rkey);
	post(DV_READ, 8192, 64, s.remote_mr.rkey);
	post(DV_READ, 16384, 65536, s.remote_mr.rkey);
	dv_ring(s.sq);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(side_reap(&s), 0);
	assert_memory_equal(s.local, s.remote, MOVE_MAX);
	assert_memory_equal(s.local + 8192, s.remote + 8192, 64);
	assert_true(untouched(MOVE_MAX, 8192 - MOVE_MAX));
	assert_true(untouched(8192 + 64, SIDE_BYTES - 8192 - 64));
}

static void a_write_moves_its_bytes(void **state)
{
	(void)state;
	post(DV_WRITE, 4096, 8192, s.remote_mr.rkey);
	dv_ring(s.sq);
	assert_int_equal(side_reap(&s), 0);
	assert_memory_equal(s.local + 4096, s.remote + 4096, 8192);
}

static void a_long_read_with_a_wrong_key_fails(void **state)
{
	(void)state;
	post(DV_READ, 0, 64, s.remote_mr.rkey);
	post(DV_READ, 4096, 65536, s.remote_mr.rkey ^ 1);
	dv_ring(s.sq);
	assert_int_equal(side_reap(&s), 0);
	assert_int_equal(side_reap(&s), DV_SYNDROME_REMOTE_ACCESS);
	assert_memory_equal(s.local, s.remote, 64);
}

static void a_long_read_past_its_region_fails(void **state)
{
	struct dv_sge sge = {(uintptr_t)s.local, 65536, s.local_mr.lkey};

	(void)state;
	dv_post(s.sq, DV_READ, (uintptr_t)s.remote + SIDE_BYTES - 4096, s.remote_mr.rkey, &sge, 1,
		DV_CE_ALWAYS);
	dv_ring(s.sq);
	assert_int_equal(side_reap(&s), DV_SYNDROME_REMOTE_ACCESS);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(only_short_reads_move_bytes),
		TEST(a_write_moves_its_bytes),
		TEST(a_long_read_with_a_wrong_key_fails),
		TEST(a_long_read_past_its_region_fails),
	};

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	setenv("SOFT_CONNECTX_MOVE_MAX", "1024", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
