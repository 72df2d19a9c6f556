/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Features that only foreign programs use: SEND into receive queues, immediate data, inline data,
 * atomics, RNR, completion channels. Through libibverbs only, between two ports of this process.
 */
#include <poll.h>

#include "tests/verbs/side.h"

#define RECEIVES 8u
#define INLINE_BYTES 200u

struct end {
	struct dv_device *device;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
};

static struct end a, b;
static unsigned rnr_retry;

static void to_init(struct end *end)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_ATOMIC};

	assert_int_equal(
		ibv_modify_qp(end->qp, &init,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		0);
}

static void open_end(struct end *end, const char *name)
{
	struct dv_options options = {.name = name, .gid_index = -1};
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 16,
			.max_recv_wr = RECEIVES,
			.max_send_sge = 3,
			.max_recv_sge = 2,
			.max_inline_data = INLINE_BYTES}};

	good(dv_open(&options, &end->device));
	end->channel = ibv_create_comp_channel(end->device->context);
	end->cq = ibv_create_cq(end->device->context, 64, NULL, end->channel, 0);
	assert_non_null(end->cq);
	attr.send_cq = attr.recv_cq = end->cq;
	end->qp = ibv_create_qp(end->device->pd, &attr);
	assert_non_null(end->qp);
	end->memory = calloc(1, SIDE_BYTES);
	end->mr = ibv_reg_mr(end->device->pd, end->memory, SIDE_BYTES,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_ATOMIC);
	assert_non_null(end->mr);
	to_init(end);
}

static void connect_end(struct end *end, const struct end *to)
{
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = to->qp->qp_num,
		.rq_psn = to->qp->qp_num,
		.max_dest_rd_atomic = 16,
		.min_rnr_timer = 1,
		.ah_attr = {.dlid = to->device->path.lid, .port_num = 1}};
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = (uint8_t)rnr_retry,
		.sq_psn = end->qp->qp_num,
		.max_rd_atomic = 16};

	assert_int_equal(
		ibv_modify_qp(end->qp, &rtr,
			IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		0);
	assert_int_equal(
		ibv_modify_qp(end->qp, &rts,
			IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		0);
}

static void close_end(struct end *end)
{
	assert_int_equal(ibv_destroy_qp(end->qp), 0);
	assert_int_equal(ibv_destroy_cq(end->cq), 0);
	assert_int_equal(ibv_destroy_comp_channel(end->channel), 0);
	assert_int_equal(ibv_dereg_mr(end->mr), 0);
	free(end->memory);
	dv_close(end->device);
}

static int setup(void **state)
{
	rnr_retry = *state ? 0 : 7;
	open_end(&a, "mlx5_0");
	open_end(&b, "mlx5_1");
	connect_end(&a, &b);
	connect_end(&b, &a);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	close_end(&a);
	close_end(&b);
	return 0;
}

static struct ibv_wc reap(struct end *end)
{
	uint64_t until = now_ns() + PATIENCE_NS;
	struct ibv_wc wc = {0};

	while (ibv_poll_cq(end->cq, 1, &wc) == 0) {
		if (now_ns() > until)
			fail_msg("no completion arrived before the time-out");
		usleep(50);
	}
	return wc;
}

static void receive(struct end *end, uint32_t first, uint32_t second)
{
	struct ibv_sge sge[2] = {{(uintptr_t)end->memory, first, end->mr->lkey},
		{(uintptr_t)end->memory + 4096, second, end->mr->lkey}};
	struct ibv_recv_wr *bad, wr = {.wr_id = 77, .sg_list = sge, .num_sge = second ? 2 : 1};

	assert_int_equal(ibv_post_recv(end->qp, &wr, &bad), 0);
}

/*
 * Posts `wr` with the bytes after the first 64 KiB of a's memory; the caller sets the opcode's
 * members.
 */
static void send(struct ibv_send_wr wr, uint32_t bytes)
{
	struct ibv_sge sge = {(uintptr_t)a.memory + 65536, bytes, a.mr->lkey};
	struct ibv_send_wr *bad;

	wr.sg_list = &sge;
	wr.num_sge = bytes ? 1 : 0;
	wr.send_flags |= IBV_SEND_SIGNALED;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
}

static void fill(unsigned seed)
{
	for (unsigned i = 0; i < 65536; i++)
		a.memory[65536 + i] = (uint8_t)(i * 13 + seed);
}

static void a_message_is_scattered_over_the_receive_s_segments(void **state)
{
	struct ibv_wc wc;

	(void)state;
	fill(1);
	receive(&b, 100, 5000);
	send((struct ibv_send_wr){.opcode = IBV_WR_SEND, .wr_id = 5}, 3000);
	wc = reap(&a);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_SEND);
	assert_int_equal(wc.wr_id, 5);
	wc = reap(&b);
	assert_int_equal(wc.status, IBV_WC_SUCCESS);
	assert_int_equal(wc.opcode, IBV_WC_RECV);
	assert_int_equal(wc.wr_id, 77);
	assert_int_equal(wc.byte_len, 3000);
	assert_memory_equal(b.memory, a.memory + 65536, 100);
	assert_memory_equal(b.memory + 4096, a.memory + 65536 + 100, 2900);
}

