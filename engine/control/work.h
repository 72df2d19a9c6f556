/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that may block in the kernel, for the loop that must not: each is made by a helper thread
 * and ends with a callback on the loop. A queue has a few threads, started when they are needed:
 * its calls begin in order, and one that blocks does not keep the next from beginning.
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

#define WORK_THREADS 4u /* of a queue */

/* 0 or -errno. */
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
 * end in 10 s aborts the engine: nothing that it uses may be freed. What need not be made any more
 * is for run() to know.
 */
void works_close(struct works *works);

#endif
