/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Publishing, removing and forgetting entries at their owners: results, deadlines, conditions. A
 * node is one control plane in the test's process.
 */
#include "tests/unit/control/test_rpc_nodes.h"

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/control/directory/directory_state.h"
#include "engine/control/pages/pages.h"
#include "numa/clock.h"

#define KEYS 500

static unsigned open_count;

static void open_nodes(unsigned count, int dead_after_ms)
{
	nodes_setup(20, dead_after_ms);
	open_count = count;
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static int teardown(void **state)
{
	nodes_teardown();
	return 0;
}

/* True if node `owner` is an owner of the key with this number, by node 0's map. */
static bool owns(unsigned owner, uint64_t number)
{
	const struct map_view *map = member_map(&node[0].control);
	struct page_key key = key_of(number);
	uint32_t at[REPLICAS_MAX];
	unsigned owners = map_owners(map, &key, at);

	for (unsigned i = 0; i < owners; i++)
		if (map->owner[at[i]].ref == node[owner].control.ref)
			return true;
	return false;
}

static uint64_t owned_by(unsigned owner, uint64_t from)
{
	while (!owns(owner, from))
		from++;
	return from;
}

/* ---- results --------------------------------------------------------------------------------- */

static void alone_the_answer_comes_with_the_flush_and_not_before(void **state)
{
	open_nodes(1, 300);
	node_put(0, 1, 1, 1000);
	assert_int_equal(node[0].dones, 0);
	directory_flush(&node[0].control);
	assert_int_equal(node[0].dones, 1);
	assert_int_equal(node[0].status, OP_HIT);
	assert_int_equal(found_at_owners(0, 0, 1), 1);
}

static void a_publish_is_answered_when_every_owner_has_it(void **state)
{
	open_nodes(3, 300);
	for (unsigned i = 0; i < 3; i++)
		for (unsigned k = 0; k < KEYS; k++)
			node_put(i, i * KEYS + k, 1, 3000);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(nodes_until(node[i].dones == KEYS, 3000));
		assert_int_equal(node[i].hits, KEYS);
	}
	for (unsigned k = 0; k < 3 * KEYS; k++)
		for (unsigned reader = 0; reader < 3; reader++)
			assert_int_equal(found_at_owners(reader, k / KEYS, k), 2);
}

static void all_keys_are_answered_when_there_are_more_than_the_batches_in_flight_hold(void **state)
{
	const unsigned keys = (BATCHES_MAX + 3) * MESSAGE_PAGES_MAX;

	open_nodes(2, 2000);
	for (unsigned k = 0; k < keys; k++) {
		struct page_key key = key_of(k);

		directory_publish(&node[0].control, &key,
			&(struct location){.place = 0, .generation = 1},
			&(struct waiter){.deadline_ns = clock_now_ns() + 10000000000ull,
				.done = node_done,
				.context = &node[0],
				.cookie = k});
	}
	directory_flush(&node[0].control);
	assert_int_equal(owner_at(node[0].control.directory, 1)->in_flight, BATCHES_MAX);
	assert_true(nodes_until(node[0].dones == keys, 10000));
	/* the shards hold fewer entries than that: new ones take the room of others */
	assert_int_equal(node[0].hits, keys);
	assert_true(node[1].control.shard->entries < keys);
	assert_int_equal(node[0].control.directory->background, 0);
}

