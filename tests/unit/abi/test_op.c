/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of ring entries (engine/abi/op.h), for extreme values and at any time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/abi/op.h"

#define NOW_NS 123456789012345678ull

static void segments_and_region_share_a_word(void **state)
{
	for (uint32_t segments = 1; segments <= SEGMENTS_MAX; segments++)
		for (uint32_t region = 0; region < REGIONS_EXPORTED; region++) {
			uint16_t word = op_pack(segments, region);

			assert_int_equal(op_unpack_segments(OP_PAGE, word), segments);
			assert_int_equal(op_unpack_region(word), region);
			word = op_pack(0, region);
			assert_int_equal(op_unpack_segments(OP_LOOKUP, word), 0);
		}
}

static void assert_same_deadline(uint64_t deadline_ns, uint64_t now_ns)
{
	uint64_t got = op_deadline_ns((uint32_t)(deadline_ns / OP_TIME_NS), now_ns);

	/* An entry has the deadline in coarser units: it is rounded down, never up. */
	assert_true(got <= deadline_ns);
	assert_true(deadline_ns - got < OP_TIME_NS);
}

static void a_deadline_is_decoded_correctly_where_its_low_bits_wrap(void **state)
{
	const uint64_t wrap_ns = (uint64_t)OP_TIME_NS << 32;

	assert_same_deadline(NOW_NS, NOW_NS);
	for (uint64_t now_ns = 7 * wrap_ns - 3000; now_ns < 7 * wrap_ns + 3000; now_ns += 333) {
		assert_same_deadline(now_ns, now_ns);
		assert_same_deadline(now_ns - 5000, now_ns);
		assert_same_deadline(now_ns + OP_SPAN_NS - OP_TIME_NS, now_ns);
	}
}

static void the_pages_of_a_publish_lie_behind_its_op_without_gaps(void **state)
{
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
		cmocka_unit_test(segments_and_region_share_a_word),
		cmocka_unit_test(a_deadline_is_decoded_correctly_where_its_low_bits_wrap),
		cmocka_unit_test(the_pages_of_a_publish_lie_behind_its_op_without_gaps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
