/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ops a rail accepts from client rings, and how many at a time: hostile ops, segments and
 * indices, back-pressure, fairness.
 */
#include "tests/unit/rail/client_world.h"

/* Returns a valid op, which the test then makes invalid. */
static struct op good_op(struct world *w)
{
	return page_op(w, 1, 8, 8192, 77);
}

/* Submits an op, which the rail must refuse with OP_INVALID without any effect on a later op. */
static void refused(struct world *w, const struct op *op, const struct op_segment *segments)
{
	uint64_t posted = world_counter(w, COUNTER_wqes_posted);

	client_submit(client, op, segments);
	world_run(w);
	client_expect(client, op->cookie, OP_INVALID);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), posted);
	/* A later valid op of the same channel succeeds. */
	page_get(w, client, 99, 8, 8192, 77, 0);
	world_run(w);
	client_expect(client, 99, OP_HIT);
	assert_true(world_silent(w));
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
	assert_int_equal(w->rail->region[WORLD_REGION].users, 0);
}

static void an_op_with_a_field_out_of_range_is_refused_and_the_channel_continues(void **state)
{
	struct world *w = *state;
	struct op_segment segment = home_at(0, 8192);
	struct op op;

#define REFUSED(change)                                                                            \
	do {                                                                                       \
		op = good_op(w);                                                                   \
		change;                                                                            \
		refused(w, &op, &segment);                                                         \
	} while (0)
	REFUSED(op.kind = 0);
	REFUSED(op.kind = OP_LOOKUP + 1);
	REFUSED(op.region = REGIONS_EXPORTED);
	REFUSED(op.region = 0xff);
	REFUSED(op.region = REGION_HEADS_0); /* a region that is not a pool */
	REFUSED(op.region = REGION_SHARD);
	REFUSED(op.region = REGION_POOL_0 + 1); /* a pool that the peer does not have */
	REFUSED(op.slice = 1);                  /* the slice begins beyond the page's end */
	REFUSED(op.page_bytes--);
	REFUSED(op.page_bytes = PAGE_BYTES_MAX + 1);
	/* the slice begins beyond the region's end */
	REFUSED(op.slice = 255; op.page_bytes = PAGE_BYTES_MAX);
	REFUSED(op.offset = (uint64_t)WORLD_UNITS * PAGE_UNIT);
	/* the page would end outside the region */
	REFUSED(op.offset = (uint64_t)(WORLD_UNITS - 1) * PAGE_UNIT);
	/* the largest offset that an entry of the op ring can encode */
	REFUSED(op.offset = (uint64_t)UINT32_MAX * PAGE_UNIT);
	REFUSED(op.length = 0);
	REFUSED(op.length = 8193);
	REFUSED(op.length = PAGE_BYTES_MAX + 1);
	REFUSED(op.length = UINT32_MAX);
	REFUSED(op.peer = NODES_MAX);
	REFUSED(op.peer = UINT16_MAX);
#undef REFUSED
}

static void a_segment_outside_the_sessions_regions_is_refused(void **state)
{
	struct world *w = *state;
	struct rail_region others = {.id = 101,
		.session = WORLD_SESSION + 1,
		.base = (uintptr_t)w->home,
		.length = 8192,
		.lkey = WORLD_LKEY};
	struct op op = good_op(w);
	struct op_segment s[2];
	unsigned bad;

	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = others});
	world_settle(w);
	world_region_beyond(w);
#define REFUSED(change)                                                                            \
	for (bad = 0; bad < op.segments; bad++) {                                                  \
		s[0] = home_at(0, 8192 / op.segments);                                             \
		s[1] = home_at(4096, 4096);                                                        \
		s[bad].change;                                                                     \
		refused(w, &op, s);                                                                \
	}
	/* an op with one segment has it in its own ring entry, an op with two in further entries */
	for (op.segments = 1; op.segments <= 2; op.segments++) {
		REFUSED(region = 101);           /* a region that belongs to another session */
		REFUSED(region = 102);           /* a region number that is not registered */
		REFUSED(region = REGION_POOL_0); /* a region that this engine exports to peers */
		REFUSED(region = REGIONS_MAX);
		REFUSED(region = 0xffff);
		REFUSED(offset = WORLD_HOME_BYTES - 4095);
		REFUSED(offset = WORLD_HOME_BYTES);
		REFUSED(offset = WORLD_HOME_BYTES + 1);
		REFUSED(offset = (1ull << OP_TO_BITS) - 1);
	}
	op.segments = 2;
	REFUSED(offset = UINT64_MAX);
	REFUSED(offset = UINT64_MAX - 4095);
	REFUSED(length = 0);
	REFUSED(length = 4095);
	REFUSED(length = 4097);
	REFUSED(length = UINT32_MAX);
