/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel of the clients of a simulated host, as client_channel.c makes it: ctl.c serves its
 * rings, and warm.c looks after it when the process has ended. A client outlives its engine. One
 * thread.
 */
#ifndef TESTS_SIM_CHANNEL_H
#define TESTS_SIM_CHANNEL_H

#include <stdint.h>

#include "tests/sim/pages.h"

struct channel;
struct ctl_op;

/* The clients attach to a process that has just started. */
void channel_open(unsigned node);
/* The process has ended, however: nothing is returned to its pools. */
void channel_close(unsigned node);
/*
 * Puts an op into the ctl ring and wakes the engine. Returns the entry in the ring, which the
 * client may change until the engine takes it; NULL: the ring is full.
 */
struct ctl_op *channel_put(unsigned node, const struct ctl_op *op);
/* The engine has not taken this entry. */
bool channel_has(unsigned node, const struct ctl_op *entry);
/* The process has made a turn: the client is woken if there are answers. */
void channel_look(unsigned node);

/*
 * A client begins to write into a slot, which it has a credit for, and ends that. NULL: another one
 * of the channel is writing, or the engine has ended the channel.
 */
struct channel *channel_enter(unsigned node, uint32_t place, uint32_t generation);
void channel_leave(struct channel *channel);
/* Writes all of a page. Returns the CRC. */
uint32_t channel_write(struct channel *channel, uint32_t place, const struct content *content);
void channels_free(void);

#endif
