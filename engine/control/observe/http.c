/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server. It parses requests: the request line, then header lines, of which Authorization
 * is kept, and nothing is believed that does not stand in the bytes given. It owns the connections:
 * each goes REQUEST -> RESPONSE -> LINGER and is closed by the client, by its deadline, or to make
 * room for a new one. With metrics.tls_dir they have TLS 1.3; clients need no certificate. Wrong
 * files that come later change nothing. The thread of the event base; http_parse(),
 * http_tls_open(), http_tls_close(): any thread.
 */
#include "engine/control/observe/http_inner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "config/secret_file.h"
#include "engine/control/net/secure.h"
#include "numa/clock.h"

#define HTTP_WATCH_US 250000 /* between two looks at deadlines */
#define HTTP_BACKLOG 128
#define HTTP_PAUSE_US 100000 /* without descriptors, until the next accept */
#define HTTP_ACCEPTS 32      /* then requests that came in are served before the next accept */

enum connection_state {
	CONNECTION_REQUEST,  /* bytes of the request come in */
	CONNECTION_RESPONSE, /* bytes of the response go out */
	CONNECTION_LINGER,   /* sent and shut down: what still comes in is thrown away */
};

struct connection {
	TAILQ_ENTRY(connection) next;
	struct http *http;
	struct bufferevent *stream;
	enum connection_state state;
	uint64_t deadline_ns;
};

struct http {
	struct event_base *base;
	struct evconnlistener *listener;
	struct event *watch;
	struct event *resume;       /* accepting goes on */
	unsigned accepts;           /* since accepting went on */
	const struct http_tls *tls; /* NULL: http */
	http_answer answer;
	http_refused refused;
	void *context;
	TAILQ_HEAD(, connection) connections; /* least recently active first */
	unsigned count;
};

/* ---- https ----------------------------------------------------------------------------------- */

static uint64_t tls_version(const struct http_tls *tls)
{
	const char *const path[] = {tls->chain, tls->key};

	return files_version(path, 2);
}

/* Reads the files. Returns 0, or -EINVAL after logging; nothing has changed then. */
static int tls_read(struct http_tls *tls)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	const char *path = tls->chain, *wrong = "no memory";

	if (ctx && SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) == 1)
		wrong = secure_files_use(ctx, tls->chain, tls->key, &path);
	if (wrong) {
		log_error("metrics.tls_dir: %s: %s", path, wrong);
		SSL_CTX_free(ctx);
		return -EINVAL;
	}
	SSL_CTX_set_num_tickets(ctx, 0);
	SSL_CTX_set_options(ctx, SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
	SSL_CTX_free(tls->ctx); /* connections keep it */
	tls->ctx = ctx;
	log_info("metrics.tls_dir: %s was read", tls->chain);
	return 0;
}

int http_tls_open(const char *folder, struct http_tls *ret)
{
	*ret = (struct http_tls){.ctx = NULL};
	if (!*folder)
		return 0;
	snprintf(ret->chain, sizeof(ret->chain), "%s/cert.pem", folder);
	snprintf(ret->key, sizeof(ret->key), "%s/key.pem", folder);
	ret->version = tls_version(ret);
	return tls_read(ret);
}

void http_tls_refresh(struct http_tls *tls)
{
	uint64_t version = tls->ctx ? tls_version(tls) : tls->version;

	if (version == tls->version)
		return;
	tls->version = version;
	if (tls_read(tls) < 0)
		log_error("metrics: the certificate of before is still shown");
}

void http_tls_close(struct http_tls *tls)
{
	SSL_CTX_free(tls->ctx);
	tls->ctx = NULL;
}

/* NULL: no memory, and `fd` is the caller's. */
static struct bufferevent *tls_stream(const struct http *http, int fd)
{
	SSL *ssl = SSL_new(http->tls->ctx);

	/* frees it if it fails */
	return ssl ? bufferevent_openssl_socket_new(
			     http->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE)
		   : NULL;
}

