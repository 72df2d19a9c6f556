/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper threads: each queue has a list of calls with parts to make and a few threads; one list has
 * the calls that were made, and an eventfd tells the loop about it. work_submit() and done() run on
 * the control plane's thread, run() on a helper thread.
 */
#include "engine/control/base/work.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "config/log.h"
#include "config/thread.h"
#include "engine/control/base/fatal.h"
#include "numa/limit.h"

STAILQ_HEAD(work_list, work);

struct work_queue {
	struct works *works;
	pthread_cond_t more;
	struct work_list todo; /* calls with parts that no thread has taken; under works->lock */
	/* number of parts that wait or that a thread makes now; under works->lock */
	unsigned parts;
	pthread_t thread[WORK_THREADS_MAX];
	/* number of threads of this queue that were started; only the control plane uses it */
	unsigned threads;
};

struct works {
	pthread_mutex_t lock;
	/* calls that were made and whose done() is not called yet; under the lock */
	struct work_list done;
	bool stop; /* true: the threads must end when their lists are empty; under the lock */
	unsigned threads;     /* number of helper threads that have not ended; under the lock */
	uint64_t parts_made;  /* number of parts made since works_open(); under the lock */
	unsigned unmade;      /* number of calls that are not in `done` yet; under the lock */
	pthread_cond_t ended; /* a thread has ended, or no call is unmade */
	struct event *made;
	int fd; /* eventfd; a helper thread writes it after it added a call to `done` */
	/*
	 * number of calls submitted whose done() was not called yet; only the control plane uses it
	 */
	unsigned busy;
	const char *name;
	cpu_set_t cores;
	bool cores_given;
	unsigned limit_s, threads_max;
	unsigned queues;
	struct work_queue queue[];
};

static unsigned work_parts(const struct work *work)
{
	return work->parts ? work->parts : 1;
}

/*
 * Waits for the next part. Returns NULL if the thread must end and the queue is empty. Calls with
 * parts left go to the end of the queue, so that they take turns.
 */
static struct work *work_next(struct work_queue *queue, unsigned *ret_part)
{
	struct works *works = queue->works;
	struct work *work;

	pthread_mutex_lock(&works->lock);
	while (!(work = STAILQ_FIRST(&queue->todo)) && !works->stop)
		pthread_cond_wait(&queue->more, &works->lock);
	if (work) {
		*ret_part = work->taken++;
		STAILQ_REMOVE_HEAD(&queue->todo, next);
		if (work->taken < work_parts(work))
			STAILQ_INSERT_TAIL(&queue->todo, work, next);
	}
	pthread_mutex_unlock(&works->lock);
	return work;
}

/* Books parts as made or skipped. True: no part is left, and the caller ends the call. */
static bool work_return(struct work_queue *queue, struct work *work, unsigned parts)
{
	queue->parts -= parts;
	queue->works->parts_made += parts;
	work->returned += parts;
	return work->returned == work_parts(work);
}

static void work_end(struct works *works, struct work *work)
{
	if (work->end)
		work->end(work);
	pthread_mutex_lock(&works->lock);
	STAILQ_INSERT_TAIL(&works->done, work, next);
	if (--works->unmade == 0)
		pthread_cond_broadcast(&works->ended);
	pthread_mutex_unlock(&works->lock);
	(void)eventfd_write(works->fd, 1);
}

/* Makes one part. The last one ends the call, which belongs to the control plane afterwards. */
static void work_make(struct work_queue *queue, struct work *work, unsigned part)
{
	struct works *works = queue->works;
	bool last;

	work->run(work, part);
	pthread_mutex_lock(&works->lock);
	last = work_return(queue, work, 1);
	pthread_mutex_unlock(&works->lock);
	if (last)
		work_end(works, work);
}

static void *work_helper_main(void *argument)
{
	struct work_queue *queue = argument;
	struct works *works = queue->works;
	struct work *work;
	unsigned part;

	pthread_setname_np(pthread_self(), works->name);
	/* if the kernel refuses this, the thread runs on the cores of the control plane */
	if (works->cores_given)
		(void)sched_setaffinity(0, sizeof(works->cores), &works->cores);
	while ((work = work_next(queue, &part)))
		work_make(queue, work, part);
	pthread_mutex_lock(&works->lock);
	works->threads--;
	pthread_cond_broadcast(&works->ended);
	pthread_mutex_unlock(&works->lock);
	return NULL;
}

/* Starts one more helper thread of the queue. Returns false if the kernel refuses it. */
static bool work_queue_grow(struct work_queue *queue)
{
	struct works *works = queue->works;
	int rc;

	pthread_mutex_lock(&works->lock);
	rc = thread_start(&queue->thread[queue->threads], work_helper_main, queue);
	works->threads += rc == 0;
	pthread_mutex_unlock(&works->lock);
	if (rc)
		log_warn("%s: cannot start a helper thread: %s; %s", works->name, limit_error(-rc),
			queue->threads ? "calls wait for each other"
				       : "the control plane makes the calls, which delays all");
	queue->threads += rc == 0;
	return rc == 0;
}

