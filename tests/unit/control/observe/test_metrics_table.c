/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What /metrics exports from a host with RAILS_MAX rails: the tables of engine/METRICS.md are the
 * generated ones, labels are from a short list, and there are at most SERIES_MAX series.
 * After a change of metrics: `test_control_metrics_table --print` prints the new tables.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/control/observe/health_inner.h"
#include "engine/control/observe/metrics_inner.h"
#include "engine/control/observe/snapshot_inner.h"

#define SERIES_MAX 2000u
#define METRICS_MAX 512u

struct metric {
	char name[96], type[16], labels[96], help[256];
};

static struct metric metric[METRICS_MAX];
static unsigned metrics, series;

/* A host with every part that can be repeated; the caller frees the text. */
static char *rendered(bool compat)
{
	const struct health health = {.count = 0};
	static struct snapshot s;
	char *text;
	size_t bytes;

	s.rails = s.poll_cores = RAILS_MAX;
	for (unsigned i = 0; i < RAILS_MAX; i++)
		s.poll_core[i].number = i;
	s.members = SNAPSHOT_MEMBERS;
	s.groups = SNAPSHOT_GROUPS;
	for (unsigned i = 0; i < SNAPSHOT_GROUPS; i++)
		s.group[i] = (struct index_group){.number = i, .quota = 1};
	strcpy(s.name, "a\\b\"c");
	if (metrics_text(&s, &health, compat, &text, &bytes) < 0)
		abort();
	return text;
}

/* Adds the names of the labels in "{a="x",b="y"}" to a list in `ret`, each once. */
static void labels_add(const char *at, char *ret, size_t room)
{
	while (*at && *at != '}') {
		size_t length = strcspn(++at, "=");
		char name[32];

		snprintf(name, sizeof(name), "`%.*s`", (int)length, at);
		if (!strstr(ret, name))
			snprintf(ret + strlen(ret), room - strlen(ret), "%s%s", *ret ? ", " : "",
				name);
		for (at += length + 2; *at && *at != '"'; at++) /* the value */
			at += *at == '\\';
		at++;
	}
}

static void parse_line(const char *line)
{
	struct metric *m = &metric[metrics ? metrics - 1 : 0];

	if (!strncmp(line, "# HELP peercache_", 17)) {
		if (metrics == METRICS_MAX)
			abort();
		m = &metric[metrics++];
		memset(m, 0, sizeof(*m));
		sscanf(line + 7, "%95s %255[^\n]", m->name, m->help);
	} else if (!strncmp(line, "# TYPE ", 7)) {
		sscanf(line + 7, "%*s %15s", m->type);
	} else {
		size_t length = strcspn(line, "{ ");

		series++;
		if (strncmp(line, m->name, strlen(m->name)))
			abort(); /* a series without HELP and TYPE */
		if (line[length] == '{')
			labels_add(line + length, m->labels, sizeof(m->labels));
	}
}

static void parse(char *text)
{
	char *state, *copy = strdup(text);

	metrics = series = 0;
	for (char *line = strtok_r(copy, "\n", &state); line; line = strtok_r(NULL, "\n", &state))
		parse_line(line);
	free(copy);
}

static bool named_in(const char *text, const char *name)
{
	char head[128];

	snprintf(head, sizeof(head), "# HELP %s ", name);
	return strstr(text, head) != NULL;
}

/* A name of 0.8.4 says which metric of this engine replaces it, or that it is always 0. */
static void each_former_name_names_a_metric_that_exists(void **state)
{
	char *text = rendered(true), *plain = rendered(false), name[96];
	unsigned named = 0, nothing = 0;

	parse(text);
	for (unsigned i = 0; i < metrics; i++) {
		const char *here = strstr(metric[i].help, "; here ");

		if (named_in(plain, metric[i].name))
			continue;
		if (!here) {
			assert_non_null(strstr(metric[i].help, "; always 0."));
			nothing++;
			continue;
		}
		assert_int_equal(sscanf(here, "; here %95[a-z_]", name), 1);
		if (!named_in(plain, name))
			fail_msg("%s names %s, which is not exported", metric[i].name, name);
		named++;
	}
	print_message("%u names have a successor, %u are always 0\n", named, nothing);
	assert_true(named > nothing && nothing > 0);
	free(text);
	free(plain);
}

