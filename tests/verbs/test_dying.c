/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ConnectX that dies, through libmlx5: the results of modify, destroy and close. Also the path
 * options: QUERY_QP returns what the device was given. One thread, besides those of the NICs.
 */
#include <poll.h>

#include "tests/sanitized.h"
#include "tests/verbs/side.h"

#define READ_BYTES 4096u

/*
 * libmlx5 never frees its queues and memory objects of a device that was cut: LeakSanitizer must
 * ignore them.
 */
#if ADDRESS_SANITIZED
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
	side_open(&s);
	return 0;
}

static int teardown(void **state)
{
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

static void without_completions_destroying_a_queue_pair_proves_it_stopped(void **state)
{
	dies(DV_DEAD_CQES);
	read_some();
	good(dv_qp_error(s.hot));
	usleep(20000);
	/* the WQE is flushed, but the device writes no completion */
	assert_false(dv_cq_has(&s.cq));
	good(dv_qp_kill(s.hot));
	/* the QP's send queue (struct dv_sq) can still be used by the rail's thread */
	assert_int_equal(s.sq->pi - s.sq->ci, 1);
	assert_int_equal(dv_qp_error(s.hot), -ENODEV);
	dies(0);
}

static void a_refused_transition_and_a_refused_destroy_are_reported(void **state)
{
	dies(DV_DEAD_CQES | DV_DEAD_ERROR | DV_DEAD_KILL);
	read_some();
	assert_int_equal(dv_qp_error(s.hot), -EIO);
	assert_int_equal(dv_qp_kill(s.hot), -EIO);
	dies(DV_DEAD_CQES);
	good(dv_qp_kill(s.hot));
}

/*
 * With RDMAV_ALLOW_DISASSOC_DESTROY in the environment, libmlx5 would report a failed destroy as
 * success.
 */
static void the_environment_cannot_turn_a_failed_destroy_into_success(void **state)
{
	/* dv_open() removed the variable from the environment */
	assert_null(getenv("RDMAV_ALLOW_DISASSOC_DESTROY"));
	dies(DV_DEAD_KILL);
	assert_int_equal(dv_qp_kill(s.hot), -EIO);
	dies(0);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void a_device_is_cut_with_queues_and_memory_left_on_it(void **state)
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

	__lsan_disable();
	good(dv_open(&options, &device));
	good(dv_cq_create(device, 64, &cq));
	good(dv_qp_create(device, &cq, 16, &qp, &sq));
	good(dv_mr_register(device,
		&(struct dv_memory){.base = memory,
			.length = READ_BYTES,
			.access = DV_LOCAL_WRITE,
			.memfd = -1},
		&mr));
	dv_qp_address(s.answers[1], &far);
	good(dv_qp_connect(qp, &far));
	dv_soft_faults(soft_connectx_nic(2), &dead);
	assert_int_equal(dv_qp_error(qp), -EIO);
	assert_int_equal(dv_qp_kill(qp), -EIO);
	good(dv_cut(device));
	/* the device is closed, as if the kernel had removed the NIC */
	assert_null(soft_connectx_nic(2));
	good(dv_qp_kill(qp));
	good(dv_mr_deregister(device, &mr));
	good(dv_mr_register(device,
		&(struct dv_memory){.base = memory,
			.length = READ_BYTES,
			.access = DV_LOCAL_WRITE,
			.memfd = -1},
		&other));
	good(dv_mr_deregister(device, &other));
	assert_int_equal(dv_qp_connect(qp, &far), -ENODEV);
	dv_qp_destroy(qp);
	dv_cq_destroy(device, &cq);
	dv_close(device);
	free(memory);
	__lsan_enable();
}

static struct dv_event event_of(struct dv_device *device)
{
	struct pollfd fd = {.fd = dv_event_fd(device), .events = POLLIN};
	struct dv_event ret = {0};

	assert_int_equal(poll(&fd, 1, 10000), 1);
	assert_int_equal(dv_event_next(device, &ret), 1);
	return ret;
}

static struct dv_event event(void)
{
	return event_of(s.near);
}

/* What a rail needs to READ from s.far over a device of its own. */
struct reader {
	struct dv_device *device;
	struct dv_cq cq;
	struct dv_qp *qp, *answers;
	struct dv_sq *sq;
	struct dv_mr mr;
	uint8_t memory[READ_BYTES];
};

static void reader_queue_and_memory(struct reader *r)
{
	good(dv_cq_create(r->device, 64, &r->cq));
	good(dv_mr_register(r->device,
		&(struct dv_memory){.base = r->memory,
			.length = READ_BYTES,
			.access = DV_LOCAL_WRITE,
			.memfd = -1},
		&r->mr));
}

static void reader_begin(struct reader *r)
{
	struct dv_address here, there;
	struct dv_sq *unused;

	reader_queue_and_memory(r);
	good(dv_qp_create(r->device, &r->cq, 16, &r->qp, &r->sq));
	good(dv_qp_create(s.far, &s.answers_cq, 16, &r->answers, &unused));
	dv_qp_address(r->qp, &here);
	dv_qp_address(r->answers, &there);
	good(dv_qp_connect(r->answers, &here));
	good(dv_qp_connect(r->qp, &there));
}

static void reader_posts(struct reader *r)
{
	struct dv_sge sge = {(uintptr_t)r->memory, READ_BYTES, r->mr.lkey};

	dv_post(r->sq, DV_READ, (uintptr_t)s.remote, s.remote_mr.rkey, &sge, 1, DV_CE_ALWAYS);
	dv_ring(r->sq);
}

static void a_removed_device_is_opened_anew_when_it_is_back(void **state)
{
	struct dv_options options = {.name = "mlx5_2", .gid_index = -1, .later = true};
	struct reader *r = calloc(1, sizeof(*r));
	struct dv_mr old, other;

	__lsan_disable();
	good(dv_open(&options, &r->device));
	reader_begin(r);
	memset(s.remote, 0x5a, READ_BYTES);
	soft_connectx_removed(2, true);
	assert_int_equal(event_of(r->device).kind, DV_EVENT_DEVICE_FATAL);
	reader_posts(r);
	usleep(20000);
	assert_false(dv_cq_has(&r->cq)); /* what was posted to it has no end */
	assert_int_equal(dv_qp_error(r->qp), -EIO);
	assert_int_equal(dv_mr_deregister(r->device, &r->mr), -EIO);
	good(dv_cut(r->device));
	dv_qp_destroy(r->qp);
	dv_qp_destroy(r->answers);
	assert_int_equal(r->memory[0], 0);
	assert_int_equal(dv_reopen(r->device), -ENODEV);
	assert_non_null(strstr(dv_error(), "there is no NIC mlx5_2 here"));
	good(dv_mr_register(r->device,
		&(struct dv_memory){.base = r->memory,
			.length = READ_BYTES,
			.access = DV_LOCAL_WRITE,
			.memfd = -1},
		&other));
	old = r->mr;
	assert_false(dv_mr_stale(r->device, &old) || dv_mr_stale(r->device, &other));
	soft_connectx_removed(2, false);
	good(dv_reopen(r->device));
	good(dv_port_look(r->device));
	assert_true(dv_mr_stale(r->device, &old) && dv_mr_stale(r->device, &other));
	reader_begin(r);
	assert_false(dv_mr_stale(r->device, &r->mr));
	/* the registrations of before have no effect on those of now */
	good(dv_mr_deregister(r->device, &old));
	good(dv_mr_deregister(r->device, &other));
	reader_posts(r);
	assert_non_null(side_cqe(&r->cq, 0, PATIENCE_NS));
	assert_int_equal(r->memory[READ_BYTES - 1], 0x5a);
	dv_qp_destroy(r->qp);
	dv_qp_destroy(r->answers);
	dv_cq_destroy(r->device, &r->cq);
	good(dv_mr_deregister(r->device, &r->mr));
	dv_close(r->device);
	free(r);
	__lsan_enable();
}

/* A NIC without any peer has a CQ and memory, but no queue pair. */
static void a_device_without_queue_pairs_is_cut_and_opened_anew(void **state)
{
	struct dv_options options = {.name = "mlx5_2", .gid_index = -1, .later = true};
	struct reader *r = calloc(1, sizeof(*r));

	__lsan_disable();
	good(dv_open(&options, &r->device));
	for (unsigned life = 0; life < 3; life++) {
		reader_queue_and_memory(r);
		good(dv_cut(r->device));
		good(dv_reopen(r->device));
	}
	dv_close(r->device);
	free(r);
	__lsan_enable();
}

static void failure_events_name_the_device_or_the_queue_pair(void **state)
{
	struct dv_event got;

	soft_connectx_qp_fails(0, dv_qp_number(s.hot));
	got = event();
	assert_int_equal(got.kind, DV_EVENT_QP_ERROR);
	assert_int_equal(got.qpn, dv_qp_number(s.hot));
	soft_connectx_dies(0);
	assert_int_equal(event().kind, DV_EVENT_DEVICE_FATAL);
}

/* ---- the path -------------------------------------------------------------------------------- */

static void the_path_options_reach_the_device(void **state)
{
	struct dv_options options = {.name = "mlx5_2",
		.gid_index = -1,
		.traffic_class = 106,
		.service_level = 3,
		.ack_timeout = 13};
	uint32_t label[2];

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
		CASE(without_completions_destroying_a_queue_pair_proves_it_stopped),
		CASE(a_refused_transition_and_a_refused_destroy_are_reported),
		CASE(the_environment_cannot_turn_a_failed_destroy_into_success),
		CASE(a_device_is_cut_with_queues_and_memory_left_on_it),
		CASE(a_removed_device_is_opened_anew_when_it_is_back),
		CASE(a_device_without_queue_pairs_is_cut_and_opened_anew),
		CASE(failure_events_name_the_device_or_the_queue_pair),
		CASE(the_path_options_reach_the_device),
	};

	setenv("SOFT_CONNECTX_DEVICES", "3", 1);
	setenv("SOFT_CONNECTX_LINK", "roce", 1);
	setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
