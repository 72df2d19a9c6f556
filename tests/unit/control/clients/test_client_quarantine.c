/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions that end while a thread of the client copies into a page slot: the channel stays until
 * the thread has left the slot or its process has exited. ctl.c is a stub: world.copying says
 * whether a copy is in progress.
 */
#include "tests/unit/control/clients/client_world.h"

#include <sys/syscall.h>

static void pump_until_channels(unsigned channels)
{
	for (unsigned i = 0; i < 60000 && control.clients->channels != channels; i++) {
		pump();
		usleep(1000);
	}
	assert_int_equal(control.clients->channels, channels);
}

static int open_channels(unsigned n, uint64_t *ret_id)
{
	struct answer a;
	int fd = dial();

	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, -1), 0);
	for (unsigned i = 0; i < n; i++) {
		assert_true(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
		assert_int_equal(a.reply.status, 0);
		forget_fds(&a);
		*ret_id = a.reply.a;
	}
	return fd;
}

static void a_channel_stays_until_its_client_has_left_the_slot(void **state)
{
	uint64_t id;
	int fd = open_channels(1, &id);

	world.copying = true;
	close(fd);
	pump();
	rails_answer();
	for (unsigned i = 0; i < 5; i++) {
		usleep(CLIENT_QUARANTINE_US);
		pump();
	}
	assert_int_equal(control.clients->channels, 1);
	assert_int_equal(control.clients->quarantined, 1);
	/* this write would fault if the engine had unmapped the channel's segment */
	control.clients->channel[id]->map[0] = 1;
	world.copying = false;
	pump_until_channels(0);
	assert_int_equal(control.clients->quarantined, 0);
	assert_int_equal(world.exited, 0);
	pump_until_sessions(0);
}

