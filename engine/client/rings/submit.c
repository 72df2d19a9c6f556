/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes to the ctl ring: checks for room, fills entries, publishes many at once; wakes sleeping
 * rails and a sleeping control plane. Channel thread.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/constants.h"
#include "engine/client/attach/session.h"
#include "engine/client/rings/rings.h"

#include <string.h>
#include <unistd.h>

/*
 * The caller has executed shm_fence_sleep(), which pairs with the rail's: the rail raises its flag,
 * fences, and looks at the ring before it sleeps.
 */
/* cold: the write() wakes a poll core that sleeps; a busy one costs one load per flush */
static void submit_wake_rail(const struct pc_channel *ch, uint32_t rail)
{
	uint64_t one = 1;

	if (unlikely(shm_load(&ch->session->status->rail[rail].sleeps)) &&
		write(ch->session->rail[rail].kick, &one, sizeof(one)) < 0)
		return; /* the eventfd's counter is full, so the rail is being woken already */
}

static void submit_ctl_publish(struct pc_channel *ch)
{
	ring_publish(&ch->ctl, ch->ctl_unpublished);
	ch->ctl_unpublished = 0;
}

/* cold: one write() per flush, and only while the control plane sleeps */
static void submit_ctl_kick(const struct pc_channel *ch)
{
	uint64_t one = 1;

	if (write(ch->session->control_kick, &one, sizeof(one)) < 0)
		return; /* the eventfd's counter is full, so the control plane is being woken */
}

/*
 * The caller has executed shm_fence_sleep(), which pairs with the control plane's fence between
 * raising control_sleeps and looking at the ctl ring.
 */
static void submit_ctl_wake(struct pc_channel *ch)
{
	uint32_t sleeps = shm_load(&ch->session->status->control_sleeps);
	bool urgent = ch->ctl_urgent;
	uint64_t now_ns;

	ch->ctl_urgent = false;
	if (sleeps == CONTROL_AWAKE)
		return;
	if (sleeps == CONTROL_NAPS) {
		ch->ctl_napped |= urgent;
		return;
	}
	if (!urgent) {
		now_ns = clock_monotonic_ns();
		if (now_ns - ch->touch_woken_ns < TOUCH_WAKE_NS)
			return; /* the touches wait for the next wake-up, or for the loop's timer */
		ch->touch_woken_ns = now_ns;
	}
	submit_ctl_kick(ch);
}

/* No fence: a request that the control plane has not taken yet is seen when the nap ends. */
void submit_ctl_hurry(struct pc_channel *ch)
{
	ch->ctl_napped = false;
	if (shm_load(&ch->session->status->control_sleeps) &&
		ring_room(&ch->ctl, CTL_RING_SLOTS) != CTL_RING_SLOTS)
		submit_ctl_kick(ch);
}

__attribute__((noinline)) void submit_ctl_flush(struct pc_channel *ch)
{
	if (!ch->ctl_unpublished)
		return;
	submit_ctl_publish(ch);
	shm_fence_sleep();
	submit_ctl_wake(ch);
}

bool submit_ctl_room(struct pc_channel *ch, uint32_t answers, uint32_t reserve)
{
	uint32_t want = ch->ctl_unpublished + 1 + reserve;
	int32_t room;

	if (ch->ctl_awaited + answers > CTL_DONE_SLOTS)
		return false;
	room = ring_room(&ch->ctl, want);
	if (unlikely(room < 0)) {
		channel_break(ch);
		return false;
	}
	return (uint32_t)room >= want;
}

void submit_ctl_lines(
	struct pc_channel *ch, const struct ctl_op *op, uint32_t lines, uint32_t answers)
{
	memcpy(ring_slot_new(&ch->ctl, ch->ctl_unpublished), op, sizeof(*op));
	ch->ctl_unpublished += lines;
	ch->ctl_awaited += answers;
	ch->ctl_urgent |= op->kind != CTL_TOUCHES;
	if (ch->ctl_unpublished >= FLUSH_SLOTS)
		submit_ctl_flush(ch);
}

/*
 * Wakes those that sleep, behind the fence that pairs with theirs. Not inline: there the compiler
 * would make two paths with a fence each.
 */
__attribute__((noinline)) static void wake_told(struct pc_channel *ch, bool ctl)
{
	shm_fence_sleep();
	for (; ch->told; ch->told &= ch->told - 1)
		submit_wake_rail(ch, (uint32_t)__builtin_ctz(ch->told));
	if (ctl)
		submit_ctl_wake(ch);
}

void submit_flush(struct pc_channel *ch)
{
	bool ctl = ch->ctl_unpublished != 0;

	if (ctl)
		submit_ctl_publish(ch);
	if (ch->told || ctl)
		wake_told(ch, ctl);
}
