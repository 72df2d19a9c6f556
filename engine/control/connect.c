/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Active connections: events of the rails, the peers' Connected messages, and members that leave.
 * Control plane's thread only.
 */
#include "engine/control/connect.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/abi/lease.h"
#include "engine/control/connect_state.h"
#include "engine/control/member.h"
#include "numa/clock.h"

/* ---- commands to rails ----------------------------------------------------------------------- */

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

/*
 * If the rail's inbox has no room for the command, it is queued, and tell_untold() sends it later.
 */
void connect_tell(struct control *control, unsigned rail, const struct rail_command *command)
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

void tell_peer(struct control *control, unsigned rail, uint32_t kind, uint16_t peer, uint32_t ref)
{
	connect_tell(control, rail, &(struct rail_command){.kind = kind, .peer = peer, .ref = ref});
}

/* ---- back-off -------------------------------------------------------------------------------- */

struct backoff *backoff_of(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct backoff *b = &control->connect->backoff[rail][peer];

	if (peer >= control->connect->peers)
		control->connect->peers = peer + 1u;
	if (b->ref != ref)
		*b = (struct backoff){.ref = ref};
	return b;
}

void backoff_more(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	struct backoff *b = backoff_of(control, rail, peer, ref);
	uint64_t ms = (uint64_t)CONNECT_BACKOFF_MS << (b->fails > 8 ? 8 : b->fails);

	b->fails++;
	b->until_ns = clock_now_ns() +
		      (ms < CONNECT_BACKOFF_MAX_MS ? ms : CONNECT_BACKOFF_MAX_MS) * 1000000ull;
}

/* ---- events of rails ------------------------------------------------------------------------- */

