/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of this host: the connections to the engine's socket and their sessions. Only processes
 * that client_access.c allows are served. Owns struct clients and every struct session.
 * Runs on the control plane's thread only.
 *
 * A session receives requests and sends replies, one at a time. It ends when the client closes its
 * socket, when its process exits, when the client breaks a rule, or when the engine stops. A
 * session that ends keeps its place until the rails have returned all its channels and regions.
 * clients_turn() then frees it, so that it is never freed inside one of its own callbacks.
 *
 * A client may be slow, silent or hostile: the places for connections that have sent no request are
 * few, quotas share channels and memory among the sessions, and nothing here waits for a client.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config/log.h"
#include "config/passed_fds.h"
#include "config/text_fit.h"
#include "engine/control/clients/clients_inner.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"
#include "numa/limit.h"

/* ---- replies --------------------------------------------------------------------------------- */

static int session_reply_send(
	struct session *s, struct attach_reply *reply, const int *fds, unsigned count)
{
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(ATTACH_FDS_MAX)];
	struct iovec iov = {reply, sizeof(*reply)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

	if (count > ATTACH_FDS_MAX)
		return -EINVAL;
	fds_attach(&message, control, fds, count);
	return sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Sends the one reply to s->request, with `count` descriptors. */
static void session_request_end(
	struct session *s, struct attach_reply *reply, const int *fds, unsigned count)
{
	int rc;

	reply->magic = ATTACH_MAGIC;
	reply->version = ABI_VERSION;
	reply->kind = s->request.kind;
	reply->serial = s->request.serial;
	s->busy = false;
	if (s->fd < 0)
		return;
	if (reply->status < 0)
		log_debug("clients: session %u, request %u: %s", s->id, reply->kind, reply->text);
	rc = session_reply_send(s, reply, fds, count);
	if (rc < 0) /* sendmsg() failed: the client does not read its replies, or has exited */
		session_end(s, rc == -EAGAIN ? "it does not read its replies" : strerror(-rc));
	else if (s->readable && event_add(s->readable, NULL) < 0)
		session_end(s, "out of memory");
}

void session_reply(struct session *s, uint64_t a, uint64_t b, const int *fds, unsigned count)
{
	session_request_end(s, &(struct attach_reply){.a = a, .b = b}, fds, count);
}

void session_fail(struct session *s, int status, const char *text)
{
	struct attach_reply reply = {.status = status};

	text_fit(reply.text, sizeof(reply.text), "%s", text);
	session_request_end(s, &reply, NULL, 0);
}

static void session_told(struct session *s)
{
	s->waits_told = false;
	s->control->clients->waits_told--;
	session_reply(s, s->reply_a, s->reply_b, NULL, 0);
}

void session_reply_told(struct session *s, uint64_t a, uint64_t b)
{
	if (outbox_empty(s->control)) {
		session_reply(s, a, b, NULL, 0);
		return;
	}
	s->reply_a = a;
	s->reply_b = b;
	s->waits_told = true;
	s->control->clients->waits_told++;
}

/* Whether two reasons are the same, but for the numbers in them. */
static bool reasons_equal(const char *a, const char *b)
{
	for (;; a++, b++) {
		a += strspn(a, "0123456789");
		b += strspn(b, "0123456789");
		if (*a != *b || !*a)
			return *a == *b;
	}
}

/*
 * A process that is refused tries again several times a second, for as long as it runs: the log has
 * it once for each reason. Processes of other PID namespaces have no number here and count as one.
 */
static bool refusal_is_new(struct clients *clients, const struct session *s, const char *text)
{
	struct client_refusal *oldest = clients->refusal;
	uint64_t now_ns = net_now();

	for (unsigned i = 0; i < CLIENT_REFUSALS; i++) {
		struct client_refusal *r = &clients->refusal[i];

		if (r->tried_ns && now_ns - r->tried_ns < CLIENT_REFUSAL_NS && r->pid == s->pid &&
			r->uid == s->uid && r->attached == (s->id != 0) &&
			reasons_equal(r->text, text)) {
			text_fit(r->text, sizeof(r->text), "%s", text);
			r->tried_ns = now_ns;
			return false;
		}
		if (r->tried_ns < oldest->tried_ns)
			oldest = r;
	}
	*oldest = (struct client_refusal){.pid = s->pid,
		.uid = s->uid,
		.attached = s->id,
		.since_ns = now_ns,
		.tried_ns = now_ns};
	text_fit(oldest->text, sizeof(oldest->text), "%s", text);
	return true;
}

static void session_denied(struct session *s, const char *text)
{
	s->control->counter[COUNTER_clients_denied]++;
	if (refusal_is_new(s->control->clients, s, text))
		log_warn("clients: a request of process %d, user %u, is refused: %s", (int)s->pid,
			(unsigned)s->uid, text);
}

void session_deny(struct session *s, int status, const char *text)
{
	session_denied(s, text);
	session_fail(s, status, text);
}

void client_deny(struct control *control, uint32_t channel, const char *text)
{
	if (control->clients && control->clients->channel[channel])
		session_denied(control->clients->channel[channel]->session, text);
}

__attribute__((format(printf, 3, 4))) static void session_refuse(
	struct session *s, int status, const char *format, ...)
{
	va_list args;

	s->refuse = status;
	va_start(args, format);
	text_vfit(s->refusal, sizeof(s->refusal), format, args);
	va_end(args);
	s->control->counter[COUNTER_clients_refused]++;
	if (refusal_is_new(s->control->clients, s, s->refusal))
		log_warn("clients: process %d is refused: %s", (int)s->pid, s->refusal);
}

/* ---- the first request ----------------------------------------------------------------------- */

/* Returns a free element of a table of sessions, or NULL if the table is full. */
static struct session **session_place_find(struct session **table, unsigned places)
{
	for (unsigned i = 0; i < places; i++)
		if (!table[i])
			return &table[i];
	return NULL;
}

/*
 * At the first request: gives the session a place in clients->session, or calls session_refuse()
 * when all are taken.
 */
static void session_admit(struct session *s)
{
	struct clients *clients = s->control->clients;
	struct session **place = session_place_find(clients->session, SESSIONS_MAX);
	unsigned has;

	if (place && !user_may_attach(s, &has)) {
		session_refuse(s, -EUSERS,
			"user %u has %u sessions, and the other places of %u are kept for other users; end a process of it that uses this engine, or share one session among threads",
			(unsigned)s->uid, has, SESSIONS_MAX);
		return;
	}
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

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* constant of Linux 6.5 that older kernel headers lack */
#endif

/*
 * Whether `fd` is a pidfd of process `pid`. A process of another PID namespace has pid 0 in its
 * credentials and a number of 0 or less in fdinfo.
 */
static bool pidfd_is_of(int fd, pid_t pid)
{
	char path[64], line[128];
	int its = 0;
	bool found = false;
	FILE *info;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	info = fopen(path, "re");
	while (info && !found && fgets(line, sizeof(line), info))
		found = sscanf(line, "Pid: %d", &its) == 1;
	if (info)
		fclose(info);
	return found && (pid > 0 ? its == pid : its <= 0);
}

/*
 * Returns a pidfd of the client: from the kernel (SO_PEERPIDFD), else the one the client sent, else
 * opened by process id, which is 0 for a process of another PID namespace. -1: none.
 */
static int session_pidfd(const struct session *s, int sent)
{
	int fd = -1;
	socklen_t bytes = sizeof(fd);

	if (getsockopt(s->fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) < 0)
		fd = -1;
	if (fd < 0 && sent >= 0 && pidfd_is_of(sent, s->pid))
		return sent;
	closer_take(s->control->clients->closer, sent);
	if (fd < 0 && s->pid > 0)
		fd = (int)syscall(SYS_pidfd_open, s->pid, 0);
	return fd;
}

/*
 * Ends the session when its process exits. A child made by fork() may keep the socket open, but the
 * session belongs to the parent.
 */
static void session_on_exited(evutil_socket_t pidfd, short what, void *context)
{
	(void)pidfd;
	(void)what;
	session_end(context, "its process has exited");
}

static void session_watch_process(struct session *s)
{
	s->exited = event_new(s->control->base, s->pidfd, EV_READ, session_on_exited, s);
	if (!s->exited || event_add(s->exited, NULL) < 0)
		log_warn(
			"clients: no memory to watch process %d; its session ends only when its socket is closed",
			(int)s->pid);
}

static void session_hello_request(struct session *s, int sent)
{
	struct control *control = s->control;
	struct clients *clients = control->clients;
	int fds[ATTACH_FDS_MAX] = {clients->status_fd, control->kick, clients->shard_fd};
	unsigned n = 3;

	if (s->pidfd >= 0) {
		closer_take(clients->closer, sent);
	} else {
		s->pidfd = session_pidfd(s, sent);
		if (s->pidfd >= 0)
			session_watch_process(s);
	}
	if (s->pidfd < 0)
		log_warn(
			"clients: process %d cannot be watched: it sent no pidfd and the kernel gave none; it can read pages but not store any",
			(int)s->pid);

	for (unsigned i = 0; i < control->rails; i++) {
		fds[n++] = pool_memory(control->rail[i].pool)->fd;
		fds[n++] = clients->heads_fd[i];
		fds[n++] = control->rail[i].kick;
	}
	if (clients->pidfd >= 0)
		fds[n++] = clients->pidfd;
	session_reply(s, control->rails, s->id, fds, n);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void session_report_request(struct session *s)
{
	char *text;
	size_t bytes;
	int fd, rc = s->control->client_events->report(s->control, &text, &bytes);

	if (rc < 0) {
		session_fail(s, rc, "no memory for the report");
		return;
	}
	fd = memfd_create("peercache-report", MFD_CLOEXEC);
	if (fd < 0 || write(fd, text, bytes) != (ssize_t)bytes || lseek(fd, 0, SEEK_SET) < 0)
		session_fail(s, -ENOMEM, "no memory for the report");
	else
		session_reply(s, bytes, 0, &fd, 1);
	if (fd >= 0)
		close(fd);
	free(text);
}

/* The first one begins the recording; its reply is empty. */
static void session_asked_request(struct session *s)
{
	struct clients *clients = s->control->clients;
	int next, fd = -1;
	off_t bytes = 0;

	if (s->request.a != STATISTICS_GET && s->request.a != STATISTICS_EXISTS) {
		session_fail(s, -EINVAL, "only keys of get or of exists are recorded");
		return;
	}
	if (!s->administers) {
		session_deny(s, -EPERM,
			"keys of other processes are recorded for administrators only: the engine's user, root, engine.admin_users and engine.admin_groups");
		return;
	}
	if (clients->recorder && clients->recorder != s) {
		session_fail(s, -EBUSY, "another process records the keys; end it first");
		return;
	}
	next = memfd_create("peercache-asked", MFD_CLOEXEC);
	if (next < 0) {
		session_fail(s, -errno, "no memory for the keys");
		return;
	}
	if (clients->recorder) {
		client_asked_take(s->control);
		fd = clients->asked_fd;
		bytes = lseek(fd, 0, SEEK_CUR);
	}
	clients->recorder = s;
	clients->asked_fd = next;
	shm_store(&s->control->status->asked, 1 + (uint32_t)s->request.a);
	session_reply(s, (uint64_t)bytes, 0, fd < 0 ? &next : &fd, 1);
	if (fd >= 0)
		close(fd);
}

/*
 * Checks a request. Returns 0, or -errno with the reason in `text`. After -EPROTO, a client with
 * another protocol, the session ends.
 */
static int session_request_check(
	const struct attach_request *r, size_t received, unsigned fds, char *text, size_t bytes)
{
	unsigned expected = r->kind == ATTACH_REGION_ADD ? 1 : 0;
	unsigned most = r->kind == ATTACH_HELLO || r->kind == ATTACH_REGION_IMPORT ? 1 : expected;

	if (r->magic != ATTACH_MAGIC) {
		text_fit(text, bytes,
			"magic number %08" PRIx32
			" is not that of this protocol; connect with libpeercache",
			r->magic);
		return -EPROTO;
	}
	if (r->version != ABI_VERSION) {
		text_fit(text, bytes,
			"the library has version %u of the client protocol, the engine version %u; use the libpeercache that came with this engine, or restart the engine with its newer program",
			r->version, ABI_VERSION);
		return -EPROTO;
	}
	if (received != sizeof(*r)) {
		text_fit(text, bytes,
			"a request has %zu bytes, this one has %zu%s; connect with libpeercache",
			sizeof(*r), received, received > sizeof(*r) ? " or more" : "");
		return -EPROTO;
	}
	if (r->kind < ATTACH_HELLO || r->kind > ATTACH_REGION_IMPORT) {
		text_fit(text, bytes, "request kind %u does not exist", r->kind);
		return -EINVAL;
	}
	if (fds < expected || fds > most) {
		text_fit(text, bytes,
			"request kind %u takes %u file descriptors; %u%s were received", r->kind,
			expected, fds, fds > PASSED_FDS_MAX ? " or more" : "");
		return -EINVAL;
	}
	return 0;
}

/*
 * Serves s->request, of which `received` bytes came, and takes ownership of `fd` (-1: the request
 * had no descriptor).
 */
static void session_serve(struct session *s, size_t received, int fd, unsigned fd_count)
{
	char text[224]; /* as much as attach_reply.text */
	int rc = session_request_check(&s->request, received, fd_count, text, sizeof(text));

	/* only a session that holds nothing yet is refused; another one ends as a whole */
	if (!s->id && !s->refuse && rc == -EPROTO)
		session_refuse(s, rc, "%s", text);
	else if (!s->id && !s->refuse)
		session_admit(s);
	if (s->refuse) {
		rc = s->refuse;
		text_fit(text, sizeof(text), "%s", s->refusal);
	}
	if (rc < 0) {
		closer_take(s->control->clients->closer, fd);
		session_fail(s, rc, text);
		if (s->refuse || rc == -EPROTO)
			session_end(s, text);
		return;
	}
	switch (s->request.kind) {
	case ATTACH_HELLO: session_hello_request(s, fd); break;
	case ATTACH_CHANNEL_OPEN: channel_open_request(s); break;
	case ATTACH_CHANNEL_CLOSE: channel_close_request(s); break;
	case ATTACH_REGION_ADD: region_add_request(s, fd); break;
	case ATTACH_REGION_REMOVE: region_remove_request(s); break;
	case ATTACH_REPORT: session_report_request(s); break;
	case ATTACH_ASKED: session_asked_request(s); break;
	case ATTACH_LEND: region_lend_request(s); break;
	case ATTACH_REGION_IMPORT: region_import_request(s, fd); break;
	}
}

/*
 * Returns the number of descriptors received. The first one goes to *ret_fd, the others are closed.
 */
static unsigned session_fds_received(struct closer *closer, struct msghdr *message, int *ret_fd)
{
	int fds[PASSED_FDS_MAX];
	unsigned n = fds_take(message, fds, PASSED_FDS_MAX);

	*ret_fd = n ? fds[0] : -1;
	for (unsigned i = 1; i < n; i++)
		closer_take(closer, fds[i]);
	return message->msg_flags & MSG_CTRUNC ? PASSED_FDS_MAX + 1 : n;
}

/*
 * Watches the session's socket for the next request. The first request must come within a time
 * limit.
 */
static int session_listen(struct session *s)
{
	const struct timeval patience = {
		.tv_sec = s->refuse ? CLIENT_REFUSED_SECONDS : CLIENT_SILENT_SECONDS};

	return event_add(s->readable, s->id ? NULL : &patience);
}

static void session_on_readable(evutil_socket_t socket, short what, void *context)
{
	struct session *s = context;
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(PASSED_FDS_MAX)];
	char buffer[sizeof(struct attach_request) + 1];
	struct iovec iov = {buffer, sizeof(buffer)};
	struct msghdr message = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t n;
	unsigned fds;
	int fd;

	if (what & EV_TIMEOUT) {
		s->control->counter[COUNTER_clients_silent] += !s->refuse;
		session_end(s, s->refuse ? s->refusal : "it sent no request in time");
		return;
	}
	n = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR) && session_listen(s) == 0)
		return;
	if (n < 0) {
		session_end(s, strerror(errno));
		return;
	}
	fds = session_fds_received(s->control->clients->closer, &message, &fd);
	if (n == 0) { /* the end of the socket, or an empty message, which may carry descriptors */
		closer_take(s->control->clients->closer, fd);
		session_end(s, "it closed the socket");
		return;
	}
	s->busy = true;
	memset(&s->request, 0, sizeof(s->request));
	memcpy(&s->request, buffer,
		(size_t)n < sizeof(s->request) ? (size_t)n : sizeof(s->request));
	session_serve(s, (size_t)n, fd, fds);
}

