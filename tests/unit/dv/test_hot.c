/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/hot.h on plain memory: the bytes that it writes for a ConnectX, and how it reads the
 * bytes that a ConnectX would write. No NIC, no library. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "dv/hot.h"

#define BLOCKS 8u
#define CQES 4u

static alignas(64) uint8_t queue[BLOCKS * DV_WQEBB];
static alignas(64) uint8_t uar[4096];
static alignas(64) uint8_t cqes[CQES * 128];
static alignas(64) __be32 sq_record[2], cq_record[2];

static struct dv_sq new_sq(void)
{
	memset(queue, 0xaa, sizeof(queue));
	memset(uar, 0, sizeof(uar));
	memset(sq_record, 0, sizeof(sq_record));
	return (struct dv_sq){.buf = queue,
		.record = sq_record,
		.bf_reg = uar + 0x800,
		.wqe_cnt = BLOCKS,
		.qpn = 0x123456,
		.bf_size = 0x100};
}

static struct dv_cq new_cq(uint32_t cqe_size)
{
	memset(cqes, 0, sizeof(cqes));
	memset(cq_record, 0, sizeof(cq_record));
	for (uint32_t i = 0; i < CQES; i++)
		cqes[(i + 1) * cqe_size - 1] = 0xf1;
	return (struct dv_cq){
		.buf = cqes, .record = cq_record, .cqe_cnt = CQES, .cqe_size = cqe_size, .cqn = 5};
}

