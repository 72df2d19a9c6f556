/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The socket and its protocol: which connections and requests are accepted, and the reasons given
 * for refusals. See client_world.h.
 */
#include <netinet/in.h>

#include "tests/unit/control/clients/client_world.h"

/* ---- the protocol ---------------------------------------------------------------------------- */

/* Memory that is no session's has the number 0. */
static void no_session_has_the_number_0(void **state)
{
	int fd = dial();

	control.clients->last_session = UINT32_MAX;
	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, -1), 0);
	assert_int_equal(control.clients->session[0]->id, 1);
	close(fd);
	pump();
}

static void hello_hands_out_the_memory_that_clients_map(void **state)
{
	struct answer a;
	int fd = dial();

	assert_true(ask(fd, request_of(ATTACH_HELLO, 0, 0), NULL, 0, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(a.reply.a, RAILS);
	assert_int_equal(a.fds, 3 + 3 * RAILS + 1);
	for (unsigned i = 0; i < 3 + 3 * RAILS; i++) {
		void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd[i], 0);
		bool is_pool = i >= 3 && (i - 3) % 3 == 0;

		assert_int_equal(map != MAP_FAILED, is_pool);
		if (is_pool)
			munmap(map, 4096);
	}
	/*
	 * the descriptors 0 and 2 of the reply, the status segment and the shard, can be mapped for
	 * reading
	 */
	for (unsigned i = 0; i < 3; i += 2) {
		void *map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, a.fd[i], 0);

		assert_true(map != MAP_FAILED);
		munmap(map, 4096);
	}
	forget_fds(&a);
	close(fd);
	pump();
	assert_int_equal(control.clients->sessions, 0);
}

static unsigned lines_of(const char *text)
{
	unsigned lines = 0;

	for (; (text = strchr(text, '\n')); text++)
		lines++;
	return lines;
}

static void clients_of_another_protocol_are_refused_with_a_reason(void **state)
{
	struct attach_request r = request_of(ATTACH_HELLO, 0, 0);
	char logged[4096];
	struct client_counts counts;
	struct answer a;
	int fd;

	log_test_capture(logged, sizeof(logged));
	for (unsigned i = 0; i < 2; i++) {
		r = request_of(ATTACH_HELLO, 0, 0);
		if (i == 0)
			r.magic++;
		else
			r.version = 77;
		fd = dial();
		assert_true(ask(fd, r, NULL, 0, &a));
		assert_int_equal(a.reply.status, -EPROTO);
		if (i == 1) {
			char ours[16];

			snprintf(ours, sizeof(ours), " %u", ABI_VERSION);
			assert_non_null(strstr(a.reply.text, "77"));
			assert_non_null(strstr(a.reply.text, ours));
			assert_non_null(
				strstr(a.reply.text, "restart the engine with its newer program"));
			assert_non_null(strstr(logged, a.reply.text)); /* both sides say it */
		}
		assert_int_equal(recv(fd, &a, sizeof(a), MSG_DONTWAIT), 0);
		close(fd);
	}
	assert_int_equal(control.counter[COUNTER_clients_refused], 2);
	assert_int_equal(lines_of(logged), 2);
	/* a request of another length says the same, and the process is in the log once for it */
	for (unsigned i = 0; i < 2; i++) {
		fd = dial();
		send_raw(fd, &r, sizeof(r) - 8 * i - 8, NULL, 0);
		pump();
		assert_true(receive(fd, &a));
		assert_non_null(strstr(a.reply.text, "has version 77 of the client protocol"));
		close(fd);
	}
	assert_int_equal(control.counter[COUNTER_clients_refused], 4);
	log_flush();
	assert_int_equal(lines_of(logged), 2);
	/* one that has not tried for a while may be another one with its number */
	client_counts(&control, &counts);
	assert_int_equal(counts.refused, 0);
	control.clients->refusal[1].since_ns -= CLIENT_TRIES_NS;
	client_counts(&control, &counts);
	assert_int_equal(counts.refused, 1);
	assert_int_equal(counts.refused_pid, getpid());
	assert_non_null(strstr(counts.refusal, "has version 77 of the client protocol"));
	control.clients->refusal[1].tried_ns -= CLIENT_TRIES_NS; /* it gave up */
	client_counts(&control, &counts);
	assert_int_equal(counts.refused, 0);
	control.clients->refusal[1].tried_ns -= CLIENT_REFUSAL_NS;
	fd = dial();
	assert_true(ask(fd, r, NULL, 0, &a));
	close(fd);
	log_flush();
	assert_int_equal(lines_of(logged), 3);
	log_test_capture(NULL, 0);
	pump();
	assert_int_equal(control.clients->sessions, 0);
}

