/* SPDX-License-Identifier: Apache-2.0 */
/* Promote: pages on disk come back into the pools. */
#include "tests/unit/control/pages/tier_world.h"

#include <errno.h>

static void a_page_on_disk_is_read_published_and_pinned_until_it_was_read(void **state)
{
	struct ctl_done done;

	on_disk(5);
	request(5, false, SECOND);
	assert_int_equal(count(DISK_READ), 1);
	not_answered();
	assert_false(in_memory(5));
	assert_int_equal(directory.published, 0);
	end_one(DISK_READ, DISK_OK);
	done = answered(5);
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(done.length, PAGE);
	assert_int_equal(bytes_at(done.place)[PAGE - 1], 5);
	assert_true(in_memory(5));
	assert_int_equal(directory.published, 1);
	assert_int_equal(control.tier->pins, 1);
	assert_int_equal(control.tier->pinned_bytes, PAGE);
	put(&client, (struct ctl_op){.kind = CTL_TOUCH,
			     .ref = control.ref,
			     .key = key_of(5),
			     .place = done.place,
			     .generation = done.generation});
	turns();
	assert_int_equal(control.tier->pins, 0);
	assert_int_equal(control.tier->pinned_bytes, 0);
	/* It is on disk: evicting it writes nothing. */
	assert_true(
		pool_clean(control.rail[place_rail(done.place)].pool, done.place, done.generation));
}

/* So the scrubber and readers compare it like a page that a client has set. */
static void a_promoted_page_has_its_crc_in_its_head(void **state)
{
	struct pool_proven page = {.length = 0};
	struct ctl_done done;

	on_disk(5);
	request(5, false, SECOND);
	end_one(DISK_READ, DISK_OK);
	done = answered(5);
	assert_int_equal(done.status, OP_HIT);
	assert_true(pool_proven(
		control.rail[place_rail(done.place)].pool, done.place, done.generation, &page));
	assert_int_equal(page.length, PAGE);
	assert_int_equal(page.crc, crc32c(0, bytes_at(done.place), PAGE));
}

static void a_pin_ends_with_the_deadline_of_its_reader(void **state)
{
	on_disk(5);
	request(5, false, SECOND);
	end_one(DISK_READ, DISK_OK);
	wait_for(SECOND / 2);
	assert_int_equal(control.tier->pins, 1);
	wait_for(SECOND);
	assert_int_equal(control.tier->pins, 0);
	assert_true(in_memory(5));
}

/* Also one that is farther away than the wheel of lists is long. */
static void a_pin_ends_at_its_deadline_or_after_one_turn_of_the_wheel(void **state)
{
	static const uint64_t deadline_ns[] = {0, SECOND / 5, SECOND, 6 * SECOND,
		TIER_PIN_STEPS * TIER_PIN_NS, (TIER_PIN_STEPS + 1) * TIER_PIN_NS, 60 * SECOND,
		UINT64_MAX / 2};
	const uint64_t longest_ns = (TIER_PIN_STEPS - 2) * TIER_PIN_NS;

	for (unsigned i = 0; i < sizeof(deadline_ns) / sizeof(deadline_ns[0]); i++) {
		struct ctl_done credit = take(&client, 0, PAGE);
		uint64_t began = now, ends = deadline_ns[i];

		ends = ends < longest_ns ? ends : longest_ns;
		publish_at(&client, i, credit.place, credit.generation, PAGE);
		control.tier->pinned_bytes += PAGE;
		tier_pin(control.tier, credit.place, credit.generation, PAGE, 1,
			now + deadline_ns[i]);
		while (control.tier->pins) {
			assert_in_range(now - began, 0, ends + 2 * TIER_PIN_NS);
			wait_for(TIER_PIN_NS / 5);
		}
		assert_in_range(now - began, ends > TIER_PIN_NS ? ends - TIER_PIN_NS : 0,
			ends + 2 * TIER_PIN_NS);
		assert_int_equal(control.tier->pinned_bytes, 0);
		wait_for(100 * SECOND); /* the wheel stands while nothing is pinned */
	}
}

