/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fork(). The engine's session, its rings and the socket belong to the parent: a child that ended
 * the session, took answers from a ring or released memory would harm the parent. So in a child
 * each inherited session is, from its first instruction on, one whose engine is gone and that never
 * attaches again: calls return PC_GONE, and closing frees only what the child has of its own.
 *
 * The handlers of fork() run in the thread that forks. They hold the lock of every session
 * meanwhile, so the child gets tables that no thread was changing. The threads that do not exist in
 * the child may have held `wire`, so the child gets a new one.
 */
#include "engine/client/attach.h"
#include "engine/client/channel.h"
#include "engine/client/fork.h"
#include "engine/client/reattach.h"
#include "engine/client/session.h"

#include <pthread.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pc *list; /* under list_lock, which is taken before the lock of a session */

static void before_fork(void)
{
	pthread_mutex_lock(&list_lock);
	for (struct pc *pc = list; pc; pc = pc->next)
		pthread_mutex_lock(&pc->lock);
}

static void in_parent(void)
{
	for (struct pc *pc = list; pc; pc = pc->next)
		pthread_mutex_unlock(&pc->lock);
	pthread_mutex_unlock(&list_lock);
}

static void in_child(void)
{
	for (struct pc *pc = list; pc; pc = pc->next) {
		struct client_session *session = pc->session;

		pc->inherited = pc->no_reattach = true;
		pc->session = NULL;
		for (struct pc_channel *ch = pc->channels; ch; ch = ch->next)
			channel_inherited(ch);
		attacher_inherited(pc);
		/* Its other users are the channels, which have let go of it, and threads of the
		 * parent. The pools are not mapped in a child (MADV_DONTFORK), and nothing lies in
		 * their place yet. */
		if (session)
			session_free(session);
		pthread_mutex_init(&pc->wire, NULL);
		pthread_mutex_unlock(&pc->lock);
	}
	pthread_mutex_unlock(&list_lock);
}

static void watch_forks(void)
{
	/* without memory for the handlers, only a child that uses the session is in danger */
	(void)pthread_atfork(before_fork, in_parent, in_child);
}

void fork_watch(struct pc *pc)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&list_lock);
	pc->next = list;
	list = pc;
	pthread_mutex_unlock(&list_lock);
}

void fork_unwatch(struct pc *pc)
{
	struct pc **at = &list;

	pthread_mutex_lock(&list_lock);
	while (*at != pc)
		at = &(*at)->next;
	*at = pc->next;
	pthread_mutex_unlock(&list_lock);
}
