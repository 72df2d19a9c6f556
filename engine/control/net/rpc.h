/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP links between engines: a listener on cluster.address, outgoing links that are dialled again
 * until they are stopped, and the frames on them, one protobuf Message each. Control plane's thread
 * only.
 *
 * A link is one TCP connection, dialled or accepted; it carries requests and answers in both
 * directions. It is `up`, and belongs to a member, once Hellos were exchanged. A frame that breaks
 * a rule closes its link; the sender of requests that a closed link has lost sends them again over
 * the next one.
 */
#ifndef CONTROL_RPC_H
#define CONTROL_RPC_H

#include <sys/queue.h>
#include <sys/socket.h>

#include "engine/abi/message.pb-c.h"
#include "config/address_text.h"
#include "engine/control/base/control.h"
#include "engine/control/net/address.h"
#include "engine/control/net/net.h"
#include "engine/control/net/secure.h"

/* limit of the length of a frame before the Hello, when the sender is unknown, in bytes */
#define RPC_HELLO_BYTES_MAX (128u << 10)
/* limit of the bytes queued on a link that the kernel has not accepted yet */
#define RPC_OUT_BYTES_MAX (2 * MESSAGE_BYTES_MAX)
/* time limit for the TCP connection and the exchange of Hellos together */
#define RPC_CONNECT_MS 2000
#define RPC_ARENA_BYTES (4u << 20) /* memory limit of one decoded message, in bytes */
#define RPC_BAD_REMEMBERED 64
#define RPC_LOGGED_NS (600ull * 1000000000)
#define RPC_LINES_MAX 60u /* about closed links, in this time */
#define RPC_LINES_NS (60ull * 1000000000)
#define RPC_UNRESOLVED 16 /* names without an address that are logged; further ones are not */
#define RPC_UNRESOLVED_NS (3600ull * 1000000000) /* the longest time between two lines of one */
/* number of Hellos without an answer after which that is logged, once for each dial */
#define RPC_UNANSWERED_MAX 3
/* a link that was up longer than this is dialled again at once after it closed */
#define RPC_STEADY_NS 1000000000ull
#define RPC_ADDRESS_NS 2000000000ull /* between two looks at the addresses of this host */
/*
 * Accepted links without a Hello, in all and from one address; the oldest makes room. A Hello takes
 * milliseconds, so strangers do not keep engines out.
 */
#define RPC_STRANGERS_MAX 512
#define RPC_VERIFIED_MAX 8u /* certificates of links, verified again in one turn */
#define RPC_STRANGERS_ADDRESS_MAX 256

struct member;
struct rpc_dial;

struct rpc_link {
	LIST_ENTRY(rpc_link) next;
	struct control *control;
	struct net_link *net;
	/* timer of the limit for the exchange of Hellos; NULL once the link is up */
	struct net_timer *deadline;
	struct rpc_dial *dial; /* the dial that opened this link; NULL: the link was accepted */
	/* the member at the other end; NULL until the Hellos were exchanged */
	struct member *member;
	bool connected;
	bool far; /* true: the other end has an address that is not a loopback address */
	bool up;
	bool barred; /* closed because the key or certificate is no longer good */
	uint64_t up_ns;
	uint64_t summary_ns;       /* time of our last Summary on this link; 0: none was sent */
	bool closed;               /* true: the link is closed; it is freed once `busy` is 0 */
	unsigned busy;             /* number of callbacks of this link that are on the stack */
	char from[NAME_BYTES_MAX]; /* address of the other end, for logs */
};

/* One address (host and port) that is dialled again until rpc_dial_stop() is called. */
struct rpc_dial {
	LIST_ENTRY(rpc_dial) next;
	struct control *control;
	char host[NAME_BYTES_MAX];
	uint16_t port;
	void *owner; /* the struct member or struct member_seed that is dialled */
	bool seed;
	unsigned fails;                  /* number of attempts in a row that failed */
	int error;                       /* errno of the last one that failed */
	bool reached;                    /* it was connected when it failed */
	char at[NAME_BYTES_MAX];         /* address of the last attempt; "": none */
	char unresolved[64];             /* why the name has no address; "": it has one */
	char insecure[SECURE_WHY_BYTES]; /* why TLS failed; with the error EACCES */
	/* number of Hellos that the other end answered by closing the link, up to a limit */
	unsigned unanswered;
	/* number of attempts; modulo `addresses` it is the next address of a host name */
	unsigned tried;
	unsigned addresses; /* that the host name had when it was resolved last; 0: not yet */
	uint32_t base_ms, max_ms;
	struct net_timer *timer;
	/* link that is connecting or connected; NULL: the dial waits, or resolves the name */
	struct rpc_link *link;
	struct net_query *query; /* for the addresses of the name; NULL: none is in progress */
};

struct rpc_logged {
	uint64_t hash, ns;
};

/* A name of a member that cannot be resolved. */
struct rpc_unresolved {
	uint64_t hash; /* of the name; 0: the element is free */
	uint64_t since_ns, last_ns;
	uint64_t line_ns; /* no line before this time */
};