/* A set does not fail because a shard is full: its page is found, and another one is not. */
static void a_full_shard_has_the_newest_pages(void **state)
{
	struct control *full;
	unsigned found = 0;
	uint64_t number = 0, refused = 0;

	open_nodes(2, 300);
	full = &node[1].control;
	while (refused < 5000) {
		struct page_key key = key_of(1000000 + number++);

		refused += shard_insert(full->shard, &key, full->ref, 0, 1) != 0;
	}
	for (unsigned k = 0; k < KEYS; k++)
		node_put(0, k, 1, 1000);
	assert_true(nodes_until(node[0].dones == KEYS, 2000));
	assert_int_equal(node[0].hits, KEYS);
	assert_true(full->counter[COUNTER_entries_dropped] > KEYS / 2);
	assert_int_equal(node[0].control.counter[COUNTER_sets_partial], 0);

	/* the other owner leaves: the only owner left is the node whose shard is full */
	node_close(0);
	assert_true(nodes_until(sees_count(1, 1), 1000));
	for (unsigned k = 0; k < KEYS; k++)
		node_put(1, 5000000 + k, 1, 1000);
	assert_true(nodes_until(node[1].dones == KEYS, 2000));
	assert_int_equal(node[1].hits, KEYS);
	for (unsigned k = 0; k < KEYS; k++)
		found += found_at_owners(1, 1, 5000000 + k);
	assert_true(found > KEYS / 2);

	/* what no client waits for, such as repair, displaces nothing */
	for (unsigned k = 0; k < 20 * KEYS; k++) {
		struct page_key key = key_of(6000000 + k);

		directory_publish(full, &key,
			&(struct location){.place = place_make(0, 1), .generation = 1}, NULL);
	}
	nodes_run(200);
	for (unsigned k = 0; k < KEYS; k++)
		found -= found_at_owners(1, 1, 5000000 + k);
	assert_int_equal(found, 0);
}

static void at_the_deadline_the_answer_is_timeout_and_the_entry_still_arrives(void **state)
{
	uint64_t number, from;

	open_nodes(2, 5000);
	number = owned_by(1, 0);
	node[1].stalled = true;
	from = clock_now_ns();
	node_put(0, number, 1, 100);
	node_put(0, owned_by(1, number + 1), 1, 50);
	/*
	 * Each publish ends soon after its own deadline (50 and 100 ms), long before node 1 is
	 * declared dead.
	 */
	assert_true(nodes_until(node[0].dones >= 1, 500));
	assert_in_range((clock_now_ns() - from) / 1000000, 50, 60 + DUE_LOOK_MS);
	assert_true(nodes_until(node[0].dones == 2, 500));
	assert_in_range((clock_now_ns() - from) / 1000000, 100, 110 + DUE_LOOK_MS);
	assert_int_equal(node[0].status, OP_TIMEOUT);
	assert_int_equal(node[0].hits, 0);
	node[1].stalled = false;
	assert_true(nodes_until(found_at_owners(0, 0, number) == 2, 2000));
	nodes_run(100);
	assert_int_equal(node[0].dones, 2);
}

static unsigned wrong_times;

/* Callback of publishes, which pass their deadline as `cookie`. */
static void note_time(void *context, uint64_t cookie, enum op_status status)
{
	uint64_t now_ns = clock_now_ns();

	wrong_times += status != OP_TIMEOUT || now_ns < cookie ||
		       now_ns > cookie + (DUE_LOOK_MS + 10) * 1000000ull;
	node_done(context, cookie, status);
}

static void publishes_to_late_owners_end_soon_after_their_deadlines(void **state)
{
	const unsigned count = 2 * DUE_LOOKS + 1; /* several looks for all */
	uint64_t now_ns;

	open_nodes(2, 5000);
	node[1].stalled = true;
	now_ns = clock_now_ns();
	wrong_times = 0;
	srandom(7);
	for (unsigned k = 0; k < count; k++) {
		struct page_key key = key_of(k);
		uint64_t deadline_ns = now_ns + 50000000 + (uint64_t)random() % 200000000;

		directory_publish(&node[0].control, &key,
			&(struct location){.place = 0, .generation = 1},
			&(struct waiter){.deadline_ns = deadline_ns,
				.done = note_time,
				.context = &node[0],
				.cookie = deadline_ns});
	}
	assert_true(nodes_until(node[0].dones == count, 3000));
	assert_int_equal(wrong_times, 0);
}

/* After a warm restart it has its old ref: the set waits for it as for any new owner. */
static void an_owner_that_is_back_at_once_gets_the_publish_again(void **state)
{
	struct control *control = &node[0].control;
	struct member *member;
	uint64_t number;

	open_nodes(2, 5000);
	number = owned_by(1, 0);
	node[1].stalled = true;
	node_put(0, number, 1, 4000);
	nodes_run(20);
	member = member_peer(control, member_by_ref(control, node[1].control.ref)->peer);
	member_take_off_map(control, member, "test");
	assert_int_equal(member_put_on_map(control, member), 0);
	nodes_run(200);
	assert_int_equal(node[0].dones, 0);
	node[1].stalled = false;
	assert_true(nodes_until(node[0].dones == 1, 1000));
	assert_int_equal(node[0].hits, 1);
	assert_int_equal(found_at_owners(0, 0, number), 2);
}

