/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member, played by hand over a raw connection, that sends heartbeats but acknowledges nothing:
 * it must not delay other members, must cost bounded memory, and must receive the skipped publishes
 * once it acknowledges again. A node is one control plane in the test's process.
 */
#include "tests/unit/control/mute_world.h"

#define BOUND (BATCHES_MAX * MESSAGE_PAGES_MAX + OWNER_PUBLISHES_MAX)

/* Adds keys to node 0's index without publishing them to any owner. */
static void have(uint64_t from, uint64_t count)
{
	for (uint64_t k = from; k < from + count; k++) {
		struct index_entry entry = {.key = key_of(k),
			.place = place_make((uint32_t)k & 1, (uint32_t)k & 0xffff),
			.generation = 1,
			.length = 4096};
		struct index_entry *there;

		assert_int_equal(index_put(node[0].control.index, &entry, &there), 0);
	}
}

/* Returns how many of the keys that node `i` owns, by node 0's map, are missing in its shard. */
static unsigned missing_at(unsigned i)
{
	const struct shard *shard = &node[i].control.shard;
	unsigned missing = 0;

	for (uint64_t k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);
		struct dir_entry found;

		missing +=
			owned_by(node[i].control.ref, k) && shard_find(shard, &key, &found, 1) == 0;
	}
	return missing;
}

