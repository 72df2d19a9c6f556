/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of different wire versions refuse each other; both log both versions, once. A node is one
 * control plane in the test's process.
 */
#include "tests/unit/control/agree_world.h"

static void say_range(int fd, uint32_t version, uint32_t newest, bool probe)
{
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	self.name = "old";
	self.incarnation = 0x4444444444;
	self.address = "127.0.0.1";
	self.port = 9;
	self.rails = 1;
	self.bucket_bits = 10;
	hello.version = version;
	hello.newest = newest;
	hello.self = &self;
	hello.visit = probe;
	hello.agreed_hash = probe;
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	raw_message(fd, &message);
}

static void say_hello(int fd, uint32_t version, bool probe)
{
	say_range(fd, version, 0, probe);
}

/* Sends a Hello of wire version 4, which lacks the fields of later versions. */
static void old_hello(int fd, uint32_t version)
{
	say_hello(fd, version, false);
}

static void probe_hello(int fd)
{
	say_hello(fd, WIRE_VERSION_MUTE, true);
}

static void another_version_is_refused_and_gets_our_hello(void **state)
{
	static const uint32_t versions[] = {7, WIRE_VERSION + 1, 0};

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i < 3; i++) {
		char theirs[32], ours[32];

		snprintf(theirs, sizeof(theirs), "wire version is %u,", versions[i]);
		snprintf(ours, sizeof(ours), "this engine is %u to %u.", WIRE_VERSION_OLDEST,
			WIRE_VERSION);
		for (unsigned again = 0; again < 5; again++) {
			int fd = raw_open(0);

			old_hello(fd, versions[i]);
			assert_int_equal(hello_version(fd), WIRE_VERSION_OLDEST);
			assert_true(raw_closed(fd, 1000));
			close(fd);
			expect_lines(1, theirs, ours, "");
		}
	}
	assert_true(sees_count(0, 1));
}

/* Fields of the Hello that a node sends on a connection that it dialled. */
struct heard {
	uint32_t version;
	bool visit;
	size_t members;
	uint64_t agreed_hash;
};

static struct heard hear(int fd)
{
	struct heard heard = {0};
	Pc__Message *message = read_message(fd);

	assert_non_null(message);
	assert_int_equal(message->body_case, PC__MESSAGE__BODY_HELLO);
	heard.version = message->hello->version;
	heard.visit = message->hello->visit;
	heard.members = message->hello->n_members;
	heard.agreed_hash = message->hello->agreed_hash;
	pc__message__free_unpacked(message, NULL);
	return heard;
}

/*
 * Engines of version 4 do not answer another version; they close the connection. A probe in their
 * own version makes them answer, so that this engine can log both versions, too.
 */
static void an_old_engine_that_is_dialled_is_refused_with_both_versions(void **state)
{
	char seed[32];
	uint16_t port;
	int listener = listen_raw(&port);
	unsigned probes = 0;

	(void)state;
	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	assert_int_equal(node_open(0, seed), 0);
	for (unsigned dials = 0; dials < 3 * RPC_UNANSWERED_MAX; dials++) {
		int fd = accept_raw(listener);
		struct heard heard = hear(fd);

		if (heard.version == WIRE_VERSION_MUTE) {
			probes++;
			assert_int_equal(dials, RPC_UNANSWERED_MAX);
			assert_true(heard.visit);
			assert_int_equal(heard.members, 0);
			old_hello(fd, WIRE_VERSION_MUTE);
			assert_true(raw_closed(fd, 1000));
		}
		close(fd);
	}
	close(listener);
	assert_int_equal(probes, 1);
	expect_lines(1, "wire version is 4", "this engine is 8 to 9.", seed);
	assert_true(sees_count(0, 1));
}

/*
 * The node cannot know what listens at an address that closes every connection; it logs that once.
 */
static void an_address_that_closes_every_connection_is_logged_once(void **state)
{
	char seed[32], at[64];
	uint16_t port;
	int listener = listen_raw(&port);

	(void)state;
	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	snprintf(at, sizeof(at), "%s closes", seed);
	assert_int_equal(node_open(0, seed), 0);
	for (unsigned dials = 0; dials < 3 * RPC_UNANSWERED_MAX; dials++) {
		int fd = accept_raw(listener);

		(void)hear(fd);
		close(fd);
	}
	nodes_run(100);
	close(listener);
	assert_non_null(strstr(said, at));
	assert_null(strstr(strstr(said, at) + 1, at));
}

/*
 * The probe reached an engine of the same version, which had closed the connection for another
 * reason: the probe has no effect.
 */
static void a_probe_makes_no_member_and_logs_nothing(void **state)
{
	char seed[32];
	uint16_t port;
	int listener = listen_raw(&port), fd;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	fd = raw_open(0);
	probe_hello(fd);
	assert_true(raw_closed(fd, 1000));
	close(fd);
	assert_int_equal(node[0].control.counter[COUNTER_members_refused], 0);
	assert_string_equal(said, "");
	node_close(0);

	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	assert_int_equal(node_open(0, seed), 0);
	for (unsigned dials = 0; dials <= RPC_UNANSWERED_MAX; dials++) {
		fd = accept_raw(listener);
		if (hear(fd).version == WIRE_VERSION_MUTE) {
			raw_hello(fd, "raw", 0x1234567890, 9, NULL);
			assert_true(raw_closed(fd, 1000));
		}
		close(fd);
	}
	nodes_run(100);
	close(listener);
	assert_int_equal(node[0].control.counter[COUNTER_members_joined], 0);
}

