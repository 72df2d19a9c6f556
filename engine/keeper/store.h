/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file descriptors that an engine stored in the keeper, in the order in which they came. The
 * next engine gets all of them. The store owns them. Keeper's main thread only.
 */
#ifndef KEEPER_STORE_H
#define KEEPER_STORE_H

#include <stdbool.h>

#include "engine/keeper/notify.h"

/*
 * An engine stores three descriptors for a rail, one for each client's process and one for each
 * channel, and those of engines before it while a client copies into a slot of the channel.
 */
#define STORE_FDS_MAX 640u

struct stored {
	int fd;
	bool poll; /* false: FDPOLL=0 */
	char name[NOTIFY_NAME_BYTES];
};

struct fd_store {
	unsigned count;
	struct stored entry[STORE_FDS_MAX];
};

/*
 * Takes ownership of `fd`, also on failure. A descriptor that the store has already, under any
 * name, is closed, as systemd does. Returns 0, or -ENOSPC when the store is full.
 */
int store_add(struct fd_store *store, int fd, const char *name, bool poll);
/* Closes all descriptors with this name. Returns how many. */
unsigned store_remove(struct fd_store *store, const char *name);
/* Closes the descriptor at this index; the entries behind it move up by one. */
void store_remove_at(struct fd_store *store, unsigned index);
/* Closes all. */
void store_clear(struct fd_store *store);

#endif
