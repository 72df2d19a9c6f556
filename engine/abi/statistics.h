/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of one channel, in its segment: what only the client library knows about its calls.
 * The client's thread writes them once for each batch that ends; the engine's control plane reads
 * them and trusts nothing: see control/clients/statistics.c.
 *
 * All values count from the time the channel was opened and only grow. A sequence lock keeps a
 * batch whole:
 *
 *   client                                engine
 *     sequence + 1 (odd)                    before = sequence (acquire); odd: try later
 *     shm_fence_store()                     copy the words
 *     the words                             shm_fence_load()
 *     sequence + 1 (release)                sequence != before: try later
 */
#ifndef ABI_STATISTICS_H
#define ABI_STATISTICS_H

#include <errno.h>

#include "engine/abi/latency.h"
#include "engine/abi/ring.h"

enum statistics_call {
	STATISTICS_GET,
	STATISTICS_SET,
	STATISTICS_EXISTS,
	STATISTICS_REMOVE,
	STATISTICS_CALLS,
};

/* How pages ended. Order is ABI. */
enum statistics_result {
	STATISTICS_HIT,         /* get: bytes delivered; set: stored or present; exists: found */
	STATISTICS_MISS,        /* every owner answered that there is none */
	STATISTICS_STALE,       /* validation failed: the page was evicted while it was read */
	STATISTICS_UNREACHABLE, /* an owner or the holder could not be asked */
	STATISTICS_TIMEOUT,     /* the batch's deadline passed */
	STATISTICS_NO_SPACE,    /* set: no slot could be evicted in time */
	STATISTICS_OTHER,       /* invalid arguments, or the engine went away */
	STATISTICS_RESULTS,
};

/* A batch that took longer counts as this long: the process may have been stopped meanwhile. */
#define STATISTICS_LATENCY_MAX_NS (1ull << 42) /* 73 minutes; of the last bucket */

/* Calls of one kind. Every member is a 64-bit word. */
struct statistics_calls {
	uint64_t batches;
	uint64_t pages; /* of these batches: the sum of result[] */
	uint64_t result[STATISTICS_RESULTS];
	uint64_t latency_ns_sum;           /* of the batches, submit to end */
	uint64_t latency[LATENCY_BUCKETS]; /* of the batches */
};

struct statistics_words {
	struct statistics_calls calls[STATISTICS_CALLS];
	uint64_t get_local;      /* pages copied from this host's pools */
	uint64_t get_remote;     /* pages read from another host's pools */
	uint64_t get_bytes;      /* payload of both */
	uint64_t get_staged;     /* bytes of it that went through staging memory */
	uint64_t set_bytes;      /* payload stored */
	uint64_t set_present;    /* pages that were present already */
	uint64_t reissued;       /* page READs repeated because a rail failed */
	uint64_t lookups;        /* keys looked up in the directory */
	uint64_t lookups_cached; /* keys whose location the channel remembered */
	/* hits in front of the first page of their batch that was none: what a prefix can use */
	uint64_t get_usable, exists_usable;
};
static_assert(sizeof(struct statistics_words) % sizeof(uint64_t) == 0, "an array of words");
#define STATISTICS_WORDS (sizeof(struct statistics_words) / sizeof(uint64_t))

/* owner: client; its thread alone writes, the engine reads */
struct channel_statistics {
	uint32_t sequence; /* odd while the client writes */
	uint32_t spare;
	uint64_t spare_words[7];
	struct statistics_words words;
};
static_assert(offsetof(struct channel_statistics, words) == 64, "the words have their own lines");
#define STATISTICS_BYTES 4096u /* a page of the channel segment */
static_assert(sizeof(struct channel_statistics) <= STATISTICS_BYTES, "fits its page");

/* Client's thread: between these two it adds to the words with shm_count(). */
static inline void statistics_write_begin(struct channel_statistics *s)
{
	shm_store(&s->sequence, shm_load(&s->sequence) + 1);
	shm_fence_store();
}

/* Release pairs with statistics_read(). */
static inline void statistics_write_end(struct channel_statistics *s)
{
	shm_store_release(&s->sequence, shm_load(&s->sequence) + 1);
}

/*
 * Copies the words. 0, or -EAGAIN: the client was writing, or ended while it wrote; `ret_words` is
 * then undefined. Acquire pairs with statistics_write_end().
 */
static inline int statistics_read(
	const struct channel_statistics *s, struct statistics_words *ret_words)
{
	const uint64_t *from = (const uint64_t *)(const void *)&s->words;
	uint64_t *to = (uint64_t *)(void *)ret_words;
	uint32_t before = shm_load_acquire(&s->sequence);

	if (before & 1)
		return -EAGAIN;
	for (size_t i = 0; i < STATISTICS_WORDS; i++)
		to[i] = shm_load64(&from[i]);
	shm_fence_load();
	return shm_load(&s->sequence) == before ? 0 : -EAGAIN;
}

#endif
