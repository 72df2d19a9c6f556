/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP links between engines, and the listener. Owns every struct rpc_link. Control plane's thread
 * only.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/members/members.h"
#include "engine/control/net/rpc.h"

static void link_free(struct rpc_link *link)
{
	if (!link->dial)
		link->control->rpc->accepted--;
	LIST_REMOVE(link, next);
	if (link->deadline)
		net_timer_free(link->deadline);
	net_close(link->net);
	free(link);
}

static void link_close(struct rpc_link *link, int error)
{
	uint64_t up_ns = link->up ? net_now() - link->up_ns : 0;
	bool was_up = link->up;

	if (link->closed)
		return;
	link->closed = true;
	link->up = false;
	net_silence(link->net);
	link->busy++;
	if (link->member)
		member_link_down(link->control, link);
	if (link->dial && link->dial->link == link) {
		link->dial->link = NULL;
		link->dial->reached = link->connected;
		rpc_dial_lost(link->dial, was_up, up_ns, error);
	}
	link->busy--;
	if (link->busy == 0)
		link_free(link);
}

void rpc_link_close(struct rpc_link *link)
{
	link_close(link, ECONNABORTED);
}

void rpc_link_bad(struct rpc_link *link, const char *format, ...)
{
	struct rpc *rpc = link->control->rpc;
	uint64_t hash = 0xcbf29ce484222325ull;
	char text[256];
	va_list args;

	if (link->closed)
		return;
	link->control->counter[COUNTER_messages_bad]++;
	for (const char *c = link->from; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
	if (rpc->bad_logged[hash % RPC_BAD_REMEMBERED] != hash) {
		rpc->bad_logged[hash % RPC_BAD_REMEMBERED] = hash;
		va_start(args, format);
		vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		log_warn(
			"connection with %s closed: %s. If that is no PeerCache engine, keep it away from port %d; further messages like this one are only counted",
			link->from, text, (int)link->control->settings->cluster_port);
	}
	link_close(link, EPROTO);
}

void rpc_link_up(struct rpc_link *link)
{
	link->up = true;
	if (link->deadline) {
		net_timer_free(link->deadline);
		link->deadline = NULL;
	}
	link->up_ns = net_now();
	if (link->dial)
		link->dial->unanswered = 0;
}

static void link_deadline(void *context)
{
	link_close(context, ETIMEDOUT);
}

static void link_readable(void *context)
{
	struct rpc_link *link = context;

	link->busy++;
	rpc_frames(link);
	link->busy--;
	if (link->closed && link->busy == 0)
		link_free(link);
}

static void link_connected(void *context)
{
	struct rpc_link *link = context;

	if (link->closed)
		return;
	link->connected = true;
	member_greet(link->control, link);
}

static void link_failed(void *context, int error)
{
	struct rpc_link *link = context;

	if (link->closed)
		return;
	if (error == ECONNRESET && link->dial && link->connected && !link->up)
		rpc_dial_unanswered(link);
	link_close(link, error);
}

static const struct net_calls link_calls = {link_readable, link_connected, link_failed};

struct rpc_link *rpc_link_open(
	struct control *control, struct net_link *net, struct rpc_dial *dial, const char *from)
{
	int64_t dead_after_ms = control->settings->cluster_dead_after_ms;
	int64_t ms = dead_after_ms < RPC_CONNECT_MS ? dead_after_ms : RPC_CONNECT_MS;
	struct rpc_link *link = net ? calloc(1, sizeof(*link)) : NULL;

	if (!link)
		goto no_link;
	link->control = control;
	link->dial = dial;
	link->connected = dial == NULL;
	link->net = net;
	snprintf(link->from, sizeof(link->from), "%s", from);
	link->deadline = net_timer_new(control->base, false, link_deadline, link);
	if (!link->deadline)
		goto no_deadline;
	if (net_timer_set(link->deadline, (uint64_t)ms * 1000) < 0)
		goto not_set;
	net_start(link->net, &link_calls, link, (unsigned)dead_after_ms, MESSAGE_BYTES_MAX + 4);
	LIST_INSERT_HEAD(&control->rpc->links, link, next);
	if (!dial)
		control->rpc->accepted++;
	return link;

not_set:
	net_timer_free(link->deadline);
no_deadline:
	free(link);
no_link:
	if (net)
		net_close(net);
	return NULL;
}

bool rpc_send(struct rpc_link *link, const Pc__Message *message)
{
	uint8_t *room;
	size_t bytes = pc__message__get_packed_size(message);
	uint32_t length = htonl((uint32_t)bytes);

	if (!link || link->closed || bytes > MESSAGE_BYTES_MAX)
		return false;
	if (net_backlog(link->net) + bytes + 4 > RPC_OUT_BYTES_MAX)
		return false;
	room = net_reserve(link->net, bytes + 4);
	if (!room)
		return false;
	memcpy(room, &length, 4);
	pc__message__pack(message, room + 4);
	if (!net_commit(link->net, bytes + 4))
		return false;
	link->control->counter[COUNTER_messages_out]++;
	return true;
}

void rpc_reply(struct rpc_link *link, const Pc__Message *message)
{
	if (!link->closed && !rpc_send(link, message))
		rpc_link_bad(link, "it does not read the answers to its requests");
}

void rpc_push(struct rpc_link *link)
{
	net_push(link->net);
}

static void accepted(
	void *context, struct net_link *net, const struct sockaddr *address, socklen_t bytes)
{
	struct control *control = context;
	char from[NAME_BYTES_MAX];
	struct rpc_link *link;

	if (getnameinfo(address, bytes, from, sizeof(from), NULL, 0, NI_NUMERICHOST) != 0)
		snprintf(from, sizeof(from), "an unknown address");
	if (control->rpc->accepted >= RPC_ACCEPTED_MAX) {
		log_warn("connection from %s refused: %u are open already", from,
			control->rpc->accepted);
		net_close(net);
		return;
	}
	link = rpc_link_open(control, net, NULL, from);
	if (link)
		link->far = !rpc_address_loopback(address);
}

static void accept_failed(void *context, int error)
{
	(void)context;
	/* the listener accepts again from the next rpc_tick() on */
	log_warn(
		"accept() on cluster.port failed: %s; raise the limit of open files (ulimit -n) if that is it",
		strerror(error));
}

static const struct net_listen_calls listen_calls = {accepted, accept_failed};

/* The address that the engine listens on. */
static const char *bind_text(const struct settings *s)
{
	return s->cluster_bind[0] ? s->cluster_bind : s->cluster_address;
}

/*
 * Resolves `host`; 0 or an error of getaddrinfo(). A name is looked up, which blocks: only at
 * start-up, before any thread runs.
 */
static int address_find(
	const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *bytes)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *found;
	const struct addrinfo *at;
	char service[8];
	int error;

	if (rpc_address(host, port, ret, bytes) == 0)
		return 0;
	snprintf(service, sizeof(service), "%u", port);
	error = getaddrinfo(host, service, &hints, &found);
	if (error)
		return error;
	/* Debian gives a host's own name a loopback address, too. */
	at = found;
	while (at && rpc_address_loopback(at->ai_addr))
		at = at->ai_next;
	at = at ? at : found;
	memcpy(ret, at->ai_addr, at->ai_addrlen);
	*bytes = at->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

static int listen_address(const struct settings *s, struct sockaddr_storage *ret, socklen_t *bytes)
{
	int error = address_find(bind_text(s), (uint16_t)s->cluster_port, ret, bytes);

	if (error)
		log_error(
			"%s = %s: not an address, and as a name: %s. Set it to an address of this host",
			s->cluster_bind[0] ? "cluster.bind" : "cluster.address", bind_text(s),
			gai_strerror(error));
	return error ? -EINVAL : 0;
}

static bool address_is_any(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;

	return address->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)
					      : v4->sin_addr.s_addr == htonl(INADDR_ANY);
}

