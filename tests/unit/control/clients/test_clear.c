/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clears that another engine requests: what it may have waiting, and what breaks a rule. A node is
 * one control plane in the test's process, which never gets to the clears.
 */
#include "engine/control/clients/ctl_inner.h"
#include "tests/unit/control/agree_world.h"

static void ask(int fd, uint64_t serial)
{
	Pc__Clear body = PC__CLEAR__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.serial = serial;
	body.all = true;
	message.body_case = PC__MESSAGE__BODY_CLEAR;
	message.clear = &body;
	raw_message(fd, &message);
}

static void read_exactly(int fd, uint8_t *ret, size_t bytes)
{
	for (size_t have = 0, more; have < bytes; have += more) {
		more = raw_read(fd, ret + have, bytes - have, 1000);
		assert_true(more > 0);
	}
}

/* The result of the next Cleared, which has this serial. */
static uint32_t told(int fd, uint64_t serial)
{
	static uint8_t frame[65536];
	uint32_t length, result = UINT32_MAX;

	while (result == UINT32_MAX) {
		Pc__Message *message;

		read_exactly(fd, (uint8_t *)&length, sizeof(length));
		length = ntohl(length);
		assert_true(length <= sizeof(frame));
		read_exactly(fd, frame, length);
		message = pc__message__unpack(NULL, length, frame);
		assert_non_null(message);
		if (message->body_case == PC__MESSAGE__BODY_CLEARED) {
			assert_int_equal(message->cleared->serial, serial);
			result = message->cleared->result;
		}
		pc__message__free_unpacked(message, NULL);
	}
	return result;
}

static uint32_t asked(int fd, uint64_t serial)
{
	ask(fd, serial);
	return told(fd, serial);
}

static int join(unsigned n)
{
	char name[16];
	int fd = raw_open(0);

	snprintf(name, sizeof(name), "raw%u", n);
	raw_hello(fd, name, 0x1234567800 + n, 9, NULL);
	assert_true(nodes_until(member_by_ref(&node[0].control, 0x34567800 + n), 1000));
	return fd;
}

static void a_member_may_have_some_clears_waiting_and_a_repeated_one_is_no_new_one(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	fd = join(1);
	for (uint64_t serial = 1; serial <= CLEARS_MEMBER_MAX; serial++)
		assert_int_equal(asked(fd, serial), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	assert_int_equal(asked(fd, CLEARS_MEMBER_MAX + 1), PC__CLEAR_RESULT__CLEAR_BUSY);
	assert_int_equal(asked(fd, 1), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	close(fd);
	clear_close(&node[0].control);
}

static void all_members_together_may_have_half_of_the_requests(void **state)
{
	int fd[CLEARS_MEMBERS_MAX / CLEARS_MEMBER_MAX + 1];
	unsigned last = CLEARS_MEMBERS_MAX / CLEARS_MEMBER_MAX;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	for (unsigned n = 0; n < last; n++) {
		fd[n] = join(n + 1);
		for (uint64_t serial = 1; serial <= CLEARS_MEMBER_MAX; serial++)
			assert_int_equal(asked(fd[n], serial), PC__CLEAR_RESULT__CLEAR_GOES_ON);
	}
	fd[last] = join(last + 1);
	assert_int_equal(asked(fd[last], 1), PC__CLEAR_RESULT__CLEAR_BUSY);
	for (unsigned n = 0; n <= last; n++)
		close(fd[n]);
	clear_close(&node[0].control);
}

static void a_clear_without_a_serial_ends_the_link(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	fd = join(1);
	ask(fd, 0);
	assert_true(raw_closed(fd, 1000));
	close(fd);
	assert_null(node[0].control.clears);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(a_member_may_have_some_clears_waiting_and_a_repeated_one_is_no_new_one),
		T(all_members_together_may_have_half_of_the_requests),
		T(a_clear_without_a_serial_ends_the_link),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