/* ---- start and end of a session -------------------------------------------------------------- */

static void session_on_closed(evutil_socket_t socket, short what, void *context)
{
	(void)socket;
	(void)what;
	session_end(context, "it closed the socket");
}

/*
 * Starts to watch the session's socket, with a time limit for the first request. Returns 0 or
 * -ENOMEM. `readable` is a one-shot event; session_reply() adds it again. `closed` fires when the
 * client closes the socket or dies, also while a request is being served.
 */
static int session_start(struct session *s)
{
	struct event_base *base = s->control->base;

	s->readable = event_new(base, s->fd, EV_READ, session_on_readable, s);
	s->closed = event_new(base, s->fd, EV_CLOSED, session_on_closed, s);
	if (s->readable && s->closed && session_listen(s) == 0 &&
		(s->refuse || event_add(s->closed, NULL) == 0))
		return 0;
	if (s->readable)
		event_free(s->readable);
	if (s->closed)
		event_free(s->closed);
	return -ENOMEM;
}

void session_end(struct session *s, const char *why)
{
	struct clients *clients = s->control->clients;

	if (s->ending)
		return;
	s->ending = true;
	clients->endings++;
	if (clients->recorder == s) {
		clients->recorder = NULL;
		close(clients->asked_fd);
		shm_store(&s->control->status->asked, 0);
	}
	if (!s->refuse)
		log_debug("clients: session %u of process %d ends: %s", s->id, (int)s->pid, why);
	event_free(s->readable);
	event_free(s->closed);
	if (s->exited)
		event_free(s->exited);
	s->readable = s->closed = s->exited = NULL;
	/* this makes the client see the end of its session at once */
	(void)shutdown(s->fd, SHUT_RDWR);
	/*
	 * the closer's thread closes it: unread requests may carry descriptors, and their close can
	 * block
	 */
	closer_take(clients->closer, s->fd);
	s->fd = -1;
	if (s->waits_told) {
		s->waits_told = false;
		clients->waits_told--;
	}
	s->waits_region = NULL;
	s->waits_channel = NULL;
	for (unsigned i = 0; i < CHANNELS_MAX && !s->refuse; i++)
		if (clients->channel[i] && clients->channel[i]->session == s)
			channel_stop(clients->channel[i]);
	for (unsigned i = 0; i < REGIONS_MAX && !s->refuse; i++)
		if (clients->region[i] && clients->region[i]->session == s)
			region_drop(clients->region[i]);
}

