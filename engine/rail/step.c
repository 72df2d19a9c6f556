/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_step(), one step of a rail, and its small parts: doorbells, events, the count of idle steps.
 * Poll core only; the hot path.
 */
#include "engine/rail/core.h"

/*
 * Samples READ latency: one WQE is timed from its doorbell until it retires. The sample is the last
 * WQE of the first queue pair that a step rings; which one that is does not depend on how long it
 * will take. The next sample begins at the first doorbell after a step without work, or after
 * RAIL_SAMPLE_STEPS busy steps with doorbells. Most steps cost one comparison.
 */
static void read_time_start(struct rail *rail)
{
	if (rail->sample_wait) {
		rail->sample_wait--;
		return;
	}
	rail->sample_wait = RAIL_SAMPLE_STEPS;
	rail->timed = rail->unrung;
	rail->timed_end = rail->unrung->sq->pi;
	rail->timed_ns = rail_now(rail);
}

void rail_ring(struct rail *rail)
{
	unsigned n = 0;

	if (rail->unrung && !rail->timed)
		read_time_start(rail);
	while (rail->unrung) {
		struct conn_qp *qp = rail->unrung;

		rail->unrung = qp->rung_next;
		qp->unrung = false;
		/* Request a CQE from the QP's last WQE: no later WQE may follow that would
		 * request one. */
		if (qp->silent)
			dv_signal_last(qp->sq);
		qp->silent = qp->silent_bytes = 0;
		dv_ring(qp->sq);
		n++;
	}
	if (n)
		rail_count(rail, COUNTER_doorbells, n);
}

/* Writes an event to the event ring to the control plane; false: the ring is full. */
static bool speak(struct rail *rail, const struct rail_event *event)
{
	struct ring_producer *out = &rail->inbox.event_out;

	if (ring_room(out, 1) < 1)
		return false;
	memcpy(ring_slot_new(out, 0), event, sizeof(*event));
	ring_publish(out, 1);
	return true;
}

/* Sends the events of rail->late, which found the event ring full. */
static void speak_late(struct rail *rail)
{
	while (rail->late_head != rail->late_tail &&
		speak(rail, &rail->late[rail->late_head & (RAIL_EVENTS_LATE - 1)])) {
		rail->late_head++;
		rail->events_sent = rail->news = true;
	}
}

void rail_event_send(struct rail *rail, const struct rail_event *event)
{
	rail->events_sent = rail->news = true;
	if (likely(rail->late_head == rail->late_tail) && speak(rail, event))
		return;
	/* Cannot overflow: RAIL_EVENTS_LATE in core.h counts the unread events that each object
	 * can have. */
	assert(rail->late_tail - rail->late_head < RAIL_EVENTS_LATE);
	rail->late[rail->late_tail++ & (RAIL_EVENTS_LATE - 1)] = *event;
}

/*
 * True if the deadlines are due for a check: in every idle step with requests in flight, and in
 * every RAIL_CLOCK_STEPS-th busy one.
 */
static bool clock_due(struct rail *rail, unsigned work)
{
	return rail->in_flight && (!work || ++rail->steps % RAIL_CLOCK_STEPS == 0);
}

static void count_idle(struct rail *rail, unsigned work)
{
	rail->steps_idle += !work;
	if (!work)
		rail->sample_wait = 0;
	if (rail->steps_idle && (work || rail->steps_idle >= RAIL_IDLE_STEPS)) {
		rail_count(rail, COUNTER_steps_idle, rail->steps_idle);
		rail->steps_idle = 0;
	}
}

unsigned rail_step(struct rail *rail, uint64_t now_ns)
{
	unsigned work = 0;

	rail->now_ns = now_ns;
	rail->t0_ns = 0;
	work += rail_reap(rail); /* CQEs -> client completions */
	if (unlikely(ring_ready(&rail->inbox.command_in) > 0))
		work += rail_execute_commands(rail); /* commands of the control plane */
	work += rail_take(rail);                     /* client ops -> requests             */
	work += rail_post(rail);                     /* requests   -> WQEs                 */
	rail_ring(rail);                             /* one doorbell per touched QP        */
	if (clock_due(rail, work))
		work += rail_expire(rail); /* requests past their deadlines */
	rail_answer(rail);                 /* publish the completions */
	if (unlikely(rail->late_head != rail->late_tail))
		speak_late(rail);
	if (unlikely(rail->stopping))
		rail_finish(rail);
	count_idle(rail, work);
	return work;
}
