/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for answers: spin for a short time, then sleep on the channel's wake socket and the
 * session's socket. On few cores, yield in between. A yield to a busy thread shows that the answer
 * may need this core: the channel then sleeps at once for its next waits.
 *
 * Before it sleeps, this thread raises its flag, fences and looks at the rings once more. The
 * engine exchanges the flag with 0 before it wakes this thread. Channel thread.
 */
#include "config/clock.h"
#include "config/likely.h"
#include "engine/abi/ring.h"
#include "engine/client/attach/attach.h"
#include "engine/client/attach/session.h"
#include "engine/client/call/call.h"
#include "engine/client/page/batch.h"
#include "engine/client/constants.h"
#include "engine/client/device.h"
#include "engine/client/read/read.h"
#include "engine/client/rings/rings.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 50000u
#define SPIN_FEW_CORES_NS 20000u
#define FEW_CORES 2u
/*
 * On few cores, how long a waiting thread yields its core before it sleeps. Waking a thread that
 * sleeps takes 35 to 70 us on another core of a virtual machine, so a short wait is not slept.
 */
#define YIELD_NS 200000u
/* assumed copy speed of the rails: backlog / this many ns is added to YIELD_NS */
#define YIELD_BYTES_PER_NS 8u
#define YIELD_NS_MAX 1000000u
/* a yield that takes longer has cost more than a sleep: a busy thread ran on this core */
#define CROWDED_NS 100000u
/* number of waits that sleep at once after a long yield; the next one spins and yields again */
#define CROWDED_WAITS 64u

static bool wait_all_done(const struct pc_channel *ch)
{
	for (const struct pc_batch *b = ch->first; b; b = b->next)
		if (b->left)
			return false;
	return true;
}

bool wait_answered(struct pc_channel *ch)
{
	for (uint32_t r = 0; r < ch->rails; r++)
		if (ring_ready_now(&ch->rail[r].done))
			return true;
	return ring_ready_now(&ch->ctl_done) != 0;
}

static void sleep_until(struct pc_channel *ch, uint64_t until_ns)
{
	struct pollfd p[2] = {
		{.fd = ch->wake, .events = POLLIN}, {.fd = ch->session->fd, .events = POLLRDHUP}};
	uint64_t now_ns = clock_monotonic_ns();
	uint64_t rest_ns = until_ns > now_ns ? until_ns - now_ns : 0;

	if (unlikely(device_busy(ch->device))) { /* it ends soon */
		fetch_copies_end(ch, FETCH_WAIT_ONE);
		return;
	}
	if (rest_ns > SLEEP_NS_MAX)
		rest_ns = SLEEP_NS_MAX;
	shm_store(&ch->header->client_waits, 1);
	/* pairs with the engine's order: publish the completion, fence, exchange client_waits */
	shm_fence_sleep();
	if (!wait_answered(ch) && poll(p, 2, (int)(rest_ns / 1000000 + 1)) > 0) {
		if ((p[0].revents && !channel_wake_clear(ch)) || p[1].revents)
			/* so that the next step of the channel checks the session's socket */
			ch->looked_ns = 0;
	}
	shm_store(&ch->header->client_waits, 0);
}

/*
 * Time to yield the core before sleeping. On few cores the engine may need this core; yielding is
 * faster than sleeping if the answer comes soon.
 */
static uint64_t wait_yield_ns(const struct pc_channel *ch)
{
	uint64_t bytes = 0, ns;

	for (uint32_t r = 0; r < ch->rails; r++)
		bytes += ch->rail[r].bytes;
	ns = YIELD_NS + bytes / YIELD_BYTES_PER_NS;
	return ns < YIELD_NS_MAX ? ns : YIELD_NS_MAX;
}

/* Yields the core, and records whether another thread ran on it. `now_ns`: the time before. */
static void wait_yield(struct pc_channel *ch, uint64_t now_ns)
{
	sched_yield();
	if (clock_monotonic_ns() - now_ns > CROWDED_NS)
		ch->crowded = CROWDED_WAITS;
}

/* How long a wait without progress spins, ns. */
static uint64_t wait_spin_ns(const struct pc_channel *ch)
{
	if (ch->pc->cores > FEW_CORES)
		return SPIN_NS;
	return ch->crowded ? 0 : SPIN_FEW_CORES_NS;
}

void wait_for(struct pc_channel *ch, const struct pc_batch *b, uint64_t until_ns)
{
	/* time at which to tell that only READs into registered memory are still awaited; without
	 * `b` the channel closes, and its batches have no time left */
	uint64_t tell_ns = (b ? b->deadline_ns : ch->now_ns) + DRAIN_WARN_NS;
	bool few = ch->pc->cores <= FEW_CORES;
	/* time of the first step without progress since the last progress, ns; 0: the last step
	 * moved something */
	uint64_t moved_ns = 0;

	ch->crowded -= ch->crowded > 0;
	while (b ? b->left != 0 : !wait_all_done(ch)) {
		uint64_t now_ns, spin_ns = wait_spin_ns(ch);

		if (channel_step(ch)) {
			moved_ns = 0;
			continue;
		}
		if (!ch->session)
			break;
		now_ns = clock_monotonic_ns();
		if (now_ns >= until_ns)
			break;
		if (!moved_ns)
			moved_ns = now_ns;
		if (unlikely(now_ns >= tell_ns) && (!b || b->abandoned)) {
			tell_ns = UINT64_MAX;
			channel_tell_wait(ch);
		}
		if (unlikely(ch->ctl_napped))
			submit_ctl_hurry(ch);
		if (now_ns - moved_ns < spin_ns) {
			for (unsigned k = 0; k < 8 && !wait_answered(ch); k++)
				/* a pause takes up to 140 cycles: check for answers between two
				 * of them */
				shm_pause();
		} else if (few && !ch->crowded && now_ns - moved_ns < spin_ns + wait_yield_ns(ch)) {
			wait_yield(ch, now_ns);
		} else {
			sleep_until(ch, b ? batch_due_ns(b) : until_ns);
		}
	}
}
