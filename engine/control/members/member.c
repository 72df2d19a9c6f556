/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members: the table of all engines that this one knows, and the life of each. An entry is made
 * for a candidate (member_take), is a live member from its Hello or record on (member_put_on_map),
 * leaves the map (member_take_off_map), and is forgotten (member_free). Each change of the live
 * members makes the map again, soon; while many change, several changes share one map.
 *
 * Memory: entries in chunks, which never move; hash tables by name and by ref; peer numbers; and
 * contacts, for those that this engine dials, talks to or judges. Without memory an engine is not
 * admitted, and is named again later. Owns struct members and every struct member. Control plane's
 * thread only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "config/version.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

/*
 * The map is rebuilt at once after a change, but only MAP_REBUILDS times within this time, and then
 * at its end; it is longer by as much for each further 1,024 members. A map takes 1 to 4 ms.
 */
#define MAP_APART_NS (100ull * 1000000)
#define MAP_REBUILDS 4

const struct member_contact member_no_contact;

/* ---- hash tables ----------------------------------------------------------------------------- */

static uint16_t *heads_new(unsigned heads)
{
	uint16_t *head = malloc(heads * sizeof(*head));

	if (head)
		memset(head, 0xff, heads * sizeof(*head)); /* MEMBER_NONE */
	return head;
}

static void name_chain(struct member_table *table, struct member *member)
{
	uint16_t *head = &table->by_name[member_hash(member) & (table->heads - 1)];

	member->next_name = *head;
	*head = member->index;
}

static void ref_chain(struct member_table *table, struct member *member)
{
	uint16_t *head = &table->by_ref[member->record.ref & (table->heads - 1)];

	member->next_ref = *head;
	*head = member->index;
}

static void name_unchain(struct member_table *table, struct member *member)
{
	uint16_t *at = &table->by_name[member_hash(member) & (table->heads - 1)];

	while (*at != member->index)
		at = &member_at(table, *at)->next_name;
	*at = member->next_name;
}

static void ref_unchain(struct member_table *table, struct member *member)
{
	uint16_t *at = &table->by_ref[member->record.ref & (table->heads - 1)];

	while (*at != member->index)
		at = &member_at(table, *at)->next_ref;
	*at = member->next_ref;
}

/* Doubles the hash tables above two entries per chain. Without memory they stay. */
static void heads_grow(struct member_table *table)
{
	unsigned heads = table->heads * 2;
	uint16_t *by_name, *by_ref;

	if (table->entries <= 2 * table->heads)
		return;
	by_name = heads_new(heads);
	by_ref = heads_new(heads);
	if (!by_name || !by_ref) {
		free(by_name);
		free(by_ref);
		return;
	}
	free(table->by_name);
	free(table->by_ref);
	table->by_name = by_name;
	table->by_ref = by_ref;
	table->heads = heads;
	for (unsigned i = 0; i < table->entries; i++) {
		struct member *member = member_at(table, i);

		if (member_has_name(&member->record))
			name_chain(table, member);
		if (member->state == MEMBER_ALIVE)
			ref_chain(table, member);
	}
}

/* ---- looking up ------------------------------------------------------------------------------ */

struct member *member_table_find(const struct member_table *table, const char *name)
{
	uint16_t at = table->by_name[placement_hash(name) & (table->heads - 1)];

	while (at != MEMBER_NONE) {
		struct member *member = member_at(table, at);

		if (member_is_named(&member->record, name))
			return member;
		at = member->next_name;
	}
	return NULL;
}

struct member *member_table_ref(const struct member_table *table, uint32_t ref)
{
	uint16_t at = table->by_ref[ref & (table->heads - 1)];