/* Slots below `end` that the owner lacks. */
static unsigned lacks_below(const struct owner *owner, uint32_t end)
{
	const struct directory *dir = node[0].control.directory;
	unsigned count = 0;
	uint16_t index = 0;

	while (dir->settled->owner[index].ref != owner->ref)
		index++;
	for (uint32_t slot = 0; slot < end; slot++)
		count += lacks_slot(dir, slot, index);
	return count;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void another_member_still_receives_every_publish(void **state)
{
	(void)state;
	open_nodes(1, 20000, 2);
	have(0, KEYS);
	mute_join();
	assert_true(mute_until(mute_owner()->behind, 5000));
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(mute_until(sees(0, 1) && missing_at(1) == 0, 5000));
	/* Node 1 got all its entries, although the mute member lacks its own. */
	assert_true(mute_until(mute_owner()->behind, 1000));
}

static void targets_that_no_client_waits_for_are_bounded(void **state)
{
	const unsigned sets = MESSAGE_PAGES_MAX, rounds = 30;
	uint64_t *counter;
	size_t before = 0;

	(void)state;
	open_nodes(1, 20000, 2);
	counter = node[0].control.counter;
	mute_join();
	for (unsigned round = 0; round < rounds; round++) {
		if (round == 20)
			before = mallinfo2().uordblks;
		publish(round * sets, sets, 20);
		assert_true(mute_until(node[0].dones == (round + 1) * sets, 1000));
		assert_in_range(mute_owner()->background, 0, BOUND);
		assert_in_range(node[0].control.directory->background, 0, BOUND);
	}
	assert_int_equal(node[0].hits, 0);
	assert_int_equal(
		counter[COUNTER_publishes_deferred] + mute_owner()->background, rounds * sets);
	/*
	 * After ten more rounds of 4,096 publishes to the mute member, node 0's memory use has
	 * hardly grown.
	 */
	assert_in_range(mallinfo2().uordblks, 0, before + 1000000);
	/*
	 * A publish of a key that the mute member does not own is not affected: nodes 0 and 1 own
	 * the key.
	 */
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(mute_until(sees(0, 1), 3000));
	for (uint64_t k = 0;; k++) {
		if (owned_by((uint32_t)mute.incarnation, k))
			continue;
		node[0].dones = 0;
		publish(k, 1, 1000);
		assert_true(mute_until(node[0].dones == 1, 900));
		assert_int_equal(node[0].status, OP_HIT);
		break;
	}
}

static void every_skipped_publish_is_sent_once_it_answers(void **state)
{
	(void)state;
	open_nodes(1, 20000, 2);
	mute_join();
	have(0, KEYS);
	for (unsigned from = 0; from < KEYS; from += KEYS / 4)
		publish(from, KEYS / 4, 20);
	/* These keys have no page in node 0's index, so the walk does not publish them again */
	publish(1000000, BOUND, 20);
	assert_true(mute_until(node[0].dones == KEYS + BOUND, 1000));
	assert_true(node[0].control.counter[COUNTER_publishes_deferred] >= KEYS);
	assert_true(mute_owner()->behind);
	mute.answers = true;
	assert_true(mute_until(!mute_owner()->behind && mute_owner()->background == 0, 5000));
	assert_int_equal(missing_at_mute(KEYS), 0);
	assert_int_equal(node[0].control.directory->background, 0);
}

/* Publishes are skipped for keys that the walk for this member has passed already. */
static void publishes_skipped_during_its_own_walk_are_sent_later(void **state)
{
	struct owner *owner;

	(void)state;
	open_nodes(1, 20000, 2);
	have(0, KEYS);
	mute_join();
	owner = mute_owner();
	assert_true(mute_until(owner->behind, 4000)); /* it does not answer a DigestAsk */
	mute.answers = true;
	assert_true(mute_until(owner->behind && owner->walk.slot > MAP_SLOTS / 2, 3000));
	mute.answers = false;
	assert_true(mute_until(owner->background + MOVE_PART > OWNER_WALK_MAX, 1000));
	/*
	 * Reaches the limit of batches in flight to the mute member: no further batch can be sent
	 */
	publish(1000000, BATCHES_MAX * MESSAGE_PAGES_MAX, 20);
	nodes_run(5);
	publish(0, KEYS / 4, 20);
	assert_true(mute_until(node[0].dones == BATCHES_MAX * MESSAGE_PAGES_MAX + KEYS / 4, 1000));
	assert_true(lacks_below(owner, MAP_SLOTS / 4) > KEYS / 20);
	for (uint64_t k = 0; k < KEYS / 4; k++) {
		struct page_key key = key_of(k);

		(void)index_remove(mute.told, &key);
	}
	mute.answers = true;
	assert_true(mute_until(!owner->behind && owner->background == 0, 5000));
	assert_int_equal(missing_at_mute(KEYS), 0);
}

static void removes_beyond_the_limit_are_dropped_and_logged_once(void **state)
{
	const unsigned removes = BATCHES_MAX * MESSAGE_PAGES_MAX + 2 * OWNER_REMOVES_MAX;
	char said[8192], *warned;

	(void)state;
	open_nodes(1, 20000, 2);
	mute_join();
	log_test_capture(said, sizeof(said));
	for (unsigned k = 0; k < removes; k++) {
		struct page_key key = key_of(k);

		directory_remove(
			&node[0].control, &key, &(struct location){.place = 5, .generation = 1});
		if (k % MESSAGE_PAGES_MAX == 0)
			nodes_run(1);
	}
	assert_in_range(mute_owner()->background, OWNER_REMOVES_MAX,
		BATCHES_MAX * MESSAGE_PAGES_MAX + OWNER_REMOVES_MAX);
	assert_int_equal(
		node[0].control.counter[COUNTER_removes_dropped] + mute_owner()->background,
		removes);
	warned = strstr(said, "warn  member mute");
	assert_non_null(warned);
	assert_null(strstr(warned + 1, "warn  member mute"));
}

static unsigned found_of_mute(uint64_t keys, bool want)
{
	unsigned wrong = 0;

	for (uint64_t k = 0; k < keys; k++)
		if (owned_by((uint32_t)mute.incarnation, k))
			wrong += (found_anywhere(0, k) > 0) != want;
	return wrong;
}

static void former_owners_keep_entries_that_it_has_not_acknowledged(void **state)
{
	const unsigned keys = 3000;

	(void)state;
	open_nodes(2, 2500, 1);
	for (unsigned k = 0; k < keys; k++)
		node_put(0, k, 1, 3000);
	assert_true(nodes_until(node[0].hits == keys, 3000));
	assert_true(nodes_until(still(node[0].control.directory), 20000));
	mute_join();
	assert_true(mute_until(mute_owner()->background != 0, 4000));
	(void)mute_until(false, 4000); /* the former owner was compared with meanwhile */
	assert_int_equal(found_of_mute(keys, true), 0);
	mute.answers = true;
	assert_true(mute_until(still(node[0].control.directory), 20000));
	assert_int_equal(missing_at_mute(keys), 0);
	assert_int_equal(found_of_mute(keys, false), 0);
}

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(another_member_still_receives_every_publish),
		T(targets_that_no_client_waits_for_are_bounded),
		T(every_skipped_publish_is_sent_once_it_answers),
		T(publishes_skipped_during_its_own_walk_are_sent_later),
		T(removes_beyond_the_limit_are_dropped_and_logged_once),
		T(former_owners_keep_entries_that_it_has_not_acknowledged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
