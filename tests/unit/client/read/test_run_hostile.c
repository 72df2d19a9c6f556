/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to runs that no correct engine gives: no page is a hit, or absent, because of one. */
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "tests/unit/client/read/run_rig.h"

static void lie(struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	struct run_done other = *d;

	if (run->head.kind != OP_RUN)
		return;
	for (unsigned k = 0; k < FAKE_CHANNELS; k++) {
		if (!f->channel[k].used)
			continue;
		other.cookie ^= 0x10000; /* another generation of the same request */
		fake_done(&f->channel[k], rail, &other);
		other.cookie = 0xffffffff;
		fake_done(&f->channel[k], rail, &other);
		other = *d;
		other.kind = OP_LOOKUP;
		fake_done(&f->channel[k], rail, &other);
		other.kind = 77;
		fake_done(&f->channel[k], rail, &other);
		fake_done(&f->channel[k], rail, &(struct run_done){.cookie = d->cookie});
		fake_done(&f->channel[k], rail,
			&(struct run_done){.cookie = d->cookie, .hit = 1, .kind = OP_PAGE});
	}
	d->hit |= ~0u << (run->head.pages - 1) << 1;
	d->stale = ~0u << (run->head.pages - 1) << 1;
}

/* Answers for the runs that are held, none of which has the cookie of its run. */
static void forge(struct fake *f)
{
	for (unsigned h = 0; h < f->held_runs; h++) {
		const struct run *head = &f->held_run[h].run.head;
		struct fake_channel *to = f->held_run[h].channel;
		uint32_t rail = f->held_run[h].rail;
		struct run_done d = {
			.cookie = head->cookie, .kind = OP_LOOKUP, .status = OP_NIC_ERROR};

		fake_done(to, rail, &d); /* of another kind */
		d.kind = OP_RUN;
		fake_done(to, (rail + 1) % FAKE_RAILS, &d); /* of another rail */
		d.cookie ^= 0x10000;
		fake_done(to, rail, &d); /* of an earlier request */
		d.status = OP_HIT;       /* the same for hits of all pages */
		d.hit = UINT32_MAX >> (RUN_PAGES_MAX - head->pages);
		fake_done(to, rail, &d);
		d.cookie = head->cookie;
		fake_done(to, (rail + 1) % FAKE_RAILS, &d);
		d.kind = OP_LOOKUP;
		fake_done(to, rail, &d);
		fake_done(to, rail,
			&(struct run_done){.cookie = head->cookie, .status = OP_NIC_ERROR});
		fake_done(to, rail,
			&(struct run_done){
				.cookie = head->cookie, .status = OP_NIC_ERROR, .kind = OP_PAGE});
	}
}

static void forged_answers_read_no_page_twice(void **state)
{
	struct pc_batch *batch;

	store(FAKE_RAILS);
	look_up_all();
	hook(hold_pages, NULL);
	memset(memory, 0xee, COUNT * BYTES);
	assert_int_equal(pc_submit_get(ch, page, COUNT, PATIENCE_MS, result, &batch), 0);
	while (SEEN(held_runs) < FAKE_RAILS)
		assert_false(pc_poll(batch));
	hook(NULL, NULL);
	fake_lock(&fake);
	forge(&fake);
	fake_unlock(&fake);
	for (unsigned n = 0; n < 100; n++)
		assert_false(pc_poll(batch));
	while (SEEN(kicked) && SEEN(status->rail[0].sleeps) + SEEN(status->rail[1].sleeps) < 2)
		assert_false(pc_poll(batch)); /* until the rails have taken what was posted */
	assert_int_equal(SEEN(overlaps), 0);
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), COUNT);
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	all_are_hits();
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), COUNT);
}

static unsigned liars;
static uint8_t lie_status;

/*
 * Reports the status of the lie for every second bucket, and leaves what an earlier look-up could
 * have left in their scratch slots: empty buckets, which would make the keys absent.
 */
static void lie_about_buckets(
	struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	unsigned char *to = f->region[run->head.to_region].base + run->head.stride_or_to;

	if (run->head.kind != OP_LOOKUP || !liars)
		return;
	liars--;
	for (uint32_t k = 1; k < run->head.pages; k += 2)
		memset(to + k * sizeof(struct bucket), 0, sizeof(struct bucket));
	d->hit = 0x55555555 | ~0u << (run->head.pages - 1) << 1;
	d->stale = ~d->hit;
	d->status = lie_status;
}

