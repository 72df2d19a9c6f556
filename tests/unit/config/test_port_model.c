/* SPDX-License-Identifier: Apache-2.0 */
/* Tests config/port_model.c: the setting soft.model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "config/port_model.h"
#include "config/settings.h"

static void an_empty_text_is_no_model(void **state)
{
	struct port_model model = {.rate_gbps = 7};
	char why[256];

	assert_int_equal(port_model_parse("", &model, why, sizeof(why)), 0);
	assert_int_equal(model.rate_gbps, 0);
	assert_int_equal(model.register_ms_per_gib, 0);
}

static void a_rate_alone_gets_the_defaults(void **state)
{
	struct port_model model;
	char why[256];

	assert_int_equal(port_model_parse("400G", &model, why, sizeof(why)), 0);
	assert_int_equal(model.rate_gbps, 400);
	assert_int_equal(model.rtt_ns, 5000);
	assert_int_equal(model.reads_per_qp, 16);
	assert_int_equal(model.qp_messages_per_s, 2500000);
	assert_int_equal(model.messages_per_s, 100000000);
	assert_int_equal(model.mtu, 4096);
	assert_int_equal(model.header_bytes, 82);
}

static void every_word_is_parsed_in_any_order(void **state)
{
	struct port_model model;
	char why[256];

	assert_int_equal(
		port_model_parse(
			"register=1.5s,header=26,mtu=1024,port_rate=1G,qp_rate=2.25M,reads=1,rtt=2.5us,25G",
			&model, why, sizeof(why)),
		0);
	assert_int_equal(model.rate_gbps, 25);
	assert_int_equal(model.rtt_ns, 2500);
	assert_int_equal(model.reads_per_qp, 1);
	assert_int_equal(model.qp_messages_per_s, 2250000);
	assert_int_equal(model.messages_per_s, 1000000000);
	assert_int_equal(model.mtu, 1024);
	assert_int_equal(model.header_bytes, 26);
	assert_int_equal(model.register_ms_per_gib, 1500);
}

/* Words for measurements; a build without test hooks refuses them and names the build. */
static void words_for_measurements_need_test_hooks(void **state)
{
	static const char text[] = "400G,line=30ns,doorbell=80ns,still,far=7";
	struct port_model model;
	char why[256];

#ifdef TEST_HOOKS
	assert_int_equal(port_model_parse(text, &model, why, sizeof(why)), 0);
	assert_int_equal(model.doorbell_ns, 80);
	assert_int_equal(model.far_ports, 7);
	assert_int_equal(model.line_ns, 30);
	assert_true(model.still);
	assert_int_equal(port_model_parse("400G", &model, why, sizeof(why)), 0);
	assert_int_equal(model.doorbell_ns, 0);
	assert_int_equal(model.line_ns, 0);
	assert_false(model.still);
	assert_int_equal(port_model_parse("400G,still=1", &model, why, sizeof(why)), -EINVAL);
	assert_int_equal(port_model_parse("still", &model, why, sizeof(why)), -EINVAL);
#else
	assert_int_equal(port_model_parse(text, &model, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "-Dtest_hooks=true"));
#endif
}

static void what_is_malformed_is_refused_with_the_remedy(void **state)
{
	static const struct {
		const char *text, *why;
	} bad[] = {
		{"400", "write it as 400G"},
		{"0G", "1G to 100000G"},
		{"100001G", "1G to 100000G"},
		{"1.5G", "1G to 100000G"},
		{"400G,400G", "given twice"},
		{"400G,rtt=5", "rtt=5us"},
		{"400G,rtt=-5us", "rtt=5us"},
		{"400G,rtt=1.1s", "0ns to 1s"},
		{"400G,rtt=0.5ns", "rtt=5us"},
		{"400G,rtt=", "rtt=5us"},
		{"400G,rtt", "unknown"},
		{"400G,rtt=5us,rtt=6us", "given twice"},
		{"400G,reads=0", "1 to 16"},
		{"400G,reads=17", "1 to 16"},
		{"400G,reads=1.2.3", "1 to 16"},
		{"400G,mtu=1500", "1024"},
		{"400G,mtu=8192", "4096"},
		{"400G,qp_rate=1001M", "1000M"},
		{"400G,qp_rate=99999999999999999999G", "1000M"},
		{"400G,=5", "unknown"},
		{"400G,speed=5", "unknown"},
		{"400G,", "empty"},
		{",400G", "empty"},
		{"400G,,rtt=5us", "empty"},
		{"rtt=5us", "without a rate"},
		{"400G,rtt=1111111111111111111111111111111111111111111111111111111111111111ns",
			"too long"},
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct port_model model = {.rate_gbps = 7};
		char why[256] = "";

		if (port_model_parse(bad[i].text, &model, why, sizeof(why)) == 0)
			fail_msg("\"%s\" was accepted", bad[i].text);
		if (!strstr(why, bad[i].why))
			fail_msg("\"%s\": \"%s\" does not contain \"%s\"", bad[i].text, why,
				bad[i].why);
		assert_int_equal(model.rate_gbps, 7);
	}
}

static void the_check_of_the_settings_names_the_model(void **state)
{
	static struct settings s;
	char err[SETTINGS_ERR_BYTES] = "";

	assert_int_equal(settings_default(&s), 0);
	assert_int_equal(settings_override(&s, "soft.model=400G,rtt=5us", err, sizeof(err)), 0);
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	assert_int_equal(settings_override(&s, "soft.model=400", err, sizeof(err)), 0);
	assert_int_not_equal(settings_check(&s, err, sizeof(err)), 0);
	assert_non_null(strstr(err, "soft.model = 400: \"400\": not accepted"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_text_is_no_model),
		cmocka_unit_test(a_rate_alone_gets_the_defaults),
		cmocka_unit_test(every_word_is_parsed_in_any_order),
		cmocka_unit_test(words_for_measurements_need_test_hooks),
		cmocka_unit_test(what_is_malformed_is_refused_with_the_remedy),
		cmocka_unit_test(the_check_of_the_settings_names_the_model),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
