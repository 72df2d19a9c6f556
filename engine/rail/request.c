/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single ops: one page or one stretch of bytes each, from the entry in the client's ring to the
 * answer. A client sends pages that fit no run, and long pages in slices, this way; most pages take
 * the other one, run.c. An op and its segments are copied once, and the copy is validated, because
 * the client may write its ring at any time. Every request is answered exactly once, in
 * request_end().
 *
 * Two loops that meet runs as well are here, because a single op passes them without a call:
 * rail_take() over the clients' rings, and wqes_retire() over the records of a QP. Poll core only;
 * the hot path.
 */
#include "engine/abi/lease.h"
#include "engine/rail/wqe.h"

/* Short single pages are leased while a connection has at most this many requests: a lone batch. */
#define LEASE_REQUESTS 32u

/* ---- segment blocks, and the regions that they name ----------------------------------------- */

/*
 * Copies the segments of request->op from the op ring, starting with entry `from` after the ring's
 * head. False: too few segment blocks are free now; nothing was copied.
 */
__attribute__((noinline)) static bool request_copy_segments(
	struct rail *rail, struct request *request, const struct ring_consumer *ops, uint32_t from)
{
	uint32_t blocks = op_slots(request->op.segments) - 1;
	uint16_t at = request->number;

	if (blocks > rail->blocks_free + 1)
		return false;
	request_cursor_start(request);
	for (uint32_t i = 0; i < blocks; i++) {
		if (i > 0) {
			uint16_t next = rail->block_stack[--rail->blocks_free];

			rail->block_next[at] = next;
			at = next;
		}
		memcpy(&rail->block[at], ring_slot_old(ops, from + i), sizeof(rail->block[at]));
	}
	return true;
}

/*
 * Adds `change`, 1 or -1, to `users` of the regions that the request's segments name: once for
 * segments that follow each other in one region, and once if one_region.
 */
static void request_count_regions(struct rail *rail, const struct request *request, int change)
{
	uint32_t id = UINT32_MAX, segments = request->one_region ? 1 : request->op.segments;
	uint16_t block = request->number;

	for (uint32_t i = 0; i < segments; i++) {
		uint32_t next;

		if (i && i % REQUEST_SEGMENTS == 0)
			block = rail->block_next[block];
		next = rail->block[block].segment[i % REQUEST_SEGMENTS].region;
		if (next == id)
			continue;
		id = next;
		if (change > 0)
			rail->region[id].users++;
		else
			region_release(rail, id);
	}
}

/*
 * Frees the request and the segment blocks of its op.segments segments, all of which must have been
 * copied.
 */
static void request_free(struct rail *rail, struct request *request)
{
	uint16_t block = request->number;

	/* op.segments is the number of segments that request_copy_segments() copied, or 0 if the
	 * caller refused the op. */
	for (uint32_t i = REQUEST_SEGMENTS; i < request->op.segments; i += REQUEST_SEGMENTS) {
		block = rail->block_next[block];
		rail->block_stack[rail->blocks_free++] = block;
	}
	rail->request_stack[rail->requests_free++] = request->number;
}

/* ---- validation of an op -------------------------------------------------------------------- */

/* Validates an op without looking at its segments. */
static bool op_possible(const struct op *op)
{
	if (op->kind != OP_PAGE || op->segments < 1 || op->segments > SEGMENTS_MAX ||
		op->peer >= NODES_MAX)
		return false;
	if (op->length < 1 || op->length > PAGE_BYTES_MAX)
		return false;
	return op->region < REGION_POOL_0 + RAILS_MAX && op->offset % PAGE_UNIT == 0 &&
	       op->page_bytes <= PAGE_BYTES_MAX &&
	       (uint64_t)op->slice * SLICE_BYTES + op->length <= op->page_bytes;
}

/* The region that a segment names; NULL: it is none of the channel's session. */
static const struct region_slot *segment_region(
	const struct rail *rail, const struct rail_channel *channel, uint32_t id)
{
	if (id >= REGIONS_MAX || rail->region[id].session != channel->session)
		return NULL;
	return &rail->region[id];
}

/* Validates a segment: is it in this region? */
static inline bool segment_possible(const struct region_slot *region, const struct op_segment *s)
{
	return s->length >= 1 && s->offset <= region->length &&
	       s->length <= region->length - s->offset;
}

