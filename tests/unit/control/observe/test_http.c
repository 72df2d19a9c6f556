/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c: what is accepted, what is refused and with which status, and that slow, silent and
 * numerous clients are bounded. Clients are sockets in the same process; the event base is turned
 * by the test, and the clock is the test's.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/control/observe/http_inner.h"
#include "engine/control/observe/http_token_inner.h"
#include "numa/clock.h"

/* ---- parsing --------------------------------------------------------------------------------- */

static int parse(const char *text)
{
	struct http_request request;

	return http_parse(text, strlen(text), &request);
}

static void requests_are_parsed_whole_or_not_at_all(void **state)
{
	static const char text[] = "GET /api/status?x=1 HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n";
	struct http_request request;

	for (size_t bytes = 0; bytes < sizeof(text) - 1; bytes++)
		assert_int_equal(http_parse(text, bytes, &request), 0);
	assert_int_equal(http_parse(text, sizeof(text) - 1, &request), sizeof(text) - 1);
	assert_string_equal(request.path, "/api/status");
	assert_false(request.head);
	assert_int_equal(http_parse("HEAD / HTTP/1.0\n\nmore", 21, &request), 17);
	assert_true(request.head);
	assert_string_equal(request.path, "/");
}

static const char *authorization(struct http_request *request, const char *lines)
{
	char text[HTTP_REQUEST_BYTES];
	int bytes = snprintf(text, sizeof(text), "GET / HTTP/1.1\r\n%s\r\n", lines);

	memset(request, 'x', sizeof(*request));
	assert_int_equal(http_parse(text, (size_t)bytes, request), bytes);
	return request->authorization;
}

static void the_authorization_is_kept_whole_or_not_at_all(void **state)
{
	struct http_request request;
	char lines[HTTP_AUTHORIZATION_BYTES + 64];

	assert_string_equal(authorization(&request, ""), "");
	assert_string_equal(authorization(&request, "Host: a\r\n"), "");
	assert_string_equal(
		authorization(&request, "A: b\r\naUTHORIZATION: \t Bearer x \r\nC: d\r\n"),
		"Bearer x");
	assert_string_equal(authorization(&request, "Authorization:\r\n"), "");
	assert_string_equal(authorization(&request, "Authorization\r\n"), "");
	assert_string_equal(authorization(&request, "X-Authorization: a\r\n"), "");
	assert_string_equal(
		authorization(&request, "Authorization: a\r\nAuthorization: b\r\n"), "a");
	for (unsigned over = 0; over < 2; over++) {
		unsigned bytes = HTTP_AUTHORIZATION_BYTES - 1 + over;

		snprintf(lines, sizeof(lines), "Authorization: %0*d\r\n", (int)bytes, 0);
		assert_int_equal(strlen(authorization(&request, lines)), over ? 0 : (size_t)bytes);
	}
}

/* The token keeps `path`, which ends in XXXXXX. */
static struct http_token token_of(char *path, const char *text)
{
	struct http_token token;
	int fd = mkstemp(path);

	assert_true(fd >= 0 && dprintf(fd, "%s\n", text) > 0);
	assert_int_equal(http_token_open(path, &token), 0);
	close(fd);
	unlink(path);
	return token;
}

static void a_token_is_accepted_as_bearer_or_password_and_nothing_else_is(void **state)
{
	char path[] = "/tmp/peercache-token-XXXXXX";
	struct http_token token = token_of(path, "0123456789abcdef"), none;
	char longer[HTTP_AUTHORIZATION_BYTES];

	assert_int_equal(http_token_open("", &none), 0);
	assert_true(http_token_allows(&none, ""));
	assert_true(http_token_allows(&token, "Bearer 0123456789abcdef"));
	assert_true(http_token_allows(&token, "bearer 0123456789abcdef"));
	assert_true(http_token_allows(&token, "Basic YTowMTIzNDU2Nzg5YWJjZGVm"));
	assert_true(http_token_allows(&token, "Basic OjAxMjM0NTY3ODlhYmNkZWY="));
	static const char *const wrong[] = {"", "0123456789abcdef", "Bearer", "Bearer ",
		"Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Bearer 0123456789abcdeF",
		"Basic ", "Basic YQ==", "Basic MDEyMzQ1Njc4OWFiY2RlZg==", "Basic ????",
		"Basic YTowMTIzNDU2Nzg5YWJjZGVmMA==", "Digest 0123456789abcdef"};
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_false(http_token_allows(&token, wrong[i]));
	snprintf(longer, sizeof(longer), "Bearer 0123456789abcdef%0300d", 0);
	assert_false(http_token_allows(&token, longer));
}