static void immediate_data_comes_with_a_send_and_with_a_write(void **state)
{
	struct ibv_wc wc;

	(void)state;
	fill(2);
	receive(&b, 4096, 0);
	receive(&b, 4096, 0);
	send((struct ibv_send_wr){.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0xabcd)}, 0);
	assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
	wc = reap(&b);
	assert_int_equal(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
	assert_int_equal(be32toh(wc.imm_data), 0xabcd);
	send((struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		     .imm_data = htobe32(7),
		     .wr.rdma = {(uintptr_t)b.memory + 8192, b.mr->rkey}},
		5000);
	assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
	wc = reap(&b);
	assert_int_equal(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	assert_int_equal(be32toh(wc.imm_data), 7);
	assert_int_equal(wc.byte_len, 5000);
	assert_memory_equal(b.memory + 8192, a.memory + 65536, 5000);
}

static void inline_data_wraps_with_the_queue(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		uint32_t bytes = 1 + i * 37 % INLINE_BYTES;

		fill(i);
		memset(b.memory, 0, INLINE_BYTES);
		send((struct ibv_send_wr){.opcode = IBV_WR_RDMA_WRITE,
			     .send_flags = IBV_SEND_INLINE,
			     .wr.rdma = {(uintptr_t)b.memory, b.mr->rkey}},
			bytes);
		/*
		 * inline data was copied when the WQE was posted: the NIC does not read this memory
		 * again
		 */
		memset(a.memory + 65536, 0xee, INLINE_BYTES);
		assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
		fill(i);
		assert_memory_equal(b.memory, a.memory + 65536, bytes);
		assert_int_equal(b.memory[bytes], 0);
	}
}

static void atomics_return_the_old_value(void **state)
{
	uint64_t *there = (void *)b.memory, *here = (void *)(a.memory + 65536);
	struct ibv_send_wr add = {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = {
			.remote_addr = (uintptr_t)there, .compare_add = 5, .rkey = b.mr->rkey}};
	struct ibv_send_wr swap = {.opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
		.wr.atomic = {.remote_addr = (uintptr_t)there,
			.compare_add = 105,
			.swap = 9,
			.rkey = b.mr->rkey}};

	(void)state;
	*there = 100;
	send(add, 8);
	assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
	assert_int_equal(*here, 100);
	assert_int_equal(*there, 105);
	send(swap, 8);
	assert_int_equal(reap(&a).opcode, IBV_WC_COMP_SWAP);
	assert_int_equal(*here, 105);
	assert_int_equal(*there, 9);
	send(swap, 8); /* the atomic operation does not swap: the value is 9, not 105 */
	assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
	assert_int_equal(*here, 9);
	assert_int_equal(*there, 9);
	add.wr.atomic.remote_addr++;
	send(add, 8);
	assert_int_equal(reap(&a).status, IBV_WC_REM_INV_REQ_ERR);
}

