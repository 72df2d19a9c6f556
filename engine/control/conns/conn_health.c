/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which rails are out of use, altogether or towards one peer, and when they are tried
 * again. Clients read the result in the status segment before they choose a rail, so that all of
 * them stop using it at once. Control plane's thread only.
 *
 *   (rail, peer)  out: its connection broke, or could not be made
 *                      back: reconnected after a back-off, and a probe was answered
 *   rail               out: its port lost the link, or it is much slower than the other rails
 *                      back: the port has its link again, or the rest of the slow rail is over;
 *                      its peers are probed then
 *                      lost: its NIC died; it never comes back
 */
#include <string.h>

#include <errno.h>

#include "config/log.h"
#include "engine/abi/probe.h"
#include "engine/control/conns/conn_state.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/member.h"
#include "numa/clock.h"

#define HEALTH_WATCH_MS 50
#define HEALTH_WATCHES 2u /* number of watch() calls between two comparisons of the rails */
#define HEALTH_BEHIND 3u  /* a rail that is behind in this many comparisons in a row is slow */
/*
 * A rail is behind in a comparison if it moved less than 1/8 of the best rail's bytes, though it
 * always had work
 */
#define HEALTH_SLOWER 8u
/* rails are compared only if the best one moved more than this number of bytes */
#define HEALTH_BYTES (1u << 20)
/*
 * Only rails whose average page has at least this length are compared: short pages have a low
 * throughput on every rail
 */
#define HEALTH_READ_BYTES (64u << 10)
/*
 * First rest of a slow rail, in ms. It is out of use while it rests; each further rest is twice as
 * long
 */
#define HEALTH_REST_MS 1000
#define HEALTH_RESTS_MAX 5u /* number of times that the rest doubles at most */
#define HEALTH_STEADY_NS 10000000000ull

/* ---- verdicts -------------------------------------------------------------------------------- */

static void bit_set(uint32_t *word, unsigned rail, bool out)
{
	uint32_t bits = shm_load(word);

	shm_store(word, out ? bits | 1u << rail : bits & ~(1u << rail));
}

bool rail_out(const struct control *control, unsigned rail)
{
	const struct rail_health *h = &control->conns->health[rail];

	return h->port_down || h->slow || h->lost;
}

void conn_health_out(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *health = conn_health_of(control, rail, peer, ref);

	bit_set(&control->status->peer_rails_out[peer], rail, true);
	if (health->out)
		return;
	health->out = true;
	control->counter[COUNTER_paths_out]++;
}

void conn_health_back(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct conn_health *health = conn_health_of(control, rail, peer, ref);

	bit_set(&control->status->peer_rails_out[peer], rail, false);
	if (!health->out)
		return;
	health->out = false;
	control->counter[COUNTER_paths_back]++;
	log_info("rail %u: peer %u is read over it again", rail, peer);
}

void conn_health_forget(struct control *control, uint16_t peer)
{
	for (unsigned r = 0; r < control->rails && peer < control->conns->peers; r++)
		control->conns->conn_health[r][peer] = (struct conn_health){.ref = 0};
	shm_store(&control->status->peer_rails_out[peer], 0);
}

/* ---- whole rails ----------------------------------------------------------------------------- */

void rail_leaves(struct control *control, unsigned rail)
{
	bit_set(&control->status->rails_out, rail, true);
	control->counter[COUNTER_rails_down]++;
	PROBE_RAIL_DOWN(rail, NODES_MAX, 0);
	out_conns_break_rail(control, rail);
}

/*
 * Called when a rail that was down or slow is in use again. Its failed connections are probed at
 * once; others are used without a probe.
 */
static void rail_returns(struct control *control, unsigned rail)
{
	for (unsigned p = 0; p < control->conns->peers; p++) {
		control->conns->conn_health[rail][p].until_ns = 0;
		control->conns->conn_health[rail][p].fails = 0;
	}
	bit_set(&control->status->rails_out, rail, false);
	event_active(control->conns->watch, EV_TIMEOUT, 0);
}

void conns_port(struct control *control, unsigned rail, bool up)
{
	struct rail_health *h = &control->conns->health[rail];
	bool was_out = rail_out(control, rail);

	if (h->lost)
		return;
	h->port_down = !up;
	if (!was_out && !up)
		rail_leaves(control, rail);
	else if (was_out && !rail_out(control, rail))
		rail_returns(control, rail);
}

const char *conns_rail_state(const struct control *control, unsigned rail, unsigned *ret_peers_out)
{
	const struct conns *conns = control->conns;
	const struct out_conn *conn;
	bool used = false;

	*ret_peers_out = 0;
	for (unsigned p = 0; p < conns->peers; p++)
		*ret_peers_out += conns->conn_health[rail][p].out;
	LIST_FOREACH (conn, &conns->out_conns, next)
		used |= conn->rail == rail && conn->state == OUT_CONN_LIVE &&
			!conns->conn_health[rail][conn->handle.peer].out;
	if (conns->health[rail].lost)
		return "lost";
	if (conns->health[rail].slow)
		return "slow";
	return conns->health[rail].port_down || (*ret_peers_out && !used) ? "down" : "up";
}

/* ---- a rail far slower than its siblings ----------------------------------------------------- */

static void slow_begins(struct control *control, unsigned rail, uint64_t now_ns)
{
	struct rail_health *h = &control->conns->health[rail];
	uint64_t rest_ms;

	if (now_ns - h->slow_until_ns > HEALTH_STEADY_NS)
		h->slow_times = 0;
	rest_ms = (uint64_t)HEALTH_REST_MS << h->slow_times;
	if (h->slow_times < HEALTH_RESTS_MAX)
		h->slow_times++;
	h->slow = true;
	h->slow_until_ns = now_ns + rest_ms * 1000000;
	log_warn(
		"rail %u: %u times slower than the others: out of use for %u ms; check the port's speed and its error counters",
		rail, HEALTH_SLOWER, (unsigned)rest_ms);
	rail_leaves(control, rail);
}

