/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The helper threads: they register and deregister client memory while the loop goes on, because
 * that can take minutes, and a call to the driver of a dying NIC may never return. Small memory and
 * staging memory have threads of their own, so that channels can be opened meanwhile. A region
 * belongs to the threads from helper_submit() until helper_collect(). The threads take MRs (one for
 * each extent on each NIC) one by one, so that all threads work on one large region and several
 * regions take turns. Threads are started when they are first needed.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/clients/client.h"
#include "numa/clock.h"
#include "numa/limit.h"

static bool is_registering(const struct region *r)
{
	return r->state == REGION_REGISTERING;
}

/* ---- the queue of regions, under the lock ---------------------------------------------------- */

static void queue_append(struct client_helper *h, struct region *r)
{
	r->next = NULL;
	if (h->first)
		h->last->next = r;
	else
		h->first = r;
	h->last = r;
}

static void queue_remove(struct client_helper *h, struct region *r)
{
	struct region *previous = NULL;

	for (struct region *at = h->first; at && at != r; at = at->next)
		previous = at;
	if (previous)
		previous->next = r->next;
	else
		h->first = r->next;
	if (h->last == r)
		h->last = previous;
}

static void finish(struct client_helper *h, struct region *r)
{
	r->next = h->done;
	h->done = r;
	shm_store(&h->done_flag, 1);
}

/*
 * Marks the MRs that no thread has taken as done. True: no thread is working on the others either,
 * so the region is finished.
 */
static bool skip_rest(struct client_helper *h, struct region *r)
{
	if (r->mrs_next < r->mrs) {
		queue_remove(h, r);
		r->mrs_done += r->mrs - r->mrs_next;
		r->mrs_next = r->mrs;
	}
	return r->mrs_done == r->mrs;
}

/* ---- the helper threads' side ---------------------------------------------------------------- */

/*
 * Waits for the next MR to register or deregister. Returns NULL if the thread must end and no
 * region is queued.
 */
static struct region *helper_next(struct client_helper *h, unsigned *ret_mr)
{
	struct region *r;

	pthread_mutex_lock(&h->lock);
	while (!h->first && !h->stop)
		pthread_cond_wait(&h->more, &h->lock);
	r = h->first;
	if (r) {
		*ret_mr = r->mrs_next++;
		queue_remove(h, r);
		if (r->mrs_next < r->mrs)
			/* append the region at the end of the queue, so that regions take turns */
			queue_append(h, r);
	}
	pthread_mutex_unlock(&h->lock);
	return r;
}

/* Whether a log line about a long registration is due; writes the line to `text` if so. */
static bool progress_due(struct region *r, char *text, size_t bytes)
{
	uint64_t now_ns = clock_now_ns();

	if (!is_registering(r) || r->mrs_done == r->mrs || now_ns - r->told_ns < CLIENT_TELL_NS)
		return false;
	r->told_ns = now_ns;
	snprintf(text, bytes,
		"registering %.1f GiB of process %d: %u of %u registrations done after %u s",
		(double)r->length / (1u << 30), (int)r->session->pid, r->mrs_done, r->mrs,
		(unsigned)((now_ns - r->began_ns) / 1000000000));
	return true;
}

/*
 * Unmaps a region that is deregistered on all NICs. Done on the helper thread, because it takes the
 * kernel seconds for some hundred GB that a NIC has touched. No other thread uses the region here.
 */
static void unmap(struct region *r)
{
	if (is_registering(r) || r->result < 0 || !r->map)
		return;
	munmap(r->map, r->map_bytes);
	r->map = NULL;
	/*
	 * If the client has exited, this is the last reference to the memfd, so the kernel frees
	 * its memory here.
	 */
	close(r->memfd);
	r->memfd = -1;
}

