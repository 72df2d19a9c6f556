/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.h: receives and reads the messages of sd_notify(3). Runs on the keeper's main thread.
 */
#include "engine/keeper/notify.h"

#include <errno.h>
#include <stdalign.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- the text -------------------------------------------------------------------------------- */

bool notify_name_valid(const char *name, size_t bytes)
{
	if (bytes == 0 || bytes >= NOTIFY_NAME_BYTES)
		return false;
	for (size_t i = 0; i < bytes; i++)
		if (name[i] < ' ' || name[i] > '~' || name[i] == ':')
			return false;
	return true;
}

static bool line_is(const char *line, size_t bytes, const char *text)
{
	return bytes == strlen(text) && !memcmp(line, text, bytes);
}

/* Returns the value of the field `name=`, or NULL if the line is another field. */
static const char *line_value(const char *line, size_t bytes, const char *name)
{
	size_t length = strlen(name);

	return bytes >= length && !memcmp(line, name, length) ? line + length : NULL;
}

/* Reads one line. Returns NULL, or why the message is refused. */
static const char *line_read(const char *line, size_t bytes, struct notify_message *ret)
{
	const char *value;

	if (line_is(line, bytes, "READY=1"))
		ret->ready = true;
	else if (line_is(line, bytes, "FDSTORE=1"))
		ret->store = true;
	else if (line_is(line, bytes, "FDSTOREREMOVE=1"))
		ret->remove = true;
	else if (line_is(line, bytes, "BARRIER=1"))
		ret->barrier = true;
	else if ((value = line_value(line, bytes, "FDNAME=")) != NULL) {
		size_t length = bytes - (size_t)(value - line);

		if (!notify_name_valid(value, length))
			return "FDNAME is empty, too long, or has a character that it may not have";
		if (ret->name[0])
			return "it has two FDNAMEs";
		memcpy(ret->name, value, length);
		ret->name[length] = '\0';
	}
	return NULL;
}

int notify_parse(const char *text, size_t bytes, struct notify_message *ret, const char **ret_why)
{
	struct notify_message message = {.ready = false};
	const char *why = NULL;
	unsigned lines = 0;

	if (memchr(text, '\0', bytes))
		why = "it contains a zero byte";
	for (size_t at = 0; at < bytes && !why; lines++) {
		const char *end = memchr(text + at, '\n', bytes - at);
		size_t length = end ? (size_t)(end - (text + at)) : bytes - at;

		why = line_read(text + at, length, &message);
		at += length + 1;
	}
	if (!why && message.barrier && lines != 1)
		why = "BARRIER=1 does not stand alone";
	if (!why && (message.remove || message.store) && !message.name[0])
		why = "FDSTORE=1 and FDSTOREREMOVE=1 need an FDNAME";
	if (!why && message.remove && message.store)
		why = "FDSTORE=1 and FDSTOREREMOVE=1 stand in one message";
	if (why) {
		*ret_why = why;
		return -EINVAL;
	}
	*ret = message;
	return 0;
}

/* ---- the socket ------------------------------------------------------------------------------ */

int notify_open(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int yes = 1, fd, rc;
	mode_t before;

	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	if (unlink(path) < 0 && errno != ENOENT)
		return -errno;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	before = umask(0177); /* the file never has another mode than 0600 */
	rc = bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
	umask(before);
	if (rc == 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) < 0)
		rc = -errno;
	if (rc < 0) {
		close(fd);
		return rc;
	}
	return fd;
}

/* Takes the sender and the descriptors out of the control data. */
static void notify_read_control(struct msghdr *header, struct notify_datagram *ret)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		size_t bytes = c->cmsg_len - CMSG_LEN(0);

		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS && bytes >= sizeof(struct ucred)) {
			struct ucred sender;

			memcpy(&sender, CMSG_DATA(c), sizeof(sender));
			ret->pid = sender.pid;
		}
	}
	ret->fds = fds_take(header, ret->fd, PASSED_FDS_MAX);
}

int notify_receive(int socket, struct notify_datagram *ret)
{
	alignas(struct cmsghdr) char
		control[CMSG_SPACE(sizeof(struct ucred)) + PASSED_FDS_BYTES(PASSED_FDS_MAX)];
	struct iovec io = {.iov_base = ret->text, .iov_len = sizeof(ret->text)};
	struct msghdr header = {.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t got;

	ret->pid = 0;
	ret->fds = 0;
	ret->bytes = 0;
	do
		got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return errno == EAGAIN ? 0 : -errno;
	notify_read_control(&header, ret);
	ret->bytes = (size_t)got;
	if (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		notify_close(ret);
		return -EMSGSIZE;
	}
	return 1;
}

void notify_close(struct notify_datagram *datagram)
{
	for (unsigned i = 0; i < datagram->fds; i++)
		if (datagram->fd[i] >= 0)
			close(datagram->fd[i]);
	datagram->fds = 0;
}
