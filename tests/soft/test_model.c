/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modelled link: when READs complete, by a clock that the test sets. One process, which steps
 * the NICs.
 */
#include "config/clock.h"
#include "tests/soft/port.h"

static void a_read_takes_a_round_trip_and_its_time_on_the_wire(void **state)
{
	struct port_model model = plain();

	open_model(&model);
	read_many(0, 1, 100000);
	assert_int_equal(by(1000000), 0);
	assert_true(dv_due_ns(a.device) == 1000000 + RTT_NS + 2000);
	expect_at(1, 1000000 + RTT_NS + 2000);
	assert_true(dv_due_ns(a.device) == UINT64_MAX);
	assert_memory_equal(a.memory, b.memory, 100000);
	shut();
}

static void reads_of_all_queues_share_the_link(void **state)
{
	struct port_model model = plain();

	model.still = true;
	open_model(&model);
	for (unsigned qp = 0; qp < END_QPS; qp++)
		read_many(qp, 8, 50000);
	by(1000000);
	for (unsigned i = 1; i <= 8 * END_QPS; i++)
		expect_at(i, 1000000 + RTT_NS + i * 1000);
	shut();
}

static void a_late_step_loses_no_link_time(void **state)
{
	struct port_model model = plain();

	model.still = true;
	open_model(&model);
	/*
	 * 40 READs are more than the queue may have in flight, and more than window[] of the model
	 * holds
	 */
	read_many(0, 40, 50000);
	by(1000000);
	/* READ n + 16 starts when READ n completes, not at the step that reports the completion. */
	assert_int_equal(by(1000000 + 30000), 25);
	assert_int_equal(by(1000000 + RTT_NS + 40000), 40);
	shut();
}

static void every_packet_has_a_header(void **state)
{
	struct port_model model = plain();
	uint64_t wire = 0;

	model.header_bytes = HEADER;
	open_model(&model);
	read_many(0, 1, 8 * 4096);
	wire = wire_ns(8 * (4096 + HEADER));
	by(1000000);
	expect_at(1, 1000000 + RTT_NS + wire);
	/* A message that is one byte longer needs one more packet. */
	a.done_count = 0;
	read_many(0, 1, 8 * 4096 + 1);
	by(now);
	expect_at(1, now + RTT_NS + wire_ns(8 * 4096 + 1 + 9 * HEADER));
	shut();
}

/* The payload rate is 49.0 GB/s, that of a 400 Gbit/s port with RoCE v2 at MTU 4096. */
static void the_payload_rate_is_that_of_a_real_port(void **state)
{
	struct port_model model = plain();
	uint64_t start = 1000000, bytes = 0;

	model.header_bytes = HEADER;
	model.still = true;
	open_model(&model);
	now = start;
	for (unsigned round = 0; round < 200; round++) {
		for (unsigned qp = 0; qp < END_QPS; qp++)
			if (dv_sq_room(a.sqs[qp]) >= 16)
				read_many(qp, 16, 65536);
		a.done_count = 0;
		by(now + (round ? 10000 : 0));
		bytes += (uint64_t)a.done_count * 65536;
	}
	assert_in_range(bytes * 1000 / (now - start), 48800, 49100);
	shut();
}

static void a_model_may_move_only_small_messages(void **state)
{
	struct port_model model = plain();

	model.still = true;
	open_model(&model);
	read_at(0, 0, PAGE_UNIT, 0);
	read_at(0, 65536, PAGE_UNIT - 1, 0);
	dv_ring(a.sqs[0]);
	by(1000000);
	assert_int_equal(by(1000000 + 2 * RTT_NS), 2);
	for (unsigned i = 0; i < PAGE_UNIT; i++)
		assert_int_equal(a.memory[i], 0);
	assert_memory_equal(a.memory + 65536, b.memory + 65536, PAGE_UNIT - 1);
	shut();
}

static void keys_and_bounds_are_checked_even_if_no_bytes_move(void **state)
{
	struct port_model model = plain();

	model.still = true;
	open_model(&model);
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory + END_BYTES - 4096, b.mr.rkey, 8192,
		DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	dv_step(a.device);
	end_reap(&a);
	assert_int_equal(a.done_count, 1);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_REMOTE_ACCESS);
	shut();
}

