/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames and connections between engines: a listener on cluster.address, outgoing connections that
 * are dialled again for ever, and one protobuf Message a frame. Control plane's thread only.
 *
 * A link is one TCP connection, dialled or accepted; both carry requests and answers either way. It
 * is `up` once Hellos were exchanged and belongs to a member then. A frame that breaks a rule
 * closes its link; whoever had sent something over a link that closed sends it again over the next
 * one.
 *
 *   rpc.c        listener, links, sending        rpc_frame.c  decoding, who serves which message
 *   rpc_dial.c   addresses, names, back-off
 */
#ifndef CONTROL_RPC_H
#define CONTROL_RPC_H

#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "engine/abi/message.pb-c.h"
#include "engine/control/control.h"

#define RPC_HELLO_BYTES_MAX (128u << 10) /* of a frame before the Hello: anybody can send it */
#define RPC_OUT_BYTES_MAX (2 * MESSAGE_BYTES_MAX) /* not yet taken by the peer's kernel */
#define RPC_ACCEPTED_MAX (2 * NODES_MAX)
#define RPC_CONNECT_MS 2000        /* to connect and to exchange Hellos */
#define RPC_ARENA_BYTES (4u << 20) /* one decoded message */
#define RPC_BAD_REMEMBERED 64
#define RPC_UNANSWERED_MAX 3        /* Hellos, before the other end is probed */
#define RPC_STEADY_NS 1000000000ull /* a link that was up longer is dialled again at once */

struct member_entry;
struct rpc_dial;
struct rpc_resolve;

struct rpc_link {
	LIST_ENTRY(rpc_link) next;
	struct control *control;
	struct bufferevent *bev;
	struct event *deadline;      /* of the Hello; NULL once up */
	struct rpc_dial *dial;       /* NULL: accepted */
	struct member_entry *member; /* NULL until the Hello */
	bool connected;
	bool far;   /* the other end's address is not a loopback address */
	bool probe; /* our Hello on it was a probe (wire.h): no member comes of it */
	bool up;
	uint64_t up_ns;
	bool closed;               /* to be freed when `busy` is 0 */
	unsigned busy;             /* callbacks of ours on the stack that use it */
	char from[NAME_BYTES_MAX]; /* for people: the other end's address */
};

/* An address that is dialled until rpc_dial_stop(). */
struct rpc_dial {
	LIST_ENTRY(rpc_dial) next;
	struct control *control;
	char host[NAME_BYTES_MAX];
	uint16_t port;
	void *owner; /* struct member_entry or struct member_seed */
	bool seed;
	unsigned fails;      /* in a row */
	unsigned unanswered; /* Hellos answered by closing; above RPC_UNANSWERED_MAX: probed */
	unsigned tried;      /* which of a name's addresses is next */
	uint32_t base_ms, max_ms;
	struct event *timer;
	struct rpc_link *link; /* connecting or connected; NULL: waiting or resolving */
	struct rpc_resolve *resolve;
};

struct rpc {
	struct evconnlistener *listener;
	bool loopback;          /* listens on a loopback address: other hosts cannot reach it */
	struct evdns_base *dns; /* made when the first name is dialled */
	LIST_HEAD(, rpc_link) links;
	LIST_HEAD(, rpc_dial) dials;
	unsigned accepted;
	uint64_t bad_logged[RPC_BAD_REMEMBERED]; /* hashes of addresses already complained about */
	uint8_t *arena; /* where a message is decoded, bounded; rpc_frame.c */
	size_t arena_used;
};

/* ---- links ----------------------------------------------------------------------------------- */

/*
 * A link on a connected or connecting socket, which it owns from here on. dial NULL: accepted.
 * NULL when memory is exhausted: the socket is closed.
 */
struct rpc_link *rpc_link_open(
	struct control *control, int fd, struct rpc_dial *dial, const char *from);
/* Closes at once; tells member.c, or the dial. Safe inside the link's own callbacks. */
void rpc_link_close(struct rpc_link *link);
/* Hellos were exchanged: no deadline any more, frames may be long. */
void rpc_link_up(struct rpc_link *link);
/* The peer broke a rule: counted, logged once per peer, closed. */
__attribute__((format(printf, 2, 3))) void rpc_link_bad(
	struct rpc_link *link, const char *format, ...);

