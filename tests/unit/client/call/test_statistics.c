/* SPDX-License-Identifier: Apache-2.0 */
/*
 * statistics.c: each batch is counted once, in the channel's segment, with its results and latency;
 * the sums agree, as the engine requires.
 */
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/peercache.h"
#include "tests/unit/client/rig.h"

static struct statistics_words words(void)
{
	struct statistics_words w;

	assert_int_equal(statistics_read(ch->statistics, &w), 0);
	for (unsigned call = 0; call < STATISTICS_CALLS; call++) {
		const struct statistics_calls *c = &w.calls[call];
		uint64_t pages = 0;

		for (unsigned r = 0; r < STATISTICS_RESULTS; r++)
			pages += c->result[r];
		assert_int_equal(pages, c->pages);
		assert_int_equal(latency_count(c->latency), c->batches);
	}
	return w;
}

static void a_batch_is_counted_once_with_its_results(void **state)
{
	unsigned char *at = malloc(3 * PAGE_BYTES);
	struct one one[3];
	struct pc_page pages[3];
	enum pc_result result[3];
	struct statistics_words w;

	fake_page(&fake, "key-0", FAKE_A, 1, PAGE_BYTES);
	fake_page(&fake, "key-1", FAKE_A, 1, PAGE_BYTES);
	for (unsigned i = 0; i < 3; i++) {
		char name[8];

		snprintf(name, sizeof(name), "key-%u", i);
		pages[i] = *one_page(&one[i], name, at + i * PAGE_BYTES, PAGE_BYTES);
	}
	assert_int_equal(pc_get(ch, pages, 3, PATIENCE_MS, result), 0);
	assert_int_equal(result[2], PC_MISS);
	w = words();
	assert_int_equal(w.calls[STATISTICS_GET].batches, 1);
	assert_int_equal(w.calls[STATISTICS_GET].pages, 3);
	assert_int_equal(w.calls[STATISTICS_GET].result[STATISTICS_HIT], 2);
	assert_int_equal(w.calls[STATISTICS_GET].result[STATISTICS_MISS], 1);
	assert_true(w.calls[STATISTICS_GET].latency_ns_sum > 0);
	assert_int_equal(w.get_remote, 2);
	assert_int_equal(w.get_bytes, 2 * PAGE_BYTES);
	assert_int_equal(w.get_staged, 2 * PAGE_BYTES);
	assert_int_equal(w.lookups, 3);

	assert_int_equal(pc_exists(ch, pages, 2, PATIENCE_MS, result), 0);
	assert_int_equal(pc_exists(ch, pages, 0, PATIENCE_MS, result), 0);
	w = words();
	assert_int_equal(w.calls[STATISTICS_EXISTS].batches, 2);
	assert_int_equal(w.calls[STATISTICS_EXISTS].result[STATISTICS_HIT], 2);
	assert_int_equal(w.calls[STATISTICS_GET].batches, 1);
	free(at);
}

/* A page behind a gap is a hit, and of no use to a prefix. */
static void hits_before_the_first_gap_are_usable(void **state)
{
	static const bool there[] = {true, true, false, true, true, true};
	unsigned char *at = malloc(6 * PAGE_BYTES);
	struct one one[6];
	struct pc_page pages[6];
	enum pc_result result[6];

	for (unsigned i = 0; i < 6; i++) {
		char name[8];

		snprintf(name, sizeof(name), "key-%u", i);
		if (there[i])
			fake_page(&fake, name, FAKE_A, 1, PAGE_BYTES);
		pages[i] = *one_page(&one[i], name, at + i * PAGE_BYTES, PAGE_BYTES);
	}
	assert_int_equal(pc_exists(ch, pages, 6, PATIENCE_MS, result), 0);
	assert_int_equal(words().calls[STATISTICS_EXISTS].result[STATISTICS_HIT], 5);
	assert_int_equal(words().exists_usable, 2);
	assert_int_equal(pc_exists(ch, pages + 3, 3, PATIENCE_MS, result), 0);
	assert_int_equal(words().exists_usable, 5);
	assert_int_equal(pc_exists(ch, pages + 2, 4, PATIENCE_MS, result), 0);
	assert_int_equal(words().exists_usable, 5);
	assert_int_equal(words().get_usable, 0);
	assert_int_equal(pc_get(ch, pages + 1, 5, PATIENCE_MS, result), 0);
	assert_int_equal(words().calls[STATISTICS_GET].result[STATISTICS_HIT], 4);
	assert_int_equal(words().get_usable, 1);
	free(at);
}