static void compare(struct control *control, uint64_t now_ns)
{
	uint64_t bytes[RAILS_MAX], pages[RAILS_MAX], best = HEALTH_BYTES;

	for (unsigned r = 0; r < control->rails; r++) {
		struct rail_health *h = &control->conns->health[r];
		uint64_t counter[COUNTER_COUNT];

		rail_counters(control->rail[r].rail, counter);
		bytes[r] = counter[COUNTER_bytes_read] - h->bytes;
		pages[r] = counter[COUNTER_pages_read] - h->pages;
		h->bytes = counter[COUNTER_bytes_read];
		h->pages = counter[COUNTER_pages_read];
		if (bytes[r] > best)
			best = bytes[r];
	}
	for (unsigned r = 0; r < control->rails; r++) {
		struct rail_health *h = &control->conns->health[r];
		bool behind = !h->idle && !rail_out(control, r) && pages[r] &&
			      bytes[r] / pages[r] >= HEALTH_READ_BYTES &&
			      bytes[r] * HEALTH_SLOWER < best;

		h->idle = false;
		h->behind = behind ? h->behind + 1 : 0;
		if (h->behind >= HEALTH_BEHIND) {
			h->behind = 0;
			slow_begins(control, r, now_ns);
		}
	}
}

/* ---- members whose READs hang ---------------------------------------------------------------- */

/* True if a rail of this engine has read a page or a bucket since the last call. */
static bool reads_complete(struct control *control)
{
	uint64_t completed = 0, before = control->conns->completed;

	for (unsigned r = 0; r < control->rails; r++) {
		uint64_t counter[COUNTER_COUNT];

		rail_counters(control->rail[r].rail, counter);
		completed += counter[COUNTER_pages_read] + counter[COUNTER_buckets_read];
	}
	control->conns->completed = completed;
	return completed != before;
}

/*
 * Stores for each peer number the rails on which READs hang, as bits: one that is out hangs
 * until its probe is answered. Returns the rails that are in use.
 */
static uint32_t reads_hang(struct control *control)
{
	struct conns *conns = control->conns;
	const struct out_conn *conn;
	uint32_t used = 0;

	memset(conns->hangs, 0, conns->peers * sizeof(conns->hangs[0]));
	for (unsigned r = 0; r < control->rails; r++) {
		used |= rail_out(control, r) ? 0 : 1u << r;
		for (unsigned p = 0; p < conns->peers; p++)
			conns->hangs[p] |= (uint32_t)conns->conn_health[r][p].out << r;
	}
	LIST_FOREACH (conn, &conns->out_conns, next)
		if (conn->state == OUT_CONN_LIVE && shm_load(&conn->handle.stalled))
			conns->hangs[conn->handle.peer] |= 1u << conn->rail;
	return used;
}

/*
 * A member is suspect while READs of it hang on all rails in use. The suspicion begins only while
 * other READs complete: if none do, this engine's NICs are at fault. It ends when a READ completes,
 * or when the connection was made anew and its probe is answered.
 */
static void unread_watch(struct control *control)
{
	struct conns *conns = control->conns;
	bool complete = reads_complete(control);
	uint32_t used = reads_hang(control);

	for (uint16_t p = 0; p < conns->peers; p++) {
		bool hangs = used && (conns->hangs[p] & used) == used;
		const struct member_record *record = hangs ? member_by_peer(control, p) : NULL;
		uint32_t ref = record ? record->ref : 0, before = conns->unread[p];

		if (ref == before || (ref && !complete))
			continue;
		conns->unread[p] = ref;
		directory_unread(control, p, ref ? ref : before, ref != 0);
	}
}

/* ---- timer ----------------------------------------------------------------------------------- */

static void probe_due(struct control *control, unsigned rail, uint64_t now_ns)
{
	for (unsigned p = 0; p < control->conns->peers; p++) {
		const struct conn_health *health = &control->conns->conn_health[rail][p];
		const struct member_record *to;

		if (!health->out || now_ns < health->until_ns)
			continue;
		to = member_by_ref(control, health->ref);
		if (to && to->peer == p)
			conns_probe(control, rail, to);
	}
}

static void watch(evutil_socket_t fd, short what, void *context)
{
	struct control *control = context;
	struct conns *conns = control->conns;
	uint64_t now_ns = clock_now_ns();

	(void)fd;
	(void)what;
	if (control->stopping)
		return;
	for (unsigned r = 0; r < control->rails; r++) {
		struct rail_health *h = &conns->health[r];

		h->idle |= rail_in_flight(control->rail[r].rail) == 0;
		if (h->slow && now_ns >= h->slow_until_ns) {
			h->slow = false;
			if (!rail_out(control, r))
				rail_returns(control, r);
		}
		if (!rail_out(control, r))
			probe_due(control, r, now_ns);
	}
	unread_watch(control);
	if (control->rails > 1 && ++conns->watches % HEALTH_WATCHES == 0)
		compare(control, now_ns);
}

int health_open(struct control *control)
{
	const struct timeval every = {.tv_usec = HEALTH_WATCH_MS * 1000};
	struct event *event = event_new(control->base, -1, EV_PERSIST, watch, control);

	if (!event)
		return -ENOMEM;
	control->conns->watch = event;
	event_add(event, &every);
	return 0;
}

void health_close(struct control *control)
{
	event_free(control->conns->watch);
}