	while (at != MEMBER_NONE) {
		struct member *member = member_at(table, at);

		if (member->record.ref == ref)
			return member;
		at = member->next_ref;
	}
	return NULL;
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

const struct member_table *members_table(const struct control *control)
{
	return &control->members->table;
}

/* ---- contacts -------------------------------------------------------------------------------- */

/*
 * Returns the array with room for one more than the `used` elements of `each` bytes. NULL: no
 * memory; the array stays.
 */
static void *array_grown(void *array, unsigned used, unsigned *room, size_t each)
{
	unsigned more = *room + *room / 4 + MEMBER_CHUNK;
	void *larger;

	if (used < *room)
		return array;
	larger = realloc(array, more * each);
	if (larger)
		*room = more;
	return larger;
}

static void contact_place(struct member_table *table, struct member_contact *contact, unsigned at)
{
	table->contact[at] = contact;
	contact->at = at;
}

struct member_contact *member_contact(struct member_table *table, struct member *member)
{
	struct member_contact *fresh, **contact;
	unsigned at;

	if (member_has_contact(member))
		return member->contact;
	contact = array_grown(
		table->contact, table->contacts, &table->contacts_room, sizeof(*contact));
	if (!contact)
		return NULL;
	table->contact = contact;
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return NULL;
	fresh->member = member;
	/* Each engine has an order of its own, so that it does not probe what all others probe. */
	at = net_random() % (table->contacts + 1);
	if (at < table->contacts)
		contact_place(table, table->contact[at], table->contacts);
	contact_place(table, fresh, at);
	table->contacts++;
	member->contact = fresh;
	return fresh;
}

void member_contact_free(struct member_table *table, struct member *member)
{
	struct member_contact *contact = member->contact;

	if (!member_has_contact(member))
		return;
	contact_place(table, table->contact[--table->contacts], contact->at);
	member->contact = (struct member_contact *)&member_no_contact;
	free(contact);
}

/* ---- entries --------------------------------------------------------------------------------- */

struct member *member_new(struct member_table *table)
{
	struct member *member, **chunk;

