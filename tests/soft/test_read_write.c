/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READ and WRITE between two software NICs of one process: bytes, segments, wraps, signalling,
 * several QPs, a late connect, a new QP in the place of one.
 */
#include "tests/soft/pair.h"

static void read_moves_the_bytes_and_gives_one_completion(void **state)
{
	struct end a, b;
	uint32_t index;

	pair_open(&a, &b, "shm", 1);
	end_fill(&b, 1);
	index = end_post(
		&a, 0, DV_READ, 100, (uintptr_t)b.memory + 7, b.mr.rkey, 5000, DV_CE_ALWAYS);
	/* the step moves nothing, because the doorbell is not rung yet */
	assert_int_equal(dv_step(a.device), 0);
	dv_ring(a.sqs[0]);
	assert_true(dv_step(a.device) > 0);
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.done[0].qpn, dv_qp_number(a.qps[0]));
	assert_int_equal(a.done[0].wqe_counter, index);
	assert_int_equal(a.done[0].syndrome, 0);
	assert_memory_equal(a.memory + 100, b.memory + 7, 5000);
	assert_int_equal(a.memory[99], 0);
	assert_int_equal(a.memory[5100], 0);
	assert_int_equal(dv_step(a.device), 0);
	end_close(&a);
	end_close(&b);
}

static void write_moves_the_bytes(void **state)
{
	struct end a, b;

	pair_open(&a, &b, "shm", 1);
	end_fill(&a, 9);
	end_post(&a, 0, DV_WRITE, 0, (uintptr_t)b.memory + 4096, b.mr.rkey, 70000, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, 0);
	assert_memory_equal(b.memory + 4096, a.memory, 70000);
	assert_int_equal(b.memory[4095], 0);
	end_close(&a);
	end_close(&b);
}

/*
 * Each round posts 5 WQEBBs to a queue of 8: some WQEs of three segments wrap at the end of the
 * queue.
 */
static void scattered_reads_wrap_the_queue_many_times(void **state)
{
	struct dv_options options = {.name = "soft"};
	struct end a, b;
	struct card card_a, card_b;
	unsigned count = 0;

	end_open_with(&a, &options, 1, 8, 8);
	end_open_with(&b, &options, 1, 8, 8);
	end_card(&a, &card_a);
	end_card(&b, &card_b);
	end_connect(&a, &card_b);
	end_connect(&b, &card_a);
	end_fill(&b, 3);
	for (uint32_t round = 0; round < 300; round++) {
		struct dv_sge sges[3];

		memset(a.memory, 0, 4096);
		for (unsigned i = 0; i < 3; i++)
			sges[i] = (struct dv_sge){
				(uintptr_t)a.memory + 1000 * i, 10 + 100 * i, a.mr.lkey};
		for (unsigned sges_used = 1; sges_used <= 3; sges_used += 2) {
			dv_post(a.sqs[0], DV_READ, card_b.base + round, card_b.rkey, sges,
				sges_used, DV_CE_ALWAYS);
			dv_ring(a.sqs[0]);
			end_wait(&a, NULL, ++count);
			assert_int_equal(a.done[count - 1].syndrome, 0);
		}
		assert_memory_equal(a.memory, b.memory + round, 10);
		assert_memory_equal(a.memory + 1000, b.memory + round + 10, 110);
		assert_memory_equal(a.memory + 2000, b.memory + round + 120, 210);
		assert_int_equal(a.memory[10] | a.memory[1110] | a.memory[2210], 0);
	}
	end_close(&a);
	end_close(&b);
}

static void only_signalled_wqes_have_completions(void **state)
{
	struct end a, b;
	struct dv_soft_stats stats;

	pair_open(&a, &b, "shm", 1);
	for (unsigned i = 0; i < 40; i++)
		end_post(&a, 0, DV_READ, 64 * i, (uintptr_t)b.memory, b.mr.rkey, 64,
			i % 8 == 7 ? DV_CE_ALWAYS : DV_CE_ERROR_ONLY);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 5);
	while (dv_step(a.device))
		;
	assert_int_equal(end_reap(&a), 0);
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(a.done[i].wqe_counter, 8 * i + 7);
	dv_soft_stats(a.device, &stats);
	assert_int_equal(stats.reads, 40);
	assert_int_equal(stats.bytes, 40 * 64);
	assert_int_equal(stats.doorbells, 1);
	assert_int_equal(stats.cqes, 5);
	assert_string_equal(stats.reason, "");
	end_close(&a);
	end_close(&b);
}

