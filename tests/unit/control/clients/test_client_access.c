/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_access.c, and the look-ups of config/unit.c: names, and groups of a process, that the host
 * cannot tell at present. The functions of libc below replace the real ones. Who may attach:
 * tests/cluster/test_access.py.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "config/log.h"
#include "config/unit.h"
#include "engine/control/clients/clients_inner.h"

static char logged[2048];
static int names_error; /* errno of each look-up; 0: libc says that there is none */
static struct settings settings;
static struct control control = {.settings = &settings};

struct passwd *getpwnam(const char *name)
{
	errno = names_error;
	return NULL;
}

struct group *getgrnam(const char *name)
{
	errno = names_error;
	return NULL;
}

int getsockopt(int fd, int level, int option, void *ret, socklen_t *bytes)
{
	(void)fd, (void)level, (void)option, (void)ret, (void)bytes;
	errno = ENOMEM;
	return -1;
}

static int setup(void **state)
{
	settings = (struct settings){0};
	names_error = 0;
	log_flush();
	log_test_capture(logged, sizeof(logged));
	return 0;
}

static int teardown(void **state)
{
	log_test_capture(NULL, 0);
	return 0;
}

static void assert_logged(const char *what)
{
	log_flush();
	if (!strstr(logged, what))
		fail_msg("\"%s\" is not in:\n%s", what, logged);
}

static void a_name_that_cannot_be_looked_up_is_not_called_wrong(void **state)
{
	strcpy(settings.engine_allowed_users, "0, sglang");
	names_error = EIO;
	assert_int_equal(client_access_check(&control), -EIO);
	assert_logged(
		"engine.allowed_users: sglang cannot be looked up: Input/output error; write the number");
	settings.engine_allowed_users[0] = '\0';
	strcpy(settings.engine_allowed_groups, "gpu");
	names_error = EAGAIN;
	assert_int_equal(client_access_check(&control), -EAGAIN);
	assert_logged("engine.allowed_groups: gpu cannot be looked up: ");
	assert_null(strstr(logged, "correct it"));
	assert_int_equal(user_allowed("sglang"), -EAGAIN);
	assert_int_equal(user_become("sglang"), -EAGAIN);
}

static void a_name_that_the_host_lacks_is_called_wrong(void **state)
{
	static const int missing[] = {0, ENOENT, ESRCH};

	strcpy(settings.engine_allowed_users, "sglang");
	for (unsigned i = 0; i < 3; i++) {
		names_error = missing[i];
		assert_int_equal(client_access_check(&control), -EINVAL);
		assert_int_equal(user_allowed("sglang"), -ENOENT);
	}
	assert_logged(
		"engine.allowed_users: sglang is neither a number nor a name that this host knows; correct it");
	assert_null(strstr(logged, "cannot be looked up"));
}

static void groups_that_cannot_be_read_are_not_called_none(void **state)
{
	const struct ucred stranger = {.uid = 4200000001u, .gid = 4200000002u};
	struct client_access access;
	char why[224];

	assert_int_equal(client_access_open(&settings, &access), 0);
	access.unknown_user = access.unknown_group = UINT32_MAX;
	assert_false(client_access_allows(&control, &access, -1, &stranger, why, sizeof(why)));
	print_message("%s\n", why);
	assert_non_null(strstr(
		why, "user 4200000001, group 4200000002 (others cannot be read) are not allowed;"));
	access.unknown_user = stranger.uid;
	assert_false(client_access_allows(&control, &access, -1, &stranger, why, sizeof(why)));
	assert_non_null(strstr(why, "and its groups cannot be read; map it there"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_name_that_cannot_be_looked_up_is_not_called_wrong),
		TEST(a_name_that_the_host_lacks_is_called_wrong),
		TEST(groups_that_cannot_be_read_are_not_called_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
