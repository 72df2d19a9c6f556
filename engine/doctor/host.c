/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads files of this host, or of the tree that --root names, and runs programs of the
 * installation. Text from files may be anything. One thread.
 */
#include <ctype.h>
#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/doctor/inner.h"

#define PATH_BYTES 1024

/* ---- files ----------------------------------------------------------------------------------- */

static bool folder_is_there(const char *path)
{
	char folder[PATH_BYTES];
	char *end;

	snprintf(folder, sizeof(folder), "%s", path);
	end = strrchr(folder, '/');
	if (!end || end == folder)
		return true;
	*end = '\0';
	return access(folder, X_OK) == 0;
}

enum host_read host_text(const struct doctor *d, const char *path, char *ret, size_t bytes)
{
	char full[PATH_BYTES];
	FILE *file;
	bool got;

	ret[0] = '\0';
	if (snprintf(full, sizeof(full), "%s%s", d->root, path) >= (int)sizeof(full))
		return HOST_UNREADABLE;
	file = fopen(full, "re");
	if (!file)
		return errno == ENOENT && folder_is_there(full) ? HOST_ABSENT : HOST_UNREADABLE;
	got = fgets(ret, (int)bytes, file) != NULL;
	if ((!got && ferror(file)) || (got && !ret[0])) { /* a zero is no text */
		fclose(file);
		return HOST_UNREADABLE;
	}
	fclose(file);
	for (char *c = ret; *c; c++)
		*c = isprint((unsigned char)*c) || *c == '\n' || *c == '\t' ? *c : '?';
	for (size_t n = strlen(ret); n && isspace((unsigned char)ret[n - 1]); n--)
		ret[n - 1] = '\0';
	return HOST_READ;
}

enum host_read host_number(const struct doctor *d, const char *path, int64_t *ret)
{
	char text[64], *end;
	enum host_read read = host_text(d, path, text, sizeof(text));

	if (read != HOST_READ)
		return read;
	errno = 0;
	*ret = strtoll(text, &end, 10);
	return errno || end == text || *end ? HOST_UNREADABLE : HOST_READ;
}

bool host_not_read(struct doctor *d, enum host_read why, const char *path)
{
	if (why == HOST_ABSENT)
		found(d, DOCTOR_NONE, path, NULL, "this kernel has none");
	else if (why == HOST_UNREADABLE)
		found(d, DOCTOR_UNKNOWN, path, NULL, "it cannot be read, or has no valid value");
	return why != HOST_READ;
}

struct host_paths host_glob(const struct doctor *d, const char *pattern)
{
	struct host_paths paths = {0, NULL};
	char full[PATH_BYTES];
	glob_t list;

	snprintf(full, sizeof(full), "%s%s", d->root, pattern);
	if (glob(full, 0, NULL, &list) != 0)
		return paths;
	paths.path = calloc(list.gl_pathc, sizeof(*paths.path));
	for (size_t i = 0; paths.path && i < list.gl_pathc; i++) {
		paths.path[paths.count] = strdup(list.gl_pathv[i] + strlen(d->root));
		paths.count += paths.path[paths.count] != NULL;
	}
	globfree(&list);
	return paths;
}

void host_paths_free(struct host_paths *paths)
{
	for (size_t i = 0; i < paths->count; i++)
		free(paths->path[i]);
	free(paths->path);
	*paths = (struct host_paths){0, NULL};
}

bool host_has(const struct doctor *d, const char *pattern)
{
	struct host_paths paths = host_glob(d, pattern);
	bool has = paths.count != 0;

	host_paths_free(&paths);
	return has;
}

/* ---- cores ----------------------------------------------------------------------------------- */

void cores_add(cpu_set_t *cores, int64_t core)
{
	if (core >= 0 && core < CPU_SETSIZE)
		CPU_SET((size_t)core, cores);
}

bool cores_parse(const char *text, cpu_set_t *ret)
{
	CPU_ZERO(ret);
	while (*text) {
		char *end;
		long low = strtol(text, &end, 10), high = low;

		if (end == text)
			return false;
		if (*end == '-') {
			text = end + 1;
			high = strtol(text, &end, 10);
			if (end == text)
				return false;
		}
		if (low < 0 || high < low || high >= CPU_SETSIZE)
			return false;
		for (long core = low; core <= high; core++)
			cores_add(ret, core);
		text = end + strspn(end, ", \t");
		if (text == end && *text)
			return false;
	}
	return true;
}

enum host_read host_cores(const struct doctor *d, const char *path, cpu_set_t *ret)
{
	char text[4096];
	enum host_read read = host_text(d, path, text, sizeof(text));

