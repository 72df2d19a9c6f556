/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of sd_notify(3) as their receiver reads them: one datagram of lines FIELD=value,
 * with file descriptors. Everything received is bounded: text by NOTIFY_BYTES_MAX, descriptors by
 * PASSED_FDS_MAX, names by NOTIFY_NAME_BYTES, times by NOTIFY_EXTEND_MAX_US. The keeper's main
 * thread only, except notify_name_valid() and notify_parse(), which have no state.
 */
#ifndef KEEPER_NOTIFY_H
#define KEEPER_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "config/passed_fds.h"

#define NOTIFY_BYTES_MAX 4096u /* longest text of a message */
#define NOTIFY_NAME_BYTES 256u /* a name of a descriptor is shorter than this */

/* The fields of a message that the keeper knows. Other fields are ignored. */
struct notify_message {
	bool ready;                   /* READY=1 */
	bool store;                   /* FDSTORE=1: store the descriptors */
	bool remove;                  /* FDSTOREREMOVE=1: close the descriptors named `name` */
	bool barrier;                 /* BARRIER=1, which stands alone */
	char name[NOTIFY_NAME_BYTES]; /* FDNAME; "" without it */
};

/* Is it a name that FDNAME may have: 1 to 255 printable ASCII characters without ':'? */
bool notify_name_valid(const char *name, size_t bytes);

/*
 * Reads the text of a message. Returns 0, or -EINVAL with the reason in *ret_why: the whole message
 * is refused, because half of it could store a descriptor under a wrong name.
 */
int notify_parse(const char *text, size_t bytes, struct notify_message *ret, const char **ret_why);

/* One received datagram. The receiver owns the descriptors: notify_close() closes them. */
struct notify_datagram {
	pid_t pid; /* the sender's process id */
	size_t bytes;
	unsigned fds;
	int fd[PASSED_FDS_MAX];
	char text[NOTIFY_BYTES_MAX];
};

/*
 * Creates the socket at `path`, which only this user may write to, and replaces a file that is
 * there. The caller holds a lock, so that no other process uses the path. Returns a non-blocking
 * descriptor, or -errno.
 */
int notify_open(const char *path);

/*
 * Receives one datagram without waiting. Returns 1, 0 if there is none, -EMSGSIZE if the datagram
 * exceeded a limit and was dropped, or another -errno.
 */
int notify_receive(int socket, struct notify_datagram *ret);

/* Closes the descriptors that are still in the datagram. */
void notify_close(struct notify_datagram *datagram);

#endif