static void lie_in(unsigned runs, uint8_t status)
{
	fake_lock(&fake);
	liars = runs;
	lie_status = status;
	fake.on_run = lie_about_buckets;
	fake_unlock(&fake);
}

static void a_bucket_that_was_not_read_is_not_used(void **state)
{
	static const uint8_t status[] = {OP_HIT, OP_STALE, OP_NIC_ERROR, 200};

	fake_map(&fake, 2, 1); /* this host and FAKE_A own the keys */
	store(1);
	for (unsigned n = 0; n < sizeof(status); n++) {
		memset(ch->cache, 0, CACHE_SETS * sizeof(*ch->cache));
		lie_in(1, status[n]);
		look_up_all();
		for (unsigned i = 0; i < COUNT; i++)
			assert_int_equal(result[i], PC_HIT);
		fake_lock(&fake);
		assert_int_equal(liars, 0);
		fake_unlock(&fake);
	}
	/* Every answer lies: the keys cannot be looked up, which is not a miss. */
	memset(ch->cache, 0, CACHE_SETS * sizeof(*ch->cache));
	lie_in(UINT32_MAX, OP_HIT);
	look_up_all();
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(result[i] == PC_HIT || result[i] == PC_UNREACHABLE);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		assert_int_equal(ch->rail[r].in_flight, 0);
}

static void twice(struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	for (unsigned k = 0; k < FAKE_CHANNELS; k++)
		if (f->channel[k].used)
			fake_done(&f->channel[k], rail, d);
}

static void bits_and_answers_without_a_page_change_nothing(void **state)
{
	store(FAKE_RAILS);
	look_up_all();
	for (unsigned n = 0; n < 20; n++) {
		unsigned count = 1 + roll(COUNT);

		hook(NULL, n % 2 ? lie : twice);
		memset(memory, 0xee, COUNT * BYTES);
		assert_int_equal(pc_get(ch, page, count, PATIENCE_MS, result), 0);
		for (unsigned i = 0; i < COUNT; i++) {
			assert_true(i >= count || result[i] == PC_HIT);
			assert_true(i >= count || same(one[i].name, memory + i * BYTES, 0, BYTES));
		}
	}
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		assert_true(ch->rail[r].bytes == 0 && ch->rail[r].in_flight == 0);
	assert_int_equal(SEEN(stales), 0);
}

static void claim_nothing(
	struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	if (run->head.kind != OP_RUN)
		return;
	d->hit &= 0x55555555;
	d->stale = 0;
	d->status = f->runs % 3 == 0 ? OP_HIT : f->runs % 3 == 1 ? OP_STALE : 200;
}

/* Every second page has no bit in a mask, although the status says that each page has one. */
static void claim_half(
	struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	if (run->head.kind != OP_RUN || !liars)
		return;
	liars--;
	d->hit &= 0x55555555;
	d->status = OP_HIT;
}

static void a_page_without_its_bit_is_read_again(void **state)
{
	store(FAKE_RAILS);
	look_up_all();
	fake_lock(&fake);
	liars = FAKE_RAILS;
	fake.on_run = claim_half;
	fake_unlock(&fake);
	get_all();
	all_are_hits();
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), COUNT + COUNT / 2);
}

static void claim_both(
	struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	if (run->head.kind == OP_RUN)
		d->stale = d->hit;
}

static void a_page_without_a_clear_answer_is_no_hit(void **state)
{
	unsigned hits = 0;

	store(FAKE_RAILS);
	look_up_all();
	hook(NULL, claim_both);
	assert_int_equal(pc_get(ch, page, COUNT, PATIENCE_MS, result), 0);
	for (unsigned i = 0; i < COUNT; i++)
		assert_true(result[i] == PC_STALE);
	look_up_all();
	hook(NULL, claim_nothing);
	assert_int_equal(pc_get(ch, page, COUNT, PATIENCE_MS, result), 0);
	for (unsigned i = 0; i < COUNT; i++)
		hits += result[i] == PC_HIT;
	assert_true(hits >= COUNT / 2); /* alone in its run, a page is at an even place */
	hook(NULL, NULL);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		assert_true(ch->rail[r].bytes == 0 && ch->rail[r].in_flight == 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(forged_answers_read_no_page_twice),
		TEST(a_bucket_that_was_not_read_is_not_used),
		TEST(bits_and_answers_without_a_page_change_nothing),
		TEST(a_page_without_a_clear_answer_is_no_hit),
		TEST(a_page_without_its_bit_is_read_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
