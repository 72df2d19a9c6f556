/* SPDX-License-Identifier: Apache-2.0 */
/*
 * member_seeds.c: when a seed is reported, what is said of it, and how often. The control plane is
 * only its table of members; time is an argument.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/members/members_inner.h"

#define SECOND 1000000000ull
#define START (1000 * SECOND)

static struct control control;
static struct settings settings;
static struct members *members;
static char said[65536];

static int setup(void **state)
{
	memset(&settings, 0, sizeof(settings));
	settings.cluster_port = 31998;
	strcpy(settings.cluster_address, "10.0.0.1");
	strcpy(settings.cluster_seeds, "10.0.0.1, 10.0.0.2, [fd00::3]:4");
	members = calloc(1, sizeof(*members));
	control = (struct control){.settings = &settings, .members = members};
	assert_int_equal(member_table_open(&members->table), 0);
	assert_int_equal(member_seeds_parse(&settings, members), 3);
	members->alive = 1;
	memset(said, 0, sizeof(said));
	log_test_capture(said, sizeof(said));
	return 0;
}

static int teardown(void **state)
{
	log_test_capture(NULL, 0);
	log_test_clock(0);
	member_table_close(&members->table);
	free(members);
	return 0;
}

static unsigned lines(const char *text)
{
	unsigned n = 0;

	for (const char *at = said; (at = strstr(at, text)); at++)
		n++;
	return n;
}

static void tick(uint64_t now_ns)
{
	log_test_clock(now_ns); /* which bounds the lines of one call in a time */
	seeds_watch(&control, now_ns);
}

/* Ticks every half second, from the start on, until that time. */
static void watch_until(uint64_t from_ns, uint64_t until_ns)
{
	for (uint64_t now = from_ns; now <= until_ns; now += SECOND / 2)
		tick(now);
}

static struct seeds_report report(uint64_t now_ns)
{
	struct seeds_report found;

	seeds_report(&control, now_ns, &found);
	return found;
}

static void fails(unsigned seed, int error, bool reached)
{
	struct rpc_dial dial = {.control = &control,
		.owner = &members->seed[seed],
		.seed = true,
		.reached = reached};

	snprintf(dial.host, sizeof(dial.host), "%.63s", members->seed[seed].address.host);
	snprintf(dial.at, sizeof(dial.at), "%s", dial.host);
	seed_dial_failed(&dial, error);
}

static void a_silent_seed_is_reported_after_five_seconds_with_its_error(void **state)
{
	struct seeds_report found;

	seeds_watch(&control, START);
	assert_true(report(START).unmet); /* not ready at once */
	fails(1, ETIMEDOUT, false);
	fails(2, ECONNREFUSED, false);
	watch_until(START, START + 49 * SECOND / 10);
	assert_int_equal(report(START + 49 * SECOND / 10).silent, 0);
	assert_string_equal(said, "");
	watch_until(START + 5 * SECOND, START + 5 * SECOND);
	found = report(START + 5 * SECOND);
	assert_int_equal(found.others, 2); /* the first one is this engine */
	assert_int_equal(found.silent, 2);
	assert_int_equal(found.named, 2);
	assert_string_equal(found.seed[0].address, "10.0.0.2:31998");
	assert_string_equal(found.seed[0].why, "Connection timed out");
	assert_string_equal(found.seed[1].address, "[fd00::3]:4");
	assert_int_equal(lines("seed 10.0.0.2:31998 has led to no member for 5 s: Connection "
			       "timed out"),
		1);
	assert_int_equal(lines("seed [fd00::3]:4 has led to no member for 5 s: Connection "
			       "refused"),
		1);
	assert_int_equal(lines("this engine is alone"), 2);
}

static void lines_about_a_seed_come_at_growing_intervals(void **state)
{
	watch_until(START, START + 24 * 3600 * SECOND);
	/* 5, 10, ... 2,560 s, then every hour */
	assert_in_range(lines("seed 10.0.0.2:31998"), 30, 36);
}