void connect_wanted(struct control *control, unsigned rail, uint16_t peer, uint32_t ref)
{
	const struct member_record *to = member_by_ref(control, ref);
	const struct active *there = active_find(control, rail, ref);

	if (there && there->state != ACTIVE_BROKEN)
		/*
		 * The connection was requested already, or its command to the rail was sent
		 * already.
		 */
		return;
	if (!to || to->self || to->peer != peer || there || control->stopping ||
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
	if (!active_find(control, rail, to->ref) && active_open(control, rail, to, true) < 0)
		backoff_more(control, rail, to->peer, to->ref);
}

/*
 * Breaks a live connection and starts its back-off. After it a new connection is made and probed.
 */
static void break_anew(struct control *control, struct active *active)
{
	const struct rail_peer *peer = &active->peer;

	if (clock_now_ns() - active->live_ns >= CONNECT_STEADY_NS)
		backoff_of(control, active->rail, peer->peer, peer->ref)->fails = 0;
	backoff_more(control, active->rail, peer->peer, peer->ref);
	path_out(control, active->rail, peer->peer, peer->ref);
	active_break(active);
}

void connect_broken(
	struct control *control, unsigned rail, struct rail_peer *peer, uint32_t syndrome)
{
	struct active *active = peer->control;

	if (active->gone || active->state != ACTIVE_LIVE)
		return;
	if (!backoff_of(control, rail, peer->peer, peer->ref)->out)
		log_warn("rail %u: connection with peer %u broke: %s; other rails take over", rail,
			peer->peer,
			syndrome ? dv_syndrome((uint8_t)syndrome)
				 : "nothing completes on it any more");
	break_anew(control, active);
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
		active_end(active);
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
	(void)rpc_send(member_link_now(control, peer->ref), &message);
	control->connect->outstanding--;
	active->gone = true;
	active_deadline_end(active);
	active_go_on(active);
}

void connect_qp_failed(struct control *control, unsigned rail, uint32_t qpn, const char *why)
{
	struct connect *connect = control->connect;
	struct active *active;
	struct passive *passive;

	LIST_FOREACH (active, &connect->actives, next)
		if (active->rail == rail && active->state == ACTIVE_LIVE &&
			qps_have(&active->qps, qpn)) {
			log_warn("rail %u: connection with peer %u: %s; other rails take over",
				rail, active->peer.peer, why);
			break_anew(control, active);
			return;
		}
	LIST_FOREACH (passive, &connect->passives, next)
		if (passive->to_rail == rail && qps_have(&passive->qps, qpn)) {
			log_warn(
				"rail %u: a queue pair that rail %u of another engine reads through: %s; that engine reconnects",
				rail, passive->rail, why);
			passive_fail(passive);
			return;
		}
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
	struct member_texts texts;

	LIST_FOREACH (active, &control->connect->actives, next)
		if (active->serial == connected->serial && active->peer.ref == ref)
			break;
	if (!active || active->gone || active->state != ACTIVE_ASKED)
		return fits; /* the peer's answer is late: the connection was given up before */
	fits = fits && regions_take(&active->peer, connected->n_regions, connected->regions);
	if (status == 0 && !fits)
		status = -EPROTO;
	if (status) {
		member_texts(&link->member->record, &texts);
		log_warn("rail %u: no connection with %s: %s", active->rail, texts.name,
			strerror(-status));
		active_give_up(active);
		return fits;
	}
	active->peer.limbo_ns = lease_bounded(connected->limbo_ns);
	qps_remote(&active->qps, connected->n_ends, connected->ends);
	active_connect(active);
	return true;
}

/* ---- members leave, the engine stops --------------------------------------------------------- */

static void actives_drop(struct control *control, uint32_t ref)
{
	struct active *active, *next;

	for (active = LIST_FIRST(&control->connect->actives); active; active = next) {
		next = LIST_NEXT(active, next);
		if (ref == 0 || active->peer.ref == ref)
			active_end(active);
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

unsigned connect_busy(const struct control *control)
{
	return works_busy(control->connect->works);
}

void connect_counts(const struct control *control, struct connect_counts *ret)
{
	const struct active *active;
	const struct passive *passive;

	*ret = (struct connect_counts){0};
	LIST_FOREACH (active, &control->connect->actives, next) {
		ret->asked += !active->gone && active->state < ACTIVE_LIVE;
		ret->live += !active->gone && active->state == ACTIVE_LIVE;
		ret->qps += active->qps.busy ? 0 : active->qps.set.count;
	}
	LIST_FOREACH (passive, &control->connect->passives, next) {
		ret->served += !passive->gone;
		ret->qps += passive->qps.busy ? 0 : passive->qps.set.count;
	}
}

int connect_open(struct control *control)
{
	struct connect *connect = calloc(1, sizeof(*connect));
	int rc;

	if (!connect)
		return -ENOMEM;
	for (unsigned r = 0; r < RAILS_MAX; r++)
		STAILQ_INIT(&connect->untold[r]);
	/*
	 * Serials count from the incarnation, so a restarted engine does not repeat serials that it
	 * used before the restart.
	 */
	connect->serial = control->incarnation;
	control->connect = connect;
	rc = works_open(control->base, 2 * control->rails, &connect->works);
	if (rc < 0)
		goto no_works;
	rc = -ENOMEM;
	connect->retry = event_new(control->base, -1, 0, tell_untold, control);
	if (!connect->retry)
		goto no_retry;
	rc = health_open(control);
	if (rc < 0)
		goto no_health;
	return 0;

no_health:
	event_free(connect->retry);
no_retry:
	works_close(connect->works);
no_works:
	free(connect);
	control->connect = NULL;
	return rc;
}

void connect_close(struct control *control)
{
	struct connect *connect = control->connect;
	struct active *active;

	if (!connect)
		return;
	LIST_FOREACH (active, &connect->actives, next)
		qps_abandon(&active->qps);
	passives_drop(control, 0);
	works_close(connect->works);
	passives_free(control);
	/* The rails have stopped, so nothing is in flight on these QPs: they can be destroyed. */
	while ((active = LIST_FIRST(&connect->actives))) {
		qps_destroy(&active->qps.set);
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
