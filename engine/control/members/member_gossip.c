/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gossip: what engines send each other about third ones.
 *
 * Engines compare digests of their lists in heartbeats; one that differs sends the sums of its
 * buckets and gets the records of those that differ, in pages of 16 KiB. So a new engine gets the
 * list of the first member that it reaches, and what an engine missed is repaired.
 *
 * A record that changes is sent to the neighbours, and each engine passes on what is new to it. Of
 * two records of a name the one with the higher (admission, state, incarnation) is newer; so each
 * record is passed on once, and all engines end with the same ones.
 *
 * Up to MEMBER_MESH_MAX members, an engine that a record or a Hello names is only a candidate: it
 * is dialled, a few at a time, and becomes a member by its own Hello. Above, records admit.
 *
 * What the engines of one address may say and do is bounded: how many become members by their
 * Hello, how many processes they name that this engine does not know, how many lines of the log
 * they cause. Control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

#define SECOND_NS 1000000000ull
#define CANDIDATES_MAX 32u /* candidates that are dialled for the first time */

#define SOURCE_LINES 32u                   /* refused engines of one address that are logged */
#define MEMBER_LIST_NS (2ull * 1000000000) /* time between two ListAsk of this engine */
#define NEWS_MANY 16 /* records sent at a time that are many: members come or go in numbers */
#define NEWS_US 5000 /* changes within this time share a message */
/* The same while many members change: NEWS_MANY records were sent the last time. */
#define NEWS_MANY_US 100000

#define ASSERT_NS (2ull * 1000000000)
#define RECORD_BYTES (2 * NAME_BYTES_MAX + 64) /* bound of the length of one record */
#define ADMISSION_MAX (1u << 30)
/*
 * A record moves the admission of a name forward by this much at most, and that of an unknown name
 * is below ADMISSION_FIRST: so forged numbers leave room for the admission that refutes them. What
 * a record has beyond that is cut off; it is still newer, and so are the records that follow it.
 */
#define ADMISSION_STEP 64u
#define ADMISSION_FIRST (1u << 24)

/* Records of one message while it is built. */
struct record_list {
	Pc__MemberRecord record[PAGE_RECORDS_MAX];
	Pc__Member member[PAGE_RECORDS_MAX];
	struct member_texts texts[PAGE_RECORDS_MAX];
	Pc__MemberRecord *at[PAGE_RECORDS_MAX];
	unsigned count;
	size_t bytes;
};

/* ---- limits of one address ------------------------------------------------------------------- */

/*
 * A source is an IP address, or the name that was dialled. The table is small and forgets; a source
 * that is forgotten begins anew.
 */

static struct member_source *member_source_of(struct members *members, const struct rpc_link *link)
{
	uint64_t hash = placement_hash(link->dial ? link->dial->host : link->from);
	struct member_source *source = &members->source[hash % MEMBER_SOURCES];

	if (source->hash != hash)
		*source = (struct member_source){.hash = hash,
			.joins = {.left = SOURCE_JOINS, .since_ns = net_now()},
			.names = {.left = SOURCE_NAMES, .since_ns = net_now()}};
	return source;
}

/*
 * Takes one of a budget that has `most` at a time and gets `per_s` more per second. False: nothing
 * is left; that is counted in `refused`.
 */
static bool source_budget_take(struct source_budget *budget, unsigned most, unsigned per_s)
{
	uint64_t more = (net_now() - budget->since_ns) / (SECOND_NS / per_s);

	budget->since_ns += more * (SECOND_NS / per_s);
	if (budget->left + more >= most) {
		budget->left = most;
		budget->refused = 0;
	} else {
		budget->left += (unsigned)more;
	}
	if (!budget->left) {
		budget->refused++;
		return false;
	}
	budget->left--;
	return true;
}

bool member_source_joins(struct control *control, const struct rpc_link *link, const char *name)
{
	struct source_budget *joins = &member_source_of(control->members, link)->joins;

	if (source_budget_take(joins, SOURCE_JOINS, SOURCE_JOINS_PER_S))
		return true;
	control->counter[COUNTER_joins_refused]++;
	if (joins->refused == 1)
		log_warn(
			"engine %s at %s is refused: more than %u engines of that address have joined, and then %u per second; further ones are only counted (joins_refused)",
			name, link->from, SOURCE_JOINS, SOURCE_JOINS_PER_S);
	return false;
}