static void requests_that_are_refused_have_their_status(void **state)
{
	char text[HTTP_REQUEST_BYTES + 1];

	assert_int_equal(parse("POST / HTTP/1.1\r\n\r\n"), -405);
	assert_int_equal(parse("DELETE /metrics HTTP/1.1\r\n\r\n"), -405);
	assert_int_equal(parse("get / HTTP/1.1\r\n\r\n"), -405);
	assert_int_equal(parse("\r\n"), -400);
	assert_int_equal(parse("\x16\x03\x01\n"), -400); /* TLS */
	assert_int_equal(parse("GET /\r\n\r\n"), -400);  /* HTTP/0.9 */
	assert_int_equal(parse("GET  HTTP/1.1\r\n\r\n"), -400);
	assert_int_equal(parse("GET http://a/ HTTP/1.1\r\n\r\n"), -400);
	assert_int_equal(parse("GET /a b HTTP/1.1\r\n\r\n"), -400);
	assert_int_equal(parse("GET /\x01 HTTP/1.1\r\n\r\n"), -400);
	assert_int_equal(parse("GET /\xff HTTP/1.1\r\n\r\n"), -400);
	assert_int_equal(parse("GET / HTTP/2.0\r\n\r\n"), -505);
	assert_int_equal(parse("GET / HTTP/1.10\r\n\r\n"), -505);
	memset(text, 'a', sizeof(text));
	memcpy(text, "GET /", 5);
	assert_int_equal(http_parse(text, HTTP_REQUEST_BYTES, &(struct http_request){0}), -431);
	memcpy(text + 400, " HTTP/1.1\r\n", 11);
	assert_int_equal(http_parse(text, 411, &(struct http_request){0}), -414);
	memcpy(text, "GET / HTTP/1.1\r\n", 16);
	memset(text + 16, 'a', sizeof(text) - 16);
	assert_int_equal(http_parse(text, HTTP_REQUEST_BYTES, &(struct http_request){0}), -431);
}

/* ---- a server and its clients ---------------------------------------------------------------- */

#define BODY_BYTES (16u << 20) /* more than the kernel buffers for a client that reads nothing */

static struct event_base *base;
static struct http *http;
static struct evbuffer *large;
static unsigned large_freed;
static struct sockaddr_in address;
static uint64_t now_ns;
static unsigned answers;

static void answer(void *context, const struct http_request *request, struct http_response *ret)
{
	answers++;
	if (!strcmp(request->path, "/large")) {
		ret->status = 200;
		assert_int_equal(evbuffer_add_buffer_reference(ret->body, large), 0);
	} else if (!strcmp(request->path, "/small")) {
		ret->status = 200;
		assert_int_equal(evbuffer_add(ret->body, "hello", 5), 0);
	}
}

static void on_large_freed(const void *bytes, size_t count, void *context)
{
	large_freed++;
	free((void *)(uintptr_t)bytes);
}

static int setup(void **state)
{
	socklen_t bytes = sizeof(address);
	struct rlimit files;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	now_ns = 1000000000000ull;
	clock_test_set(now_ns);
	address = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
	base = event_base_new();
	answers = 0;
	large = evbuffer_new();
	large_freed = 0;
	assert_int_equal(evbuffer_add_reference(
				 large, calloc(1, BODY_BYTES), BODY_BYTES, on_large_freed, NULL),
		0);
	assert_int_equal(http_open(base, fd, answer, NULL, &http), 0);
	return 0;
}

