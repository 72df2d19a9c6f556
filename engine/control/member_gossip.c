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
#include "engine/control/directory_state.h"
#include "engine/control/member.h"

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
static void news_arm(struct member *member, bool urgent)
{
	bool wait = !urgent && member->news_sent >= NEWS_MANY;

	if (member->news_armed && (wait || member->news_urgent))
		return;
	member->news_armed = net_timer_set(member->news, wait ? NEWS_MANY_US : NEWS_US) == 0;
	member->news_urgent = !wait;
}

void member_changed(struct control *control, struct member_entry *entry)
{
	struct member *member = control->member;

	if (!member->rings)
		return;
	news_arm(member, entry->stage != RECORD_ALIVE || entry->admission > 1);
	if (entry->changed)
		return;
	if (member->news_count == member->news_room) {
		unsigned room = member->news_room ? 2 * member->news_room : NEWS_MANY;
		uint16_t *list = realloc(member->news_list, room * sizeof(*list));

		/* Neighbours find the difference when they compare digests. */
		if (!list)
			return;
		member->news_list = list;
		member->news_room = room;
	}
	member->news_list[member->news_count++] = entry->index;
	entry->changed = true;
}

struct record_list *record_list_empty(void)
{
	static struct record_list list;

	list.count = 0;
	list.bytes = 0;
	return &list;
}

bool record_add(struct record_list *list, struct member_entry *entry)
{
	Pc__MemberRecord *record = &list->record[list->count];

	if (list->count == PAGE_RECORDS_MAX || list->bytes + RECORD_BYTES > MEMBER_PAGE_BYTES)
		return false;
	*record = (Pc__MemberRecord)PC__MEMBER_RECORD__INIT;
	member_describe(entry, &list->texts[list->count], &list->member[list->count]);
	record->member = &list->member[list->count];
	record->state = entry->stage;
	record->admission = entry->admission < ADMISSION_MAX ? entry->admission : ADMISSION_MAX - 1;
	record->trial_ms =
		entry->stage == RECORD_ALIVE ? 0 : (uint32_t)entry->contact->claim_trial_ms;
	record->disk = entry->disk;
	record->summaries = entry->summaries;
	record->probes = entry->probes;
	record->relays = entry->relays;
	record->lists = entry->lists;
	list->at[list->count++] = record;
	list->bytes += pc__member_record__get_packed_size(record) + 4;
	return true;
}

static void neighbours_tell(struct member *member, const Pc__Message *message)
{
	for (unsigned i = 0; i < member->table.contacts; i++) {
		struct member_entry *entry = member->table.contact[i]->entry;

		if (entry->state == MEMBER_ALIVE && entry->neighbour && entry->lists)
			(void)rpc_send(member_entry_link(entry), message);
	}
}

static void records_tell(struct member *member, struct record_list *list)
{
	Pc__MemberNews news = PC__MEMBER_NEWS__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	news.n_records = list->count;
	news.records = list->at;
	message.body_case = PC__MESSAGE__BODY_MEMBER_NEWS;
	message.member_news = &news;
	if (list->count && member->rings)
		neighbours_tell(member, &message);
	(void)record_list_empty();
}

void member_news_send(void *context)
{
	struct control *control = context;
	struct member *member = control->member;
	struct record_list *list = record_list_empty();

	member->news_armed = false;
	member->news_sent = member->news_count;
	member->news_ns = net_now();
	for (unsigned i = 0; i < member->news_count; i++) {
		struct member_entry *entry = member_at(&member->table, member->news_list[i]);

		/* The entry may have been given to another member since. */
		if (!entry->changed)
			continue;
		entry->changed = false;
		if (entry->admission && !record_add(list, entry)) {
			records_tell(member, list);
			(void)record_add(list, entry);
		}
	}
	member->news_count = member->news_room = 0;
	free(member->news_list);
	member->news_list = NULL;
	records_tell(member, list);
}

/* ---- received records ------------------------------------------------------------------------ */

static bool record_fits(const Pc__MemberRecord *r)
{
	return r && member_fits(r->member) && r->state < RECORD_STATES && r->admission >= 1 &&
	       r->admission < ADMISSION_MAX;
}

static bool record_newer(const struct member_entry *entry, const Pc__MemberRecord *r)
{
	if (r->admission != entry->admission)
		return r->admission > entry->admission;
	if (r->state != entry->stage)
		return r->state > entry->stage;
	return r->member->incarnation > entry->record.incarnation;
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
	static const char *const text[] = {"it has this engine's name: set another engine.name",
		"the low half of its incarnation is that of another member: restart one of them",
		"the cluster has NODES_MAX engines already (config/limits.h)"};
	control->counter[COUNTER_records_refused]++;
	if (!member_source_cause(control, link, why))
		return;
	log_warn("record of member %s (%s:%u) from %s refused: %s; further ones are only counted",
		r->member->name, r->member->address, r->member->port,
		link ? link->from : "this engine", text[why]);
}

static void claim_show(struct control *control, const Pc__MemberRecord *r)
{
	if (control->member->own_claim == r->admission)
		return;
	control->member->own_claim = r->admission;
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
	struct member_entry *self = control->member->self;
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
	control->member->own_claim = 0;
	if (control->directory)
		move_again(control->directory);
}

static void fields_take(
	struct control *control, struct member_entry *entry, const Pc__MemberRecord *r)
{
	entry->disk = r->disk;
	entry->summaries = r->summaries;
	entry->probes = r->probes;
	entry->relays = r->relays;
	member_entry_lists(control->member, entry, r->lists);
}