/* Without compat: all metrics. With compat: those that it adds. */
static void print_table(FILE *out, bool compat)
{
	char *text = rendered(compat), *plain = rendered(false);

	parse(text);
	fprintf(out, "| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n");
	for (unsigned i = 0; i < metrics; i++) {
		if (compat && named_in(plain, metric[i].name))
			continue;
		fprintf(out, "| `%s` | %s | %s | %s |\n", metric[i].name, metric[i].type,
			metric[i].labels, metric[i].help);
	}
	free(text);
	free(plain);
}

/* What reports, dashboard and top have beside the metrics. */
static void print_recent(FILE *out)
{
	fprintf(out, "| Figure | Of | Meaning |\n|---|---|---|\n");
	for (unsigned group = FIGURES_RECENT; group < FIGURE_GROUPS; group++)
		for (unsigned n = 0; n < figure_lists[group].count; n++)
			fprintf(out, "| `%s` | %s | %s |\n", figure_lists[group].figure[n].name,
				group == FIGURES_RECENT        ? "engine"
				: group == FIGURES_RECENT_RAIL ? "rail"
							       : "poll core",
				figure_lists[group].figure[n].help);
}

enum { TABLE_METRICS, TABLE_COMPAT, TABLE_RECENT, TABLES };

static void print_tables(FILE *out, unsigned which)
{
	if (which == TABLE_RECENT)
		print_recent(out);
	else
		print_table(out, which == TABLE_COMPAT);
}

static void the_documented_metrics_are_the_exported_ones(void **state)
{
	static char page[65536];
	FILE *file = fopen(SOURCE_DIR "/engine/METRICS.md", "re");

	assert_non_null(file);
	page[fread(page, 1, sizeof(page) - 1, file)] = '\0';
	fclose(file);
	for (unsigned which = 0; which < TABLES; which++) {
		char *table = NULL;
		size_t bytes;
		FILE *out = open_memstream(&table, &bytes);

		assert_non_null(out);
		print_tables(out, which);
		fclose(out);
		if (!strstr(page, table))
			fail_msg("engine/METRICS.md is behind; its table should be:\n%s", table);
		free(table);
	}
}

static void all_rails_export_few_series_with_known_labels(void **state)
{
	static const char allowed[] =
		"`rail` `core` `op` `result` `kind` `state` `version` `le` `node` `quantile` `group`";
	char *text = rendered(true), labels[96];

	parse(text);
	free(text);
	print_message("%u metrics, %u series with %u rails\n", metrics, series, RAILS_MAX);
	assert_in_range(series, 100, SERIES_MAX);
	for (unsigned i = 0; i < metrics; i++) {
		char *save, *name;

		assert_true(strlen(metric[i].help) > 10 || strstr(metric[i].help, "0.8.4"));
		strcpy(labels, metric[i].labels);
		for (name = strtok_r(labels, ", ", &save); name; name = strtok_r(NULL, ", ", &save))
			if (!strstr(allowed, name))
				fail_msg("%s has the label %s", metric[i].name, name);
	}
}

/* Only the names of 0.8.4 carry the name of the node. */
static void the_node_label_is_of_the_compatible_names_alone(void **state)
{
	char *text = rendered(false);

	assert_null(strstr(text, "node="));
	assert_null(strstr(text, "quantile="));
	free(text);
	text = rendered(true);
	assert_non_null(strstr(text, "peercache_members{node=\"a\\\\b\\\"c\"}"));
	free(text);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_documented_metrics_are_the_exported_ones),
		cmocka_unit_test(all_rails_export_few_series_with_known_labels),
		cmocka_unit_test(each_former_name_names_a_metric_that_exists),
		cmocka_unit_test(the_node_label_is_of_the_compatible_names_alone),
	};

	if (argc > 1 && strcmp(argv[1], "--print") == 0) {
		for (unsigned which = 0; which < TABLES; which++) {
			print_tables(stdout, which);
			printf("\n");
		}
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
