/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of what one client can take from the others: sockets without a request, memory ranges,
 * channels. See client_world.h. $SEED repeats the random run.
 */
#include <sys/syscall.h>
#include <time.h>

#include "tests/unit/control/clients/client_world.h"

/* ---- silent connections ---------------------------------------------------------------------- */

static time_t passed_ms; /* that a test has let pass */

/* The time of the engine and of libevent. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t id, struct timespec *ret)
{
	int rc = (int)syscall(SYS_clock_gettime, id, ret);

	if (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE)
		ret->tv_sec += __atomic_load_n(&passed_ms, __ATOMIC_RELAXED) / 1000;
	return rc;
}

static bool hung_up(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

static void close_all(const int *fd, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		close(fd[i]);
	pump();
}

static void silent_connections_block_no_client(void **state)
{
	enum { SILENT = 3 * SESSIONS_MAX };
	int silent[SILENT], fd[SESSIONS_MAX];
	unsigned dropped = 0;

	for (unsigned i = 0; i < SILENT; i++) {
		silent[i] = dial();
		pump();
	}
	assert_int_equal(control.clients->sessions, 0);
	for (unsigned i = 0; i < SESSIONS_MAX; i++) {
		fd[i] = dial();
		assert_int_equal(status_of(fd[i], ATTACH_HELLO, 0, 0, -1), 0);
	}
	assert_int_equal(control.clients->sessions, SESSIONS_MAX);
	/* The engine closed the oldest of the sockets that had sent no request. */
	while (dropped < SILENT && hung_up(silent[dropped]))
		dropped++;
	for (unsigned i = dropped; i < SILENT; i++)
		assert_false(hung_up(silent[i]));
	assert_true(dropped >= SILENT - CLIENT_SILENT_MAX);
	assert_int_equal(control.counter[COUNTER_clients_silent], dropped);
	close_all(silent, SILENT);
	close_all(fd, SESSIONS_MAX);
}

static void a_connection_with_an_unread_request_is_not_dropped(void **state)
{
	struct attach_request hello = request_of(ATTACH_HELLO, 0, 0);
	int silent[CLIENT_SILENT_MAX], late;
	struct answer a;

	for (unsigned i = 0; i < CLIENT_SILENT_MAX; i++) {
		silent[i] = dial();
		pump();
	}
	/*
	 * One more client connects, and only then the oldest one sends its request: the engine sees
	 * both in one turn.
	 */
	late = dial();
	send_raw(silent[0], &hello, sizeof(hello), NULL, 0);
	pump();
	assert_true(receive(silent[0], &a));
	assert_int_equal(a.reply.status, 0);
	forget_fds(&a);
	assert_int_equal(status_of(late, ATTACH_HELLO, 0, 0, -1), 0);
	close_all(silent, CLIENT_SILENT_MAX);
	close(late);
	pump();
}

static void a_connection_is_closed_when_no_request_comes_in_time(void **state)
{
	int spoke = dial(), silent;
	struct timespec began, ended;

	assert_int_equal(status_of(spoke, ATTACH_HELLO, 0, 0, -1), 0);
	silent = dial();
	clock_gettime(CLOCK_MONOTONIC, &began);
	do {
		pump();
		__atomic_fetch_add(&passed_ms, 50, __ATOMIC_RELAXED);
		clock_gettime(CLOCK_MONOTONIC, &ended);
	} while (!hung_up(silent) && ended.tv_sec - began.tv_sec < 60);
	assert_true(hung_up(silent));
	assert_true(ended.tv_sec - began.tv_sec >= CLIENT_SILENT_SECONDS - 1);
	assert_int_equal(control.counter[COUNTER_clients_silent], 1);
	/* A socket that has sent one request may then be idle without limit. */
	assert_int_equal(status_of(spoke, ATTACH_REPORT, 0, 0, -1), 0);
	close(spoke);
	close(silent);
	pump();
}

