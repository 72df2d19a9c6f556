/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake NIC of world.h: plain memory that the rail posts to and that completes WQEs as the test
 * decides. It replaces the functions of dv/setup.h; registration returns fixed keys. The test's
 * thread.
 */
#include <stdlib.h>

#include "dv/setup.h"
#include "tests/unit/rail/world.h"

/* ---- dv/setup.h, as far as a rail calls it --------------------------------------------------- */

static struct dv_cq *fake_cq; /* the CQ that the rail polls at present */
/* the CQ as the fake NIC created it; a rail that lost its NIC polls another CQ */
static struct dv_cq fake_cq_made;
static uint32_t fake_cq_pi; /* number of CQEs that the fake NIC has written so far */

int dv_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq)
{
	(void)device;
	*ret_cq = (struct dv_cq){
		.buf = calloc(depth, 64), .record = calloc(2, 4), .cqe_cnt = depth, .cqe_size = 64};
	for (unsigned i = 0; i < depth; i++)
		ret_cq->buf[i * 64 + 63] = MLX5_CQE_INVALID << 4;
	fake_cq = ret_cq;
	fake_cq_made = *ret_cq;
	fake_cq_pi = 0;
	return 0;
}

void dv_cq_destroy(struct dv_device *device, struct dv_cq *cq)
{
	(void)device;
	free(cq->buf);
	free((void *)(uintptr_t)cq->record);
}

int dv_mr_register(struct dv_device *device, void *base, size_t length, unsigned access, int memfd,
	uint64_t memfd_offset, struct dv_mr *ret_mr)
{
	(void)device;
	(void)memfd_offset;
	assert_int_equal(memfd, -1);
	assert_int_equal(access, DV_LOCAL_WRITE);
	*ret_mr = (struct dv_mr){.base = base, .length = length, .lkey = WORLD_HEADS_LKEY};
	return 0;
}

