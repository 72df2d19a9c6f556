/* SPDX-License-Identifier: Apache-2.0 */
/* Spill: pages are written before they are evicted. */
#include "tests/unit/control/pages/tier_world.h"

static void pages_are_written_before_they_are_evicted(void **state)
{
	unsigned pages;
	uint64_t gone = 0;

	pages = fill_pools(100, true);
	assert_true(control.counter[COUNTER_pages_evicted] > 0);
	assert_int_equal(control.counter[COUNTER_disk_drops], 0);
	for (unsigned n = 100; n < 100 + pages; n++) {
		gone += !in_memory(n);
		assert_true(in_memory(n) || fake.has[n]);
	}
	assert_int_equal(gone, control.counter[COUNTER_pages_evicted]);
	/* Once half of the pool is in use, all are written, each once. */
	assert_in_range(control.counter[COUNTER_disk_spills], pages - 8, pages);
}

static void pages_are_written_from_half_of_the_chunks_on(void **state)
{
	struct pool *pool = control.rail[0].pool;
	uint32_t chunk_bytes = (uint32_t)pool_page_bytes_max(pool);
	uint64_t half = pool_memory(pool)->bytes / chunk_bytes / 2, n = 0;

	while (pool_free(pool, chunk_bytes) > half) {
		struct ctl_done credit = take(&client, 0, PAGE);

		assert_int_equal(count(DISK_WRITE), 0);
		publish_at(&client, n++, credit.place, credit.generation, PAGE);
		tier_turns();
	}
	assert_int_equal(pool_free(pool, chunk_bytes), half);
	assert_true(count(DISK_WRITE) > 0);
}

/* Sets `pages` pages from `n` on, at once: each waits for no more than limbo. */
static void burst(uint64_t n, unsigned pages)
{
	while (pages--) {
		struct ctl_done credit;

		put(&client, (struct ctl_op){.kind = CTL_CREDIT,
				     .rail = (uint8_t)(n % RAILS),
				     .count = 1,
				     .length = PAGE,
				     .deadline_ns = now + SECOND});
		while (turns(), tier_turns(), !got(&client, &credit))
			wait_for(LIMBO_MS * 1000000ull / 4);
		assert_int_equal(credit.status, OP_HIT);
		publish_alone(n++, &credit);
	}
}

/*
 * A disk that writes nothing during a burst and everything before the next one loses no page,
 * however long the pauses are, even if the reserve has forgotten the rate of the last burst.
 */
static void bursts_of_half_the_pool_lose_no_page(void **state)
{
	unsigned pages = fill_pools(0, true);
	uint64_t n = pages;

	for (unsigned bursts = 0; bursts < 12; bursts++) {
		wait_for(bursts % 3 ? 10 * SECOND : SECOND / 10);
		burst(n, pages / 2);
		n += pages / 2;
		while (count(DISK_WRITE))
			end_one(DISK_WRITE, DISK_OK);
	}
	assert_true(control.counter[COUNTER_pages_evicted] >= n - pages);
	assert_int_equal(control.counter[COUNTER_disk_drops], 0);
	for (uint64_t i = 0; i < n; i++)
		assert_true(in_memory(i) || fake.has[i]);
	assert_int_equal(control.counter[COUNTER_disk_drops_budget], 0);
}

/*
 * Of a disk of few pools only the pages that leave next are written: an eighth of the pages for
 * each pool. A burst of as many loses none, even if the disk writes nothing meanwhile; with a disk
 * that is as fast as the sets, nor does a longer one.
 */