/* The member is alive, as an engine says that has a link with it. */
static void record_admit(
	struct control *control, struct member_entry *entry, const Pc__MemberRecord *r)
{
	bool same = entry->record.incarnation == r->member->incarnation;

	if (entry->state == MEMBER_ALIVE && same) {
		entry->stage = RECORD_ALIVE;
		entry->admission = r->admission;
		member_changed(control, entry);
		return;
	}
	if (entry->state == MEMBER_ALIVE)
		member_down(control, entry, "it was started again");
	/* Links of a trial, or of the former process: new ones begin with a Hello. */
	if (member_has_contact(entry))
		entry->contact->trial.incarnation = 0;
	member_links_close(entry);
	if (!member_entry_fill(control, entry, r->member)) {
		member_entry_unused(control, entry);
		return;
	}
	fields_take(control, entry, r);
	if (member_up(control, entry) < 0) {
		entry->state = MEMBER_CANDIDATE;
		entry->since_ns = net_now();
		return;
	}
	entry->admission = r->admission;
}

/* This engine has a link with another process of that name: the record is out of date. */
static bool record_contradicted(
	struct control *control, struct member_entry *entry, const Pc__MemberRecord *r)
{
	uint64_t now_ns = net_now();

	if (entry->state != MEMBER_ALIVE || !member_entry_link(entry) ||
		entry->record.incarnation == r->member->incarnation)
		return false;
	if (entry->contact->asserted_ns && now_ns - entry->contact->asserted_ns < ASSERT_NS)
		return true;
	entry->contact->asserted_ns = now_ns;
	entry->admission = r->admission + 1;
	entry->stage = RECORD_ALIVE;
	member_changed(control, entry);
	return true;
}

/* The entry that the record changes, a new one for a new name; NULL: it changes none. */
static struct member_entry *record_entry(
	struct control *control, const struct rpc_link *link, const Pc__MemberRecord *r)
{
	struct member *member = control->member;
	struct member_entry *entry = member_find(member, r->member->name);
	const struct member_record *other =
		member_by_ref(control, (uint32_t)r->member->incarnation);

	if (other && !member_is_named(other, r->member->name)) {
		record_refused(control, link, r, REFUSED_REF);
		return NULL;
	}
	if (entry && !record_newer(entry, r))
		return NULL;
	if (r->state != RECORD_ALIVE)
		return entry;
	if ((!entry || entry->record.incarnation != r->member->incarnation) &&
		!member_source_names(control, link, r->member->name))
		return NULL;
	if (entry)
		return entry;
	/* Candidates and dead members make room only as far as live ones can be admitted. */
	if (member->alive < NODES_MAX)
		return member_entry_take(control);
	record_refused(control, link, r, REFUSED_ROOM);
	return NULL;
}

/* Most records come from several neighbours: the second one needs no hash of its name. */
static bool record_known(const struct member *member, const Pc__MemberRecord *r)
{
	const struct member_entry *entry =
		member_table_ref(&member->table, (uint32_t)r->member->incarnation);

	return entry && entry != member->self &&
	       entry->record.incarnation == r->member->incarnation && !record_newer(entry, r) &&
	       member_is_named(&entry->record, r->member->name);
}

static void record_take(
	struct control *control, const struct rpc_link *link, const Pc__MemberRecord *r)
{
	Pc__MemberRecord near = *r;
	struct member_entry *entry;

	if (record_known(control->member, r))
		return;
	if (strcmp(r->member->name, control->name) == 0 ||
		r->member->incarnation == control->incarnation) {
		record_of_self(control, link, r);
		return;
	}
	entry = record_entry(control, link, r);
	if (!entry)
		return;
	near.admission = admission_near(entry->admission, r->admission);
	if (record_contradicted(control, entry, &near))
		return;
	if (r->state == RECORD_ALIVE) {
		record_admit(control, entry, &near);
	} else if (entry->state != MEMBER_ALIVE) {
		if (entry->state == MEMBER_DEAD)
			entry->admission = near.admission;
	} else if (entry->record.incarnation == r->member->incarnation) {
		entry->admission = near.admission;
		if (entry->stage != RECORD_CLAIMED) {
			/*
			 * Or it was removed elsewhere: the cluster was in two parts. That it left
			 * is believed at once only if it says so itself.
			 */
			member_claim(control, entry, r->state == RECORD_LEFT ? 0 : r->trial_ms);
			member_changed(control, entry);
		}
	}
}

bool member_records(struct control *control, struct rpc_link *link, size_t count,
	Pc__MemberRecord *const *records)
{
	struct member *member = control->member;
	size_t first = count ? net_random() % count : 0;

	if (count > PAGE_RECORDS_MAX)
		return false;
	for (size_t i = 0; i < count; i++)
		if (!record_fits(records[i]))
			return false;
	if (member->leaving)
		return true;
	/*
	 * Records count once more than MEMBER_MESH_MAX members have sent this engine a Hello: until
	 * then it dials those that are named, in an order of its own, and judges for itself.
	 */
	for (size_t i = 0; i < count; i++) {
		const Pc__MemberRecord *r = records[(first + i) % count];

		if (!member->rings && r->state == RECORD_ALIVE)
			member_learn(control, link, r->member);
		else if (member->rings && member_address_local(control, r->member->address) ==
						  control->rpc->loopback)
			record_take(control, link, r);
	}
	return true;
}

bool member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news)
{
	return member_records(control, link, news->n_records, news->records);
}