/* Of another page that was in the slot, or by a second word of the same reader. */
static void only_the_readers_of_the_page_end_its_pin(void **state)
{
	struct ctl_done credit = take(&client, 0, PAGE);

	publish_at(&client, 1, credit.place, credit.generation, PAGE);
	control.tier->pinned_bytes += PAGE;
	tier_pin(control.tier, credit.place, credit.generation, PAGE, 2, now + SECOND);
	tier_touched(&control, credit.place, credit.generation + 2);
	tier_touched(&control, credit.place, credit.generation + 1);
	tier_touched(&control, credit.place + 1, credit.generation);
	tier_touched(&control, credit.place, credit.generation);
	assert_int_equal(control.tier->pins, 1);
	/* another engine names no generation */
	tier_touched(&control, credit.place, 0);
	assert_int_equal(control.tier->pins, 0);
	tier_touched(&control, credit.place, credit.generation);
	assert_int_equal(control.tier->pinned_bytes, 0);
}

static void a_page_that_the_disk_could_not_verify_is_never_published(void **state)
{
	struct ctl_done done;

	on_disk(6);
	request(6, false, SECOND);
	end_one(DISK_READ, DISK_MISS);
	done = answered(6);
	assert_int_equal(done.status, OP_MISS);
	assert_false(in_memory(6));
	assert_int_equal(directory.published, 0);
	assert_int_equal(control.tier->pinned_bytes, 0);
	/* The disk has written to the slot: it rests like any other. */
	assert_int_equal(pool_limbo(control.rail[0].pool) + pool_limbo(control.rail[1].pool), 1);
}

static void a_key_removed_while_it_is_read_does_not_come_back(void **state)
{
	struct page_key key = key_of(7);

	on_disk(7);
	request(7, false, SECOND);
	assert_int_equal(count(DISK_READ), 1);
	assert_true(page_forget(&control, &key));
	assert_false(fake.has[7]);
	/* The read had ended before. */
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(answered(7).status, OP_MISS);
	assert_false(in_memory(7));
	request(7, false, SECOND);
	assert_int_equal(answered(7).status, OP_MISS);
}

static void requests_for_one_key_share_one_read(void **state)
{
	on_disk(8);
	request(8, false, SECOND);
	request(8, false, 2 * SECOND);
	request(8, false, SECOND);
	assert_int_equal(count(DISK_READ), 1);
	end_one(DISK_READ, DISK_OK);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(answered(8).status, OP_HIT);
	/* until the last of their deadlines, whichever came last */
	assert_int_equal(control.tier->pins, 1);
	wait_for(3 * SECOND / 2);
	assert_int_equal(control.tier->pins, 1);
	wait_for(SECOND);
	assert_int_equal(control.tier->pins, 0);
}

static void a_request_is_answered_at_its_deadline_though_the_disk_hangs(void **state)
{
	on_disk(9);
	request(9, false, SECOND);
	wait_for(2 * SECOND);
	assert_int_equal(answered(9).status, OP_TIMEOUT);
	/* The slot belongs to the device until it answers. */
	assert_int_equal(control.tier->pinned_bytes, PAGE);
	end_one(DISK_READ, DISK_OK);
	not_answered();
	assert_true(in_memory(9));
	assert_int_equal(control.tier->pinned_bytes, 0);
}

/* The page is set anew and written to another path, while the first read never ends. */
static void a_read_that_never_ends_does_not_keep_its_key(void **state)
{
	struct disk_request *hung;

	on_disk(9);
	request(9, false, 100 * SECOND);
	hung = fake.request[0];
	assert_int_equal(control.tier->pinned_bytes, PAGE);
	not_answered();
	hold(hung);
	assert_int_equal(control.tier->pinned_bytes, 0);
	assert_int_equal(answered(9).status, OP_MISS);
	off_disk(9);
	on_disk(9);
	request(9, false, 100 * SECOND);
	assert_int_equal(count(DISK_READ), 2);
	/* The device may still write to the buffer of the first one. */
	assert_ptr_not_equal(fake.request[1]->data, hung->data);
	end_request(fake.request[1], DISK_OK);
	assert_int_equal(answered(9).status, OP_HIT);
	assert_true(in_memory(9));
	assert_int_equal(control.tier->pinned_bytes, PAGE);
	end_request(hung, DISK_OK);
	not_answered();
	assert_true(in_memory(9));
	assert_int_equal(control.counter[COUNTER_disk_promotes], 1);
	wait_for(7 * SECOND);
	assert_int_equal(control.tier->pinned_bytes, 0);
}

