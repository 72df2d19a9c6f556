/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wakes clients and the control plane. Contains system calls, so the poll core calls it between the
 * steps of its rails, never within a step.
 */
#include <unistd.h>

#include "engine/rail/core.h"

static void kick(int fd)
{
	uint64_t one = 1;
	ssize_t n = write(fd, &one, sizeof(one));

	/* the write fails only if the eventfd is full; it is readable then, so it wakes the
	 * control plane as well */
	(void)n;
}

static void wake_client(struct rail_channel *channel)
{
	/* First a load, then the exchange: a load of 0 leaves the flag's cache line with the
	 * client's core. */
	if (shm_load(channel->client_waits) && shm_exchange(channel->client_waits, 0))
		client_wake(channel->wake);
}

void rail_wake(struct rail *rail)
{
	rail->news = false;
	for (unsigned i = 0; i < CHANNELS_MAX / 64; i++) {
		uint64_t left = rail->wake[i];

		rail->wake[i] = 0;
		for (; left; left &= left - 1)
			wake_client(
				rail->channel[i * 64 + (unsigned)__builtin_ctzll(left)].channel);
	}
	if (unlikely(rail->events_sent)) {
		rail->events_sent = false;
		if (shm_load(&rail->options.status->control_sleeps))
			kick(rail->options.control_kick);
	}
}
