/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which keys this host's pools hold. The control plane's thread only.
 *
 * Entries are stored in segments that never move, so a pointer to an entry stays valid and a walk
 * by node number visits every entry that stays. A removed entry leaves a hole that the next put
 * fills. Buckets use linear hashing (Litwin, VLDB'80): when there are more entries than buckets,
 * one bucket is split in two. The table never moves as a whole: the most expensive put allocates
 * one segment of nodes and one of buckets. The entries of a slot of the directory are a list, so
 * that a change of the map reads the entries of the slots that have moved, and no others; so are
 * those of a group of namespaces, in the order in which they came. An entry costs 56 bytes, a
 * bucket and a slot 4 bytes each; memory is freed only by index_close().
 *
 * A local client chooses its keys freely; the random secret in the hash keeps it from choosing keys
 * that all fall into one bucket.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/random.h>

#include "engine/abi/epoch.h"
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
#define GROUP_BITS_MIN 6u /* log2 of the chains of groups, at first */

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
	/* 1 + number of the previous node of the same slot; 0: the first; REMOVED: no entry */
	uint32_t slot_previous;
	/* the same of its group: the next older and the next newer one; 0: there is none */
	uint32_t older, newer;
	uint32_t pin; /* 1 + its number in index.pin; 0: it is not pinned */
};

/* A node that is pinned, and until when, of index_account.now. */
struct index_pin {
	uint32_t node, until;
};
#define REMOVED UINT32_MAX
static_assert(sizeof(struct node) == INDEX_ENTRY_BYTES - sizeof(uint32_t),
	"the comment at the top says 56, and memory_process_bytes() counts that and a bucket");

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
	struct index_account account;
	struct index_pin *pin;           /* account.pins of them */
	uint32_t pins_room, pins_cursor; /* `pins_cursor`: the one that is looked at next */
	/* hash table of the groups: 1 << group_bits chains */
	struct index_group **group;
	uint32_t group_bits, group_count;
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
	struct node *segment = index->nodes.at[number >> SEGMENT_BITS];

	return &segment[number & (SEGMENT - 1)];
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
	node->slot_previous = 0;
	if (*first)
		node_at(index, *first - 1)->slot_previous = number + 1;
	*first = number + 1;
}

static void slot_remove(struct index *index, uint32_t number)
{
	struct node *node = node_at(index, number);

	if (node->slot_previous)
		node_at(index, node->slot_previous - 1)->slot_next = node->slot_next;
	else
		index->slot[map_slot_of(&node->entry.key)] = node->slot_next;
	if (node->slot_next)
		node_at(index, node->slot_next - 1)->slot_previous = node->slot_previous;
	node->slot_previous = REMOVED;
}

/* ---- groups of namespaces -------------------------------------------------------------------- */

/* The head of the chain in which the group is, if there is one. */
static struct index_group **group_chain(const struct index *index, uint32_t number)
{
	/* which groups share a chain depends on the secret, too: clients choose groups */
	return &index->group[(number + 1) * (index->secret[0] | 1) >> (64 - index->group_bits)];
}

/* Doubles the chains. Without memory they grow longer instead. */
static void groups_grow(struct index *index)
{
	struct index_group **more = calloc((size_t)2 << index->group_bits, sizeof(*more)), *group;

	if (!more)
		return;
	free(index->group);
	index->group = more;
	index->group_bits++;
	TAILQ_FOREACH (group, &index->account.groups, next) {
		struct index_group **chain = group_chain(index, group->number);

		group->same = *chain;
		*chain = group;
	}
}

struct index_group *index_group(const struct index *index, uint32_t number)
{
	struct index_group *group = *group_chain(index, number);

	while (group && group->number != number)
		group = group->same;
	return group;
}

static struct index_group *group_make(struct index *index, uint32_t number)
{
	struct index_group *group = index_group(index, number), **chain;

	if (group)
		return group;
	group = calloc(1, sizeof(*group));
	if (!group)
		return NULL;
	if (index->group_count >> index->group_bits)
		groups_grow(index);
	chain = group_chain(index, number);
	group->number = number;
	group->same = *chain;
	*chain = group;
	index->group_count++;
	TAILQ_INSERT_TAIL(&index->account.groups, group, next);
	return group;
}

/* Frees the group if it has neither page nor limit. */
static void group_drop(struct index *index, struct index_group *group)
{
	struct index_group **link = group_chain(index, group->number);

	if (group->pages || group->coming || group->limited || group->fixed)
		return;
	while (*link != group)
		link = &(*link)->same;
	*link = group->same;
	index->group_count--;
	TAILQ_REMOVE(&index->account.groups, group, next);
	free(group);
}

