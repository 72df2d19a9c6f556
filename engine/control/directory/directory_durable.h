/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removals until they are a promise (directory_durable.c): those that this engine executes, and the
 * answers of other engines that execute this one's. Control plane's thread only.
 */
#ifndef CONTROL_DIRECTORY_DURABLE_H
#define CONTROL_DIRECTORY_DURABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/abi/message.pb-c.h"

struct batch;
struct dir_target;
struct dir_update;
struct directory;
struct owner;
struct rpc_link;

/*
 * Removals that this engine executes: a Forget of another engine, or the target of a Forget of its
 * own. It ends when the tombstones are durable and all owners have dropped the pages' entries.
 */
struct forgets {
	LIST_ENTRY(forgets) next;
	struct directory *directory;
	struct dir_target *target; /* the target of this engine; NULL: a message of another one */
	struct rpc_link *link;     /* to answer on; NULL: it has closed */
	uint64_t serial;
	uint32_t waits; /* parts without a result */
	uint32_t count;
	bool failed[]; /* of each key: the page, or an entry of it, may come back */
};

/* A member has left before it acknowledged the removal: it is told when it comes back. */
void removal_again(struct directory *directory, const struct dir_update *update);
/* Executes a removal on this engine. The target is resolved at once, or when it is a promise. */
void forget_here(struct directory *directory, struct dir_target *target);
/*
 * The batch was executed by its owner, which waits for its disk and for the owners of the pages. It
 * stays in owner.unsynced until batch_synced() or the end of its link.
 */
void batch_unsynced(struct directory *directory, struct owner *owner, struct batch *batch);
/* Serves an Ack with `synced`. False: it breaks a rule. */
bool batch_synced(struct directory *directory, struct owner *owner, const struct rpc_link *link,
	const Pc__Ack *ack);
/* True if indices ascend, so that none occurs twice, and are below `count`. */
bool failed_fit(size_t count, size_t failed_count, const uint32_t *failed);
/* The link has closed, or the directory is: answers to it are not sent any more. NULL: all. */
void forgets_drop(struct directory *directory, const struct rpc_link *link);

#endif
