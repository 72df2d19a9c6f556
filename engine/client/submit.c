/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes to the rings: fills ring entries, publishes many ops at once, wakes a sleeping rail or
 * control plane. Channel thread.
 */
#include "engine/client/client.h"

#include <unistd.h>

static void publish(struct channel_rail *r)
{
	ring_publish(&r->ops, r->unpublished);
	r->unpublished = 0;
}

/*
 * The caller has executed shm_fence_sleep(), which pairs with the rail's: the rail raises its flag,
 * fences, and looks at the ring before it sleeps.
 */
/* cold: the write() wakes a poll core that sleeps; a busy one costs one load per flush */
static void wake(const struct pc_channel *ch, uint32_t rail)
{
	uint64_t one = 1;

	if (unlikely(shm_load(&ch->session->status->rail[rail].sleeps)) &&
		write(ch->session->rail[rail].kick, &one, sizeof(one)) < 0)
		return; /* the eventfd's counter is full, so the rail is being woken already */
}

void submit_flush_rail(struct pc_channel *ch, uint32_t rail)
{
	publish(&ch->rail[rail]);
	shm_fence_sleep();
	wake(ch, rail);
}

void submit_segments(struct channel_rail *r, const struct op_segment *segments, uint32_t count)
{
	struct op_segments *slot = NULL;

	for (uint32_t s = 0; s < count; s++) {
		if (s % 4 == 0)
			slot = ring_slot_new(&r->ops, r->unpublished + 1 + s / 4);
		slot->segment[s % 4] = segments[s];
	}
}

/* cold: one write() per flush, and only while the control plane sleeps */
static void flush_ctl(struct pc_channel *ch)
{
	if (!ch->ctl_unpublished)
		return;
	ring_publish(&ch->ctl, ch->ctl_unpublished);
	ch->ctl_unpublished = 0;
	/* pairs with the control plane's fence between raising control_sleeps and looking at the
	 * ctl ring */
	shm_fence_sleep();
	if (shm_load(&ch->session->status->control_sleeps)) {
		uint64_t one = 1;

		if (write(ch->session->control_kick, &one, sizeof(one)) < 0)
			return;
	}
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

/* Writes a request to the ctl ring. The caller has called submit_ctl_room() with success. */
void submit_ctl(struct pc_channel *ch, const struct ctl_op *op, uint32_t answers)
{
	memcpy(ring_slot_new(&ch->ctl, ch->ctl_unpublished), op, sizeof(*op));
	ch->ctl_unpublished++;
	ch->ctl_awaited += answers;
	if (ch->ctl_unpublished >= FLUSH_SLOTS)
		flush_ctl(ch);
}

void submit_flush(struct pc_channel *ch)
{
	uint32_t told = 0;

	for (uint32_t r = 0; r < ch->rails; r++)
		if (ch->rail[r].unpublished) {
			publish(&ch->rail[r]);
			told |= 1u << r;
		}
	if (told)
		shm_fence_sleep();
	for (; told; told &= told - 1)
		wake(ch, (uint32_t)__builtin_ctz(told));
	flush_ctl(ch);
}
