/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records, claims and pages of the member list, in a cluster above MEMBER_MESH_MAX members: which
 * record wins, what is passed on, what hostile records do. The event loop does not run.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/control_inner.h"

#define MEMBERS 40u
#define DEAD_MS 300
#define MANY 1000u               /* members of a large cluster, in one message */
#define FLOOD 960u               /* records in a message of a flood */
#define HIGHEST ((1u << 30) - 1) /* admission in a record */
#define PLACES (PAGE_RECORDS_MAX + 1u)

static struct control *control;
static Pc__MemberRecord record[PLACES], *record_at[PLACES];
static Pc__Member subject[PLACES];
static char name[PLACES][NAME_BYTES_MAX];

void __wrap_rpc_reply(struct rpc_link *link, const Pc__Message *message);
static unsigned page_records, page_next;
static size_t page_bytes;
static bool listed[MANY];

/* Notes the page of the list that is sent. */
void __wrap_rpc_reply(struct rpc_link *link, const Pc__Message *message)
{
	assert_int_equal(message->body_case, PC__MESSAGE__BODY_LIST_PAGE);
	page_bytes = pc__message__get_packed_size(message);
	page_records += (unsigned)message->list_page->n_records;
	page_next = message->list_page->next;
	for (size_t i = 0; i < message->list_page->n_records; i++)
		if (strncmp(message->list_page->records[i]->member->name, "host-", 5) == 0)
			listed[atoi(message->list_page->records[i]->member->name + 5)] = true;
}

static void record_set(unsigned i, enum record_state state, uint32_t admission)
{
	snprintf(name[i], sizeof(name[i]), "host-%03u-with-the-longest-name-that-a-member-may-have",
		i);
	subject[i] = (Pc__Member)PC__MEMBER__INIT;
	subject[i].name = name[i];
	subject[i].address = (char *)"127.0.0.1";
	subject[i].incarnation = 1000 + i;
	subject[i].port = 1;
	subject[i].rails = 1;
	record[i] = (Pc__MemberRecord)PC__MEMBER_RECORD__INIT;
	record[i].member = &subject[i];
	record[i].state = state;
	record[i].admission = admission;
	record_at[i] = &record[i];
}

static bool take(unsigned first, unsigned count)
{
	return member_records(control, NULL, count, &record_at[first]);
}

static bool take_one(enum record_state state, uint32_t admission)
{
	record_set(0, state, admission);
	return take(0, 1);
}

static struct member *entry_of(unsigned i)
{
	return member_find(control->members, name[i]);
}

static int setup(void **state)
{
	nodes_setup(20, DEAD_MS);
	assert_int_equal(node_open(0, NULL), 0);
	control = &node[0].control;
	for (unsigned i = 0; i < PLACES; i++)
		record_set(i, RECORD_ALIVE, 3);
	control->members->rings = true;
	assert_true(take(0, MEMBERS));
	member_neighbours_choose(control);
	assert_true(control->members->rings);
	member_news_send(control);
	return 0;
}

static int teardown(void **state)
{
	nodes_teardown();
	return 0;
}

static unsigned dials(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < control->members->table.contacts; i++)
		count += control->members->table.contact[i]->dial != NULL;
	return count;
}

static void only_neighbours_are_dialled(void **state)
{
	unsigned neighbours = 0;

	assert_int_equal(control->members->alive, MEMBERS + 1);
	for (unsigned i = 0; i < MEMBERS; i++) {
		assert_int_equal(entry_of(i)->neighbour, entry_of(i)->contact->dial != NULL);
		neighbours += entry_of(i)->neighbour;
	}
	assert_in_range(neighbours, MEMBER_RINGS, MEMBER_NEIGHBOURS_MAX);
}

static void demand_all(uint64_t now_ns)
{
	for (unsigned i = 0; i < control->members->table.contacts; i++)
		member_demand_tick(control, control->members->table.contact[i]->member, now_ns);
}

