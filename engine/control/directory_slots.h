/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internals of the directory: which slots owners lack and which ones former owners have
 * (directory_slots.c), the walks that send owners what they lack (directory_walk.c), and reading
 * the pages of slots in small steps (directory_move.c). Control plane's thread only.
 */
#ifndef CONTROL_DIRECTORY_SLOTS_H
#define CONTROL_DIRECTORY_SLOTS_H

#include "engine/control/directory_past.h"

struct directory;
struct index_entry;
struct owner;

#define FORMERS_MAX 4 /* former owners of a slot that still hold its entries */

/* Sends an owner the entries of the slots that it lacks. */
struct walk {
	uint32_t slots; /* number of these slots */
	uint32_t slot;  /* where the walk is, */
	uint64_t at;    /* and a cursor of slot_pages(); 0: at the start of the slot */
	bool again;     /* an entry of the slot was skipped meanwhile: read it once more */
};

/* Peer numbers of the former owners of a slot that still have its entries, the first one first. */
struct former {
	uint16_t peer[FORMERS_MAX]; /* UINT16_MAX: none, and none behind it */
};

/* ---- directory_slots.c ----------------------------------------------------------------------- */

/* The owners of `was` have become those of `now`, or have dropped our entries. */
void lacks_follow(struct directory *directory, const struct past *was, const struct map_view *now);
/* True if the owner with that index in settled.view lacks the slot. */
bool lacks_slot(const struct directory *directory, uint32_t slot, uint16_t owner);
/* The next slot, from `slot` on, that it lacks; MAP_SLOTS: none. */
uint32_t lacks_next(const struct directory *directory, uint32_t slot, uint16_t owner);
/* The owner `ref` may lack entries of the slot; nothing if it does not own the slot. */
void lack_add(struct directory *directory, struct walk *walk, uint32_t ref, uint32_t slot);
/* This engine's own shard may lack entries of all slots that it owns. */
void lacks_self(struct directory *directory);
/* The owner `ref` does not lack the slot any more at which its walk is. */
void lack_end(struct directory *directory, struct walk *walk, uint32_t ref);
/* True if `is` is true for an owner of the slot, other than this engine. */
bool slot_owner_any(struct directory *directory, uint32_t slot,
	bool (*is)(const struct directory *directory, const struct owner *owner));
/* True if an owner of the slot lacks it, or is slow: its former owners keep their entries. */
bool slot_lags(struct directory *directory, uint32_t slot);
/* Refs of the slot's former owners that are members. Returns their number. */
unsigned formers_of(
	const struct directory *directory, uint32_t slot, uint32_t ret_ref[FORMERS_MAX]);
bool formers_any(const struct directory *directory, uint32_t slot);
/* Removes of all entries of the slot were sent to its former owners. */
void formers_drop(struct directory *directory, uint32_t slot);

/* ---- directory_walk.c ------------------------------------------------------------------------ */

/* The next step of the walks of all owners that are ready. */
void walks_slice(struct directory *directory);
/* True if walks_slice() would read pages. */
bool walks_ready(const struct directory *directory);
/* True if the walks of all owners have ended that are not behind. */
bool walks_done(const struct directory *directory);

/* ---- directory_move.c ------------------------------------------------------------------------ */

/* What is done with the pages of the slots for which `wants` is true. */
struct slots_reading {
	bool (*wants)(struct directory *directory, uint32_t slot);
	void (*page)(struct directory *directory, const struct index_entry *entry);
	void (*done)(struct directory *directory, uint32_t slot); /* or NULL */
};

/* Begins to read all slots: directory.slot is the first. */
void reading_start(struct directory *directory);
/* The next step of it. False: it has come to its end. */
bool reading_slice(struct directory *directory, const struct slots_reading *reading);

#endif
