/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptors that the loops of simulated engines watch with libevent: of disks and of NICs.
 * One thread.
 */
#include <event2/event.h>
#include <stdlib.h>

#include "tests/sim/world.h"

struct event {
	LIST_ENTRY(event) next;
	unsigned node;
	evutil_socket_t fd;
	event_callback_fn call;
	void *context;
};

static LIST_HEAD(, event) watched = LIST_HEAD_INITIALIZER(watched);

struct event *event_new(struct event_base *base, evutil_socket_t fd, short what,
	event_callback_fn call, void *context)
{
	struct event *event = calloc(1, sizeof(*event));

	(void)what;
	if (!event)
		abort();
	*event = (struct event){.node = base->node, .fd = fd, .call = call, .context = context};
	LIST_INSERT_HEAD(&watched, event, next);
	return event;
}

int event_add(struct event *event, const struct timeval *timeout)
{
	(void)event;
	(void)timeout;
	return 0;
}

void event_free(struct event *event)
{
	LIST_REMOVE(event, next);
	free(event);
}

bool ready_watched(unsigned node, int fd)
{
	const struct event *event;

	LIST_FOREACH (event, &watched, next)
		if (event->node == node && event->fd == fd)
			return true;
	return false;
}

void ready_call(unsigned node, int fd)
{
	const struct event *event;

	LIST_FOREACH (event, &watched, next)
		if (event->node == node && event->fd == fd)
			break;
	if (event)
		event->call(fd, EV_READ, event->context);
}
