/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP between simulated hosts: the connections of net.h. Bytes arrive in order; a lost packet
 * arrives 200 ms * 2^k late and holds up all later ones of its direction. A sender whose packets
 * are not acknowledged for dead_after_ms sees its connection break, as with TCP_USER_TIMEOUT.
 * Simplifications: one commit is one packet, windows are unlimited. What a node sends to several
 * others is stored once. One thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/payload.h"
#include "tests/sim/world.h"

struct packet {
	STAILQ_ENTRY(packet) next;
	uint64_t at_ns, sent_ns;
	struct payload *payload;
};

/* One end of a connection. */
struct net_link {
	struct thing thing; /* first */
	LIST_ENTRY(net_link) all;
	unsigned node, to;
	struct net_link *peer; /* the other end; NULL: not accepted yet, or closed */
	bool dialled, established, silent, armed, failed;
	unsigned tries; /* retransmissions of the first packet, or of the SYN */
	uint64_t dead_ns, last_ns;
	const struct net_calls *calls;
	void *context;
	STAILQ_HEAD(, packet) out; /* packets of this end that have not arrived */
	size_t backlog;
	struct payload *room; /* of net_reserve() */
	uint8_t *in;
	size_t in_first, in_count, in_room, want;
};

struct net_listener {
	const struct net_listen_calls *calls;
	void *context;
	unsigned node;
};

static struct net_link *of(struct thing *thing)
{
	return (struct net_link *)(void *)thing;
}

void wire_address(unsigned node, struct sockaddr_storage *ret)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET,
		.sin_port = htons(SIM_PORT),
		.sin_addr.s_addr = htonl(0x0a000001u + node)};

	memset(ret, 0, sizeof(*ret));
	memcpy(ret, &v4, sizeof(v4));
}

uint64_t wire_latency(unsigned to)
{
	return 20000 + world_random() % 20000 + world.node[to].slow_ns;
}

bool wire_reaches(unsigned a, unsigned b)
{
	return a == b || (!world_is_cut(a, b) && world.node[a].powered && world.node[b].powered);
}

static struct net_link *link_new(unsigned node, unsigned to)
{
	struct net_link *link = calloc(1, sizeof(*link));

	if (!link)
		abort();
	link->node = node;
	link->to = to;
	link->want = 4;
	STAILQ_INIT(&link->out);
	LIST_INSERT_HEAD(&world.node[node].links, link, all);
	return link;
}

static void link_fails(struct thing *thing, uint64_t error)
{
	struct net_link *link = of(thing);

	if (thing->closed || link->failed || link->silent || !link->calls)
		return;
	link->failed = true;
	link->calls->failed(link->context, (int)error);
}

static void fail_soon(struct net_link *link, uint64_t wait_ns, int error)
{
	world_at(world.now_ns + wait_ns, link->node, &link->thing, (uint64_t)error, link_fails);
}

/* ---- packets --------------------------------------------------------------------------------- */

static void packet_free(struct packet *packet)
{
	payload_drop(packet->payload);
	free(packet);
}

static void head_arrives(struct thing *thing, uint64_t word);

static void head_arm(struct net_link *link)
{
	const struct packet *head = STAILQ_FIRST(&link->out);

	if (!head || link->armed || !link->established)
		return;
	link->armed = true;
	world_always(head->at_ns, link->to, &link->thing, 0, head_arrives);
}

/* A gray node takes part in membership and reads its socket, and serves nothing else. */
static bool swallowed(const struct net_link *to, const struct packet *packet)
{
	Pc__Message *m;
	bool gray = false;

	if (!world.node[to->node].gray)
		return false;
	m = pc__message__unpack(NULL, packet->payload->bytes - 4, packet->payload->data + 4);
	if (m) {
		gray = m->body_case == PC__MESSAGE__BODY_PUBLISH ||
		       m->body_case == PC__MESSAGE__BODY_REMOVE ||
		       m->body_case == PC__MESSAGE__BODY_PROBE ||
		       m->body_case == PC__MESSAGE__BODY_FORGET;
		pc__message__free_unpacked(m, NULL);
	}
	return gray;
}

static void input(struct net_link *to, const struct payload *packet)
{
	if (to->in_first + to->in_count + packet->bytes > to->in_room) {
		uint8_t *bigger = malloc(to->in_count + packet->bytes + 256);

		if (!bigger)
			abort();
		if (to->in_count)
			memcpy(bigger, to->in + to->in_first, to->in_count);
		free(to->in);
		to->in = bigger;
		to->in_first = 0;
		to->in_room = to->in_count + packet->bytes + 256;
	}
	memcpy(to->in + to->in_first + to->in_count, packet->data, packet->bytes);
	to->in_count += packet->bytes;
}

static void readable(struct thing *thing, uint64_t word)
{
	struct net_link *link = of(thing);

	(void)word;
	if (!thing->closed && !link->silent && link->calls && link->in_count >= link->want)
		link->calls->readable(link->context);
}

