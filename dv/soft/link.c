/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link of a software NIC to those of other processes: its peers, and the service thread that
 * makes the system calls for them. The thread blocks in poll() while there is nothing to do. Setup
 * callers and steps call the first part, under nic->lock.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/thread.h"
#include "dv/soft/soft.h"
#include "dv/soft/tcp.h"

#define CONNECT_AGAIN_NS 10000000u
#define ACCEPTS_MAX 16u
#define STRANGER_NS 2000000000u /* a connection over TCP shows a token within this time */

/* ---- peers: setup callers and steps ---------------------------------------------------------- */

static struct soft_peer *find_peer(struct dv_device *nic, const struct dv_address *remote)
{
	for (struct soft_peer *peer = nic->peers; peer; peer = peer->next)
		if (peer->state != PEER_DEAD && peer->references &&
			peer->tcp_port == remote->tcp_port &&
			memcmp(peer->gid, remote->gid, sizeof(peer->gid)) == 0)
			return peer;
	return NULL;
}

/* Finds or creates the struct soft_peer of the QP's remote address. Under nic->lock. */
int soft_link_connect(struct dv_qp *qp)
{
	struct dv_device *nic = qp->nic;
	struct soft_peer *peer;
	bool near;

	soft_world_read();
	near = !nic->tcp && !nic->hooks && soft_world_find(qp->remote.gid);
	soft_world_done();
	qp->near_seen = near;
	if (near)
		return 0;
	peer = find_peer(nic, &qp->remote);
	if (!peer) {
		peer = calloc(1, sizeof(*peer));
		if (!peer)
			return dv_fail(
				-ENOMEM, "%s: connecting queue pair 0x%x: %m", nic->name, qp->qpn);
		memcpy(peer->gid, qp->remote.gid, sizeof(peer->gid));
		peer->tcp_port = qp->remote.tcp_port;
		peer->fd = -1;
		pthread_mutex_init(&peer->rx_lock, NULL);
		peer->next = nic->peers;
		nic->peers = peer;
		/* over TCP when there is a request: its token is what the other end waits for */
		peer->wanted = !nic->tcp;
		soft_link_wake(nic);
	}
	peer->references++;
	qp->peer = peer;
	return 0;
}

void soft_link_disconnect(struct dv_qp *qp)
{
	if (!qp->peer)
		return;
	if (--qp->peer->references == 0)
		soft_link_wake(qp->nic);
	qp->peer = NULL;
}

void soft_link_flush(struct dv_device *nic)
{
	nic->tx_any = false;
	for (struct soft_peer *peer = nic->peers; peer; peer = peer->next)
		if (peer->state == PEER_UP && !peer->tx_blocked && peer->tx.head != peer->tx.tail)
			soft_tcp_send(nic, peer);
}

static void free_peer(struct soft_peer *peer)
{
	if (peer->fd >= 0)
		close(peer->fd);
	soft_shm_close(peer);
	soft_tcp_close(peer);
	pthread_mutex_destroy(&peer->rx_lock);
	free(peer);
}

/* ---- the service thread ---------------------------------------------------------------------- */

/* The connection or peer that one entry of the poll() list belongs to. */
struct watch_target {
	struct soft_conn *conn;
	struct soft_peer *peer;
};

struct watch {
	struct pollfd *fds;
	struct watch_target *whats;
	unsigned count, room;
	int timeout_ms;
};

static void watch(
	struct watch *watch, int fd, short events, struct soft_conn *conn, struct soft_peer *peer)
{
	if (watch->count == watch->room) {
		unsigned room = watch->room ? 2 * watch->room : 64;
		struct pollfd *fds = realloc(watch->fds, room * sizeof(*fds));
		struct watch_target *whats;

		if (fds)
			watch->fds = fds;
		whats = realloc(watch->whats, room * sizeof(*whats));
		if (whats)
			watch->whats = whats;
		if (!fds || !whats)
			/* out of memory: a later round of the service thread watches this
			 * descriptor */
			return;
		watch->room = room;
	}
	watch->fds[watch->count] = (struct pollfd){.fd = fd, .events = events};
	watch->whats[watch->count++] = (struct watch_target){conn, peer};
}

