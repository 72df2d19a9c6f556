/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every way in which a WQE can fail, and the arguments that setup calls refuse. One process, which
 * steps the NICs.
 */
#include <sys/resource.h>

#include "config/clock.h"
#include "tests/soft/pair.h"

static struct end a, b;

static int open_pair(void **state)
{
	pair_open(&a, &b, "shm", 2);
	return 0;
}

static int close_pair(void **state)
{
	end_close(&a);
	end_close(&b);
	return 0;
}

/*
 * Checks that the last WQE of queue pair 0 fails, the one after it is flushed, and queue pair 1
 * still works.
 */
static void expect_failure(uint8_t syndrome)
{
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 8, DV_CE_ERROR_ONLY);
	dv_ring(a.sqs[0]);
	end_wait(&a, &b, 2);
	assert_int_equal(a.done[0].syndrome, syndrome);
	assert_int_equal(a.done[1].syndrome, DV_SYNDROME_FLUSHED);
	assert_int_equal(a.done[0].qpn, dv_qp_number(a.qps[0]));
	assert_int_equal(a.sqs[0]->ci, a.sqs[0]->pi);
	end_post(&a, 1, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 8, DV_CE_ALWAYS);
	dv_ring(a.sqs[1]);
	end_wait(&a, &b, 3);
	assert_int_equal(a.done[2].syndrome, 0);
}

static void post(enum dv_opcode opcode, struct dv_sge sge, uint64_t remote, uint32_t rkey)
{
	dv_post(a.sqs[0], opcode, remote, rkey, &sge, 1, DV_CE_ERROR_ONLY);
}

static struct dv_sge good_sge(void)
{
	return (struct dv_sge){(uintptr_t)a.memory, 64, a.mr.lkey};
}

static int registered(struct dv_device *device, uint8_t *base, uint64_t length, unsigned access,
	int memfd, struct dv_mr *ret)
{
	return dv_mr_register(device,
		&(struct dv_memory){
			.base = base, .length = length, .access = access, .memfd = memfd},
		ret);
}

/* What is added to a correct READ of 64 bytes; `bytes` are instead of them. */
static void a_wrong_key_or_range_is_an_error_of_its_kind(void **state)
{
	static const struct {
		int64_t address, remote;
		uint32_t lkey, rkey, bytes;
		uint8_t syndrome;
	} rows[] = {
		{.lkey = 1, .bytes = 64, .syndrome = DV_SYNDROME_LOCAL_PROTECTION},
		{.address = END_BYTES - 63, .bytes = 64, .syndrome = DV_SYNDROME_LOCAL_PROTECTION},
		{.address = -1, .bytes = 64, .syndrome = DV_SYNDROME_LOCAL_PROTECTION},
		{.bytes = 0, .syndrome = DV_SYNDROME_LOCAL_PROTECTION}, /* it is not ignored */
		{.rkey = 0x100, .bytes = 64, .syndrome = DV_SYNDROME_REMOTE_ACCESS},
		{.remote = END_BYTES - 63, .bytes = 64, .syndrome = DV_SYNDROME_REMOTE_ACCESS},
		{.remote = -1, .bytes = 64, .syndrome = DV_SYNDROME_REMOTE_ACCESS},
	};

	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct dv_sge sge = good_sge();

		if (i) {
			close_pair(state);
			open_pair(state);
			sge = good_sge();
		}
		sge.address += (uint64_t)rows[i].address;
		sge.lkey ^= rows[i].lkey;
		sge.bytes = rows[i].bytes;
		post(DV_READ, sge, (uintptr_t)b.memory + (uint64_t)rows[i].remote,
			b.mr.rkey + rows[i].rkey);
		expect_failure(rows[i].syndrome);
	}
}

