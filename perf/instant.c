/* SPDX-License-Identifier: Apache-2.0 */
/* The instant device: see instant.h. Its QPs, its CQ, its recording. One thread. */
#include "perf/instant.h"

#include <stdio.h>
#include <stdlib.h>

#include "config/limits.h"
#include "dv/setup.h"
#include "numa/clock.h"

struct instant instant;

static uint8_t *cqes;
static uint32_t cqe_cnt, cq_pi, cq_record[2];
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

/* ---- the functions of dv/setup.h that a rail calls ------------------------------------------- */

int dv_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq)
{
	(void)device;
	cqes = zeroed((size_t)depth * 64);
	cqe_cnt = depth;
	for (unsigned i = 0; i < depth; i++)
		cqes[i * 64 + 63] = MLX5_CQE_INVALID << 4;
	*ret_cq = (struct dv_cq){
		.buf = cqes, .record = (__be32 *)cq_record, .cqe_cnt = depth, .cqe_size = 64};
	return 0;
}

void dv_cq_destroy(struct dv_device *device, struct dv_cq *cq)
{
	(void)device;
	free(cq->buf);
}

int dv_mr_register(struct dv_device *device, void *base, size_t length, unsigned access, int memfd,
	uint64_t memfd_offset, struct dv_mr *ret_mr)
{
	(void)device, (void)access, (void)memfd, (void)memfd_offset;
	*ret_mr = (struct dv_mr){.base = base, .length = length, .lkey = 1};
	return 0;
}

int dv_mr_deregister(struct dv_device *device, struct dv_mr *mr)
{
	(void)device, (void)mr;
	return 0;
}

unsigned dv_step_all(struct dv_device *const *devices, unsigned count)
{
	(void)devices, (void)count;
	return 0;
}

void dv_leave_out(struct dv_device *const *devices, unsigned count, uint64_t ns)
{
	(void)devices, (void)count, (void)ns;
}

bool dv_needs_step(const struct dv_device *device)
{
	(void)device;
	return false;
}

uint64_t dv_due_ns(const struct dv_device *device)
{
	(void)device;
	return UINT64_MAX;
}

/* ---- execution ------------------------------------------------------------------------------- */

void instant_open(unsigned qps)
{
	instant.qp = zeroed(qps * sizeof(*instant.qp));
	instant.qps = qps;
	for (unsigned i = 0; i < qps; i++)
		instant.qp[i].sq = (struct dv_sq){.buf = zeroed(QP_DEPTH * DV_WQEBB),
			.record = (__be32 *)instant.qp[i].record,
			.bf_reg = (uint8_t *)instant.qp[i].bf,
			.wqe_cnt = QP_DEPTH,
			.qpn = 0x100 + i,
			.bf_size = 8};
}

static void cqe_write(const struct instant_qp *q, uint32_t index)
{
	uint8_t *at = cqes + (size_t)(cq_pi & (cqe_cnt - 1)) * 64;
	struct mlx5_cqe64 *cqe = (void *)at;

	cqe->sop_drop_qpn = htobe32(q->sq.qpn);
	cqe->wqe_counter = htobe16((uint16_t)index);
	dv_device_store_owner(at + 63, (uint8_t)(MLX5_CQE_REQ << 4 | !!(cq_pi & cqe_cnt)));
	cq_pi++;
	instant.cqes++;
}

static struct instant_wqe parse(const struct instant_qp *q, uint32_t index)
{
	const uint8_t *block = dv_sq_block(&q->sq, index);
	const struct mlx5_wqe_ctrl_seg *ctrl = (const void *)block;
	const struct mlx5_wqe_raddr_seg *raddr = (const void *)(block + DV_SEGMENT);
	struct instant_wqe wqe = {.remote = be64toh(raddr->raddr),
		.rkey = be32toh(raddr->rkey),
		.sges = (uint8_t)((be32toh(ctrl->qpn_ds) & 0x3f) - 2),
		.flags = ctrl->fm_ce_se,
		.qp = (uint8_t)(q - instant.qp)};

	for (unsigned i = 0; i < wqe.sges; i++) {
		const uint8_t *at = dv_sq_block(&q->sq, index + (2 + i) / 4) + (2 + i) % 4 * 16;
		const struct mlx5_wqe_data_seg *data = (const void *)at;

		wqe.sge[i] = (struct dv_sge){
			be64toh(data->addr), be32toh(data->byte_count), be32toh(data->lkey)};
	}
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
static uint32_t execute(const struct instant_qp *q, uint32_t index)
{
	struct instant_wqe wqe = parse(q, index);

	move(&wqe);
	instant.wqes++;
	if (instant.traced < instant.trace_max)
		instant.trace[instant.traced++] = wqe;
	if (wqe.flags & DV_CE_ALWAYS)
		cqe_write(q, index);
	return dv_wqe_blocks(wqe.sges);
}

void instant_step(void)
{
	uint64_t before = instant.traced;

	for (unsigned i = 0; i < instant.qps; i++) {
		struct instant_qp *q = &instant.qp[i];
		uint32_t told;

		if (!(dv_device_take_doorbell(&q->bf[0]) | dv_device_take_doorbell(&q->bf[1])))
			continue;
		instant.doorbells++;
		told = dv_device_load_record((__be32 *)&q->record[DV_DBREC_SEND]);
		while ((q->seen & 0xffff) != told)
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

	*cq = (struct dv_cq){.buf = cqes,
		.record = (__be32 *)cq_record,
		.cqe_cnt = cqe_cnt,
		.cqe_size = 64,
		.ci = cq_pi};
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
	cq->ci = cq_pi;
	for (unsigned i = 0; i < instant.qps; i++)
		instant.qp[i].sq.ci = instant.qp[i].sq.pi;
}
