/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads: a list of calls and a thread a queue, one list of those that were made, and an
 * eventfd that tells the loop. work_submit() and done() are the loop's, run() the helpers'.
 */
#include "engine/control/work.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/fatal.h"

#define WORKS_CLOSE_S 10

STAILQ_HEAD(work_list, work);

struct work_queue {
	struct works *works;
	pthread_t thread;
	pthread_cond_t more;
	struct work_list todo; /* under works->lock */
	bool running;          /* the loop's own */
};

struct works {
	pthread_mutex_t lock;
	struct work_list done; /* under the lock */
	bool stop;             /* under the lock */
	unsigned threads;      /* that have not ended; under the lock */
	pthread_cond_t ended;
	struct event *made;
	int fd; /* eventfd: there may be something in `done` */
	unsigned busy;
	unsigned queues;
	struct work_queue queue[];
};

/* NULL: the thread ends, and its list is empty. */
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

static void work_made(struct works *works, struct work *work)
{
	pthread_mutex_lock(&works->lock);
	STAILQ_INSERT_TAIL(&works->done, work, next);
	pthread_mutex_unlock(&works->lock);
	(void)eventfd_write(works->fd, 1);
}

static void *helper(void *argument)
{
	struct work_queue *queue = argument;
	struct work *work;

	while ((work = work_next(queue))) {
		work->run(work);
		work_made(queue->works, work);
	}
	pthread_mutex_lock(&queue->works->lock);
	queue->works->threads--;
	pthread_cond_signal(&queue->works->ended);
	pthread_mutex_unlock(&queue->works->lock);
	return NULL;
}

/* With all signals blocked: they are the main thread's. */
static bool queue_start(struct work_queue *queue)
{
	sigset_t all, before;
	int rc;

	if (queue->running)
		return true;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&queue->thread, NULL, helper, queue);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc)
		log_warn("no helper thread: error %d; the control plane waits for the kernel "
			 "itself", rc);
	queue->running = rc == 0;
	pthread_mutex_lock(&queue->works->lock);
	queue->works->threads += queue->running;
	pthread_mutex_unlock(&queue->works->lock);
	return queue->running;
}

void work_submit(struct works *works, unsigned number, struct work *work)
{
	struct work_queue *queue = &works->queue[number];

	works->busy++;
	if (!queue_start(queue)) {
		work->run(work);
		work_made(works, work);
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

static void collect(evutil_socket_t fd, short what, void *context)
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
	works->made = event_new(base, works->fd, EV_READ | EV_PERSIST, collect, works);
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

/* In the driver for too long: what it uses cannot be freed. */
static void helpers_end(struct works *works)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += WORKS_CLOSE_S;
	pthread_mutex_lock(&works->lock);
	works->stop = true;
	for (unsigned i = 0; i < works->queues; i++)
		pthread_cond_signal(&works->queue[i].more);
	while (works->threads)
		if (pthread_cond_clockwait(
			    &works->ended, &works->lock, CLOCK_MONOTONIC, &until))
			engine_abort("stopping: a call to a NIC's driver has not come back in "
				     "%d s", WORKS_CLOSE_S);
	pthread_mutex_unlock(&works->lock);
}

void works_close(struct works *works)
{
	helpers_end(works);
	for (unsigned i = 0; i < works->queues; i++) {
		if (works->queue[i].running)
			pthread_join(works->queue[i].thread, NULL);
		pthread_cond_destroy(&works->queue[i].more);
	}
	event_free(works->made);
	close(works->fd);
	pthread_cond_destroy(&works->ended);
	pthread_mutex_destroy(&works->lock);
	free(works);
}