static void access_that_was_not_granted_is_an_error(void **state)
{
	struct dv_sge sge = good_sge();
	struct dv_mr mr;

	pair_good(registered(a.device, a.memory, END_BYTES, DV_REMOTE_READ, a.memfd, &mr));
	sge.lkey = mr.lkey;
	dv_post(a.sqs[1], DV_WRITE, (uintptr_t)b.memory, b.mr.rkey, &sge, 1, DV_CE_ALWAYS);
	/* the source of a WRITE is only read, so memory without DV_LOCAL_WRITE is valid */
	dv_ring(a.sqs[1]);
	end_wait(&a, &b, 1);
	assert_int_equal(a.done[0].syndrome, 0);
	a.done_count = 0;
	post(DV_READ, sge, (uintptr_t)b.memory, b.mr.rkey);
	expect_failure(DV_SYNDROME_LOCAL_PROTECTION);
	pair_good(dv_mr_deregister(a.device, &mr));
	for (unsigned local = 0; local < 2; local++) {
		close_pair(state);
		open_pair(state);
		pair_good(registered(b.device, b.memory, END_BYTES,
			local ? DV_LOCAL_WRITE : DV_REMOTE_READ, local ? -1 : b.memfd, &mr));
		post(local ? DV_READ : DV_WRITE, good_sge(), (uintptr_t)b.memory, mr.rkey);
		expect_failure(DV_SYNDROME_REMOTE_ACCESS);
		pair_good(dv_mr_deregister(b.device, &mr));
	}
}

static void more_than_two_gigabytes_are_a_local_length_error(void **state)
{
	struct dv_sge sges[2] = {good_sge(), good_sge()};

	sges[0].bytes = 1u << 31;
	sges[1].bytes = 1;
	dv_post(a.sqs[0], DV_READ, (uintptr_t)b.memory, b.mr.rkey, sges, 2, DV_CE_ERROR_ONLY);
	expect_failure(DV_SYNDROME_LOCAL_LENGTH);
}

static void an_opcode_other_than_read_or_write_is_a_local_qp_operation_error(void **state)
{
	struct dv_soft_stats stats;

	post((enum dv_opcode)MLX5_OPCODE_SEND, good_sge(), (uintptr_t)b.memory, b.mr.rkey);
	expect_failure(DV_SYNDROME_LOCAL_QP_OP);
	dv_soft_stats(a.device, &stats);
	assert_int_equal(stats.bad_wqe, 1);
}

static void the_key_of_a_deregistered_region_never_works_again(void **state)
{
	struct dv_mr mr;
	uint32_t old;

	pair_good(registered(b.device, b.memory, 4096, DV_REMOTE_READ, b.memfd, &mr));
	old = mr.rkey;
	pair_good(dv_mr_deregister(b.device, &mr));
	assert_int_equal(dv_mr_deregister(b.device, &mr), -EINVAL);
	/* registers often enough that every slot of the NIC's table of keys is used again */
	for (unsigned i = 0; i < 10000; i++) {
		pair_good(registered(b.device, b.memory, 4096, DV_REMOTE_READ, b.memfd, &mr));
		assert_int_not_equal(mr.rkey, old);
		/* key 0x100 ends scatter lists on mlx5, so no MR may have it */
		assert_int_not_equal(mr.rkey, 0x100);
		pair_good(dv_mr_deregister(b.device, &mr));
	}
	post(DV_READ, good_sge(), (uintptr_t)b.memory, old);
	expect_failure(DV_SYNDROME_REMOTE_ACCESS);
}

static void a_peer_in_error_exhausts_the_retries(void **state)
{
	dv_soft_patience(a.device, 0, 20);
	pair_good(dv_qp_error(b.qps[0]));
	post(DV_READ, good_sge(), (uintptr_t)b.memory, b.mr.rkey);
	expect_failure(DV_SYNDROME_RETRY_EXCEEDED);
}

static void a_destroyed_peer_exhausts_the_retries(void **state)
{
	dv_soft_patience(a.device, 0, 20);
	dv_qp_destroy(b.qps[0]);
	b.qps[0] = b.qps[--b.qp_count];
	post(DV_READ, good_sge(), (uintptr_t)b.memory, b.mr.rkey);
	expect_failure(DV_SYNDROME_RETRY_EXCEEDED);
}