/* A newer engine answers the Hello, and the dialling node logs its version. */
static void a_newer_engine_that_is_dialled_is_refused_with_both_versions(void **state)
{
	char seed[32];
	uint16_t port;
	int listener = listen_raw(&port);

	(void)state;
	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	assert_int_equal(node_open(0, seed), 0);
	for (unsigned dials = 0; dials < 3; dials++) {
		int fd = accept_raw(listener);

		old_hello(fd, WIRE_VERSION + 1);
		assert_true(raw_closed(fd, 1000));
		close(fd);
	}
	close(listener);
	expect_lines(1, "wire version is 10", "this engine is 8 to 9.", seed);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

static void the_common_version_is_the_newest_of_both_ranges(void **state)
{
	static const uint32_t cases[][3] = {
		/* oldest and newest of the other engine; the common version, 0: none */
		{8, 0, 8},
		{8, 8, 8},
		{8, 9, 9},
		{5, 8, 8},
		{7, 8, 8},
		{9, 0, 9},
		{9, 11, 9},
		{8, UINT32_MAX, 9},
		{9, 1, 9},
		{7, 0, 0},
		{5, 0, 0},
		{4, 7, 0},
		{10, 0, 0},
		{10, 9, 0},
		{10, 11, 0},
		{0, 0, 0},
		{UINT32_MAX, UINT32_MAX, 0},
	};

	(void)state;
	assert_int_equal(WIRE_VERSION_OLDEST, 8);
	assert_int_equal(WIRE_VERSION, 9);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		Pc__Hello hello = PC__HELLO__INIT;

		hello.version = cases[i][0];
		hello.newest = cases[i][1];
		assert_int_equal(member_wire_common(&hello), cases[i][2]);
	}
}

/* Engines that run already compare this hash: it changes only when a line of agreed.def does. */
static void the_hash_of_the_agreed_values_changes_only_with_them(void **state)
{
	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node[0].control.members->agreed.hash, 0xc3b1bcaedd2ccb87ull);
}

static void ranges_without_a_common_version_are_refused_with_both_ranges(void **state)
{
	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned again = 0; again < 3; again++) {
		int fd = raw_open(0);

		say_range(fd, 10, 11, false);
		assert_int_equal(hello_version(fd), WIRE_VERSION_OLDEST);
		assert_true(raw_closed(fd, 1000));
		close(fd);
	}
	expect_lines(1, "wire version is 10 to 11,", "this engine is 8 to 9.", "");
}

/* Returns the number of lines of any level that contain the text. */
static unsigned lines_of_any_level(const char *text)
{
	unsigned lines = 0;

	for (const char *at = said; (at = strstr(at, text)); at++)
		lines++;
	return lines;
}

/* Sends a Hello with the agreed values, the versions and the ABI version given. */
static void join_as(int fd, uint32_t oldest, uint32_t newest, uint32_t abi)
{
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	self.name = "raw";
	self.incarnation = 0x1234567890;
	self.address = "127.0.0.1";
	self.port = 9;
	self.rails = 1;
	member_agree_say(&node[0].control, &hello);
	hello.version = oldest;
	hello.newest = newest;
	hello.abi = abi;
	hello.self = &self;
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	raw_message(fd, &message);
}

static void an_engine_of_version_8_joins_and_both_versions_are_logged_once(void **state)
{
	const struct member *raw;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned again = 0; again < 3; again++) {
		int fd = raw_open(0);

		join_as(fd, 8, 0, 0);
		assert_int_equal(hello_version(fd), WIRE_VERSION_OLDEST);
		assert_true(nodes_until(sees_count(0, 2), 1000));
		close(fd);
		nodes_run(50);
	}
	raw = member_find(node[0].control.members, "raw");
	assert_int_equal(raw->contact->wire, 8);
	assert_int_equal(raw->contact->abi, 0);
	assert_int_equal(lines_of_any_level("speaks wire version 8 at most, this engine 9"), 1);
	assert_int_equal(lines_of_any_level("client ABI version"), 0);
	assert_int_equal(node[0].control.counter[COUNTER_members_refused], 0);
}

static void engines_of_different_abi_versions_work_together_and_log_both_once(void **state)
{
	const struct member *raw;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned again = 0; again < 3; again++) {
		int fd = raw_open(0);

		join_as(fd, 8, 9, 1000);
		assert_true(nodes_until(sees_count(0, 2), 1000));
		close(fd);
		nodes_run(50);
	}
	raw = member_find(node[0].control.members, "raw");
	assert_int_equal(raw->contact->wire, 9);
	assert_int_equal(raw->contact->abi, 1000);
	assert_int_equal(lines_of_any_level("has client ABI version 1000, this engine"), 1);
	assert_int_equal(lines_of_any_level("wire version"), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(another_version_is_refused_and_gets_our_hello),
		T(an_old_engine_that_is_dialled_is_refused_with_both_versions),
		T(an_address_that_closes_every_connection_is_logged_once),
		T(a_probe_makes_no_member_and_logs_nothing),
		T(a_newer_engine_that_is_dialled_is_refused_with_both_versions),
		T(the_common_version_is_the_newest_of_both_ranges),
		T(the_hash_of_the_agreed_values_changes_only_with_them),
		T(ranges_without_a_common_version_are_refused_with_both_ranges),
		T(an_engine_of_version_8_joins_and_both_versions_are_logged_once),
		T(engines_of_different_abi_versions_work_together_and_log_both_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
