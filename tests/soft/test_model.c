/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model link: when READs complete, by a clock that the test sets. One process, stepped.
 */
#include <sys/syscall.h>
#include <linux/mempolicy.h>

#include "tests/soft/pair.h"

#define RTT_NS 5000u
#define RATE 400u  /* Gbit/s: 50 bytes a ns */
#define HEADER 82u

static struct end a, b;
static uint64_t now;

/*
 * No limit but the rate and the round trip; a test adds its own. One step moves 256 KiB: tests with
 * more under way move nothing.
 */
static struct dv_model plain(void)
{
	return (struct dv_model){.rate_gbps = RATE, .rtt_ns = RTT_NS, .reads_per_qp = 16,
		.mtu = 4096, .numa_percent = 100, .move_bytes = true};
}

static void open_node(const struct dv_model *model, const char *link, int numa_node)
{
	struct dv_options options = {.name = "soft", .link = link, .model = *model,
		.numa_node = numa_node};
	struct card card_a, card_b;

	end_open_with(&a, &options, END_QPS, 64, 1024);
	end_open(&b, link, END_QPS);
	end_card(&a, &card_a);
	end_card(&b, &card_b);
	end_connect(&a, &card_b);
	end_connect(&b, &card_a);
	end_fill(&b, 3);
	now = 1000000;
	dv_soft_clock(a.device, &now);
}

static void open_model(const struct dv_model *model)
{
	open_node(model, "shm", -1);
}

static void shut(void)
{
	dv_soft_clock(a.device, NULL);
	end_close(&a);
	end_close(&b);
}

static void read_at(unsigned qp, uint64_t at, uint32_t bytes, uint8_t flags)
{
	end_post(&a, qp, DV_READ, at, (uintptr_t)b.memory + at, b.mr.rkey, bytes,
		DV_CE_ALWAYS | flags);
}

static void read_many(unsigned qp, unsigned count, uint32_t bytes)
{
	for (unsigned i = 0; i < count; i++)
		read_at(qp, (uint64_t)i * bytes, bytes, 0);
	dv_ring(a.sqs[qp]);
}

/* Steps at `at`; returns how many completions there are by then. */
static unsigned by(uint64_t at)
{
	now = at;
	dv_step(a.device);
	end_reap(&a);
	for (unsigned i = 0; i < a.done_count; i++)
		assert_int_equal(a.done[i].syndrome, 0);
	return a.done_count;
}

/* Completion number `count` is there at `at` and was not a nanosecond before. */
static void expect_at(unsigned count, uint64_t at)
{
	assert_in_range(by(at - 1), 0, count - 1);
	if (by(at) < count)
		fail_msg("%u completions at +%lu ns, not %u", a.done_count,
			(unsigned long)(at - 1000000), count);
}

static uint64_t wire_ns(uint64_t bytes)
{
	return (bytes + RATE / 8 - 1) / (RATE / 8);
}

static void a_read_takes_a_round_trip_and_its_time_on_the_wire(void **state)
{
	struct dv_model model = plain();

	(void)state;
	open_model(&model);
	read_many(0, 1, 100000);
	assert_int_equal(by(1000000), 0);
	assert_true(dv_due_ns(a.device) == 1000000 + RTT_NS + 2000);
	expect_at(1, 1000000 + RTT_NS + 2000);
	assert_true(dv_due_ns(a.device) == UINT64_MAX);
	assert_memory_equal(a.memory, b.memory, 100000);
	shut();
}

static void reads_of_all_queues_share_the_line(void **state)
{
	struct dv_model model = plain();

	(void)state;
	model.move_bytes = false;
	open_model(&model);
	for (unsigned qp = 0; qp < END_QPS; qp++)
		read_many(qp, 8, 50000);
	by(1000000);
	for (unsigned i = 1; i <= 8 * END_QPS; i++)
		expect_at(i, 1000000 + RTT_NS + i * 1000);
	shut();
}

static void a_late_step_loses_no_time_on_the_wire(void **state)
{
	struct dv_model model = plain();

	(void)state;
	model.move_bytes = false;
	open_model(&model);
	read_many(0, 40, 50000); /* more than may be under way, and than the window holds */
	by(1000000);
	/* Each starts the one 16 later when it completes, not when a step sees it. */
	assert_int_equal(by(1000000 + 30000), 25);
	assert_int_equal(by(1000000 + RTT_NS + 40000), 40);
	shut();
}

static void every_packet_has_a_header(void **state)
{
	struct dv_model model = plain();
	uint64_t wire = 0;

	(void)state;
	model.header_bytes = HEADER;
	open_model(&model);
	read_many(0, 1, 8 * 4096);
	wire = wire_ns(8 * (4096 + HEADER));
	by(1000000);
	expect_at(1, 1000000 + RTT_NS + wire);
	/* One byte more is one packet more. */
	a.done_count = 0;
	read_many(0, 1, 8 * 4096 + 1);
	by(now);
	expect_at(1, now + RTT_NS + wire_ns(8 * 4096 + 1 + 9 * HEADER));
	shut();
}

