/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The member table: members join (member_up) and die (member_down). Owns every struct member_entry.
 * Called by the control plane's thread only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/version.h"
#include "engine/control/connect.h"
#include "engine/control/directory.h"
#include "engine/control/member.h"

/* ---- looking up ------------------------------------------------------------------------------ */

uint64_t member_name_hash(const char *name)
{
	return placement_hash(name);
}

struct member_entry *member_find(struct member *member, const char *name)
{
	uint64_t hash = member_name_hash(name);

	for (unsigned i = 1; i < MEMBER_ENTRIES; i++)
		if (member->entry[i].name_hash == hash && member->entry[i].state != MEMBER_FREE &&
			strcmp(member->entry[i].record.map.name, name) == 0)
			return &member->entry[i];
	return NULL;
}

static struct member_entry *find_ref(const struct control *control, uint32_t ref)
{
	const struct member *member = control->member;

	for (uint32_t slot = ref;; slot++) {
		struct member_entry *entry = member->by_ref[slot % MEMBER_REFS];

		if (!entry || entry->record.map.ref == ref)
			return entry;
	}
}

const struct member_record *member_by_ref(const struct control *control, uint32_t ref)
{
	const struct member_entry *entry = find_ref(control, ref);

	return entry ? &entry->record : NULL;
}

const struct member_record *member_by_peer(const struct control *control, uint16_t peer)
{
	if (peer >= NODES_MAX || !control->member->by_peer[peer])
		return NULL;
	return &control->member->by_peer[peer]->record;
}

unsigned member_count(const struct control *control)
{
	return control->member->alive;
}

struct rpc_link *member_link_now(const struct control *control, uint32_t ref)
{
	const struct member_entry *entry = find_ref(control, ref);

	return !entry ? NULL : entry->out ? entry->out : entry->in;
}

uint32_t member_link_ref(const struct rpc_link *link)
{
	return link->member->record.map.ref;
}

/*
 * Rebuilds by_ref, digest and alive. Called after a member joined or died, which is rare, so the
 * small tables are rebuilt from scratch.
 */
static void tables_rebuild(struct control *control)
{
	struct member *member = control->member;

	memset(member->by_ref, 0, sizeof(member->by_ref));
	member->digest = 0;
	member->alive = 0;
	member->strangers = false;
	for (unsigned i = 0; i < MEMBER_ENTRIES; i++) {
		struct member_entry *entry = &member->entry[i];
		uint32_t slot = entry->record.map.ref;

		if (entry->state != MEMBER_ALIVE)
			continue;
		while (member->by_ref[slot % MEMBER_REFS])
			slot++;
		member->by_ref[slot % MEMBER_REFS] = entry;
		member->digest += map_mix(entry->record.map.incarnation);
		member->alive++;
		member->strangers |= !entry->lists;
	}
	net_defer(member->rebuild);
}

/* The same after one member has joined. */
static void tables_add(struct control *control, struct member_entry *entry)
{
	struct member *member = control->member;
	uint32_t slot = entry->record.map.ref;

	while (member->by_ref[slot % MEMBER_REFS])
		slot++;
	member->by_ref[slot % MEMBER_REFS] = entry;
	member->digest += map_mix(entry->record.map.incarnation);
	member->alive++;
	member->strangers |= !entry->lists;
	net_defer(member->rebuild);
}

/* ---- life and death -------------------------------------------------------------------------- */

static bool more_dispensable(const struct member_entry *a, const struct member_entry *b)
{
	if (member_on_trial(a) != member_on_trial(b))
		return member_on_trial(b);
	if (a->state != b->state)
		return a->state == MEMBER_DEAD;
	return a->since_ns < b->since_ns;
}

void member_entry_free(struct member_entry *entry)
{
	rpc_dial_stop(entry->dial);
	if (entry->in)
		rpc_link_close(entry->in);
	memset(entry, 0, sizeof(*entry));
}

struct member_entry *member_entry_take(struct control *control)
{
	struct member *member = control->member;
	struct member_entry *found = NULL;

	for (unsigned i = 1; i < MEMBER_ENTRIES; i++) {
		struct member_entry *entry = &member->entry[i];

		if (entry->state == MEMBER_FREE) {
			found = entry;
			break;
		}
		if (entry->state != MEMBER_ALIVE && (!found || more_dispensable(entry, found)))
			found = entry;
	}
	if (!found)
		return NULL;
	member_entry_free(found);
	found->term_ours = ++member->terms;
	return found;
}

void member_entry_dial(struct control *control, struct member_entry *entry, bool seldom)
{
	uint32_t beat_ms = (uint32_t)control->settings->cluster_heartbeat_ms;
	uint32_t base_ms = seldom ? beat_ms : beat_ms / 10 + 1;
	uint32_t max_ms = beat_ms * (seldom ? 20 : 4);

	if (control->member->leaving)
		return;
	if (entry->dial && entry->dial->port == entry->record.port &&
		strcmp(entry->dial->host, entry->record.address) == 0) {
		rpc_dial_hurry(entry->dial, base_ms, max_ms);
		return;
	}
	rpc_dial_stop(entry->dial);
	entry->dial = rpc_dial_start(
		control, entry->record.address, entry->record.port, base_ms, max_ms, entry, false);
}

