/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a slot gets and loses its owner, which matters if the engine is killed between
 * two stores: the owner is recorded before the client is granted the slot, and removed after the
 * head is a page's or has a new generation. pool_own() is wrapped by the linker.
 */
#include "tests/unit/control/ctl_world.h"

#define OWNER 42u
#define GRANTS 8u

static struct client client;
static unsigned owned, ended;
static uint32_t generation[GRANTS];

void __real_pool_own(struct pool *pool, uint32_t place, uint32_t owner);
void __wrap_pool_own(struct pool *pool, uint32_t place, uint32_t owner);

static struct page_head head_of(struct pool *pool, uint32_t place)
{
	const struct page_head *heads = pool_heads(pool)->base;

	return page_head_load(&heads[place_unit(place)]);
}

/* Number of slots that the answers in the ring grant. */
static uint32_t told(void)
{
	int32_t answers = ring_ready_now(&client.done);
	uint32_t slots = 0;

	for (int32_t i = 0; i < answers; i++) {
		const struct ctl_done *done = ring_slot_old(&client.done, (uint32_t)i);

		slots += done->count;
	}
	return slots;
}

void __wrap_pool_own(struct pool *pool, uint32_t place, uint32_t owner)
{
	struct page_head head = head_of(pool, place);

	if (owner == OWNER) {
		/* no answer grants this slot, or one after it */
		assert_true(told() <= owned);
		assert_true(owned < GRANTS);
		generation[owned++] = head.generation;
	} else {
		assert_int_equal(owner, POOL_OWNER_NONE);
		/* a page, or retired since */
		assert_true(head.length || head.generation != generation[ended]);
		ended++;
	}
	__real_pool_own(pool, place, owner);
}

static void begin(void)
{
	owned = ended = 0;
	client_open(&client, 0);
	client.channel.owner = OWNER;
	put(&client, (struct ctl_op){.kind = CTL_CREDIT, .count = GRANTS, .length = 4096});
	turns();
	assert_int_equal(owned, GRANTS);
	assert_int_equal(ended, 0);
}

static void an_owner_is_recorded_before_the_grant_and_removed_after_the_page(void **state)
{
	struct ctl_done credit[GRANTS];

	begin();
	for (unsigned i = 0; i < GRANTS; i++) {
		assert_true(got(&client, &credit[i]));
		assert_int_equal(credit[i].generation, generation[i]);
	}
	for (unsigned i = 0; i < GRANTS; i++)
		assert_int_equal(
			publish_at(&client, i, credit[i].place, credit[i].generation, 4096).status,
			OP_HIT);
	assert_int_equal(ended, GRANTS);
	client_close(&client);
}

static void an_owner_is_removed_after_the_slot_was_retired(void **state)
{
	begin();
	client_close(&client);
	assert_int_equal(ended, GRANTS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_owner_is_recorded_before_the_grant_and_removed_after_the_page),
		TEST(an_owner_is_removed_after_the_slot_was_retired),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
