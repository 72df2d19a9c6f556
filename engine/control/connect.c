/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs our rails read through: asked for, handed over, taken back. Owns every struct active
 * until the rail has it and again once the rail has returned it. Control plane's thread only.
 */
#include "engine/control/connect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/connect_state.h"
#include "engine/control/member.h"
#include "numa/clock.h"

/* ---- telling rails --------------------------------------------------------------------------- */

static void retry_soon(struct connect *connect)
{
	struct timeval wait = {.tv_usec = CONNECT_RETRY_MS * 1000};

	event_add(connect->retry, &wait);
}

static void tell_untold(evutil_socket_t fd, short what, void *context)
{
	struct control *control = context;
	struct connect *connect = control->connect;

	(void)fd;
	(void)what;
	for (unsigned r = 0; r < control->rails; r++) {
		struct untold *first;

		while ((first = STAILQ_FIRST(&connect->untold[r]))) {
			if (!rail_tell(control->rail[r].rail, &first->command)) {
				retry_soon(connect);
				break;
			}
			STAILQ_REMOVE_HEAD(&connect->untold[r], next);
			free(first);
		}
	}
}

/* In order, and never lost: what the ring has no room for is told on a later turn. */
static void tell(struct control *control, unsigned rail, const struct rail_command *command)
{
	struct connect *connect = control->connect;
	struct untold *later;

	if (STAILQ_EMPTY(&connect->untold[rail]) && rail_tell(control->rail[rail].rail, command))
		return;
	later = calloc(1, sizeof(*later));
	if (!later) {
		log_error("no memory for a command to rail %u", rail);
		return;
	}
	later->command = *command;
	STAILQ_INSERT_TAIL(&connect->untold[rail], later, next);
	retry_soon(connect);
}

static void tell_peer(
	struct control *control, unsigned rail, uint32_t kind, uint16_t peer, uint32_t ref)
{
	tell(control, rail, &(struct rail_command){.kind = kind, .peer = peer, .ref = ref});
}

/* ---- back-off -------------------------------------------------------------------------------- */

struct backoff *backoff_of(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct backoff *b = &control->connect->backoff[rail][peer];

	if (b->ref != ref)
		*b = (struct backoff){.ref = ref};
	return b;
}

static void backoff_more(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct backoff *b = backoff_of(control, rail, peer, ref);
	uint64_t ms = (uint64_t)CONNECT_BACKOFF_MS << (b->fails > 8 ? 8 : b->fails);

	b->fails++;
	b->until_ns = clock_now_ns() +
		      (ms < CONNECT_BACKOFF_MAX_MS ? ms : CONNECT_BACKOFF_MAX_MS) * 1000000ull;
}

/* ---- one active end -------------------------------------------------------------------------- */

static void active_free(struct active *active)
{
	LIST_REMOVE(active, next);
	if (active->deadline)
		event_free(active->deadline);
	free(active);
}

/* Not handed over yet: nothing was posted, so the queue pairs can go at once. */
static void active_give_up(struct active *active)
{
	struct control *control = active->control;
	unsigned rail = active->rail;
	uint16_t peer = active->peer.peer;
	uint32_t ref = active->peer.ref;

	qps_destroy(&active->qps);
	active_free(active);
	backoff_more(control, rail, peer, ref);
	path_out(control, rail, peer, ref);
	tell_peer(control, rail, RAIL_PEER_REFUSE, peer, ref);
}

static void active_break(struct active *active)
{
	if (active->state != ACTIVE_LIVE)
		return;
	active->state = ACTIVE_BROKEN;
	qps_error(&active->qps);
	tell_peer(
		active->control, active->rail, RAIL_PEER_DROP, active->peer.peer, active->peer.ref);
}

static void answer_late(evutil_socket_t fd, short what, void *context)
{
	struct active *active = context;

	(void)fd;
	(void)what;
	log_warn("rail %u: peer %u did not answer a Connect in %d ms", active->rail,
		active->peer.peer, CONNECT_ANSWER_MS);
	active_give_up(active);
}

static bool active_ask(struct active *active, const struct member_record *to)
{
	struct timeval wait = {
		.tv_sec = CONNECT_ANSWER_MS / 1000, .tv_usec = CONNECT_ANSWER_MS % 1000 * 1000};
	Pc__Connect connect = PC__CONNECT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct end_list list;

	qps_describe(&active->qps, &list);
	connect.serial = active->serial;
	connect.incarnation = to->map.incarnation;
	connect.rail = active->rail;
	connect.to_rail = active->to_rail;
	connect.n_ends = active->qps.count;
	connect.ends = list.at;
	message.body_case = PC__MESSAGE__BODY_CONNECT;
	message.connect = &connect;
	return event_add(active->deadline, &wait) == 0 &&
	       rpc_send(member_link(active->control, active->peer.ref), &message);
}

