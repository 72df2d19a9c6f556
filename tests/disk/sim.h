/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated device: the files of one path in memory. What was written and not synced is lost,
 * torn or reordered by sim_crash(). Operations complete one at a time, in a random order, when the
 * test says so. One thread.
 */
#ifndef TESTS_DISK_SIM_H
#define TESTS_DISK_SIM_H

#include "engine/disk/device.h"

/* The bytes of one unit, shared by all devices that have it. NULL: zeros. */
struct sim_unit {
	uint32_t references;
	uint64_t hash;
	uint8_t bytes[4096];
};

#define SIM_WRITE_UNITS 160

/* A write that no sync has covered. */
struct sim_write {
	TAILQ_ENTRY(sim_write) next;
	struct device_io *io; /* NULL once it has completed */
	uint64_t completed;   /* when, in operations; 0: in flight */
	uint32_t file, unit, units;
	struct sim_unit *data[SIM_WRITE_UNITS];
};
TAILQ_HEAD(sim_writes, sim_write);

struct sim_file {
	bool exists;
	struct sim_unit **durable, **cached; /* what a crash leaves for certain; what is read */
};

/* When it fails, all further operations of its devices fail with EIO and change nothing. */
struct sim_power {
	uint64_t operations; /* until then */
	bool failed;
};

struct sim {
	struct device device;
	uint32_t files; /* the last one is the path file */
	uint32_t units;
	struct sim_file *file;
	struct sim_writes unsynced;
	struct device_ios pending, completed;
	unsigned pendings;
	uint64_t now; /* operations so far */
	uint64_t *rng;
	struct sim_power *power; /* shared by the devices of a host; NULL: no failure */
	/* Faults: results of operations of a kind; 0: none. */
	int fail_read, fail_write, fail_sync, fail_unlink;
	/* reads of these units of a file fail with EIO; not in a copy */
	uint32_t bad_file, bad_unit, bad_units;
	bool hang; /* nothing completes */
};

uint64_t sim_random(uint64_t *rng);
/* Segments of `units` units; no file exists but the path file, which is empty. */
struct sim *sim_new(uint32_t segments, uint32_t units, uint64_t *rng);
/* What a crash now can leave: another device, without operations. */
struct sim *sim_crash(const struct sim *sim, uint64_t *rng);
/* The same without any operation in flight and with everything synced. */
struct sim *sim_copy(const struct sim *sim);
void sim_free(struct sim *sim);
/* Completes one operation, chosen at random; false if there is none. */
bool sim_complete(struct sim *sim);
/* A hash of all durable bytes. */
uint64_t sim_hash(const struct sim *sim);
/* Bytes of a unit as they are read; for tests that damage them. */
uint8_t *sim_bytes(struct sim *sim, uint32_t file, uint32_t unit);

#endif
