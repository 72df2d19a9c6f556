/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells peercache-routers the texts of keys that are being stored, if $PEERCACHE_EVENTS names its
 * socket: engines know only hashes. A datagram for some keys: the namespace, then each key, each
 * with its length in front, 2 bytes, the lower first. Best effort: what the socket has no room for
 * is left out, and routers are not told of those pages. Any thread, without the interpreter's lock.
 */
#include "engine/client/python/session.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define DATAGRAM_BYTES 32768u

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int texts_fd = -1; /* -1: there is no listener */
static struct sockaddr_un texts_to;

static void texts_open(void)
{
	const char *path = getenv("PEERCACHE_EVENTS");

	if (!path || !*path || strlen(path) >= sizeof(texts_to.sun_path))
		return;
	texts_to.sun_family = AF_UNIX;
	strcpy(texts_to.sun_path, path);
	texts_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
}

static size_t text_put(unsigned char *to, const void *text, size_t bytes)
{
	to[0] = (unsigned char)bytes;
	to[1] = (unsigned char)(bytes >> 8);
	memcpy(to + 2, text, bytes);
	return bytes + 2;
}

void texts_tell(const char *name_space, const struct pc_page *pages, size_t count)
{
	unsigned char datagram[DATAGRAM_BYTES];
	size_t space = strlen(name_space), at, i = 0;

	pthread_once(&once, texts_open);
	if (texts_fd < 0 || space + 2 > DATAGRAM_BYTES / 2)
		return;
	while (i < count) {
		at = text_put(datagram, name_space, space);
		for (; i < count && at + 2 + pages[i].key_bytes <= DATAGRAM_BYTES; i++)
			at += text_put(datagram + at, pages[i].key, pages[i].key_bytes);
		/* a key of this length is refused by the library */
		for (; i < count && pages[i].key_bytes + 4 + space > DATAGRAM_BYTES; i++)
			continue;
		if (sendto(texts_fd, datagram, at, MSG_DONTWAIT | MSG_NOSIGNAL,
			    (const struct sockaddr *)&texts_to, sizeof(texts_to)) < 0)
			return;
	}
}