/* ---- quotas ---------------------------------------------------------------------------------- */

/* Requests memory ranges or channels until one is refused. Returns the number that it got. */
static unsigned take_all(int fd, enum attach_kind kind, int memfd, struct answer *ret_refusal)
{
	for (unsigned n = 0;; n++) {
		world.commands = 0;
		assert_true(ask(fd, request_of(kind, 0, memfd >= 0 ? 4096 : 0), &memfd, memfd >= 0,
			ret_refusal));
		if (ret_refusal->reply.status < 0)
			return n;
		forget_fds(ret_refusal);
	}
}

static void drop_all(const int *fd, unsigned count)
{
	world.commands = 0;
	for (unsigned i = 0; i < count; i++) {
		close(fd[i]);
		pump();
		rails_answer();
	}
	pump_until_sessions(0);
	assert_int_equal(control.clients->regions, 0);
	assert_int_equal(control.clients->ranges, 0);
	assert_int_equal(control.clients->channels, 0);
}

__attribute__((format(printf, 2, 3))) static void check_reason(
	const struct answer *a, const char *format, ...)
{
	char words[128];
	va_list args;

	va_start(args, format);
	vsnprintf(words, sizeof(words), format, args);
	va_end(args);
	if (!strstr(a->reply.text, words))
		print_message("\"%s\" is not in: %s\n", words, a->reply.text);
	assert_non_null(strstr(a->reply.text, words));
}

static void one_session_leaves_half_of_all_ranges_and_channels_to_others(void **state)
{
	const unsigned ranges = SESSION_ALONE(CLIENT_RANGES_MAX, RANGES_SESSION_SURE);
	const unsigned channels = SESSION_ALONE(CHANNELS_MAX, CHANNELS_SESSION_SURE);
	int fd[2], memfd = memfd_of(4096, F_SEAL_SHRINK);
	struct answer a;
	unsigned n;

	fd[0] = dial();
	n = take_all(fd[0], ATTACH_REGION_ADD, memfd, &a);
	assert_int_equal(n, ranges);
	assert_int_equal(a.reply.status, -EMFILE);
	check_reason(&a, "%u memory ranges", ranges);
	check_reason(&a, "%u of %u are left to 1 sessions", CLIENT_RANGES_MAX - ranges,
		CLIENT_RANGES_MAX);
	assert_non_null(strstr(a.reply.text, "release some"));
	n = take_all(fd[0], ATTACH_CHANNEL_OPEN, -1, &a);
	assert_int_equal(n, channels);
	assert_int_equal(n, 65); /* as README.md of control/clients says */
	assert_int_equal(a.reply.status, -EMFILE);
	check_reason(&a, "%u channels open", channels);
	check_reason(&a, "%u of 256 are left", CHANNELS_MAX - channels);
	assert_non_null(strstr(a.reply.text, "Close some"));
	fd[1] = dial();
	assert_true(take_all(fd[1], ATTACH_REGION_ADD, memfd, &a) > RANGES_SESSION_MIN);
	assert_true(take_all(fd[1], ATTACH_CHANNEL_OPEN, -1, &a) > CHANNELS_SESSION_MIN);
	close(memfd);
	drop_all(fd, 2);
}

static void a_share_is_not_exceeded_by_several_at_once(void **state)
{
	const unsigned kept = (SESSIONS_MAX - 1) * EXTENTS_SESSION_SURE;
	const struct session *s;
	unsigned left, share;
	int fd = dial();

	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, -1), 0);
	s = control.clients->session[0];
	left = clients_left(control.clients, SHARE_EXTENTS);
	share = (left - kept) / 2;
	assert_true(session_may_take(s, SHARE_EXTENTS, share));
	assert_false(session_may_take(s, SHARE_EXTENTS, share + 1));
	assert_false(session_may_take(s, SHARE_EXTENTS, left - kept));
	assert_false(session_may_take(s, SHARE_EXTENTS, left));
	assert_false(session_may_take(s, SHARE_EXTENTS, UINT32_MAX));
	close(fd);
	pump();
}

