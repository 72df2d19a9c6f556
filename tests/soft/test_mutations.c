/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hot paths with one error each, which the software NIC must report: a real NIC would stop silently
 * or move wrong bytes. One process, which steps the NICs.
 */
#include "tests/soft/pair.h"

static struct end a, b;
static struct dv_soft_stats stats;

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

static void post(void)
{
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 64, DV_CE_ALWAYS);
}

static void steps(void)
{
	for (unsigned i = 0; i < 20; i++)
		dv_step(a.device);
	dv_soft_stats(a.device, &stats);
}

static void write_record(uint32_t value)
{
	dv_wqe_before_record();
	dv_record_store(&a.sqs[0]->record[DV_DBREC_SEND], value & 0xffff);
}

static void write_doorbell(const void *first8)
{
	struct dv_sq *sq = a.sqs[0];
	uint64_t value;

	memcpy(&value, first8, sizeof(value));
	dv_mmio_store64((volatile uint64_t *)(void *)(sq->bf_reg + sq->bf_offset), value);
	sq->bf_offset ^= sq->bf_size;
	sq->rung = sq->pi;
}

static void a_correct_batch_is_not_reported(void **state)
{
	post();
	dv_ring(a.sqs[0]);
	steps();
	assert_int_equal(end_reap(&a), 1);
	assert_string_equal(stats.reason, "");
	assert_int_equal(stats.missing_doorbells, 0);
}

static void a_missing_doorbell_executes_nothing_and_is_reported(void **state)
{
	post();
	write_record(a.sqs[0]->pi);
	steps();
	assert_int_equal(end_reap(&a), 0);
	assert_int_equal(stats.missing_doorbells, 1);
	write_doorbell(dv_sq_block(a.sqs[0], a.sqs[0]->last));
	steps();
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(stats.missing_doorbells, 0);
}

static void a_record_not_updated_executes_nothing_and_is_reported(void **state)
{
	post();
	write_doorbell(dv_sq_block(a.sqs[0], a.sqs[0]->last));
	steps();
	assert_int_equal(end_reap(&a), 0);
	assert_int_equal(stats.bad_doorbell, 1);
	assert_non_null(strstr(stats.reason, "the doorbell record is"));
}

static void a_record_that_is_one_short_is_reported(void **state)
{
	post();
	post();
	write_record(a.sqs[0]->pi - 1);
	write_doorbell(dv_sq_block(a.sqs[0], a.sqs[0]->last));
	steps();
	assert_int_equal(end_reap(&a), 0);
	assert_int_equal(stats.bad_doorbell, 1);
}

static void a_doorbell_with_another_queue_pair_s_number_is_reported(void **state)
{
	uint64_t first8;

	post();
	write_record(a.sqs[0]->pi);
	memcpy(&first8, dv_sq_block(a.sqs[0], 0), sizeof(first8));
	first8 ^= htobe64(0x100);
	write_doorbell(&first8);
	steps();
	assert_int_equal(end_reap(&a), 0);
	assert_int_equal(stats.bad_doorbell, 1);
}

static void a_doorbell_in_the_same_half_twice_is_still_seen(void **state)
{
	/*
	 * sets the distance of the doorbell register's halves to 0: a register that does not
	 * alternate is allowed
	 */
	a.sqs[0]->bf_size = 0;
	for (unsigned i = 0; i < 3; i++) {
		post();
		dv_ring(a.sqs[0]);
	}
	steps();
	assert_int_equal(end_reap(&a), 3);
	assert_string_equal(stats.reason, "");
}

static void expect_qp_operation_error(const uint64_t *counter)
{
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_LOCAL_QP_OP);
	assert_int_equal(*counter, 1);
	assert_true(stats.reason[0] != 0);
}

static void a_stale_index_fails_the_wqe(void **state)
{
	post();
	dv_ring(a.sqs[0]);
	steps();
	end_reap(&a);
	a.done_count = 0;
	post();
	/* sets the index byte of the WQE to that of the queue's previous round */
	dv_sq_block(a.sqs[0], 1)[2] = 0;
	write_record(a.sqs[0]->pi);
	/* The doorbell names the correct WQE; only the WQE itself is wrong. */
	write_doorbell(&(uint64_t){htobe64(0x00000110ull << 32 | dv_qp_number(a.qps[0]) << 8 | 3)});
	steps();
	expect_qp_operation_error(&stats.bad_index);
}

static void another_queue_pair_s_number_in_the_wqe_fails_it(void **state)
{
	uint64_t right;

	post();
	memcpy(&right, dv_sq_block(a.sqs[0], 0), sizeof(right));
	dv_sq_block(a.sqs[0], 0)[6] ^= 1;
	write_record(a.sqs[0]->pi);
	write_doorbell(&right);
	steps();
	expect_qp_operation_error(&stats.bad_qpn);
}

