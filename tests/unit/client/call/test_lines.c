/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a batch costs besides instructions: full fences, and ring entries, each of which is a cache
 * line that moves from one core to another. The fences of submit.c are counted by this program's
 * own build of that file; client/wait.c has the only other one, in front of a sleep.
 */
#include "config/clock.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/peercache.h"
#include "engine/client/rings/rings.h"

static unsigned fences;
#define shm_fence_sleep() (fences++, shm_fence_sleep())
#include "engine/client/rings/submit.c"
#undef shm_fence_sleep

#include "tests/unit/client/rig.h"

#define COUNT 64u
#define BYTES 20480u

static struct one one[COUNT];
static struct pc_page page[COUNT];
static enum pc_result result[COUNT];
static unsigned char *memory;

static int setup(void **state)
{
	void *at;

	rig_setup(state);
	assert_int_equal(pc_memory_alloc(pc, COUNT * BYTES, &at), 0);
	memory = at;
	for (unsigned i = 0; i < COUNT; i++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "page-%u-%c", i, 'a' + (int)(i % 26));
		page[i] = *one_page(&one[i], name, memory + i * BYTES, BYTES);
	}
	return 0;
}

struct lines {
	unsigned fences, runs, to_rails, answers;
};

static unsigned answers(void)
{
	unsigned n = 0;

	fake_lock(&fake);
	for (unsigned c = 0; c < FAKE_CHANNELS; c++)
		n += fake.channel[c].answers;
	fake_unlock(&fake);
	return n;
}

/* Reads the first `count` pages, whose locations are known, in one batch. */
static struct lines get(unsigned count)
{
	struct lines l = {0, SEEN(runs), SEEN(run_lines) + SEEN(op_lines), answers()};
	struct pc_batch *batch;

	fences = 0;
	assert_int_equal(pc_submit_get(ch, page, count, PATIENCE_MS, result, &batch), 0);
	l.fences = fences;
	pc_wait(batch);
	for (unsigned i = 0; i < count; i++) {
		assert_int_equal(result[i], PC_HIT);
		assert_true(same(one[i].name, memory + i * BYTES, 0, BYTES));
	}
	l.runs = SEEN(runs) - l.runs;
	l.to_rails = SEEN(run_lines) + SEEN(op_lines) - l.to_rails;
	l.answers = answers() - l.answers;
	print_message("%u pages: %u runs, %u fences, %.2f + %.2f ring lines a page\n", count,
		l.runs, l.fences, (double)l.to_rails / count, (double)l.answers / count);
	return l;
}

static void a_batch_takes_one_fence_and_few_ring_lines(void **state)
{
	for (unsigned i = 0; i < COUNT; i++)
		fake_page(&fake, one[i].name, FAKE_A, i % FAKE_RAILS, BYTES);
	assert_int_equal(pc_exists(ch, page, COUNT, PATIENCE_MS, result), 0);
	for (unsigned pages = 4; pages * FAKE_RAILS <= COUNT; pages *= 2) {
		struct lines l = get(pages * FAKE_RAILS);

		assert_int_equal(l.fences, 1);
		assert_int_equal(l.runs, FAKE_RAILS);
		assert_int_equal(l.answers, FAKE_RAILS);
		/* runs of 4: at most 1.0 a page; from 8 on, 0.8 */
		assert_true(10 * (l.to_rails + l.answers) <=
			    (pages == 4 ? 10 : 8) * pages * FAKE_RAILS);
	}
}

static void the_lookups_of_a_batch_take_one_fence(void **state)
{
	struct pc_batch *batch;

	fake_map(&fake, 2, 1); /* this host and FAKE_A own the keys */
	for (unsigned i = 0; i < COUNT; i++)
		fake_page(&fake, one[i].name, FAKE_A, i % FAKE_RAILS, BYTES);
	fences = 0;
	assert_int_equal(pc_submit_exists(ch, page, COUNT, PATIENCE_MS, result, &batch), 0);
	assert_int_equal(fences, 1);
	pc_wait(batch);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(result[i], PC_HIT);
	assert_true(SEEN(look_runs) <= (SEEN(reads) + RUN_PAGES_MAX - 1) / RUN_PAGES_MAX + 1);
}

/*
 * Stores COUNT pages of `bytes` bytes in one batch. Between two steps of the channel this thread is
 * the engine. Returns how often one step published ctl ops, at most.
 */
static unsigned set(const char *stem, uint32_t bytes)
{
	static unsigned char from[128 << 10];
	unsigned most = 0, before = SEEN(publishes);
	struct pc_batch *batch;
	bool done;

	for (unsigned i = 0; i < COUNT; i++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "%s-%u", stem, i);
		page[i] = *one_page(&one[i], name, from, bytes);
	}
	fake_lock(&fake);
	assert_int_equal(pc_submit_set(ch, page, COUNT, PATIENCE_MS, result, &batch), 0);
	do {
		fake_serve_rings(&fake);
		fences = 0;
		done = pc_poll(batch);
		most = fences > most ? fences : most;
	} while (!done);
	fake_unlock(&fake);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(result[i], PC_HIT);
	assert_int_equal(SEEN(publishes) - before, COUNT);
	return most;
}

static void a_long_set_publishes_between_its_copies(void **state)
{
	fake_map(&fake, 1, 1);
	assert_true(set("long", 128 << 10) >= 4);
}

