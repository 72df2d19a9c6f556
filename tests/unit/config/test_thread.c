/* SPDX-License-Identifier: Apache-2.0 */
/* Which signals a helper thread and the thread that starts it block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/thread.h"
#include "tests/emulated.h"

static void *mask_read(void *mask)
{
	pthread_sigmask(SIG_BLOCK, NULL, mask);
	return mask;
}

static void a_helper_thread_blocks_every_signal_and_its_starter_none_more(void **state)
{
	sigset_t usual, before, in_thread, after;
	pthread_t thread;
	void *ended;

	SKIP_EMULATED("it keeps signals for itself");
	sigemptyset(&usual);
	sigaddset(&usual, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, &usual, NULL);
	(void)mask_read(&before);
	assert_int_equal(thread_start(&thread, mask_read, &in_thread), 0);
	pthread_join(thread, &ended);
	assert_ptr_equal(ended, &in_thread);
	(void)mask_read(&after);
	for (int number = 1; number <= SIGRTMAX; number++) {
		/* these two cannot be blocked, and the C library keeps those before SIGRTMIN */
		if (number != SIGKILL && number != SIGSTOP &&
			(number <= SIGSYS || number >= SIGRTMIN))
			assert_int_equal(sigismember(&in_thread, number), 1);
		assert_int_equal(sigismember(&after, number), sigismember(&before, number));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_helper_thread_blocks_every_signal_and_its_starter_none_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