/* Whether the process, which may register memory after its session ended, has no device. */
static bool session_has_returned(struct session *s)
{
	if (s->lent && region_lend_returned(s))
		region_lend_end(s, true);
	return !s->lent || s->control->stopping;
}

/*
 * Frees a session that has ended and has no channels and regions left. Returns false if it cannot
 * yet.
 */
static bool session_free(struct session *s)
{
	struct clients *clients = s->control->clients;

	/* first: its channels may wait for a lost NIC, and that for what the process was lent */
	if (!s->ending || !session_has_returned(s) || s->channels || s->regions)
		return false;
	*s->place = NULL;
	if (s->id) {
		clients->sessions--;
		log_debug("clients: session %u is freed", s->id);
	}
	clients->endings--;
	if (!s->leaves)
		warm_process_end(s->control, s->process);
	if (s->pidfd >= 0)
		close(s->pidfd);
	free(s);
	return true;
}

/* ---- new connections ------------------------------------------------------------------------- */

/* Whether the client has sent a request on its socket that the engine has not read yet. */
static bool session_has_request(const struct session *s)
{
	char byte;

	return recv(s->fd, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) > 0;
}

/*
 * Returns a place for one more connection: a free one, or that of the connection that has been
 * silent longest. NULL: every connection has sent a request; these are served first, and new
 * connections wait in the backlog of the socket.
 */
