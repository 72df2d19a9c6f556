/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clears: of this host, of the cluster, and the sweep of what they leave. A node is one control
 * plane in the test's process; it gets to the clears when the test calls clear_turn().
 */
#include "engine/control/clients/ctl_inner.h"
#include "engine/control/directory/directory.h"
#include "tests/unit/control/agree_world.h"

/* ---- clients of node 0, by ld --wrap --------------------------------------------------------- */

static struct ctl_done answer[CLEARS_MAX + 1]; /* by number of ctl_later() */
static uint32_t laters, answers;

uint32_t __wrap_ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages);
uint32_t __wrap_ctl_later(
	struct ctl *ctl, const struct ctl_channel *c, const struct ctl_op *op, uint32_t pages)
{
	(void)ctl, (void)c, (void)op;
	assert_int_equal(pages, 1);
	return laters++;
}

void __wrap_ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done);
void __wrap_ctl_later_answer(struct ctl *ctl, uint32_t later, const struct ctl_done *done)
{
	assert_true(later < laters);
	answer[later] = *done;
	answers++;
}

static unsigned refused, invalid;
static struct ctl_channel channel;

void __wrap_ctl_answer_now(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_done *done);
void __wrap_ctl_answer_now(struct ctl *ctl, struct ctl_channel *c, const struct ctl_op *op,
	const struct ctl_done *done)
{
	(void)ctl, (void)c, (void)op;
	assert_true(done->status == OP_NO_SPACE || done->status == OP_INVALID);
	invalid += done->status == OP_INVALID;
	refused++;
}

static int begin(void **state)
{
	laters = answers = refused = invalid = 0;
	channel = (struct ctl_channel){0};
	return setup(state);
}

static void client_clears(uint16_t bits, const struct page_key *group, unsigned ms)
{
	const struct ctl_op op = {.kind = CTL_CLEAR, .count = bits, .key = *group};

	clear_serve(&node[0].control, &channel, &op, clock_now_ns() + ms * 1000000ull);
}

/* Key `number` of a group, as clients of node i compute it. */
static struct page_key key_in(unsigned i, uint32_t group, uint64_t number)
{
	const struct epoch epoch = epoch_load(&node[i].control.status->epochs, group);
	struct page_key key = key_of(number);

	key.word[0] = (key.word[0] & ~(PAGE_GROUP_0 | PAGE_EPOCH_0)) | epoch_bits(&epoch) |
		      (uint64_t)(group >> 16) << 40;
	key.word[1] = (key.word[1] & ~PAGE_GROUP_1) | (uint64_t)(group & 0xffff) << 32;
	return key;
}

static struct page_key put(unsigned i, uint32_t group, uint64_t number)
{
	const struct index_entry entry = {.key = key_in(i, group, number), .generation = 1};

	assert_int_equal(index_put(node[i].control.index, &entry, NULL), 0);
	return entry.key;
}

static unsigned kept(unsigned i)
{
	return (unsigned)index_count(node[i].control.index);
}

static void clears_run(unsigned i)
{
	while (clear_turn(&node[i].control))
		;
}

static int end(void **state)
{
	for (unsigned i = 0; i < NODES; i++)
		if (node[i].open)
			clear_close(&node[i].control);
	return teardown(state);
}

/* Two nodes that see each other. */
static void pair_open(int dead_after_ms)
{
	nodes_setup(20, dead_after_ms);
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static void a_clear_of_this_host_takes_the_pages_of_the_group(void **state)
{
	struct page_key group;

	pair_open(300);
	group = put(0, 7, 1);
	put(0, 7, 2);
	put(0, 8, 3);
	put(1, 7, 4);
	client_clears(0, &group, 60000);
	client_clears(CLEAR_ALL, &group, 60000);
	assert_int_equal(answers, 0);
	clears_run(0);
	assert_int_equal(answers, 2);
	assert_int_equal(answer[0].status, OP_HIT);
	assert_int_equal(answer[0].place, 2);
	assert_int_equal(answer[1].place, 1);
	assert_int_equal(kept(0), 0);
	assert_int_equal(kept(1), 1);
}

static void more_clears_than_may_wait_are_refused(void **state)
{
	const struct page_key all = {.word = {0}};

	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i <= CLEARS_MAX; i++)
		client_clears(CLEAR_ALL, &all, 60000);
	assert_int_equal(refused, 1);
	clears_run(0);
	assert_int_equal(answers, CLEARS_MAX);
}

/* Pages of before are swept on all hosts; those of the other group stay. */
static void a_clear_of_the_cluster_ends_when_all_members_have_it(void **state)
{
	struct page_key group;

	pair_open(300);
	for (unsigned i = 0; i < 2; i++) {
		group = put(i, 7, 1);
		put(i, 8, 2);
	}
	client_clears(CLEAR_CLUSTER, &group, 60000);
	assert_int_equal(answers, 0);
	assert_true(nodes_until(answers, 1000));
	assert_int_equal(answer[0].status, OP_HIT);
	assert_int_equal(answer[0].place, 2);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(epoch_past(&node[i].control, &group));
		put(i, 7, 3);
		clears_run(i);
		assert_int_equal(kept(i), 2);
		assert_null(index_find(node[i].control.index, &group));
	}
}