/*
 * Takes the free peer number that was freed the longest ago, so that stale (peer, ref) pairs of its
 * former member are gone before the number is reused.
 */
static int peer_take(struct member *member, struct member_entry *entry)
{
	int best = -ENFILE;

	for (int peer = 0; peer < NODES_MAX; peer++)
		if (!member->by_peer[peer] &&
			(best < 0 || member->peer_freed[peer] < member->peer_freed[best]))
			best = peer;
	if (best < 0)
		return best;
	member->by_peer[best] = entry;
	entry->record.map.peer = (uint16_t)best;
	return 0;
}

int member_up(struct control *control, struct member_entry *entry)
{
	struct member *member = control->member;
	int status = peer_take(member, entry);

	if (status) {
		log_error(
			"%s (%s:%u) is refused: the cluster has %d engines already, NODES_MAX of config/limits.h",
			entry->record.map.name, entry->record.address, entry->record.port,
			NODES_MAX);
		return status;
	}
	entry->state = MEMBER_ALIVE;
	entry->left = false;
	entry->record.alive = true;
	entry->heard_ns = net_now();
	entry->vouched_ns = 0;
	entry->kept = false;
	entry->probe = (struct member_probe){.turn = net_random()};
	entry->digest_told = 0;
	entry->stage = RECORD_ALIVE;
	entry->admission++;
	entry->neighbour = entry->wanted = false;
	entry->accused_ns = 0;
	entry->used_ns = net_now();
	control->counter[COUNTER_members_joined]++;
	log_info("member %s (%s:%u, incarnation %016llx) joined; peer %u", entry->record.map.name,
		entry->record.address, entry->record.port,
		(unsigned long long)entry->record.map.incarnation, entry->record.map.peer);
	tables_add(control, entry);
	member_changed(control, entry);
	return 0;
}

void member_down(struct control *control, struct member_entry *entry, const char *why)
{
	struct member *member = control->member;
	uint16_t peer = entry->record.map.peer;
	uint32_t ref = entry->record.map.ref;

	log_warn("member %s (%s:%u, incarnation %016llx) is off the map: %s",
		entry->record.map.name, entry->record.address, entry->record.port,
		(unsigned long long)entry->record.map.incarnation, why);
	entry->state = MEMBER_DEAD;
	entry->stage = RECORD_REMOVED;
	entry->record.alive = false;
	entry->since_ns = net_now();
	entry->term_ours = ++member->terms;
	entry->term_theirs = 0;
	member->by_peer[peer] = NULL;
	member->peer_freed[peer] = ++member->peers_freed;
	control->counter[COUNTER_members_died]++;
	if (entry->out)
		rpc_link_close(entry->out);
	if (entry->in)
		rpc_link_close(entry->in);
	/*
	 * The link of a dial in progress is closed because its Hello carries the old term. Not
	 * while `busy`: then one of that link's own callbacks is the caller.
	 */
	if (entry->dial && entry->dial->link && !entry->dial->link->busy)
		rpc_link_close(entry->dial->link);
	if (control->directory)
		directory_member_gone(control, peer, ref);
	if (control->connect)
		connect_member_gone(control, peer, ref);
	tables_rebuild(control);
	/*
	 * Others are dialled by those that were their neighbours. The next heartbeat stops their
	 * dials: a callback of the dial's link may be the caller.
	 */
	if (!member->rings || entry->neighbour)
		member_entry_dial(control, entry, true);
}

void member_lost(struct control *control, struct member_entry *entry, const char *why)
{
	if (control->member->rings)
		member_accuse(control, entry, 0, why);
	else
		member_down(control, entry, why);
}

void member_heard(struct control *control, struct rpc_link *link)
{
	(void)control;
	link->member->heard_ns = net_now();
}

void member_link_down(struct control *control, struct rpc_link *link)
{
	struct member_entry *entry = link->member;

	link->member = NULL;
	for (unsigned size = 0; size < PROBE_SIZES; size++)
		if (entry->probe.via[size] == link)
			entry->probe.via[size] = NULL;
	if (entry->out == link)
		entry->out = NULL;
	else if (entry->in == link)
		entry->in = NULL;
	else
		return;
	if (control->directory && !member_on_trial(entry))
		directory_link_down(control, entry->record.map.peer, link);
	/*
	 * The member's process may have ended: dialling it at once shows that by ECONNREFUSED, long
	 * before the heartbeats time out.
	 */
	if (entry->state == MEMBER_ALIVE && !entry->out && !entry->in && entry->dial &&
		!control->member->leaving)
		member_entry_dial(control, entry, false);
}

