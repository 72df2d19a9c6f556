/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The poll core: a thread that steps its rails in turn, and rests when none has work. One rail's
 * step is bounded, so a busy rail delays the next rail by at most one step. Between steps this file
 * wakes clients and the control plane; it makes the only system calls of running rails. The control
 * plane's thread calls poll_core_start() and poll_core_close(); the poll core runs the rest.
 */
#include "engine/rail/poll_core.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "config/hooks.h"
#include "config/log.h"
#include "dv/setup.h"
#include "engine/rail/model_clock.h"
#include "numa/pin.h"

#define REST_TURNS 16u /* turns without work between two checks of how long the core is idle */
/*
 * With WQEs in flight: idle time up to which the thread only spins; then it yields. Short, because
 * a thread that rests shares its core, and a software NIC may need the core to finish the READs.
 */
#define REST_YIELD_NS 500u
/* with WQEs in flight: idle time from which the thread naps for 1/8 of that time */
#define REST_NAP_AFTER_NS 100000u
#define REST_NAP_MIN_NS 20000u   /* length of the shortest nap */
#define REST_NAP_MAX_NS 500000u  /* length of the longest nap */
#define REST_SLEEP_NS 100000000u /* longest sleep while no WQE is in flight */
/*
 * A yield that takes longer than waking a thread that sleeps (35 to 70 us on another core of a
 * virtual machine) has cost more than a sleep would. Shorter ones let a thread run that soon slept
 * again.
 */
#define CROWDED_NS 100000u
/* number of rests that sleep at once after a long yield; the next one yields again */
#define CROWDED_RESTS 64u
/*
 * longest sleep while a client's done ring is full: the client does not kick when it empties the
 * ring
 */
#define REST_BLOCKED_NS 1000000u

/*
 * Steps the software NICs. A hardware port would do this work in parallel to the core, so its time
 * is counted separately.
 */
static unsigned poll_step_nics(struct poll_core *core)
{
	uint64_t from = clock_ticks();
	unsigned work = dv_step_all(core->nic, core->nics);

	gap_nics(&core->gaps, clock_ticks() - from);
	return work;
}

static void control_kick(int fd)
{
	uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	/* the write fails only if the eventfd is full; it is readable then, so it wakes the
	 * control plane as well */
	(void)n;
}

static void channel_wake_client(struct rail_channel *channel)
{
	/* First a load, then the exchange: a load of 0 leaves the flag's cache line with the
	 * client's core. */
	if (shm_load(channel->client_waits) && shm_exchange(channel->client_waits, 0))
		client_wake(channel->wake);
}

/*
 * Wakes sleeping clients and the control plane. Called when rail->news is set, after
 * shm_fence_sleep(): the completions and events are published before the fence, and a sleeper
 * raises its flag before it looks for them.
 */
static void rail_wake(struct rail *rail)
{
	rail->news = false;
	for (unsigned i = 0; i < RAIL_CHANNELS_MAX / 64; i++) {
		uint64_t left = rail->wake[i];

		rail->wake[i] = 0;
		for (; left; left &= left - 1)
			channel_wake_client(
				rail->channel[i * 64 + (unsigned)__builtin_ctzll(left)].channel);
	}
	if (unlikely(rail->events_sent)) {
		rail->events_sent = false;
		if (shm_load(&rail->options.status->control_sleeps))
			control_kick(rail->options.control_kick);
	}
}

/*
 * Wakes the sleepers of all rails after one fence, which orders every publication of this turn
 * before the loads of their flags.
 */
void poll_wake(struct poll_core *core)
{
	shm_fence_sleep();
	for (unsigned i = 0; i < core->rails; i++)
		if (core->rail[i]->news)
			rail_wake(core->rail[i]);
}

static inline unsigned poll_step_rail(struct poll_core *core, unsigned i, uint64_t now_ns)
{
	return rail_step(core->rail[i], now_ns);
}

unsigned poll_turn(struct poll_core *core)
{
	unsigned work = poll_rails(core, poll_step_rail);

	if (core->nics)
		work += poll_step_nics(core);
	return work;
}

static unsigned poll_core_turn(struct poll_core *core)
{
	if (TEST_HOOK(core->options.clock))
		return model_clock_turn(core);
	return poll_turn(core);
}

/* ---- resting -------------------------------------------------------------------------------- */

/* Stores `sleeps` in the sleep flag of every rail of this core. */
static void poll_raise_flags(struct poll_core *core, uint32_t sleeps)
{
	for (unsigned i = 0; i < core->rails; i++) {
		const struct rail_options *o = &core->rail[i]->options;

		shm_store(&o->status->rail[o->index].sleeps, sleeps);
	}
}