static void a_seed_that_leads_to_a_member_ends_its_silence(void **state)
{
	struct member *member = member_new(&members->table);

	assert_true(member_name_set(&members->table, member, "b", "10.0.0.2", 31998));
	watch_until(START, START + 6 * SECOND);
	strcpy(members->seed[1].name, "b");
	member->state = MEMBER_CANDIDATE;
	seeds_watch(&control, START + 7 * SECOND);
	assert_int_equal(report(START + 7 * SECOND).silent, 2); /* to answer is not to join */
	member->state = MEMBER_ALIVE;
	members->alive = 2;
	seeds_watch(&control, START + 8 * SECOND);
	assert_int_equal(report(START + 8 * SECOND).silent, 1);
	assert_false(report(START + 8 * SECOND).unmet);
	assert_int_equal(lines("seed 10.0.0.2:31998 answers after 8 s"), 1);
	member->state = MEMBER_DEAD; /* health names it as down */
	members->alive = 1;
	assert_true(report(START + 8 * SECOND).unmet); /* at once: it has lost all others */
	watch_until(START + 9 * SECOND, START + 60 * SECOND);
	assert_int_equal(report(START + 60 * SECOND).silent, 1);
	assert_true(report(START + 60 * SECOND).unmet);
	assert_int_equal(report(START + 60 * SECOND).unmet_ms, 51000);
	members->seed[1].name[0] = '\0'; /* it was forgotten */
	watch_until(START + 61 * SECOND, START + 70 * SECOND);
	assert_int_equal(report(START + 70 * SECOND).silent, 2);
}

static void a_seed_that_answers_and_whose_address_does_not_is_named_with_both(void **state)
{
	struct member *member = member_new(&members->table);
	struct rpc_dial dial = {.fails = 2, .error = EHOSTUNREACH};

	assert_true(member_name_set(&members->table, member, "b", "192.168.7.7", 31998));
	member->state = MEMBER_CANDIDATE;
	assert_non_null(member_contact(&members->table, member));
	member->contact->dial = &dial;
	strcpy(members->seed[1].name, "b");
	watch_until(START, START + 6 * SECOND);
	assert_string_equal(report(START + 6 * SECOND).seed[0].why,
		"it answers, but its cluster.address, 192.168.7.7:31998, cannot be reached: No route to host");
	member->contact->dial = NULL;
}

static void what_answers_wrongly_is_told_from_what_does_not_answer(void **state)
{
	struct rpc_dial dial = {.owner = &members->seed[1], .seed = true, .host = "head"};

	fails(1, ETIMEDOUT, true);
	assert_string_equal(members->seed[1].why, "it accepts the connection and does not answer");
	fails(1, ECONNRESET, true);
	assert_string_equal(members->seed[1].why, "it closes the connection without an answer");
	fails(1, EPROTO, true);
	assert_string_equal(members->seed[1].why, "what answers there is no PeerCache engine");
	strcpy(dial.at, "127.0.1.1");
	seed_dial_failed(&dial, ECONNREFUSED);
	assert_string_equal(members->seed[1].why, "127.0.1.1: Connection refused");
	seed_dial_failed(&dial, ECONNABORTED); /* this engine went on to the name's next address */
	assert_string_equal(members->seed[1].why, "127.0.1.1: Connection refused");
	strcpy(dial.unresolved, "nodename nor servname provided");
	seed_dial_failed(&dial, EHOSTUNREACH);
	assert_string_equal(members->seed[1].why,
		"the name cannot be resolved: nodename nor servname provided");
}

static void a_refused_seed_is_no_silent_one_and_keeps_the_engine_unready(void **state)
{
	members->seed[1].refused = members->seed[2].refused = true;
	watch_until(START, START + 60 * SECOND);
	assert_int_equal(report(START + 60 * SECOND).silent, 0);
	assert_true(report(START + 60 * SECOND).unmet);
	assert_string_equal(said, "");
	fails(1, ECONNREFUSED, false); /* it has ended */
	seeds_watch(&control, START + 61 * SECOND);
	assert_int_equal(report(START + 61 * SECOND).silent, 1);
}

