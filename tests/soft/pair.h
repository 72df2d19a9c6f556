/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the software NIC: one end of a connection (a NIC, a CQ, QPs, memory), and
 * stepping until an expected completion has arrived. One thread.
 */
#ifndef TESTS_SOFT_PAIR_H
#define TESTS_SOFT_PAIR_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "config/clock.h"
#include "dv/hot.h"
#include "dv/setup.h"
#include "dv/soft/fault.h"

#define END_QPS 4u
#define END_BYTES (4u << 20)
#define END_ACCESS (DV_LOCAL_WRITE | DV_REMOTE_READ | DV_REMOTE_WRITE)
#define PATIENCE_NS 20000000000ull /* time-out of a test for an event that must happen, ns */

struct end {
	struct dv_device *device;
	struct dv_cq cq;
	struct dv_qp *qps[END_QPS];
	struct dv_sq *sqs[END_QPS];
	unsigned qp_count;
	int memfd;
	uint8_t *memory;
	struct dv_mr mr;
	struct dv_completion done[4096]; /* all completions that end_reap() has taken, in order */
	unsigned done_count;
};

/*
 * What the other end must know of one end: QP addresses and memory. In the engine the control plane
 * sends it.
 */
struct card {
	struct dv_address addresses[END_QPS];
	uint64_t base;
	uint32_t rkey;
};

static inline void pair_good(int rc)
{
	if (rc)
		fail_msg("%d: %s", rc, dv_error());
}

static inline void end_open_with(struct end *end, const struct dv_options *options, unsigned qps,
	unsigned depth, unsigned cq_depth)
{
	*end = (struct end){.qp_count = qps, .memfd = memfd_create("pair", MFD_CLOEXEC)};
	assert_true(end->memfd >= 0);
	assert_int_equal(ftruncate(end->memfd, END_BYTES), 0);
	end->memory = mmap(NULL, END_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, end->memfd, 0);
	assert_ptr_not_equal(end->memory, MAP_FAILED);
	pair_good(dv_open(options, &end->device));
	pair_good(dv_cq_create(end->device, cq_depth, &end->cq));
	for (unsigned i = 0; i < qps; i++)
		pair_good(dv_qp_create(end->device, &end->cq, depth, &end->qps[i], &end->sqs[i]));
	pair_good(dv_mr_register(end->device,
		&(struct dv_memory){.base = end->memory,
			.length = END_BYTES,
			.access = END_ACCESS,
			.memfd = end->memfd},
		&end->mr));
}

static inline void end_open(struct end *end, const char *link, unsigned qps)
{
	struct dv_options options = {.name = "soft", .link = link};

	end_open_with(end, &options, qps, 64, 1024);
}

static inline void end_close(struct end *end)
{
	for (unsigned i = 0; i < end->qp_count; i++)
		dv_qp_destroy(end->qps[i]);
	dv_cq_destroy(end->device, &end->cq);
	pair_good(dv_mr_deregister(end->device, &end->mr));
	dv_close(end->device);
	munmap(end->memory, END_BYTES);
	close(end->memfd);
}

static inline void end_card(const struct end *end, struct card *ret)
{
	*ret = (struct card){.base = (uintptr_t)end->memory, .rkey = end->mr.rkey};
	for (unsigned i = 0; i < end->qp_count; i++)
		dv_qp_address(end->qps[i], &ret->addresses[i]);
}

static inline void end_connect(struct end *end, const struct card *other)
{
	for (unsigned i = 0; i < end->qp_count; i++)
		pair_good(dv_qp_connect(end->qps[i], &other->addresses[i]));
}

/* Puts a new queue pair, which is not connected, in the place of one. */
static inline void end_renew(struct end *end, unsigned qp)
{
	unsigned depth = end->sqs[qp]->wqe_cnt;

	dv_qp_destroy(end->qps[qp]);
	pair_good(dv_qp_create(end->device, &end->cq, depth, &end->qps[qp], &end->sqs[qp]));
}

/* Opens two connected ends (software NICs with queue pairs) in this process. */
static inline void pair_open(struct end *a, struct end *b, const char *link, unsigned qps)
{
	struct card card_a, card_b;

	end_open(a, link, qps);
	end_open(b, link, qps);
	end_card(a, &card_a);
	end_card(b, &card_b);
	end_connect(a, &card_b);
	end_connect(b, &card_a);
}

static inline uint32_t end_post(struct end *end, unsigned qp, enum dv_opcode opcode,
	uint64_t local_at, uint64_t remote, uint32_t rkey, uint32_t bytes, uint8_t flags)
{
	struct dv_sge sge = {(uintptr_t)end->memory + local_at, bytes, end->mr.lkey};

	assert_true(dv_sq_room(end->sqs[qp]) >= 1);
	return dv_post(end->sqs[qp], opcode, remote, rkey, &sge, 1, flags);
}

/* Reaps all completions of one end and advances the consumer indices of its send queues. */
static inline unsigned end_reap(struct end *end)
{
	struct dv_completion *at = end->done + end->done_count;
	unsigned n = dv_poll(&end->cq, at, (unsigned)(4096 - end->done_count));

	for (unsigned i = 0; i < n; i++)
		for (unsigned q = 0; q < end->qp_count; q++) {
			struct dv_sq *sq = end->sqs[q];
			uint32_t index = sq->ci + (uint16_t)(at[i].wqe_counter - sq->ci);
			const struct mlx5_wqe_ctrl_seg *ctrl = (void *)dv_sq_block(sq, index);

			if (sq->qpn == at[i].qpn)
				sq->ci = index + ((be32toh(ctrl->qpn_ds) & 0x3f) + 3) / 4;
		}
	end->done_count += n;
	return n;
}

/* Steps both ends (`other` may be NULL) until `end` has `count` completions in total. */
static inline void end_wait(struct end *end, struct end *other, unsigned count)
{
	uint64_t deadline = clock_monotonic_ns() + PATIENCE_NS;

	while (end->done_count < count) {
		dv_step(end->device);
		if (other)
			dv_step(other->device);
		end_reap(end);
		if (clock_monotonic_ns() > deadline)
			fail_msg("only %u of %u completions arrived before the time-out",
				end->done_count, count);
	}
}

static inline void end_fill(struct end *end, uint8_t first)
{
	for (size_t i = 0; i < END_BYTES; i++)
		end->memory[i] = (uint8_t)(first + i * 7 + (i >> 8));
}

#endif
