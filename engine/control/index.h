/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which keys this host's pools hold: key -> (place, generation, length). An open-addressing hash
 * table that grows; iterated in slices when entries must be published again. Control plane only.
 */
#ifndef CONTROL_INDEX_H
#define CONTROL_INDEX_H

#include "engine/abi/page.h"

struct index;

struct index_entry {
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t length;
	uint32_t mark; /* the caller's own */
};

/* `expected`: entries for which buckets are there from the start. */
int index_open(uint64_t expected, struct index **ret_index);
void index_close(struct index *index);
/* NULL: not there. The pointer is valid until the next put or remove. */
struct index_entry *index_find(struct index *index, const struct page_key *key);
/* 0, -EEXIST (*ret is the one that is there), -ENOMEM. */
int index_put(struct index *index, const struct index_entry *entry, struct index_entry **ret);
bool index_remove(struct index *index, const struct page_key *key);
uint64_t index_count(const struct index *index);
/*
 * Visits entries from *cursor on (start with 0), up to `max`; returns how many were written to
 * ret_entries; *cursor becomes 0 when the end was reached. Entries that stay in the table during a
 * whole walk are visited at least once, whatever is put or removed meanwhile.
 */
unsigned index_walk(
	struct index *index, uint64_t *cursor, unsigned max, struct index_entry *ret_entries);

#endif
