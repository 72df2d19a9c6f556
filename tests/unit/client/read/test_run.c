/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of pages and of look-ups: which pages are in one run, and what becomes of those that were no
 * hits.
 */
#include "config/clock.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "tests/unit/client/read/run_rig.h"

static void the_rails_share_the_pages_of_a_batch_in_one_run_each(void **state)
{
	store(FAKE_RAILS);
	look_up_all();
	get_all();
	all_are_hits();
	assert_int_equal(SEEN(runs), FAKE_RAILS);
	assert_int_equal(SEEN(run_pages_max), COUNT / FAKE_RAILS);
	assert_int_equal(SEEN(run_lines), FAKE_RAILS * (1 + COUNT / FAKE_RAILS / 2));
}

static void pages_of_one_pool_are_shared_by_the_rails_too(void **state)
{
	store(1);
	look_up_all();
	get_all();
	all_are_hits();
	assert_int_equal(SEEN(run_pages_max), COUNT / FAKE_RAILS);
	assert_int_equal(SEEN(runs), FAKE_RAILS);
}

/* Stores the first `first` pages in pool 0 and the others in pool 1, and reads all. */
static unsigned runs_with(unsigned first)
{
	for (unsigned i = 0; i < COUNT; i++)
		fake_page(&fake, one[i].name, FAKE_A, i >= first, BYTES);
	look_up_all();
	get_all();
	all_are_hits();
	return SEEN(runs);
}

static void a_run_may_be_a_quarter_longer_than_its_share(void **state)
{
	const unsigned share = COUNT / FAKE_RAILS;

	assert_int_equal(runs_with(share + share / 4), FAKE_RAILS);
	assert_int_equal(SEEN(run_pages_max), share + share / 4);
}

static void a_pool_with_many_more_pages_is_read_in_equal_runs(void **state)
{
	const unsigned share = COUNT / FAKE_RAILS;

	assert_int_equal(runs_with(share + share / 4 + 1), FAKE_RAILS + 1);
	assert_int_equal(SEEN(run_pages_max), (share + share / 4 + 2) / 2);
}

static void pages_of_two_lengths_do_not_cut_each_others_runs(void **state)
{
	for (unsigned i = 0; i < COUNT; i++) {
		uint32_t bytes = i / FAKE_RAILS % 2 ? BYTES / 2 : BYTES;

		one[i].segment.bytes = bytes;
		fake_page(&fake, one[i].name, FAKE_A, i % FAKE_RAILS, bytes);
	}
	look_up_all();
	get_all();
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(result[i] == PC_HIT && same(one[i].name, memory + i * BYTES, 0,
							   (uint32_t)one[i].segment.bytes));
	assert_int_equal(SEEN(runs), 2 * FAKE_RAILS);
}

/* More pages than are planned together, in runs of every length that is left. */
static void a_batch_of_any_length_is_planned_in_parts(void **state)
{
	enum { MANY = 2 * RUN_PLAN_MAX + 88, LENGTH = 64 };
	static struct one many[MANY];
	static struct pc_page pages[MANY];
	static enum pc_result results[MANY];
	unsigned before;

	for (unsigned i = 0; i < MANY; i++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "many-%u-%c", i, 'a' + (int)(i % 26));
		pages[i] = *one_page(&many[i], name, memory + i * LENGTH, LENGTH);
		fake_page(&fake, many[i].name, FAKE_A, i % FAKE_RAILS, LENGTH);
	}
	assert_int_equal(pc_exists(ch, pages, MANY, PATIENCE_MS, results), 0);
	before = SEEN(runs);
	memset(memory, 0xee, MANY * LENGTH);
	assert_int_equal(pc_get(ch, pages, MANY, PATIENCE_MS, results), 0);
	for (unsigned i = 0; i < MANY; i++)
		assert_true(
			results[i] == PC_HIT && same(many[i].name, memory + i * LENGTH, 0, LENGTH));
	assert_int_equal(SEEN(run_pages_max), RUN_PAGES_MAX);
	assert_in_range(SEEN(runs) - before, MANY / RUN_PAGES_MAX, MANY / RUN_PAGES_MAX + 4);
}