/* The hashes of the keys of exists, only while they are recorded, and as far as there is room. */
static void keys_are_noted_while_they_are_recorded(void **state)
{
	enum { PAGES = 3000 };
	struct one *one = calloc(PAGES, sizeof(*one));
	struct pc_page *page = calloc(PAGES, sizeof(*page));
	enum pc_result *result = calloc(PAGES, sizeof(*result));
	struct channel_asked *asked = ch->asked;
	uint64_t at, first;

	for (unsigned i = 0; i < PAGES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "key-%u", i % 2000);
		page[i] = *one_page(&one[i], name, one, 1);
	}
	page[1].key_bytes = 0;
	assert_int_equal(pc_exists(ch, page, PAGES, PATIENCE_MS, result), 0);
	assert_int_equal(asked->written, 0);
	LET(status->asked, 1 + STATISTICS_EXISTS);
	assert_int_equal(pc_get(ch, page, 1, PATIENCE_MS, result), 0);
	assert_int_equal(pc_exists(ch, page, 0, PATIENCE_MS, result), 0);
	assert_int_equal(asked->written, 0);
	for (unsigned n = 1; n <= 6; n++) /* the sixth finds no room */
		assert_int_equal(pc_exists(ch, page, PAGES, PATIENCE_MS, result), 0);
	assert_int_equal(asked->written, 5 * (PAGES + 1));
	assert_int_equal(asked->word[0], PAGES);
	assert_true(asked->word[1] && asked->word[2] == 0 && asked->word[3]);
	assert_int_equal(asked->word[1], asked->word[2001]);
	assert_int_not_equal(asked->word[1], asked->word[3]);
	first = asked->word[1];
	shm_store_release64(&asked->taken, asked->written);
	at = asked->written;
	assert_int_equal(pc_exists(ch, page, PAGES, PATIENCE_MS, result), 0);
	assert_int_equal(asked->word[at % ASKED_WORDS], PAGES | 1ull << ASKED_LOST_SHIFT);
	assert_int_equal(asked->word[(at + 1) % ASKED_WORDS], first);
	assert_int_equal(asked->word[(at + 2001) % ASKED_WORDS], first);
	/* an impossible number is no room */
	shm_store_release64(&asked->taken, UINT64_MAX);
	at = asked->written;
	assert_int_equal(pc_exists(ch, page, 1, PATIENCE_MS, result), 0);
	assert_int_equal(asked->written, at);
	LET(status->asked, 0);
	shm_store_release64(&asked->taken, at);
	assert_int_equal(pc_exists(ch, page, 1, PATIENCE_MS, result), 0);
	assert_int_equal(asked->written, at);
	free(one);
	free(page);
	free(result);
}

static void what_has_no_valid_arguments_is_counted_too(void **state)
{
	struct pc_page page = {.key = NULL};
	enum pc_result result;
	struct statistics_words w;

	assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
	w = words();
	assert_int_equal(w.calls[STATISTICS_GET].result[STATISTICS_OTHER], 1);
}

/* Polled batches of one channel end in any order. */
static void submitted_batches_are_counted_when_they_end(void **state)
{
	unsigned char *at = malloc(2 * PAGE_BYTES);
	struct one one[2];
	struct pc_page pages[2];
	enum pc_result result[2];
	struct pc_batch *batch[2];

	for (unsigned i = 0; i < 2; i++) {
		char name[8];

		snprintf(name, sizeof(name), "key-%u", i);
		fake_page(&fake, name, FAKE_A, 0, PAGE_BYTES);
		pages[i] = *one_page(&one[i], name, at + i * PAGE_BYTES, PAGE_BYTES);
		assert_int_equal(
			pc_submit_get(ch, &pages[i], 1, PATIENCE_MS, &result[i], &batch[i]), 0);
	}
	assert_int_equal(words().calls[STATISTICS_GET].batches, 0);
	pc_wait(batch[1]);
	assert_int_equal(words().calls[STATISTICS_GET].batches, 1);
	pc_wait(batch[0]);
	assert_int_equal(words().calls[STATISTICS_GET].batches, 2);
	assert_int_equal(words().get_remote, 2);
	free(at);
}

/* A process can be stopped for hours: the engine would refuse the channel's figures for ever. */
static void a_batch_of_hours_counts_as_the_longest_possible(void **state)
{
	unsigned char *at = malloc(PAGE_BYTES);
	struct one one;
	const struct pc_page *page = one_page(&one, "key-0", at, PAGE_BYTES);
	enum pc_result result;
	struct pc_batch *batch;

	fake_page(&fake, "key-0", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(pc_submit_get(ch, page, 1, PATIENCE_MS, &result, &batch), 0);
	batch->submitted_ns -= 7200 * UINT64_C(1000000000);
	pc_wait(batch);
	assert_true(words().calls[STATISTICS_GET].latency_ns_sum == STATISTICS_LATENCY_MAX_NS);
	assert_int_equal(words().calls[STATISTICS_GET].latency[LATENCY_BUCKETS - 1], 1);
	free(at);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_batch_is_counted_once_with_its_results, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(
			hits_before_the_first_gap_are_usable, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(
			keys_are_noted_while_they_are_recorded, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(
			what_has_no_valid_arguments_is_counted_too, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(
			submitted_batches_are_counted_when_they_end, rig_setup, rig_teardown),
		cmocka_unit_test_setup_teardown(
			a_batch_of_hours_counts_as_the_longest_possible, rig_setup, rig_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
