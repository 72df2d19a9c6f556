/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of all commands to the rails. A command whose rail has no room in its inbox waits here,
 * so that the commands to one rail keep their order. Control plane's thread only.
 */
#ifndef CONTROL_OUTBOX_H
#define CONTROL_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>

struct control;
struct rail_command;

/* The commands that wait for one rail: `count` of them, the oldest one is number `first`. */
struct outbox {
	struct rail_command *command;
	size_t first, count, room;
};

/*
 * Sends the command now or, in order, as soon as the rail's inbox has room. False, after logging
 * it: there is no memory to keep it.
 */
bool outbox_send(struct control *control, unsigned rail, const struct rail_command *command);
/* True when all commands of outbox_send() are in the rails' inboxes. */
bool outbox_empty(const struct control *control);
/*
 * Moves commands to inboxes that have room; each turn of the control plane calls it. Returns how
 * many it moved.
 */
unsigned outbox_flush(struct control *control);
/* Drops the commands that wait, for a control plane whose rails have ended. */
void outbox_close(struct control *control);

#endif
