/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: receives requests and sends replies, one at a time. It ends when the client closes its
 * socket, when its process exits, when the client breaks a rule, or when the engine stops. A
 * session that ends keeps its place until the rails have returned all its channels and regions.
 * clients_turn() then frees it, so that it is never freed inside one of its own callbacks. Runs on
 * the control plane's thread only.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/clients/client.h"
#include "engine/control/loop.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/warm.h"

#define FDS_IN_MAX 253 /* SCM_MAX_FD of Linux, the most descriptors that one message carries */

/* ---- replies --------------------------------------------------------------------------------- */

static int reply_send(struct session *s, struct attach_reply *reply, const int *fds, unsigned count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * ATTACH_FDS_MAX)];
	} control;
	struct iovec iov = {reply, sizeof(*reply)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

	if (count > ATTACH_FDS_MAX)
		return -EINVAL;
	if (count) {
		struct cmsghdr *c;

		memset(&control, 0, sizeof(control));
		message.msg_control = control.bytes;
		message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		c = CMSG_FIRSTHDR(&message);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * count);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * count);
	}
	return sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Sends the one reply to s->request, with `count` descriptors. */
static void request_end(
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
	rc = reply_send(s, reply, fds, count);
	if (rc < 0) /* sendmsg() failed: the client does not read its replies, or has exited */
		session_end(s, rc == -EAGAIN ? "it does not read its replies" : strerror(-rc));
	else if (s->readable && event_add(s->readable, NULL) < 0)
		session_end(s, "out of memory");
}

void session_reply(struct session *s, uint64_t a, uint64_t b, const int *fds, unsigned count)
{
	request_end(s, &(struct attach_reply){.a = a, .b = b}, fds, count);
}

void session_fail(struct session *s, int status, const char *text)
{
	struct attach_reply reply = {.status = status};

	snprintf(reply.text, sizeof(reply.text), "%s", text);
	request_end(s, &reply, NULL, 0);
}

void session_told(struct session *s)
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

void session_refuse(struct session *s, int status, const char *format, ...)
{
	va_list args;

	s->refuse = status;
	va_start(args, format);
	vsnprintf(s->refusal, sizeof(s->refusal), format, args);
	va_end(args);
	s->control->counter[COUNTER_clients_refused]++;
	log_warn("clients: refused: %s", s->refusal);
}

/* ---- requests -------------------------------------------------------------------------------- */

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* constant of Linux 6.5 that older kernel headers lack */
#endif

/*
 * Whether `fd` is a pidfd of process `pid`. A process of another PID namespace has pid 0 in its
 * credentials and a number of 0 or less in fdinfo.
 */