static void a_new_queue_pair_of_a_peer_does_not_answer_its_old_partner(void **state)
{
	struct card card;

	dv_soft_patience(a.device, 0, 20);
	end_renew(&b, 0);
	end_card(&a, &card);
	pair_good(dv_qp_connect(b.qps[0], &card.addresses[0]));
	/* the READ goes to the address that queue pair 0 of b had before */
	post(DV_READ, good_sge(), (uintptr_t)b.memory, b.mr.rkey);
	expect_failure(DV_SYNDROME_RETRY_EXCEEDED);
}

static void a_peer_does_not_answer_a_new_queue_pair_of_its_partner(void **state)
{
	struct card card;

	dv_soft_patience(a.device, 0, 20);
	end_renew(&a, 0);
	end_card(&b, &card);
	/* queue pair 0 of b is still connected to the address that queue pair 0 of a had before */
	pair_good(dv_qp_connect(a.qps[0], &card.addresses[0]));
	post(DV_READ, good_sge(), (uintptr_t)b.memory, b.mr.rkey);
	expect_failure(DV_SYNDROME_RETRY_EXCEEDED);
}

static void a_read_from_a_closed_peer_fails_at_once(void **state)
{
	static struct end c, d;

	pair_open(&c, &d, "shm", 1);
	dv_soft_patience(c.device, 3600000000000ull, 0);
	end_post(&c, 0, DV_READ, 0, (uintptr_t)d.memory, d.mr.rkey, 64, DV_CE_ALWAYS);
	end_close(&d);
	dv_ring(c.sqs[0]);
	end_wait(&c, NULL, 1);
	assert_int_equal(c.done[0].syndrome, DV_SYNDROME_RETRY_EXCEEDED);
	end_close(&c);
}

static void the_retry_timeout_is_one_second_by_default(void **state)
{
	uint64_t before = clock_monotonic_ns();

	pair_good(dv_qp_error(b.qps[0]));
	post(DV_READ, good_sge(), (uintptr_t)b.memory, b.mr.rkey);
	expect_failure(DV_SYNDROME_RETRY_EXCEEDED);
	assert_true(clock_monotonic_ns() - before >= 1000000000u);
}

static void a_completed_read_survives_the_peer_destroying_its_queue_pair(void **state)
{
	post(DV_READ, good_sge(), (uintptr_t)b.memory, b.mr.rkey);
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	dv_step(a.device);
	dv_qp_destroy(b.qps[0]);
	b.qps[0] = b.qps[--b.qp_count];
	for (unsigned i = 0; i < 10; i++)
		dv_step(a.device);
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.done[0].syndrome, 0);
}

static void a_completion_queue_overrun_breaks_the_queue(void **state)
{
	struct dv_options options = {.name = "soft"};
	static struct end c;
	struct dv_soft_stats stats;
	struct card card;

	end_open_with(&c, &options, 2, 64, 8);
	end_card(&c, &card);
	end_connect(&c, &card);
	for (unsigned i = 0; i < 9; i++)
		end_post(&c, 0, DV_READ, 0, card.base, card.rkey, 8, DV_CE_ALWAYS);
	dv_ring(c.sqs[0]);
	for (unsigned i = 0; i < 10; i++)
		dv_step(c.device);
	dv_soft_stats(c.device, &stats);
	assert_int_equal(stats.cq_overruns, 1);
	assert_non_null(strstr(stats.reason, "completion queue"));
	assert_int_equal(end_reap(&c), 8);
	/* the completion queue stays broken after its overrun, also for queue pair 1 */
	end_post(&c, 1, DV_READ, 0, card.base, card.rkey, 8, DV_CE_ALWAYS);
	dv_ring(c.sqs[1]);
	for (unsigned i = 0; i < 10; i++)
		dv_step(c.device);
	assert_int_equal(end_reap(&c), 0);
	end_close(&c);
}

