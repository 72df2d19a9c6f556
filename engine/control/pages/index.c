/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which keys this host's pools hold. The control plane's thread only.
 *
 * Entries are stored in segments that never move, so a pointer to an entry stays valid and a walk
 * by node number visits every entry that stays. A removed entry leaves a hole that the next put
 * fills. Buckets use linear hashing (Litwin, VLDB'80): when there are more entries than buckets,
 * one bucket is split in two. The table never moves as a whole: the most expensive put allocates
 * one segment of nodes and one of buckets. The entries of a slot of the directory are a list, so
 * that a change of the map reads the entries of the slots that have moved, and no others. An entry
 * costs 44 bytes, a bucket and a slot 4 bytes each; memory is freed only by index_close().
 *
 * A local client chooses its keys freely; the random secret in the hash keeps it from choosing keys
 * that all fall into one bucket.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "engine/abi/map.h"
#include "engine/control/pages/pages.h"

#define NONE UINT32_MAX
#define SEGMENT_BITS 12
#define SEGMENT (1u << SEGMENT_BITS) /* number of nodes or of buckets in one segment */
#define INDEX_NODES_MAX (1u << 31)
#define BUCKETS_MIN 1024u
/*
 * limit of the nodes that index_walk() examines per entry requested: bounds the time of a walk over
 * removed nodes
 */
#define WALK_LOOK 64

__extension__ typedef unsigned __int128 wide;

struct node {
	struct index_entry entry;
	/*
	 * number of the next node of the same hash chain, or of the list of removed nodes; NONE:
	 * this is the last
	 */
	uint32_t next;
	/* 1 + number of the next node of the same slot; 0: this is the last */
	uint32_t slot_next;
};

/* The nodes of one segment, and what does not fit into a node without padding. */
struct node_segment {
	struct node node[SEGMENT];
	/* 1 + number of the previous node of the same slot; 0: the first; REMOVED: no entry */
	uint32_t slot_previous[SEGMENT];
};
#define REMOVED UINT32_MAX
static_assert(sizeof(struct node_segment) == (INDEX_ENTRY_BYTES - sizeof(uint32_t)) * SEGMENT,
	"the comment at the top says 44, and memory_process_bytes() counts that and a bucket");

/*
 * A growing array: pointers to segments of fixed length. When it grows, only the array of pointers
 * is copied.
 */
struct segments {
	void **at;
	uint32_t count, room;
};

struct index {
	uint64_t secret[2];
	uint64_t count;
	struct segments nodes, buckets;
	uint32_t *slot; /* MAP_SLOTS: 1 + number of the first node of each slot; 0: none */
	/* number of nodes that were ever in use; the nodes from this number on are unused memory */
	uint32_t used;
	/*
	 * first node of the list of removed nodes, whose memory is reused; NONE: the list is empty
	 */
	uint32_t hole;
	/* number of hash chains at the start of this round of splits, a power of two */
	uint32_t base;
	uint32_t split; /* number of chains split in this round; base + split chains exist */
};

/*
 * Adds one segment of `bytes` to the array. Its bytes are zero, or with `none` its words are NONE.
 */
static int segments_add(struct segments *s, size_t bytes, bool none)
{
	uint32_t *segment;

	if (s->count == s->room) {
		uint32_t room = s->room ? 2 * s->room : 64;
		void **at = realloc(s->at, room * sizeof(*at));

		if (!at)
			return -ENOMEM;
		s->at = at;
		s->room = room;
	}
	segment = calloc(1, bytes);
	if (!segment)
		return -ENOMEM;
	for (size_t i = 0; none && i < bytes / sizeof(*segment); i++)
		segment[i] = NONE;
	s->at[s->count++] = segment;
	return 0;
}

static void segments_free(struct segments *s)
{
	for (uint32_t i = 0; i < s->count; i++)
		free(s->at[i]);
	free(s->at);
}

static struct node *node_at(const struct index *index, uint32_t number)
{
	struct node_segment *segment = index->nodes.at[number >> SEGMENT_BITS];

	return &segment->node[number & (SEGMENT - 1)];
}

static uint32_t *previous_at(const struct index *index, uint32_t number)
{
	struct node_segment *segment = index->nodes.at[number >> SEGMENT_BITS];

	return &segment->slot_previous[number & (SEGMENT - 1)];
}

static uint32_t *bucket_at(const struct index *index, uint32_t number)
{
	uint32_t *segment = index->buckets.at[number >> SEGMENT_BITS];

	return &segment[number & (SEGMENT - 1)];
}

static uint32_t key_hash(const struct index *index, const struct page_key *key)
{
	wide product = (wide)(key->word[0] ^ index->secret[0]) * (key->word[1] ^ index->secret[1]);
	uint64_t folded = (uint64_t)product ^ (uint64_t)(product >> 64);

	return (uint32_t)(folded ^ folded >> 32);
}

/* Returns the head of the hash chain in which the key is, if the index has the key. */
static uint32_t *key_bucket(const struct index *index, const struct page_key *key)
{
	uint32_t hash = key_hash(index, key), number = hash & (index->base - 1);

	if (number < index->split)
		number = hash & (2 * index->base - 1);
	return bucket_at(index, number);
}

/*
 * Returns the link that points to the key's node, or the link with value NONE that ends its hash
 * chain.
 */
static uint32_t *link_find(const struct index *index, const struct page_key *key)
{
	uint32_t *link = key_bucket(index, key);

	while (*link != NONE) {
		struct node *node = node_at(index, *link);

		if (page_key_equal(&node->entry.key, key))
			break;
		link = &node->next;
	}
	return link;
}

static void slot_add(struct index *index, uint32_t number)
{
	struct node *node = node_at(index, number);
	uint32_t *first = &index->slot[map_slot_of(&node->entry.key)];

	node->slot_next = *first;
	*previous_at(index, number) = 0;
	if (*first)
		*previous_at(index, *first - 1) = number + 1;
	*first = number + 1;
}

static void slot_remove(struct index *index, uint32_t number)
{
	const struct node *node = node_at(index, number);
	uint32_t *previous = previous_at(index, number);

	if (*previous)
		node_at(index, *previous - 1)->slot_next = node->slot_next;
	else
		index->slot[map_slot_of(&node->entry.key)] = node->slot_next;
	if (node->slot_next)
		*previous_at(index, node->slot_next - 1) = *previous;
	*previous = REMOVED;
}

/*
 * Splits bucket `split`: moves the entries whose hash selects the new bucket base + split into it.
 */
static void index_split(struct index *index)
{
	uint32_t fresh = index->base + index->split, *link, *tail;

	if (fresh == INDEX_NODES_MAX)
		return;
	if (fresh >> SEGMENT_BITS == index->buckets.count &&
		segments_add(&index->buckets, SEGMENT * sizeof(uint32_t), true) != 0)
		/*
		 * no memory for the new segment: the chain is not split, and chains grow longer
		 * instead
		 */
		return;
	link = bucket_at(index, index->split);
	tail = bucket_at(index, fresh);
	while (*link != NONE) {
		uint32_t number = *link;
		struct node *node = node_at(index, number);

		if (key_hash(index, &node->entry.key) & index->base) {
			*link = node->next;
			node->next = NONE;
			*tail = number;
			tail = &node->next;
		} else {
			link = &node->next;
		}
	}
	if (++index->split == index->base) {
		index->base *= 2;
		index->split = 0;
	}
}

int index_open(uint64_t expected, struct index **ret_index)
{
	struct index *index;

	if (expected > INDEX_NODES_MAX)
		return -EINVAL;
	index = calloc(1, sizeof(*index));
	if (!index)
		return -ENOMEM;
	if (getrandom(index->secret, sizeof(index->secret), 0) != sizeof(index->secret)) {
		free(index);
		return -EIO;
	}
	index->slot = calloc(MAP_SLOTS, sizeof(*index->slot));
	if (!index->slot) {
		free(index);
		return -ENOMEM;
	}
	index->hole = NONE;
	index->base = BUCKETS_MIN;
	while (index->base < expected)
		index->base *= 2;
	while ((uint64_t)index->buckets.count << SEGMENT_BITS < index->base)
		if (segments_add(&index->buckets, SEGMENT * sizeof(uint32_t), true) != 0) {
			index_close(index);
			return -ENOMEM;
		}
	*ret_index = index;
	return 0;
}

void index_close(struct index *index)
{
	if (!index)
		return;
	segments_free(&index->nodes);
	segments_free(&index->buckets);
	free(index->slot);
	free(index);
}

struct index_entry *index_find(struct index *index, const struct page_key *key)
{
	uint32_t number = *link_find(index, key);

	return number == NONE ? NULL : &node_at(index, number)->entry;
}

void index_prefetch_chain(const struct index *index, const struct page_key *key)
{
	__builtin_prefetch(key_bucket(index, key), 1);
}

void index_prefetch_entry(const struct index *index, const struct page_key *key)
{
	uint32_t number = *key_bucket(index, key);

	if (number != NONE)
		__builtin_prefetch(node_at(index, number), 1);
}

/*
 * Returns the number of an unused node, or NONE if there is no memory or INDEX_NODES_MAX is
 * reached.
 */
static uint32_t node_new(struct index *index)
{
	uint32_t number = index->hole;

	if (number != NONE) {
		index->hole = node_at(index, number)->next;
		return number;
	}
	if (index->used == INDEX_NODES_MAX)
		return NONE;
	if (index->used >> SEGMENT_BITS == index->nodes.count &&
		segments_add(&index->nodes, sizeof(struct node_segment), false) != 0)
		return NONE;
	return index->used++;
}

int index_put(struct index *index, const struct index_entry *entry, struct index_entry **ret)
{
	uint32_t *link = link_find(index, &entry->key), number = *link;
	int rc = -EEXIST;

	if (number == NONE) {
		number = node_new(index);
		if (number == NONE)
			return -ENOMEM;
		*node_at(index, number) = (struct node){.entry = *entry, .next = NONE};
		slot_add(index, number);
		*link = number;
		if (++index->count > (uint64_t)index->base + index->split)
			index_split(index);
		rc = 0;
	}
	if (ret)
		*ret = &node_at(index, number)->entry;
	return rc;
}

bool index_remove(struct index *index, const struct page_key *key)
{
	uint32_t *link = link_find(index, key), number = *link;
	struct node *node;

	if (number == NONE)
		return false;
	node = node_at(index, number);
	*link = node->next;
	slot_remove(index, number);
	node->next = index->hole;
	index->hole = number;
	index->count--;
	return true;
}

uint64_t index_count(const struct index *index)
{
	return index->count;
}

unsigned index_walk(
	struct index *index, uint64_t *cursor, unsigned max, struct index_entry *ret_entries)
{
	uint64_t number = *cursor, end = number + (uint64_t)max * WALK_LOOK;
	unsigned n = 0;

	for (; number < index->used && number < end && n < max; number++)
		if (*previous_at(index, (uint32_t)number) != REMOVED)
			ret_entries[n++] = node_at(index, (uint32_t)number)->entry;
	*cursor = number < index->used ? number : 0;
	return n;
}

bool index_slot_any(const struct index *index, uint32_t slot)
{
	return index->slot[slot] != 0;
}

unsigned index_slot(struct index *index, uint32_t slot, uint64_t *cursor, unsigned max,
	struct index_entry *ret_entries)
{
	uint32_t link = (uint32_t)*cursor;
	unsigned n = 0;

	/* If the entry at the cursor was removed, it is not known which follow: all once more. */
	if (!link || *previous_at(index, link - 1) == REMOVED ||
		map_slot_of(&node_at(index, link - 1)->entry.key) != slot)
		link = index->slot[slot];
	for (; link && n < max; link = node_at(index, link - 1)->slot_next)
		ret_entries[n++] = node_at(index, link - 1)->entry;
	*cursor = link;
	return n;
}
