/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The member table: members join (member_up) and die (member_down). Owns every struct member.
 * Called by the control plane's thread only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/version.h"
#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/member.h"
#include "engine/control/directory/removals.h"

/* ---- looking up ------------------------------------------------------------------------------ */

uint64_t member_name_hash(const char *name)
{
	return placement_hash(name);
}

struct member *member_find(const struct members *members, const char *name)
{
	struct member *member = member_table_find(&members->table, name);

	return member && member != members->self && member->state != MEMBER_FREE ? member : NULL;
}

const struct member_record *member_by_ref(const struct control *control, uint32_t ref)
{
	const struct member *member = member_table_ref(&control->members->table, ref);

	return member ? &member->record : NULL;
}

const struct member_record *member_by_peer(const struct control *control, uint16_t peer)
{
	const struct member *member = member_peer(control, peer);

	return member ? &member->record : NULL;
}

unsigned member_count(const struct control *control)
{
	return control->members->alive;
}

struct rpc_link *member_link_now(const struct control *control, uint32_t ref)
{
	const struct member *member = member_table_ref(&control->members->table, ref);

	return member ? member_link_of(member) : NULL;
}

uint32_t member_link_ref(const struct rpc_link *link)
{
	return link->member->record.ref;
}

void member_lists_set(struct members *members, struct member *member, bool lists)
{
	if (member->state == MEMBER_ALIVE)
		members->strangers = members->strangers + member->lists - lists;
	member->lists = lists;
}

/* Keeps the sums over all live members. */
static void sums_change(struct members *members, const struct member *member, bool joins)
{
	uint64_t hash = map_mix(member->record.incarnation);

	members->digest += joins ? hash : -hash;
	members->sum[member_hash(member) % MEMBER_BUCKETS_MAX] += joins ? hash : -hash;
	members->alive += joins ? 1 : -1u;
	members->strangers += member->lists ? 0 : joins ? 1 : -1u;
}

static void rebuild_soon(struct members *members)
{
	uint64_t apart_ns = MAP_APART_NS * (1 + members->alive / 1024), now_ns = net_now();

	if (now_ns - members->window_ns >= apart_ns) {
		members->window_ns = now_ns;
		members->rebuilds = 0;
	}
	if (members->rebuilds < MAP_REBUILDS || member_rings_wanted(members) != members->rings)
		net_defer(members->rebuild);
	else if (!members->rebuild_armed)
		(void)net_timer_set(
			members->rebuild, (members->window_ns + apart_ns - now_ns) / 1000 + 1);
	members->rebuild_armed = true;
}

/* ---- life and death -------------------------------------------------------------------------- */

static bool more_dispensable(const struct member *a, const struct member *b)
{
	if (member_on_trial(a) != member_on_trial(b))
		return member_on_trial(b);
	if (a->state != b->state)
		return a->state == MEMBER_DEAD;
	if (a->proven != b->proven)
		return b->proven;
	return a->since_ns < b->since_ns;
}

static struct member *most_dispensable(const struct members *members)
{
	struct member *found = NULL;

	for (unsigned i = 1; i < members->table.entries; i++) {
		struct member *member = member_at(&members->table, i);

		if (member->state != MEMBER_ALIVE && (!found || more_dispensable(member, found)))
			found = member;
	}
	return found;
}

void member_free(struct control *control, struct member *member)
{
	rpc_dial_stop(member->contact->dial);
	if (member->contact->in)
		rpc_link_close(member->contact->in);
	member_state_set(control->members, member, MEMBER_FREE);
	member_release(&control->members->table, member);
}

void member_put_back(struct control *control, struct member *member)
{
	if (member->state == MEMBER_FREE)
		member_free(control, member);
}

struct member *member_take(struct control *control)
{
	struct members *members = control->members;
	struct member *found = member_new(&members->table);

	if (!found) {
		found = most_dispensable(members);
		if (!found)
			return NULL;
		member_free(control, found);
		found = member_new(&members->table);
	}
	found->term_ours = ++members->terms;
	return found;
}

void member_dial(struct control *control, struct member *member, bool seldom)
{
	uint32_t beat_ms = (uint32_t)control->settings->cluster_heartbeat_ms;
	uint32_t base_ms = seldom ? beat_ms : beat_ms / 10 + 1;
	unsigned many = control->members->table.contacts / MEMBER_REDIALS;
	uint32_t max_ms = beat_ms * (seldom ? 20 * (1 + many) : 4);
	struct member_contact *contact;
	struct member_texts texts;

	if (control->members->leaving)
		return;
	contact = member_contact(&control->members->table, member);
	if (!contact)
		return;
	member_texts(&member->record, &texts);
	if (contact->dial && contact->dial->port == member->record.port &&
		strcmp(contact->dial->host, texts.address) == 0) {
		rpc_dial_hurry(contact->dial, base_ms, max_ms);
		return;
	}
	rpc_dial_stop(contact->dial);
	contact->dial = rpc_dial_start(control, &(struct rpc_target){.host = texts.address,
							.port = member->record.port,
							.base_ms = base_ms,
							.max_ms = max_ms,
							.owner = member,
							.seed = false});
}

