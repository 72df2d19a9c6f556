/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses: of other engines as the kernel knows them, and the one that this engine announces.
 * Classifying is pure: any thread may do it.
 */
#ifndef CONTROL_ADDRESS_H
#define CONTROL_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config/limits.h"
#include "config/seeds.h"
#include "config/settings.h"

struct addrinfo;

/* Converts a literal IPv4 or IPv6 address. Returns 0, or -EINVAL: not a literal. */
int address_literal(
	const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *ret_bytes);
/*
 * True for 127.0.0.0/8, ::1, and any address that is not IPv4 or IPv6, since only this host can
 * reach those.
 */
bool address_loopback(const struct sockaddr *address);
/* True for a literal loopback address and for "localhost"; false for any other name. */
bool address_text_loopback(const char *host);

/* 0.0.0.0 and ::, at which a socket is reached at all addresses of its host. */
bool address_wildcard(const struct sockaddr *address);

/* Is it the same host? Ports are not compared; IPv4 may be written as IPv6 (::ffff:10.0.0.1). */
bool address_same(const struct sockaddr *a, const struct sockaddr *b);
/* Is it an address of this host now? By the routes: what is sent to it stays here. */
bool address_here(const struct sockaddr *address, socklen_t bytes);

/* Settings with an address at which other hosts reach this engine; the bits of addresses_here(). */
enum { ADDRESS_CLUSTER, ADDRESS_BIND, ADDRESS_SOFT, ADDRESSES };
extern const char *const address_setting[ADDRESSES];
const char *address_value(const struct settings *s, unsigned which);
/* Those that are set to addresses, not names, which this host has now; loopback does not count. */
unsigned addresses_here(const struct settings *s);

/*
 * Looks a name or an address up, for TCP; blocks. Returns 0 or an error of getaddrinfo(); the
 * caller frees the list with freeaddrinfo().
 */
int address_look_up(const char *host, unsigned port, struct addrinfo **ret);

/*
 * Replaces cluster.address = auto, and host names on which the engine listens (metrics.address,
 * too), by an address of this host. A name that cluster.bind makes an advertised one stays. May
 * wait for the resolver: start-up, main thread. Returns 0, or -EINVAL after logging the reason.
 */
int address_settle(struct settings *settings);

#endif