/*
 * The engine at the other end names a process that this engine does not know. False: it named too
 * many; that is counted, and logged once. What is true is named again. link NULL: always true.
 */
static bool member_source_names(
	struct control *control, const struct rpc_link *link, const char *name)
{
	struct members *members = control->members;
	struct source_budget *names;

	/* An engine that has just started learns the whole list of the first member. */
	if (!link || (members->rings && net_now() - members->sole_last_ns < NAMES_OPENING_NS))
		return true;
	names = &member_source_of(members, link)->names;
	if (members->rings ? source_budget_take(names, SOURCE_NAMES, SOURCE_NAMES_PER_S)
			   : source_budget_take(names, SOURCE_NAMES_MESH, SOURCE_NAMES_MESH_PER_S))
		return true;
	control->counter[COUNTER_names_refused]++;
	if (names->refused == 1)
		log_warn(
			"engine %s, named by %s, is ignored: that address has named too many engines that this one does not know; further ones are only counted (names_refused)",
			name, link->from);
	return false;
}

bool member_source_flooded(struct control *control, const struct rpc_link *link)
{
	const struct member_source *source = member_source_of(control->members, link);

	return source->joins.refused && source->joins.left < SOURCE_JOINS / 2;
}

/* True once for each cause, below 32, and address. */
static bool member_source_cause(
	struct control *control, const struct rpc_link *link, unsigned cause)
{
	struct members *members = control->members;
	unsigned *causes = link ? &member_source_of(members, link)->causes : &members->causes;
	bool fresh = !(*causes & 1u << cause);

	*causes |= 1u << cause;
	return fresh;
}

bool member_source_logs(struct control *control, const struct rpc_link *link)
{
	struct member_source *source = member_source_of(control->members, link);

	if (source->logged > SOURCE_LINES)
		return false;
	if (source->logged++ < SOURCE_LINES)
		return true;
	log_warn(
		"more than %u engines at %s were refused: further ones are only counted (members_refused)",
		SOURCE_LINES, link->from);
	return false;
}

/* ---- candidates ------------------------------------------------------------------------------ */

bool member_fits(const Pc__Member *m)
{
	return m && member_text_prints(m->name, NAME_BYTES_MAX) && !strchr(m->name, ' ') &&
	       member_text_prints(m->address, NAME_BYTES_MAX) && !strchr(m->address, ' ') &&
	       m->port >= 1 && m->port <= 65535 && m->rails <= RAILS_MAX && m->bucket_bits <= 31 &&
	       (uint32_t)m->incarnation != 0;
}

/* True if many candidates are dialled for the first time; gossip names others again. */
static bool candidates_full(const struct members *members)
{
	unsigned count = 0;

	for (unsigned i = 0; i < members->table.contacts && count < CANDIDATES_MAX; i++) {
		const struct member_contact *contact = members->table.contact[i];

		count += contact->member->state == MEMBER_CANDIDATE && contact->dial &&
			 contact->dial->fails == 0;
	}
	return count == CANDIDATES_MAX;
}

void member_learn(struct control *control, const struct rpc_link *link, const Pc__Member *m)
{
	struct members *members = control->members;
	struct member *member;

	if (members->leaving || m->incarnation == control->incarnation ||
		strcmp(m->name, control->name) == 0 ||
		member_address_local(control, m->address) != control->rpc->loopback)
		return;
	member = member_find(members, m->name);
	if (member && (member->state == MEMBER_ALIVE ||
			      (member->state == MEMBER_DEAD &&
				      member->record.incarnation == m->incarnation)))
		return;
	/* what it says of itself decides, while its links are up */
	if (member && member_on_trial(member) && member_link_of(member))
		return;
	if (!member_has_room(control, m) || (!member && candidates_full(members)))
		return;
	if (!member || member->state != MEMBER_CANDIDATE ||
		member->record.incarnation != m->incarnation) {
		if (!member_source_names(control, link, m->name))
			return;
		if (!member)
			member = member_take(control);
		if (!member)
			return;
		if (!member_fill(control, member, m)) {
			member_put_back(control, member);
			return;
		}
		member_state_set(control->members, member, MEMBER_CANDIDATE);
		member->left = false;
		member_dial(control, member, false);
	}
	member->since_ns = net_now();
}

bool member_learn_all(struct control *control, const struct rpc_link *link, size_t count,
	Pc__Member *const *members)
{
	if (count > MEMBERS_MAX)
		return false;
	for (size_t i = 0; i < count; i++)
		if (!member_fits(members[i]))
			return false;
	for (size_t i = 0; i < count; i++)
		member_learn(control, link, members[i]);
	return true;
}