static void requests_of_another_length_are_refused(void **state)
{
	struct attach_request r = request_of(ATTACH_HELLO, 0, 0);
	struct answer a;
	int fd;

	for (size_t n = 1; n <= sizeof(r) + 1; n += sizeof(r) / 2 - 1) {
		char bytes[sizeof(r) + 1];

		memset(bytes, 0, sizeof(bytes));
		memcpy(bytes, &r, sizeof(r));
		n = n > sizeof(r) - 2 ? sizeof(r) + 1 : n;
		fd = dial();
		send_raw(fd, bytes, n, NULL, 0);
		pump();
		assert_true(receive(fd, &a));
		assert_int_equal(a.reply.status, -EPROTO);
		assert_int_equal(recv(fd, &a, sizeof(a), MSG_DONTWAIT), 0);
		close(fd);
	}
	pump();
	assert_int_equal(control.clients->sessions, 0);
}

static void unknown_requests_are_refused_and_surplus_files_closed(void **state)
{
	unsigned before;
	struct answer a;
	int fd, fds[41] = {0};

	SKIP_EMULATED("it leaks files that a control message has no room for");
	fd = dial();
	pump();
	before = open_files();
	assert_int_equal(status_of(fd, 0, 0, 0, -1), -EINVAL);
	assert_int_equal(status_of(fd, 99, 0, 0, -1), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 4096, -1), -EINVAL);
	for (unsigned n = 1; n <= 40; n += 13) {
		assert_true(ask(fd, request_of(ATTACH_HELLO, 0, 0), fds, n + 1, &a));
		assert_int_equal(a.reply.status, -EINVAL);
		assert_true(ask(fd, request_of(ATTACH_REGION_ADD, 0, 4096), fds, n + 1, &a));
		assert_int_equal(a.reply.status, -EINVAL);
	}
	open_files_soon(before);
	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, -1), 0);
	close(fd);
}

static void files_of_an_empty_message_are_closed(void **state)
{
	unsigned before = open_files();
	int fds[40] = {0}, fd = dial(), second = dial();

	send_raw(fd, NULL, 0, fds, 40);
	pump();
	assert_int_equal(status_of(second, ATTACH_HELLO, 0, 0, -1), 0);
	send_raw(second, NULL, 0, fds, 1);
	pump();
	assert_int_equal(control.clients->sessions, 0);
	close(fd);
	close(second);
	open_files_soon(before);
}

/* Returns a TCP socket for which the close of its last descriptor blocks until its data is sent. */
static int lingering_socket(int *ret_other)
{
	const struct linger linger = {.l_onoff = 1, .l_linger = 30};
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	static char much[1 << 16];

	assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, bytes), 0);
	*ret_other = accept(listener, NULL, NULL);
	close(listener);
	while (send(fd, much, sizeof(much), MSG_DONTWAIT) > 0)
		continue;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)), 0);
	return fd;
}

static void a_file_whose_close_blocks_does_not_block_the_loop(void **state)
{
	unsigned before = open_files();
	static char much[1 << 16];
	struct answer a;
	int other, file = lingering_socket(&other), fd = dial(), second = dial();
	const struct attach_request r = request_of(ATTACH_CHANNEL_OPEN, 0, 0);

	/*
	 * ends the test if a close blocks the engine; shorter than the time for which the close
	 * lingers
	 */
	alarm(25);
	send_raw(fd, &r, sizeof(r), &file, 1);
	/* from here on only the message to the engine, still in the socket, refers to the file */
	close(file);
	pump();
	assert_true(receive(fd, &a));
	assert_int_equal(a.reply.status, -EINVAL);
	assert_int_equal(status_of(second, ATTACH_REPORT, 0, 0, -1), 0);
	alarm(0);
	while (recv(other, much, sizeof(much), 0) > 0)
		continue;
	close(other);
	close(fd);
	close(second);
	pump();
	open_files_soon(before);
}

static void a_report_is_a_file_with_json(void **state)
{
	char text[64] = "";
	struct answer a;
	int fd = dial();

	assert_true(ask(fd, request_of(ATTACH_REPORT, 0, 0), NULL, 0, &a));
	assert_int_equal(a.fds, 1);
	assert_int_equal(read(a.fd[0], text, sizeof(text)), a.reply.a);
	assert_string_equal(text, "{\"name\":\"x\"}");
	forget_fds(&a);
	close(fd);
}

