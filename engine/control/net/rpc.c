/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP links between engines. Owns every struct rpc_link and struct rpc_dial, and the listener.
 * Control plane's thread only; nothing blocks, except rpc_port_open() at start-up.
 *
 * The input of a link is split into frames, and each is decoded into a message, which the table of
 * events (struct rpc_events) serves. A message is decoded into one arena of fixed size, which is
 * reused for the next message: a frame that would need more memory than that fails like any other
 * malformed one, and nothing has to be freed.
 *
 * A link that fails closes at once. If it was dialled, its dial tries again after a back-off that
 * doubles and has jitter, until it is stopped; names are resolved anew for each attempt. A link
 * whose callbacks are on the stack is freed when the last of them returns.
 */
#include "config/text_fit.h"
#include "engine/control/net/rpc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/abi/wire.h"
#include "engine/control/net/net.h"

static uint64_t rpc_text_hash(const char *text)
{
	uint64_t hash = 0xcbf29ce484222325ull;

	for (const char *c = text; *c; c++)
		hash = (hash ^ (unsigned char)*c) * 0x100000001b3ull;
	return hash;
}

/* ---- frames ---------------------------------------------------------------------------------- */

/* Memory of the decoded message. Only what large messages use of it is ever touched. */
static alignas(16) uint8_t rpc_arena[RPC_ARENA_BYTES];

static void *rpc_arena_alloc(void *context, size_t bytes)
{
	size_t *used = context, room = sizeof(rpc_arena) - *used;
	void *at = rpc_arena + *used;

	if (bytes > room || ((bytes + 15) & ~(size_t)15) > room)
		return NULL;
	*used += (bytes + 15) & ~(size_t)15;
	return at;
}

static void rpc_arena_free(void *context, void *at)
{
	(void)context, (void)at;
}

static void rpc_link_stranger(struct rpc_link *link, const char *why);

static void rpc_frame_serve(struct rpc_link *link, const uint8_t *bytes, size_t length)
{
	size_t used = 0;
	ProtobufCAllocator arena = {
		.alloc = rpc_arena_alloc, .free = rpc_arena_free, .allocator_data = &used};
	Pc__Message *message;
	unsigned kind;

	message = pc__message__unpack(&arena, length, bytes);
	if (!message) {
		rpc_link_bad(link, "%zu bytes that are no message", length);
		return;
	}
	link->control->counter[COUNTER_messages_in]++;
	kind = (unsigned)message->body_case;
	if (!link->control->rpc_events->message(link, message))
		rpc_link_bad(link, "message of kind %u out of place or malformed", kind);
}

/* The first bytes are those of a TLS handshake or alert, and this engine has no key. */
static bool rpc_link_tls(struct rpc_link *link, uint32_t first)
{
	static const uint8_t alert[] = SECURE_CLEAR_ALERT;
	bool refused = first >> 16 == 0x1503;
	uint8_t *room;

	if (first >> 16 != 0x1603 && !refused)
		return false;
	if (!refused && (room = net_reserve(link->net, sizeof(alert)))) {
		memcpy(room, alert, sizeof(alert));
		(void)net_commit(link->net, sizeof(alert));
		net_push(link->net);
	}
	rpc_link_stranger(link,
		"it speaks TLS, and this engine has no key: set cluster.psk_file or cluster.tls_dir here as in that cluster");
	return true;
}

static void rpc_link_frames(struct rpc_link *link)
{
	while (!link->closed) {
		uint32_t max = link->up ? MESSAGE_BYTES_MAX : RPC_HELLO_BYTES_MAX;
		size_t have = net_received(link->net);
		const uint8_t *bytes;
		uint32_t length;

		if (have < 4)
			break;
		bytes = net_front(link->net, 4);
		if (!bytes) {
			rpc_link_bad(link, "no memory for the length of a message");
			return;
		}
		memcpy(&length, bytes, 4);
		length = ntohl(length);
		if (!link->up && rpc_link_tls(link, length))
			return;
		if (length == 0 || length > max) {
			rpc_link_bad(
				link, "a message of %u bytes, at most %u are served", length, max);
			return;
		}
		if (have - 4 < length) {
			net_want(link->net, (size_t)length + 4);
			return;
		}
		bytes = net_front(link->net, (size_t)length + 4);
		if (!bytes) {
			rpc_link_bad(link, "no memory for a message of %u bytes", length);
			return;
		}
		rpc_frame_serve(link, bytes + 4, length);
		net_drain(link->net, (size_t)length + 4);
	}
	if (!link->closed)
		net_want(link->net, 4);
}

