/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_set() of keys that the directory has: the page head at the location decides whether the page
 * is stored.
 */
#include "engine/client/page/batch.h"
#include "tests/unit/client/write/set_rig.h"

/* ---- what the head says ---------------------------------------------------------------------- */

static void present_pages_cost_runs_of_heads_and_are_not_stored(void **state)
{
	make("key", FAKE_A);
	set_all(PAGES);
	all_are(PAGES, PC_HIT);
	assert_int_equal(counts().sets_already, PAGES);
	assert_int_equal(counts().sets, 0);
	assert_int_equal(SEEN(publishes) + SEEN(stales), 0);
	assert_int_equal(SEEN(head_reads), PAGES);
	/* look-ups may end in several steps, which make a run each */
	assert_in_range(SEEN(head_runs), PAGES / RUN_PAGES_MAX, PAGES / 4);
	assert_idle();
	LET(head_runs, 0);
	set_all(PAGES); /* all locations are known */
	all_are(PAGES, PC_HIT);
	assert_int_equal(SEEN(head_reads), 2 * PAGES);
	/* pages of all pools share runs */
	assert_int_equal(SEEN(head_runs), (PAGES + RUN_PAGES_MAX - 1) / RUN_PAGES_MAX);
	assert_int_equal(SEEN(publishes), 0);
	assert_true(SEEN(touches) > 0);
}

static void present_pages_of_this_host_cost_no_read(void **state)
{
	make("key", FAKE_SELF);
	set_all(PAGES);
	all_are(PAGES, PC_HIT);
	assert_int_equal(counts().sets_already, PAGES);
	assert_int_equal(SEEN(publishes) + SEEN(head_reads), 0);
}

/* Also just after an exists or a get of the same channel has confirmed the location. */
static void a_remembered_location_is_no_proof(void **state)
{
	static unsigned char at[SHORT];

	make("key", FAKE_A);
	assert_int_equal(pc_exists(ch, pages, PAGES, PATIENCE_MS, results), 0);
	all_are(PAGES, PC_HIT);
	for (unsigned k = 0; k < PAGES; k++)
		assert_int_equal(get_one(name[k], at, SHORT, PATIENCE_MS), PC_HIT);
	for (unsigned k = 0; k < PAGES; k++)
		retire(FAKE_A, places[k]);
	set_all(PAGES);
	all_are(PAGES, PC_HIT);
	assert_int_equal(SEEN(publishes), PAGES);
	for (unsigned k = 0; k < PAGES; k++)
		assert_readable(name[k]);
}

/* The head at the place of the entry is that of the page but for one word. */
static void a_head_that_differs_in_one_word_is_another_page(void **state)
{
	for (unsigned word = 0; word < 4; word++) {
		uint32_t node = word % 2 ? FAKE_SELF : FAKE_A;

		for (unsigned rail = 0; rail < FAKE_RAILS; rail++) {
			char key[FAKE_NAME_BYTES];
			struct page_head *head;
			unsigned before = SEEN(publishes);

			snprintf(key, sizeof(key), "key-%u-%u", word, rail);
			head = fake_head(&fake, node, fake_page(&fake, key, node, rail, SHORT));
			fake_lock(&fake);
			switch (word) {
			case 0: head->generation = 8; break; /* the slot was used again */
			case 1:
				head->length = 0;
				break; /* torn: the page is leaving */
			/* another key; word 1 has the tag, so this one has the same */
			case 2: head->key.word[0] ^= 1; break;
			default: head->key.word[1] = 0;
			}
			fake_unlock(&fake);
			fill(key, from[0], SHORT);
			assert_int_equal(set_one(key, from[0], SHORT, PATIENCE_MS), PC_HIT);
			assert_int_equal(SEEN(publishes), before + 1);
			assert_readable(key);
		}
	}
}

static uint32_t impossible;

/* The directory names a place outside the pool: the rail refuses the run, and no other page. */
static void one_impossible_place_refuses_no_other_page(void **state)
{
	struct page_key key;

	make("key", FAKE_A);
	impossible = place_make(0, PAGE_UNITS_MAX - 1);
	key = fake_key(name[6]);
	fake_insert(&fake, &key, FAKE_NODES,
		&(struct dir_entry){.ref = FAKE_REF(FAKE_A), .place = impossible, .generation = 7});
	set_all(32);
	all_are(32, PC_HIT);
	assert_int_equal(SEEN(publishes), 1);
	assert_int_equal(SEEN(stales), 1);
	assert_int_equal(SEEN(last_stale.place), impossible);
	assert_readable(name[6]);
	assert_idle();
}

/* The engine takes nothing while the batches are made: op rings and requests run out. */
static void heads_wait_for_room_in_the_rings(void **state)
{
	enum { BATCHES = 96 };
	static enum pc_result result[BATCHES][PAGES];
	struct pc_batch *batch[BATCHES];
	unsigned looks = 0, waits;
	uint64_t known_ns;

	make("key", FAKE_A);
	for (unsigned k = 0; k < PAGES; k += 5)
		retire(FAKE_A, places[k]);
	known_ns = clock_monotonic_ns();
	assert_int_equal(pc_exists(ch, pages, PAGES, PATIENCE_MS, results), 0);
	fake_lock(&fake);
	for (unsigned n = 0; n < BATCHES; n++)
		assert_int_equal(
			pc_submit_set(ch, pages, PAGES, PATIENCE_MS, result[n], &batch[n]), 0);
	for (unsigned n = 0; n < BATCHES; n++)
		looks += batch[n]->queue[PAGE_LOOK].head != CLIENT_NONE;
	if (elapsed_ms(known_ns) >= 900)
		looks = 0; /* the locations may be too old to be used without a look-up */
	waits = ch->waits[0];
	fake_unlock(&fake);
	assert_true(waits > 0);
	assert_int_equal(looks, 0);
	for (unsigned n = 0; n < BATCHES; n++) {
		pc_wait(batch[n]);
		for (unsigned k = 0; k < PAGES; k++)
			assert_int_equal(result[n][k], PC_HIT);
	}
	for (unsigned k = 0; k < PAGES; k++)
		assert_readable(name[k]);
	assert_idle();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(present_pages_cost_runs_of_heads_and_are_not_stored),
		RIG_TEST(present_pages_of_this_host_cost_no_read),
		RIG_TEST(a_remembered_location_is_no_proof),
		RIG_TEST(a_head_that_differs_in_one_word_is_another_page),
		RIG_TEST(one_impossible_place_refuses_no_other_page),
		RIG_TEST(heads_wait_for_room_in_the_rings),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
