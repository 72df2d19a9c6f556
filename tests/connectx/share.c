/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command descriptors that another process uses, as a kernel's are used that were passed over a
 * Unix socket: ibv_import_device(). The descriptor is one end of a socket pair. The other end has a
 * name, by which each process knows that a descriptor is one of a device, and a thread, which
 * executes the commands of other processes in the process of the device. Like a kernel it frees the
 * context when the last copy of the descriptor is closed.
 *
 * A request carries a socket for its answer and /proc/self/mem of its process: the NIC moves bytes
 * through that (move.c), in any namespace and for any user. Only what an import and registrations
 * need is executed for another process; doorbell pages and queues stay in the process of the
 * device.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/passed_fds.h"
#include "tests/connectx/uverbs.h"
#include <rdma/mlx5_user_ioctl_cmds.h>

#define NAME "soft-connectx-cmd-%u-%u-%u" /* index of the device, its number, of the context */
#define ATTRS_MAX 16u
#define PACKET_MAX 4096u

enum way { INLINE, IN, OUT };

/* One attribute in a packet; the bytes of those that are not INLINE follow the table. */
struct packed {
	uint64_t data;
	uint16_t id, flags, length, way;
};

/* A request as it is sent; the answer is the same with the values of after the command. */
struct packet {
	int32_t status;
	uint16_t object, method;
	uint32_t driver, attrs;
	struct packed attr[ATTRS_MAX];
	uint8_t bytes[PACKET_MAX];
};

/* ---- names ----------------------------------------------------------------------------------- */

static bool name_of(int fd, unsigned *ret_index, unsigned *ret_number, unsigned *ret_id)
{
	struct sockaddr_un name = {0};
	socklen_t bytes = sizeof(name);

	return getpeername(fd, (struct sockaddr *)&name, &bytes) == 0 &&
	       name.sun_family == AF_UNIX && !name.sun_path[0] &&
	       sscanf(name.sun_path + 1, NAME, ret_index, ret_number, ret_id) == 3;
}

int uv_share_index(int fd)
{
	unsigned index, number, id;

	return name_of(fd, &index, &number, &id) ? (int)index : -1;
}

struct uv_context *uv_share_find(int fd)
{
	struct uv_context *found = NULL;
	unsigned index, number, id;

	if (!name_of(fd, &index, &number, &id))
		return NULL;
	pthread_mutex_lock(&uv_lock);
	for (struct uv_context *c = uv_contexts; c && !found; c = c->next)
		if (c->id == id && c->device->number == number)
			found = c;
	pthread_mutex_unlock(&uv_lock);
	return found;
}

/* ---- a command of another process: its side -------------------------------------------------- */

/* The commands that are executed for another process. */
static bool is_known(uint16_t object, uint16_t method)
{
	switch (object) {
	case UVERBS_OBJECT_DEVICE:
		return method == UVERBS_METHOD_INVOKE_WRITE ||
		       method == UVERBS_METHOD_QUERY_CONTEXT;
	case UVERBS_OBJECT_PD: return method == MLX5_IB_METHOD_PD_QUERY;
	case UVERBS_OBJECT_MR:
		return method == UVERBS_METHOD_QUERY_MR || method == UVERBS_METHOD_REG_DMABUF_MR;
	default: return false;
	}
}

/* Whether the attribute of a known command is a place for results. */
static bool is_out(const struct ib_uverbs_ioctl_hdr *header, uint16_t id)
{
	switch (header->object_id) {
	case UVERBS_OBJECT_PD: return id != MLX5_IB_ATTR_QUERY_PD_HANDLE;
	case UVERBS_OBJECT_MR:
		return header->method_id == UVERBS_METHOD_QUERY_MR
			       ? id != UVERBS_ATTR_QUERY_MR_HANDLE
			       : id == UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY ||
					 id == UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY;
	default:
		return header->method_id == UVERBS_METHOD_QUERY_CONTEXT ||
		       id == UVERBS_ATTR_CORE_OUT || id == UVERBS_ATTR_UHW_OUT;
	}
}

