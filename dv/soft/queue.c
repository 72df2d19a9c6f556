/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queues and queue pairs of the software NIC: their memory and states. Run by setup
 * callers, under nic->lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

#include "config/clock.h"
#include "dv/soft/soft.h"

static void *zeroed_pages(size_t bytes)
{
	size_t size = (bytes + SOFT_UAR_BYTES - 1) / SOFT_UAR_BYTES * SOFT_UAR_BYTES;
	void *at = aligned_alloc(SOFT_UAR_BYTES, size);

	if (at)
		memset(at, 0, size);
	return at;
}

static uint32_t round_up_power(uint32_t n)
{
	uint32_t power = 1;

	while (power < n)
		power <<= 1;
	return power;
}

/* ---- completion queues ----------------------------------------------------------------------- */

static void free_cq(struct soft_cq *cq)
{
	if (cq && !cq->foreign) {
		free(cq->buf);
		free((void *)(uintptr_t)cq->record);
	}
	free(cq);
}

static struct soft_cq *new_cq(struct dv_device *nic, uint32_t cqe_cnt)
{
	struct soft_cq *cq = calloc(1, sizeof(*cq));

	if (!cq)
		return NULL;
	cq->nic = nic;
	cq->cqe_cnt = cqe_cnt;
	cq->cqe_size = sizeof(struct mlx5_cqe64);
	cq->buf = zeroed_pages((size_t)cqe_cnt * sizeof(struct mlx5_cqe64));
	cq->record = zeroed_pages(2 * sizeof(__be32));
	if (!cq->buf || !cq->record) {
		free_cq(cq);
		return NULL;
	}
	/* The CQEs' state as libmlx5 initialises it: opcode invalid, owner bit of the previous
	 * round. */
	for (uint32_t i = 0; i < cqe_cnt; i++)
		cq->buf[(size_t)i * sizeof(struct mlx5_cqe64) +
			offsetof(struct mlx5_cqe64, op_own)] = MLX5_CQE_INVALID << 4 | DV_CQE_OWNER;
	return cq;
}

int soft_cq_add(struct dv_device *nic, struct soft_cq *cq)
{
	struct soft_cq **grown = realloc(nic->cqs, (nic->cq_count + 1) * sizeof(*grown));

	if (!grown)
		return -ENOMEM;
	nic->cqs = grown;
	nic->cqs[nic->cq_count++] = cq;
	cq->cqn = ++nic->cqn_last;
	return 0;
}

int soft_cq_create(struct dv_device *nic, unsigned depth, struct dv_cq *ret_cq)
{
	struct soft_cq *cq;
	int rc = -ENOMEM;

	if (depth == 0 || depth > SOFT_CQ_DEPTH_MAX)
		return dv_fail(-EINVAL,
			"%s: creating a completion queue of %u entries: %m; allowed are 1 to %u",
			nic->name, depth, SOFT_CQ_DEPTH_MAX);
	cq = new_cq(nic, round_up_power(depth));
	if (cq) {
		soft_lock(nic);
		rc = soft_cq_add(nic, cq);
		soft_unlock(nic);
	}
	if (rc) {
		free_cq(cq);
		return dv_fail(
			rc, "%s: creating a completion queue of %u entries: %m", nic->name, depth);
	}
	*ret_cq = (struct dv_cq){.buf = cq->buf,
		.record = cq->record,
		.cqe_cnt = cq->cqe_cnt,
		.cqe_size = sizeof(struct mlx5_cqe64),
		.cqn = cq->cqn,
		.handle = cq};
	return 0;
}