static void known_pages_of_this_host_are_copied_not_read(void **state)
{
	for (unsigned i = 0; i < COUNT; i++)
		fake_page(&fake, one[i].name, FAKE_SELF, i % FAKE_RAILS, BYTES);
	look_up_all();
	get_all();
	all_are_hits();
	assert_int_equal(SEEN(runs), 0);
	assert_int_equal(counts().hits_local, COUNT);
}

static void keys_of_one_owner_are_looked_up_in_one_run(void **state)
{
	fake_map(&fake, 2, 1); /* this host and FAKE_A own the keys */
	store(1);
	look_up_all();
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(result[i], PC_HIT);
	assert_int_equal(SEEN(look_runs), 1);
	assert_true(SEEN(reads) > 4 && SEEN(reads) < COUNT);
}

/* Divides each page into `segments` segments that begin `stride` bytes from each other. */
static void divide(struct pc_segment *segment, unsigned segments, size_t stride)
{
	for (unsigned i = 0; i < COUNT; i++) {
		for (unsigned s = 0; s < segments; s++)
			segment[i * segments + s] = (struct pc_segment){
				memory + i * (BYTES / segments) + s * stride, BYTES / segments};
		page[i].segments = &segment[i * segments];
		page[i].segment_count = segments;
	}
}

static void segments_are_the_pages_bytes(const struct pc_segment *segment, unsigned segments)
{
	for (unsigned i = 0; i < COUNT; i++)
		for (unsigned s = 0; s < segments; s++) {
			const struct pc_segment *at = &segment[i * segments + s];

			assert_int_equal(result[i], PC_HIT);
			assert_true(same(
				one[i].name, at->base, s * (BYTES / segments), BYTES / segments));
		}
}

static void segments_at_one_distance_are_read_in_runs(void **state)
{
	static struct pc_segment segment[COUNT * SEGMENTS_MAX];
	const unsigned segments[] = {8, SEGMENTS_MAX};

	store(FAKE_RAILS);
	look_up_all();
	for (unsigned i = 0; i < 2; i++) {
		unsigned n = segments[i];

		divide(segment, n, COUNT * (BYTES / n)); /* layers: segment j of all together */
		get_all();
		segments_are_the_pages_bytes(segment, n);
		assert_int_equal(SEEN(runs), (i + 1) * FAKE_RAILS);
		assert_int_equal(SEEN(segments_max), n);
	}
}

static void irregular_segments_are_read_by_ops_of_one_page(void **state)
{
	struct pc_segment segment[COUNT * 4];

	divide(segment, 4, COUNT * (BYTES / 4));
	for (unsigned i = 0; i < COUNT; i++) { /* the last two segments change places */
		struct pc_segment last = segment[i * 4 + 3];

		segment[i * 4 + 3] = segment[i * 4 + 2];
		segment[i * 4 + 2] = last;
	}
	store(FAKE_RAILS);
	look_up_all();
	get_all();
	segments_are_the_pages_bytes(segment, 4);
	assert_int_equal(SEEN(runs), 0);
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), COUNT);
	/* The same length, but each segment ends where the one before it begins. */
	for (unsigned i = 0; i < COUNT; i++)
		for (unsigned s = 0; s < 4; s++)
			segment[i * 4 + s].base =
				memory + i * BYTES + (3 - s) * (size_t)(BYTES / 4);
	get_all();
	segments_are_the_pages_bytes(segment, 4);
	assert_int_equal(SEEN(runs), 0);
}

static void a_stale_page_is_reported_alone(void **state)
{
	store(FAKE_RAILS);
	look_up_all();
	fake_lock(&fake);
	fake_head(&fake, FAKE_A, place[5])->generation++;
	fake_unlock(&fake);
	get_all();
	for (unsigned i = 0; i < COUNT; i++)
		if (i != 5)
			assert_true(result[i] == PC_HIT &&
				    same(one[i].name, memory + i * BYTES, 0, BYTES));
	assert_int_equal(result[5], PC_STALE);
	/* the location that the cache had, and the same one that the directory has */
	SEEN_SOON(stales);
	assert_in_range(SEEN(stales), 1, 2);
	assert_int_equal(SEEN(last_stale.place), place[5]);
	assert_int_equal(counts().reissued, 0); /* it is no failure of a rail */
}