/* ---- back-off of a dial ---------------------------------------------------------------------- */

/*
 * Arms the timer of the next attempt: base_ms * 2^(fails-1), at most max_ms, plus or minus a
 * quarter.
 */
static void rpc_dial_wait(struct rpc_dial *dial)
{
	unsigned doubled = dial->fails > 16 ? 16 : dial->fails ? dial->fails - 1 : 0;
	uint64_t ms = (uint64_t)dial->base_ms << doubled;
	uint32_t random = net_random();

	if (ms > dial->max_ms)
		ms = dial->max_ms;
	ms = dial->fails ? ms - ms / 4 + random % (ms / 2 + 1) : 0;
	/* After rpc_quiet() the listener is NULL, and the dial must not be restarted */
	if (dial->control->rpc->listener)
		(void)net_timer_set(dial->timer, ms * 1000);
}

static void rpc_dial_lost(struct rpc_dial *dial, bool was_up, uint64_t up_ns, int error)
{
	dial->fails = up_ns >= RPC_STEADY_NS ? 0 : dial->fails + 1;
	dial->error = error;
	rpc_dial_wait(dial);
	if (!was_up) /* the call may free `dial` */
		dial->control->rpc_events->dial_failed(dial->control, dial, error);
}

static void rpc_dial_unanswered(const struct rpc_link *link)
{
	struct rpc_dial *dial = link->dial;

	if (dial->unanswered < RPC_UNANSWERED_MAX && ++dial->unanswered == RPC_UNANSWERED_MAX)
		log_warn(
			"%s closes the connection when this engine (wire version %u) says Hello. If an engine listens there, its log says why; a node of PeerCache 0.8 closes it, too",
			link->from, WIRE_VERSION);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void rpc_link_free(struct rpc_link *link)
{
	if (!link->dial)
		link->control->rpc->accepted--;
	LIST_REMOVE(link, next);
	net_timer_free(link->deadline);
	net_close(link->net);
	free(link);
}

static void rpc_link_end(struct rpc_link *link, int error)
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
		link->control->rpc_events->down(link->control, link);
	if (link->dial && link->dial->link == link) {
		link->dial->link = NULL;
		link->dial->reached = link->connected || net_reached(link->net);
		rpc_dial_lost(link->dial, was_up, up_ns, error);
	}
	link->busy--;
	if (link->busy == 0)
		rpc_link_free(link);
}

void rpc_link_close(struct rpc_link *link)
{
	rpc_link_end(link, ECONNABORTED);
}

/*
 * True once in RPC_LOGGED_NS for an address and a reason, as far as they are remembered, and
 * RPC_LINES_MAX times a minute in all.
 */
static bool rpc_link_logs(const struct rpc_link *link, const char *why)
{
	struct rpc *rpc = link->control->rpc;
	uint64_t hash = rpc_text_hash(link->from) * 31 + rpc_text_hash(why), now_ns = net_now();
	struct rpc_logged *at = &rpc->logged[hash % RPC_BAD_REMEMBERED];

	if (at->hash == hash && now_ns - at->ns < RPC_LOGGED_NS)
		return false;
	if (now_ns - rpc->lines_ns >= RPC_LINES_NS) {
		if (rpc->lines > RPC_LINES_MAX)
			log_warn(
				"%u more connections with other addresses were closed and not logged",
				rpc->lines - RPC_LINES_MAX);
		rpc->lines_ns = now_ns;
		rpc->lines = 0;
	}
	if (++rpc->lines > RPC_LINES_MAX)
		return false;
	*at = (struct rpc_logged){hash, now_ns};
	return true;
}