static int teardown(void **state)
{
	http_close(http);
	if (large)
		evbuffer_free(large);
	assert_int_equal(large_freed, 1); /* no connection kept a part */
	event_base_free(base);
	clock_test_set(0);
	return 0;
}

static void turn(void)
{
	event_base_loop(base, EVLOOP_NONBLOCK);
}

static int dial(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	int rc = connect(fd, (struct sockaddr *)&address, sizeof(address));

	assert_true(rc == 0 || errno == EINPROGRESS);
	return fd;
}

static void send_text(int fd, const char *text)
{
	assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Turns the server until `count` connections are open. */
static void connections_become(unsigned count)
{
	for (unsigned i = 0; i < 100000 && http_connections(http) != count; i++)
		turn();
	assert_int_equal(http_connections(http), count);
}

/* All that the server sends until it closes; its length. */
static size_t receive(int fd, char *text, size_t room)
{
	size_t got = 0;

	for (unsigned i = 0; i < 10000000; i++) {
		ssize_t n;

		turn();
		n = recv(fd, text + got, room - got, 0);
		if (n == 0)
			return got;
		if (n > 0)
			got += (size_t)n;
	}
	fail_msg("the server does not close");
	return 0;
}

/* The server looks at deadlines four times a second, by its own timer. */
static void time_passes(unsigned ms)
{
	struct timeval once = {.tv_usec = 300000};

	now_ns += ms * 1000000ull;
	clock_test_set(now_ns);
	event_base_loopexit(base, &once);
	event_base_dispatch(base);
}

static void a_request_is_answered_and_the_connection_closed(void **state)
{
	char text[2048] = "";
	int fd = dial();

	connections_become(1);
	send_text(fd, "GET /small HTTP/1.1\r\n");
	turn();
	send_text(fd, "Host: x\r\n\r\n");
	text[receive(fd, text, sizeof(text) - 1)] = '\0';
	assert_int_equal(strncmp(text, "HTTP/1.1 200 OK\r\n", 17), 0);
	assert_non_null(strstr(text, "Content-Length: 5\r\n"));
	assert_string_equal(strstr(text, "\r\n\r\n") + 4, "hello");
	assert_int_equal(http_connections(http), 1); /* it waits for the client's close */
	close(fd);
	connections_become(0);
	assert_int_equal(answers, 1);
}

static void head_has_headers_alone(void **state)
{
	char text[2048] = "";
	int fd = dial();

	send_text(fd, "HEAD /large HTTP/1.1\r\n\r\n");
	text[receive(fd, text, sizeof(text) - 1)] = '\0';
	assert_non_null(strstr(text, "Content-Length: 16777216\r\n"));
	assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
	close(fd);
}

static void what_is_refused_is_told_why(void **state)
{
	char text[2048] = "";
	int fd = dial();

	send_text(fd, "PUT / HTTP/1.1\r\n\r\n");
	text[receive(fd, text, sizeof(text) - 1)] = '\0';
	assert_non_null(strstr(text, "405 Method Not Allowed\r\n"));
	assert_non_null(strstr(text, "Allow: GET, HEAD\r\n"));
	assert_int_equal(answers, 0);
	close(fd);
	fd = dial();
	send_text(fd, "GET /x HTTP/1.1\r\n\r\n");
	text[receive(fd, text, sizeof(text) - 1)] = '\0';
	assert_non_null(strstr(text, "404 Not Found\r\n"));
	close(fd);
}

static void a_client_that_shuts_down_its_side_gets_the_whole_answer(void **state)
{
	char *text = malloc(BODY_BYTES + 4096);
	int fd = dial();

	send_text(fd, "GET /large HTTP/1.1\r\n\r\n");
	shutdown(fd, SHUT_WR);
	assert_true(receive(fd, text, BODY_BYTES + 4096) > BODY_BYTES);
	free(text);
	close(fd);
}

static void more_than_one_request_does_not_spoil_the_answer(void **state)
{
	char *text = malloc(BODY_BYTES + 4096);
	int fd = dial();

	for (unsigned i = 0; i < 200; i++)
		send_text(fd, "GET /large HTTP/1.1\r\nHost: a.b\r\n\r\n");
	assert_true(receive(fd, text, BODY_BYTES + 4096) > BODY_BYTES);
	assert_int_equal(answers, 1);
	free(text);
	close(fd);
}

static void slow_clients_are_closed_in_every_state(void **state)
{
	char text[4096];
	int silent = dial(), slow = dial(), deaf = dial(), stays = dial();

	connections_become(4);
	send_text(slow, "GET / HT");
	send_text(deaf, "GET /large HTTP/1.1\r\n\r\n");
	send_text(stays, "GET /small HTTP/1.1\r\n\r\n");
	assert_true(receive(stays, text, sizeof(text)) > 5);
	assert_int_equal(answers, 2);
	time_passes(HTTP_LINGER_MS - 100);
	assert_int_equal(http_connections(http), 4);
	time_passes(200); /* the one that was answered and does not close */
	assert_int_equal(http_connections(http), 3);
	send_text(slow, "TP/1"); /* a byte now and then gives no more time */
	time_passes(HTTP_REQUEST_MS - HTTP_LINGER_MS);
	assert_int_equal(http_connections(http), 1);
	evbuffer_free(large);
	large = NULL;
	assert_int_equal(large_freed, 0); /* the deaf one has a part to get */
	time_passes(HTTP_RESPONSE_MS - HTTP_REQUEST_MS);
	assert_int_equal(http_connections(http), 0);
	assert_int_equal(large_freed, 1);
	assert_int_equal(recv(silent, text, sizeof(text), 0), 0);
	close(silent);
	close(slow);
	close(deaf);
	close(stays);
}

static void a_flood_of_silent_clients_leaves_room_for_others(void **state)
{
	enum { FLOOD = 1000 };
	static int fd[FLOOD];
	char text[2048] = "";
	int other;

	for (unsigned i = 0; i < FLOOD; i++) {
		fd[i] = dial();
		turn();
		assert_true(http_connections(http) <= HTTP_CONNECTIONS_MAX);
	}
	connections_become(HTTP_CONNECTIONS_MAX);
	other = dial();
	send_text(other, "GET /small HTTP/1.1\r\n\r\n");
	text[receive(other, text, sizeof(text) - 1)] = '\0';
	assert_non_null(strstr(text, "200 OK"));
	assert_int_equal(http_connections(http), HTTP_CONNECTIONS_MAX);
	close(other);
	for (unsigned i = 0; i < FLOOD; i++)
		close(fd[i]);
	connections_become(0);
}

/* Connections until there is room for one more; none of them sends anything. */
static void crowd(int *fd, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		fd[i] = dial();
		turn();
	}
}