/* ---- what a Hello names --------------------------------------------------------------------- */

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
	ret->storage = record->storage;
}

/* Without rings, every member has a contact. */
void member_list_alive(struct control *control, struct member_list *ret)
{
	struct members *members = control->members;

	ret->count = 0;
	for (unsigned i = 0; i < members->table.contacts && ret->count < MEMBERS_MAX; i++) {
		struct member *member = members->table.contact[i]->member;

		if (member->state != MEMBER_ALIVE)
			continue;
		/* The other members are learned from pages of the list. */
		if (member != members->self && !member->neighbour)
			continue;
		member_describe(member, &ret->texts[ret->count], &ret->member[ret->count]);
		ret->at[ret->count] = &ret->member[ret->count];
		ret->count++;
	}
}

/* ---- sending records ------------------------------------------------------------------------- */

/*
 * Sends what has changed soon. While many join, first admissions wait for others; claims and what
 * refutes them do not.
 */
static void news_arm(struct members *members, bool urgent)
{
	bool wait = !urgent && members->news_sent >= NEWS_MANY;

	if (members->news_armed && (wait || members->news_urgent))
		return;
	members->news_armed = net_timer_set(members->news, wait ? NEWS_MANY_US : NEWS_US) == 0;
	members->news_urgent = !wait;
}

void member_record_changed(struct control *control, struct member *member)
{
	struct members *members = control->members;

	news_arm(members, member->stage != RECORD_ALIVE || member->admission > 1);
	if (member->changed)
		return;
	if (members->news_count == members->news_room) {
		unsigned room = members->news_room ? 2 * members->news_room : NEWS_MANY;
		uint16_t *list = realloc(members->news_list, room * sizeof(*list));

		/* Neighbours find the difference when they compare digests. */
		if (!list)
			return;
		members->news_list = list;
		members->news_room = room;
	}
	members->news_list[members->news_count++] = member->index;
	member->changed = true;
}

/* The list of the message that is built now; there is one. */
static struct record_list *record_list_empty(void)
{
	static struct record_list list;

	list.count = 0;
	list.bytes = 0;
	return &list;
}

/* Adds the entry's record to the list; false: the list is full. */
static bool record_add(struct record_list *list, struct member *member)
{
	Pc__MemberRecord *record = &list->record[list->count];

	if (list->count == PAGE_RECORDS_MAX || list->bytes + RECORD_BYTES > MEMBER_PAGE_BYTES)
		return false;
	*record = (Pc__MemberRecord)PC__MEMBER_RECORD__INIT;
	member_describe(member, &list->texts[list->count], &list->member[list->count]);
	record->member = &list->member[list->count];
	record->state = member->stage;
	record->admission =
		member->admission < ADMISSION_MAX ? member->admission : ADMISSION_MAX - 1;
	record->trial_ms =
		member->stage == RECORD_ALIVE ? 0 : (uint32_t)member->contact->claim_trial_ms;
	if (member->stage == RECORD_CLAIMED)
		record->wait_ms =
			(uint32_t)(members_since_ns(net_now(), member->contact->claim_until_ns) /
				   NS_PER_MS);
	list->at[list->count++] = record;
	list->bytes += pc__member_record__get_packed_size(record) + 4;
	return true;
}

/* Sends the records of the list to the neighbours, and empties it. */
static void news_flush(struct members *members, struct record_list *list)
{
	Pc__MemberNews news = PC__MEMBER_NEWS__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_MEMBER_NEWS, &news);

	news.n_records = list->count;
	news.records = list->at;
	for (unsigned i = 0; i < members->table.contacts && list->count; i++) {
		struct member *member = members->table.contact[i]->member;

		if (member->state == MEMBER_ALIVE && member->neighbour)
			(void)rpc_send(member_link_of(member), &message);
	}
	(void)record_list_empty();
}

void member_news_send(void *context)
{
	struct control *control = context;
	struct members *members = control->members;
	struct record_list *list = record_list_empty();

	members->news_armed = false;
	members->news_sent = members->news_count;
	members->news_ns = net_now();
	for (unsigned i = 0; i < members->news_count; i++) {
		struct member *member = member_at(&members->table, members->news_list[i]);

		/* The entry may have been given to another member since. */
		if (!member->changed)
			continue;
		member->changed = false;
		if (member->admission && !record_add(list, member)) {
			news_flush(members, list);
			(void)record_add(list, member);
		}
	}
	members->news_count = members->news_room = 0;
	free(members->news_list);
	members->news_list = NULL;
	news_flush(members, list);
}