/* The other end does not belong: closes the link. */
static void rpc_link_stranger(struct rpc_link *link, const char *why)
{
	if (link->closed)
		return;
	link->control->counter[COUNTER_strangers_refused]++;
	if (link->dial)
		snprintf(link->dial->insecure, sizeof(link->dial->insecure), "%s", why);
	if (rpc_link_logs(link, why))
		log_error(
			"no link with %s: %s. The same with that address is only counted for some minutes",
			link->from, why);
	rpc_link_end(link, EACCES);
}

void rpc_link_bad(struct rpc_link *link, const char *format, ...)
{
	char text[256];
	va_list args;

	if (link->closed)
		return;
	link->control->counter[COUNTER_messages_bad]++;
	if (rpc_link_logs(link, "")) {
		va_start(args, format);
		text_vfit(text, sizeof(text), format, args);
		va_end(args);
		log_warn(
			"connection with %s closed: %s. If that is no PeerCache engine, keep it away from port %d; further messages like this one are only counted",
			link->from, text, (int)link->control->settings->cluster_port);
	}
	rpc_link_end(link, EPROTO);
}

/*
 * Closes the links whose key or certificate is no longer good; they are dialled again. True: more
 * wait to be verified, which the loop has no time for now.
 */
static bool rpc_links_verify(struct control *control, bool changed)
{
	struct rpc_link *link;
	char why[SECURE_WHY_BYTES];
	unsigned budget = RPC_VERIFIED_MAX;

again:
	LIST_FOREACH (link, &control->rpc->links, next) {
		struct ssl_st *ssl = net_session(link->net);

		if (link->closed || !ssl || secure_proven(ssl, &budget, why))
			continue;
		log_info("the link with %s is closed: %s. It is dialled again", link->from, why);
		link->barred = true;
		rpc_link_close(link); /* others may go with it */
		goto again;
	}
	if (changed)
		control->rpc_events->rights(control);
	return budget == 0;
}

void rpc_link_up(struct rpc_link *link)
{
	link->up = true;
	net_timer_free(link->deadline);
	link->deadline = NULL;
	link->up_ns = net_now();
	if (link->dial)
		link->dial->unanswered = 0;
}

static void rpc_link_deadline(void *context)
{
	struct rpc_link *link = context;

	if (!link->dial)
		link->control->counter[COUNTER_strangers_silent]++;
	rpc_link_end(link, ETIMEDOUT);
}

static void rpc_link_readable(void *context)
{
	struct rpc_link *link = context;

	link->busy++;
	rpc_link_frames(link);
	link->busy--;
	if (link->closed && link->busy == 0)
		rpc_link_free(link);
}

static void rpc_link_connected(void *context)
{
	struct rpc_link *link = context;

	if (link->closed)
		return;
	link->connected = true;
	link->control->rpc_events->connected(link->control, link);
}

static void rpc_link_failed(void *context, int error)
{
	struct rpc_link *link = context;

	if (link->closed)
		return;
	if (*net_why(link->net)) {
		rpc_link_stranger(link, net_why(link->net));
		return;
	}
	if (error == ECONNRESET && link->dial && !link->up &&
		(link->connected || net_reached(link->net)))
		rpc_dial_unanswered(link);
	rpc_link_end(link, error);
}

static const struct net_calls rpc_link_calls = {
	rpc_link_readable, rpc_link_connected, rpc_link_failed};

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
	if (control->secure && !net_secure(net, secure_session(control, dial == NULL),
				       dial ? NULL : control->rpc->gate))
		goto no_deadline;
	snprintf(link->from, sizeof(link->from), "%s", from);
	link->deadline = net_timer_new(control->base, false, rpc_link_deadline, link);
	if (!link->deadline)
		goto no_deadline;
	if (net_timer_set(link->deadline, (uint64_t)ms * 1000) < 0)
		goto not_set;
	net_start(link->net, &rpc_link_calls, link, (unsigned)dead_after_ms, MESSAGE_BYTES_MAX + 4);
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

/* ---- sending --------------------------------------------------------------------------------- */

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

/* ---- dials ----------------------------------------------------------------------------------- */