/* Time (ns) for which this rail needs no step unless a client or the control plane kicks. */
static uint64_t rail_sleep_ns(const struct rail *rail)
{
	uint64_t now;

	if (rail->stopped)
		return REST_SLEEP_NS;
	if (rail->blocked || rail->stopping || rail->late_head != rail->late_tail)
		return REST_BLOCKED_NS;
	if (!rail->in_flight)
		return REST_SLEEP_NS;
	now = clock_now_ns();
	if (rail->nearest_ns <= now)
		return 0;
	return rail->nearest_ns - now < REST_SLEEP_NS ? rail->nearest_ns - now : REST_SLEEP_NS;
}

static bool poll_waits_for_nic(const struct poll_core *core)
{
	for (unsigned i = 0; i < core->rails; i++)
		if (core->rail[i]->wqes)
			return true;
	return false;
}

/* CLOCK_MONOTONIC at which the first of this thread's software NICs has work, ns. */
static uint64_t poll_nics_due_ns(const struct poll_core *core)
{
	uint64_t due_ns = UINT64_MAX;

	for (unsigned i = 0; i < core->nics; i++) {
		uint64_t ns = dv_due_ns(core->nic[i]);

		due_ns = ns < due_ns ? ns : due_ns;
	}
	return due_ns;
}

static void poll_sleep_for(struct poll_core *core, uint64_t ns_max)
{
	struct pollfd kick = {.fd = core->rail[0]->options.kick, .events = POLLIN};
	struct timespec span = {.tv_sec = 0};

	for (unsigned i = 0; i < core->rails; i++) {
		uint64_t ns = rail_sleep_ns(core->rail[i]);

		ns_max = ns < ns_max ? ns : ns_max;
	}
	span.tv_nsec = (long)ns_max;
	if (ppoll(&kick, 1, &span, NULL) > 0)
		kick_take(kick.fd);
}

/*
 * Raises the sleep flags, fences, steps every rail once more, and sleeps for at most `ns_max` until
 * a kick. The fence pairs with the one that a waker has between its publication and its load of the
 * flag. All rails of a poll core share one eventfd, so a kick for one of them wakes the thread. A
 * CQE does not kick, so callers pass a short `ns_max` while WQEs are outstanding.
 */
static void poll_sleep(struct poll_core *core, uint64_t ns_max)
{
	bool deep = !poll_waits_for_nic(core);

	poll_raise_flags(core, 1);
	shm_fence_sleep();
	if (poll_core_turn(core) > 0 || (deep && poll_waits_for_nic(core))) {
		core->idle_since = 0;
	} else if (core->running) {
		if (deep)
			rail_count(core->rail[0], COUNTER_sleeps, 1);
		poll_sleep_for(core, ns_max);
	}
	poll_raise_flags(core, 0);
	gap_rest(&core->gaps);
}

static void poll_yield(struct poll_core *core)
{
	sched_yield();
	gap_rest(&core->gaps);
}

/*
 * Rests while nothing is in flight: yields, then sleeps until a kick. A yield to a busy thread
 * costs its time slice, milliseconds, in which no kick is noticed: the thread then sleeps at once
 * for its next rests, because a kick also takes the CPU from a busy thread.
 */
static void poll_rest_idle(struct poll_core *core, uint64_t elapsed)
{
	uint64_t from;

	core->crowded -= core->crowded > 0;
	if (core->crowded || elapsed >= core->options.spin_ns) {
		poll_sleep(core, REST_SLEEP_NS);
		return;
	}
	from = clock_ticks();
	poll_yield(core);
	if (clock_ticks_ns(clock_ticks() - from) > CROWDED_NS)
		core->crowded = CROWDED_RESTS;
}

/*
 * Rests while WQEs are outstanding: spins, yields, then naps, because the remote side may need this
 * core (software NICs on one host) to finish the READs.
 */
static void poll_rest_waiting(struct poll_core *core, uint64_t elapsed)
{
	uint64_t ns = elapsed / 8;

	if (elapsed < REST_YIELD_NS)
		return;
	if (elapsed < REST_NAP_AFTER_NS) {
		poll_yield(core);
		return;
	}
	if (ns < REST_NAP_MIN_NS)
		ns = REST_NAP_MIN_NS;
	if (ns > REST_NAP_MAX_NS)
		ns = REST_NAP_MAX_NS;
	/* yield instead of napping if a software NIC is due before the nap would end */
	if (poll_nics_due_ns(core) <= clock_now_ns() + ns)
		poll_yield(core);
	else
		poll_sleep(core, ns);
}

void poll_rest(struct poll_core *core)
{
	uint64_t elapsed;

	shm_pause();
	if (core->options.busy || ++core->turns % REST_TURNS)
		return;
	if (!core->idle_since) {
		core->idle_since = core->ticks;
		return;
	}
	elapsed = clock_ticks_ns(core->ticks - core->idle_since);
	if (poll_waits_for_nic(core))
		poll_rest_waiting(core, elapsed);
	else
		poll_rest_idle(core, elapsed);
}

