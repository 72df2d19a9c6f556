/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The helper thread: registers and deregisters large client memory, which can take seconds, while
 * the loop goes on. It owns a region from helper_submit() until helper_collect() and touches
 * nothing else. Started when it is first needed.
 */
#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>

#include "config/log.h"
#include "engine/control/attach.h"


/* The next region to work on; NULL: the thread ends, and the list is empty. */
static struct region *helper_next(struct attach_helper *h)
{
	struct region *r;

	pthread_mutex_lock(&h->lock);
	while (!h->first && !h->stop)
		pthread_cond_wait(&h->more, &h->lock);
	r = h->first;
	if (r)
		h->first = r->next;
	pthread_mutex_unlock(&h->lock);
	return r;
}

static void *helper_main(void *context)
{
	struct control *control = context;
	struct attach_helper *h = &control->attach->helper;
	struct region *r;

	while ((r = helper_next(h)) != NULL) {
		region_work(control, r);
		pthread_mutex_lock(&h->lock);
		r->next = h->done;
		h->done = r;
		shm_store(&h->done_flag, 1);
		pthread_mutex_unlock(&h->lock);
		(void)eventfd_write(control->kick, 1);
	}
	return NULL;
}

/* With all signals blocked: they are the main thread's. */
static int helper_start(struct control *control, struct attach_helper *h)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&h->thread, NULL, helper_main, control);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	h->running = rc == 0;
	return -rc;
}

int helper_submit(struct control *control, struct region *r)
{
	struct attach_helper *h = &control->attach->helper;
	int rc = 0;

	if (h->stop)
		return -ESHUTDOWN;
	if (!h->running)
		rc = helper_start(control, h);
	if (rc < 0) {
		log_warn("clients: no helper thread: error %d; large memory is registered on the "
			 "control plane's own", -rc);
		return rc;
	}
	r->next = NULL;
	pthread_mutex_lock(&h->lock);
	if (h->first)
		h->last->next = r;
	else
		h->first = r;
	h->last = r;
	pthread_cond_signal(&h->more);
	pthread_mutex_unlock(&h->lock);
	return 0;
}

struct region *helper_collect(struct attach_helper *h)
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

void helper_open(struct attach_helper *h)
{
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->more, NULL);
}

void helper_stop(struct attach_helper *h)
{
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	pthread_cond_signal(&h->more);
	pthread_mutex_unlock(&h->lock);
	if (h->running)
		pthread_join(h->thread, NULL);
	h->running = false;
}

void helper_close(struct attach_helper *h)
{
	pthread_cond_destroy(&h->more);
	pthread_mutex_destroy(&h->lock);
}