static void a_small_disk_gets_the_pages_that_leave_next(unsigned pools)
{
	unsigned pages, held = 0, written = 0;
	struct tier *t = control.tier;
	bool dirty[RAILS] = {false};
	uint64_t n;

	fake.mib = pools * (uint32_t)(t->pools_bytes >> 20);
	net_defer(t->slow);
	events();
	pages = fill_pools(0, true);
	for (n = 0; n < pages; n++) {
		bool *seen = &dirty[n >= pages / RAILS];

		held += in_memory(n);
		written += in_memory(n) && fake.has[n];
		*seen = *seen || !fake.has[n];
		assert_true(!*seen || !fake.has[n]); /* the oldest, and no page behind them */
		assert_true(in_memory(n) || fake.has[n]);
	}
	assert_in_range(written, held * pools / 8, pages * pools / 8 + RAILS);
	burst(n, written);
	n += written;
	while (count(DISK_WRITE))
		end_one(DISK_WRITE, DISK_OK);
	for (unsigned i = 0; i < pages; i++, n++) {
		burst(n, 1);
		assert_true(t->spill_bytes <= t->spill_bytes_max);
		if (count(DISK_WRITE))
			end_one(DISK_WRITE, DISK_OK);
	}
	assert_int_equal(control.counter[COUNTER_disk_drops], 0);
}

static void a_disk_of_two_pools_gets_the_pages_that_leave_next(void **state)
{
	a_small_disk_gets_the_pages_that_leave_next(2);
}

static void a_disk_of_four_pools_gets_the_pages_that_leave_next(void **state)
{
	a_small_disk_gets_the_pages_that_leave_next(4);
}

/* A size that uses little of its only chunk may lose it to another size. */
static void few_pages_of_one_size_are_written_when_another_size_fills_the_pool(void **state)
{
	struct ctl_done credit;

	credit = take(&client, 0, 3 * PAGE);
	memset(bytes_at(credit.place), 7, 3 * PAGE);
	publish_at(&client, 7, credit.place, credit.generation, 3 * PAGE);
	tier_turns();
	assert_int_equal(count(DISK_WRITE), 0);
	fill_pools(100, true);
	assert_true(fake.has[7]);
}

/* Only a request that waits makes the engine drop a page; then the reserve may, for a while. */
static void the_reserve_waits_for_a_disk_that_keeps_up(void **state)
{
	fill_pools(100, false);
	control.evict->weight.keeps = true;
	assert_true(tier_keeps_up(&control));
	assert_false(evict_keeps(control.evict, 1));
	assert_int_equal(control.counter[COUNTER_disk_drops], 0);
	assert_in_range(control.counter[COUNTER_pages_evicted], 0, count(DISK_WRITE));
	burst(2000, 2 * count(DISK_WRITE) + 8);
	assert_true(control.counter[COUNTER_disk_drops] > 0);
	assert_false(tier_keeps_up(&control));
	control.evict->weight.keeps = true;
	assert_true(evict_keeps(control.evict, 1));
	wait_for(TIER_BEHIND_NS);
	assert_true(tier_keeps_up(&control));
}

/* A page that is being written is not evicted: requests that wait for room are tried again. */
static void when_a_write_ends_requests_for_room_are_tried_again(void **state)
{
	struct pool_victim page = {.key = key_of(9), .length = PAGE};
	struct ctl_done at = take(&client, 0, PAGE);
	uint32_t passes;

	memset(bytes_at(at.place), 9, PAGE);
	publish_at(&client, 9, at.place, at.generation, PAGE);
	page.place = at.place;
	page.generation = at.generation;
	assert_true(tier_spill_start(control.tier, &page));
	tier_turns();
	passes = control.ctl->rail[0].pass;
	end_one(DISK_WRITE, DISK_OK);
	assert_true(control.ctl->rail[0].pass > passes);
}

static void a_drop_is_counted_by_its_cause(void **state)
{
	static const struct {
		enum disk_status status;
		unsigned counter;
	} causes[] = {
		{DISK_SPENT, COUNTER_disk_drops_budget}, {DISK_TOO_LARGE, COUNTER_disk_drops_size}};

	for (unsigned i = 0; i < 2; i++) {
		struct ctl_done at = take(&client, 0, PAGE);
		struct pool_victim page = {.key = key_of(i), .length = PAGE};

		publish_at(&client, i, at.place, at.generation, PAGE);
		page.place = at.place;
		page.generation = at.generation;
		assert_true(tier_spill_start(control.tier, &page));
		evict_take_away(control.evict, &page.key, page.place, page.generation);
		end_one(DISK_WRITE, causes[i].status);
		assert_int_equal(control.counter[causes[i].counter], 1);
		assert_int_equal(control.counter[COUNTER_disk_drops], i + 1);
	}
}

