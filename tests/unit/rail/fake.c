/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake NIC of world.h: plain memory that the rail posts to and that completes WQEs as the test
 * decides. Registration returns fixed keys. The test's thread.
 */
#include <stdlib.h>

#include "tests/nic_stub.h"
#include "tests/unit/rail/world.h"

/* A rail registers its heads, once. */
static int heads_register(const struct dv_memory *memory, struct dv_mr *ret_mr)
{
	assert_int_equal(memory->memfd, -1);
	assert_int_equal(memory->access, DV_LOCAL_WRITE);
	*ret_mr = (struct dv_mr){
		.base = memory->base, .length = memory->length, .lkey = WORLD_HEADS_LKEY};
	return 0;
}

/* ---- the NIC --------------------------------------------------------------------------------- */

static struct fake_qp *fake_qp_new(struct world *w)
{
	struct fake_qp *qp = aligned_alloc(64, (sizeof(*qp) + 63) & ~(size_t)63);

	memset(qp, 0, sizeof(*qp));
	nic_stub_qp_init(&qp->stub, aligned_alloc(64, QP_DEPTH * DV_WQEBB), w->qpn_next++);
	/*
	 * The indices of the send queue start near 2^16, so that the 16 bits of wqe_counter wrap
	 * early in the test.
	 */
	qp->stub.sq.pi = qp->stub.sq.ci = qp->stub.sq.rung = qp->stub.seen = 0xfff0;
	qp->next = w->qps;
	w->qps = qp;
	return qp;
}

void nic_cqe(uint32_t qpn, uint16_t counter, uint8_t syndrome)
{
	assert_true(nic_stub.cq_pi - nic_stub.cq->ci < nic_stub.cq_made.cqe_cnt);
	nic_stub_cqe(qpn, counter, syndrome);
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
	struct fake_wqe wqe = {.qp = qp, .index = index};
	struct nic_stub_wqe posted;

	nic_stub_read(&qp->stub.sq, index, &posted);
	assert_int_equal(posted.opcode, (index & 0xffff) << 8 | DV_READ);
	assert_int_equal(posted.qpn, qp->stub.sq.qpn);
	assert_in_range(posted.sges, 1, DV_SGES_MAX);
	wqe.remote = posted.remote;
	wqe.rkey = posted.rkey;
	wqe.flags = posted.flags;
	wqe.sges = posted.sges;
	for (unsigned i = 0; i < wqe.sges; i++) {
		wqe.sge[i] = posted.sge[i];
		wqe.bytes += wqe.sge[i].bytes;
	}
	assert_true(wqe.bytes <= SLICE_BYTES);
	return wqe;
}

void nic_pull(struct world *w)
{
	for (struct fake_qp *qp = w->qps; qp; qp = qp->next) {
		uint32_t end;

		if (!nic_stub_rung(&qp->stub, &end))
			continue;
		while ((qp->stub.seen & 0xffff) != end) {
			struct fake_wqe wqe = wqe_parse(qp, qp->stub.seen);

			wqe_check(w, &wqe);
			/*
			 * each WQE in flight may produce a CQE, and the CQ must have room for all
			 * of them
			 */
			assert_true(w->wqes < CQ_DEPTH);
			qp->stub.seen += dv_wqe_blocks(wqe.sges);
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
	nic_cqe(wqe.qp->stub.sq.qpn, (uint16_t)wqe.index, syndrome);
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
		container_of(handle->sq[q], struct fake_qp, stub.sq)->error = true;
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
	nic_stub = (struct nic_stub){.mr_register = heads_register};
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
		handle->sq[i] = &fake_qp_new(w)->stub.sq;
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
		struct fake_qp *qp = container_of(handle->sq[i], struct fake_qp, stub.sq);
		struct fake_qp **at = &w->qps;

		while (*at != qp)
			at = &(*at)->next;
		*at = qp->next;
		free(qp->stub.sq.buf);
		free(qp);
	}
	free(handle);
}
