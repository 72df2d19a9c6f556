/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier and other hosts: requests for pages on this disk, and their directory entries. */
#include "tests/unit/control/pages/tier_world.h"

static void ask_over(
	struct rpc_link *link, uint64_t n, uint64_t id, uint32_t bytes, uint32_t timeout_ms)
{
	struct page_key key = key_of(n);
	Pc__PromotePage page = PC__PROMOTE_PAGE__INIT, *pages = &page;
	Pc__Promote promote = PC__PROMOTE__INIT;

	page.id = id;
	page.key0 = key.word[0];
	page.key1 = key.word[1];
	page.bytes = bytes;
	page.timeout_ms = timeout_ms;
	promote.n_pages = 1;
	promote.pages = &pages;
	link->member = &peer.member;
	assert_true(tier_serve_promote(&control, link, &promote));
	tier_turns();
}

static void ask(uint64_t n, uint64_t id, uint32_t bytes, uint32_t timeout_ms)
{
	ask_over(&peer.link, n, id, bytes, timeout_ms);
}

/* The only answer of the last message. */
static const Pc__PromotedPage *answer_to(uint64_t id, unsigned messages)
{
	assert_int_equal(peer.promoteds, messages);
	assert_int_equal(peer.pages, 1);
	assert_int_equal(peer.answered[0].id, id);
	return &peer.answered[0];
}

static void a_page_is_promoted_for_another_host_and_pinned_until_it_was_read(void **state)
{
	const Pc__PromotedPage *page;

	on_disk(5);
	ask(5, 77, PAGE, 1000);
	assert_int_equal(count(DISK_READ), 1);
	assert_int_equal(peer.promoteds, 0);
	end_one(DISK_READ, DISK_OK);
	page = answer_to(77, 1);
	assert_int_equal(page->result, PC__PROMOTE_RESULT__PROMOTE_HERE);
	assert_int_equal(bytes_at(page->place)[PAGE - 1], 5);
	assert_true(page->generation != 0);
	assert_int_equal(directory.published, 1);
	assert_int_equal(control.tier->pins, 1);
	tier_touched(&control, page->place, 0);
	assert_int_equal(control.tier->pins, 0);
	assert_int_equal(control.counter[COUNTER_disk_hits_remote], 1);
	/* it is in memory now: the next answer comes at once */
	ask(5, 78, PAGE, 1000);
	assert_int_equal(answer_to(78, 2)->result, PC__PROMOTE_RESULT__PROMOTE_HERE);
	assert_int_equal(count(DISK_READ), 0);
}

static void answers_of_one_turn_are_one_message(void **state)
{
	on_disk(5);
	for (uint64_t id = 1; id <= 3; id++)
		ask(5, id, PAGE, 1000);
	assert_int_equal(count(DISK_READ), 1);
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(peer.promoteds, 1);
	assert_int_equal(peer.pages, 3);
	assert_int_equal(control.tier->pins, 1);
	for (unsigned n = 0; n < 3; n++) {
		assert_int_equal(control.tier->pins, 1);
		tier_touched(&control, peer.answered[0].place, 0);
	}
	assert_int_equal(control.tier->pins, 0);
}

static void each_host_gets_its_own_answers(void **state)
{
	on_disk(5);
	ask(5, 1, PAGE, 1000);
	ask_over(&peer.other, 5, 2, PAGE, 1000);
	ask_over(&peer.other, 5, 3, PAGE, 1000);
	end_one(DISK_READ, DISK_OK);
	(void)answer_to(1, 1);
	assert_int_equal(peer.other_pages, 2);
	assert_int_equal(peer.other_id, 2);
}

static void what_cannot_be_served_is_answered_at_once(void **state)
{
	ask(6, 1, PAGE, 1000);
	assert_int_equal(answer_to(1, 1)->result, PC__PROMOTE_RESULT__PROMOTE_GONE);
	on_disk(6);
	ask(6, 2, PAGE + 1, 1000);
	assert_int_equal(answer_to(2, 2)->result, PC__PROMOTE_RESULT__PROMOTE_OTHER_LENGTH);
	control.tier->state = TIER_OPENING;
	ask(6, 3, PAGE, 1000);
	assert_int_equal(answer_to(3, 3)->result, PC__PROMOTE_RESULT__PROMOTE_LATE);
	control.tier->state = TIER_SERVING;
	control.tier->remote = TIER_REMOTE_MAX;
	ask(6, 4, PAGE, 1000);
	assert_int_equal(answer_to(4, 4)->result, PC__PROMOTE_RESULT__PROMOTE_LATE);
	control.tier->remote = 0;
	ask(6, 5, PAGE, 1000);
	end_one(DISK_READ, DISK_MISS);
	assert_int_equal(answer_to(5, 5)->result, PC__PROMOTE_RESULT__PROMOTE_GONE);
	assert_int_equal(control.tier->remote, 0);
}

