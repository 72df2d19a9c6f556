/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to other hosts, requesting side. The service thread listens and connects; steps queue
 * requests, which are sent when the step ends. receive_tcp.c receives the answers, serve_tcp.c
 * serves the requests of peers.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dv/soft/soft.h"
#include "dv/soft/tcp.h"

#define SEND_BYTES (1u << 20) /* limit of the bytes that one step writes to a socket */

static const uint8_t v4_mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

static socklen_t endpoint(const uint8_t gid[16], uint16_t port, struct sockaddr_storage *ret)
{
	struct sockaddr_in6 *six = (void *)ret;
	struct sockaddr_in *four = (void *)ret;

	memset(ret, 0, sizeof(*ret));
	if (memcmp(gid, v4_mapped, sizeof(v4_mapped)) == 0) {
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
		memcpy(&four->sin_addr, gid + 12, 4);
		return sizeof(*four);
	}
	six->sin6_family = AF_INET6;
	six->sin6_port = htons(port);
	memcpy(&six->sin6_addr, gid, 16);
	return sizeof(*six);
}

static bool parse_address(const char *text, uint8_t ret_gid[16])
{
	static const uint8_t any[16];
	uint8_t gid[16];

	memcpy(gid, v4_mapped, sizeof(v4_mapped));
	if (inet_pton(AF_INET, text, gid + 12) != 1 && inet_pton(AF_INET6, text, gid) != 1)
		return false;
	if (memcmp(gid, any, 16) == 0 || memcmp(gid + 12, any, 4) == 0)
		return false;
	memcpy(ret_gid, gid, 16);
	return true;
}

int soft_tcp_listen(struct dv_device *nic, const struct dv_options *options)
{
	const char *text = options->address && options->address[0] ? options->address : "127.0.0.1";
	struct sockaddr_storage name;
	socklen_t bytes;
	int on = 1;

	if (!parse_address(text, nic->gid))
		return dv_fail(-EINVAL,
			"opening %s: address \"%s\": %m; peers connect to it, so it must be one IPv4 or IPv6 address of this host",
			nic->name, text);
	bytes = endpoint(nic->gid, options->tcp_port, &name);
	nic->listen_fd =
		socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	if (nic->listen_fd < 0 ||
		setsockopt(nic->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
		bind(nic->listen_fd, (struct sockaddr *)&name, bytes) ||
		listen(nic->listen_fd, 128) ||
		getsockname(nic->listen_fd, (struct sockaddr *)&name, &bytes)) {
		int rc = -errno;

		return dv_fail(rc, "opening %s: listening on %s port %u: %m%s", nic->name, text,
			options->tcp_port, soft_remedy(rc));
	}
	nic->tcp_port =
		ntohs(name.ss_family == AF_INET ? ((struct sockaddr_in *)&name)->sin_port
						: ((struct sockaddr_in6 *)&name)->sin6_port);
	return 0;
}

/* ---- connecting: the service thread, under nic->lock ----------------------------------------- */

void soft_tcp_connect(struct dv_device *nic, struct soft_peer *peer)
{
	struct sockaddr_storage name;
	socklen_t bytes = endpoint(peer->gid, peer->tcp_port, &name);
	int on = 1;

	if (!peer->rx)
		peer->rx = malloc(SOFT_RX_BYTES);
	peer->fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
	if (!peer->rx || peer->fd < 0)
		return;
	setsockopt(peer->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	peer->state = PEER_GREETED;
	if (connect(peer->fd, (struct sockaddr *)&name, bytes) && errno != EINPROGRESS)
		soft_peer_dead(nic, peer);
}

/* The peer's socket became writable or failed while connecting. Called by the service thread. */
void soft_tcp_connected(struct dv_device *nic, struct soft_peer *peer)
{
	socklen_t bytes = sizeof(int);
	int error = 0;

	soft_lock(nic);
	if (peer->fd >= 0) {
		getsockopt(peer->fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
		if (error)
			soft_peer_dead(nic, peer);
		else if (peer->state == PEER_GREETED)
			peer->state = PEER_UP;
	}
	peer->tx_blocked = false;
	if (peer->state == PEER_UP)
		soft_tcp_send(nic, peer);
	soft_unlock(nic);
}

void soft_tcp_close(struct soft_peer *peer)
{
	free(peer->tx.data);
	free(peer->rx);
}

/* ---- requests: queued and sent by steps, under nic->lock ------------------------------------- */

static uint8_t *buffer_room(struct soft_buffer *buffer, size_t bytes)
{
	uint8_t *grown;

	if (buffer->head == buffer->tail)
		buffer->head = buffer->tail = 0;
	if (buffer->size - buffer->tail < bytes) {
		size_t size = buffer->tail + bytes + 4096;

		grown = realloc(buffer->data, size);
		if (!grown)
			return NULL;
		buffer->data = grown;
		buffer->size = size;
	}
	return buffer->data + buffer->tail;
}

enum soft_result soft_tcp_start(struct dv_qp *qp, struct soft_op *op)
{
	struct dv_device *nic = qp->nic;
	struct soft_peer *peer = qp->peer;
	struct tcp_request request = {.magic = TCP_MAGIC, .opcode = op->opcode};
	uint8_t *at;

	if (peer->state == PEER_DEAD)
		return SOFT_DEAD;
	if (peer->state == PEER_ABSENT)
		soft_link_want(nic, peer);
	if (peer->state != PEER_UP)
		return SOFT_RETRY;
	at = buffer_room(&peer->tx, sizeof(request));
	if (!at)
		return SOFT_RETRY;
	soft_ask_of(qp, op, &request.ask);
	memcpy(request.token, qp->remote.token, DV_TOKEN_BYTES);
	op->id = ++nic->id_last << SOFT_SLOT_BITS | qp->qpn % SOFT_QPS_MAX;
	op->sent_ns = soft_step_ns(nic);
	request.id = op->id;
	memcpy(at, &request, sizeof(request));
	peer->tx.tail += sizeof(request);
	nic->tx_any = true;
	return SOFT_SENT;
}

void soft_tcp_send(struct dv_device *nic, struct soft_peer *peer)
{
	struct soft_buffer *tx = &peer->tx;
	size_t budget = SEND_BYTES;

	while (tx->head != tx->tail) {
		size_t want = tx->tail - tx->head < budget ? tx->tail - tx->head : budget;
		ssize_t n = want ? send(peer->fd, tx->data + tx->head, want,
					   MSG_DONTWAIT | MSG_NOSIGNAL)
				 : 0;

		if (n <= 0) {
			/*
			 * The socket is full, the budget is used up, or the link is broken: the
			 * service thread waits until the socket is writable and resumes.
			 */
			peer->tx_blocked = true;
			soft_link_wake(nic);
			return;
		}
		tx->head += (size_t)n;
		budget -= (size_t)n;
	}
}
