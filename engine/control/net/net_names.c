/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of net.h, by getaddrinfo(): it follows changes of resolv.conf, /etc/hosts and
 * nsswitch.conf, as other programs do. It may block for a minute, so helper threads call it; a name
 * that takes long delays no other one while there are threads. A thread cannot be called back from
 * getaddrinfo(), and nothing waits for it: it shares a desk with the resolver, which the last of
 * them frees.
 */
#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

#include "config/limits.h"
#include "config/thread.h"
#include "engine/control/net/net.h"

#define LOOKUP_THREADS 16u /* names that are looked up at the same time; others wait */
/* A caller is told after this time that there is no answer. Its thread goes on. */
#define LOOKUP_LIMIT_S 60

/* One call of getaddrinfo(). It is in `todo`, then a thread's, then in `done`. */
struct lookup {
	STAILQ_ENTRY(lookup) next;
	struct net_query *query; /* NULL: it was cancelled. The control plane's alone */
	bool taken;              /* by a thread; under the lock */
	char host[NAME_BYTES_MAX], port[8];
	int error; /* of getaddrinfo(), and errno for EAI_SYSTEM */
	int system;
	struct addrinfo *found;
};

/* What the resolver and its threads share; all under the lock. */
struct desk {
	pthread_mutex_t lock;
	unsigned threads;
	STAILQ_HEAD(, lookup) todo, done;
	int fd; /* eventfd, written after each lookup; -1: the resolver is gone */
};

struct net_resolver {
	struct event_base *base;
	struct desk *desk;
	struct event *done;
	LIST_HEAD(, net_query) queries;
};

struct net_query {
	LIST_ENTRY(net_query) next;
	struct net_resolver *resolver;
	struct lookup *lookup;
	struct net_timer *limit;
	net_resolved call;
	void *context;
};

/* ---- threads --------------------------------------------------------------------------------- */

static void lookup_free(struct lookup *lookup)
{
	if (lookup->found)
		freeaddrinfo(lookup->found);
	free(lookup);
}

static void desk_free(struct desk *desk)
{
	pthread_mutex_destroy(&desk->lock);
	free(desk);
}

static void lookup_make(struct lookup *lookup)
{
	const struct addrinfo hints = {
		.ai_socktype = SOCK_STREAM, .ai_protocol = IPPROTO_TCP, .ai_flags = AI_NUMERICSERV};

	lookup->error = getaddrinfo(lookup->host, lookup->port, &hints, &lookup->found);
	lookup->system = errno;
	if (lookup->error)
		lookup->found = NULL;
}

/* Ends when nothing is to do: names are looked up seldom. */
static void *lookup_main(void *context)
{
	struct desk *desk = context;
	struct lookup *lookup;
	bool last;

	pthread_setname_np(pthread_self(), "pc-names");
	pthread_mutex_lock(&desk->lock);
	while ((lookup = STAILQ_FIRST(&desk->todo))) {
		STAILQ_REMOVE_HEAD(&desk->todo, next);
		lookup->taken = true;
		pthread_mutex_unlock(&desk->lock);
		lookup_make(lookup);
		pthread_mutex_lock(&desk->lock);
		if (desk->fd < 0) {
			lookup_free(lookup);
			continue;
		}
		STAILQ_INSERT_TAIL(&desk->done, lookup, next);
		(void)eventfd_write(desk->fd, 1);
	}
	last = --desk->threads == 0 && desk->fd < 0;
	pthread_mutex_unlock(&desk->lock);
	if (last)
		desk_free(desk);
	return NULL;
}

/* ---- queries --------------------------------------------------------------------------------- */

static void query_free(struct net_query *query)
{
	LIST_REMOVE(query, next);
	net_timer_free(query->limit);
	free(query);
}

void net_resolve_cancel(struct net_query *query)
{
	struct desk *desk = query->resolver->desk;
	struct lookup *lookup = query->lookup;
	bool waits;

	pthread_mutex_lock(&desk->lock);
	waits = !lookup->taken;
	if (waits)
		STAILQ_REMOVE(&desk->todo, lookup, lookup, next);
	pthread_mutex_unlock(&desk->lock);
	lookup->query = NULL;
	if (waits)
		lookup_free(lookup);
	query_free(query);
}

static void query_late(void *context)
{
	struct net_query *query = context;
	net_resolved call = query->call;
	char text[64];

	snprintf(text, sizeof(text), "the resolver has not answered for %d s", LOOKUP_LIMIT_S);
	context = query->context;
	net_resolve_cancel(query);
	call(context, text, NULL);
}

static void query_answer(struct net_query *query, const struct lookup *lookup)
{
	net_resolved call = query->call;
	void *context = query->context;
	const char *error = NULL;

	query_free(query);
	if (lookup->error)
		error = lookup->error == EAI_SYSTEM ? strerror(lookup->system)
						    : gai_strerror(lookup->error);
	call(context, error, lookup->found);
}

