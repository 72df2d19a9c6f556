/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to other hosts, serving side: executes the requests of a connection in order and sends
 * payload directly from registered memory. Run only by the service thread. It read-holds the world
 * while it moves bytes, so that a deregistration waits; every call checks the key again.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "config/clock.h"
#include "config/log.h"
#include "dv/soft/check.h"
#include "dv/soft/tcp.h"

/*
 * A READ reads payload while its owner may write it: ThreadSanitizer ignores that; see soft_copy().
 */
#ifdef DV_UNDER_TSAN
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
#else
#define AnnotateIgnoreReadsBegin(file, line) ((void)0)
#define AnnotateIgnoreReadsEnd(file, line) ((void)0)
#endif

#define IN_BYTES (64u << 10)
#define PENDING_MAX 256u /* answers waiting to be sent on one connection; a power of two */
/* limit of one sendmsg(), which bounds how long the world's read lock is held */
#define SEND_BYTES (256u << 10)
#define SEND_PARTS 32u
/* rounds of receiving and sending for one connection before others are served */
#define TURNS_MAX 64u
/* connections without a token: the oldest make room, above the limit also those that have sent */
#define STRANGERS_MAX 64u
#define STRANGERS_LIMIT 512u
#define STRANGERS_LINE_NS 60000000000ull /* between two lines about them */

struct pending {
	struct tcp_answer answer;
	struct soft_ask ask;
	uint64_t sent; /* bytes of the answer that are sent, header and payload together */
};

struct soft_serve {
	size_t in_head, in_tail;
	/* indices of the oldest answer in pending[] and behind the newest one; free running */
	uint32_t head, tail;
	struct pending pending[PENDING_MAX];
	uint8_t in[IN_BYTES];
};

struct soft_serve *soft_serve_open(void)
{
	struct soft_serve *serve = malloc(sizeof(*serve));

	if (serve)
		memset(serve, 0, offsetof(struct soft_serve, pending));
	return serve;
}

/*
 * Reading pauses while the list of answers is full, or the receive buffer, whose requests wait for
 * room in that list.
 */
static bool may_read(const struct soft_serve *serve)
{
	return serve->tail - serve->head < PENDING_MAX && serve->in_tail < IN_BYTES;
}

short soft_serve_events(const struct soft_serve *serve)
{
	bool more = serve->in_tail >= sizeof(struct tcp_request);

	return (short)((may_read(serve) ? POLLIN : 0) |
		       (serve->head != serve->tail || more ? POLLOUT : 0));
}

/* ---- answers --------------------------------------------------------------------------------- */

/*
 * Adds the rest of one answer to the parts to send. If the memory was deregistered since the
 * request, the answer becomes SOFT_REFUSED; after its first byte was sent the connection must be
 * closed instead (false).
 */
static bool add_parts(
	struct dv_device *nic, struct pending *pending, struct msghdr *packet, size_t *bytes)
{
	struct tcp_answer *answer = &pending->answer;
	struct soft_export_mr mr;
	uint64_t skip;

	if (answer->length && soft_mr_range(nic->table, &pending->ask, &mr) != SOFT_DONE) {
		if (pending->sent)
			return false;
		answer->length = 0;
		answer->result = SOFT_REFUSED;
	}
	if (pending->sent < sizeof(*answer)) {
		struct iovec *part = &packet->msg_iov[packet->msg_iovlen++];

		part->iov_base = (uint8_t *)answer + pending->sent;
		part->iov_len = sizeof(*answer) - pending->sent;
		*bytes += part->iov_len;
	}
	skip = pending->sent > sizeof(*answer) ? pending->sent - sizeof(*answer) : 0;
	if (answer->length > skip) {
		struct iovec *part = &packet->msg_iov[packet->msg_iovlen++];
		uint64_t left = answer->length - skip;

		part->iov_base = (uint8_t *)(uintptr_t)pending->ask.address + skip;
		part->iov_len = left < SEND_BYTES ? left : SEND_BYTES;
		*bytes += part->iov_len;
	}
	return true;
}