static void an_owner_that_dies_during_a_publish_is_replaced(void **state)
{
	open_nodes(4, 300);
	node[3].stalled = true;
	for (unsigned k = 0; k < KEYS; k++)
		node_put(0, k, 1, 5000);
	nodes_run(20);
	/* some keys are not answered yet, because their owner node 3 does not answer */
	assert_in_range(node[0].dones, 1, KEYS - 1);
	/* they are as soon as it is suspect, before it is dead */
	assert_true(nodes_until(node[0].dones == KEYS, 100));
	assert_int_equal(node[0].hits, KEYS);
	assert_true(sees(0, 3));
	assert_true(nodes_until(sees_count(0, 3), 3000));
	node_close(3);
	nodes_run(200);
	for (unsigned k = 0; k < KEYS; k++)
		assert_int_equal(found_at_owners(0, 0, k), 2);
}

/* A link that is only looked at must become idle: see member_demand_tick(). */
static void an_owner_without_items_does_not_use_its_link(void **state)
{
	struct member_contact *contact;
	struct directory *dir;

	open_nodes(2, 1000);
	dir = node[0].control.directory;
	contact = member_table_ref(&node[0].control.members->table, node[1].control.ref)->contact;
	contact->used_ns = 1;
	owner_dirty(dir, owner_of(dir, node[1].control.ref));
	directory_flush(&node[0].control);
	assert_int_equal(contact->used_ns, 1);
	node_put(0, owned_by(1, 0), 1, 5000);
	directory_flush(&node[0].control);
	assert_true(contact->used_ns > 1);
}

static void a_link_that_breaks_during_a_publish_loses_no_entry(void **state)
{
	open_nodes(2, 1000);
	for (unsigned round = 0; round < 10; round++) {
		struct rpc_link *link = member_link(&node[0].control, node[1].control.ref);

		for (unsigned k = 0; k < KEYS; k++)
			node_put(0, round * KEYS + k, 1, 5000);
		directory_flush(&node[0].control);
		if (round & 1)
			event_base_loop(node[0].control.base, EVLOOP_NONBLOCK);
		assert_non_null(link);
		rpc_link_close(link);
		assert_true(nodes_until(node[0].dones == (round + 1) * KEYS, 3000));
	}
	assert_int_equal(node[0].hits, 10 * KEYS);
	assert_int_equal(node[0].control.counter[COUNTER_members_died], 0);
	for (unsigned k = 0; k < 10 * KEYS; k++)
		assert_int_equal(found_at_owners(1, 0, k), 2);
}

static void closing_answers_each_open_claim_once(void **state)
{
	open_nodes(2, 5000);
	node[1].stalled = true;
	for (unsigned k = 0; k < KEYS; k++)
		node_put(0, k, 1, 60000);
	nodes_run(20);
	node_close(0);
	assert_int_equal(node[0].dones, KEYS);
	assert_int_equal(node[0].status, OP_CANCELLED);
}

/* ---- removing -------------------------------------------------------------------------------- */

static void a_late_remove_never_removes_a_newer_entry(void **state)
{
	struct page_key key = key_of(5);
	uint32_t place = place_make(1, 5);

	open_nodes(3, 300);
	node_put(0, 5, 1, 1000);
	assert_true(nodes_until(node[0].dones == 1, 1000));
	node_put(0, 5, 2, 1000);
	directory_remove(
		&node[0].control, &key, &(struct location){.place = place, .generation = 1});
	assert_true(nodes_until(node[0].dones == 2, 1000));
	nodes_run(50);
	assert_int_equal(found_at_owners(0, 0, 5), 2);
	index_remove(node[0].control.index, &key);
	directory_remove(
		&node[0].control, &key, &(struct location){.place = place, .generation = 2});
	assert_true(nodes_until(node[0].control.directory->background == 0, 1000));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(node[i].control.shard->entries, 0);
}

static void published_and_removed_in_one_turn_is_removed(void **state)
{
	open_nodes(3, 300);
	for (unsigned k = 0; k < KEYS; k++) {
		struct page_key key = key_of(k);

		node_put(0, k, 1, 1000);
		index_remove(node[0].control.index, &key);
		directory_remove(&node[0].control, &key,
			&(struct location){
				.place = place_make(k & 1, k & 0xffff), .generation = 1});
	}
	assert_true(nodes_until(node[0].dones == KEYS, 1000));
	assert_true(nodes_until(node[0].control.directory->background == 0, 1000));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(node[i].control.shard->entries, 0);
}