void index_coming(struct index *index, const struct page_key *key, int64_t bytes)
{
	struct index_group *group = bytes > 0 ? group_make(index, epoch_group(key))
					      : index_group(index, epoch_group(key));

	if (!group)
		return; /* no memory, then or now */
	group->coming += bytes > 0 || group->coming >= (uint64_t)-bytes ? (uint64_t)bytes : 0;
	group_drop(index, group);
}

struct index_group *index_above(
	const struct index *index, const struct page_key *key, uint64_t more)
{
	struct index_group *group = index_group(index, epoch_group(key));

	if (!group || !group->quota || group->bytes + group->coming + more <= group->quota)
		return NULL;
	return group;
}

/* All pins of the group are over. */
static void group_unpin(struct index *index, const struct index_group *group)
{
	for (uint32_t i = 0; group->pinned && i < index->account.pins; i++)
		if (epoch_group(&node_at(index, index->pin[i].node)->entry.key) == group->number)
			index->pin[i].until = 0;
}

int index_limit(struct index *index, uint32_t number, const struct group_limits *limits)
{
	struct index_account *account = &index->account;
	struct index_group *group = group_make(index, number);
	bool was;

	if (!group)
		return -ENOMEM;
	was = group->limited;
	if (!was && account->limits == GROUPS_LIMITED_MAX) {
		group_drop(index, group);
		return -ENOSPC;
	}
	if (limits->quota >= 0)
		group->quota = (uint64_t)limits->quota;
	if (limits->ttl_s > 0 && !group->ttl_s) {
		group_unpin(index, group);
		account->ends++;
	}
	if (limits->ttl_s >= 0)
		group->ttl_s = (uint32_t)limits->ttl_s;
	group->limited = group->quota || group->ttl_s;
	if (group->limited && !was)
		TAILQ_INSERT_TAIL(&account->limited, group, next_limited);
	else if (was && !group->limited)
		TAILQ_REMOVE(&account->limited, group, next_limited);
	account->limits += group->limited;
	account->limits -= was;
	account->over = true;
	group_drop(index, group);
	return 0;
}

static void groups_free(struct index *index)
{
	struct index_group *group;

	while ((group = TAILQ_FIRST(&index->account.groups))) {
		TAILQ_REMOVE(&index->account.groups, group, next);
		free(group);
	}
	free(index->group);
}

struct index_account *index_account(struct index *index)
{
	return &index->account;
}

bool index_ends(const struct index *index, const struct page_key *key)
{
	const struct index_group *group = index_group(index, epoch_group(key));

	return group && group->ttl_s;
}

static uint64_t node_bytes(const struct node *node)
{
	return index_bytes(node->entry.length);
}

/* Makes a node that is in no group's list the newest. */
static void group_link(struct index *index, struct index_group *group, uint32_t number)
{
	struct node *node = node_at(index, number);

	node->older = group->newest;
	node->newer = 0;
	*(group->newest ? &node_at(index, group->newest - 1)->newer : &group->oldest) = number + 1;
	group->newest = number + 1;
}

/* The same, the oldest. */
static void group_link_oldest(struct index *index, struct index_group *group, uint32_t number)
{
	struct node *node = node_at(index, number);

	node->older = 0;
	node->newer = group->oldest;
	*(group->oldest ? &node_at(index, group->oldest - 1)->older : &group->newest) = number + 1;
	group->oldest = number + 1;
}

static void group_unlink(struct index *index, struct index_group *group, uint32_t number)
{
	const struct node *node = node_at(index, number);

	*(node->older ? &node_at(index, node->older - 1)->newer : &group->oldest) = node->newer;
	*(node->newer ? &node_at(index, node->newer - 1)->older : &group->newest) = node->older;
}

static void group_add(struct index *index, struct index_group *group, uint32_t number)
{
	struct node *node = node_at(index, number);

	node->entry.stored = index->account.now;
	group_link(index, group, number);
	group->pages++;
	group->bytes += node_bytes(node);
	if (group->quota && group->bytes > group->quota)
		index->account.over = true;
}

/* Takes a node out of the pins. It is in no list then. */
static void pin_drop(struct index *index, struct index_group *group, uint32_t number)
{
	struct node *node = node_at(index, number);
	struct index_pin *last = &index->pin[--index->account.pins];

	index->pin[node->pin - 1] = *last;
	node_at(index, last->node)->pin = node->pin;
	node->pin = 0;
	index->account.pinned -= node_bytes(node);
	group->pinned -= node_bytes(node);
}

static void group_remove(struct index *index, uint32_t number)
{
	const struct node *node = node_at(index, number);
	struct index_group *group = index_group(index, epoch_group(&node->entry.key));

	if (node->pin)
		pin_drop(index, group, number);
	else
		group_unlink(index, group, number);
	group->pages--;
	group->bytes -= node_bytes(node);
	group_drop(index, group);
}

struct index_entry *index_oldest(struct index *index, const struct index_group *group)
{
	return group->oldest ? &node_at(index, group->oldest - 1)->entry : NULL;
}

