/* SPDX-License-Identifier: Apache-2.0 */
/* store.h: the stored file descriptors. Runs on the keeper's main thread. */
#include "engine/keeper/store.h"

#include <errno.h>
#include <linux/kcmp.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Do both numbers name one open file description? False when the kernel does not tell; the limit
 * of the store bounds what is then stored twice.
 */
static bool is_same(int a, int b)
{
	return syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a, b) == 0;
}

int store_add(struct fd_store *store, int fd, const char *name, bool poll)
{
	struct stored *entry;

	for (unsigned i = 0; i < store->count; i++) {
		if (is_same(store->entry[i].fd, fd)) {
			close(fd);
			return 0;
		}
	}
	if (store->count == STORE_FDS_MAX) {
		close(fd);
		return -ENOSPC;
	}
	entry = &store->entry[store->count++];
	*entry = (struct stored){.fd = fd, .poll = poll};
	strncpy(entry->name, name, sizeof(entry->name) - 1);
	return 0;
}

void store_remove_at(struct fd_store *store, unsigned index)
{
	close(store->entry[index].fd);
	memmove(&store->entry[index], &store->entry[index + 1],
		(store->count - index - 1) * sizeof(store->entry[0]));
	store->count--;
}

unsigned store_remove(struct fd_store *store, const char *name)
{
	unsigned removed = 0;

	for (unsigned i = store->count; i-- > 0;) {
		if (strcmp(store->entry[i].name, name))
			continue;
		store_remove_at(store, i);
		removed++;
	}
	return removed;
}

void store_clear(struct fd_store *store)
{
	while (store->count)
		store_remove_at(store, store->count - 1);
}
