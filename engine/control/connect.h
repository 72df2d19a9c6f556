/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs to peers: made lazily when a rail wants them, given up when they break or the peer
 * dies. Both ends: the one that asks (a rail sent RAIL_PEER_WANTED) and the one that answers.
 *
 * Each rail of ours connects to one rail of the peer (ours modulo theirs). READs go one way: the
 * end that answers only holds passive QPs, which die with the asking engine or at its Disconnect.
 */
#ifndef CONTROL_CONNECT_H
#define CONTROL_CONNECT_H

#include <stdbool.h>
#include <stdint.h>

struct control;
struct rail_peer;

/* From a rail: RAIL_PEER_WANTED, _BROKEN, _RETURNED, _PROVEN. */
void connect_wanted(struct control *control, unsigned rail, uint16_t peer, uint32_t ref);
void connect_broken(
	struct control *control, unsigned rail, struct rail_peer *peer, uint32_t syndrome);
void connect_returned(struct control *control, unsigned rail, struct rail_peer *peer);
void connect_proven(struct control *control, unsigned rail, struct rail_peer *peer);
/* RAIL_PEER_STUCK; `ns`: the first deadline on it. RAIL_QUIET. */
void connect_stuck(struct control *control, unsigned rail, struct rail_peer *peer, uint64_t ns);
void connect_quiet(struct control *control, unsigned rail);

/* The NIC's port lost or found its link. */
void connect_port(struct control *control, unsigned rail, bool up);
/* The NIC is lost for good: PORT_UP does not bring it back. `why`: the driver's words. */
void connect_device_lost(struct control *control, unsigned rail, const char *why);
/* One of its queue pairs failed: the connection that has it is broken. */
void connect_qp_failed(struct control *control, unsigned rail, uint32_t qpn, const char *why);
/* "up", "down", "slow" or "lost"; how many peers are not read over it. */
const char *connect_rail_state(
	const struct control *control, unsigned rail, unsigned *ret_peers_out);

/* The member is gone from the map: drop its QPs on every rail, active and passive. */
void connect_member_gone(struct control *control, uint16_t peer, uint32_t ref);
/* Shutdown: all active peers are put in error and dropped; passive QPs are destroyed. */
void connect_stop(struct control *control);
/* Peers not yet returned by their rails. */
unsigned connect_outstanding(const struct control *control);
/* Calls to NICs that helper threads make now. */
unsigned connect_busy(const struct control *control);

struct connect_counts {
	unsigned asked, live; /* peers of our rails: waiting for an answer; read through */
	unsigned served;      /* peers' rails that read from us */
	unsigned qps;         /* queue pairs of all of them */
};
void connect_counts(const struct control *control, struct connect_counts *ret);

#endif
