/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the answers of the control plane out of their ring. Channel thread. */
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/clear.h"
#include "engine/client/constants.h"
#include "engine/client/credit.h"
#include "engine/client/disk.h"
#include "engine/client/peek.h"
#include "engine/client/peercache.h"
#include "engine/client/reap.h"
#include "engine/client/request.h"
#include "engine/client/set.h"

#include <string.h>

/* An answer to a CTL_CREDIT. True: all slots of the request were told of. */
static bool slots_told(struct pc_channel *ch, struct client_request *r, const struct ctl_done *done)
{
	if (!done->count || done->count > r->left) {
		channel_break(ch);
		return false;
	}
	ch->ctl_awaited -= done->count;
	r->left -= done->count;
	credit_answer(ch, r, done);
	return !r->left;
}

/* An answer to a CTL_PUBLISH. True: all pages of the request have ended. */
static bool pages_told(struct pc_channel *ch, struct client_request *r, const struct ctl_done *done,
	uint32_t status)
{
	if (!done->pages || done->pages & ~r->waiting) {
		channel_break(ch);
		return false;
	}
	ch->ctl_awaited -= (uint32_t)__builtin_popcount(done->pages);
	r->waiting &= ~done->pages;
	if (r->batch)
		set_answer(ch, r, done->pages, status);
	return !r->waiting;
}

static void ctl_done(struct pc_channel *ch, const struct ctl_done *done)
{
	static const uint8_t kind_of[] = {[REQUEST_CREDIT] = CTL_CREDIT,
		[REQUEST_PUBLISH] = CTL_PUBLISH,
		[REQUEST_REMOVE] = CTL_REMOVE,
		[REQUEST_DISK] = CTL_PROMOTE,
		[REQUEST_CLEAR] = CTL_CLEAR};
	uint32_t status = done->status < OP_STATUS_COUNT ? done->status : OP_INVALID;
	uint32_t index;
	struct client_request *r = request_of(ch, done->cookie, &index);

	if (!r || r->kind < REQUEST_CREDIT || done->kind != kind_of[r->kind])
		return;
	ch->moves++;
	if (r->kind == REQUEST_CREDIT) {
		if (!slots_told(ch, r, done))
			return;
	} else if (r->kind == REQUEST_PUBLISH) {
		if (!pages_told(ch, r, done, status))
			return;
	} else {
		ch->ctl_awaited--;
		if (r->batch && r->batch->kind == BATCH_PEEK)
			peek_told(r->batch, r->page, done, status);
		else if (r->batch && r->kind == REQUEST_DISK)
			disk_answer(r->batch, r->page, done, status);
		else if (r->batch && r->kind == REQUEST_CLEAR)
			clear_answer(r->batch, done, status);
		else if (r->batch)
			remove_answer(r->batch, r->page, status);
	}
	request_free(ch, index);
}

void reap_ctl(struct pc_channel *ch)
{
	int32_t n = ring_ready(&ch->ctl_done);

	for (int32_t i = 0; i < n; i++) {
		struct ctl_done done;

		memcpy(&done, ring_slot_old(&ch->ctl_done, (uint32_t)i), sizeof(done));
		ctl_done(ch, &done);
	}
	if (n > 0)
		ring_release(&ch->ctl_done, (uint32_t)n);
}