	CPU_ZERO(ret);
	if (read == HOST_READ && strcmp(text, "(null)") != 0 && !cores_parse(text, ret))
		return HOST_UNREADABLE;
	return read;
}

const char *cores_text(const cpu_set_t *cores, char *ret, size_t bytes)
{
	size_t used = 0;

	ret[0] = '\0';
	for (size_t low = 0; low < CPU_SETSIZE && used + 16 < bytes; low++) {
		size_t high = low;

		if (!CPU_ISSET(low, cores))
			continue;
		while (high + 1 < CPU_SETSIZE && CPU_ISSET(high + 1, cores))
			high++;
		used += (size_t)snprintf(ret + used, bytes - used,
			high > low ? "%s%zu-%zu" : "%s%zu", used ? "," : "", low, high);
		low = high;
	}
	return ret;
}

cpu_set_t cores_without(const cpu_set_t *a, const cpu_set_t *b)
{
	cpu_set_t left;

	CPU_OR(&left, a, b);
	CPU_XOR(&left, &left, b);
	return left;
}

/* ---- child processes ------------------------------------------------------------------------- */

/*
 * Reads all that comes; what does not fit is dropped, so that the child never waits. False: it has
 * not ended in time.
 */
static bool output_read(int fd, uint64_t until_ns, char *ret, size_t bytes)
{
	char rest[4096];
	size_t used = 0;
	ssize_t got = 1;

	while (got != 0) {
		bool room = used + 1 < bytes;
		uint64_t now_ns = clock_monotonic_ns();
		struct pollfd p = {.fd = fd, .events = POLLIN};

		if (now_ns >= until_ns ||
			poll(&p, 1, (int)((until_ns - now_ns) / 1000000) + 1) == 0)
			break;
		got = room ? read(fd, ret + used, bytes - 1 - used) : read(fd, rest, sizeof(rest));

		if (got < 0 && errno != EINTR)
			break;
		used += room && got > 0 ? (size_t)got : 0;
	}
	ret[used] = '\0';
	return got == 0;
}

static int child_run(void (*work)(void *context, int fd), void *context, unsigned timeout_ms,
	char *ret, size_t bytes)
{
	uint64_t until_ns = clock_monotonic_ns() + timeout_ms * 1000000ull;
	int ends[2], status;
	bool ended;
	pid_t child;

	if (pipe(ends) < 0)
		return -errno;
	fflush(stdout);
	child = fork();
	if (child < 0) {
		status = -errno;
		close(ends[0]);
		close(ends[1]);
		return status;
	}
	if (child == 0) {
		close(ends[0]);
		work(context, ends[1]);
		_exit(0);
	}
	close(ends[1]);
	ended = output_read(ends[0], until_ns, ret, bytes);
	if (!ended)
		kill(child, SIGKILL);
	close(ends[0]);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	return ended ? -EINTR : -ETIME;
}

int doctor_child(void (*work)(void *context, int fd), void *context, unsigned timeout_ms, char *ret,
	size_t bytes)
{
	/*
	 * An ignored SIGCHLD survives exec(): a service manager or a shell may have left it so. The
	 * kernel then keeps no status, and waitpid() fails with ECHILD.
	 */
	const struct sigaction kept = {.sa_handler = SIG_DFL};
	struct sigaction before;
	int status;

	ret[0] = '\0';
	if (sigaction(SIGCHLD, &kept, &before) < 0)
		return -errno;
	status = child_run(work, context, timeout_ms, ret, bytes);
	sigaction(SIGCHLD, &before, NULL);
	return status;
}

/* ---- programs of this installation ----------------------------------------------------------- */

/* Replaces this process by the program: beside it, in the build folder, or in $PATH. */
static void program_become(void *context, int fd)
{
	static const char *const places[] = {"", "/../engine"};
	char *const *arguments = context;
	char own[PATH_BYTES], path[PATH_BYTES + 64];
	ssize_t bytes = readlink("/proc/self/exe", own, sizeof(own) - 1);

	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	close(fd);
	if (bytes > 0) {
		own[bytes] = '\0';
		*strrchr(own, '/') = '\0';
		for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
			snprintf(path, sizeof(path), "%s%s/%s", own, places[i], arguments[0]);
			execv(path, arguments);
		}
	}
	execvp(arguments[0], arguments);
	_exit(127);
}

int host_run(char *const *arguments, char *ret, size_t bytes)
{
	int status = doctor_child(
		program_become, (void *)(uintptr_t)arguments, HOST_RUN_S * 1000, ret, bytes);

	return status == 127 ? -ENOENT : status;
}