/* A path in service may be slower than its queue: also an older read waits while another hangs. */
static void a_read_that_waits_on_a_path_in_service_is_not_stranded(void **state)
{
	on_disk(9);
	on_disk(10);
	request(9, false, 100 * SECOND);
	request(10, false, 100 * SECOND);
	pass_time(50 * SECOND);
	net_defer(control.tier->slow);
	events();
	not_answered();
	hold(fake.request[1]);
	assert_int_equal(answered(10).status, OP_MISS);
	not_answered();
	assert_int_equal(control.tier->pinned_bytes, PAGE);
	end_one(DISK_READ, DISK_OK);
	assert_int_equal(answered(9).status, OP_HIT);
}

static void reads_that_never_end_leave_room_for_others(void **state)
{
	unsigned most = (unsigned)(control.tier->pinned_bytes_max / PAGE);

	for (unsigned n = 0; n < most; n++) {
		on_disk(n);
		request(n, false, SECOND);
	}
	on_disk(1000);
	request(1000, false, 100 * SECOND);
	assert_int_equal(count(DISK_READ), most);
	hold_all();
	for (unsigned n = 0; n < most; n++)
		answered(n);
	assert_int_equal(count(DISK_READ), most + 1);
	end_request(fake.request[most], DISK_OK);
	assert_int_equal(answered(1000).status, OP_HIT);
}

static void exists_is_answered_at_once_and_brings_the_page(void **state)
{
	struct ctl_done done;

	on_disk(10);
	request(10, true, SECOND);
	done = answered(10);
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(done.generation, 0);
	end_one(DISK_READ, DISK_OK);
	assert_true(in_memory(10));
	request(10, false, SECOND);
	assert_int_not_equal(answered(10).generation, 0);
	request(11, true, SECOND);
	assert_int_equal(answered(11).status, OP_MISS);
}

static struct ctl_done looked(uint64_t n)
{
	put(&client, (struct ctl_op){.kind = CTL_PROMOTE,
			     .cookie = n,
			     .count = PROMOTE_LOOK,
			     .key = key_of(n),
			     .deadline_ns = now + SECOND});
	turns();
	tier_turns();
	return answered(n);
}

static void a_look_tells_where_this_host_has_the_page_and_changes_nothing(void **state)
{
	uint64_t before[COUNTER_COUNT];
	struct ctl_done done;

	on_disk(10);
	memcpy(before, control.counter, sizeof(before));
	done = looked(10);
	assert_int_equal(done.status, OP_HIT);
	assert_int_equal(done.generation, 0);
	assert_int_equal(count(DISK_READ), 0);
	assert_false(in_memory(10));
	assert_int_equal(looked(11).status, OP_MISS);
	assert_memory_equal(before, control.counter, sizeof(before));
	store(&client, 12, PAGE);
	done = looked(12);
	assert_int_equal(done.status, OP_HIT);
	assert_int_not_equal(done.generation, 0);
	assert_false(place_on_disk(done.place));
}

static void a_page_of_another_length_is_refused_and_replaced(void **state)
{
	on_disk(12);
	fake.length[12] = PAGE / 2;
	request(12, false, SECOND);
	assert_int_equal(answered(12).status, OP_INVALID);
	assert_int_equal(count(DISK_READ), 0);
	store(&client, 12, PAGE);
	assert_false(fake.has[12]);
	store(&client, 13, PAGE);
	assert_int_equal(fake.forgotten, 1);
}

static void no_more_than_the_cap_is_read_or_pinned(void **state)
{
	unsigned most = (unsigned)(control.tier->pinned_bytes_max / PAGE), n;
	struct ctl_done done;

	for (n = 0; n < 2 * most; n++) {
		on_disk(n);
		request(n, false, SECOND);
	}
	assert_int_equal(count(DISK_READ), most);
	for (n = 0; n < most; n++)
		end_one(DISK_READ, DISK_OK);
	assert_int_equal(count(DISK_READ), 0);
	/* A page that was read makes room for the next one. */
	done = answered(0);
	put(&client, (struct ctl_op){.kind = CTL_TOUCH,
			     .ref = control.ref,
			     .place = done.place,
			     .generation = done.generation});
	turns();
	events();
	assert_int_equal(count(DISK_READ), 1);
	for (n = 1; n < most; n++)
		answered(n);
	wait_for(2 * SECOND);
	for (n = most; n < 2 * most; n++)
		assert_int_equal(answered(n).status, OP_TIMEOUT);
	assert_int_equal(control.counter[COUNTER_disk_refused], most - 1);
}

