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
#include "engine/control/conn.h"
#include "engine/control/directory.h"
#include "engine/control/member.h"

/* ---- looking up ------------------------------------------------------------------------------ */

uint64_t member_name_hash(const char *name)
{
	return placement_hash(name);
}

struct member_entry *member_find(const struct member *member, const char *name)
{
	struct member_entry *entry = member_table_find(&member->table, name);

	return entry && entry != member->self && entry->state != MEMBER_FREE ? entry : NULL;
}

const struct member_record *member_by_ref(const struct control *control, uint32_t ref)
{
	const struct member_entry *entry = member_table_ref(&control->member->table, ref);

	return entry ? &entry->record : NULL;
}

const struct member_record *member_by_peer(const struct control *control, uint16_t peer)
{
	const struct member_entry *entry = member_peer(control, peer);

	return entry ? &entry->record : NULL;
}

unsigned member_count(const struct control *control)
{
	return control->member->alive;
}

struct rpc_link *member_link_now(const struct control *control, uint32_t ref)
{
	const struct member_entry *entry = member_table_ref(&control->member->table, ref);

	return entry ? member_entry_link(entry) : NULL;
}

uint32_t member_link_ref(const struct rpc_link *link)
{
	return link->member->record.ref;
}

void member_entry_lists(struct member *member, struct member_entry *entry, bool lists)
{
	if (entry->state == MEMBER_ALIVE)
		member->strangers = member->strangers + entry->lists - lists;
	entry->lists = lists;
}

/* Keeps the sums over all live members. */
static void sums_change(struct member *member, const struct member_entry *entry, bool joins)
{
	uint64_t hash = map_mix(entry->record.incarnation);

	member->digest += joins ? hash : -hash;
	member->sum[member_entry_hash(entry) % MEMBER_BUCKETS_MAX] += joins ? hash : -hash;
	member->alive += joins ? 1 : -1u;
	member->strangers += entry->lists ? 0 : joins ? 1 : -1u;
}

static void rebuild_soon(struct member *member)
{
	uint64_t apart_ns = MAP_APART_NS * (1 + member->alive / 1024), now_ns = net_now();

	if (now_ns - member->window_ns >= apart_ns) {
		member->window_ns = now_ns;
		member->rebuilds = 0;
	}
	if (member->rebuilds < MAP_REBUILDS || member_rings_wanted(member) != member->rings)
		net_defer(member->rebuild);
	else if (!member->rebuild_armed)
		(void)net_timer_set(
			member->rebuild, (member->window_ns + apart_ns - now_ns) / 1000 + 1);
	member->rebuild_armed = true;
}

/* ---- life and death -------------------------------------------------------------------------- */

static bool more_dispensable(const struct member_entry *a, const struct member_entry *b)
{
	if (member_on_trial(a) != member_on_trial(b))
		return member_on_trial(b);
	if (a->state != b->state)
		return a->state == MEMBER_DEAD;
	if (a->proven != b->proven)
		return b->proven;
	return a->since_ns < b->since_ns;
}

static struct member_entry *most_dispensable(const struct member *member)
{
	struct member_entry *found = NULL;

	for (unsigned i = 1; i < member->table.entries; i++) {
		struct member_entry *entry = member_at(&member->table, i);

		if (entry->state != MEMBER_ALIVE && (!found || more_dispensable(entry, found)))
			found = entry;
	}
	return found;
}

void member_entry_free(struct control *control, struct member_entry *entry)
{
	rpc_dial_stop(entry->contact->dial);
	if (entry->contact->in)
		rpc_link_close(entry->contact->in);
	member_entry_release(&control->member->table, entry);
}

void member_entry_unused(struct control *control, struct member_entry *entry)
{
	if (entry->state == MEMBER_FREE)
		member_entry_free(control, entry);
}

struct member_entry *member_entry_take(struct control *control)
{
	struct member *member = control->member;
	struct member_entry *found = member_entry_new(&member->table);

	if (!found) {
		found = most_dispensable(member);
		if (!found)
			return NULL;
		member_entry_free(control, found);
		found = member_entry_new(&member->table);
	}
	found->term_ours = ++member->terms;
	return found;
}

