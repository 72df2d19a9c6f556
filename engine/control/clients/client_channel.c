/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: the rings and staging memory of one client thread, in one shared-memory segment. Owns
 * every struct channel. A channel is given to every rail, and every rail returns it before it is
 * unmapped. Runs on the control plane's thread only.
 *
 * Quarantine: a client may still copy into a page slot after its session has ended. Then the slot
 * is not returned to the pool, and the channel's segment, in which the client names the slot, stays
 * mapped, until the client's thread has left the slot or its process has exited. At most one slot
 * per channel. The protocol is described at struct channel_header in abi/segment.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/control/clients/clients_inner.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"
#include "numa/limit.h"

/* ---- quarantine ------------------------------------------------------------------------------ */

/*
 * Whether two sessions belong to the same client process. From Linux 6.9 on, all pidfds of one
 * process share an inode number that no other process has. Before 6.9, all pidfds of the host share
 * one inode number, so all processes whose pid is unknown (0) count as one process.
 */
static bool session_same_process(const struct session *a, const struct session *b)
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
static bool quarantine_allows_credits(const struct session *s)
{
	const struct clients *clients = s->control->clients;
	unsigned quarantined = 0;

	for (unsigned i = 0; i < SESSIONS_MAX && clients->quarantined; i++)
		if (clients->session[i] && clients->session[i]->quarantined &&
			session_same_process(clients->session[i], s))
			quarantined += clients->session[i]->quarantined;
	return s->pidfd >= 0 && quarantined < CLIENT_QUARANTINE_MAX;
}

static void quarantine_credits_allow(struct clients *clients)
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
	quarantine_credits_allow(clients);
}

static void quarantine_timer_start(struct clients *clients)
{
	if (net_timer_set(clients->quarantine, CLIENT_QUARANTINE_US) < 0)
		log_error("clients: no memory for a timer; %u page slots stay reserved",
			clients->quarantined);
}

static bool session_exited(const struct session *s)
{
	struct pollfd p = {.fd = s->pidfd, .events = POLLIN};

	return s->pidfd >= 0 && poll(&p, 1, 0) > 0;
}

/* The channel was closed: puts it in quarantine if its client is copying into a slot. */
static void quarantine_enter(struct channel *c)
{
	struct control *control = c->session->control;

	if (control->stopping || ctl_channel_release(control, &c->ctl, session_exited(c->session)))
		return;
	log_warn(
		"clients: process %d ended its session while it was storing a page; the slot stays reserved until the copy or the process ends",
		(int)c->session->pid);
	quarantine_set(c, true);
	quarantine_timer_start(control->clients);
}

/* Ends the quarantine of a channel. May be called twice. */
static void quarantine_leave(struct channel *c)
{
	if (c->quarantined)
		quarantine_set(c, false);
}

static void quarantine_release(struct clients *clients)
{
	for (unsigned i = 0; i < CHANNELS_MAX; i++) {
		struct channel *c = clients->channel[i];

		if (!c || !c->quarantined ||
			!ctl_channel_release(clients->control, &c->ctl, session_exited(c->session)))
			continue;
		log_info(
			"clients: process %d has left the slot it was storing into; channel %u is free",
			(int)c->session->pid, i);
		quarantine_leave(c);
		channel_finish(c);
	}
}