/*
 * Validates the segments of an op of several, whose lengths must add up to that of the op. Regions
 * are looked up where they change.
 */
__attribute__((noinline)) static bool request_segments_possible(
	const struct rail *rail, const struct rail_channel *channel, struct request *request)
{
	const struct region_slot *region = NULL;
	uint32_t id = UINT32_MAX, regions = 0, left = request->op.segments;
	uint16_t block = request->number;
	uint64_t sum = 0;

	for (;;) {
		const struct op_segment *s = rail->block[block].segment,
					*end = s + REQUEST_SEGMENTS;

		for (end = left < REQUEST_SEGMENTS ? s + left : end; s != end; s++) {
			if (unlikely(s->region != id)) {
				id = s->region;
				regions++;
				region = segment_region(rail, channel, id);
				if (!region)
					return false;
			}
			if (!segment_possible(region, s))
				return false;
			sum += s->length;
		}
		if (left <= REQUEST_SEGMENTS)
			break;
		left -= REQUEST_SEGMENTS;
		block = rail->block_next[block];
	}
	request->one_region = regions == 1;
	return sum == request->op.length;
}

/* Validates an op and all its segments. */
static bool request_possible(
	const struct rail *rail, const struct rail_channel *channel, struct request *request)
{
	const struct op_segment *s = &rail->block[request->number].segment[0];
	const struct region_slot *region;

	if (!op_possible(&request->op))
		return false;
	if (unlikely(request->op.segments > 1))
		return request_segments_possible(rail, channel, request);
	/* its length is the op's length: see op_decode() */
	region = segment_region(rail, channel, s->region);
	return region && segment_possible(region, s);
}

/* ---- the route: the connection of the peer, or the list of those that wait for one ---------- */

/* True if the bytes of `op` and its page head lie in regions that the peer exported. */
static bool conn_has_place(const struct conn *conn, const struct op *op)
{
	const struct rail_remote *remote = &conn->handle->region[op->region];
	const struct rail_remote *heads = &conn->handle->region[REGION_HEADS_0 + op->region];
	uint64_t start = op_start(op);

	if (op->offset > remote->length || start > remote->length ||
		op->length > remote->length - start)
		return false;
	return op->offset / PAGE_UNIT < heads->length / sizeof(struct page_head);
}

void request_route(struct rail *rail, struct request *request)
{
	struct peer_slot *slot = peer_slot_of(rail, request->op.peer);
	struct conn *conn = slot->conn;

	if (likely(conn && conn->handle->ref == request->op.peer_ref)) {
		if (unlikely(conn->state != CONN_OPEN ||
			     (conn->stalled &&
				     (rail->parked >= RAIL_PARKED_MAX || conn_full(rail, conn))))) {
			request_end(rail, request, OP_PEER_DOWN);
		} else if (unlikely(!conn_has_place(conn, &request->op))) {
			request_end(rail, request, OP_INVALID);
		} else {
			request->conn = conn;
			conn->requests++;
			conn->taken_bytes += request->op.length;
			if (unlikely(conn->stalled))
				rail->parked++;
			else
				rail->taken_bytes += request->op.length;
			conn_queue(rail, conn, request);
		}
		return;
	}
	if (rail->parked >= RAIL_PARKED_MAX) {
		request_end(rail, request, OP_PEER_DOWN);
		return;
	}
	rail->parked++;
	list_append(&slot->parked, &request->pending);
	peer_want(rail, slot, request->op.peer, request->op.peer_ref);
}

/* ---- taking --------------------------------------------------------------------------------- */

/*
 * Counts the region of a request with one segment; decides whether each slice needs one SGE.
 */
static void request_hold_region(struct rail *rail, struct request *request)
{
	uint16_t id = rail->block[request->number].segment[0].region;
	struct region_slot *region = &rail->region[id];

	region->users++;
	request->one_sge = region->extent_shift == 0;
	if (unlikely(!request->one_sge))
		request_cursor_start(request);
	request->counted = true;
}

/* Starts a request whose op leaves the ring; from here on it is answered exactly once. */
static void request_start(
	struct rail *rail, struct rail_channel *channel, struct request *request, bool possible)
{
	uint64_t now = rail_now(rail);

