/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys that the calls of one channel name, in its segment: written only while a process of this
 * host records them (`asked` of the status segment). One client thread writes, the control plane
 * takes. For each batch a word with its number of keys, and above that of the batches before it
 * that found no room; then a word of each key's hash, 0 for an invalid key.
 *
 *   client                                engine
 *     taken (acquire): room?                written (acquire)
 *     the words                             copy the words, whatever they are
 *     written (release)                     taken (release)
 */
#ifndef ABI_ASKED_H
#define ABI_ASKED_H

#include "engine/abi/ring.h"

#define ASKED_WORDS 16384u  /* a power of two */
#define ASKED_LOST_SHIFT 32 /* of the first word of a batch */
#define ASKED_BYTES (4096u + ASKED_WORDS * 8u)

struct channel_asked {
	/* owner: client; words since the channel was opened */
	alignas(64) uint64_t written;
	/* owner: control plane; how many of them it has copied */
	alignas(64) uint64_t taken;
	/* owner: client */
	alignas(64) uint64_t word[ASKED_WORDS];
};
static_assert(sizeof(struct channel_asked) <= ASKED_BYTES, "fits its pages");

#endif
