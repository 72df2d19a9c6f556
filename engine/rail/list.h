/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A doubly linked list, whose entries are members of the structures in it: runs and
 * connections. Owns nothing; poll core only.
 */
#ifndef RAIL_LIST_H
#define RAIL_LIST_H

#include <stdbool.h>

/*
 * Entry or head of a doubly linked list; an unlinked entry and an empty head point at themselves.
 */
struct list {
	struct list *next, *previous;
};

static inline void list_init(struct list *entry)
{
	entry->next = entry->previous = entry;
}

/* True if the entry is in a list, or if the list that it heads is not empty. */
static inline bool list_linked(const struct list *entry)
{
	return entry->next != entry;
}

static inline void list_insert_before(struct list *at, struct list *entry)
{
	entry->next = at;
	entry->previous = at->previous;
	at->previous->next = entry;
	at->previous = entry;
}

/* Appends `entry` to the end of the list with the head `head`. */
static inline void list_append(struct list *head, struct list *entry)
{
	list_insert_before(head, entry);
}

/* Removes an entry from its list; no effect on an unlinked one. */
static inline void list_remove(struct list *entry)
{
	entry->previous->next = entry->next;
	entry->next->previous = entry->previous;
	list_init(entry);
}

#endif
