/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in ring entries (engine/abi/run.h): what a client writes through a real ring is what the
 * consumer reads, for every length and in every round of the ring; the ring's turn in each line
 * changes nothing of it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/abi/run.h"

#define NOW_NS 123456789012345678ull
#define SLOTS 64u

static struct run full(uint8_t kind)
{
	return (struct run){.cookie = 0xfedcba98,
		.peer_ref = 0x89abcdef,
		.kind = kind,
		.pages = 32,
		.peer = 0xffff,
		.region = REGION_POOL_0 + RAILS_MAX - 1,
		.segments = (1 << OP_SEGMENTS_BITS) - 1,
		.to_region = 0xffff,
		.page_bytes = 0xffffffff,
		.stride_or_to = RUN_TO_MAX - 1,
		.deadline_ns = NOW_NS + OP_SPAN_NS - OP_TIME_NS};
}

static void assert_same_run(const struct run *got, const struct run *want)
{
	assert_int_equal(got->cookie, want->cookie);
	assert_int_equal(got->peer_ref, want->peer_ref);
	assert_int_equal(got->kind, want->kind);
	assert_int_equal(got->pages, want->pages);
	assert_int_equal(got->slice, want->slice);
	assert_int_equal(got->peer, want->peer);
	assert_int_equal(got->region, want->region);
	assert_int_equal(got->segments, want->segments);
	assert_int_equal(got->to_region, want->to_region);
	assert_int_equal(got->page_bytes, want->page_bytes);
	assert_int_equal(got->stride_or_to, want->stride_or_to);
	/* The header carries the deadline in coarser units: it is rounded down, never up. */
	assert_true(got->deadline_ns <= want->deadline_ns);
	assert_true(want->deadline_ns - got->deadline_ns < OP_TIME_NS);
}

static void a_header_is_decoded_as_it_was_encoded(void **state)
{
	struct run zero = {.kind = OP_LOOKUP, .deadline_ns = NOW_NS - 5000}, want, got;
	struct run_header header;

	want = full(OP_RUN);
	run_encode(&want, &header);
	header.turn = 0xffff;
	run_decode(&header, NOW_NS, &got);
	assert_same_run(&got, &want);
	want = zero;
	run_encode(&want, &header);
	header.turn = 0xffff;
	run_decode(&header, NOW_NS, &got);
	assert_same_run(&got, &want);
}

struct ends {
	void *memory;
	struct ring_producer p;
	struct ring_consumer c;
};

static void ends_open(struct ends *e)
{
	size_t bytes = ring_bytes(SLOTS, RUN_LINE_BYTES);

	e->memory = aligned_alloc(64, bytes);
	memset(e->memory, 0, bytes);
	ring_producer_init(&e->p, e->memory, SLOTS, RUN_LINE_BYTES);
	ring_consumer_init(&e->c, e->memory, SLOTS, RUN_LINE_BYTES);
}

/* Copies the lines that the consumer has, and gives them back. Returns their number. */
static uint32_t lines_take(struct ends *e, struct run_line *ret)
{
	int32_t n = ring_ready_now(&e->c);

	for (int32_t i = 0; i < n; i++)
		memcpy(&ret[i], ring_slot_old(&e->c, (uint32_t)i), sizeof(ret[i]));
	ring_release(&e->c, (uint32_t)n);
	return (uint32_t)n;
}

static struct run_entry entry_of(uint32_t round, uint32_t i)
{
	return (struct run_entry){.unit = PAGE_UNITS_MAX - 1 - i,
		.generation = ~i ^ round,
		.to = RUN_TO_MAX - 1 - i,
		.key = {{~(uint64_t)i, ~(uint64_t)round << 32 | i}}};
}

static void every_entry_of_a_run_arrives_in_every_round_of_the_ring(void **state)
{
	struct run_line line[SLOTS];
	struct ends e;

	ends_open(&e);
	for (uint32_t round = 0; round < 200; round++) {
		struct run run = full(OP_RUN), got;
		uint32_t pages = 1 + round % RUN_PAGES_MAX, lines = run_lines(OP_RUN, pages);

		run.pages = (uint8_t)pages;
		assert_true(ring_room(&e.p, lines) >= (int32_t)lines);
		run_encode(&run, ring_slot_new(&e.p, 0));
		for (uint32_t i = 0; i < pages; i++)
			*run_entry_new(&e.p, 0, i) = entry_of(round, i);
		ring_publish(&e.p, lines);
		assert_int_equal(lines_take(&e, line), lines);
		run_decode(&line[0].header, NOW_NS, &got);
		assert_same_run(&got, &run);
		for (uint32_t i = 0; i < pages; i++) {
			struct run_entry want = entry_of(round, i);
			struct run_entry entry = line[run_entry_line(i)].half[run_entry_half(i)];

			assert_true(run_entry_line(i) < lines);
			assert_int_equal(entry.unit, want.unit);
			assert_int_equal(entry.generation, want.generation);
			assert_int_equal(entry.to & (RUN_TO_MAX - 1), want.to);
			assert_true(page_key_equal(&entry.key, &want.key));
		}
	}
	free(e.memory);
}