static void an_empty_ctl_ring_is_not_published(void **state)
{
	unsigned before;

	fake_map(&fake, 1, 1);
	set("before", 4096);
	before = SEEN(publishes);
	fake_lock(&fake);
	submit_ctl_flush(ch);
	fake_serve_rings(&fake);
	fake_unlock(&fake);
	assert_int_equal(SEEN(publishes), before);
	set("after", 4096);
}

/* counted by the fake engine, under its lock */
static unsigned touch_ops, wrong_refs;

static unsigned counted(const unsigned *counter)
{
	unsigned n;

	fake_lock(&fake);
	n = *counter;
	fake_unlock(&fake);
	return n;
}

static uint32_t count_touch_ops(struct fake *f, const struct ctl_op *op)
{
	if (op->kind == CTL_TOUCHES) {
		struct ctl_touches t;

		touch_ops++;
		memcpy(&t, op, sizeof(t));
		for (unsigned i = 0; i < t.count; i++) /* a rail for each of the two nodes */
			wrong_refs +=
				t.page[i].ref != FAKE_REF(FAKE_A + place_rail(t.page[i].place));
	}
	touch_ops += op->kind == CTL_TOUCH;
	return FAKE_DO;
}

/*
 * Looks up COUNT pages that no look-up has named before. Returns how often this thread was to wake
 * the control plane, which sleeps the whole time.
 */
static unsigned look_up_new(void)
{
	static unsigned next;
	uint64_t kicks = 0;

	fake_lock(&fake);
	(void)!read(fake.control_kick, &kicks, sizeof(kicks));
	fake_unlock(&fake);
	for (unsigned i = 0; i < COUNT; i++, next++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "new-%u", next);
		page[i] = *one_page(&one[i], name, NULL, 0);
		fake_page(&fake, name, FAKE_A + i % 2, i % 2, 4096);
	}
	LET(deaf, true);
	assert_int_equal(pc_exists(ch, page, COUNT, PATIENCE_MS, result), 0);
	for (unsigned i = 0; i < COUNT; i++)
		assert_int_equal(result[i], PC_HIT);
	assert_int_equal(ch->touches.count, 0); /* all are in the ring */
	fake_lock(&fake);
	kicks = 0;
	(void)!read(fake.control_kick, &kicks, sizeof(kicks));
	fake.deaf = false;
	fake_unlock(&fake);
	return (unsigned)kicks;
}

static uint64_t kicks_taken(void)
{
	uint64_t kicks = 0;

	if (read(fake.control_kick, &kicks, sizeof(kicks)) != sizeof(kicks))
		return 0;
	return kicks;
}

/* The control plane of the fake engine takes nothing until the test makes it serve again. */
static void a_napping_control_plane_is_woken_by_a_waiting_thread_only(void **state)
{
	static unsigned char bytes[4096];
	struct pc_batch *batch;

	LET(deaf, true);
	fake_lock(&fake);
	(void)kicks_taken();
	shm_store(&fake.status->control_sleeps, CONTROL_NAPS);
	fake_unlock(&fake);
	page[0] = *one_page(&one[0], "stored", bytes, sizeof(bytes));
	assert_int_equal(pc_submit_set(ch, page, 1, PATIENCE_MS, result, &batch), 0);
	while (!ch->ctl_awaited) /* until the request for a credit is in the ring */
		assert_false(pc_poll(batch));
	assert_int_equal(kicks_taken(), 0);
	wait_for(ch, batch, clock_monotonic_ns() + 1);
	assert_int_equal(kicks_taken(), 0); /* its time is over before it waits */
	wait_for(ch, batch, clock_monotonic_ns() + 20000000);
	assert_int_equal(kicks_taken(), 1);
	wait_for(ch, batch, clock_monotonic_ns() + 1000000);
	assert_int_equal(kicks_taken(), 0); /* once for each request */
	fake_lock(&fake);
	shm_store(&fake.status->control_sleeps, CONTROL_AWAKE);
	fake.deaf = false;
	fake_unlock(&fake);
	pc_wait(batch);
	assert_int_equal(result[0], PC_HIT);
}

static void touches_share_ring_entries_and_wake_ups(void **state)
{
	unsigned kicks, rounds = 0;
	uint64_t from;
	bool quick;

	touch_ops = wrong_refs = 0;
	LET(on_ctl, count_touch_ops);
	assert_int_not_equal(look_up_new(), 0);
	do {
		rounds++;
		from = clock_monotonic_ns();
		ch->touch_woken_ns = from;
		kicks = look_up_new();
		quick = clock_monotonic_ns() - from < TOUCH_WAKE_NS;
	} while (!quick && rounds < 4); /* the directory of the fake engine has little room */
	/* a machine on which no round is that quick cannot show it */
	assert_true(kicks == 0 || !quick);
	/* an op that is urgent wakes the control plane, which then takes the touches as well */
	set("urgent", 4096);
	assert_int_equal(SEEN(touches), (rounds + 1) * COUNT);
	assert_in_range(counted(&touch_ops), 1, (rounds + 1) * COUNT / 2);
	assert_int_equal(counted(&wrong_refs), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_batch_takes_one_fence_and_few_ring_lines, setup, rig_teardown),
		cmocka_unit_test_setup_teardown(
			the_lookups_of_a_batch_take_one_fence, setup, rig_teardown),
		RIG_TEST(a_long_set_publishes_between_its_copies),
		RIG_TEST(an_empty_ctl_ring_is_not_published),
		RIG_TEST(a_napping_control_plane_is_woken_by_a_waiting_thread_only),
		RIG_TEST(touches_share_ring_entries_and_wake_ups),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