/* Frees peers without QPs and connects the peers that a WQE waits for. Under nic->lock. */
static void tend_peers(struct dv_device *nic, struct watch *w)
{
	struct soft_peer **at = &nic->peers;
	uint64_t now = 0;

	while (*at) {
		struct soft_peer *peer = *at;

		if (!peer->references) {
			*at = peer->next;
			free_peer(peer);
			continue;
		}
		if (peer->state == PEER_ABSENT && peer->wanted) {
			now = now ? now : clock_monotonic_ns();
			if (now >= peer->retry_at_ns) {
				peer->retry_at_ns = now + CONNECT_AGAIN_NS;
				peer->wanted = false;
				(nic->tcp ? soft_tcp_connect : soft_shm_connect)(nic, peer);
			} else {
				w->timeout_ms = CONNECT_AGAIN_NS / 1000000;
			}
		}
		if (!nic->tcp && peer->state == PEER_UP && peer->want_file && !peer->asked)
			soft_shm_ask(nic, peer);
		at = &peer->next;
	}
}

/* Closes the connections marked `gone`; with `all`, because the NIC is closed, every connection. */
static void close_conns(struct dv_device *nic, bool all)
{
	struct soft_conn **at = &nic->conns;

	while (*at) {
		struct soft_conn *conn = *at;

		if (!all && !conn->gone) {
			at = &conn->next;
			continue;
		}
		*at = conn->next;
		close(conn->fd);
		free(conn->serve);
		free(conn);
	}
}

static void gather(struct dv_device *nic, struct watch *w)
{
	w->count = 0;
	w->timeout_ms = -1;
	watch(w, nic->wake_fd, POLLIN, NULL, NULL);
	watch(w, nic->listen_fd, POLLIN, NULL, NULL);
	soft_lock(nic);
	tend_peers(nic, w);
	soft_shm_drops(nic);
	for (struct soft_peer *peer = nic->peers; peer; peer = peer->next) {
		short events = POLLIN;

		if (peer->fd < 0)
			continue;
		if (nic->tcp && (peer->state == PEER_GREETED || peer->tx_blocked))
			events |= POLLOUT;
		watch(w, peer->fd, events, NULL, peer);
	}
	soft_unlock(nic);
	if (nic->tcp) {
		int due_ms = soft_serve_tend(nic);

		if (due_ms >= 0 && (w->timeout_ms < 0 || due_ms < w->timeout_ms))
			w->timeout_ms = due_ms;
		close_conns(nic, false);
	}
	for (struct soft_conn *conn = nic->conns; conn; conn = conn->next)
		watch(w, conn->fd, conn->serve ? soft_serve_events(conn->serve) : POLLIN, conn,
			NULL);
}

static void accept_conns(struct dv_device *nic)
{
	int fd, on = 1;

	/* the others in the next round, after those that came have been read */
	for (unsigned n = 0; n < ACCEPTS_MAX; n++) {
		fd = accept4(nic->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0)
			break;

		struct soft_conn *conn = calloc(1, sizeof(*conn));

		if (conn && nic->tcp)
			conn->serve = soft_serve_open();
		if (!conn || (nic->tcp ? !conn->serve : !soft_shm_trusts(fd))) {
			free(conn);
			close(fd);
			continue;
		}
		if (nic->tcp)
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		conn->fd = fd;
		conn->until_ns = clock_monotonic_ns() + STRANGER_NS;
		conn->next = nic->conns;
		nic->conns = conn;
		if (nic->tcp)
			conn->gone = !soft_serve(nic, conn);
	}
}