	PROBE_TAKE(channel->id, request->op.cookie, rail->options.index, request->op.peer,
		request->op.length);
	channel->in_flight++;
	shm_store(&rail->in_flight, rail->in_flight + 1);
	request->channel = (uint16_t)channel->id;
	if (unlikely(rail->stopping)) {
		request_end(rail, request, OP_CANCELLED);
		return;
	}
	if (unlikely(!possible)) {
		request_end(rail, request, OP_INVALID);
		return;
	}
	if (unlikely(request->op.deadline_ns <= now)) {
		request_end(rail, request, OP_TIMEOUT);
		return;
	}
	if (likely(request->op.segments == 1)) {
		request_hold_region(rail, request);
	} else {
		request->one_sge = false;
		request->counted = true;
		request_count_regions(rail, request, 1);
	}
	request->deadline_ns = request->op.deadline_ns;
	if (request->deadline_ns - now > REQUEST_DEADLINE_MAX_NS)
		request->deadline_ns = now + REQUEST_DEADLINE_MAX_NS;
	if (request->deadline_ns < rail->nearest_ns)
		rail->nearest_ns = request->deadline_ns;
	rail->live[request->number] = true;
	request_route(rail, request);
}

/*
 * True if the op must stay in its ring because the connection of its peer holds its share of the
 * requests (conn_full()). It stays until a request of the connection ends, or until the connection
 * counts as stalled; then request_route() refuses it. A rail that stops takes every op, to cancel
 * it. The op is not validated yet.
 */
static bool request_must_wait(const struct rail *rail, const struct op *op)
{
	const struct conn *conn;

	if (likely(rail->requests_free >= RAIL_REQUESTS_PLENTY) || rail->stopping ||
		op->peer >= NODES_MAX)
		return false;
	conn = rail->peer[op->peer].conn;
	return conn && conn->handle->ref == op->peer_ref && conn->state == CONN_OPEN &&
	       !conn->stalled && conn_full(rail, conn);
}

/*
 * Takes the op that starts `at` entries after the head of the op ring, where `ready` entries are
 * filled; `slot` is the copy of its first entry. Returns the number of entries it occupies; 0: it
 * stays in the ring.
 */
static uint32_t request_take(struct rail *rail, struct rail_channel *channel,
	const struct op_slot *slot, uint32_t at, uint32_t ready)
{
	struct request *request = request_new(rail);
	uint32_t slots;
	bool possible;

	op_decode(slot, rail_now(rail), &request->op, &rail->block[request->number].segment[0]);
	slots = op_slots(request->op.segments);
	if (unlikely(slots > ready) && slots > (uint32_t)ring_ready_now(&channel->ops) - at) {
		/* The library publishes whole ops, so a partial one is that of a broken client. */
		request->op.segments = 0;
		request_free(rail, request);
		channel_break(rail, channel);
		return 0;
	}
	if (unlikely(request->op.segments > SEGMENTS_MAX))
		request->op.segments = 0; /* refused by request_possible(); entries are skipped */
	/* An op with one segment contains it; the segments of other ops are copied from the
	 * ring. */
	if (unlikely(request_must_wait(rail, &request->op)) ||
		(request->op.segments > 1 &&
			unlikely(!request_copy_segments(rail, request, &channel->ops, at + 1)))) {
		request->op.segments = 0;
		request_free(rail, request);
		rail->blocked = true;
		return 0;
	}
	possible = request_possible(rail, channel, request);
	/* The op may name a region whose RAIL_REGION_ADD is in the inbox, where it arrived
	 * before the op did. Leave the op in its ring until a step has executed the command. */
	if (unlikely(!possible && ring_ready(&rail->inbox.command_in) > 0)) {
		request_free(rail, request);
		return 0;
	}
	request_start(rail, channel, request, possible);
	return slots;
}

/* ---- taking: client rings -> runs and requests ---------------------------------------------- */

/*
 * How many more ops may be taken from this channel: limited by free entries of the done ring.
 * Breaks the channel if the client's index of the done ring is impossible.
 */