struct index_entry *index_newer(struct index *index, const struct index_entry *entry)
{
	uint32_t newer = ((const struct node *)(const void *)entry)->newer;

	return newer ? &node_at(index, newer - 1)->entry : NULL;
}
static_assert(offsetof(struct node, entry) == 0, "an entry is its node");

void index_used(struct index *index, const struct page_key *key)
{
	struct index_group *group = index_group(index, epoch_group(key));
	uint32_t number = group && group->quota && !group->ttl_s ? *link_find(index, key) : NONE;

	if (number == NONE || node_at(index, number)->pin)
		return;
	group_unlink(index, group, number);
	group_link(index, group, number);
}

static int pins_grow(struct index *index)
{
	uint32_t room = index->pins_room ? 2 * index->pins_room : 1024;
	struct index_pin *more = realloc(index->pin, room * sizeof(*more));

	if (!more)
		return -ENOMEM;
	index->pin = more;
	index->pins_room = room;
	return 0;
}

int index_pin(struct index *index, const struct page_key *key, const struct index_pins *pins)
{
	uint32_t number = *link_find(index, key);
	struct index_group *group = index_group(index, epoch_group(key));
	struct index_account *account = &index->account;
	struct node *node = number == NONE ? NULL : node_at(index, number);

	if (!node)
		return -ENOENT;
	if (group->ttl_s)
		return -EDQUOT;
	if (node->pin) {
		if (index->pin[node->pin - 1].until < pins->until)
			index->pin[node->pin - 1].until = pins->until;
		return 0;
	}
	if (account->pinned + node_bytes(node) > pins->most ||
		(group->quota &&
			group->pinned + node_bytes(node) > group->quota * pins->percent / 100))
		return -EDQUOT;
	if (account->pins == index->pins_room && pins_grow(index) < 0)
		return -ENOMEM;
	index->pin[account->pins] = (struct index_pin){.node = number, .until = pins->until};
	node->pin = ++account->pins;
	account->pinned += node_bytes(node);
	group->pinned += node_bytes(node);
	group_unlink(index, group, number);
	return 0;
}

void index_unpin(struct index *index, const struct page_key *key)
{
	uint32_t number = *link_find(index, key);
	struct index_group *group = index_group(index, epoch_group(key));

	if (number == NONE || !node_at(index, number)->pin)
		return;
	pin_drop(index, group, number);
	if (group->ttl_s) {
		node_at(index, number)->entry.stored = 0; /* its group has got a time meanwhile */
		group_link_oldest(index, group, number);
	} else {
		group_link(index, group, number);
	}
}

struct index_entry *index_pin_over(struct index *index, uint32_t *look)
{
	while (*look && index->account.pins) {
		const struct index_pin *pin;

		--*look;
		if (index->pins_cursor >= index->account.pins)
			index->pins_cursor = 0;
		pin = &index->pin[index->pins_cursor];
		if (pin->until <= index->account.now)
			return &node_at(index, pin->node)->entry;
		index->pins_cursor++;
	}
	return NULL;
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
	TAILQ_INIT(&index->account.groups);
	TAILQ_INIT(&index->account.limited);
	index->slot = calloc(MAP_SLOTS, sizeof(*index->slot));
	index->group_bits = GROUP_BITS_MIN;
	index->group = calloc((size_t)1 << GROUP_BITS_MIN, sizeof(*index->group));
	if (!index->slot || !index->group) {
		index_close(index);
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
	groups_free(index);
	segments_free(&index->nodes);
	segments_free(&index->buckets);
	free(index->slot);
	free(index->pin);
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
		segments_add(&index->nodes, SEGMENT * sizeof(struct node), false) != 0)
		return NONE;
	return index->used++;
}

int index_put(struct index *index, const struct index_entry *entry, struct index_entry **ret)
{
	uint32_t *link = link_find(index, &entry->key), number = *link;
	struct index_group *group;
	int rc = -EEXIST;

	if (number == NONE) {
		group = group_make(index, epoch_group(&entry->key));
		number = group ? node_new(index) : NONE;
		if (number == NONE) {
			if (group)
				group_drop(index, group);
			return -ENOMEM;
		}
		*node_at(index, number) = (struct node){.entry = *entry, .next = NONE};
		slot_add(index, number);
		group_add(index, group, number);
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
	group_remove(index, number);
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
		if (node_at(index, (uint32_t)number)->slot_previous != REMOVED)
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
	if (!link || node_at(index, link - 1)->slot_previous == REMOVED ||
		map_slot_of(&node_at(index, link - 1)->entry.key) != slot)
		link = index->slot[slot];
	for (; link && n < max; link = node_at(index, link - 1)->slot_next)
		ret_entries[n++] = node_at(index, link - 1)->entry;
	*cursor = link;
	return n;
}