void member_entry_dial(struct control *control, struct member_entry *entry, bool seldom)
{
	uint32_t beat_ms = (uint32_t)control->settings->cluster_heartbeat_ms;
	uint32_t base_ms = seldom ? beat_ms : beat_ms / 10 + 1;
	unsigned many = control->member->table.contacts / MEMBER_REDIALS;
	uint32_t max_ms = beat_ms * (seldom ? 20 * (1 + many) : 4);
	struct member_contact *contact;
	struct member_texts texts;

	if (control->member->leaving)
		return;
	contact = member_contact(&control->member->table, entry);
	if (!contact)
		return;
	member_texts(&entry->record, &texts);
	if (contact->dial && contact->dial->port == entry->record.port &&
		strcmp(contact->dial->host, texts.address) == 0) {
		rpc_dial_hurry(contact->dial, base_ms, max_ms);
		return;
	}
	rpc_dial_stop(contact->dial);
	contact->dial = rpc_dial_start(
		control, texts.address, entry->record.port, base_ms, max_ms, entry, false);
}

/* Without rings each live member is talked to; with rings, those that are dialled or known so. */
static struct member_contact *contact_begin(struct control *control, struct member_entry *entry)
{
	struct member *member = control->member;
	struct member_contact *contact = entry->contact;

	if (!member->rings)
		contact = member_contact(&member->table, entry);
	if (!contact)
		return NULL;
	if (member_has_contact(entry)) {
		contact->heard_ns = net_now();
		member_unused(contact, contact->heard_ns);
		contact->vouched_ns = contact->accused_ns = contact->digest_told = 0;
		contact->kept = false;
		contact->probe = (struct member_probe){.turn = net_random()};
	}
	return contact;
}

int member_up(struct control *control, struct member_entry *entry)
{
	struct member *member = control->member;
	int status =
		contact_begin(control, entry) ? member_table_add(&member->table, entry) : -ENOMEM;
	struct member_texts texts;

	member_texts(&entry->record, &texts);
	if (status == -ENFILE)
		log_error(
			"%s (%s:%u) is refused: the cluster has %d engines already, NODES_MAX of config/limits.h",
			texts.name, texts.address, entry->record.port, NODES_MAX);
	if (status)
		return status;
	entry->state = MEMBER_ALIVE;
	entry->left = false;
	entry->term_theirs = 0; /* in the place of since_ns */
	entry->record.alive = true;
	entry->stage = RECORD_ALIVE;
	entry->admission++;
	entry->neighbour = entry->wanted = false;
	control->counter[COUNTER_members_joined]++;
	if (!entry->flood)
		log_info("member %s (%s:%u, incarnation %016llx) joined; peer %u", texts.name,
			texts.address, entry->record.port,
			(unsigned long long)entry->record.incarnation, entry->record.peer);
	sums_change(member, entry, true);
	member_rings_joined(member, entry);
	rebuild_soon(member);
	member_changed(control, entry);
	return 0;
}

void member_dial_stop(struct member_entry *entry)
{
	rpc_dial_stop(entry->contact->dial);
	if (member_has_contact(entry))
		entry->contact->dial = NULL;
}

void member_links_close(struct member_entry *entry)
{
	if (entry->contact->out)
		rpc_link_close(entry->contact->out);
	if (entry->contact->in)
		rpc_link_close(entry->contact->in);
}

void member_down(struct control *control, struct member_entry *entry, const char *why)
{
	struct member *member = control->member;
	uint16_t peer = entry->record.peer;
	uint32_t ref = entry->record.ref;
	struct member_texts texts;
	struct rpc_dial *dial;

	member_texts(&entry->record, &texts);
	if (!entry->flood || entry->proven)
		log_warn("member %s (%s:%u, incarnation %016llx) is off the map: %s", texts.name,
			texts.address, entry->record.port,
			(unsigned long long)entry->record.incarnation, why);
	entry->state = MEMBER_DEAD;
	entry->stage = RECORD_REMOVED;
	entry->record.alive = false;
	entry->since_ns = net_now(); /* term_theirs is void */
	entry->term_ours = ++member->terms;
	member_table_remove(&member->table, entry);
	member_rings_left(member, entry);
	sums_change(member, entry, false);
	control->counter[COUNTER_members_died]++;
	member_links_close(entry);
	/*
	 * The link of a dial in progress is closed because its Hello carries the old term. Not
	 * while `busy`: then one of that link's own callbacks is the caller.
	 */
	dial = entry->contact->dial;
	if (dial && dial->link && !dial->link->busy)
		rpc_link_close(dial->link);
	if (control->directory)
		directory_member_gone(control, peer, ref);
	if (control->conns)
		conns_member_gone(control, peer, ref);
	rebuild_soon(member);
	/*
	 * Others are dialled by those that were their neighbours. The next heartbeat stops their
	 * dials: a callback of the dial's link may be the caller.
	 */
	if (entry->proven && (!member->rings || entry->neighbour))
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
	link->member->contact->heard_ns = net_now();
}

