/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs calls that may block in the kernel, because the loop must not block. Helper threads make
 * each call; a callback on the control plane's thread reports that it was made. A queue has a
 * number of threads, started when they are needed: its calls start in order, and a blocked call
 * does not delay the next one while a thread is free.
 *
 * A call may have many parts, such as the registrations of one large region. All threads of its
 * queue work on them, and calls with parts left take turns.
 */
#ifndef CONTROL_WORK_H
#define CONTROL_WORK_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct event_base;
struct works;

struct work {
	STAILQ_ENTRY(work) next;
	unsigned parts; /* number of times that run() is called; 0 stands for 1 */
	/*
	 * one part of the call, 0 .. parts - 1; runs on a helper thread, beside other parts; may
	 * only touch data that belongs to this call
	 */
	void (*run)(struct work *work, unsigned part);
	/*
	 * NULL, or the end of the call: runs when no part is left, on the thread that made the last
	 * one or called work_cancel()
	 */
	void (*end)(struct work *work);
	/* called by the control plane after all of that; may free `work` */
	void (*done)(struct work *work);
	unsigned taken, returned; /* parts; work.c's */
};

#define WORK_THREADS_MAX 16u /* maximum number of helper threads of one queue */

struct works_options {
	const char *name;       /* of the threads, for perf and the log; at most 15 characters */
	unsigned queues;        /* number of queues, numbered from 0 */
	unsigned threads;       /* maximum number of threads of each queue: 1 .. WORK_THREADS_MAX */
	const cpu_set_t *cores; /* where the threads may run; NULL: where their starter may */
	/*
	 * works_close() aborts the engine when no call returns for this time, because the memory
	 * that a call uses in the kernel must not be freed; 0: it waits as long as calls take
	 */
	unsigned limit_s;
};

/* Returns 0 or -errno. The control plane calls it. */
int works_open(
	struct event_base *base, const struct works_options *options, struct works **ret_works);
/*
 * Queues a call. `work` belongs to the helper threads until done() is called. If no thread can be
 * started, the control plane makes the call itself. Runs on the control plane's thread.
 */
void work_submit(struct works *works, unsigned queue, struct work *work);
/*
 * Skips the parts that no thread has taken; those in progress end. Returns how many were skipped.
 * The control plane calls it before done(), or run() for its own call.
 */
unsigned work_cancel(struct works *works, unsigned queue, struct work *work);
/*
 * Returns the number of calls that were submitted and whose done() was not called yet. The control
 * plane calls it.
 */
unsigned works_busy(const struct works *works);
/*
 * Waits until every call that was submitted is made, for at most `ns`. Returns whether all are.
 * works_turn() calls their done(), as the event loop does. The control plane calls both.
 */
bool works_wait(struct works *works, uint64_t ns);
void works_turn(struct works *works);
/*
 * Waits until every call was made; done() is not called any more. A run() that need not do its work
 * any more has to check that itself. Runs on the control plane's thread. NULL is ignored.
 */
void works_close(struct works *works);

#endif
