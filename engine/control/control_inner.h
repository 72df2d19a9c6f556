/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of engine/control itself have for each other: steps of control_open(), and what
 * each turn of the loop calls. An open function that fails has undone its own work and returns
 * -errno. Control plane's thread only. The state of the loop is in loop.h.
 */
#ifndef CONTROL_CONTROL_INNER_H
#define CONTROL_CONTROL_INNER_H

#include "engine/control/net/rpc.h"

struct control;

/* ---- control_memory.c ------------------------------------------------------------------------ */

int memory_status_open(struct control *control);
int memory_pools_open(struct control *control);
int memory_shard_open(struct control *control);
/* Starts the registration of the engine's memory on all NICs. */
int memory_export(struct control *control);
/*
 * Waits a short time for it. If it is done, listens for other engines and dials the seeds. If not,
 * the event loop does that later, and memory_export_tell() logs that it takes long.
 */
int memory_export_wait(struct control *control);
void memory_export_tell(struct control *control);
void memory_status_close(struct control *control);
void memory_pools_close(struct control *control);
void memory_shard_close(struct control *control);
void memory_unexport(struct control *control);

/*
 * Helper threads make the kernel allocate the memory that clients map, and give way to other work.
 * If they cannot, control->failed is set. populate_tell() reports how far they are.
 */
int populate_open(struct control *control);
void populate_tell(struct control *control);
/* Ends that, at most one step of it later. The memory may be closed after it. */
void populate_close(struct control *control);

/* ---- upward.c ------------------------------------------------------------------------------- */

/* Stores what each room calls of rooms above it. Comes before all open functions of rooms. */
void upward_fill(struct control *control);

/* ---- tick.c: the heartbeat, every cluster.heartbeat_ms --------------------------------------- */

/* Starts the heartbeats, when members, links and directory are open. Returns 0 or -ENOMEM. */
int tick_open(struct control *control);
void tick_close(struct control *control);

/* ---- test_hooks.c: test.fault_file and test.clock_file --------------------------------------- */

/* Returns 0 or a negative errno; then nothing stays open. */
int test_hooks_open(struct control *control);
void test_hooks_close(struct control *control);

#endif
