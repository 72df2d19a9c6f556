/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net.h with libevent and sockets; net_names.c has the names. Control plane's thread only; nothing
 * blocks.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <event2/util.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

#include "engine/control/net/net.h"
#include "engine/control/net/secure.h"
#include "numa/clock.h"

struct net_timer {
	struct event *event;
	net_call call;
	void *context;
};

struct net_link {
	struct bufferevent *bev;
	const struct net_calls *calls;
	void *context;
	struct evbuffer_iovec room; /* of net_reserve() */
	size_t read_max;
	struct net_timer *due; /* sends in one piece what one turn of the loop commits */
	bool waits;            /* for it */
	bool unsent;           /* what was committed is lost: the connection ends when it fires */
	struct net_tls *tls;   /* NULL: clear text */
	TAILQ_ENTRY(net_link) next; /* at the gate */
};

/*
 * The bufferevent has what is on the wire: its input is taken by SSL_read(), and what SSL_write()
 * makes is appended to its output, so net_push() sends no clear text.
 */
struct net_tls {
	SSL *ssl;
	struct evbuffer *in, *out; /* clear text: received, and in the making */
	size_t want;               /* of net_want() */
	size_t taken;              /* bytes of the handshake that came */
	bool reached;              /* TCP has connected */
	bool secured;              /* the handshake has ended */
	struct net_gate *gate;     /* NULL: dialled */
	bool waits;                /* at the gate, for a step of the handshake */
	char why[SECURE_WHY_BYTES];
};

/*
 * A signature of this end, which a stranger can ask for, takes 30 us (ECDSA) to 1 ms (RSA, 2048
 * bits): steps of handshakes begin within this time of a turn of the loop.
 */
#ifndef GATE_NS
#define GATE_NS 1000000u
#endif

struct net_gate {
	struct net_timer *turn; /* the next turn of the loop */
	uint64_t spent_ns;      /* in this turn */
	unsigned waits;
	TAILQ_HEAD(, net_link) waiting;
};

#define GATE_WAITS_MAX 64u /* with more, no connections are accepted: none of these is in vain */
#define ACCEPTS_MAX 16u    /* connections in one turn of the loop */
#define ACCEPT_PAUSE_US 1000u

struct net_listener {
	struct evconnlistener *listener;
	struct event_base *base;
	const struct net_listen_calls *calls;
	void *context;
	struct net_timer *again;     /* accepts on, after ACCEPTS_MAX in one turn of the loop */
	unsigned accepted;           /* in this turn */
	const struct net_gate *gate; /* NULL: none */
};

/* ---- slices of the loop ---------------------------------------------------------------------- */

/* Length and end of this run of the loop; end 0: nothing was called yet. */
static _Thread_local uint64_t slice_ns, slice_end_ns;

void net_slice(uint64_t ns)
{
	slice_ns = ns;
	slice_end_ns = 0;
}

/* A callback has returned. Those that are left keep their order. */
static void net_slice_check(struct event_base *base)
{
	uint64_t now_ns = slice_ns ? clock_now_ns() : 0;

	if (!slice_ns)
		return;
	if (!slice_end_ns)
		slice_end_ns = now_ns + slice_ns;
	else if (now_ns >= slice_end_ns)
		event_base_loopbreak(base);
}

/* ---- time and random numbers ----------------------------------------------------------------- */

uint64_t net_now(void)
{
	return clock_now_ns();
}

uint32_t net_random(void)
{
	uint32_t random;

	evutil_secure_rng_get_bytes(&random, sizeof(random));
	return random;
}

static void net_timer_fired(evutil_socket_t fd, short what, void *context)
{
	const struct net_timer *timer = context;
	struct event_base *base = event_get_base(timer->event);

	(void)fd;
	(void)what;
	timer->call(timer->context);
	net_slice_check(base);
}

struct net_timer *net_timer_new(struct event_base *base, bool repeats, net_call call, void *context)
{
	struct net_timer *timer = calloc(1, sizeof(*timer));

	if (!timer)
		return NULL;
	timer->call = call;
	timer->context = context;
	timer->event = event_new(base, -1, repeats ? EV_PERSIST : 0, net_timer_fired, timer);
	if (!timer->event) {
		free(timer);
		return NULL;
	}
	return timer;
}

