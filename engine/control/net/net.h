/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What membership, rpc and directory need from the world: time, timers, random numbers, TCP and
 * names. They use nothing else of the operating system or of libevent, so that a test can link
 * another implementation: net_event.c and net_names.c use libevent, sockets and the resolver of the
 * host, tests/sim uses one queue of events in virtual time. Control plane's thread only.
 *
 * `base` is the event loop of the engine. Only the implementation looks into it.
 */
#ifndef CONTROL_NET_H
#define CONTROL_NET_H

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct event_base;
struct net_timer;
struct net_link;
struct net_listener;
struct net_resolver;
struct net_query;
struct net_gate;
struct ssl_st;

typedef void (*net_call)(void *context);

/* ---- time and random numbers ----------------------------------------------------------------- */

/* Monotonic time of this host in ns. */
uint64_t net_now(void);
uint32_t net_random(void);

/*
 * A timer that is not armed. `repeats`: once armed, it fires once per period until it is stopped.
 * NULL: no memory. The callback may free its own timer.
 */
struct net_timer *net_timer_new(
	struct event_base *base, bool repeats, net_call call, void *context);
/* Stops and frees the timer. NULL is ignored. */
void net_timer_free(struct net_timer *timer);
/* Arms the timer to fire in `us` microseconds, or anew if it is armed. Returns 0 or -1. */
int net_timer_set(struct net_timer *timer, uint64_t us);
void net_timer_stop(struct net_timer *timer);
/* Fires the timer once in this turn of the loop, after the present callback has returned. */
void net_defer(struct net_timer *timer);

/*
 * Called before the loop runs: callbacks that come `ns` after the first one wait until it runs
 * again. 0, as at the start: all run. Only with libevent; per thread.
 */
void net_slice(uint64_t ns);

/* ---- TCP connections ------------------------------------------------------------------------- */

/* The callbacks of a connection. Each may close the connection. */
struct net_calls {
	/* as many bytes have arrived as net_want() asks */
	net_call readable;
	/* a dialled connection was established, and its TLS handshake has ended */
	net_call connected;
	/*
	 * the connection broke or was refused; error: errno, ECONNRESET: the other end closed it,
	 * EACCES: TLS failed, net_why() says why
	 */
	void (*failed)(void *context, int error);
};

/*
 * Starts to connect. Returns 0, or an errno (positive), also when the address refuses at once. The
 * connection is silent until net_start(), and is not watched before net_connect().
 */
int net_dial(struct event_base *base, const struct sockaddr *address, socklen_t bytes,
	struct net_link **ret_link);
/*
 * Wraps a socket that is connected already, and takes it over. NULL: no memory; the socket is
 * closed. Only with sockets.
 */
struct net_link *net_adopt(struct event_base *base, int fd);
/*
 * Lets handshakes of accepted connections take a bounded time of each turn of the loop; those that
 * wait keep their order. It is freed after its connections. NULL: no memory.
 */
struct net_gate *net_gate_new(struct event_base *base);
void net_gate_free(struct net_gate *gate);
/*
 * What is sent and received on the connection is a TLS session, of secure_session(), which is taken
 * over. Before net_start(). Only with sockets. `gate` NULL: the connection was dialled. False: no
 * memory; the session is freed.
 */
bool net_secure(struct net_link *link, struct ssl_st *ssl, struct net_gate *gate);
/* Why TLS failed on the connection; "": it did not, or there is none. */
const char *net_why(const struct net_link *link);
/* A dialled connection with TLS was established, before its handshake. */
bool net_reached(const struct net_link *link);
/* The session, once the handshake has ended; NULL: it has not, or there is none. */
struct ssl_st *net_session(const struct net_link *link);

/*
 * Begins to receive. The connection breaks when the other end has acknowledged nothing that was
 * sent for dead_after_ms. `read_max`: limit of the bytes that are buffered.
 */
void net_start(struct net_link *link, const struct net_calls *calls, void *context,
	unsigned dead_after_ms, size_t read_max);
/* Watches a connection of net_dial() until it is established or refused. Returns 0 or -1. */
int net_connect(struct net_link *link);
/* Stops all callbacks; nothing more is sent. */
void net_silence(struct net_link *link);
/* Closes the connection; safe inside its own callbacks. */
void net_close(struct net_link *link);

/* Number of bytes that were received and not drained. */
size_t net_received(const struct net_link *link);
/* The first `bytes` of them, which must be there, in one piece. NULL: no memory. */
const uint8_t *net_front(struct net_link *link, size_t bytes);
void net_drain(struct net_link *link, size_t bytes);
/* Sets the number of received bytes from which `readable` is called. */
void net_want(struct net_link *link, size_t bytes);

/* Number of bytes queued that the kernel has not taken yet. */
size_t net_backlog(const struct net_link *link);
/*
 * Room for `bytes` at the end of the queue, valid until the next call on this connection; NULL: no
 * memory. Nothing is sent before net_commit().
 */
uint8_t *net_reserve(struct net_link *link, size_t bytes);
/*
 * Queues the bytes that were written to the room: all of one turn of the loop leave at its end,
 * with TLS in as few records as they need. False: no memory.
 */
bool net_commit(struct net_link *link, size_t bytes);
/* Hands to the kernel what it takes now. */
void net_push(struct net_link *link);

/* ---- listening ------------------------------------------------------------------------------- */

/* Returns a socket that is bound to the address, for net_listen(), or -errno. */
int net_bind(const struct sockaddr *address, socklen_t bytes);

struct net_listen_calls {
	/* A connection was accepted; the callee owns it. */
	void (*accepted)(void *context, struct net_link *link, const struct sockaddr *address,
		socklen_t bytes);
	/* accept() failed: no more connections are accepted before net_listen_again() */
	void (*failed)(void *context, int error);
};

/*
 * Listens on a socket of net_bind() and takes it over; *ret_own is its address. NULL: errno says
 * why; the socket is still the caller's.
 */
struct net_listener *net_listen(struct event_base *base, int fd,
	const struct net_listen_calls *calls, void *context, struct sockaddr_storage *ret_own);
/* While many connections wait at the gate, no more are accepted. The gate outlives the listener. */
void net_listen_gate(struct net_listener *listener, const struct net_gate *gate);
void net_listen_again(struct net_listener *listener);
void net_listener_free(struct net_listener *listener);

/* ---- names ----------------------------------------------------------------------------------- */

/* `found` is valid during the call. error: text, or NULL when at least one address was found. */
typedef void (*net_resolved)(void *context, const char *error, const struct addrinfo *found);

/* NULL: no memory. */
struct net_resolver *net_resolver_new(struct event_base *base);
/* Cancels all its queries. Waits for none. */
void net_resolver_free(struct net_resolver *resolver);
/*
 * Looks a name up, with resolv.conf, /etc/hosts and nsswitch.conf as they are now. `call` is called
 * once, unless the query is cancelled before. NULL: it was called already, from inside this call.
 */
struct net_query *net_resolve(struct net_resolver *resolver, const char *host, uint16_t port,
	net_resolved call, void *context);
/* Ends a query early: its callback is not called any more. */
void net_resolve_cancel(struct net_query *query);

#endif