/* A disk that refuses every page is asked again after a while, not at once. */
static void a_refused_page_is_not_offered_at_once(void **state)
{
	fill_pools(100, false);
	while (count(DISK_WRITE))
		end_one(DISK_WRITE, DISK_SPENT);
	wait_for(TIER_REFUSED_NS / 2);
	assert_int_equal(count(DISK_WRITE), 0);
	wait_for(TIER_REFUSED_NS);
	net_defer(control.tier->slow);
	events();
	assert_true(count(DISK_WRITE) > 0);
}

static void a_page_that_the_disk_has_lost_is_written_again(void **state)
{
	unsigned pages = fill_pools(0, true), lost = 0;

	for (uint64_t n = 0; n < pages; n++)
		if (in_memory(n) && fake.has[n]) {
			off_disk(n);
			lost++;
		}
	fake.works = true;
	while (events(), control.tier->spill_count)
		;
	assert_true(lost > 100);
	for (uint64_t n = 0; n < pages; n++)
		lost -= in_memory(n) && fake.has[n];
	assert_in_range(lost, 0, 4); /* those that the lap does not begin for */
}

static void no_more_than_the_budget_is_being_written(void **state)
{
	unsigned most = (unsigned)(control.tier->spill_bytes_max / PAGE);

	assert_in_range(most, 2, 16);
	fill_pools(100, false);
	assert_int_equal(count(DISK_WRITE), most);
	end_one(DISK_WRITE, DISK_OK);
	assert_int_equal(count(DISK_WRITE), most);
}

static void a_disk_that_hangs_costs_its_budget_and_pages_are_dropped(void **state)
{
	unsigned most = (unsigned)(control.tier->spill_bytes_max / PAGE), evicted;

	fill_pools(100, false);
	for (unsigned n = 0; n < 600; n++) {
		put(&client, (struct ctl_op){.kind = CTL_CREDIT,
				     .rail = (uint8_t)(n % RAILS),
				     .count = 1,
				     .length = PAGE,
				     .deadline_ns = now + SECOND});
		for (unsigned i = 0; i < 50; i++) {
			struct ctl_done done;

			wait_for(LIMBO_MS * 1000000ull);
			if (!got(&client, &done))
				continue;
			assert_int_equal(done.status, OP_HIT);
			for (unsigned k = 0; k < fake.requests; k++)
				assert_ptr_not_equal(bytes_at(done.place), fake.request[k]->data);
			put(&client, (struct ctl_op){.kind = CTL_PUBLISH,
					     .count = 1,
					     .key = key_of(1000 + n),
					     .place = done.place,
					     .generation = done.generation,
					     .length = PAGE});
			get_one(&client);
			break;
		}
	}
	evicted = (unsigned)control.counter[COUNTER_pages_evicted];
	assert_true(evicted > 500);
	/* A path that hangs is out of service after its time-out; another one may get as much. */
	assert_in_range(count(DISK_WRITE), most, 32 * most);
	assert_true(control.tier->spill_bytes <= control.tier->spill_bytes_max);
	assert_true(control.counter[COUNTER_disk_drops] + count(DISK_WRITE) >= evicted);
}

/* A page that is being written and not evicted yet. */
static struct tier_spill *spill_in_memory(void)
{
	struct tier_spill *spill;

	for (;;) {
		TAILQ_FOREACH (spill, &control.tier->spills, next)
			if (in_memory(number_of(&spill->request.key)))
				return spill;
		end_one(DISK_WRITE, DISK_OK);
	}
}

