/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to the control plane: storing pages, and the credits for it; pages on disk, removals,
 * clears. A credit is a slot of this host's pools with its generation. Channel thread.
 */
#ifndef CLIENT_WRITE_H
#define CLIENT_WRITE_H

#include "config/limits.h"
#include "engine/client/constants.h"
#include "engine/client/rings/rings.h"

struct client_request;
struct ctl_done;
struct ctl_op;
struct pc_batch;
struct pc_channel;

/* ---- set.c: storing pages, and the stocks of credits, by page size and rail ------------------ */

struct stock_credit {
	uint32_t place;
	uint32_t generation;
};

struct stock_rail {
	uint32_t have;
	uint32_t first; /* index of the oldest credit in credit[], which is a ring */
	uint32_t asked;
	uint32_t want; /* pages that found no credit in this step of the channel */
	/* credits requested in advance; 0: the channel stores no pages of this size at present */
	uint32_t ahead;
	uint64_t refused_until_ns;
	/* The oldest is taken first: pages that are stored one after another then lie in ascending
	 * slots, and a READ may cover several of them. */
	struct stock_credit credit[CREDIT_STOCK_MAX];
};

/* Stock of credits for pages of one size. */
struct stock {
	uint32_t bytes;
	uint64_t used_ns;
	struct stock_rail rail[RAILS_MAX];
};

/* Stores and publishes pages, as far as there are credits and room. */
void set_step(struct pc_batch *b);
void credit_put(struct pc_channel *ch, uint32_t bytes, const struct stock_credit *credit);
void credit_answer(
	struct pc_channel *ch, const struct client_request *r, const struct ctl_done *done);
/* Gives back the stocks unused since `before_ns`, not that of size `keep`; number of credits */
uint32_t credit_return(struct pc_channel *ch, uint64_t before_ns, uint32_t keep);
/* The engine is gone, and the credits with it. */
void credit_forget(struct pc_channel *ch);

/* ---- ctl.c: requests to the control plane with one answer, and all its answers --------------- */

/* What pc_clear() or pc_clear_cluster() asks, and the answer. */
struct clear {
	struct page_key group; /* bits of the group */
	uint16_t what;         /* CLEAR_* */
	uint32_t status;       /* of the answer: enum op_status */
	uint32_t place, generation;
};

/*
 * Sends a request for page i of the batch, which gets one answer; sets its cookie. False: no room;
 * the page is again first in its queue.
 */
bool ctl_ask(struct pc_batch *b, uint32_t i, enum request_kind kind, struct ctl_op *op);
/* Sends the requests that wait, as far as there is room: about a page on disk, to remove. */
void ctl_step(struct pc_batch *b);
/* Takes all answers of the control plane. */
void reap_ctl(struct pc_channel *ch);

#endif
