/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python expressions about a text, evaluated by answers.py, which runs as long as the test: to
 * start Python for each of a hundred checks would take most of the test's time. One thread.
 */
#ifndef TESTS_PYTHON_WORLD_H
#define TESTS_PYTHON_WORLD_H

#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static FILE *python_asked, *python_answers;

/* Starts Python; false: there is none. */
static inline bool python_start(void)
{
	char *arguments[] = {"python3", ANSWERS, NULL};
	posix_spawn_file_actions_t actions;
	int in[2], out[2], rc;
	pid_t pid;

	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], 0);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	rc = posix_spawnp(&pid, arguments[0], &actions, NULL, arguments, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(in[0]);
	close(out[1]);
	if (rc) {
		close(in[1]);
		close(out[0]);
		return false;
	}
	python_asked = fdopen(in[1], "w");
	python_answers = fdopen(out[0], "r");
	return true;
}

static inline void python_write(const char *text, size_t bytes)
{
	fprintf(python_asked, "%zu\n", bytes);
	assert_int_equal(fwrite(text, 1, bytes, python_asked), bytes);
}

/*
 * Does the Python expression hold for the text, as this reader of answers.py reads it? A text that
 * the reader refuses has no expression that holds. ret_why: why not.
 */
static inline bool python_holds(const char *reader, const char *expression, const char *text,
	size_t bytes, char ret_why[256])
{
	if (!python_asked && !python_start())
		skip();
	python_write(reader, strlen(reader));
	python_write(expression, strlen(expression));
	python_write(text, bytes);
	assert_int_equal(fflush(python_asked), 0);
	assert_non_null(fgets(ret_why, 256, python_answers));
	return strcmp(ret_why, "yes\n") == 0;
}

/* Fails unless the expression holds. */
static inline void python_expect(
	const char *reader, const char *expression, const char *text, size_t bytes)
{
	char why[256];

	if (!python_holds(reader, expression, text, bytes, why))
		fail_msg("not so: %s: %s in %.2000s", expression, why, text);
}

#endif