static bool is_pidfd(int fd, pid_t pid)
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
static int pidfd_of(const struct session *s, int sent)
{
	int fd = -1;
	socklen_t bytes = sizeof(fd);

	if (getsockopt(s->fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) < 0)
		fd = -1;
	if (fd < 0 && sent >= 0 && is_pidfd(sent, s->pid))
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
static void on_exited(evutil_socket_t pidfd, short what, void *context)
{
	(void)pidfd;
	(void)what;
	session_end(context, "its process has exited");
}

static void watch_process(struct session *s)
{
	s->exited = event_new(s->control->base, s->pidfd, EV_READ, on_exited, s);
	if (!s->exited || event_add(s->exited, NULL) < 0)
		log_warn(
			"clients: no memory to watch process %d; its session ends only when its socket is closed",
			(int)s->pid);
}

static void hello_request(struct session *s, int sent)
{
	struct control *control = s->control;
	struct clients *clients = control->clients;
	int fds[ATTACH_FDS_MAX] = {clients->status_fd, control->kick, clients->shard_fd};
	unsigned n = 3;

	if (s->pidfd >= 0) {
		closer_take(clients->closer, sent);
	} else {
		s->pidfd = pidfd_of(s, sent);
		if (s->pidfd >= 0)
			watch_process(s);
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

static void report_request(struct session *s)
{
	char *text;
	size_t bytes;
	int fd, rc = snapshot_report(s->control, &text, &bytes);

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

/*
 * Checks a request. Returns 0, or -errno with the reason in `text`. After -EPROTO, a client with
 * another protocol, the session ends.
 */
static int request_check(const struct attach_request *r, unsigned fds, char *text, size_t bytes)
{
	unsigned expected = r->kind == ATTACH_REGION_ADD ? 1 : 0;
	unsigned most = r->kind == ATTACH_HELLO ? 1 : expected;

	if (r->magic != ATTACH_MAGIC) {
		snprintf(text, bytes,
			"magic number %08" PRIx32
			" is not that of this protocol; connect with libpeercache",
			r->magic);
		return -EPROTO;
	}
	if (r->version != ABI_VERSION) {
		snprintf(text, bytes,
			"the library has protocol version %u, the engine version %u; use the libpeercache that came with this engine",
			r->version, ABI_VERSION);
		return -EPROTO;
	}
	if (r->kind < ATTACH_HELLO || r->kind > ATTACH_REPORT) {
		snprintf(text, bytes, "request kind %u does not exist", r->kind);
		return -EINVAL;
	}
	if (fds < expected || fds > most) {
		snprintf(text, bytes,
			"request kind %u takes %u file descriptors; %u%s were received", r->kind,
			expected, fds, fds > FDS_IN_MAX ? " or more" : "");
		return -EINVAL;
	}
	return 0;
}

void session_serve(struct session *s, int fd, unsigned fd_count)
{
	char text[160];
	int rc = request_check(&s->request, fd_count, text, sizeof(text));

	if (!s->id && !s->refuse && rc != -EPROTO)
		session_admit(s);
	if (s->refuse) {
		rc = s->refuse;
		snprintf(text, sizeof(text), "%s", s->refusal);
	}
	if (rc < 0) {
		closer_take(s->control->clients->closer, fd);
		session_fail(s, rc, text);
		if (s->refuse || rc == -EPROTO)
			session_end(s, text);
		return;
	}
	switch (s->request.kind) {
	case ATTACH_HELLO: hello_request(s, fd); break;
	case ATTACH_CHANNEL_OPEN: channel_open_request(s); break;
	case ATTACH_CHANNEL_CLOSE: channel_close_request(s); break;
	case ATTACH_REGION_ADD: region_add_request(s, fd); break;
	case ATTACH_REGION_REMOVE: region_remove_request(s); break;
	case ATTACH_REPORT: report_request(s); break;
	}
}

/*
 * Returns the number of descriptors received. The first one goes to *ret_fd, the others are closed.
 */
static unsigned fds_received(struct closer *closer, struct msghdr *message, int *ret_fd)
{
	unsigned n = 0;

	*ret_fd = -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		unsigned here;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		here = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (unsigned i = 0; i < here; i++, n++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (n == 0)
				*ret_fd = fd;
			else
				closer_take(closer, fd);
		}
	}
	return message->msg_flags & MSG_CTRUNC ? FDS_IN_MAX + 1 : n;
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

static void on_readable(evutil_socket_t socket, short what, void *context)
{
	struct session *s = context;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * FDS_IN_MAX)];
	} control;
	char buffer[sizeof(struct attach_request) + 1];
	struct iovec iov = {buffer, sizeof(buffer)};
	struct msghdr message = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
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
	if (n <= 0) {
		session_end(s, n < 0 ? strerror(errno) : "it closed the socket");
		return;
	}
	fds = fds_received(s->control->clients->closer, &message, &fd);
	s->busy = true;
	memset(&s->request, 0, sizeof(s->request));
	memcpy(&s->request, buffer,
		(size_t)n < sizeof(s->request) ? (size_t)n : sizeof(s->request));
	if (n == sizeof(s->request)) {
		session_serve(s, fd, fds);
		return;
	}
	closer_take(s->control->clients->closer, fd);
	session_fail(s, -EPROTO, "a request has 32 bytes");
	session_end(s, "a request of the wrong size");
}

/* ---- start and end of a session -------------------------------------------------------------- */

static void on_closed(evutil_socket_t socket, short what, void *context)
{
	(void)socket;
	(void)what;
	session_end(context, "it closed the socket");
}

/*
 * `readable` is a one-shot event; session_reply() adds it again. `closed` fires when the client
 * closes the socket or dies, also while a request is being served.
 */
int session_start(struct session *s)
{
	struct event_base *base = s->control->base;

	s->readable = event_new(base, s->fd, EV_READ, on_readable, s);
	s->closed = event_new(base, s->fd, EV_CLOSED, on_closed, s);
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

bool session_free(struct session *s)
{
	struct clients *clients = s->control->clients;

	if (!s->ending || s->channels || s->regions)
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