static uint32_t channel_take_limit(struct rail *rail, struct channel_slot *slot)
{
	struct rail_channel *channel = slot->channel;
	uint32_t owed = channel->in_flight + slot->fresh;
	uint32_t limit = RAIL_TAKE_BURST;
	/* Reserve room for the completion of every op taken, so that a slow client cannot block
	 * the rail. */
	int32_t room = ring_room(&channel->done, owed + limit);

	if (unlikely(room < 0)) {
		channel_break(rail, channel);
		return 0;
	}
	if (unlikely((uint32_t)room < owed + limit))
		limit = (uint32_t)room > owed ? (uint32_t)room - owed : 0;
	return limit;
}

/*
 * Copies the ring entry `at` after the head once, and takes the op or run that starts there.
 * Returns as request_take(), and how many pages it has.
 */
static uint32_t channel_take_one(struct rail *rail, struct rail_channel *channel, uint32_t at,
	uint32_t ready, uint32_t *ret_pages)
{
	union {
		struct op_slot op;
		struct run_line run;
	} first;

	memcpy(&first, ring_slot_old(&channel->ops, at), sizeof(first));
	if (first.op.kind == OP_RUN || first.op.kind == OP_LOOKUP)
		return run_take(rail, channel, &first.run, at, ready, ret_pages);
	if (unlikely(!rail->requests_free)) {
		rail->blocked = true;
		return 0;
	}
	*ret_pages = 1;
	return request_take(rail, channel, &first.op, at, ready);
}

/*
 * Is the budget of bytes taken used up for this channel? One with nothing in flight may exceed it
 * by one op, so that the lots of its run take turns with those of a long run of another channel.
 */
static inline bool channel_took_enough(const struct rail *rail, const struct rail_channel *channel)
{
	return rail->taken_bytes >= RAIL_TAKEN_BYTES && channel->in_flight;
}

static unsigned channel_take(struct rail *rail, struct channel_slot *slot)
{
	struct rail_channel *channel = slot->channel;
	uint32_t limit, slots, ready, at = 0, pages, taken = 0;
	unsigned n = 0;

	if (unlikely(channel->stopping || channel->broken))
		return 0;
	ready = (uint32_t)ring_ready(&channel->ops);
	if (ready == 0)
		return 0;
	limit = channel_took_enough(rail, channel) ? 0 : channel_take_limit(rail, slot);
	while (taken < RAIL_TAKE_BURST) {
		/* The entries of the ops taken so far are not released yet; look for filled
		 * entries behind them. */
		if (at >= ready)
			ready = (uint32_t)ring_look(&channel->ops, RING_LOOK);
		if (at >= ready)
			break;
		if (n == limit || channel_took_enough(rail, channel)) {
			rail->blocked = true;
			break;
		}
		slots = channel_take_one(rail, channel, at, ready - at, &pages);
		if (!slots)
			break;
		at += slots;
		taken += pages; /* may be 0 of a refused run; `limit` counts ops */
		n++;
	}
	/* The ops were copied, so the client may overwrite their ring entries. */
	if (n)
		ring_release(&channel->ops, at);
	return n;
}

unsigned rail_take(struct rail *rail)
{
	uint32_t channels = rail->channels;
	uint32_t at = rail->first;
	unsigned n = 0;

	rail->blocked = false;
	for (uint32_t i = 0; i < channels; i++) {
		at = at + 1 < channels ? at + 1 : 0;
		n += channel_take(rail, &rail->channel[rail->turn[at]]);
	}
	if (channels)
		rail->first = rail->first + 1 < channels ? rail->first + 1 : 0;
	if (n)
		rail_count(rail, COUNTER_ops_taken, n);
	return n;
}

/* ---- the queue pair of a READ, for runs as well: see wqe.h ---------------------------------- */

/*
 * The QP with the fewest bytes of long READs; the next long READs go there. The last QP is kept for
 * small READs if there are several. NULL: none has room.
 */
struct conn_qp *conn_pick_bulk(struct conn *conn)
{
	unsigned qps = conn->handle->qps > 1 ? conn->handle->qps - 1 : 1;
	struct conn_qp *best = NULL;

	for (unsigned i = 0; i < qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		if ((!best || qp->bulk_bytes < best->bulk_bytes) && qp_has_room(qp))
			best = qp;
	}
	conn->bulk = best;
	return best;
}

