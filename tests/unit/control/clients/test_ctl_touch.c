/* SPDX-License-Identifier: Apache-2.0 */
/* Touches: what becomes of a CTL_TOUCH and of a CTL_TOUCHES of a client. */
#include "tests/unit/control/ctl_world.h"

static void touches_of_other_nodes_pages_go_to_the_directory(void **state)
{
	struct client c;

	client_open(&c, 0);
	put(&c, (struct ctl_op){.kind = CTL_TOUCH, .ref = control.ref, .place = 0});
	put(&c, (struct ctl_op){.kind = CTL_TOUCH, .ref = 99, .place = 123});
	turns();
	assert_int_equal(directory.touched, 1);
	assert_int_equal(directory.ref, 99);
	assert_int_equal(directory.place, 123);
	client_close(&c);
}

static void put_touches(struct client *c, uint16_t count)
{
	struct ctl_touches touches = {.kind = CTL_TOUCHES, .count = count};
	struct ctl_op op;

	for (uint32_t i = 0; i < CTL_TOUCHES_MAX; i++)
		touches.page[i] = (__typeof__(touches.page[i])){90 + i, 100 + i};
	memcpy(&op, &touches, sizeof(op));
	put(c, op);
	turns();
}

static void one_op_touches_all_its_places_and_has_no_answer(void **state)
{
	struct client c;

	client_open(&c, 0);
	for (uint16_t count = 0; count <= CTL_TOUCHES_MAX; count++) {
		directory.touched = 0;
		put_touches(&c, count);
		assert_int_equal(directory.touched, count);
		if (count) {
			assert_int_equal(directory.ref, 90 + count - 1);
			assert_int_equal(directory.place, 100 + count - 1);
		}
	}
	assert_int_equal(c.channel.done.tail, 0);
	assert_int_equal(c.channel.owed, 0);
	client_close(&c);
}

static void an_op_with_an_impossible_number_of_places_is_invalid(void **state)
{
	static const uint16_t count[] = {CTL_TOUCHES_MAX + 1, 255, UINT16_MAX};
	struct client c;

	client_open(&c, 0);
	for (unsigned i = 0; i < sizeof(count) / sizeof(count[0]); i++) {
		put_touches(&c, count[i]);
		assert_int_equal(control.counter[COUNTER_ops_invalid], i + 1);
	}
	assert_int_equal(directory.touched, 0);
	assert_int_equal(c.channel.done.tail, 0);
	assert_int_equal(c.channel.owed, 0);
	client_close(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(touches_of_other_nodes_pages_go_to_the_directory),
		TEST(one_op_touches_all_its_places_and_has_no_answer),
		TEST(an_op_with_an_impossible_number_of_places_is_invalid),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