static void few_members_are_dialled_in_one_tick(void **state)
{
	unsigned before;

	assert_true(take(0, MANY));
	member_neighbours_choose(control);
	before = dials();
	control->members->dials = MEMBER_DIALS_TICK;
	for (unsigned i = 0; i < MANY; i++)
		assert_null(member_link_now(control, entry_of(i)->record.ref));
	assert_int_equal(dials(), before);
	for (unsigned i = 0; i < MANY; i++)
		assert_null(member_link(control, entry_of(i)->record.ref));
	assert_int_equal(dials(), before + MEMBER_DIALS_TICK);
	/* The others follow with the next heartbeats. */
	control->members->dials = MEMBER_DIALS_TICK;
	demand_all(net_now());
	assert_int_equal(dials(), before + 2 * MEMBER_DIALS_TICK);
	demand_all(net_now() + 2 * MEMBER_IDLE_NS);
	assert_in_range(dials(), 1, MEMBER_NEIGHBOURS_MAX);
}

/* Not a neighbour. */
static struct member *stranger(void)
{
	for (unsigned i = 0; i < MANY; i++)
		if (!entry_of(i)->neighbour)
			return entry_of(i);
	return NULL;
}

static void a_link_that_was_not_requested_is_closed_soon(void **state)
{
	struct member_contact *contact;
	struct member *entry;
	uint64_t now_ns;

	assert_true(take(0, MANY));
	member_neighbours_choose(control);
	entry = stranger();
	contact = member_contact(&control->members->table, entry);
	now_ns = net_now();
	member_link_unused(contact, now_ns);
	member_dial(control, entry, false);
	assert_non_null(contact->dial);
	member_demand_tick(control, entry, now_ns + MEMBER_UNUSED_NS - 1);
	assert_non_null(contact->dial);
	member_demand_tick(control, entry, now_ns + MEMBER_UNUSED_NS);
	assert_null(contact->dial);
	/* A request keeps it longer, also one before the Hello. */
	control->members->dials = 1;
	(void)member_link(control, entry->record.ref);
	member_link_unused(contact, net_now());
	member_demand_tick(control, entry, now_ns + MEMBER_IDLE_NS - 1);
	assert_non_null(contact->dial);
}

static void only_a_newer_record_is_taken_and_passed_on(void **state)
{
	struct member *entry = entry_of(0);

	assert_false(entry->changed);
	assert_true(take_one(RECORD_ALIVE, 3));
	assert_true(take_one(RECORD_CLAIMED, 2));
	assert_true(take_one(RECORD_LEFT, 2));
	assert_false(entry->changed);
	assert_int_equal(entry->state, MEMBER_ALIVE);
	assert_int_equal(entry->stage, RECORD_ALIVE);
	assert_true(take_one(RECORD_CLAIMED, 3));
	assert_true(entry->changed);
	assert_int_equal(entry->state, MEMBER_ALIVE);
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	/* The same admission refutes nothing, the next one does. */
	entry->changed = false;
	assert_true(take_one(RECORD_ALIVE, 3));
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	assert_false(entry->changed);
	assert_true(take_one(RECORD_ALIVE, 4));
	assert_int_equal(entry->stage, RECORD_ALIVE);
	assert_true(entry->changed);
	assert_int_equal(control->counter[COUNTER_members_died], 0);
}

/* Another member says that it left: it stays, if it serves. */
static void that_a_member_left_is_believed_at_once_only_from_itself(void **state)
{
	struct member *entry = entry_of(0);

	assert_true(take_one(RECORD_LEFT, 3));
	assert_int_equal(entry->state, MEMBER_ALIVE);
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	assert_true(take_one(RECORD_ALIVE, 4));
	assert_int_equal(entry->stage, RECORD_ALIVE);
	assert_true(take_one(RECORD_LEFT, 4));
	entry->contact->claim_until_ns = 1;
	member_claims_due(control);
	assert_int_equal(entry->state, MEMBER_DEAD);
	assert_int_equal(control->counter[COUNTER_members_unserving], 0);
}

