/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store over simulated devices, and what its pages must hold. One thread; the test steps it.
 */
#ifndef TESTS_DISK_WORLD_H
#define TESTS_DISK_WORLD_H

#include "engine/disk/store.h"
#include "tests/disk/sim.h"

#define WORLD_PATHS_MAX 2

struct world {
	struct store store;
	struct sim *sim[WORLD_PATHS_MAX];
	unsigned paths;
	uint32_t segments, units;
	uint64_t *rng;
	unsigned idle; /* turns since something completed */
	bool any_tail; /* the bytes behind a page were damaged by the test */
};

/* Opens a store over the devices, which it owns from then on. Returns what recovery returned. */
int world_open(struct world *world, struct sim *const sim[], unsigned paths, uint64_t *rng);
/* Frees the store and the devices, whatever is in flight. */
void world_close(struct world *world);
/* A step, and one operation of a random device. */
void world_turn(struct world *world);
/* Steps until the request is returned. */
enum disk_status world_call(struct world *world, struct disk_request *request);

/* Page `number`, content `version`: its key, length and bytes. */
struct page_key page_key_of(uint32_t number);
uint32_t page_length(uint32_t number, uint32_t version);
void page_fill(uint8_t *bytes, uint32_t number, uint32_t version);
/* The version whose bytes these are; 0: none, they are wrong. */
uint32_t page_version(const uint8_t *bytes, uint32_t length, uint32_t number);

/* Returns the version that is read; 0: not there; UINT32_MAX: its bytes or its tail are wrong. */
uint32_t world_read(struct world *world, uint32_t number, bool *ret_found);
/* Writes a page; its bytes are followed by other bytes in memory. */
enum disk_status world_write(struct world *world, uint32_t number, uint32_t version);
bool world_forget(struct world *world, uint32_t number);
/* A second passes, in which tombstones are written, and all I/O ends. */
void world_settle(struct world *world);
/* The ordinal of the sealed segment that holds the page; 0: it is not persisted. */
uint64_t world_persisted(struct world *world, uint32_t number, unsigned *ret_path);

#endif
