/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages on other hosts' disks. A client of this host has found a page there in the directory
 * (CTL_PROMOTE and CTL_WANT with the ref of its holder): this engine asks the holder to bring it
 * into memory, and answers the client with the place from which the client then READs it. The
 * holder's side is tier_remote.c. Control plane's thread only.
 *
 * A request ends with the holder's answer, with the end of its link, or at its deadline, whichever
 * comes first. The requests of one turn for one holder are one message.
 */
#ifndef CONTROL_PROMOTE_H
#define CONTROL_PROMOTE_H

#include "engine/abi/message.pb-c.h"
#include "engine/control/base/control.h"

struct ctl_channel;
struct rpc_link;

/* Requests that wait for an answer, of all clients; a further one is refused. */
#define PROMOTE_ASKS_MAX 8192u
#define PROMOTE_TICK_US 10000 /* between two looks at the deadlines, while requests wait */

int promote_open(struct control *control);
void promote_close(struct control *control);
/* Serves CTL_PROMOTE and CTL_WANT; those for this host's disk are the tier's (tier.h). */
void promote_serve(
	struct control *control, struct ctl_channel *c, struct ctl_op *op, uint64_t now_ns);
/* The link has closed: no answer comes on it. */
void promote_link_down(struct control *control, const struct rpc_link *link);
/* Number of requests that wait for an answer. */
unsigned promote_waiting(const struct control *control);

/* Messages of other engines, from rpc_frame.c; false: the message breaks a rule. */
bool promote_serve_promoted(
	struct control *control, struct rpc_link *link, const Pc__Promoted *promoted);

#endif
