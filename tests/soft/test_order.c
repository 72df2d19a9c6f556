/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Order within one queue pair: a retransmitted payload can be younger than the head that was read
 * after it, and a payload can be torn. One process, which steps the NICs.
 */
#include "tests/soft/pair.h"

static struct end a, b;

static int open_pair(void **state)
{
	pair_open(&a, &b, "shm", 1);
	return 0;
}

static int close_pair(void **state)
{
	end_close(&a);
	end_close(&b);
	return 0;
}

#define PAYLOAD 0u
#define HEAD 65536u
#define BYTES 4096u

static void write_page(uint8_t generation)
{
	/* the owner increments the generation before it overwrites the payload */
	b.memory[HEAD] = generation;
	memset(b.memory + PAYLOAD, generation, BYTES);
}

/* Posts the READ of a payload, then the READ of its head. */
static void post_pair(void)
{
	end_post(&a, 0, DV_READ, PAYLOAD, (uintptr_t)b.memory + PAYLOAD, b.mr.rkey, BYTES, 0);
	end_post(&a, 0, DV_READ, HEAD, (uintptr_t)b.memory + HEAD, b.mr.rkey, 32, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
}

static void a_head_does_not_validate_a_retransmitted_payload(void **state)
{
	struct dv_fault fault = {.seed = 1, .retransmit_percent = 100};
	struct dv_soft_stats stats;

	dv_soft_faults(a.device, &fault);
	write_page(1);
	post_pair();
	dv_step(a.device);
	assert_int_equal(a.memory[HEAD], 1); /* the READ returned the head of generation 1 */
	assert_int_equal(end_reap(&a), 0);
	write_page(2);
	dv_step(a.device);
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.memory[HEAD], 1);
	/* the retransmitted READ returned the payload of generation 2 */
	assert_int_equal(a.memory[PAYLOAD], 2);
	dv_soft_stats(a.device, &stats);
	assert_int_equal(stats.retransmits, 1);
}

static void at_most_sixteen_reads_are_in_flight(void **state)
{
	struct dv_fault fault = {.seed = 11, .delay_steps_max = 100000};

	memset(b.memory, 3, 64);
	dv_soft_faults(a.device, &fault); /* the fault delays completions by up to 100000 steps */
	for (unsigned i = 0; i < 30; i++)
		end_post(&a, 0, DV_READ, 64 * i, (uintptr_t)b.memory, b.mr.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	for (unsigned i = 0; i < 5; i++)
		dv_step(a.device);
	assert_int_equal(end_reap(&a), 0);
	assert_int_equal(a.memory[64 * 15], 3);
	assert_int_equal(a.memory[64 * 16], 0);
	fault.delay_steps_max = 0;
	dv_soft_faults(a.device, &fault);
	end_wait(&a, NULL, 30);
	assert_int_equal(a.memory[64 * 29], 3);
}

static void a_large_read_can_be_torn_and_the_head_shows_it(void **state)
{
	struct dv_fault fault = {.seed = 2, .piece_bytes = 1024};

	dv_soft_faults(a.device, &fault);
	write_page(1);
	post_pair();
	dv_step(a.device);
	dv_step(a.device);
	write_page(2);
	end_wait(&a, NULL, 1);
	assert_true(a.memory[PAYLOAD] != a.memory[PAYLOAD + BYTES - 1]);
	assert_int_equal(a.memory[HEAD], 2);
}

static void pieces_are_moved_in_either_direction(void **state)
{
	struct dv_fault fault = {.piece_bytes = 1024};
	unsigned forward = 0, backward = 0;

	for (fault.seed = 1; fault.seed <= 20; fault.seed++) {
		dv_soft_faults(a.device, &fault);
		memset(a.memory, 0, BYTES);
		memset(b.memory, 1, BYTES);
		end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, BYTES, DV_CE_ALWAYS);
		dv_ring(a.sqs[0]);
		dv_step(a.device);
		forward += a.memory[0] == 1;
		backward += a.memory[BYTES - 1] == 1;
		end_wait(&a, NULL, (unsigned)fault.seed);
		assert_memory_equal(a.memory, b.memory, BYTES);
	}
	assert_true(forward > 0 && backward > 0);
	assert_int_equal(forward + backward, 20);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, open_pair, close_pair)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_head_does_not_validate_a_retransmitted_payload),
		TEST(at_most_sixteen_reads_are_in_flight),
		TEST(a_large_read_can_be_torn_and_the_head_shows_it),
		TEST(pieces_are_moved_in_either_direction),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