static void every_bucket_of_a_lookup_arrives_in_every_round_of_the_ring(void **state)
{
	struct run_line line[SLOTS];
	struct ends e;

	ends_open(&e);
	for (uint32_t round = 0; round < 200; round++) {
		struct run run = full(OP_LOOKUP), got;
		uint32_t n = 1 + round % RUN_PAGES_MAX, lines = run_lines(OP_LOOKUP, n);

		run.pages = (uint8_t)n;
		run_encode(&run, ring_slot_new(&e.p, 0));
		for (uint32_t i = 0; i < n; i++)
			*run_bucket_new(&e.p, 0, i) = ~(i * 77 + round);
		ring_publish(&e.p, lines);
		assert_int_equal(lines_take(&e, line), lines);
		run_decode(&line[0].header, NOW_NS, &got);
		assert_same_run(&got, &run);
		for (uint32_t i = 0; i < n; i++) {
			assert_true(run_bucket_line(i) < lines);
			assert_int_equal(line[run_bucket_line(i)].bucket[run_bucket_word(i)],
				~(i * 77 + round));
		}
	}
	free(e.memory);
}

static void a_run_has_the_documented_number_of_lines(void **state)
{
	assert_int_equal(run_lines(OP_RUN, 1), 1);
	assert_int_equal(run_lines(OP_RUN, 2), 2);
	assert_int_equal(run_lines(OP_RUN, 3), 2);
	assert_int_equal(run_lines(OP_RUN, 4), 3);
	assert_int_equal(run_lines(OP_RUN, RUN_PAGES_MAX), RUN_LINES_MAX);
	assert_int_equal(run_lines(OP_LOOKUP, 1), 1);
	assert_int_equal(run_lines(OP_LOOKUP, 8), 1);
	assert_int_equal(run_lines(OP_LOOKUP, 9), 2);
	assert_int_equal(run_lines(OP_LOOKUP, 23), 2);
	assert_int_equal(run_lines(OP_LOOKUP, 24), 3);
	assert_int_equal(run_lines(OP_LOOKUP, RUN_PAGES_MAX), 3);
}

/* ---- OP_PAGE --------------------------------------------------------------------------------- */

static void a_page_is_decoded_as_it_was_encoded(void **state)
{
	struct run run = {.cookie = 0x9abcdef0,
		.peer_ref = 0xfedcba98,
		.kind = OP_PAGE,
		.pages = 1,
		.segments = SEGMENTS_MAX,
		.peer = 0xffff,
		.to_region = REGIONS_MAX - 1,
		.region = REGION_POOL_0 + RAILS_MAX - 1,
		.slice = 255,
		.page_bytes = PAGE_BYTES_MAX,
		.stride_or_to = PAGE_BYTES_MAX,
		.deadline_ns = NOW_NS + OP_SPAN_NS - OP_TIME_NS};
	struct run_header header;
	struct run got;

	run_encode(&run, &header);
	run_decode(&header, NOW_NS, &got);
	assert_same_run(&got, &run);
}

static struct op_segment segment_of(uint32_t round, uint32_t i)
{
	return (struct op_segment){.offset = ~((uint64_t)round << 32 | i),
		.length = ~(round + 77 * i),
		.region = (uint16_t)(REGIONS_MAX - 1 - i)};
}

static void every_segment_of_a_page_arrives_in_every_round_of_the_ring(void **state)
{
	struct op_segment segment[4 * OP_LINE_SEGMENTS];
	struct run_line line[SLOTS];
	struct ends e;

	ends_open(&e);
	for (uint32_t round = 0; round < 600; round++) {
		uint32_t n = 2 + round % (4 * OP_LINE_SEGMENTS - 1), lines = op_page_lines(n);
		struct run run = full(OP_PAGE), got;

		run.pages = 1;
		run.segments = (uint16_t)n;
		for (uint32_t i = 0; i < n; i++)
			segment[i] = segment_of(round, i);
		assert_true(ring_room(&e.p, lines) >= (int32_t)lines);
		run_encode(&run, ring_slot_new(&e.p, 0));
		run_segments_new(&e.p, 0, segment, n);
		ring_publish(&e.p, lines);
		assert_int_equal(lines_take(&e, line), lines);
		run_decode(&line[0].header, NOW_NS, &got);
		assert_same_run(&got, &run);
		for (uint32_t i = 0; i < n; i++) {
			const struct op_segment *s =
				&line[1 + i / OP_LINE_SEGMENTS]
					 .segments.segment[i % OP_LINE_SEGMENTS];

			assert_true(s->offset == segment[i].offset);
			assert_int_equal(s->length, segment[i].length);
			assert_int_equal(s->region, segment[i].region);
		}
	}
	free(e.memory);
}

static void a_page_has_the_documented_number_of_lines(void **state)
{
	assert_int_equal(op_page_lines(1), 1);
	assert_int_equal(op_page_lines(2), 2);
	assert_int_equal(op_page_lines(4), 2);
	assert_int_equal(op_page_lines(5), 3);
	assert_int_equal(op_page_lines(SEGMENTS_MAX), 1 + SEGMENTS_MAX / 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_header_is_decoded_as_it_was_encoded),
		cmocka_unit_test(every_entry_of_a_run_arrives_in_every_round_of_the_ring),
		cmocka_unit_test(every_bucket_of_a_lookup_arrives_in_every_round_of_the_ring),
		cmocka_unit_test(a_run_has_the_documented_number_of_lines),
		cmocka_unit_test(a_page_is_decoded_as_it_was_encoded),
		cmocka_unit_test(every_segment_of_a_page_arrives_in_every_round_of_the_ring),
		cmocka_unit_test(a_page_has_the_documented_number_of_lines),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