static void mark_sent(struct soft_serve *serve, size_t bytes)
{
	while (bytes) {
		struct pending *pending = &serve->pending[serve->head & (PENDING_MAX - 1)];
		uint64_t left = sizeof(pending->answer) + pending->answer.length - pending->sent;
		uint64_t n = bytes < left ? bytes : left;

		pending->sent += n;
		bytes -= n;
		if (n == left)
			serve->head++;
	}
}

/*
 * Sends all answers that fit in one sendmsg(). Returns 1: some were sent; 0: the socket is full;
 * -1: the link is broken.
 */
static int send_some(struct dv_device *nic, struct soft_conn *conn)
{
	struct soft_serve *serve = conn->serve;
	struct iovec parts[SEND_PARTS];
	struct msghdr packet = {.msg_iov = parts};
	size_t bytes = 0;
	bool good = true;
	ssize_t n = -1;

	soft_world_read();
	for (uint32_t at = serve->head; good && at != serve->tail; at++) {
		if (bytes >= SEND_BYTES || packet.msg_iovlen + 2 > SEND_PARTS)
			break;
		good = add_parts(nic, &serve->pending[at & (PENDING_MAX - 1)], &packet, &bytes);
		if (serve->pending[at & (PENDING_MAX - 1)].answer.length > SEND_BYTES)
			/* the socket is full: the rest of this payload must be sent before the
			 * next answer */
			break;
	}
	if (good) {
		AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
		n = sendmsg(conn->fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
		AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
	}
	soft_world_done();
	if (n > 0) {
		mark_sent(serve, (size_t)n);
		return 1;
	}
	return good && n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Counts the strangers of the port, and logs one line a minute. */
static void stranger_tell(struct dv_device *nic, const char *why)
{
	uint64_t now = clock_monotonic_ns();

	nic->stats.strangers++; /* of the service thread alone */
	if (nic->stranger_line_ns && now - nic->stranger_line_ns < STRANGERS_LINE_NS)
		return;
	nic->stranger_line_ns = now;
	log_warn(
		"%s: a connection to port %u (soft.port) was closed: %s. There were %llu of these; keep all but engines away from that port",
		nic->name, nic->tcp_port, why, (unsigned long long)nic->stats.strangers);
}

/* Has the request the token of the QP that it names? The time of the comparison tells nothing. */
static bool token_fits(const struct soft_export_qp *qp, const struct tcp_request *request)
{
	uint8_t differs = 0;

	for (unsigned i = 0; i < DV_TOKEN_BYTES; i++)
		differs |= qp->token[i] ^ request->token[i];
	return !differs;
}

/* The first request with a token: the connection belongs to the NIC that its QP is connected to. */
static void conn_prove(struct dv_device *nic, struct soft_conn *conn, uint32_t qpn)
{
	const struct dv_qp *qp;

	soft_lock(nic);
	qp = soft_qp_find(nic, qpn);
	if (qp) {
		memcpy(conn->gid, qp->remote.gid, sizeof(conn->gid));
		conn->tcp_port = qp->remote.tcp_port;
	}
	soft_unlock(nic);
}

/* SOFT_DEAD: the request lacks the token of its QP. SOFT_RETRY: no QP has that number now. */
static enum soft_result check(
	struct dv_device *nic, struct soft_conn *conn, const struct tcp_request *request)
{
	uint32_t qpn = request->ask.dest_qpn;
	const struct soft_export_qp *qp = &nic->table->qps[qpn % SOFT_QPS_MAX];
	struct soft_export_mr mr;
	enum soft_result result = SOFT_DEAD;

	soft_world_read();
	if (dv_guard_load(&qp->qpn) != qpn || !dv_guard_held(&qp->qpn, qpn))
		result = SOFT_RETRY;
	else if (token_fits(qp, request))
		result = soft_mr_check(nic->table, &request->ask, &mr);
	soft_world_done();
	if (result == SOFT_DEAD)
		stranger_tell(nic, "a request has not the token of its queue pair");
	else if (result != SOFT_RETRY && !conn->tcp_port)
		conn_prove(nic, conn, qpn);
	return result;
}

/* Takes one request, for whose answer there is room. False: it is invalid. */
static bool take_request(struct dv_device *nic, struct soft_conn *conn)
{
	struct soft_serve *serve = conn->serve;
	struct tcp_request request;
	struct pending *pending = &serve->pending[serve->tail & (PENDING_MAX - 1)];

	memcpy(&request, serve->in + serve->in_head, sizeof(request));
	if (request.magic != TCP_MAGIC || request.opcode != MLX5_OPCODE_RDMA_READ ||
		request.ask.length > SOFT_LENGTH_MAX)
		return false;
	*pending = (struct pending){
		.answer = {.magic = TCP_MAGIC, .id = request.id}, .ask = request.ask};
	pending->ask.access = DV_REMOTE_READ; /* whatever the requester says */
	request.ask.access = DV_REMOTE_READ;
	pending->answer.result = check(nic, conn, &request);
	if (pending->answer.result == SOFT_DEAD)
		return false;
	if (pending->answer.result == SOFT_DONE)
		pending->answer.length = request.ask.length;
	serve->in_head += sizeof(request);
	serve->tail++;
	return true;
}

/* Takes the requests in the receive buffer that have room. False: a request is invalid. */
static bool digest(struct dv_device *nic, struct soft_conn *conn)
{
	struct soft_serve *serve = conn->serve;
	bool good = true;

	while (good && serve->tail - serve->head < PENDING_MAX &&
		serve->in_tail - serve->in_head >= sizeof(struct tcp_request))
		good = take_request(nic, conn);
	memmove(serve->in, serve->in + serve->in_head, serve->in_tail - serve->in_head);
	serve->in_tail -= serve->in_head;
	serve->in_head = 0;
	return good;
}

/* Nothing waits to be read. */
static bool conn_idle(const struct soft_conn *conn)
{
	char byte;

	return recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

/* Has this NIC a QP that is connected to the one of the connection? Under nic->lock. */
static bool conn_belongs(const struct dv_device *nic, const struct soft_conn *conn)
{
	for (unsigned i = 0; i < nic->qp_count; i++)
		if (nic->qps[i]->remote.tcp_port == conn->tcp_port &&
			memcmp(nic->qps[i]->remote.gid, conn->gid, sizeof(conn->gid)) == 0)
			return true;
	return false;
}

int soft_serve_tend(struct dv_device *nic)
{
	uint64_t now = clock_monotonic_ns();
	unsigned strangers = 0, gone = 0;
	int due_ms = -1;
	bool look;

	soft_lock(nic);
	look = nic->qps_gone;
	nic->qps_gone = false;
	for (struct soft_conn *conn = nic->conns; conn; conn = conn->next) {
		if (conn->tcp_port) {
			conn->gone |= look && !conn_belongs(nic, conn);
		} else if (now >= conn->until_ns ||
			   (++strangers > STRANGERS_MAX && conn_idle(conn)) ||
			   strangers > STRANGERS_LIMIT) {
			conn->gone = true; /* the newest are the first */
			gone++;
		} else {
			int ms = (int)((conn->until_ns - now) / 1000000) + 1;

			due_ms = due_ms < 0 || ms < due_ms ? ms : due_ms;
		}
	}
	soft_unlock(nic);
	if (gone)
		stranger_tell(
			nic, "no request with a token came in time, or too many came at once");
	return due_ms;
}

bool soft_serve(struct dv_device *nic, struct soft_conn *conn)
{
	struct soft_serve *serve = conn->serve;

	for (unsigned turn = 0; turn < TURNS_MAX; turn++) {
		bool moved = false;

		if (may_read(serve)) {
			ssize_t n = recv(conn->fd, serve->in + serve->in_tail,
				IN_BYTES - serve->in_tail, MSG_DONTWAIT);

			if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
				return false;
			if (n > 0) {
				serve->in_tail += (size_t)n;
				moved = true;
			}
		}
		if (!digest(nic, conn))
			return false;
		if (serve->head != serve->tail) {
			int rc = send_some(nic, conn);

			if (rc < 0)
				return false;
			moved |= rc > 0;
		}
		if (!moved)
			break;
	}
	return true;
}
