/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that may block in the kernel, for the loop that must not: each is made by a helper thread
 * and ends with a callback on the loop. A queue is a thread and does its calls in order; it is
 * started when it is first needed.
 */
#ifndef CONTROL_WORK_H
#define CONTROL_WORK_H

#include <stdbool.h>
#include <sys/queue.h>

struct event_base;
struct works;

struct work {
	STAILQ_ENTRY(work) next;
	void (*run)(struct work *work);  /* helper thread: touches what belongs to the call alone */
	void (*done)(struct work *work); /* the loop's thread; may free it */
};

/* `queues` threads at most. 0 or -errno. */
int works_open(struct event_base *base, unsigned queues, struct works **ret_works);
/*
 * `work` is the helper thread's until its done() is called. Without memory for a thread the loop
 * makes the call itself. Loop's thread.
 */
void work_submit(struct works *works, unsigned queue, struct work *work);
/* Calls that were submitted and whose done() was not called yet. Loop's thread. */
unsigned works_busy(const struct works *works);
/*
 * Waits until every call was made; done() is not called any more. A call that the kernel does not
 * end aborts the engine: nothing that it uses may be freed.
 */
void works_close(struct works *works);

#endif