/*
 * The QP with the fewest outstanding WQEBBs among those without long READs; the next small READs
 * go there. NULL: it has no room.
 */
struct conn_qp *conn_pick_shortest(struct conn *conn)
{
	struct conn_qp *best = &conn->qp[conn->handle->qps - 1];

	for (unsigned i = 0; i + 1 < conn->handle->qps; i++) {
		struct conn_qp *qp = &conn->qp[i];

		if (!qp->bulk_bytes && qp_outstanding(qp) < qp_outstanding(best))
			best = qp;
	}
	conn->small = best;
	return qp_has_room(best) ? best : NULL;
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

/* ---- posting: slices of up to SLICE_BYTES --------------------------------------------------- */

/*
 * Fills SGEs with the next destination bytes of the request, at most `limit` and at most
 * DV_SGES_MAX SGEs, and advances its cursor; behind the last byte it points anywhere. Returns the
 * number of bytes. Not inline: the loop keeps its state in registers.
 */
__attribute__((noinline)) static uint32_t request_gather(const struct rail *rail,
	struct request *request, uint32_t limit, struct dv_sge *ret_sge, unsigned *ret_sges)
{
	const struct op_segment *block = rail->block[request->block].segment;
	const struct op_segment *s = block + request->segment;
	uint32_t wanted = limit, done = request->segment_done, id = UINT32_MAX, bytes, lkey;
	const struct region_slot *region = NULL;
	struct sges sges = sges_begin(ret_sge);

	do {
		if (unlikely(s->region != id)) {
			id = s->region;
			region = &rail->region[id];
		}
		bytes = s->length - done < limit ? s->length - done : limit;
		lkey = region->lkey;
		if (unlikely(region->extent_shift))
			bytes = region_cut_at_extent(rail, id, s->offset + done, bytes, &lkey);
		if (!sges_add(&sges, region->base + s->offset + done, bytes, lkey))
			break;
		limit -= bytes;
		done += bytes;
		if (unlikely(done < s->length))
			continue;
		done = 0;
		if (++s == block + REQUEST_SEGMENTS) {
			request->block = rail->block_next[request->block];
			s = block = rail->block[request->block].segment;
		}
	} while (limit);
	request->segment = (uint8_t)(s - block);
	request->segment_done = done;
	request->posted += wanted - limit;
	*ret_sges = (unsigned)(sges.next - ret_sge);
	return wanted - limit;
}

/*
 * request_gather() for a request with one segment in one MR, which most pages have: `posted` is its
 * only cursor.
 */
static void request_gather_one(const struct rail *rail, struct request *request, uint32_t limit,
	struct dv_sge *ret_sge, unsigned *ret_sges)
{
	const struct op_segment *s = &rail->block[request->number].segment[0];
	const struct region_slot *region = &rail->region[s->region];