/* As many sessions as there may be, each of which takes all that it gets. */
static void many_sessions_leave_each_later_one_its_part(void **state)
{
	int fd[SESSIONS_MAX], memfd = memfd_of(4096, F_SEAL_SHRINK);
	unsigned ranges = 0, channels = 0, n;
	struct answer a;

	for (unsigned i = 0; i < SESSIONS_MAX; i++) {
		fd[i] = dial();
		n = take_all(fd[i], ATTACH_REGION_ADD, memfd, &a);
		assert_true(n >= RANGES_SESSION_SURE);
		ranges += n;
		n = take_all(fd[i], ATTACH_CHANNEL_OPEN, -1, &a);
		assert_true(n >= CHANNELS_SESSION_SURE);
		channels += n;
	}
	/* when all are here, nothing is kept; the ranges leave the regions of staging memory */
	assert_int_equal(ranges, CLIENT_RANGES_MAX);
	assert_int_equal(channels, CHANNELS_MAX);
	check_reason(&a, " 0 of %u are left", CHANNELS_MAX);
	close(memfd);
	drop_all(fd, SESSIONS_MAX);
}

static void quotas_hold_under_random_requests_and_releases(void **state)
{
	enum { SESSIONS = 20, TURNS = 6000 };
	const char *text = getenv("SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : (unsigned)time(NULL);
	int fd[SESSIONS], memfd = memfd_of(4096, F_SEAL_SHRINK);
	unsigned has[SESSIONS] = {0}, all = 0, refused = 0;
	static uint64_t id[SESSIONS][CLIENT_RANGES_MAX];

	print_message("SEED=%u\n", seed);
	for (unsigned i = 0; i < SESSIONS; i++) {
		fd[i] = dial();
		assert_int_equal(status_of(fd[i], ATTACH_HELLO, 0, 0, -1), 0);
	}
	for (unsigned turn = 0; turn < TURNS; turn++) {
		unsigned i = (unsigned)rand_r(&seed) % SESSIONS / (1 + turn % 4);
		unsigned left = CLIENT_RANGES_MAX - all, share;
		unsigned kept = (SESSIONS_MAX - SESSIONS) * RANGES_SESSION_SURE;
		struct answer a;

		for (unsigned k = 0; k < SESSIONS; k++)
			if (k != i && has[k] < RANGES_SESSION_SURE)
				kept += RANGES_SESSION_SURE - has[k];

		world.commands = 0;
		if (has[i] && rand_r(&seed) % 4 == 0) {
			assert_false(ask(fd[i],
				request_of(ATTACH_REGION_REMOVE, id[i][--has[i]], 0), NULL, 0, &a));
			rails_answer();
			pump();
			assert_true(receive(fd[i], &a));
			all--;
			continue;
		}
		assert_true(ask(fd[i], request_of(ATTACH_REGION_ADD, 0, 4096), &memfd, 1, &a));
		share = left > kept ? (left - kept - 1) / SESSIONS : 0;
		if (share < RANGES_SESSION_MIN)
			share = RANGES_SESSION_MIN;
		assert_int_equal(a.reply.status, left > kept && has[i] + 1 <= share ? 0 : -EMFILE);
		refused += a.reply.status < 0;
		if (a.reply.status == 0) {
			id[i][has[i]++] = a.reply.a;
			all++;
		}
	}
	assert_true(refused > 10);
	assert_int_equal(control.clients->ranges, all);
	close(memfd);
	drop_all(fd, SESSIONS);
}

/* ---- users ----------------------------------------------------------------------------------- */

enum { STRANGER = 4711 };

/* A session of another user than the test's. */
static int dial_as(uint32_t uid)
{
	int fd = dial();

	pump();
	for (unsigned i = 0; i < CLIENT_SILENT_MAX; i++)
		if (control.clients->silent[i])
			control.clients->silent[i]->uid = uid;
	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, -1), 0);
	return fd;
}