/* Why the handshake has failed; NULL: it has not, or the client left. */
static const char *tls_wrong(struct bufferevent *stream)
{
	unsigned long error = bufferevent_get_openssl_error(stream);
	bool done = SSL_is_init_finished(bufferevent_openssl_get_ssl(stream));

	return error && !done ? ERR_reason_error_string(error) : NULL;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* The line that starts at `from`: its length without CRLF; < 0: it has no end. */
static long line_length(const char *text, size_t bytes, size_t from, size_t *ret_next)
{
	const char *end = memchr(text + from, '\n', bytes - from);
	size_t length;

	if (!end)
		return -1;
	length = (size_t)(end - text) - from;
	*ret_next = from + length + 1;
	if (length && text[from + length - 1] == '\r')
		length--;
	return (long)length;
}

static bool text_starts(const char *text, size_t bytes, const char *with)
{
	return bytes >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

/* 0, or the negated status. */
static int request_line_parse(const char *line, size_t bytes, struct http_request *ret)
{
	const char *version;
	size_t path = 0;

	ret->head = text_starts(line, bytes, "HEAD ");
	if (!ret->head && !text_starts(line, bytes, "GET "))
		return memchr(line, ' ', bytes) ? -405 : -400;
	bytes -= ret->head ? 5 : 4;
	line += ret->head ? 5 : 4;
	version = memchr(line, ' ', bytes);
	if (!version)
		return -400;
	bytes -= (size_t)(version - line) + 1;
	if (!text_starts(version + 1, bytes, "HTTP/"))
		return -400;
	if (!text_starts(version + 1, bytes, "HTTP/1.") || bytes != 8 || version[8] < '0' ||
		version[8] > '9')
		return -505;
	if (line[0] != '/')
		return -400;
	while (line + path < version && line[path] != '?') {
		if (line[path] <= ' ' || line[path] > '~')
			return -400;
		if (path + 1 == HTTP_PATH_BYTES)
			return -414;
		ret->path[path] = line[path];
		path++;
	}
	ret->path[path] = '\0';
	return 0;
}

/* Keeps the value of the line if it is the first Authorization. */
static void header_take(const char *line, size_t bytes, struct http_request *ret)
{
	static const char name[] = "authorization:";
	size_t at = sizeof(name) - 1;

	if (ret->authorization[0] || bytes < at || strncasecmp(line, name, at) != 0)
		return;
	while (at < bytes && (line[at] == ' ' || line[at] == '\t'))
		at++;
	while (bytes > at && (line[bytes - 1] == ' ' || line[bytes - 1] == '\t'))
		bytes--;
	if (bytes - at >= sizeof(ret->authorization) || memchr(line, '\0', bytes))
		return;
	memcpy(ret->authorization, line + at, bytes - at);
	ret->authorization[bytes - at] = '\0';
}

int http_parse(const char *text, size_t bytes, struct http_request *ret)
{
	size_t next, at;
	long length = line_length(text, bytes, 0, &next);
	int rc;

	if (length < 0)
		return bytes >= HTTP_REQUEST_BYTES ? -431 : 0;
	rc = request_line_parse(text, (size_t)length, ret);
	if (rc < 0)
		return rc;
	ret->authorization[0] = '\0';
	at = next;
	while ((length = line_length(text, bytes, at, &next)) > 0) {
		header_take(text + at, (size_t)length, ret);
		at = next;
	}
	if (length < 0)
		return bytes >= HTTP_REQUEST_BYTES ? -431 : 0;
	return (int)next;
}

/* ---- one connection -------------------------------------------------------------------------- */

static void connection_close(struct connection *c)
{
	TAILQ_REMOVE(&c->http->connections, c, next);
	c->http->count--;
	bufferevent_free(c->stream);
	free(c);
}

/*
 * Which connection gives way to a new one, there is at least one: one that was answered, whose
 * bytes the kernel delivers without it; then, while requests that are not complete take half of the
 * room, the oldest of those, so that a flood of silent clients cuts no answer short; else the least
 * recently active one, so that clients which do not read cannot keep the others out.
 */
static struct connection *connection_to_lose(const struct http *http)
{
	struct connection *c, *request = NULL;
	unsigned requests = 0;

	TAILQ_FOREACH (c, &http->connections, next) {
		if (c->state == CONNECTION_LINGER)
			return c;
		if (c->state != CONNECTION_REQUEST)
			continue;
		if (!request)
			request = c;
		requests++;
	}
	return request && requests * 2 >= http->count ? request : TAILQ_FIRST(&http->connections);
}

static void connection_enter(struct connection *c, enum connection_state state, unsigned ms)
{
	c->state = state;
	c->deadline_ns = clock_now_ns() + ms * 1000000ull;
	TAILQ_REMOVE(&c->http->connections, c, next);
	TAILQ_INSERT_TAIL(&c->http->connections, c, next);
}

static const char *status_reason(unsigned status)
{
	switch (status) {
	case 200: return "OK";
	case 400: return "Bad Request";
	case 401: return "Unauthorized";
	case 404: return "Not Found";
	case 405: return "Method Not Allowed";
	case 414: return "URI Too Long";
	case 431: return "Request Header Fields Too Large";
	case 503: return "Service Unavailable";
	case 505: return "HTTP Version Not Supported";
	default: return "Error";
	}
}

static void connection_respond(struct connection *c, const struct http_response *r, bool head)
{
	struct evbuffer *out = bufferevent_get_output(c->stream);
	int rc;

	rc = evbuffer_add_printf(out,
		"HTTP/1.1 %u %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n%s%s\r\n",
		r->status, status_reason(r->status), r->type, evbuffer_get_length(r->body),
		r->status == 405 ? "Allow: GET, HEAD\r\n" : "", r->headers);
	if (rc < 0 || (!head && evbuffer_add_buffer(out, r->body) < 0))
		connection_close(c);
	else
		connection_enter(c, CONNECTION_RESPONSE, HTTP_RESPONSE_MS);
}

static void connection_take_request(struct connection *c)
{
	struct evbuffer *in = bufferevent_get_input(c->stream);
	struct http_response response = {.status = 404, .type = "text/plain", .headers = ""};
	struct http_request request = {.head = false};
	size_t bytes = evbuffer_get_length(in);
	const char *text;
	int rc;

	if (bytes > HTTP_REQUEST_BYTES)
		bytes = HTTP_REQUEST_BYTES;
	text = (const char *)evbuffer_pullup(in, (ev_ssize_t)bytes);
	rc = http_parse(text, bytes, &request);
	if (rc == 0)
		return;
	response.body = evbuffer_new();
	if (!response.body) {
		connection_close(c);
		return;
	}
	if (rc < 0)
		response.status = (unsigned)-rc;
	request.fd = bufferevent_getfd(c->stream);
	if (rc > 0)
		c->http->answer(c->http->context, &request, &response);
	evbuffer_drain(in, evbuffer_get_length(in));
	connection_respond(c, &response, request.head);
	evbuffer_free(response.body);
	explicit_bzero(request.authorization, sizeof(request.authorization));
}

static void http_on_read(struct bufferevent *stream, void *context)
{
	struct connection *c = context;
	struct evbuffer *in = bufferevent_get_input(stream);

	if (c->state == CONNECTION_REQUEST)
		connection_take_request(c);
	else
		evbuffer_drain(in, evbuffer_get_length(in));
}

/* All was taken by the kernel. The client closes first, or unread input would reset what it has. */
static void http_on_written(struct bufferevent *stream, void *context)
{
	struct connection *c = context;

	if (c->state != CONNECTION_RESPONSE)
		return;
	if (c->http->tls)
		(void)SSL_shutdown(bufferevent_openssl_get_ssl(stream));
	(void)shutdown(bufferevent_getfd(stream), SHUT_WR);
	connection_enter(c, CONNECTION_LINGER, HTTP_LINGER_MS);
}

static void http_on_event(struct bufferevent *stream, short what, void *context)
{
	struct connection *c = context;
	const char *wrong;

	if (what & BEV_EVENT_CONNECTED)
		return; /* the handshake of TLS has ended */
	/* A client that has shut its sending side down still waits for the response. */
	if (what & BEV_EVENT_EOF && c->state == CONNECTION_RESPONSE && !c->http->tls)
		return;
	if (c->http->tls && (wrong = tls_wrong(stream)) != NULL)
		c->http->refused(c->http->context, bufferevent_getfd(stream), wrong);
	connection_close(c);
}

/* ---- the server ------------------------------------------------------------------------------ */

static void http_accept_pause(struct http *http, suseconds_t us)
{
	const struct timeval pause = {.tv_usec = us};

	if (event_add(http->resume, &pause) == 0)
		evconnlistener_disable(http->listener);
}

/*
 * libevent accepts while clients wait, and closes descriptors only after that. Without a pause a
 * flood of clients would keep it there: no request is read, and closed descriptors add up.
 */
static void http_on_accept(struct evconnlistener *listener, evutil_socket_t fd,
	struct sockaddr *from, int bytes, void *context)
{
	struct http *http = context;
	struct connection *c = calloc(1, sizeof(*c));

	(void)listener;
	(void)from;
	(void)bytes;
	if (++http->accepts == HTTP_ACCEPTS)
		http_accept_pause(http, 0);
	if (http->count == HTTP_CONNECTIONS_MAX)
		connection_close(connection_to_lose(http));
	if (c)
		c->stream = http->tls
				    ? tls_stream(http, fd)
				    : bufferevent_socket_new(http->base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (!c || !c->stream) {
		free(c);
		close(fd);
		return;
	}
	c->http = http;
	c->deadline_ns = clock_now_ns() + HTTP_REQUEST_MS * 1000000ull;
	TAILQ_INSERT_TAIL(&http->connections, c, next);
	http->count++;
	bufferevent_setcb(c->stream, http_on_read, http_on_written, http_on_event, c);
	/* At this many bytes libevent stops reading. */
	bufferevent_setwatermark(c->stream, EV_READ, 0, HTTP_REQUEST_BYTES);
	bufferevent_enable(c->stream, EV_READ | EV_WRITE);
}

static void http_accept_again(evutil_socket_t fd, short what, void *context)
{
	struct http *http = context;

	(void)fd;
	(void)what;
	http->accepts = 0;
	evconnlistener_enable(http->listener);
}

/* No descriptor is left: a connection is given up, and accepting pauses. */
static void http_on_accept_error(struct evconnlistener *listener, void *context)
{
	struct http *http = context;

	(void)listener;
	if (!TAILQ_EMPTY(&http->connections))
		connection_close(connection_to_lose(http));
	http_accept_pause(http, HTTP_PAUSE_US);
}

static void http_on_watch(evutil_socket_t fd, short what, void *context)
{
	struct http *http = context;
	uint64_t now_ns = clock_now_ns();
	struct connection *c = TAILQ_FIRST(&http->connections);

	(void)fd;
	(void)what;
	while (c) {
		struct connection *after = TAILQ_NEXT(c, next);

		if (now_ns >= c->deadline_ns)
			connection_close(c);
		c = after;
	}
}

int http_open(
	struct event_base *base, int fd, http_answer answer, void *context, struct http **ret_http)
{
	const struct timeval every = {.tv_usec = HTTP_WATCH_US};
	struct http *http = calloc(1, sizeof(*http));

	if (!http) {
		close(fd);
		return -ENOMEM;
	}
	http->base = base;
	http->answer = answer;
	http->context = context;
	TAILQ_INIT(&http->connections);
	http->listener = evconnlistener_new(base, http_on_accept, http,
		LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, HTTP_BACKLOG, fd);
	http->watch = event_new(base, -1, EV_PERSIST, http_on_watch, http);
	http->resume = event_new(base, -1, 0, http_accept_again, http);
	if (!http->listener || !http->watch || !http->resume ||
		event_add(http->watch, &every) < 0) {
		if (!http->listener)
			close(fd);
		http_close(http);
		return -ENOMEM;
	}
	evconnlistener_set_error_cb(http->listener, http_on_accept_error);
	*ret_http = http;
	return 0;
}

void http_secure(struct http *http, const struct http_tls *tls, http_refused refused)
{
	http->tls = tls;
	http->refused = refused;
}

void http_close(struct http *http)
{
	if (!http)
		return;
	while (!TAILQ_EMPTY(&http->connections))
		connection_close(TAILQ_FIRST(&http->connections));
	if (http->watch)
		event_free(http->watch);
	if (http->resume)
		event_free(http->resume);
	if (http->listener)
		evconnlistener_free(http->listener);
	free(http);
}

unsigned http_connections(const struct http *http)
{
	return http->count;
}
