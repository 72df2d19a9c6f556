/* SPDX-License-Identifier: Apache-2.0 */
/* Batches with more pages than a ring has slots, and several batches in flight. */
#include "config/clock.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "tests/unit/client/rig.h"

#define MANY 10000u
#define BYTES 600u

static struct one one[MANY];
static struct pc_page pages[MANY];
static enum pc_result results[MANY];

static void name_all(const char *stem, unsigned char *base, size_t stride)
{
	for (unsigned k = 0; k < MANY; k++) {
		char name[32];

		snprintf(name, sizeof(name), "%s-%u", stem, k);
		pages[k] = *one_page(&one[k], name, base + k * stride, BYTES);
	}
}

static void ten_thousand_pages_are_read_into_registered_memory(void **state)
{
	void *at;

	assert_int_equal(pc_memory_alloc(pc, MANY * 1024, &at), 0);
	name_all("get", at, 1024);
	for (unsigned k = 0; k < MANY; k++)
		fake_page(&fake, one[k].name, FAKE_A + k % 2, k % FAKE_RAILS, BYTES);
	assert_int_equal(pc_get(ch, pages, MANY, 60000, results), 0);
	/* A fake shard has 4,096 entries, fewer than the pages that its node owns. A page whose
	 * entry was overwritten is a miss; no other result is allowed. */
	for (unsigned k = 0; k < MANY; k++) {
		assert_true(results[k] == PC_HIT || results[k] == PC_MISS);
		if (results[k] == PC_HIT)
			assert_true(same(one[k].name, one[k].segment.base, 0, BYTES));
	}
	assert_true(counts().hits_remote > 3000);
	/* Each rail's share of the pages follows its backlog, which depends on the
	 * scheduling of the fake engine's thread. Require only that each rail is used. */
	assert_true(SEEN(pages[0]) > 100 && SEEN(pages[1]) > 100);
	assert_int_equal(counts().bytes_staged, 0);
}

static void several_batches_are_in_flight_at_once(void **state)
{
	struct pc_batch *batch[10];
	void *at;

	assert_int_equal(pc_memory_alloc(pc, MANY * 1024, &at), 0);
	name_all("many", at, 1024);
	for (unsigned k = 0; k < 1000; k++)
		fake_page(&fake, one[k].name, FAKE_B, k % FAKE_RAILS, BYTES);
	for (unsigned k = 0; k < 10; k++)
		assert_int_equal(pc_submit_get(ch, pages + k * 100, 100, 10000, results + k * 100,
					 &batch[k]),
			0);
	pc_wait(batch[7]);
	for (unsigned k = 0; k < 10; k++)
		if (k != 7)
			pc_wait(batch[k]);
	for (unsigned k = 0; k < 1000; k++)
		assert_int_equal(results[k], PC_HIT);
}

static void big_ops_fill_a_ring_without_overrunning_it(void **state)
{
	static struct pc_segment segment[64][SEGMENTS_MAX];
	unsigned char *at;
	void *memory;

	assert_int_equal(pc_memory_alloc(pc, 64 * SEGMENTS_MAX * 16, &memory), 0);
	at = memory;
	name_all("big", at, 0);
	for (unsigned k = 0; k < 64; k++) {
		for (unsigned s = 0; s < SEGMENTS_MAX; s++, at += 16)
			segment[k][s] = (struct pc_segment){at, 16};
		pages[k].segments = segment[k];
		pages[k].segment_count = SEGMENTS_MAX;
		fake_page(&fake, one[k].name, FAKE_A, 0, 16 * SEGMENTS_MAX);
	}
	assert_int_equal(pc_get(ch, pages, 64, 10000, results), 0);
	for (unsigned k = 0; k < 64; k++) {
		assert_int_equal(results[k], PC_HIT);
		assert_true(same(one[k].name, segment[k][0].base, 0, 16 * SEGMENTS_MAX));
	}
}

static void a_deadline_ends_a_long_batch(void **state)
{
	struct pc_batch *batch;
	unsigned timeouts = 0;
	uint64_t start_ns;
	void *at;

	assert_int_equal(pc_memory_alloc(pc, MANY * 1024, &at), 0);
	name_all("late", at, 1024);
	/* While the test holds the lock, the fake engine does not serve the rings. */
	fake_lock(&fake);
	start_ns = clock_monotonic_ns();
	assert_int_equal(pc_submit_exists(ch, pages, MANY, 50, results, &batch), 0);
	pc_wait(batch);
	fake_unlock(&fake);
	/* The batch ends at its own deadline, long before the default deadline. */
	assert_true(elapsed_ms(start_ns) < PC_TIMEOUT_MS_DEFAULT);
	for (unsigned k = 0; k < MANY; k++)
		timeouts += results[k] == PC_TIMEOUT;
	assert_true(timeouts > 1000);
	assert_int_equal(pc_exists(ch, pages, 10, PATIENCE_MS, results), 0);
	for (unsigned k = 0; k < 10; k++)
		assert_int_equal(results[k], PC_MISS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(ten_thousand_pages_are_read_into_registered_memory),
		RIG_TEST(several_batches_are_in_flight_at_once),
		RIG_TEST(big_ops_fill_a_ring_without_overrunning_it),
		RIG_TEST(a_deadline_ends_a_long_batch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