static void rpc_dial_connect(struct rpc_dial *dial, const struct sockaddr *address, socklen_t bytes)
{
	struct net_link *net;
	struct rpc_link *link;
	char text[ADDRESS_TEXT_BYTES];
	int error;

	dial->reached = false;
	if (getnameinfo(address, bytes, dial->at, sizeof(dial->at), NULL, 0, NI_NUMERICHOST) != 0)
		dial->at[0] = '\0';
	error = net_dial(dial->control->base, address, bytes, &net);
	if (error) {
		rpc_dial_lost(dial, false, 0, error);
		return;
	}
	address_text(dial->host, dial->port, text);
	link = rpc_link_open(dial->control, net, dial, text);
	if (!link) {
		rpc_dial_lost(dial, false, 0, ENOMEM);
		return;
	}
	dial->link = link;
	link->far = !address_loopback(address);
	if (net_connect(link->net) < 0)
		rpc_link_close(link);
}

/*
 * Connects to an address of the dial's name. Debian writes the name of a host as 127.0.1.1 to its
 * /etc/hosts: a loopback address of a name means this host, and this engine's own address reaches
 * that as well.
 */
static void rpc_dial_found(struct rpc_dial *dial, const struct addrinfo *found)
{
	const struct control *control = dial->control;
	struct sockaddr_storage own;
	socklen_t bytes;

	if (address_loopback(found->ai_addr) && !control->rpc->loopback &&
		address_literal(control->settings->cluster_address, dial->port, &own, &bytes) == 0)
		rpc_dial_connect(dial, (struct sockaddr *)&own, bytes);
	else
		rpc_dial_connect(dial, found->ai_addr, found->ai_addrlen);
}

/* True if a line about the name is due: the first time, then at intervals that double. */
static bool rpc_unresolved_line(struct rpc *rpc, const char *name, uint64_t now_ns)
{
	uint64_t hash = rpc_text_hash(name), pause_ns;
	struct rpc_unresolved *at = NULL;

	for (unsigned i = 0; i < RPC_UNRESOLVED && !at; i++)
		if (rpc->unresolved[i].hash == hash)
			at = &rpc->unresolved[i];
	for (unsigned i = 0; i < RPC_UNRESOLVED && !at; i++)
		if (now_ns - rpc->unresolved[i].last_ns > 2 * RPC_UNRESOLVED_NS)
			at = &rpc->unresolved[i];
	if (!at)
		return false;
	if (at->hash != hash || now_ns - at->last_ns > 2 * RPC_UNRESOLVED_NS)
		*at = (struct rpc_unresolved){.hash = hash, .since_ns = now_ns};
	at->last_ns = now_ns;
	if (now_ns < at->line_ns)
		return false;
	pause_ns = now_ns - at->since_ns;
	if (pause_ns < RPC_STEADY_NS)
		pause_ns = RPC_STEADY_NS;
	at->line_ns = now_ns + (pause_ns < RPC_UNRESOLVED_NS ? pause_ns : RPC_UNRESOLVED_NS);
	return true;
}

/* member_seeds.c writes the lines about seeds. */
static void rpc_dial_unresolved(struct rpc_dial *dial, const char *error)
{
	snprintf(dial->unresolved, sizeof(dial->unresolved), "%s", error ? error : "no address");
	if (!dial->seed && rpc_unresolved_line(dial->control->rpc, dial->host, net_now()))
		log_warn(
			"cannot resolve the name %s, which a member has as its cluster.address: %s. It is tried again; check the resolver, or set an address there",
			dial->host, dial->unresolved);
	rpc_dial_lost(dial, false, 0, EHOSTUNREACH);
}

static void rpc_dial_resolved(void *context, const char *error, const struct addrinfo *found)
{
	struct rpc_dial *dial = context;
	const struct addrinfo *each;
	unsigned count = 0;

	dial->query = NULL;
	for (each = found; each; each = each->ai_next)
		count++;
	if (count) {
		unsigned skip = dial->tried++ % count;

		dial->addresses = count;
		dial->unresolved[0] = '\0';
		for (each = found; skip; skip--)
			each = each->ai_next;
		rpc_dial_found(dial, each);
	} else {
		rpc_dial_unresolved(dial, error);
	}
}

