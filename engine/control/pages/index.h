/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index: which keys this host's pools hold.
 *
 * key -> (place, generation, length). A hash table that grows one bucket at a time; index_slot()
 * reads the entries of one slot of the directory, which must be published when the slot has a new
 * owner.
 */
#ifndef CONTROL_INDEX_H
#define CONTROL_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/abi/page.h"

struct index;

struct index_entry {
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t length;
	uint32_t stored; /* index_put() sets it: index_account.now */
};

/*
 * `expected`: number of entries that the initial buckets are sized for, at most 2^31. Returns 0,
 * -EINVAL, -ENOMEM, or -EIO if the kernel has no random bytes.
 */
int index_open(uint64_t expected, struct index **ret_index);
void index_close(struct index *index);
/*
 * Returns NULL if the key is not in the index. The pointer is valid until the next put or remove.
 */
struct index_entry *index_find(struct index *index, const struct page_key *key);
/*
 * Prefetch what index_find() of the key reads: the head of its hash chain, and, once that has
 * arrived, the first entry of the chain.
 */
void index_prefetch_chain(const struct index *index, const struct page_key *key);
void index_prefetch_entry(const struct index *index, const struct page_key *key);
/*
 * Returns 0, -EEXIST or -ENOMEM. Unless `ret` is NULL, 0 and -EEXIST store the entry in the index
 * there: with -EEXIST it is the existing one, unchanged.
 */
int index_put(struct index *index, const struct index_entry *entry, struct index_entry **ret);
/* Removes the key. Returns false if the index did not have it. */
bool index_remove(struct index *index, const struct page_key *key);
uint64_t index_count(const struct index *index);
/*
 * Copies up to `max` entries to ret_entries, starting at *cursor (0 at first), and returns how
 * many. May return fewer, even 0, before the end. *cursor becomes 0 when the end was reached. An
 * entry that stays in the table during a whole walk is visited at least once, whatever is put or
 * removed meanwhile.
 */
unsigned index_walk(
	struct index *index, uint64_t *cursor, unsigned max, struct index_entry *ret_entries);
/*
 * The same for the entries of one slot of the directory (map_slot_of()), of which it copies `max`
 * unless it comes to the end: 256 KiB of memory and a list per slot make this independent of the
 * number of entries of other slots. A cursor is valid for its slot only.
 */
unsigned index_slot(struct index *index, uint32_t slot, uint64_t *cursor, unsigned max,
	struct index_entry *ret_entries);

/* ---- groups of namespaces: epoch_group() of their keys --------------------------------------- */

/* What a group has here. It exists while it has a page or a limit. clients/groups.c sets limits. */
struct index_group {
	TAILQ_ENTRY(index_group) next;
	TAILQ_ENTRY(index_group) next_limited;
	struct index_group *same; /* of its chain */
	uint32_t number;
	uint32_t oldest, newest; /* of its pages, as nodes of index.c */
	uint64_t bytes, pages;   /* bytes: index_bytes() */
	uint64_t pinned;         /* of `bytes` */
	uint64_t coming;         /* see index_coming() */
	bool limited;            /* it has a quota or a time */
	bool fixed;              /* by the settings */
	uint32_t ttl_s;          /* 0: none */
	uint64_t quota;          /* bytes; 0: none */
	uint64_t evicted;        /* pages that it had to give for its quota */
	uint64_t expired;
};
TAILQ_HEAD(index_groups, index_group);

/* What a page counts as: whole units of the pool. */
static inline uint64_t index_bytes(uint32_t length)
{
	return ((uint64_t)length + PAGE_UNIT - 1) / PAGE_UNIT * PAGE_UNIT;
}

/* NULL: it has neither page nor limit here. */
struct index_group *index_group(const struct index *index, uint32_t number);
/* Counts bytes of pages that are copied or read from disk, until they are put or given up. */
void index_coming(struct index *index, const struct page_key *key, int64_t bytes);
/* The group of the key, if `more` bytes would be above its quota; NULL: they are not. */
struct index_group *index_above(
	const struct index *index, const struct page_key *key, uint64_t more);

/* Limits; -1: as it is, 0: none. */
struct group_limits {
	int64_t quota; /* bytes */
	int64_t ttl_s;
};
#define GROUPS_LIMITED_MAX 4096u /* groups with limits, at most */
/* Returns 0, -ENOSPC: too many groups have limits; or -ENOMEM. */
int index_limit(struct index *index, uint32_t number, const struct group_limits *limits);
/*
 * The page that the group has had for the longest time; with a quota and no time: that was not used
 * for the longest. NULL: none.
 */
struct index_entry *index_oldest(struct index *index, const struct index_group *group);
/* The page of its group that follows in that order; NULL: none. */
struct index_entry *index_newer(struct index *index, const struct index_entry *entry);
void index_used(struct index *index, const struct page_key *key);
/*
 * The page is of a group whose pages end after a time. These stay off the disk and are not copied:
 * the time would begin anew.
 */
bool index_ends(const struct index *index, const struct page_key *key);

/* Of all groups. */
struct index_account {
	/* the time that pages get that are put from now on, 1 at least; INDEX_TICKS_S a second */
	uint32_t now;
	uint32_t pins;   /* pages that are pinned */
	uint64_t pinned; /* their bytes */
	uint32_t ends;   /* how often a group has got a time */
	bool over;       /* a put or a limit may have made a group larger than its quota */
	struct index_groups groups, limited; /* `limited`: those with limits, and how many */
	unsigned limits;
};
struct index_account *index_account(struct index *index);
#define INDEX_TICKS_S 10u

struct index_pins {
	uint32_t until;   /* of index_account.now */
	uint64_t most;    /* bytes that may be pinned in all */
	unsigned percent; /* of the quota of its group, that may be */
};
/*
 * The page is in no list of its group until index_unpin(), which the caller calls, or its removal.
 * Pinned again, the later time holds. Returns 0; -ENOENT: the key is not there, -EDQUOT: too much
 * is pinned, or its group has a time, which ends its pins; or -ENOMEM.
 */
int index_pin(struct index *index, const struct page_key *key, const struct index_pins *pins);
void index_unpin(struct index *index, const struct page_key *key);
/* A page whose pin is over, among the next *look ones, which are counted down; NULL: none. */
struct index_entry *index_pin_over(struct index *index, uint32_t *look);

/* True if the slot has an entry. */
bool index_slot_any(const struct index *index, uint32_t slot);

#endif