/* One after the other: a call may cancel further queries. */
static void lookups_done(evutil_socket_t fd, short what, void *context)
{
	struct desk *desk = ((struct net_resolver *)context)->desk;
	struct lookup *lookup;
	eventfd_t count;

	(void)what;
	(void)eventfd_read(fd, &count);
	do {
		pthread_mutex_lock(&desk->lock);
		lookup = STAILQ_FIRST(&desk->done);
		if (lookup)
			STAILQ_REMOVE_HEAD(&desk->done, next);
		pthread_mutex_unlock(&desk->lock);
		if (!lookup)
			return;
		if (lookup->query)
			query_answer(lookup->query, lookup);
		lookup_free(lookup);
	} while (true);
}

/* Returns 0 or -errno: there is no thread that would make the lookup. */
static int lookup_queue(struct desk *desk, struct lookup *lookup)
{
	pthread_t thread;
	int rc = 0;

	pthread_mutex_lock(&desk->lock);
	if (desk->threads < LOOKUP_THREADS) {
		rc = thread_start(&thread, lookup_main, desk);
		if (rc == 0) {
			desk->threads++;
			pthread_detach(thread);
		}
	}
	if (desk->threads) {
		STAILQ_INSERT_TAIL(&desk->todo, lookup, next);
		rc = 0;
	}
	pthread_mutex_unlock(&desk->lock);
	return rc;
}

/* NULL: no memory. */
static struct net_query *query_new(
	struct net_resolver *resolver, const char *host, uint16_t port, struct lookup **ret_lookup)
{
	struct net_query *query = calloc(1, sizeof(*query));
	struct lookup *lookup = calloc(1, sizeof(*lookup));

	if (query && lookup)
		query->limit = net_timer_new(resolver->base, false, query_late, query);
	if (!query || !lookup || !query->limit ||
		net_timer_set(query->limit, LOOKUP_LIMIT_S * 1000000ull) < 0) {
		if (query)
			net_timer_free(query->limit);
		free(query);
		free(lookup);
		return NULL;
	}
	snprintf(lookup->host, sizeof(lookup->host), "%s", host);
	snprintf(lookup->port, sizeof(lookup->port), "%u", port);
	LIST_INSERT_HEAD(&resolver->queries, query, next);
	query->resolver = resolver;
	query->lookup = lookup;
	lookup->query = query;
	*ret_lookup = lookup;
	return query;
}

struct net_query *net_resolve(struct net_resolver *resolver, const char *host, uint16_t port,
	net_resolved call, void *context)
{
	struct lookup *lookup;
	struct net_query *query = query_new(resolver, host, port, &lookup);
	int rc = query ? lookup_queue(resolver->desk, lookup) : -ENOMEM;

	if (rc < 0) {
		if (query) {
			query_free(query);
			lookup_free(lookup);
		}
		call(context, strerror(-rc), NULL);
		return NULL;
	}
	query->call = call;
	query->context = context;
	return query;
}

/* ---- open and close -------------------------------------------------------------------------- */

struct net_resolver *net_resolver_new(struct event_base *base)
{
	struct net_resolver *resolver = calloc(1, sizeof(*resolver));
	struct desk *desk = calloc(1, sizeof(*desk));

	if (!resolver || !desk)
		goto no_memory;
	desk->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (desk->fd < 0)
		goto no_memory;
	resolver->done = event_new(base, desk->fd, EV_READ | EV_PERSIST, lookups_done, resolver);
	if (!resolver->done || event_add(resolver->done, NULL) < 0)
		goto no_event;
	pthread_mutex_init(&desk->lock, NULL);
	STAILQ_INIT(&desk->todo);
	STAILQ_INIT(&desk->done);
	LIST_INIT(&resolver->queries);
	resolver->base = base;
	resolver->desk = desk;
	return resolver;

no_event:
	if (resolver->done)
		event_free(resolver->done);
	close(desk->fd);
no_memory:
	free(resolver);
	free(desk);
	return NULL;
}

void net_resolver_free(struct net_resolver *resolver)
{
	struct desk *desk = resolver->desk;
	struct lookup *lookup;
	bool last;

	while (!LIST_EMPTY(&resolver->queries))
		net_resolve_cancel(LIST_FIRST(&resolver->queries));
	event_free(resolver->done);
	pthread_mutex_lock(&desk->lock);
	while ((lookup = STAILQ_FIRST(&desk->done))) {
		STAILQ_REMOVE_HEAD(&desk->done, next);
		lookup_free(lookup);
	}
	close(desk->fd);
	desk->fd = -1;
	last = desk->threads == 0;
	pthread_mutex_unlock(&desk->lock);
	if (last)
		desk_free(desk);
	free(resolver);
}
