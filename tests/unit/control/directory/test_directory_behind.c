/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member, played by hand over a raw connection, that sends heartbeats but acknowledges nothing:
 * it must not delay other members, must cost bounded memory, and must receive the skipped publishes
 * once it acknowledges again. A node is one control plane in the test's process.
 */
#include "tests/unit/control/directory/mute_world.h"

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
	const struct shard *shard = node[i].control.shard;
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

	for (uint32_t slot = 0; slot < end; slot++)
		count += lacks_slot(dir, slot, owner->ref);
	return count;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void another_member_still_receives_every_publish(void **state)
{
	open_nodes(1, 20000, 2);
	have(0, KEYS);
	mute_join();
	assert_true(mute_until(owner_behind(mute_owner()), 5000));
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(mute_until(sees(0, 1) && missing_at(1) == 0, 5000));
	/* Node 1 got all its entries, although the mute member lacks its own. */
	assert_true(mute_until(owner_behind(mute_owner()), 1000));
}

static void targets_that_no_client_waits_for_are_bounded(void **state)
{
	const unsigned sets = MESSAGE_PAGES_MAX, rounds = 30;
	uint64_t *counter;
	size_t before = 0;

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
	open_nodes(1, 20000, 2);
	mute_join();
	have(0, KEYS);
	for (unsigned from = 0; from < KEYS; from += KEYS / 4)
		publish(from, KEYS / 4, 20);
	/* These keys have no page in node 0's index, so the walk does not publish them again */
	publish(1000000, BOUND, 20);
	assert_true(mute_until(node[0].dones == KEYS + BOUND, 1000));
	assert_true(node[0].control.counter[COUNTER_publishes_deferred] >= KEYS);
	assert_true(owner_behind(mute_owner()));
	mute.answers = true;
	assert_true(mute_until(mute_all_sent(), 5000));
	assert_int_equal(missing_at_mute(KEYS), 0);
	assert_int_equal(node[0].control.directory->background, 0);
}

/* Publishes are skipped for keys that the walk for this member has passed already. */
static void publishes_skipped_during_its_own_walk_are_sent_later(void **state)
{
	struct owner *owner;

	open_nodes(1, 20000, 2);
	have(0, KEYS);
	mute_join();
	owner = mute_owner();
	assert_true(mute_until(owner_behind(owner), 4000));
	mute.answers = true;
	assert_true(mute_until(owner_behind(owner) && owner->walk.slot > MAP_SLOTS / 2, 3000));
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
	assert_true(mute_until(mute_all_sent(), 5000));
	assert_int_equal(missing_at_mute(KEYS), 0);
}

/* No further publish to the mute member can be sent or queued. */
static void fill_limit(void)
{
	unsigned before = node[0].dones;

	publish(1000000, BOUND, 20);
	assert_true(mute_until(node[0].dones == before + BOUND, 1000));
	assert_true(owner_full(node[0].control.directory, mute_owner(), DIR_PUBLISH));
}

#define SLOT 1234u
#define SLOT_KEYS 6000u /* more than a walk reads at a time, and than it may have unacknowledged */

static struct page_key slot_key(uint64_t k)
{
	struct page_key key = key_of(k);

	key.word[1] = (key.word[1] & UINT64_MAX >> 16) | (uint64_t)SLOT << 48;
	return key;
}

/* The page is in memory now, with this generation; it is published if `deadline_ms` is not 0. */
static void slot_put(uint64_t k, uint32_t generation, unsigned deadline_ms)
{
	struct index_entry *there;
	struct index_entry entry = {.key = slot_key(k),
		.place = place_make(0, (uint32_t)k),
		.generation = generation,
		.length = 4096};

	assert_int_not_equal(index_put(node[0].control.index, &entry, &there), -ENOMEM);
	there->generation = generation;
	if (deadline_ms)
		publish_one(&entry.key, entry.place, generation, deadline_ms);
}

/* All pages of a slot are replaced while its walk is in the midst of it, and nothing is sent. */
static void publishes_skipped_in_the_slot_of_its_walk_are_sent_later(void **state)
{
	struct owner *owner;

	open_nodes(1, 20000, 2);
	for (uint64_t k = 0; k < SLOT_KEYS; k++)
		slot_put(k, 1, 0);
	mute_join();
	owner = mute_owner();
	assert_true(mute_until(owner->walk.at != 0 && owner_behind(owner), 5000));
	assert_int_equal(owner->walk.slot, SLOT);
	assert_in_range(owner->background, OWNER_WALK_MAX / 2, OWNER_WALK_MAX);
	fill_limit();
	node[0].dones = 0;
	for (uint64_t k = 0; k < SLOT_KEYS; k++)
		slot_put(k, 2, 20);
	assert_true(mute_until(node[0].dones == SLOT_KEYS, 1000));
	mute.answers = true;
	assert_true(mute_until(mute_all_sent(), 5000));
	for (uint64_t k = 0; k < SLOT_KEYS; k++) {
		struct page_key key = slot_key(k);
		const struct index_entry *told = index_find(mute.told, &key);

		assert_non_null(told);
		assert_int_equal(told->generation, 2);
	}
}

