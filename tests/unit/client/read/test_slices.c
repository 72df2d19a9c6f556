/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large pages, read as slices over several rails. A page is a hit only if all its slices are, and
 * it ends only after the rails have answered all slices that were posted.
 */
#include "config/clock.h"
#include "tests/unit/client/rig_clock.h"

#include <unistd.h>

#define BIG (5u * SLICE_BYTES + 4096u) /* five full slices and a short one */

static unsigned seen[256], fails; /* READs seen per slice index; under the fake engine's lock */

/* Memory that no test registers: pages go through staging. */
static unsigned char plain[24u << 20];

static unsigned char *memory(size_t bytes)
{
	void *at = NULL;

	assert_int_equal(pc_memory_alloc(pc, bytes, &at), 0);
	return at;
}

static void hook(fake_op_hook *on_op)
{
	fake_lock(&fake);
	memset(seen, 0, sizeof(seen));
	fails = 0;
	fake.on_op = on_op;
	fake_unlock(&fake);
}

static uint32_t note(struct fake *f, uint32_t rail, const struct op *op)
{
	if (op->kind == OP_PAGE)
		seen[op->slice]++;
	return FAKE_DO;
}

static uint32_t hold(struct fake *f, uint32_t rail, const struct op *op)
{
	note(f, rail, op);
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

static uint32_t third_fails_once(struct fake *f, uint32_t rail, const struct op *op)
{
	note(f, rail, op);
	return op->kind == OP_PAGE && op->slice == 2 && !fails++ ? OP_PEER_DOWN : FAKE_DO;
}

static uint32_t third_is_stale(struct fake *f, uint32_t rail, const struct op *op)
{
	note(f, rail, op);
	return op->kind == OP_PAGE && op->slice == 2 ? OP_STALE : FAKE_DO;
}

static void a_single_big_page_is_read_over_all_rails(void **state)
{
	unsigned char *at = memory(BIG);

	fake_page(&fake, "big", FAKE_A, 1, BIG);
	for (unsigned k = 0; k < 2; k++, at = plain) {
		hook(note);
		assert_int_equal(get_one("big", at, BIG, PATIENCE_MS), PC_HIT);
		assert_true(same("big", at, 0, BIG));
		for (unsigned s = 0; s < 6; s++)
			assert_int_equal(seen[s], 1);
		assert_true(SEEN(pages[0]) > 0 && SEEN(pages[1]) > 0);
	}
	assert_int_equal(counts().bytes_staged, BIG);
}

static void slices_may_end_inside_a_segment(void **state)
{
	unsigned char *at = memory(4u << 20);
	struct pc_segment segment[40];
	struct pc_page page = {
		.key = "big", .key_bytes = 3, .segments = segment, .segment_count = 40};
	enum pc_result result;
	uint32_t from = 0;

	fake_page(&fake, "big", FAKE_A, 0, BIG);
	for (unsigned s = 0; s < 40; s++) {
		uint32_t bytes = s < 39 ? 30000 + 1777 * (s % 3) : BIG - from;

		segment[s] = (struct pc_segment){at + s * 100000, bytes};
		from += bytes;
	}
	assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_HIT);
	from = 0;
	for (unsigned s = 0; s < 40; s++) {
		assert_true(same("big", at + s * 100000, from, (uint32_t)segment[s].bytes));
		from += (uint32_t)segment[s].bytes;
	}
}

static void many_big_pages_are_read_unsliced(void **state)
{
	unsigned char *at = memory(16u << 20);
	struct one o[16];
	struct pc_page page[16];
	enum pc_result result[16];

	for (unsigned n = 0; n < 16; n++) {
		char name[32];

		snprintf(name, sizeof(name), "big-%u", n);
		fake_page(&fake, name, FAKE_A, n % 2, 1u << 20);
		page[n] = *one_page(&o[n], name, at + ((size_t)n << 20), 1u << 20);
		page[n].key = o[n].name;
		page[n].segments = &o[n].segment;
	}
	hook(note);
	assert_int_equal(pc_get(ch, page, 16, PATIENCE_MS, result), 0);
	for (unsigned n = 0; n < 16; n++) {
		assert_int_equal(result[n], PC_HIT);
		assert_true(same(o[n].name, at + ((size_t)n << 20), 0, 1u << 20));
	}
	/* Only the last pages of a batch may be sliced, so that no rail is idle at its end. */
	assert_true(seen[0] == 16 && seen[1] <= 2);
}