void net_timer_free(struct net_timer *timer)
{
	if (!timer)
		return;
	event_free(timer->event);
	free(timer);
}

int net_timer_set(struct net_timer *timer, uint64_t us)
{
	struct timeval wait = {
		.tv_sec = (time_t)(us / 1000000), .tv_usec = (suseconds_t)(us % 1000000)};

	return event_add(timer->event, &wait);
}

void net_timer_stop(struct net_timer *timer)
{
	event_del(timer->event);
}

void net_defer(struct net_timer *timer)
{
	event_active(timer->event, EV_TIMEOUT, 0);
}

/* ---- TLS ------------------------------------------------------------------------------------- */

#define TLS_READ_BYTES 16384u   /* the longest record */
#define READ_BYTES (256u << 10) /* in one turn of the loop; TLS_READ_BYTES during a handshake */

static struct evbuffer *net_input(const struct net_link *link)
{
	return link->tls ? link->tls->in : bufferevent_get_input(link->bev);
}

static struct evbuffer *net_output(const struct net_link *link)
{
	return link->tls ? link->tls->out : bufferevent_get_output(link->bev);
}

static int wire_read(BIO *bio, char *to, int bytes)
{
	struct net_link *link = BIO_get_data(bio);
	int got = evbuffer_remove(bufferevent_get_input(link->bev), to, (size_t)bytes);

	BIO_clear_retry_flags(bio);
	if (got > 0) {
		link->tls->taken += link->tls->secured ? 0 : (size_t)got;
		return got;
	}
	BIO_set_retry_read(bio);
	return -1;
}

static int wire_write(BIO *bio, const char *from, int bytes)
{
	struct net_link *link = BIO_get_data(bio);

	BIO_clear_retry_flags(bio);
	return bufferevent_write(link->bev, from, (size_t)bytes) == 0 ? bytes : -1;
}

static long wire_control(BIO *bio, int command, long number, void *pointer)
{
	(void)bio, (void)number, (void)pointer;
	return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *wire_method(void)
{
	static BIO_METHOD *method; /* for the life of the process */

	if (!method) {
		method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "evbuffer");
		if (method) {
			BIO_meth_set_read(method, wire_read);
			BIO_meth_set_write(method, wire_write);
			BIO_meth_set_ctrl(method, wire_control);
		}
	}
	return method;
}

static void gate_leave(struct net_link *link)
{
	TAILQ_REMOVE(&link->tls->gate->waiting, link, next);
	link->tls->gate->waits--;
	link->tls->waits = false;
}

/* Whose first message was answered goes first. */
static void gate_enter(struct net_link *link)
{
	if (link->tls->taken)
		TAILQ_INSERT_HEAD(&link->tls->gate->waiting, link, next);
	else
		TAILQ_INSERT_TAIL(&link->tls->gate->waiting, link, next);
	link->tls->gate->waits++;
	link->tls->waits = true;
}

static void tls_free(struct net_link *link)
{
	struct net_tls *tls = link->tls;

	if (!tls)
		return;
	if (tls->waits)
		gate_leave(link);
	SSL_free(tls->ssl);
	if (tls->in)
		evbuffer_free(tls->in);
	if (tls->out)
		evbuffer_free(tls->out);
	free(tls);
	link->tls = NULL;
}

bool net_secure(struct net_link *link, struct ssl_st *ssl, struct net_gate *gate)
{
	struct net_tls *tls = ssl ? calloc(1, sizeof(*tls)) : NULL;
	BIO *bio = wire_method() ? BIO_new(wire_method()) : NULL;

	if (!tls || !bio) {
		free(tls);
		BIO_free(bio);
		SSL_free(ssl);
		return false;
	}
	tls->ssl = ssl;
	tls->gate = gate;
	tls->in = evbuffer_new();
	tls->out = evbuffer_new();
	BIO_set_data(bio, link);
	BIO_set_init(bio, 1);
	SSL_set_bio(ssl, bio, bio);
	link->tls = tls;
	if (tls->in && tls->out)
		return true;
	tls_free(link);
	return false;
}