static void a_sender_waits_for_a_late_receive(void **state)
{
	struct ibv_wc wc;

	(void)state;
	send((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 64);
	usleep(20000);
	assert_int_equal(ibv_poll_cq(a.cq, 1, &wc), 0);
	receive(&b, 64, 0);
	assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
	assert_int_equal(reap(&b).status, IBV_WC_SUCCESS);
}

static void a_sender_without_rnr_retries_fails(void **state)
{
	(void)state;
	send((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 64);
	assert_int_equal(reap(&a).status, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void a_receive_that_is_too_small_fails_both_ends_and_flushes(void **state)
{
	(void)state;
	receive(&b, 63, 0);
	receive(&b, 64, 0);
	send((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 64);
	assert_int_equal(reap(&b).status, IBV_WC_LOC_LEN_ERR);
	assert_int_equal(reap(&b).status, IBV_WC_WR_FLUSH_ERR);
	assert_int_equal(reap(&a).status, IBV_WC_REM_INV_REQ_ERR);
	receive(&b, 64, 0); /* a receive that is posted after the error is flushed too */
	assert_int_equal(reap(&b).status, IBV_WC_WR_FLUSH_ERR);
}

static void reset_end(struct end *end)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};

	assert_int_equal(ibv_modify_qp(end->qp, &reset, IBV_QP_STATE), 0);
	to_init(end);
}

static void a_reset_receive_queue_starts_from_its_first_entry(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 5; i++)
			a_message_is_scattered_over_the_receive_s_segments(state);
		reset_end(&a);
		reset_end(&b);
		connect_end(&a, &b);
		connect_end(&b, &a);
	}
}

static void an_atomic_with_a_wrong_rkey_is_refused(void **state)
{
	(void)state;
	send((struct ibv_send_wr){.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		     .wr.atomic = {.remote_addr = (uintptr_t)b.memory, .rkey = b.mr->rkey + 1}},
		8);
	assert_int_equal(reap(&a).status, IBV_WC_REM_ACCESS_ERR);
}

static bool event_within(struct end *end, int timeout_ms)
{
	struct pollfd fd = {.fd = end->channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;

	if (poll(&fd, 1, timeout_ms) != 1)
		return false;
	assert_int_equal(ibv_get_cq_event(end->channel, &cq, &context), 0);
	assert_ptr_equal(cq, end->cq);
	ibv_ack_cq_events(cq, 1);
	return true;
}

static void an_armed_queue_raises_one_event(void **state)
{
	(void)state;
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	for (unsigned i = 0; i < 3; i++) {
		receive(&b, 64, 0);
		send((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 64);
		assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
	}
	assert_true(event_within(&b, 10000));
	/* arming the completion queue once gives one event, and it was consumed */
	assert_false(event_within(&b, 20));
	assert_int_equal(ibv_req_notify_cq(b.cq, 0), 0);
	/* the event comes at once, because a completion is in the queue already */
	assert_true(event_within(&b, 10000));
	for (unsigned i = 0; i < 3; i++)
		reap(&b);
	/* no event: the sender of the message did not request a solicited event */
	for (unsigned tries = 0;; tries++) {
		assert_int_equal(ibv_req_notify_cq(b.cq, 1), 0);
		receive(&b, 64, 0);
		send((struct ibv_send_wr){.opcode = IBV_WR_SEND}, 64);
		assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
		if (!event_within(&b, 20))
			break;
		/* the NIC saw the arm late: for it the completion was in the queue already */
		assert_true(tries < 100);
		reap(&b);
	}
	receive(&b, 64, 0);
	send((struct ibv_send_wr){.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SOLICITED}, 64);
	assert_true(event_within(&b, 10000));
}

/*
 * Only a copy of this process's descriptor is tested: one of another process would be just as
 * unknown.
 */
static void an_import_is_refused_and_changes_nothing(void **state)
{
	int fd = dup(a.device->context->cmd_fd);

	assert_true(fd >= 0);
	assert_null(ibv_import_device(fd));
	*state = NULL;
	a_message_is_scattered_over_the_receive_s_segments(state);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	static int impatient;
	const struct CMUnitTest tests[] = {
		CASE(a_message_is_scattered_over_the_receive_s_segments),
		CASE(immediate_data_comes_with_a_send_and_with_a_write),
		CASE(inline_data_wraps_with_the_queue),
		CASE(atomics_return_the_old_value),
		CASE(a_sender_waits_for_a_late_receive),
		cmocka_unit_test_prestate_setup_teardown(
			a_sender_without_rnr_retries_fails, setup, teardown, &impatient),
		CASE(a_receive_that_is_too_small_fails_both_ends_and_flushes),
		CASE(a_reset_receive_queue_starts_from_its_first_entry),
		CASE(an_atomic_with_a_wrong_rkey_is_refused),
		CASE(an_armed_queue_raises_one_event),
		CASE(an_import_is_refused_and_changes_nothing),
	};

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
