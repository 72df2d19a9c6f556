/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between rails of this engine and rails of peers, and the health of our rails. A
 * connection is made on demand, when a rail requests one, and dropped when it breaks or the peer
 * dies. Both sides are here: the reading side, which requests (a rail sent RAIL_CONN_WANTED), and
 * the serving side, which answers. README.md of this folder says how they work together.
 *
 * Each rail connects to one rail of the peer: our rail number modulo the peer's number of rails.
 * READs go in one direction: the serving side only holds QPs that the reading side reads through,
 * until its Disconnect or its death. Control plane's thread only.
 */
#ifndef CONTROL_CONNS_H
#define CONTROL_CONNS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/abi/message.pb-c.h"
#include "engine/rail/inbox.h"

struct rpc_link;
struct control;
struct rail_conn;

/* ---- open and close -------------------------------------------------------------------------- */

int conns_open(struct control *control);
/*
 * Called at shutdown: puts all outgoing QPs in the error state and drops them; destroys the
 * incoming QPs.
 */
void conns_stop(struct control *control);
/* Number of outgoing connections that a rail holds and has not returned. */
unsigned conns_outstanding(const struct control *control);
void conns_close(struct control *control);
/*
 * Watches the asynchronous events of the NICs from here to device_event_close(), between which the
 * devices must be open. A NIC that cannot be watched is logged and left out. Returns 0 or -ENOMEM.
 */
int device_event_open(struct control *control);
void device_event_close(struct control *control);

/* ---- events of the rails --------------------------------------------------------------------- */

/* No connection to (peer, ref) can be made now: the rail ends the requests that wait for one. */
void conn_refuse(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);

/* Handlers of these events from a rail: RAIL_CONN_WANTED, _BROKEN, _RETURNED and _PROVEN. */
void conns_wanted(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);
void conns_broken(
	struct control *control, unsigned rail, struct rail_conn *handle, uint32_t syndrome);
void conns_returned(struct control *control, unsigned rail, struct rail_conn *handle);
void conns_proven(struct control *control, unsigned rail, struct rail_conn *handle);
/*
 * Handlers of RAIL_CONN_STUCK and RAIL_QUIET. `ns`: the earliest deadline of the requests posted on
 * the connection.
 */
void conns_stuck(struct control *control, unsigned rail, struct rail_conn *handle, uint64_t ns);
void conns_quiet(struct control *control, unsigned rail);

/* ---- health of the rails --------------------------------------------------------------------- */

/*
 * The NIC is lost: no command of its driver helps any more. Nothing is given to the rail, its
 * device is closed, and then its posted work ends. It is back when its device was opened anew.
 */
__attribute__((format(printf, 3, 4))) void rail_lost(
	struct control *control, unsigned rail, const char *format, ...);
/*
 * The rail's state: "up", "down", "slow" or "lost". *ret_peers_out: number of peers that are not
 * read over this rail.
 */
const char *conns_rail_state(const struct control *control, unsigned rail, unsigned *ret_peers_out);
/* Why the rail's NIC or port cannot be used, with the remedy; "": it can, as far as is known. */
const char *conns_rail_why(const struct control *control, unsigned rail);

/* ---- members and their messages -------------------------------------------------------------- */

/* Called when a link with the member is up: sends the requests that waited for it. */
void conns_link_up(struct control *control, uint32_t ref);
/* Called when the member has left the map: drops its QPs on every rail, outgoing and incoming. */
void conns_member_gone(struct control *control, uint16_t peer, uint32_t ref);
/*
 * Ends all connections with the member, so that the next request makes a new one. Called when a
 * Hello says that it had removed this engine from its map, and has ended them there, and when the
 * member has lost its right to links with this engine.
 */
void conns_forgotten(struct control *control, uint32_t ref);
/* Other keys or certificates: members with connections and without a link prove their right. */
void conns_prove(struct control *control);
/* Messages of other engines; false: the message breaks a rule. */
bool conn_accept(struct control *control, struct rpc_link *link, const Pc__Connect *connect);
bool conn_accept_connected(
	struct control *control, struct rpc_link *link, const Pc__Connected *connected);
bool conn_accept_disconnect(
	struct control *control, struct rpc_link *link, const Pc__Disconnect *disconnect);

/* ---- figures --------------------------------------------------------------------------------- */

struct conn_counts {
	/* Outgoing connections: number waiting for the peer's answer; number in use by a rail */
	unsigned asked, live;
	/* number of incoming connections, through whose queue pairs rails of peers read */
	unsigned served;
	unsigned qps; /* number of queue pairs of all these connections, outgoing and incoming */
};
void conn_counts(const struct control *control, struct conn_counts *ret);

#endif