static void an_invalid_size_fails_the_wqe(void **state)
{
	post();
	/* sets the WQE's length to 1 (in 16 bytes): the WQE has no address segment */
	dv_sq_block(a.sqs[0], 0)[7] = 1;
	dv_ring(a.sqs[0]);
	steps();
	expect_qp_operation_error(&stats.bad_wqe);
}

static void segments_written_without_the_wrap_are_detected(void **state)
{
	struct dv_sge sges[3];
	uint8_t *past;

	for (unsigned i = 0; i < 63; i++)
		post();
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 63);
	a.done_count = 0;
	for (unsigned i = 0; i < 3; i++)
		sges[i] = (struct dv_sge){(uintptr_t)a.memory, 64, a.mr.lkey};
	dv_post(a.sqs[0], DV_READ, (uintptr_t)b.memory, b.mr.rkey, sges, 3, DV_CE_ALWAYS);
	/*
	 * WQEBB 0 of the queue holds an old control segment, as if the third data segment were
	 * written past the queue's end.
	 */
	past = dv_sq_block(a.sqs[0], 0);
	memset(past, 0, 16);
	past[3] = 0x10;
	dv_ring(a.sqs[0]);
	steps();
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_LOCAL_PROTECTION);
}

static void posting_more_than_the_queue_holds_is_reported(void **state)
{
	for (unsigned i = 0; i < 65; i++) {
		/* makes the post function believe that every earlier WQE is complete */
		a.sqs[0]->ci = i;
		post();
	}
	dv_ring(a.sqs[0]);
	steps();
	assert_int_equal(stats.sq_overruns, 1);
	assert_int_equal(stats.reads, 0);
}

/*
 * A mutant of dv_poll() that does not flip the expected owner bit takes CQEs of the previous round
 * again.
 */
static bool has_wrong_owner(const struct dv_cq *cq)
{
	const uint8_t *cqe = cq->buf + (size_t)(cq->ci & (cq->cqe_cnt - 1)) * 64;

	return DV_CQE_OPCODE(cqe[63]) != MLX5_CQE_INVALID && (cqe[63] & DV_CQE_OWNER) == 0;
}

static void a_poll_with_the_wrong_owner_bit_sees_completions_twice(void **state)
{
	struct dv_options options = {.name = "soft"};
	static struct end c;
	struct card card;

	end_open_with(&c, &options, 1, 64, 4);
	end_card(&c, &card);
	end_connect(&c, &card);
	for (unsigned i = 0; i < 4; i++) {
		end_post(&c, 0, DV_READ, 0, card.base, card.rkey, 8, DV_CE_ALWAYS);
		dv_ring(c.sqs[0]);
		end_wait(&c, NULL, i + 1);
	}
	assert_false(dv_cq_has(&c.cq));
	assert_true(has_wrong_owner(&c.cq));
	end_close(&c);
}

static void a_consumer_index_never_written_overruns_the_queue(void **state)
{
	struct dv_options options = {.name = "soft"};
	struct dv_completion done;
	static struct end c;
	struct card card;

	end_open_with(&c, &options, 1, 64, 4);
	end_card(&c, &card);
	end_connect(&c, &card);
	for (unsigned i = 0; i < 6; i++) {
		end_post(&c, 0, DV_READ, 0, card.base, card.rkey, 8, DV_CE_ALWAYS);
		dv_ring(c.sqs[0]);
		dv_step(c.device);
		dv_poll(&c.cq, &done, 1);
		/* overwrites the consumer index that dv_poll() has stored for the NIC */
		dv_record_store(&c.cq.record[0], 0);
	}
	dv_soft_stats(c.device, &stats);
	assert_int_equal(stats.cq_overruns, 1);
	end_close(&c);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, open_pair, close_pair)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_correct_batch_is_not_reported),
		TEST(a_missing_doorbell_executes_nothing_and_is_reported),
		TEST(a_record_not_updated_executes_nothing_and_is_reported),
		TEST(a_record_that_is_one_short_is_reported),
		TEST(a_doorbell_with_another_queue_pair_s_number_is_reported),
		TEST(a_doorbell_in_the_same_half_twice_is_still_seen),
		TEST(a_stale_index_fails_the_wqe),
		TEST(another_queue_pair_s_number_in_the_wqe_fails_it),
		TEST(an_invalid_size_fails_the_wqe),
		TEST(segments_written_without_the_wrap_are_detected),
		TEST(posting_more_than_the_queue_holds_is_reported),
		TEST(a_poll_with_the_wrong_owner_bit_sees_completions_twice),
		TEST(a_consumer_index_never_written_overruns_the_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
