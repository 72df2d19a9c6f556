/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which members the directory keeps an owner for: those that it needs, in clusters of all sizes.
 * The event loop does not run.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>

#include "engine/control/directory/directory_state.h"

#define MANY (OWNERS_MAX + 44u)

static struct control *control;
static struct directory *dir;

static uint64_t incarnation(unsigned i)
{
	return 1000 + i;
}

static void record_take(unsigned i, enum record_state state, uint32_t admission)
{
	char name[NAME_BYTES_MAX], address[] = "127.0.0.1";
	Pc__Member subject = PC__MEMBER__INIT;
	Pc__MemberRecord record = PC__MEMBER_RECORD__INIT, *at = &record;

	snprintf(name, sizeof(name), "host-%u", i);
	subject.name = name;
	subject.address = address;
	subject.incarnation = incarnation(i);
	subject.port = subject.rails = 1;
	record.member = &subject;
	record.state = state;
	record.admission = admission;
	assert_true(member_records(control, NULL, 1, &at));
}

/* Members 0..count-1, more than fit a mesh, are alive. */
static void join(unsigned count)
{
	control->members->rings = true;
	for (unsigned i = 0; i < count; i++)
		record_take(i, RECORD_ALIVE, 1);
	member_map_rebuild(control);
	assert_int_equal(control->members->alive, count + 1);
}

static unsigned owners(void)
{
	struct owner *owner;
	unsigned count = 0;

	STAILQ_FOREACH (owner, &dir->owners, next)
		count++;
	return count;
}

static int setup(void **state)
{
	nodes_setup(20, 300);
	assert_int_equal(node_open(0, NULL), 0);
	control = &node[0].control;
	dir = control->directory;
	return 0;
}

static int teardown(void **state)
{
	nodes_teardown();
	return 0;
}

static void a_change_of_the_map_makes_no_owner(void **state)
{
	join(OWNERS_MAX - 1);
	assert_int_equal(owners(), 0);
	assert_int_equal(owner_of(dir, (uint32_t)incarnation(0))->ref, incarnation(0));
	assert_int_equal(owners(), 1);
}

static void a_member_without_an_owner_is_judged_all_the_same(void **state)
{
	struct directory_owner shown;
	struct member *member;

	join(1);
	member = member_table_ref(&control->members->table, (uint32_t)incarnation(0));
	member->neighbour = true;
	assert_non_null(member_contact(&control->members->table, member));
	member->contact->heard_ns = net_now();
	directory_owner(control, member->record.peer, &shown);
	assert_int_equal(shown.why, SUSPECT_UNLINKED);
	member->contact->heard_ns = 1;
	directory_owner(control, member->record.peer, &shown);
	assert_int_equal(shown.why, SUSPECT_SILENT);
	assert_int_equal(owners(), 0);
}

static void an_owner_is_made_when_it_is_needed(void **state)
{
	struct owner *owner;

	join(MANY);
	assert_int_equal(owners(), 0);
	owner = owner_of(dir, (uint32_t)incarnation(7));
	assert_non_null(owner);
	assert_int_equal(owner->ref, incarnation(7));
	assert_ptr_equal(owner_of(dir, (uint32_t)incarnation(7)), owner);
	assert_null(owner_of(dir, (uint32_t)incarnation(MANY)));
	assert_ptr_equal(owner_of(dir, control->ref), dir->self);
	assert_int_equal(owners(), 1);
	/* A link with a member needs one, too. */
	directory_link_up(control, member_by_ref(control, (uint32_t)incarnation(8))->peer);
	assert_int_equal(owners(), 2);
	assert_int_equal(owner_of(dir, (uint32_t)incarnation(8))->ref, incarnation(8));
}

static void what_is_published_waits_at_an_owner_that_is_made_for_it(void **state)
{
	struct owner *owner;
	unsigned queued = 0;

	join(MANY);
	for (uint64_t i = 0; i < 8; i++) {
		struct page_key key = {.word = {map_mix(2 * i + 1), map_mix(2 * i)}};

		directory_publish(control, &key,
			&(struct location){.place = place_make(0, 1), .generation = 1}, NULL);
	}
	STAILQ_FOREACH (owner, &dir->owners, next)
		queued += owner->queued[DIR_PUBLISH];
	assert_in_range(queued, 1, 8 * REPLICAS_MAX);
	assert_true(TAILQ_EMPTY(&dir->orphans));
}

static void an_owner_that_is_gone_is_freed_and_another_may_have_its_number(void **state)
{
	uint16_t peer;

	join(MANY);
	peer = owner_of(dir, (uint32_t)incarnation(7))->peer;
	member_take_off_map(control, member_peer(control, peer), "the test says so");
	assert_null(owner_of(dir, (uint32_t)incarnation(7)));
	assert_int_equal(owner_at(dir, peer)->ref, 0);
	owners_trim(dir);
	assert_int_equal(owners(), 0);
	assert_ptr_equal(owner_at(dir, peer), dir->none);
	/* The same process is back, with another number. */
	record_take(7, RECORD_ALIVE, 3);
	member_map_rebuild(control);
	assert_int_equal(owner_of(dir, (uint32_t)incarnation(7))->ref, incarnation(7));
	assert_int_equal(dir->none->ref, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_change_of_the_map_makes_no_owner),
		T(a_member_without_an_owner_is_judged_all_the_same),
		T(an_owner_is_made_when_it_is_needed),
		T(what_is_published_waits_at_an_owner_that_is_made_for_it),
		T(an_owner_that_is_gone_is_freed_and_another_may_have_its_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
