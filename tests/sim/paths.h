/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkers of connections: a path is one rail of a node towards one other node. They know all
 * NICs and rails. One thread.
 */
#ifndef TESTS_SIM_PATHS_H
#define TESTS_SIM_PATHS_H

/* From now on all paths are looked at all the time. */
void paths_watch(void);
/*
 * In the end, without a fault and without an open call: the books of rails, connections and QPs.
 * Then the engines end their connections, one after another, as they do when they stop.
 */
void paths_judge(void);

#endif
