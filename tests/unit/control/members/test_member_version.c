/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines of different wire versions refuse each other; both log both versions, once. A node is one
 * control plane in the test's process.
 */
#include "tests/former_frames.h"
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

	(void)state;
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
	(void)state;
	an_engine_of_another_version_that_is_dialled_is_refused(OLDER);
}

static void a_newer_engine_that_is_dialled_is_refused(void **state)
{
	(void)state;
	an_engine_of_another_version_that_is_dialled_is_refused(NEWER);
}

/*
 * The node cannot know what listens at an address that closes every connection; it logs that once.
 */
/* Accepts a connection on which a node asks whether PeerCache 0.8 listens. */
static int asked(int listener, enum former_codec codec)
{
	uint8_t want[FORMER_FRAME_BYTES], got[FORMER_FRAME_BYTES];
	size_t bytes = former_question(codec, want);
	int fd = accept_raw(listener);

	assert_int_equal(raw_read(fd, got, sizeof(got), 1000), bytes);
	assert_memory_equal(got, want, bytes);
	return fd;
}

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

		assert_int_equal(hello_version(fd), WIRE_VERSION);
		assert_int_equal(strstr(said, at) != NULL, dials >= RPC_UNANSWERED_MAX);
		close(fd);
		/* whether it is PeerCache 0.8 is asked once, in both of its codecs */
		for (unsigned codec = FORMER_JSON; !dials && codec <= FORMER_MSGPACK; codec++)
			close(asked(listener, codec));
	}
	nodes_run(100);
	close(listener);
	assert_null(strstr(strstr(said, at) + 1, at));
}

/* ---- PeerCache 0.8 --------------------------------------------------------------------------- */

static struct refusals_report strangers(unsigned i)
{
	struct refusals_report ret;

	refusals_report(&node[i].control, net_now(), &ret);
	return ret;
}

static unsigned said_count(const char *text)
{
	unsigned count = 0;

	for (const char *at = said; (at = strstr(at, text)); at++)
		count++;
	return count;
}

/* It is answered in its own words, and is one line and one finding however often it asks. */
static void a_node_of_peercache_0_8_that_asks_is_told_and_named_once(void **state)
{
	uint8_t want[FORMER_FRAME_BYTES], got[FORMER_FRAME_BYTES];

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned i = 0; i < 4; i++) {
		bool json = i % 2 == 0;
		const struct former_frame *frame = json ? &former_json[i] : &former_msgpack[i];
		size_t bytes = former_refusal(json ? FORMER_JSON : FORMER_MSGPACK, want);
		int fd = raw_open(0);

		/* in two parts: it is looked at when it is complete */
		raw_bytes(fd, frame->bytes, 9);
		nodes_run(20);
		raw_bytes(fd, frame->bytes + 9, frame->count - 9);
		assert_int_equal(raw_read(fd, got, sizeof(got), 1000), bytes);
		assert_memory_equal(got, want, bytes);
		assert_true(raw_closed(fd, 1000));
	}
	assert_int_equal(strangers(0).formers, 1);
	assert_string_equal(strangers(0).former[0].from, "127.0.0.1");
	assert_int_equal(strangers(0).engines, 0);
	assert_int_equal(node[0].control.counter[COUNTER_former_nodes], 4);
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	assert_int_equal(said_count("PeerCache 0.8 runs at 127.0.0.1: it takes this engine"), 1);
	nodes_run(REFUSAL_LASTS_NS / 1000000 + 1000);
	assert_int_equal(strangers(0).formers, 0);
}

/* In each codec; it is asked again in the same one, and then it is another program. */
static void a_seed_that_is_peercache_0_8_is_named_and_said_hello_once(void **state)
{
	static const struct former_frame answer[] = {
		FRAME("\0\0\0\x11[true, {\"a\": []}]"), FRAME("\0\0\0\x04\x92\xc3\x81\xa0")};
	char seed[32], at[96];
	uint16_t port;
	int listener = listen_raw(&port), fd;

	(void)state;
	snprintf(seed, sizeof(seed), "127.0.0.1:%u", port);
	snprintf(at, sizeof(at), "PeerCache 0.8 runs at %s: it answers this engine", seed);
	for (unsigned codec = FORMER_JSON; codec <= FORMER_MSGPACK; codec++) {
		assert_int_equal(node_open(0, seed), 0);
		fd = accept_raw(listener);
		assert_int_equal(hello_version(fd), WIRE_VERSION);
		close(fd);
		if (codec == FORMER_MSGPACK)
			close(asked(listener, FORMER_JSON));
		for (uint64_t end_ns = net_now() + 2 * SEED_SILENT_MS * NS_PER_MS;
			net_now() < end_ns;) {
			fd = asked(listener, codec);
			raw_bytes(fd, answer[codec - 1].bytes, answer[codec - 1].count);
			assert_true(raw_closed(fd, 1000));
		}
		assert_int_equal(strangers(0).formers, 1);
		assert_string_equal(strangers(0).former[0].from, seed);
		assert_int_equal(said_count(at), codec); /* one of each node */
		assert_int_equal(said_count("has led to no member"), 0);
		node_close(0);
		while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
			close(fd);
	}
	close(listener);
}

/* An engine that was asked whether it is PeerCache 0.8 says Hello, and the seed is met. */
static void an_engine_that_is_asked_answers_hello(void **state)
{
	uint8_t frame[FORMER_FRAME_BYTES];
	int fd;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	fd = raw_open(0);
	raw_bytes(fd, frame, former_question(FORMER_JSON, frame));
	assert_int_equal(hello_version(fd), WIRE_VERSION);
	close(fd);
	assert_int_equal(node_open(1, node_at(0)), 0);
	node[1].control.members->seed[0].dial->codec = FORMER_MSGPACK;
	assert_true(nodes_until(all_agree(), 1000));
	assert_int_equal(strangers(0).formers + strangers(1).formers, 0);
}

/* Builds of one wire version compare this hash: it changes only when a line of agreed.def does. */
static void the_hash_of_the_agreed_values_changes_only_with_them(void **state)
{
	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node[0].control.members->agreed.hash, 0x703136f48f52f0f4ull);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(another_version_is_refused_and_gets_our_hello),
		T(an_older_engine_that_is_dialled_is_refused),
		T(a_newer_engine_that_is_dialled_is_refused),
		T(an_address_that_closes_every_connection_is_logged_once),
		T(a_node_of_peercache_0_8_that_asks_is_told_and_named_once),
		T(a_seed_that_is_peercache_0_8_is_named_and_said_hello_once),
		T(an_engine_that_is_asked_answers_hello),
		T(the_hash_of_the_agreed_values_changes_only_with_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
