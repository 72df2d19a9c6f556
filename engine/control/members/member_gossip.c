/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of members, for clusters of more than MEMBER_MESH_MAX members: what changes is sent to
 * the neighbours, and each engine passes on what is new to it. Of two records of a name the one
 * with the higher (admission, state, incarnation) is newer; so each record is passed on once, and
 * all engines end with the same ones. Control plane's thread only.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/member.h"
#include "engine/control/directory/removals.h"

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

/* ---- sending --------------------------------------------------------------------------------- */

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

void member_changed(struct control *control, struct member *member)
{
	struct members *members = control->members;

	if (!members->rings)
		return;
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

struct record_list *record_list_empty(void)
{
	static struct record_list list;

	list.count = 0;
	list.bytes = 0;
	return &list;
}

bool record_add(struct record_list *list, struct member *member)
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
	record->disk = member->disk;
	record->summaries = member->summaries;
	record->probes = member->probes;
	record->relays = member->relays;
	record->lists = member->lists;
	list->at[list->count++] = record;
	list->bytes += pc__member_record__get_packed_size(record) + 4;
	return true;
}

static void neighbours_tell(struct members *members, const Pc__Message *message)
{
	for (unsigned i = 0; i < members->table.contacts; i++) {
		struct member *member = members->table.contact[i]->member;

		if (member->state == MEMBER_ALIVE && member->neighbour && member->lists)
			(void)rpc_send(member_link_of(member), message);
	}
}

static void records_tell(struct members *members, struct record_list *list)
{
	Pc__MemberNews news = PC__MEMBER_NEWS__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	news.n_records = list->count;
	news.records = list->at;
	message.body_case = PC__MESSAGE__BODY_MEMBER_NEWS;
	message.member_news = &news;
	if (list->count && members->rings)
		neighbours_tell(members, &message);
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
			records_tell(members, list);
			(void)record_add(list, member);
		}
	}
	members->news_count = members->news_room = 0;
	free(members->news_list);
	members->news_list = NULL;
	records_tell(members, list);
}

/* ---- received records ------------------------------------------------------------------------ */

static bool record_fits(const Pc__MemberRecord *r)
{
	return r && member_fits(r->member) && r->state < RECORD_STATES && r->admission >= 1 &&
	       r->admission < ADMISSION_MAX;
}

static bool record_newer(const struct member *member, const Pc__MemberRecord *r)
{
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

enum refused { REFUSED_NAME, REFUSED_REF, REFUSED_ROOM };

/* Counts a record that does not fit, and logs the first one of each kind from an address. */
static void record_refused(struct control *control, const struct rpc_link *link,
	const Pc__MemberRecord *r, enum refused why)
{
	char address[ADDRESS_TEXT_BYTES];
	static const char *const text[] = {"it has this engine's name: set another engine.name",
		"the low half of its incarnation is that of another member: restart one of them",
		"the cluster has NODES_MAX engines already (config/limits.h)"};
	control->counter[COUNTER_records_refused]++;
	if (!member_source_cause(control, link, why))
		return;
	log_warn("record of member %s (%s) from %s refused: %s; further ones are only counted",
		r->member->name, address_text(r->member->address, r->member->port, address),
		link ? link->from : "this engine", text[why]);
}

static void claim_show(struct control *control, const Pc__MemberRecord *r)
{
	if (control->members->own_claim == r->admission)
		return;
	control->members->own_claim = r->admission;
	log_warn(
		"a member says that this engine does not serve: it is off the map until it has answered probes for a while, unless another member is served by it");
}

/*
 * A record of this engine. If it was removed and admitted again, the members that removed it may
 * have dropped its directory entries.
 */
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
		claim_show(control, r);
		return;
	}
	self->admission = admission;
	control->members->own_claim = 0;
	if (control->directory)
		move_again(control->directory);
}

static void fields_take(struct control *control, struct member *member, const Pc__MemberRecord *r)
{
	member->disk = r->disk;
	member->summaries = r->summaries;
	member->probes = r->probes;
	member->relays = r->relays;
	member_lists_set(control->members, member, r->lists);
}

/* The member is alive, as an engine says that has a link with it. */
static void record_admit(struct control *control, struct member *member, const Pc__MemberRecord *r)
{
	bool same = member->record.incarnation == r->member->incarnation;

	if (member->state == MEMBER_ALIVE && same) {
		member->stage = RECORD_ALIVE;
		member->admission = r->admission;
		member_changed(control, member);
		return;
	}
	if (member->state == MEMBER_ALIVE)
		member_down(control, member, "it was started again");
	/* Links of a trial, or of the former process: new ones begin with a Hello. */
	if (member_has_contact(member))
		member->contact->trial.incarnation = 0;
	member_links_close(member);
	if (!member_fill(control, member, r->member)) {
		member_put_back(control, member);
		return;
	}
	fields_take(control, member, r);
	if (member_up(control, member) < 0) {
		member_state_set(control->members, member, MEMBER_CANDIDATE);
		member->since_ns = net_now();
		return;
	}
	member->admission = r->admission;
	removals_member_told(control, member);
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
	member_changed(control, member);
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
	if (member)
		return member;
	/* Candidates and dead members make room only as far as live ones can be admitted. */
	if (members->alive < NODES_MAX)
		return member_take(control);
	record_refused(control, link, r, REFUSED_ROOM);
	return NULL;
}

/* Most records come from several neighbours: the second one needs no hash of its name. */
static bool record_known(const struct members *members, const Pc__MemberRecord *r)
{
	const struct member *member =
		member_table_ref(&members->table, (uint32_t)r->member->incarnation);

	return member && member != members->self &&
	       member->record.incarnation == r->member->incarnation && !record_newer(member, r) &&
	       member_is_named(&member->record, r->member->name);
}

static void record_take(
	struct control *control, const struct rpc_link *link, const Pc__MemberRecord *r)
{
	Pc__MemberRecord near = *r;
	struct member *member;

	if (record_known(control->members, r))
		return;
	if (strcmp(r->member->name, control->name) == 0 ||
		r->member->incarnation == control->incarnation) {
		record_of_self(control, link, r);
		return;
	}
	member = record_entry(control, link, r);
	if (!member)
		return;
	near.admission = admission_near(member->admission, r->admission);
	if (record_contradicted(control, member, &near))
		return;
	if (r->state == RECORD_ALIVE) {
		record_admit(control, member, &near);
	} else if (member->state != MEMBER_ALIVE) {
		if (member->state == MEMBER_DEAD)
			member->admission = near.admission;
	} else if (member->record.incarnation == r->member->incarnation) {
		member->admission = near.admission;
		if (member->stage != RECORD_CLAIMED) {
			/*
			 * Or it was removed elsewhere: the cluster was in two parts. That it left
			 * is believed at once only if it says so itself.
			 */
			member_claim(control, member, r->state == RECORD_LEFT ? 0 : r->trial_ms);
			member_changed(control, member);
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
	/*
	 * Records count once more than MEMBER_MESH_MAX members have sent this engine a Hello: until
	 * then it dials those that are named, in an order of its own, and judges for itself.
	 */
	for (size_t i = 0; i < count; i++) {
		const Pc__MemberRecord *r = records[(first + i) % count];

		if (!members->rings && r->state == RECORD_ALIVE)
			member_learn(control, link, r->member);
		else if (members->rings && member_address_local(control, r->member->address) ==
						   control->rpc->loopback)
			record_take(control, link, r);
	}
	return true;
}

bool member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news)
{
	return member_records(control, link, news->n_records, news->records);
}