static unsigned failures;

/* Every fifth page fails on its first rail. */
static uint32_t fail_some(struct fake *f, uint32_t rail, const struct op *op)
{
	if (op->kind == OP_PAGE && failures && op->offset / BYTES % 5 == 0) {
		failures--;
		return OP_NIC_ERROR;
	}
	return FAKE_DO;
}

static void only_the_pages_that_failed_are_read_again(void **state)
{
	store(FAKE_RAILS);
	look_up_all();
	failures = 4;
	hook(fail_some, NULL);
	get_all();
	all_are_hits();
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), COUNT + 4);
	assert_int_equal(counts().reissued, 4);
	assert_int_equal(counts().bytes_read, COUNT * BYTES);
	assert_int_equal(SEEN(stales), 0);
}

static void runs_in_flight_are_awaited_after_the_deadline(void **state)
{
	struct pc_batch *batch;

	store(FAKE_RAILS);
	look_up_all();
	hook(hold_pages, NULL);
	memset(memory, 0xee, COUNT * BYTES);
	assert_int_equal(pc_submit_get(ch, page, COUNT, 50, result, &batch), 0);
	SEEN_SOON(held_count);
	while (clock_monotonic_ns() < batch->deadline_ns + 2 * ANSWER_GRACE_NS)
		assert_false(pc_poll(batch)); /* the NIC may still write into the pages */
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(result[i] == PC_HIT && same(one[i].name, memory + i * BYTES, 0, BYTES));
}

static void a_run_that_finds_no_room_is_split_and_waits(void **state)
{
	struct pc_batch *batch;

	store(1);
	look_up_all();
	hook(hold_pages, NULL);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		ch->rail[r].bytes = STRIPE_BYTES - 5 * BYTES;
	assert_int_equal(pc_submit_get(ch, page, COUNT, PATIENCE_MS, result, &batch), 0);
	assert_int_equal(ch->rail[0].bytes, STRIPE_BYTES);
	assert_int_equal(ch->rail[1].bytes, STRIPE_BYTES);
	assert_true(batch->runs.head != CLIENT_NONE && ch->no_room);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		ch->rail[r].bytes -= STRIPE_BYTES - 5 * BYTES;
	SEEN_SOON(held_count);
	hook(NULL, NULL);
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	all_are_hits();
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), COUNT);
}

static uint32_t refused_place;

static uint32_t refuse_alone(struct fake *f, uint32_t rail, const struct op *op)
{
	if (op->kind == OP_PAGE && op->region == REGION_POOL_0 + place_rail(refused_place) &&
		op->offset == place_offset(refused_place))
		return OP_INVALID;
	return FAKE_DO;
}

/* As a rail does: an invalid entry refuses the whole run. */
static void refuse_run(
	struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	if (run->head.kind == OP_RUN && d->status == OP_INVALID)
		d->hit = d->stale = 0;
}