static void a_user_with_many_sessions_leaves_other_users_theirs(void **state)
{
	int fd[SESSIONS_MAX + 1];
	unsigned kept, n = 0;

	control.clients->access.clients.users.count = 1;
	kept = (client_access_users(&control.clients->access) - 1) * SESSIONS_USER_SURE;
	assert_true(kept >= SESSIONS_USER_SURE);
	do {
		fd[n] = dial();
	} while (status_of(fd[n], ATTACH_HELLO, 0, 0, -1) == 0 && ++n);
	assert_int_equal(n, SESSIONS_MAX - kept);
	assert_int_equal(control.counter[COUNTER_clients_refused], 1);
	close(fd[n]);
	for (unsigned i = 0; i < SESSIONS_USER_SURE; i++)
		fd[n++] = dial_as(STRANGER);
	control.clients->access.clients.users.count = 0;
	close_all(fd, n);
}

static void the_channels_of_a_user_are_a_share_among_users(void **state)
{
	enum { SESSIONS = 8 };
	unsigned rest = CHANNELS_MAX - 3 - (SESSIONS_MAX - 1) * CHANNELS_SESSION_SURE;
	unsigned all = 0;
	int fd[1 + SESSIONS];
	struct answer a;

	fd[0] = dial_as(STRANGER);
	for (unsigned i = 0; i < 3; i++) {
		world.commands = 0;
		assert_int_equal(status_of(fd[0], ATTACH_CHANNEL_OPEN, 0, 0, -1), 0);
	}
	for (unsigned i = 1; i <= SESSIONS; i++) {
		fd[i] = dial();
		all += take_all(fd[i], ATTACH_CHANNEL_OPEN, -1, &a);
	}
	check_reason(&a, "of 2 users");
	assert_true(all >= SESSIONS * CHANNELS_SESSION_SURE + rest / 3 - 1);
	assert_true(all <= SESSIONS * CHANNELS_SESSION_SURE + rest / 3 + 1);
	assert_true(control.counter[COUNTER_clients_denied] >= SESSIONS);
	assert_true(3 + take_all(fd[0], ATTACH_CHANNEL_OPEN, -1, &a) >= CHANNELS_SESSION_MIN);
	drop_all(fd, 1 + SESSIONS);
}

static void the_memory_of_a_user_is_limited_over_its_sessions(void **state)
{
	int fd[3], memfd = memfd_of(4096, F_SEAL_SHRINK);
	struct answer a;

	settings.engine_user_memory = 3 * 4096;
	fd[2] = dial_as(STRANGER);
	fd[0] = dial();
	fd[1] = dial();
	assert_int_equal(status_of(fd[0], ATTACH_REGION_ADD, 0, 4096, memfd), 0);
	assert_int_equal(take_all(fd[1], ATTACH_REGION_ADD, memfd, &a), 2);
	check_reason(&a, "has more than engine.user_memory, 12288");
	assert_int_equal(take_all(fd[2], ATTACH_REGION_ADD, memfd, &a), 3);
	settings.engine_user_memory = 0;
	close(memfd);
	drop_all(fd, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(silent_connections_block_no_client),
		TEST(a_connection_with_an_unread_request_is_not_dropped),
		TEST(a_connection_is_closed_when_no_request_comes_in_time),
		TEST(one_session_leaves_half_of_all_ranges_and_channels_to_others),
		TEST(a_share_is_not_exceeded_by_several_at_once),
		TEST(many_sessions_leave_each_later_one_its_part),
		TEST(quotas_hold_under_random_requests_and_releases),
		TEST(a_user_with_many_sessions_leaves_other_users_theirs),
		TEST(the_channels_of_a_user_are_a_share_among_users),
		TEST(the_memory_of_a_user_is_limited_over_its_sessions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
