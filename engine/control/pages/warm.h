/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warm restart: the memory of the pools outlives the engine's process, and the next process adopts
 * the pages in it. The process that started the engine (peercache-keeper, systemd) stores the
 * descriptors, under these names:
 *
 *   state                      struct warm_state, which every engine over this memory has locked
 *   pool-R, heads-R, slots-R   the pool of rail R, its page heads and its struct pool_state
 *   shard, shard-state         the directory shard, and struct shard_state
 *   removals                   struct removals_log
 *   process-P                  a pidfd of a client's process
 *   channel-P-N                the segment of a channel of process P; N is the channel's number as
 *                              an owner of slots
 *
 * Who owns a page slot after the engine was killed: a page and a free slot belong to the next
 * engine, and so do the slots that were granted to clients: the engine stores `stopped` in the
 * segments of their channels before it takes them. Only the slot that a segment names as `copying`
 * stays the client's, until its thread has left it or `process-P` has exited, whatever the children
 * of that process hold (abi/segment.h; a child of fork() has no mapping of the pools). A slot into
 * which the disk tier reads stays the kernel's until the locks of all
 * paths are taken, which the kernel holds until the last I/O has ended.
 *
 * Directory entries name this engine by its ref, the low half of the incarnation. A warm restart
 * keeps the ref, so the entries that other hosts have stay right, and the high half is the number
 * of the life, so other hosts see an engine that was restarted: QPs, rkeys and health are new. A
 * ref is kept only with the heads of all pools, because a place and a generation must name one use
 * of a slot under one ref, for ever; and only if no member of an older version is known, which
 * would refuse an engine with a known ref (control.kept_ref). Control plane's thread only.
 */
#ifndef CONTROL_WARM_H
#define CONTROL_WARM_H

#include "engine/control/base/control.h"
#include "engine/control/pages/pool.h"

#define WARM_MAGIC 0x50435753u /* "PCWS" */
#define WARM_LAYOUT 1u         /* raised when a field changes its place or meaning */
#define WARM_STATE_BYTES 4096u
/* after this number of crashes in turn during the start, the next engine starts cold */
#define WARM_CRASHES_MAX 3u
/* longest wait for the process that stores descriptors, at the start */
#define WARM_BARRIER_MS 5000u

struct warm_state {
	uint32_t magic, layout;
	uint32_t pid;  /* of the engine that locked the memory last */
	uint32_t life; /* number of that engine, counted from 1 */
	/* the number that the next owner of slots gets; never given twice */
	uint32_t next_owner;
	uint32_t disk_owner; /* owner of the slots into which the disk tier reads; 0: none yet */
	uint64_t disk_paths; /* hash of the setting disk.paths that disk_owner stands for */
	uint32_t crashes;    /* engines in turn that began to start with this memory and crashed */
	/*
	 * the engine's ref, which its successor takes over; 0: it chooses one. Written when the
	 * pools are adopted and stored, cleared before that.
	 */
	uint32_t ref;
};

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
 * Opens the memory of removals (removals.h): adopts the stored one, or makes a new one, which is
 * zero, and stores it. Returns 0 or -errno.
 */
int warm_removals_open(
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
/* The channel's client can write to no slot any more. Owner 0: no effect. */
void warm_owner_end(struct control *control, uint32_t owner, uint32_t process);
/* No channel of the process is stored any more. Process 0: no effect. */
void warm_process_end(struct control *control, uint32_t process);
/* The owner of slots into which the disk tier reads. */
uint32_t warm_owner_disk(const struct control *control);
/* The locks of all paths of disk.paths are taken: no earlier I/O writes to a slot any more. */
void warm_disk_locked(struct control *control);

void warm_counts(const struct control *control, struct warm_counts *ret);

#endif
