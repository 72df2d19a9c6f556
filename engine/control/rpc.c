/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP links between engines, and the listener. Owns every struct rpc_link. Control plane's thread
 * only.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/rpc.h"
#include "numa/clock.h"

static void link_free(struct rpc_link *link)
{
	if (!link->dial)
		link->control->rpc->accepted--;
	LIST_REMOVE(link, next);
	if (link->deadline)
		event_free(link->deadline);
	bufferevent_free(link->bev);
	free(link);
}

static void link_close(struct rpc_link *link, int error)
{
	uint64_t up_ns = link->up ? clock_now_ns() - link->up_ns : 0;
	bool was_up = link->up;

	if (link->closed)
		return;
	link->closed = true;
	link->up = false;
	bufferevent_disable(link->bev, EV_READ | EV_WRITE);
	link->busy++;
	if (link->member)
		member_link_down(link->control, link);
	if (link->dial && link->dial->link == link) {
		link->dial->link = NULL;
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
		event_free(link->deadline);
		link->deadline = NULL;
	}
	link->up_ns = clock_now_ns();
	if (link->dial)
		link->dial->unanswered = 0;
}

static void link_deadline(evutil_socket_t fd, short what, void *context)
{
	(void)fd;
	(void)what;
	link_close(context, ETIMEDOUT);
}

static void link_readable(struct bufferevent *bev, void *context)
{
	struct rpc_link *link = context;

	(void)bev;
	link->busy++;
	rpc_frames(link);
	link->busy--;
	if (link->closed && link->busy == 0)
		link_free(link);
}

static void link_event(struct bufferevent *bev, short what, void *context)
{
	struct rpc_link *link = context;
	int error = EVUTIL_SOCKET_ERROR();

	(void)bev;
	if (link->closed)
		return;
	if (what & BEV_EVENT_CONNECTED) {
		link->connected = true;
		member_greet(link->control, link);
		return;
	}
	if (what & BEV_EVENT_EOF)
		error = ECONNRESET;
	if (error == ECONNRESET && link->dial && link->connected && !link->up)
		rpc_dial_unanswered(link);
	link_close(link, error ? error : ECONNRESET);
}

/*
 * Limits how long the kernel retransmits to a dead peer, whose unsent data must not keep the link
 * open.
 */
static void socket_tune(int fd, unsigned dead_after_ms)
{
	int on = 1, idle = 5, interval = 2, count = 3;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_after_ms, sizeof(dead_after_ms));
}

struct rpc_link *rpc_link_open(
	struct control *control, int fd, struct rpc_dial *dial, const char *from)
{
	int64_t dead_after_ms = control->settings->cluster_dead_after_ms;
	int64_t ms = dead_after_ms < RPC_CONNECT_MS ? dead_after_ms : RPC_CONNECT_MS;
	struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
	struct rpc_link *link = calloc(1, sizeof(*link));

	if (!link)
		goto no_link;
	link->control = control;
	link->dial = dial;
	link->connected = dial == NULL;
	snprintf(link->from, sizeof(link->from), "%s", from);
	link->bev = bufferevent_socket_new(control->base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (!link->bev)
		goto no_bev;
	link->deadline = event_new(control->base, -1, 0, link_deadline, link);
	if (!link->deadline || event_add(link->deadline, &wait) < 0)
		goto no_deadline;
	socket_tune(fd, (unsigned)dead_after_ms);
	bufferevent_setcb(link->bev, link_readable, NULL, link_event, link);
	bufferevent_setwatermark(link->bev, EV_READ, 4, MESSAGE_BYTES_MAX + 4);
	bufferevent_set_max_single_read(link->bev, 256u << 10);
	bufferevent_enable(link->bev, EV_READ | EV_WRITE);
	LIST_INSERT_HEAD(&control->rpc->links, link, next);
	if (!dial)
		control->rpc->accepted++;
	return link;

no_deadline:
	if (link->deadline)
		event_free(link->deadline);
	bufferevent_free(link->bev);
	free(link);
	return NULL;
no_bev:
	free(link);
no_link:
	close(fd);
	return NULL;
}

bool rpc_send(struct rpc_link *link, const Pc__Message *message)
{
	struct evbuffer *out;
	struct evbuffer_iovec room;
	size_t bytes = pc__message__get_packed_size(message);
	uint32_t length = htonl((uint32_t)bytes);

	if (!link || link->closed || bytes > MESSAGE_BYTES_MAX)
		return false;
	out = bufferevent_get_output(link->bev);
	if (evbuffer_get_length(out) + bytes + 4 > RPC_OUT_BYTES_MAX ||
		evbuffer_reserve_space(out, (ev_ssize_t)bytes + 4, &room, 1) != 1)
		return false;
	memcpy(room.iov_base, &length, 4);
	pc__message__pack(message, (uint8_t *)room.iov_base + 4);
	room.iov_len = bytes + 4;
	if (evbuffer_commit_space(out, &room, 1) < 0)
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
	struct evbuffer *out = bufferevent_get_output(link->bev);

	/*
	 * The bufferevent protects the front of its buffer against other users; it is unprotected
	 * for this one write.
	 */
	if (evbuffer_unfreeze(out, 1) == 0) {
		(void)evbuffer_write(out, bufferevent_getfd(link->bev));
		(void)evbuffer_freeze(out, 1);
	}
}

static void accepted(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
	int bytes, void *context)
{
	struct control *control = context;
	char from[NAME_BYTES_MAX];
	struct rpc_link *link;

	(void)listener;
	if (getnameinfo(address, (socklen_t)bytes, from, sizeof(from), NULL, 0, NI_NUMERICHOST) !=
		0)
		snprintf(from, sizeof(from), "an unknown address");
	if (control->rpc->accepted >= RPC_ACCEPTED_MAX) {
		log_warn("connection from %s refused: %u are open already", from,
			control->rpc->accepted);
		close(fd);
		return;
	}
	link = rpc_link_open(control, fd, NULL, from);
	if (link)
		link->far = !rpc_address_loopback(address);
}

static void accept_failed(struct evconnlistener *listener, void *context)
{
	(void)context;
	log_warn(
		"accept() on cluster.port failed: %s; raise the limit of open files (ulimit -n) if that is it",
		strerror(errno));
	/* accept() failed: stop listening until the next rpc_tick() */
	evconnlistener_disable(listener);
}

/*
 * Resolves cluster.address. If it is a name, this call blocks; it is made once, at start-up, before
 * any thread runs.
 */
static int listen_address(const struct settings *s, struct sockaddr_storage *ret, socklen_t *bytes)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
	struct addrinfo *found;
	char port[8];
	int error;

