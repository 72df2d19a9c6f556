/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to other processes of this host. A Unix socket (abstract name: no file to remove)
 * carries requests and memfds. Payload does not go through it: the peer's memory is mapped here, so
 * a READ is one copy. Run by the service thread; steps use the mappings through soft_shm_resolve()
 * in check.h.
 *
 *   TABLE?           -> TABLE + memfd        the peer's exports: struct soft_export
 *   FILE? id, write  -> FILE id + memfd      once per file; no memfd: the file does not exist
 *                    <- GONE id              unmap the file
 */
#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/passed_fds.h"
#include "dv/soft/soft.h"

enum { ASK_TABLE = 1, TABLE, ASK_FILE, FILE_HERE, FILE_GONE };

struct message {
	uint64_t magic;
	uint32_t type;
	uint32_t file;
	uint32_t writable;
	uint32_t spare;
};

static socklen_t name_of(const uint8_t gid[16], struct sockaddr_un *ret_name)
{
	/* a leading zero byte in sun_path selects the abstract namespace of Unix sockets */
	char *at = ret_name->sun_path + 1;
	int n;

	*ret_name = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(at, sizeof(ret_name->sun_path) - 1, "peercache-soft-");
	for (unsigned i = 0; i < 16; i++)
		n += snprintf(at + n, sizeof(ret_name->sun_path) - 1 - (size_t)n, "%02x", gid[i]);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

bool soft_shm_trusts(int fd)
{
	struct ucred who;
	socklen_t bytes = sizeof(who);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes))
		return false;
	return who.uid == geteuid() || who.uid == 0;
}

int soft_shm_listen(struct dv_device *nic)
{
	struct sockaddr_un name;
	socklen_t bytes = name_of(nic->gid, &name);

	nic->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (nic->listen_fd < 0 || bind(nic->listen_fd, (struct sockaddr *)&name, bytes) ||
		listen(nic->listen_fd, 128)) {
		int rc = -errno;

		return dv_fail(rc, "opening %s: listening on an abstract Unix socket: %m%s",
			nic->name, soft_remedy(rc));
	}
	return 0;
}

/* ---- messages -------------------------------------------------------------------------------- */

static bool send_message(int to, const struct message *message, int fd)
{
	struct iovec part = {.iov_base = (void *)(uintptr_t)message, .iov_len = sizeof(*message)};
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(1)];
	struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1};

	fds_attach(&packet, control, &fd, fd >= 0);
	return sendmsg(to, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(*message);
}

/*
 * Receives one message. Returns 1: received; 0: none yet; -1: the socket is closed or what arrived
 * is not a message.
 */
static int receive_message(int from, struct message *ret_message, int *ret_fd)
{
	struct iovec part = {.iov_base = ret_message, .iov_len = sizeof(*ret_message)};
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(1)];
	struct msghdr packet = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(from, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

	*ret_fd = -1;
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	(void)fds_take(&packet, ret_fd, 1);
	if (n == sizeof(*ret_message) && ret_message->magic == SOFT_EXPORT_MAGIC)
		return 1;
	if (*ret_fd >= 0)
		close(*ret_fd);
	return -1;
}

/* ---- serving: requests of peers ------------------------------------------------------------- */

/*
 * Reopens a memfd, so that a peer that only reads gets a descriptor that it cannot map for writing.
 */
