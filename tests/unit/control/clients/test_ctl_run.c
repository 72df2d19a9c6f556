/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: slots that one answer grants, and pages that one CTL_PUBLISH publishes. See
 * ctl_world.h.
 */
#include "tests/unit/control/ctl_world.h"

#define LENGTH 8192u
#define UNITS (LENGTH / PAGE_UNIT)
#define ALL(pages) (UINT32_MAX >> (32 - (pages)))

static struct client client;
static struct ctl_page page[CTL_PAGES_MAX];

/* Takes credits for `pages` pages and gives them keys from `first` on. */
static void take_pages(unsigned pages, uint64_t first)
{
	struct ctl_done done = {.kind = 0};

	put(&client,
		(struct ctl_op){.kind = CTL_CREDIT, .count = (uint16_t)pages, .length = LENGTH});
	turns();
	for (unsigned i = 0; i < pages; i++) {
		assert_true(got(&client, &done));
		assert_int_equal(done.status, OP_HIT);
		page[i] = (struct ctl_page){.place = done.place,
			.generation = done.generation,
			.crc = 1000 + i,
			.key = key_of(first + i)};
	}
}

/* Writes a CTL_PUBLISH of page[0..pages) with `lines` of its entries, as the client does. */
static void put_lines(unsigned pages, unsigned lines)
{
	struct ctl_op op = {.kind = CTL_PUBLISH,
		.cookie = 77,
		.count = (uint16_t)pages,
		.length = LENGTH,
		.key = page[0].key,
		.place = page[0].place,
		.generation = page[0].generation,
		.crc = page[0].crc,
		.publish = 1,
		.deadline_ns = now + 1000000000ull};

	assert_true(ring_room(&client.ctl, lines) >= (int)lines);
	memcpy(ring_slot_new(&client.ctl, 0), &op, sizeof(op));
	for (unsigned i = 1; i < pages && ctl_page_line(i) < lines; i++) {
		struct ctl_page *line = ring_slot_new(&client.ctl, ctl_page_line(i));

		line[ctl_page_half(i)] = page[i];
	}
	ring_publish(&client.ctl, lines);
}

static void put_run(unsigned pages)
{
	put_lines(pages, ctl_lines(pages));
}

static void assert_answer(uint32_t status, uint32_t pages)
{
	struct ctl_done done = {.kind = 0};

	assert_true(got(&client, &done));
	assert_int_equal(done.cookie, 77);
	assert_int_equal(done.kind, CTL_PUBLISH);
	assert_int_equal(done.status, status);
	assert_int_equal(done.pages, pages);
}

static void assert_no_answer(void)
{
	struct ctl_done done = {.kind = 0};

	assert_false(got(&client, &done));
}

