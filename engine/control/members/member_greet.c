/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hello and gossip: how engines learn of each other and become members. Every field that comes from
 * the network is checked before it is used. Control plane's thread only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/abi/wire.h"
#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/member.h"
#include "engine/control/directory/removals.h"

/* ---- sending --------------------------------------------------------------------------------- */

/*
 * Members in one Hello, at most: it fits RPC_HELLO_BYTES_MAX, and older engines take no more. A
 * message Members names all.
 */
#define HELLO_MEMBERS_MAX 256
static_assert(HELLO_MEMBERS_MAX * 3 * NAME_BYTES_MAX < RPC_HELLO_BYTES_MAX, "a Hello fits");

/* Members that one message names; more than MEMBER_MESH_MAX only while an engine knows no lists. */
struct member_list {
	Pc__Member member[MEMBERS_MAX];
	struct member_texts texts[MEMBERS_MAX];
	Pc__Member *at[MEMBERS_MAX];
	unsigned count;
};

void member_describe(const struct member *member, struct member_texts *texts, Pc__Member *ret)
{
	const struct member_record *record = &member->record;

	member_texts(record, texts);
	*ret = (Pc__Member)PC__MEMBER__INIT;
	ret->name = (char *)texts->name;
	ret->incarnation = record->incarnation;
	ret->address = (char *)texts->address;
	ret->port = record->port;
	ret->rails = record->rails;
	ret->bucket_bits = record->bucket_bits;
}

/* Without rings, every member has a contact. */
static void list_alive(struct control *control, struct member_list *ret)
{
	struct members *members = control->members;

	ret->count = 0;
	for (unsigned i = 0; i < members->table.contacts && ret->count < MEMBERS_MAX; i++) {
		struct member *member = members->table.contact[i]->member;

		if (member->state != MEMBER_ALIVE)
			continue;
		/* The other members are learned from pages of the list. */
		if (members->rings && member != members->self && !member->neighbour)
			continue;
		member_describe(member, &ret->texts[ret->count], &ret->member[ret->count]);
		ret->at[ret->count] = &ret->member[ret->count];
		ret->count++;
	}
}

/*
 * True once per dial: after RPC_UNANSWERED_MAX Hellos in a row that the other engine did not
 * answer.
 */
static bool probe_due(struct rpc_link *link)
{
	if (!link->dial || link->dial->unanswered != RPC_UNANSWERED_MAX)
		return false;
	link->dial->unanswered++;
	return true;
}

/* `refusal`: the reason why the other engine is refused; NULL: it is not. */
static void hello_send(struct control *control, struct rpc_link *link, const char *refusal)
{
	const struct member *to = link->member;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct member_list list;
	struct member_texts texts;
	Pc__Member self;

	if (!to && link->dial && !link->dial->seed)
		to = link->dial->owner;
	member_describe(control->members->self, &texts, &self);
	list_alive(control, &list);
	hello.self = &self;
	hello.n_members = list.count < HELLO_MEMBERS_MAX ? list.count : HELLO_MEMBERS_MAX;
	hello.members = list.at;
	hello.term = to ? to->term_ours : 0;
	hello.visit = link->dial && link->dial->seed;
	hello.software = control->members->self->contact->software;
	hello.summaries = control->view != NULL;
	hello.disk = true;
	hello.probes = true;
	hello.relays = true;
	hello.lists = control->members->self->lists;
	hello.removals = control->removals != NULL;
	hello.pages = removals_wanted(control);
	link->probe = probe_due(link);
	member_agree_say(control, &hello);
	if (refusal) {
		hello.refusal = (char *)refusal;
		hello.n_members = 0;
	}
	if (link->probe) {
		hello.version = WIRE_VERSION_MUTE;
		hello.n_members = 0;
		hello.visit = true;
	}
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	(void)rpc_send(link, &message);
}

void member_greet(struct control *control, struct rpc_link *link)
{
	hello_send(control, link, NULL);
}

/* Copies Hello.software, which only people read. A text that does not fit is ignored. */
static void software_fill(struct member_contact *contact, const char *text)
{
	size_t bytes = strnlen(text, sizeof(contact->software));

	contact->software[0] = '\0';
	if (bytes >= sizeof(contact->software))
		return;
	for (size_t i = 0; i < bytes; i++)
		if (text[i] < ' ' || text[i] > '~')
			return;
	memcpy(contact->software, text, bytes + 1);
}

/* ---- Hello ----------------------------------------------------------------------------------- */

/* Sends our Hello, so that the other engine knows which engine it reached, and closes the link. */
static void last_words(struct control *control, struct rpc_link *link)
{
	member_greet(control, link);
	rpc_push(link);
	rpc_link_close(link);
}

void member_greet_refused(struct control *control, struct rpc_link *link, const char *text)
{
	hello_send(control, link, text);
	rpc_push(link);
	rpc_link_close(link);
}

