/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every way in which the control plane gets a slot back, and how long the slot rests before it is
 * handed out again. CLOCK_MONOTONIC is slewed by 8% meanwhile. See ctl_world.h.
 */
#include "tests/unit/control/ctl_world.h"

#define BIG (2u << 20) /* the longest page: a pool has four of them */
#define LIMBO_NS (LIMBO_MS * 1000000ull)

static struct client owner, waiter;
static struct ctl_done slot; /* the credit whose slot is to come back */
static uint64_t raw;

/* The raw clock passes `raw_ns`; CLOCK_MONOTONIC is 8% faster. */
static void pass_both(uint64_t raw_ns)
{
	raw += raw_ns;
	pass_time_to(now + raw_ns + raw_ns / 100 * 8, raw);
}

static struct ctl_done publish_slot(uint64_t n, uint32_t length)
{
	return publish_at(&owner, n, slot.place, slot.generation, length);
}

/* ---- the ways -------------------------------------------------------------------------------- */

static void client_returns_the_credit(void)
{
	put(&owner,
		(struct ctl_op){
			.kind = CTL_RETURN, .place = slot.place, .generation = slot.generation});
}

static void client_publishes_nonsense(void)
{
	assert_int_equal(publish_slot(1, 0).status, OP_INVALID);
}

static void client_publishes_a_key_that_is_there(void)
{
	struct ctl_done other = take(&owner, 1, BIG);

	publish_at(&owner, 1, other.place, other.generation, BIG);
	assert_int_equal(publish_slot(1, BIG).status, OP_HIT);
}

static void page_is_replaced_by_one_of_another_length(void)
{
	struct ctl_done other = take(&owner, 1, BIG);

	assert_int_equal(publish_slot(1, BIG).status, OP_HIT);
	publish_at(&owner, 1, other.place, other.generation, BIG - 1);
}

static void page_is_removed_by_a_client(void)
{
	assert_int_equal(publish_slot(1, BIG).status, OP_HIT);
	put(&owner, (struct ctl_op){.kind = CTL_REMOVE, .key = key_of(1)});
}

static void page_is_removed_by_a_peer(void)
{
	const struct page_key key = key_of(1);

	assert_int_equal(publish_slot(1, BIG).status, OP_HIT);
	assert_true(page_forget(&control, &key));
}

/* The request of `waiter`, which follows, evicts it. */
static void page_is_evicted(void)
{
	assert_int_equal(publish_slot(1, BIG).status, OP_HIT);
}

static void channel_closes(void)
{
	ctl_channel_close(&control, &owner.channel);
}

static void channel_closes_while_the_client_copies(void)
{
	shm_store64(&owner.header.copying, slot_name(slot.place, slot.generation));
	ctl_channel_close(&control, &owner.channel);
	assert_false(ctl_channel_release(&control, &owner.channel, false));
	pass_both(10 * LIMBO_NS);
	assert_false(ctl_channel_release(&control, &owner.channel, false));
}

static void client_leaves_the_slot_after_the_close(void)
{
	channel_closes_while_the_client_copies();
	shm_store64(&owner.header.copying, 0);
	assert_true(ctl_channel_release(&control, &owner.channel, false));
}

static void client_exits_after_the_close(void)
{
	channel_closes_while_the_client_copies();
	assert_true(ctl_channel_release(&control, &owner.channel, true));
}

/* ---- the check ------------------------------------------------------------------------------- */

static void open_both(void)
{
	client_open(&owner, 0);
	client_open(&waiter, 1);
	raw = 77000000000ull;
	pass_time_to(now, raw);
}

/* Fills the pool with credits; one of them is `slot`. */
static void fill_pool(void)
{
	open_both();
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(take(&waiter, 0, BIG).status, OP_HIT);
	slot = take(&owner, 0, BIG);
	assert_int_equal(slot.status, OP_HIT);
}