static int pack(const struct ib_uverbs_ioctl_hdr *header, struct packet *to)
{
	size_t used = 0;

	if (header->num_attrs > ATTRS_MAX)
		return EINVAL;
	*to = (struct packet){.object = header->object_id,
		.method = header->method_id,
		.driver = header->driver_id,
		.attrs = header->num_attrs};
	for (unsigned i = 0; i < header->num_attrs; i++) {
		const struct ib_uverbs_attr *attr = &header->attrs[i];
		bool out = is_out(header, attr->attr_id);

		to->attr[i] = (struct packed){attr->data, attr->attr_id, attr->flags, attr->len,
			out                               ? OUT
			: attr->len <= sizeof(attr->data) ? INLINE
							  : IN};
		if (to->attr[i].way == INLINE)
			continue;
		if (used + attr->len > sizeof(to->bytes))
			return EINVAL;
		if (!out)
			memcpy(to->bytes + used, (void *)(uintptr_t)attr->data, attr->len);
		used += attr->len;
	}
	return 0;
}

static void unpack(const struct packet *from, struct ib_uverbs_ioctl_hdr *header)
{
	size_t used = 0;

	for (unsigned i = 0; i < header->num_attrs; i++) {
		struct ib_uverbs_attr *attr = &header->attrs[i];

		if (from->attr[i].way == OUT)
			memcpy((void *)(uintptr_t)attr->data, from->bytes + used, attr->len);
		if (from->attr[i].way == INLINE)
			attr->data = from->attr[i].data;
		else
			used += attr->len;
	}
}

/* The descriptor that a request names: that of a dma-buf, in this process; NULL: it names none. */
static uint64_t *descriptor_of(struct packet *packet)
{
	for (unsigned i = 0; i < packet->attrs; i++)
		if (packet->object == UVERBS_OBJECT_MR &&
			packet->method == UVERBS_METHOD_REG_DMABUF_MR &&
			packet->attr[i].id == UVERBS_ATTR_REG_DMABUF_MR_FD &&
			packet->attr[i].way == INLINE)
			return &packet->attr[i].data;
	return NULL;
}