static void an_error_ends_reads_in_flight_at_once(void **state)
{
	struct port_model model = plain();

	open_model(&model);
	read_many(0, 30, 4096);
	by(1000000);
	assert_int_equal(dv_qp_error(a.qps[0]), 0);
	assert_int_equal(end_reap(&a), 30);
	assert_int_equal(a.sqs[0]->ci, a.sqs[0]->pi);
	shut();
}

/* The first READ dials, and is tried again at times of the model's clock. */
static void connect_tcp(void)
{
	uint64_t deadline = clock_monotonic_ns() + PATIENCE_NS;

	read_many(0, 1, 50000);
	while (by(now + 1000) == 0) {
		dv_step(b.device);
		assert_true(clock_monotonic_ns() < deadline);
	}
	memset(a.memory, 0, 50000);
	a.done_count = 0;
}

static void the_tcp_link_is_modelled_too(void **state)
{
	struct port_model model = plain();
	uint64_t deadline, start;

	open_link(&model, "tcp");
	connect_tcp();
	deadline = clock_monotonic_ns() + PATIENCE_NS;
	start = now;
	read_many(0, 1, 50000);
	while (memcmp(a.memory, b.memory, 50000) != 0) {
		dv_step(a.device);
		dv_step(b.device);
		assert_true(clock_monotonic_ns() < deadline);
	}
	/* the completion time of the model has not come */
	assert_int_equal(by(start + RTT_NS + 999), 0);
	now = start + RTT_NS + 1000;
	end_wait(&a, &b, 1);
	shut();
}

/*
 * A step takes CPU time that a port which runs in parallel to the core would not need: it is
 * subtracted from the NIC's clock.
 */
static void time_can_be_excluded_from_the_clock(void **state)
{
	struct port_model model = plain();

	open_model(&model);
	read_many(0, 1, 100000);
	assert_int_equal(by(1000000), 0);
	dv_leave_out(&a.device, 1, 700);
	assert_true(dv_due_ns(a.device) == 1000000 + RTT_NS + 2000 + 700);
	expect_at(1, 1000000 + RTT_NS + 2000 + 700);
	/*
	 * The NIC's clock never goes back: a READ that starts now starts at the time the clock had.
	 */
	dv_leave_out(&a.device, 1, 4000);
	read_many(0, 1, 100000);
	assert_int_equal(by(now + 100), 1);
	assert_true(dv_due_ns(a.device) == now - 100 + RTT_NS + 2000 + 4000);
	expect_at(2, now - 100 + RTT_NS + 2000 + 4000);
	shut();
}

static void an_invalid_model_is_refused(void **state)
{
	struct dv_options options = {.name = "soft"};
	struct dv_device *device = NULL;

	options.model = plain();
	options.model.mtu = 3000;
	assert_int_equal(dv_open(&options, &device), -EINVAL);
	assert_non_null(strstr(dv_error(), "MTU 3000"));
	options.model = plain();
	options.model.reads_per_qp = 17;
	assert_int_equal(dv_open(&options, &device), -EINVAL);
	options.model.reads_per_qp = 0;
	assert_int_equal(dv_open(&options, &device), -EINVAL);
	assert_null(device);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_read_takes_a_round_trip_and_its_time_on_the_wire),
		cmocka_unit_test(reads_of_all_queues_share_the_link),
		cmocka_unit_test(a_late_step_loses_no_link_time),
		cmocka_unit_test(every_packet_has_a_header),
		cmocka_unit_test(the_payload_rate_is_that_of_a_real_port),
		cmocka_unit_test(a_model_may_move_only_small_messages),
		cmocka_unit_test(keys_and_bounds_are_checked_even_if_no_bytes_move),
		cmocka_unit_test(an_error_ends_reads_in_flight_at_once),
		cmocka_unit_test(the_tcp_link_is_modelled_too),
		cmocka_unit_test(time_can_be_excluded_from_the_clock),
		cmocka_unit_test(an_invalid_model_is_refused),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