void member_dial_failed(struct control *control, struct rpc_dial *dial, int error)
{
	struct member_entry *entry = dial->owner;

	if (dial->seed) {
		log_debug(
			"seed %s:%u does not answer: %s", dial->host, dial->port, strerror(error));
		return;
	}
	if (error == ECONNREFUSED && entry->state == MEMBER_ALIVE && !entry->out && !entry->in &&
		!control->member->leaving)
		member_lost(control, entry,
			"its connections closed, and nothing listens at its address");
}

bool member_left(struct control *control, struct rpc_link *link)
{
	struct member_entry *entry = link->member;

	member_down(control, entry, "it left");
	entry->left = true;
	entry->stage = RECORD_LEFT;
	member_changed(control, entry);
	rpc_dial_stop(entry->dial);
	entry->dial = NULL;
	return true;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void rebuild(void *context)
{
	member_rings_update(context);
	member_map_rebuild(context);
}

static void self_fill(struct control *control, struct member_entry *self)
{
	const struct settings *s = control->settings;
	struct member_record *record = &self->record;

	record->map = (struct member_identity){.incarnation = control->incarnation,
		.ref = control->ref,
		.rails = (uint8_t)control->rails,
		.bucket_bits = (uint8_t)control->shard.bits,
		.self = true};
	snprintf(record->map.name, sizeof(record->map.name), "%s", control->name);
	snprintf(record->address, sizeof(record->address), "%s", s->cluster_address);
	record->port = (uint16_t)s->cluster_port;
	snprintf(self->software, sizeof(self->software), "%s", PEERCACHE_VERSION);
	record->alive = true;
	self->state = MEMBER_ALIVE;
	self->name_hash = member_name_hash(control->name);
	self->disk = self->probes = self->lists = true;
	self->summaries = control->view != NULL;
	self->admission = 1;
}

int member_open(struct control *control)
{
	struct member *member = calloc(1, sizeof(*member));
	int64_t beat_ms = control->settings->cluster_heartbeat_ms;
	int status = -ENOMEM;

	if (!member)
		return -ENOMEM;
	control->member = member;
	member_agree_open(control);
	member->slots = calloc(1, sizeof(*member->slots));
	member->tick = net_timer_new(control->base, true, member_tick, control);
	member->probe = net_timer_new(control->base, true, member_probe_tick, control);
	member->rebuild = net_timer_new(control->base, false, rebuild, control);
	member->news = net_timer_new(control->base, false, member_news_send, control);
	member->claims = net_timer_new(control->base, false, member_claims_due, control);
	member->records = calloc(1, sizeof(*member->records));
	if (!member->slots || !member->tick || !member->probe || !member->rebuild ||
		!member->news || !member->claims || !member->records)
		goto failed;
	self_fill(control, &member->entry[0]);
	status = member_seeds(control->settings, member);
	if (status < 0)
		goto failed;
	member->tick_ns = member->probe_ns = net_now();
	member->probe_order = net_random() % NODES_MAX;
	(void)peer_take(member, &member->entry[0]);
	tables_rebuild(control);
	member_map_rebuild(control);
	status = -ENOMEM;
	if (!member->current)
		goto failed;
	net_timer_set(member->tick, (uint64_t)beat_ms * 1000);
	net_timer_set(member->probe, member_probe_period_ns(control) / 1000);
	member_seeds_tick(control, member->tick_ns);
	return 0;

failed:
	member_close(control);
	return status;
}

void member_leave(struct control *control)
{
	struct member *member = control->member;
	Pc__Leave leave = PC__LEAVE__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (member->leaving)
		return;
	member->leaving = true;
	rpc_quiet(control);
	message.body_case = PC__MESSAGE__BODY_LEAVE;
	message.leave = &leave;
	for (unsigned i = 1; i < MEMBER_ENTRIES; i++) {
		struct member_entry *entry = &member->entry[i];
		struct rpc_link *link = entry->out ? entry->out : entry->in;

		if (entry->state == MEMBER_ALIVE && link && rpc_send(link, &message))
			rpc_push(link);
	}
}

void member_close(struct control *control)
{
	struct member *member = control->member;

	if (!member)
		return;
	member->leaving = true;
	for (unsigned i = 1; i < MEMBER_ENTRIES; i++) {
		struct member_entry *entry = &member->entry[i];

		rpc_dial_stop(entry->dial);
		entry->dial = NULL;
		if (entry->in)
			rpc_link_close(entry->in);
	}
	for (unsigned i = 0; i < SEED_SOURCES * SEEDS_MAX; i++)
		rpc_dial_stop(member->seed[i].dial);
	if (member->tick)
		net_timer_free(member->tick);
	if (member->probe)
		net_timer_free(member->probe);
	if (member->rebuild)
		net_timer_free(member->rebuild);
	if (member->news)
		net_timer_free(member->news);
	if (member->claims)
		net_timer_free(member->claims);
	free(member->records);
	map_view_drop(member->current);
	free(member->slots);
	free(member);
	control->member = NULL;
}