const char *net_why(const struct net_link *link)
{
	return link->tls ? link->tls->why : "";
}

bool net_reached(const struct net_link *link)
{
	return link->tls && link->tls->reached;
}

struct ssl_st *net_session(const struct net_link *link)
{
	return link->tls && link->tls->secured ? link->tls->ssl : NULL;
}

/* Sends the alert that TLS has made. What speaks no TLS gets that one, too, and can log it. */
static void tls_fail(struct net_link *link)
{
	static const uint8_t alert[] = SECURE_CLEAR_ALERT;
	struct net_tls *tls = link->tls;

	if (!tls->why[0] && secure_failed(tls->ssl, tls->why) && SSL_is_server(tls->ssl))
		(void)bufferevent_write(link->bev, alert, sizeof(alert));
	ERR_clear_error();
	net_push(link);
	link->calls->failed(link->context, EACCES);
}

/*
 * OpenSSL takes memory for as many bytes as the first message says that it has: looks at its head
 * before. 1: it may have it; 0: more bytes must come; -1: too long.
 */
static int tls_first(struct net_link *link)
{
	uint8_t head[9]; /* of the record 5, of the message: type 1, length 3 */
	ev_ssize_t got = evbuffer_copyout(bufferevent_get_input(link->bev), head, sizeof(head));

	if (!SSL_is_server(link->tls->ssl) || link->tls->taken || got < 1 || head[0] != 0x16)
		return 1; /* OpenSSL sees by the first byte what is no TLS */
	if (got < (ev_ssize_t)sizeof(head))
		return 0;
	if (head[5] == 1 && (head[6] << 16 | head[7] << 8 | head[8]) <= SECURE_FIRST_BYTES)
		return 1;
	snprintf(link->tls->why, sizeof(link->tls->why),
		"its TLS handshake begins with more than %d bytes", SECURE_FIRST_BYTES);
	return -1;
}

/* 1: it has ended; 0: more bytes must come; -1: it failed. */
static int tls_handshake(struct net_link *link)
{
	struct net_tls *tls = link->tls;
	unsigned budget = 1;
	int done = tls_first(link);

	if (done != 1)
		return done;
	ERR_clear_error();
	done = SSL_do_handshake(tls->ssl);
	if (done == 1) {
		tls->secured = secure_proven(tls->ssl, &budget, tls->why);
		bufferevent_set_max_single_read(link->bev, READ_BYTES);
		return tls->secured ? 1 : -1;
	}
	if (SSL_get_error(tls->ssl, done) != SSL_ERROR_WANT_READ)
		return -1;
	if (tls->taken <= SECURE_HANDSHAKE_BYTES)
		return 0;
	snprintf(tls->why, sizeof(tls->why), "its TLS handshake has more than %u bytes",
		SECURE_HANDSHAKE_BYTES);
	return -1;
}

/* An old error would be taken for one of the next call. Most often there is none: that is cheap. */
static void tls_errors_forget(void)
{
	if (ERR_peek_error())
		ERR_clear_error();
}

/*
 * Decrypts what has come, until there is room for no more: *ret_more. False: it is no TLS of this
 * session.
 */
static bool tls_read_in(struct net_link *link, bool *ret_more)
{
	struct net_tls *tls = link->tls;

	*ret_more = true;
	while (evbuffer_get_length(tls->in) < link->read_max) {
		struct evbuffer_iovec room;
		size_t bytes = 0;
		int good, error;

		if (evbuffer_reserve_space(tls->in, TLS_READ_BYTES, &room, 1) != 1)
			return false;
		tls_errors_forget();
		good = SSL_read_ex(tls->ssl, room.iov_base, TLS_READ_BYTES, &bytes);
		error = SSL_get_error(tls->ssl, good);
		if (good != 1) {
			*ret_more = error != SSL_ERROR_WANT_READ;
			return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN;
		}
		room.iov_len = bytes;
		if (evbuffer_commit_space(tls->in, &room, 1) < 0)
			return false;
		*ret_more = evbuffer_get_length(bufferevent_get_input(link->bev)) ||
			    SSL_has_pending(tls->ssl);
		if (!*ret_more)
			return true;
	}
	return true;
}

