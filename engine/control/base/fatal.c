/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_abort(): ends the process. Runs on any thread that finds that the engine cannot continue.
 */
#include "engine/control/base/fatal.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include "config/log.h"
#include "config/text_fit.h"

/*
 * time limit, in s, for writing the last log line: the log's lock or its pipe may be what is
 * blocked
 */
#define LAST_WORDS_S 2

void engine_abort(const char *format, ...)
{
	char text[512];
	va_list arguments;
	sigset_t alarm_only;

	/* restore the default action of SIGALRM, which ends the process */
	signal(SIGALRM, SIG_DFL);
	sigemptyset(&alarm_only);
	sigaddset(&alarm_only, SIGALRM);
	pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
	alarm(LAST_WORDS_S);
	va_start(arguments, format);
	text_vfit(text, sizeof(text), format, arguments);
	va_end(arguments);
	log_error("the engine aborts: %s", text);
	abort();
}
