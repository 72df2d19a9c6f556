/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_clear(): one request to the engine of this host, which removes the pages. It is the only
 * "page" of a batch of its own kind, so the deadline and a lost engine are handled as for every
 * other batch. Channel thread.
 */
#include "engine/client/clear.h"

#include <errno.h>
#include <string.h>

#include "config/clock.h"
#include "engine/abi/op.h"
#include "engine/client/attach.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/error.h"
#include "engine/client/key.h"
#include "engine/client/page.h"
#include "engine/client/peercache.h"
#include "engine/client/request.h"
#include "engine/client/submit.h"
#include "engine/client/wait.h"

void clear_step(struct pc_batch *b)
{
	struct pc_channel *ch = b->channel;
	uint32_t i = page_unqueue(b, PAGE_REMOVE), index;
	struct ctl_op op = {.kind = CTL_CLEAR,
		.count = b->clear->all,
		.key = b->clear->group,
		.deadline_ns = b->deadline_ns};

	if (i == CLIENT_NONE)
		return;
	if (ch->request_free == CLIENT_NONE || !submit_ctl_room(ch, 1, 0)) {
		page_requeue(b, i);
		return;
	}
	index = request_take(ch, REQUEST_CLEAR, b, i);
	op.cookie = request_cookie(ch, index);
	page_in_flight(b, i, index);
	submit_ctl(ch, &op, 1);
}

void clear_answer(struct pc_batch *b, const struct ctl_done *done, uint32_t status)
{
	b->clear->pages = (uint64_t)done->generation << 32 | done->place;
	switch (status) {
	case OP_HIT: page_done(b, 0, PC_HIT); break;
	case OP_NO_SPACE: page_done(b, 0, PC_FULL); break;
	case OP_CANCELLED: page_done(b, 0, PC_GONE); break;
	default: page_done(b, 0, PC_UNREACHABLE);
	}
}

/* Waits for the answer. PC_PENDING: no memory. */
static enum pc_result ask(struct pc_channel *ch, struct clear *clear, uint64_t deadline_ns)
{
	enum pc_result result = PC_PENDING;
	struct pc_batch *b;

	if (!channel_ready(ch, deadline_ns))
		return PC_GONE;
	b = batch_make(ch, 1);
	if (!b)
		return PC_PENDING;
	b->kind = BATCH_CLEAR;
	b->clear = clear;
	b->results = &result;
	b->submitted_ns = clock_monotonic_ns();
	b->deadline_ns = deadline_ns;
	if (deadline_ns < ch->due_ns)
		ch->due_ns = deadline_ns;
	ch->writers += batch_writes(b);
	memset(b->work, 0, sizeof(b->work[0]));
	page_queue(b, 0, PAGE_REMOVE);
	wait_for(ch, b, UINT64_MAX);
	batch_free(b);
	return result;
}

int pc_clear(struct pc_channel *ch, const char *group, unsigned timeout_ms, uint64_t *ret_pages)
{
	uint64_t deadline_ns = clock_monotonic_ns() +
			       (timeout_ms ? timeout_ms : PC_TIMEOUT_MS_DEFAULT) * 1000000ull;
	struct clear clear = {.all = !group};
	struct key_space space;

	error_clear();
	if (!ch)
		return error_set(-EINVAL, "pc_clear() needs a channel");
	if (group && strstr(group, KEY_GROUP_END))
		return error_set(-EINVAL,
			"%s is no group: a group is the part of a namespace in front of its first ||",
			group);
	if (group) {
		key_name_space(group, &space);
		clear.group = space.group;
	}
	switch (ask(ch, &clear, deadline_ns)) {
	case PC_HIT:
		if (ret_pages)
			*ret_pages = clear.pages;
		return 0;
	case PC_TIMEOUT:
		return error_set(-ETIMEDOUT,
			"the engine has not removed all pages yet, and goes on; ask again, or raise the time-out");
	case PC_GONE: return error_set(-ENOTCONN, "no engine is attached");
	case PC_FULL:
	case PC_PENDING: return error_set(-ENOMEM, "out of memory to remove the pages");
	default:
		return error_set(-EIO,
			"the pages are removed, but the disk did not record it: they may come back after a restart; see peercachectl health");
	}
}