static void a_reported_entry_is_removed_unless_it_is_correct(void **state)
{
	struct page_key key = key_of(9);
	uint32_t place = place_make(1, 9);
	struct dir_entry found;
	unsigned own;

	open_nodes(3, 300);
	node_put(0, 9, 4, 1000);
	assert_true(nodes_until(node[0].dones == 1, 1000));
	/* The report names another generation than the entry has, so the entry stays. */
	directory_stale(&node[1].control, &key,
		&(struct location){.ref = node[0].control.ref, .place = place, .generation = 3});
	/*
	 * The stale entry is reported at its holder, node 0, whose index shows that the entry is
	 * correct.
	 */
	directory_stale(&node[0].control, &key,
		&(struct location){.ref = node[0].control.ref, .place = place, .generation = 4});
	nodes_run(50);
	assert_int_equal(found_at_owners(0, 0, 9), 2);
	directory_stale(&node[1].control, &key,
		&(struct location){.ref = node[0].control.ref, .place = place, .generation = 4});
	/* other owners cannot know that the report is wrong; node 0, if it is one, does */
	own = shard_find(node[0].control.shard, &key, &found, 1);
	assert_true(nodes_until(found_anywhere(0, 9) == own, 1000));
	nodes_run(50);
	assert_int_equal(found_anywhere(0, 9), own);
	assert_int_equal(node[0].control.counter[COUNTER_entries_stale], 0);
	assert_int_equal(node[1].control.counter[COUNTER_entries_stale], 2);
}

static void forget_reaches_every_member_that_has_the_page(void **state)
{
	struct page_key key = key_of(3), unknown = key_of(4);
	uint64_t soon;

	open_nodes(4, 300);
	for (unsigned i = 0; i < 3; i++)
		node_put(i, 3, 1, 1000);
	for (unsigned i = 0; i < 3; i++)
		assert_true(nodes_until(node[i].dones == 1, 1000));
	soon = clock_now_ns() + 1000000000;
	directory_forget(&node[3].control, &key,
		&(struct waiter){
			.deadline_ns = soon, .done = node_done, .context = &node[3], .cookie = 0});
	directory_forget(&node[3].control, &unknown,
		&(struct waiter){
			.deadline_ns = soon, .done = node_done, .context = &node[3], .cookie = 0});
	assert_true(nodes_until(node[3].dones == 2, 1000));
	assert_int_equal(node[3].hits, 1);
	assert_int_equal(node[3].status == OP_MISS || node[3].status == OP_HIT, 1);
	for (unsigned i = 0; i < 3; i++)
		assert_null(index_find(node[i].control.index, &key));
	nodes_run(100);
	for (unsigned i = 0; i < 4; i++) {
		struct dir_entry found[8];

		assert_int_equal(shard_find(node[i].control.shard, &key, found, 8), 0);
	}
	/* The page that node 3 itself holds is forgotten as well. */
	node_put(3, 3, 2, 1000);
	directory_forget(&node[3].control, &key,
		&(struct waiter){
			.deadline_ns = soon, .done = node_done, .context = &node[3], .cookie = 0});
	assert_true(nodes_until(node[3].dones == 4, 1000));
	assert_int_equal(node[3].hits, 3);
	/* So is an entry that names a member which has left. */
	nodes_run(100);
	assert_int_equal(shard_insert(node[2].control.shard, &key, 77, 5, 1), 0);
	directory_forget(&node[3].control, &key,
		&(struct waiter){.deadline_ns = clock_now_ns() + 1000000000,
			.done = node_done,
			.context = &node[3],
			.cookie = 0});
	assert_true(nodes_until(node[3].dones == 5, 1000));
	assert_int_equal(node[2].control.shard->entries, 0);
}