static void a_read_of_no_bytes_completes(void **state)
{
	struct end a, b;

	pair_open(&a, &b, "shm", 1);
	/* a READ without data segments: its rkey is not checked */
	dv_post(a.sqs[0], DV_READ, 0, 0, NULL, 0, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, 0);
	end_close(&a);
	end_close(&b);
}

static void a_nic_can_read_from_itself(void **state)
{
	struct card card;
	struct end a;

	end_open(&a, "shm", 1);
	end_card(&a, &card);
	end_connect(&a, &card);
	memset(a.memory + 8192, 0x5a, 4096);
	end_post(&a, 0, DV_READ, 0, card.base + 8192, card.rkey, 4096, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, 0);
	assert_memory_equal(a.memory, a.memory + 8192, 4096);
	end_close(&a);
}

static void a_read_waits_for_the_other_end_to_connect(void **state)
{
	struct end a, b;
	struct card card_a, card_b;
	struct dv_soft_stats stats;

	end_open(&a, "shm", 1);
	end_open(&b, "shm", 1);
	end_card(&a, &card_a);
	end_card(&b, &card_b);
	end_connect(&a, &card_b);
	dv_soft_patience(a.device, 0, 100);
	end_post(&a, 0, DV_READ, 0, card_b.base, card_b.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	for (unsigned i = 0; i < 50; i++)
		dv_step(a.device);
	assert_int_equal(end_reap(&a), 0);
	end_connect(&b, &card_a);
	dv_step(a.device);
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.done[0].syndrome, 0);
	dv_soft_stats(a.device, &stats);
	assert_int_equal(stats.retries, 1);
	end_close(&a);
	end_close(&b);
}

static void the_indices_wrap_past_sixteen_bits(void **state)
{
	struct end a, b;
	unsigned posted = 0;

	pair_open(&a, &b, "shm", 1);
	end_fill(&b, 77);
	while (posted < 70000) {
		for (unsigned i = 0; i < 50; i++)
			end_post(&a, 0, DV_READ, posted % 1000, (uintptr_t)b.memory, b.mr.rkey, 32,
				i == 49 ? DV_CE_ALWAYS : DV_CE_ERROR_ONLY);
		posted += 50;
		dv_ring(a.sqs[0]);
		end_wait(&a, NULL, 1);
		assert_int_equal(a.done[0].syndrome, 0);
		assert_int_equal(a.done[0].wqe_counter, (posted - 1) & 0xffff);
		a.done_count = 0;
	}
	assert_int_equal(a.sqs[0]->ci, posted);
	end_close(&a);
	end_close(&b);
}

static void a_new_queue_pair_starts_from_zero_and_works(void **state)
{
	struct end a, b;
	struct card card_a, card_b;

	pair_open(&a, &b, "shm", 1);
	for (unsigned round = 0; round < 3; round++) {
		uint32_t number = dv_qp_number(a.qps[0]);
		uint32_t index = end_post(
			&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 64, DV_CE_ALWAYS);

		assert_int_equal(index, 0);
		dv_ring(a.sqs[0]);
		a.done_count = 0;
		end_wait(&a, NULL, 1);
		assert_int_equal(a.done[0].syndrome, 0);
		end_renew(&a, 0);
		end_renew(&b, 0);
		assert_int_not_equal(dv_qp_number(a.qps[0]), number);
		assert_int_equal(a.sqs[0]->pi | a.sqs[0]->ci | a.sqs[0]->rung, 0);
		assert_int_equal(a.sqs[0]->bf_offset, 0);
		end_card(&a, &card_a);
		end_card(&b, &card_b);
		end_connect(&a, &card_b);
		end_connect(&b, &card_a);
	}
	end_close(&a);
	end_close(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_moves_the_bytes_and_gives_one_completion),
		cmocka_unit_test(write_moves_the_bytes),
		cmocka_unit_test(scattered_reads_wrap_the_queue_many_times),
		cmocka_unit_test(only_signalled_wqes_have_completions),
		cmocka_unit_test(a_read_of_no_bytes_completes),
		cmocka_unit_test(a_nic_can_read_from_itself),
		cmocka_unit_test(a_read_waits_for_the_other_end_to_connect),
		cmocka_unit_test(the_indices_wrap_past_sixteen_bits),
		cmocka_unit_test(a_new_queue_pair_starts_from_zero_and_works),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