/*
 * The mute member has all entries, and node 0 has asked it. Returns the digests of node 0's
 * entries, MAP_SLOTS; the caller frees them.
 */
static uint64_t *digest_asked(void)
{
	struct directory *dir;
	uint64_t *sums;

	open_nodes(1, 20000, 2);
	dir = node[0].control.directory;
	have(0, KEYS);
	mute_join();
	mute.answers = mute.no_digests = true;
	assert_true(mute_until(missing_at_mute(KEYS) == 0 && mute_all_sent(), 5000));
	mute.answers = false;
	dir->move.compare_ns = 0;
	assert_true(mute_until(mute_owner()->digest && mute_owner()->digest->counted, 1500));
	index_close(mute.told);
	assert_int_equal(index_open(KEYS, &mute.told), 0);
	sums = malloc(MAP_SLOTS * sizeof(*sums));
	assert_non_null(sums);
	memcpy(sums, mute_owner()->digest->differ, MAP_SLOTS * sizeof(*sums));
	return sums;
}

/*
 * It has all entries but those that were published while it was asked, and skipped. Its digest is
 * equal to the one that node 0 had computed before.
 */
static void publishes_skipped_before_its_digest_comes_are_sent_later(void **state)
{
	const unsigned added = 50;
	uint64_t serial, *sums;

	sums = digest_asked();
	serial = mute_owner()->digest->serial;
	fill_limit();
	have(KEYS, added);
	node[0].dones = 0;
	publish(KEYS, added, 20);
	assert_true(mute_until(node[0].dones == added, 100));
	assert_int_equal(mute_owner()->digest->serial, serial);
	mute.answers = true;
	digest_send(serial, sums);
	assert_true(mute_until(mute_all_sent(), 5000));
	/* of the entries that are equal, most were not sent again */
	assert_in_range(missing_at_mute(KEYS), KEYS / 2, KEYS);
	assert_int_equal(missing_at_mute(KEYS + added) - missing_at_mute(KEYS), 0);
	free(sums);
}

static void an_answer_to_another_question_is_not_believed(void **state)
{
	uint64_t *sums;

	sums = digest_asked();
	digest_send(mute_owner()->digest->serial - 1, sums);
	assert_false(mute_until(!mute_owner()->digest || mute_owner()->digest->answered, 200));
	digest_send(mute_owner()->digest->serial, sums);
	assert_true(mute_until(!mute_owner()->digest, 200));
	free(sums);
}

/* Its walk makes up for what it lacks; a comparison would only add to what it does not read. */
static void it_is_not_compared_with_while_it_is_behind(void **state)
{
	struct directory *dir;

	open_nodes(1, 20000, 2);
	dir = node[0].control.directory;
	have(0, KEYS);
	mute_join();
	assert_true(mute_until(owner_behind(mute_owner()), 1000));
	mute_owner()->unsure = true;
	dir->move.compare_ns = 0;
	for (unsigned n = 0; n < 50; n++) {
		move_slice(dir);
		nodes_run(1);
	}
	assert_false(suspect_steers(mute_owner()->why));
	assert_true(clock_now_ns() >= dir->move.compare_ns);
	assert_true(mute_owner()->unsure);
	assert_null(mute_owner()->digest);
	mute.answers = true;
	assert_true(mute_until(!mute_owner()->unsure, 60000));
	assert_false(owner_behind(mute_owner()));
}

static void removes_beyond_the_limit_are_dropped_and_logged_once(void **state)
{
	const unsigned removes = BATCHES_MAX * MESSAGE_PAGES_MAX + 2 * OWNER_REMOVES_MAX;
	char said[8192], *warned;

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

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(another_member_still_receives_every_publish),
		T(targets_that_no_client_waits_for_are_bounded),
		T(every_skipped_publish_is_sent_once_it_answers),
		T(publishes_skipped_during_its_own_walk_are_sent_later),
		T(publishes_skipped_in_the_slot_of_its_walk_are_sent_later),
		T(publishes_skipped_before_its_digest_comes_are_sent_later),
		T(an_answer_to_another_question_is_not_believed),
		T(it_is_not_compared_with_while_it_is_behind),
		T(removes_beyond_the_limit_are_dropped_and_logged_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