/* It may come back with the page. */
static void a_forget_does_not_wait_for_a_dead_member_and_is_unreachable(void **state)
{
	struct page_key key = key_of(3);

	open_nodes(3, 300);
	node[2].stalled = true;
	directory_forget(&node[0].control, &key,
		&(struct waiter){.deadline_ns = clock_now_ns() + 3000000000,
			.done = node_done,
			.context = &node[0],
			.cookie = 0});
	assert_true(nodes_until(node[0].dones == 1, 2000));
	assert_int_equal(node[0].status, OP_PEER_DOWN);
}

static void reports_reach_the_node_that_has_the_page(void **state)
{
	struct page_report report = {.key = {{1, 2}}, .place = place_make(1, 77), .generation = 9};

	open_nodes(2, 300);
	/* neither a rail that node 1 has not, nor an unknown member */
	report.place = place_make(2, 5);
	directory_report(&node[0].control, node[1].control.ref, &report);
	report.place = place_make(1, 77);
	directory_report(&node[0].control, 12345, &report);
	/* of more than REPORTS_MAX at one time, the rest is dropped */
	for (unsigned i = 0; i < REPORTS_MAX + 5; i++) {
		report.generation = 100 + i;
		directory_report(&node[0].control, node[1].control.ref, &report);
	}
	assert_true(nodes_until(node[1].reports > 0, 1000));
	assert_int_equal(node[1].reports, REPORTS_MAX);
	assert_int_equal(node[1].reported.place, place_make(1, 77));
	assert_int_equal(node[1].reported.generation, 100 + REPORTS_MAX - 1);
	assert_true(page_key_equal(&node[1].reported.key, &report.key));
	/* there is room again */
	directory_report(&node[0].control, node[1].control.ref, &report);
	assert_true(nodes_until(node[1].reports == REPORTS_MAX + 1, 1000));
	assert_int_equal(node[0].reports, 0);
	assert_int_equal(node[1].control.counter[COUNTER_messages_bad], 0);
}

static void touches_reach_the_node_that_has_the_page(void **state)
{
	open_nodes(2, 300);
	directory_touch(&node[0].control, node[1].control.ref, place_make(1, 77));
	directory_touch(&node[0].control, node[0].control.ref, place_make(0, 5));
	/* A touch of a page on rail 2 of node 1 is ignored: that rail does not exist */
	directory_touch(&node[0].control, node[1].control.ref, place_make(2, 5));
	/* a touch of a page of an unknown member: no member has this ref */
	directory_touch(&node[0].control, 12345, 5);
	assert_true(nodes_until(node[1].touches == 1, 1000));
	assert_int_equal(node[1].touched, place_make(1, 77));
	assert_int_equal(node[1].control.counter[COUNTER_pages_used_remotely], 1);
	assert_int_equal(node[0].touches, 1);
	for (unsigned i = 0; i < 3 * MESSAGE_PAGES_MAX + 5; i++)
		directory_touch(&node[0].control, node[1].control.ref, i);
	assert_true(nodes_until(node[1].touches == 3 * MESSAGE_PAGES_MAX + 6, 1000));
	assert_int_equal(node[1].control.counter[COUNTER_messages_bad], 0);
}

static void evict(unsigned holder, uint64_t number, enum evicted from)
{
	struct page_key key = key_of(number);

	index_remove(node[holder].control.index, &key);
	directory_evicted(&node[holder].control, &key,
		&(struct location){
			.place = place_make((uint32_t)number & 1, (uint32_t)number & 0xffff),
			.generation = 1},
		from);
}

static void the_host_that_stores_an_evicted_page_again_learns_it(void **state)
{
	/* Both nodes own each key: one answer comes from the own shard, one from the other node. */
	open_nodes(2, 300);
	for (uint64_t k = 0; k < 4; k++)
		node_put(0, k, 1, 1000);
	assert_true(nodes_until(node[0].dones == 4, 1000));
	assert_int_equal(node[0].agains, 0);
	evict(0, 0, EVICTED_NOT);
	evict(0, 1, EVICTED_NEW);
	evict(0, 2, EVICTED_USED);
	evict(0, 3, EVICTED_NEW);
	assert_true(nodes_until(node[0].control.directory->background == 0, 1000));
	for (uint64_t k = 0; k < 4; k++)
		node_put(1, k, 1, 1000);
	assert_true(nodes_until(node[1].agains == 6, 1000));
	/* of the own shard as they are stored, of the other one the last of the batch first */
	for (unsigned i = 0; i < 6; i++) {
		static const uint32_t number[] = {1, 2, 3, 3, 2, 1};

		assert_int_equal(node[1].again_place[i], place_make(number[i] & 1, number[i]));
		assert_int_equal(
			node[1].again_from[i], number[i] == 2 ? EVICTED_USED : EVICTED_NEW);
	}
	assert_int_equal(node[0].agains, 0);
	/* the ghosts are used up */
	evict(1, 0, EVICTED_NOT);
	evict(1, 1, EVICTED_NOT);
	assert_true(nodes_until(node[1].control.directory->background == 0, 1000));
	node_put(0, 1, 1, 1000);
	node_put(0, 0, 1, 1000);
	assert_true(nodes_until(node[0].dones == 6, 1000));
	assert_int_equal(node[0].agains, 0);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	assert_int_equal(node[1].control.counter[COUNTER_messages_bad], 0);
}