static void hello_from_self(struct control *control, struct rpc_link *link)
{
	struct rpc_dial *dial = link->dial;
	struct member_texts texts;

	/* this engine dialled itself; the end of the link that dialled learns it from this Hello */
	if (!dial) {
		last_words(control, link);
	} else if (dial->seed && dial->tried < dial->addresses) {
		/* a name with further addresses: the dial goes on with the next one */
	} else if (dial->seed) {
		struct member_seed *seed = dial->owner;

		seed->dial = NULL;
		seed->refused = false;
		seed->retry_ns = net_now() + MEMBER_SELF_RETRY_NS;
		rpc_dial_stop(dial);
	} else {
		member_texts(&((struct member *)dial->owner)->record, &texts);
		log_warn(
			"%s, the address of member %s, leads to this engine: set cluster.address there to an address that others can reach",
			link->from, texts.name);
	}
	rpc_link_close(link);
}

/*
 * A seed's engine has sent its name. The seed's own dial ends here; the member's entry is dialled
 * instead.
 */
static void hello_from_seed(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct rpc_dial *dial = link->dial;
	struct member_seed *seed = dial->owner;

	snprintf(seed->name, sizeof(seed->name), "%s", hello->self->name);
	seed->refused = false;
	seed->retry_ns = 0;
	seed->dial = NULL;
	rpc_dial_stop(dial); /* this also closes the dial's link */
	member_learn(control, NULL, hello->self);
	(void)member_learn_all(control, NULL, hello->n_members, hello->members);
}

/*
 * The receiving end of hello_from_seed(): answers a Hello whose sender only wants to know our name.
 * The sender is alive, so it becomes a candidate and is dialled.
 */
static void hello_from_visitor(
	struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct member *member;

	last_words(control, link);
	member_learn(control, link, hello->self);
	member = member_find(control->members, hello->self->name);
	if (member && member->state == MEMBER_DEAD)
		member_dial(control, member, false);
	(void)member_learn_all(control, link, hello->n_members, hello->members);
}

static void hello_fields(struct control *control, struct member *member, const Pc__Hello *hello)
{
	member->summaries = hello->summaries;
	member->disk = hello->disk;
	member->probes = hello->probes;
	member->relays = hello->relays;
	member_lists_set(control->members, member, hello->lists && hello->probes);
}

/* True if the Hello adds a member to the map, or replaces one. */
static bool hello_joins(const struct control *control, const Pc__Member *m)
{
	const struct member *member = member_find(control->members, m->name);

	if (!member)
		return true;
	if (member->state == MEMBER_ALIVE)
		return member->record.incarnation != m->incarnation;
	return member->contact->trial.incarnation != m->incarnation;
}

/*
 * Finds or takes the entry for a Hello's sender and makes it alive, unless it is on trial. NULL:
 * too many engines of its address join, or no entry or no peer number is free.
 */
static struct member *hello_entry(
	struct control *control, const struct rpc_link *link, const Pc__Hello *hello)
{
	const Pc__Member *m = hello->self;
	struct member *member = member_find(control->members, m->name);
	bool trial;

	if (hello_joins(control, m) && !member_source_joins(control, link, m->name))
		return NULL;
	if (member && member->state == MEMBER_ALIVE) {
		if (member->record.incarnation == m->incarnation)
			return member;
		member_down(control, member, "it was started again");
	}
	if (!member)
		member = member_take(control);
	if (!member)
		return NULL;
	trial = member_trial_hello(control, member, m->incarnation);
	if (!member_fill(control, member, m)) {
		member_put_back(control, member);
		return NULL;
	}
	if (trial)
		return member;
	if (member->state == MEMBER_FREE)
		member_state_set(control->members, member, MEMBER_CANDIDATE);
	hello_fields(control, member, hello);
	member->flood = member_source_flooded(control, link);
	if (member_up(control, member) < 0) {
		member->since_ns = net_now();
		return NULL;
	}
	return member;
}

static void link_attach(struct control *control, struct rpc_link *link, struct member *member)
{
	struct member_contact *contact = member->contact;
	struct rpc_link **at = link->dial ? &contact->out : &contact->in;
	struct rpc_link *old = *at;

	*at = link;
	link->member = member;
	member->proven |= link->dial != NULL;
	if (control->members->rings) {
		contact->heard_ns = net_now();
		member_unused(contact, contact->heard_ns);
	}
	rpc_link_up(link);
	if (old && old != link) {
		if (!member_on_trial(member))
			directory_link_down(control, member->record.peer, old);
		old->member = NULL;
		rpc_link_close(old);
	}
}

/*
 * The term changes when the other engine has removed us from its map, and with that our entries
 * from its shard. If the term differs from the last one received, directory.c publishes our entries
 * again.
 */
