/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a modelled port starts READs, and whose answer crosses the link first: no READ is later than
 * on a real port, however late and in whatever order the steps simulate the queues.
 */
#include "tests/soft/port.h"

static void a_queue_has_sixteen_reads_in_flight(void **state)
{
	struct port_model model = plain();

	open_model(&model);
	read_many(0, 17, 50);
	by(1000000);
	expect_at(16, 1000000 + RTT_NS + 16);
	/* The 17th READ started when the 1st was complete, because 16 may be in flight. */
	expect_at(17, 1000000 + RTT_NS + 1 + RTT_NS + 1);
	shut();
}

static void a_model_may_allow_fewer_reads(void **state)
{
	struct port_model model = plain();
	struct dv_attributes attributes;

	model.reads_per_qp = 4;
	open_model(&model);
	dv_attributes(a.device, &attributes);
	assert_true(attributes.modelled && attributes.bits_per_second == 400000000000);
	read_many(0, 8, 50);
	by(1000000);
	expect_at(4, 1000000 + RTT_NS + 4);
	expect_at(8, 1000000 + RTT_NS + 4 + RTT_NS + 1);
	shut();
}

static void messages_per_second_are_bounded_per_queue_and_per_port(void **state)
{
	struct port_model model = plain();

	model.qp_messages_per_s = 1000000; /* each queue: one message per microsecond */
	model.messages_per_s = 4000000;    /* the port: one message per 250 ns */
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

/* Single packets overtake longer answers, but the link time they take delays those answers. */
static void a_single_packet_answer_overtakes_longer_answers(void **state)
{
	struct port_model model = plain();

	model.still = true;
	open_model(&model);
	read_many(0, 2, 1000000); /* each READ takes 20 us of link time */
	read_at(1, 0, 4096, 0);   /* each READ takes 81.92 ns of link time */
	read_at(1, 0, 4096, 0);
	dv_ring(a.sqs[1]);
	assert_int_equal(by(1000000), 0);
	expect_at(1, 1000000 + RTT_NS + 82);
	expect_at(2, 1000000 + RTT_NS + 164);
	read_at(1, 0, 1000000, 0);
	dv_ring(a.sqs[1]);
	expect_at(3, 1000000 + RTT_NS + 20000);
	expect_at(4, 1000000 + RTT_NS + 40000);
	expect_at(5, 1000000 + RTT_NS + 60164); /* the new READ uses the link after all others */
	shut();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_queue_has_sixteen_reads_in_flight),
		cmocka_unit_test(a_model_may_allow_fewer_reads),
		cmocka_unit_test(messages_per_second_are_bounded_per_queue_and_per_port),
		cmocka_unit_test(a_single_packet_answer_overtakes_longer_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
