/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames and links: whatever arrives on the port, the engine's membership and state do not change.
 * A node is one control plane in the test's process.
 */
#include "engine/abi/wire.h"
#include "tests/unit/control/test_rpc_nodes.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int two_members(void **state)
{
	nodes_setup(20, 1000);
	return node_open(0, NULL) < 0 || node_open(1, node_at(0)) < 0 ||
	       !nodes_until(all_agree(), 3000);
}

static int teardown(void **state)
{
	nodes_teardown();
	log_test_capture(NULL, 0);
	return 0;
}

static uint64_t bad(void)
{
	return node[0].control.counter[COUNTER_messages_bad];
}

/*
 * Checks that the node closed the connection and counted it once, and that the cluster works as
 * before.
 */
static void expect_refused(int fd, uint64_t bad_before)
{
	assert_true(raw_closed(fd, 2000));
	close(fd);
	assert_int_equal(bad(), bad_before + 1);
	node[1].hits = 0;
	node_put(1, 7, 1, 1000);
	assert_true(nodes_until(node[1].hits == 1, 1500));
	assert_true(all_agree());
}

static void a_port_in_use_is_named_with_what_to_change(void **state)
{
	char said[2048];

	log_test_capture(said, sizeof(said));
	node[2].settings.cluster_port = node[0].settings.cluster_port;
	assert_int_equal(node_open(2, NULL), -EADDRINUSE);
	assert_non_null(strstr(said, "127.0.0.1"));
	assert_non_null(strstr(said, strchr(node_at(0), ':') + 1));
	assert_non_null(strstr(said, "cluster.port"));
}

static void the_engine_listens_only_on_cluster_address(void **state)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)node[0].settings.cluster_port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	inet_pton(AF_INET, "127.0.0.2", &at.sin_addr);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), -1);
	assert_int_equal(errno, ECONNREFUSED);
	close(fd);
}

/*
 * The port is bound at start-up, so that a second engine fails at once; connections are refused
 * until the engine listens.
 */
static void a_port_is_bound_at_start_and_refuses_until_the_engine_listens(void **state)
{
	struct control *control = &node[2].control, *other = &node[3].control;
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)node[2].settings.cluster_port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
	node[3].settings.cluster_port = node[2].settings.cluster_port;
	control->settings = &node[2].settings;
	other->settings = &node[3].settings;
	assert_int_equal(rpc_port_open(control), 0);
	assert_int_equal(rpc_port_open(other), -EADDRINUSE);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), -1);
	assert_int_equal(errno, ECONNREFUSED);
	close(fd);
	rpc_port_close(control);
	rpc_port_close(other);
	assert_int_equal(node_open(2, NULL), 0);
}

/*
 * The side that closed a connection first keeps it in TIME_WAIT; a new engine must still get the
 * port.
 */
static void connections_of_a_former_engine_do_not_block_the_port(void **state)
{
	assert_true(nodes_until(all_agree(), 3000));
	for (unsigned i = 0; i < 2; i++) {
		node_close(i);
		assert_int_equal(node_open(i, NULL), 0);
	}
}

static void the_wildcard_address_is_refused(void **state)
{
	const char *any[] = {"0.0.0.0", "::"};

	for (unsigned i = 0; i < 2; i++) {
		strcpy(node[2].settings.cluster_address, any[i]);
		assert_int_equal(node_open(2, NULL), -EINVAL);
	}
}

/* Opens node 2 and expects that it refuses to start and logs all three texts. */
static void expect_start_refused(const char *bind, const char *address, const char *fix)
{
	char said[2048] = "";

	log_test_capture(said, sizeof(said));
	strcpy(node[2].settings.cluster_bind, bind);
	strcpy(node[2].settings.cluster_address, address);
	assert_int_equal(node_open(2, NULL), -EINVAL);
	log_test_capture(NULL, 0);
	if (!strstr(said, bind) || !strstr(said, address) || !strstr(said, fix))
		fail_msg("no line with %s, %s, %s in: %s", bind, address, fix, said);
}

