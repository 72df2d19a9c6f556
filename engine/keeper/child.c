/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.h: fork and exec. The functions named in_child_*() run in the new process before exec. The
 * keeper has a second thread, so they call only async-signal-safe functions and allocate nothing:
 * the parent prepares the environment.
 */
#include "engine/keeper/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/keeper/keeper.h"

#define FIRST_FD 3           /* number of the first passed descriptor */
#define LISTEN_PID_BYTES 32u /* "LISTEN_PID=" and a number */

/* Variables that the keeper sets itself; those of its own environment are for the keeper. */
static const char *const own[] = {"NOTIFY_SOCKET=", "LISTEN_PID=", "LISTEN_FDS=", "LISTEN_FDNAMES=",
	"FDSTORE=", "WATCHDOG_PID=", "WATCHDOG_USEC=", NULL};

struct environment {
	char **variable; /* ends with NULL */
	char *notify, *names;
	char fds[32], store[32];
	char pid[LISTEN_PID_BYTES]; /* the child writes its number into it */
};

static bool variable_is_own(const char *variable)
{
	for (unsigned i = 0; own[i]; i++)
		if (!strncmp(variable, own[i], strlen(own[i])))
			return true;
	return false;
}

/* LISTEN_FDNAMES; NULL: no memory. */
static char *names_join(const struct child *child)
{
	size_t bytes = sizeof("LISTEN_FDNAMES=");
	char *text, *to;

	for (unsigned i = 0; i < child->fds; i++)
		bytes += strlen(child->name[i]) + 1;
	text = malloc(bytes);
	if (!text)
		return NULL;
	to = stpcpy(text, "LISTEN_FDNAMES=");
	for (unsigned i = 0; i < child->fds; i++) {
		if (i)
			*to++ = ':';
		to = stpcpy(to, child->name[i]);
	}
	return text;
}

static void environment_free(struct environment *e)
{
	free(e->variable);
	free(e->notify);
	free(e->names);
}

/* Returns 0 or -ENOMEM. */
static int environment_make(struct environment *e, const struct child *child)
{
	size_t count = 0, kept = 0;

	while (environ && environ[count])
		count++;
	e->variable = calloc(count + 6, sizeof(*e->variable));
	e->names = names_join(child);
	if (asprintf(&e->notify, "NOTIFY_SOCKET=%s", child->notify_path) < 0)
		e->notify = NULL;
	if (!e->variable || !e->names || !e->notify) {
		environment_free(e);
		return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++)
		if (!variable_is_own(environ[i]))
			e->variable[kept++] = environ[i];
	snprintf(e->fds, sizeof(e->fds), "LISTEN_FDS=%u", child->fds);
	strcpy(e->pid, "LISTEN_PID=");
	snprintf(e->store, sizeof(e->store), "FDSTORE=%u", STORE_FDS_MAX);
	e->variable[kept++] = e->notify;
	e->variable[kept++] = e->names;
	e->variable[kept++] = e->fds;
	e->variable[kept++] = e->pid;
	e->variable[kept++] = e->store;
	return 0;
}

/* ---- in the child ---------------------------------------------------------------------------- */

static void in_child_write_pid(char text[LISTEN_PID_BYTES])
{
	char digits[16];
	unsigned n = 0;
	size_t at = strlen(text);

	for (pid_t pid = getpid(); pid > 0; pid /= 10)
		digits[n++] = (char)('0' + pid % 10);
	while (n)
		text[at++] = digits[--n];
	text[at] = '\0';
}

/*
 * Moves the descriptors to FIRST_FD and up. They first go to numbers above all targets, because a
 * target may be the present number of another one. Returns false if there are too few numbers.
 */
static bool in_child_place(const int *fd, unsigned fds, int *moved)
{
	for (unsigned i = 0; i < fds; i++) {
		moved[i] = fcntl(fd[i], F_DUPFD_CLOEXEC, FIRST_FD + (int)fds);
		if (moved[i] < 0)
			return false;
	}
	for (unsigned i = 0; i < fds; i++)
		if (dup2(moved[i], FIRST_FD + (int)i) < 0)
			return false;
	return true;
}

/*
 * Replaces the child by the program. `failed`: where the errno goes when that fails; it must not be
 * one of the numbers that are overwritten, so it is moved first.
 */
static void in_child(const struct child *child, struct environment *e, int *moved, int failed)
{
	struct sigaction standard = {.sa_handler = SIG_DFL};
	sigset_t none;
	int rc, tell = fcntl(failed, F_DUPFD_CLOEXEC, FIRST_FD + (int)child->fds);

	/* SIGHUP stays ignored: neither the keeper nor the engine ends with its terminal */
	sigaction(SIGPIPE, &standard, NULL);
	in_child_write_pid(e->pid);
	if (tell >= 0 && in_child_place(child->fd, child->fds, moved)) {
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execvpe(child->argv[0], child->argv, e->variable);
	}
	rc = errno;
	if (write(tell >= 0 ? tell : failed, &rc, sizeof(rc)) < 0)
		_exit(126);
	_exit(127);
}

/* ---- in the keeper --------------------------------------------------------------------------- */

/*
 * Waits until the child has executed the program, which closes the pipe. Returns 0, or -errno of
 * what failed, after reaping the child.
 */
static int exec_wait(int pipe_end, pid_t pid)
{
	int failure = 0;
	ssize_t got;

	do
		got = read(pipe_end, &failure, sizeof(failure));
	while (got < 0 && errno == EINTR);
	if (got == 0)
		return 0;
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		continue;
	return failure > 0 ? -failure : -EIO;
}

int child_start(const struct child *child, pid_t *ret_pid)
{
	struct environment e;
	int failed[2], rc;
	int *moved = calloc(child->fds + 1, sizeof(*moved));
	pid_t pid;

	if (!moved)
		return -ENOMEM;
	rc = environment_make(&e, child);
	if (rc < 0)
		goto out;
	if (pipe2(failed, O_CLOEXEC) < 0) {
		rc = -errno;
		goto out_environment;
	}
	pid = fork();
	if (pid == 0)
		in_child(child, &e, moved, failed[1]);
	rc = pid < 0 ? -errno : 0;
	close(failed[1]);
	if (rc == 0)
		rc = exec_wait(failed[0], pid);
	close(failed[0]);
	if (rc == 0)
		*ret_pid = pid;
out_environment:
	environment_free(&e);
out:
	free(moved);
	return rc;
}