static void hello_term(struct control *control, struct member *member, uint64_t term)
{
	if (term == 0)
		return;
	if (member->term_theirs && member->term_theirs != term)
		directory_forgotten(control, member->record.ref);
	member->term_theirs = term;
}

/* Sends what waited for a link with the member. */
static void link_used(struct control *control, struct member *member)
{
	directory_link_up(control, member->record.peer, member->disk);
	if (control->conns)
		conns_link_up(control, member->record.ref);
}

static bool hello_fits(const Pc__Hello *hello)
{
	if (!member_fits(hello->self) || hello->n_members > MEMBERS_MAX)
		return false;
	for (size_t i = 0; i < hello->n_members; i++)
		if (!member_fits(hello->members[i]))
			return false;
	return true;
}

/* Refuses engines that do not fit, and notes whether this one is refused. True: neither. */
static bool hello_agrees(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct refused_engine who = {.link = link, .member = hello->self, .name_taken = true};

	if (!member_agree(control, link, hello))
		return false;
	if (hello->refusal && hello->refusal[0]) {
		member_refused(control, &who, hello->refusal);
		return false;
	}
	member_refusal_end(control, hello->self);
	return true;
}

bool member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	struct member *member;
	struct rpc_dial *dial = link->dial;

	if (!member_agree_version(control, link, hello))
		return true;
	if (!hello_fits(hello))
		return false;
	if (hello->self->incarnation == control->incarnation) {
		hello_from_self(control, link);
		return true;
	}
	if (control->members->leaving) {
		rpc_link_close(link);
		return true;
	}
	if (!hello_agrees(control, link, hello))
		return true;
	if (dial && dial->seed) {
		hello_from_seed(control, link, hello);
		return true;
	}
	if (!dial && hello->visit) {
		hello_from_visitor(control, link, hello);
		return true;
	}
	/*
	 * A different engine has taken over the address of this dial's member: that engine gets its
	 * own entry and is dialled separately.
	 */
	if (dial && !member_is_named(&((struct member *)dial->owner)->record, hello->self->name)) {
		member = dial->owner;
		rpc_link_close(link);
		member_learn(control, link, hello->self); /* before the dial may be freed */
		if (member->state == MEMBER_ALIVE && !member->contact->in)
			member_lost(control, member, "another engine listens at its address");
		return true;
	}
	member = hello_entry(control, link, hello);
	if (!member || !member_contact(&control->members->table, member)) {
		rpc_link_close(link);
		return true;
	}
	software_fill(member->contact, hello->software);
	hello_fields(control, member, hello);
	member_agree_versions(link, member, hello);
	if (!member_on_trial(member))
		hello_term(control, member, hello->term);
	link_attach(control, link, member);
	if (!dial)
		member_greet(control, link);
	if (!member->contact->out && (!control->members->rings || member->neighbour))
		member_dial(control, member, false);
	/* With rings, the list tells more. */
	if (!control->members->rings || !member->lists)
		(void)member_learn_all(control, link, hello->n_members, hello->members);
	/* With a full table, what was learned may have taken the place of an entry on trial. */
	if (link->member == member && !member_on_trial(member)) {
		removals_hello(control, link, hello);
		link_used(control, member);
	}
	/* The first member that is reached tells the list. */
	if (link->member == member && member->lists && !control->members->list_ns)
		member_list_compare(control, link, net_now());
	return true;
}

/* ---- gossip ---------------------------------------------------------------------------------- */

bool member_heartbeat(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat)
{
	struct member *member = link->member;
	struct member_contact *contact = member->contact;
	uint64_t quiet_ns = (uint64_t)control->settings->cluster_heartbeat_ms * 1000000ull *
			    MEMBER_GOSSIP_BEATS;
	uint64_t now_ns = net_now();
	Pc__Members members = PC__MEMBERS__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct member_list list;

	if (!member_vouch(control, link, beat))
		return false;
	if (beat->members_digest == control->members->digest)
		return true;
	if (member->lists && (control->members->rings || beat->rings)) {
		member_list_compare(control, link, now_ns);
		return true;
	}
	/*
	 * If two engines keep different digests, because one of them cannot reach a third engine,
	 * they exchange their lists only once per MEMBER_GOSSIP_BEATS heartbeats.
	 */
	if (contact->digest_told == beat->members_digest &&
		contact->digest_ours == control->members->digest &&
		now_ns - contact->gossip_ns < quiet_ns)
		return true;
	contact->digest_told = beat->members_digest;
	contact->digest_ours = control->members->digest;
	contact->gossip_ns = now_ns;
	list_alive(control, &list);
	members.n_members = list.count;
	members.members = list.at;
	message.body_case = PC__MESSAGE__BODY_MEMBERS;
	message.members = &members;
	rpc_reply(link, &message);
	return true;
}

bool member_members(struct control *control, struct rpc_link *link, const Pc__Members *members)
{
	return member_learn_all(control, link, members->n_members, members->members);
}