	ret_sge->address = region->base + s->offset + request->posted;
	ret_sge->bytes = limit;
	ret_sge->lkey = region->lkey;
	request->posted += limit;
	*ret_sges = 1;
}

static inline void wqe_set_request(struct wqe *wqe, const struct request *request)
{
	wqe->request = request->number;
	wqe->kind = WQE_REQUEST;
}

/*
 * Posts the request's next slice if it fits the rail's in-flight budget (RAIL_IN_FLIGHT_BYTES).
 * False: it does not fit now. Cannot starve: a rail with nothing posted always accepts one slice.
 */
static bool request_post_slice(struct rail *rail, struct conn *conn, struct request *request)
{
	uint32_t left = request->op.length - request->posted;
	uint32_t limit = left < SLICE_BYTES ? left : SLICE_BYTES;
	uint64_t offset = op_start(&request->op) + request->posted;
	struct dv_sge sge[DV_SGES_MAX];
	struct conn_qp *qp;
	unsigned sges;

	if (rail->posted_bytes && rail->posted_bytes + limit > RAIL_IN_FLIGHT_BYTES)
		return false;
	qp = conn_pick(conn, limit);
	if (!qp)
		return false;
	if (conn->limbo_ns && !request->posted)
		rail->request_t0_ns[request->number] = rail_t0(rail);
	if (likely(request->one_sge))
		request_gather_one(rail, request, limit, sge, &sges);
	else
		limit = request_gather(rail, request, limit, sge, &sges);
	wqe_set_request(wqe_post(rail, qp, &conn->handle->region[request->op.region], offset, sge,
				sges, limit, RAIL_SIGNAL_BYTES),
		request);
	request->outstanding++;
	PROBE_POST(request->channel, request->op.cookie, rail->options.index, qp->sq->qpn, limit);
	return true;
}

/* ---- posting: page heads, behind the payload (lease) or after its CQEs (tail) --------------- */

/* The index of the request's page in the peer's array of page heads, one per unit. */
static uint64_t request_head_unit(const struct request *request)
{
	return request->op.offset / PAGE_UNIT;
}

/*
 * The request at `at` in conn->heads if its page head fits the READ that begins with the head of
 * `first` and so far ends with `last_unit`; NULL: it does not fit.
 */
static struct request *request_head_to_add(
	const struct conn *conn, struct list *at, const struct request *first, uint64_t last_unit)
{
	struct request *request = container_of(at, struct request, pending);
	uint64_t unit;

	if (at == &conn->heads || request->op.region != first->op.region)
		return NULL;
	unit = request_head_unit(request);
	/* Unsigned arithmetic: for a unit before last_unit the difference is huge, so the head
	 * does not fit. */
	return unit - last_unit <= RAIL_HEADS_GAP &&
			       unit - request_head_unit(first) < RAIL_HEADS_SPAN
		       ? request
		       : NULL;
}

/*
 * Removes `first` from conn->heads, and the requests after it whose heads fit the same READ.
 * Returns the length of that READ in heads.
 */
static uint32_t requests_gather_heads(struct rail *rail, struct conn *conn, struct request *first)
{
	uint32_t place = first->number * RAIL_HEADS_SPAN;
	uint64_t unit = request_head_unit(first);
	struct request *request = first, *next;

	for (;;) {
		uint32_t head = place + (uint32_t)(unit - request_head_unit(first));

		next = request_head_to_add(conn, request->pending.next, first, unit);
		list_remove(&request->pending);
		/* Cleared, so that a page head left by an earlier READ cannot validate this
		 * page. */
		memset(&rail->head[head], 0, sizeof(rail->head[head]));
		request->head = head;
		request->outstanding++;
		if (!next)
			break;
		request->heads_next = next->number;
		request = next;
		unit = request_head_unit(next);
	}
	request->heads_next = REQUEST_NONE;
	return (uint32_t)(unit - request_head_unit(first)) + 1;
}

/*
 * Posts one READ for page heads that lie close together. It is posted after the CQEs of all payload
 * of all of its pages were seen, so the remote NIC samples each head after the last payload byte of
 * that page. This order proves that no overwrite had begun; neither one READ of both nor two READs
 * in flight together would guarantee it.
 */
static bool requests_post_heads_once(struct rail *rail, struct conn *conn)
{
	struct request *first = container_of(conn->heads.next, struct request, pending);
	struct conn_qp *qp = conn_pick(conn, sizeof(struct page_head));
	struct dv_sge sge = {.address = (uintptr_t)&rail->head[first->number * RAIL_HEADS_SPAN],
		.lkey = rail->heads_lkey};

	if (!qp)
		return false;
	sge.bytes = requests_gather_heads(rail, conn, first) * (uint32_t)sizeof(struct page_head);
	wqe_set_request(wqe_post(rail, qp, &conn->handle->region[REGION_HEADS_0 + first->op.region],
				request_head_unit(first) * sizeof(struct page_head), &sge, 1,
				sge.bytes, RAIL_SIGNAL_BYTES),
		first);
	PROBE_POST(first->channel, first->op.cookie, rail->options.index, qp->sq->qpn, sge.bytes);
	return true;
}

/*
 * A leased head is a READ of its own. On a connection with many short requests tail costs less,
 * because neighbouring heads share one READ, and the second round trip delays nothing: others fill
 * the time.
 */
static inline bool request_lease_pays(const struct conn *conn, const struct request *request)
{
	return request->op.length > RAIL_SMALL_BYTES || conn->requests <= LEASE_REQUESTS;
}

/*
 * With a lease, posts the READ of the request's page head together with its payload, if there is
 * room: see abi/lease.h. Without room, the page is validated by tail. Returns the number of READs.
 */
static unsigned request_post_leased_head(
	struct rail *rail, struct conn *conn, struct request *request)
{
	uint32_t at = request->number * RAIL_HEADS_SPAN;
	struct dv_sge sge = {.address = (uintptr_t)&rail->head[at],
		.bytes = sizeof(struct page_head),
		.lkey = rail->heads_lkey};
	struct conn_qp *qp;

