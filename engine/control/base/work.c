/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads: each queue has a list of calls to make and a few threads; one list has the calls
 * that were made, and an eventfd tells the loop about it. work_submit() and done() run on the
 * control plane's thread, run() on a helper thread.
 */
#include "engine/control/base/work.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/base/fatal.h"
#include "numa/limit.h"

#define WORKS_CLOSE_S 10 /* at shutdown: time limit for one call to return, in s */

STAILQ_HEAD(work_list, work);

struct work_queue {
	struct works *works;
	pthread_cond_t more;
	struct work_list todo; /* calls that no thread has taken yet; protected by works->lock */
	/* number of calls in `todo` and of calls that a thread executes now; under works->lock */
	unsigned calls;
	pthread_t thread[WORK_THREADS];
	/* number of threads of this queue that were started; only the control plane uses it */
	unsigned threads;
};

struct works {
	pthread_mutex_t lock;
	/* calls that were executed and whose done() is not called yet; under the lock */
	struct work_list done;
	bool stop; /* true: the threads must end when their lists are empty; under the lock */
	unsigned threads;     /* number of helper threads that have not ended; under the lock */
	uint64_t calls_made;  /* number of calls executed since works_open(); under the lock */
	pthread_cond_t ended; /* condition that a helper thread signals when it ends */
	struct event *made;
	int fd; /* eventfd; a helper thread writes it after it added a call to `done` */
	/*
	 * number of calls submitted whose done() was not called yet; only the control plane uses it
	 */
	unsigned busy;
	unsigned queues;
	struct work_queue queue[];
};

/*
 * Waits for the next call of the queue. Returns NULL if the thread must end and the queue is empty.
 */
static struct work *work_next(struct work_queue *queue)
{
	struct works *works = queue->works;
	struct work *work;

	pthread_mutex_lock(&works->lock);
	while (!(work = STAILQ_FIRST(&queue->todo)) && !works->stop)
		pthread_cond_wait(&queue->more, &works->lock);
	if (work)
		STAILQ_REMOVE_HEAD(&queue->todo, next);
	pthread_mutex_unlock(&works->lock);
	return work;
}

static void work_made(struct work_queue *queue, struct work *work)
{
	struct works *works = queue->works;

	pthread_mutex_lock(&works->lock);
	STAILQ_INSERT_TAIL(&works->done, work, next);
	queue->calls--;
	works->calls_made++;
	pthread_mutex_unlock(&works->lock);
	(void)eventfd_write(works->fd, 1);
}

static void *work_helper_main(void *argument)
{
	struct work_queue *queue = argument;
	struct work *work;

	while ((work = work_next(queue))) {
		work->run(work);
		work_made(queue, work);
	}
	pthread_mutex_lock(&queue->works->lock);
	queue->works->threads--;
	pthread_cond_signal(&queue->works->ended);
	pthread_mutex_unlock(&queue->works->lock);
	return NULL;
}

/*
 * Starts one more helper thread of the queue, with all signals blocked, because the main thread
 * handles signals.
 */
static void work_queue_grow(struct work_queue *queue)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&queue->thread[queue->threads], NULL, work_helper_main, queue);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc) {
		log_warn(
			"cannot start a helper thread: %s; calls to NIC drivers wait for each other",
			limit_error(rc));
		return;
	}
	queue->threads++;
	pthread_mutex_lock(&queue->works->lock);
	queue->works->threads++;
	pthread_mutex_unlock(&queue->works->lock);
}

void work_submit(struct works *works, unsigned number, struct work *work)
{
	struct work_queue *queue = &works->queue[number];
	unsigned calls;

	works->busy++;
	pthread_mutex_lock(&works->lock);
	calls = ++queue->calls;
	pthread_mutex_unlock(&works->lock);
	if (calls > queue->threads && queue->threads < WORK_THREADS)
		work_queue_grow(queue);
	if (!queue->threads) {
		work->run(work);
		work_made(queue, work);
		return;
	}
	pthread_mutex_lock(&works->lock);
	STAILQ_INSERT_TAIL(&queue->todo, work, next);
	pthread_cond_signal(&queue->more);
	pthread_mutex_unlock(&works->lock);
}

unsigned works_busy(const struct works *works)
{
	return works->busy;
}

static void works_collect(evutil_socket_t fd, short what, void *context)
{
	struct works *works = context;
	struct work_list done = STAILQ_HEAD_INITIALIZER(done);
	struct work *work;
	eventfd_t count;

	(void)what;
	(void)eventfd_read(fd, &count);
	pthread_mutex_lock(&works->lock);
	STAILQ_CONCAT(&done, &works->done);
	pthread_mutex_unlock(&works->lock);
	while ((work = STAILQ_FIRST(&done))) {
		STAILQ_REMOVE_HEAD(&done, next);
		works->busy--;
		work->done(work);
	}
}

int works_open(struct event_base *base, unsigned queues, struct works **ret_works)
{
	struct works *works = calloc(1, sizeof(*works) + queues * sizeof(works->queue[0]));

	if (!works)
		return -ENOMEM;
	works->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (works->fd < 0) {
		int rc = -errno;

		free(works);
		return rc;
	}
	works->made = event_new(base, works->fd, EV_READ | EV_PERSIST, works_collect, works);
	if (!works->made || event_add(works->made, NULL)) {
		if (works->made)
			event_free(works->made);
		close(works->fd);
		free(works);
		return -ENOMEM;
	}
	pthread_mutex_init(&works->lock, NULL);
	pthread_cond_init(&works->ended, NULL);
	STAILQ_INIT(&works->done);
	works->queues = queues;
	for (unsigned i = 0; i < queues; i++) {
		works->queue[i].works = works;
		pthread_cond_init(&works->queue[i].more, NULL);
		STAILQ_INIT(&works->queue[i].todo);
	}
	*ret_works = works;
	return 0;
}

/*
 * Ends the helper threads. Aborts the engine if no call returns for WORKS_CLOSE_S: memory that a
 * driver call uses cannot be freed.
 */
static void works_helpers_end(struct works *works)
{
	pthread_mutex_lock(&works->lock);
	works->stop = true;
	for (unsigned i = 0; i < works->queues; i++)
		pthread_cond_broadcast(&works->queue[i].more);
	while (works->threads) {
		uint64_t made = works->calls_made;
		struct timespec until;

		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += WORKS_CLOSE_S;
		if (pthread_cond_clockwait(&works->ended, &works->lock, CLOCK_MONOTONIC, &until) &&
			made == works->calls_made)
			engine_abort(
				"stopping: a call to the driver of a NIC has not returned in %d s",
				WORKS_CLOSE_S);
	}
	pthread_mutex_unlock(&works->lock);
}

void works_close(struct works *works)
{
	works_helpers_end(works);
	for (unsigned i = 0; i < works->queues; i++) {
		for (unsigned t = 0; t < works->queue[i].threads; t++)
			pthread_join(works->queue[i].thread[t], NULL);
		pthread_cond_destroy(&works->queue[i].more);
	}
	event_free(works->made);
	close(works->fd);
	pthread_cond_destroy(&works->ended);
	pthread_mutex_destroy(&works->lock);
	free(works);
}