/* The process sees the bytes at once, unless it is stopped; as the loop does, it flushes after. */
static void deliver(struct net_link *to)
{
	struct node *node = &world.node[to->node];

	if (node->stopped || !node->running) {
		world_at(world.now_ns, to->node, &to->thing, 0, readable);
		return;
	}
	to->thing.events++;
	readable(&to->thing, 0);
	to->thing.events--;
	if (node->running)
		node_turn(to->node);
	thing_release(&to->thing);
}

static void ack_late(struct thing *thing, uint64_t word)
{
	struct net_link *link = of(thing);

	(void)word;
	if (!thing->closed && !wire_reaches(link->to, link->node))
		fail_soon(link, 0, ETIMEDOUT);
}

static void head_taken(struct net_link *link, struct packet *head)
{
	struct net_link *to = link->peer;

	STAILQ_REMOVE_HEAD(&link->out, next);
	link->backlog -= head->payload->bytes;
	link->tries = 0;
	world.deliveries++;
	world_trace(head->payload->bytes << 16 | link->node);
	if (!wire_reaches(link->to, link->node))
		world_always(head->sent_ns + link->dead_ns, link->node, &link->thing, 0, ack_late);
	if (to && !to->thing.closed && !swallowed(to, head)) {
		input(to, head->payload);
		deliver(to);
	} else if (!to && wire_reaches(link->to, link->node)) {
		/* the other end has closed the connection, and its own packet about it was lost */
		fail_soon(link, wire_latency(link->node), ECONNRESET);
	}
	packet_free(head);
	if (world.crash_at && world.deliveries == world.crash_at)
		node_crash(world.crash_node, false);
}

/* Packets of full size do not cross the path to or from a node. */
static bool too_large(const struct net_link *link, const struct packet *packet)
{
	return packet->payload->bytes > SIM_MTU &&
	       (world.node[link->node].small_mtu || world.node[link->to].small_mtu);
}

static void head_arrives(struct thing *thing, uint64_t word)
{
	struct net_link *link = of(thing);
	struct packet *head = STAILQ_FIRST(&link->out);

	(void)word;
	link->armed = false;
	if (!head || thing->closed)
		return;
	if (wire_reaches(link->node, link->to) && !too_large(link, head)) {
		head_taken(link, head);
		if (!thing->closed)
			head_arm(link);
		return;
	}
	if (world.now_ns - head->sent_ns >= link->dead_ns) {
		fail_soon(link, 0, ETIMEDOUT);
		return;
	}
	head->at_ns = world.now_ns + (SIM_RTO_NS << (link->tries < 8 ? link->tries++ : 8));
	head_arm(link);
}

/* ---- connecting ------------------------------------------------------------------------------ */

static void connected(struct thing *thing, uint64_t word)
{
	struct net_link *link = of(thing);

	(void)word;
	if (thing->closed || link->silent)
		return;
	link->established = true;
	link->calls->connected(link->context);
	if (!thing->closed)
		head_arm(link);
}

static void accept_one(struct thing *thing, uint64_t word)
{
	struct net_link *link = of(thing);
	struct node *host = &world.node[link->to];
	struct sockaddr_storage from;
	struct net_link *other;

	(void)word;
	if (thing->closed)
		return;
	if (!host->running || !host->listener) {
		fail_soon(link, wire_latency(link->node), ECONNREFUSED);
		return;
	}
	other = link_new(link->to, link->node);
	other->established = true;
	other->peer = link;
	link->peer = other;
	wire_address(link->node, &from);
	world_at(world.now_ns + wire_latency(link->node), link->node, &link->thing, 0, connected);
	host->listener->calls->accepted(
		host->listener->context, other, (struct sockaddr *)&from, sizeof(from));
}

static void syn(struct thing *thing, uint64_t word)
{
	struct net_link *link = of(thing);

	(void)word;
	if (thing->closed)
		return;
	if (wire_reaches(link->node, link->to) && wire_reaches(link->to, link->node))
		world_at(world.now_ns, link->to, thing, 0, accept_one);
	else
		world_always(world.now_ns + (SIM_S << (link->tries < 6 ? link->tries++ : 6)),
			link->to, thing, 0, syn);
}

int net_dial(struct event_base *base, const struct sockaddr *address, socklen_t bytes,
	struct net_link **ret_link)
{
	const struct sockaddr_in *v4 = (const void *)address;
	uint32_t to = ntohl(v4->sin_addr.s_addr) - 0x0a000001u;

	(void)bytes;
	if (address->sa_family != AF_INET || to >= world.nodes)
		return ENETUNREACH;
	*ret_link = link_new(base->node, to);
	(*ret_link)->dialled = true;
	return 0;
}

void net_start(struct net_link *link, const struct net_calls *calls, void *context,
	unsigned dead_after_ms, size_t read_max)
{
	(void)read_max;
	link->calls = calls;
	link->context = context;
	link->dead_ns = dead_after_ms * SIM_MS;
}

