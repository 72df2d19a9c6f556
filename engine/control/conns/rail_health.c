/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Health of our rails: decides which rails are out of use, and when they are used again. Clients
 * read the result in the status segment before they choose a rail, so that all of them stop using
 * it at once. Owns the timer that watches the rails and the watch of the NICs' events, and opens
 * and closes the room: it calls conns.c, which knows nothing of it. Control plane's thread; helper
 * threads look at the ports.
 *
 * A rail is out of use
 *   while its port has no link, or no GID that it may use: the port is read at each event of its
 *   link or its GIDs, before a connection is made, and every second while it cannot be used;
 *   while it rests, because it was much slower than the other rails;
 *   while its NIC is lost: nic_lost.c.
 * When it is in use again, its broken connections are probed at once. A rail that is out of use
 * towards one peer only is the matter of conns.c.
 */
#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/text_fit.h"
#include "engine/abi/probe.h"
#include "engine/control/conns/conns_inner.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"

#define HEALTH_WATCH_MS 50
#define HEALTH_WATCHES 2u /* number of rails_watch() calls between two comparisons of the rails */
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
#define HEALTH_HUNG_LOOKS 3u /* READs that hang for fewer looks suspect no member */
#define HEALTH_STALL_LOOKS 2u
#define PORT_LOOK_NS 1000000000ull /* between two looks at a port that cannot be used */
#define EVENTS_BURST 16u /* limit of the events that are read in one turn from one device */

/* ---- rails in use and out of use ------------------------------------------------------------- */

void rail_leaves(struct control *control, unsigned rail)
{
	rail_out_bit_set(&control->status->rails_out, rail, true);
	control->counter[COUNTER_rails_down]++;
	PROBE_RAIL_DOWN(rail, NODES_MAX, 0);
	out_conns_break_rail(control, rail);
}

/* The place of the health in conns->conn_health[][]. */
static unsigned conn_health_rail(const struct control *control, const struct conn_health *health)
{
	return (unsigned)(health - control->conns->conn_health[0]) / NODES_MAX;
}

static uint16_t conn_health_peer(const struct control *control, const struct conn_health *health)
{
	return (uint16_t)((unsigned)(health - control->conns->conn_health[0]) % NODES_MAX);
}

/* Probes the peers that the rail is out of use towards and whose back-off has ended. */
static void rail_probe_due(struct control *control, unsigned rail, uint64_t now_ns)
{
	const struct conn_health *health;

	LIST_FOREACH (health, &control->conns->watched, next) {
		const struct member_record *to;

		if (conn_health_rail(control, health) != rail || !health->out ||
			now_ns < health->until_ns)
			continue;
		to = conn_member(control, conn_health_peer(control, health), health->ref);
		if (to)
			conns_probe(control, rail, to);
	}
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
	rail_out_bit_set(&control->status->rails_out, rail, false);
	if (!control->stopping)
		rail_probe_due(control, rail, net_now());
}

void conns_port(struct control *control, unsigned rail, int status, const char *why)
{
	struct rail_health *h = &control->conns->health[rail];
	bool was_out = rail_out(control, rail);

	if (h->lost)
		return;
	h->port = status;
	h->looked_ns = net_now();
	text_fit(h->why, sizeof(h->why), "%s", why);
	if (!was_out && status)
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
	return conns->health[rail].port || (*ret_peers_out && !used) ? "down" : "up";
}

const char *conns_rail_why(const struct control *control, unsigned rail)
{
	return control->conns->health[rail].why;
}

/* ---- looks at a port ------------------------------------------------------------------------- */

static void port_look_run(struct work *work, unsigned part)
{
	struct port_look *look = (struct port_look *)work;

	(void)part;
	look->status = dv_port_look(look->control->rail[look->rail].device);
	text_fit(look->text, sizeof(look->text), "%s", look->status ? dv_error() : "");
}

