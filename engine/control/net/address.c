/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses of engines: which are loopback addresses, which this host has, and the one that this
 * engine announces.
 *
 * address_settle() finds the address of cluster.address = auto, or of a host name. All engines of a
 * cluster find addresses of the same family if they have the same seeds: IPv4 if any seed has it. A
 * loopback address that comes from a name is not used, because Debian writes a host's own name as
 * 127.0.1.1 to its /etc/hosts: other hosts would not reach it. Start-up, main thread; it may block.
 */
#include "engine/control/net/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"

/* ---- classifying ----------------------------------------------------------------------------- */

int address_literal(
	const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *ret_bytes)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};

	if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
		memcpy(ret, &v4, sizeof(v4));
		*ret_bytes = sizeof(v4);
		return 0;
	}
	if (inet_pton(AF_INET6, host, &v6.sin6_addr) == 1) {
		memcpy(ret, &v6, sizeof(v6));
		*ret_bytes = sizeof(v6);
		return 0;
	}
	return -EINVAL;
}

bool address_loopback(const struct sockaddr *address)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;

	if (address->sa_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
	if (address->sa_family != AF_INET6)
		return true;
	if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
		return v6->sin6_addr.s6_addr[12] == 127;
	return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

bool address_text_loopback(const char *host)
{
	struct sockaddr_storage address;
	socklen_t bytes;

	if (address_literal(host, 1, &address, &bytes) == 0)
		return address_loopback((struct sockaddr *)&address);
	return strcasecmp(host, "localhost") == 0;
}

bool address_wildcard(const struct sockaddr *address)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;

	if (address->sa_family == AF_INET)
		return v4->sin_addr.s_addr == htonl(INADDR_ANY);
	return address->sa_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

/* The 16 bytes of an IPv6 address; of an IPv4 one, those that IPv6 has for it. */
static bool address_bytes(const struct sockaddr *address, uint8_t ret[16])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (address->sa_family == AF_INET6) {
		memcpy(ret, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, 16);
		return true;
	}
	memcpy(ret, mapped, sizeof(mapped));
	memcpy(ret + 12, &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
	return address->sa_family == AF_INET;
}

bool address_same(const struct sockaddr *a, const struct sockaddr *b)
{
	uint8_t of_a[16], of_b[16];

	return address_bytes(a, of_a) && address_bytes(b, of_b) && memcmp(of_a, of_b, 16) == 0;
}

/* ---- addresses that this host has ------------------------------------------------------------ */

const char *const address_setting[ADDRESSES] = {"cluster.address", "cluster.bind", "soft.address"};

const char *address_value(const struct settings *s, unsigned which)
{
	const char *const value[ADDRESSES] = {s->cluster_address, s->cluster_bind, s->soft_address};

	return value[which];
}

/*
 * bind() would succeed for any address with net.ipv4.ip_nonlocal_bind = 1. To its own addresses a
 * host sends from the same one. No packet is sent.
 */
bool address_here(const struct sockaddr *address, socklen_t bytes)
{
	struct sockaddr_storage to = {0}, own;
	socklen_t own_bytes = sizeof(own);
	bool here = false;
	int fd;

	memcpy(&to, address, bytes);
	if (to.ss_family == AF_INET)
		((struct sockaddr_in *)&to)->sin_port = htons(9);
	else
		((struct sockaddr_in6 *)&to)->sin6_port = htons(9);
	fd = socket(to.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return errno != EAFNOSUPPORT; /* out of descriptors: it is not known */
	if (connect(fd, (struct sockaddr *)&to, bytes) == 0 &&
		getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0)
		here = address_same((struct sockaddr *)&own, (struct sockaddr *)&to);
	close(fd);
	return here;
}

unsigned addresses_here(const struct settings *s)
{
	struct sockaddr_storage address;
	unsigned here = 0;
	socklen_t bytes;

	for (unsigned i = 0; i < ADDRESSES; i++)
		if (address_literal(address_value(s, i), 9, &address, &bytes) == 0 &&
			!address_loopback((struct sockaddr *)&address) &&
			!address_wildcard((struct sockaddr *)&address) &&
			address_here((struct sockaddr *)&address, bytes))
			here |= 1u << i;
	return here;
}

/* ---- the address of this engine -------------------------------------------------------------- */

#define RESOLVE_NS (10ull * 1000000000) /* names are looked up for so long, each to its end */

/* The addresses found so far, as text; "": none. */
struct found {
	char v4[NAME_BYTES_MAX], v6[NAME_BYTES_MAX];
};

static const char *found_best(const struct found *found)
{
	return found->v4[0] ? found->v4 : found->v6;
}

/* Other hosts can reach it as it is written: no loopback, wildcard or link-local address. */
static bool address_reaches(const struct sockaddr *address)
{
	const struct sockaddr_in6 *v6 = (const void *)address;

	if (address_loopback(address) || address_wildcard(address))
		return false;
	return address->sa_family == AF_INET || !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

static void found_add(struct found *found, const struct sockaddr *address)
{
	bool v4 = address->sa_family == AF_INET;
	char *text = v4 ? found->v4 : found->v6;
	socklen_t bytes = v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

	if (text[0] || !address_reaches(address))
		return;
	if (getnameinfo(address, bytes, text, NAME_BYTES_MAX, NULL, 0, NI_NUMERICHOST) != 0)
		text[0] = '\0';
}

/* Adds the address from which this host sends to another one. No packet is sent. */
static void route_add(struct found *found, const struct sockaddr *to, socklen_t bytes)
{
	struct sockaddr_storage own;
	socklen_t own_bytes = sizeof(own);
	int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return;
	if (connect(fd, to, bytes) == 0 &&
		getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0)
		found_add(found, (struct sockaddr *)&own);
	close(fd);
}

int address_look_up(const char *host, unsigned port, struct addrinfo **ret)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	char service[8];

	snprintf(service, sizeof(service), "%u", port & 0xffff);
	return getaddrinfo(host, service, &hints, ret);
}

/* NULL: it has no address now. The caller frees the list. */
static struct addrinfo *look_up(const char *host)
{
	struct addrinfo *list;

	return address_look_up(host, 9, &list) == 0 ? list : NULL;
}

/*
 * Adds the addresses from which this host reaches the seeds. True: all of them are given as
 * loopback addresses, so the cluster is on this host.
 */
static bool seeds_add(const struct settings *s, struct found *found, char ret_seed[NAME_BYTES_MAX])
{
	char text[sizeof(s->cluster_seeds)], *rest = NULL;
	uint64_t end_ns = clock_monotonic_ns() + RESOLVE_NS;
	bool local = s->cluster_seeds[0] && !s->cluster_seeds_file[0] && !s->cluster_etcd[0];

	snprintf(text, sizeof(text), "%s", s->cluster_seeds);
	for (char *each = strtok_r(text, ", \t", &rest); each && !found->v4[0];
		each = strtok_r(NULL, ", \t", &rest)) {
		struct seed_address seed;
		struct addrinfo *list;

		if (seed_parse(each, 1, &seed) < 0 || clock_monotonic_ns() > end_ns)
			continue;
		local = local && address_text_loopback(seed.host);
		list = look_up(seed.host);
		for (const struct addrinfo *at = list; at; at = at->ai_next)
			if (address_reaches(at->ai_addr))
				route_add(found, at->ai_addr, at->ai_addrlen);
		if (list)
			freeaddrinfo(list);
		if (found_best(found)[0] && !ret_seed[0])
			snprintf(ret_seed, NAME_BYTES_MAX, "%s", seed.host);
	}
	return local;
}

/* Adds the addresses of the default routes: to addresses that no host has (RFC 5737, 3849). */
static void default_add(struct found *found)
{
	struct sockaddr_storage to;
	socklen_t bytes;

	if (address_literal("192.0.2.1", 9, &to, &bytes) == 0)
		route_add(found, (struct sockaddr *)&to, bytes);
	if (address_literal("2001:db8::1", 9, &to, &bytes) == 0)
		route_add(found, (struct sockaddr *)&to, bytes);
}

/* Adds the address of this host if it has only one of its family. */
static void interfaces_add(struct found *found)
{
	struct found only = {"", ""};
	unsigned v4 = 0, v6 = 0;
	struct ifaddrs *list;

	if (getifaddrs(&list) < 0)
		return;
	for (const struct ifaddrs *at = list; at; at = at->ifa_next) {
		const struct sockaddr *address = at->ifa_addr;

		if (!address || !(at->ifa_flags & IFF_UP) ||
			(address->sa_family != AF_INET && address->sa_family != AF_INET6) ||
			!address_reaches(address))
			continue;
		v4 += address->sa_family == AF_INET;
		v6 += address->sa_family == AF_INET6;
		found_add(&only, address);
	}
	freeifaddrs(list);
	if (v4 == 1)
		*found = (struct found){0};
	if (v4 == 1)
		memcpy(found->v4, only.v4, sizeof(found->v4));
	else if (!v4 && v6 == 1)
		memcpy(found->v6, only.v6, sizeof(found->v6));
}

/* Finds the address by the routes of this host. `text`: how it was found. */
static bool auto_find(const struct settings *s, char ret[NAME_BYTES_MAX], char *text, size_t bytes)
{
	char seed[NAME_BYTES_MAX] = "";
	struct found found = {"", ""};

	if (seeds_add(s, &found, seed)) {
		snprintf(ret, NAME_BYTES_MAX, "127.0.0.1");
		snprintf(text, bytes, "all seeds are on this host");
		return true;
	}
	snprintf(text, bytes, "from it this host reaches the seed %s", seed);
	if (!found_best(&found)[0]) {
		default_add(&found);
		snprintf(text, bytes, "it is that of the default route");
	}
	if (!found_best(&found)[0]) {
		interfaces_add(&found);
		snprintf(text, bytes, "this host has no other");
	}
	snprintf(ret, NAME_BYTES_MAX, "%s", found_best(&found));
	return ret[0] != '\0';
}

/* The addresses of the name that others can reach. False: it has none now. */
static bool name_find(const char *name, struct found *ret)
{
	struct addrinfo *list = look_up(name);

	for (const struct addrinfo *at = list; at; at = at->ai_next)
		found_add(ret, at->ai_addr);
	if (list)
		freeaddrinfo(list);
	return list != NULL;
}

static int auto_settle(struct settings *s, const char *why)
{
	char address[NAME_BYTES_MAX], text[NAME_BYTES_MAX + 64];

	if (!auto_find(s, address, text, sizeof(text))) {
		log_error(
			"cluster.address = %s: %s, and neither a route to the seeds nor a default route tells the address of this host. Set cluster.address to the address that other hosts reach, or to 127.0.0.1 for engines of this host only",
			s->cluster_address, why);
		return -EINVAL;
	}
	log_info(
		"cluster.address = %s: %s; this engine uses %s: %s. Set cluster.address if others reach this host by another one",
		s->cluster_address, why, address, text);
	snprintf(s->cluster_address, sizeof(s->cluster_address), "%s", address);
	return 0;
}

/* metrics.address: a name with loopback addresses only is where no one looks. */
static void metrics_settle(struct settings *s)
{
	struct found found = {"", ""};
	const char *address = s->cluster_address;

	if (!s->metrics_address[0] || address_text_loopback(s->metrics_address) ||
		!name_find(s->metrics_address, &found))
		return;
	if (found_best(&found)[0])
		address = found_best(&found);
	else
		log_warn(
			"metrics.address = %s: on this host that name has loopback addresses only; the HTTP server uses cluster.address, %s. Set metrics.address to an address of this host",
			s->metrics_address, address);
	snprintf(s->metrics_address, sizeof(s->metrics_address), "%s", address);
}

static int cluster_settle(struct settings *s)
{
	struct sockaddr_storage literal;
	struct found found = {"", ""};
	socklen_t bytes;

	if (address_literal(s->cluster_address, 1, &literal, &bytes) == 0)
		return 0;
	if (strcmp(s->cluster_address, "auto") == 0)
		return auto_settle(s, "it is chosen");
	if (s->cluster_bind[0])
		return 0;
	if (address_text_loopback(s->cluster_address)) {
		snprintf(s->cluster_address, sizeof(s->cluster_address), "127.0.0.1");
		return 0;
	}
	/* A name without an address: rpc_port_open() refuses it. */
	if (!name_find(s->cluster_address, &found))
		return 0;
	if (!found_best(&found)[0])
		return auto_settle(s, "on this host that name has loopback addresses only");
	/* of both families, that of the seeds */
	if (found.v4[0] && found.v6[0]) {
		struct found routes = {"", ""};
		char seed[NAME_BYTES_MAX] = "";

		(void)seeds_add(s, &routes, seed);
		if (routes.v6[0] && !routes.v4[0])
			found.v4[0] = '\0';
	}
	log_info("cluster.address = %s: this engine uses its address %s", s->cluster_address,
		found_best(&found));
	snprintf(s->cluster_address, sizeof(s->cluster_address), "%s", found_best(&found));
	return 0;
}

int address_settle(struct settings *s)
{
	struct sockaddr_storage literal;
	socklen_t bytes;
	int status = cluster_settle(s);

	if (status == 0 && address_literal(s->metrics_address, 1, &literal, &bytes) != 0)
		metrics_settle(s);
	return status;
}
