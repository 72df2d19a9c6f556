/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the answers of the rails and of the control plane out of the rings. The cookie of each
 * answer is checked and gives its request; the answer goes to the page's next step. An answer
 * without a request in flight is ignored.
 */
#include "engine/client/client.h"

#define EXPECT_AHEAD 6

static struct request *request_of(struct pc_channel *ch, uint64_t cookie, uint32_t *ret_index)
{
	uint32_t index = (uint32_t)cookie;
	struct request *r;

	if (index >= ch->requests)
		return NULL;
	r = &ch->request[index];
	if (r->kind == REQUEST_FREE || r->generation != (uint32_t)(cookie >> 32))
		return NULL;
	*ret_index = index;
	return r;
}

/*
 * Prefetches, for the completion `i` of the ring, the bucket that its READ delivered: reap() calls
 * this EXPECT_AHEAD completions before it searches that bucket, so that the cache miss overlaps.
 */
static void expect(const struct pc_channel *ch, const struct ring_consumer *ring, uint32_t i)
{
	const struct op_done *done = ring_slot_old(ring, i);
	uint32_t index = (uint32_t)done->cookie;

	if (index < ch->requests && ch->request[index].kind == REQUEST_LOOK)
		__builtin_prefetch(
			ch->staging.base + ch->request[index].hold * sizeof(struct bucket));
}

static void let_go(struct pc_channel *ch, const struct request *r)
{
	if (r->kind == REQUEST_LOOK || r->kind == REQUEST_HEAD)
		scratch_free(&ch->staging, r->hold);
	else if (r->hold == STAGING_LARGE)
		ch->staging.large_busy = false;
	else if (r->hold != CLIENT_NONE)
		staging_free(&ch->staging, r->hold);
}

static void rail_done(
	struct pc_channel *ch, uint32_t rail, const struct op_done *done, uint64_t now_ns)
{
	uint32_t status = done->status < OP_STATUS_COUNT ? done->status : OP_NIC_ERROR;
	uint32_t index;
	struct request *r = request_of(ch, done->cookie, &index);
	struct page_head head;
	struct bucket bucket;

	if (!r || r->rail != rail || r->kind >= REQUEST_CREDIT)
		return;
	ch->moves++;
	ch->rail[rail].in_flight--;
	ch->no_room = false;
	if (r->bytes)
		stripe_take(ch, rail, r->bytes, now_ns);
	if (status == OP_NIC_ERROR || status == OP_PEER_DOWN)
		stripe_rest(ch, rail, now_ns);
	if (status == OP_PEER_DOWN)
		map_refresh(ch);
	if (r->batch && r->kind == REQUEST_LOOK) {
		memcpy(&bucket, ch->staging.base + r->hold * sizeof(bucket), sizeof(bucket));
		lookup_answer(ch, r->batch, r->page, &bucket, status, now_ns);
	} else if (r->batch && r->kind == REQUEST_HEAD) {
		memcpy(&head, ch->staging.base + r->hold * sizeof(bucket), sizeof(head));
		head_answer(ch, r->batch, r->page, &head, status, now_ns);
	} else if (r->batch) {
		fetch_answer(ch, r, status, now_ns);
	}
	let_go(ch, r);
	request_free(ch, index);
}

static void ctl_done(struct pc_channel *ch, const struct ctl_done *done, uint64_t now_ns)
{
	static const uint8_t kind_of[] = {[REQUEST_CREDIT] = CTL_CREDIT,
		[REQUEST_PUBLISH] = CTL_PUBLISH,
		[REQUEST_REMOVE] = CTL_REMOVE,
		[REQUEST_DISK] = CTL_PROMOTE};
	uint32_t status = done->status < OP_STATUS_COUNT ? done->status : OP_INVALID;
	uint32_t index;
	struct request *r = request_of(ch, done->cookie, &index);

	if (!r || r->kind < REQUEST_CREDIT || done->kind != kind_of[r->kind])
		return;
	ch->moves++;
	ch->ctl_awaited--;
	if (r->kind == REQUEST_CREDIT)
		credit_answer(ch, r, done, now_ns);
	else if (r->batch && r->kind == REQUEST_PUBLISH)
		set_answer(ch, r->batch, r->page, status, now_ns);
	else if (r->batch && r->kind == REQUEST_DISK)
		disk_answer(ch, r->batch, r->page, done, status, now_ns);
	else if (r->batch)
		remove_answer(ch, r->batch, r->page, status);
	if (--r->left == 0)
		request_free(ch, index);
}

uint32_t reap(struct pc_channel *ch, uint64_t now_ns)
{
	uint32_t work = 0;
	int32_t n;

	for (uint32_t rail = 0; rail < ch->rails; rail++) {
		struct ring_consumer *ring = &ch->rail[rail].done;

		n = ring_ready(ring);
		for (int32_t i = 0; i < n; i++) {
			struct op_done done;

			if (i + EXPECT_AHEAD < n)
				expect(ch, ring, (uint32_t)i + EXPECT_AHEAD);
			memcpy(&done, ring_slot_old(ring, (uint32_t)i), sizeof(done));
			rail_done(ch, rail, &done, now_ns);
		}
		if (n > 0)
			ring_release(ring, (uint32_t)n);
		work += n > 0;
	}
	n = ring_ready(&ch->ctl_done);
	for (int32_t i = 0; i < n; i++) {
		struct ctl_done done;

		memcpy(&done, ring_slot_old(&ch->ctl_done, (uint32_t)i), sizeof(done));
		ctl_done(ch, &done, now_ns);
	}
	if (n > 0)
		ring_release(&ch->ctl_done, (uint32_t)n);
	return work + (n > 0);
}
