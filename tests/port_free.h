/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP ports for tests in C. A test that closes a socket and uses its port later shares it with
 * others meanwhile; these ports are reserved under a name that free_ports() of tools/cluster.py
 * uses, too. One thread.
 */
#ifndef TESTS_PORT_FREE_H
#define TESTS_PORT_FREE_H

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PORT_FREE_FIRST 12000u
#define PORT_FREE_LAST 31990u /* below those of outgoing connections and the engine's defaults */

/* Takes the port's name among all tests until the descriptor is closed; -1: it is taken. */
static inline int port_reserve(unsigned port)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX}; /* a name that begins with a zero */
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int bytes = 1 + snprintf(at.sun_path + 1, 100, "peercache-port-%u", port);

	if (bind(fd, (const struct sockaddr *)&at,
		    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)bytes)) == 0)
		return fd;
	close(fd);
	return -1;
}

/*
 * Has a program that reserves none the port, in one of the families that this host has, or are
 * connections of one in TIME_WAIT there? Without SO_REUSEADDR: then two can bind it.
 */
static inline bool port_used(uint16_t port)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6,
		.sin6_port = htons(port),
		.sin6_addr = IN6ADDR_LOOPBACK_INIT};
	struct sockaddr_in four = {.sin_family = AF_INET,
		.sin_port = htons(port),
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	bool used = false;

	for (unsigned family = 0; family < 2; family++) {
		int fd = socket(family ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		used |= (family ? bind(fd, (struct sockaddr *)&six, sizeof(six))
				: bind(fd, (struct sockaddr *)&four, sizeof(four))) < 0 &&
			errno == EADDRINUSE;
		close(fd);
	}
	return used;
}

/* A port that no other test has until *ret_reserved is closed. */
static inline uint16_t port_free(int *ret_reserved)
{
	static uint16_t next;

	if (!next)
		next = (uint16_t)(PORT_FREE_FIRST + (unsigned)getpid() % 100 * 199);
	for (;; next++) {
		if (next > PORT_FREE_LAST)
			next = PORT_FREE_FIRST;
		*ret_reserved = port_reserve(next);
		if (*ret_reserved < 0)
			continue;
		if (!port_used(next))
			return next++;
		close(*ret_reserved);
	}
}

#endif