/* 49.0 GB/s of payload: a 400G port with RoCE v2 at MTU 4096. */
static void the_payload_ceiling_is_the_known_one(void **state)
{
	struct dv_model model = plain();
	uint64_t start = 1000000, bytes = 0;

	(void)state;
	model.header_bytes = HEADER;
	model.move_bytes = false;
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

static void a_queue_has_sixteen_reads_under_way(void **state)
{
	struct dv_model model = plain();

	(void)state;
	open_model(&model);
	read_many(0, 17, 50);
	by(1000000);
	expect_at(16, 1000000 + RTT_NS + 16);
	/* The 17th started when the 1st was complete. */
	expect_at(17, 1000000 + RTT_NS + 1 + RTT_NS + 1);
	shut();
}

static void a_model_may_allow_fewer_reads(void **state)
{
	struct dv_model model = plain();
	struct dv_attributes attributes;

	(void)state;
	model.reads_per_qp = 4;
	open_model(&model);
	dv_attributes(a.device, &attributes);
	assert_int_equal(attributes.reads_max, 4);
	assert_true(attributes.modelled && attributes.bits_per_second == 400000000000);
	read_many(0, 8, 50);
	by(1000000);
	expect_at(4, 1000000 + RTT_NS + 4);
	expect_at(8, 1000000 + RTT_NS + 4 + RTT_NS + 1);
	shut();
}

static void messages_per_second_are_bounded_per_queue_and_per_port(void **state)
{
	struct dv_model model = plain();

	(void)state;
	model.qp_messages_per_s = 1000000; /* one a microsecond */
	model.messages_per_s = 4000000;    /* one each 250 ns */
	open_model(&model);
	read_many(0, 3, 50);
	by(1000000);
	expect_at(1, 1000000 + RTT_NS + 1);
	expect_at(2, 1000000 + RTT_NS + 1000 + 1);
	expect_at(3, 1000000 + RTT_NS + 2000 + 1);
	a.done_count = 0;
	now += 100000;
	for (unsigned qp = 0; qp < END_QPS; qp++)
		read_many(qp, 1, 50);
	by(now);
	for (unsigned i = 0, start = (unsigned)now; i < END_QPS; i++)
		expect_at(i + 1, start + i * 250 + RTT_NS + 1);
	shut();
}

static void a_fenced_read_starts_when_those_before_it_are_complete(void **state)
{
	struct dv_model model = plain();

	(void)state;
	open_model(&model);
	memset(b.memory + 65536, 1, 32);
	read_at(0, 0, 50000, 0);
	read_at(0, 65536, 32, DV_FENCE);
	dv_ring(a.sqs[0]);
	by(1000000);
	expect_at(1, 1000000 + RTT_NS + 1000);
	/* It is sampled after that, not when it was rung. */
	now += 100;
	dv_step(a.device);
	assert_int_equal(a.memory[65536], 1);
	expect_at(2, 1000000 + RTT_NS + 1000 + RTT_NS + 1);
	shut();
}

/* Stepped before the payload's completion, a fenced head is not sampled yet. */
static void a_fenced_head_is_sampled_after_the_payloads_completion(void **state)
{
	struct dv_model model = plain();

	(void)state;
	open_model(&model);
	memset(b.memory + 65536, 1, 32);
	read_at(0, 0, 50000, 0);
	read_at(0, 65536, 32, DV_FENCE);
	dv_ring(a.sqs[0]);
	by(1000000);
	by(1000000 + RTT_NS + 999);
	memset(b.memory + 65536, 2, 32);
	assert_int_equal(by(1000000 + RTT_NS + 1000), 1);
	by(1000000 + 3 * RTT_NS);
	assert_int_equal(a.done_count, 2);
	assert_int_equal(a.memory[65536], 2);
	shut();
}

static void payload_may_stay_where_it_is_and_small_messages_move(void **state)
{
	struct dv_model model = plain();

	(void)state;
	model.move_bytes = false;
	open_model(&model);
	read_at(0, 0, 1025, 0);
	read_at(0, 65536, 1024, 0);
	dv_ring(a.sqs[0]);
	by(1000000);
	assert_int_equal(by(1000000 + 2 * RTT_NS), 2);
	for (unsigned i = 0; i < 1025; i++)
		assert_int_equal(a.memory[i], 0);
	assert_memory_equal(a.memory + 65536, b.memory + 65536, 1024);
	shut();
}

static void keys_and_bounds_hold_without_bytes(void **state)
{
	struct dv_model model = plain();

	(void)state;
	model.move_bytes = false;
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

static void an_error_ends_what_was_under_way_at_once(void **state)
{
	struct dv_model model = plain();

	(void)state;
	open_model(&model);
	read_many(0, 30, 4096);
	by(1000000);
	assert_int_equal(dv_qp_error(a.qps[0]), 0);
	assert_int_equal(end_reap(&a), 30);
	assert_int_equal(a.sqs[0]->ci, a.sqs[0]->pi);
	shut();
}

static void memory_of_another_node_is_farther_and_slower(void **state)
{
	struct dv_model model = plain();
	int node = -1;

	(void)state;
	if (syscall(SYS_get_mempolicy, &node, NULL, 0ul, &node, MPOL_F_NODE | MPOL_F_ADDR)) {
		print_message("get_mempolicy() is not allowed here\n");
		skip();
	}
	model.numa_ns = 700;
	model.numa_percent = 50;
	for (int far = 0; far < 2; far++) {
		/* Only this machine's first pages decide; they are this process's own. */
		open_node(&model, "shm", -1);
		syscall(SYS_get_mempolicy, &node, NULL, 0ul, a.memory, MPOL_F_NODE | MPOL_F_ADDR);
		shut();
		open_node(&model, "shm", far ? node + 1 : node);
		read_many(0, 1, 50000);
		by(1000000);
		expect_at(1, 1000000 + RTT_NS + (far ? 700 + 2000 : 1000));
		shut();
	}
}

static void the_tcp_link_is_modelled_too(void **state)
{
	struct dv_model model = plain();
	uint64_t deadline = pair_now_ns() + PATIENCE_NS;
	struct dv_soft_stats stats = {0};

	(void)state;
	open_node(&model, "tcp", -1);
	read_many(0, 1, 50000);
	while (stats.bytes < 50000) { /* the answer is here, its time has not come */
		dv_step(a.device);
		dv_step(b.device);
		assert_int_equal(end_reap(&a), 0);
		dv_soft_stats(a.device, &stats);
		if (memcmp(a.memory, b.memory, 50000) == 0)
			break;
		assert_true(pair_now_ns() < deadline);
	}
	assert_int_equal(by(1000000 + RTT_NS + 999), 0);
	now = 1000000 + RTT_NS + 1000;
	end_wait(&a, &b, 1);
	shut();
}

/* But what they have left to send takes so much longer. */
static void a_single_packet_passes_longer_answers(void **state)
{
	struct dv_model model = plain();

	(void)state;
	model.move_bytes = false;
	open_model(&model);
	read_many(0, 2, 1000000); /* 20 us each */
	read_at(1, 0, 4096, 0);   /* 81.92 ns */
	read_at(1, 0, 4096, 0);
	dv_ring(a.sqs[1]);
	assert_int_equal(by(1000000), 0);
	expect_at(1, 1000000 + RTT_NS + 82);
	expect_at(2, 1000000 + RTT_NS + 164);
	read_at(1, 0, 1000000, 0);
	dv_ring(a.sqs[1]);
	expect_at(3, 1000000 + RTT_NS + 20000);
	expect_at(4, 1000000 + RTT_NS + 40000);
	expect_at(5, 1000000 + RTT_NS + 60164); /* behind all of them */
	shut();
}

/* What a port beside the core would not have taken. */
static void time_may_be_left_out(void **state)
{
	struct dv_model model = plain();

	(void)state;
	open_model(&model);
	read_many(0, 1, 100000);
	assert_int_equal(by(1000000), 0);
	dv_leave_out(&a.device, 1, 700);
	assert_true(dv_due_ns(a.device) == 1000000 + RTT_NS + 2000 + 700);
	expect_at(1, 1000000 + RTT_NS + 2000 + 700);
	/* Its clock never goes back: what starts now starts where it stood. */
	dv_leave_out(&a.device, 1, 4000);
	read_many(0, 1, 100000);
	assert_int_equal(by(now + 100), 1);
	assert_true(dv_due_ns(a.device) == now - 100 + RTT_NS + 2000 + 4000);
	expect_at(2, now - 100 + RTT_NS + 2000 + 4000);
	shut();
}

static void a_model_that_makes_no_sense_is_refused(void **state)
{
	struct dv_options options = {.name = "soft", .numa_node = -1};
	struct dv_device *device = NULL;

	(void)state;
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
		cmocka_unit_test(reads_of_all_queues_share_the_line),
		cmocka_unit_test(a_late_step_loses_no_time_on_the_wire),
		cmocka_unit_test(every_packet_has_a_header),
		cmocka_unit_test(the_payload_ceiling_is_the_known_one),
		cmocka_unit_test(a_queue_has_sixteen_reads_under_way),
		cmocka_unit_test(a_model_may_allow_fewer_reads),
		cmocka_unit_test(messages_per_second_are_bounded_per_queue_and_per_port),
		cmocka_unit_test(a_fenced_read_starts_when_those_before_it_are_complete),
		cmocka_unit_test(a_fenced_head_is_sampled_after_the_payloads_completion),
		cmocka_unit_test(payload_may_stay_where_it_is_and_small_messages_move),
		cmocka_unit_test(keys_and_bounds_hold_without_bytes),
		cmocka_unit_test(an_error_ends_what_was_under_way_at_once),
		cmocka_unit_test(memory_of_another_node_is_farther_and_slower),
		cmocka_unit_test(the_tcp_link_is_modelled_too),
		cmocka_unit_test(a_single_packet_passes_longer_answers),
		cmocka_unit_test(time_may_be_left_out),
		cmocka_unit_test(a_model_that_makes_no_sense_is_refused),
	};

	return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
