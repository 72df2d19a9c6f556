/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses that are dialled again until stopped. Literal addresses are dialled directly, names are
 * resolved by an asynchronous resolver, and failures are retried after a back-off that
 * doubles and has jitter. Control plane's thread only; nothing blocks.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/log.h"
#include "engine/abi/wire.h"
#include "engine/control/members/members.h"
#include "engine/control/members/placement.h"
#include "engine/control/net/rpc.h"

/* A query to the DNS resolver. If the dial is stopped before the answer, the query outlives it. */
struct rpc_resolve {
	struct rpc_dial *dial; /* the dial that waits for the answer; NULL: it was stopped */
	struct net_query *request;
};

int rpc_address(const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *ret_bytes)
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

bool rpc_address_loopback(const struct sockaddr *address)
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

bool rpc_text_loopback(const char *host)
{
	struct sockaddr_storage address;
	socklen_t bytes;

	if (rpc_address(host, 1, &address, &bytes) == 0)
		return rpc_address_loopback((struct sockaddr *)&address);
	return strcasecmp(host, "localhost") == 0;
}

/*
 * Arms the timer of the next attempt: base_ms * 2^(fails-1), at most max_ms, plus or minus a
 * quarter.
 */
static void dial_wait(struct rpc_dial *dial)
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

void rpc_dial_lost(struct rpc_dial *dial, bool was_up, uint64_t up_ns, int error)
{
	dial->fails = up_ns >= RPC_STEADY_NS ? 0 : dial->fails + 1;
	dial->error = error;
	dial_wait(dial);
	if (!was_up)
		member_dial_failed(dial->control, dial, error); /* this call may free `dial` */
}

void rpc_dial_unanswered(const struct rpc_link *link)
{
	struct rpc_dial *dial = link->dial;

	if (dial->unanswered < RPC_UNANSWERED_MAX)
		dial->unanswered++;
	if (link->probe)
		log_warn(
			"%s closes the connection when this engine (wire version %u) says Hello. If an engine listens there, its log says why",
			link->from, WIRE_VERSION);
}

static void dial_failed(struct rpc_dial *dial, int error)
{
	rpc_dial_lost(dial, false, 0, error);
}

static void dial_connect(struct rpc_dial *dial, const struct sockaddr *address, socklen_t bytes)
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
		dial_failed(dial, error);
		return;
	}
	address_text(dial->host, dial->port, text);
	link = rpc_link_open(dial->control, net, dial, text);
	if (!link) {
		dial_failed(dial, ENOMEM);
		return;
	}
	dial->link = link;
	link->far = !rpc_address_loopback(address);
	if (net_connect(link->net) < 0)
		rpc_link_close(link);
}

/*
 * Connects to an address of the dial's name. Debian writes the name of a host as 127.0.1.1 to its
 * /etc/hosts: a loopback address of a name means this host, and this engine's own address reaches
 * that as well.
 */
static void dial_found(struct rpc_dial *dial, const struct addrinfo *found)
{
	const struct control *control = dial->control;
	struct sockaddr_storage own;
	socklen_t bytes;

	if (rpc_address_loopback(found->ai_addr) && !control->rpc->loopback &&
		rpc_address(control->settings->cluster_address, dial->port, &own, &bytes) == 0)
		dial_connect(dial, (struct sockaddr *)&own, bytes);
	else
		dial_connect(dial, found->ai_addr, found->ai_addrlen);
}

/* True if a line about the name is due: the first time, then at intervals that double. */
static bool unresolved_line(struct rpc *rpc, const char *name, uint64_t now_ns)
{
	uint64_t hash = placement_hash(name), pause_ns;
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

/* member_silent.c writes the lines about seeds. */
static void dial_unresolved(struct rpc_dial *dial, const char *error)
{
	snprintf(dial->unresolved, sizeof(dial->unresolved), "%s", error ? error : "no address");
	if (!dial->seed && unresolved_line(dial->control->rpc, dial->host, net_now()))
		log_warn(
			"cannot resolve the name %s, which a member has as its cluster.address: %s. It is tried again; check the resolver, or set an address there",
			dial->host, dial->unresolved);
	dial_failed(dial, EHOSTUNREACH);
}

static void resolved(void *context, const char *error, const struct addrinfo *found)
{
	struct rpc_resolve *resolve = context;
	struct rpc_dial *dial = resolve->dial;
	const struct addrinfo *each;
	unsigned count = 0;

	free(resolve);
	if (dial)
		dial->resolve = NULL;
	for (each = found; each; each = each->ai_next)
		count++;
	if (dial && count) {
		unsigned skip = dial->tried++ % count;

		dial->addresses = count;
		dial->unresolved[0] = '\0';
		for (each = found; skip; skip--)
			each = each->ai_next;
		dial_found(dial, each);
	} else if (dial) {
		dial_unresolved(dial, error);
	}
}

static void dial_resolve(struct rpc_dial *dial)
{
	struct rpc *rpc = dial->control->rpc;
	struct net_query *request;
	struct rpc_resolve *resolve;

	if (!rpc->dns)
		rpc->dns = net_resolver_new(dial->control->base);
	resolve = calloc(1, sizeof(*resolve));
	if (!rpc->dns || !resolve) {
		free(resolve);
		dial_failed(dial, ENOMEM);
		return;
	}
	resolve->dial = dial;
	dial->resolve = resolve;
	request = net_resolve(rpc->dns, dial->host, dial->port, resolved, resolve);
	/*
	 * NULL: the answer came from inside the call, for example from /etc/hosts; `resolve`, and
	 * perhaps even `dial`, are freed.
	 */
	if (request)
		resolve->request = request;
}

void rpc_resolve_cancel(struct rpc_dial *dial)
{
	if (!dial->resolve)
		return;
	dial->resolve->dial = NULL;
	net_resolve_cancel(dial->resolve->request);
	dial->resolve = NULL;
}

static void dial_due(void *context)
{
	struct rpc_dial *dial = context;
	struct sockaddr_storage address;
	socklen_t bytes;

	if (dial->link || dial->resolve)
		return;
	if (rpc_address(dial->host, dial->port, &address, &bytes) == 0)
		dial_connect(dial, (struct sockaddr *)&address, bytes);
	else
		dial_resolve(dial);
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
	dial->timer = net_timer_new(control->base, false, dial_due, dial);
	if (!dial->timer) {
		free(dial);
		return NULL;
	}
	LIST_INSERT_HEAD(&control->rpc->dials, dial, next);
	dial_wait(dial);
	return dial;
}

void rpc_dial_hurry(struct rpc_dial *dial, uint32_t base_ms, uint32_t max_ms)
{
	dial->base_ms = base_ms;
	dial->max_ms = max_ms;
	dial->fails = 0;
	if (!dial->link && !dial->resolve)
		dial_wait(dial);
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
	rpc_resolve_cancel(dial);
	LIST_REMOVE(dial, next);
	net_timer_free(dial->timer);
	free(dial);
}