static void rpc_dial_resolve(struct rpc_dial *dial)
{
	struct rpc *rpc = dial->control->rpc;
	struct net_query *query;

	if (!rpc->dns)
		rpc->dns = net_resolver_new(dial->control->base);
	if (!rpc->dns) {
		rpc_dial_lost(dial, false, 0, ENOMEM);
		return;
	}
	query = net_resolve(rpc->dns, dial->host, dial->port, rpc_dial_resolved, dial);
	/* NULL: it was answered at once, for example from /etc/hosts, and `dial` may be freed. */
	if (query)
		dial->query = query;
}

static void rpc_dial_resolve_cancel(struct rpc_dial *dial)
{
	if (dial->query)
		net_resolve_cancel(dial->query);
	dial->query = NULL;
}

static void rpc_dial_due(void *context)
{
	struct rpc_dial *dial = context;
	struct sockaddr_storage address;
	socklen_t bytes;

	if (dial->link || dial->query)
		return;
	if (address_literal(dial->host, dial->port, &address, &bytes) == 0)
		rpc_dial_connect(dial, (struct sockaddr *)&address, bytes);
	else
		rpc_dial_resolve(dial);
}

struct rpc_dial *rpc_dial_start(struct control *control, const struct rpc_target *target)
{
	struct rpc_dial *dial = calloc(1, sizeof(*dial));

	if (!dial)
		return NULL;
	dial->control = control;
	snprintf(dial->host, sizeof(dial->host), "%s", target->host);
	dial->port = target->port;
	dial->base_ms = target->base_ms;
	dial->max_ms = target->max_ms;
	dial->owner = target->owner;
	dial->seed = target->seed;
	dial->timer = net_timer_new(control->base, false, rpc_dial_due, dial);
	if (!dial->timer) {
		free(dial);
		return NULL;
	}
	LIST_INSERT_HEAD(&control->rpc->dials, dial, next);
	rpc_dial_wait(dial);
	return dial;
}

void rpc_dial_hurry(struct rpc_dial *dial, uint32_t base_ms, uint32_t max_ms)
{
	dial->base_ms = base_ms;
	dial->max_ms = max_ms;
	dial->fails = 0;
	if (!dial->link && !dial->query)
		rpc_dial_wait(dial);
}

void rpc_dial_stop(struct rpc_dial *dial)
{
	struct rpc_link *link;

	if (!dial)
		return;
	link = dial->link;
	dial->link = NULL; /* reset first, so that closing the link does not start a new attempt */
	if (link)
		rpc_link_close(link);
	rpc_dial_resolve_cancel(dial);
	LIST_REMOVE(dial, next);
	net_timer_free(dial->timer);
	free(dial);
}

/* ---- the address that this engine listens on ------------------------------------------------- */

/* The address that the engine listens on. */
static const char *rpc_port_text(const struct settings *s)
{
	return s->cluster_bind[0] ? s->cluster_bind : s->cluster_address;
}

/*
 * Resolves `host`; 0 or an error of getaddrinfo(). A name is looked up, which blocks: only at
 * start-up, before any thread runs.
 */
static int rpc_port_resolve(
	const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *bytes)
{
	struct addrinfo *found;
	const struct addrinfo *at;
	int error;

	if (address_literal(host, port, ret, bytes) == 0)
		return 0;
	error = address_look_up(host, port, &found);
	if (error)
		return error;
	/* Debian gives a host's own name a loopback address, too. */
	at = found;
	while (at && address_loopback(at->ai_addr))
		at = at->ai_next;
	at = at ? at : found;
	memcpy(ret, at->ai_addr, at->ai_addrlen);
	*bytes = at->ai_addrlen;
	freeaddrinfo(found);
	return 0;
}

static int rpc_port_address(
	const struct settings *s, struct sockaddr_storage *ret, socklen_t *bytes)
{
	int error = rpc_port_resolve(rpc_port_text(s), (uint16_t)s->cluster_port, ret, bytes);

	if (error)
		log_error(
			"%s = %s: not an address, and as a name: %s. Set it to an address of this host",
			s->cluster_bind[0] ? "cluster.bind" : "cluster.address", rpc_port_text(s),
			gai_strerror(error));
	return error ? -EINVAL : 0;
}

static bool address_any(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;

	return address->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr)
					      : v4->sin_addr.s_addr == htonl(INADDR_ANY);
}