#undef REFUSED
}

static void segment_lengths_that_add_up_only_modulo_32_bits_are_refused(void **state)
{
	struct world *w = *state;
	struct op op = good_op(w);
	struct rail_region huge = {.id = 103,
		.session = WORLD_SESSION,
		.base = (uintptr_t)w->home,
		.length = 1ull << 40,
		.lkey = WORLD_LKEY};
	struct op_segment s[2] = {{.region = 103, .length = 0x80000000u},
		{.region = 103, .length = 0x80000000u + 8192}};

	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = huge});
	world_settle(w);
	op.segments = 2;
	refused(w, &op, s);
}

/* The data segment of a WQE cannot say 0: its length 0 is 2 GiB. */
static void an_empty_segment_is_refused(void **state)
{
	struct world *w = *state;
	struct op op = good_op(w);

	op.segments = 3;
	for (unsigned empty = 0; empty < 3; empty++) {
		struct op_segment s[3] = {home_at(0, 4096), home_at(0, 4096), home_at(4096, 4096)};

		s[empty].length = 0;
		refused(w, &op, s);
	}
}

static void segments_that_do_not_add_up_are_refused_and_their_slots_skipped(void **state)
{
	struct world *w = *state;
	struct op op = good_op(w);
	static struct op_segment s[SEGMENTS_MAX];

	op.segments = SEGMENTS_MAX;
	for (unsigned i = 0; i < SEGMENTS_MAX; i++)
		s[i] = home_at(i, 1);
	refused(w, &op, s);
}

/* Checks that the rail reports the channel as broken and takes no op from it any more. */
static void expect_broken(struct world *w)
{
	struct op_done done;
	struct rail_event event;

	world_settle(w);
	event = world_event(w, RAIL_CHANNEL_BROKEN);
	assert_ptr_equal(event.object, &client->channel);
	assert_int_equal(world_counter(w, COUNTER_rings_broken), 1);
	assert_int_equal(world_counter(w, COUNTER_ops_taken), 0);
	/* The rail takes no further op of the broken channel. */
	page_get(w, client, 2, 8, 8192, 77, 0);
	world_run(w);
	assert_true(world_silent(w));
	assert_false(client_done(client, &done));
	world_command(
		w, (struct rail_command){.kind = RAIL_CHANNEL_STOP, .object = &client->channel});
	world_settle(w);
	world_event(w, RAIL_CHANNEL_RETURNED);
	assert_int_equal(world_counter(w, COUNTER_wqes_posted), 0);
}

static void an_op_whose_segments_are_not_published_breaks_the_channel(void **state)
{
	struct world *w = *state;
	struct op_segment s[5];
	struct op op = good_op(w);

	op.segments = 5;
	for (unsigned i = 0; i < 5; i++)
		s[i] = home_at(i * 8192, 8192);
	op_write(&client->ops, 0, &op, s);
	ring_publish(&client->ops, 2);
	expect_broken(w);
}

/* One entry of an op ring. */
union entry {
	uint64_t word[8];
	struct run_line run;
};

/* Makes half of the random entries pass all checks but those of the peer's number and ref. */
static void entry_of_a_hostile_client(struct world *w, union entry *entry, uint64_t random)
{
	struct run_header *h = &entry->run.header;
	uint32_t deadline = (uint32_t)(w->now_ns / OP_TIME_NS + 1000000);
	bool pages;

	h->kind = (uint8_t)(OP_PAGE + random % 3);
	/* one page, so the run has one line; of an OP_PAGE, the number of the first slice */
	h->pages = h->kind != OP_PAGE || random >> 17 & 1;
	h->segments_region = op_pack(1, (uint32_t)(random >> 8) % REGIONS_EXPORTED);
	if (random >> 16 & 1)
		return;
	pages = h->kind != OP_LOOKUP;
	h->segments_region = op_pack(pages, pages ? REGION_POOL_0 : REGION_SHARD);
	h->page_bytes = pages ? 4096 : 0;
	h->deadline = deadline;
	h->to = (uint64_t)WORLD_REGION << OP_TO_BITS | (h->kind == OP_PAGE ? 4096 : 0);
	entry->run.half[1].to = 0;
}

