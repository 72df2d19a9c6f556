/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests slots into which the client may still store when their channel ends. See ctl_world.h.
 */
#include "tests/unit/control/ctl_world.h"

/*
 * A slot that the client is copying into stays reserved: its thread may store into it after the
 * session has ended.
 */
static void a_slot_being_copied_into_stays_reserved_after_the_close(void **state)
{
	struct ctl_done credit, other;
	struct ctl_counts counts;
	uint32_t limbo;
	struct client c;

	for (unsigned exits = 0; exits < 2; exits++) {
		client_open(&c, 0);
		credit = take(&c, 0, 4096);
		other = take(&c, 0, 4096);
		limbo = pool_limbo(control.rail[0].pool);
		shm_store64(&c.header.copying, slot_name(credit.place, credit.generation));
		ctl_channel_close(&control, &c.channel);
		assert_int_equal(shm_load(&c.header.stopped), 1);
		ctl_counts(&control, &counts);
		assert_int_equal(counts.credits, 1);
		/* only the slot of the credit `other` is in limbo; that of `credit` is not */
		assert_int_equal(pool_limbo(control.rail[0].pool), limbo + 1);
		assert_false(ctl_channel_release(&control, &c.channel, false));
		pass_time(LIMBO_MS * 1000000ull);
		assert_false(ctl_channel_release(&control, &c.channel, false));
		/*
		 * `copying` names a slot that was returned to the pool: the client finds `stopped`
		 * and does not store there.
		 */
		if (!exits)
			shm_store64(&c.header.copying, slot_name(other.place, other.generation));
		assert_true(ctl_channel_release(&control, &c.channel, exits));
		ctl_counts(&control, &counts);
		assert_int_equal(counts.credits, 0);
		assert_int_equal(pool_limbo(control.rail[0].pool), limbo + 2);
		assert_true(ctl_channel_release(&control, &c.channel, false));
		pass_time(LIMBO_MS * 1000000ull);
		client_close(&c);
	}
}

/*
 * If the name in `copying` is no credit of the channel, it is ignored: a client may write any value
 * there.
 */
static void a_slot_of_another_channel_is_not_reserved(void **state)
{
	struct ctl_done mine, foreign;
	struct ctl_counts counts;
	struct client c, d;

	client_open(&c, 0);
	client_open(&d, 1);
	mine = take(&c, 0, 4096);
	foreign = take(&d, 0, 4096);
	shm_store64(&c.header.copying, slot_name(foreign.place, foreign.generation));
	ctl_channel_close(&control, &c.channel);
	assert_true(ctl_channel_release(&control, &c.channel, false));
	client_close(&c);
	client_open(&c, 0);
	mine = take(&c, 0, 4096);
	shm_store64(&c.header.copying, slot_name(mine.place, mine.generation + 1));
	ctl_channel_close(&control, &c.channel);
	assert_true(ctl_channel_release(&control, &c.channel, false));
	ctl_counts(&control, &counts);
	assert_int_equal(counts.credits, 1); /* the only credit left is that of channel d */
	client_close(&c);
	client_close(&d);
}

static void a_channel_that_may_not_store_gets_no_credit(void **state)
{
	struct client c;

	client_open(&c, 0);
	c.channel.no_credits = true;
	assert_int_equal(take(&c, 0, 4096).status, OP_NO_SPACE);
	c.channel.no_credits = false;
	assert_int_equal(take(&c, 0, 4096).status, OP_HIT);
	client_close(&c);
}

/* A refused credit request leaves nothing counted in `owed`; otherwise the channel would stall. */
static void an_impossible_credit_request_leaves_no_answer_owed(void **state)
{
	struct ctl_done done;
	struct client c;

	client_open(&c, 0);
	put(&c, (struct ctl_op){.kind = CTL_CREDIT, .rail = 99, .count = 5, .length = 4096});
	done = get_one(&c);
	assert_int_equal(done.status, OP_INVALID);
	assert_int_equal(c.channel.owed, 0);
	client_close(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_slot_being_copied_into_stays_reserved_after_the_close),
		TEST(a_slot_of_another_channel_is_not_reserved),
		TEST(a_channel_that_may_not_store_gets_no_credit),
		TEST(an_impossible_credit_request_leaves_no_answer_owed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
