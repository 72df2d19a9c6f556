/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket of a session: connecting, sending one request and receiving its reply with file
 * descriptors, and mapping those descriptors. Slow path. Callers hold pc->wire, except for
 * session_ended().
 */
#include "config/clock.h"
#include "config/limits.h"
#include "config/passed_fds.h"
#include "engine/abi/bucket.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/constants.h"
#include "engine/client/error.h"
#include "engine/client/attach/session.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG_WAIT_MS 5000u /* longest wait for the engine to accept a connection */
#define HELLO_TIMEOUT_MS 5000u
/* an engine whose loop has not turned for this time is stopped: its own watchdog waits as long */
#define ENGINE_STILL_NS 10000000000ull
#define POLL_NS_MAX 50000000ull /* time between two looks at the engine's beat */

void session_close_fds(struct session_call *call)
{
	for (unsigned i = 0; i < call->fds; i++)
		if (call->fd[i] >= 0)
			close(call->fd[i]);
	call->fds = 0;
}

static int session_send(struct client_session *session, const struct session_call *call)
{
	struct attach_request request = {.magic = ATTACH_MAGIC,
		.version = ABI_VERSION,
		.kind = call->kind,
		.serial = session->sent + 1,
		.a = call->a,
		.b = call->b};
	struct iovec io = {.iov_base = &request, .iov_len = sizeof(request)};
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(1)];
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
	ssize_t sent;

	fds_attach(&message, control, &call->send_fd, call->send_fd >= 0);
	do
		sent = sendmsg(session->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return -errno;
	session->sent++;
	return 0;
}

/*
 * Waits for a reply. -ETIMEDOUT: it did not come by `until_ns`, or the engine's loop has not turned
 * for ENGINE_STILL_NS; an engine that pins a large range goes on turning. -ECANCELED: the session
 * is to be closed.
 */
static int session_wait_readable(const struct client_session *s, uint64_t until_ns)
{
	uint64_t now_ns = clock_monotonic_ns(), end_ns = now_ns + ENGINE_STILL_NS;
	uint32_t beat = s->status ? shm_load(&s->status->beat) : 0;

	for (;; now_ns = clock_monotonic_ns()) {
		struct pollfd p = {.fd = s->fd, .events = POLLIN};
		uint64_t rest_ns;
		int ready;

		if (s->status && shm_load(&s->status->beat) != beat) {
			beat = shm_load(&s->status->beat);
			end_ns = now_ns + ENGINE_STILL_NS;
		}
		if (shm_load(s->stop))
			return -ECANCELED;
		if (now_ns >= until_ns || now_ns >= end_ns)
			return -ETIMEDOUT;
		rest_ns = until_ns - now_ns < POLL_NS_MAX ? until_ns - now_ns : POLL_NS_MAX;
		ready = poll(&p, 1, (int)(rest_ns / 1000000 + 1));
		if (ready > 0)
			return 0;
		if (ready < 0 && errno != EINTR)
			return -errno;
	}
}

/*
 * Receives the next reply; replies come in the order of the requests. *ret_short: this process had
 * no room for some of the file descriptors that came with the reply; the reply itself is complete
 * then.
 */