/* The page is on disk, so its entry is right: the reader must not report it. */
static void a_page_that_no_pool_can_hold_is_not_gone(void **state)
{
	on_disk(6);
	fake.length[6] = 2 * POOL_BYTES;
	ask(6, 1, 2 * POOL_BYTES, 1000);
	assert_int_equal(answer_to(1, 1)->result, PC__PROMOTE_RESULT__PROMOTE_LATE);
	assert_int_equal(control.tier->remote, 0);
	assert_int_equal(control.tier->pinned_bytes, 0);
}

static void a_link_without_room_loses_the_answer_and_nothing_else(void **state)
{
	on_disk(6);
	ask(6, 1, PAGE, 1000);
	peer.full = true;
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(peer.promoteds, 0);
	assert_int_equal(control.tier->remote, 0);
	assert_true(in_memory(6));
	peer.full = false;
	ask(6, 2, PAGE, 1000);
	assert_int_equal(answer_to(2, 1)->result, PC__PROMOTE_RESULT__PROMOTE_HERE);
}

static void a_request_ends_at_its_time(void **state)
{
	on_disk(6);
	ask(6, 1, PAGE, 500);
	wait_for(SECOND);
	assert_int_equal(answer_to(1, 1)->result, PC__PROMOTE_RESULT__PROMOTE_LATE);
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(peer.promoteds, 1);
	assert_true(in_memory(6));
	assert_int_equal(control.tier->pins, 0);
	assert_int_equal(control.tier->pinned_bytes, 0);
}

static void a_hint_is_not_answered(void **state)
{
	on_disk(6);
	ask(6, 0, 0, 0);
	assert_int_equal(count(DISK_READ), 1);
	end_one(DISK_READ, DISK_OK);
	assert_true(in_memory(6));
	ask(6, 0, 0, 0);
	ask(7, 0, 0, 0);
	assert_int_equal(count(DISK_READ), 0);
	assert_int_equal(peer.promoteds, 0);
	assert_int_equal(control.tier->pins, 0);
}

static void a_link_that_closes_gets_no_answer(void **state)
{
	on_disk(6);
	ask(6, 1, PAGE, 1000);
	tier_link_down(&control, &peer.link);
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(peer.promoteds, 0);
	assert_int_equal(control.tier->remote, 0);
	assert_true(in_memory(6));
	wait_for(2 * SECOND);
	assert_int_equal(control.tier->pins, 0);
}

/* A clear() removes the page: it is between memory and disk. */
static bool flies(uint64_t n)
{
	uint32_t count;
	struct page_key key = key_of(n), *keys = tier_flying(&control, &count);
	bool found = false;

	for (uint32_t i = 0; i < count; i++)
		found |= page_key_equal(&keys[i], &key);
	free(keys);
	return found;
}

/* Page 6 is read for the link that has closed. */
static void read_for_closed_link(void)
{
	tier_link_down(&control, &peer.link);
	for (unsigned left = 1000; !count(DISK_READ); left--) {
		assert_true(left);
		wait_for(SECOND / 100);
	}
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(peer.promoteds, 0);
	assert_int_equal(control.tier->remote, 0);
}

static void a_link_that_closes_while_too_much_is_pinned_gets_no_answer(void **state)
{
	on_disk(5);
	on_disk(6);
	control.tier->pinned_bytes_max = PAGE;
	request(5, false, SECOND);
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(answered(5).status, OP_HIT);
	ask(6, 1, PAGE, 60000);
	assert_false(TAILQ_EMPTY(&control.tier->promotes[PROMOTE_CAPPED]));
	assert_true(flies(6));
	read_for_closed_link();
}

