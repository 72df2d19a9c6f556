/* SPDX-License-Identifier: Apache-2.0 */
/* pc_set() and pc_remove(): credits, copies, keys stored already, and pools without room. */
#include "config/clock.h"
#include "engine/abi/crc32c.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/attach/session.h"
#include "engine/client/write/write.h"
#include "tests/unit/client/rig.h"

#include <time.h>
#include <unistd.h>

static void a_stored_page_is_read_back(void **state)
{
	unsigned char from[PAGE_BYTES], at[PAGE_BYTES];

	fill("key-1", from, sizeof(from));
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_memory_equal(from, at, sizeof(at));
	assert_int_equal(counts().sets, 1);
	assert_int_equal(counts().bytes_written, sizeof(from));
	assert_int_equal(counts().hits_local, 1);
}

static void segments_of_any_alignment_are_gathered(void **state)
{
	unsigned char *from = malloc(200000), *at = malloc(100000);
	struct pc_segment segment[9];
	struct pc_page page = {.key = "k", .key_bytes = 1, .segments = segment, .segment_count = 9};
	size_t done = 0;
	enum pc_result result;

	for (unsigned s = 0; s < 9; s++) {
		segment[s] = (struct pc_segment){from + done + s * 13 + 1, 1 + s * 2777 % 20011};
		fill("k", segment[s].base, (uint32_t)segment[s].bytes);
		done += segment[s].bytes;
	}
	assert_int_equal(pc_set(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_HIT);
	assert_int_equal(get_one("k", at, done, PATIENCE_MS), PC_HIT);
	done = 0;
	for (unsigned s = 0; s < 9; s++) {
		assert_memory_equal(at + done, segment[s].base, segment[s].bytes);
		done += segment[s].bytes;
	}
	free(from);
	free(at);
}

static void the_crc_of_a_stored_page_is_published_with_it(void **state)
{
	static unsigned char from[PAGE_BYTES];
	struct page_key key = fake_key("key-1");
	struct page_head head = {.length = 0};

	fill("key-1", from, sizeof(from));
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
	for (uint32_t r = 0; r < FAKE_RAILS && !head.length; r++)
		for (uint32_t u = 0; fake.node[FAKE_SELF].heads[r] && u < FAKE_UNITS; u++) {
			head = page_head_load(fake_head(&fake, FAKE_SELF, place_make(r, u)));
			if (page_key_equal(&head.key, &key))
				break;
			head.length = 0;
		}
	assert_true(page_head_is_proven(&head));
	assert_int_equal(head.crc, crc32c(0, from, sizeof(from)));
}

static void a_page_stored_on_any_node_is_not_stored_again(void **state)
{
	unsigned char from[1000] = {1};

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(from));
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
	assert_int_equal(set_one("key-2", from, sizeof(from), PATIENCE_MS), PC_HIT);
	assert_int_equal(set_one("key-2", from, sizeof(from), PATIENCE_MS), PC_HIT);
	assert_int_equal(counts().sets_already, 2);
	assert_int_equal(SEEN(publishes), 1);
}

static void a_batch_is_spread_round_robin_over_the_rails(void **state)
{
	static unsigned char from[PAGE_BYTES];
	struct one o[64];
	struct pc_page pages[64];
	enum pc_result result[64];

	for (unsigned k = 0; k < 64; k++) {
		char name[32];

		sprintf(name, "key-%u", k);
		pages[k] = *one_page(&o[k], name, from, sizeof(from));
	}
	assert_int_equal(pc_set(ch, pages, 64, PATIENCE_MS, result), 0);
	for (unsigned k = 0; k < 64; k++) {
		struct page_key key = fake_key(o[k].name), first = fake_key(o[0].name);

		assert_int_equal(result[k], PC_HIT);
		assert_int_equal(place_rail(cache_find(ch, &key)->at.place),
			place_rail(cache_find(ch, &first)->at.place) ^ k % 2);
	}
}

static uint32_t first_refuse;