static void setup_calls_refuse_invalid_arguments(void **state)
{
	struct dv_address address;
	struct dv_mr mr = {.lkey = 7};
	struct dv_cq cq = {.cqn = 7};
	struct dv_qp *qp = a.qps[0];
	struct dv_sq *sq = NULL;

	assert_int_equal(registered(a.device, NULL, 64, DV_LOCAL_WRITE, -1, &mr), -EINVAL);
	assert_int_equal(registered(a.device, a.memory, 0, DV_LOCAL_WRITE, -1, &mr), -EINVAL);
	assert_int_equal(registered(a.device, a.memory, 64, 0x80, -1, &mr), -EINVAL);
	assert_int_equal(dv_mr_register(a.device,
				 &(struct dv_memory){.base = a.memory,
					 .length = 64,
					 .access = DV_REMOTE_READ,
					 .memfd = a.memfd,
					 .memfd_offset = END_BYTES - 63},
				 &mr),
		-ERANGE);
	assert_int_equal(mr.lkey, 7);
	assert_int_equal(dv_cq_create(a.device, 0, &cq), -EINVAL);
	assert_int_equal(cq.cqn, 7);
	assert_int_equal(dv_qp_create(a.device, &a.cq, 65537, &qp, &sq), -EINVAL);
	assert_int_equal(
		dv_qp_create(a.device, &(struct dv_cq){.cqn = 999}, 64, &qp, &sq), -EINVAL);
	assert_int_equal(dv_qp_create(a.device, &b.cq, 64, &qp, &sq), -EINVAL);
	assert_ptr_equal(qp, a.qps[0]);
	assert_null(sq);
	dv_qp_address(b.qps[0], &address);
	/* refused with -EINVAL: the queue pair is connected already */
	assert_int_equal(dv_qp_connect(qp, &address), -EINVAL);
	address.version = 2;
	assert_int_equal(dv_qp_connect(qp, &address), -EPROTO);
	address.version = 1, address.kind = 2;
	assert_int_equal(dv_qp_connect(qp, &address), -EPROTO);
	address.kind = 3, address.tcp_port = 1;
	assert_int_equal(dv_qp_connect(qp, &address), -EPROTO);
}

/* Each descriptor that a software NIC opens is refused once. */
static void a_software_nic_without_descriptors_says_which_limit_to_raise(void **state)
{
	struct rlimit usual, low;
	int next = dup(0);

	assert_true(next >= 0);
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	low = usual;
	for (rlim_t opened = 0; opened < 4; opened++) {
		low.rlim_cur = (rlim_t)next + opened;
		for (unsigned tcp = 0; tcp < 2; tcp++) {
			struct dv_options options = {.name = "soft", .link = tcp ? "tcp" : "shm"};
			struct dv_device *device = NULL;
			int rc;

			assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
			rc = dv_open(&options, &device);
			assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
			assert_int_equal(rc, -EMFILE);
			assert_null(device);
			assert_non_null(
				strstr(dv_error(), opened ? "opening soft: " : "its events: "));
			assert_non_null(strstr(dv_error(),
				"Too many open files; raise ulimit -n or LimitNOFILE="));
		}
	}
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, open_pair, close_pair)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_wrong_key_or_range_is_an_error_of_its_kind),
		TEST(more_than_two_gigabytes_are_a_local_length_error),
		TEST(an_opcode_other_than_read_or_write_is_a_local_qp_operation_error),
		TEST(access_that_was_not_granted_is_an_error),
		TEST(the_key_of_a_deregistered_region_never_works_again),
		TEST(a_peer_in_error_exhausts_the_retries),
		TEST(a_destroyed_peer_exhausts_the_retries),
		TEST(a_new_queue_pair_of_a_peer_does_not_answer_its_old_partner),
		TEST(a_peer_does_not_answer_a_new_queue_pair_of_its_partner),
		TEST(a_read_from_a_closed_peer_fails_at_once),
		TEST(the_retry_timeout_is_one_second_by_default),
		TEST(a_completed_read_survives_the_peer_destroying_its_queue_pair),
		TEST(a_completion_queue_overrun_breaks_the_queue),
		TEST(setup_calls_refuse_invalid_arguments),
		cmocka_unit_test(a_software_nic_without_descriptors_says_which_limit_to_raise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