/* With more page sizes than records, another record may be that of the page's size by then. */
static void a_promote_ends_in_the_record_in_which_it_waits(void **state)
{
	struct evict_class *class = control.evict->rail[0].class;
	uint64_t waiting = 0;

	fill_pools(100, false);
	for (unsigned rail = 0; rail < RAILS; rail++)
		for (unsigned i = 0; i < CLASSES_MAX; i++)
			control.evict->rail[rail].class[i].held = 1;
	on_disk(5);
	fake.length[5] = 3 * PAGE_UNIT; /* no slot has this size */
	for (unsigned i = 0; i < CLASSES_MAX; i++)
		if (!class[i].units)
			class[i].units = control.evict->rail[1].class[i].units = 1000 + i;
	put(&client, (struct ctl_op){.kind = CTL_PROMOTE,
			     .cookie = 5,
			     .key = key_of(5),
			     .length = 3 * PAGE_UNIT,
			     .deadline_ns = now + SECOND / 1000});
	turns();
	tier_turns();
	assert_int_equal(count(DISK_READ), 0);
	for (unsigned rail = 0; rail < RAILS; rail++)
		for (unsigned i = 0; i < CLASSES_MAX; i++) {
			waiting += control.evict->rail[rail].class[i].waiting;
			if (!control.evict->rail[rail].class[i].waiting)
				control.evict->rail[rail].class[i].held = 0;
		}
	assert_int_equal(waiting, 1);
	wait_for(SECOND / 500);
	assert_int_equal(answered(5).status, OP_TIMEOUT);
	assert_int_equal(control.tier->pinned_bytes, 0);
	for (unsigned rail = 0; rail < RAILS; rail++)
		for (unsigned i = 0; i < CLASSES_MAX; i++)
			assert_int_equal(control.evict->rail[rail].class[i].waiting, 0);
}

static void a_promote_evicts_when_the_pool_is_full(void **state)
{
	unsigned pages = fill_pools(100, true);

	assert_true(pages >= 200);
	/* More than the reserve of free slots. */
	for (unsigned n = 0; n < 24; n++) {
		on_disk(n);
		request(n, false, 10 * SECOND);
	}
	for (unsigned i = 0; i < 100 && count(DISK_READ) < 24; i++)
		wait_for(LIMBO_MS * 1000000ull);
	for (unsigned n = 0; n < 24; n++)
		end_one(DISK_READ, DISK_OK);
	for (unsigned n = 0; n < 24; n++) {
		struct ctl_done done = answered(n);

		assert_int_equal(done.status, OP_HIT);
		assert_int_equal(bytes_at(done.place)[0], n);
	}
}

static void a_promote_for_a_group_at_its_quota_costs_others_no_page(void **state)
{
	const struct page_key key = key_of(0);
	struct group_limits limits = {.ttl_s = -1};
	struct index_group *group;
	uint64_t n = 1000, others;

	fill_pools(100, true);
	wait_for(2 * LIMBO_MS * 1000000ull);
	for (unsigned i = 0; i < 8; i++) {
		struct ctl_done credit = take(&client, i % RAILS, PAGE);

		n = of_group(n + 1);
		publish_alone(n, &credit);
		while (count(DISK_WRITE))
			end_one(DISK_WRITE, DISK_OK);
	}
	group = index_group(control.index, epoch_group(&key));
	limits.quota = (int64_t)group->bytes;
	assert_int_equal(index_limit(control.index, group->number, &limits), 0);
	others = index_count(control.index) - group->pages;
	for (unsigned i = 0; i < 6; i++) {
		n = of_group(n + 1);
		on_disk(n);
		request(n, false, 10 * SECOND);
	}
	for (unsigned i = 0; i < 100 && count(DISK_READ) < 6; i++)
		wait_for(LIMBO_MS * 1000000ull);
	for (unsigned i = 0; i < 6; i++)
		end_one(DISK_READ, DISK_OK);
	assert_true(in_memory(n));
	assert_int_equal(index_count(control.index) - group->pages, others);
	assert_int_equal(group->evicted, 6);
	assert_true(group->bytes <= group->quota);
	assert_int_equal(group->coming, 0);
}