static void a_loopback_address_is_not_advertised_by_an_engine_that_listens_to_others(void **state)
{
	expect_start_refused("0.0.0.0", "127.0.0.1", "Set cluster.address to an address that");
	expect_start_refused("::", "::1", "Set cluster.address to an address that");
	expect_start_refused("127.0.0.1", "10.1.2.3", "Set cluster.bind to 0.0.0.0");
	expect_start_refused("", "no.such.name.invalid", "cluster.address = no.such");
	expect_start_refused("no.such.name.invalid", "", "cluster.bind = no.such");
}

/* Address translation: the advertised address is on no interface of the host. */
static const char *address_of(const struct member *entry)
{
	static struct member_texts texts;

	member_texts(&entry->record, &texts);
	return texts.address;
}

static void the_advertised_address_need_not_be_on_this_host(void **state)
{
	strcpy(node[2].settings.cluster_address, "192.0.2.7");
	assert_int_equal(node_open(2, NULL), -EADDRNOTAVAIL);
	strcpy(node[2].settings.cluster_bind, "0.0.0.0");
	assert_int_equal(node_open(2, NULL), 0);
	assert_false(node[2].control.rpc->loopback);
	assert_string_equal(address_of(node[2].control.members->self), "192.0.2.7");
	node_close(2);
	/* a name that other hosts can resolve, although this one cannot yet */
	strcpy(node[2].settings.cluster_address, "no.such.name.invalid");
	assert_int_equal(node_open(2, NULL), 0);
}

static bool second_dialled(void)
{
	const struct member_table *table = &node[3].control.members->table;

	return table->entries > 1 && member_at(table, 1)->contact->dial;
}

static void an_engine_listens_on_cluster_bind(void **state)
{
	char seed[32];

	strcpy(node[2].settings.cluster_bind, "127.0.0.2");
	assert_int_equal(node_open(2, NULL), 0);
	snprintf(seed, sizeof(seed), "127.0.0.2:%d", (int)node[2].settings.cluster_port);
	assert_int_equal(node_open(3, seed), 0);
	/* node 3 reaches node 2 by the seed, and then dials the address that node 2 advertises */
	assert_true(nodes_until(second_dialled(), 2000));
	assert_string_equal(address_of(member_at(&node[3].control.members->table, 1)), "127.0.0.1");
}