	if (table->freed != MEMBER_NONE) {
		member = member_at(table, table->freed);
		table->freed = member->next_name;
		return member;
	}
	if (table->entries == MEMBER_ENTRIES)
		return NULL;
	chunk = &table->chunk[table->entries / MEMBER_CHUNK];
	if (!*chunk)
		*chunk = calloc(MEMBER_CHUNK, sizeof(**chunk));
	if (!*chunk)
		return NULL;
	member = member_at(table, table->entries);
	member->index = (uint16_t)table->entries++;
	member->contact = (struct member_contact *)&member_no_contact;
	heads_grow(table);
	return member;
}

void member_release(struct member_table *table, struct member *member)
{
	uint16_t index = member->index;

	member_contact_free(table, member);
	if (member_has_name(&member->record)) {
		name_unchain(table, member);
		member_text_clear(&member->record);
	}
	memset(member, 0, sizeof(*member));
	member->index = index;
	member->contact = (struct member_contact *)&member_no_contact;
	member->next_name = table->freed;
	table->freed = index;
}

bool member_name_set(struct member_table *table, struct member *member, const char *name,
	const char *address, uint16_t port)
{
	bool had = member_has_name(&member->record);

	if (!member_text_set(&member->record, name, address, port))
		return false;
	if (!had)
		name_chain(table, member);
	return true;
}

bool member_fill(struct control *control, struct member *member, const Pc__Member *m)
{
	struct member_record *record = &member->record;

	if (!member_name_set(
		    &control->members->table, member, m->name, m->address, (uint16_t)m->port))
		return false;
	if (record->incarnation != m->incarnation)
		member->proven = member->flood = false;
	record->incarnation = m->incarnation;
	record->rails = (uint8_t)m->rails;
	record->bucket_bits = (uint8_t)m->bucket_bits;
	record->storage = m->storage;
	return true;
}

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

/* ---- peer numbers of live members ------------------------------------------------------------ */

int member_table_add(struct member_table *table, struct member *member)
{
	uint16_t *by_peer;
	unsigned peer;

	if (table->peers_used < NODES_MAX) {
		by_peer = array_grown(
			table->by_peer, table->peers_used, &table->peers_room, sizeof(*by_peer));
		if (!by_peer)
			return -ENOMEM;
		table->by_peer = by_peer;
		peer = table->peers_used++;
	} else if (table->peer_first != PEER_NONE) {
		peer = table->peer_first;
		table->peer_first = table->by_peer[peer] & (PEER_FREE - 1);
	} else {
		return -ENFILE;
	}
	table->by_peer[peer] = member->index;
	member->record.peer = (uint16_t)peer;
	ref_chain(table, member);
	return 0;
}

void member_table_remove(struct member_table *table, struct member *member)
{
	uint16_t peer = member->record.peer;

	ref_unchain(table, member);
	table->by_peer[peer] = PEER_FREE | PEER_NONE;
	if (table->peer_first == PEER_NONE)
		table->peer_first = peer;
	else
		table->by_peer[table->peer_last] = PEER_FREE | peer;
	table->peer_last = peer;
}

/* ---- when the map is made -------------------------------------------------------------------- */

/* The members have changed: the map is made soon, at once if it was not made often lately. */
static void member_map_soon(struct members *members)
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

/* Timer function: makes the map, and chooses the neighbours first. */
static void member_map_due(void *context)
{
	struct control *control = context;

	control->members->rebuild_armed = false;
	control->members->rebuilds++;
	member_neighbours_choose(control);
	member_map_rebuild(control);
}

/* ---- joining and leaving the map ------------------------------------------------------------- */

/* Keeps the sums over all live members. */
static void members_sums_change(struct members *members, const struct member *member, bool joins)
{
	uint64_t hash = map_mix(member->record.incarnation);

	members->digest += joins ? hash : -hash;
	members->sum[member_hash(member) % MEMBER_BUCKETS] += joins ? hash : -hash;
	members->alive += joins ? 1 : -1u;
}

/* False: no memory for the contact of a neighbour. */
static bool member_contact_begin(struct control *control, struct member *member)
{
	struct member_contact *contact = member->contact;

	member->neighbour = !control->members->rings;
	if (member->neighbour)
		contact = member_contact(&control->members->table, member);
	if (contact && contact != &member_no_contact) {
		contact->heard_ns = net_now();
		member_link_unused(contact, contact->heard_ns);
		contact->accused_ns = 0;
		contact->kept = false;
		contact->probe = (struct member_probe){.turn = net_random()};
	}
	return contact;
}

int member_put_on_map(struct control *control, struct member *member)
{
	struct members *members = control->members;
	int status = member_contact_begin(control, member)
			     ? member_table_add(&members->table, member)
			     : -ENOMEM;
	char label[MEMBER_LABEL_BYTES];

	if (status)
		return status;
	member_label(&member->record, label);
	member_state_set(members, member, MEMBER_ALIVE);
	member->left = false;
	member->term_theirs = 0; /* in the place of since_ns */
	member->record.alive = true;
	/* Another engine may have admitted it, as a record says. */
	if (member->stage != RECORD_ALIVE || !member->admission)
		member->admission++;
	member->stage = RECORD_ALIVE;
	member->wanted = false;
	control->counter[COUNTER_members_joined]++;
	if (!member->flood)
		log_info("member %s, incarnation %016llx, joined; peer %u", label,
			(unsigned long long)member->record.incarnation, member->record.peer);
	members_sums_change(members, member, true);
	member_rings_joined(members, member);
	member_map_soon(members);
	member_record_changed(control, member);
	return 0;
}

void member_take_off_map(struct control *control, struct member *member, const char *why)
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
	members_sums_change(members, member, false);
	control->counter[COUNTER_members_died]++;
	member_links_close(member);
	/*
	 * The link of a dial in progress is closed because its Hello carries the old term. Not
	 * while `busy`: then one of that link's own callbacks is the caller.
	 */
	dial = member->contact->dial;
	if (dial && dial->link && !dial->link->busy)
		rpc_link_close(dial->link);
	control->member_events->gone(control, peer, ref);
	member_map_soon(members);
	/*
	 * Others are dialled by those that were their neighbours. The next heartbeat stops their
	 * dials: a callback of the dial's link may be the caller.
	 */
	if (member->proven && member->neighbour)
		member_dial(control, member, true);
	/* Who refuted a claim may have been this one. */
	for (unsigned i = 0; i < members->table.contacts; i++)
		members->table.contact[i]->accused_ns = 0;
}