static void tls_serve(struct net_link *link)
{
	struct net_tls *tls = link->tls;
	bool good, more;

	if (!tls->secured) {
		int done = tls_handshake(link);

		if (done < 0)
			tls_fail(link);
		if (done <= 0)
			return;
		if (!SSL_is_server(tls->ssl)) {
			link->calls->connected(link->context);
			return; /* the other end sends nothing before this one has */
		}
	}
	good = tls_read_in(link, &more);
	if (evbuffer_get_length(tls->in) < tls->want) {
		if (!good)
			tls_fail(link);
		return;
	}
	if (more)
		bufferevent_trigger(link->bev, EV_READ,
			(int)BEV_TRIG_IGNORE_WATERMARKS | (int)BEV_OPT_DEFER_CALLBACKS);
	link->calls->readable(link->context);
}

static void gate_serve(struct net_gate *gate, struct net_link *link)
{
	uint64_t begun_ns = clock_now_ns();

	if (!gate->spent_ns)
		(void)net_timer_set(gate->turn, 0);
	tls_serve(link);
	gate->spent_ns += clock_now_ns() - begun_ns;
}

static void gate_turn(void *context)
{
	struct net_gate *gate = context;
	struct net_link *link;

	gate->spent_ns = 0;
	while (gate->spent_ns <= GATE_NS && (link = TAILQ_FIRST(&gate->waiting)) != NULL) {
		gate_leave(link);
		bufferevent_enable(link->bev, EV_READ);
		gate_serve(gate, link);
	}
}

/* Bytes have come, or a dialled connection is established. The calls may free the link. */
static void tls_readable(struct net_link *link)
{
	struct net_tls *tls = link->tls;
	struct net_gate *gate = tls->secured ? NULL : tls->gate;

	if (!gate) {
		tls_serve(link);
	} else if (gate->spent_ns <= GATE_NS && TAILQ_EMPTY(&gate->waiting)) {
		gate_serve(gate, link);
	} else if (!tls->waits) {
		bufferevent_disable(link->bev, EV_READ);
		gate_enter(link);
	}
}

struct net_gate *net_gate_new(struct event_base *base)
{
	struct net_gate *gate = calloc(1, sizeof(*gate));

	if (!gate)
		return NULL;
	TAILQ_INIT(&gate->waiting);
	gate->turn = net_timer_new(base, false, gate_turn, gate);
	if (gate->turn)
		return gate;
	free(gate);
	return NULL;
}

void net_gate_free(struct net_gate *gate)
{
	if (!gate)
		return;
	net_timer_free(gate->turn);
	free(gate);
}

