/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections with a time limit, and the smallest HTTP client. All that arrives is bounded. One
 * thread.
 */
#include "engine/doctor/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
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

#define IDLE_MS 50

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

/* Connects to one address. *ret_fd: the socket, only if REACH_OPEN. */
static enum reach address_open(const struct addrinfo *at, uint64_t until_ns, int *ret_fd)
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
	if (error)
		close(fd);
	else
		*ret_fd = fd;
	return reach_of(error);
}

/*
 * Connects to the first address that accepts; else says of all what tells most. A silent one may
 * take an equal part of the time that is left for it and those behind it. *ret_fd: the socket, only
 * if REACH_OPEN.
 */
static enum reach reach_open(const char *host, unsigned port, uint64_t until_ns, int *ret_fd)
{
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
		enum reach reach = address_open(at, now_ns + part_ns, ret_fd);

		best = reach < best ? reach : best;
	}
	freeaddrinfo(list);
	return best;
}

enum reach reach_try(const char *host, unsigned port, unsigned timeout_ms)
{
	uint64_t until_ns = clock_monotonic_ns() + timeout_ms * 1000000ull;
	int fd;
	enum reach reach = reach_open(host, port, until_ns, &fd);

	if (reach == REACH_OPEN)
		close(fd);
	return reach;
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

/* ---- HTTP ------------------------------------------------------------------------------------ */

/* Waits until the socket can be read, and calls idle() meanwhile. */
static bool ready_idle(int fd, uint64_t until_ns, void (*idle)(void *context), void *context)
{
	uint64_t now_ns;

	do {
		uint64_t next_ns;

		idle(context);
		now_ns = clock_monotonic_ns();
		next_ns = now_ns + IDLE_MS * 1000000ull;
		if (ready(fd, POLLIN, next_ns < until_ns ? next_ns : until_ns))
			return true;
	} while (now_ns < until_ns);
	return false;
}

bool reach_get(const struct reach_request *r, char *ret, size_t bytes)
{
	uint64_t until_ns = clock_monotonic_ns() + r->timeout_ms * 1000000ull;
	char request[256];
	size_t used = 0;
	char *body;
	int fd, length;

	if (reach_open(r->host, r->port, until_ns, &fd) != REACH_OPEN)
		return false;
	*r->opened = true;
	length = snprintf(request, sizeof(request),
		"GET %s HTTP/1.1\r\nHost: peercache\r\nConnection: close\r\n\r\n", r->path);
	if (length >= (int)sizeof(request) || write(fd, request, (size_t)length) != length) {
		close(fd);
		return false;
	}
	while (used + 1 < bytes && ready_idle(fd, until_ns, r->idle, r->context)) {
		ssize_t got = read(fd, ret + used, bytes - 1 - used);

		if (got <= 0)
			break;
		used += (size_t)got;
	}
	close(fd);
	ret[used] = '\0';
	body = strstr(ret, "\r\n\r\n");
	if (!body || strncmp(ret, "HTTP/1.1 200", 12) != 0)
		return false;
	memmove(ret, body + 4, strlen(body + 4) + 1);
	return true;
}