void member_lost(struct control *control, struct member *member, const char *why)
{
	memset(member->contact->probe.served_ns, 0, sizeof(member->contact->probe.served_ns));
	if (control->members->rings)
		member_accuse(control, member, 0, 0, why);
	else
		member_take_off_map(control, member, why);
}

bool member_left(struct control *control, struct rpc_link *link)
{
	struct member *member = link->member;

	member_take_off_map(control, member, "it left");
	member->left = true;
	member->stage = RECORD_LEFT;
	member_record_changed(control, member);
	remembered_left(control, member);
	member_dial_stop(member);
	return true;
}

/* ---- open and close -------------------------------------------------------------------------- */

int member_table_open(struct member_table *table)
{
	table->freed = MEMBER_NONE;
	table->peer_first = PEER_NONE;
	table->heads = MEMBER_BUCKETS;
	table->by_name = heads_new(table->heads);
	table->by_ref = heads_new(table->heads);
	return table->by_name && table->by_ref ? 0 : -ENOMEM;
}

void member_table_close(struct member_table *table)
{
	for (unsigned i = 0; i < table->entries; i++) {
		struct member *member = member_at(table, i);

		member_contact_free(table, member);
		member_text_clear(&member->record);
	}
	for (unsigned i = 0; i < MEMBER_ENTRIES / MEMBER_CHUNK; i++)
		free(table->chunk[i]);
	free(table->by_name);
	free(table->by_ref);
	free(table->by_peer);
	free(table->contact);
}

static int member_self_fill(struct control *control)
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
	self->record.storage = s->engine_role == ROLE_STORAGE;
	self->record.self = self->record.alive = true;
	snprintf(contact->software, sizeof(contact->software), "%s", PEERCACHE_VERSION);
	self->state = MEMBER_ALIVE;
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
	if (member_table_open(&members->table) < 0 || member_self_fill(control) < 0)
		goto failed;
	if (control->status)
		members->slots = calloc(1, sizeof(*members->slots));
	members->probe = net_timer_new(control->base, true, member_probe_tick, control);
	members->rebuild = net_timer_new(control->base, false, member_map_due, control);
	members->news = net_timer_new(control->base, false, member_news_send, control);
	members->claims = net_timer_new(control->base, false, member_claims_due, control);
	if ((control->status && !members->slots) || !members->probe || !members->rebuild ||
		!members->news || !members->claims)
		goto failed;
	status = member_seeds_parse(control->settings, members);
	if (status < 0)
		goto failed;
	remembered_open(control);
	members->tick_ns = members->probe_ns = net_now();
	members_sums_change(members, members->self, true);
	member_map_soon(members);
	member_map_rebuild(control);
	status = -ENOMEM;
	if (!members->current ||
		net_timer_set(members->probe, member_probe_period_ns(control) / 1000) < 0)
		goto failed;
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
	const Pc__Message message = message_of(PC__MESSAGE__BODY_LEAVE, &leave);

	if (members->leaving)
		return;
	members->leaving = true;
	rpc_quiet(control);
	for (unsigned i = 0; i < members->table.contacts; i++) {
		struct member *member = members->table.contact[i]->member;
		struct rpc_link *link = member_link_of(member);

		if (member->state == MEMBER_ALIVE && link && rpc_send(link, &message))
			net_push(link->net);
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
	for (unsigned i = 0; i < SEED_ELEMENTS; i++)
		rpc_dial_stop(members->seed[i].dial);
	net_timer_free(members->probe);
	net_timer_free(members->rebuild);
	net_timer_free(members->news);
	net_timer_free(members->claims);
	member_table_close(&members->table);
	free(members->news_list);
	map_view_drop(members->current);
	free(members->slots);
	free(members);
	control->members = NULL;
}