void work_submit(struct works *works, unsigned number, struct work *work)
{
	struct work_queue *queue = &works->queue[number];
	unsigned parts;

	work->taken = work->returned = 0;
	works->busy++;
	pthread_mutex_lock(&works->lock);
	works->unmade++;
	parts = queue->parts += work_parts(work);
	pthread_mutex_unlock(&works->lock);
	while (queue->threads < parts && queue->threads < works->threads_max)
		if (!work_queue_grow(queue))
			break;
	pthread_mutex_lock(&works->lock);
	STAILQ_INSERT_TAIL(&queue->todo, work, next);
	pthread_cond_broadcast(&queue->more);
	pthread_mutex_unlock(&works->lock);
	if (queue->threads)
		return;
	while (!STAILQ_EMPTY(&queue->todo)) {
		unsigned part;
		struct work *next = work_next(queue, &part);

		work_make(queue, next, part);
	}
}

unsigned work_cancel(struct works *works, unsigned number, struct work *work)
{
	struct work_queue *queue = &works->queue[number];
	unsigned skipped;
	bool last = false;

	pthread_mutex_lock(&works->lock);
	skipped = work_parts(work) - work->taken;
	if (skipped) {
		STAILQ_REMOVE(&queue->todo, work, work, next);
		work->taken += skipped;
		last = work_return(queue, work, skipped);
	}
	pthread_mutex_unlock(&works->lock);
	if (last)
		work_end(works, work);
	return skipped;
}

unsigned works_busy(const struct works *works)
{
	return works->busy;
}

/* Waits for `ended` until that time. False: it has come. Under the lock. */
static bool works_sleep(struct works *works, const struct timespec *until)
{
	return pthread_cond_clockwait(&works->ended, &works->lock, CLOCK_MONOTONIC, until) == 0;
}

bool works_wait(struct works *works, uint64_t ns)
{
	struct timespec until;
	bool made;

	clock_gettime(CLOCK_MONOTONIC, &until);
	ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(ns / 1000000000);
	until.tv_nsec = (long)(ns % 1000000000);
	pthread_mutex_lock(&works->lock);
	while (works->unmade && works_sleep(works, &until))
		;
	made = works->unmade == 0;
	pthread_mutex_unlock(&works->lock);
	return made;
}

/* One call after the other: a done() may close other works, and submit calls to these. */
void works_turn(struct works *works)
{
	unsigned calls = works->busy;

	while (calls--) {
		struct work *work;

		pthread_mutex_lock(&works->lock);
		work = STAILQ_FIRST(&works->done);
		if (work)
			STAILQ_REMOVE_HEAD(&works->done, next);
		pthread_mutex_unlock(&works->lock);
		if (!work)
			return;
		works->busy--;
		work->done(work);
	}
}

static void works_collect(evutil_socket_t fd, short what, void *context)
{
	eventfd_t count;

	(void)what;
	(void)eventfd_read(fd, &count);
	works_turn(context);
}

int works_open(
	struct event_base *base, const struct works_options *options, struct works **ret_works)
{
	struct works *works = calloc(1, sizeof(*works) + options->queues * sizeof(works->queue[0]));

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
	works->name = options->name;
	works->limit_s = options->limit_s;
	works->queues = options->queues;
	works->threads_max = options->threads;
	if (options->cores) {
		works->cores = *options->cores;
		works->cores_given = true;
	}
	for (unsigned i = 0; i < works->queues; i++) {
		works->queue[i].works = works;
		pthread_cond_init(&works->queue[i].more, NULL);
		STAILQ_INIT(&works->queue[i].todo);
	}
	*ret_works = works;
	return 0;
}

/* Ends the helper threads, or the engine: see limit_s. */
static void works_helpers_end(struct works *works)
{
	pthread_mutex_lock(&works->lock);
	works->stop = true;
	for (unsigned i = 0; i < works->queues; i++)
		pthread_cond_broadcast(&works->queue[i].more);
	while (works->threads) {
		uint64_t made = works->parts_made;
		struct timespec until;

		if (!works->limit_s) {
			pthread_cond_wait(&works->ended, &works->lock);
			continue;
		}
		clock_gettime(CLOCK_MONOTONIC, &until);
		until.tv_sec += works->limit_s;
		if (!works_sleep(works, &until) && made == works->parts_made)
			engine_abort("stopping: %s: a call has not returned in %u s", works->name,
				works->limit_s);
	}
	pthread_mutex_unlock(&works->lock);
}

void works_close(struct works *works)
{
	if (!works)
		return;
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