static void port_look_done(struct work *work)
{
	struct port_look *look = (struct port_look *)work;
	struct control *control = look->control;
	struct rail_health *h = &control->conns->health[look->rail];

	look->busy = false;
	if (h->lost || control->stopping)
		return;
	if (look->again) {
		conns_port_look(control, look->rail);
		return;
	}
	if (h->port && look->status == 0)
		log_info("rail %u: %s has its link again", look->rail,
			control->plan.rail[look->rail].device);
	else if (look->status && strcmp(look->text, h->why) != 0)
		log_error("rail %u is out of use: %s", look->rail, look->text);
	conns_port(control, look->rail, look->status, look->text);
	conns_replace_stale(control, look->rail);
}

void conns_port_look(struct control *control, unsigned rail)
{
	struct rail_health *h = &control->conns->health[rail];

	if (h->lost || control->stopping)
		return;
	h->look.again = h->look.busy;
	if (h->look.busy)
		return;
	h->look.busy = true;
	h->look.control = control;
	h->look.rail = rail;
	h->look.work.run = port_look_run;
	h->look.work.done = port_look_done;
	work_submit(control->conns->works, work_queue_of(rail, false), &h->look.work);
}

/* The first look at each port. The engine starts if one of them can be used. */
static void ports_look_first(struct control *control)
{
	for (unsigned r = 0; r < control->rails; r++) {
		int status = dv_port_look(control->rail[r].device);

		if (!status)
			continue;
		log_error("rail %u is out of use: %s; it is used when it can be", r, dv_error());
		conns_port(control, r, status, dv_error());
		/* a NIC that is not there is one whose device was closed */
		control->conns->health[r].lost = control->conns->health[r].cut = status == -ENODEV;
	}
}

/* ---- a rail far slower than its siblings ----------------------------------------------------- */

static void rail_slow_begins(struct control *control, unsigned rail, uint64_t now_ns)
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

static void rails_compare(struct control *control, uint64_t now_ns)
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
			rail_slow_begins(control, r, now_ns);
		}
	}
}

/* ---- members whose READs hang ---------------------------------------------------------------- */

/* True if a rail of this engine has read a page or a bucket since the last call. */
static bool rails_reads_complete(struct control *control)
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
 * Finds connections that are newly stalled. All connections are searched only after a rail had a
 * new stall: twice, because the number of the stall may be seen before the stall.
 */
static void rails_stalls_find(struct control *control)
{
	struct conns *conns = control->conns;
	const struct out_conn *conn;
	uint32_t stalls = 0;

	for (unsigned r = 0; r < control->rails; r++)
		stalls += rail_stalls(control->rail[r].rail);
	if (stalls != conns->stalls)
		conns->stall_looks = HEALTH_STALL_LOOKS;
	conns->stalls = stalls;
	if (!conns->stall_looks)
		return;
	conns->stall_looks--;
	LIST_FOREACH (conn, &conns->out_conns, next) {
		struct conn_health *health = &conns->conn_health[conn->rail][conn->handle.peer];

		if (health->conn == conn && conn->state == OUT_CONN_LIVE &&
			shm_load(&conn->handle.stalled))
			conn_health_watch(conns, health);
	}
}

/* Stores whether the connection is stalled, and whether a Connect has no answer yet. */
static void conn_look(struct conn_health *health)
{
	const struct out_conn *conn = health->conn;

	health->stall_before = health->stall;
	health->stall = 0;
	if (conn && conn->state == OUT_CONN_LIVE)
		health->stall = shm_load(&conn->handle.stalled);
	health->asked = conn && conn->state == OUT_CONN_REQUESTED && !conn->linkless && !conn->gone;
}

/*
 * Number of counted looks after which READs that hang make a member suspect: those of the time
 * that a request may wait. Looks are counted, and not time, because a busy machine may run neither
 * engine for a while: a late timer is one look.
 */
static unsigned hung_looks_enough(const struct control *control)
{
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * 1000000;
	uint64_t looks = suspect_patience_ns(dead_ns) / (HEALTH_WATCH_MS * 1000000ull);

	return looks > HEALTH_HUNG_LOOKS ? (unsigned)looks : HEALTH_HUNG_LOOKS;
}