static void assert_stored(unsigned i)
{
	const struct page_head *heads =
		pool_heads(control.rail[place_rail(page[i].place)].pool)->base;
	const struct index_entry *e = index_find(control.index, &page[i].key);
	struct page_head head = page_head_load(&heads[place_unit(page[i].place)]);

	assert_non_null(e);
	assert_int_equal(e->place, page[i].place);
	assert_true(page_head_is(&head, &page[i].key, page[i].generation, LENGTH));
	assert_true(page_head_is_proven(&head));
	assert_int_equal(head.crc, page[i].crc);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void slots_at_one_distance_are_granted_in_one_answer(void **state)
{
	struct ctl_done done = {.kind = 0};

	client_open(&client, 0);
	put(&client,
		(struct ctl_op){
			.kind = CTL_CREDIT, .cookie = 9, .rail = 1, .count = 7, .length = LENGTH});
	turns();
	assert_true(got_run(&client, &done));
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(done.cookie, 9);
	assert_int_equal(done.count, 7);
	assert_int_equal(done.stride, UNITS);
	for (unsigned i = 0; i < 7; i++)
		assert_non_null(credits_find(
			&client.channel.credits, done.place + i * UNITS, done.generation));
	assert_false(got_run(&client, &done));
	assert_int_equal(client.channel.owed, 0);
	client_close(&client);
}

static void a_run_of_slots_ends_where_generation_or_distance_change(void **state)
{
	struct ctl_done done = {.kind = 0};
	unsigned slots = 0, runs = 0;
	uint32_t free;

	client_open(&client, 0);
	/* of these slots, some come back with the next generation, in another order */
	take_pages(8, 1);
	for (unsigned k = 0; k < 4; k++) {
		unsigned i = (unsigned[]){5, 1, 2, 7}[k];

		put(&client, (struct ctl_op){.kind = CTL_RETURN,
				     .place = page[i].place,
				     .generation = page[i].generation});
	}
	turns();
	pass_time(LIMBO_MS * 1000000ull + 1);
	pool_take(control.rail[0].pool, LENGTH, &done.place, &done.generation);
	pool_return(control.rail[0].pool, done.place, done.generation);
	free = pool_free(control.rail[0].pool, LENGTH);
	assert_true(free > 100);
	put(&client, (struct ctl_op){.kind = CTL_CREDIT, .count = 100, .length = LENGTH});
	turns();
	while (got_run(&client, &done)) {
		assert_int_equal(done.status, OP_HIT);
		for (unsigned i = 0; i < done.count; i++)
			assert_non_null(credits_find(&client.channel.credits,
				done.place + i * done.stride, done.generation));
		slots += done.count;
		runs++;
	}
	assert_int_equal(slots, 100);
	assert_in_range(runs, 2, 8);
	assert_int_equal(client.channel.owed, 0);
	client_close(&client);
}

static void one_answer_tells_of_all_slots_that_are_missing(void **state)
{
	const uint32_t length = 1u << 20; /* the pool has room for 8 */
	struct ctl_done done = {.kind = 0};

	client_open(&client, 0);
	put(&client, (struct ctl_op){.kind = CTL_CREDIT,
			     .count = 11,
			     .length = length,
			     .deadline_ns = now + 5000000});
	turns();
	assert_true(got_run(&client, &done));
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(done.count, 8);
	assert_int_equal(client.channel.owed, 3);
	pass_time(6000000);
	assert_true(got_run(&client, &done));
	assert_int_equal(done.status, OP_NO_SPACE);
	assert_int_equal(done.count, 3);
	assert_int_equal(client.channel.owed, 0);
	client_close(&client);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void pages_are_published_together_and_answered_once(void **state)
{
	static const unsigned counts[] = {1, 2, 3, 31, 32};
	uint64_t first = 1;

	client_open(&client, 0);
	for (unsigned k = 0; k < 5; k++, first += 100) {
		take_pages(counts[k], first);
		directory.published = 0;
		put_run(counts[k]);
		turns();
		assert_answer(OP_HIT, ALL(counts[k]));
		assert_no_answer();
		assert_int_equal(directory.published, counts[k]);
		for (unsigned i = 0; i < counts[k]; i++)
			assert_stored(i);
		assert_int_equal(client.channel.owed, 0);
		assert_int_equal(client.channel.credits.count, 0);
	}
	client_close(&client);
}

static void a_publish_may_wrap_in_the_ring(void **state)
{
	uint64_t first = 1;

	client_open(&client, 0);
	for (unsigned k = 0; k < 2 * CTL_RING_SLOTS / ctl_lines(20); k++, first += 20) {
		take_pages(20, first);
		put_run(20);
		turns();
		assert_answer(OP_HIT, ALL(20));
		for (unsigned i = 0; i < 20; i++)
			evict_take_away(
				control.evict, &page[i].key, page[i].place, page[i].generation);
		pass_time(LIMBO_MS * 1000000ull + 1);
	}
	client_close(&client);
}

static void each_page_ends_with_a_status_of_its_own(void **state)
{
	const struct ctl_page other = {.place = 5, .generation = 9, .key = key_of(99)};

	client_open(&client, 0);
	take_pages(6, 1);
	page[1] = other;                         /* no credit */
	page[2].key = (struct page_key){{0, 0}}; /* no key */
	page[4].key = page[0].key;               /* a key named twice: stored once */
	put_run(6);
	turns();
	assert_answer(OP_HIT, 1u << 0 | 1u << 3 | 1u << 4 | 1u << 5);
	assert_answer(OP_INVALID, 1u << 1 | 1u << 2);
	assert_no_answer();
	assert_stored(0);
	assert_stored(3);
	assert_stored(5);
	assert_int_equal(control.counter[COUNTER_pages_already], 1);
	assert_int_equal(control.counter[COUNTER_ops_invalid], 2);
	assert_int_equal(client.channel.owed, 0);
	/* page 1 named none of the credits, and that of its slot stays; the others are used */
	assert_int_equal(client.channel.credits.count, 1);
	client_close(&client);
	assert_int_equal(control.evict->credits, 0);
}

static void a_slot_named_twice_is_published_once(void **state)
{
	client_open(&client, 0);
	take_pages(3, 1);
	page[2].place = page[1].place;
	page[2].generation = page[1].generation;
	put_run(3);
	turns();
	assert_answer(OP_HIT, 1u << 0 | 1u << 1);
	assert_answer(OP_INVALID, 1u << 2);
	assert_stored(1);
	client_close(&client);
}

static void the_answer_waits_for_the_last_owner(void **state)
{
	client_open(&client, 0);
	take_pages(5, 1);
	page[3].generation++;
	directory.hold = true;
	put_run(5);
	turns();
	assert_int_equal(directory.helds, 4);
	for (unsigned i = 0; i < 4; i++) {
		assert_no_answer();
		directory.held[i].done(directory.held[i].context, directory.held[i].cookie,
			i == 1 ? OP_TIMEOUT : OP_HIT);
	}
	assert_answer(OP_HIT, 1u << 0 | 1u << 2 | 1u << 4);
	assert_answer(OP_TIMEOUT, 1u << 1);
	assert_answer(OP_INVALID, 1u << 3);
	assert_int_equal(client.channel.owed, 0);
	assert_int_equal(control.ctl->answers_used, 0);
	/* an owner that answers twice is ignored */
	directory.held[0].done(directory.held[0].context, directory.held[0].cookie, OP_HIT);
	assert_no_answer();
	directory.helds = 0;
	client_close(&client);
}

static void a_run_of_a_closed_channel_is_not_answered(void **state)
{
	struct client next;
	struct ctl_done done = {.kind = 0};

	client_open(&client, 3);
	take_pages(4, 1);
	directory.hold = true;
	put_run(4);
	turns();
	client_close(&client);
	client_open(&next, 3);
	directory_answer(OP_HIT);
	turns();
	assert_false(got(&next, &done));
	assert_int_equal(next.channel.owed, 0);
	assert_int_equal(control.ctl->answers_used, 0);
	assert_int_equal(control.evict->credits, 0);
	for (unsigned i = 0; i < 4; i++)
		assert_stored(i);
	client_close(&next);
}

static void the_pages_of_a_publish_count_against_the_done_ring(void **state)
{
	client_open(&client, 0);
	take_pages(32, 1);
	directory.hold = true;
	for (unsigned i = 0; i < CTL_DONE_SLOTS - 31; i++) {
		put(&client, (struct ctl_op){.kind = CTL_REMOVE, .cookie = i, .key = key_of(i)});
		if (i % 1000 == 0)
			turns();
	}
	turns();
	put_run(32);
	turns();
	assert_true(control.ctl->stalled);
	assert_int_equal(client.channel.credits.count, 32);
	client_close(&client);
	assert_int_equal(control.evict->credits, 0);
}

static void hostile_numbers_of_pages_are_refused(void **state)
{
	static const uint16_t count[] = {0, CTL_PAGES_MAX + 1, UINT16_MAX};
	struct ctl_done done = {.kind = 0};

	client_open(&client, 0);
	for (unsigned k = 0; k < 3; k++) {
		put(&client, (struct ctl_op){.kind = CTL_PUBLISH,
				     .count = count[k],
				     .key = key_of(1),
				     .length = LENGTH});
		turns();
		assert_true(got(&client, &done));
		assert_int_equal(done.status, OP_INVALID);
		assert_int_equal(done.pages, 1);
		assert_no_answer();
	}
	assert_int_equal(client.channel.owed, 0);
	assert_int_equal(control.counter[COUNTER_ops_invalid], 3);
	client_close(&client);
}

static void a_publish_without_all_its_entries_ends_the_session(void **state)
{
	client_open(&client, 4);
	take_pages(9, 1);
	put_lines(9, 3);
	turns();
	assert_int_equal(broken_calls, 1);
	assert_int_equal(broken_channel, 4);
	assert_int_equal(index_count(control.index), 0);
	assert_int_equal(control.evict->credits, 0);
	client_close(&client);
}

/* Stores a batch of four pages. */
static void store_batch(uint64_t first)
{
	now++;
	take_pages(4, first);
	put_run(4);
	turns();
	assert_answer(OP_HIT, ALL(4));
}

/* The pages of `want` are the next victims of the first pool, in this order. */
static void assert_victims(const uint64_t *want, unsigned count)
{
	struct pool_victim victim[16];

	assert_int_equal(pool_victims(control.rail[0].pool, LENGTH, false, count, victim), count);
	for (unsigned i = 0; i < count; i++) {
		struct page_key key = key_of(want[i]);

		assert_memory_equal(&victim[i].key, &key, sizeof(key));
	}
}

static void new_batches_go_first_while_old_pages_are_kept(void **state)
{
	struct used_weight *weight = &control.evict->weight;

	client_open(&client, 0);
	store_batch(1);
	weight->keeps = true;
	store_batch(11);
	assert_victims((const uint64_t[]){14, 13, 12, 11, 4, 3, 2, 1}, 8);
	/* also if they come back */
	page_again(&control,
		&(struct location){.place = page[3].place, .generation = page[3].generation},
		EVICTED_NEW);
	assert_int_equal(weight->late, 1);
	assert_int_equal(control.counter[COUNTER_pages_stored_again], 1);
	assert_victims((const uint64_t[]){14, 13, 12, 11, 4, 3, 2, 1}, 8);
	client.channel.batches = 31;
	store_batch(21);
	assert_victims((const uint64_t[]){14, 13, 12, 11, 4, 3, 2, 1, 24, 23, 22, 21}, 12);
	/* a page that is stored while it is here, or read, is used */
	store_batch(21);
	assert_int_equal(weight->used, 4);
	put(&client, (struct ctl_op){.kind = CTL_TOUCH, .ref = control.ref, .place = 0});
	turns();
	assert_int_equal(weight->used, 5);
	put(&client, (struct ctl_op){.kind = CTL_TOUCH, .ref = control.ref, .place = 1});
	turns();
	assert_int_equal(weight->used, 5); /* no page starts there */
	client_close(&client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(slots_at_one_distance_are_granted_in_one_answer),
		TEST(a_run_of_slots_ends_where_generation_or_distance_change),
		TEST(one_answer_tells_of_all_slots_that_are_missing),
		TEST(pages_are_published_together_and_answered_once),
		TEST(a_publish_may_wrap_in_the_ring),
		TEST(each_page_ends_with_a_status_of_its_own),
		TEST(a_slot_named_twice_is_published_once),
		TEST(the_answer_waits_for_the_last_owner),
		TEST(a_run_of_a_closed_channel_is_not_answered),
		TEST(the_pages_of_a_publish_count_against_the_done_ring),
		TEST(hostile_numbers_of_pages_are_refused),
		TEST(a_publish_without_all_its_entries_ends_the_session),
		TEST(new_batches_go_first_while_old_pages_are_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
