/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_limits(): limits of the groups of a session. Each channel tells them to the engine with its
 * first batch of a group, and again when it is attached to another engine. Channel thread, but
 * pc_limits().
 */
#include <errno.h>
#include <pthread.h>

#include "engine/abi/op.h"
#include "engine/client/attach/attach.h"
#include "engine/client/error.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/rings/rings.h"
#include "engine/client/page/batch.h"

int pc_limits(struct pc *pc, int64_t quota_bytes, int64_t ttl_s)
{
	error_clear();
	if (!pc || quota_bytes < -1 || ttl_s < -1)
		return error_set(
			-EINVAL, "limits need a session, bytes and seconds: 0 or more, or -1");
	pthread_mutex_lock(&pc->lock);
	pc->quota_bytes = quota_bytes;
	pc->ttl_s = ttl_s;
	shm_store(&pc->limits, pc->limits + 1);
	pthread_mutex_unlock(&pc->lock);
	return 0;
}

void limits_tell(struct pc_channel *ch)
{
	struct ctl_op op = {.kind = CTL_LIMITS, .key = ch->name_space.group};
	struct pc *pc = ch->pc;

	if (!submit_ctl_room(ch, 0, 0))
		return; /* the next batch tells them */
	pthread_mutex_lock(&pc->lock);
	op.cookie = (uint64_t)pc->quota_bytes;
	op.deadline_ns = (uint64_t)pc->ttl_s;
	ch->limits_told = pc->limits;
	pthread_mutex_unlock(&pc->lock);
	submit_ctl(ch, &op, 0);
}