/* ---- received records ------------------------------------------------------------------------ */

static bool record_fits(const Pc__MemberRecord *r)
{
	return r && member_fits(r->member) && r->state < RECORD_STATES && r->admission >= 1 &&
	       r->admission < ADMISSION_MAX;
}

static bool record_newer(const struct member *member, const Pc__MemberRecord *r)
{
	/* This engine knows that others have admitted it, and has not. */
	if (member->state != MEMBER_ALIVE && member->stage == RECORD_ALIVE)
		return r->admission >= member->admission;
	if (r->admission != member->admission)
		return r->admission > member->admission;
	if (r->state != member->stage)
		return r->state > member->stage;
	return r->member->incarnation > member->record.incarnation;
}

/* The admission that the record counts as, where `known` is the one that is known; 0: none. */
static uint32_t admission_near(uint32_t known, uint32_t admission)
{
	uint32_t most = known ? known + ADMISSION_STEP : ADMISSION_FIRST;

	return admission < most ? admission : most;
}

enum refused { REFUSED_NAME, REFUSED_REF };

/* Counts a record that does not fit, and logs the first one of each kind from an address. */
static void record_refused(struct control *control, const struct rpc_link *link,
	const Pc__MemberRecord *r, enum refused why)
{
	char address[ADDRESS_TEXT_BYTES];
	static const char *const text[] = {"it has this engine's name: set another engine.name",
		"the low half of its incarnation is that of another member: restart one of them"};

	control->counter[COUNTER_records_refused]++;
	if (!member_source_cause(control, link, why))
		return;
	log_warn("record of member %s (%s) from %s refused: %s; further ones are only counted",
		r->member->name, address_text(r->member->address, r->member->port, address),
		link ? link->from : "this engine", text[why]);
}

static void record_claim_show(struct control *control, const Pc__MemberRecord *r)
{
	if (control->members->own_claim == r->admission)
		return;
	control->members->own_claim = r->admission;
	log_warn(
		"a member says that this engine does not serve: it is off the map until it has answered probes for a while, unless another member is served by it");
}

/* A record of this engine. Members that had removed it say so by their next Hello. */
static void record_of_self(
	struct control *control, const struct rpc_link *link, const Pc__MemberRecord *r)
{
	struct member *self = control->members->self;
	uint32_t admission = admission_near(self->admission, r->admission);

	if (r->member->incarnation != control->incarnation ||
		strcmp(r->member->name, control->name) != 0) {
		/* A former process of this engine that is not removed yet is no mistake. */
		if (r->admission >= self->admission)
			record_refused(control, link, r, REFUSED_NAME);
		return;
	}
	if (r->admission < self->admission ||
		(r->state == RECORD_ALIVE && r->admission == self->admission))
		return;
	if (r->state != RECORD_ALIVE) {
		record_claim_show(control, r);
		return;
	}
	self->admission = admission;
	control->members->own_claim = 0;
}

/* The member is alive, as an engine says that has a link with it. */
static void record_admit(struct control *control, struct member *member, const Pc__MemberRecord *r)
{
	bool same = member->record.incarnation == r->member->incarnation;

	if (member->state == MEMBER_ALIVE && same) {
		/* The next admission refutes; a later one says that the claim was out of date. */
		if (member->stage == RECORD_CLAIMED && r->admission > member->admission + 1)
			member->contact->accused_ns = 0;
		member->stage = RECORD_ALIVE;
		member->admission = r->admission;
		member_record_changed(control, member);
		return;
	}
	if (member->state == MEMBER_ALIVE)
		member_take_off_map(control, member, "it was started again");
	/* Links of a trial, or of the former process: new ones begin with a Hello. */
	if (member_has_contact(member))
		member->contact->trial.incarnation = 0;
	member_links_close(member);
	if (!member_fill(control, member, r->member)) {
		member_put_back(control, member);
		return;
	}
	if (member_put_on_map(control, member) < 0) {
		member_state_set(control->members, member, MEMBER_CANDIDATE);
		member->since_ns = net_now();
		return;
	}
	member->admission = r->admission;
}

/* This engine has a link with another process of that name: the record is out of date. */
static bool record_contradicted(
	struct control *control, struct member *member, const Pc__MemberRecord *r)
{
	uint64_t now_ns = net_now();

