/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ops in ring slots (engine/abi/op.h): op_decode() returns what op_encode() was given, for extreme
 * values and at any time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/abi/op.h"

#define NOW_NS 123456789012345678ull

static struct op_segment first = {.region = 1023, .length = 4097, .offset = (1ull << 47) - 5};

static struct op page(void)
{
	return (struct op){.cookie = 0x123456789abcdef0,
		.kind = OP_PAGE,
		.slice = 255,
		.segments = 1,
		.peer = 0xffff,
		.region = REGION_POOL_0 + RAILS_MAX - 1,
		.offset = (uint64_t)(PAGE_UNITS_MAX - 1) * PAGE_UNIT,
		.peer_ref = 0xfedcba98,
		.length = 4097,
		.key = {{1, ~2ull}},
		.deadline_ns = NOW_NS,
		.generation = 0xffffffff,
		.page_bytes = PAGE_BYTES_MAX};
}

static void assert_same_after_decode(const struct op *op, uint64_t now_ns)
{
	struct op_slot slot;
	struct op_segment segment;
	struct op got;

	op_encode(op, &first, &slot);
	op_decode(&slot, now_ns, &got, &segment);
	assert_int_equal(got.cookie, op->cookie);
	assert_int_equal(got.kind, op->kind);
	assert_int_equal(got.slice, op->slice);
	assert_int_equal(got.segments, op->segments);
	assert_int_equal(got.peer, op->peer);
	assert_int_equal(got.region, op->region);
	assert_int_equal(got.offset, op->offset);
	assert_int_equal(got.peer_ref, op->peer_ref);
	assert_int_equal(got.length, op->length);
	assert_true(page_key_equal(&got.key, &op->key));
	assert_int_equal(got.generation, op->generation);
	assert_int_equal(got.page_bytes, op->page_bytes);
	/* The op carries the deadline in coarser units: it is rounded down, never up. */
	assert_true(got.deadline_ns <= op->deadline_ns);
	assert_true(op->deadline_ns - got.deadline_ns < OP_TIME_NS);
	assert_int_equal(segment.region, first.region);
	assert_int_equal(segment.offset, first.offset);
	assert_int_equal(segment.length, op->length);
}

static void pages_are_decoded_as_they_were_encoded(void **state)
{
	struct op op = page();

	(void)state;
	assert_same_after_decode(&op, NOW_NS);
	op.region = REGION_POOL_0 + RAILS_MAX - 1;
	op.offset = UINT32_MAX * (uint64_t)PAGE_UNIT;
	assert_same_after_decode(&op, NOW_NS);
	op.offset = PAGE_UNIT;
	assert_same_after_decode(&op, NOW_NS);
}

static void segments_and_region_share_a_word(void **state)
{
	(void)state;
	for (uint32_t segments = 0; segments <= SEGMENTS_MAX; segments++)
		for (uint32_t region = 0; region < REGIONS_EXPORTED; region++) {
			uint16_t word = op_pack(segments, region);

			assert_int_equal(op_unpack_segments(word), segments);
			assert_int_equal(op_unpack_region(word), region);
		}
}

static void a_deadline_is_decoded_correctly_where_its_low_bits_wrap(void **state)
{
	const uint64_t wrap_ns = (uint64_t)OP_TIME_NS << 32;
	struct op op = page();

	(void)state;
	for (uint64_t now_ns = 7 * wrap_ns - 3000; now_ns < 7 * wrap_ns + 3000; now_ns += 333) {
		op.deadline_ns = now_ns;
		assert_same_after_decode(&op, now_ns);
		op.deadline_ns = now_ns - 5000;
		assert_same_after_decode(&op, now_ns);
		op.deadline_ns = now_ns + OP_SPAN_NS - OP_TIME_NS;
		assert_same_after_decode(&op, now_ns);
	}
}

static void the_pages_of_a_publish_lie_behind_its_op_without_gaps(void **state)
{
	(void)state;
	for (uint32_t i = 1; i < CTL_PAGES_MAX; i++) {
		size_t at = ctl_page_line(i) * sizeof(struct ctl_op) +
			    ctl_page_half(i) * sizeof(struct ctl_page);

		assert_int_equal(at, sizeof(struct ctl_op) + (i - 1) * sizeof(struct ctl_page));
		assert_true(at < ctl_lines(i + 1) * sizeof(struct ctl_op));
	}
	assert_int_equal(ctl_lines(1), 1);
	assert_int_equal(ctl_lines(CTL_PAGES_MAX), 1 + CTL_PAGES_MAX / 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pages_are_decoded_as_they_were_encoded),
		cmocka_unit_test(segments_and_region_share_a_word),
		cmocka_unit_test(a_deadline_is_decoded_correctly_where_its_low_bits_wrap),
		cmocka_unit_test(the_pages_of_a_publish_lie_behind_its_op_without_gaps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