static void a_removal_is_overridden_by_the_next_admission_only(void **state)
{
	struct member *entry = entry_of(0);

	/* Removed elsewhere: here it is claimed first, so that it can be refuted. */
	assert_true(take_one(RECORD_REMOVED, 3));
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	member_claims_due(control);
	assert_int_equal(entry->state, MEMBER_ALIVE);
	entry->contact->claim_until_ns = 1;
	member_claims_due(control);
	assert_int_equal(entry->state, MEMBER_DEAD);
	assert_int_equal(entry->stage, RECORD_REMOVED);
	assert_true(member_on_trial(entry));
	assert_true(take_one(RECORD_ALIVE, 3));
	assert_int_equal(entry->state, MEMBER_DEAD);
	assert_true(take_one(RECORD_ALIVE, 4));
	assert_int_equal(entry->state, MEMBER_ALIVE);
	assert_int_equal(entry->admission, 4);
	assert_false(member_on_trial(entry));
}

static void refute(struct member *entry)
{
	member_claim_served(control, entry, PROBE_SMALL);
	member_claim_served(control, entry, PROBE_PADDED);
}

/* Time that is left to refute the claim. */
static uint64_t claim_ms(const struct member *entry)
{
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	return (entry->contact->claim_until_ns - net_now()) / 1000000;
}

static void a_claim_is_refuted_by_probes_of_both_sizes(void **state)
{
	struct member *entry = entry_of(0);

	member_claim_served(control, entry, PROBE_SMALL);
	member_claim_served(control, entry, PROBE_PADDED);
	assert_int_equal(entry->admission, 3);
	member_accuse(control, entry, 0, 0, "the test says so");
	assert_int_equal(control->counter[COUNTER_members_claimed], 1);
	member_claim_served(control, entry, PROBE_SMALL);
	member_claim_served(control, entry, PROBE_SMALL);
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	member_claim_served(control, entry, PROBE_PADDED);
	assert_int_equal(entry->stage, RECORD_ALIVE);
	assert_int_equal(entry->admission, 4);
	assert_int_equal(control->counter[COUNTER_claims_refuted], 1);
	/* It is not claimed again and again because one link is cut. */
	member_accuse(control, entry, 0, 0, "the test says so");
	assert_int_equal(entry->stage, RECORD_ALIVE);
	/* What another engine says of the trial, and of the time to refute, is bounded. */
	record_set(0, RECORD_CLAIMED, 4);
	record[0].trial_ms = record[0].wait_ms = UINT32_MAX;
	assert_true(take(0, 1));
	assert_in_range(claim_ms(entry), DEAD_MS / 2 - 20, DEAD_MS / 2);
	refute(entry);
	record_set(0, RECORD_CLAIMED, entry->admission);
	assert_true(take(0, 1));
	assert_in_range(claim_ms(entry), DEAD_MS / 10 - 20, DEAD_MS / 10);
	refute(entry);
	record_set(0, RECORD_CLAIMED, entry->admission);
	record[0].trial_ms = UINT32_MAX;
	assert_true(take(0, 1));
	assert_true(entry->contact->claim_trial_ms <=
		    suspect_trial_ns(DEAD_MS * 1000000ull, UINT32_MAX) / 1000000);
}

/* What came meanwhile may refute it: the round of probes is first, and extends the claim. */
static void no_claim_ends_at_the_end_of_a_pause(void **state)
{
	struct member *entry = entry_of(0);

	assert_true(take_one(RECORD_CLAIMED, 3));
	entry->contact->claim_until_ns = 1;
	control->members->probe_ns = net_now() - DEAD_MS * 1000000ull;
	member_claims_due(control);
	assert_int_equal(entry->state, MEMBER_ALIVE);
	member_probe_tick(control);
	assert_true(entry->contact->claim_until_ns > DEAD_MS / 2 * 1000000ull);
	entry->contact->claim_until_ns = 1;
	member_claims_due(control);
	assert_int_equal(entry->state, MEMBER_DEAD);
}

