/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing pages, and the credits for it: the stocks of a channel, by page size and rail. A credit
 * is a slot of this host's pools with its generation. Channel thread.
 */
#ifndef CLIENT_SET_H
#define CLIENT_SET_H

#include "config/limits.h"
#include "engine/client/constants.h"

struct client_request;
struct ctl_done;
struct pc_batch;
struct pc_channel;

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

void credit_put(struct pc_channel *ch, uint32_t bytes, const struct stock_credit *credit);
void credit_answer(
	struct pc_channel *ch, const struct client_request *r, const struct ctl_done *done);
/* Gives back the stocks unused since `before_ns`, not that of size `keep`; number of credits */
uint32_t credit_return(struct pc_channel *ch, uint64_t before_ns, uint32_t keep);
/* The engine is gone, and the credits with it. */
void credit_forget(struct pc_channel *ch);

#endif
