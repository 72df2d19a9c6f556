/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_socket.c: the path of engine.socket. Which engine may use it, which files are created or
 * replaced, and what is logged.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/log.h"
#include "engine/control/clients/clients_inner.h"
#include "engine/keeper/service.h"

static char folder[64];
static char logged[2048];
static struct settings settings;
static struct control one, other;

static int setup(void **state)
{
	strcpy(folder, "/tmp/peercache-socket-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(settings.engine_socket, sizeof(settings.engine_socket), "%s/e.sock", folder);
	one = other = (struct control){.settings = &settings};
	logged[0] = '\0';
	log_test_capture(logged, sizeof(logged));
	return 0;
}

static int teardown(void **state)
{
	char command[128];

	log_test_capture(NULL, 0);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

static struct sockaddr_un address(void)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	strcpy(at.sun_path, settings.engine_socket);
	return at;
}

/* Connects to the engine's socket as a client. Returns 0 or the client's errno. */
static int client_connects(void)
{
	struct sockaddr_un at = address();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	int rc = connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0 ? errno : 0;

	close(fd);
	return rc;
}

/*
 * Returns a listening socket at the engine's path, as made by a program that does not take the
 * lock.
 */
static int stranger(void)
{
	struct sockaddr_un at = address();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static unsigned files(void)
{
	DIR *d = opendir(folder);
	unsigned n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n - 2; /* the number of files, without "." and ".." */
}

static void assert_logged(const char *what)
{
	if (!strstr(logged, what))
		fail_msg("\"%s\" is not in:\n%s", what, logged);
}

static void clients_are_refused_until_the_engine_listens(void **state)
{
	assert_int_equal(client_socket_open(&one), 0);
	assert_int_equal(client_connects(), ECONNREFUSED);
	assert_true(client_socket_listen(&one) >= 0);
	assert_int_equal(client_connects(), 0);
	client_socket_remove(&one);
	client_socket_remove(&one);
	assert_int_equal(client_connects(), ENOENT);
	client_socket_close(&one);
	assert_int_equal(files(), 0);
}

static void an_engine_keeps_its_path_from_its_start_to_its_end(void **state)
{
	char pid[32];

	snprintf(pid, sizeof(pid), "pid %d", (int)getpid());
	assert_int_equal(client_socket_open(&one), 0);
	/* the other engine, `one`, is starting, then serving, then stopping */
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(client_socket_open(&other), -EADDRINUSE);
		assert_null(other.client_socket);
		assert_logged(pid);
		assert_logged(settings.engine_socket);
		if (i == 0)
			assert_true(client_socket_listen(&one) >= 0);
		if (i == 1)
			client_socket_remove(&one);
	}
	client_socket_close(&one);
	assert_int_equal(client_socket_open(&other), 0);
	client_socket_close(&other);
}

static void a_path_is_free_when_its_engine_was_killed(void **state)
{
	int ready[2];
	pid_t child;
	char pid[32], byte;

	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		int rc = client_socket_open(&one);

		if (rc == 0 && client_socket_listen(&one) >= 0 && write(ready[1], "", 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	snprintf(pid, sizeof(pid), "pid %d", (int)child);
	assert_int_equal(client_socket_open(&other), -EADDRINUSE);
	assert_logged(pid);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_int_equal(files(), 2);
	assert_int_equal(client_socket_open(&other), 0);
	assert_logged("left over");
	client_socket_close(&other);
	assert_int_equal(files(), 0);
	close(ready[0]);
	close(ready[1]);
}

static void a_program_without_the_lock_keeps_its_socket_while_it_listens(void **state)
{
	char pid[32];
	int fd = stranger();

	snprintf(pid, sizeof(pid), "process %d", (int)getpid());
	assert_int_equal(client_socket_open(&one), -EADDRINUSE);
	assert_logged(pid);
	assert_int_equal(client_connects(), 0);
	close(fd);
	assert_int_equal(client_socket_open(&one), 0);
	client_socket_close(&one);
}

static void a_file_that_is_no_socket_is_not_replaced(void **state)
{
	close(open(settings.engine_socket, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(client_socket_open(&one), -EEXIST);
	assert_logged("is not a socket");
	assert_int_equal(access(settings.engine_socket, F_OK), 0);
	assert_int_equal(files(), 1);
}

static void only_the_last_directory_is_created_and_that_is_logged(void **state)
{
	mode_t mask = umask(022);
	char made[128];
	struct stat st;

	snprintf(settings.engine_socket, sizeof(settings.engine_socket), "%s/a/b/e.sock", folder);
	assert_int_equal(client_socket_open(&one), -ENOENT);
	snprintf(made, sizeof(made), "neither %s/a/b nor the directory above it", folder);
	assert_logged(made);
	assert_logged("engine.socket");
	assert_int_equal(files(), 0);
	snprintf(settings.engine_socket, sizeof(settings.engine_socket), "%s/a/e.sock", folder);
	assert_int_equal(client_socket_open(&one), 0);
	snprintf(made, sizeof(made), "created directory %s/a", folder);
	assert_logged(made);
	snprintf(made, sizeof(made), "%s/a", folder);
	assert_int_equal(stat(made, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	client_socket_close(&one);
	umask(mask);
}

/*
 * Runs the test in a child process, which may become another user or mount a file system. The
 * child's exit status is 0, 77 (root is needed) or another one for a failure.
 */
static int in_child(int (*test)(void))
{
	int status;
	pid_t child = fork();

	if (child == 0)
		_exit(test());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77) {
		printf("skipped: needs root\n");
		skip();
	}
	return WEXITSTATUS(status);
}

static bool fails_with(int error)
{
	char missing[160];

	if (client_socket_open(&one) != -error || !strstr(logged, strerror(error)) ||
		!strstr(logged, settings.engine_socket))
		return false;
	snprintf(settings.engine_socket, sizeof(settings.engine_socket), "%s/b/e.sock", folder);
	snprintf(missing, sizeof(missing), "cannot create directory %s/b: %s", folder,
		strerror(error));
	return client_socket_open(&one) == -error && strstr(logged, missing);
}

static int without_permission(void)
{
	if (chmod(folder, 0555) < 0 || (geteuid() == 0 && setuid(65534) < 0))
		return 77;
	return !fails_with(EACCES);
}

static int read_only(void)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("none", folder, "tmpfs", MS_RDONLY, NULL) < 0)
		return 77;
	return !fails_with(EROFS);
}

static void a_directory_without_permission_is_reported(void **state)
{
	assert_int_equal(in_child(without_permission), 0);
}

static void a_read_only_directory_is_reported(void **state)
{
	assert_int_equal(in_child(read_only), 0);
}

/* The process that a client is told of. */
static pid_t listener(void)
{
	struct sockaddr_un at = address();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	struct ucred peer = {.pid = 0};
	socklen_t bytes = sizeof(peer);

	if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0)
		(void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes);
	close(fd);
	return peer.pid;
}

/* The engine to which the socket of its parent was passed as descriptor 3. */
static int passed(void)
{
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	setenv("LISTEN_PID", pid, 1);
	setenv("LISTEN_FDS", "1", 1);
	service_open();
	if (client_socket_open(&one) < 0 || client_socket_listen(&one) < 0)
		return 1;
	if (listener() != getppid())
		return 2;
	if (client_socket_answer(&one) < 0 || listener() != getpid())
		return 3;
	client_socket_close(&one);
	return 0;
}

static int passed_as_3(void)
{
	int fd = stranger();
	int status;
	pid_t child = fork();

	if (child == 0)
		_exit(dup2(fd, 3) == 3 ? passed() : 4);
	return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 5;
}

static void a_passed_socket_is_the_engines_only_once_it_answers(void **state)
{
	assert_int_equal(in_child(passed_as_3), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(clients_are_refused_until_the_engine_listens),
		TEST(an_engine_keeps_its_path_from_its_start_to_its_end),
		TEST(a_path_is_free_when_its_engine_was_killed),
		TEST(a_program_without_the_lock_keeps_its_socket_while_it_listens),
		TEST(a_file_that_is_no_socket_is_not_replaced),
		TEST(only_the_last_directory_is_created_and_that_is_logged),
		TEST(a_passed_socket_is_the_engines_only_once_it_answers),
		TEST(a_directory_without_permission_is_reported),
		TEST(a_read_only_directory_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
