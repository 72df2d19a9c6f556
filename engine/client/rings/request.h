/* SPDX-License-Identifier: Apache-2.0 */
/* Requests in flight: what the cookie of an answer leads to. Channel thread. */
#ifndef CLIENT_REQUEST_H
#define CLIENT_REQUEST_H

#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"

struct pc_batch;

enum request_kind {
	REQUEST_FREE = 0,
	REQUEST_LOOK,    /* OP_LOOKUP of buckets or page heads, on a rail's op ring */
	REQUEST_RUN,     /* OP_RUN of pages, on a rail's op ring */
	REQUEST_FETCH,   /* OP_PAGE of a page or of slices of it, on a rail's op ring */
	REQUEST_CREDIT,  /* CTL_CREDIT on the ctl ring */
	REQUEST_PUBLISH, /* CTL_PUBLISH on the ctl ring */
	REQUEST_REMOVE,  /* CTL_REMOVE on the ctl ring */
	REQUEST_DISK,    /* CTL_PROMOTE on the ctl ring */
	REQUEST_CLEAR,   /* CTL_CLEAR on the ctl ring */
};

/*
 * A request in flight on an op ring or the ctl ring. Its cookie is generation << 32 | index in
 * pc_channel.request; that of a run, which has 32 bits, is generation << 16 | index.
 */
struct client_request {
	/* batch of the pages; NULL: they no longer wait for the answer */
	struct pc_batch *batch;
	union {
		/* RUN, LOOK, PUBLISH: first page; page_work.next leads to the others. Else: the
		 * page */
		uint32_t page;
		uint32_t next; /* FREE: index of the next request in the free list */
	};
	uint32_t generation;
	/* FETCH, RUN: bytes counted in channel_rail.bytes; CREDIT: length of the requested slots */
	uint32_t bytes;
	union {
		/* LOOK: number of the first scratch slot; FETCH: number of a staging
		 * block, or CLIENT_NONE */
		uint32_t hold;
		uint32_t waiting; /* PUBLISH: bit per page that was not answered yet */
	};
	uint8_t kind;
	uint8_t rail;
	uint8_t pages;  /* RUN, LOOK, PUBLISH: number of pages, at most RUN_PAGES_MAX */
	uint8_t region; /* LOOK: look_open.region */
	union {
		uint16_t left;  /* CREDIT: number of slots that no answer has told of yet */
		uint16_t slice; /* FETCH: the first one that it READs */
	};
};
static_assert(sizeof(struct client_request) == 32, "two to a cache line");

/* Takes a free request. Returns its index; CLIENT_NONE: all requests are in flight. */
static inline uint32_t request_take(
	struct pc_channel *ch, enum request_kind kind, struct pc_batch *b, uint32_t i)
{
	uint32_t index = ch->request_free;
	struct client_request *r;

	if (index == CLIENT_NONE)
		return CLIENT_NONE;
	r = &ch->request[index];
	ch->request_free = r->next;
	r->batch = b;
	r->page = i;
	r->kind = (uint8_t)kind;
	r->bytes = 0;
	r->hold = CLIENT_NONE;
	r->left = 1;
	r->pages = 1;
	return index;
}

/* True if the NIC may write into the caller's memory until the request is answered. */
static inline bool request_writes_caller(const struct client_request *r)
{
	return r->kind == REQUEST_RUN || (r->kind == REQUEST_FETCH && r->hold == CLIENT_NONE);
}

static inline void request_free(struct pc_channel *ch, uint32_t index)
{
	struct client_request *r = &ch->request[index];

	r->kind = REQUEST_FREE;
	r->batch = NULL;
	r->generation++; /* an answer with the old cookie is ignored from here on */
	r->next = ch->request_free;
	ch->request_free = index;
}

/* The request with this cookie, and its index; NULL: none in flight has it. */
static inline struct client_request *request_of(
	struct pc_channel *ch, uint64_t cookie, uint32_t *ret_index)
{
	uint32_t index = (uint32_t)cookie;
	struct client_request *r;

	if (index >= ch->requests)
		return NULL;
	r = &ch->request[index];
	if (r->kind == REQUEST_FREE || r->generation != (uint32_t)(cookie >> 32))
		return NULL;
	*ret_index = index;
	return r;
}

static inline uint64_t request_cookie(const struct pc_channel *ch, uint32_t index)
{
	return (uint64_t)ch->request[index].generation << 32 | index;
}

/* The cookie of a run has 32 bits: the low half of the generation, and the index. */
static inline uint32_t run_cookie(uint32_t generation, uint32_t index)
{
	return generation << 16 | index;
}

#endif