	if (member->state != MEMBER_ALIVE || !member_link_of(member) ||
		member->record.incarnation == r->member->incarnation)
		return false;
	if (member->contact->asserted_ns && now_ns - member->contact->asserted_ns < ASSERT_NS)
		return true;
	member->contact->asserted_ns = now_ns;
	member->admission = r->admission + 1;
	member->stage = RECORD_ALIVE;
	member_record_changed(control, member);
	return true;
}

/* The entry that the record changes, a new one for a new name; NULL: it changes none. */
static struct member *record_entry(
	struct control *control, const struct rpc_link *link, const Pc__MemberRecord *r)
{
	struct members *members = control->members;
	struct member *member = member_find(members, r->member->name);
	const struct member_record *other =
		member_by_ref(control, (uint32_t)r->member->incarnation);

	if (other && !member_is_named(other, r->member->name)) {
		record_refused(control, link, r, REFUSED_REF);
		return NULL;
	}
	if (member && !record_newer(member, r))
		return NULL;
	if (r->state != RECORD_ALIVE)
		return member;
	if ((!member || member->record.incarnation != r->member->incarnation) &&
		!member_source_names(control, link, r->member->name))
		return NULL;
	/* Candidates and dead members make room only as far as live ones can be admitted. */
	if (member_has_room(control, r->member))
		return member ? member : member_take(control);
	control->counter[COUNTER_records_refused]++;
	return NULL;
}

/* Most records come from several neighbours: the second one needs no hash of its name. */
static struct member *record_known(const struct members *members, const Pc__MemberRecord *r)
{
	struct member *member = member_table_ref(&members->table, (uint32_t)r->member->incarnation);

	return member && member != members->self &&
			       member->record.incarnation == r->member->incarnation &&
			       !record_newer(member, r) &&
			       member_is_named(&member->record, r->member->name)
		       ? member
		       : NULL;
}

/*
 * Up to MEMBER_MESH_MAX members, a record admits no process: the one that it names is dialled.
 * True: it is no record of a live member.
 */
static bool record_names(
	struct control *control, const struct rpc_link *link, const Pc__MemberRecord *r)
{
	struct members *members = control->members;
	struct member *member = member_find(members, r->member->name);

	if (members->rings || r->state != RECORD_ALIVE ||
		(member && member->state == MEMBER_ALIVE &&
			member->record.incarnation == r->member->incarnation))
		return false;
	member_learn(control, link, r->member);
	member = member_find(members, r->member->name);
	if (member && member->state != MEMBER_ALIVE &&
		member->record.incarnation == r->member->incarnation && record_newer(member, r)) {
		member->admission = admission_near(member->admission, r->admission);
		member->stage = RECORD_ALIVE;
	}
	return true;
}

/* The claim is out of date: its sender learns the admission that it must claim. */
static void record_correct(struct rpc_link *link, struct member *member, const Pc__MemberRecord *r)
{
	struct record_list *list = record_list_empty();
	Pc__MemberNews news = PC__MEMBER_NEWS__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_MEMBER_NEWS, &news);

	if (!link || r->state == RECORD_ALIVE || r->admission >= member->admission ||
		member->stage != RECORD_ALIVE || !record_add(list, member))
		return;
	news.n_records = list->count;
	news.records = list->at;
	rpc_reply(link, &message);
}

static void record_take(struct control *control, struct rpc_link *link, const Pc__MemberRecord *r)
{
	Pc__MemberRecord near = *r;
	struct member *member = record_known(control->members, r);

	if (member) {
		record_correct(link, member, r);
		return;
	}
	if (strcmp(r->member->name, control->name) == 0 ||
		r->member->incarnation == control->incarnation) {
		record_of_self(control, link, r);
		return;
	}
	if (record_names(control, link, r))
		return;
	member = record_entry(control, link, r);
	/* A member's own word voids no claim. */
	if (!member || (link && link->member == member && member->stage == RECORD_CLAIMED))
		return;
	near.admission = admission_near(member->admission, r->admission);
	if (record_contradicted(control, member, &near))
		return;
	if (r->state == RECORD_ALIVE) {
		record_admit(control, member, &near);
	} else if (member->state != MEMBER_ALIVE) {
		if (member->state == MEMBER_DEAD) {
			member->admission = near.admission;
			member->stage = RECORD_REMOVED;
		}
	} else if (member->record.incarnation == r->member->incarnation) {
		member->admission = near.admission;
		if (member->stage != RECORD_CLAIMED) {
			/*
			 * Or it was removed elsewhere: the cluster was in two parts. That it left
			 * is believed at once only if it says so itself.
			 */
			member_claim(control, member, r->state == RECORD_LEFT ? 0 : r->trial_ms,
				r->wait_ms);
			member_record_changed(control, member);
		}
	}
}

