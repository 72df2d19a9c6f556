/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ConnectX that dies, through libmlx5: what modify, destroy and close make of it. And what a path
 * is made of, as the device was told and answers QUERY_QP. One thread, beside those of the NICs.
 */
#include <poll.h>

#include "tests/verbs/side.h"

#define READ_BYTES 4096u

/* What libmlx5 allocated for queues and memory of a closed device stays allocated. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#else
static void __lsan_disable(void)
{
}

static void __lsan_enable(void)
{
}
#endif

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

static void read_some(void)
{
	struct dv_sge sge = {(uintptr_t)s.local, READ_BYTES, s.local_mr.lkey};

	dv_post(s.sq, DV_READ, (uintptr_t)s.remote, s.remote_mr.rkey, &sge, 1, DV_CE_ALWAYS);
	dv_ring(s.sq);
}

static void dies(unsigned dead)
{
	struct dv_fault fault = {.link_down = true, .silent = true, .dead = dead};

	dv_soft_faults(soft_connectx_nic(0), &fault);
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static void without_completions_a_destroyed_queue_pair_is_proof(void **state)
{
	(void)state;
	dies(DV_DEAD_CQES);
	read_some();
	good(dv_qp_error(s.hot));
	usleep(20000);
	assert_false(dv_cq_has(&s.cq)); /* flushed, and nothing says so */
	good(dv_qp_kill(s.hot));
	assert_int_equal(s.sq->pi - s.sq->ci, 1); /* the handle is still there */
	assert_int_equal(dv_qp_error(s.hot), -ENODEV);
	dies(0);
}

static void a_refused_transition_and_a_refused_destroy_are_told(void **state)
{
	(void)state;
	dies(DV_DEAD_CQES | DV_DEAD_ERROR | DV_DEAD_KILL);
	read_some();
	assert_int_equal(dv_qp_error(s.hot), -EIO);
	assert_int_equal(dv_qp_kill(s.hot), -EIO);
	dies(DV_DEAD_CQES);
	good(dv_qp_kill(s.hot));
}

/* libmlx5 would say that all is destroyed. */
static void a_destroy_that_failed_is_not_taken_for_success_by_the_environment(void **state)
{
	(void)state;
	assert_null(getenv("RDMAV_ALLOW_DISASSOC_DESTROY")); /* dv_open() took it away */
	dies(DV_DEAD_KILL);
	assert_int_equal(dv_qp_kill(s.hot), -EIO);
	dies(0);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void a_device_is_closed_under_queues_and_memory_that_are_left(void **state)
{
	struct dv_options options = {.name = "mlx5_2", .gid_index = -1};
	struct dv_fault dead = {.dead = DV_DEAD_CQES | DV_DEAD_ERROR | DV_DEAD_KILL};
	uint8_t *memory = calloc(1, READ_BYTES);
	struct dv_device *device;
	struct dv_address far;
	struct dv_mr mr, other;
	struct dv_cq cq;
	struct dv_qp *qp;
	struct dv_sq *sq;

	(void)state;
	__lsan_disable();
	good(dv_open(&options, &device));
	good(dv_cq_create(device, 64, &cq));
	good(dv_qp_create(device, &cq, 16, &qp, &sq));
	good(dv_mr_register(device, memory, READ_BYTES, DV_LOCAL_WRITE, -1, 0, &mr));
	dv_qp_address(s.answers[1], &far);
	good(dv_qp_connect(qp, &far));
	dv_soft_faults(soft_connectx_nic(2), &dead);
	assert_int_equal(dv_qp_error(qp), -EIO);
	assert_int_equal(dv_qp_kill(qp), -EIO);
	good(dv_cut(device));
	assert_null(soft_connectx_nic(2)); /* the kernel, so to speak, has let go of all of it */
	good(dv_qp_kill(qp));
	good(dv_mr_deregister(device, &mr));
	good(dv_mr_register(device, memory, READ_BYTES, DV_LOCAL_WRITE, -1, 0, &other));
	good(dv_mr_deregister(device, &other));
	assert_int_equal(dv_qp_connect(qp, &far), -ENODEV);
	dv_qp_destroy(qp);
	dv_cq_destroy(device, &cq);
	dv_close(device);
	free(memory);
	__lsan_enable();
}

static struct dv_event event(void)
{
	struct pollfd fd = {.fd = dv_event_fd(s.near), .events = POLLIN};
	struct dv_event ret = {0};

	assert_int_equal(poll(&fd, 1, 10000), 1);
	assert_int_equal(dv_event_next(s.near, &ret), 1);
	return ret;
}

static void a_device_and_a_queue_pair_that_fail_are_named(void **state)
{
	struct dv_event got;

	(void)state;
	soft_connectx_qp_fails(0, dv_qp_number(s.hot));
	got = event();
	assert_int_equal(got.kind, DV_EVENT_QP_ERROR);
	assert_int_equal(got.qpn, dv_qp_number(s.hot));
	soft_connectx_dies(0);
	assert_int_equal(event().kind, DV_EVENT_DEVICE_FATAL);
}

/* ---- the path -------------------------------------------------------------------------------- */

static void what_is_set_for_a_path_reaches_the_device(void **state)
{
	struct dv_options options = {.name = "mlx5_2",
		.gid_index = -1,
		.traffic_class = 106,
		.service_level = 3,
		.ack_timeout = 13};
	uint32_t label[2];

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		struct ibv_qp_init_attr unused;
		struct ibv_qp_attr attr;
		struct dv_device *device;
		struct dv_address far;
		struct dv_cq cq;
		struct dv_qp *qp[2];
		struct dv_sq *sq;

		options.one_flow = i;
		good(dv_open(&options, &device));
		good(dv_cq_create(device, 64, &cq));
		for (unsigned q = 0; q < 2; q++) {
			good(dv_qp_create(device, &cq, 16, &qp[q], &sq));
			dv_qp_address(s.answers[q], &far);
			far.reads = 5;
			good(dv_qp_connect(qp[q], &far));
			assert_int_equal(
				ibv_query_qp(qp[q]->qp, &attr,
					IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_ACCESS_FLAGS, &unused),
				0);
			assert_int_equal(attr.ah_attr.grh.traffic_class, 106);
			assert_int_equal(attr.ah_attr.sl, 3);
			assert_int_equal(attr.timeout, 13);
			assert_int_equal(dv_qp_ack_ns(qp[q]), 4096u << 13);
			assert_int_equal(attr.qp_access_flags, IBV_ACCESS_REMOTE_READ);
			assert_int_equal(attr.max_rd_atomic, 5);
			assert_int_equal(attr.max_dest_rd_atomic, 16);
			label[q] = attr.ah_attr.grh.flow_label;
		}
		assert_true(i ? label[0] == 0 && label[1] == 0
			      : label[0] && label[1] && label[0] != label[1]);
		dv_qp_destroy(qp[0]);
		dv_qp_destroy(qp[1]);
		dv_cq_destroy(device, &cq);
		dv_close(device);
	}
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(without_completions_a_destroyed_queue_pair_is_proof),
		CASE(a_refused_transition_and_a_refused_destroy_are_told),
		CASE(a_destroy_that_failed_is_not_taken_for_success_by_the_environment),
		CASE(a_device_is_closed_under_queues_and_memory_that_are_left),
		CASE(a_device_and_a_queue_pair_that_fail_are_named),
		CASE(what_is_set_for_a_path_reaches_the_device),
	};

	setenv("SOFT_CONNECTX_DEVICES", "3", 1);
	setenv("SOFT_CONNECTX_LINK", "roce", 1);
	setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
