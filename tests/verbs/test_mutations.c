/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dv/hot.h with one error each, on queues that libmlx5 created; the NIC must report it.
 * tests/soft/test_mutations.c checks the same on the engine's own queues.
 */
#include "tests/verbs/side.h"

#define SILENCE_NS 30000000u /* time to wait for a completion that must not come, ns */

static struct side s;

static int setup(void **state)
{
	(void)state;
	side_open(&s);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	side_close(&s);
	return 0;
}

static struct dv_soft_stats stats(void)
{
	struct dv_soft_stats now;

	dv_soft_stats(soft_connectx_nic(0), &now);
	return now;
}

static void post(void)
{
	struct dv_sge sge = {(uintptr_t)s.local, 64, s.local_mr.lkey};

	dv_post(s.sq, DV_READ, (uintptr_t)s.remote, s.remote_mr.rkey, &sge, 1, DV_CE_ALWAYS);
}

/* The port may be late on a busy machine. */
static void wait_for_bad_doorbell(void)
{
	uint64_t end_ns = clock_monotonic_ns() + PATIENCE_NS;

	while (!stats().bad_doorbell && clock_monotonic_ns() < end_ns)
		sched_yield();
	assert_int_equal(stats().bad_doorbell, 1);
}

static void write_record(uint32_t value)
{
	dv_wqe_before_record();
	dv_record_store(&s.sq->record[DV_DBREC_SEND], value & 0xffff);
}

static void write_doorbell(void)
{
	uint64_t value;

	memcpy(&value, dv_sq_block(s.sq, s.sq->last), sizeof(value));
	dv_record_before_doorbell();
	dv_mmio_store64((volatile uint64_t *)(void *)(s.sq->bf_reg + s.sq->bf_offset), value);
	s.sq->bf_offset ^= s.sq->bf_size;
	s.sq->rung = s.sq->pi;
}

/* Consumes one completion and returns its syndrome. */
static int reap_one(void)
{
	struct dv_completion done = {0};

	assert_non_null(side_cqe(&s.cq, 0, PATIENCE_NS));
	assert_int_equal(dv_poll(&s.cq, &done, 1), 1);
	s.sq->ci = s.sq->pi;
	return done.syndrome;
}

static void a_correct_batch_is_not_reported(void **state)
{
	(void)state;
	post();
	dv_ring(s.sq);
	assert_int_equal(reap_one(), 0);
	assert_string_equal(stats().reason, "");
	assert_int_equal(stats().missing_doorbells, 0);
}

static void a_missing_doorbell_executes_nothing_and_is_reported(void **state)
{
	(void)state;
	post();
	write_record(s.sq->pi);
	assert_null(side_cqe(&s.cq, 0, SILENCE_NS));
	assert_int_equal(stats().missing_doorbells, 1);
	write_doorbell();
	assert_int_equal(reap_one(), 0);
	assert_int_equal(stats().missing_doorbells, 0);
}

static void a_record_not_updated_executes_nothing_and_is_reported(void **state)
{
	(void)state;
	post();
	write_doorbell();
	wait_for_bad_doorbell();
	assert_null(side_cqe(&s.cq, 0, SILENCE_NS));
	write_record(s.sq->pi);
	write_doorbell();
	assert_int_equal(reap_one(), 0);
}

static void a_stale_index_fails_the_wqe(void **state)
{
	(void)state;
	post();
	dv_ring(s.sq);
	assert_int_equal(reap_one(), 0);
	post();
	/* sets the index byte of the WQE to that of the previous WQE */
	dv_sq_block(s.sq, 1)[2] = 0;
	write_record(s.sq->pi);
	/* the doorbell names the right WQE; only the WQE itself is wrong */
	dv_mmio_store64((volatile uint64_t *)(void *)(s.sq->bf_reg + s.sq->bf_offset),
		htobe64(0x00000110ull << 32 | s.sq->qpn << 8 | 3));
	assert_int_equal(reap_one(), DV_SYNDROME_LOCAL_QP_OP);
	assert_int_equal(stats().bad_index, 1);
}

