/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What pc_explain() finds out about one key. explain.c fills it in, explain_text.c writes it as
 * JSON. One call of one thread uses it.
 */
#ifndef CLIENT_EXPLAIN_H
#define CLIENT_EXPLAIN_H

#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/page.h"
#include "engine/client/peek.h"

/* owners and former owners of a slot */
#define EXPLAIN_OWNERS_MAX (REPLICAS_MAX + MAP_FORMERS_MAX)
/* entries of a key that a look-up sees at one owner: those of one bucket; here, of both */
#define EXPLAIN_ENTRIES_MAX (2 * BUCKET_ENTRIES)
#define EXPLAIN_HOLDERS_MAX (EXPLAIN_OWNERS_MAX * EXPLAIN_ENTRIES_MAX)
static_assert(EXPLAIN_HOLDERS_MAX <= PEEKS_MAX, "their page heads are READ in one batch");

struct explain_owner {
	uint32_t ref;
	uint16_t peer;
	bool here, former;
	uint32_t bucket[2]; /* numbers of the first and the second bucket of the key */
	unsigned read;      /* how many of them were READ */
	bool full;          /* the first bucket has no empty entry: the second one counts, too */
	bool present;       /* an entry of the key names a member of the map */
	uint8_t status;     /* of the last READ, enum op_status */
	unsigned entries;
	uint8_t holder[EXPLAIN_ENTRIES_MAX]; /* of entry i: index in explain.holder */
};

/* A place that an entry of the key names. */
struct explain_holder {
	struct location at;
	uint16_t peer;
	bool here, on_map;
	bool on_disk;    /* the place is on a disk: no page head to READ */
	bool impossible; /* the member has no place like it */
	uint8_t status;  /* of the READ of the page head, enum op_status */
	struct page_head head;
};

struct explain {
	struct page_key key;
	uint32_t slot, epoch, members;
	bool disk;
	unsigned owners, holders;
	struct explain_owner owner[EXPLAIN_OWNERS_MAX];
	struct explain_holder holder[EXPLAIN_HOLDERS_MAX];
	struct peek peek[PEEKS_MAX];
};

/* explain_text.c: returns the text, which the caller frees with free(); NULL: out of memory. */
char *explain_text(const struct explain *x);

#endif