int net_connect(struct net_link *link)
{
	world_always(world.now_ns + wire_latency(link->to), link->to, &link->thing, 0, syn);
	return 0;
}

void net_silence(struct net_link *link)
{
	link->silent = true;
}

/* The other end reads what arrives before the end of the stream, which travels as a packet does. */
static void stream_end(struct net_link *link)
{
	struct net_link *peer = link->peer;

	if (!peer)
		return;
	peer->peer = NULL;
	link->peer = NULL;
	while (!STAILQ_EMPTY(&link->out) && world.node[link->node].running) {
		struct packet *head = STAILQ_FIRST(&link->out);

		STAILQ_REMOVE_HEAD(&link->out, next);
		if (wire_reaches(link->node, link->to)) {
			input(peer, head->payload);
			world_at(world.now_ns + SIM_MS / 10, peer->node, &peer->thing, 0, readable);
		}
		packet_free(head);
	}
	if (wire_reaches(link->node, link->to))
		fail_soon(peer, SIM_MS / 10, ECONNRESET);
}

void net_close(struct net_link *link)
{
	stream_end(link);
	while (!STAILQ_EMPTY(&link->out)) {
		struct packet *head = STAILQ_FIRST(&link->out);

		STAILQ_REMOVE_HEAD(&link->out, next);
		packet_free(head);
	}
	payload_drop(link->room);
	free(link->in);
	link->room = NULL;
	link->in = NULL;
	LIST_REMOVE(link, all);
	thing_close(&link->thing);
}

void wire_crash(unsigned node)
{
	struct net_link *link;

	LIST_FOREACH (link, &world.node[node].links, all)
		link->silent = true;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

size_t net_received(const struct net_link *link)
{
	return link->in_count;
}

const uint8_t *net_front(struct net_link *link, size_t bytes)
{
	(void)bytes;
	return link->in + link->in_first;
}

void net_drain(struct net_link *link, size_t bytes)
{
	link->in_first += bytes;
	link->in_count -= bytes;
	if (link->in_count == 0) {
		free(link->in);
		link->in = NULL;
		link->in_first = link->in_room = 0;
	}
}

void net_want(struct net_link *link, size_t bytes)
{
	link->want = bytes;
}

size_t net_backlog(const struct net_link *link)
{
	return link->backlog;
}

uint8_t *net_reserve(struct net_link *link, size_t bytes)
{
	payload_drop(link->room);
	link->room = payload_new(bytes);
	return link->room->data;
}

bool net_commit(struct net_link *link, size_t bytes)
{
	struct packet *packet = malloc(sizeof(*packet));

	if (!packet)
		abort();
	link->room->bytes = bytes;
	packet->payload = payload_sent(link->room);
	link->room = NULL;
	world.bytes += bytes;
	packet->sent_ns = world.now_ns;
	packet->at_ns = world.now_ns + wire_latency(link->to);
	for (unsigned k = 0; k < 6 && (double)(world_random() >> 11) * 0x1p-53 < world.loss; k++)
		packet->at_ns += SIM_RTO_NS << k;
	if (link->last_ns > packet->at_ns)
		packet->at_ns = link->last_ns;
	link->last_ns = packet->at_ns;
	STAILQ_INSERT_TAIL(&link->out, packet, next);
	link->backlog += bytes;
	if (link->backlog > world.node[link->node].queue_worst)
		world.node[link->node].queue_worst = link->backlog;
	head_arm(link);
	return true;
}

bool net_secure(struct net_link *link, struct ssl_st *ssl, struct net_gate *gate)
{
	(void)link, (void)ssl, (void)gate;
	return false; /* links here are in clear text */
}

struct net_gate *net_gate_new(struct event_base *base)
{
	(void)base;
	return NULL;
}

void net_gate_free(struct net_gate *gate)
{
	(void)gate;
}

const char *net_why(const struct net_link *link)
{
	(void)link;
	return "";
}

bool net_reached(const struct net_link *link)
{
	(void)link;
	return false;
}

struct ssl_st *net_session(const struct net_link *link)
{
	(void)link;
	return NULL;
}

void net_push(struct net_link *link)
{
	(void)link; /* packets leave at once */
}

/* ---- listening --------------------------------------------------------------------- */

struct net_listener *net_listen(struct event_base *base, int fd,
	const struct net_listen_calls *calls, void *context, struct sockaddr_storage *ret_own)
{
	struct net_listener *listener = calloc(1, sizeof(*listener));

	(void)fd;
	if (!listener)
		abort();
	*listener = (struct net_listener){calls, context, base->node};
	wire_address(base->node, ret_own);
	world.node[base->node].listener = listener;
	return listener;
}

void net_listen_gate(struct net_listener *listener, const struct net_gate *gate)
{
	(void)listener, (void)gate;
}

void net_listen_again(struct net_listener *listener)
{
	(void)listener;
}

void net_listener_free(struct net_listener *listener)
{
	world.node[listener->node].listener = NULL;
	free(listener);
}
