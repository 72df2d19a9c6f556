/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c: what greedy engines get, and ones that send wrong bytes. The test plays them over raw
 * sockets.
 */
#include "tests/unit/control/agree_world.h"

static uint64_t sent(unsigned i)
{
	return node[i].control.counter[COUNTER_summaries_sent];
}

/* Runs node 0, whose page is watched. */
static void view_run(unsigned ms)
{
	uint64_t until_ns = clock_now_ns() + ms * 1000000ull, tick_ns = 0;

	while (clock_now_ns() < until_ns) {
		if (clock_now_ns() - tick_ns >= 50000000) {
			tick_ns = clock_now_ns();
			view_tick(&node[0].control, tick_ns, tick_ns);
		}
		nodes_turn();
	}
}

/* What node 0's snapshot says of a member. */
static struct snapshot_member shown(const char *name)
{
	struct snapshot_member m = {.state_ms = 0};

	view_member_fill(
		&node[0].control, member_find(node[0].control.members, name), clock_now_ns(), &m);
	return m;
}

/* Connects to node 0 as member "raw"; a raw engine neither dials nor sends heartbeats. */
static int raw_member(void)
{
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT, *answer;
	int fd = raw_open(0);

	self.name = "raw";
	self.incarnation = 0x4444444444;
	self.address = "127.0.0.1";
	self.port = 9;
	self.rails = 1;
	self.bucket_bits = 10;
	hello.version = WIRE_VERSION;
	hello.self = &self;
	member_agree_say(&node[0].control, &hello);
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	raw_message(fd, &message);
	answer = read_message(fd);
	assert_non_null(answer);
	assert_int_equal(answer->body_case, PC__MESSAGE__BODY_HELLO);
	pc__message__free_unpacked(answer, NULL);
	assert_true(sees_count(0, 2));
	return fd;
}

/* Counts the messages of one kind that have arrived. */
static unsigned arrived(int fd, Pc__Message__BodyCase kind)
{
	static uint8_t bytes[1 << 20];
	ssize_t got, have = 0, at = 0;
	unsigned n = 0;

	while ((got = recv(fd, bytes + have, sizeof(bytes) - (size_t)have, 0)) > 0)
		have += got;
	while (at + 4 <= have) {
		Pc__Message *message;
		uint32_t length;

		memcpy(&length, bytes + at, 4);
		length = ntohl(length);
		message = pc__message__unpack(NULL, length, bytes + at + 4);
		assert_non_null(message);
		n += message->body_case == kind;
		if (kind == PC__MESSAGE__BODY_SUMMARY && message->body_case == kind)
			assert_int_equal(message->summary->data.len, SUMMARY_BYTES);
		pc__message__free_unpacked(message, NULL);
		at += 4 + length;
	}
	return n;
}

/* Answers, or sends without being asked, `count` bytes of `fill`. */
static void say_summary(int fd, size_t count, uint8_t fill)
{
	uint8_t data[2 * SUMMARY_BYTES];
	Pc__Summary summary = PC__SUMMARY__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	memset(data, fill, sizeof(data));
	summary.data.len = count;
	summary.data.data = data;
	message.body_case = PC__MESSAGE__BODY_SUMMARY;
	message.summary = &summary;
	raw_message(fd, &message);
}

static void setup_raw(void)
{
	nodes_setup(20, 60000); /* a raw engine sends no heartbeats and stays a member */
	assert_int_equal(node_open(0, NULL), 0);
	node[0].control.view->own = (struct summary){.made = 1, .rails = 1};
}

static void a_link_gets_one_answer_in_half_a_second(void **state)
{
	Pc__SummaryAsk ask = PC__SUMMARY_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	int fd;

	setup_raw();
	fd = raw_member();
	message.body_case = PC__MESSAGE__BODY_SUMMARY_ASK;
	message.summary_ask = &ask;
	for (unsigned i = 0; i < 100; i++)
		raw_message(fd, &message);
	nodes_run(400);
	assert_int_equal(arrived(fd, PC__MESSAGE__BODY_SUMMARY), 1);
	assert_int_equal(sent(0), 1);
	raw_message(fd, &message);
	nodes_run(10);
	assert_int_equal(sent(0), 1);
	nodes_run(500);
	raw_message(fd, &message);
	nodes_run(10);
	assert_int_equal(sent(0), 2);
	assert_true(sees_count(0, 2)); /* being greedy costs no link */
	close(fd);
}

static void a_summary_that_was_not_requested_is_ignored(void **state)
{
	int fd;

	setup_raw();
	fd = raw_member();
	say_summary(fd, SUMMARY_BYTES, 1);
	nodes_run(10);
	assert_int_equal(shown("raw").summary_ns, 0);
	view_run(100);
	say_summary(fd, SUMMARY_BYTES, 1);
	nodes_run(10);
	assert_int_equal(shown("raw").summary.severity, 1);
	say_summary(fd, SUMMARY_BYTES, 2); /* a second answer to one request */
	nodes_run(10);
	assert_int_equal(shown("raw").summary.severity, 1);
	assert_true(sees_count(0, 2));
	close(fd);
}

static void hostile_bytes_are_bounded_and_a_wrong_length_closes_the_link(void **state)
{
	struct snapshot_member m;
	int fd;

	setup_raw();
	fd = raw_member();
	view_run(100);
	say_summary(fd, SUMMARY_BYTES, 0); /* version 0: nothing is kept */
	nodes_run(10);
	assert_int_equal(shown("raw").summary_ns, 0);
	say_summary(fd, SUMMARY_BYTES, 0xff);
	nodes_run(10);
	m = shown("raw");
	assert_true(m.summary_ns);
	assert_int_equal(m.summary.severity, SEVERITY_CRITICAL);
	assert_true(m.summary.rails <= RAILS_MAX && m.summary.pool_used <= 1000);
	assert_string_equal(m.summary.finding, "");
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 0);
	say_summary(fd, SUMMARY_BYTES + 1, 1);
	assert_true(raw_closed(fd, 1000));
	assert_int_equal(node[0].control.counter[COUNTER_messages_bad], 1);
	close(fd);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(a_link_gets_one_answer_in_half_a_second),
		T(a_summary_that_was_not_requested_is_ignored),
		T(hostile_bytes_are_bounded_and_a_wrong_length_closes_the_link),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