/*
 * Counts a look. A new stall means that a READ has completed since the last look. A rail that is
 * out towards the peer keeps its count until its probe is answered; a look counts only while the
 * peer owes an answer, so not during the back-off. `complete`: a rail completed READs.
 */
static void conn_look_count(struct conn_health *health, bool complete, unsigned enough)
{
	bool owes = health->stall || (health->out && health->asked);

	if (!health->out && (!health->stall || health->stall != health->stall_before))
		health->hung_looks = 0;
	if (owes && complete && health->hung_looks < enough)
		health->hung_looks++;
}

/* True if READs of the peer have hung for enough looks on all rails in use. */
static bool peer_reads_hang(const struct control *control, unsigned peer, unsigned enough)
{
	unsigned used = 0, hang = 0;

	for (unsigned r = 0; r < control->rails; r++) {
		if (rail_out(control, r))
			continue;
		used++;
		hang += control->conns->conn_health[r][peer].hung_looks == enough;
	}
	return used && hang == used;
}

/* Tells the directory, if it has changed, whether READs of the peer hang. */
static void peer_unread_set(struct control *control, uint16_t peer, bool hangs)
{
	const struct member_record *record = hangs ? member_by_peer(control, peer) : NULL;
	uint32_t *unread = &control->conns->unread[peer];
	uint32_t ref = record ? record->ref : 0, before = *unread;

	if (ref == before)
		return;
	*unread = ref;
	directory_unread(control, peer, ref ? ref : before, ref != 0);
}

/*
 * A member is suspect while READs of it hang on all rails in use. The suspicion begins after
 * several looks before which other READs completed: if none do, this engine's NICs may be at fault,
 * and the look neither counts nor resets the count. So it never begins with two engines. It ends
 * when a READ completes, or when the connection was made anew and its probe is answered.
 */
static void rails_unread_watch(struct control *control)
{
	struct conns *conns = control->conns;
	bool complete = rails_reads_complete(control);
	unsigned enough = hung_looks_enough(control);
	struct conn_health *health, *next;

	rails_stalls_find(control);
	LIST_FOREACH (health, &conns->watched, next) {
		conn_look(health);
		if (rail_out(control, conn_health_rail(control, health)))
			health->hung_looks = 0; /* it is this engine's rail that fails */
		else
			conn_look_count(health, complete, enough);
	}
	for (health = LIST_FIRST(&conns->watched); health; health = next) {
		uint16_t peer = conn_health_peer(control, health);

		next = LIST_NEXT(health, next);
		peer_unread_set(control, peer, peer_reads_hang(control, peer, enough));
		if (health->out || health->stall)
			continue;
		LIST_REMOVE(health, next);
		health->watched = false;
	}
}

/* ---- timer ----------------------------------------------------------------------------------- */

static void rails_watch(void *context)
{
	struct control *control = context;
	struct conns *conns = control->conns;
	uint64_t now_ns = net_now();

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
			rail_probe_due(control, r, now_ns);
		else if (h->lost)
			nic_lost_watch(control, r, now_ns);
		else if (h->port && now_ns - h->looked_ns >= PORT_LOOK_NS && !h->look.busy)
			conns_port_look(control, r);
	}
	rails_unread_watch(control);
	if (control->rails > 1 && ++conns->watches % HEALTH_WATCHES == 0)
		rails_compare(control, now_ns);
}

int conns_open(struct control *control)
{
	int rc = out_conns_open(control);
	struct net_timer *watch;

	if (rc < 0)
		return rc;
	watch = net_timer_new(control->base, true, rails_watch, control);
	control->conns->watch = watch;
	if (!watch || net_timer_set(watch, HEALTH_WATCH_MS * 1000) < 0) {
		conns_close(control);
		return -ENOMEM;
	}
	ports_look_first(control);
	return 0;
}

void conns_close(struct control *control)
{
	if (!control->conns)
		return;
	net_timer_free(control->conns->watch);
	out_conns_close(control);
}

/* ---- events of the NICs ---------------------------------------------------------------------- */

