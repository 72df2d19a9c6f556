/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs: how they spread, and the door of an engine that has not heard what was cleared. A node is
 * one control plane in the test's process.
 */
#include "engine/control/directory/directory.h"
#include "tests/unit/control/agree_world.h"

#define DEAD_MS 1000
#define GROUP 7u

static int begin(void **state)
{
	setup(state);
	nodes_setup(20, DEAD_MS);
	return 0;
}

static void open_nodes(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static struct epoch epoch_at(unsigned i, uint32_t group)
{
	return epoch_load(&node[i].control.status->epochs, group);
}

static bool has(unsigned i, uint32_t group, uint64_t epoch)
{
	return epoch_at(i, group).group == epoch;
}

/* A key of the group as clients of node i compute it. */
static struct page_key key_in(unsigned i, uint32_t group)
{
	const struct epoch epoch = epoch_at(i, group);
	const struct page_key key = {
		.word = {(uint64_t)(group >> 16) << 40 | epoch_bits(&epoch) | 1,
			(uint64_t)(group & 0xffff) << 32}};

	assert_int_equal(epoch_group(&key), group);
	return key;
}

static void what_one_raises_all_have(void **state)
{
	struct page_key before, other;
	uint64_t epoch;

	open_nodes(3);
	before = key_in(1, GROUP);
	other = key_in(1, GROUP + 1);
	epoch = epoch_raise(&node[0].control, &(uint32_t){GROUP});
	assert_int_equal(epoch, 1ull << 32 | node[0].control.ref);
	assert_true(nodes_until(has(1, GROUP, epoch) && has(2, GROUP, epoch), 1000));
	assert_true(epoch_past(&node[1].control, &before));
	assert_false(epoch_past(&node[1].control, &other));
	epoch = epoch_raise(&node[1].control, &(uint32_t){EPOCH_ALL});
	assert_true(nodes_until(epoch_at(0, GROUP).all == epoch, 1000));
	assert_true(epoch_past(&node[0].control, &other));
}

static void the_higher_one_holds_in_whichever_order_they_come(void **state)
{
	uint64_t first, second;

	open_nodes(3);
	first = epoch_raise(&node[0].control, &(uint32_t){GROUP});
	second = epoch_raise(&node[1].control, &(uint32_t){GROUP});
	assert_int_not_equal(first, second);
	first = first > second ? first : second;
	for (unsigned i = 0; i < 3; i++)
		assert_true(nodes_until(has(i, GROUP, first), 1000));
	nodes_run(100);
	for (unsigned i = 0; i < 3; i++)
		assert_true(has(i, GROUP, first));
	assert_int_equal(epoch_raise_to(&node[2].control, GROUP, 5), first);
}

/* With pages of before, it takes clients when it has heard one member. */
static void a_door_opens_with_the_epochs_of_a_member(void **state)
{
	uint64_t epoch;

	open_nodes(3);
	node[1].keep_ref = node[1].control.ref;
	node_close(1);
	epoch = epoch_raise(&node[0].control, &(uint32_t){GROUP});
	assert_int_equal(node_open(1, node_at(2)), 0);
	assert_true(node[1].control.door_shut);
	while (node[1].control.door_shut) {
		assert_int_equal(node[1].doors_opened, 0);
		nodes_turn();
	}
	assert_int_equal(node[1].doors_opened, 1);
	assert_true(has(1, GROUP, epoch));
	assert_true(nodes_until(all_agree(), 3000));
}

static void a_member_that_was_cut_off_hears_what_was_raised(void **state)
{
	uint64_t epoch;

	open_nodes(2);
	node[1].stalled = true;
	assert_true(nodes_until(sees_count(0, 1), 4 * DEAD_MS));
	epoch = epoch_raise(&node[0].control, &(uint32_t){GROUP});
	node[1].stalled = false;
	assert_true(nodes_until(all_agree() && has(1, GROUP, epoch), 4 * DEAD_MS));
}

/* Its Hello was sent before the raise, so this engine has no link with the other one yet. */
static void a_hello_that_lacks_an_epoch_is_answered(void **state)
{
	Pc__Message *message;
	uint64_t epoch;
	int fd;

	open_nodes(1);
	fd = raw_open(0);
	nodes_run(50);
	epoch = epoch_raise(&node[0].control, &(uint32_t){GROUP});
	raw_hello(fd, "late", 0x500000001, 9, NULL);
	message = raw_await(fd, PC__MESSAGE__BODY_EPOCHS, 1000);
	assert_non_null(message);
	assert_int_equal(message->epochs->n_epochs, 2);
	assert_int_equal(message->epochs->epochs[1], epoch);
	pc__message__free_unpacked(message, NULL);
	close(fd);
}

static void a_door_without_another_engine_opens_in_time(void **state)
{
	uint64_t began_ns = clock_now_ns();

	assert_int_equal(node_open(0, NULL), 0);
	assert_false(node[0].control.door_shut);
	node[0].stalled = true;
	node[1].keep_ref = 77;
	assert_int_equal(node_open(1, node_at(0)), 0);
	assert_true(node[1].control.door_shut);
	assert_true(nodes_until(!node[1].control.door_shut, 2 * DEAD_MS));
	assert_in_range(clock_now_ns() - began_ns, DEAD_MS * 900000ull, DEAD_MS * 1100000ull);
	assert_int_equal(node[1].doors_opened, 1);
}

static void a_full_table_raises_all(void **state)
{
	uint32_t group;

	open_nodes(2);
	for (group = 0; group < EPOCHS_MAX; group++)
		assert_int_not_equal(epoch_raise(&node[0].control, &(uint32_t){group}), 0);
	assert_int_equal(epoch_at(0, 0).all, 0);
	assert_int_not_equal(epoch_raise(&node[0].control, &group), 0);
	assert_int_equal(group, EPOCH_ALL);
	assert_true(nodes_until(epoch_at(1, 0).all && epoch_at(1, EPOCHS_MAX - 1).group, 3000));
	/* one that has an epoch is still raised alone */
	group = 5;
	assert_int_equal(epoch_raise(&node[0].control, &group) >> 32, 2);
	assert_int_equal(group, 5);
	/* a member that had room for another group: its old pages are not found either */
	assert_int_equal(epoch_raise_to(&node[0].control, EPOCHS_MAX + 7, 9ull << 32), 9ull << 32);
	assert_int_equal(epoch_at(0, EPOCHS_MAX + 7).all, 9ull << 32);
}

static void epochs_out_of_range_are_not_taken(void **state)
{
	uint32_t groups[] = {1u << 24, 3, 4};
	uint64_t epochs[] = {1ull << 32, (uint64_t)EPOCH_COUNTER_MAX << 32};
	Pc__Epochs body = PC__EPOCHS__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_EPOCHS, &body);
	int fd;

	open_nodes(1);
	fd = raw_open(0);
	raw_hello(fd, "liar", 0x500000001, 9, NULL);
	assert_true(nodes_until(sees_count(0, 2), 1000));
	body.groups = groups;
	body.n_groups = 3; /* one more than there are epochs */
	body.epochs = epochs;
	body.n_epochs = 2;
	raw_message(fd, &message);
	nodes_run(100);
	assert_int_equal(node[0].control.status->epochs.count, 1);
	assert_int_equal(node[0].control.status->epochs.epoch[0], 0);
	close(fd);
}