/* Encrypts what was committed: the output of the bufferevent takes all of it. */
static bool tls_write_out(struct net_tls *tls)
{
	size_t bytes = evbuffer_get_length(tls->out), sent = 0;
	const unsigned char *text = bytes ? evbuffer_pullup(tls->out, -1) : NULL;

	if (!bytes)
		return true;
	tls_errors_forget();
	if (!tls->secured || !text || SSL_write_ex(tls->ssl, text, bytes, &sent) != 1)
		sent = 0;
	evbuffer_drain(tls->out, bytes);
	return sent == bytes;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* The turn is over. The call may free the link. */
static void net_link_due(void *context)
{
	struct net_link *link = context;

	link->waits = false;
	if (!link->unsent)
		net_push(link);
	if (link->unsent)
		link->calls->failed(link->context, ENOMEM);
}

static void net_link_defer(struct net_link *link)
{
	if (!link->waits)
		net_defer(link->due);
	link->waits = true;
}

struct net_link *net_adopt(struct event_base *base, int fd)
{
	struct net_link *link = calloc(1, sizeof(*link));

	if (link)
		link->due = net_timer_new(base, false, net_link_due, link);
	if (link && link->due)
		link->bev = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (link && link->bev)
		return link;
	if (link)
		net_timer_free(link->due);
	free(link);
	close(fd);
	return NULL;
}

int net_dial(struct event_base *base, const struct sockaddr *address, socklen_t bytes,
	struct net_link **ret_link)
{
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct net_link *link;

	if (fd < 0)
		return errno;
	if (connect(fd, address, bytes) < 0 && errno != EINPROGRESS) {
		int error = errno;

		close(fd);
		return error;
	}
	link = net_adopt(base, fd);
	if (!link)
		return ENOMEM;
	*ret_link = link;
	return 0;
}

static void net_link_readable(struct bufferevent *bev, void *context)
{
	struct net_link *link = context;
	struct event_base *base = bufferevent_get_base(bev);

	if (link->tls)
		tls_readable(link);
	else
		link->calls->readable(link->context);
	net_slice_check(base);
}

static void net_link_event(struct bufferevent *bev, short what, void *context)
{
	struct net_link *link = context;
	struct event_base *base = bufferevent_get_base(bev);
	int error = EVUTIL_SOCKET_ERROR();

	if (what & BEV_EVENT_EOF)
		error = ECONNRESET;
	if (what & BEV_EVENT_CONNECTED && link->tls) {
		link->tls->reached = true;
		tls_readable(link); /* it begins */
	} else if (what & BEV_EVENT_CONNECTED)
		link->calls->connected(link->context);
	else
		link->calls->failed(link->context, error ? error : ECONNRESET);
	net_slice_check(base);
}

/*
 * Limits how long the kernel retransmits to a dead peer, whose unsent data must not keep the
 * connection open.
 */
static void net_socket_tune(int fd, unsigned dead_after_ms)
{
	int on = 1, idle = 5, interval = 2, count = 3;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_after_ms, sizeof(dead_after_ms));
}

void net_start(struct net_link *link, const struct net_calls *calls, void *context,
	unsigned dead_after_ms, size_t read_max)
{
	link->calls = calls;
	link->context = context;
	link->read_max = read_max;
	net_socket_tune(bufferevent_getfd(link->bev), dead_after_ms);
	bufferevent_setcb(link->bev, net_link_readable, NULL, net_link_event, link);
	net_want(link, 4);
	bufferevent_set_max_single_read(link->bev, link->tls ? TLS_READ_BYTES : READ_BYTES);
	bufferevent_enable(link->bev, EV_READ | EV_WRITE);
}

int net_connect(struct net_link *link)
{
	return bufferevent_socket_connect(link->bev, NULL, 0);
}

void net_silence(struct net_link *link)
{
	net_timer_stop(link->due);
	bufferevent_disable(link->bev, EV_READ | EV_WRITE);
}

void net_close(struct net_link *link)
{
	tls_free(link);
	net_timer_free(link->due);
	bufferevent_free(link->bev);
	free(link);
}

size_t net_received(const struct net_link *link)
{
	return evbuffer_get_length(net_input(link));
}

const uint8_t *net_front(struct net_link *link, size_t bytes)
{
	return evbuffer_pullup(net_input(link), (ev_ssize_t)bytes);
}

void net_drain(struct net_link *link, size_t bytes)
{
	evbuffer_drain(net_input(link), bytes);
}

void net_want(struct net_link *link, size_t bytes)
{
	if (link->tls)
		link->tls->want = bytes;
	bufferevent_setwatermark(link->bev, EV_READ, link->tls ? 0 : bytes, link->read_max);
}

size_t net_backlog(const struct net_link *link)
{
	return evbuffer_get_length(bufferevent_get_output(link->bev)) +
	       (link->tls ? evbuffer_get_length(link->tls->out) : 0);
}

uint8_t *net_reserve(struct net_link *link, size_t bytes)
{
	struct evbuffer *out = net_output(link);

	if (evbuffer_reserve_space(out, (ev_ssize_t)bytes, &link->room, 1) != 1)
		return NULL;
	return link->room.iov_base;
}

bool net_commit(struct net_link *link, size_t bytes)
{
	link->room.iov_len = bytes;
	if (evbuffer_commit_space(net_output(link), &link->room, 1) < 0)
		return false;
	net_link_defer(link);
	return true;
}