static void quarantine_on_timer(void *context)
{
	struct clients *clients = context;

	quarantine_release(clients);
	if (clients->quarantined)
		quarantine_timer_start(clients);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static void channel_statistics_collect(struct channel *c, uint64_t now_ns)
{
	struct control *control = c->session->control;
	const struct channel_layout l = channel_layout(control->rails);

	if (c->statistics.refused || !c->map || c->opening)
		return;
	if (!statistics_collect(control->statistics, &c->statistics,
		    (const struct channel_statistics *)(const void *)(c->map + l.statistics),
		    now_ns))
		log_warn(
			"clients: process %d wrote impossible statistics into channel %u; they are not counted",
			(int)c->session->pid, c->id);
}

void client_statistics_collect(struct control *control, uint64_t now_ns)
{
	struct clients *clients = control->clients;

	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (clients->channel[i])
			channel_statistics_collect(clients->channel[i], now_ns);
}

/* ---- keys that are recorded ------------------------------------------------------------------ */

/* Appends the new keys of the channel to the file of the recorder, whatever words these are. */
static void channel_asked_take(struct channel *c)
{
	const struct clients *clients = c->session->control->clients;
	const struct channel_layout l = channel_layout(c->session->control->rails);
	struct channel_asked *asked = (struct channel_asked *)(void *)(c->map + l.asked);
	uint64_t first = c->asked_taken % ASKED_WORDS, ahead = ASKED_WORDS - first, words;
	struct iovec part[3] = {
		{&words, sizeof(words)}, {&asked->word[first], 0}, {asked->word, 0}};

	if (!clients->recorder || !c->map)
		return;
	words = shm_load_acquire64(&asked->written) - c->asked_taken;
	c->asked_taken += words;
	/* it is full if the recorder does not come */
	if (words && words <= ASKED_WORDS &&
		lseek(clients->asked_fd, 0, SEEK_CUR) < CLIENT_ASKED_BYTES) {
		part[1].iov_len = (words < ahead ? words : ahead) * sizeof(words);
		part[2].iov_len = words * sizeof(words) - part[1].iov_len;
		if (writev(clients->asked_fd, part, 3) < 0)
			log_warn("clients: keys of process %d are not recorded: %s",
				(int)c->session->pid, strerror(errno));
	}
	shm_store_release64(&asked->taken, c->asked_taken);
}

void client_asked_take(struct control *control)
{
	struct clients *clients = control->clients;

	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (clients->channel[i])
			channel_asked_take(clients->channel[i]);
}

/* ---- freeing a channel ----------------------------------------------------------------------- */

/* Frees the channel at once. */
static void channel_free(struct channel *c)
{
	struct session *s = c->session;
	struct clients *clients = s->control->clients;

	channel_statistics_collect(c, net_now());
	channel_asked_take(c);
	if (c->staging && !region_close(s->control, c->staging))
		c->map = NULL;
	quarantine_leave(c);
	if (c->ctl.kept.length)
		s->leaves = true;
	else
		warm_owner_end(s->control, c->ctl.owner, s->process);
	clients->channel[c->id] = NULL;
	clients->channels--;
	s->channels--;
	if (c->map)
		munmap(c->map, c->bytes);
	if (c->memfd >= 0)
		close(c->memfd);
	/*
	 * the closer's thread closes it: the client may have sent descriptors to this socket, and
	 * their close can block
	 */
	closer_take(clients->closer, c->wake);
	if (c->wake_client >= 0)
		close(c->wake_client);
	free(c);
}

void channel_finish(struct channel *c)
{
	struct session *s = c->session;

	if (!c->stopping || c->left || c->staging)
		return;
	/*
	 * A stopping engine hands out no slots, so a channel in quarantine is freed without waiting
	 * for its client.
	 */
	if (!c->quarantined || s->control->stopping)
		channel_free(c);
	if (s->waits_channel == c) {
		s->waits_channel = NULL;
		session_reply(s, s->request.a, 0, NULL, 0);
	}
}

/* ---- opening a channel ----------------------------------------------------------------------- */

/*
 * Makes the segment. Its file is sealed so that its size cannot change: a client that truncated it
 * would kill the engine at its next access.
 */
static int channel_segment_open(struct channel *c, const struct control *control)
{
	uint64_t staging = control->settings->engine_staging_bytes & ~(uint64_t)(PAGE_UNIT - 1);
	struct channel_header *header;
	int ends[2];
	void *map;

	c->memfd = memfd_create("peercache-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	c->bytes = channel_layout(control->rails).staging + staging;
	if (c->memfd < 0 || ftruncate(c->memfd, (off_t)c->bytes) < 0 ||
		fcntl(c->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	map = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->memfd, 0);
	if (map == MAP_FAILED)
		return -errno;
	c->map = map;
	header = map;
	header->magic = CHANNEL_MAGIC;
	header->version = ABI_VERSION;
	header->rails = control->rails;
	header->compare_all = control->settings->rail_validate == VALIDATE_CRC;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return -errno;
	c->wake = ends[0];
	c->wake_client = ends[1];
	return 0;
}

static void channel_rings_init(struct channel *c, uint32_t rails)
{
	struct channel_layout l = channel_layout(rails);
	struct channel_header *header = (struct channel_header *)(void *)c->map;

	for (uint32_t i = 0; i < rails; i++) {
		struct rail_channel *r = &c->rail[i];

		*r = (struct rail_channel){.id = c->id,
			.session = c->session->id,
			.client_waits = &header->client_waits,
			.wake = c->wake,
			.control = c};
		ring_consumer_init(
			&r->ops, c->map + l.op[i], OP_RING_SLOTS, sizeof(struct run_line));
		ring_producer_init(
			&r->done, c->map + l.done[i], DONE_RING_SLOTS, sizeof(struct run_done));
	}
	c->ctl = (struct ctl_channel){.id = c->id,
		.header = header,
		.wake = c->wake,
		.user = c->session->uid,
		.others = client_access_users(&c->session->control->clients->access) > 1,
		.restricted = !c->session->administers,
		.no_credits = !quarantine_allows_credits(c->session)};
	ring_consumer_init(&c->ctl.ops, c->map + l.ctl, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_producer_init(
		&c->ctl.done, c->map + l.ctl_done, CTL_DONE_SLOTS, sizeof(struct ctl_done));
}

static void channel_rails_tell(struct channel *c, enum rail_command_kind kind)
{
	struct control *control = c->session->control;

	for (unsigned i = 0; i < control->rails; i++) {
		struct rail_command command = {.kind = kind, .object = &c->rail[i]};

		(void)outbox_send(control, i, &command);
	}
}

/* Returns a channel number that is not in use, or CHANNELS_MAX if all are. */
static uint32_t channel_number(const struct clients *clients)
{
	uint32_t id = 0;

	while (id < CHANNELS_MAX && clients->channel[id])
		id++;
	return id;
}

/* Starts to open a channel. Returns 0 if channel_opened() will send the reply, else -errno. */
static int channel_open(struct session *s, char *text, size_t bytes)
{
	struct control *control = s->control;
	struct clients *clients = control->clients;
	uint32_t id = channel_number(clients);
	struct channel *c;
	int rc;

	if (!session_may_take(s, SHARE_CHANNELS, 1)) {
		text_fit(text, bytes,
			"this session has %u channels open and may have no more: %u of %u are left to %u sessions of %u users and those to come. Close some, or use fewer threads",
			s->channels, clients_left(clients, SHARE_CHANNELS), CHANNELS_MAX,
			clients->sessions, clients_users(s, SHARE_CHANNELS));
		return -EMFILE;
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		text_fit(text, bytes, "the engine has no memory for one more channel");
		return -ENOMEM;
	}
	c->id = id;
	c->session = s;
	c->opening = true;
	c->memfd = c->wake = c->wake_client = -1;
	clients->channel[id] = c;
	clients->channels++;
	s->channels++;
	rc = channel_segment_open(c, control);
	if (rc < 0) {
		text_fit(text, bytes,
			"cannot make the memory of a channel: %s; raise the limits of memory or open files",
			limit_error(rc));
	} else {
		channel_rings_init(c, control->rails);
		rc = region_add_staging(c, channel_layout(control->rails).staging, text, bytes);
	}
	if (rc < 0)
		channel_free(c);
	return rc;
}

void channel_open_request(struct session *s)
{
	char text[sizeof(((struct attach_reply *)0)->text)];
	int rc;

	if (!s->control->rails) {
		session_fail(s, -EOPNOTSUPP,
			"this engine is a seed only (rail.devices = none) and keeps no pages; attach to another engine of this host, or name a NIC or soft in rail.devices");
		return;
	}
	rc = channel_open(s, text, sizeof(text));

	if (rc == -EMFILE)
		session_deny(s, rc, text);
	else if (rc < 0)
		session_fail(s, rc, text);
}

void channel_opened(struct channel *c)
{
	struct session *s = c->session;
	int fds[2] = {c->memfd, c->wake_client};

	c->opening = false;
	c->statistics.read_ns = net_now();
	c->left = s->control->rails;
	c->ctl.owner = warm_owner_new(s->control, c->memfd, s->pidfd, &s->process);
	channel_rails_tell(c, RAIL_CHANNEL_ADD);
	ctl_channel_open(s->control, &c->ctl);
	/*
	 * The client may write ops before the rails know the channel: the ops wait in their rings.
	 */
	session_reply(s, c->id, c->staging->id, fds, 2);
	close(c->wake_client); /* the reply has sent the client a copy of this descriptor */
	c->wake_client = -1;
}

/* ---- stopping a channel ---------------------------------------------------------------------- */

void channel_stop(struct channel *c)
{
	if (c->stopping)
		return;
	c->stopping = true;
	if (!c->opening) {
		ctl_channel_close(c->session->control, &c->ctl);
		quarantine_enter(c);
		channel_rails_tell(c, RAIL_CHANNEL_STOP);
	}
	region_drop(c->staging);
}

void channel_close_request(struct session *s)
{
	struct clients *clients = s->control->clients;
	struct channel *c = s->request.a < CHANNELS_MAX ? clients->channel[s->request.a] : NULL;

	if (!c || c->session != s || c->stopping) {
		session_fail(s, -EINVAL, "this session has no channel of that number");
		return;
	}
	s->waits_channel = c;
	channel_stop(c);
}

void client_channel_broken(struct control *control, uint32_t channel)
{
	struct channel *c = channel < CHANNELS_MAX ? control->clients->channel[channel] : NULL;

	if (!c || c->session->ending)
		return;
	log_warn(
		"clients: process %d wrote an impossible ring index into channel %u; its session ends",
		(int)c->session->pid, channel);
	session_end(c->session, "it wrote an impossible ring index");
}

void client_channel_returned(struct control *control, struct rail_channel *returned)
{
	struct channel *c = returned->control;

	(void)control;
	if (c->left)
		c->left--;
	if (c->left == 0) {
		/*
		 * This release store pairs with the load in wait_until_drained() in
		 * client/call/channel.c.
		 */
		shm_store_release(&c->ctl.header->drained, 1);
		client_wake(c->wake);
	}
	channel_finish(c);
}

/* ---- open and close -------------------------------------------------------------------------- */

int channels_open(struct clients *clients)
{
	clients->quarantine =
		net_timer_new(clients->control->base, false, quarantine_on_timer, clients);
	return clients->quarantine ? 0 : -ENOMEM;
}

void channels_close(struct clients *clients)
{
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (clients->channel[i])
			channel_free(clients->channel[i]);
	net_timer_free(clients->quarantine);
	clients->quarantine = NULL;
}