static int reopen(int fd, bool writable)
{
	char path[64];
	int copy;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	copy = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	return copy >= 0 ? copy : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

static bool may_write(const struct dv_device *nic, uint32_t file)
{
	for (uint32_t i = 0; i < SOFT_MRS_MAX; i++)
		if (nic->mrs[i].key && nic->mrs[i].file == file &&
			nic->mrs[i].access & DV_REMOTE_WRITE)
			return true;
	return false;
}

static int open_file(struct dv_device *nic, uint32_t id, bool writable)
{
	int fd = -1;

	soft_lock(nic);
	for (unsigned i = 0; i < nic->file_count; i++)
		if (nic->files[i].id == id && (!writable || may_write(nic, id)))
			fd = reopen(nic->files[i].fd, writable);
	soft_unlock(nic);
	return fd;
}

bool soft_shm_serve(struct dv_device *nic, struct soft_conn *conn)
{
	struct message message;
	int rc, received, fd;
	bool sent;

	while ((rc = receive_message(conn->fd, &message, &received)) > 0) {
		if (received >= 0)
			close(received);
		if (message.type == ASK_TABLE)
			fd = reopen(nic->table_fd, false);
		else if (message.type == ASK_FILE)
			fd = open_file(nic, message.file, message.writable);
		else
			return false;
		message.type++;
		sent = send_message(conn->fd, &message, fd);
		if (fd >= 0)
			close(fd);
		if (!sent)
			return false;
	}
	return rc == 0;
}

void soft_shm_drops(struct dv_device *nic)
{
	for (unsigned i = 0; i < nic->drop_count; i++) {
		struct message message = {
			.magic = SOFT_EXPORT_MAGIC, .type = FILE_GONE, .file = nic->drops[i]};

		for (struct soft_conn *conn = nic->conns; conn; conn = conn->next)
			if (!send_message(conn->fd, &message, -1))
				conn->gone = true;
	}
	nic->drop_count = 0;
}

/* ---- requesting: exports of peers ----------------------------------------------------------- */

/*
 * Connects to the peer. Does not block: connecting a Unix socket succeeds or fails at once. Under
 * nic->lock.
 */
void soft_shm_connect(struct dv_device *nic, struct soft_peer *peer)
{
	struct message hello = {.magic = SOFT_EXPORT_MAGIC, .type = ASK_TABLE};
	struct sockaddr_un name;
	socklen_t bytes = name_of(peer->gid, &name);

	peer->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (peer->fd < 0)
		return;
	if (connect(peer->fd, (struct sockaddr *)&name, bytes) || !soft_shm_trusts(peer->fd) ||
		!send_message(peer->fd, &hello, -1)) {
		soft_peer_dead(nic, peer);
		return;
	}
	peer->state = PEER_GREETED;
}

void soft_shm_ask(struct dv_device *nic, struct soft_peer *peer)
{
	struct message ask = {.magic = SOFT_EXPORT_MAGIC,
		.type = ASK_FILE,
		.file = peer->want_file,
		.writable = peer->want_write};

	peer->asked = true;
	if (!send_message(peer->fd, &ask, -1))
		soft_peer_dead(nic, peer);
}

static bool map_table(struct soft_peer *peer, int fd)
{
	struct stat status;
	void *at;

	if (peer->table || fstat(fd, &status) ||
		(uint64_t)status.st_size < sizeof(struct soft_export))
		return false;
	at = mmap(NULL, sizeof(struct soft_export), PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return false;
	peer->table = at;
	peer->state = PEER_UP;
	return peer->table->magic == SOFT_EXPORT_MAGIC;
}

/*
 * Records the mapping of a file. If the peer sent no descriptor or mapping it fails, the entry is
 * marked missing for ever: ids are never reused. False: the peer broke the protocol.
 */
static bool map_file(struct soft_peer *peer, uint32_t file, bool writable, int fd)
{
	struct soft_mapping mapping = {.file = file, .writable = writable, .missing = true};
	struct soft_mapping *grown;
	struct stat status;

	if (!peer->asked || file != peer->want_file || writable != peer->want_write)
		return false;
	grown = realloc(peer->mappings, (peer->mapping_count + 1) * sizeof(*grown));
	if (!grown)
		return false;
	peer->mappings = grown;
	if (fd >= 0 && fstat(fd, &status) == 0 && status.st_size > 0) {
		void *at = mmap(NULL, (size_t)status.st_size,
			writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);

		if (at != MAP_FAILED) {
			mapping.at = at;
			mapping.bytes = (uint64_t)status.st_size;
			mapping.missing = false;
		}
	}
	peer->mappings[peer->mapping_count++] = mapping;
	peer->want_file = 0;
	peer->asked = false;
	return true;
}

static void unmap_file(struct soft_peer *peer, uint32_t file)
{
	for (unsigned i = 0; i < peer->mapping_count; i++) {
		struct soft_mapping *mapping = &peer->mappings[i];

		if (mapping->file != file || mapping->missing)
			continue;
		munmap(mapping->at, mapping->bytes);
		mapping->missing = true;
	}
}

void soft_shm_receive(struct dv_device *nic, struct soft_peer *peer)
{
	struct message message;
	bool good = true;
	int rc = 1, fd;

	soft_lock(nic);
	while (good && peer->fd >= 0 && (rc = receive_message(peer->fd, &message, &fd)) > 0) {
		if (message.type == TABLE && fd >= 0)
			good = map_table(peer, fd);
		else if (message.type == FILE_HERE)
			good = map_file(peer, message.file, message.writable, fd);
		else if (message.type == FILE_GONE)
			unmap_file(peer, message.file);
		else
			good = false;
		if (fd >= 0)
			close(fd);
	}
	if (!good || rc < 0)
		soft_peer_dead(nic, peer);
	soft_unlock(nic);
}

void soft_shm_close(struct soft_peer *peer)
{
	for (unsigned i = 0; i < peer->mapping_count; i++)
		if (!peer->mappings[i].missing)
			munmap(peer->mappings[i].at, peer->mappings[i].bytes);
	free(peer->mappings);
	if (peer->table)
		munmap(peer->table, sizeof(*peer->table));
}