static void a_close_is_answered_while_the_slot_is_in_quarantine(void **state)
{
	struct answer a;
	uint64_t id;
	int fd = open_channels(2, &id);

	world.copying = true;
	assert_false(ask(fd, request_of(ATTACH_CHANNEL_CLOSE, id, 0), NULL, 0, &a));
	rails_answer();
	pump();
	assert_true(receive(fd, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(control.clients->quarantined, 1);
	assert_int_equal(status_of(fd, ATTACH_CHANNEL_CLOSE, id, 0, -1), -EINVAL);
	world.copying = false;
	pump_until_channels(1);
	close(fd);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

static void the_exit_of_a_process_ends_its_quarantine(void **state)
{
	int status, go[2];
	pid_t child;

	assert_int_equal(pipe(go), 0);
	child = fork();
	if (child == 0) {
		const struct attach_request hello = request_of(ATTACH_HELLO, 0, 0);
		const struct attach_request open = request_of(ATTACH_CHANNEL_OPEN, 0, 0);
		int fd = dial();

		send_raw(fd, &hello, sizeof(hello), NULL, 0);
		send_raw(fd, &open, sizeof(open), NULL, 0);
		(void)!write(go[1], "", 1);
		for (;;)
			pause();
	}
	assert_int_equal(read(go[0], &status, 1), 1);
	pump();
	assert_int_equal(control.clients->channels, 1);
	world.copying = true;
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	pump();
	rails_answer();
	pump_until_channels(0);
	assert_int_equal(world.exited, 1);
	pump_until_sessions(0);
	close(go[0]);
	close(go[1]);
}

/*
 * A child made by fork() keeps the parent's socket open, but the session ends with the parent's
 * process.
 */
static void a_forked_child_does_not_keep_the_session_of_its_parent(void **state)
{
	int status, go[2], stay[2];
	pid_t child;

	assert_int_equal(pipe(go), 0);
	assert_int_equal(pipe(stay), 0);
	child = fork();
	if (child == 0) {
		const struct attach_request hello = request_of(ATTACH_HELLO, 0, 0);
		int fd = dial();

		send_raw(fd, &hello, sizeof(hello), NULL, 0);
		if (fork() == 0) {
			close(stay[1]);
			/*
			 * this read keeps the child alive: it returns when the test closes the pipe
			 */
			(void)!read(stay[0], &status, 1);
			_exit(0);
		}
		(void)!write(go[1], "", 1);
		for (;;)
			pause();
	}
	assert_int_equal(read(go[0], &status, 1), 1);
	pump();
	assert_int_equal(control.clients->sessions, 1);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	pump_until_sessions(0);
	close(go[0]);
	close(go[1]);
	close(stay[0]);
	close(stay[1]);
}

static void a_process_with_many_slots_in_quarantine_gets_no_credits(void **state)
{
	struct channel *last;
	uint64_t id, first;
	int fd = open_channels(CLIENT_QUARANTINE_MAX, &id), other;

	other = open_channels(1, &first);
	assert_false(control.clients->channel[first]->ctl.no_credits);
	world.copying = true;
	close(fd);
	pump();
	rails_answer();
	pump();
	assert_int_equal(control.clients->quarantined, CLIENT_QUARANTINE_MAX);
	/* Both the other session of this process and one that it opens next get no credits. */
	assert_true(control.clients->channel[first]->ctl.no_credits);
	fd = open_channels(1, &id);
	last = control.clients->channel[id];
	assert_true(last->ctl.no_credits);
	world.copying = false;
	pump_until_channels(2);
	assert_false(control.clients->channel[first]->ctl.no_credits);
	assert_false(last->ctl.no_credits);
	close(fd);
	close(other);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

/* A client that sends no HELLO request gives the engine no pidfd, so it cannot be watched. */
static void a_process_that_cannot_be_watched_gets_no_credits(void **state)
{
	struct answer a;
	int fd = dial();

	assert_true(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	forget_fds(&a);
	assert_true(control.clients->channel[a.reply.a]->ctl.no_credits);
	close(fd);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

static bool no_peerpidfd; /* as Linux before 6.5 */

__attribute__((visibility("default"))) int getsockopt(
	int fd, int level, int name, void *restrict value, socklen_t *restrict bytes)
{
	if (no_peerpidfd && level == SOL_SOCKET && name == 77 /* SO_PEERPIDFD */) {
		errno = ENOPROTOOPT;
		return -1;
	}
	return (int)syscall(SYS_getsockopt, fd, level, name, value, bytes);
}

/* The engine would take the memory of a client that is alive, or keep that of one that is not. */
static void a_pidfd_of_another_process_is_not_that_of_the_client(void **state)
{
	pid_t child = fork();
	int fd, pidfd;

	if (child == 0)
		for (;;)
			pause();
	no_peerpidfd = true;
	fd = dial();
	pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, pidfd), 0);
	close(pidfd);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	pump();
	assert_int_equal(control.clients->sessions, 1);
	no_peerpidfd = false;
	close(fd);
	pump_until_sessions(0);
}

static void hello_accepts_a_pidfd(void **state)
{
	int fd = dial(), pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

	assert_true(pidfd >= 0);
	/* three times, to see that the engine leaks no descriptor */
	for (unsigned n = 0; n < 3; n++)
		assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, pidfd), 0);
	close(pidfd);
	close(fd);
	pump_until_sessions(0);
}

static void a_stopping_engine_does_not_wait_for_slots_in_quarantine(void **state)
{
	uint64_t id;
	int fd = open_channels(1, &id);

	world.copying = true;
	close(fd);
	pump();
	rails_answer();
	pump();
	assert_int_equal(control.clients->sessions, 1);
	control.stopping = true;
	clients_stop(&control);
	pump();
	assert_int_equal(control.clients->sessions, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_channel_stays_until_its_client_has_left_the_slot),
		TEST(a_close_is_answered_while_the_slot_is_in_quarantine),
		TEST(the_exit_of_a_process_ends_its_quarantine),
		TEST(a_forked_child_does_not_keep_the_session_of_its_parent),
		TEST(a_process_with_many_slots_in_quarantine_gets_no_credits),
		TEST(a_process_that_cannot_be_watched_gets_no_credits),
		TEST(a_pidfd_of_another_process_is_not_that_of_the_client),
		TEST(hello_accepts_a_pidfd),
		TEST(a_stopping_engine_does_not_wait_for_slots_in_quarantine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