static void a_member_that_has_not_taken_it_at_the_deadline_takes_it_later(void **state)
{
	struct page_key group;

	pair_open(60000);
	group = put(1, 7, 1);
	node[1].stalled = true;
	client_clears(CLEAR_CLUSTER | CLEAR_ALL, &group, 2000);
	nodes_run(1900);
	assert_int_equal(answers, 0);
	assert_true(nodes_until(answers, 300));
	assert_int_equal(answer[0].status, OP_PEER_DOWN);
	assert_int_equal(answer[0].place, 1);
	assert_int_equal(answer[0].generation, 1);
	assert_false(epoch_past(&node[1].control, &group));
	node[1].stalled = false;
	assert_true(nodes_until(epoch_past(&node[1].control, &group), 1000));
}

static void a_member_that_leaves_is_not_waited_for(void **state)
{
	const struct page_key group = key_of(1);

	pair_open(300);
	node[1].stalled = true;
	client_clears(CLEAR_CLUSTER, &group, 60000);
	assert_true(nodes_until(answers, 5000));
	assert_int_equal(answer[0].status, OP_HIT);
	assert_int_equal(answer[0].place, 1);
}

/* The other one has cleared meanwhile, and may have stored pages already. */
static void a_member_with_a_higher_epoch_is_asked_anew(void **state)
{
	struct page_key group, between;
	uint32_t number = 7;

	pair_open(60000);
	group = put(1, 7, 1);
	node[0].stalled = true;
	for (unsigned i = 0; i < 3; i++)
		assert_int_not_equal(epoch_raise(&node[1].control, &number), 0);
	between = put(1, 7, 2);
	client_clears(CLEAR_CLUSTER, &group, 60000);
	node[0].stalled = false;
	assert_true(nodes_until(answers, 2000));
	assert_int_equal(answer[0].status, OP_HIT);
	assert_true(
		epoch_past(&node[0].control, &between) && epoch_past(&node[1].control, &between));
}

static void who_does_not_administer_clears_what_the_setting_says(void **state)
{
	static const unsigned invalid_of[][2] = {[CLIENTS_CLEAR_GROUP] = {0, 2},
		[CLIENTS_CLEAR_NO] = {2, 2},
		[CLIENTS_CLEAR_ALL] = {0, 0}};
	const struct page_key group = key_of(1);
	struct settings changed;

	pair_open(60000);
	changed = *node[0].control.settings;
	node[0].control.settings = &changed;
	channel.restricted = true;
	for (int may = CLIENTS_CLEAR_GROUP; may <= CLIENTS_CLEAR_ALL; may++) {
		changed.engine_clients_clear = may;
		for (uint16_t all = 0; all < 2; all++) {
			invalid = 0;
			client_clears(all * CLEAR_ALL, &group, 60000);
			client_clears((uint16_t)(all * CLEAR_ALL | CLEAR_CLUSTER), &group, 60000);
			assert_int_equal(invalid, invalid_of[may][all]);
		}
	}
	channel.restricted = false;
	changed.engine_clients_clear = CLIENTS_CLEAR_NO;
	client_clears(CLEAR_ALL, &group, 60000);
	assert_int_equal(invalid, 0);
}

/* With a full table, a clear of a further group is one of all. */
static void who_does_not_administer_cannot_fill_the_table_of_groups(void **state)
{
	struct page_key group = {{0, 0}};
	uint32_t full = 0;

	pair_open(60000);
	channel.restricted = true;
	for (uint32_t i = 1; i <= EPOCHS_MAX / 2 + 100; i++) {
		uint32_t before = invalid;

		group.word[1] = (uint64_t)i << 32;
		client_clears(CLEAR_CLUSTER, &group, 60000);
		full += invalid > before;
		if (invalid == before)
			assert_true(epochs_count(&node[0].control.status->epochs) <=
				    EPOCHS_MAX / 2 + 1);
		if (i % 8)
			continue;
		assert_true(nodes_until(answers == laters, 5000));
		laters = answers = 0;
	}
	assert_true(full >= 90);
	assert_int_equal(node[0].control.status->epochs.epoch[0], 0);
	group.word[1] = 1ull << 32; /* it has an epoch already */
	invalid = 0;
	client_clears(CLEAR_CLUSTER, &group, 60000);
	assert_int_equal(invalid, 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_clear_of_this_host_takes_the_pages_of_the_group),
		T(more_clears_than_may_wait_are_refused),
		T(a_clear_of_the_cluster_ends_when_all_members_have_it),
		T(a_member_that_has_not_taken_it_at_the_deadline_takes_it_later),
		T(a_member_that_leaves_is_not_waited_for),
		T(a_member_with_a_higher_epoch_is_asked_anew),
		T(who_does_not_administer_clears_what_the_setting_says),
		T(who_does_not_administer_cannot_fill_the_table_of_groups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
