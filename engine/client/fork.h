/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What fork() leaves in the child: sessions without an engine, for good. For that, the list of the
 * sessions of this process. Slow path; any thread.
 */
#ifndef CLIENT_FORK_H
#define CLIENT_FORK_H

struct pc;

/* Adds `pc` to the sessions of this process; before any thread but the caller's uses it. */
void fork_watch(struct pc *pc);
/* Removes `pc`; no other thread uses it any more. */
void fork_unwatch(struct pc *pc);

#endif