/*
 * Checks cluster.address, which is told to other engines, against the address that this engine
 * listens on: both or neither must be a loopback address. Returns 0, or -EINVAL after logging the
 * reason. A name that cannot be resolved yet is accepted, unless the engine listens on it: other
 * hosts resolve it later.
 */
static int advertised_fits(const struct settings *s, const struct sockaddr_storage *bound)
{
	struct sockaddr_storage told;
	socklen_t bytes;
	bool local = rpc_address_loopback((const struct sockaddr *)bound), told_local = false;

	if (address_find(s->cluster_address, (uint16_t)s->cluster_port, &told, &bytes) == 0) {
		told_local = rpc_address_loopback((struct sockaddr *)&told);
		if (address_is_any(&told)) {
			log_error(
				"cluster.address = %s is no address that other hosts can reach: set it to an address of this host. To listen on all addresses, set cluster.bind",
				s->cluster_address);
			return -EINVAL;
		}
	}
	if (!s->cluster_bind[0] || local == told_local)
		return 0;
	if (told_local)
		log_error(
			"cluster.bind = %s listens for other hosts, but cluster.address = %s, which they are told, is a loopback address. Set cluster.address to an address that other hosts reach",
			s->cluster_bind, s->cluster_address);
	else
		log_error(
			"cluster.bind = %s is a loopback address, so no other host reaches cluster.address = %s. Set cluster.bind to 0.0.0.0, to :: or to an address of this host",
			s->cluster_bind, s->cluster_address);
	return -EINVAL;
}