/* ---- turns and their gaps ------------------------------------------------------------------- */

/*
 * Adds the turn to the gaps, and long gaps to the counters of the poll core's first rail, so that a
 * sum over all rails counts each gap once.
 */
static void poll_count_turn(struct poll_core *core, bool worked)
{
	uint64_t *counter = core->rail[0]->counter, ns;

	shm_store64(&core->ticks, clock_ticks());
	ns = gap_turn(&core->gaps, core->ticks, worked);
	if (unlikely(ns > GAP_LONG_NS)) {
		shm_count(&counter[COUNTER_poll_gaps_long], 1);
		if (ns > counter[COUNTER_poll_gap_worst_ns])
			shm_store64(&counter[COUNTER_poll_gap_worst_ns], ns);
	}
}

uint64_t poll_core_beat(const struct poll_core *core)
{
	return shm_load64(&core->ticks);
}

uint64_t gap_bucket_ns(unsigned bucket)
{
	return bucket ? (2ull + (bucket - 1) % 2) << (5 + (bucket - 1) / 2) : 0;
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void poll_pin(const struct poll_core *core)
{
	char name[16];
	int error = core->options.core >= 0 ? pin_self(core->options.core) : 0;

	if (error)
		log_warn(
			"rail %u: pinning its poll core to core %d: %s; it runs unpinned, expect slow and uneven reads. Is the core in this process's cpuset?",
			core->rail[0]->options.index, core->options.core, strerror(-error));
	snprintf(name, sizeof(name), "pc-poll-%u", core->rail[0]->options.index);
	/* tools/trace-stalls and perf/recipes find the thread by this name */
	prctl(PR_SET_NAME, name);
	/* timer slack of 1 us instead of 50 us, so that naps are not longer than requested */
	prctl(PR_SET_TIMERSLACK, 1000ul);
}

static void *poll_main(void *argument)
{
	struct poll_core *core = argument;

	poll_pin(core);
	while (core->running) {
		bool worked = poll_core_turn(core) > 0;

		poll_count_turn(core, worked);
		if (worked) {
			core->idle_since = 0;
			core->turns = 0;
		} else {
			poll_rest(core);
		}
	}
	return NULL;
}

void poll_core_set(struct poll_core *core, struct rail *const *rails, unsigned count)
{
	memcpy(core->rail, rails, count * sizeof(rails[0]));
	core->rails = core->running = count;
	for (unsigned i = 0; i < count; i++)
		if (rails[i]->device_steps)
			core->nic[core->nics++] = rails[i]->options.device;
}

int poll_core_start(const struct poll_core_options *options, struct rail *const *rails,
	unsigned count, struct poll_core **ret_core)
{
	struct poll_core *core;
	int error;

	if (count == 0 || count > RAILS_MAX)
		return -EINVAL;
	core = aligned_alloc(64, sizeof(*core));
	if (!core)
		return -ENOMEM;
	memset(core, 0, sizeof(*core));
	poll_core_set(core, rails, count);
	core->options = *options;
	core->started_ns = clock_now_ns();
	error = pthread_create(&core->thread, NULL, poll_main, core);
	if (error) {
		free(core);
		return -error;
	}
	for (unsigned i = 0; i < count; i++)
		rails[i]->started = true;
	*ret_core = core;
	return 0;
}

void poll_core_close(struct poll_core *core)
{
	if (!core)
		return;
	pthread_join(core->thread, NULL);
	free(core);
}

/*
 * Converts ticks to nanoseconds in floating point, for spans of days; clock_ticks_ns() cuts off
 * spans over a minute.
 */
static uint64_t ticks_long_ns(const uint64_t *ticks)
{
	return (uint64_t)((double)shm_load64(ticks) * (double)clock_tick_scale / 0x1p24);
}

void poll_core_report(const struct poll_core *core, struct poll_core_report *ret)
{
	const uint64_t *counter = core->rail[0]->counter;

	for (unsigned i = 0; i < GAP_BUCKETS; i++)
		ret->gaps[i] = shm_load64(&core->gaps.bucket[i]);
	ret->gaps_long = shm_load64(&counter[COUNTER_poll_gaps_long]);
	ret->gap_worst_ns = shm_load64(&counter[COUNTER_poll_gap_worst_ns]);
	ret->busy_ns = ticks_long_ns(&core->gaps.busy_ticks);
	ret->spin_ns = ticks_long_ns(&core->gaps.spin_ticks);
	ret->nic_ns = ticks_long_ns(&core->gaps.nic_ticks);
	ret->age_ns = clock_now_ns() - core->started_ns;
}
