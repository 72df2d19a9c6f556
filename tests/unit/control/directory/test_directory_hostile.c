/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparisons at bad moments: owners that are behind, that ask again and again, or that forget what
 * they were asked. A node is one control plane in the test's process; time is simulated.
 */
#include "tests/unit/control/directory/holder_world.h"

/* ---- an owner that is behind ----------------------------------------------------------------- */

static void have_pages(uint64_t from, uint64_t count)
{
	for (uint64_t k = from; k < from + count; k++) {
		struct index_entry entry = {.key = key_of(k),
			.place = place_make((uint32_t)k & 1, (uint32_t)k & 0xffff),
			.generation = 1,
			.length = 4096};

		assert_true(index_put(node[0].control.index, &entry, NULL) != -ENOMEM);
	}
}

/* Owners that keep up are compared with meanwhile. */
static void an_owner_that_is_behind_stops_no_turn(void **state)
{
	unsigned lost = 0, missing = 0;

	nodes_teardown();
	open_nodes(1, 20000, 2);
	have_pages(0, 20000);
	mute_join();
	assert_true(mute_until(owner_behind(mute_owner()), 5000));
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(mute_until(sees(0, 1), 5000));
	(void)mute_until(false, 3000);
	assert_true(owner_behind(mute_owner()));
	for (unsigned k = 0; k < 50; k++) {
		struct page_key key = key_of(k);

		lost += shard_remove(
			node[1].control.shard, &key, node[0].control.ref, place_make(k & 1, k), 1);
	}
	assert_true(lost > 0);
	node[0].control.directory->move.compare_ns = 0; /* the map changed long ago */
	node[0].control.directory->turn.at_ns = 0;
	(void)mute_until(false, 5000);
	for (unsigned k = 0; k < 50; k++) {
		struct page_key key = key_of(k);
		struct dir_entry found;

		missing += owned_by(node[1].control.ref, k) &&
			   shard_find(node[1].control.shard, &key, &found, 1) == 0;
	}
	assert_true(owner_behind(mute_owner()));
	assert_int_equal(missing, 0);
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define MANY 24

static void few_digests_exist_at_a_time(void **state)
{
	int fd[MANY];
	unsigned most = 0;
	struct owner *owner;
	char name[16];

	nodes_teardown();
	open_nodes(1, 20000, 2);
	for (unsigned k = 0; k < 10; k++)
		node_put(0, k, 1, 3000);
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		fd[i] = raw_open(0);
		raw_hello(fd[i], name, 0x1234567800 + i, (uint16_t)(100 + i), NULL);
	}
	nodes_run(200);
	for (uint32_t i = 0; i < member_map(&node[0].control)->owners; i++)
		directory_forgotten(&node[0].control, member_map(&node[0].control)->owner[i].ref);
	for (unsigned i = 0; i < 500; i++) {
		unsigned now = 0;

		node[0].control.directory->move.compare_ns = 0;
		nodes_turn();
		STAILQ_FOREACH (owner, &node[0].control.directory->owners, next)
			now += owner->digest != NULL;
		most = now > most ? now : most;
	}
	for (unsigned i = 0; i < MANY; i++)
		close(fd[i]);
	assert_in_range(most, 1, COMPARE_OWNERS_MAX);
}

/* ---- questions and answers ------------------------------------------------------------------- */

static void ask(int fd, uint64_t serial)
{
	Pc__DigestAsk body = PC__DIGEST_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.serial = serial;
	message.body_case = PC__MESSAGE__BODY_DIGEST_ASK;
	message.digest_ask = &body;
	raw_message(fd, &message);
}

/* Questions pile up on one link: the last one counts. A link that closes is not answered. */
static void a_further_question_takes_the_place_of_the_first(void **state)
{
	struct directory *dir;
	struct page_key key = key_of(1);

	assert_int_equal(node_open(0, NULL), 0);
	dir = node[0].control.directory;
	mute_join();
	assert_int_equal(shard_insert(node[0].control.shard, &key, 7, 1, 1), 0);
	net_timer_stop(dir->move.timer);
	dir->move.soon = true;
	for (unsigned i = 0; i < 100; i++)
		ask(mute.fd, i);
	assert_true(nodes_until(
		TAILQ_FIRST(&dir->asked) && TAILQ_FIRST(&dir->asked)->serial == 99, 1000));
	assert_null(TAILQ_NEXT(TAILQ_FIRST(&dir->asked), next));
	close(mute.fd);
	mute.fd = 0;
	assert_true(nodes_until(TAILQ_EMPTY(&dir->asked), 1000));
}

/* Publishes overtake removes that are queued for the owner as a former one. */
static void an_owner_that_gets_slots_back_before_removes_of_them_is_repaired(void **state)
{
	struct owner *owner;

	open_with_pages();
	assert_int_equal(node_open(HOLDER + 1, node_at(0)), 0);
	owner = owner_of(holder(), node[0].control.ref);
	assert_true(nodes_until(
		all_agree() && sees(HOLDER, HOLDER + 1) && all_found() && !moves_any(holder()),
		3000));
	owner->in_flight += BATCHES_MAX; /* nothing is sent to it */
	assert_true(nodes_until(owner->queued[DIR_REMOVE] > KEYS / 8, 5000));
	node_close(HOLDER + 1);
	assert_true(nodes_until(owner->queued[DIR_PUBLISH] > KEYS / 8, 200));
	owner->in_flight -= BATCHES_MAX;
	owner_dirty(holder(), owner);
	holder()->turn.at_ns = UINT64_MAX;
	assert_true(nodes_until(settled() && all_found(), 9000));
}

/* HOLDER is done, and the others may publish nothing: a Hello opens a door, which is shut again. */
static bool settled_while_shut(void)
{
	for (unsigned i = 0; i < HOLDER; i++)
		node[i].control.door_shut = true;
	return settled();
}

static void an_owner_that_may_not_publish_answers_a_digest(void **state)
{
	open_with_pages();
	for (unsigned k = 0; k < KEYS; k += 10) {
		struct page_key key = key_of(k);

		for (unsigned n = 0; n < HOLDER; n++)
			(void)shard_remove(node[n].control.shard, &key, node[HOLDER].control.ref,
				place_make(k & 1, k), 1);
	}
	compare_begins();
	assert_true(nodes_until(settled_while_shut(), 5000));
	assert_true(all_found());
}

/* The owner was asked before it forgot our entries. */
static void an_answer_of_before_it_forgot_is_not_believed(void **state)
{
	struct owner *owner;

	open_with_pages();
	owner = owner_of(holder(), node[0].control.ref);
	owner->unsure = true;
	assert_true(nodes_until(owner->digest, 5000));
	directory_forgotten(&node[HOLDER].control, owner->ref);
	assert_null(owner->digest);
	assert_true(owner->unsure && owner->walk.slots);
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(an_owner_that_is_behind_stops_no_turn),
		T(few_digests_exist_at_a_time),
		T(a_further_question_takes_the_place_of_the_first),
		T(an_owner_that_gets_slots_back_before_removes_of_them_is_repaired),
		T(an_owner_that_may_not_publish_answers_a_digest),
		T(an_answer_of_before_it_forgot_is_not_believed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