int dv_mr_deregister(struct dv_device *device, struct dv_mr *mr)
{
	(void)device;
	(void)mr;
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

/* ---- the NIC --------------------------------------------------------------------------------- */

static struct fake_qp *fake_qp_new(struct world *w)
{
	struct fake_qp *qp = aligned_alloc(64, (sizeof(*qp) + 63) & ~(size_t)63);

	memset(qp, 0, sizeof(*qp));
	qp->sq = (struct dv_sq){.buf = aligned_alloc(64, QP_DEPTH * DV_WQEBB),
		.record = qp->record,
		.bf_reg = (uint8_t *)qp->bf,
		.wqe_cnt = QP_DEPTH,
		.qpn = w->qpn_next++,
		.bf_size = 8};
	/*
	 * The indices of the send queue start near 2^16, so that the 16 bits of wqe_counter wrap
	 * early in the test.
	 */
	qp->sq.pi = qp->sq.ci = qp->sq.rung = qp->seen = 0xfff0;
	qp->next = w->qps;
	w->qps = qp;
	return qp;
}

void nic_cqe(uint32_t qpn, uint16_t counter, uint8_t syndrome)
{
	uint8_t *at = fake_cq_made.buf + (fake_cq_pi & (fake_cq_made.cqe_cnt - 1)) * 64;
	struct mlx5_err_cqe *error = (void *)at;
	struct mlx5_cqe64 *cqe = (void *)at;
	uint8_t opcode = syndrome ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ;

	assert_true(fake_cq_pi - fake_cq->ci < fake_cq_made.cqe_cnt);
	memset(at, 0, 63);
	cqe->sop_drop_qpn = htobe32(qpn);
	cqe->wqe_counter = htobe16(counter);
	if (syndrome)
		error->syndrome = syndrome;
	dv_device_store_owner(
		at + 63, (uint8_t)(opcode << 4 | !!(fake_cq_pi & fake_cq_made.cqe_cnt)));
	fake_cq_pi++;
}

static bool within(uint64_t at, uint64_t bytes, const void *base, uint64_t length)
{
	uint64_t from = (uintptr_t)base;

	return at >= from && bytes <= length && at - from <= length - bytes;
}

/* Checks what a real device checks for a WQE: the keys and the bounds of its memory. */
static void wqe_check(const struct world *w, const struct fake_wqe *wqe)
{
	if (wqe->rkey == WORLD_POOL_RKEY)
		assert_true(within(wqe->remote, wqe->bytes, w->pool, WORLD_UNITS * PAGE_UNIT));
	else if (wqe->rkey == WORLD_HEADS_RKEY)
		assert_true(within(wqe->remote, wqe->bytes, w->heads, WORLD_UNITS * 32));
	else
		assert_true(wqe->rkey == WORLD_SHARD_RKEY &&
			    within(wqe->remote, wqe->bytes, w->shard, WORLD_BUCKETS * 64));
	for (unsigned i = 0; i < wqe->sges; i++) {
		const struct dv_sge *s = &wqe->sge[i];

		assert_true(s->bytes > 0);
		if (s->lkey == WORLD_HEADS_LKEY)
			assert_true(
				s->bytes % 32 == 0 && s->bytes <= 32 * RUN_HEADS_SPAN &&
				s->address % 32 == 0 &&
				within(s->address, s->bytes, w->rail->head, sizeof(w->rail->head)));
		else
			assert_true(s->lkey == WORLD_LKEY &&
				    within(s->address, s->bytes, w->home, WORLD_HOME_BYTES));
	}
}

/* Parses the WQE at `index` of the QP's send queue. */
static struct fake_wqe wqe_parse(struct fake_qp *qp, uint32_t index)
{
	const struct mlx5_wqe_ctrl_seg *ctrl = (void *)dv_sq_block(&qp->sq, index);
	const struct mlx5_wqe_raddr_seg *raddr = (const void *)(ctrl + 1);
	uint32_t ds = be32toh(ctrl->qpn_ds) & 0x3f;
	struct fake_wqe wqe = {.qp = qp, .index = index, .sges = ds - 2};

	assert_int_equal(be32toh(ctrl->opmod_idx_opcode), (index & 0xffff) << 8 | DV_READ);
	assert_int_equal(be32toh(ctrl->qpn_ds) >> 8, qp->sq.qpn);
	assert_true(ds >= 3 && ds <= 2 + DV_SGES_MAX);
	wqe.remote = be64toh(raddr->raddr);
	wqe.rkey = be32toh(raddr->rkey);
	wqe.flags = ctrl->fm_ce_se;
	for (unsigned i = 0; i < wqe.sges; i++) {
		const uint8_t *at = dv_sq_block(&qp->sq, index + (2 + i) / 4) + (2 + i) % 4 * 16;
		const struct mlx5_wqe_data_seg *data = (const void *)at;

		wqe.sge[i] = (struct dv_sge){.address = be64toh(data->addr),
			.bytes = be32toh(data->byte_count),
			.lkey = be32toh(data->lkey)};
		wqe.bytes += wqe.sge[i].bytes;
	}
	assert_true(wqe.bytes <= SLICE_BYTES);
	return wqe;
}

void nic_pull(struct world *w)
{
	for (struct fake_qp *qp = w->qps; qp; qp = qp->next) {
		uint64_t rung =
			dv_device_take_doorbell(&qp->bf[0]) | dv_device_take_doorbell(&qp->bf[1]);
		uint32_t told = dv_device_load_record(&qp->record[DV_DBREC_SEND]);

		if (!rung)
			continue;
		while ((qp->seen & 0xffff) != told) {
			struct fake_wqe wqe = wqe_parse(qp, qp->seen);

			wqe_check(w, &wqe);
			/*
			 * each WQE in flight may produce a CQE, and the CQ must have room for all
			 * of them
			 */
			assert_true(w->wqes < CQ_DEPTH);
			qp->seen += dv_wqe_blocks(wqe.sges);
			w->wqe[w->wqes++] = wqe;
		}
	}
}

static void wqe_execute(const struct fake_wqe *wqe)
{
	const uint8_t *from = (const uint8_t *)(uintptr_t)wqe->remote;

	for (unsigned i = 0; i < wqe->sges; i++) {
		memcpy((void *)(uintptr_t)wqe->sge[i].address, from, wqe->sge[i].bytes);
		from += wqe->sge[i].bytes;
	}
}

bool nic_complete(struct world *w, unsigned i, uint8_t syndrome)
{
	struct fake_wqe wqe = w->wqe[i];

	/* a QP completes its WQEs in order, so no earlier one may be outstanding */
	for (unsigned j = 0; j < i; j++)
		assert_true(w->wqe[j].qp != wqe.qp);
	memmove(&w->wqe[i], &w->wqe[i + 1], (w->wqes - i - 1) * sizeof(wqe));
	w->wqes--;
	if (wqe.qp->error)
		syndrome = DV_SYNDROME_FLUSHED;
	if (syndrome)
		wqe.qp->error = true;
	else if (!wqe.sampled)
		wqe_execute(&wqe);
	if (!syndrome && !(wqe.flags & DV_CE_ALWAYS))
		return false;
	nic_cqe(wqe.qp->sq.qpn, (uint16_t)wqe.index, syndrome);
	return true;
}

void nic_sample(struct world *w, unsigned i)
{
	wqe_execute(&w->wqe[i]);
	w->wqe[i].sampled = true;
}

void nic_flush(struct world *w, const struct rail_conn *handle)
{
	unsigned i = 0;

	nic_pull(w);
	for (unsigned q = 0; q < handle->qps; q++)
		container_of(handle->sq[q], struct fake_qp, sq)->error = true;
	while (i < w->wqes) {
		if (w->wqe[i].qp->error)
			nic_complete(w, i, DV_SYNDROME_FLUSHED);
		else
			i++;
	}
}

/* ---- the world of one rail ------------------------------------------------------------------- */

int world_setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));
	struct rail_options options = {.kick = -1, .control_kick = -1};
	struct rail_region home = {
		.id = WORLD_REGION, .session = WORLD_SESSION, .lkey = WORLD_LKEY};

	w->now_ns = 1000ull * 1000 * 1000 * 1000;
	clock_test_set(w->now_ns);
	world_memory(w);
	w->wqe = calloc(CQ_DEPTH, sizeof(*w->wqe));
	w->qpn_next = 0x123;
	w->wake = -1;
	options.status = w->status;
	assert_int_equal(rail_open(&options, &w->rail), 0);
	home.base = (uintptr_t)w->home;
	home.length = WORLD_HOME_BYTES;
	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = home});
	*state = w;
	return 0;
}