static void a_page_evicted_while_it_is_written_is_read_when_it_is_on_disk(void **state)
{
	struct tier_spill *spill;
	uint64_t n;

	fill_pools(100, false);
	spill = spill_in_memory();
	n = number_of(&spill->request.key);
	evict_take_away(control.evict, &spill->request.key, spill->place, spill->generation);
	assert_false(in_memory(n));
	request(n, true, SECOND);
	assert_int_equal(answered(n).status, OP_HIT);
	request(n, false, 10 * SECOND);
	not_answered();
	assert_int_equal(count(DISK_READ), 0);
	end_request(&spill->request, DISK_OK);
	for (unsigned i = 0; i < 100 && !count(DISK_READ); i++)
		wait_for(LIMBO_MS * 1000000ull);
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(answered(n).status, OP_HIT);
}

/* Takes a page that is being written out of memory; returns its number. */
static uint64_t evict(const struct tier_spill *spill)
{
	evict_take_away(control.evict, &spill->request.key, spill->place, spill->generation);
	assert_false(in_memory(number_of(&spill->request.key)));
	return number_of(&spill->request.key);
}

static void an_evicted_page_is_published_as_on_disk_when_it_is_written(void **state)
{
	struct tier_spill *spill;
	unsigned published;

	fill_pools(100, false);
	spill = spill_in_memory();
	evict(spill);
	published = directory.on_disk;
	end_request(&spill->request, DISK_OK);
	assert_int_equal(directory.on_disk, published + 1);
	/* one that is still in memory is named by its place there */
	spill = spill_in_memory();
	published = directory.on_disk;
	end_request(&spill->request, DISK_OK);
	assert_int_equal(directory.on_disk, published);
}

static void a_key_removed_while_its_evicted_page_is_written_is_published_nowhere(void **state)
{
	struct tier_spill *spill;
	unsigned published;
	struct page_key key;
	uint64_t drops;

	fill_pools(100, false);
	spill = spill_in_memory();
	key = spill->request.key;
	evict(spill);
	published = directory.on_disk;
	drops = control.counter[COUNTER_disk_drops];
	control.tier->refused_ns = 0;
	assert_true(page_forget(&control, &key));
	assert_null(tier_spilling(control.tier, &key));
	assert_false(page_forget(&control, &key));
	end_request(&spill->request, DISK_OK);
	assert_false(fake.has[number_of(&key)]);
	assert_int_equal(directory.on_disk, published);
	/* nothing was lost, and the disk is not slow */
	assert_int_equal(control.counter[COUNTER_disk_drops], drops);
	assert_int_equal(control.tier->refused_ns, 0);
}

/* The segment that it was written to is recycled before the answer is read. */
static void an_evicted_page_that_left_the_disk_at_once_is_a_miss(void **state)
{
	struct tier_spill *spill;
	uint64_t n;

	fill_pools(100, false);
	spill = spill_in_memory();
	n = evict(spill);
	request(n, false, SECOND);
	not_answered();
	fake.gone_at_once = true;
	end_request(&spill->request, DISK_OK);
	assert_int_equal(answered(n).status, OP_MISS);
	assert_int_equal(count(DISK_READ), 0);
}

/* Two writes of one key would leave the budget and the disk with two pages. */
static void a_page_that_is_being_written_is_not_written_again(void **state)
{
	const struct tier_spill *spill;
	struct pool_victim page;
	struct disk_page found;
	unsigned writes;
	uint64_t drops;

	fill_pools(100, false);
	spill = spill_in_memory();
	page = (struct pool_victim){.key = spill->request.key,
		.place = spill->place,
		.generation = spill->generation,
		.length = PAGE};
	writes = count(DISK_WRITE);
	drops = control.counter[COUNTER_disk_drops];
	assert_false(tier_evicting(&control, &page, &found));
	assert_int_equal(count(DISK_WRITE), writes);
	assert_int_equal(control.counter[COUNTER_disk_drops], drops);
}

