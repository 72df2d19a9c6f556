/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wake-ups and kicks when the other side does everything it can to block them; alarm() ends a test
 * that blocks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/rail/inbox.h"
#include "tests/emulated.h"

static void a_client_that_never_reads_its_wake_ups_does_not_block_the_rail(void **state)
{
	int ends[2];
	char bytes[8];

	alarm(60);
	/* both ends of the socket pair are blocking */
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	for (unsigned i = 0; i < 100000; i++)
		client_wake(ends[0]);
	assert_true(recv(ends[1], bytes, sizeof(bytes), MSG_DONTWAIT) > 0);
	close(ends[1]);
	/* writes to a socket whose other end is closed: must not raise SIGPIPE */
	client_wake(ends[0]);
	close(ends[0]);
}

static void a_kick_consumed_by_another_reader_does_not_block_the_rail(void **state)
{
	int kick = eventfd(0, 0); /* a blocking eventfd, as a hostile client can make it */
	uint64_t count;

	SKIP_EMULATED("the emulation has no RWF_NOWAIT");
	alarm(60);
	kick_take(kick);
	assert_int_equal(eventfd_write(kick, 5), 0);
	kick_take(kick);
	assert_int_equal(fcntl(kick, F_SETFL, O_NONBLOCK), 0);
	/* reading fails, because the kick was consumed */
	assert_int_equal(eventfd_read(kick, &count), -1);
	close(kick);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_that_never_reads_its_wake_ups_does_not_block_the_rail),
		cmocka_unit_test(a_kick_consumed_by_another_reader_does_not_block_the_rail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