/* The finding disk_failed has a reason, even if the disk gave none. */
static void a_disk_that_cannot_be_opened_has_a_reason(void **state)
{
	tier_close(&control);
	fake.open_rc = -ENODEV;
	shm_store(&fake.opened, 0);
	assert_int_equal(tier_open(&control), 0);
	/* The helper thread has written its report, which is not the control plane's yet. */
	while (!shm_load(&fake.opened))
		sched_yield();
	assert_int_equal(control.tier->report.paths, 0);
	while (control.tier->state == TIER_OPENING)
		event_base_loop(control.base, EVLOOP_ONCE);
	assert_int_equal(control.tier->report.path[0].bytes_read, 7);
	assert_string_equal(control.tier->report.path[0].reason, strerror(ENODEV));
}

/* Three of them; more than there is room for are counted. */
static void a_page_removed_while_the_disk_is_opened_leaves_it_then(void **state)
{
	struct page_key key;

	tier_close(&control);
	assert_int_equal(tier_open(&control), 0);
	for (unsigned n = 5; n < 9; n++) {
		on_disk(n);
		key = key_of(n);
		if (n < 8)
			assert_false(page_forget(&control, &key));
	}
	control.tier->early_count = TIER_EARLY_MAX;
	assert_false(page_forget(&control, &key));
	assert_int_equal(control.counter[COUNTER_disk_removals_dropped], 1);
	control.tier->early_count = 3;
	while (control.tier->state == TIER_OPENING)
		event_base_loop(control.base, EVLOOP_ONCE);
	for (unsigned n = 5; n < 9; n++)
		assert_int_equal(fake.has[n], n == 8);
}

/* It would wait for ever for a disk that writes nothing any more. */
static void a_clear_waits_for_tombstones_while_a_path_takes_them(void **state)
{
	for (unsigned out = 0; out < 2; out++) {
		fake.out = out;
		net_defer(control.tier->slow);
		pass_time(SECOND);
		events();
		fake.forgets_many = true;
		assert_int_equal(tier_forgets_many(&control), !out);
		fake.forgets_many = false;
		assert_false(tier_forgets_many(&control));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		DISK_TEST(a_page_on_disk_is_read_published_and_pinned_until_it_was_read),
		DISK_TEST(a_promoted_page_has_its_crc_in_its_head),
		DISK_TEST(a_pin_ends_with_the_deadline_of_its_reader),
		DISK_TEST(a_pin_ends_at_its_deadline_or_after_one_turn_of_the_wheel),
		DISK_TEST(only_the_readers_of_the_page_end_its_pin),
		DISK_TEST(a_page_that_the_disk_could_not_verify_is_never_published),
		DISK_TEST(a_key_removed_while_it_is_read_does_not_come_back),
		DISK_TEST(requests_for_one_key_share_one_read),
		DISK_TEST(a_request_is_answered_at_its_deadline_though_the_disk_hangs),
		DISK_TEST(a_read_that_never_ends_does_not_keep_its_key),
		DISK_TEST(a_read_that_waits_on_a_path_in_service_is_not_stranded),
		DISK_TEST(reads_that_never_end_leave_room_for_others),
		DISK_TEST(exists_is_answered_at_once_and_brings_the_page),
		DISK_TEST(a_look_tells_where_this_host_has_the_page_and_changes_nothing),
		DISK_TEST(a_page_of_another_length_is_refused_and_replaced),
		DISK_TEST(no_more_than_the_cap_is_read_or_pinned),
		DISK_TEST(a_promote_ends_in_the_record_in_which_it_waits),
		DISK_TEST(a_promote_evicts_when_the_pool_is_full),
		DISK_TEST(a_promote_for_a_group_at_its_quota_costs_others_no_page),
		DISK_TEST(a_disk_that_cannot_be_opened_has_a_reason),
		DISK_TEST(a_page_removed_while_the_disk_is_opened_leaves_it_then),
		DISK_TEST(a_clear_waits_for_tombstones_while_a_path_takes_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
