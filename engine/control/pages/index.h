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

#include "engine/abi/page.h"

struct index;

struct index_entry {
	struct page_key key;
	uint32_t place;
	uint32_t generation;
	uint32_t length;
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
/* True if the slot has an entry. */
bool index_slot_any(const struct index *index, uint32_t slot);

#endif
