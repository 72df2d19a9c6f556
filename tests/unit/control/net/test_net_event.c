/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_event.c over one connection, with and without TLS: what a turn of the loop commits leaves in
 * one piece, what the kernel does not take follows, half a record makes no turn busy. The sessions
 * are OpenSSL's own with a key of the test.
 */
#define GATE_NS 0                         /* one step of a handshake in each turn */
#include "engine/control/net/net_event.c" /* NOLINT: its static functions and structures */

#include <setjmp.h> /* before cmocka.h */
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static SSL_CTX *ctx;
static struct event_base *base;
static struct net_gate *gate;
static struct net_link *link_of[2];
static unsigned readable, connected, failed;
static int failed_error;

static int key_use(
	SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *bytes, SSL_SESSION **session)
{
	static const unsigned char name[1] = "k", key[32] = {1}, cipher[] = {0x13, 0x01};

	(void)md;
	*session = SSL_SESSION_new();
	*id = name;
	*bytes = sizeof(name);
	return SSL_SESSION_set1_master_key(*session, key, sizeof(key)) &&
	       SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, cipher)) &&
	       SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION) &&
	       SSL_SESSION_set1_id_context(*session, name, sizeof(name));
}

static int key_find(SSL *ssl, const unsigned char *id, size_t bytes, SSL_SESSION **session)
{
	return key_use(ssl, NULL, &id, &bytes, session);
}

static void on_readable(void *context)
{
	(void)context;
	readable++;
}

static void on_connected(void *context)
{
	(void)context;
	connected++;
}

static void on_failed(void *context, int error)
{
	(void)context;
	failed++;
	failed_error = error;
}

static const struct net_calls calls = {on_readable, on_connected, on_failed};

static void turn(void)
{
	event_base_loop(base, EVLOOP_NONBLOCK);
}

static struct net_link *link_start(int fd, bool tls, bool server)
{
	struct net_link *link = net_adopt(base, fd);
	SSL *ssl = tls ? SSL_new(ctx) : NULL;

	assert_non_null(link);
	if (ssl && server)
		SSL_set_accept_state(ssl);
	else if (ssl)
		SSL_set_connect_state(ssl);
	assert_true(!tls || net_secure(link, ssl, server ? gate : NULL));
	net_start(link, &calls, NULL, 1000, 1u << 20);
	return link;
}

/* Two ends that are connected; with `tls` after their handshake. */
static void open_pair(bool tls)
{
	int fd[2], bytes = 4096;

	readable = connected = failed = 0;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	for (unsigned i = 0; i < 2; i++)
		(void)setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	link_of[1] = link_start(fd[1], tls, true);
	link_of[0] = link_start(fd[0], tls, false);
	if (!tls)
		return;
	tls_readable(link_of[0]); /* as when the connection is established */
	for (unsigned i = 0; i < 100 && !(connected && link_of[1]->tls->secured); i++)
		turn();
	assert_int_equal(connected, 1);
	assert_true(link_of[1]->tls->secured);
}

static void close_pair(void)
{
	net_close(link_of[0]);
	net_close(link_of[1]);
}

static void commit(struct net_link *link, size_t bytes, int with)
{
	uint8_t *room = net_reserve(link, bytes);

	assert_non_null(room);
	memset(room, with, bytes);
	assert_true(net_commit(link, bytes));
}

static void what_a_turn_commits_is_one_record(void **state)
{
	uint8_t wire[8192];
	ssize_t got;

	(void)state;
	open_pair(true);
	net_silence(link_of[1]);
	for (unsigned i = 0; i < 50; i++)
		commit(link_of[0], 20, 'a');
	assert_int_equal(net_backlog(link_of[0]), 1000);
	assert_int_equal(recv(bufferevent_getfd(link_of[1]->bev), wire, sizeof(wire), 0), -1);
	turn();
	got = recv(bufferevent_getfd(link_of[1]->bev), wire, sizeof(wire), 0);
	assert_in_range(got, 1000, 1000 + 5 + 17);
	assert_int_equal(wire[3] << 8 | wire[4], got - 5);
	assert_int_equal(net_backlog(link_of[0]), 0);
	close_pair();
}

static void what_the_kernel_does_not_take_follows(void **state)
{
	(void)state;
	for (unsigned tls = 0; tls < 2; tls++) {
		open_pair(tls);
		net_want(link_of[1], 100000);
		for (unsigned i = 0; i < 100; i++)
			commit(link_of[0], 1000, (int)i);
		for (unsigned i = 0; i < 1000 && !readable; i++)
			turn();
		assert_int_equal(net_received(link_of[1]), 100000);
		assert_int_equal(net_front(link_of[1], 100000)[99999], 99);
		/* the next message is written at once again */
		turn();
		assert_int_equal(bufferevent_get_enabled(link_of[0]->bev) & EV_WRITE, EV_WRITE);
		commit(link_of[0], 1, 'z');
		turn();
		assert_int_equal(bufferevent_get_enabled(link_of[0]->bev) & EV_WRITE, 0);
		close_pair();
	}
}