void member_link_down(struct control *control, struct rpc_link *link)
{
	struct member_entry *entry = link->member;
	struct member_contact *contact = entry->contact;

	link->member = NULL;
	for (unsigned size = 0; size < PROBE_SIZES; size++)
		if (contact->probe.via[size] == link)
			contact->probe.via[size] = NULL;
	if (contact->out == link)
		contact->out = NULL;
	else if (contact->in == link)
		contact->in = NULL;
	else
		return;
	if (control->directory && !member_on_trial(entry))
		directory_link_down(control, entry->record.peer, link);
	/*
	 * The member's process may have ended: dialling it at once shows that by ECONNREFUSED, long
	 * before the heartbeats time out.
	 */
	if (entry->state == MEMBER_ALIVE && !member_entry_link(entry) && contact->dial &&
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
	if (error == ECONNREFUSED && entry->state == MEMBER_ALIVE && !member_entry_link(entry) &&
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
	member_dial_stop(entry);
	return true;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void rebuild(void *context)
{
	struct control *control = context;
	struct member *member = control->member;
	uint64_t begun_ns, took_ns, pause_ns;

	member->rebuild_armed = false;
	member->rebuilds++;
	member_rings_update(context);
	begun_ns = net_now();
	if (begun_ns < member->paused_ns) {
		(void)net_timer_set(member->rebuild, (member->paused_ns - begun_ns) / 1000 + 1);
		return;
	}
	member_map_rebuild(context);
	took_ns = net_now() - begun_ns;
	if (member->alive <= OWNERS_MAX || took_ns <= MAP_COST_NS)
		return;
	pause_ns = took_ns * MAP_PAUSES;
	member->paused_ns =
		begun_ns + took_ns + (pause_ns < MAP_PAUSE_NS ? pause_ns : MAP_PAUSE_NS);
}

static int self_fill(struct control *control)
{
	const struct settings *s = control->settings;
	struct member *member = control->member;
	struct member_entry *self = member_entry_new(&member->table);
	struct member_contact *contact = self ? member_contact(&member->table, self) : NULL;

	if (!contact || !member_entry_name(&member->table, self, control->name, s->cluster_address,
				(uint16_t)s->cluster_port))
		return -ENOMEM;
	member->self = self;
	self->record.incarnation = control->incarnation;
	self->record.rails = (uint8_t)control->rails;
	self->record.bucket_bits = (uint8_t)control->shard.bits;
	self->record.self = self->record.alive = true;
	snprintf(contact->software, sizeof(contact->software), "%s", PEERCACHE_VERSION);
	self->state = MEMBER_ALIVE;
	self->disk = self->probes = self->lists = true;
	self->summaries = control->view != NULL;
	self->admission = 1;
	return member_table_add(&member->table, self);
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
	member_rings_open(member);
	if (member_table_open(&member->table) < 0 || self_fill(control) < 0)
		goto failed;
	if (control->status)
		member->slots = calloc(1, sizeof(*member->slots));
	member->tick = net_timer_new(control->base, true, member_tick, control);
	member->probe = net_timer_new(control->base, true, member_probe_tick, control);
	member->rebuild = net_timer_new(control->base, false, rebuild, control);
	member->news = net_timer_new(control->base, false, member_news_send, control);
	member->claims = net_timer_new(control->base, false, member_claims_due, control);
	if ((control->status && !member->slots) || !member->tick || !member->probe ||
		!member->rebuild || !member->news || !member->claims)
		goto failed;
	status = member_seeds(control->settings, member);
	if (status < 0)
		goto failed;
	member->tick_ns = member->probe_ns = net_now();
	sums_change(member, member->self, true);
	rebuild_soon(member);
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
	for (unsigned i = 0; i < member->table.contacts; i++) {
		struct member_entry *entry = member->table.contact[i]->entry;
		struct rpc_link *link = member_entry_link(entry);

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
	for (unsigned i = 0; i < member->table.contacts; i++) {
		member_dial_stop(member->table.contact[i]->entry);
		member_links_close(member->table.contact[i]->entry);
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
	member_table_close(&member->table);
	free(member->news_list);
	map_view_drop(member->current);
	free(member->slots);
	free(member);
	control->member = NULL;
}
