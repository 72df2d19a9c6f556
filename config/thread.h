/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a helper thread: one that handles no signals, which are for the threads of the program. A
 * thread that wants a name sets it itself. Any thread.
 */
#ifndef CONFIG_THREAD_H
#define CONFIG_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/*
 * Calls run(context) in a new thread with all signals blocked, which the caller joins. Returns 0 or
 * -errno of pthread_create(); *ret_thread is then undefined.
 */
static inline int thread_start(pthread_t *ret_thread, void *(*run)(void *), void *context)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = -pthread_create(ret_thread, NULL, run, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return rc;
}

#endif