static void slot_rests(void (*comes_back)(void))
{
	const struct page_head *heads = pool_heads(control.rail[0].pool)->base;
	struct ctl_done done;

	fill_pool();
	comes_back();
	put(&waiter, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = BIG});
	turns();
	assert_false(got(&waiter, &done));
	/* a reader that samples the head from here on does not find the page */
	assert_int_equal(heads[place_unit(slot.place)].generation, slot.generation + 1);
	pass_both(LIMBO_NS - 1);
	assert_false(got(&waiter, &done));
	pass_both(1);
	assert_true(got(&waiter, &done));
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(done.place, slot.place);
	assert_int_equal(done.generation, slot.generation + 1);
	client_close(&waiter);
	client_close(&owner);
}

#define WAY(name)                                                                                  \
	static void name##_and_rests(void **state)                                                 \
	{                                                                                          \
		(void)state;                                                                       \
		slot_rests(name);                                                                  \
	}

WAY(client_returns_the_credit)
WAY(client_publishes_nonsense)
WAY(client_publishes_a_key_that_is_there)
WAY(page_is_replaced_by_one_of_another_length)
WAY(page_is_removed_by_a_client)
WAY(page_is_removed_by_a_peer)
WAY(page_is_evicted)
WAY(channel_closes)
WAY(client_leaves_the_slot_after_the_close)
WAY(client_exits_after_the_close)

/* What comes back rests from then on, not from the next request on. */
static void limbo_begins_at_the_end_of_the_turn(void **state)
{
	fill_pool();
	client_returns_the_credit();
	turns();
	pass_both(LIMBO_NS);
	assert_int_equal(take(&waiter, 0, BIG).status, OP_HIT);
	client_close(&waiter);
	client_close(&owner);
}

/* The owner fills the pool with pages. */
static void store_pages(void)
{
	open_both();
	for (unsigned i = 0; i < 4; i++)
		store(&owner, i, BIG);
}

/* Its slot is counted as resting as long as the pool lets it rest, not as CLOCK_MONOTONIC says. */
static void a_waiting_request_evicts_once_although_the_clock_is_slewed(void **state)
{
	struct ctl_done done;

	store_pages();
	put(&waiter, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = BIG});
	turns();
	assert_int_equal(control.counter[COUNTER_pages_evicted], 1);
	for (unsigned i = 0; i < 50; i++) {
		assert_false(got(&waiter, &done));
		pass_both(LIMBO_NS / 50);
		assert_int_equal(control.counter[COUNTER_pages_evicted], 1);
	}
	assert_true(got(&waiter, &done));
	assert_int_equal(done.status, OP_HIT);
	client_close(&waiter);
	client_close(&owner);
}

/* What a client removes is room for others when it has rested: nothing is evicted for them. */
static void a_removed_page_is_room_for_the_next_request(void **state)
{
	struct ctl_done done;

	store_pages();
	put(&owner, (struct ctl_op){.kind = CTL_REMOVE, .key = key_of(2)});
	turns();
	put(&waiter, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = BIG});
	turns();
	assert_false(got(&waiter, &done));
	pass_both(LIMBO_NS);
	assert_true(got(&waiter, &done));
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(control.counter[COUNTER_pages_evicted], 0);
	client_close(&waiter);
	client_close(&owner);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(client_returns_the_credit_and_rests),
		TEST(client_publishes_nonsense_and_rests),
		TEST(client_publishes_a_key_that_is_there_and_rests),
		TEST(page_is_replaced_by_one_of_another_length_and_rests),
		TEST(page_is_removed_by_a_client_and_rests),
		TEST(page_is_removed_by_a_peer_and_rests),
		TEST(page_is_evicted_and_rests),
		TEST(channel_closes_and_rests),
		TEST(client_leaves_the_slot_after_the_close_and_rests),
		TEST(client_exits_after_the_close_and_rests),
		TEST(a_waiting_request_evicts_once_although_the_clock_is_slewed),
		TEST(limbo_begins_at_the_end_of_the_turn),
		TEST(a_removed_page_is_room_for_the_next_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
