/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that connect to the Unix socket (attach_socket.c). Only processes of the engine's own
 * user, or of root, are served. Runs on the control plane's thread only.
 */
#include "engine/control/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/loop.h"

/* ---- connections ----------------------------------------------------------------------------- */

/* Returns a free element of a table of sessions, or NULL if the table is full. */
static struct session **free_place(struct session **table, unsigned places)
{
	for (unsigned i = 0; i < places; i++)
		if (!table[i])
			return &table[i];
	return NULL;
}

/* Whether the client has sent a request on its socket that the engine has not read yet. */
static bool has_request(const struct session *s)
{
	char byte;

	return recv(s->fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) > 0;
}

/*
 * Returns a place for one more connection: a free one, or that of the connection that has been
 * silent longest. NULL: every connection has sent a request; these are served first, and new
 * connections wait in the backlog of the socket.
 */
static struct session **silent_place(struct attach *a)
{
	struct session **oldest = NULL;

	for (unsigned i = 0; i < ATTACH_SILENT_MAX; i++)
		if (!a->silent[i] || a->silent[i]->ending)
			return &a->silent[i];
	for (unsigned i = 0; i < ATTACH_SILENT_MAX; i++) {
		struct session **place = &a->silent[i];

		if (!has_request(*place) && (!oldest || (*place)->arrival < (*oldest)->arrival))
			oldest = place;
	}
	return oldest;
}

static void silent_clear(struct session **place)
{
	struct session *s = *place;

	if (!s)
		return;
	if (!s->ending)
		s->control->counter[COUNTER_clients_silent]++;
	session_end(s, "it sent no request, and other clients need its place");
	(void)session_free(s);
}

/*
 * `silent`: the free element of attach->silent that takes the new connection unless it is refused.
 */
static void accept_one(struct attach *a, int fd, struct session **silent)
{
	struct ucred peer = {.pid = 0, .uid = (uid_t)-1};
	socklen_t bytes = sizeof(peer);
	struct session *s = calloc(1, sizeof(*s));
	struct session **place = silent;

	if (!s || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		goto drop;
	s->control = a->control;
	s->fd = fd;
	s->pid = peer.pid;
	s->pidfd = -1;
	s->arrival = ++a->arrivals;
	if (peer.uid != geteuid() && peer.uid != 0)
		session_refuse(s, -EPERM,
			"this engine serves user %u and root; process %d belongs to user %u. Run the client as the engine's user",
			(unsigned)geteuid(), (int)peer.pid, (unsigned)peer.uid);
	if (s->refuse)
		place = free_place(a->refused, ATTACH_REFUSED_MAX);
	if (!place || session_start(s) < 0)
		goto drop;
	if (place == silent)
		silent_clear(place);
	*place = s;
	s->place = place;
	return;
drop:
	free(s);
	closer_take(a->closer, fd);
}

void session_admit(struct session *s)
{
	struct attach *a = s->control->attach;
	struct session **place = free_place(a->session, SESSIONS_MAX);

	if (!place) {
		session_refuse(s, -EUSERS,
			"%u sessions are attached to this engine, the maximum; end a process that uses it, or share one session among threads",
			SESSIONS_MAX);
		return;
	}
	*s->place = NULL;
	*place = s;
	s->place = place;
	if (++a->last_session == 0)
		a->last_session = 1;
	s->id = a->last_session;
	a->sessions++;
	a->control->counter[COUNTER_clients_attached]++;
	log_debug("clients: process %d attached, session %u", (int)s->pid, s->id);
}

static void on_accept(evutil_socket_t listener, short what, void *context)
{
	struct attach *a = context;

	(void)what;
	for (unsigned i = 0; i < ATTACH_ACCEPTS; i++) {
		struct session **place = silent_place(a);
		int fd;

		if (!place)
			return;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0) {
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
				log_warn(
					"clients: cannot accept a connection: %s; raise the limit of open files",
					strerror(errno));
			return;
		}
		accept_one(a, fd, place);
	}
}

/* ---- called by other files of this folder ---------------------------------------------------- */

/*
 * Frees the sessions of the table that have ended and own no channel and no region any more.
 * Returns how many it freed.
 */
static unsigned table_free(struct session **table, unsigned places)
{
	unsigned n = 0;

	for (unsigned i = 0; i < places; i++)
		n += table[i] && session_free(table[i]);
	return n;
}

static unsigned sessions_free(struct attach *a)
{
	return table_free(a->session, SESSIONS_MAX) + table_free(a->silent, ATTACH_SILENT_MAX) +
	       table_free(a->refused, ATTACH_REFUSED_MAX);
}

static void table_end(struct session **table, unsigned places)
{
	for (unsigned i = 0; i < places; i++)
		if (table[i])
			session_end(table[i], "the engine stops");
}