static uint32_t refuse_some(struct fake *f, const struct ctl_op *op)
{
	if (op->kind != CTL_CREDIT || !first_refuse)
		return FAKE_DO;
	first_refuse--;
	return OP_NO_SPACE;
}

static void a_page_is_stored_on_another_rail_when_one_has_no_room(void **state)
{
	unsigned char from[1000] = {1};

	first_refuse = 1;
	LET(on_ctl, refuse_some);
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
}

static uint32_t some_come_late(struct fake *f, const struct ctl_op *op)
{
	return refuse_some(f, op) == FAKE_DO ? FAKE_DO : OP_TIMEOUT;
}

static void credits_that_come_too_late_are_requested_again(void **state)
{
	unsigned char from[1000] = {1};

	first_refuse = FAKE_RAILS; /* refusals as many would leave no rail */
	LET(on_ctl, some_come_late);
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
	assert_int_equal(first_refuse, 0);
}

static void a_set_fails_at_once_while_no_rail_has_room_and_works_later(void **state)
{
	unsigned char from[1000] = {1};
	uint64_t start_ns = clock_monotonic_ns();

	LET(credits_left, 0);
	/* The first call ends when one rail has refused. Repeat it until the other rail's refusal
	 * has arrived too, so that the channel awaits no credit. */
	do
		assert_int_equal(set_one("key-1", from, sizeof(from), 4 * PATIENCE_MS), PC_FULL);
	while (ch->credits && elapsed_ms(start_ns) < PATIENCE_MS);
	assert_true(elapsed_ms(start_ns) <
		    PATIENCE_MS); /* ends long before the deadline of the batch */
	assert_int_equal(ch->credits, 0);
	LET(credits_left, 8);
	usleep(50000);
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
}

static void only_pages_with_a_credit_are_stored(void **state)
{
	unsigned char from[1000] = {1};
	struct one o[8];
	struct pc_page pages[8];
	enum pc_result result[8];
	unsigned full = 0, hit = 0;

	LET(credits_left, 3);
	for (unsigned k = 0; k < 8; k++) {
		char name[32];

		sprintf(name, "key-%u", k);
		pages[k] = *one_page(&o[k], name, from, sizeof(from));
	}
	assert_int_equal(pc_set(ch, pages, 8, PATIENCE_MS, result), 0);
	for (unsigned k = 0; k < 8; k++) {
		hit += result[k] == PC_HIT;
		full += result[k] == PC_FULL;
	}
	assert_int_equal(hit, 3);
	assert_int_equal(full, 5);
}

static uint32_t hold_credits(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_CREDIT ? FAKE_HOLD : FAKE_DO;
}

static uint32_t hold_publishes(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_PUBLISH ? FAKE_HOLD : FAKE_DO;
}

static void a_set_without_answer_times_out(void **state)
{
	unsigned char from[1000] = {1};
	uint64_t start_ns = clock_monotonic_ns();

	LET(on_ctl, hold_credits);
	assert_int_equal(set_one("key-1", from, sizeof(from), 100), PC_TIMEOUT);
	LET(on_ctl, hold_publishes);
	assert_int_equal(set_one("key-2", from, sizeof(from), 100), PC_TIMEOUT);
	/* Both calls end at their own deadlines, long before the default deadline. */
	assert_true(elapsed_ms(start_ns) < PC_TIMEOUT_MS_DEFAULT);
}

static void idle_credits_are_returned_for_a_page_of_another_size(void **state)
{
	static unsigned char from[200000];

	assert_int_equal(set_one("small", from, 1000, PATIENCE_MS), PC_HIT);
	fake_lock(&fake);
	LET(credits_left, 0);
	fake_unlock(&fake);
	assert_int_equal(set_one("large", from, 100000, PATIENCE_MS), PC_HIT);
	assert_true(SEEN(returned) > 0);
}