static void one_invalid_place_does_not_refuse_the_other_pages(void **state)
{
	store(FAKE_RAILS);
	look_up_all();
	refused_place = place[5];
	hook(refuse_alone, refuse_run);
	get_all();
	for (unsigned i = 0; i < COUNT; i++) {
		assert_int_equal(result[i], i == 5 ? PC_INVALID : PC_HIT);
		assert_true(i == 5 || same(one[i].name, memory + i * BYTES, 0, BYTES));
	}
	assert_int_equal(SEEN(head_reads), 1);
	assert_int_equal(SEEN(stales), 0);
	/* two runs of two pages */
	assert_int_equal(pc_get(ch, page + 4, 4, PATIENCE_MS, result), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(result[i], i == 1 ? PC_INVALID : PC_HIT);
}

static struct {
	struct page_key key[COUNT];
	uint64_t early_ns,
		late_ns; /* latest deadline of every second page; earliest of the others */
} attempts;

static uint32_t note_deadline(struct fake *f, uint32_t rail, const struct op *op)
{
	for (unsigned i = 0; i < COUNT && op->kind == OP_PAGE; i++) {
		if (!page_key_equal(&op->key, &attempts.key[i]))
			continue;
		if (i % 2 && op->deadline_ns > attempts.early_ns)
			attempts.early_ns = op->deadline_ns;
		if (i % 2 == 0 && op->deadline_ns < attempts.late_ns)
			attempts.late_ns = op->deadline_ns;
	}
	return FAKE_DO;
}

static void a_page_with_another_copy_leaves_time_for_it_whatever_is_read_with_it(void **state)
{
	store(1);
	attempts.early_ns = 0;
	attempts.late_ns = UINT64_MAX;
	for (unsigned i = 0; i < COUNT; i++) {
		attempts.key[i] = fake_key(one[i].name);
		if (i % 2)
			fake_page(&fake, one[i].name, FAKE_B, 0, BYTES);
	}
	hook(note_deadline, NULL);
	get_all();
	all_are_hits();
	assert_true(attempts.early_ns && attempts.early_ns < attempts.late_ns);
}

static void deny(struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	static const uint8_t status[] = {OP_HIT, OP_STALE, OP_NIC_ERROR, 200};

	if (run->head.kind != OP_RUN || !failures)
		return;
	d->hit = d->stale = 0;
	d->status = status[f->runs % 4];
	failures--;
}

/* Reading the heads, which the client does for stale pages only, would show it. */
static void a_run_that_failed_makes_no_page_stale(void **state)
{
	store(FAKE_RAILS);
	look_up_all();
	for (unsigned n = 1; n <= 8; n++) {
		failures = FAKE_RAILS;
		hook(NULL, deny);
		get_all();
		all_are_hits();
		assert_int_equal(counts().reissued, n * COUNT);
		assert_int_equal(SEEN(head_reads), 0);
		assert_int_equal(SEEN(stales), 0);
	}
}

static uint32_t any_status(struct fake *f, uint32_t rail, const struct op *op)
{
	static const uint32_t status[] = {
		OP_NIC_ERROR, OP_PEER_DOWN, OP_TIMEOUT, OP_STALE, OP_INVALID};

	return roll(4) ? FAKE_DO : status[roll(5)];
}

static void whatever_fails_a_hit_has_the_right_bytes(void **state)
{
	unsigned hits = 0;

	store(FAKE_RAILS);
	for (unsigned n = 0; n < 60; n++) {
		unsigned count = 1 + roll(COUNT);

		hook(any_status, NULL);
		memset(memory, 0xee, COUNT * BYTES);
		assert_int_equal(pc_get(ch, page, count, PATIENCE_MS, result), 0);
		for (unsigned i = 0; i < count; i++) {
			assert_true(result[i] != PC_PENDING && result[i] != PC_TIMEOUT);
			if (result[i] != PC_HIT)
				continue;
			hits++;
			assert_true(same(one[i].name, memory + i * BYTES, 0, BYTES));
		}
	}
	assert_true(hits > 60);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		assert_true(ch->rail[r].bytes == 0 && ch->rail[r].in_flight == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_rails_share_the_pages_of_a_batch_in_one_run_each),
		TEST(pages_of_one_pool_are_shared_by_the_rails_too),
		TEST(a_run_may_be_a_quarter_longer_than_its_share),
		TEST(a_pool_with_many_more_pages_is_read_in_equal_runs),
		TEST(pages_of_two_lengths_do_not_cut_each_others_runs),
		TEST(a_batch_of_any_length_is_planned_in_parts),
		TEST(known_pages_of_this_host_are_copied_not_read),
		TEST(keys_of_one_owner_are_looked_up_in_one_run),
		TEST(segments_at_one_distance_are_read_in_runs),
		TEST(irregular_segments_are_read_by_ops_of_one_page),
		TEST(a_stale_page_is_reported_alone),
		TEST(only_the_pages_that_failed_are_read_again),
		TEST(runs_in_flight_are_awaited_after_the_deadline),
		TEST(a_run_that_finds_no_room_is_split_and_waits),
		TEST(one_invalid_place_does_not_refuse_the_other_pages),
		TEST(a_page_with_another_copy_leaves_time_for_it_whatever_is_read_with_it),
		TEST(a_run_that_failed_makes_no_page_stale),
		TEST(whatever_fails_a_hit_has_the_right_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
