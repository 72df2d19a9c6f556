/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Features that only foreign programs use: inline data and completion channels. Through libibverbs
 * only, between two ports of this process.
 */
#include <poll.h>

#include "tests/verbs/side.h"

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

static void to_init(struct end *end)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};

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
			.max_recv_wr = 8,
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
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
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
		.rnr_retry = 7,
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
	(void)state;
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

/* Writes the bytes after the first 64 KiB of a's memory to the start of b's. */
static void write_there(unsigned flags, uint32_t bytes, uint32_t rkey)
{
	struct ibv_sge sge = {(uintptr_t)a.memory + 65536, bytes, a.mr->lkey};
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_RDMA_WRITE,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .send_flags = IBV_SEND_SIGNALED | flags,
					 .wr.rdma = {(uintptr_t)b.memory, rkey}};

	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
}

static void fill(unsigned seed)
{
	for (unsigned i = 0; i < 65536; i++)
		a.memory[65536 + i] = (uint8_t)(i * 13 + seed);
}

static void inline_data_wraps_with_the_queue(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		uint32_t bytes = 1 + i * 37 % INLINE_BYTES;

		fill(i);
		memset(b.memory, 0, INLINE_BYTES);
		write_there(IBV_SEND_INLINE, bytes, b.mr->rkey);
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
	assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
	for (unsigned i = 0; i < 3; i++)
		write_there(0, 64, b.mr->rkey);
	assert_true(event_within(&a, 10000));
	/* arming the completion queue once gives one event, and it was consumed */
	assert_false(event_within(&a, 20));
	assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
	/* the event comes at once, because a completion is in the queue already */
	assert_true(event_within(&a, 10000));
	for (unsigned i = 0; i < 3; i++)
		reap(&a);
	/* no event: only errors are solicited */
	for (unsigned tries = 0;; tries++) {
		assert_int_equal(ibv_req_notify_cq(a.cq, 1), 0);
		write_there(0, 64, b.mr->rkey);
		if (!event_within(&a, 20))
			break;
		/* the NIC saw the arm late: for it the completion was in the queue already */
		assert_true(tries < 100);
		reap(&a);
	}
	write_there(0, 64, b.mr->rkey + 1);
	assert_true(event_within(&a, 10000));
	assert_int_equal(reap(&a).status, IBV_WC_SUCCESS);
	assert_int_equal(reap(&a).status, IBV_WC_REM_ACCESS_ERR);
}

static void messages_and_atomics_are_refused(void **state)
{
	struct ibv_sge sge = {(uintptr_t)a.memory, 8, a.mr->lkey};
	struct ibv_send_wr *bad, wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1};

	(void)state;
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	assert_int_equal(reap(&a).status, IBV_WC_LOC_QP_OP_ERR);
	assert_null(ibv_reg_mr(b.device->pd, b.memory, SIDE_BYTES,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
}

/* In the process of the device; test_import.c has another process. */
static void a_copy_of_the_descriptor_imports_the_objects(void **state)
{
	int fd = dup(a.device->context->cmd_fd);
	struct ibv_context *context = ibv_import_device(fd);
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	assert_non_null(context);
	pd = ibv_import_pd(context, a.device->pd->handle);
	assert_non_null(pd);
	assert_null(ibv_import_pd(context, a.mr->handle));
	mr = ibv_import_mr(pd, a.mr->handle);
	assert_non_null(mr);
	assert_int_equal(mr->lkey, a.mr->lkey);
	assert_int_equal(mr->length, SIDE_BYTES);
	assert_null(ibv_import_mr(pd, a.device->pd->handle));
	ibv_unimport_mr(mr);
	ibv_unimport_pd(pd);
	assert_int_equal(ibv_close_device(context), 0);
	inline_data_wraps_with_the_queue(state);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(inline_data_wraps_with_the_queue),
		CASE(an_armed_queue_raises_one_event),
		CASE(messages_and_atomics_are_refused),
		CASE(a_copy_of_the_descriptor_imports_the_objects),
	};

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