static void another_queue_pair_s_number_in_the_wqe_fails_it(void **state)
{
	uint64_t right;

	(void)state;
	post();
	memcpy(&right, dv_sq_block(s.sq, 0), sizeof(right));
	dv_sq_block(s.sq, 0)[6] ^= 1;
	write_record(s.sq->pi);
	dv_mmio_store64((volatile uint64_t *)(void *)(s.sq->bf_reg + s.sq->bf_offset), right);
	assert_int_equal(reap_one(), DV_SYNDROME_LOCAL_QP_OP);
	assert_int_equal(stats().bad_qpn, 1);
}

static void a_wrong_owner_bit_sees_no_completion(void **state)
{
	struct dv_cq wrong;
	struct dv_completion done;

	(void)state;
	post();
	dv_ring(s.sq);
	assert_non_null(side_cqe(&s.cq, 0, PATIENCE_NS));
	wrong = s.cq;
	/* expects the same CQ entry with the owner bit of the next round */
	wrong.ci += wrong.cqe_cnt;
	assert_int_equal(dv_poll(&wrong, &done, 1), 0);
	assert_int_equal(reap_one(), 0);
}

/*
 * A poll function that checks only the opcode would take the entries of the previous round again.
 */
static void completions_of_the_previous_round_are_not_taken_again(void **state)
{
	struct dv_cq all;

	(void)state;
	for (unsigned i = 0; i < s.cq.cqe_cnt; i++) {
		post();
		dv_ring(s.sq);
		assert_int_equal(reap_one(), 0);
	}
	all = s.cq;
	assert_false(dv_cq_has(&all));
	all.ci -= all.cqe_cnt;
	assert_true(dv_cq_has(&all));
}

static void a_consumer_index_never_written_breaks_the_queue(void **state)
{
	struct ibv_async_event event;

	(void)state;
	/* the test consumes completions but never stores the consumer index for the device */
	for (unsigned i = 0; i < s.cq.cqe_cnt; i++) {
		post();
		dv_ring(s.sq);
		assert_non_null(side_cqe(&s.cq, 0, PATIENCE_NS));
		s.cq.ci++;
		s.sq->ci = s.sq->pi;
	}
	post();
	dv_ring(s.sq);
	assert_int_equal(ibv_get_async_event(s.near->context, &event), 0);
	assert_int_equal(event.event_type, IBV_EVENT_CQ_ERR);
	assert_ptr_equal(event.element.cq, s.cq.handle);
	ibv_ack_async_event(&event);
	assert_int_equal(stats().cq_overruns, 1);
	assert_null(side_cqe(&s.cq, 0, SILENCE_NS));
}

static void a_port_that_goes_down_and_up_is_reported(void **state)
{
	struct ibv_async_event event;
	struct ibv_port_attr port;

	(void)state;
	soft_connectx_port(0, false);
	assert_int_equal(ibv_get_async_event(s.near->context, &event), 0);
	assert_int_equal(event.event_type, IBV_EVENT_PORT_ERR);
	assert_int_equal(event.element.port_num, 1);
	ibv_ack_async_event(&event);
	assert_int_equal(ibv_query_port(s.near->context, 1, &port), 0);
	assert_int_equal(port.state, IBV_PORT_DOWN);
	post();
	dv_ring(s.sq);
	assert_null(side_cqe(&s.cq, 0, SILENCE_NS));
	soft_connectx_port(0, true);
	assert_int_equal(ibv_get_async_event(s.near->context, &event), 0);
	assert_int_equal(event.event_type, IBV_EVENT_PORT_ACTIVE);
	ibv_ack_async_event(&event);
	assert_int_equal(reap_one(), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_correct_batch_is_not_reported),
		CASE(a_missing_doorbell_executes_nothing_and_is_reported),
		CASE(a_record_not_updated_executes_nothing_and_is_reported),
		CASE(a_stale_index_fails_the_wqe),
		CASE(another_queue_pair_s_number_in_the_wqe_fails_it),
		CASE(a_wrong_owner_bit_sees_no_completion),
		CASE(completions_of_the_previous_round_are_not_taken_again),
		CASE(a_consumer_index_never_written_breaks_the_queue),
		CASE(a_port_that_goes_down_and_up_is_reported),
	};

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