static_assert(sizeof(union entry) == sizeof(struct run_line), "one entry");

static void random_entries_never_reach_outside_the_tables(void **state)
{
	struct world *w = *state;
	uint64_t random = 1;

	for (unsigned round = 0; round < 20000; round++) {
		struct op_done done;
		struct rail_event event;
		union entry entry;

		for (unsigned i = 0; i < 8; i++)
			entry.word[i] = random = map_mix(random + i + 1);
		entry_of_a_hostile_client(w, &entry, map_mix(random + 99));
		memcpy(ring_slot_new(&client->ops, 0), &entry, sizeof(entry));
		ring_publish(&client->ops, 1);
		world_settle(w);
		while (client_done(client, &done))
			;
		while (rail_event_take(w->rail, &event))
			if (event.kind == RAIL_CONN_WANTED)
				world_command(w, (struct rail_command){.kind = RAIL_CONN_REFUSE,
							 .peer = event.peer,
							 .ref = event.ref});
	}
	world_settle(w);
	assert_int_equal(world_counter(w, COUNTER_rings_broken), 0);
}

static void slots_of_zeros_are_refused_one_by_one_and_the_channel_continues(void **state)
{
	struct world *w = *state;
	struct op op = good_op(w);
	struct op_segment s = home_at(0, 8192);

	memset(client->ops.slots, 0, OP_RING_SLOTS * RUN_LINE_BYTES);
	ring_publish(&client->ops, OP_RING_SLOTS);
	for (unsigned i = 0; i < OP_RING_SLOTS; i++) {
		world_run(w);
		client_expect(client, 0, OP_INVALID);
	}
	client_submit(client, &op, &s);
	world_run(w);
	client_expect(client, 1, OP_HIT);
}

/* A rail that stops counts on it: RAIL_STOP_STEPS. */
static void refused_ops_of_any_number_of_pages_fill_no_step(void **state)
{
	struct world *w = *state;
	struct op_done done;

	for (unsigned i = 0; i < RAIL_TAKE_BURST; i++) {
		struct run run = {.kind = 77, .pages = 255, .cookie = i};

		run_encode(&run, ring_slot_new(&client->ops, i));
	}
	ring_publish(&client->ops, RAIL_TAKE_BURST);
	rail_step(w->rail, 0);
	for (unsigned i = 0; i < RAIL_TAKE_BURST; i++)
		client_expect(client, i, OP_INVALID);
	assert_false(client_done(client, &done));
}

/*
 * More slots than one ring_look() finds (RING_LOOK), so that some look ends between an op and its
 * segments.
 */
static void an_op_that_one_look_finds_in_part_is_taken_completely(void **state)
{
	struct world *w = *state;
	struct op op = good_op(w);
	struct op_segment s[5];
	struct op_done done;

	op.segments = 5;
	op.length = 5000;
	for (unsigned i = 0; i < 5; i++)
		s[i] = home_at(i * 1000, 1000);
	for (unsigned i = 0; i < 200; i++)
		op_write(&client->ops, 3 * i, &op, s);
	ring_publish(&client->ops, 600);
	world_run(w);
	for (unsigned i = 0; i < 200; i++) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_HIT);
	}
	assert_true(world_silent(w));
}

static void an_impossible_head_of_the_done_ring_breaks_the_channel(void **state)
{
	struct world *w = *state;
	struct op op = good_op(w);
	struct op_segment s = home_at(0, 8192);

	/* The rail loads the client's index only if it believes that the done ring is full. */
	client->channel.done.head_seen -= DONE_RING_SLOTS;
	shm_store_release(&client->channel.done.shared->head, 12345);
	client_submit(client, &op, &s);
	expect_broken(w);
}

