/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only system calls of a running rail: waking clients and the control plane, and resting when
 * there is nothing to do. Called by the rail's thread between steps, never by a step.
 */
#include <poll.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include "engine/rail/core.h"

#define REST_TURNS 16u            /* fruitless steps between two looks at the clock */
#define REST_YIELD_NS 10000u      /* waiting for CQEs: spin alone, then let others run */
#define REST_NAP_AFTER_NS 100000u /* then nap, the longer the longer it took */
#define REST_NAP_MIN_NS 20000u
#define REST_NAP_MAX_NS 500000u
#define REST_SLEEP_MS 100
#define REST_BLOCKED_MS 1 /* a client's done ring is full: it says nothing when it empties it */

static void kick(int fd)
{
	uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	(void)n; /* a full eventfd wakes as well */
}

static void wake_client(struct rail_channel *channel)
{
	/* Exchanged only when it is set: most of the time the line stays the client's. */
	if (shm_load(channel->client_waits) && shm_exchange(channel->client_waits, 0))
		kick(channel->wake);
}

void rail_wake(struct rail *rail)
{
	bool fenced = false;

	for (unsigned i = 0; i < CHANNELS_MAX / 64; i++) {
		uint64_t left = rail->wake[i];

		if (!left)
			continue;
		/* Completions are published; the client raised its flag before it looked for them.
		 */
		if (!fenced)
			shm_fence_sleep();
		fenced = true;
		rail->wake[i] = 0;
		for (; left; left &= left - 1)
			wake_client(
				rail->channel[i * 64 + (unsigned)__builtin_ctzll(left)].channel);
	}
	if (unlikely(rail->spoke)) {
		rail->spoke = false;
		shm_fence_sleep();
		if (shm_load(&rail->options.status->control_sleeps))
			kick(rail->options.control_kick);
	}
}

static void nap(uint64_t ns)
{
	struct timespec span = {.tv_nsec = (long)ns};

	nanosleep(&span, NULL);
}

/* The NIC has work: the other side may need this core to finish it. */
static void rest_waiting(uint64_t now, uint64_t elapsed, uint64_t due_ns)
{
	uint64_t ns = elapsed / 8;

	if (elapsed < REST_YIELD_NS)
		return;
	if (elapsed < REST_NAP_AFTER_NS) {
		sched_yield();
		return;
	}
	if (ns < REST_NAP_MIN_NS)
		ns = REST_NAP_MIN_NS;
	if (ns > REST_NAP_MAX_NS)
		ns = REST_NAP_MAX_NS;
	if (due_ns <= now + ns) /* too soon to sleep until then, or already past */
		sched_yield();
	else
		nap(ns);
}

static int sleep_ms(struct rail *rail)
{
	uint64_t now;

	if (rail->blocked || rail->stopping || rail->late_head != rail->late_tail)
		return REST_BLOCKED_MS;
	if (!rail->in_flight)
		return REST_SLEEP_MS;
	now = clock_now_ns();
	if (rail->nearest_ns <= now)
		return 0;
	if (rail->nearest_ns - now < REST_SLEEP_MS * 1000000ull)
		return (int)((rail->nearest_ns - now) / 1000000) + 1;
	return REST_SLEEP_MS;
}

/* Returns whether it found work when it looked once more. */
static bool rest_sleep(struct rail *rail)
{
	uint32_t *sleeps = &rail->options.status->rail[rail->options.index].sleeps;
	struct pollfd pollfd = {.fd = rail->options.kick, .events = POLLIN};
	bool work;

	shm_store(sleeps, 1);
	shm_fence_sleep();
	work = rail_step(rail) > 0; /* the look: it reads every ring's index anew */
	rail_wake(rail);
	if (!work && !rail->stopped && !rail->wqes) {
		rail_count(rail, COUNTER_sleeps, 1);
		poll(&pollfd, 1, sleep_ms(rail));
	}
	shm_store(sleeps, 0);
	if (pollfd.revents & POLLIN) {
		uint64_t count;
		ssize_t n = read(pollfd.fd, &count, sizeof(count));

		(void)n;
	}
	return work;
}

void rail_rest(struct rail *rail, struct rail_idle *idle, uint64_t due_ns)
{
	uint64_t now, elapsed;

	shm_pause();
	if (rail->options.busy || ++idle->turns % REST_TURNS)
		return;
	now = clock_now_ns();
	if (!idle->since_ns) {
		idle->since_ns = now;
		return;
	}
	elapsed = now - idle->since_ns;
	if (rail->wqes)
		rest_waiting(now, elapsed, due_ns);
	else if (elapsed < rail->options.spin_ns)
		sched_yield();
	else if (rest_sleep(rail))
		idle->since_ns = 0;
}
