/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections with a time limit. One thread.
 */
#include "engine/doctor/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/control/net/address.h"

const char *reach_text(enum reach reach)
{
	static const char *const texts[] = {"open",
		"refused: the host answers, and nothing listens, or a firewall rejects",
		"no answer: a firewall drops the packets, or the host is off",
		"no route to the host", "the name has no address"};

	return texts[reach];
}

/* Waits until the socket can be read or written. */
static bool ready(int fd, short events, uint64_t until_ns)
{
	uint64_t now_ns = clock_monotonic_ns();
	struct pollfd p = {.fd = fd, .events = events};
	int wait_ms = now_ns < until_ns ? (int)((until_ns - now_ns) / 1000000) + 1 : 0;

	return poll(&p, 1, wait_ms) == 1;
}

static enum reach reach_of(int error)
{
	if (error == 0)
		return REACH_OPEN;
	if (error == ECONNREFUSED || error == ECONNRESET)
		return REACH_REFUSED;
	if (error == ETIMEDOUT || error == EINPROGRESS)
		return REACH_SILENT;
	return REACH_NO_ROUTE;
}

static enum reach address_try(const struct addrinfo *at, uint64_t until_ns)
{
	int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t bytes = sizeof(int);
	int error = 0;

	if (fd < 0)
		return REACH_NO_ROUTE; /* this host has not the family */
	if (connect(fd, at->ai_addr, at->ai_addrlen) < 0)
		error = errno;
	if (error == EINPROGRESS && ready(fd, POLLOUT, until_ns))
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
	close(fd);
	return reach_of(error);
}

/*
 * Tries addresses until one accepts; else says of all what tells most. A silent one may take an
 * equal part of the time that is left for it and those behind it.
 */
enum reach reach_try(const char *host, unsigned port, unsigned timeout_ms)
{
	uint64_t until_ns = clock_monotonic_ns() + timeout_ms * 1000000ull;
	enum reach best = REACH_NO_NAME;
	struct addrinfo *list;
	unsigned left = 0;

	if (address_look_up(host, port, &list))
		return REACH_NO_NAME;
	for (const struct addrinfo *at = list; at; at = at->ai_next)
		left++;
	for (const struct addrinfo *at = list; at && best != REACH_OPEN; at = at->ai_next, left--) {
		uint64_t now_ns = clock_monotonic_ns();
		uint64_t part_ns = until_ns > now_ns ? (until_ns - now_ns) / left : 0;
		enum reach reach = address_try(at, now_ns + part_ns);

		best = reach < best ? reach : best;
	}
	freeaddrinfo(list);
	return best;
}

/* ---- listening ------------------------------------------------------------------------------- */

int reach_listen(const char *host, unsigned port)
{
	struct addrinfo *list;
	int fd, on = 1, rc = 0;

	if (address_look_up(host, port, &list))
		return -EADDRNOTAVAIL;
	fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		rc = -errno;
	else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
		 bind(fd, list->ai_addr, list->ai_addrlen) < 0 || listen(fd, 16) < 0)
		rc = -errno;
	freeaddrinfo(list);
	if (rc < 0 && fd >= 0)
		close(fd);
	return rc < 0 ? rc : fd;
}
