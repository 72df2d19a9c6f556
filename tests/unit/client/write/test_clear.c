/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_clear() and pc_clear_cluster(): what they ask of the engine, which is a fake one, and say of
 * its answer; and keys of a group that was cleared.
 */
#include "engine/abi/epoch.h"
#include "engine/client/attach/session.h"
#include "tests/unit/client/rig.h"

#include <errno.h>

static struct ctl_op asked;
static uint32_t status, place, generation;

static uint32_t note_clear(struct fake *f, const struct ctl_op *op)
{
	if (op->kind != CTL_CLEAR)
		return FAKE_DO;
	asked = *op;
	return status;
}

static void answer_clear(struct fake *f, struct ctl_done *answer)
{
	answer->place = place;
	answer->generation = generation;
}

static void answers(uint32_t with, uint32_t low, uint32_t high)
{
	status = with;
	place = low;
	generation = high;
	LET(on_ctl, note_clear);
	LET(on_ctl_done, answer_clear);
}

static void a_clear_of_this_host_tells_how_many_pages_went(void **state)
{
	uint64_t pages;

	answers(OP_HIT, 5, 1);
	assert_int_equal(pc_clear(ch, "llama", PATIENCE_MS, &pages), 0);
	assert_true(pages == 0x100000005);
	assert_int_equal(asked.count, 0);
	assert_true(
		page_key_grouped(&asked.key, &asked.key) && asked.key.word[0] | asked.key.word[1]);
	assert_int_equal(pc_clear(ch, NULL, PATIENCE_MS, NULL), 0);
	assert_int_equal(asked.count, CLEAR_ALL);
	answers(OP_NO_SPACE, 0, 0);
	assert_int_equal(pc_clear(ch, NULL, PATIENCE_MS, NULL), -ENOMEM);
	assert_int_equal(pc_clear(ch, "llama||rank0", PATIENCE_MS, NULL), -EINVAL);
}

static void a_clear_of_the_cluster_tells_how_many_hosts_have_not_taken_it(void **state)
{
	unsigned hosts = 0;

	answers(OP_HIT, 7, 0);
	assert_int_equal(pc_clear_cluster(ch, "llama", PATIENCE_MS, &hosts), 0);
	assert_int_equal(hosts, 7);
	assert_int_equal(asked.count, CLEAR_CLUSTER);
	answers(OP_PEER_DOWN, 5, 2);
	assert_int_equal(pc_clear_cluster(ch, NULL, PATIENCE_MS, &hosts), -EHOSTUNREACH);
	assert_non_null(strstr(pc_error(), "2 of 7 hosts have not taken"));
	assert_int_equal(asked.count, CLEAR_CLUSTER | CLEAR_ALL);
}

/* An epoch of the group, of another one, or of all. */
static void raise_epoch(uint32_t i, uint32_t group)
{
	struct epochs_shared *epochs = &fake.status->epochs;

	fake_lock(&fake);
	shm_store64(&epochs->epoch[i], epochs->epoch[i] + (1ull << 32));
	shm_store(&epochs->group[i], group);
	if (i >= epochs->count)
		shm_store_release(&epochs->count, i + 1);
	shm_store_release(&epochs->version, epochs->version + 1);
	fake_unlock(&fake);
}

static void keys_of_a_group_that_was_cleared_are_other_ones(void **state)
{
	uint32_t group = epoch_group(&ch->name_space.group);
	struct page_key key[4];

	for (unsigned i = 0; i < 4; i++) {
		if (i)
			raise_epoch(i == 3 ? 0 : i, i == 1 ? group + 1 : group);
		channel_epoch(ch);
		key_hash(&ch->key_text, "key", 3, &key[i]);
		assert_int_equal(epoch_group(&key[i]), group);
		assert_int_equal((key[i].word[0] & PAGE_EPOCH_0) >> 48, i == 0 ? 0 : i - 1);
	}
	assert_true(page_key_equal(&key[0], &key[1]));
	assert_false(page_key_equal(&key[1], &key[2]) || page_key_equal(&key[2], &key[3]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_clear_of_this_host_tells_how_many_pages_went),
		RIG_TEST(a_clear_of_the_cluster_tells_how_many_hosts_have_not_taken_it),
		RIG_TEST(keys_of_a_group_that_was_cleared_are_other_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
