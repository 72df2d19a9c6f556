/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page credits: slots in this host's pools that the control plane has handed to this channel in
 * advance. The channel keeps a small stock per page size and rail. It returns credits that stay
 * unused, and credits of other sizes when a pool is full. Channel thread.
 */
#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/credit.h"
#include "engine/client/request.h"
#include "engine/client/session.h"
#include "engine/client/submit.h"

#include <stdlib.h>
#include <string.h>

static uint32_t cap(const struct pc_channel *ch, uint32_t bytes, uint32_t rail)
{
	uint64_t most = ch->session->rail[rail].pool_bytes / CREDIT_STOCK_SHARE;

	most = (most < CREDIT_STOCK_BYTES ? most : CREDIT_STOCK_BYTES) / bytes;
	return most < 1 ? 1 : most > CREDIT_STOCK_MAX ? CREDIT_STOCK_MAX : (uint32_t)most;
}

/*
 * The page size that credits are requested for: whole units, so that pages of similar size share a
 * stock.
 */
static uint32_t size_of(const struct pc_channel *ch, uint32_t bytes)
{
	uint64_t size = ((uint64_t)bytes + PAGE_UNIT - 1) / PAGE_UNIT * PAGE_UNIT;

	return (uint32_t)(size > ch->session->page_bytes_max ? ch->session->page_bytes_max : size);
}

static bool give_back(struct pc_channel *ch, const struct stock_credit *credit)
{
	struct ctl_op op = {.kind = CTL_RETURN,
		.rail = (uint8_t)place_rail(credit->place),
		.place = credit->place,
		.generation = credit->generation};

	if (!submit_ctl_room(ch, 0, 0))
		return false;
	submit_ctl(ch, &op, 0);
	ch->credits--;
	return true;
}

/* The i-th credit in stock, from the oldest on. */
static struct stock_credit *stock_at(struct stock_rail *s, uint32_t i)
{
	return &s->credit[(s->first + i) % CREDIT_STOCK_MAX];
}

static uint32_t empty_stock(struct pc_channel *ch, struct stock *stock)
{
	uint32_t given = 0;

	for (uint32_t r = 0; r < ch->rails; r++) {
		struct stock_rail *s = &stock->rail[r];

		while (s->have && give_back(ch, stock_at(s, s->have - 1))) {
			s->have--;
			given++;
		}
		s->ahead = 0;
	}
	return given;
}

static bool in_use(const struct stock *stock)
{
	for (uint32_t r = 0; r < RAILS_MAX; r++)
		if (stock->rail[r].have || stock->rail[r].asked)
			return true;
	return false;
}

/*
 * Returns the stock of a size, optionally making it. NULL: there is no stock of that size, every
 * place in the table is in use, or no memory.
 */
static struct stock *stock_of(struct pc_channel *ch, uint32_t size, bool make)
{
	uint32_t free_slot = CLASSES_MAX;

	for (uint32_t k = 0; k < CLASSES_MAX; k++) {
		if (ch->stock[k] && ch->stock[k]->bytes == size)
			return ch->stock[k];
		if (free_slot == CLASSES_MAX && (!ch->stock[k] || !in_use(ch->stock[k])))
			free_slot = k;
	}
	if (!make || free_slot == CLASSES_MAX)
		return NULL;
	if (!ch->stock[free_slot])
		ch->stock[free_slot] = malloc(sizeof(struct stock));
	if (ch->stocks <= free_slot)
		ch->stocks = free_slot + 1;
	if (ch->stock[free_slot]) {
		memset(ch->stock[free_slot], 0, sizeof(struct stock));
		ch->stock[free_slot]->bytes = size;
	}
	return ch->stock[free_slot];
}

uint32_t credit_return(struct pc_channel *ch, uint64_t before_ns, uint32_t keep)
{
	uint32_t given = 0;

	for (uint32_t k = 0; k < ch->stocks; k++)
		if (ch->stock[k] && ch->stock[k]->bytes != keep &&
			ch->stock[k]->used_ns < before_ns)
			given += empty_stock(ch, ch->stock[k]);
	return given;
}

void credit_forget(struct pc_channel *ch)
{
	for (uint32_t k = 0; k < CLASSES_MAX; k++) {
		free(ch->stock[k]);
		ch->stock[k] = NULL;
	}
	ch->stocks = 0;
	ch->credits = 0;
}

/*
 * Takes a credit from stock. Skips a rail that refused credits less than REFUSED_NS ago: any other
 * will do.
 */
enum credit_state credit_take(
	struct pc_channel *ch, uint32_t bytes, uint32_t rail, struct stock_credit *ret_credit)
{
	struct stock *stock = stock_of(ch, size_of(ch, bytes), true);

	if (!stock)
		return credit_return(ch, ch->now_ns, 0) ? CREDIT_AWAITED : CREDIT_REFUSED;
	stock->used_ns = ch->now_ns;
	for (uint32_t k = 0; k < ch->rails; k++) {
		struct stock_rail *s = &stock->rail[(rail + k) % ch->rails];

		if (s->have) {
			*ret_credit = *stock_at(s, 0);
			s->first = (s->first + 1) % CREDIT_STOCK_MAX;
			s->have--;
			ch->credits--;
			return CREDIT_TAKEN;
		}
		if (s->refused_until_ns > ch->now_ns)
			continue;
		s->want++;
		return CREDIT_AWAITED;
	}
	return CREDIT_REFUSED;
}

