/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quarantine: channels whose client may still copy into a page slot after its session has ended.
 * The slot is not returned to the pool, and the channel's segment, in which the client names the
 * slot, stays mapped, until the client's thread has left the slot or its process has exited. At
 * most one slot per channel. The protocol is described at struct channel_header in abi/segment.h.
 * Runs on the control plane's thread only.
 */
#include <errno.h>
#include <poll.h>
#include <sys/stat.h>

#include "config/log.h"
#include "engine/control/clients/client.h"

/*
 * Whether two sessions belong to the same client process. From Linux 6.9 on, all pidfds of one
 * process share an inode number that no other process has. Before 6.9, all pidfds of the host share
 * one inode number, so all processes whose pid is unknown (0) count as one process.
 */
static bool same_process(const struct session *a, const struct session *b)
{
	struct stat x, y;

	if (a == b)
		return true;
	return a->pid == b->pid && a->pidfd >= 0 && b->pidfd >= 0 && fstat(a->pidfd, &x) == 0 &&
	       fstat(b->pidfd, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/*
 * False for a process that cannot be watched, or that has left too many slots in quarantine: it may
 * not store pages.
 */
bool quarantine_allows_credits(const struct session *s)
{
	const struct clients *clients = s->control->clients;
	unsigned quarantined = 0;

	for (unsigned i = 0; i < SESSIONS_MAX && clients->quarantined; i++)
		if (clients->session[i] && clients->session[i]->quarantined &&
			same_process(clients->session[i], s))
			quarantined += clients->session[i]->quarantined;
	return s->pidfd >= 0 && quarantined < CLIENT_QUARANTINE_MAX;
}

static void credits_allow(struct clients *clients)
{
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (clients->channel[i] && !clients->channel[i]->stopping)
			clients->channel[i]->ctl.no_credits =
				!quarantine_allows_credits(clients->channel[i]->session);
}

static void quarantine_set(struct channel *c, bool quarantined)
{
	struct clients *clients = c->session->control->clients;

	c->quarantined = quarantined;
	clients->quarantined += quarantined ? 1 : -1u;
	c->session->quarantined += quarantined ? 1 : -1u;
	credits_allow(clients);
}

static void timer_start(struct clients *clients)
{
	const struct timeval often = {.tv_usec = CLIENT_QUARANTINE_US};

	if (event_add(clients->quarantine, &often) < 0)
		log_error("clients: no memory for a timer; %u page slots stay reserved",
			clients->quarantined);
}

static bool exited(const struct session *s)
{
	struct pollfd p = {.fd = s->pidfd, .events = POLLIN};

	return s->pidfd >= 0 && poll(&p, 1, 0) > 0;
}

void quarantine_enter(struct channel *c)
{
	struct control *control = c->session->control;

	if (control->stopping || ctl_channel_release(control, &c->ctl, exited(c->session)))
		return;
	log_warn(
		"clients: process %d ended its session while it was storing a page; the slot stays reserved until the copy or the process ends",
		(int)c->session->pid);
	quarantine_set(c, true);
	timer_start(control->clients);
}

void quarantine_leave(struct channel *c)
{
	if (c->quarantined)
		quarantine_set(c, false);
}

static void release(struct clients *clients)
{
	for (unsigned i = 0; i < CHANNELS_MAX; i++) {
		struct channel *c = clients->channel[i];

		if (!c || !c->quarantined ||
			!ctl_channel_release(clients->control, &c->ctl, exited(c->session)))
			continue;
		log_info(
			"clients: process %d has left the slot it was storing into; channel %u is free",
			(int)c->session->pid, i);
		quarantine_leave(c);
		channel_finish(c);
	}
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
	struct clients *clients = context;

	(void)fd;
	(void)what;
	release(clients);
	if (clients->quarantined)
		timer_start(clients);
}

int quarantine_open(struct clients *clients)
{
	clients->quarantine = event_new(clients->control->base, -1, 0, on_timer, clients);
	return clients->quarantine ? 0 : -ENOMEM;
}

void quarantine_close(struct clients *clients)
{
	if (clients->quarantine)
		event_free(clients->quarantine);
	clients->quarantine = NULL;
}