static int session_receive(struct client_session *session, struct session_call *call,
	struct attach_reply *reply, uint64_t until_ns, bool *ret_short)
{
	struct iovec io = {.iov_base = reply, .iov_len = sizeof(*reply)};
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(ATTACH_FDS_MAX)];
	struct msghdr message = {.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t got;
	int rc = session_wait_readable(session, until_ns);

	call->fds = 0;
	if (rc)
		return rc;
	do
		got = recvmsg(session->fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	if (got == 0)
		return -ECONNRESET;
	call->fds = fds_take(&message, call->fd, ATTACH_FDS_MAX);
	if ((size_t)got != sizeof(*reply) || (message.msg_flags & MSG_TRUNC))
		return -EPROTO;
	reply->text[sizeof(reply->text) - 1] = '\0';
	if (reply->magic != ATTACH_MAGIC || reply->version != ABI_VERSION ||
		reply->serial != session->answered + 1 || reply->status > 0)
		return -EPROTO;
	session->answered++;
	*ret_short = message.msg_flags & MSG_CTRUNC;
	return 0;
}

/*
 * Returns to the engine what a reply granted, because this process cannot use it. The answer to
 * that is read by session_receive_late().
 */
static int session_undo(struct client_session *session, const struct attach_reply *reply)
{
	struct session_call call = {.a = reply->a, .send_fd = -1};

	if (reply->status == 0 && reply->kind == ATTACH_CHANNEL_OPEN)
		call.kind = ATTACH_CHANNEL_CLOSE;
	else if (reply->status == 0 &&
		 (reply->kind == ATTACH_REGION_ADD || reply->kind == ATTACH_REGION_IMPORT))
		call.kind = ATTACH_REGION_REMOVE;
	else if (reply->status == 0 && reply->kind == ATTACH_LEND)
		call = (struct session_call){.kind = ATTACH_REGION_IMPORT, .send_fd = -1};
	return call.kind ? session_send(session, &call) : 0;
}

/* Before a request is sent: receives the replies to earlier requests that timed out. */
static int session_receive_late(struct client_session *session, uint64_t until_ns)
{
	struct session_call call;
	struct attach_reply reply;
	int rc = 0;
	bool cut;

	while (!rc && session->answered != session->sent) {
		rc = session_receive(session, &call, &reply, until_ns, &cut);
		session_close_fds(&call);
		if (!rc)
			rc = session_undo(session, &reply);
	}
	return rc;
}

static int session_exchange(
	struct client_session *session, struct session_call *call, struct attach_reply *reply)
{
	uint64_t until_ns = clock_monotonic_ns() + call->timeout_ms * 1000000ull;
	bool cut = false;
	int rc = session_receive_late(session, until_ns);

	if (!rc)
		rc = session_send(session, call);
	if (!rc)
		rc = session_receive(session, call, reply, until_ns, &cut);
	if (!rc && reply->kind != call->kind)
		rc = -EPROTO;
	if (!rc && cut) {
		session_close_fds(call);
		rc = session_undo(session, reply);
		if (!rc)
			rc = -EMFILE;
	}
	return rc;
}

/*
 * Sets the error text of a broken exchange. Magic and version are the first fields of a reply in
 * every version, whatever the reply's length.
 */
static int session_ask_failed(
	const struct session_call *call, const struct attach_reply *reply, int rc)
{
	if (reply->magic == ATTACH_MAGIC && reply->version && reply->version != ABI_VERSION)
		return error_set(rc,
			"the engine speaks version %u of the client protocol, this library version %u: use the libpeercache (in Python the package peercache) that came with the engine, or restart the engine with its newer program",
			reply->version, ABI_VERSION);
	return error_set(rc, "the engine answered request %u with an invalid reply: %s", call->kind,
		strerror(-rc));
}

/*
 * A late reply (-ETIMEDOUT), a refusal and a lack of file descriptors (-EMFILE) fail only this
 * request, because other channels use the session. An invalid reply and errors of the socket end
 * the session.
 */
int session_ask(struct client_session *session, struct session_call *call)
{
	struct attach_reply reply = {.magic = 0};
	uint64_t start_ns = clock_monotonic_ns();
	int rc = session_exchange(session, call, &reply);

	/* -EAGAIN: the session's socket is full, because the engine has not read requests */
	if (rc == -EAGAIN)
		rc = -ETIMEDOUT;
	/* Either the request was not sent, or its reply is still in the socket: the session can
	 * go on. */
	if (rc == -ENOBUFS || rc == -ENOMEM || rc == -ETOOMANYREFS) {
		session_close_fds(call);
		return error_set(rc, "request %u to the engine: %s", call->kind, strerror(-rc));
	}
	if (rc)
		session_close_fds(call);
	if (rc == -ETIMEDOUT)
		return error_set(rc,
			"the engine did not answer request %u within the %u ms left for it; is it stopped, or its host overloaded?",
			call->kind, (unsigned)((clock_monotonic_ns() - start_ns) / 1000000));
	if (rc == -EMFILE)
		return error_set(rc,
			"this process has no room for the file descriptors of the engine's reply to request %u: raise its limit of open files (ulimit -n)",
			call->kind);
	if (rc) {
		shm_store(&session->dead, 1);
		shutdown(session->fd, SHUT_RDWR);
		return session_ask_failed(call, &reply, rc);
	}
	if (reply.status == -EPERM && call->kind == ATTACH_HELLO) {
		session_close_fds(call);
		return error_set(-EPERM,
			"the engine refused this process, which is user %u and group %u in its own user namespace: %s",
			(unsigned)geteuid(), (unsigned)getegid(), reply.text);
	}
	if (reply.status < 0) {
		session_close_fds(call);
		return error_set(reply.status, "the engine refused request %u: %s%s%s", call->kind,
			reply.text, reply.text[0] ? ": " : "", strerror(-reply.status));
	}
	call->a = reply.a;
	call->b = reply.b;
	return 0;
}

void session_channel_close(struct client_session *session, uint64_t channel)
{
	const struct session_call close = {
		.kind = ATTACH_CHANNEL_CLOSE, .a = channel, .send_fd = -1};

	(void)session_send(session, &close);
}

bool session_ended(struct client_session *session)
{
	struct pollfd p = {.fd = session->fd, .events = POLLRDHUP};

	if (shm_load(&session->dead))
		return true;
	return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

/*
 * Maps the whole file. NULL: *ret_error is -EPROTO if it is shorter than `bytes_min`, or what the
 * system answered.
 */
static void *session_map_fd(
	int fd, int protection, uint64_t bytes_min, uint64_t *ret_bytes, int *ret_error)
{
	struct stat about;
	void *at;

	*ret_error = -EPROTO;
	if (fstat(fd, &about) || about.st_size <= 0 || (uint64_t)about.st_size < bytes_min)
		return NULL;
	at = mmap(NULL, (size_t)about.st_size, protection, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		*ret_error = -errno;
		return NULL;
	}
	*ret_bytes = (uint64_t)about.st_size;
	return at;
}

static int session_map_rail(struct client_session *s, uint32_t r, struct session_call *call)
{
	struct session_rail *rail = &s->rail[r];
	int *fd = &call->fd[3 + 3 * r];
	uint64_t covered;
	int rc;

	rail->pool =
		session_map_fd(fd[0], PROT_READ | PROT_WRITE, PAGE_UNIT, &rail->map_bytes, &rc);
	if (!rail->pool)
		return rc;
	rail->heads =
		session_map_fd(fd[1], PROT_READ, sizeof(struct page_head), &rail->heads_bytes, &rc);
	if (!rail->heads)
		return rc;
	rail->pool_bytes = s->status->pool_bytes[r];
	if (rail->pool_bytes > rail->map_bytes)
		rail->pool_bytes = rail->map_bytes;
	covered = rail->heads_bytes / sizeof(struct page_head) * PAGE_UNIT;
	if (rail->pool_bytes > covered)
		rail->pool_bytes = covered;
	/* MADV_DONTFORK: a child of fork() must not keep slots writable after the engine has freed
	 * those of its parent. MADV_DONTDUMP: a core dump has no use for terabytes of pages. */
	madvise(rail->pool, rail->map_bytes, MADV_DONTFORK);
	madvise(rail->pool, rail->map_bytes, MADV_DONTDUMP);
	rail->touched = calloc(rail->pool_bytes / TOUCH_BYTES + 1, sizeof(*rail->touched));
	if (!rail->touched)
		return -ENOMEM;
	rail->kick = fd[2];
	fd[2] = -1;
	return 0;
}

/*
 * Maps all memory that came with the reply to HELLO, after checking its sizes against the limits.
 */
static int session_map_all(struct client_session *s, struct session_call *call)
{
	const struct status_segment *status;
	int rc = 0;

	/* 0 rails: a seed only, of which a report can be requested; it opens no channel */
	if (call->a > RAILS_MAX || call->fds < 3 + 3 * call->a || call->fds > 3 + 3 * call->a + 1)
		return -EPROTO;
	s->rails = (uint32_t)call->a;
	if (call->fds > 3 + 3 * s->rails) {
		s->pidfd = call->fd[3 + 3 * s->rails];
		call->fd[3 + 3 * s->rails] = -1;
	}
	status = session_map_fd(call->fd[0], PROT_READ, sizeof(*status), &s->status_bytes, &rc);
	if (!status)
		return rc;
	s->status = status;
	if (status->magic != STATUS_MAGIC || status->version != ABI_VERSION ||
		status->rails != s->rails || status->bucket_bits > 31)
		return -EPROTO;
	s->ref = status->ref;
	s->page_bytes_max = status->page_bytes_max;
	if (s->page_bytes_max > PAGE_BYTES_MAX)
		s->page_bytes_max = PAGE_BYTES_MAX;
	s->bucket_bits = status->bucket_bits;
	s->control_kick = call->fd[1];
	call->fd[1] = -1;
	s->shard = session_map_fd(call->fd[2], PROT_READ, sizeof(struct bucket) << s->bucket_bits,
		&s->shard_bytes, &rc);
	if (!s->shard)
		return rc;
	rc = 0;
	for (uint32_t r = 0; r < s->rails && !rc; r++)
		rc = session_map_rail(s, r, call);
	return rc;
}

/*
 * Whether the engine that listened when this connection was made has ended: a keeper or systemd
 * holds the socket for the next one. Also true of a process in another PID namespace, which cannot
 * be seen: it restarts more often than it is stopped.
 */
static bool session_listener_ended(const struct client_session *s)
{
	struct ucred peer = {.pid = 0};
	socklen_t bytes = sizeof(peer);

	if (getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
		return false;
	return peer.pid <= 0 || (kill(peer.pid, 0) < 0 && errno == ESRCH);
}

/*
 * Sends HELLO with this process's pidfd. The engine grants credits only to a process whose end it
 * can observe.
 */
static int session_hello(struct client_session *s, const char *path, struct session_call *call)
{
	int rc;

	call->send_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	rc = session_ask(s, call);
	if (call->send_fd >= 0)
		close(call->send_fd);
	if (rc == -ETIMEDOUT && session_listener_ended(s))
		return error_set(-EINPROGRESS,
			"the engine at %s has ended, and the next one did not answer within %u s: its service manager restarts it; try again, or read its log",
			path, HELLO_TIMEOUT_MS / 1000);
	return rc;
}

/*
 * Connects to the engine's socket. While its backlog is full, tries again each millisecond, because
 * the engine's event loop empties it quickly. Returns the socket or -errno.
 */
static int session_connect(const char *path, const uint32_t *stop)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error;

	memcpy(address.sun_path, path, strlen(path));
	for (unsigned ms = 0; fd >= 0; ms++) {
		if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
			return fd;
		if (errno != EAGAIN || ms == BACKLOG_WAIT_MS || shm_load(stop))
			break;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	error = errno;
	if (fd >= 0)
		close(fd);
	if (error == EAGAIN)
		return error_set(-EAGAIN,
			"the engine at %s does not accept clients: its backlog is full; is it stopped?",
			path);
	return error_set(-error,
		"cannot attach to an engine at %s: %s; is one running, and does it belong to this user?",
		path, strerror(error));
}

int session_open(const char *path, const uint32_t *stop, struct client_session **ret_session)
{
	struct session_call call = {.kind = ATTACH_HELLO, .timeout_ms = HELLO_TIMEOUT_MS};
	int fd = session_connect(path, stop), rc;
	struct client_session *s;

	if (fd < 0)
		return fd;
	s = calloc(1, sizeof(*s));
	if (!s) {
		close(fd);
		return error_set(-ENOMEM, "cannot open a session: out of memory");
	}
	s->fd = fd;
	s->stop = stop;
	s->pidfd = s->control_kick = -1;
	s->users = 1;
	for (unsigned r = 0; r < RAILS_MAX; r++)
		s->rail[r].kick = -1;
	rc = session_hello(s, path, &call);
	if (rc)
		goto fail;
	rc = session_map_all(s, &call);
	session_close_fds(&call);
	if (rc == -EPROTO)
		error_set(rc,
			"the engine at %s sent an invalid reply; engine and library must be of the same version",
			path);
	else if (rc)
		error_set(rc,
			"cannot map the memory of the engine at %s: %s; raise this process's limit of address space (ulimit -v) or the host's of mappings (vm.max_map_count)",
			path, strerror(-rc));
	if (rc)
		goto fail;
	*ret_session = s;
	return 0;
fail:
	session_free(s);
	return rc;
}

static void session_unmap(const void *at, uint64_t bytes)
{
	if (at)
		munmap((void *)(uintptr_t)at, bytes);
}

void session_free(struct client_session *s)
{
	for (uint32_t r = 0; r < RAILS_MAX; r++) {
		session_unmap(s->rail[r].pool, s->rail[r].map_bytes);
		free(s->rail[r].touched);
		session_unmap(s->rail[r].heads, s->rail[r].heads_bytes);
		if (s->rail[r].kick >= 0)
			close(s->rail[r].kick);
	}
	session_unmap(s->shard, s->shard_bytes);
	session_unmap(s->status, s->status_bytes);
	if (s->control_kick >= 0)
		close(s->control_kick);
	if (s->pidfd >= 0)
		close(s->pidfd);
	if (s->fd >= 0)
		close(s->fd);
	free(s);
}
