/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests config/settings_print.c, and that config/SETTINGS.md contains the generated table. After a
 * change of settings.def, `test_config_settings_print --print` prints the new table.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "config/setting.h"

/* Prints `text` and escapes `|`, which would end the cell of a Markdown table. */
static void print_cell(FILE *out, const char *text)
{
	for (; *text; text++)
		fprintf(out, *text == '|' ? "\\%c" : "%c", *text);
}

/* The Markdown table of config/SETTINGS.md. */
static void settings_table(FILE *out)
{
	char range[128];

	fprintf(out, "| Setting | Default | Takes | Meaning |\n|---|---|---|---|\n");
	for (unsigned i = 0; i < setting_count; i++) {
		const struct setting *one = &setting_table[i];

		if (strcmp(one->section, "test") == 0)
			continue; /* tests/README.md lists them */
		setting_range(one, range, sizeof(range));
		fprintf(out, "| `%s.%s` | ", one->section, one->key);
		if (one->fallback[0])
			fprintf(out, "`%s`", one->fallback);
		fprintf(out, " | ");
		print_cell(out, range);
		fprintf(out, " | ");
		print_cell(out, one->help);
		fprintf(out, " |\n");
	}
}

static char *printed(void (*print)(FILE *))
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);

	assert_non_null(out);
	print(out);
	fclose(out);
	return text;
}

static void the_page_of_settings_has_the_generated_table(void **state)
{
	static char page[65536];
	char *table = printed(settings_table);
	FILE *file = fopen(SOURCE_DIR "/config/SETTINGS.md", "re");
	size_t got;

	assert_non_null(file);
	got = fread(page, 1, sizeof(page) - 1, file);
	fclose(file);
	page[got] = '\0';
	if (!strstr(page, table))
		fail_msg("config/SETTINGS.md differs from settings.def; replace its table by:\n%s",
			table);
	free(table);
}

static void the_values_are_json(void **state)
{
	struct settings s;
	char err[SETTINGS_ERR_BYTES], *text;

	assert_int_equal(settings_default(&s), 0);
	assert_int_equal(settings_override(&s, "disk.paths=/a\"b\\\x80", err, sizeof(err)), 0);
	text = settings_json(&s);
	assert_non_null(text);
	assert_int_equal(text[0], '{');
	assert_int_equal(text[strlen(text) - 1], '}');
	assert_non_null(strstr(text, "\"engine.pool_bytes\":1073741824,"));
	assert_non_null(strstr(text, "\"engine.huge_pages\":true,"));
	assert_non_null(strstr(text, "\"rail.gid_index\":-1,"));
	assert_non_null(strstr(text, "\"rail.polling\":\"auto\","));
	assert_non_null(strstr(text, "\"disk.paths\":\"/a\\u0022b\\u005c\\u0080\","));
	free(text);
}

static void help_names_every_setting_with_default_and_range(void **state)
{
	char *help = printed(settings_help);

	assert_non_null(strstr(help, "\nSection [engine]:\n"));
	assert_non_null(strstr(help, "  port = 31998\n"));
	assert_non_null(strstr(help, "(1 to 65535)"));
	assert_non_null(strstr(help, "(4MiB to 1TiB)"));
	assert_non_null(strstr(help, "(auto, busy or adaptive)"));
	assert_non_null(strstr(help, "(10 to 60000 ms)"));
#define SETTING(section, key, type, fallback, min, max, unit, text)                                \
	assert_non_null(strstr(help, "  " #key " = " fallback "\n"));                              \
	assert_non_null(strstr(help, text));
#include "config/settings.def"
#undef SETTING
	free(help);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_page_of_settings_has_the_generated_table),
		cmocka_unit_test(the_values_are_json),
		cmocka_unit_test(help_names_every_setting_with_default_and_range),
	};

	if (argc > 1 && strcmp(argv[1], "--print") == 0) {
		settings_table(stdout);
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