static struct active *active_find(struct control *control, unsigned rail, uint32_t ref)
{
	struct active *active;

	LIST_FOREACH(active, &control->connect->actives, next)
	if (active->rail == rail && active->peer.ref == ref)
		return active;
	return NULL;
}

static int active_open(
	struct control *control, unsigned rail, const struct member_record *to, bool probe)
{
	unsigned count = qps_wanted(control, rail);
	struct active *active = calloc(1, sizeof(*active));
	int status = -ENOMEM;

	if (!active)
		return -ENOMEM;
	active->control = control;
	active->rail = rail;
	active->to_rail = rail % to->map.rails;
	active->serial = ++control->connect->serial;
	active->peer = (struct rail_peer){.peer = to->map.peer,
		.rail = (uint16_t)rail,
		.ref = to->map.ref,
		.qps = count,
		.probe = probe,
		.control = active};
	LIST_INSERT_HEAD(&control->connect->actives, active, next);
	active->deadline = event_new(control->base, -1, 0, answer_late, active);
	if (active->deadline)
		status = qps_create(control, rail, count, QP_DEPTH, &active->qps, active->peer.sq);
	if (status) {
		active_free(active);
		return status;
	}
	if (!active_ask(active, to)) {
		qps_destroy(&active->qps);
		active_free(active);
		return -ENOTCONN;
	}
	return 0;
}

/* ---- what rails say -------------------------------------------------------------------------- */

void connect_wanted(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	const struct member_record *to = member_by_ref(control, ref);
	const struct active *there = active_find(control, rail, ref);

	if (there && there->state != ACTIVE_BROKEN)
		return; /* asked already, or told already */
	if (!to || to->map.self || to->map.peer != peer || there || control->stopping ||
		rail_out(control, rail) || backoff_of(control, rail, peer, ref)->out ||
		clock_now_ns() < backoff_of(control, rail, peer, ref)->until_ns) {
		tell_peer(control, rail, RAIL_PEER_REFUSE, peer, ref);
		return;
	}
	if (active_open(control, rail, to, false) < 0) {
		backoff_more(control, rail, peer, ref);
		path_out(control, rail, peer, ref);
		tell_peer(control, rail, RAIL_PEER_REFUSE, peer, ref);
	}
}

void connect_probe(struct control *control, unsigned rail, const struct member_record *to)
{
	if (!active_find(control, rail, to->map.ref) && active_open(control, rail, to, true) < 0)
		backoff_more(control, rail, to->map.peer, to->map.ref);
}

void connect_broken(
	struct control *control, unsigned rail, struct rail_peer *peer, uint32_t syndrome)
{
	struct active *active = peer->control;

	if (active->state != ACTIVE_LIVE)
		return;
	if (!backoff_of(control, rail, peer->peer, peer->ref)->out)
		log_warn("rail %u: connection with peer %u broke: %s; other rails take over", rail,
			peer->peer, syndrome ? dv_syndrome((uint8_t)syndrome)
					     : "nothing completes on it any more");
	if (clock_now_ns() - active->live_ns >= CONNECT_STEADY_NS)
		backoff_of(control, rail, peer->peer, peer->ref)->fails = 0;
	backoff_more(control, rail, peer->peer, peer->ref);
	path_out(control, rail, peer->peer, peer->ref);
	active_break(active);
}

void connect_proven(struct control *control, unsigned rail, struct rail_peer *peer)
{
	struct active *active = peer->control;

	if (active->state == ACTIVE_LIVE)
		path_back(control, rail, peer->peer, peer->ref);
}

void actives_break_rail(struct control *control, unsigned rail)
{
	struct active *active, *next;

	for (active = LIST_FIRST(&control->connect->actives); active; active = next) {
		next = LIST_NEXT(active, next);
		if (active->rail != rail)
			continue;
		path_out(control, rail, active->peer.peer, active->peer.ref);
		if (active->state == ACTIVE_ASKED)
			active_give_up(active);
		else
			active_break(active);
	}
}

void connect_returned(struct control *control, unsigned rail, struct rail_peer *peer)
{
	struct active *active = peer->control;
	Pc__Disconnect disconnect = PC__DISCONNECT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	disconnect.serial = active->serial;
	disconnect.rail = rail;
	disconnect.to_rail = active->to_rail;
	message.body_case = PC__MESSAGE__BODY_DISCONNECT;
	message.disconnect = &disconnect;
	(void)rpc_send(member_link(control, peer->ref), &message);
	qps_destroy(&active->qps);
	active_free(active);
	control->connect->outstanding--;
}

/* ---- Connected ------------------------------------------------------------------------------- */

