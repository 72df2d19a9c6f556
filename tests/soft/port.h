/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A modelled port `a` and an unmodelled one `b`, stepped by the test, with a clock that the test
 * sets. Each test of the model includes it once.
 */
#ifndef TESTS_SOFT_PORT_H
#define TESTS_SOFT_PORT_H

#include "tests/soft/pair.h"

#define RTT_NS 5000u
#define RATE 400u /* rate of the port in Gbit/s: 400 Gbit/s are 50 bytes per ns */
#define HEADER 82u

static struct end a, b;
static uint64_t now;

/*
 * A model limited only by its rate and round trip; a test adds its own limits. A step moves 256
 * KiB: a test with more bytes in flight sets still.
 */
static inline struct port_model plain(void)
{
	return (struct port_model){
		.rate_gbps = RATE, .rtt_ns = RTT_NS, .reads_per_qp = 16, .mtu = 4096};
}

static inline void open_link(const struct port_model *model, const char *link)
{
	struct dv_options options = {.name = "soft", .link = link, .model = *model};
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

static inline void open_model(const struct port_model *model)
{
	open_link(model, "shm");
}

static inline void shut(void)
{
	dv_soft_clock(a.device, NULL);
	end_close(&a);
	end_close(&b);
}

static inline void read_at(unsigned qp, uint64_t at, uint32_t bytes, uint8_t flags)
{
	end_post(&a, qp, DV_READ, at, (uintptr_t)b.memory + at, b.mr.rkey, bytes,
		DV_CE_ALWAYS | flags);
}

static inline void read_many(unsigned qp, unsigned count, uint32_t bytes)
{
	for (unsigned i = 0; i < count; i++)
		read_at(qp, (uint64_t)i * bytes, bytes, 0);
	dv_ring(a.sqs[qp]);
}

/* Steps the NIC at simulated time `at`, in ns; returns the number of completions so far. */
static inline unsigned by(uint64_t at)
{
	now = at;
	dv_step(a.device);
	end_reap(&a);
	for (unsigned i = 0; i < a.done_count; i++)
		assert_int_equal(a.done[i].syndrome, 0);
	return a.done_count;
}

/*
 * Checks that completion number `count` is reported at simulated time `at` and not one nanosecond
 * earlier.
 */
static inline void expect_at(unsigned count, uint64_t at)
{
	assert_in_range(by(at - 1), 0, count - 1);
	if (by(at) < count)
		fail_msg("%u completions at +%lu ns, not %u", a.done_count,
			(unsigned long)(at - 1000000), count);
}

static inline uint64_t wire_ns(uint64_t bytes)
{
	return (bytes + RATE / 8 - 1) / (RATE / 8);
}

#endif
