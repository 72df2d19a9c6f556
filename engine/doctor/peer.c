/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --peer HOST: the ports in both directions, and what the engine there says of this one. If no
 * engine runs here, the doctor listens on its ports meanwhile, so that the doctor of the other host
 * finds them open: the same command is run on both hosts at the same time. One thread.
 */
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/json_read.h"
#include "config/ports.h"
#include "engine/abi/wire.h"
#include "engine/control/net/address.h"
#include "engine/doctor/inner.h"
#include "engine/doctor/reach.h"

#define REPORT_BYTES (4u << 20)
#define TRY_MS 500              /* one attempt to connect; there are more until the time is over */
#define CLOCKS_APART_MS 1000    /* clocks that differ by more make logs and graphs useless */
#define TIME_MS_MAX (1ll << 60) /* of what the peer tells */
#define LISTENERS_MAX (RAILS_MAX + 2)

/* One TCP port, in both directions. */
struct way {
	const char *setting;
	unsigned port; /* of the peer; cluster.port is that of --peer, others are as here */
	unsigned own;  /* of this host */
	int fd;        /* listens here; -1: an engine or another program has the port */
	bool in;
	enum reach out;
};

struct peer {
	struct seed_address at;
	struct way way[LISTENERS_MAX];
	unsigned ways;
	json_object *report;           /* what its engine says of itself; NULL: nothing */
	int64_t age_ms;                /* how old that was when it was sent */
	int64_t asked_ms, answered_ms; /* real time before and after that */
};

static int64_t unix_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void ways_make(struct doctor *d, struct peer *peer)
{
	struct port_use list[PORTS_MAX];
	unsigned count = ports_list(&d->listening, list);

	for (unsigned i = 0; i < count; i++) {
		for (unsigned n = 0; list[i].listens && list[i].port && n < list[i].ports; n++) {
			struct way *way = &peer->way[peer->ways];

			if (peer->ways == LISTENERS_MAX)
				return;
			*way = (struct way){.setting = list[i].setting,
				.port = list[i].port + n,
				.own = list[i].port + n,
				.fd = d->engine == ENGINE_SERVES
					      ? -1
					      : reach_listen(list[i].address, list[i].port + n),
				.out = REACH_SILENT};
			if (i == 0)
				way->port = peer->at.port;
			peer->ways++;
		}
	}
}

/* Is it the name of this host, with or without a domain? */
static bool is_own_name(const char *name)
{
	char own[HOST_NAME_MAX + 1];
	size_t bytes;

	if (gethostname(own, sizeof(own)) < 0 || !own[0])
		return false;
	bytes = strlen(own);
	return !strncasecmp(name, own, bytes) && (!name[bytes] || name[bytes] == '.');
}

/*
 * Is it this host, so that one list of peers can be given to all hosts? A loopback address is, if
 * /etc/hosts gives it to the own name, as Debian does (127.0.1.1).
 */
static bool is_this_host(const struct doctor *d, const struct peer *peer)
{
	bool here = peer->at.port == d->s->cluster_port;
	struct addrinfo *list;

	if (!here || address_look_up(peer->at.host, 1, &list))
		return false;
	for (const struct addrinfo *at = list; at; at = at->ai_next)
		here &= address_loopback(at->ai_addr) ? is_own_name(peer->at.host)
						      : address_is_here(at->ai_addr);
	freeaddrinfo(list);
	return here;
}

/* Is it the peer that has connected? Its name may have several addresses: any of them. */
static bool from_peer(const struct peer *peer, const struct sockaddr_storage *from)
{
	struct addrinfo *list;
	bool is = false;

	if (address_look_up(peer->at.host, 1, &list))
		return false;
	for (const struct addrinfo *at = list; at && !is; at = at->ai_next)
		is = address_same(at->ai_addr, (const struct sockaddr *)from);
	freeaddrinfo(list);
	return is;
}

/* Another doctor that connected is told by the end of its connection that no engine serves here. */
static void accept_all(void *context)
{
	struct peer *peer = context;

	for (unsigned i = 0; i < peer->ways; i++) {
		struct sockaddr_storage from;
		socklen_t bytes = sizeof(from);
		int fd;

		while (peer->way[i].fd >= 0 &&
			(fd = accept(peer->way[i].fd, (struct sockaddr *)&from, &bytes)) >= 0) {
			peer->way[i].in |= from_peer(peer, &from);
			close(fd);
			bytes = sizeof(from);
		}
	}
}

