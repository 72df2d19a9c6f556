/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of different wire versions refuse each other; both log both versions, once. A node is one
 * control plane in the test's process.
 */
#include "tests/unit/control/agree_world.h"

#define OLDER (WIRE_VERSION - 1)
#define NEWER (WIRE_VERSION + 1)

/*
 * Sends a Hello of another wire version: it has the fields whose meaning no version changes, and
 * one that this engine does not know.
 */
static void say_hello(int fd, uint32_t version)
{
	static const uint8_t unknown[] = {0x92, 0x7d, 3, 'a', 'b', 'c'}; /* field 2002, 3 bytes */
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	uint8_t frame[512];
	size_t bytes;

	self.name = "other";
	self.incarnation = 0x4444444444;
	self.address = "127.0.0.1";
	self.port = 9;
	hello.version = version;
	hello.self = &self;
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	bytes = pc__message__pack(&message, frame + 4);
	assert_in_range(bytes, 3, 100); /* a byte for the tag, one for the length of the Hello */
	memcpy(frame + 4 + bytes, unknown, sizeof(unknown));
	frame[5] = (uint8_t)(frame[5] + sizeof(unknown));
	bytes += sizeof(unknown);
	*(uint32_t *)frame = htonl((uint32_t)bytes);
	assert_int_equal(send(fd, frame, 4 + bytes, MSG_NOSIGNAL), 4 + bytes);
}

/* The remedy is for the side that is older; both get the same text. */
static void expect_refusal(uint32_t version, const char *from)
{
	char text[160];

	snprintf(text, sizeof(text),
		"its wire version is %u, the wire version of this engine is %u. Upgrade the older engine",
		version, WIRE_VERSION);
	expect_lines(1, text, from, "is refused");
}

static void another_version_is_refused_and_gets_our_hello(void **state)
{
	static const uint32_t versions[] = {OLDER, NEWER, 0, UINT32_MAX};

	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i < 4; i++) {
		for (unsigned again = 0; again < 5; again++) {
			int fd = raw_open(0);

			say_hello(fd, versions[i]);
			assert_int_equal(hello_version(fd), WIRE_VERSION);
			assert_true(raw_closed(fd, 1000));
			close(fd);
			expect_refusal(versions[i], "");
		}
	}
	assert_true(sees_count(0, 1));
	assert_int_equal(node[0].control.counter[COUNTER_members_joined], 0);
}

/* The Hello that refuses a node reaches it on the link that it dialled. */
static void an_engine_of_another_version_that_is_dialled_is_refused(uint32_t version)
{
	char seed[32];
	uint16_t port;
	int listener = listen_raw(&port);

	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	assert_int_equal(node_open(0, seed), 0);
	for (unsigned dials = 0; dials < 3; dials++) {
		int fd = accept_raw(listener);

		assert_int_equal(hello_version(fd), WIRE_VERSION);
		say_hello(fd, version);
		assert_true(raw_closed(fd, 1000));
		close(fd);
	}
	close(listener);
	expect_refusal(version, seed);
	assert_true(sees_count(0, 1));
}

static void an_older_engine_that_is_dialled_is_refused(void **state)
{
	an_engine_of_another_version_that_is_dialled_is_refused(OLDER);
}

static void a_newer_engine_that_is_dialled_is_refused(void **state)
{
	an_engine_of_another_version_that_is_dialled_is_refused(NEWER);
}

/*
 * The node cannot know what listens at an address that closes every connection; it logs that once.
 */
static void an_address_that_closes_every_connection_is_logged_once(void **state)
{
	char seed[32], at[64];
	uint16_t port;
	int listener = listen_raw(&port);

	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	snprintf(at, sizeof(at), "%s closes", seed);
	assert_int_equal(node_open(0, seed), 0);
	for (unsigned dials = 0; dials < 3 * RPC_UNANSWERED_MAX; dials++) {
		int fd = accept_raw(listener);

		assert_int_equal(hello_version(fd), WIRE_VERSION);
		assert_int_equal(strstr(said, at) != NULL, dials >= RPC_UNANSWERED_MAX);
		close(fd);
	}
	nodes_run(100);
	close(listener);
	assert_null(strstr(strstr(said, at) + 1, at));
}

/* It asks for its members with a frame of our length; each host is one line. */
static void a_node_of_peercache_0_8_is_no_engine(void **state)
{
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i < 2; i++) {
		int fd = raw_open(0);

		raw_bytes(fd, "\0\0\0\x0f[\"members\", {}]", 19);
		assert_true(raw_closed(fd, 1000));
	}
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 2);
	assert_non_null(strstr(said, "127.0.0.1 closed: 15 bytes that are no message"));
	assert_null(strstr(strstr(said, "no message") + 1, "no message"));
}

/* Builds of one wire version compare this hash: it changes only when a line of agreed.def does. */
static void the_hash_of_the_agreed_values_changes_only_with_them(void **state)
{
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node[0].control.members->agreed.hash, 0x6765ddf380e52540ull);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(another_version_is_refused_and_gets_our_hello),
		T(an_older_engine_that_is_dialled_is_refused),
		T(a_newer_engine_that_is_dialled_is_refused),
		T(an_address_that_closes_every_connection_is_logged_once),
		T(a_node_of_peercache_0_8_is_no_engine),
		T(the_hash_of_the_agreed_values_changes_only_with_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
