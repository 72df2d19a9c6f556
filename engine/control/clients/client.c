/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that connect to the Unix socket (client_socket.c). Only processes of the engine's own
 * user, or of root, are served. Runs on the control plane's thread only.
 */
#include "engine/control/clients/client.h"

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
#include "engine/control/pages/index.h"
#include "engine/control/loop.h"
#include "numa/limit.h"

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
static struct session **silent_place(struct clients *clients)
{
	struct session **oldest = NULL;

	for (unsigned i = 0; i < CLIENT_SILENT_MAX; i++)
		if (!clients->silent[i] || clients->silent[i]->ending)
			return &clients->silent[i];
	for (unsigned i = 0; i < CLIENT_SILENT_MAX; i++) {
		struct session **place = &clients->silent[i];

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
 * `silent`: the free element of clients->silent that takes the new connection unless it is refused.
 */
static void accept_one(struct clients *clients, int fd, struct session **silent)
{
	struct ucred peer = {.pid = 0, .uid = (uid_t)-1};
	socklen_t bytes = sizeof(peer);
	struct session *s = calloc(1, sizeof(*s));
	struct session **place = silent;

	if (!s || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		goto drop;
	s->control = clients->control;
	s->fd = fd;
	s->pid = peer.pid;
	s->pidfd = -1;
	s->arrival = ++clients->arrivals;
	if (peer.uid != geteuid() && peer.uid != 0)
		session_refuse(s, -EPERM,
			"this engine serves user %u and root; process %d belongs to user %u. Run the client as the engine's user",
			(unsigned)geteuid(), (int)peer.pid, (unsigned)peer.uid);
	if (s->refuse)
		place = free_place(clients->refused, CLIENT_REFUSED_MAX);
	if (!place || session_start(s) < 0)
		goto drop;
	if (place == silent)
		silent_clear(place);
	*place = s;
	s->place = place;
	return;
drop:
	free(s);
	closer_take(clients->closer, fd);
}

static const struct {
	unsigned total, min, sure;
} shares[] = {
	[SHARE_CHANNELS] = {CHANNELS_MAX, CHANNELS_SESSION_MIN, CHANNELS_SESSION_SURE},
	[SHARE_RANGES] = {CLIENT_RANGES_MAX, RANGES_SESSION_MIN, RANGES_SESSION_SURE},
	[SHARE_EXTENTS] = {EXTENTS_MAX, EXTENTS_SESSION_MIN, EXTENTS_SESSION_SURE},
};

static unsigned session_has(const struct session *s, enum client_share what)
{
	return what == SHARE_CHANNELS ? s->channels : what == SHARE_RANGES ? s->ranges : s->extents;
}

unsigned clients_left(const struct clients *clients, enum client_share what)
{
	unsigned taken = what == SHARE_CHANNELS ? clients->channels
			 : what == SHARE_RANGES ? clients->ranges
						: clients->extents;

	return shares[what].total - taken;
}

/* What the other sessions, those included that are not attached yet, are still sure to get. */
static unsigned kept_for_others(const struct session *s, enum client_share what)
{
	const struct clients *clients = s->control->clients;
	unsigned kept = 0;

	for (unsigned i = 0; i < SESSIONS_MAX; i++) {
		const struct session *other = clients->session[i];
		unsigned has = other ? session_has(other, what) : 0;

		if (other != s && has < shares[what].sure)
			kept += shares[what].sure - has;
	}
	return kept;
}

bool session_may_take(const struct session *s, enum client_share what, unsigned wants)
{
	unsigned left = clients_left(s->control->clients, what), kept = kept_for_others(s, what);
	unsigned sessions = s->control->clients->sessions, share;

	if (left < kept || left - kept < wants)
		return false;
	share = (left - kept - wants) / (sessions ? sessions : 1);
	if (share < shares[what].min)
		share = shares[what].min;
	return session_has(s, what) + wants <= share;
}

void session_admit(struct session *s)
{
	struct clients *clients = s->control->clients;
	struct session **place = free_place(clients->session, SESSIONS_MAX);

	if (!place) {
		session_refuse(s, -EUSERS,
			"%u sessions are attached to this engine, the maximum; end a process that uses it, or share one session among threads",
			SESSIONS_MAX);
		return;
	}
	*s->place = NULL;
	*place = s;
	s->place = place;
	if (++clients->last_session == 0)
		clients->last_session = 1;
	s->id = clients->last_session;
	clients->sessions++;
	clients->control->counter[COUNTER_clients_attached]++;
	log_debug("clients: process %d attached, session %u", (int)s->pid, s->id);
}

static void on_accept(evutil_socket_t listener, short what, void *context)
{
	struct clients *clients = context;

	(void)what;
	for (unsigned i = 0; i < CLIENT_ACCEPTS; i++) {
		struct session **place = silent_place(clients);
		int fd;

		if (!place)
			return;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0) {
			if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
				log_warn("clients: cannot accept a connection: %s",
					limit_error(errno));
			return;
		}
		accept_one(clients, fd, place);
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

static unsigned sessions_free(struct clients *clients)
{
	return table_free(clients->session, SESSIONS_MAX) +
	       table_free(clients->silent, CLIENT_SILENT_MAX) +
	       table_free(clients->refused, CLIENT_REFUSED_MAX);
}

static void table_end(struct session **table, unsigned places)
{
	for (unsigned i = 0; i < places; i++)
		if (table[i])
			session_end(table[i], "the engine stops");
}

static unsigned helper_turn(struct control *control, struct client_helper *h)
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

unsigned clients_turn(struct control *control)
{
	struct clients *clients = control->clients;
	unsigned work =
		helper_turn(control, &clients->large) + helper_turn(control, &clients->small);

	if (clients->waits_told && outbox_empty(control)) {
		for (unsigned i = 0; i < SESSIONS_MAX; i++) {
			if (clients->session[i] && clients->session[i]->waits_told) {
				session_told(clients->session[i]);
				work++;
			}
		}
	}
	if (clients->endings)
		work += sessions_free(clients);
	return work;
}

void client_counts(const struct control *control, struct client_counts *ret)
{
	const struct clients *clients = control->clients;

	*ret = (struct client_counts){
		clients->sessions, clients->channels, clients->regions, clients->extents};
}

void clients_stop(struct control *control)
{
	struct clients *clients = control->clients;

	if (clients->accepts)
		event_free(clients->accepts);
	clients->accepts = NULL;
	client_socket_remove(control);
	table_end(clients->session, SESSIONS_MAX);
	table_end(clients->silent, CLIENT_SILENT_MAX);
	table_end(clients->refused, CLIENT_REFUSED_MAX);
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (clients->channel[i] && clients->channel[i]->quarantined)
			channel_finish(clients->channel[i]);
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

static int files_open(struct control *control, struct clients *clients)
{
	clients->status_fd = reopen_read_only(control->status_memory.fd);
	if (clients->status_fd < 0)
		return clients->status_fd;
	clients->shard_fd = reopen_read_only(control->shard.memory.fd);
	if (clients->shard_fd < 0)
		return clients->shard_fd;
	for (unsigned i = 0; i < control->rails; i++) {
		clients->heads_fd[i] = reopen_read_only(pool_heads(control->rail[i].pool)->fd);
		if (clients->heads_fd[i] < 0)
			return clients->heads_fd[i];
	}
	return 0;
}

/* True if pages of the engine before may be ones that were removed: clients find them. */
static bool pages_wait(const struct control *control)
{
	return control->door_shut && index_count(control->index);
}

int clients_open(struct control *control)
{
	struct clients *clients = calloc(1, sizeof(*clients));
	int rc;

	if (!clients)
		return -ENOMEM;
	control->clients = clients;
	clients->control = control;
	clients->status_fd = clients->shard_fd = -1;
	clients->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (clients->pidfd < 0)
		log_warn(
			"clients: pidfd_open failed: %s; READs go through staging memory, never directly into the memory of clients. It needs Linux 5.3; a container may forbid it",
			strerror(errno));
	memset(clients->heads_fd, -1, sizeof(clients->heads_fd));
	helper_open(control, &clients->large, CLIENT_HELPERS);
	helper_open(control, &clients->small, CLIENT_SMALL_HELPERS);
	rc = closer_open(&clients->closer);
	if (rc < 0)
		goto fail;
	rc = files_open(control, clients);
	if (rc < 0) {
		log_error(
			"clients: cannot open shared memory read-only: %s; check that /proc is mounted",
			strerror(-rc));
		goto fail;
	}
	rc = client_socket_listen(control);
	if (rc < 0)
		goto fail;
	clients->accepts = event_new(control->base, rc, EV_READ | EV_PERSIST, on_accept, clients);
	if (!clients->accepts || quarantine_open(clients) < 0 ||
		(!pages_wait(control) && event_add(clients->accepts, NULL) < 0)) {
		rc = -ENOMEM;
		goto fail;
	}
	return 0;
fail:
	clients_close(control);
	return rc;
}

void clients_accept(struct control *control)
{
	if (control->clients && control->clients->accepts)
		(void)event_add(control->clients->accepts, NULL);
}

/*
 * The rails have ended or were never started: no READ is in flight, and they return nothing more.
 */
void clients_close(struct control *control)
{
	struct clients *clients = control->clients;

	if (!clients)
		return;
	clients_stop(control);
	helper_stop(&clients->large);
	helper_stop(&clients->small);
	(void)clients_turn(control);
	helper_close(&clients->large);
	helper_close(&clients->small);
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (clients->channel[i])
			channel_free(clients->channel[i]);
	for (unsigned i = 0; i < REGIONS_MAX; i++)
		if (clients->region[i])
			(void)region_close(control, clients->region[i]);
	(void)sessions_free(clients);
	closer_close(clients->closer);
	quarantine_close(clients);
	if (clients->pidfd >= 0)
		close(clients->pidfd);
	if (clients->status_fd >= 0)
		close(clients->status_fd);
	if (clients->shard_fd >= 0)
		close(clients->shard_fd);
	for (unsigned i = 0; i < RAILS_MAX; i++)
		if (clients->heads_fd[i] >= 0)
			close(clients->heads_fd[i]);
	control->clients = NULL;
	free(clients);
}
