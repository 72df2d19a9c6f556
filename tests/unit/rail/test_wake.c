/* SPDX-License-Identifier: Apache-2.0 */
/* Wake-ups and kicks when the other side does what it can to block them: alarm() ends the test. */
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

static void a_client_that_never_reads_its_wake_ups_blocks_nothing(void **state)
{
	int ends[2];
	char bytes[8];

	(void)state;
	alarm(60);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); /* blocking, both ends */
	for (unsigned i = 0; i < 100000; i++)
		client_wake(ends[0]);
	assert_true(recv(ends[1], bytes, sizeof(bytes), MSG_DONTWAIT) > 0);
	close(ends[1]);
	client_wake(ends[0]); /* no SIGPIPE */
	close(ends[0]);
}

static void a_kick_that_another_reader_took_blocks_nothing(void **state)
{
	int kick = eventfd(0, 0); /* a client has made it blocking */
	uint64_t count;

	(void)state;
	SKIP_EMULATED("it has no RWF_NOWAIT");
	alarm(60);
	kick_take(kick);
	assert_int_equal(eventfd_write(kick, 5), 0);
	kick_take(kick);
	assert_int_equal(fcntl(kick, F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(eventfd_read(kick, &count), -1); /* it was taken */
	close(kick);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_that_never_reads_its_wake_ups_blocks_nothing),
		cmocka_unit_test(a_kick_that_another_reader_took_blocks_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
