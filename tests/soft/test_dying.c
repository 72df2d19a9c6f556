/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A software NIC that loses a request or dies: which calls still work, which fail, and that it
 * writes nothing after a queue pair was killed or the device was cut. One thread, which steps the
 * NIC.
 */
#include "tests/soft/pair.h"

#define BYTES 4096u
#define STEPS 100u

static struct end a, b;
static uint64_t clock_ns;

static int setup(void **state)
{
	pair_open(&a, &b, "shm", 2);
	clock_ns = 1000000000;
	dv_soft_clock(a.device, &clock_ns);
	memset(b.memory, 0x5a, END_BYTES);
	return 0;
}

static int teardown(void **state)
{
	struct dv_fault none = {.seed = 0};

	dv_soft_faults(a.device, &none);
	end_close(&a);
	end_close(&b);
	return 0;
}

static void fault(struct dv_fault fault)
{
	dv_soft_faults(a.device, &fault);
}

static void read_some(unsigned qp)
{
	struct dv_sge sge = {(uintptr_t)a.memory + qp * BYTES, BYTES, a.mr.lkey};

	dv_post(a.sqs[qp], DV_READ, (uintptr_t)b.memory, b.mr.rkey, &sge, 1, DV_CE_ALWAYS);
	dv_ring(a.sqs[qp]);
}

/* Steps the NIC STEPS times at the current time; returns the number of completions. */
static unsigned completions(void)
{
	struct dv_completion done[16];
	unsigned n = 0;

	for (unsigned i = 0; i < STEPS; i++) {
		dv_step(a.device);
		n += dv_poll(&a.cq, done, 16);
	}
	return n;
}

static void arrived(unsigned qp, bool whole)
{
	for (unsigned i = 0; i < BYTES; i++)
		assert_int_equal(a.memory[qp * BYTES + i], whole ? 0x5a : 0);
}

static void a_lost_request_is_retransmitted_after_the_ack_timeout_and_not_before(void **state)
{
	struct dv_soft_stats stats;
	uint64_t ack_ns = dv_qp_ack_ns(a.qps[0]);

	assert_int_equal(ack_ns, 4096u << DV_ACK_TIMEOUT);
	fault((struct dv_fault){.lose = true});
	read_some(0);
	assert_int_equal(completions(), 0);
	read_some(1); /* the fault drops the packet of queue pair 0 only */
	assert_int_equal(completions(), 1);
	clock_ns += ack_ns - 1000;
	assert_int_equal(completions(), 0);
	arrived(0, false);
	clock_ns += 2000;
	assert_int_equal(completions(), 1);
	arrived(0, true);
	dv_soft_stats(a.device, &stats);
	assert_int_equal(stats.retransmits, 1);
	assert_int_equal(stats.cqe_errors, 0);
	a.sqs[0]->ci = a.sqs[0]->pi;
	a.sqs[1]->ci = a.sqs[1]->pi;
}

static void a_killed_queue_pair_writes_nothing_and_completes_nothing(void **state)
{
	fault((struct dv_fault){.link_down = true, .silent = true, .dead = DV_DEAD_CQES});
	read_some(0);
	read_some(1);
	assert_int_equal(completions(), 0);
	pair_good(dv_qp_kill(a.qps[0]));
	pair_good(dv_qp_kill(a.qps[0]));
	/* the fault ends and the link is up again: the READ of queue pair 1 completes */
	fault((struct dv_fault){.seed = 0});
	assert_int_equal(completions(), 1);
	arrived(0, false);
	arrived(1, true);
	a.sqs[1]->ci = a.sqs[1]->pi;
}

static void a_command_that_the_device_refuses_has_no_effect(void **state)
{
	fault((struct dv_fault){.link_down = true,
		.silent = true,
		.dead = DV_DEAD_ERROR | DV_DEAD_KILL | DV_DEAD_CUT});
	read_some(0);
	assert_int_equal(completions(), 0);
	assert_int_equal(dv_qp_error(a.qps[0]), -EIO);
	assert_int_equal(dv_qp_kill(a.qps[0]), -EIO);
	assert_int_equal(dv_cut(a.device), -EIO);
	/* EIO from the driver call does not prove that the NIC stopped: the READ still completes */
	fault((struct dv_fault){.seed = 0});
	assert_int_equal(completions(), 1);
	arrived(0, true);
	a.sqs[0]->ci = a.sqs[0]->pi;
}

static void a_cut_device_writes_nothing_even_if_reads_were_posted(void **state)
{
	struct dv_qp *qp;
	struct dv_sq *sq;

	fault((struct dv_fault){
		.link_down = true, .silent = true, .dead = DV_DEAD_ERROR | DV_DEAD_KILL});
	read_some(0);
	read_some(1);
	assert_int_equal(completions(), 0);
	pair_good(dv_cut(a.device));
	fault((struct dv_fault){.dead = DV_DEAD_ERROR | DV_DEAD_KILL});
	assert_int_equal(completions(), 0);
	arrived(0, false);
	arrived(1, false);
	pair_good(dv_qp_kill(a.qps[0]));
	assert_int_equal(dv_qp_error(a.qps[1]), -ENODEV);
	assert_int_equal(dv_qp_create(a.device, &a.cq, 16, &qp, &sq), -ENODEV);
}

static void a_device_reports_its_death_once_and_still_reports_its_port(void **state)
{
	struct dv_event event;

	assert_int_equal(dv_event_next(a.device, &event), 0);
	fault((struct dv_fault){.dead = DV_DEAD_SAYS_SO});
	assert_int_equal(dv_event_next(a.device, &event), 1);
	assert_int_equal(event.kind, DV_EVENT_DEVICE_FATAL);
	assert_int_equal(dv_event_next(a.device, &event), 0);
	fault((struct dv_fault){.dead = DV_DEAD_SAYS_SO, .link_down = true});
	assert_int_equal(dv_event_next(a.device, &event), 1);
	assert_int_equal(event.kind, DV_EVENT_PORT_DOWN);
	assert_int_equal(dv_event_next(a.device, &event), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(a_lost_request_is_retransmitted_after_the_ack_timeout_and_not_before),
		CASE(a_killed_queue_pair_writes_nothing_and_completes_nothing),
		CASE(a_command_that_the_device_refuses_has_no_effect),
		CASE(a_cut_device_writes_nothing_even_if_reads_were_posted),
		CASE(a_device_reports_its_death_once_and_still_reports_its_port),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