/*
 * What net/ calls of rooms above it: control->rpc_events, of upward.c. Each call may close links.
 */
struct rpc_events {
	/* A message arrived. False: it broke a rule; the link is then closed. */
	bool (*message)(struct rpc_link *link, const Pc__Message *message);
	/* A dialled link is connected: time for our Hello, the first message on it. */
	void (*connected)(struct control *control, struct rpc_link *link);
	/* The link of a member closes. */
	void (*down)(struct control *control, struct rpc_link *link);
	/* Other keys or certificates were read; links were looked at. */
	void (*rights)(struct control *control);
	/* A dial failed before its link was up; error: errno. The call may stop the dial. */
	void (*dial_failed)(struct control *control, struct rpc_dial *dial, int error);
};

struct rpc {
	struct net_listener *listener;
	struct net_gate *gate; /* of TLS handshakes; NULL: clear text */
	bool loopback; /* this engine listens on a loopback address: other hosts cannot reach it */
	/* the resolver of names; created when the first host name is dialled */
	struct net_resolver *dns;
	LIST_HEAD(, rpc_link) links;
	LIST_HEAD(, rpc_dial) dials;
	unsigned accepted;
	/* addresses and reasons of closed links that were logged, and lines of this minute */
	struct rpc_logged logged[RPC_BAD_REMEMBERED];
	uint64_t lines_ns;
	unsigned lines;
	struct rpc_unresolved unresolved[RPC_UNRESOLVED];
	/* bits of addresses_here(): this host has had them; it has them no longer */
	unsigned addresses, addresses_gone;
	uint64_t addresses_ns; /* time of the last look */
};

/* ---- links ----------------------------------------------------------------------------------- */

/*
 * Creates a link on a connected or connecting connection and takes it over. dial NULL: accepted.
 * NULL: no memory; the connection is closed.
 */
struct rpc_link *rpc_link_open(
	struct control *control, struct net_link *net, struct rpc_dial *dial, const char *from);
/*
 * Closes the link at once and informs the member or the dial. Safe inside the link's own callbacks.
 */
void rpc_link_close(struct rpc_link *link);
/* Called when the Hellos were exchanged: ends the link's deadline and allows long frames. */
void rpc_link_up(struct rpc_link *link);
/*
 * Called when the peer broke a rule of the protocol: counts it, logs it once per peer, and closes
 * the link.
 */
__attribute__((format(printf, 2, 3))) void rpc_link_bad(
	struct rpc_link *link, const char *format, ...);

/* A message with this body: all members of its union are pointers to structures. */
static inline Pc__Message message_of(Pc__Message__BodyCase body_case, void *body)
{
	Pc__Message message = PC__MESSAGE__INIT;

	message.body_case = body_case;
	message.ack = body;
	return message;
}

/*
 * Queues a request; the message is copied. False: there is no link, or its output buffer is full;
 * the caller tries again on a later turn or lets its deadline pass.
 */
bool rpc_send(struct rpc_link *link, const Pc__Message *message);
/*
 * Queues an answer. If the output buffer is full, the peer does not read its answers: closes the
 * link.
 */
void rpc_reply(struct rpc_link *link, const Pc__Message *message);
/* Listens for other engines on the socket of rpc_port_open(). Returns 0 or -errno after logging. */
int rpc_listen(struct control *control);
/*
 * Called at every heartbeat: enables the listener again if accept() has failed, and looks whether
 * this host still has the addresses at which others reach it.
 */
void rpc_tick(struct control *control, uint64_t now_ns);
/* Stops listening and dialling; existing links stay. */
void rpc_quiet(struct control *control);

/* ---- dials ----------------------------------------------------------------------------------- */

/* What a dial connects to. */
struct rpc_target {
	const char *host; /* a name or an address; copied */
	uint16_t port;
	uint32_t base_ms, max_ms; /* back-off after the first failure, and its limit */
	void *owner;              /* the struct member_seed or struct member that it is for */
	bool seed;                /* true: a struct member_seed */
};

struct rpc_dial *rpc_dial_start(struct control *control, const struct rpc_target *target);
/* Ends the dial and closes its link. `dial` may be NULL. */
void rpc_dial_stop(struct rpc_dial *dial);
/* Sets a new back-off for the dial and starts it anew; if the dial is waiting, it dials at once. */
void rpc_dial_hurry(struct rpc_dial *dial, uint32_t base_ms, uint32_t max_ms);
/* ---- open and close -------------------------------------------------------------------------- */

/* Binds cluster.address without listening on it: early engines are refused. */
int rpc_port_open(struct control *control);
void rpc_port_close(struct control *control);
/*
 * Listens at once, unless the memory is still being registered: then rpc_listen() follows. Returns
 * 0 or -errno after logging the reason.
 */
int rpc_open(struct control *control);
void rpc_close(struct control *control);

#endif