/*
 * Queues a request. False: no link, or too much waits for the peer already; the caller tries again
 * on a later turn or lets its deadline pass. Nothing is kept of *message.
 */
bool rpc_send(struct rpc_link *link, const Pc__Message *message);
/* Queues an answer; a peer that takes none of its answers is cut off. */
void rpc_reply(struct rpc_link *link, const Pc__Message *message);
/* Writes what the socket takes now: for the last words of an engine whose loop is about to end. */
void rpc_push(struct rpc_link *link);
/* Now and then: accepts again after accept() had failed. */
void rpc_tick(struct control *control);
/* No new connections either way; existing ones stay. */
void rpc_quiet(struct control *control);

/* ---- frames (rpc_frame.c) -------------------------------------------------------------------- */

/* Serves the whole frames in the link's input buffer. */
void rpc_frames(struct rpc_link *link);
/* Serves one decoded message. False: it broke a rule (rpc_link_bad() was not called yet). */
bool rpc_serve(struct rpc_link *link, const Pc__Message *message);

/* ---- dials (rpc_dial.c) ---------------------------------------------------------------------- */

struct rpc_dial *rpc_dial_start(struct control *control, const char *host, uint16_t port,
	uint32_t base_ms, uint32_t max_ms, void *owner, bool seed);
/* Closes its link too. NULL is fine. */
void rpc_dial_stop(struct rpc_dial *dial);
/* Another back-off from now on; what waits is dialled at once. */
void rpc_dial_hurry(struct rpc_dial *dial, uint32_t base_ms, uint32_t max_ms);
/* From rpc.c: the dial's link closed, after `up_ns` of being up. */
void rpc_dial_lost(struct rpc_dial *dial, bool was_up, uint64_t up_ns, int error);
void rpc_resolve_cancel(struct rpc_dial *dial);
/* From rpc.c: the other end closed the connection without a Hello. */
void rpc_dial_unanswered(const struct rpc_link *link);

/* Literal IPv4 or IPv6 address -> socket address. 0 or -EINVAL: not a literal. */
int rpc_address(
	const char *host, uint16_t port, struct sockaddr_storage *ret, socklen_t *ret_bytes);
/* Is it one of 127.0.0.0/8 or ::1? What is no internet address is local, too. */
bool rpc_address_loopback(const struct sockaddr *address);
/* The same of a literal; "localhost" is one. Any other name is not. */
bool rpc_text_loopback(const char *host);
/* "1.2.3.4:5" or "[::1]:5". */
void rpc_address_text(const char *host, uint16_t port, char ret_text[NAME_BYTES_MAX + 8]);

/* ---- who serves what; false: the message breaks a rule -----------------------------------------
 */

bool member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
bool member_heartbeat(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat);
bool member_members(struct control *control, struct rpc_link *link, const Pc__Members *members);
bool member_left(struct control *control, struct rpc_link *link);
bool directory_serve_publish(
	struct control *control, struct rpc_link *link, const Pc__Publish *publish);
bool directory_serve_remove(
	struct control *control, struct rpc_link *link, const Pc__Remove *remove);
bool directory_serve_ack(struct control *control, struct rpc_link *link, const Pc__Ack *ack);
bool directory_serve_touch(struct control *control, struct rpc_link *link, const Pc__Touch *touch);
bool directory_serve_forget(
	struct control *control, struct rpc_link *link, const Pc__Forget *forget);
bool connect_serve(struct control *control, struct rpc_link *link, const Pc__Connect *connect);
bool connect_serve_connected(
	struct control *control, struct rpc_link *link, const Pc__Connected *connected);
bool connect_serve_disconnect(
	struct control *control, struct rpc_link *link, const Pc__Disconnect *disconnect);

/* What member.c is told by rpc. */
void member_heard(struct control *control, struct rpc_link *link);
/* A dialled link is connected: the Hello that goes first. */
void member_greet(struct control *control, struct rpc_link *link);
void member_link_down(struct control *control, struct rpc_link *link);
void member_dial_failed(struct control *control, struct rpc_dial *dial, int error);

#endif
