/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory: the table of ranges of a process, and the sorted copy of it that each channel
 * has.
 */
#ifndef CLIENT_MEMORY_H
#define CLIENT_MEMORY_H

#include <stddef.h>

#include "config/likely.h"
#include "engine/abi/op.h"
#include "engine/client/rings/channel.h"
#include "engine/client/peercache.h"

struct client_session;
struct pc;

/*
 * A registered range. Owned by struct pc, under `lock`; a channel works on its own copy, struct
 * memory_view.
 */
struct memory {
	unsigned char *base;
	uint64_t bytes;
	uint64_t offset; /* offset of the range's start in the memfd or dma-buf, bytes */
	/* the library's duplicate of the caller's memfd; -1: other memory, see verbs.h */
	int memfd;
	int dmabuf;      /* descriptor by which NICs reach memory of a device; -1: none */
	uint16_t region; /* region number; 0: the range is not registered with the current engine */
	uint32_t device; /* its GPU, device_at(); 0: memory of the CPU */
	bool ours;       /* true: mapped by pc_memory_alloc(), so memory_free() unmaps it */
	uint32_t pins;   /* number of batches in flight that name this range */
	uint32_t slot;   /* index of the range in pc->memory */
};

/* One registered range in a channel's copy of the table; the copy is sorted by base. */
struct memory_view {
	uintptr_t base;
	uint64_t bytes;
	uint16_t region;
	uint32_t device;
	uint32_t slot;
};

/*
 * Attach thread: registers the range at index `i` of the table with the session unless it is
 * registered already.
 */
void memory_register_again(struct pc *pc, struct client_session *session, unsigned i);
/* Marks every registered range as not registered, for a new session. The caller holds `lock`. */
void memory_forget_regions(struct pc *pc);
void memory_free_all(struct pc *pc);
/* Copies the table of registered ranges into the channel if that table has changed. */
void memory_refresh(struct pc_channel *ch);
/*
 * Finds a registered range by binary search; memory_find() first tries the last result. `device`: a
 * range of GPU memory that has a byte of it, and need not be registered with the engine.
 */
const struct memory_view *memory_search(
	struct pc_channel *ch, uintptr_t at, uint64_t bytes, bool device);

static inline bool memory_holds(const struct memory_view *m, uintptr_t base, uint64_t bytes)
{
	uint64_t at = base - m->base; /* huge if `base` is below the range */

	return at < m->bytes && bytes <= m->bytes - at;
}

/*
 * The registered range that contains [base, base + bytes); NULL: none, or not registered with the
 * current engine.
 */
static inline const struct memory_view *memory_find(
	struct pc_channel *ch, const void *base, uint64_t bytes)
{
	const struct memory_view *last = &ch->memory[ch->memory_last];

	if (likely(ch->memory_last < ch->memories && memory_holds(last, (uintptr_t)base, bytes)))
		return last->region ? last : NULL;
	return memory_search(ch, (uintptr_t)base, bytes, false);
}

#endif