static int listen_failed(const struct settings *s, int status)
{
	char port[16] = ""; /* of --check: any port */

	if (s->cluster_port)
		snprintf(port, sizeof(port), " port %d", (int)s->cluster_port);
	log_error("cannot listen on %s%s: %s. %s", bind_text(s), port, strerror(-status),
		status == -EADDRINUSE
			? "Another engine or program has that port: set another cluster.port"
		: s->cluster_bind[0]
			? "Set cluster.bind to an address of this host"
			: "Set cluster.address to an address of this host. If that address is not on an interface of this host, set cluster.bind");
	return status;
}

int rpc_port_open(struct control *control)
{
	const struct settings *s = control->settings;
	struct sockaddr_storage address;
	socklen_t bytes = 0;
	int fd, status = listen_address(s, &address, &bytes);

	control->port_fd = -1;
	if (status == 0)
		status = advertised_fits(s, &address);
	if (status)
		return status;
	fd = net_bind((const struct sockaddr *)&address, bytes);
	if (fd < 0)
		return listen_failed(s, fd);
	control->port_fd = fd;
	return 0;
}

void rpc_port_close(struct control *control)
{
	if (control->port_fd >= 0)
		close(control->port_fd);
	control->port_fd = -1;
}

int rpc_listen(struct control *control)
{
	struct rpc *rpc = control->rpc;
	struct sockaddr_storage own;

	errno = 0;
	rpc->listener = net_listen(control->base, control->port_fd, &listen_calls, control, &own);
	if (!rpc->listener)
		return listen_failed(control->settings, errno ? -errno : -EIO);
	rpc->loopback = rpc_address_loopback((struct sockaddr *)&own);
	control->port_fd = -1; /* from here on the listener owns the socket */
	return 0;
}

int rpc_open(struct control *control)
{
	struct rpc *rpc = calloc(1, sizeof(*rpc));
	int status;

	if (!rpc)
		return -ENOMEM;
	control->rpc = rpc;
	status = control->exporting ? 0 : rpc_listen(control);
	if (status) {
		free(rpc);
		control->rpc = NULL;
	}
	return status;
}

void rpc_tick(struct control *control)
{
	if (control->rpc->listener)
		net_listen_again(control->rpc->listener);
}

void rpc_quiet(struct control *control)
{
	struct rpc_dial *dial;

	if (control->rpc->listener)
		net_listener_free(control->rpc->listener);
	control->rpc->listener = NULL;
	LIST_FOREACH (dial, &control->rpc->dials, next) {
		net_timer_stop(dial->timer);
		rpc_resolve_cancel(dial);
	}
}

void rpc_close(struct control *control)
{
	struct rpc *rpc = control->rpc;

	if (!rpc)
		return;
	rpc_quiet(control);
	while (!LIST_EMPTY(&rpc->dials))
		rpc_dial_stop(LIST_FIRST(&rpc->dials));
	while (!LIST_EMPTY(&rpc->links)) {
		struct rpc_link *link = LIST_FIRST(&rpc->links);

		link->member = NULL;
		link->dial = NULL;
		rpc->accepted++;
		link_free(link);
	}
	if (rpc->dns)
		net_resolver_free(rpc->dns);
	free(rpc);
	control->rpc = NULL;
}
