/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how the doctor connects to a name with several addresses. The kernel's answers are played
 * (ld --wrap): no address is reached.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/doctor/reach.h"

#define ADDRESSES 4

static int connect_error[ADDRESSES]; /* of each address, in order */
static unsigned connects, polls;
static int waited_ms[ADDRESSES];

int __real_getaddrinfo(
	const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(
	const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(
	const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret)
{
	struct addrinfo **last = ret;

	for (unsigned i = 0; i < ADDRESSES; i++) {
		int rc = __real_getaddrinfo("192.0.2.1", port, hints, last);

		assert_int_equal(rc, 0);
		last = &(*last)->ai_next;
	}
	return 0;
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
	(void)fd, (void)address, (void)bytes;
	assert_true(connects < ADDRESSES);
	errno = connect_error[connects++];
	return errno ? -1 : 0;
}

int __wrap_poll(struct pollfd *list, nfds_t count, int wait_ms);
int __wrap_poll(struct pollfd *list, nfds_t count, int wait_ms)
{
	(void)list, (void)count;
	assert_true(polls < ADDRESSES);
	waited_ms[polls++] = wait_ms;
	return 0; /* at once: as if the time had passed */
}

static enum reach reach(int first, int second, int third, int fourth)
{
	memcpy(connect_error, (int[]){first, second, third, fourth}, sizeof(connect_error));
	connects = polls = 0;
	return reach_try("a name", 1, 4000);
}

static void a_silent_address_leaves_time_to_those_behind_it(void **state)
{
	assert_int_equal(reach(EINPROGRESS, EINPROGRESS, EINPROGRESS, 0), REACH_OPEN);
	assert_int_equal(polls, 3);
	/* no time passes here, so that the parts are 1/4, 1/3 and 1/2 of all; 1 ms is rounded up */
	assert_in_range(waited_ms[0], 1, 1001);
	assert_in_range(waited_ms[1], 1, 1334);
	assert_in_range(waited_ms[2], 1, 2001);
}

static void what_tells_most_of_several_addresses_is_said(void **state)
{
	assert_int_equal(reach(ENETUNREACH, EINPROGRESS, ECONNREFUSED, EINPROGRESS), REACH_REFUSED);
	assert_int_equal(reach(EINPROGRESS, ENETUNREACH, ENETUNREACH, ENETUNREACH), REACH_SILENT);
	assert_int_equal(
		reach(ENETUNREACH, ENETUNREACH, ENETUNREACH, EHOSTUNREACH), REACH_NO_ROUTE);
	assert_int_equal(connects, ADDRESSES);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_silent_address_leaves_time_to_those_behind_it),
		cmocka_unit_test(what_tells_most_of_several_addresses_is_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