static void half_a_record_makes_no_turn_busy(void **state)
{
	uint8_t wire[8192];
	unsigned before;
	ssize_t got;
	int fd;

	(void)state;
	open_pair(true);
	net_want(link_of[1], 1);
	fd = bufferevent_getfd(link_of[1]->bev);
	bufferevent_disable(link_of[1]->bev, EV_READ);
	commit(link_of[0], 10, 'a');
	turn();
	commit(link_of[0], 1000, 'b');
	turn();
	got = recv(fd, wire, sizeof(wire), 0);
	assert_true(got > 1000);
	bufferevent_enable(link_of[1]->bev, EV_READ);
	/* all but the last bytes come; they go in as if the kernel had them */
	fd = bufferevent_getfd(link_of[0]->bev);
	assert_int_equal(send(fd, wire, (size_t)got - 3, 0), got - 3);
	for (unsigned i = 0; i < 5; i++)
		turn();
	assert_int_equal(net_received(link_of[1]), 10);
	before = readable;
	for (unsigned i = 0; i < 20; i++)
		turn();
	assert_int_equal(readable, before);
	assert_int_equal(send(fd, wire + got - 3, 3, 0), 3);
	for (unsigned i = 0; i < 5; i++)
		turn();
	assert_int_equal(net_received(link_of[1]), 1010);
	close_pair();
}

static void what_cannot_be_encrypted_ends_the_connection(void **state)
{
	(void)state;
	open_pair(true);
	commit(link_of[0], 10, 'a');
	link_of[0]->tls->secured = false; /* the session takes nothing */
	net_push(link_of[0]);
	assert_int_equal(failed, 0);
	turn();
	assert_int_equal(failed, 1);
	assert_int_equal(failed_error, ENOMEM);
	close_pair();
}

/* One of those that come at once is served in each turn; the others wait, and may end. */
static void handshakes_take_turns(void **state)
{
	struct net_link *dialled[4], *accepted[4];
	int fd[4][2];

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd[i]), 0);
		dialled[i] = link_start(fd[i][0], true, false);
		tls_readable(dialled[i]);
	}
	turn();
	for (unsigned i = 0; i < 4; i++)
		accepted[i] = link_start(fd[i][1], true, true);
	for (unsigned turns = 0; turns < 3; turns++) {
		unsigned begun = 0;

		event_base_loop(base, EVLOOP_ONCE);
		for (unsigned i = 0; i < 4; i++)
			begun += accepted[i]->tls->taken > 0;
		assert_int_equal(begun, turns + 1);
		/* what waits is not read, however much comes */
		for (unsigned i = turns + 1; i < 4; i++)
			assert_int_equal(bufferevent_get_enabled(accepted[i]->bev) & EV_READ, 0);
	}
	net_close(accepted[3]);
	for (unsigned i = 0; i < 100; i++)
		turn();
	for (unsigned i = 0; i < 3; i++) {
		assert_true(accepted[i]->tls->secured);
		net_close(accepted[i]);
	}
	assert_true(TAILQ_EMPTY(&gate->waiting));
	for (unsigned i = 0; i < 4; i++)
		net_close(dialled[i]);
}

static int setup(void **state)
{
	(void)state;
	base = event_base_new();
	gate = net_gate_new(base);
	ctx = SSL_CTX_new(TLS_method());
	SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION);
	SSL_CTX_set_ciphersuites(ctx, "TLS_AES_128_GCM_SHA256");
	SSL_CTX_set_session_id_context(ctx, (const unsigned char *)"k", 1);
	SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
	SSL_CTX_set_num_tickets(ctx, 0);
	SSL_CTX_set_read_ahead(ctx, 1);
	SSL_CTX_set_psk_use_session_callback(ctx, key_use);
	SSL_CTX_set_psk_find_session_callback(ctx, key_find);
	return !base;
}

static int teardown(void **state)
{
	(void)state;
	SSL_CTX_free(ctx);
	net_gate_free(gate);
	event_base_free(base);
	return 0;
}

bool __wrap_secure_proven(SSL *ssl, unsigned *budget, char *why);
bool __wrap_secure_proven(SSL *ssl, unsigned *budget, char *why)
{
	(void)budget, (void)why;
	return SSL_session_reused(ssl);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_turn_commits_is_one_record),
		cmocka_unit_test(what_the_kernel_does_not_take_follows),
		cmocka_unit_test(half_a_record_makes_no_turn_busy),
		cmocka_unit_test(what_cannot_be_encrypted_ends_the_connection),
		cmocka_unit_test(handshakes_take_turns),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
