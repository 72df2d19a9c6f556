/* SPDX-License-Identifier: Apache-2.0 */
/* The instant device: see instant.h. Its QPs, its CQ, its recording. One thread. */
#include "perf/instant.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/limits.h"
#include "dv/setup.h"
#include "numa/clock.h"

struct instant instant;

static struct dv_cq cq_of_replay;

void *zeroed(size_t bytes)
{
	void *at = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);

	if (!at) {
		fprintf(stderr, "out of memory\n");
		exit(1);
	}
	memset(at, 0, bytes);
	return at;
}

/* ---- execution ------------------------------------------------------------------------------- */

void instant_open(unsigned qps)
{
	instant.qp = zeroed(qps * sizeof(*instant.qp));
	instant.qps = qps;
	for (unsigned i = 0; i < qps; i++)
		nic_stub_qp_init(&instant.qp[i], zeroed(QP_DEPTH * DV_WQEBB), 0x100 + i);
}

static struct instant_wqe parse(const struct nic_stub_qp *q, uint32_t index)
{
	struct nic_stub_wqe posted;
	struct instant_wqe wqe;

	nic_stub_read(&q->sq, index, &posted);
	wqe = (struct instant_wqe){.remote = posted.remote,
		.rkey = posted.rkey,
		.sges = (uint8_t)posted.sges,
		.flags = posted.flags,
		.qp = (uint8_t)(q - instant.qp)};
	memcpy(wqe.sge, posted.sge, posted.sges * sizeof(wqe.sge[0]));
	return wqe;
}

static void move(const struct instant_wqe *wqe)
{
	uint64_t remote = wqe->remote;

	for (unsigned i = 0; i < wqe->sges; i++) {
		uint8_t *to = (uint8_t *)(uintptr_t)wqe->sge[i].address;

		if (wqe->rkey == INSTANT_HEADS_RKEY)
			memcpy(to, (const void *)(uintptr_t)remote, wqe->sge[i].bytes);
		else if (instant.granule)
			for (uint32_t at = 0; at < wqe->sge[i].bytes; at += instant.granule) {
				uint64_t from = remote + at;

				memcpy(to + at, &from, sizeof(from));
			}
		remote += wqe->sge[i].bytes;
	}
}

/* Executes one WQE; returns its number of 64-byte blocks. */
static uint32_t execute(const struct nic_stub_qp *q, uint32_t index)
{
	struct instant_wqe wqe = parse(q, index);

	move(&wqe);
	instant.wqes++;
	if (instant.traced < instant.trace_max)
		instant.trace[instant.traced++] = wqe;
	if (wqe.flags & DV_CE_ALWAYS) {
		nic_stub_cqe(q->sq.qpn, (uint16_t)index, 0);
		instant.cqes++;
	}
	return dv_wqe_blocks(wqe.sges);
}

void instant_step(void)
{
	uint64_t before = instant.traced;

	for (unsigned i = 0; i < instant.qps; i++) {
		struct nic_stub_qp *q = &instant.qp[i];
		uint32_t end;

		if (!nic_stub_rung(q, &end))
			continue;
		instant.doorbells++;
		while ((q->seen & 0xffff) != end)
			q->seen += execute(q, q->seen);
	}
	if (instant.traced != before)
		instant.trace[instant.traced - 1].last = true;
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* Posts the recorded WQEs of one step and rings each QP that got some. Returns the next index. */
static uint64_t replay_step(uint64_t at)
{
	uint32_t touched = 0;
	bool last;

	do {
		const struct instant_wqe *w = &instant.trace[at++];
		struct dv_sq *sq = &instant.qp[w->qp].sq;

		if (w->sges == 1)
			dv_post(sq, DV_READ, w->remote, w->rkey, w->sge, 1, w->flags);
		else
			dv_post(sq, DV_READ, w->remote, w->rkey, w->sge, w->sges, w->flags);
		touched |= 1u << w->qp;
		last = w->last;
	} while (!last && at < instant.traced);
	for (; touched; touched &= touched - 1)
		dv_ring(&instant.qp[__builtin_ctz(touched)].sq);
	return at;
}

uint64_t instant_replay(void)
{
	static struct dv_completion completion[RAIL_REAP_BURST];
	struct dv_cq *cq = &cq_of_replay;
	uint64_t max = instant.trace_max, ns = 0, at = 0, t0, t1;

	*cq = nic_stub.cq_made;
	cq->ci = nic_stub.cq_pi;
	instant.trace_max = 0;
	t0 = clock_now_ns();
	while (at < instant.traced) {
		at = replay_step(at);
		t1 = clock_now_ns();
		ns += t1 - t0;
		instant_step();
		t0 = clock_now_ns();
		while (dv_poll(cq, completion, RAIL_REAP_BURST))
			;
	}
	ns += clock_now_ns() - t0;
	instant.trace_max = max;
	return ns;
}

void instant_settle(struct dv_cq *cq)
{
	cq->ci = nic_stub.cq_pi;
	for (unsigned i = 0; i < instant.qps; i++)
		instant.qp[i].sq.ci = instant.qp[i].sq.pi;
}