/* Puts a credit that was taken from stock and not used back into stock, as the oldest one. */
void credit_put(struct pc_channel *ch, uint32_t bytes, const struct stock_credit *credit)
{
	struct stock *stock = stock_of(ch, size_of(ch, bytes), true);
	struct stock_rail *s = stock ? &stock->rail[place_rail(credit->place)] : NULL;

	ch->credits++;
	if (!s || s->have + s->asked >= CREDIT_STOCK_MAX) {
		give_back(ch, credit);
		return;
	}
	s->first = (s->first + CREDIT_STOCK_MAX - 1) % CREDIT_STOCK_MAX;
	s->have++;
	*stock_at(s, 0) = *credit;
}

/*
 * Doubles the credits requested in advance, because the stock ran out: credits for the next pages
 * are requested while the current pages are copied. Limited to a small part of the pool, because
 * other clients also store in it.
 */
static void keep_more(
	const struct pc_channel *ch, uint32_t bytes, uint32_t rail, struct stock_rail *s)
{
	uint64_t most = ch->session->rail[rail].pool_bytes / CREDIT_AHEAD_SHARE / bytes;

	s->ahead = s->ahead ? 2 * s->ahead : CREDIT_AHEAD;
	if (s->ahead > most)
		s->ahead = most > CREDIT_AHEAD ? (uint32_t)most : CREDIT_AHEAD;
	if (s->ahead > cap(ch, bytes, rail))
		s->ahead = cap(ch, bytes, rail);
}

static void ask(struct pc_channel *ch, struct stock *stock, uint32_t rail, uint64_t deadline_ns)
{
	struct stock_rail *s = &stock->rail[rail];
	uint32_t goal = s->want + s->ahead, count, index;
	struct ctl_op op = {.kind = CTL_CREDIT,
		.rail = (uint8_t)rail,
		.length = stock->bytes,
		.deadline_ns = deadline_ns};

	if (goal > cap(ch, stock->bytes, rail))
		goal = cap(ch, stock->bytes, rail);
	if (goal <= s->asked + s->have)
		return;
	count = goal - s->asked - s->have;
	if (count > CREDITS_MAX - ch->credits)
		count = CREDITS_MAX - ch->credits;
	while (count && !submit_ctl_room(ch, count, 0))
		count /= 2;
	if (!count)
		return;
	index = request_take(ch, REQUEST_CREDIT, NULL, 0);
	if (index == CLIENT_NONE)
		return;
	ch->request[index].rail = (uint8_t)rail;
	ch->request[index].bytes = stock->bytes;
	ch->request[index].left = (uint16_t)count;
	op.cookie = request_cookie(ch, index);
	op.count = (uint16_t)count;
	s->asked += count;
	ch->credits += count;
	submit_ctl(ch, &op, count);
}

/*
 * Requests credits when a quarter of the stock is used: the answer then comes before a batch of up
 * to three quarters has used the rest.
 */
void credit_ask(struct pc_channel *ch, uint64_t deadline_ns)
{
	for (uint32_t k = 0; k < ch->stocks; k++) {
		struct stock *stock = ch->stock[k];

		for (uint32_t r = 0; stock && r < ch->rails; r++) {
			struct stock_rail *s = &stock->rail[r];

			if (s->want <= s->asked && s->have + s->asked + s->ahead / 4 >= s->ahead) {
				s->want = 0;
				continue;
			}
			if (s->want > s->asked)
				keep_more(ch, stock->bytes, r, s);
			if (ch->credits >= CREDITS_MAX)
				credit_return(ch, UINT64_MAX, stock->bytes);
			ask(ch, stock, r, deadline_ns);
			s->want = 0;
		}
	}
}

/* True if all slots that the answer names lie in the pool of the request's rail. */
static bool possible(
	const struct pc_channel *ch, const struct client_request *r, const struct ctl_done *done)
{
	uint64_t bytes = ch->session->rail[r->rail].pool_bytes;
	uint64_t offset =
		place_offset(done->place) + (uint64_t)(done->count - 1u) * done->stride * PAGE_UNIT;

	return place_rail(done->place) == r->rail && offset < bytes && r->bytes <= bytes - offset;
}

void credit_answer(
	struct pc_channel *ch, const struct client_request *r, const struct ctl_done *done)
{
	struct stock *stock = stock_of(ch, r->bytes, false);
	struct stock_rail *s;

	if (!stock) {
		channel_break(ch);
		return;
	}
	s = &stock->rail[r->rail];
	s->asked -= done->count;
	if (done->status == OP_HIT) {
		if (!possible(ch, r, done) || done->count > CREDIT_STOCK_MAX - s->have) {
			channel_break(ch);
			return;
		}
		for (uint32_t k = 0; k < done->count; k++)
			*stock_at(s, s->have++) = (struct stock_credit){
				done->place + k * done->stride, done->generation};
		return;
	}
	ch->credits -= done->count;
	/* Credits for other page sizes may hold all the room that is missing: if some were
	 * returned, request again. */
	if (done->status == OP_TIMEOUT || credit_return(ch, ch->now_ns, r->bytes))
		return;
	s->refused_until_ns = ch->now_ns + REFUSED_NS;
	s->ahead = 0;
}