static void credits_are_returned_when_the_channel_closes(void **state)
{
	unsigned char from[1000] = {1};
	unsigned had = 0;

	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
	had = ch->credits;
	assert_true(had > 0);
	pc_channel_close(ch);
	assert_int_equal(SEEN(returned), had);
	assert_int_equal(pc_channel_open(pc, &ch), 0);
}

static void pages_with_invalid_lengths_or_keys_are_invalid(void **state)
{
	static unsigned char from[64];
	struct pc_segment none = {from, 0}, null = {NULL, 5}, ok = {from, 5};
	struct pc_page page = {.key = "k", .key_bytes = 1, .segments = &none, .segment_count = 1};
	enum pc_result result;

	assert_int_equal(set_one("key-1", from, (16u << 20) + 1, PATIENCE_MS), PC_INVALID);
	assert_int_equal(set_one("key-1", from, SIZE_MAX, PATIENCE_MS), PC_INVALID);
	assert_int_equal(pc_set(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
	page.segments = &null;
	assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
	page.segments = &ok;
	page.segment_count = SEGMENTS_MAX + 1;
	assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
	page.segment_count = 1;
	page.key_bytes = 0;
	assert_int_equal(pc_exists(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
	page.key_bytes = KEY_BYTES_MAX + 1;
	assert_int_equal(pc_exists(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
}

static void one_invalid_page_does_not_fail_the_batch(void **state)
{
	unsigned char from[100] = {1};
	struct one o[3];
	struct pc_page pages[3];
	enum pc_result result[3];

	for (unsigned k = 0; k < 3; k++) {
		char name[32];

		sprintf(name, "key-%u", k);
		pages[k] = *one_page(&o[k], name, from, sizeof(from));
	}
	pages[1].key = NULL;
	assert_int_equal(pc_set(ch, pages, 3, PATIENCE_MS, result), 0);
	assert_int_equal(result[0], PC_HIT);
	assert_int_equal(result[1], PC_INVALID);
	assert_int_equal(result[2], PC_HIT);
}

static void a_removed_page_is_a_miss(void **state)
{
	unsigned char from[100] = {1}, at[100];
	struct one o;
	enum pc_result result;

	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_HIT);
	one_page(&o, "key-1", NULL, 0);
	assert_int_equal(pc_remove(ch, &o.page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_HIT);
	assert_int_equal(pc_remove(ch, &o.page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_MISS);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_MISS);
}

static void a_credit_outside_the_pool_ends_the_session(void **state)
{
	static unsigned char from[1000];

	/* The client believes that its mappings are empty, so each granted slot is outside them. */
	fake_lock(&fake);
	ch->session->rail[0].pool_bytes = 0;
	ch->session->rail[1].pool_bytes = 0;
	fake_unlock(&fake);
	assert_int_equal(set_one("key-1", from, sizeof(from), PATIENCE_MS), PC_GONE);
}

/* Stores `batches` batches of `count` pages of `bytes` bytes; all must be hits. */
static void store(unsigned batches, unsigned count, uint32_t bytes, const char *stem)
{
	static unsigned char from[512 << 10];
	struct one o[64];
	struct pc_page pages[64];
	enum pc_result result[64];

	for (unsigned n = 0; n < batches; n++) {
		for (unsigned k = 0; k < count; k++) {
			char name[32];

			sprintf(name, "%s-%u-%u", stem, n, k);
			pages[k] = *one_page(&o[k], name, from, bytes);
		}
		assert_int_equal(pc_set(ch, pages, count, PATIENCE_MS, result), 0);
		for (unsigned k = 0; k < count; k++)
			assert_int_equal(result[k], PC_HIT);
	}
}

static bool descends; /* a page was stored in a lower slot of its rail than the one before */

static uint32_t note_unit(struct fake *f, const struct ctl_op *op)
{
	static uint32_t last[FAKE_RAILS];
	uint32_t *before = &last[place_rail(op->place)], unit = place_unit(op->place);

	if (op->kind == CTL_PUBLISH) {
		descends |= unit < *before;
		*before = unit;
	}
	return FAKE_DO;
}

static void credits_are_requested_ahead_during_a_stream_of_pages(void **state)
{
	fake_lock(&fake);
	fake.on_ctl = note_unit;
	fake_unlock(&fake);
	store(40, 16, 4000, "small");
	assert_false(descends); /* the fake grants ascending slots */
	/* Each rail's stock has grown to the number of slots that a batch takes from the rail, and
	 * what is missing of it is requested. */
	for (unsigned r = 0; r < FAKE_RAILS; r++) {
		const struct stock_rail *s = &ch->stock[0]->rail[r];

		assert_in_range(s->ahead, 16 / FAKE_RAILS, CREDIT_STOCK_MAX);
		assert_true(s->have + s->asked >= s->ahead - s->ahead / 4);
	}
	assert_in_range(ch->credits, 1, FAKE_RAILS * CREDIT_STOCK_MAX);
}

static void credits_held_ahead_are_a_small_part_of_the_pool(void **state)
{
	store(8, 8, 512 << 10, "large");
	assert_in_range(
		ch->credits, 0, FAKE_RAILS * (FAKE_POOL_BYTES / CREDIT_AHEAD_SHARE / (512 << 10)));
}

static uint32_t asked_most; /* credits of one request */

static uint32_t note_asked(struct fake *f, const struct ctl_op *op)
{
	if (op->kind == CTL_CREDIT && op->count > asked_most)
		asked_most = op->count;
	return FAKE_DO;
}

static void a_batch_takes_the_slots_of_a_small_pool_a_part_at_a_time(void **state)
{
	const uint32_t part = FAKE_POOL_BYTES / CREDIT_STOCK_SHARE / (512 << 10);

	fake_lock(&fake);
	fake.on_ctl = note_asked;
	fake_unlock(&fake);
	store(1, 64, 512 << 10, "many");
	assert_int_equal(asked_most, part);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		assert_in_range(ch->stock[0]->rail[r].have + ch->stock[0]->rail[r].asked, 0, part);
}

static void only_the_used_part_of_the_pool_is_mapped(void **state)
{
	unsigned mapped = 0;

	store(2, 8, 512 << 10, "large");
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		for (unsigned k = 0; k < FAKE_POOL_BYTES / TOUCH_BYTES; k++)
			mapped += shm_load(&ch->session->rail[r].touched[k]);
	assert_in_range(mapped, (16 << 19) / TOUCH_BYTES, (16 << 19) / TOUCH_BYTES + 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_stored_page_is_read_back),
		RIG_TEST(segments_of_any_alignment_are_gathered),
		RIG_TEST(the_crc_of_a_stored_page_is_published_with_it),
		RIG_TEST(a_page_stored_on_any_node_is_not_stored_again),
		RIG_TEST(a_batch_is_spread_round_robin_over_the_rails),
		RIG_TEST(a_page_is_stored_on_another_rail_when_one_has_no_room),
		RIG_TEST(credits_that_come_too_late_are_requested_again),
		RIG_TEST(a_set_fails_at_once_while_no_rail_has_room_and_works_later),
		RIG_TEST(only_pages_with_a_credit_are_stored),
		RIG_TEST(a_set_without_answer_times_out),
		RIG_TEST(idle_credits_are_returned_for_a_page_of_another_size),
		RIG_TEST(credits_are_returned_when_the_channel_closes),
		RIG_TEST(pages_with_invalid_lengths_or_keys_are_invalid),
		RIG_TEST(one_invalid_page_does_not_fail_the_batch),
		RIG_TEST(a_removed_page_is_a_miss),
		RIG_TEST(a_credit_outside_the_pool_ends_the_session),
		RIG_TEST(credits_are_requested_ahead_during_a_stream_of_pages),
		RIG_TEST(credits_held_ahead_are_a_small_part_of_the_pool),
		RIG_TEST(a_batch_takes_the_slots_of_a_small_pool_a_part_at_a_time),
		RIG_TEST(only_the_used_part_of_the_pool_is_mapped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