/* The path that has it hangs, and has left service. */
static void an_evicted_page_whose_write_never_ends_is_a_miss(void **state)
{
	struct tier_spill *spill, *other;
	uint64_t drops, n, busy_ns;

	fill_pools(100, false);
	spill = spill_in_memory();
	n = evict(spill);
	drops = control.counter[COUNTER_disk_drops];
	TAILQ_FOREACH (other, &control.tier->spills, next)
		drops += !in_memory(number_of(&other->request.key));
	request(n, false, 100 * SECOND);
	not_answered();
	hold_all();
	assert_int_equal(control.counter[COUNTER_disk_drops], drops);
	assert_int_equal(answered(n).status, OP_MISS);
	request(n, false, 100 * SECOND);
	assert_int_equal(answered(n).status, OP_MISS);
	request(n, true, 100 * SECOND);
	assert_int_equal(answered(n).status, OP_MISS);
	while (control.tier->spill_bytes)
		hold_all();
	drops = control.counter[COUNTER_disk_drops];
	busy_ns = control.tier->writing_ns;
	pass_time(SECOND);
	end_request(&spill->request, DISK_OFFLINE);
	assert_int_equal(control.counter[COUNTER_disk_drops], drops);
	assert_int_equal(control.tier->writing_ns, busy_ns);
}

/* Set anew while its former write hangs: it goes to another path, or counts as dropped. */
static void a_page_whose_former_write_never_ends_is_written_again(void **state)
{
	struct tier_spill *former;
	struct pool_victim page;
	struct disk_page found;
	struct ctl_done credit;
	unsigned writes;
	uint64_t drops, n;

	fill_pools(100, false);
	former = spill_in_memory();
	n = evict(former);
	while (control.tier->spill_bytes)
		hold_all();
	/* Room for it: another page, whose write has ended, is evicted. */
	end_request(&spill_in_memory()->request, DISK_OK);
	put(&client, (struct ctl_op){.kind = CTL_CREDIT,
			     .rail = 0,
			     .count = 1,
			     .length = PAGE,
			     .deadline_ns = now + 10 * SECOND});
	do
		wait_for(LIMBO_MS * 1000000ull);
	while (!got(&client, &credit));
	control.tier->refused_ns = now; /* it is written when it is evicted, not ahead of it */
	assert_int_equal(credit.status, OP_HIT);
	memset(bytes_at(credit.place), (int)n, PAGE);
	assert_int_equal(
		publish_at(&client, n, credit.place, credit.generation, PAGE).status, OP_HIT);
	page = (struct pool_victim){.key = key_of(n),
		.place = credit.place,
		.generation = credit.generation,
		.length = PAGE};
	writes = count(DISK_WRITE);
	drops = control.counter[COUNTER_disk_drops];
	assert_false(tier_evicting(&control, &page, &found));
	assert_int_equal(count(DISK_WRITE), writes + 1);
	assert_int_equal(control.counter[COUNTER_disk_drops], drops);
	/* A request waits for the new write, whatever becomes of the former one. */
	index_remove(control.index, &page.key);
	request(n, false, 100 * SECOND);
	end_request(&former->request, DISK_OFFLINE);
	not_answered();
	/* The new one hangs, too. It keeps its slot, so the page cannot be written from there. */
	while (control.tier->spill_bytes)
		hold_all();
	assert_int_equal(answered(n).status, OP_MISS);
	assert_int_equal(control.counter[COUNTER_disk_drops], drops + 1);
	assert_false(tier_evicting(&control, &page, &found));
	assert_int_equal(count(DISK_WRITE), writes);
	assert_int_equal(control.counter[COUNTER_disk_drops], drops + 2);
}

static void a_write_that_waits_on_a_path_in_service_stays_in_the_budget(void **state)
{
	struct tier *t = control.tier;
	struct tier_spill *spill;
	unsigned stranded = 0;

	fill_pools(100, false);
	assert_true(t->spill_count >= 2);
	control.tier->refused_ns = now + 100 * SECOND; /* no further one begins */
	pass_time(50 * SECOND);
	net_defer(t->slow);
	events();
	/* A younger one is on a path that hangs: it alone leaves the budget. */
	hold(&TAILQ_NEXT(TAILQ_FIRST(&t->spills), next)->request);
	TAILQ_FOREACH (spill, &t->spills, next)
		stranded += spill->stranded;
	assert_int_equal(stranded, 1);
	assert_false(TAILQ_FIRST(&t->spills)->stranded);
	assert_int_equal(t->spill_bytes, (t->spill_count - 1) * PAGE);
}

