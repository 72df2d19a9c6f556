/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs calls that may block in the kernel, because the loop must not block. A helper thread makes
 * each call; a callback on the control plane's thread reports that it was made. A queue has up to
 * WORK_THREADS threads, started when they are needed: its calls start in order, and a blocked call
 * does not delay the next one while a thread is free.
 */
#ifndef CONTROL_WORK_H
#define CONTROL_WORK_H

#include <stdbool.h>
#include <sys/queue.h>

struct event_base;
struct works;

struct work {
	STAILQ_ENTRY(work) next;
	/*
	 * the call itself; runs on a helper thread; may only touch data that belongs to this call
	 */
	void (*run)(struct work *work);
	/* called by the control plane after run() has returned; may free `work` */
	void (*done)(struct work *work);
};

#define WORK_THREADS 4u /* maximum number of helper threads of one queue */

/*
 * Opens `queues` queues of calls, numbered from 0. Returns 0 or -errno. The control plane calls it.
 */
int works_open(struct event_base *base, unsigned queues, struct works **ret_works);
/*
 * Queues a call. `work` belongs to the helper thread until done() is called. If no thread can be
 * started, the control plane makes the call itself. Runs on the control plane's thread.
 */
void work_submit(struct works *works, unsigned queue, struct work *work);
/*
 * Returns the number of calls that were submitted and whose done() was not called yet. The control
 * plane calls it.
 */
unsigned works_busy(const struct works *works);
/*
 * Waits until every call was made; done() is not called any more. If no call returns for 10 s the
 * engine is aborted, because the memory that a call uses in the kernel must not be freed. A run()
 * that need not do its work any more has to check that itself. Runs on the control plane's thread.
 */
void works_close(struct works *works);

#endif