/* Connects to all ports that are not open yet. True: all are, and all have been reached. */
static bool round_make(struct peer *peer)
{
	bool all = true;

	for (unsigned i = 0; i < peer->ways; i++) {
		struct way *way = &peer->way[i];

		if (way->out != REACH_OPEN)
			way->out = reach_try(peer->at.host, way->port, TRY_MS);
		accept_all(peer);
		all &= way->out == REACH_OPEN && (way->in || way->fd < 0);
	}
	return all;
}

/* The engine of the peer, by its HTTP port. */
static void report_get(struct doctor *d, struct peer *peer)
{
	bool opened = false;
	const struct reach_request request = {.host = peer->at.host,
		.path = "/api/status",
		.port = (unsigned)d->s->metrics_port,
		.timeout_ms = d->options->timeout_ms,
		.idle = accept_all,
		.context = peer,
		.opened = &opened};
	char *text = malloc(REPORT_BYTES);

	peer->asked_ms = unix_ms();
	if (text && request.port && reach_get(&request, text, REPORT_BYTES))
		peer->report = json_tokener_parse(text);
	peer->answered_ms = unix_ms();
	/* the peer has seen this connection, and may have ended before the next look at the port */
	for (unsigned i = 0; opened && i < peer->ways; i++)
		if (peer->way[i].port == request.port)
			peer->way[i].out = REACH_OPEN;
	(void)json_whole(peer->report, "age_ms", &peer->age_ms);
	free(text);
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void way_tell(struct doctor *d, const struct peer *peer, const struct way *way)
{
	char where[160];

	snprintf(where, sizeof(where), "%s port %u (%s)", peer->at.host, way->port, way->setting);
	if (way->out == REACH_OPEN)
		found(d, DOCTOR_OK, where, NULL, "open from here");
	else
		fix_set(found(d, DOCTOR_FOUND, where, NULL, "from here: %s", reach_text(way->out)),
			"there: allow it, nft add rule inet filter input tcp dport %u accept; start the engine, or run the doctor there at the same time",
			way->port);
	if (way->fd < 0 || peer->report)
		return;
	snprintf(where, sizeof(where), "port %u of this host (%s)", way->own, way->setting);
	if (way->in)
		found(d, DOCTOR_OK, where, NULL, "%s reaches it", peer->at.host);
	else
		fix_set(found(d, way->out == REACH_OPEN ? DOCTOR_FOUND : DOCTOR_UNKNOWN, where,
				NULL, "%s has not connected to it within the time", peer->at.host),
			"run the doctor there at the same time with --peer and this host; here: nft add rule inet filter input tcp dport %u accept",
			way->own);
}

/* Is the engine of this host among the members of the peer's report? */
static bool member_is_there(struct doctor *d, json_object *report)
{
	const char *own = json_text(d->options->report, "name");
	json_object *list = json_get(report, "members");

	if (!json_object_is_type(list, json_type_array))
		return false;
	for (size_t i = 0; i < json_object_array_length(list); i++)
		if (!strcmp(json_text(json_object_array_get_idx(list, i), "name"), own))
			return own[0] != '\0';
	return false;
}

static void clocks_tell(struct doctor *d, const struct peer *peer)
{
	int64_t theirs, apart;

	if (!json_whole(peer->report, "time_ms", &theirs) || theirs < 0 || theirs > TIME_MS_MAX ||
		peer->age_ms < 0 || peer->age_ms > TIME_MS_MAX) {
		found(d, DOCTOR_UNKNOWN, peer->at.host, NULL, "its engine does not tell the time");
		return;
	}
	theirs += peer->age_ms;
	apart = theirs < peer->asked_ms      ? theirs - peer->asked_ms
		: theirs > peer->answered_ms ? theirs - peer->answered_ms
					     : 0;
	if (apart > CLOCKS_APART_MS || apart < -CLOCKS_APART_MS)
		found(d, DOCTOR_FOUND, peer->at.host,
			"chronyc tracking, or timedatectl timesync-status, on both hosts",
			"its clock differs by %.1f s from this host's", (double)apart / 1000);
	else
		found(d, DOCTOR_OK, peer->at.host, NULL, "its clock is within a second");
}

static void report_tell(struct doctor *d, const struct peer *peer)
{
	const char *version = json_text(peer->report, "version");
	const char *cluster = json_text(peer->report, "cluster");
	int64_t wire = 0;

	if (strcmp(cluster, d->s->cluster_id))
		found(d, DOCTOR_FOUND, peer->at.host, "set the same cluster.id on both",
			"it belongs to cluster %.64s, this host to %s", cluster, d->s->cluster_id);
	if (json_whole(peer->report, "wire", &wire) && wire != WIRE_VERSION)
		found(d, DOCTOR_FOUND, peer->at.host, "install one version on both",
			"it has version %.64s, which engines of this version refuse", version);
	else if (strcmp(version, d->options->library))
		found(d, DOCTOR_FOUND, peer->at.host, "install one version on both",
			"it has version %.64s, this host %s", version, d->options->library);
	clocks_tell(d, peer);
	if (d->engine != ENGINE_SERVES)
		found(d, DOCTOR_UNKNOWN, peer->at.host, "start the engine here, and run this again",
			"whether its engine reaches this host is known when an engine runs here");
	else if (member_is_there(d, peer->report))
		found(d, DOCTOR_OK, peer->at.host, NULL, "its engine has this one as a member");
	else
		found(d, DOCTOR_FOUND, peer->at.host,
			"peercachectl members, on both hosts, tells why; run the doctor there with --peer and this host",
			"its engine has no member with the name of this one");
}

/*
 * Without a report of the peer's engine. Two doctors that listen on all ports have seen both ways,
 * which is all that can be known without engines; otherwise what was not compared is stated.
 */
static void silence_tell(struct doctor *d, const struct peer *peer)
{
	bool both = true;

	for (unsigned i = 0; i < peer->ways; i++)
		both &= peer->way[i].fd >= 0;
	if (!both)
		found(d, DOCTOR_UNKNOWN, peer->at.host,
			"start the engine there; set the same metrics.port on both; run the doctor there with --peer and this host",
			"no report of its engine over HTTP, metrics.port = %lu: the way back, version, cluster.id, clock and members are not compared",
			(unsigned long)d->s->metrics_port);
}

static void peer_examine(struct doctor *d, const char *text)
{
	uint64_t until_ns = clock_monotonic_ns() + d->options->timeout_ms * 1000000ull;
	struct peer peer = {.ways = 0};
	char copy[256];

	snprintf(copy, sizeof(copy), "%s", text);
	if (seed_parse(copy, (uint16_t)d->s->cluster_port, &peer.at) < 0) {
		found(d, DOCTOR_UNKNOWN, text, "--peer HOST or --peer HOST:PORT", "not an address");
		return;
	}
	if (is_this_host(d, &peer)) {
		found(d, DOCTOR_NONE, text, NULL, "this host itself");
		return;
	}
	ways_make(d, &peer);
	while (!round_make(&peer) && clock_monotonic_ns() < until_ns) {
		const struct timespec nap = {.tv_nsec = 50000000};

		report_get(d, &peer);
		if (peer.report)
			break;
		nanosleep(&nap, NULL);
	}
	if (!peer.report)
		report_get(d, &peer);
	for (unsigned i = 0; i < peer.ways; i++)
		way_tell(d, &peer, &peer.way[i]);
	if (peer.report)
		report_tell(d, &peer);
	else
		silence_tell(d, &peer);
	for (unsigned i = 0; i < peer.ways; i++)
		if (peer.way[i].fd >= 0)
			close(peer.way[i].fd);
	json_object_put(peer.report);
}

void check_peers(struct doctor *d)
{
	if (!d->options->peer[0])
		found(d, DOCTOR_UNKNOWN, "--peer", "on both hosts: peercachectl doctor --peer HOST",
			"firewalls between hosts are not examined without --peer HOST");
	for (unsigned i = 0; i < DOCTOR_PEERS_MAX && d->options->peer[i]; i++)
		peer_examine(d, d->options->peer[i]);
}
