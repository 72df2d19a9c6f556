/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What pc_explain() finds out about one key, which one call of one thread uses.
 */
#ifndef CLIENT_EXPLAIN_H
#define CLIENT_EXPLAIN_H

#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/page.h"
#include "engine/client/lookup/lookup.h"

#define PEEKS_MAX 64u

/* entries of a key that a look-up sees at one owner: those of one bucket; here, of both */
#define EXPLAIN_ENTRIES_MAX (2 * BUCKET_ENTRIES)
#define EXPLAIN_HOLDERS_MAX (REPLICAS_MAX * EXPLAIN_ENTRIES_MAX)
static_assert(EXPLAIN_HOLDERS_MAX < PEEKS_MAX,
	"their page heads are READ in one batch, with the question to this host's engine");

/* What a reader of this host gets. */
enum explain_result { EXPLAIN_HIT, EXPLAIN_STALE, EXPLAIN_MISS, EXPLAIN_UNREACHABLE };
/* Why it is EXPLAIN_UNREACHABLE; the first one that holds. */
enum explain_cause {
	CAUSE_NONE,
	CAUSE_NO_MAP,  /* no owner is known, or the map changes all the time */
	CAUSE_HOLDER,  /* the page head at a place that an owner names could not be READ */
	CAUSE_OWNER,   /* an owner could not be READ */
	CAUSE_SUSPECT, /* a suspect owner is not asked once another one has answered */
	CAUSE_ENGINE,  /* the engine of this host does not tell whether its disk has the page */
};

struct explain_owner {
	uint32_t ref;
	bool here;
	bool suspect;       /* map_suspect() */
	bool asked;         /* by a reader of this host, see explain_reader() */
	uint8_t bit;        /* in the set of owners asked */
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
	bool known; /* the owners are those of one map, and all of them are members */
	/* where this host has the page, whatever the directory says: status of the question, enum
	 * op_status; generation 0: on disk */
	uint8_t here_status;
	uint32_t here_place, here_generation;
	uint8_t here_why; /* enum page_why, if it is in memory */
	enum explain_result result;
	enum explain_cause cause;
	unsigned owners, holders;
	struct explain_owner owner[REPLICAS_MAX];
	struct explain_holder holder[EXPLAIN_HOLDERS_MAX];
	struct peek peek[PEEKS_MAX];
};

/* Sets `result`, `cause` and `asked` of each owner; all else is there. Any thread. */
void explain_reader(struct explain *x);

#endif