static struct session **clients_silent_place(struct clients *clients)
{
	struct session **oldest = NULL;

	for (unsigned i = 0; i < CLIENT_SILENT_MAX; i++)
		if (!clients->silent[i] || clients->silent[i]->ending)
			return &clients->silent[i];
	for (unsigned i = 0; i < CLIENT_SILENT_MAX; i++) {
		struct session **place = &clients->silent[i];

		if (!session_has_request(*place) &&
			(!oldest || (*place)->arrival < (*oldest)->arrival))
			oldest = place;
	}
	return oldest;
}

static void clients_silent_clear(struct session **place)
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
static void clients_accept_one(struct clients *clients, int fd, struct session **silent)
{
	struct ucred peer = {.pid = 0, .uid = (uid_t)-1};
	socklen_t bytes = sizeof(peer);
	struct session *s = calloc(1, sizeof(*s));
	struct session **place = silent;
	char why[sizeof(s->refusal)];

	if (!s || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		goto drop;
	s->control = clients->control;
	s->fd = fd;
	s->pid = peer.pid;
	s->uid = peer.uid;
	s->administers = client_access_administers(&clients->access, fd, &peer);
	s->pidfd = -1;
	s->arrival = ++clients->arrivals;
	if (!client_access_allows(clients->control, &clients->access, fd, &peer, why, sizeof(why)))
		session_refuse(s, -EPERM, "%s", why);
	if (s->refuse)
		place = session_place_find(clients->refused, CLIENT_REFUSED_MAX);
	if (!place || session_start(s) < 0)
		goto drop;
	if (place == silent)
		clients_silent_clear(place);
	*place = s;
	s->place = place;
	return;
drop:
	free(s);
	closer_take(clients->closer, fd);
}

static void clients_on_accept(evutil_socket_t listener, short what, void *context)
{
	struct clients *clients = context;

	(void)what;
	for (unsigned i = 0; i < CLIENT_ACCEPTS; i++) {
		struct session **place = clients_silent_place(clients);
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
		clients_accept_one(clients, fd, place);
	}
}

/* ---- turns ----------------------------------------------------------------------------------- */

/*
 * Frees the sessions that have ended and own no channel and no region any more. Returns how many it
 * freed.
 */
static unsigned sessions_free(struct clients *clients)
{
	unsigned n = 0;

	for (unsigned i = 0; i < CLIENT_PLACES; i++)
		n += clients->place[i] && session_free(clients->place[i]);
	return n;
}

unsigned clients_turn(struct control *control)
{
	struct clients *clients = control->clients;
	unsigned work = 0;

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

	*ret = (struct client_counts){.sessions = clients->sessions,
		.channels = clients->channels,
		.regions = clients->regions,
		.extents = clients->extents};
	for (unsigned i = 0; i < CLIENT_REFUSALS; i++) {
		const struct client_refusal *r = &clients->refusal[i];

		if (r->attached && net_now() - r->tried_ns < CLIENT_REFUSAL_NS) {
			ret->denied++;
			ret->denied_pid = r->pid;
			memcpy(ret->denial, r->text, sizeof(ret->denial));
		}
		if (r->attached || net_now() - r->tried_ns >= CLIENT_TRIES_NS ||
			r->tried_ns - r->since_ns < CLIENT_TRIES_NS)
			continue;
		ret->refused++;
		ret->refused_pid = r->pid;
		memcpy(ret->refusal, r->text, sizeof(ret->refusal));
	}
}

/* ---- open and close -------------------------------------------------------------------------- */

void clients_stop(struct control *control)
{
	struct clients *clients = control->clients;

	if (clients->accepts)
		event_free(clients->accepts);
	clients->accepts = NULL;
	client_socket_remove(control);
	for (unsigned i = 0; i < CLIENT_PLACES; i++)
		if (clients->place[i])
			session_end(clients->place[i], "the engine stops");
	for (unsigned i = 0; i < CHANNELS_MAX; i++)
		if (clients->channel[i] && clients->channel[i]->quarantined)
			channel_finish(clients->channel[i]);
}

/*
 * Opens the file of `fd` once more, read-only: the new descriptor cannot be mapped for writing, nor
 * opened anew for it by another user, because the file has the mode 0600.
 */
static int reopen_read_only(int fd)
{
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	rc = open(path, O_RDONLY | O_CLOEXEC);
	return rc < 0 ? -errno : rc;
}

static int clients_files_open(struct control *control, struct clients *clients)
{
	clients->status_fd = reopen_read_only(control->status_memory.fd);
	if (clients->status_fd < 0)
		return clients->status_fd;
	clients->shard_fd = reopen_read_only(control->shard->memory.fd);
	if (clients->shard_fd < 0)
		return clients->shard_fd;
	for (unsigned i = 0; i < control->rails; i++) {
		clients->heads_fd[i] = reopen_read_only(pool_heads(control->rail[i].pool)->fd);
		if (clients->heads_fd[i] < 0)
			return clients->heads_fd[i];
	}
	return 0;
}

static int clients_accept_start(struct clients *clients)
{
	int rc = client_socket_answer(clients->control);

	return rc < 0 || event_add(clients->accepts, NULL) == 0 ? rc : -ENOMEM;
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
	rc = client_memory_open(control);
	if (rc == 0)
		rc = client_access_open(control->settings, &clients->access);
	if (rc == 0)
		rc = closer_open(&clients->closer);
	if (rc < 0)
		goto fail;
	rc = clients_files_open(control, clients);
	if (rc < 0) {
		log_error(
			"clients: cannot open shared memory read-only: %s; check that /proc is mounted",
			strerror(-rc));
		goto fail;
	}
	rc = client_socket_listen(control);
	if (rc < 0)
		goto fail;
	clients->accepts =
		event_new(control->base, rc, EV_READ | EV_PERSIST, clients_on_accept, clients);
	rc = clients->accepts ? channels_open(clients) : -ENOMEM;
	if (rc == 0 && !control->door_shut)
		rc = clients_accept_start(clients);
	if (rc == 0)
		return 0;
fail:
	clients_close(control);
	return rc;
}

void clients_accept(struct control *control)
{
	if (control->clients && control->clients->accepts)
		(void)clients_accept_start(control->clients);
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
	client_memory_stop(clients);
	(void)clients_turn(control);
	channels_close(clients);
	client_memory_close(control);
	(void)sessions_free(clients);
	closer_close(clients->closer);
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