/*
 * Checks cluster.address, which is announced to other engines, against the address that this engine
 * listens on: both or neither must be a loopback address. Returns 0, or -EINVAL after logging the
 * reason. A name that cannot be resolved yet is accepted, unless the engine listens on it: other
 * hosts resolve it later.
 */
static int rpc_port_fits(const struct settings *s, const struct sockaddr_storage *bound)
{
	struct sockaddr_storage announced;
	socklen_t bytes;
	bool local = address_loopback((const struct sockaddr *)bound), announced_local = false;

	if (rpc_port_resolve(s->cluster_address, (uint16_t)s->cluster_port, &announced, &bytes) ==
		0) {
		announced_local = address_loopback((struct sockaddr *)&announced);
		if (address_any(&announced)) {
			log_error(
				"cluster.address = %s is no address that other hosts can reach: set it to an address of this host. To listen on all addresses, set cluster.bind",
				s->cluster_address);
			return -EINVAL;
		}
	}
	if (!s->cluster_bind[0] || local == announced_local)
		return 0;
	if (announced_local)
		log_error(
			"cluster.bind = %s listens for other hosts, but cluster.address = %s, which they are told, is a loopback address. Set cluster.address to an address that other hosts reach",
			s->cluster_bind, s->cluster_address);
	else
		log_error(
			"cluster.bind = %s is a loopback address, so no other host reaches cluster.address = %s. Set cluster.bind to 0.0.0.0, to :: or to an address of this host",
			s->cluster_bind, s->cluster_address);
	return -EINVAL;
}