/* A path that hangs: after its time-out its pages count no more, and not twice less. */
static void a_write_without_an_end_leaves_the_budget_once(void **state)
{
	struct tier *t = control.tier;

	fill_pools(100, false);
	assert_true(t->spill_bytes >= 2 * PAGE);
	t->refused_ns = now + 100 * SECOND; /* no further one begins meanwhile */
	hold_all();
	assert_int_equal(t->spill_bytes, 0);
	t->refused_ns = 0;
	while (TAILQ_FIRST(&t->spills)->stranded)
		end_request(&TAILQ_FIRST(&t->spills)->request, DISK_OK);
	assert_in_range(t->spill_bytes, PAGE, t->spill_bytes_max);
}

/* A page that is set again with another length while it is written is removed from the disk. */
static void a_page_of_another_length_that_is_being_written_is_removed(void **state)
{
	const struct tier_spill *spill;
	struct page_key key;

	fill_pools(100, false);
	spill = spill_in_memory();
	key = spill->request.key;
	tier_replaced(&control, &key, PAGE);
	assert_false(spill->request.forgotten);
	tier_replaced(&control, &key, PAGE / 2);
	assert_true(spill->request.forgotten);
	assert_null(tier_spilling(control.tier, &key));
	/* A write that hangs may end after all: its page must not be published then. */
	spill = spill_in_memory();
	while (spill->request.forgotten)
		spill = TAILQ_NEXT(spill, next);
	key = spill->request.key;
	hold_all();
	assert_true(spill->stranded);
	tier_replaced(&control, &key, PAGE);
	assert_false(spill->request.forgotten);
	tier_replaced(&control, &key, PAGE / 2);
	assert_true(spill->request.forgotten);
}

/* What left the disk is in memory: its entry there is the right one. */
static void a_page_that_leaves_the_disk_keeps_its_entry_in_memory(void **state)
{
	store(&client, 7, PAGE);
	on_disk(7);
	on_disk(8);
	off_disk(7);
	off_disk(8);
	events();
	assert_int_equal(directory.off_disk, 1);
	assert_int_equal(number_of(&directory.page.key), 8);
}

static void a_write_that_fails_leaves_the_page_as_it_was(void **state)
{
	struct tier_spill *spill;
	uint32_t place, generation;
	uint64_t drops, spills;

	fill_pools(100, false);
	spill = spill_in_memory();
	drops = control.counter[COUNTER_disk_drops];
	spills = control.counter[COUNTER_disk_spills];
	place = spill->place;
	generation = spill->generation;
	end_request(&spill->request, DISK_OFFLINE);
	assert_false(pool_clean(control.rail[place_rail(place)].pool, place, generation));
	assert_int_equal(control.counter[COUNTER_disk_spills], spills);
	assert_int_equal(control.counter[COUNTER_disk_drops], drops);
}

/* Publishes page n with its CRC. Returns its place and generation. */
static struct ctl_done store_proven(uint64_t n)
{
	struct ctl_done credit = take(&client, 0, PAGE);

	assert_int_equal(credit.status, OP_HIT);
	memset(bytes_at(credit.place), (int)n, PAGE);
	put(&client, (struct ctl_op){.kind = CTL_PUBLISH,
			     .count = 1,
			     .key = key_of(n),
			     .place = credit.place,
			     .generation = credit.generation,
			     .length = PAGE,
			     .crc = crc32c(0, bytes_at(credit.place), PAGE),
			     .publish = 1});
	assert_int_equal(get_one(&client).status, OP_HIT);
	return credit;
}

static struct tier_spill *spill_of(uint64_t n, const struct ctl_done *at)
{
	const struct pool_victim page = {
		.key = key_of(n), .place = at->place, .generation = at->generation, .length = PAGE};

	assert_true(tier_spill_start(control.tier, &page));
	return tier_spilling(control.tier, &page.key);
}