static void an_engine_whose_seeds_are_itself_is_alone_by_right(void **state)
{
	memset(members->seed, 0, sizeof(members->seed));
	strcpy(settings.cluster_seeds, "10.0.0.1:31998, head");
	assert_int_equal(member_seeds_parse(&settings, members), 2);
	members->seed[1].retry_ns = START; /* the name has led here */
	watch_until(START, START + 60 * SECOND);
	assert_int_equal(report(START + 60 * SECOND).others, 0);
	assert_false(report(START + 60 * SECOND).unmet);
	assert_string_equal(said, "");
}

/* The first host of a cluster, whose only seed is itself, is cut off. */
static void an_engine_without_other_seeds_is_not_alone_by_right_while_members_are_down(void **state)
{
	struct member *member = member_new(&members->table);

	memset(members->seed, 0, sizeof(members->seed));
	assert_true(member_name_set(&members->table, member, "b", "10.0.0.2", 31998));
	assert_non_null(member_contact(&members->table, member));
	member->state = MEMBER_DEAD;
	assert_false(report(START).unmet); /* it never answered: it may be none */
	member->proven = true;
	assert_true(report(START).unmet);
	assert_int_equal(report(START).lost, 1);
	members->alive = 2;
	assert_false(report(START).unmet);
	members->alive = 1;
	member->left = true; /* in order */
	assert_false(report(START).unmet);
}

static void a_source_that_cannot_be_read_is_reported_like_a_seed(void **state)
{
	static const struct seed_address none[1];
	struct seeds_report found;

	memset(members->seed, 0, sizeof(members->seed));
	strcpy(settings.cluster_etcd, "http://10.0.0.9:2379");
	watch_until(START, START + 6 * SECOND);
	found = report(START + 6 * SECOND);
	assert_true(found.unmet);
	assert_int_equal(found.silent, 1);
	assert_string_equal(found.seed[0].address, "cluster.etcd");
	assert_string_equal(found.seed[0].why, "it has not answered yet");
	seed_source_read(&control, SEED_ETCD, "no answer");
	assert_string_equal(report(START + 7 * SECOND).seed[0].why, "no answer");
	members->list[SEED_ETCD].address = none; /* it was read, and names no engine */
	seed_source_read(&control, SEED_ETCD, NULL);
	seeds_watch(&control, START + 8 * SECOND);
	assert_false(report(START + 8 * SECOND).unmet);
	assert_int_equal(report(START + 8 * SECOND).silent, 0);
}

/* The elements of a list that is longer than what is dialled at a time come and go. */
static void a_long_list_of_which_nothing_answers_is_one_line(void **state)
{
	static const struct seed_address many[40] = {{"10.0.0.2", 1}};

	members->list[SEED_FILE].address = many;
	members->list[SEED_FILE].count = 40;
	memset(members->seed, 0, sizeof(members->seed));
	for (uint64_t now = START; now <= START + 6 * SECOND; now += SECOND / 2) {
		struct member_seed *seed = &members->seed[SEED_FILE * SEEDS_MAX];

		memset(seed, 0, sizeof(*seed));
		seed_set(seed, &many[0], &settings);
		seeds_watch(&control, now);
	}
	assert_int_equal(lines("none of the 40 addresses of cluster.seeds_file"), 1);
	assert_int_equal(lines("\n"), 1);
	assert_int_equal(report(START + 6 * SECOND).silent, 1);
	members->alive = 2;
	seeds_watch(&control, START + 7 * SECOND);
	assert_int_equal(report(START + 7 * SECOND).silent, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_silent_seed_is_reported_after_five_seconds_with_its_error),
		TEST(lines_about_a_seed_come_at_growing_intervals),
		TEST(a_seed_that_leads_to_a_member_ends_its_silence),
		TEST(a_seed_that_answers_and_whose_address_does_not_is_named_with_both),
		TEST(what_answers_wrongly_is_told_from_what_does_not_answer),
		TEST(a_refused_seed_is_no_silent_one_and_keeps_the_engine_unready),
		TEST(an_engine_whose_seeds_are_itself_is_alone_by_right),
		TEST(an_engine_without_other_seeds_is_not_alone_by_right_while_members_are_down),
		TEST(a_source_that_cannot_be_read_is_reported_like_a_seed),
		TEST(a_long_list_of_which_nothing_answers_is_one_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