static int rpc_port_failed(const struct settings *s, int status)
{
	char port[16] = ""; /* of --check: any port */

	if (s->cluster_port)
		snprintf(port, sizeof(port), " port %d", (int)s->cluster_port);
	log_error("cannot listen on %s%s: %s. %s", rpc_port_text(s), port, strerror(-status),
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
	int fd, status = rpc_port_address(s, &address, &bytes);

	control->port_fd = -1;
	if (status == 0)
		status = rpc_port_fits(s, &address);
	if (status)
		return status;
	fd = net_bind((const struct sockaddr *)&address, bytes);
	if (fd < 0)
		return rpc_port_failed(s, fd);
	control->port_fd = fd;
	return 0;
}

void rpc_port_close(struct control *control)
{
	if (control->port_fd >= 0)
		close(control->port_fd);
	control->port_fd = -1;
}

/* ---- listening ------------------------------------------------------------------------------- */

/* Makes room for one more link without a Hello. */
static void rpc_strangers_bound(struct rpc *rpc, const char *from)
{
	struct rpc_link *link, *oldest = NULL, *oldest_here = NULL;
	unsigned all = 0, here = 0;

	LIST_FOREACH (link, &rpc->links, next) { /* the newest is the first */
		if (link->dial || link->up || link->closed)
			continue;
		all++;
		oldest = link;
		if (strcmp(link->from, from) == 0) {
			here++;
			oldest_here = link;
		}
	}
	if (here >= RPC_STRANGERS_ADDRESS_MAX)
		oldest = oldest_here;
	else if (all < RPC_STRANGERS_MAX)
		return;
	oldest->control->counter[COUNTER_strangers_evicted]++;
	rpc_link_close(oldest);
}

static void rpc_listen_accepted(
	void *context, struct net_link *net, const struct sockaddr *address, socklen_t bytes)
{
	struct control *control = context;
	char from[NAME_BYTES_MAX];
	struct rpc_link *link;

	if (getnameinfo(address, bytes, from, sizeof(from), NULL, 0, NI_NUMERICHOST) != 0)
		snprintf(from, sizeof(from), "an unknown address");
	if (control->rpc->accepted >= LINKS_ACCEPTED_MAX) {
		log_warn("connection from %s refused: %u are open already", from,
			control->rpc->accepted);
		net_close(net);
		return;
	}
	rpc_strangers_bound(control->rpc, from);
	link = rpc_link_open(control, net, NULL, from);
	if (link)
		link->far = !address_loopback(address);
}

static void rpc_listen_failed(void *context, int error)
{
	(void)context;
	/* the listener accepts again from the next rpc_tick() on */
	log_warn(
		"accept() on cluster.port failed: %s; raise the limit of open files (ulimit -n) if that is it",
		strerror(error));
}

static const struct net_listen_calls rpc_listen_calls = {rpc_listen_accepted, rpc_listen_failed};

int rpc_listen(struct control *control)
{
	struct rpc *rpc = control->rpc;
	struct sockaddr_storage own;

	errno = 0;
	rpc->listener =
		net_listen(control->base, control->port_fd, &rpc_listen_calls, control, &own);
	if (!rpc->listener)
		return rpc_port_failed(control->settings, errno ? -errno : -EIO);
	net_listen_gate(rpc->listener, rpc->gate);
	rpc->loopback = address_loopback((struct sockaddr *)&own);
	control->port_fd = -1; /* from here on the listener owns the socket */
	return 0;
}

/*
 * An address that this host never had is of another kind: a name server or a router leads to it.
 * Other rooms of software NICs listen on soft.address only over TCP.
 */
static void rpc_addresses_look(struct control *control, uint64_t now_ns)
{
	const struct settings *s = control->settings;
	struct rpc *rpc = control->rpc;
	unsigned here = addresses_here(s), before = rpc->addresses_gone;

	if (s->soft_link != LINK_TCP || !control->rails ||
		strncmp(control->plan.rail[0].device, "soft", 4) != 0)
		here &= ~(1u << ADDRESS_SOFT);
	rpc->addresses_ns = now_ns;
	rpc->addresses |= here;
	rpc->addresses_gone = rpc->addresses & ~here;
	for (unsigned i = 0; i < ADDRESSES; i++) {
		unsigned bit = 1u << i;

		if (rpc->addresses_gone & bit & ~before)
			log_error(
				"%s = %s: no interface of this host has this address any more, and other hosts do not reach it. Give it back, or restart the engine with one that this host has",
				address_setting[i], address_value(s, i));
		else if (before & bit & ~rpc->addresses_gone)
			log_info("%s = %s: this host has the address again", address_setting[i],
				address_value(s, i));
	}
}

void rpc_tick(struct control *control, uint64_t now_ns)
{
	if (now_ns - control->rpc->addresses_ns >= RPC_ADDRESS_NS)
		rpc_addresses_look(control, now_ns);
	if (control->rpc->listener)
		net_listen_again(control->rpc->listener);
}

/* ---- open and close -------------------------------------------------------------------------- */

int rpc_open(struct control *control)
{
	struct rpc *rpc = calloc(1, sizeof(*rpc));
	int status = -ENOMEM;

	if (!rpc)
		return status;
	control->rpc = rpc;
	rpc_addresses_look(control, net_now());
	secure_watch(control, rpc_links_verify);
	if (control->secure)
		rpc->gate = net_gate_new(control->base);
	if (!control->secure || rpc->gate)
		status = control->exporting ? 0 : rpc_listen(control);
	if (status) {
		secure_watch(control, NULL);
		net_gate_free(rpc->gate);
		free(rpc);
		control->rpc = NULL;
	}
	return status;
}

void rpc_quiet(struct control *control)
{
	struct rpc_dial *dial;

	if (control->rpc->listener)
		net_listener_free(control->rpc->listener);
	control->rpc->listener = NULL;
	LIST_FOREACH (dial, &control->rpc->dials, next) {
		net_timer_stop(dial->timer);
		rpc_dial_resolve_cancel(dial);
	}
}

void rpc_close(struct control *control)
{
	struct rpc *rpc = control->rpc;

	if (!rpc)
		return;
	secure_watch(control, NULL);
	rpc_quiet(control);
	while (!LIST_EMPTY(&rpc->dials))
		rpc_dial_stop(LIST_FIRST(&rpc->dials));
	while (!LIST_EMPTY(&rpc->links)) {
		struct rpc_link *link = LIST_FIRST(&rpc->links);

		link->member = NULL;
		link->dial = NULL;
		rpc->accepted++;
		rpc_link_free(link);
	}
	net_gate_free(rpc->gate);
	if (rpc->dns)
		net_resolver_free(rpc->dns);
	free(rpc);
	control->rpc = NULL;
}