static void a_failed_slice_is_read_again(void **state)
{
	unsigned char *at = memory(BIG);

	fake_page(&fake, "big", FAKE_A, 0, BIG);
	for (unsigned k = 0; k < 2; k++, at = plain) {
		hook(third_fails_once);
		assert_int_equal(get_one("big", at, BIG, PATIENCE_MS), PC_HIT);
		assert_true(same("big", at, 0, BIG));
		assert_int_equal(counts().reissued, k + 1);
	}
}

static void a_page_of_which_one_slice_is_stale_is_no_hit(void **state)
{
	unsigned char *at = memory(BIG);

	fake_page(&fake, "big", FAKE_A, 0, BIG);
	hook(third_is_stale);
	assert_int_equal(get_one("big", at, BIG, PATIENCE_MS), PC_STALE);
	assert_int_equal(get_one("big", plain, BIG, PATIENCE_MS), PC_STALE);
}

static uint32_t returned, returned_early; /* the get has returned; it had before the answer */

static void *answer_later(void *argument)
{
	SEEN_SOON(held_count);
	rig_pass_ms(60300); /* the deadline of the get is over */
	rig_clock_seen(&returned);
	returned_early = __atomic_load_n(&returned, __ATOMIC_SEQ_CST);
	fake_lock(argument);
	fake_answer_held(argument);
	((struct fake *)argument)->on_op = NULL;
	fake_unlock(argument);
	return NULL;
}

/* Gets the page, whose READs are answered only after its deadline. */
static enum pc_result get_until_answered(unsigned char *at, uint32_t bytes)
{
	enum pc_result result;
	pthread_t thread;

	hook(hold);
	returned = 0;
	assert_int_equal(pthread_create(&thread, NULL, answer_later, &fake), 0);
	result = get_one("big", at, bytes, 60000);
	__atomic_store_n(&returned, 1, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	assert_int_equal(returned_early, 0);
	return result;
}

static void a_get_returns_only_after_the_last_slice_is_answered(void **state)
{
	unsigned char *at = memory(BIG);

	fake_page(&fake, "big", FAKE_A, 0, BIG);
	assert_int_not_equal(get_until_answered(at, BIG), PC_PENDING);
}

/*
 * The page is larger than the rails' budgets together. At the deadline some of its slices are
 * posted, and the others wait in the channel's queue.
 */
static void a_partly_posted_page_ends_only_after_its_posted_slices_are_answered(void **state)
{
	uint32_t bytes = 24u << 20;
	unsigned char *at = memory(bytes);

	fake_page(&fake, "big", FAKE_A, 0, bytes);
	assert_int_equal(get_until_answered(at, bytes), PC_TIMEOUT);
	assert_int_equal(get_one("big", at, bytes, PATIENCE_MS), PC_HIT);
	assert_true(same("big", at, 0, bytes));
}

/* Nothing but the channel's own thread writes its memory. */
static void a_page_in_staging_returns_at_its_deadline(void **state)
{
	uint32_t bytes = sizeof(plain);

	fake_page(&fake, "big", FAKE_A, 0, bytes);
	hook(hold);
	assert_int_equal(get_one("big", plain, bytes, 50), PC_TIMEOUT);
	assert_true(SEEN(held_count) > 1);
	memset(plain, 0, sizeof(plain));
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake.on_op = NULL;
	fake_unlock(&fake);
	assert_int_equal(exists_one("big", PATIENCE_MS), PC_HIT); /* takes the late answers */
	assert_int_equal(plain[0] | plain[bytes - 1], 0);
	assert_int_equal(get_one("big", plain, bytes, PATIENCE_MS), PC_HIT);
	assert_true(same("big", plain, 0, bytes));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_single_big_page_is_read_over_all_rails),
		RIG_TEST(slices_may_end_inside_a_segment),
		RIG_TEST(many_big_pages_are_read_unsliced),
		RIG_TEST(a_failed_slice_is_read_again),
		RIG_TEST(a_page_of_which_one_slice_is_stale_is_no_hit),
		RIG_TEST(a_get_returns_only_after_the_last_slice_is_answered),
		RIG_TEST(a_partly_posted_page_ends_only_after_its_posted_slices_are_answered),
		RIG_TEST(a_page_in_staging_returns_at_its_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