/* Without rings each live member is talked to; with rings, those that are dialled or known so. */
static struct member_contact *contact_begin(struct control *control, struct member *member)
{
	struct members *members = control->members;
	struct member_contact *contact = member->contact;

	if (!members->rings)
		contact = member_contact(&members->table, member);
	if (!contact)
		return NULL;
	if (member_has_contact(member)) {
		contact->heard_ns = net_now();
		member_unused(contact, contact->heard_ns);
		contact->vouched_ns = contact->accused_ns = contact->digest_told = 0;
		contact->untold_ns = 0;
		contact->kept = false;
		contact->probe = (struct member_probe){.turn = net_random()};
	}
	return contact;
}

int member_up(struct control *control, struct member *member)
{
	struct members *members = control->members;
	int status = contact_begin(control, member) ? member_table_add(&members->table, member)
						    : -ENOMEM;
	char label[MEMBER_LABEL_BYTES];

	member_label(&member->record, label);
	if (status == -ENFILE)
		log_error(
			"%s is refused: the cluster has %d engines already, NODES_MAX of config/limits.h",
			label, NODES_MAX);
	if (status)
		return status;
	member_state_set(members, member, MEMBER_ALIVE);
	member->left = false;
	members->met = true;
	member->term_theirs = 0; /* in the place of since_ns */
	member->record.alive = true;
	member->stage = RECORD_ALIVE;
	member->admission++;
	member->neighbour = member->wanted = false;
	control->counter[COUNTER_members_joined]++;
	if (!member->flood)
		log_info("member %s, incarnation %016llx, joined; peer %u", label,
			(unsigned long long)member->record.incarnation, member->record.peer);
	sums_change(members, member, true);
	removals_member_up(control, member);
	member_rings_joined(members, member);
	rebuild_soon(members);
	member_changed(control, member);
	return 0;
}

void member_dial_stop(struct member *member)
{
	rpc_dial_stop(member->contact->dial);
	if (member_has_contact(member))
		member->contact->dial = NULL;
}

void member_links_close(struct member *member)
{
	if (member->contact->out)
		rpc_link_close(member->contact->out);
	if (member->contact->in)
		rpc_link_close(member->contact->in);
}

void member_down(struct control *control, struct member *member, const char *why)
{
	struct members *members = control->members;
	uint16_t peer = member->record.peer;
	uint32_t ref = member->record.ref;
	char label[MEMBER_LABEL_BYTES];
	struct rpc_dial *dial;

	if (!member->flood || member->proven)
		log_warn("member %s, incarnation %016llx, is off the map: %s",
			member_label(&member->record, label),
			(unsigned long long)member->record.incarnation, why);
	member_state_set(members, member, MEMBER_DEAD);
	member->stage = RECORD_REMOVED;
	member->record.alive = false;
	member->since_ns = net_now(); /* term_theirs is void */
	member->term_ours = ++members->terms;
	member_table_remove(&members->table, member);
	member_rings_left(members, member);
	sums_change(members, member, false);
	control->counter[COUNTER_members_died]++;
	removals_member_left(control, member);
	member_links_close(member);
	/*
	 * The link of a dial in progress is closed because its Hello carries the old term. Not
	 * while `busy`: then one of that link's own callbacks is the caller.
	 */
	dial = member->contact->dial;
	if (dial && dial->link && !dial->link->busy)
		rpc_link_close(dial->link);
	if (control->directory)
		directory_member_gone(control, peer, ref);
	if (control->conns)
		conns_member_gone(control, peer, ref);
	rebuild_soon(members);
	/*
	 * Others are dialled by those that were their neighbours. The next heartbeat stops their
	 * dials: a callback of the dial's link may be the caller.
	 */
	if (member->proven && (!members->rings || member->neighbour))
		member_dial(control, member, true);
}

void member_lost(struct control *control, struct member *member, const char *why)
{
	if (control->members->rings)
		member_accuse(control, member, 0, why);
	else
		member_down(control, member, why);
}

void member_heard(struct control *control, struct rpc_link *link)
{
	(void)control;
	link->member->contact->heard_ns = net_now();
}

void member_link_down(struct control *control, struct rpc_link *link)
{
	struct member *member = link->member;
	struct member_contact *contact = member->contact;

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
	if (control->directory && !member_on_trial(member))
		directory_link_down(control, member->record.peer, link);
	/*
	 * The member's process may have ended: dialling it at once shows that by ECONNREFUSED, long
	 * before the heartbeats time out.
	 */
	if (member->state == MEMBER_ALIVE && !member_link_of(member) && contact->dial &&
		!control->members->leaving)
		member_dial(control, member, false);
}

void member_dial_failed(struct control *control, struct rpc_dial *dial, int error)
{
	struct member *member = dial->owner;

	if (dial->seed) {
		seed_failed(dial, error);
		return;
	}
	if (error == ECONNREFUSED && member->state == MEMBER_ALIVE && !member_link_of(member) &&
		!control->members->leaving)
		member_lost(control, member,
			"its connections closed, and nothing listens at its address");
}