static void an_answered_client_gives_way_before_one_that_waits(void **state)
{
	enum { OLD = HTTP_CONNECTIONS_MAX / 2 };
	static int fd[HTTP_CONNECTIONS_MAX];
	char text[64];
	int answered;

	crowd(fd, OLD);
	answered = dial();
	send_text(answered, "GET /small HTTP/1.1\r\n\r\n");
	for (unsigned i = 0; i < 100000 && !answers; i++)
		turn();
	crowd(fd + OLD, HTTP_CONNECTIONS_MAX - OLD - 1);
	connections_become(HTTP_CONNECTIONS_MAX);
	crowd(fd + HTTP_CONNECTIONS_MAX - 1, 1);
	for (unsigned i = 0; i < 1000; i++)
		turn();
	for (unsigned i = 0; i < HTTP_CONNECTIONS_MAX; i++)
		assert_int_equal(recv(fd[i], text, sizeof(text), MSG_DONTWAIT), -1);
	assert_true(receive(answered, text, sizeof(text)) > 5);
	close(answered);
	for (unsigned i = 0; i < HTTP_CONNECTIONS_MAX; i++)
		close(fd[i]);
	connections_become(0);
}

static void a_flood_of_silent_clients_cuts_no_answer_short(void **state)
{
	enum { FLOOD = 1000 };
	static int fd[FLOOD];
	char *text = malloc(BODY_BYTES + 4096);
	int reader = dial();

	send_text(reader, "GET /large HTTP/1.1\r\n\r\n");
	for (unsigned i = 0; i < 100000 && !answers; i++)
		turn();
	crowd(fd, FLOOD);
	connections_become(HTTP_CONNECTIONS_MAX);
	assert_true(receive(reader, text, BODY_BYTES + 4096) > BODY_BYTES);
	free(text);
	close(reader);
	for (unsigned i = 0; i < FLOOD; i++)
		close(fd[i]);
	connections_become(0);
}