static void a_page_is_written_with_the_crc_of_its_head(void **state)
{
	struct ctl_done with = store_proven(7), without;
	struct tier_spill *spill = spill_of(7, &with);

	assert_true(spill->request.has_crc);
	assert_int_equal(spill->request.crc, crc32c(0, bytes_at(with.place), PAGE));
	end_request(&spill->request, DISK_OK);
	assert_true(in_memory(7));
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 0);

	/* of a client that does not compute it */
	without = take(&client, 0, PAGE);
	memset(bytes_at(without.place), 8, PAGE);
	publish_at(&client, 8, without.place, without.generation, PAGE);
	spill = spill_of(8, &without);
	assert_false(spill->request.has_crc);
	end_request(&spill->request, DISK_OK);
}

static void a_page_that_the_disk_found_damaged_is_counted_and_taken_out(void **state)
{
	struct ctl_done at = store_proven(7), evicted = store_proven(8);
	struct page_key key = key_of(8);
	struct tier_spill *spill = spill_of(7, &at);
	struct disk_page page;

	end_request(&spill->request, DISK_CORRUPT);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 1);
	assert_int_equal(control.counter[COUNTER_disk_spills], 0);
	assert_false(in_memory(7));
	assert_null(pool_page(control.rail[0].pool, at.place, at.generation));
	assert_int_equal(directory.removed, 1);
	assert_int_equal(fake.forgotten, 1);

	/* evicted while it was being written: nothing is left to be taken out */
	spill = spill_of(8, &evicted);
	evict_take_away(control.evict, &key, evicted.place, evicted.generation);
	end_request(&spill->request, DISK_CORRUPT);
	assert_int_equal(control.counter[COUNTER_pages_corrupt], 2);
	assert_false(disk_find(fake_disk, &key, &page));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(pages_are_written_before_they_are_evicted),
		DISK_TEST(pages_are_written_from_half_of_the_chunks_on),
		DISK_TEST(bursts_of_half_the_pool_lose_no_page),
		DISK_TEST(a_disk_of_two_pools_gets_the_pages_that_leave_next),
		DISK_TEST(a_disk_of_four_pools_gets_the_pages_that_leave_next),
		DISK_TEST(few_pages_of_one_size_are_written_when_another_size_fills_the_pool),
		DISK_TEST(the_reserve_waits_for_a_disk_that_keeps_up),
		DISK_TEST(when_a_write_ends_requests_for_room_are_tried_again),
		DISK_TEST(a_drop_is_counted_by_its_cause),
		DISK_TEST(a_refused_page_is_not_offered_at_once),
		DISK_TEST(a_page_that_the_disk_has_lost_is_written_again),
		DISK_TEST(no_more_than_the_budget_is_being_written),
		DISK_TEST(a_disk_that_hangs_costs_its_budget_and_pages_are_dropped),
		DISK_TEST(a_page_evicted_while_it_is_written_is_read_when_it_is_on_disk),
		DISK_TEST(an_evicted_page_is_published_as_on_disk_when_it_is_written),
		DISK_TEST(a_key_removed_while_its_evicted_page_is_written_is_published_nowhere),
		DISK_TEST(an_evicted_page_that_left_the_disk_at_once_is_a_miss),
		DISK_TEST(a_page_that_is_being_written_is_not_written_again),
		DISK_TEST(an_evicted_page_whose_write_never_ends_is_a_miss),
		DISK_TEST(a_page_whose_former_write_never_ends_is_written_again),
		DISK_TEST(a_write_that_waits_on_a_path_in_service_stays_in_the_budget),
		DISK_TEST(a_write_without_an_end_leaves_the_budget_once),
		DISK_TEST(a_page_of_another_length_that_is_being_written_is_removed),
		DISK_TEST(a_page_that_leaves_the_disk_keeps_its_entry_in_memory),
		DISK_TEST(a_write_that_fails_leaves_the_page_as_it_was),
		DISK_TEST(a_page_is_written_with_the_crc_of_its_head),
		DISK_TEST(a_page_that_the_disk_found_damaged_is_counted_and_taken_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
