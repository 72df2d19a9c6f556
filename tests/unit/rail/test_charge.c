/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a poll core is charged for doorbells and for lines that a NIC wrote:
 * model_clock_less_charges() of model_clock.c, on a poll core of two rails that only have counters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "engine/rail/model_clock.c"

static struct rail rails[2];
static struct poll_core core;

static int start(void **state)
{
	memset(rails, 0, sizeof(rails));
	memset(&core, 0, sizeof(core));
	for (unsigned i = 0; i < 2; i++)
		core.rail[i] = &rails[i];
	core.options.doorbell_ns = 80;
	core.options.line_ns = 30;
	return 0;
}

static void each_doorbell_cqe_and_page_is_charged_once(void **state)
{
	rails[0].counter[COUNTER_doorbells] = 2;
	rails[0].counter[COUNTER_cqes_reaped] = 3;
	rails[0].counter[COUNTER_pages_read] = 4;
	assert_int_equal(model_clock_less_charges(&core, 0, 1000), 1000 - 2 * 80 - 7 * 30);
	assert_int_equal(model_clock_less_charges(&core, 0, 1000), 1000);
	rails[0].counter[COUNTER_cqes_reaped]++;
	assert_int_equal(model_clock_less_charges(&core, 0, 1000), 1000 - 30);
	rails[1].counter[COUNTER_doorbells] = 1;
	assert_int_equal(model_clock_less_charges(&core, 1, 1000), 1000 - 80);
	assert_int_equal(model_clock_less_charges(&core, 0, 1000), 1000);
}

static void a_charge_above_the_span_is_paid_later_by_any_rail(void **state)
{
	rails[0].counter[COUNTER_doorbells] = 10;
	assert_int_equal(model_clock_less_charges(&core, 0, 300), 0);
	assert_int_equal(model_clock_less_charges(&core, 1, 300), 0);
	assert_int_equal(model_clock_less_charges(&core, 0, 300), 100);
}

static void without_prices_nothing_is_charged(void **state)
{
	core.options.doorbell_ns = core.options.line_ns = 0;
	rails[0].counter[COUNTER_doorbells] = rails[0].counter[COUNTER_cqes_reaped] = 5;
	assert_int_equal(model_clock_less_charges(&core, 0, 300), 300);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(each_doorbell_cqe_and_page_is_charged_once, start),
		cmocka_unit_test_setup(a_charge_above_the_span_is_paid_later_by_any_rail, start),
		cmocka_unit_test_setup(without_prices_nothing_is_charged, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