static int exchange(int fd, struct packet *packet)
{
	_Alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(3)];
	const uint64_t *descriptor = descriptor_of(packet);
	struct iovec iov = {packet, sizeof(*packet)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	int pair[2], passed[3], rc = EIO;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return errno;
	passed[0] = pair[1];
	passed[1] = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	passed[2] = descriptor ? (int)*descriptor : -1;
	if (passed[1] >= 0) {
		fds_attach(&message, control, passed, descriptor ? 3 : 2);
		rc = sendmsg(fd, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
		close(passed[1]);
	}
	close(pair[1]);
	if (!rc && recv(pair[0], packet, sizeof(*packet), 0) != sizeof(*packet))
		rc = EIO; /* the process of the device has ended */
	close(pair[0]);
	return rc;
}

int uv_share_ioctl(int fd, struct ib_uverbs_ioctl_hdr *header)
{
	struct packet packet;
	int rc;

	if (header->object_id == UVERBS_OBJECT_ASYNC_EVENT)
		return uv_events_open(header);
	if (!is_known(header->object_id, header->method_id))
		return EPROTONOSUPPORT;
	rc = pack(header, &packet);
	if (!rc)
		rc = uv_reg_mr_check(header);
	if (!rc)
		rc = exchange(fd, &packet);
	if (!rc && packet.attrs == header->num_attrs)
		unpack(&packet, header);
	return rc ? rc : packet.status;
}

/* ---- the side of the device ------------------------------------------------------------------ */

static bool may_be_executed(const struct packet *packet, ssize_t n)
{
	size_t used = 0;

	if (n != sizeof(*packet) || packet->attrs > ATTRS_MAX ||
		!is_known(packet->object, packet->method))
		return false;
	for (unsigned i = 0; i < packet->attrs; i++)
		used += packet->attr[i].way == INLINE ? 0 : packet->attr[i].length;
	return used <= sizeof(packet->bytes);
}

static void execute(struct uv_context *context, struct packet *packet, int memory)
{
	_Alignas(8) uint8_t space[sizeof(struct ib_uverbs_ioctl_hdr) +
				  ATTRS_MAX * sizeof(struct ib_uverbs_attr)] = {0};
	struct ib_uverbs_ioctl_hdr *header = (void *)space;
	struct ib_uverbs_attr *attrs = header->attrs;
	size_t used = 0;

	header->object_id = packet->object;
	header->method_id = packet->method;
	header->driver_id = packet->driver;
	header->num_attrs = (uint16_t)packet->attrs;
	for (unsigned i = 0; i < packet->attrs; i++) {
		const struct packed *from = &packet->attr[i];

		attrs[i] = (struct ib_uverbs_attr){.attr_id = from->id,
			.len = from->length,
			.flags = from->flags,
			.data = from->data};
		if (from->way == INLINE)
			continue;
		attrs[i].data = (uintptr_t)packet->bytes + used;
		used += from->length;
	}
	packet->status = uv_ioctl(context, header, memory);
	for (unsigned i = 0; i < packet->attrs; i++)
		packet->attr[i].data = attrs[i].data;
}

/*
 * The process has ended while its command waited here, where a kernel's call ends before the
 * process does: what it has registered is undone, because its exit proves that it registers no
 * more.
 */
static void undo(struct uv_context *context, uint32_t handle_last)
{
	struct uv_object *object, *next;

	pthread_mutex_lock(&uv_lock);
	for (object = context->objects; object; object = next) {
		next = object->next;
		if (object->kind == UV_MR && object->handle > handle_last &&
			((struct uv_mr *)object)->memory >= 0)
			uv_mr_free(object);
	}
	pthread_mutex_unlock(&uv_lock);
}

static void *serve(void *argument)
{
	struct uv_context *context = argument;
	_Alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(3)];
	struct packet packet;
	bool last;

	uv_yield_never();
	for (;;) {
		struct iovec iov = {&packet, sizeof(packet)};
		struct msghdr message = {.msg_iov = &iov,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control)};
		ssize_t n = recvmsg(context->server_fd, &message, MSG_CMSG_CLOEXEC);
		int fds[3] = {-1, -1, -1};

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		if (fds_take(&message, fds, 3) >= 2) {
			uint32_t before = context->handle_last;

			bool may = may_be_executed(&packet, n);
			uint64_t *descriptor = may ? descriptor_of(&packet) : NULL;

			if (descriptor)
				*descriptor = (uint64_t)(int64_t)fds[2];
			if (may)
				execute(context, &packet, fds[1]);
			else
				packet.status = EOPNOTSUPP;
			if (send(fds[0], &packet, sizeof(packet), MSG_NOSIGNAL) < 0)
				undo(context, before);
		}
		for (unsigned i = 0; i < 3; i++)
			if (fds[i] >= 0)
				close(fds[i]);
	}
	pthread_mutex_lock(&uv_lock);
	context->ended = true;
	last = context->left;
	pthread_mutex_unlock(&uv_lock);
	if (last)
		uv_context_close(context);
	return NULL;
}

int uv_share_open(struct uv_context *context)
{
	static unsigned ids; /* under uv_lock */
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	int pair[2], n;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	pthread_mutex_lock(&uv_lock);
	context->id = ++ids;
	pthread_mutex_unlock(&uv_lock);
	n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, NAME, context->device->index,
		context->device->number, context->id);
	context->server_fd = pair[1];
	if (bind(pair[1], (struct sockaddr *)&name,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0 &&
		pthread_create(&context->server, NULL, serve, context) == 0)
		return pair[0];
	close(pair[0]);
	close(pair[1]);
	return -1;
}

bool uv_share_left(struct uv_context *context)
{
	bool ended = recv(context->server_fd, &(char){0}, 1, MSG_PEEK | MSG_DONTWAIT) == 0;

	pthread_mutex_lock(&uv_lock);
	ended = ended || context->ended;
	context->left = !ended;
	pthread_mutex_unlock(&uv_lock);
	if (ended)
		pthread_join(context->server, NULL);
	else
		pthread_detach(context->server);
	return !ended;
}
