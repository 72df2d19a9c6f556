/* SPDX-License-Identifier: Apache-2.0 */
/* warm.c for tests of single parts: no process keeps the memory of the engine. */
#ifndef TEST_WARM_STUB_H
#define TEST_WARM_STUB_H

#include "engine/control/pages/pages.h"
#include "engine/control/pages/pages_inner.h"

int warm_open(struct control *control)
{
	return 0;
}

void warm_close(struct control *control)
{
}

int warm_pool_open(
	struct control *control, const struct pool_options *options, struct pool **ret_pool)
{
	return pool_open(options, ret_pool);
}

int warm_shard_open(struct control *control, uint64_t entries, int numa_node, bool want_huge)
{
	return shard_open(entries, numa_node, want_huge, control->shard);
}

int warm_identity(struct control *control)
{
	return 0;
}

int warm_begin(struct control *control)
{
	return 0;
}

void warm_end(struct control *control)
{
}

uint32_t warm_owner_new(struct control *control, int segment, int pidfd, uint32_t *process)
{
	(void)control, (void)segment, (void)pidfd, (void)process;
	return POOL_OWNER_NONE;
}

void warm_owner_end(struct control *control, uint32_t owner, uint32_t process)
{
	(void)control, (void)owner, (void)process;
}

void warm_process_end(struct control *control, uint32_t process)
{
	(void)control, (void)process;
}

uint32_t warm_owner_disk(const struct control *control)
{
	return POOL_OWNER_NONE;
}

uint32_t warm_owner_copies(const struct control *control)
{
	return POOL_OWNER_NONE;
}

void warm_disk_locked(struct control *control)
{
}

void warm_counts(const struct control *control, struct warm_counts *ret)
{
	*ret = (struct warm_counts){0};
}

#endif
