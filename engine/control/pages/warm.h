/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that started the engine (peercache-keeper, systemd) stores the descriptors of pools,
 * shard and epochs, and the next engine adopts them: see WARM.md.
 */
#ifndef CONTROL_WARM_H
#define CONTROL_WARM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct control;
struct huge;
struct pool;
struct pool_options;

struct warm_counts {
	uint32_t life;     /* 0: no process keeps this engine's memory */
	uint64_t adopted;  /* pages that were adopted at the start */
	uint64_t reserved; /* slots of earlier engines that cannot be used yet */
};

/*
 * Takes the stored descriptors. Returns 0, also if none are stored or if no process would store
 * any; -EBUSY after logging: another engine uses the memory; or another -errno.
 */
int warm_open(struct control *control);
void warm_close(struct control *control);

/*
 * Opens the pool of a rail: adopts the stored memory, or makes new memory and stores it. The pages
 * are put into control->index. Returns as pool_open() does.
 */
int warm_pool_open(
	struct control *control, const struct pool_options *options, struct pool **ret_pool);

/*
 * Opens the directory shard: adopts the stored one, or makes a new one and stores it. Returns as
 * shard_open() does.
 */
int warm_shard_open(struct control *control, uint64_t entries, int numa_node, bool want_huge);

/*
 * Opens the memory of epochs: adopts the stored one, or makes a new one, which is zero, and stores
 * it. Returns 0 or -errno.
 */
int warm_epochs_open(
	struct control *control, size_t bytes, struct huge *ret_memory, bool *ret_adopted);

/* Called once when all pools are open: decides the engine's ref and incarnation. */
int warm_identity(struct control *control);
/*
 * Called once when the clients' part is open: counts what was adopted as ctl.c counts it,
 * watches the clients of earlier engines, and waits until the descriptors are stored.
 */
int warm_begin(struct control *control);
/* Stops watching. Slots that are still reserved stay so for the next engine. */
void warm_end(struct control *control);

/*
 * The number of a new channel as an owner of slots; its segment is stored. 0 if no process keeps
 * the memory. *process: the number of the client's process, whose pidfd is stored with its first
 * channel; 0 before, and while the pidfd is -1.
 */
uint32_t warm_owner_new(struct control *control, int segment, int pidfd, uint32_t *process);
/* The owner of slots into which copies of pages of other hosts are READ; 0 as above. */
uint32_t warm_owner_copies(const struct control *control);
/* The channel's client can write to no slot any more. Owner 0: no effect. */
void warm_owner_end(struct control *control, uint32_t owner, uint32_t process);
/* No channel of the process is stored any more. Process 0: no effect. */
void warm_process_end(struct control *control, uint32_t process);

void warm_counts(const struct control *control, struct warm_counts *ret);

#endif