void soft_cq_destroy(struct dv_device *nic, struct dv_cq *handle)
{
	struct soft_cq *cq = handle->handle;

	soft_lock(nic);
	for (unsigned i = 0; i < nic->cq_count; i++)
		if (nic->cqs[i] == cq)
			nic->cqs[i] = nic->cqs[--nic->cq_count];
	for (unsigned i = 0; cq && i < nic->qp_count; i++)
		assert(nic->qps[i]->cq != cq);
	soft_unlock(nic);
	if (cq)
		free_cq(cq);
	*handle = (struct dv_cq){0};
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static uint32_t random_psn(void)
{
	uint32_t psn = 0;

	if (getrandom(&psn, sizeof(psn), 0) != sizeof(psn))
		psn = (uint32_t)clock_monotonic_ns();
	return psn & 0xffffff;
}

static void free_qp(struct dv_qp *qp)
{
	if (!qp->foreign) {
		free(qp->buf);
		free((void *)(uintptr_t)qp->record);
	}
	free(qp);
}

/*
 * Resets the poll core's handle (dv/hot.h) and the NIC's indices to an empty queue. Chooses a new
 * PSN.
 */
void soft_qp_zero(struct dv_qp *qp)
{
	/* clear old doorbells: the NIC polls the registers of QPs in any state */
	(void)dv_device_take_doorbell(&qp->bell[0]);
	(void)dv_device_take_doorbell(&qp->bell[SOFT_BELLS_BLOCK]);
	qp->record[DV_DBREC_SEND] = 0;
	qp->sq = (struct dv_sq){.buf = qp->buf,
		.record = qp->record,
		.bf_reg = (uint8_t *)qp->bell,
		.wqe_cnt = qp->wqe_cnt,
		.qpn = qp->qpn,
		.bf_size = SOFT_BF_SIZE};
	qp->rung = qp->fetched = qp->retired = 0;
	qp->head = qp->tail = qp->executed = qp->reads = 0;
	qp->state = SOFT_INIT;
	qp->proven = qp->near_seen = false;
	qp->near = NULL;
	qp->near_epoch = 0;
	qp->pace = (struct soft_pace){0};
	qp->psn = random_psn();
}

/* Takes the next QP number with a free slot; each reuse of a slot gives a different number. */
static uint32_t take_number(struct dv_device *nic)
{
	for (uint32_t tries = 0; tries < SOFT_QPS_MAX; tries++) {
		uint32_t slot = nic->qp_slot_last = (nic->qp_slot_last + 1) % SOFT_QPS_MAX;

		if (slot == 0 || nic->qp_slots[slot])
			continue;
		nic->qp_generations[slot]++;
		return ((uint32_t)nic->qp_generations[slot] << SOFT_SLOT_BITS | slot) & 0xffffff;
	}
	return 0;
}

/* Takes the first free doorbell register; there are as many as QP numbers. */
static void take_bell(struct dv_device *nic, struct dv_qp *qp)
{
	uint32_t i = 0;

	while (nic->bell_qps[i])
		i++;
	nic->bell_qps[i] = qp;
	qp->bell = nic->bells + i / SOFT_BELLS_BLOCK * 2 * SOFT_BELLS_BLOCK + i % SOFT_BELLS_BLOCK;
	if (i >= nic->bell_count)
		dv_hint_store(&nic->bell_count, i + 1);
}

static void give_bell(struct dv_device *nic, struct dv_qp *qp)
{
	for (uint32_t i = 0; i < nic->bell_count; i++)
		if (nic->bell_qps[i] == qp)
			nic->bell_qps[i] = NULL;
	/* clear old doorbells: the NIC polls a register even if no QP has it */
	(void)dv_device_take_doorbell(&qp->bell[0]);
	(void)dv_device_take_doorbell(&qp->bell[SOFT_BELLS_BLOCK]);
}

int soft_qp_add(struct dv_device *nic, struct dv_qp *qp)
{
	if (nic->qp_count == nic->qp_room) {
		unsigned room = nic->qp_room ? 2 * nic->qp_room : 16;
		struct dv_qp **grown = realloc(nic->qps, room * sizeof(struct dv_qp *));

		if (!grown)
			return -ENOMEM;
		nic->qps = grown;
		nic->qp_room = room;
	}
	qp->qpn = take_number(nic);
	if (!qp->qpn)
		return -ENOSPC;
	take_bell(nic, qp);
	nic->qps[nic->qp_count++] = qp;
	nic->qp_slots[qp->qpn % SOFT_QPS_MAX] = qp;
	return 0;
}

int soft_qp_create(struct dv_device *nic, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq)
{
	struct dv_qp *qp;
	int rc;

	if (depth == 0 || depth > SOFT_QP_DEPTH_MAX)
		return dv_fail(-EINVAL,
			"%s: creating a queue pair of %u blocks: %m; allowed are 1 to %u",
			nic->name, depth, SOFT_QP_DEPTH_MAX);
	/* aligned, so that the struct dv_sq in it occupies one cache line */
	qp = aligned_alloc(alignof(struct dv_qp), sizeof(*qp));
	if (!qp)
		return dv_fail(
			-ENOMEM, "%s: creating a queue pair of %u blocks: %m", nic->name, depth);
	memset(qp, 0, sizeof(*qp));
	qp->ops = nic->ops;
	qp->nic = nic;
	if (nic->tcp && getrandom(qp->token, DV_TOKEN_BYTES, 0) != DV_TOKEN_BYTES) {
		free(qp);
		return dv_fail(-EIO, "%s: no random bytes for a queue pair: %m", nic->name);
	}
	qp->wqe_cnt = round_up_power(depth);
	qp->buf = zeroed_pages((size_t)qp->wqe_cnt * DV_WQEBB);
	qp->record = zeroed_pages(2 * sizeof(__be32));
	rc = qp->buf && qp->record ? 0 : -ENOMEM;
	soft_lock(nic);
	qp->cq = cq->handle;
	if (!rc && nic->cut)
		rc = -ENODEV;
	if (!rc && (!qp->cq || qp->cq->nic != nic))
		rc = -EINVAL;
	if (!rc)
		rc = soft_qp_add(nic, qp);
	if (!rc)
		soft_qp_zero(qp);
	soft_unlock(nic);
	if (rc) {
		free_qp(qp);
		return dv_fail(rc, "%s: creating a queue pair of %u blocks: %m", nic->name, depth);
	}
	*ret_qp = qp;
	*ret_sq = &qp->sq;
	return 0;
}

struct dv_qp *soft_qp_find(struct dv_device *nic, uint32_t qpn)
{
	struct dv_qp *qp = nic->qp_slots[qpn % SOFT_QPS_MAX];

	return qp && qp->qpn == qpn ? qp : NULL;
}

void soft_qp_address(const struct dv_qp *qp, struct dv_address *ret_address)
{
	const struct dv_device *nic = qp->nic;

	*ret_address = (struct dv_address){.version = 1,
		.kind = 3,
		.mtu = 5, /* 4096 bytes, as a code of IBTA PortInfo */
		.reads = SOFT_READS_MAX,
		.qpn = qp->qpn,
		.psn = qp->psn,
		.tcp_port = nic->tcp_port};
	memcpy(ret_address->gid, nic->gid, sizeof(nic->gid));
	memcpy(ret_address->token, qp->token, DV_TOKEN_BYTES);
}

static void show(struct dv_qp *qp)
{
	struct soft_export_qp *entry = &qp->nic->table->qps[qp->qpn % SOFT_QPS_MAX];

	soft_world_write();
	entry->peer_qpn = qp->remote.qpn;
	entry->peer_psn = qp->remote.psn;
	entry->psn = qp->psn;
	memcpy(entry->token, qp->token, DV_TOKEN_BYTES);
	dv_guard_open(&entry->qpn, qp->qpn);
	soft_world_done();
}

int soft_qp_connect(struct dv_qp *qp, const struct dv_address *remote)
{
	struct dv_device *nic = qp->nic;
	int rc = 0;

	if (remote->version != 1 || remote->kind != 3 || remote->qpn == 0 ||
		remote->qpn > 0xffffff || remote->psn > 0xffffff ||
		(remote->tcp_port != 0) != nic->tcp)
		return dv_fail(-EPROTO,
			"%s: connecting queue pair 0x%x: the address (version %u, kind %u, port %u) is not a software NIC's on the %s link: %m",
			nic->name, qp->qpn, remote->version, remote->kind, remote->tcp_port,
			nic->tcp ? "tcp" : "shm");
	soft_lock(nic);
	if (nic->cut) {
		rc = dv_fail(-ENODEV, "%s: connecting queue pair 0x%x: %m", nic->name, qp->qpn);
	} else if (qp->state != SOFT_INIT) {
		rc = dv_fail(-EINVAL,
			"%s: connecting queue pair 0x%x: %m; it is already connected: create another one",
			nic->name, qp->qpn);
	} else {
		qp->remote = *remote;
		rc = soft_link_connect(qp);
	}
	if (!rc) {
		qp->state = SOFT_RTS;
		show(qp);
	}
	soft_unlock(nic);
	return rc;
}

uint64_t soft_qp_ack_ns(const struct dv_qp *qp)
{
	return qp->nic->ack_ns;
}

int soft_qp_error(struct dv_qp *qp)
{
	bool refused;

	soft_lock(qp->nic);
	refused = qp->nic->cut || qp->nic->fault.dead & DV_DEAD_ERROR;
	if (!refused)
		soft_flush(qp);
	soft_unlock(qp->nic);
	if (refused)
		return dv_fail(qp->nic->cut ? -ENODEV : -EIO,
			"%s: setting queue pair 0x%x to error: %m", qp->nic->name, qp->qpn);
	return 0;
}

static void forget_busy(struct dv_device *nic, struct dv_qp *qp)
{
	struct dv_qp *before = NULL;

	for (struct dv_qp *at = nic->busy_first; at; before = at, at = at->busy_next) {
		if (at != qp)
			continue;
		*(before ? &before->busy_next : &nic->busy_first) = qp->busy_next;
		if (nic->busy_last == qp)
			nic->busy_last = before;
		dv_hint_store(&nic->busy_count, nic->busy_count - 1);
		return;
	}
}

/* Removes the QP from the NIC in any state; its WQEs get no completions. Under nic->lock. */
static void take_away(struct dv_qp *qp)
{
	struct dv_device *nic = qp->nic;

	if (qp->killed)
		return;
	qp->killed = true;
	qp->cq = NULL; /* from here on no CQE of this QP is written */
	soft_flush(qp);
	soft_link_disconnect(qp);
	nic->qps_gone =
		true; /* soft_link_disconnect() or the next event wakes the service thread */
	nic->qp_slots[qp->qpn % SOFT_QPS_MAX] = NULL;
	for (unsigned i = 0; i < nic->qp_count; i++)
		if (nic->qps[i] == qp)
			nic->qps[i] = nic->qps[--nic->qp_count];
	forget_busy(nic, qp);
	give_bell(nic, qp);
}

int soft_qp_kill(struct dv_qp *qp)
{
	bool refused;

	soft_lock(qp->nic);
	/* A QP of the hooks is always removed: the destroy command is refused, but closing the
	 * device removes the QP. */
	refused = qp->nic->fault.dead & DV_DEAD_KILL && !qp->killed && !qp->foreign;
	if (!refused)
		take_away(qp);
	soft_unlock(qp->nic);
	if (refused)
		return dv_fail(-EIO, "%s: destroying queue pair 0x%x: %m", qp->nic->name, qp->qpn);
	return 0;
}

/* Destroys a QP. If the device refuses to destroy it, the QP's memory is not freed. */
void soft_qp_destroy(struct dv_qp *qp)
{
	if (soft_qp_kill(qp) == 0)
		free_qp(qp);
}

int soft_cut(struct dv_device *nic)
{
	bool refused;

	soft_lock(nic);
	refused = nic->fault.dead & DV_DEAD_CUT && !nic->cut;
	if (!refused) {
		nic->cut = true;
		while (nic->qp_count)
			take_away(nic->qps[0]);
	}
	soft_unlock(nic);
	if (refused)
		return dv_fail(-EIO, "closing %s: %m", nic->name);
	return 0;
}