static bool regions_take(struct rail_peer *peer, size_t count, Pc__RegionKey *const *regions)
{
	if (count > REGIONS_EXPORTED)
		return false;
	for (size_t i = 0; i < count; i++) {
		const Pc__RegionKey *r = regions[i];

		if (r->region >= REGIONS_EXPORTED || peer->region[r->region].length ||
			r->length == 0 || r->length > REGION_BYTES_MAX ||
			r->address + r->length < r->address)
			return false;
		peer->region[r->region] = (struct rail_remote){
			.base = r->address, .length = r->length, .rkey = r->rkey};
	}
	return true;
}

bool connect_serve_connected(
	struct control *control, struct rpc_link *link, const Pc__Connected *connected)
{
	uint32_t ref = member_link_ref(link);
	struct active *active;
	int status = connected->status < 0 ? connected->status : 0;
	bool fits = ends_fit(connected->n_ends, connected->ends);

	LIST_FOREACH(active, &control->connect->actives, next)
	if (active->serial == connected->serial && active->peer.ref == ref)
		break;
	if (!active || active->state != ACTIVE_ASKED)
		return fits; /* late: given up meanwhile */
	fits = fits && regions_take(&active->peer, connected->n_regions, connected->regions);
	if (status == 0 && !fits)
		status = -EPROTO;
	if (status == 0)
		status = qps_connect(&active->qps, connected->n_ends, connected->ends);
	if (status) {
		log_warn("rail %u: no connection with %s: %s", active->rail,
			link->member->record.map.name, strerror(-status));
		active_give_up(active);
		return fits;
	}
	event_free(active->deadline);
	active->deadline = NULL;
	active->state = ACTIVE_LIVE;
	active->live_ns = clock_now_ns();
	control->connect->outstanding++;
	tell(control, active->rail,
		&(struct rail_command){.kind = RAIL_PEER_ADD,
			.peer = active->peer.peer,
			.ref = ref,
			.object = &active->peer});
	return true;
}

/* ---- members go, the engine stops ------------------------------------------------------------ */

static void actives_drop(struct control *control, uint32_t ref)
{
	struct active *active, *next;

	for (active = LIST_FIRST(&control->connect->actives); active; active = next) {
		next = LIST_NEXT(active, next);
		if (ref && active->peer.ref != ref)
			continue;
		if (active->state == ACTIVE_ASKED)
			active_give_up(active);
		else
			active_break(active);
	}
}

void connect_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	actives_drop(control, ref);
	passives_drop(control, ref);
	paths_forget(control, peer);
}

void connect_stop(struct control *control)
{
	actives_drop(control, 0);
	passives_drop(control, 0);
}

unsigned connect_outstanding(const struct control *control)
{
	return control->connect->outstanding;
}

void connect_counts(const struct control *control, struct connect_counts *ret)
{
	const struct active *active;
	const struct passive *passive;

	*ret = (struct connect_counts){0};
	LIST_FOREACH(active, &control->connect->actives, next)
	{
		ret->asked += active->state == ACTIVE_ASKED;
		ret->live += active->state == ACTIVE_LIVE;
		ret->qps += active->qps.count;
	}
	LIST_FOREACH(passive, &control->connect->passives, next)
	{
		ret->served++;
		ret->qps += passive->qps.count;
	}
}

int connect_open(struct control *control)
{
	struct connect *connect = calloc(1, sizeof(*connect));

	if (!connect)
		return -ENOMEM;
	for (unsigned r = 0; r < RAILS_MAX; r++)
		STAILQ_INIT(&connect->untold[r]);
	connect->serial = control->incarnation; /* another engine start, other serials */
	connect->retry = event_new(control->base, -1, 0, tell_untold, control);
	control->connect = connect;
	if (!connect->retry || health_open(control) < 0) {
		if (connect->retry)
			event_free(connect->retry);
		free(connect);
		control->connect = NULL;
		return -ENOMEM;
	}
	return 0;
}

void connect_close(struct control *control)
{
	struct connect *connect = control->connect;
	struct active *active;

	if (!connect)
		return;
	passives_drop(control, 0);
	/* Rails have ended: nothing is in flight any more. */
	while ((active = LIST_FIRST(&connect->actives))) {
		qps_destroy(&active->qps);
		active_free(active);
	}
	for (unsigned r = 0; r < RAILS_MAX; r++)
		while (!STAILQ_EMPTY(&connect->untold[r])) {
			struct untold *first = STAILQ_FIRST(&connect->untold[r]);

			STAILQ_REMOVE_HEAD(&connect->untold[r], next);
			free(first);
		}
	health_close(control);
	event_free(connect->retry);
	free(connect);
	control->connect = NULL;
}