/* The bufferevent writes by itself only what the kernel does not take here. */
void net_push(struct net_link *link)
{
	struct evbuffer *out = bufferevent_get_output(link->bev);
	bool rest;

	if (link->tls && !tls_write_out(link->tls)) {
		link->unsent = true;
		net_link_defer(link);
	}
	/*
	 * The bufferevent protects the front of its buffer against other users; it is unprotected
	 * for this one write.
	 */
	if (evbuffer_unfreeze(out, 1) == 0) {
		(void)evbuffer_write(out, bufferevent_getfd(link->bev));
		(void)evbuffer_freeze(out, 1);
	}
	rest = evbuffer_get_length(out) > 0;
	if (rest != ((bufferevent_get_enabled(link->bev) & EV_WRITE) != 0))
		(void)(rest ? bufferevent_enable(link->bev, EV_WRITE)
			    : bufferevent_disable(link->bev, EV_WRITE));
}

/* ---- listening ------------------------------------------------------------------------------- */

static int net_address_reuse(int fd)
{
	int on = 1;

	return setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

/*
 * First without SO_REUSEADDR: with it, two engines that start at the same time could both bind, and
 * the second would notice only in listen(). It is needed when connections of a former engine are
 * still in TIME_WAIT.
 */
int net_bind(const struct sockaddr *address, socklen_t bytes)
{
	int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int error;

	if (fd < 0)
		return -errno;
	if (bind(fd, address, bytes) == 0)
		return fd;
	if (errno == EADDRINUSE && net_address_reuse(fd) == 0 && bind(fd, address, bytes) == 0)
		return fd;
	error = errno;
	close(fd);
	return -error;
}

static void net_listener_accepted(struct evconnlistener *evconn, evutil_socket_t fd,
	struct sockaddr *address, int bytes, void *context)
{
	struct net_listener *listener = context;
	struct net_link *link = net_adopt(listener->base, fd);

	if (++listener->accepted >= ACCEPTS_MAX) {
		/* evconnlistener accepts all that wait in one callback, unless it is disabled */
		evconnlistener_disable(evconn);
		net_defer(listener->again);
	}
	if (link)
		listener->calls->accepted(listener->context, link, address, (socklen_t)bytes);
	net_slice_check(listener->base);
}

static void net_listener_failed(struct evconnlistener *evconn, void *context)
{
	const struct net_listener *listener = context;
	int error = errno;

	evconnlistener_disable(evconn);
	listener->calls->failed(listener->context, error);
}

static void net_listener_next(void *context)
{
	struct net_listener *listener = context;

	listener->accepted = 0;
	if (listener->gate && listener->gate->waits > GATE_WAITS_MAX)
		(void)net_timer_set(listener->again, ACCEPT_PAUSE_US);
	else
		evconnlistener_enable(listener->listener);
}

/*
 * Sockets accepted here inherit SO_REUSEADDR, so that the next engine may bind while they are in
 * TIME_WAIT.
 */
struct net_listener *net_listen(struct event_base *base, int fd,
	const struct net_listen_calls *calls, void *context, struct sockaddr_storage *ret_own)
{
	struct net_listener *listener = calloc(1, sizeof(*listener));
	socklen_t bytes = sizeof(*ret_own);

	if (!listener)
		return NULL;
	*listener = (struct net_listener){.base = base, .calls = calls, .context = context};
	*ret_own = (struct sockaddr_storage){.ss_family = AF_UNSPEC};
	(void)getsockname(fd, (struct sockaddr *)ret_own, &bytes);
	listener->again = net_timer_new(base, false, net_listener_next, listener);
	if (listener->again && net_address_reuse(fd) == 0)
		listener->listener = evconnlistener_new(
			base, net_listener_accepted, listener, LEV_OPT_CLOSE_ON_FREE, 256, fd);
	if (!listener->listener) {
		net_timer_free(listener->again);
		free(listener);
		return NULL;
	}
	evconnlistener_set_error_cb(listener->listener, net_listener_failed);
	return listener;
}

void net_listen_gate(struct net_listener *listener, const struct net_gate *gate)
{
	listener->gate = gate;
}

void net_listen_again(struct net_listener *listener)
{
	evconnlistener_enable(listener->listener);
}

void net_listener_free(struct net_listener *listener)
{
	evconnlistener_free(listener->listener);
	net_timer_free(listener->again);
	free(listener);
}
