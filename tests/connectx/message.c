/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket of a NIC: what a test sends to it changes its port. Its abstract name contains the
 * NIC's number, which makes it unique on the host and free when the process ends. Run by the NIC's
 * thread, under nic->lock.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

#define MESSAGES_MAX 32u /* messages that one step receives, at most */

static socklen_t name_of(uint16_t number, struct sockaddr_un *ret_name)
{
	int n;

	*ret_name = (struct sockaddr_un){.sun_family = AF_UNIX};
	n = snprintf(
		ret_name->sun_path + 1, sizeof(ret_name->sun_path) - 1, "soft-connectx-%u", number);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

int uv_message_open(uint16_t number)
{
	struct sockaddr_un name;
	socklen_t bytes = name_of(number, &name);
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, rc;

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
		bind(fd, (struct sockaddr *)&name, bytes) == 0)
		return fd;
	rc = -errno;
	close(fd);
	return rc;
}

/* Receives a message. Returns 1: *ret_message is one; 0: there is none; -1: it is invalid. */
static int receive(const struct uv_device *device, struct uv_message *ret_message)
{
	struct iovec part = {.iov_base = ret_message, .iov_len = sizeof(*ret_message)};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(struct ucred))];
	} control = {0};
	struct msghdr packet = {.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(device->message_fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *header = n < 0 ? NULL : CMSG_FIRSTHDR(&packet);
	struct ucred who;

	if (n < 0)
		return 0;
	if (n != sizeof(*ret_message) || ret_message->magic != UV_MESSAGE_MAGIC || !header ||
		header->cmsg_type != SCM_CREDENTIALS)
		return -1;
	memcpy(&who, CMSG_DATA(header), sizeof(who));
	return who.uid == geteuid() || who.uid == 0 ? 1 : -1;
}

/* What a test sends. */
static void take_change(struct uv_device *device, const struct uv_message *message)
{
	switch (message->kind) {
	case UV_PORT: uv_port_changed(device, message->status); break;
	case UV_GID: uv_gids_moved(device, message->status); break;
	case UV_GONE: uv_device_removed(device, message->status); break;
	}
}

void uv_message_idle(struct uv_device *device)
{
	struct uv_message message;
	int rc;

	while (!device->nic && (rc = receive(device, &message)) != 0)
		if (rc > 0)
			take_change(device, &message);
}

unsigned uv_message_poll(struct dv_device *nic)
{
	struct uv_device *device = uv_device_of(nic);
	struct uv_message message;
	unsigned work = 0;
	int rc;

	for (; work < MESSAGES_MAX && (rc = receive(device, &message)) != 0; work++)
		if (rc > 0)
			take_change(device, &message);
	return work;
}