bool member_records(struct control *control, struct rpc_link *link, size_t count,
	Pc__MemberRecord *const *records)
{
	struct members *members = control->members;
	size_t first = count ? net_random() % count : 0;

	if (count > PAGE_RECORDS_MAX)
		return false;
	for (size_t i = 0; i < count; i++)
		if (!record_fits(records[i]))
			return false;
	if (members->leaving)
		return true;
	/* In an order of its own: not all engines dial those that are named in the same one. */
	for (size_t i = 0; i < count; i++) {
		const Pc__MemberRecord *r = records[(first + i) % count];

		if (member_address_local(control, r->member->address) == control->rpc->loopback)
			record_take(control, link, r);
	}
	return true;
}

bool member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news)
{
	return member_records(control, link, news->n_records, news->records);
}

/* ---- the list in pages ----------------------------------------------------------------------- */

static void list_ask(struct control *control, struct rpc_link *link, unsigned from)
{
	struct members *members = control->members;
	Pc__ListAsk body = PC__LIST_ASK__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_LIST_ASK, &body);

	body.serial = ++members->list_serial;
	body.n_sums = MEMBER_BUCKETS;
	body.sums = members->sum;
	body.from = from;
	members->list_via = rpc_send(link, &message) ? link : NULL;
}

void member_list_compare(struct control *control, struct rpc_link *link, uint64_t now_ns)
{
	struct members *members = control->members;

	if (members->list_ns && now_ns - members->list_ns < MEMBER_LIST_NS)
		return;
	/* While records arrive, the lists differ anyway. */
	if (members->list_ns && members->news_sent >= NEWS_MANY &&
		now_ns - members->news_ns < MEMBER_LIST_NS &&
		now_ns - members->list_ns < 5 * MEMBER_LIST_NS)
		return;
	members->list_ns = now_ns;
	list_ask(control, link, 0);
}

bool member_list_page(struct control *control, struct rpc_link *link, const Pc__ListPage *page)
{
	struct members *members = control->members;

	if (page->n_records > PAGE_RECORDS_MAX)
		return false;
	if (members->list_via != link || page->serial != members->list_serial)
		return true; /* the answer to an earlier request */
	if (page->next > MEMBER_BUCKETS)
		return false;
	members->list_via = NULL;
	if (!member_records(control, link, page->n_records, page->records))
		return false;
	if (page->next < MEMBER_BUCKETS && !link->closed)
		list_ask(control, link, page->next);
	return true;
}

/* Adds the records of one bucket; false: the page is full. */
static bool list_bucket_add(struct members *members, struct record_list *list, unsigned bucket)
{
	const struct member_table *table = &members->table;
	unsigned count = list->count;
	size_t bytes = list->bytes;

	for (unsigned head = bucket; head < table->heads; head += MEMBER_BUCKETS)
		for (uint16_t i = table->by_name[head]; i != MEMBER_NONE;
			i = member_at(table, i)->next_name) {
			struct member *member = member_at(table, i);

			if ((member->state != MEMBER_ALIVE && member->state != MEMBER_DEAD) ||
				!member->admission || record_add(list, member))
				continue;
			if (count == 0)
				return true; /* one bucket alone fills the page */
			list->count = count;
			list->bytes = bytes;
			return false;
		}
	return true;
}

bool member_list_ask(struct control *control, struct rpc_link *link, const Pc__ListAsk *request)
{
	struct members *members = control->members;
	struct record_list *list = record_list_empty();
	Pc__ListPage page = PC__LIST_PAGE__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_LIST_PAGE, &page);
	unsigned bucket = request->from;

	if (request->n_sums != MEMBER_BUCKETS || bucket >= MEMBER_BUCKETS)
		return false;
	for (; bucket < MEMBER_BUCKETS; bucket++)
		if (members->sum[bucket] != request->sums[bucket] &&
			!list_bucket_add(members, list, bucket))
			break;
	page.serial = request->serial;
	page.n_records = list->count;
	page.records = list->at;
	page.next = bucket;
	rpc_reply(link, &message);
	return true;
}
