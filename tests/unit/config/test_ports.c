/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests config/ports.c, and that config/pages/deployment.md has the table of all ports. After a
 * change of ports.def, `test_config_ports --print` prints the new table.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/ports.h"

static struct settings settings_with(const char *const *lines)
{
	char err[SETTINGS_ERR_BYTES] = "";
	struct settings s;

	assert_int_equal(settings_default(&s), 0);
	for (; *lines; lines++)
		if (settings_override(&s, *lines, err, sizeof(err)) < 0)
			fail_msg("%s", err);
	return s;
}

/* The Markdown table of config/pages/deployment.md. */
static void ports_table(FILE *out)
{
	const char *mark;

	fprintf(out, "| setting | protocol | default | who connects, and what for |\n");
	fprintf(out, "|---|---|---|---|\n");
#define PORT(setting, protocol, fallback, who)                                                     \
	mark = #setting[0] == '-' ? "" : "`";                                                      \
	fprintf(out, "| %s%s%s | %s | %s | %s |\n", mark, #setting, mark, #protocol, fallback, who);
#include "config/ports.def"
#undef PORT
}

static void the_page_of_deployment_has_the_generated_table(void **state)
{
	static char page[65536];
	char *table = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&table, &bytes);
	FILE *file = fopen(SOURCE_DIR "/config/pages/deployment.md", "re");

	assert_non_null(out);
	ports_table(out);
	fclose(out);
	assert_non_null(file);
	page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
	fclose(file);
	if (!strstr(page, table))
		fail_msg(
			"config/pages/deployment.md differs from ports.def; replace its table by:\n%s",
			table);
	free(table);
}

static void the_defaults_of_the_table_are_those_of_the_settings(void **state)
{
	struct settings s = settings_with((const char *const[]){NULL});

#define PORT(setting, protocol, fallback, who)                                                     \
	if (!strcmp(#setting, "cluster.port"))                                                     \
		assert_int_equal(s.cluster_port, atoi(fallback));                                  \
	else if (!strcmp(#setting, "metrics.port"))                                                \
		assert_int_equal(s.metrics_port, atoi(fallback));                                  \
	else if (!strcmp(#setting, "soft.port"))                                                   \
		assert_int_equal(s.soft_port, 0);
#include "config/ports.def"
#undef PORT
}

static void only_ports_in_use_are_listed(void **state)
{
	static const char *const none[] = {"metrics.port=0", NULL};
	static const char *const nics[] = {"rail.devices=mlx5_0, soft:3 ,soft", "soft.link=tcp",
		"soft.port=7000", "soft.address=10.0.0.9", "cluster.bind=0.0.0.0", NULL};
	struct port_use list[PORTS_MAX];
	struct settings s = settings_with(none);

	assert_int_equal(ports_list(&s, list), 1);
	assert_int_equal(list[0].port, 31998);
	s = settings_with(nics);
	assert_int_equal(ports_list(&s, list), 4);
	assert_string_equal(list[0].address, "0.0.0.0");
	assert_string_equal(list[1].address, "127.0.0.1");
	assert_string_equal(list[2].setting, "soft.port");
	assert_string_equal(list[2].address, "10.0.0.9");
	assert_int_equal(list[2].port, 7000);
	assert_int_equal(list[2].ports, 2);
	assert_true(list[2].listens);
	assert_int_equal(list[3].port, 4791);
	assert_false(list[3].listens);
}

static void soft_ports_beyond_the_last_one_are_refused(void **state)
{
	struct settings s = settings_with((const char *const[]){
		"rail.devices=soft,soft", "soft.link=tcp", "soft.port=65535", NULL});
	char err[SETTINGS_ERR_BYTES];

	assert_int_equal(settings_check(&s, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "65536"));
	s.soft_port = 65534;
	assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
}

static void one_port_for_two_sockets_is_refused(void **state)
{
	static const struct {
		const char *text[3];
		bool refused;
	} each[] = {
		{{"metrics.port=31998"}, true},
		{{"metrics.port=31998", "metrics.address=10.0.0.9"}, false},
		{{"metrics.port=31998", "metrics.address=0.0.0.0"}, true},
		{{"metrics.port=31998", "cluster.bind=::"}, true},
		{{"metrics.port=31998", "cluster.bind=10.0.0.9"}, false},
		{{"rail.devices=soft,soft", "soft.link=tcp", "soft.port=31996"}, true},
		{{"rail.devices=soft", "soft.link=tcp", "soft.port=31996"}, false},
		{{"rail.devices=soft,soft", "soft.link=tcp", "soft.port=0"}, false},
	};
	char err[SETTINGS_ERR_BYTES];

	for (unsigned i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		const char *text[] = {each[i].text[0], each[i].text[1], each[i].text[2], NULL};
		struct settings s = settings_with(text);

		assert_int_equal(
			settings_check(&s, err, sizeof(err)), each[i].refused ? -EINVAL : 0);
		if (each[i].refused)
			assert_non_null(strstr(err, "metrics.port"));
	}
}

/* A port of a NIC that this engine does not have is no error. */
static void soft_ports_without_a_software_nic_over_tcp_are_not_checked(void **state)
{
	static const char *const unused[][4] = {
		{"rail.devices=mlx5_0", "soft.link=tcp", "soft.port=31997"},
		{"rail.devices=mlx5_0", "soft.link=tcp", "soft.port=31999"},
		{"rail.devices=soft,soft", "soft.link=shm", "soft.port=31998"},
		{"rail.devices=soft,soft", "soft.link=shm", "soft.port=65535"},
	};
	char err[SETTINGS_ERR_BYTES];

	for (unsigned i = 0; i < sizeof(unused) / sizeof(unused[0]); i++) {
		struct settings s = settings_with(unused[i]);

		s.cluster_port = 31999;
		assert_int_equal(settings_check(&s, err, sizeof(err)), 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_page_of_deployment_has_the_generated_table),
		cmocka_unit_test(the_defaults_of_the_table_are_those_of_the_settings),
		cmocka_unit_test(only_ports_in_use_are_listed),
		cmocka_unit_test(soft_ports_beyond_the_last_one_are_refused),
		cmocka_unit_test(one_port_for_two_sockets_is_refused),
		cmocka_unit_test(soft_ports_without_a_software_nic_over_tcp_are_not_checked),
	};

	if (argc > 1 && !strcmp(argv[1], "--print")) {
		ports_table(stdout);
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
