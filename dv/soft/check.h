/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of keys, bounds and rights that every WQE passes; inline, because they are most of a
 * WQE's cost. Local keys are checked under nic->lock. An export table may belong to another
 * process, so its entries are copied before they are checked.
 */
#ifndef DV_SOFT_CHECK_H
#define DV_SOFT_CHECK_H

#include "dv/soft/soft.h"

/*
 * Returns the memory that a local segment of a WQE names, or NULL if its key, bounds or rights are
 * wrong.
 */
static inline uint8_t *soft_mr_local(struct dv_device *nic, const struct dv_sge *sge, bool write)
{
	uint32_t slot = sge->lkey >> 8;
	const struct soft_mr *mr;
	uint64_t offset;

	if (slot >= SOFT_MRS_MAX)
		return NULL;
	mr = &nic->mrs[slot];
	if (!mr->key || mr->key != sge->lkey || (write && !(mr->access & DV_LOCAL_WRITE)))
		return NULL;
	offset = sge->address - (uintptr_t)mr->base;
	if (sge->address < (uintptr_t)mr->base || offset > mr->length ||
		sge->bytes > mr->length - offset)
		return NULL;
	return mr->base + offset;
}

/*
 * Checks key, bounds and rights of a peer's request against an export table. *ret_mr: the table
 * entry.
 */
static inline enum soft_result soft_mr_range(
	const struct soft_export *table, const struct soft_ask *ask, struct soft_export_mr *ret_mr)
{
	const struct soft_export_mr *mr = &table->mrs[(ask->rkey >> 8) % SOFT_MRS_MAX];
	uint64_t offset;

	if (ask->length == 0)
		/* a request of length 0 accesses no memory: its key is not checked */
		return SOFT_DONE;
	if (ask->rkey >> 8 >= SOFT_MRS_MAX || dv_guard_load(&mr->rkey) != ask->rkey || !ask->rkey)
		return SOFT_REFUSED;
	*ret_mr = *mr;
	if (!dv_guard_held(&mr->rkey, ask->rkey))
		return SOFT_REFUSED;
	offset = ask->address - ret_mr->base;
	if (!(ret_mr->access & ask->access) || ask->address < ret_mr->base ||
		offset > ret_mr->length || ask->length > ret_mr->length - offset)
		return SOFT_REFUSED;
	return SOFT_DONE;
}

/*
 * Checks that the responder's QP exists and is connected to the requester's QP, then checks key,
 * bounds and rights of the memory.
 */
static inline enum soft_result soft_mr_check(
	const struct soft_export *table, const struct soft_ask *ask, struct soft_export_mr *ret_mr)
{
	const struct soft_export_qp *qp = &table->qps[ask->dest_qpn % SOFT_QPS_MAX];

	if (dv_guard_load(&qp->qpn) != ask->dest_qpn || qp->psn != ask->dest_psn ||
		qp->peer_qpn != ask->src_qpn || qp->peer_psn != ask->src_psn ||
		!dv_guard_held(&qp->qpn, ask->dest_qpn))
		return SOFT_RETRY;
	return soft_mr_range(table, ask, ret_mr);
}

/* ---- shm: memory of a peer on this host ---- */

static inline struct soft_mapping *soft_shm_mapping(struct dv_qp *qp, uint32_t file, bool writable)
{
	struct soft_peer *peer = qp->peer;
	unsigned *hint = &qp->mapping[file % 4];

	if (likely(*hint < peer->mapping_count && peer->mappings[*hint].file == file &&
		    peer->mappings[*hint].writable == writable))
		return &peer->mappings[*hint];
	for (unsigned i = 0; i < peer->mapping_count; i++)
		if (peer->mappings[i].file == file && peer->mappings[i].writable == writable)
			return &peer->mappings[*hint = i];
	return NULL;
}

/*
 * Finds where checked bytes are mapped in this process. The table belongs to the peer, so its
 * numbers are checked against the mapping.
 */
static inline enum soft_result soft_shm_place(struct dv_qp *qp, const struct soft_ask *ask,
	const struct soft_export_mr *mr, uint8_t **ret_at)
{
	bool writable = ask->access == DV_REMOTE_WRITE;
	struct soft_mapping *mapping = soft_shm_mapping(qp, mr->file, writable);
	uint64_t offset = mr->offset + (ask->address - mr->base);

	if (unlikely(!mapping)) {
		if (!qp->peer->want_file) {
			qp->peer->want_file = mr->file;
			qp->peer->want_write = writable;
			soft_link_wake(qp->nic);
		}
		return SOFT_UNKNOWN_FILE;
	}
	if (mapping->missing || offset > mapping->bytes || ask->length > mapping->bytes - offset)
		return SOFT_REFUSED;
	*ret_at = mapping->at + offset;
	return SOFT_DONE;
}

/*
 * Checks a request and finds where the memory it names is mapped in this process. Under nic->lock.
 */
static inline enum soft_result soft_shm_resolve(struct dv_qp *qp, const struct soft_ask *ask,
	struct soft_export_mr *ret_mr, uint8_t **ret_at)
{
	struct dv_device *nic = qp->nic;
	struct soft_peer *peer = qp->peer;
	enum soft_result result;

	if (peer->state == PEER_DEAD)
		return SOFT_DEAD;
	if (peer->state == PEER_ABSENT)
		soft_link_want(nic, peer);
	if (peer->state != PEER_UP)
		return SOFT_RETRY;
	result = soft_mr_check(peer->table, ask, ret_mr);
	if (result != SOFT_DONE || ask->length == 0)
		return result;
	if (!ret_mr->file) {
		soft_blame(nic, &nic->stats.unmappable,
			"rkey 0x%x was registered without a memfd: other processes cannot reach it; register it with one",
			ask->rkey);
		return SOFT_REFUSED;
	}
	return soft_shm_place(qp, ask, ret_mr, ret_at);
}

#endif
