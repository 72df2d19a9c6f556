/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_set() of keys that the directory has, whose holder does not answer, or whose engine is lost or
 * answers nonsense.
 */
#include "engine/client/lookup/lookup.h"
#include "tests/unit/client/write/set_rig.h"

#include <sys/wait.h>

/* ---- holders that do not answer -------------------------------------------------------------- */

static uint32_t head_status, broken_rail;

static uint32_t answer_heads(struct fake *f, uint32_t rail, const struct op *op)
{
	if (of_head(op) && (broken_rail == FAKE_RAILS || rail == broken_rail))
		return head_status;
	return FAKE_DO;
}

static void heads_answer(uint32_t status, uint32_t rail)
{
	fake_lock(&fake);
	head_status = status;
	broken_rail = rail;
	fake.on_op = answer_heads;
	fake_unlock(&fake);
}

static void a_page_whose_holder_cannot_be_asked_is_stored(void **state)
{
	static const uint8_t status[] = {OP_PEER_DOWN, OP_NIC_ERROR, OP_TIMEOUT, OP_MISS};
	unsigned lookups = 0;

	for (unsigned s = 0; s < sizeof(status); s++) {
		char stem[16];
		unsigned reads, before = SEEN(publishes);

		snprintf(stem, sizeof(stem), "key%u", s);
		make(stem, FAKE_A);
		ch->peer_rest_until_ns[FAKE_A] = 0;
		heads_answer(status[s], FAKE_RAILS);
		set_all(32);
		all_are(32, PC_HIT);
		assert_int_equal(SEEN(publishes), before + 32);
		assert_int_equal(counts().lookups, lookups += 32); /* one for each page */
		assert_true(ch->peer_rest_until_ns[FAKE_A] > 0);
		/* the holder rests now: the next set does not even ask it */
		ch->peer_rest_until_ns[FAKE_A] = clock_monotonic_ns() + 60000000000ull;
		reads = SEEN(head_reads);
		assert_int_equal(pc_set(ch, pages + 32, 32, PATIENCE_MS, results), 0);
		all_are(32, PC_HIT);
		assert_int_equal(SEEN(head_reads), reads);
		assert_int_equal(SEEN(publishes), before + 64);
		assert_int_equal(counts().lookups, lookups += 32);
		assert_readable(name[40]);
	}
	assert_int_equal(SEEN(stales), 0); /* nothing is known of the pages */
	assert_idle();
}

static void a_suspect_holder_is_not_asked(void **state)
{
	make("key", FAKE_A);
	shm_store64(&fake.status->map.suspects[FAKE_A / 64], 1ull << FAKE_A % 64);
	set_all(32);
	all_are(32, PC_HIT);
	assert_int_equal(SEEN(head_reads) + SEEN(stales), 0);
	assert_int_equal(SEEN(publishes), 32);
}

static void a_head_is_read_over_another_rail_when_one_fails(void **state)
{
	make("key", FAKE_A);
	for (uint32_t rail = 0; rail < FAKE_RAILS; rail++) {
		heads_answer(OP_NIC_ERROR, rail);
		set_all(PAGES);
		all_are(PAGES, PC_HIT);
	}
	assert_int_equal(SEEN(publishes) + SEEN(stales), 0);
	assert_idle();
}

/* The holder leaves the map while its heads are READ, and is never back. */
static uint32_t leave(struct fake *f, uint32_t rail, const struct op *op)
{
	if (!of_head(op))
		return FAKE_DO;
	if (op->peer == FAKE_B)
		fake_map(f, FAKE_B, 1);
	return OP_PEER_DOWN;
}

static void a_page_of_a_holder_that_leaves_the_map_is_stored(void **state)
{
	fake_map(&fake, FAKE_B, 1); /* B owns no key */
	make("key", FAKE_NODES);
	fake_map(&fake, FAKE_NODES, 1);
	for (unsigned k = 0; k < PAGES; k++)
		fake_page(&fake, name[k], FAKE_B, 0, SHORT);
	assert_int_equal(pc_exists(ch, pages, PAGES, PATIENCE_MS, results), 0);
	LET(on_op, leave);
	set_all(PAGES);
	all_are(PAGES, PC_HIT);
	assert_int_equal(SEEN(publishes), PAGES);
	assert_int_equal(SEEN(stales), 0);
}

/* ---- the deadline ---------------------------------------------------------------------------- */