static unsigned helper_turn(struct control *control, struct attach_helper *h)
{
	struct region *r;
	unsigned work = 0;

	if (!shm_load(&h->done_flag))
		return 0;
	while ((r = helper_collect(h)) != NULL) {
		region_worked(control, r);
		work++;
	}
	return work;
}

unsigned attach_turn(struct control *control)
{
	struct attach *a = control->attach;
	unsigned work = helper_turn(control, &a->large) + helper_turn(control, &a->small);

	if (a->waits_told && loop_told(control)) {
		for (unsigned i = 0; i < SESSIONS_MAX; i++) {
			if (a->session[i] && a->session[i]->waits_told) {
				session_told(a->session[i]);
				work++;
			}
		}
	}
	if (a->endings)
		work += sessions_free(a);
	return work;
}

void attach_counts(const struct control *control, struct attach_counts *ret)
{
	const struct attach *a = control->attach;

	*ret = (struct attach_counts){a->sessions, a->channels, a->regions, a->extents};
}

void attach_stop(struct control *control)
{
	struct attach *a = control->attach;

	if (a->accepts)
		event_free(a->accepts);
	a->accepts = NULL;
	attach_socket_remove(control);
	table_end(a->session, SESSIONS_MAX);
	table_end(a->silent, ATTACH_SILENT_MAX);
	table_end(a->refused, ATTACH_REFUSED_MAX);
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (a->channel[i] && a->channel[i]->quarantined)
			channel_finish(a->channel[i]);
}

/*
 * Opens the file of `fd` once more, read-only, so that the client cannot map the new descriptor for
 * writing.
 */
static int reopen_read_only(int fd)
{
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	rc = open(path, O_RDONLY | O_CLOEXEC);
	return rc < 0 ? -errno : rc;
}

static int files_open(struct control *control, struct attach *a)
{
	a->status_fd = reopen_read_only(control->status_memory.fd);
	if (a->status_fd < 0)
		return a->status_fd;
	a->shard_fd = reopen_read_only(control->shard.memory.fd);
	if (a->shard_fd < 0)
		return a->shard_fd;
	for (unsigned i = 0; i < control->rails; i++) {
		a->heads_fd[i] = reopen_read_only(pool_heads(control->rail[i].pool)->fd);
		if (a->heads_fd[i] < 0)
			return a->heads_fd[i];
	}
	return 0;
}

int attach_open(struct control *control)
{
	struct attach *a = calloc(1, sizeof(*a));
	int rc;

	if (!a)
		return -ENOMEM;
	control->attach = a;
	a->control = control;
	a->status_fd = a->shard_fd = -1;
	a->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (a->pidfd < 0)
		log_warn(
			"clients: pidfd_open failed: %s; READs go through staging memory, never directly into the memory of clients. It needs Linux 5.3; a container may forbid it",
			strerror(errno));
	memset(a->heads_fd, -1, sizeof(a->heads_fd));
	helper_open(control, &a->large, ATTACH_HELPERS);
	helper_open(control, &a->small, ATTACH_SMALL_HELPERS);
	rc = closer_open(&a->closer);
	if (rc < 0)
		goto fail;
	rc = files_open(control, a);
	if (rc < 0) {
		log_error(
			"clients: cannot open shared memory read-only: %s; check that /proc is mounted",
			strerror(-rc));
		goto fail;
	}
	rc = attach_socket_listen(control);
	if (rc < 0)
		goto fail;
	a->accepts = event_new(control->base, rc, EV_READ | EV_PERSIST, on_accept, a);
	if (!a->accepts || quarantine_open(a) < 0 || event_add(a->accepts, NULL) < 0) {
		rc = -ENOMEM;
		goto fail;
	}
	return 0;
fail:
	attach_close(control);
	return rc;
}

/*
 * The rails have ended or were never started: no READ is in flight, and they return nothing more.
 */
void attach_close(struct control *control)
{
	struct attach *a = control->attach;

	if (!a)
		return;
	attach_stop(control);
	helper_stop(&a->large);
	helper_stop(&a->small);
	(void)attach_turn(control);
	helper_close(&a->large);
	helper_close(&a->small);
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (a->channel[i])
			channel_free(a->channel[i]);
	for (unsigned i = 0; i < REGIONS_MAX; i++)
		if (a->region[i])
			(void)region_close(control, a->region[i]);
	(void)sessions_free(a);
	closer_close(a->closer);
	quarantine_close(a);
	if (a->pidfd >= 0)
		close(a->pidfd);
	if (a->status_fd >= 0)
		close(a->status_fd);
	if (a->shard_fd >= 0)
		close(a->shard_fd);
	for (unsigned i = 0; i < RAILS_MAX; i++)
		if (a->heads_fd[i] >= 0)
			close(a->heads_fd[i]);
	control->attach = NULL;
	free(a);
}
