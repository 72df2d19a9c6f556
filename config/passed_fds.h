/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File descriptors that a message over a Unix socket passes to another process (SCM_RIGHTS). Any
 * thread.
 */
#ifndef CONFIG_PASSED_FDS_H
#define CONFIG_PASSED_FDS_H

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PASSED_FDS_MAX 253u /* descriptors of a message, at most: SCM_MAX_FD of Linux */
/* Bytes of control data, aligned as a struct cmsghdr, that a message with descriptors needs. */
#define PASSED_FDS_BYTES(count) CMSG_SPACE((count) * sizeof(int))

/*
 * Lets a message pass `count` <= PASSED_FDS_MAX descriptors; 0: none. They stay the caller's.
 * `control` has PASSED_FDS_BYTES(count) bytes, and is used until the message is sent.
 */
static inline void fds_attach(struct msghdr *message, void *control, const int *fds, unsigned count)
{
	struct cmsghdr *header;

	if (!count)
		return;
	message->msg_control = memset(control, 0, PASSED_FDS_BYTES(count));
	message->msg_controllen = PASSED_FDS_BYTES(count);
	header = CMSG_FIRSTHDR(message);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(count * sizeof(int));
	memcpy(CMSG_DATA(header), fds, count * sizeof(int));
}

/*
 * Takes the descriptors of a received message, up to `max`, which are the caller's then, and closes
 * the others. Returns how many it took. MSG_CTRUNC in message->msg_flags: some were lost, for want
 * of control data or because of RLIMIT_NOFILE.
 */
static inline unsigned fds_take(struct msghdr *message, int *ret_fds, unsigned max)
{
	unsigned taken = 0;

	for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
		header = CMSG_NXTHDR(message, header)) {
		size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(fd));
			if (taken < max)
				ret_fds[taken++] = fd;
			else
				close(fd);
		}
	}
	return taken;
}

#endif
