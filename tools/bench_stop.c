/* SPDX-License-Identifier: Apache-2.0 */
/* The signals that end peercache-bench; see bench_stop.h. Main thread. */
#include "tools/bench_stop.h"

#include <sys/time.h>
#include <unistd.h>

#define END_US 800000 /* from a signal to the end of the program, at most */

volatile sig_atomic_t bench_stopped;

static void on_late(int number)
{
	static const char text[] = "peercache-bench: interrupted while a call waits: no results\n";

	(void)number;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

static void on_signal(int number)
{
	const struct itimerval late = {.it_value = {.tv_usec = END_US}};

	(void)number;
	bench_stopped = 1;
	(void)setitimer(ITIMER_REAL, &late, NULL);
}

void bench_stop_default(void)
{
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
}

void bench_stop_catch(void)
{
	signal(SIGALRM, on_late);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
}
