/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c writes valid JSON whatever names come from the network. This file includes report.c, so
 * that its functions can be called directly; the functions that report.c calls are stubs. Python's
 * JSON parser checks the text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/control/report.c"

static struct map_view map;
static struct member_record record;
static struct loop loop;

const struct map_view *member_map(const struct control *control)
{
	(void)control;
	return &map;
}

const struct member_record *member_by_ref(const struct control *control, uint32_t ref)
{
	(void)control;
	return ref == 1 ? &record : NULL;
}

void attach_counts(const struct control *control, struct attach_counts *ret)
{
	(void)control;
	*ret = (struct attach_counts){1, 2, 3, 7};
}

void connect_counts(const struct control *control, struct connect_counts *ret)
{
	(void)control;
	*ret = (struct connect_counts){7, 8, 9, 10};
}

void publish_counts(const struct control *control, struct publish_counts *ret)
{
	(void)control;
	*ret = (struct publish_counts){4, 5, 6};
}

void rail_counters(const struct rail *rail, uint64_t ret[COUNTER_COUNT])
{
	(void)rail;
	for (unsigned i = 0; i < COUNTER_COUNT; i++)
		ret[i] = i;
}

const char *connect_rail_state(
	const struct control *control, unsigned rail, unsigned *ret_peers_out)
{
	(void)control;
	(void)rail;
	*ret_peers_out = 1;
	return "up";
}

uint32_t rail_in_flight(const struct rail *rail)
{
	(void)rail;
	return 9;
}

void poll_core_report(const struct poll_core *core, struct poll_core_report *ret)
{
	assert_ptr_equal(core, &loop);
	*ret = (struct poll_core_report){.gaps = {[3] = 1ull << 40},
		.gaps_long = 5,
		.gap_worst_ns = 6,
		.busy_ns = 7,
		.spin_ns = 8,
		.nic_ns = 4,
		.age_ns = 9};
}

uint64_t gap_bucket_ns(unsigned bucket)
{
	return bucket * 100;
}

void dv_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	(void)device;
	*ret = (struct dv_attributes){.bits_per_second = 400000000000, .modelled = true};
}

/*
 * Checks that the Python expression `condition` holds for the report `r`. Skips the test if there
 * is no Python (exit status 127).
 */
static void check(const char *text, const char *condition)
{
	char command[512];
	FILE *python;
	int status;

	snprintf(command, sizeof(command),
		"python3 -c 'import json,sys; r=json.load(sys.stdin); sys.exit(0 if %s else 1)'",
		condition);
	python = popen(command, "w");
	assert_non_null(python);
	fputs(text, python);
	status = pclose(python);
	if (status / 256 == 127)
		skip();
	assert_int_equal(status, 0);
}

static int setup(void **state)
{
	static const struct settings settings = {.cluster_id = "blue"};
	const struct pool_options options = {.bytes = 4u << 20, .numa_node = -1};

	(void)state;
	memset(&loop, 0, sizeof(loop));
	memset(&map, 0, sizeof(map));
	loop.control.settings = &settings;
	loop.control.rails = loop.control.plan.rails = 1;
	/* the plan has two poll cores, and the second one has not started yet */
	loop.control.plan.poll_cores = 2;
	loop.control.poll_core[0] = (struct poll_core *)&loop;
	loop.control.incarnation = 0xfedcba9876543210ull;
	strcpy(loop.control.name, "host:1");
	loop.control.status = aligned_alloc(64, sizeof(struct status_segment));
	memset(loop.control.status, 0, sizeof(struct status_segment));
	assert_int_equal(index_open(64, &loop.control.index), 0);
	assert_int_equal(pool_open(&options, &loop.control.rail[0].pool), 0);
	strcpy(loop.control.plan.rail[0].device, "soft");
	map.members = 2;
	map.member[0].ref = 1;
	map.member[0].self = 1;
	map.member[0].incarnation = UINT64_MAX;
	strcpy(map.member[0].name, "host:1");
	strcpy(record.address, "10.0.0.1");
	record.port = 77;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	pool_close(loop.control.rail[0].pool);
	index_close(loop.control.index);
	free(loop.control.status);
	return 0;
}

static void a_report_contains_the_fields_that_tools_read(void **state)
{
	size_t bytes;
	char *text;

	(void)state;
	assert_int_equal(report_make(&loop.control, &text, &bytes), 0);
	assert_int_equal(strlen(text), bytes);
	check(text,
		"r[\"clients\"]==dict(sessions=1,channels=2,regions=3,extents=7,credits=4,waiting=5,answers=6)");
	check(text, "r[\"rails\"][0][\"gbps\"]==400 and r[\"rails\"][0][\"modelled\"] is True");
	check(text, "r[\"connections\"]==dict(asked=7,live=8,served=9,qps=10)");
	check(text, "r[\"rails\"][0][\"registered_bytes\"]==0");
	check(text, "r[\"incarnation\"]==\"fedcba9876543210\" and r[\"name\"]==\"host:1\"");
	check(text, "r[\"cluster\"]==\"blue\" and r[\"wire\"]>=5");
	check(text,
		"r[\"members\"][0][\"self\"] and r[\"members\"][0][\"port\"]==77 and r[\"members\"][0][\"incarnation\"]==16*\"f\"");
	check(text,
		"r[\"rails\"][0][\"in_flight\"]==9 and r[\"rails\"][0][\"counters\"][\"ops_invalid\"]==1");
	check(text,
		"[p.pop(\"gaps_from_ns\")[\"300\"]==2**40 and p==dict(rails=1,age_ns=9,busy_ns=7,spin_ns=8,nic_ns=4,gaps_over_10us=5,gap_worst_ns=6) for p in r[\"poll_cores\"]]==[True]");
	check(text, "r[\"shard\"].keys()=={\"entries\",\"capacity\",\"dropped\"}");
	free(text);
}

static void hostile_names_stay_inside_their_quotes(void **state)
{
	size_t bytes;
	char *text;

	(void)state;
	strcpy(map.member[1].name, "a\"b\\c\n\t\x01\x7f\xff\",\"self\":true,\"");
	assert_int_equal(report_make(&loop.control, &text, &bytes), 0);
	check(text, "len(r[\"members\"])==2 and r[\"members\"][1][\"self\"]==False");
	check(text, "r[\"members\"][1][\"name\"].startswith(\"a\\\"b\\\\c\\n\\t\\x01\\x7f\")");
	free(text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_report_contains_the_fields_that_tools_read),
		TEST(hostile_names_stay_inside_their_quotes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