static void a_forged_admission_can_be_refuted(void **state)
{
	struct member *entry = entry_of(0);
	uint32_t before;

	for (unsigned round = 0; round < 20; round++) {
		before = entry->admission;
		assert_true(take_one(RECORD_CLAIMED, HIGHEST));
		assert_int_equal(entry->stage, RECORD_CLAIMED);
		assert_in_range(entry->admission, before + 1, before + 64);
		refute(entry);
		assert_int_equal(entry->stage, RECORD_ALIVE);
		/* the record that refutes it is newer than the claim, wherever that came first */
		assert_in_range(entry->admission, before + 2, before + 65);
	}
	/* removed in that way, it is admitted again by the next number */
	assert_true(take_one(RECORD_REMOVED, HIGHEST));
	entry->contact->claim_until_ns = 1;
	member_claims_due(control);
	assert_int_equal(entry->state, MEMBER_DEAD);
	assert_true(take_one(RECORD_ALIVE, entry->admission + 1));
	assert_int_equal(entry->state, MEMBER_ALIVE);
	assert_in_range(entry->admission, 1, 30 * 65);
}

static void so_can_the_first_one_of_a_name(void **state)
{
	struct member *entry;

	record_set(MEMBERS, RECORD_ALIVE, HIGHEST);
	assert_true(take(MEMBERS, 1));
	entry = entry_of(MEMBERS);
	assert_in_range(entry->admission, 1, HIGHEST / 32);
	record_set(MEMBERS, RECORD_CLAIMED, HIGHEST);
	assert_true(take(MEMBERS, 1));
	assert_int_equal(entry->stage, RECORD_CLAIMED);
	refute(entry);
	assert_int_equal(entry->stage, RECORD_ALIVE);
	assert_in_range(entry->admission, 1, HIGHEST / 32);
	/* and that of this engine's own name does not follow at once, either */
	record_set(MEMBERS, RECORD_ALIVE, HIGHEST);
	strcpy(name[MEMBERS], control->name);
	subject[MEMBERS].incarnation = control->incarnation;
	assert_true(take(MEMBERS, 1));
	assert_in_range(control->members->self->admission, 2, 65);
}

static void the_list_comes_in_whole_pages(void **state)
{
	uint64_t sums[MEMBER_BUCKETS] = {0};
	Pc__ListAsk ask = PC__LIST_ASK__INIT;
	struct rpc_link link = {.control = control};
	unsigned pages = 0;

	assert_true(take(0, MANY));
	ask.n_sums = MEMBER_BUCKETS;
	ask.sums = sums;
	page_records = 0;
	memset(listed, 0, sizeof(listed));
	for (; ask.from < MEMBER_BUCKETS; ask.from = page_next, pages++) {
		assert_true(member_list_ask(control, &link, &ask));
		assert_true(page_bytes <= MEMBER_PAGE_BYTES + 64);
		assert_true(page_next > ask.from);
	}
	assert_true(pages > 1);
	assert_int_equal(page_records, MANY + 1);
	for (unsigned i = 0; i < MANY; i++)
		assert_true(listed[i]);
	ask.from = MEMBER_BUCKETS;
	assert_false(member_list_ask(control, &link, &ask));
	ask.from = 0;
	ask.n_sums = MEMBER_BUCKETS - 1;
	assert_false(member_list_ask(control, &link, &ask));
}

static void records_that_break_a_rule_end_their_link(void **state)
{
	static char long_name[NAME_BYTES_MAX + 1];

	memset(long_name, 'x', NAME_BYTES_MAX);
	assert_false(take_one(RECORD_STATES, 4));
	assert_false(take_one(RECORD_ALIVE, 0));
	assert_false(take_one(RECORD_ALIVE, UINT32_MAX));
	record_set(0, RECORD_ALIVE, 4);
	subject[0].name = long_name;
	assert_false(take(0, 1));
	record_set(0, RECORD_ALIVE, 4);
	record[0].member = NULL;
	assert_false(take(0, 1));
	record_set(0, RECORD_ALIVE, 4);
	assert_false(take(0, PAGE_RECORDS_MAX + 1));
	assert_int_equal(control->members->alive, MEMBERS + 1);
}

