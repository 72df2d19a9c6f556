/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_clear() and pc_clear_cluster(): a batch of its own kind with one "page", the engine's answer,
 * so the deadline and a lost engine are handled as for every other batch. Channel thread.
 */
#include <errno.h>
#include <string.h>

#include "config/clock.h"
#include "engine/abi/op.h"
#include "engine/client/page/batch.h"
#include "engine/client/call/call.h"
#include "engine/client/constants.h"
#include "engine/client/error.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/attach.h"
#include "engine/client/attach/session.h"
#include "engine/client/write/write.h"

/* 0, or -errno: the engine's answer is in `clear`. */
static int clear_call(
	struct pc_channel *ch, const char *group, unsigned timeout_ms, struct clear *clear)
{
	uint64_t deadline_ns = clock_monotonic_ns() + timeout_ns(timeout_ms);
	enum pc_result result = PC_PENDING;
	struct key_space space = {0};
	struct pc_batch *b;
	int rc;

	error_clear();
	if (!ch)
		return error_set(-EINVAL, "a clear needs a channel");
	if (group && strstr(group, KEY_GROUP_END))
		return error_set(-EINVAL,
			"%s is no group: a group is the part of a namespace in front of its first ||",
			group);
	if (!group) {
		clear->what |= CLEAR_ALL;
	} else {
		rc = key_name_space(ch->pc->secret, group, &space);
		if (rc)
			return rc;
		clear->group = space.group;
	}
	if (!channel_ready(ch, deadline_ns))
		return error_set(-ENOTCONN, "no engine is attached");
	b = batch_make(ch, BATCH_CLEAR, 1, &result, deadline_ns);
	if (!b)
		return error_set(-ENOMEM, "out of memory to remove the pages");
	b->clear = clear;
	memset(b->work, 0, sizeof(b->work[0]));
	page_queue(b, 0, PAGE_REMOVE);
	while (b->left && ch->session)
		wait_for(ch, b, UINT64_MAX);
	batch_free(b);
	switch (result) {
	case PC_HIT:
	case PC_UNREACHABLE: break;
	case PC_TIMEOUT:
		return error_set(-ETIMEDOUT,
			"the engine has not removed all pages yet, and goes on; ask again, or raise the time-out");
	default: return error_set(-ENOTCONN, "the engine ended meanwhile");
	}
	if (clear->status == OP_INVALID)
		return error_set(-EPERM,
			"this process does not administer the engine and may not clear %s: run it as the engine's user, as root or as one of engine.admin_users and engine.admin_groups, or see engine.clients_clear",
			group ? "pages" : "all pages");
	if (clear->status == OP_NO_SPACE)
		return error_set(-ENOMEM, "too many clears wait, or no memory; ask again");
	return 0;
}

int pc_clear(struct pc_channel *ch, const char *group, unsigned timeout_ms, uint64_t *ret_pages)
{
	struct clear clear = {.what = 0};
	int rc = clear_call(ch, group, timeout_ms, &clear);

	if (rc == 0 && ret_pages)
		*ret_pages = (uint64_t)clear.generation << 32 | clear.place;
	return rc;
}

int pc_clear_cluster(
	struct pc_channel *ch, const char *group, unsigned timeout_ms, unsigned *ret_hosts)
{
	struct clear clear = {.what = CLEAR_CLUSTER};
	int rc = clear_call(ch, group, timeout_ms, &clear);

	if (rc == 0 && ret_hosts)
		*ret_hosts = clear.place;
	if (rc == 0 && clear.status != OP_HIT)
		return error_set(-EHOSTUNREACH,
			"%u of %u hosts have not taken the clear in time; the engine's log names them. They take it when they can be reached, before they serve clients after a restart",
			clear.generation, clear.place + clear.generation);
	return rc;
}