	if (!conn->limbo_ns || !request_lease_pays(conn, request))
		return 0;
	qp = conn_pick(conn, sge.bytes);
	if (!qp)
		return 0;
	/* Cleared, so that a page head left by an earlier READ cannot validate this page. */
	memset(&rail->head[at], 0, sizeof(rail->head[at]));
	request->head = at;
	request->leased = true;
	request->outstanding++;
	wqe_set_request(
		wqe_post(rail, qp, &conn->handle->region[REGION_HEADS_0 + request->op.region],
			request_head_unit(request) * sizeof(struct page_head), &sge, 1, sge.bytes,
			RAIL_SIGNAL_BYTES),
		request);
	PROBE_POST(
		request->channel, request->op.cookie, rail->options.index, qp->sq->qpn, sge.bytes);
	return 1;
}

unsigned requests_post_heads(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && list_linked(&conn->heads) && requests_post_heads_once(rail, conn))
		n++;
	return n;
}

unsigned requests_post(struct rail *rail, struct conn *conn, unsigned burst)
{
	unsigned n = 0;

	while (n < burst && list_linked(&conn->pending)) {
		struct request *request = container_of(conn->pending.next, struct request, pending);

		if (!request_post_slice(rail, conn, request))
			break;
		n++;
		if (request->posted < request->op.length)
			continue;
		list_remove(&request->pending);
		if (n < burst)
			n += request_post_leased_head(rail, conn, request);
	}
	return n;
}

/* ---- retiring: the CQE of the last slice, and of the page head ------------------------------ */

/* Validates a page: is the page head that was read the one that the op expects? */
static bool request_head_matches(const struct rail *rail, const struct request *request)
{
	const struct op *op = &request->op;

	return page_head_is(&rail->head[request->head], &op->key, op->generation, op->page_bytes);
}

/* Retires one WQE of the request. Returns how many of its WQEs are still at the NIC. */
static uint16_t request_retire(struct request *request, uint32_t syndrome)
{
	if (unlikely(syndrome) && request->status == OP_HIT)
		request->status = (uint8_t)syndrome_status(syndrome);
	return --request->outstanding;
}

/*
 * All READs of a leased request have ended: does its head decide? A head with another generation is
 * final. One that matches proves nothing if the lease ended before these READs: then it is READ
 * again.
 */
static bool request_lease_decides(struct rail *rail, const struct request *request)
{
	if (likely(lease_valid(rail->request_t0_ns[request->number], rail_t1(rail),
		    request->conn->limbo_ns)) ||
		!request_head_matches(rail, request))
		return true;
	rail_count(rail, COUNTER_leases_expired, 1);
	return false;
}

/*
 * Retires one slice of payload, or the head of a leased request. After the last one the page head
 * decides or is to be read, or the request ends.
 */
static void request_retire_payload(struct rail *rail, struct request *request, uint32_t syndrome)
{
	if (request_retire(request, syndrome) || list_linked(&request->pending))
		return;
	if (unlikely(request->status != OP_HIT)) {
		request_end(rail, request, request->status);
	} else if (TEST_HOOK(rail->options.skip_head_check)) {
		request_end(rail, request, OP_HIT);
	} else if (request->leased && request_lease_decides(rail, request)) {
		request_end(rail, request, request_head_matches(rail, request) ? OP_HIT : OP_STALE);
	} else if (unlikely(request->conn->state != CONN_OPEN)) {
		request_end(rail, request, OP_PEER_DOWN);
	} else {
		request->stage = REQUEST_HEAD;
		conn_queue(rail, request->conn, request);
	}
}

/*
 * Retires a READ of page heads: each of its requests, from number `first` on, is validated by its
 * own head and ends.
 */