/* Both hosts own each key. Its first owner, which may be either of them, says it. */
static void the_host_that_stores_a_page_of_another_one_learns_that_it_is_a_copy(void **state)
{
	const struct location moved = {.place = place_make(0, 7), .generation = 2};
	struct page_key key = key_of(1);

	open_nodes(2, 300);
	for (uint64_t k = 0; k < 16; k++)
		node_put(0, k, 1, 1000);
	assert_true(nodes_until(node[0].dones == 16, 1000));
	for (uint64_t k = 0; k < 8; k++)
		node_put(1, k, 1, 1000);
	assert_true(nodes_until(node[1].dones == 8, 1000));
	assert_int_equal(node[0].agains, 0);
	assert_int_equal(node[1].agains, 8);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(node[1].again_from[i], EVICTED_COPY);
	/* not of what it shows once more, and not beside a page that is on disk only */
	key = key_of(20);
	directory_publish(&node[0].control, &key,
		&(struct location){.place = PLACE_DISK << 28 | 3, .generation = 1}, NULL);
	assert_true(nodes_until(node[0].control.directory->background == 0, 1000));
	node_put(1, 20, 1, 1000);
	assert_true(nodes_until(node[1].dones == 9, 1000));
	key = key_of(1);
	directory_publish(&node[1].control, &key, &moved, NULL);
	assert_true(nodes_until(node[1].control.directory->background == 0, 1000));
	assert_int_equal(node[1].agains, 8);
	/* the copy that goes leaves no ghost: the page is still there */
	evict(1, 0, EVICTED_NEW);
	assert_true(nodes_until(node[1].control.directory->background == 0, 1000));
	evict(0, 0, EVICTED_NOT);
	assert_true(nodes_until(node[0].control.directory->background == 0, 1000));
	node_put(0, 0, 1, 1000);
	assert_true(nodes_until(node[0].dones == 17, 1000));
	assert_int_equal(node[0].agains, 0);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	assert_int_equal(node[1].control.counter[COUNTER_messages_bad], 0);
}

#define T(name) cmocka_unit_test_teardown(name, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(alone_the_answer_comes_with_the_flush_and_not_before),
		T(a_publish_is_answered_when_every_owner_has_it),
		T(all_keys_are_answered_when_there_are_more_than_the_batches_in_flight_hold),
		T(a_full_shard_has_the_newest_pages),
		T(at_the_deadline_the_answer_is_timeout_and_the_entry_still_arrives),
		T(publishes_to_late_owners_end_soon_after_their_deadlines),
		T(an_owner_that_is_back_at_once_gets_the_publish_again),
		T(an_owner_that_dies_during_a_publish_is_replaced),
		T(a_link_that_breaks_during_a_publish_loses_no_entry),
		T(closing_answers_each_open_claim_once),
		T(a_late_remove_never_removes_a_newer_entry),
		T(published_and_removed_in_one_turn_is_removed),
		T(a_reported_entry_is_removed_unless_it_is_correct),
		T(forget_reaches_every_member_that_has_the_page),
		T(an_owner_without_items_does_not_use_its_link),
		T(a_forget_does_not_wait_for_a_dead_member_and_is_unreachable),
		T(reports_reach_the_node_that_has_the_page),
		T(touches_reach_the_node_that_has_the_page),
		T(the_host_that_stores_an_evicted_page_again_learns_it),
		T(the_host_that_stores_a_page_of_another_one_learns_that_it_is_a_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