static void a_process_of_another_user_is_refused_with_a_reason(void **state)
{
	int status, go[2];
	pid_t child;

	if (geteuid() != 0) {
		printf("skipped: only root can become another user\n");
		skip();
	}
	assert_int_equal(pipe(go), 0);
	child = fork();
	if (child == 0) {
		struct attach_request r = request_of(ATTACH_HELLO, 0, 0);
		struct answer a;
		int fd;

		if (setuid(65534) < 0)
			_exit(1);
		fd = dial();
		send_raw(fd, &r, sizeof(r), NULL, 0);
		if (write(go[1], "", 1) != 1)
			_exit(2);
		while (!receive(fd, &a))
			usleep(1000);
		_exit(a.reply.status == -EPERM && a.fds == 0 && strstr(a.reply.text, "65534") &&
					recv(fd, &a, sizeof(a), 0) == 0
				? 0
				: 3);
	}
	assert_int_equal(read(go[0], &status, 1), 1);
	pump();
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(control.counter[COUNTER_clients_refused], 1);
	assert_int_equal(control.clients->sessions, 0);
	close(go[0]);
	close(go[1]);
}

static void one_session_too_many_is_refused(void **state)
{
	int fd[SESSIONS_MAX + 1];

	for (unsigned i = 0; i <= SESSIONS_MAX; i++) {
		fd[i] = dial();
		assert_int_equal(
			status_of(fd[i], ATTACH_REPORT, 0, 0, -1), i < SESSIONS_MAX ? 0 : -EUSERS);
	}
	close(fd[7]);
	pump();
	close(fd[SESSIONS_MAX]);
	fd[SESSIONS_MAX] = dial();
	assert_int_equal(status_of(fd[SESSIONS_MAX], ATTACH_REPORT, 0, 0, -1), 0);
	for (unsigned i = 0; i <= SESSIONS_MAX; i++)
		if (i != 7)
			close(fd[i]);
	pump();
}

static void refused_clients_that_stay_do_not_block_others(void **state)
{
	int fd[SESSIONS_MAX], more[3 * CLIENT_REFUSED_MAX];

	for (unsigned i = 0; i < SESSIONS_MAX; i++) {
		fd[i] = dial();
		assert_int_equal(status_of(fd[i], ATTACH_HELLO, 0, 0, -1), 0);
	}
	for (unsigned i = 0; i < 3 * CLIENT_REFUSED_MAX; i++) {
		more[i] = dial();
		assert_int_equal(status_of(more[i], ATTACH_HELLO, 0, 0, -1), -EUSERS);
	}
	close(fd[0]);
	pump();
	fd[0] = dial();
	assert_int_equal(status_of(fd[0], ATTACH_REPORT, 0, 0, -1), 0);
	for (unsigned i = 0; i < 3 * CLIENT_REFUSED_MAX; i++)
		close(more[i]);
	for (unsigned i = 0; i < SESSIONS_MAX; i++)
		close(fd[i]);
	pump();
	/* no later one takes the place of this one */
	fd[0] = dial();
	pump();
	close(fd[0]);
	pump();
	assert_int_equal(control.clients->endings, 0);
	for (unsigned i = 0; i < CLIENT_PLACES; i++)
		assert_null(control.clients->place[i]);
}

static void a_pipelining_client_that_does_not_read_is_disconnected(void **state)
{
	struct attach_request r = request_of(ATTACH_CHANNEL_CLOSE, 999, 0);
	int fd = dial();
	unsigned i;

	assert_int_equal(status_of(fd, ATTACH_HELLO, 0, 0, -1), 0);
	for (i = 0; i < 100000 && control.clients->sessions; i++) {
		(void)!send(fd, &r, sizeof(r), MSG_DONTWAIT | MSG_NOSIGNAL);
		pump();
	}
	assert_int_equal(control.clients->sessions, 0);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(no_session_has_the_number_0),
		TEST(hello_hands_out_the_memory_that_clients_map),
		TEST(clients_of_another_protocol_are_refused_with_a_reason),
		TEST(requests_of_another_length_are_refused),
		TEST(unknown_requests_are_refused_and_surplus_files_closed),
		TEST(files_of_an_empty_message_are_closed),
		TEST(a_file_whose_close_blocks_does_not_block_the_loop),
		TEST(a_report_is_a_file_with_json),
		TEST(a_process_of_another_user_is_refused_with_a_reason),
		TEST(one_session_too_many_is_refused),
		TEST(refused_clients_that_stay_do_not_block_others),
		TEST(a_pipelining_client_that_does_not_read_is_disconnected),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