static void forged_records_are_refused_counted_and_logged_once(void **state)
{
	char log[4096] = "";
	const char *found;

	log_test_capture(log, sizeof(log));
	/* this engine's name, and a ref that is taken */
	for (unsigned i = 0; i < 10; i++) {
		record_set(50, RECORD_ALIVE, 9);
		subject[50].name = control->name;
		assert_true(take(50, 1));
	}
	record_set(50, RECORD_ALIVE, 9);
	subject[50].incarnation = 1000;
	assert_true(take(50, 1));
	assert_int_equal(control->counter[COUNTER_records_refused], 11);
	assert_int_equal(control->members->alive, MEMBERS + 1);
	found = strstr(log, "this engine's name");
	assert_non_null(found);
	assert_null(strstr(found + 1, "this engine's name"));
	/* what is said of this engine does not remove it */
	record_set(50, RECORD_REMOVED, 9);
	subject[50].name = control->name;
	subject[50].incarnation = control->incarnation;
	assert_true(take(50, 1));
	assert_int_equal(control->members->self->state, MEMBER_ALIVE);
	log_test_capture(NULL, 0);
}

static void a_flood_of_joins_displaces_no_member(void **state)
{
	const unsigned rounds = NODES_MAX / FLOOD + 2;
	struct refusals_report found;
	char log[4096] = "";
	const char *line;

	log_test_capture(log, sizeof(log));
	for (unsigned round = 0; round < rounds; round++) {
		for (unsigned i = MEMBERS; i < MEMBERS + FLOOD; i++) {
			record_set(i, RECORD_ALIVE, 1);
			snprintf(name[i], sizeof(name[i]), "flood-%u-%u", round, i);
			subject[i].incarnation = 100000 + round * FLOOD + i;
		}
		assert_true(take(MEMBERS, FLOOD));
	}
	assert_int_equal(control->members->alive, NODES_MAX);
	assert_int_equal(control->members->table.peers_used, NODES_MAX);
	for (unsigned i = 0; i < MEMBERS; i++)
		assert_int_equal(entry_of(i)->state, MEMBER_ALIVE);
	assert_int_equal(control->counter[COUNTER_records_refused],
		rounds * FLOOD - (NODES_MAX - MEMBERS - 1));
	/* one finding and one line for all of them */
	refusals_report(control, net_now(), &found);
	assert_int_equal(found.engines, 1);
	assert_non_null(strstr(found.engine[0].text, "which is the limit"));
	line = strstr(log, "which is the limit");
	assert_non_null(line);
	assert_null(strstr(line + 1, "which is the limit"));
	log_test_capture(NULL, 0);
}

/* One that was a member is refused as an unknown one is. */
static void a_dead_member_that_finds_no_room_is_a_finding_and_stays_dead(void **state)
{
	struct refusals_report found;
	unsigned alive;

	member_take_off_map(control, entry_of(3), "test");
	alive = control->members->alive;
	control->members->alive = NODES_MAX;
	record_set(3, RECORD_ALIVE, 9);
	subject[3].incarnation = 900000;
	assert_true(take(3, 1));
	assert_int_equal(entry_of(3)->state, MEMBER_DEAD);
	refusals_report(control, net_now(), &found);
	assert_int_equal(found.engines, 1);
	control->members->alive = alive;
	assert_true(take(3, 1));
	assert_int_equal(entry_of(3)->state, MEMBER_ALIVE);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(only_neighbours_are_dialled),
		T(few_members_are_dialled_in_one_tick),
		T(a_link_that_was_not_requested_is_closed_soon),
		T(only_a_newer_record_is_taken_and_passed_on),
		T(that_a_member_left_is_believed_at_once_only_from_itself),
		T(a_removal_is_overridden_by_the_next_admission_only),
		T(a_claim_is_refuted_by_probes_of_both_sizes),
		T(no_claim_ends_at_the_end_of_a_pause),
		T(a_forged_admission_can_be_refuted),
		T(so_can_the_first_one_of_a_name),
		T(the_list_comes_in_whole_pages),
		T(records_that_break_a_rule_end_their_link),
		T(forged_records_are_refused_counted_and_logged_once),
		T(a_flood_of_joins_displaces_no_member),
		T(a_dead_member_that_finds_no_room_is_a_finding_and_stays_dead),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