/* An engine without a keeper, which hears no other one, finds them in its directories. */
static void directories_of_the_disk_keep_them(void **state)
{
	char folder[] = "epochs-XXXXXX", name[64];
	uint64_t epoch;
	FILE *file;

	assert_non_null(mkdtemp(folder));
	snprintf(node[0].settings.disk_paths, sizeof(node[0].settings.disk_paths), "%s", folder);
	open_nodes(1);
	epoch = epoch_raise(&node[0].control, &(uint32_t){GROUP});
	epoch = epoch_raise(&node[0].control, &(uint32_t){GROUP});
	assert_true(epochs_storing(&node[0].control));
	assert_true(nodes_until(!epochs_storing(&node[0].control), 60000));
	node_close(0);
	assert_int_equal(node_open(0, NULL), 0);
	assert_true(has(0, GROUP, epoch));
	node_close(0);
	/* a damaged line costs its group */
	snprintf(name, sizeof(name), "%s/peercache-disk.epochs", folder);
	file = fopen(name, "a");
	assert_non_null(file);
	fputs("zz 5\n8\n\n9 700000000\n", file);
	fclose(file);
	assert_int_equal(node_open(0, NULL), 0);
	assert_true(has(0, GROUP, epoch) && has(0, 8, 0) && has(0, 9, 0x700000000));
	unlink(name);
	rmdir(folder);
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(what_one_raises_all_have),
		T(the_higher_one_holds_in_whichever_order_they_come),
		T(a_door_opens_with_the_epochs_of_a_member),
		T(a_member_that_was_cut_off_hears_what_was_raised),
		T(a_hello_that_lacks_an_epoch_is_answered),
		T(a_door_without_another_engine_opens_in_time),
		T(a_full_table_raises_all),
		T(epochs_out_of_range_are_not_taken),
		T(directories_of_the_disk_keep_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
