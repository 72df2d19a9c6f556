/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the kernel allocate the memory that clients map, for the engine and in the background. The
 * control plane's thread calls these functions.
 */
#ifndef CONTROL_POPULATE_H
#define CONTROL_POPULATE_H

struct control;

/* Starts the thread; pools and shard are open. Returns 0 or -errno. */
int populate_open(struct control *control);
/*
 * Takes the end of the thread, once: the memory is populated, or control->failed is set. Returns 1
 * then, else 0.
 */
unsigned populate_turn(struct control *control);
/* Ends the thread, at most one step of it later. The memory may be closed after it. */
void populate_close(struct control *control);

#endif