static void clients_that_do_not_read_cannot_keep_others_out(void **state)
{
	static int fd[HTTP_CONNECTIONS_MAX];
	char text[2048] = "";
	int other;

	crowd(fd, HTTP_CONNECTIONS_MAX);
	for (unsigned i = 0; i < HTTP_CONNECTIONS_MAX; i++)
		send_text(fd[i], "GET /large HTTP/1.1\r\n\r\n");
	for (unsigned i = 0; i < 1000000 && answers < HTTP_CONNECTIONS_MAX; i++)
		turn();
	other = dial();
	turn();
	connections_become(HTTP_CONNECTIONS_MAX);
	send_text(other, "GET /small HTTP/1.1\r\n\r\n");
	text[receive(other, text, sizeof(text) - 1)] = '\0';
	assert_non_null(strstr(text, "200 OK"));
	close(other);
	for (unsigned i = 0; i < HTTP_CONNECTIONS_MAX; i++)
		close(fd[i]);
	connections_become(0);
}

/* As many as the backlog takes are there at once; the server turns to its requests in between. */
static void a_burst_of_clients_is_accepted_in_parts(void **state)
{
	enum { BURST = 100 };
	int fd[BURST];

	for (unsigned i = 0; i < BURST; i++)
		fd[i] = dial();
	event_base_loop(base, EVLOOP_NONBLOCK | EVLOOP_ONCE);
	assert_in_range(http_connections(http), 1, BURST / 2);
	connections_become(BURST);
	for (unsigned i = 0; i < BURST; i++)
		close(fd[i]);
	connections_become(0);
}

static void a_client_that_sends_without_end_takes_bounded_memory(void **state)
{
	static char rubbish[65536];
	char text[2048] = "";
	int fd = dial();
	size_t sent = 0;

	connections_become(1);
	memset(rubbish, 'a', sizeof(rubbish));
	for (unsigned i = 0; i < 1000 && sent < (32u << 20); i++) {
		ssize_t n = send(fd, rubbish, sizeof(rubbish), MSG_NOSIGNAL | MSG_DONTWAIT);

		turn();
		if (n > 0)
			sent += (size_t)n;
		else if (errno != EAGAIN)
			break;
	}
	(void)recv(fd, text, sizeof(text) - 1, 0);
	assert_int_equal(answers, 0);
	assert_non_null(strstr(text, "431 "));
	close(fd);
	connections_become(0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_are_parsed_whole_or_not_at_all),
		cmocka_unit_test(the_authorization_is_kept_whole_or_not_at_all),
		cmocka_unit_test(a_token_is_accepted_as_bearer_or_password_and_nothing_else_is),
		cmocka_unit_test(requests_that_are_refused_have_their_status),
		TEST(a_request_is_answered_and_the_connection_closed),
		TEST(head_has_headers_alone),
		TEST(what_is_refused_is_told_why),
		TEST(a_client_that_shuts_down_its_side_gets_the_whole_answer),
		TEST(more_than_one_request_does_not_spoil_the_answer),
		TEST(slow_clients_are_closed_in_every_state),
		TEST(a_flood_of_silent_clients_leaves_room_for_others),
		TEST(an_answered_client_gives_way_before_one_that_waits),
		TEST(a_flood_of_silent_clients_cuts_no_answer_short),
		TEST(clients_that_do_not_read_cannot_keep_others_out),
		TEST(a_burst_of_clients_is_accepted_in_parts),
		TEST(a_client_that_sends_without_end_takes_bounded_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
