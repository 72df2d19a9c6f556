/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of wqe.h that are not inline: the queue pair of a READ if the last one is not good
 * enough, the extents of a destination, and the end of posted WQEs. Poll core only; the hot path.
 */
#include "engine/rail/wqe.h"

/* ---- the queue pair of a READ, and its destination ------------------------------------------ */

/*
 * The QP with the fewest bytes of long READs; the next long READs go there. The last QP is kept for
 * small READs if there are several. NULL: none has room.
 */
struct conn_qp *conn_pick_bulk(struct conn *conn, uint32_t room)
{
	unsigned qps = conn->handle->qps > 1 ? conn->handle->qps - 1 : 1;
	struct conn_qp *best = NULL;

	for (unsigned i = 0; i < qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		if ((!best || qp->bulk_bytes < best->bulk_bytes) && qp_has_room(qp, room))
			best = qp;
	}
	conn->bulk = best;
	return best;
}

/*
 * The QP with the fewest outstanding WQEBBs among those without long READs; the next small READs
 * go there. NULL: it has no room.
 */
struct conn_qp *conn_pick_shortest(struct conn *conn, uint32_t room)
{
	struct conn_qp *best = &conn->qp[conn->handle->qps - 1];

	for (unsigned i = 0; i + 1 < conn->handle->qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		if (!qp->bulk_bytes && qp_outstanding(qp) < qp_outstanding(best))
			best = qp;
	}
	conn->small = best;
	return qp_has_room(best, room) ? best : NULL;
}

/*
 * Not inline: inlining would take registers from the common path without extents.
 */
__attribute__((noinline)) uint32_t region_cut_at_extent(
	const struct rail *rail, uint32_t id, uint64_t at, uint32_t bytes, uint32_t *ret_lkey)
{
	unsigned shift = rail->region[id].extent_shift;
	uint64_t left = (1ull << shift) - (at & ((1ull << shift) - 1));

	*ret_lkey = rail->extent_lkey[id][at >> shift];
	return bytes < left ? bytes : (uint32_t)left;
}

/* ---- retiring: the WQEs of a QP -------------------------------------------------------------- */

void wqes_retire(struct rail *rail, struct conn_qp *qp, uint32_t last, uint32_t end,
	uint32_t earlier, uint32_t syndrome)
{
	struct conn *conn = qp->conn;
	uint32_t n = 0, bytes = 0, at = qp->sq->ci, good = syndrome ? last : end;

	if (unlikely(conn->stalled))
		conn_unstall(rail, conn, syndrome);
	while (at != end) {
		struct wqe *wqe = &qp->wqe[at & (QP_DEPTH - 1)];
		uint32_t of_this = at == last ? syndrome : earlier;

		if (wqe->kind == WQE_LONE) {
			at += wqe->blocks;
			n++;
			bytes += wqe_retire_one(qp, wqe);
			lone_retire(rail, &rail->run[wqe->run], of_this);
			continue;
		}
		if (likely(!of_this)) {
			struct retired r = run_retire(rail, qp, at, good);

			at = r.at;
			bytes += r.bytes;
			n += r.n;
			continue;
		}
		at += wqe->blocks;
		n += wqe_is_series(wqe) ? wqe->blocks : 1;
		bytes += wqe_retire(qp, wqe);
		run_retire_failed(rail, wqe, syndrome_status(of_this));
	}
	retired_count(rail, qp, (struct retired){at, bytes, n}, earlier || syndrome);
}