static void a_read_with_one_segment_has_the_prm_layout(void **state)
{
	static const uint8_t expected[48] = {0x00, 0x00, 0x00, 0x10, 0x12, 0x34, 0x56, 0x03, 0, 0,
		0, 0x08, 0, 0, 0, 0, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x0a, 0x0b,
		0x0c, 0x0d, 0, 0, 0, 0, 0x00, 0x01, 0x00, 0x02, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22,
		0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
	struct dv_sge sge = {0x2122232425262728, 0x00010002, 0x11121314};
	struct dv_sq sq = new_sq();

	assert_int_equal(
		dv_post(&sq, DV_READ, 0x0102030405060708, 0x0a0b0c0d, &sge, 1, DV_CE_ALWAYS), 0);
	assert_memory_equal(queue, expected, sizeof(expected));
	assert_int_equal(queue[48], 0xaa); /* the bytes after the last segment are not written */
	assert_int_equal(sq.pi, 1);
	assert_int_equal(sq.last, 0);
	assert_int_equal(dv_sq_room(&sq), BLOCKS - 1);
}

static void a_write_differs_in_its_opcode(void **state)
{
	struct dv_sge sge = {1, 2, 3};
	struct dv_sq sq = new_sq();

	dv_post(&sq, DV_WRITE, 4, 5, &sge, 1, DV_CE_ALWAYS);
	assert_int_equal(queue[3], 0x08);
	assert_int_equal(queue[11], 0x08);
}

static void a_wqe_has_the_low_16_bits_of_its_index(void **state)
{
	static const uint8_t expected[4] = {0x00, 0xff, 0xfe, 0x10};
	struct dv_sge sge = {1, 2, 3};
	struct dv_sq sq = new_sq();

	sq.pi = sq.ci = sq.rung = 0x5fffe;
	assert_int_equal(dv_post(&sq, DV_READ, 4, 5, &sge, 1, 0), 0x5fffe);
	assert_memory_equal(queue + 6 * 64, expected, 4);
}

static void a_third_segment_at_the_queue_end_is_in_the_first_block(void **state)
{
	static const uint8_t third[16] = {0, 0, 0, 0x33, 0, 0, 0, 0x44, 0, 0, 0, 0, 0, 0, 0, 0x55};
	struct dv_sge sges[3] = {{1, 2, 3}, {4, 5, 6}, {0x55, 0x33, 0x44}};
	struct dv_sq sq = new_sq();

	sq.pi = sq.ci = sq.rung = BLOCKS - 1;
	dv_post(&sq, DV_READ, 7, 8, sges, 3, DV_CE_ALWAYS);
	/* the WQE's length field (ds), in units of 16 bytes */
	assert_int_equal(queue[7 * 64 + 7], 5);
	assert_int_equal(queue[7 * 64 + 63], 4); /* the low byte of the second segment's address */
	assert_memory_equal(queue, third, sizeof(third));
	assert_int_equal(queue[16], 0xaa);
	assert_int_equal(sq.pi, BLOCKS + 1);
	assert_int_equal(sq.last, BLOCKS - 1);
}

static void blocks_are_counted_from_segments(void **state)
{
	assert_int_equal(dv_wqe_blocks(0), 1);
	assert_int_equal(dv_wqe_blocks(1), 1);
	assert_int_equal(dv_wqe_blocks(2), 1);
	assert_int_equal(dv_wqe_blocks(3), 2);
}

static void a_series_writes_the_same_bytes_as_single_posts(void **state)
{
	static uint8_t expected[sizeof(queue)];
	struct dv_sq sq = new_sq();
	struct dv_keys keys = dv_keys(0x12345678, 0xddeeff01);
	struct dv_series series;

	sq.pi = sq.ci = sq.rung = 0x5fffd; /* the queue's end and that of 16 bits are passed */
	for (uint32_t i = 0; i < BLOCKS; i++) {
		struct dv_sge sge = {0x1122334455667788 + i, 0x99aabbcc + i, 0xddeeff01};

		dv_post(&sq, DV_READ, 0xf1e2d3c4b5a69788 - i, 0x12345678, &sge, 1, 0);
	}
	dv_signal_last(&sq);
	memcpy(expected, queue, sizeof(expected));
	sq = new_sq();
	sq.pi = sq.ci = sq.rung = 0x5fffd;
	series = dv_series_begin(&sq, BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		dv_series_read(&series, keys, 0xf1e2d3c4b5a69788 - i, 0x1122334455667788 + i,
			dv_length(keys, 0x99aabbcc + i));
	dv_signal_last(&sq);
	assert_int_equal(sq.pi, 0x5fffd + BLOCKS);
	assert_int_equal(sq.last, 0x5fffd + BLOCKS - 1);
	/* each WQE has 48 bytes; the rest of its block is not written */
	assert_memory_equal(queue, expected, sizeof(expected));
}

static uint64_t doorbell(unsigned half)
{
	uint64_t value;

	memcpy(&value, uar + 0x800 + 0x100 * half, sizeof(value));
	return value;
}

static void dv_signal_last_sets_the_flag_of_the_last_wqe(void **state)
{
	struct dv_sge sges[3] = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
	struct dv_sq sq = new_sq();

	sq.pi = sq.ci = sq.rung = BLOCKS - 2;
	dv_post(&sq, DV_READ, 4, 5, sges, 1, DV_CE_ERROR_ONLY);
	/* this WQE wraps at the end of the queue */
	dv_post(&sq, DV_READ, 4, 5, sges, 3, DV_CE_ERROR_ONLY);
	dv_signal_last(&sq);
	assert_int_equal(queue[6 * 64 + 11], DV_CE_ERROR_ONLY);
	assert_int_equal(queue[7 * 64 + 11], DV_CE_ALWAYS);
	/* byte 11 of the second WQEBB of a WQE is part of an address; only the first has flags */
	assert_int_equal(queue[11], 0);
}

static void the_doorbell_has_the_last_wqe_and_alternates_halves(void **state)
{
	struct dv_sge sge = {1, 2, 3};
	struct dv_sq sq = new_sq();

	dv_ring(&sq);
	/* dv_ring() without a posted WQE writes nothing to the doorbell register */
	assert_int_equal(doorbell(0), 0);
	dv_post(&sq, DV_READ, 4, 5, &sge, 1, 0);
	dv_post(&sq, DV_READ, 4, 5, &sge, 1, DV_CE_ALWAYS);
	assert_int_equal(sq_record[1], 0);
	dv_ring(&sq);
	assert_memory_equal(uar + 0x800, queue + 64, 8);
	assert_int_equal(doorbell(1), 0);
	assert_int_equal(be32toh(sq_record[1]), 2);
	assert_int_equal(sq_record[0], 0);
	dv_ring(&sq);
	/* a second dv_ring() after the same post writes nothing to the doorbell register */
	assert_int_equal(doorbell(1), 0);
	dv_post(&sq, DV_READ, 4, 5, &sge, 1, 0);
	dv_ring(&sq);
	assert_memory_equal(uar + 0x900, queue + 128, 8);
	memset(uar, 0, sizeof(uar));
	dv_post(&sq, DV_READ, 4, 5, &sge, 1, 0);
	dv_ring(&sq);
	assert_memory_equal(uar + 0x800, queue + 192, 8);
	assert_int_equal(doorbell(1), 0);
	assert_int_equal(be32toh(sq_record[1]), 4);
}

static void the_doorbell_record_holds_16_bits(void **state)
{
	struct dv_sge sge = {1, 2, 3};
	struct dv_sq sq = new_sq();

	sq.pi = sq.ci = sq.rung = 0x1ffff;
	dv_post(&sq, DV_READ, 4, 5, &sge, 1, 0);
	dv_ring(&sq);
	assert_int_equal(be32toh(sq_record[1]), 0);
	sq.pi = sq.ci = sq.rung = 0x1fffe;
	dv_post(&sq, DV_READ, 4, 5, &sge, 1, 0);
	dv_ring(&sq);
	assert_int_equal(be32toh(sq_record[1]), 0xffff);
}

/* Writes a CQE as a device does; `round` is its owner bit. */
static void complete(struct dv_cq *cq, uint32_t at, uint8_t opcode, uint8_t round, uint8_t syndrome)
{
	uint8_t *cqe = cqes + (size_t)at * cq->cqe_size + cq->cqe_size - 64;

	cqe[44] = 0, cqe[45] = 1, cqe[46] = 2, cqe[47] = 3;
	cqe[54] = 0x99;
	cqe[55] = syndrome;
	cqe[56] = 0x0d, cqe[57] = 0xab, cqe[58] = 0xcd, cqe[59] = 0xef;
	cqe[60] = 0x12, cqe[61] = (uint8_t)(0x30 + at);
	cqe[63] = (uint8_t)(opcode << 4 | round);
}

static void initial_cqes_are_not_completions(void **state)
{
	struct dv_completion done[8];
	struct dv_cq cq = new_cq(64);

	assert_false(dv_cq_has(&cq));
	assert_int_equal(dv_poll(&cq, done, 8), 0);
	/* the CQE has the correct owner bit, but its opcode is INVALID */
	complete(&cq, 0, MLX5_CQE_INVALID, 0, 0);
	assert_false(dv_cq_has(&cq));
}

static void the_owner_bit_changes_every_round(void **state)
{
	struct dv_completion done[8];
	struct dv_cq cq = new_cq(64);

	for (uint32_t i = 0; i < 4 * CQES; i++) {
		uint8_t round = i / CQES & 1;

		assert_false(dv_cq_has(&cq)); /* the CQE is from the previous round of the queue */
		complete(&cq, i % CQES, MLX5_CQE_REQ, !round, 0);
		assert_false(dv_cq_has(&cq));
		complete(&cq, i % CQES, MLX5_CQE_REQ, round, 0);
		assert_int_equal(dv_poll(&cq, done, 8), 1);
		assert_int_equal(done[0].qpn, 0xabcdef);
		assert_int_equal(done[0].wqe_counter, 0x1230 + i % CQES);
		assert_int_equal(done[0].syndrome, 0);
		assert_int_equal(be32toh(cq_record[0]), i + 1);
	}
}

static void a_poll_returns_at_most_max_completions(void **state)
{
	struct dv_completion done[8];
	struct dv_cq cq = new_cq(64);

	for (uint32_t i = 0; i < CQES; i++)
		complete(&cq, i, MLX5_CQE_REQ, 0, 0);
	assert_int_equal(dv_poll(&cq, done, 3), 3);
	assert_int_equal(be32toh(cq_record[0]), 3);
	assert_int_equal(dv_poll(&cq, done, 3), 1);
	assert_int_equal(dv_poll(&cq, done, 3), 0);
	assert_int_equal(be32toh(cq_record[0]), 4);
}

static void the_consumer_index_has_24_bits(void **state)
{
	struct dv_completion done[8];
	struct dv_cq cq = new_cq(64);

	cq.ci = 0x2ffffff;
	complete(&cq, 3, MLX5_CQE_REQ, 1, 0);
	assert_int_equal(dv_poll(&cq, done, 8), 1);
	assert_int_equal(be32toh(cq_record[0]), 0);
}

static void an_error_cqe_returns_its_syndrome(void **state)
{
	struct dv_completion done[8];
	struct dv_cq cq = new_cq(64);

	complete(&cq, 0, MLX5_CQE_REQ_ERR, 0, DV_SYNDROME_REMOTE_ACCESS);
	complete(&cq, 1, MLX5_CQE_REQ_ERR, 0, 0);   /* an error CQE with syndrome 0 */
	complete(&cq, 2, MLX5_CQE_RESP_SEND, 0, 0); /* a CQE with an opcode of receive queues */
	complete(&cq, 3, MLX5_CQE_REQ, 0, 0);
	assert_int_equal(dv_poll(&cq, done, 8), 4);
	assert_int_equal(done[0].syndrome, DV_SYNDROME_REMOTE_ACCESS);
	assert_int_equal(done[1].syndrome, DV_SYNDROME_BAD_RESPONSE);
	assert_int_equal(done[2].syndrome, DV_SYNDROME_BAD_RESPONSE);
	assert_int_equal(done[3].syndrome, 0); /* the error CQEs before it do not end the batch */
}

static void a_128_byte_cqe_uses_its_last_64_bytes(void **state)
{
	struct dv_completion done[8];
	struct dv_cq cq = new_cq(128);

	for (uint32_t i = 0; i < 2 * CQES; i++) {
		complete(&cq, i % CQES, MLX5_CQE_REQ, i / CQES & 1, 0);
		assert_int_equal(dv_poll(&cq, done, 8), 1);
		assert_int_equal(done[0].wqe_counter, 0x1230 + i % CQES);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_read_with_one_segment_has_the_prm_layout),
		cmocka_unit_test(a_write_differs_in_its_opcode),
		cmocka_unit_test(a_wqe_has_the_low_16_bits_of_its_index),
		cmocka_unit_test(a_third_segment_at_the_queue_end_is_in_the_first_block),
		cmocka_unit_test(blocks_are_counted_from_segments),
		cmocka_unit_test(a_series_writes_the_same_bytes_as_single_posts),
		cmocka_unit_test(dv_signal_last_sets_the_flag_of_the_last_wqe),
		cmocka_unit_test(the_doorbell_has_the_last_wqe_and_alternates_halves),
		cmocka_unit_test(the_doorbell_record_holds_16_bits),
		cmocka_unit_test(initial_cqes_are_not_completions),
		cmocka_unit_test(the_owner_bit_changes_every_round),
		cmocka_unit_test(a_poll_returns_at_most_max_completions),
		cmocka_unit_test(the_consumer_index_has_24_bits),
		cmocka_unit_test(an_error_cqe_returns_its_syndrome),
		cmocka_unit_test(a_128_byte_cqe_uses_its_last_64_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