static void a_link_that_closes_while_no_slot_is_free_gets_no_answer(void **state)
{
	(void)fill_pools(100, true);
	on_disk(6);
	while (TAILQ_EMPTY(&control.tier->promotes[PROMOTE_WANTED])) {
		struct ctl_done credit;

		put(&client, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = PAGE});
		turns();
		while (got(&client, &credit))
			;
		ask(6, 1, PAGE, 60000);
		if (TAILQ_EMPTY(&control.tier->promotes[PROMOTE_WANTED]))
			end_one(DISK_READ, DISK_MISS);
	}
	peer.promoteds = 0;
	assert_true(flies(6));
	read_for_closed_link();
}

static void a_link_that_closes_while_the_page_is_written_gets_no_answer(void **state)
{
	struct page_key key = key_of(6);
	struct index_entry e;
	struct pool_victim victim;
	struct disk_page page;

	memset(bytes_at(store(&client, 6, PAGE)), 6, PAGE);
	e = *index_find(control.index, &key);
	victim = (struct pool_victim){
		.key = key, .place = e.place, .generation = e.generation, .length = PAGE};
	assert_false(tier_evicting(&control, &victim, &page));
	evict_take_away(control.evict, &key, e.place, e.generation);
	ask(6, 1, PAGE, 60000);
	assert_false(TAILQ_EMPTY(&control.tier->promotes[PROMOTE_WRITING]));
	assert_true(flies(6));
	tier_link_down(&control, &peer.link);
	end_one(DISK_WRITE, DISK_OK);
	read_for_closed_link();
}

static void messages_that_break_a_rule_are_refused(void **state)
{
	Pc__PromotePage page = PC__PROMOTE_PAGE__INIT, *pages = &page;
	Pc__Promote promote = PC__PROMOTE__INIT;

	promote.pages = &pages;
	assert_false(tier_serve_promote(&control, &peer.link, &promote));
	promote.n_pages = 1;
	page.id = 1;
	page.bytes = PAGE;
	assert_false(tier_serve_promote(&control, &peer.link, &promote));
	page.key0 = 1;
	page.bytes = 0;
	assert_false(tier_serve_promote(&control, &peer.link, &promote));
	page.bytes = PAGE_BYTES_MAX + 1;
	assert_false(tier_serve_promote(&control, &peer.link, &promote));
	promote.n_pages = MESSAGE_PAGES_MAX + 1;
	assert_false(tier_serve_promote(&control, &peer.link, &promote));
	assert_int_equal(fake.requests, 0);
}

static void an_engine_without_a_disk_has_no_page_on_it(void **state)
{
	struct tier *t = control.tier;

	control.tier = NULL;
	ask(6, 1, PAGE, 1000);
	assert_int_equal(answer_to(1, 1)->result, PC__PROMOTE_RESULT__PROMOTE_GONE);
	ask(6, 0, 0, 0);
	tier_link_down(&control, &peer.link);
	control.tier = t;
}

/* ---- directory entries ----------------------------------------------------------------------- */

static const struct index_entry *entry_of(uint64_t n)
{
	struct page_key key = key_of(n);

	return index_find(control.index, &key);
}

/* Page n, which is in memory, as eviction names it. */
static struct pool_victim victim_of(uint64_t n)
{
	const struct index_entry *e = entry_of(n);

	return (struct pool_victim){
		.key = e->key, .place = e->place, .generation = e->generation, .length = PAGE};
}

static unsigned in_memory_below(uint64_t end)
{
	unsigned pages = 0;

	for (uint64_t n = 0; n < end; n++)
		pages += entry_of(n) != NULL;
	return pages;
}

static void a_page_that_leaves_memory_gets_the_entry_of_its_copy_on_disk(void **state)
{
	unsigned pages = fill_pools(0, true), before, left;

	tier_turns();
	while (count(DISK_WRITE))
		end_one(DISK_WRITE, DISK_OK);
	directory.removed = directory.on_disk = 0;
	before = in_memory_below(pages);
	/* a request that waits makes room */
	put(&client, (struct ctl_op){.kind = CTL_CREDIT, .count = 1, .length = PAGE});
	turns();
	assert_true(directory.on_disk > 0);
	assert_true(place_on_disk(directory.page.place));
	assert_null(entry_of(number_of(&directory.page.key)));
	left = before - in_memory_below(pages);
	assert_true(left > 0);
	assert_int_equal(directory.removed + directory.on_disk, left);
}