static void attend(struct dv_device *nic, const struct pollfd *fd, const struct watch_target *what)
{
	struct soft_peer *peer = what->peer;
	struct soft_conn *conn = what->conn;

	if (conn) {
		conn->gone = !(nic->tcp ? soft_serve(nic, conn) : soft_shm_serve(nic, conn));
	} else if (peer && !nic->tcp) {
		soft_shm_receive(nic, peer);
	} else if (peer) {
		if (fd->revents & ~POLLIN)
			soft_tcp_connected(nic, peer);
		if (fd->revents & ~POLLOUT && peer->state == PEER_UP)
			soft_tcp_receive(nic, peer);
	} else if (fd->fd == nic->wake_fd) {
		uint64_t count;
		ssize_t rc = read(nic->wake_fd, &count, sizeof(count));

		(void)rc;
	} else {
		accept_conns(nic);
	}
}

static void *serve(void *argument)
{
	struct dv_device *nic = argument;
	struct watch w = {0};

	prctl(PR_SET_NAME, "soft-link");
	while (!dv_hint_load(&nic->stop)) {
		gather(nic, &w);
		if (poll(w.fds, w.count, w.timeout_ms) <= 0)
			continue;
		for (unsigned i = 0; i < w.count; i++)
			if (w.fds[i].revents)
				attend(nic, &w.fds[i], &w.whats[i]);
		close_conns(nic, false);
	}
	free(w.fds);
	free(w.whats);
	return NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

static int open_table(struct dv_device *nic)
{
	void *at = MAP_FAILED;

	nic->table_fd = memfd_create("peercache-soft-export", MFD_CLOEXEC);
	if (nic->table_fd < 0)
		return -errno;
	if (ftruncate(nic->table_fd, sizeof(struct soft_export)) == 0)
		at = mmap(NULL, sizeof(struct soft_export), PROT_READ | PROT_WRITE, MAP_SHARED,
			nic->table_fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	nic->table = at;
	nic->table->magic = SOFT_EXPORT_MAGIC;
	return 0;
}

static void close_all(struct dv_device *nic)
{
	int *fds[] = {&nic->listen_fd, &nic->wake_fd, &nic->table_fd};

	for (unsigned i = 0; i < 3; i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
	if (nic->table)
		munmap(nic->table, sizeof(*nic->table));
	nic->table = NULL;
}

int soft_link_open(struct dv_device *nic, const struct dv_options *options)
{
	uint32_t first;
	int rc;

	nic->listen_fd = nic->wake_fd = nic->table_fd = -1;
	if (!nic->hooks && (getrandom(nic->gid, sizeof(nic->gid), 0) != sizeof(nic->gid) ||
				   getrandom(&first, sizeof(first), 0) != sizeof(first)))
		return dv_fail(-EIO, "opening %s: no random bytes: %m", nic->name);
	if (!nic->hooks) {
		nic->mr_first = (uint8_t)first;
		nic->mr_slot_last = SOFT_MR_FIRST + (first >> 8) % (SOFT_MRS_MAX - SOFT_MR_FIRST);
	}
	nic->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = nic->wake_fd < 0 ? -errno : open_table(nic);
	if (rc) {
		dv_fail(rc, "opening %s: eventfd and memfd: %m%s", nic->name, soft_remedy(rc));
		goto fail;
	}
	rc = nic->tcp ? soft_tcp_listen(nic, options) : soft_shm_listen(nic);
	if (rc)
		goto fail;
	rc = thread_start(&nic->service, serve, nic);
	if (rc) {
		errno = -rc;
		dv_fail(rc, "opening %s: starting its service thread: %m", nic->name);
		goto fail;
	}
	soft_world_add(nic);
	return 0;
fail:
	close_all(nic);
	return rc;
}

void soft_link_close(struct dv_device *nic)
{
	soft_world_remove(nic);
	dv_hint_add(&nic->stop, 1);
	soft_link_wake(nic);
	pthread_join(nic->service, NULL);
	close_conns(nic, true);
	while (nic->peers) {
		struct soft_peer *peer = nic->peers;

		nic->peers = peer->next;
		free_peer(peer);
	}
	for (unsigned i = 0; i < nic->file_count; i++)
		close(nic->files[i].fd);
	close_all(nic);
}