static void no_op_is_taken_from_a_client_that_consumes_no_completions(void **state)
{
	struct world *w = *state;
	struct op_done done;
	unsigned submitted = 0, answered = 0;

	while (ring_ready(&client->done) < (int32_t)DONE_RING_SLOTS) {
		while (ring_room(&client->ops, 2) >= 2)
			page_get(w, client, submitted++, 8, 8192, 77, 0);
		world_run(w);
		ring_ready_now(&client->done);
	}
	/*
	 * While the done ring is full, more ops wait in the op ring, and the rail has nothing to
	 * do.
	 */
	page_get(w, client, submitted++, 8, 8192, 77, 0);
	world_run(w);
	assert_true(w->rail->blocked);
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_true(submitted > DONE_RING_SLOTS);
	while (answered < submitted) {
		assert_true(client_done(client, &done));
		assert_int_equal(done.status, OP_HIT);
		answered++;
		if (answered % 100 == 0)
			world_run(w);
		if (ring_ready(&client->done) == 0)
			world_run(w);
	}
	assert_false(client_done(client, &done));
	assert_true(world_silent(w));
}

static void one_channel_cannot_starve_another(void **state)
{
	struct world *w = *state;
	struct client *second = client_new(w, 250, WORLD_SESSION);
	struct op_done done;

	for (unsigned i = 0; i < 1000; i++)
		page_get(w, client, i, 8, 8192, 77, 0);
	page_get(w, second, 7, 8, 8192, 77, 0);
	rail_step(w->rail, 0);
	assert_true(second->channel.in_flight == 1);
	assert_int_equal(client->channel.in_flight, RAIL_TAKE_BURST);
	world_run(w);
	client_expect(second, 7, OP_HIT);
	for (unsigned i = 0; i < 1000; i++)
		assert_true(client_done(client, &done));
	client_free(second);
}

/*
 * The client learned of its region before the rail did: the command and the op are both there when
 * the rail looks.
 */
static void an_op_waits_for_the_command_that_adds_its_region(void **state)
{
	struct world *w = *state;
	struct rail_region late = {.id = 110,
		.session = WORLD_SESSION,
		.base = (uintptr_t)w->home,
		.length = 8192,
		.lkey = WORLD_LKEY};
	struct op op = good_op(w);
	struct op_segment s = {.region = 110, .length = 8192};

	client_submit(client, &op, &s);
	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = late});
	rail_take(w->rail); /* takes ops, as in a step that has executed its commands before */
	assert_int_equal(rail_in_flight(w->rail), 0);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
	world_run(w);
	client_expect(client, 1, OP_HIT);
}

static void slots_changed_after_they_were_copied_have_no_effect(void **state)
{
	struct world *w = *state;

	page_get(w, client, 1, 8, 8192, 77, 0);
	rail_step(w->rail, 0);
	memset(client->ops_memory, 0xff, ring_bytes(OP_RING_SLOTS, sizeof(struct run_line)));
	world_run(w);
	client_expect(client, 1, OP_HIT);
	assert_true(page_arrived(w, 8, 8192, 0));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_op_with_a_field_out_of_range_is_refused_and_the_channel_continues),
		TEST(a_segment_outside_the_sessions_regions_is_refused),
		TEST(segment_lengths_that_add_up_only_modulo_32_bits_are_refused),
		TEST(an_empty_segment_is_refused),
		TEST(segments_that_do_not_add_up_are_refused_and_their_slots_skipped),
		TEST(an_op_whose_segments_are_not_published_breaks_the_channel),
		TEST(random_entries_never_reach_outside_the_tables),
		TEST(slots_of_zeros_are_refused_one_by_one_and_the_channel_continues),
		TEST(refused_ops_of_any_number_of_pages_fill_no_step),
		TEST(an_op_that_one_look_finds_in_part_is_taken_completely),
		TEST(an_impossible_head_of_the_done_ring_breaks_the_channel),
		TEST(no_op_is_taken_from_a_client_that_consumes_no_completions),
		TEST(one_channel_cannot_starve_another),
		TEST(an_op_waits_for_the_command_that_adds_its_region),
		TEST(slots_changed_after_they_were_copied_have_no_effect),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