static void a_page_that_is_evicted_while_it_is_written_gets_its_entry_afterwards(void **state)
{
	struct page_key key = key_of(9);
	struct tier_spill *spill;
	struct index_entry e;
	struct pool_victim victim;
	struct disk_page page;

	memset(bytes_at(store(&client, 9, PAGE)), 9, PAGE);
	e = *entry_of(9);
	victim = victim_of(9);
	assert_false(tier_evicting(&control, &victim, &page));
	spill = tier_spilling(control.tier, &key);
	assert_non_null(spill);
	evict_take_away(control.evict, &key, e.place, e.generation);
	assert_int_equal(directory.removed, 1);
	assert_int_equal(directory.on_disk, 0);
	end_request(&spill->request, DISK_OK);
	assert_int_equal(directory.on_disk, 1);
	assert_true(page_key_equal(&directory.page.key, &key));
}

static void a_page_that_stays_in_memory_keeps_its_entry(void **state)
{
	struct pool_victim victim;

	memset(bytes_at(store(&client, 9, PAGE)), 9, PAGE);
	victim = victim_of(9);
	assert_true(tier_spill_start(control.tier, &victim));
	end_one(DISK_WRITE, DISK_OK);
	assert_int_equal(directory.on_disk, 0);
	/* and when the copy on disk goes, nothing changes */
	off_disk(9);
	events();
	assert_int_equal(directory.off_disk, 0);
}

static void a_page_that_leaves_the_disk_loses_its_entry(void **state)
{
	struct disk_page page;

	on_disk(9);
	page = named(9);
	off_disk(9);
	directory.busy = true;
	events();
	assert_int_equal(directory.off_disk, 0);
	directory.busy = false;
	events();
	assert_int_equal(directory.off_disk, 1);
	assert_true(page_key_equal(&directory.page.key, &page.key));
	assert_int_equal(directory.page.place, page.place);
	assert_int_equal(directory.page.generation, page.generation);
}

/* The copy on disk was recycled after the page in memory was marked clean. */
static void a_clean_page_whose_copy_is_gone_is_written_again(void **state)
{
	struct pool_victim victim;
	struct disk_page page;

	memset(bytes_at(store(&client, 9, PAGE)), 9, PAGE);
	victim = victim_of(9);
	pool_clean_set(
		control.rail[place_rail(victim.place)].pool, victim.place, victim.generation, true);
	assert_false(tier_evicting(&control, &victim, &page));
	assert_int_equal(count(DISK_WRITE), 1);
	assert_int_equal(control.counter[COUNTER_disk_drops], 0);
	end_one(DISK_WRITE, DISK_OK);
}

static void an_opened_disk_makes_the_directory_look(void **state)
{
	assert_int_equal(directory.opened, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(a_page_is_promoted_for_another_host_and_pinned_until_it_was_read),
		DISK_TEST(answers_of_one_turn_are_one_message),
		DISK_TEST(each_host_gets_its_own_answers),
		DISK_TEST(what_cannot_be_served_is_answered_at_once),
		DISK_TEST(a_page_that_no_pool_can_hold_is_not_gone),
		DISK_TEST(a_link_without_room_loses_the_answer_and_nothing_else),
		DISK_TEST(a_request_ends_at_its_time),
		DISK_TEST(a_hint_is_not_answered),
		DISK_TEST(a_link_that_closes_gets_no_answer),
		DISK_TEST(a_link_that_closes_while_too_much_is_pinned_gets_no_answer),
		DISK_TEST(a_link_that_closes_while_no_slot_is_free_gets_no_answer),
		DISK_TEST(a_link_that_closes_while_the_page_is_written_gets_no_answer),
		DISK_TEST(messages_that_break_a_rule_are_refused),
		DISK_TEST(an_engine_without_a_disk_has_no_page_on_it),
		DISK_TEST(a_page_that_leaves_memory_gets_the_entry_of_its_copy_on_disk),
		DISK_TEST(a_page_that_is_evicted_while_it_is_written_gets_its_entry_afterwards),
		DISK_TEST(a_page_that_stays_in_memory_keeps_its_entry),
		DISK_TEST(a_page_that_leaves_the_disk_loses_its_entry),
		DISK_TEST(a_clean_page_whose_copy_is_gone_is_written_again),
		DISK_TEST(an_opened_disk_makes_the_directory_look),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