int world_teardown(void **state)
{
	struct world *w = *state;

	rail_close(w->rail);
	assert_null(w->qps);
	free(w->wqe);
	world_memory_free(w);
	free(w);
	clock_test_set(0);
	return 0;
}

void world_run(struct world *w)
{
	do {
		world_settle(w);
		nic_pull(w);
		while (w->wqes)
			nic_complete(w, 0, 0);
	} while (dv_cq_has(&w->rail->cq));
}

struct rail_conn *rail_conn_new(struct world *w, uint16_t number, uint32_t ref, unsigned qps)
{
	struct rail_conn *handle = calloc(1, sizeof(*handle));

	handle->peer = number;
	handle->ref = ref;
	handle->qps = qps;
	for (unsigned i = 0; i < qps; i++)
		handle->sq[i] = &fake_qp_new(w)->sq;
	handle->region[REGION_POOL_0] = (struct rail_remote){.base = (uintptr_t)w->pool,
		.length = WORLD_UNITS * PAGE_UNIT,
		.rkey = WORLD_POOL_RKEY};
	handle->region[REGION_HEADS_0] = (struct rail_remote){
		.base = (uintptr_t)w->heads, .length = WORLD_UNITS * 32, .rkey = WORLD_HEADS_RKEY};
	handle->region[REGION_SHARD] = (struct rail_remote){.base = (uintptr_t)w->shard,
		.length = WORLD_BUCKETS * 64,
		.rkey = WORLD_SHARD_RKEY};
	return handle;
}

void rail_conn_free(struct world *w, struct rail_conn *handle)
{
	for (unsigned i = 0; i < handle->qps; i++) {
		struct fake_qp *qp = container_of(handle->sq[i], struct fake_qp, sq);
		struct fake_qp **at = &w->qps;

		while (*at != qp)
			at = &(*at)->next;
		*at = qp->next;
		free(qp->sq.buf);
		free(qp);
	}
	free(handle);
}
