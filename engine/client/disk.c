/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk of this host. A key for which the directory has no location may be on it: the engine
 * looks for the page and, for a get, reads it into a pool, from which it is then copied like any
 * page of this host. Only if the engine has a disk in service; once for each page. Channel thread.
 */
#include "engine/client/client.h"

bool disk_begin(struct pc_channel *ch, struct pc_batch *b, uint32_t i)
{
	struct page_work *p = &b->work[i];

	if (p->disk != DISK_UNASKED || !shm_load(&ch->session->status->disk))
		return false;
	p->disk = DISK_ASKED;
	page_queue(b, i, PAGE_DISK);
	return true;
}

void disk_step(struct pc_channel *ch, struct pc_batch *b)
{
	uint32_t i;

	while ((i = page_unqueue(b, PAGE_DISK)) != CLIENT_NONE) {
		struct ctl_op op = {.kind = CTL_PROMOTE,
			.count = b->kind == BATCH_EXISTS,
			.key = b->work[i].key,
			.length = b->work[i].bytes,
			.deadline_ns = b->deadline_ns};
		uint32_t index;

		if (ch->request_free == CLIENT_NONE || !submit_ctl_room(ch, 1, 0)) {
			page_requeue(b, i);
			return;
		}
		index = request_take(ch, REQUEST_DISK, b, i);
		op.cookie = request_cookie(ch, index);
		page_in_flight(b, i, index);
		submit_ctl(ch, &op, 1);
	}
}

void disk_answer(struct pc_channel *ch, struct pc_batch *b, uint32_t i, const struct ctl_done *done,
	uint32_t status, uint64_t now_ns)
{
	struct page_work *p = &b->work[i];

	if (status == OP_HIT && done->generation) {
		p->disk = DISK_PROMOTED;
		p->others = 0;
		p->at = (struct location){ch->session->ref, done->place, done->generation};
		page_found(ch, b, i, now_ns);
	} else if (status == OP_HIT && b->kind == BATCH_EXISTS) {
		page_done(b, i, PC_HIT);
	} else if (status == OP_INVALID) {
		page_done(b, i, PC_INVALID);
	} else if (status == OP_TIMEOUT) {
		page_done(b, i, PC_TIMEOUT);
	} else if (status == OP_CANCELLED) {
		page_done(b, i, PC_GONE);
	} else {
		page_absent(ch, b, i);
	}
}
