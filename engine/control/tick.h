/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heartbeat of this engine: every cluster.heartbeat_ms, members, links and directory do what is
 * due, in this order. Control plane's thread only.
 */
#ifndef CONTROL_TICK_H
#define CONTROL_TICK_H

struct control;

/* Starts the heartbeats, when members, links and directory are open. Returns 0 or -ENOMEM. */
int tick_open(struct control *control);
void tick_close(struct control *control);

#endif