static void a_set_whose_heads_do_not_arrive_ends_at_its_deadline(void **state)
{
	uint64_t start_ns;

	make("key", FAKE_A);
	heads_answer(FAKE_HOLD, FAKE_RAILS);
	start_ns = clock_monotonic_ns();
	assert_int_equal(pc_set(ch, pages, 32, 100, results), 0);
	all_are(32, PC_TIMEOUT);
	assert_true(elapsed_ms(start_ns) >= 100);
	assert_int_equal(SEEN(publishes), 0);
	/* the late heads belong to no batch, and their scratch slots come back */
	LET(on_op, NULL);
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	set_all(32);
	all_are(32, PC_HIT);
	assert_int_equal(SEEN(publishes), 0);
	assert_idle();
}

/* The rails give a head a third of the time, so that the rest suffices to store the page. */
static uint64_t head_deadline_ns;

static uint32_t note_deadline(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f, (void)rail;
	if (!of_head(op))
		return FAKE_DO;
	head_deadline_ns = op->deadline_ns;
	return OP_TIMEOUT;
}

static void a_head_gets_a_third_of_the_time(void **state)
{
	uint64_t start_ns;

	make("key", FAKE_A);
	LET(on_op, note_deadline);
	start_ns = clock_monotonic_ns();
	assert_int_equal(pc_set(ch, pages, 1, 60000, results), 0);
	all_are(1, PC_HIT);
	assert_int_equal(SEEN(publishes), 1);
	assert_in_range(head_deadline_ns - start_ns, 1, 21000000000ull);
}

static void a_set_whose_engine_is_lost_during_the_heads_is_gone(void **state)
{
	struct pc_batch *batch;

	make("key", FAKE_A);
	heads_answer(FAKE_HOLD, FAKE_RAILS);
	assert_int_equal(pc_submit_set(ch, pages, 32, PATIENCE_MS, results, &batch), 0);
	SEEN_SOON(held_count);
	fake_die(&fake);
	pc_wait(batch);
	all_are(32, PC_GONE);
}

/* A child ends, and another one lives on, while their parent waits for heads. */
static void children_do_not_disturb_a_set(void **state)
{
	struct pc_batch *batch;
	pid_t lives;

	make("key", FAKE_A);
	retire(FAKE_A, places[3]);
	heads_answer(FAKE_HOLD, FAKE_RAILS);
	assert_int_equal(pc_submit_set(ch, pages, 32, PATIENCE_MS, results, &batch), 0);
	while (SEEN(held_count) < 2 && !pc_poll(batch))
		continue;
	lives = fork();
	if (!lives)
		for (;;)
			pause();
	for (unsigned n = 0; n < 4; n++) {
		pid_t child = fork();

		if (!child)
			_exit(0);
		assert_int_equal(waitpid(child, NULL, 0), child);
	}
	LET(on_op, NULL);
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	kill(lives, SIGKILL);
	waitpid(lives, NULL, 0);
	all_are(32, PC_HIT);
	assert_int_equal(SEEN(publishes), 1);
	assert_readable(name[3]);
	assert_idle();
}

/* ---- answers that no correct engine gives ---------------------------------------------------- */

static unsigned lies;

static void lie(struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	(void)f, (void)rail;
	if (run->head.kind != OP_LOOKUP || run->head.region == REGION_SHARD)
		return;
	switch (lies) {
	case 0: d->hit = 0; break; /* "hit", but for no page */
	case 1: d->hit = 0, d->status = OP_STALE; break;
	case 2: d->hit = 0, d->status = 200; break;
	case 3: d->hit = 0, d->stale = UINT32_MAX; break;
	case 4: d->hit = 0, d->status = OP_INVALID; break;
	default: d->hit = 0, d->status = OP_CANCELLED;
	}
}

static void an_answer_without_a_head_is_no_proof(void **state)
{
	LET(on_run, lie);
	for (unsigned n = 0; n < 6; n++) {
		char stem[16];

		snprintf(stem, sizeof(stem), "key%u", n);
		make(stem, FAKE_A);
		ch->peer_rest_until_ns[FAKE_A] = 0;
		LET(publishes, 0);
		fake_lock(&fake);
		lies = n;
		fake_unlock(&fake);
		set_all(32);
		all_are(32, PC_HIT);
		assert_int_equal(SEEN(publishes), 32);
		assert_readable(name[31]);
		assert_idle();
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_page_whose_holder_cannot_be_asked_is_stored),
		RIG_TEST(a_suspect_holder_is_not_asked),
		RIG_TEST(a_head_is_read_over_another_rail_when_one_fails),
		RIG_TEST(a_page_of_a_holder_that_leaves_the_map_is_stored),
		RIG_TEST(a_set_whose_heads_do_not_arrive_ends_at_its_deadline),
		RIG_TEST(a_head_gets_a_third_of_the_time),
		RIG_TEST(a_set_whose_engine_is_lost_during_the_heads_is_gone),
		RIG_TEST(children_do_not_disturb_a_set),
		RIG_TEST(an_answer_without_a_head_is_no_proof),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