static void request_retire_heads(struct rail *rail, uint16_t first, uint32_t syndrome)
{
	for (uint16_t number = first; number != REQUEST_NONE;) {
		struct request *request = &rail->request[number];

		/* read before request_end(), which frees the request with its heads_next */
		number = request->heads_next;
		request_retire(request, syndrome);
		if (likely(request->status == OP_HIT) &&
			unlikely(!request_head_matches(rail, request)))
			request->status = OP_STALE;
		request_end(rail, request, request->status);
	}
}

/* ---- the answer ----------------------------------------------------------------------------- */

static inline void request_leave_conn(struct rail *rail, struct request *request)
{
	struct conn *conn = request->conn;

	conn->requests--;
	if (unlikely(request->expired))
		conn->expired--;
	conn->taken_bytes -= request->op.length;
	if (unlikely(conn->stalled))
		rail->parked--;
	else
		rail->taken_bytes -= request->op.length;
}

static void request_count(struct rail *rail, const struct request *request, enum op_status status)
{
	switch (status) {
	case OP_HIT:
		rail_count(rail, COUNTER_pages_read, 1);
		rail_count(rail, COUNTER_bytes_read, request->op.length);
		break;
	case OP_STALE:
		rail_count(rail, COUNTER_pages_stale, 1);
		PROBE_STALE(request->channel, request->op.cookie, rail->options.index,
			request->op.peer, request->op.offset);
		break;
	case OP_INVALID: rail_count(rail, COUNTER_ops_invalid, 1); break;
	case OP_TIMEOUT: rail_count(rail, COUNTER_reads_timed_out, 1); break;
	default: rail_count(rail, COUNTER_reads_failed, 1); break;
	}
}

/* Ends the rail's own probe READ instead of request_end(): there is no channel to answer. */
static void conn_probe_end(struct rail *rail, struct request *request, enum op_status status)
{
	struct conn *conn = request->conn;

	request_leave_conn(rail, request);
	list_remove(&request->pending);
	rail->live[request->number] = false;
	shm_store(&rail->in_flight, rail->in_flight - 1);
	request_free(rail, request);
	conn_probed(rail, conn, status);
}

void request_end(struct rail *rail, struct request *request, enum op_status status)
{
	struct channel_slot *slot = &rail->channel[request->channel];
	struct op_done done = {.cookie = request->op.cookie, .status = status};

	if (unlikely(request->channel == CHANNEL_NONE)) {
		conn_probe_end(rail, request, status);
		return;
	}
	if (likely(request->conn))
		request_leave_conn(rail, request);
	else if (list_linked(&request->pending))
		rail->parked--;
	if (unlikely(list_linked(&request->pending)))
		list_remove(&request->pending);
	rail->live[request->number] = false;
	if (likely(request->counted && request->op.segments == 1))
		region_release(rail, rail->block[request->number].segment[0].region);
	else if (request->counted)
		request_count_regions(rail, request, -1);
	request_count(rail, request, status);
	PROBE_COMPLETION(request->channel, request->op.cookie, rail->options.index, status,
		request->op.length);
	shm_store(&rail->in_flight, rail->in_flight - 1);
	channel_answer(rail, slot, &done);
	request_free(rail, request);
	if (unlikely(slot->channel->stopping))
		channel_return_if_idle(rail, slot->channel);
}

/* ---- retiring: the WQEs of a QP, of runs and requests --------------------------------------- */

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

		if (wqe->kind != WQE_REQUEST && likely(!of_this)) {
			struct retired r = run_retire(rail, qp, at, good);

			at = r.at;
			bytes += r.bytes;
			n += r.n;
			continue;
		}
		at += wqe->blocks;
		n += wqe_is_series(wqe) ? wqe->blocks : 1;
		bytes += wqe_retire(qp, wqe);
		if (wqe->kind != WQE_REQUEST)
			run_retire_failed(rail, wqe, syndrome_status(of_this));
		else if (rail->request[wqe->request].stage == REQUEST_HEAD)
			request_retire_heads(rail, wqe->request, of_this);
		else
			request_retire_payload(rail, &rail->request[wqe->request], of_this);
	}
	retired_count(rail, qp, (struct retired){at, bytes, n}, earlier || syndrome);
}