static void *helper_main(void *context)
{
	struct client_helper *h = context;
	struct control *control = h->control;
	struct region *r;
	unsigned mr;

	/* if the kernel refuses this, the helper thread runs on the control plane's cores */
	sched_setaffinity(0, sizeof(h->cores), &h->cores);
	while ((r = helper_next(h, &mr)) != NULL) {
		char why[sizeof(r->text)], progress[160];
		int rc = region_mr_work(control, r, mr, why, sizeof(why));
		bool tell, done;

		pthread_mutex_lock(&h->lock);
		r->mrs_done++;
		if (rc < 0 && r->result == 0) {
			r->result = rc;
			snprintf(r->text, sizeof(r->text), "%s", why);
		}
		done = rc < 0 && is_registering(r) ? skip_rest(h, r) : r->mrs_done == r->mrs;
		tell = progress_due(r, progress, sizeof(progress));
		pthread_mutex_unlock(&h->lock);
		if (tell)
			log_info("clients: %s", progress);
		if (!done)
			continue;
		unmap(r);
		pthread_mutex_lock(&h->lock);
		finish(h, r);
		pthread_mutex_unlock(&h->lock);
		(void)eventfd_write(control->kick, 1);
	}
	return NULL;
}

/* ---- the loop's side ------------------------------------------------------------------------- */

/* Starts one helper thread with all signals blocked, because the main thread handles signals. */
static int helper_start(struct client_helper *h)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&h->thread[h->threads], NULL, helper_main, h);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	h->threads += rc == 0;
	return -rc;
}

static struct client_helper *helper_of(struct clients *clients, const struct region *r)
{
	return r->staging_of || r->length <= CLIENT_SMALL_BYTES ? &clients->small : &clients->large;
}

int helper_submit(struct control *control, struct region *r)
{
	struct client_helper *h = helper_of(control->clients, r);
	int rc = 0;

	if (h->stop)
		return -ESHUTDOWN;
	while (h->threads < h->threads_max && h->threads < r->mrs && rc == 0)
		rc = helper_start(h);
	if (h->threads == 0) {
		log_warn(
			"clients: cannot start a helper thread: %s; the control plane registers memory on its own thread, which delays other clients",
			limit_error(rc));
		return rc;
	}
	pthread_mutex_lock(&h->lock);
	r->mrs_next = r->mrs_done = 0;
	r->began_ns = r->told_ns = clock_now_ns();
	queue_append(h, r);
	pthread_cond_broadcast(&h->more);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

void helper_cancel(struct control *control, struct region *r)
{
	struct client_helper *h = helper_of(control->clients, r);

	pthread_mutex_lock(&h->lock);
	if (r->mrs_next < r->mrs && r->result == 0) {
		r->result = -ECANCELED;
		snprintf(r->text, sizeof(r->text), "the session ended");
		if (skip_rest(h, r)) {
			finish(h, r);
			(void)eventfd_write(control->kick, 1);
		}
	}
	pthread_mutex_unlock(&h->lock);
}

struct region *helper_collect(struct client_helper *h)
{
	struct region *r;

	pthread_mutex_lock(&h->lock);
	r = h->done;
	if (r)
		h->done = r->next;
	else
		shm_store(&h->done_flag, 0);
	pthread_mutex_unlock(&h->lock);
	return r;
}

/*
 * Called before the control plane's thread is pinned. The helpers may use the cores that the
 * process has now except poll cores, or all of them if nothing is left.
 */
void helper_open(struct control *control, struct client_helper *h, unsigned threads)
{
	cpu_set_t all;

	h->control = control;
	h->threads_max = threads;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->more, NULL);
	CPU_ZERO(&all);
	(void)sched_getaffinity(0, sizeof(all), &all);
	h->cores = all;
	for (unsigned i = 0; i < control->rails; i++)
		if (control->plan.rail[i].core >= 0)
			CPU_CLR((size_t)control->plan.rail[i].core, &h->cores);
	if (CPU_COUNT(&h->cores) == 0)
		h->cores = all;
}

void helper_stop(struct client_helper *h)
{
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	pthread_cond_broadcast(&h->more);
	pthread_mutex_unlock(&h->lock);
	while (h->threads)
		pthread_join(h->thread[--h->threads], NULL);
}

void helper_close(struct client_helper *h)
{
	pthread_cond_destroy(&h->more);
	pthread_mutex_destroy(&h->lock);
}
