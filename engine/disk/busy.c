/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys that are being written or removed: a small hash set with open addressing. A key in it
 * is neither written nor removed a second time. Owned by the thread that steps the store.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/disk/store.h"

static bool is_free(const struct page_key *key)
{
	return !key->word[0] && !key->word[1];
}

static uint32_t place(const struct store *store, const struct page_key *key)
{
	uint32_t at = (uint32_t)(key->word[0] ^ key->word[1]) & (store->busy_room - 1);

	while (!is_free(&store->busy[at]) && !page_key_equal(&store->busy[at], key))
		at = (at + 1) & (store->busy_room - 1);
	return at;
}

static bool grow(struct store *store)
{
	struct page_key *old = store->busy;
	uint32_t room = store->busy_room;
	struct page_key *keys = calloc(room ? room * 2 : 64, sizeof(*keys));

	if (!keys)
		return false;
	store->busy = keys;
	store->busy_room = room ? room * 2 : 64;
	for (uint32_t i = 0; i < room; i++)
		if (!is_free(&old[i]))
			keys[place(store, &old[i])] = old[i];
	free(old);
	return true;
}

bool busy_add(struct store *store, const struct page_key *key)
{
	uint32_t at;

	if (store->busy_keys * 2 >= store->busy_room && !grow(store))
		return false;
	at = place(store, key);
	if (is_free(&store->busy[at]))
		store->busy_keys++;
	store->busy[at] = *key;
	return true;
}

bool busy_has(const struct store *store, const struct page_key *key)
{
	return store->busy_room && !is_free(&store->busy[place(store, key)]);
}

void busy_drop(struct store *store, const struct page_key *key)
{
	uint32_t mask = store->busy_room - 1, at, from;

	if (!busy_has(store, key))
		return;
	at = from = place(store, key);
	store->busy_keys--;
	/* Closes the gap: later keys of the same run move up unless they are at home already. */
	for (;;) {
		uint32_t home;

		from = (from + 1) & mask;
		if (is_free(&store->busy[from]))
			break;
		home = (uint32_t)(store->busy[from].word[0] ^ store->busy[from].word[1]) & mask;
		if (((from - home) & mask) >= ((from - at) & mask)) {
			store->busy[at] = store->busy[from];
			at = from;
		}
	}
	memset(&store->busy[at], 0, sizeof(store->busy[at]));
}