/* The device of a rail's NIC; control->device_watch is an array, by the rail. */
struct device_watch {
	struct control *control;
	struct event *event; /* NULL: it is not watched */
};

void device_event_forget(struct control *control, unsigned rail)
{
	struct device_watch *watch = control->device_watch ? &control->device_watch[rail] : NULL;

	if (!watch || !watch->event)
		return;
	event_free(watch->event);
	watch->event = NULL;
}

static void device_event_handle(
	struct control *control, unsigned rail, const struct dv_event *event)
{
	const char *name = control->plan.rail[rail].device;

	switch (event->kind) {
	case DV_EVENT_PORT_DOWN:
		log_error(
			"rail %u: %s port %u lost its link: reads go over other rails; check the cable and the switch",
			rail, name, event->port);
		conns_port(control, rail, -ENETDOWN,
			"its port lost its link: check the cable and the switch");
		/* one in progress may have seen the link */
		control->conns->health[rail].look.again = control->conns->health[rail].look.busy;
		break;
	case DV_EVENT_PORT_UP: conns_port_look(control, rail); break;
	case DV_EVENT_ADDRESS:
		log_info("rail %u: %s port %u: %s", rail, name, event->port, event->text);
		conns_port_look(control, rail);
		break;
	case DV_EVENT_DEVICE_FATAL: rail_lost(control, rail, "%s", event->text); break;
	case DV_EVENT_CQ_OVERRUN:
		log_error("rail %u: %s: a completion queue overran: please report it", rail, name);
		rail_lost(control, rail, "%s", event->text);
		break;
	case DV_EVENT_QP_ERROR: conns_qp_failed(control, rail, event->qpn, event->text); break;
	case DV_EVENT_OTHER: log_info("rail %u: %s: %s", rail, name, event->text); break;
	}
}

static void device_event_ready(evutil_socket_t fd, short what, void *argument)
{
	struct device_watch *watch = argument;
	struct control *control = watch->control;
	unsigned rail = (unsigned)(watch - control->device_watch);
	struct dv_event event;
	int status = 1;

	(void)fd, (void)what;
	/* one of them may be the last: its rail is lost, and not watched any more */
	for (unsigned n = 0; n < EVENTS_BURST && status == 1 && watch->event; n++) {
		status = dv_event_next(control->rail[rail].device, &event);
		if (status == 1)
			device_event_handle(control, rail, &event);
	}
	if (status < 0)
		rail_lost(control, rail, "%s", dv_error());
}

int device_event_watch(struct control *control, unsigned rail)
{
	struct device_watch *watch = control->device_watch ? &control->device_watch[rail] : NULL;
	int fd = watch ? dv_event_fd(control->rail[rail].device) : -ENODEV;

	if (fd == -ENODEV)
		return 0; /* there is no NIC: rail_health_open() says so */
	if (fd < 0) {
		/* the rail works without events: READs that fail tell of its state */
		log_warn(
			"rail %u: %s: this NIC is not watched, so a lost link or device is known when READs fail; start the engine again to retry",
			rail, dv_error());
		return 0;
	}
	watch->control = control;
	watch->event =
		event_new(control->base, fd, EV_READ | EV_PERSIST, device_event_ready, watch);
	if (watch->event && event_add(watch->event, NULL) == 0)
		return 0;
	device_event_forget(control, rail);
	log_error("rail %u: no memory to watch the events of its NIC", rail);
	return -ENOMEM;
}

int device_event_open(struct control *control)
{
	int rc = 0;

	control->device_watch = calloc(RAILS_MAX, sizeof(*control->device_watch));
	if (!control->device_watch)
		return -ENOMEM;
	for (unsigned i = 0; i < control->rails && rc == 0; i++)
		rc = device_event_watch(control, i);
	if (rc < 0)
		device_event_close(control);
	return rc;
}

void device_event_close(struct control *control)
{
	for (unsigned i = 0; i < RAILS_MAX; i++)
		device_event_forget(control, i);
	free(control->device_watch);
	control->device_watch = NULL;
}