static void engines_find_each_other_over_ipv6(void **state)
{
	struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	bool able = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0;
	char seed[64];

	close(fd);
	if (!able) {
		print_message("no IPv6 here\n");
		skip();
	}
	nodes_teardown();
	for (unsigned i = 0; i < 2; i++)
		strcpy(node[i].settings.cluster_address, "::1");
	snprintf(seed, sizeof(seed), "[::1]%s", strchr(node_at(0), ':'));
	assert_int_equal(node_open(0, NULL), 0);
	assert_int_equal(node_open(1, seed), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static void a_length_beyond_the_bound_closes_the_connection(void **state)
{
	uint32_t lengths[] = {
		0, RPC_HELLO_BYTES_MAX + 1, MESSAGE_BYTES_MAX + 1, 0x7fffffff, 0xffffffff};

	for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		uint64_t before = bad();
		uint32_t length = htonl(lengths[i]);
		int fd = raw_open(0);

		raw_bytes(fd, &length, 4);
		expect_refused(fd, before);
	}
}

static void a_long_message_is_refused_after_the_hello_too(void **state)
{
	uint64_t before = bad();
	uint32_t length = htonl(MESSAGE_BYTES_MAX + 1);
	int fd = raw_open(0);

	raw_hello(fd, "raw", 0x1234567890, 9, NULL);
	assert_true(nodes_until(sees_count(0, 3), 1000));
	raw_bytes(fd, &length, 4);
	assert_true(raw_closed(fd, 2000));
	close(fd);
	assert_int_equal(bad(), before + 1);
	/*
	 * Nothing listens at the address in its Hello: it is dead at once, not after dead_after_ms.
	 */
	assert_true(nodes_until(sees_count(0, 2), 700));
}

static void bytes_that_are_no_message_close_the_connection(void **state)
{
	uint8_t frame[4 + 64];

	for (unsigned seed = 1; seed < 20; seed++) {
		uint64_t before = bad();
		uint32_t length = htonl(64);
		int fd = raw_open(0);

		srandom(seed);
		memcpy(frame, &length, 4);
		for (unsigned i = 4; i < sizeof(frame); i++)
			frame[i] = (uint8_t)random();
		raw_bytes(fd, frame, sizeof(frame));
		expect_refused(fd, before);
	}
}

static void a_first_message_that_is_no_hello_closes_the_connection(void **state)
{
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	uint64_t before = bad();
	int fd = raw_open(0);

	message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
	message.heartbeat = &beat;
	raw_message(fd, &message);
	expect_refused(fd, before);
}

static void a_message_of_an_unknown_kind_closes_the_connection(void **state)
{
	uint8_t frame[] = {/* encodes field 111 of Message, which does not exist */
		0, 0, 0, 4, 0xfa, 0x06, 0x01, 0x00};
	uint64_t before = bad();
	int fd = raw_open(0);

	raw_bytes(fd, frame, sizeof(frame));
	expect_refused(fd, before);
}

static void a_second_hello_closes_the_connection(void **state)
{
	uint64_t before = bad();
	int fd = raw_open(0);

	raw_hello(fd, "raw", 0x1234567891, 9, NULL);
	raw_hello(fd, "raw", 0x1234567891, 9, NULL);
	assert_true(raw_closed(fd, 2000));
	close(fd);
	assert_int_equal(bad(), before + 1);
	assert_true(nodes_until(all_agree(), 1000));
}

static void hellos_that_break_a_rule_are_refused(void **state)
{
	char long_name[NAME_BYTES_MAX + 10];
	const char *names[] = {"", "two words", "ctrl\x01", "\xc3\xa4", long_name};

	memset(long_name, 'x', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		uint64_t before = bad();
		int fd = raw_open(0);

		raw_hello(fd, names[i], 0x1234567892, 9, NULL);
		expect_refused(fd, before);
	}
	for (unsigned i = 0; i < 2; i++) {
		uint64_t before = bad();
		int fd = raw_open(0);

		/* Sends two wrong Hellos: an incarnation whose ref would be 0, then port 0. */
		raw_hello(fd, "raw", i ? 0x1234567893 : 0x100000000, i ? 0 : 9, NULL);
		expect_refused(fd, before);
	}
}

/*
 * Each entry takes 2 bytes on the wire and about a hundred bytes decoded: the arena must limit
 * that.
 */
static void a_message_that_exceeds_the_arena_when_decoded_is_refused(void **state)
{
	size_t entries = 1500000, body = 2 * entries;
	uint8_t *frame = malloc(body + 16);
	uint64_t before = bad();
	int fd = raw_open(0);
	uint8_t *at = frame + 4;
	char said[4096];
	uint32_t length;

	log_test_capture(said, sizeof(said));
	memset(node[0].control.rpc->logged, 0, sizeof(node[0].control.rpc->logged));
	raw_hello(fd, "raw", 0x1234567894, 9, NULL);
	*at++ = 4 << 3 | 2; /* protobuf tag of the field Message.publish */
	for (size_t rest = body;; rest >>= 7) {
		*at++ = (uint8_t)(rest & 0x7f) | (rest > 0x7f ? 0x80 : 0);
		if (rest <= 0x7f)
			break;
	}
	for (size_t i = 0; i < entries; i++) {
		*at++ = 3 << 3 | 2; /* protobuf tag of an empty entry in Publish.entries */
		*at++ = 0;
	}
	length = htonl((uint32_t)(at - frame) - 4);
	memcpy(frame, &length, 4);
	raw_bytes(fd, frame, (size_t)(at - frame));
	assert_true(raw_closed(fd, 4000));
	close(fd);
	free(frame);
	assert_int_equal(bad(), before + 1);
	assert_non_null(strstr(said, "that are no message"));
	assert_true(nodes_until(all_agree(), 2000));
}

static void a_connection_without_a_hello_is_closed(void **state)
{
	int fd = raw_open(0);

	raw_bytes(fd, "\0\0\1\0abc", 7); /* sends only the beginning of a frame */
	assert_true(raw_closed(fd, 3000));
	close(fd);
}

static void a_frame_that_arrives_byte_by_byte_is_served(void **state)
{
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	uint8_t frame[1024];
	size_t bytes;
	int fd = raw_open(0);

	self.name = "slow";
	self.incarnation = 0x1234567895;
	self.address = "127.0.0.1";
	self.port = 9;
	self.rails = 1;
	hello.version = WIRE_VERSION;
	hello.self = &self;
	member_agree_say(&node[0].control, &hello);
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	bytes = pc__message__pack(&message, frame + 4);
	memcpy(frame, &(uint32_t){htonl((uint32_t)bytes)}, 4);
	for (size_t i = 0; i < bytes + 4; i++) {
		raw_bytes(fd, frame + i, 1);
		nodes_turn();
	}
	assert_true(nodes_until(sees_count(0, 3), 1000));
	close(fd);
	assert_true(nodes_until(sees_count(0, 2), 1000));
}

static void the_output_queue_of_a_link_is_bounded(void **state)
{
	Pc__Touch touch = PC__TOUCH__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	uint32_t places[MESSAGE_PAGES_MAX] = {0};
	struct rpc_link *link = member_link(&node[0].control, node[1].control.ref);
	unsigned sent = 0;

	touch.n_places = MESSAGE_PAGES_MAX;
	touch.places = places;
	message.body_case = PC__MESSAGE__BODY_TOUCH;
	message.touch = &touch;
	while (sent < 100000 && rpc_send(link, &message))
		sent++;
	assert_in_range(sent, 100, 1000);
	assert_true(net_backlog(link->net) <= RPC_OUT_BYTES_MAX);
	/* Once the peer has read what was queued on the link, rpc_send() succeeds again. */
	assert_true(nodes_until(node[1].touches == sent * MESSAGE_PAGES_MAX, 5000));
	assert_true(rpc_send(member_link(&node[0].control, node[1].control.ref), &message));
}

static void connections_beyond_the_limit_are_refused(void **state)
{
	int fd[LINKS_ACCEPTED_MAX + 8];
	unsigned open = 0;

	for (unsigned i = 0; i < sizeof(fd) / sizeof(fd[0]); i++) {
		fd[i] = raw_open(0);
		nodes_turn();
	}
	assert_true(node[0].control.rpc->accepted <= LINKS_ACCEPTED_MAX);
	for (unsigned i = 0; i < sizeof(fd) / sizeof(fd[0]); i++) {
		open += fd[i] >= 0;
		close(fd[i]);
	}
	assert_true(open > 0);
	assert_true(nodes_until(node[0].control.rpc->accepted <= 1, 3000));
	assert_true(nodes_until(all_agree(), 1000));
}

#define T(name) cmocka_unit_test_setup_teardown(name, two_members, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_port_in_use_is_named_with_what_to_change),
		T(the_engine_listens_only_on_cluster_address),
		T(a_port_is_bound_at_start_and_refuses_until_the_engine_listens),
		T(connections_of_a_former_engine_do_not_block_the_port),
		T(the_wildcard_address_is_refused),
		T(a_loopback_address_is_not_advertised_by_an_engine_that_listens_to_others),
		T(the_advertised_address_need_not_be_on_this_host),
		T(an_engine_listens_on_cluster_bind),
		T(engines_find_each_other_over_ipv6),
		T(a_length_beyond_the_bound_closes_the_connection),
		T(a_long_message_is_refused_after_the_hello_too),
		T(bytes_that_are_no_message_close_the_connection),
		T(a_first_message_that_is_no_hello_closes_the_connection),
		T(a_message_of_an_unknown_kind_closes_the_connection),
		T(a_second_hello_closes_the_connection),
		T(hellos_that_break_a_rule_are_refused),
		T(a_message_that_exceeds_the_arena_when_decoded_is_refused),
		T(a_connection_without_a_hello_is_closed),
		T(a_frame_that_arrives_byte_by_byte_is_served),
		T(the_output_queue_of_a_link_is_bounded),
		T(connections_beyond_the_limit_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