bool member_left(struct control *control, struct rpc_link *link)
{
	struct member *member = link->member;

	member_down(control, member, "it left");
	member->left = true;
	member->stage = RECORD_LEFT;
	member_changed(control, member);
	member_dial_stop(member);
	return true;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void rebuild(void *context)
{
	struct control *control = context;
	struct members *members = control->members;
	uint64_t begun_ns, took_ns, pause_ns;

	members->rebuild_armed = false;
	members->rebuilds++;
	member_rings_update(context);
	begun_ns = net_now();
	if (begun_ns < members->paused_ns) {
		(void)net_timer_set(members->rebuild, (members->paused_ns - begun_ns) / 1000 + 1);
		return;
	}
	member_map_rebuild(context);
	took_ns = net_now() - begun_ns;
	if (members->alive <= OWNERS_MAX || took_ns <= MAP_COST_NS)
		return;
	pause_ns = took_ns * MAP_PAUSES;
	members->paused_ns =
		begun_ns + took_ns + (pause_ns < MAP_PAUSE_NS ? pause_ns : MAP_PAUSE_NS);
}

static int self_fill(struct control *control)
{
	const struct settings *s = control->settings;
	struct members *members = control->members;
	struct member *self = member_new(&members->table);
	struct member_contact *contact = self ? member_contact(&members->table, self) : NULL;

	if (!contact || !member_name_set(&members->table, self, control->name, s->cluster_address,
				(uint16_t)s->cluster_port))
		return -ENOMEM;
	members->self = self;
	self->record.incarnation = control->incarnation;
	self->record.rails = (uint8_t)control->rails;
	self->record.bucket_bits = (uint8_t)control->bucket_bits;
	self->record.self = self->record.alive = true;
	snprintf(contact->software, sizeof(contact->software), "%s", PEERCACHE_VERSION);
	self->state = MEMBER_ALIVE;
	self->disk = self->probes = self->lists = true;
	self->summaries = control->view != NULL;
	self->admission = 1;
	return member_table_add(&members->table, self);
}

int members_open(struct control *control)
{
	struct members *members = calloc(1, sizeof(*members));
	int status = -ENOMEM;

	if (!members)
		return -ENOMEM;
	control->members = members;
	member_agree_open(control);
	member_rings_open(members);
	if (member_table_open(&members->table) < 0 || self_fill(control) < 0)
		goto failed;
	if (control->status)
		members->slots = calloc(1, sizeof(*members->slots));
	members->probe = net_timer_new(control->base, true, member_probe_tick, control);
	members->rebuild = net_timer_new(control->base, false, rebuild, control);
	members->news = net_timer_new(control->base, false, member_news_send, control);
	members->claims = net_timer_new(control->base, false, member_claims_due, control);
	if ((control->status && !members->slots) || !members->probe || !members->rebuild ||
		!members->news || !members->claims)
		goto failed;
	status = member_seeds(control->settings, members);
	if (status < 0)
		goto failed;
	members->tick_ns = members->probe_ns = net_now();
	sums_change(members, members->self, true);
	rebuild_soon(members);
	member_map_rebuild(control);
	status = -ENOMEM;
	if (!members->current)
		goto failed;
	net_timer_set(members->probe, member_probe_period_ns(control) / 1000);
	member_seeds_tick(control, members->tick_ns);
	return 0;

failed:
	members_close(control);
	return status;
}

void member_leave(struct control *control)
{
	struct members *members = control->members;
	Pc__Leave leave = PC__LEAVE__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	if (members->leaving)
		return;
	members->leaving = true;
	rpc_quiet(control);
	message.body_case = PC__MESSAGE__BODY_LEAVE;
	message.leave = &leave;
	for (unsigned i = 0; i < members->table.contacts; i++) {
		struct member *member = members->table.contact[i]->member;
		struct rpc_link *link = member_link_of(member);

		if (member->state == MEMBER_ALIVE && link && rpc_send(link, &message))
			rpc_push(link);
	}
}

void members_close(struct control *control)
{
	struct members *members = control->members;

	if (!members)
		return;
	members->leaving = true;
	for (unsigned i = 0; i < members->table.contacts; i++) {
		member_dial_stop(members->table.contact[i]->member);
		member_links_close(members->table.contact[i]->member);
	}
	for (unsigned i = 0; i < SEED_SOURCES * SEEDS_MAX; i++)
		rpc_dial_stop(members->seed[i].dial);
	if (members->probe)
		net_timer_free(members->probe);
	if (members->rebuild)
		net_timer_free(members->rebuild);
	if (members->news)
		net_timer_free(members->news);
	if (members->claims)
		net_timer_free(members->claims);
	member_table_close(&members->table);
	free(members->news_list);
	map_view_drop(members->current);
	free(members->slots);
	free(members);
	control->members = NULL;
}
