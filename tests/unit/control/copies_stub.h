/* SPDX-License-Identifier: Apache-2.0 */
/* What other rooms call of the copier, for tests without it: nothing is copied. */
#ifndef TEST_COPIES_STUB_H
#define TEST_COPIES_STUB_H

#include "engine/control/copies/copies.h"

enum op_status copies_ask(struct control *control, const struct copy_wish *wish)
{
	(void)control, (void)wish;
	return OP_PEER_DOWN;
}

bool copies_serve_offer(struct control *control, struct rpc_link *link, const struct Pc__Offer *m)
{
	(void)control, (void)link, (void)m;
	return true;
}

bool copies_serve_offered(
	struct control *control, struct rpc_link *link, const struct Pc__Offered *m)
{
	(void)control, (void)link, (void)m;
	return true;
}

void copies_link_down(struct control *control, const struct rpc_link *link)
{
	(void)control, (void)link;
}

void copies_peer_leaves(struct control *control, uint16_t peer, bool leaves)
{
	(void)control, (void)peer, (void)leaves;
}

bool copies_serve_heartbeat(
	struct control *control, struct rpc_link *link, const struct Pc__Heartbeat *m)
{
	(void)control, (void)link, (void)m;
	return true;
}

bool copies_serve_touch(struct control *control, struct rpc_link *link, const struct Pc__Touch *m)
{
	(void)control, (void)link, (void)m;
	return true;
}

void copies_drain(struct control *control, uint64_t ns)
{
	(void)control, (void)ns;
}

void drain_counts(const struct control *control, struct drain_counts *ret)
{
	*ret = (struct drain_counts){.state = DRAIN_NONE};
}

void copies_forget(struct control *control, const struct page_key *key)
{
	(void)control, (void)key;
}

void copies_cleared(struct control *control)
{
}

void copies_stored(
	struct control *control, const struct page_key *key, uint32_t place, uint32_t generation)
{
	(void)control, (void)key, (void)place, (void)generation;
}

void copies_counts(const struct control *control, struct copies_counts *ret)
{
	*ret = (struct copies_counts){0};
}

#endif