	if (rpc_address(s->cluster_address, (uint16_t)s->cluster_port, ret, bytes) == 0)
		return 0;
	snprintf(port, sizeof(port), "%u", (unsigned)(uint16_t)s->cluster_port);
	error = getaddrinfo(s->cluster_address, port, &hints, &found);
	if (error) {
		log_error(
			"cluster.address = %s: not an address, and as a name: %s. Set cluster.address to an address of this host",
			s->cluster_address, gai_strerror(error));
		return -EINVAL;
	}
	memcpy(ret, found->ai_addr, found->ai_addrlen);
	*bytes = found->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

static bool address_is_any(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;

	return address->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)
					      : v4->sin_addr.s_addr == htonl(INADDR_ANY);
}

static int listen_failed(const struct settings *s, int status)
{
	log_error("cannot listen on %s port %d: %s. %s", s->cluster_address, (int)s->cluster_port,
		strerror(-status),
		status == -EADDRINUSE
			? "Another engine or program has that port: set another cluster.port"
			: "Set cluster.address to an address of this host");
	return status;
}

static int reuse_address(int fd)
{
	int on = 1;

	return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

/*
 * First without SO_REUSEADDR: with it, two engines that start at the same time could both bind, and
 * the second would notice only in listen(). It is needed when connections of a former engine are
 * still in TIME_WAIT.
 */
static int bind_to(int fd, const struct sockaddr_storage *address, socklen_t bytes)
{
	if (bind(fd, (const struct sockaddr *)address, bytes) == 0)
		return 0;
	if (errno == EADDRINUSE && reuse_address(fd) == 0 &&
		bind(fd, (const struct sockaddr *)address, bytes) == 0)
		return 0;
	return -errno;
}

int rpc_port_open(struct control *control)
{
	const struct settings *s = control->settings;
	struct sockaddr_storage address;
	socklen_t bytes = 0;
	int fd, status = listen_address(s, &address, &bytes);

	control->port_fd = -1;
	if (status)
		return status;
	if (address_is_any(&address)) {
		log_error(
			"cluster.address = %s is no address that other hosts can reach: set it to an address of this host",
			s->cluster_address);
		return -EINVAL;
	}
	fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	status = fd < 0 ? -errno : bind_to(fd, &address, bytes);
	if (status == 0) {
		control->port_fd = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	return listen_failed(s, status);
}

void rpc_port_close(struct control *control)
{
	if (control->port_fd >= 0)
		close(control->port_fd);
	control->port_fd = -1;
}

/*
 * Sockets accepted here inherit SO_REUSEADDR, so that the next engine may bind while they are in
 * TIME_WAIT.
 */
static int listen_open(struct control *control)
{
	struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
	socklen_t bytes = sizeof(address);

	(void)getsockname(control->port_fd, (struct sockaddr *)&address, &bytes);
	control->rpc->loopback = rpc_address_loopback((struct sockaddr *)&address);
	if (reuse_address(control->port_fd) == 0)
		control->rpc->listener = evconnlistener_new(control->base, accepted, control,
			LEV_OPT_CLOSE_ON_FREE, 256, control->port_fd);
	if (!control->rpc->listener)
		return listen_failed(control->settings, errno ? -errno : -EIO);
	control->port_fd = -1; /* from here on the listener owns the socket */
	evconnlistener_set_error_cb(control->rpc->listener, accept_failed);
	return 0;
}

int rpc_open(struct control *control)
{
	struct rpc *rpc = calloc(1, sizeof(*rpc));
	int status = -ENOMEM;

	if (!rpc)
		return -ENOMEM;
	control->rpc = rpc;
	rpc->arena = malloc(RPC_ARENA_BYTES);
	if (rpc->arena)
		status = listen_open(control);
	if (status) {
		free(rpc->arena);
		free(rpc);
		control->rpc = NULL;
	}
	return status;
}

void rpc_tick(struct control *control)
{
	if (control->rpc->listener)
		evconnlistener_enable(control->rpc->listener);
}

void rpc_quiet(struct control *control)
{
	struct rpc_dial *dial;

	if (control->rpc->listener)
		evconnlistener_free(control->rpc->listener);
	control->rpc->listener = NULL;
	LIST_FOREACH (dial, &control->rpc->dials, next) {
		event_del(dial->timer);
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
		evdns_base_free(rpc->dns, 1);
	free(rpc->arena);
	free(rpc);
	control->rpc = NULL;
}
