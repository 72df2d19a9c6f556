/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extension module as it is, but a test may hold the close of a channel and see whether the
 * counts of a channel are read meanwhile. The linker puts these calls before the library's
 * (--wrap). Any thread.
 */
#include "engine/client/peercache.h"

#include <stdatomic.h>
#include <unistd.h>

/* Set by the test: closes wait. Set here: closes that wait; channels whose counts were read. */
PC_API atomic_int held_hold, held_waits, held_counted;

void __real_pc_channel_close(struct pc_channel *channel);
void __wrap_pc_channel_close(struct pc_channel *channel);
void __real_pc_channel_counts(const struct pc_channel *channel, struct pc_counts *ret_counts);
void __wrap_pc_channel_counts(const struct pc_channel *channel, struct pc_counts *ret_counts);

void __wrap_pc_channel_close(struct pc_channel *channel)
{
	held_waits++;
	while (held_hold)
		usleep(1000);
	held_waits--;
	__real_pc_channel_close(channel);
}

void __wrap_pc_channel_counts(const struct pc_channel *channel, struct pc_counts *ret_counts)
{
	held_counted += held_waits > 0;
	__real_pc_channel_counts(channel, ret_counts);
}
