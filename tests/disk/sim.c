/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated device; see sim.h. One thread. */
#include "tests/disk/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define UNIT 4096u
#define SECTOR 512u

uint64_t sim_random(uint64_t *rng)
{
	uint64_t x = *rng += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static struct sim_unit *unit_new(const uint8_t *bytes)
{
	struct sim_unit *unit = malloc(sizeof(*unit));

	if (!unit)
		abort();
	unit->references = 1;
	memcpy(unit->bytes, bytes, UNIT);
	unit->hash = XXH3_64bits(bytes, UNIT);
	return unit;
}

static struct sim_unit *unit_get(struct sim_unit *unit)
{
	if (unit)
		unit->references++;
	return unit;
}

static void unit_put(struct sim_unit *unit)
{
	if (unit && !--unit->references)
		free(unit);
}

static void unit_set(struct sim_unit **place, struct sim_unit *unit)
{
	unit_get(unit);
	unit_put(*place);
	*place = unit;
}

static struct sim_file *file_of(const struct sim *sim, uint32_t file)
{
	uint32_t number = file == DEVICE_PATH_FILE ? sim->files - 1 : file;

	if (number >= sim->files)
		abort();
	return &sim->file[number];
}

static void sim_submit(struct device *device, struct device_io *io)
{
	struct sim *sim = (struct sim *)device;

	if (io->op == DEVICE_WRITE && !(sim->power && sim->power->failed)) {
		struct sim_write *write = calloc(1, sizeof(*write));

		if (!write)
			abort();
		write->io = io;
		write->file = io->file;
		write->unit = (uint32_t)(io->offset / UNIT);
		for (unsigned v = 0; v < io->iovs; v++)
			for (size_t at = 0; at < io->iov[v].iov_len; at += UNIT) {
				if (write->units == SIM_WRITE_UNITS || io->iov[v].iov_len % UNIT)
					abort();
				write->data[write->units++] =
					unit_new((uint8_t *)io->iov[v].iov_base + at);
			}
		TAILQ_INSERT_TAIL(&sim->unsynced, write, next);
	}
	/* A sync covers what had completed when it was submitted. */
	if (io->op == DEVICE_SYNC)
		io->offset = sim->now;
	TAILQ_INSERT_TAIL(&sim->pending, io, next);
	sim->pendings++;
}

static void write_drop(struct sim *sim, struct sim_write *write)
{
	TAILQ_REMOVE(&sim->unsynced, write, next);
	for (uint32_t i = 0; i < write->units; i++)
		unit_put(write->data[i]);
	free(write);
}

static void complete_write(struct sim *sim, struct device_io *io)
{
	struct sim_write *write;

	TAILQ_FOREACH (write, &sim->unsynced, next)
		if (write->io == io)
			break;
	if (sim->fail_write) {
		write->io = NULL; /* may be on the device or not, in part or as a whole */
		write->completed = UINT64_MAX;
		io->result = sim->fail_write;
		return;
	}
	for (uint32_t i = 0; i < write->units; i++)
		unit_set(&file_of(sim, io->file)->cached[write->unit + i], write->data[i]);
	write->io = NULL;
	write->completed = sim->now;
	io->result = (int64_t)write->units * UNIT;
	/* In the order of completion, so that the newest is applied last. */
	TAILQ_REMOVE(&sim->unsynced, write, next);
	TAILQ_INSERT_TAIL(&sim->unsynced, write, next);
}

static void complete_sync(struct sim *sim, struct device_io *io)
{
	struct sim_write *write, *following;

	io->result = sim->fail_sync;
	if (sim->fail_sync)
		return;
	for (write = TAILQ_FIRST(&sim->unsynced); write; write = following) {
		following = TAILQ_NEXT(write, next);
		if (write->file != io->file || !write->completed || write->completed > io->offset)
			continue;
		for (uint32_t i = 0; i < write->units; i++)
			unit_set(&file_of(sim, io->file)->durable[write->unit + i], write->data[i]);
		write_drop(sim, write);
	}
}

static void complete_read(struct sim *sim, struct device_io *io)
{
	const struct sim_file *file = file_of(sim, io->file);
	uint32_t unit = (uint32_t)(io->offset / UNIT);
	uint32_t units = io->file == DEVICE_PATH_FILE ? 2 : sim->units;

	io->result = sim->fail_read;
	if (io->file == sim->bad_file && unit < sim->bad_unit + sim->bad_units &&
		unit + io->iov->iov_len / UNIT > sim->bad_unit)
		io->result = -EIO;
	if (io->result)
		return;
	if (!file->exists) {
		io->result = -ENOENT;
		return;
	}
	for (size_t at = 0; at < io->iov->iov_len && unit < units; at += UNIT, unit++) {
		uint8_t *to = (uint8_t *)io->iov->iov_base + at;

		if (file->cached[unit])
			memcpy(to, file->cached[unit]->bytes, UNIT);
		else
			memset(to, 0, UNIT);
		io->result += UNIT;
	}
}

static void file_clear(struct sim *sim, uint32_t number, bool exists)
{
	struct sim_write *write, *following;
	struct sim_file *file = file_of(sim, number);

	for (write = TAILQ_FIRST(&sim->unsynced); write; write = following) {
		following = TAILQ_NEXT(write, next);
		if (write->file == number)
			write_drop(sim, write);
	}
	for (uint32_t i = 0; i < sim->units; i++) {
		unit_set(&file->durable[i], NULL);
		unit_set(&file->cached[i], NULL);
	}
	file->exists = exists;
}

bool sim_complete(struct sim *sim)
{
	struct device_io *io = TAILQ_FIRST(&sim->pending);
	unsigned skip;

	if (!io || sim->hang)
		return false;
	for (skip = (unsigned)(sim_random(sim->rng) % sim->pendings); skip; skip--)
		io = TAILQ_NEXT(io, next);
	TAILQ_REMOVE(&sim->pending, io, next);
	sim->pendings--;
	sim->now++;
	if (sim->power && !sim->power->operations--)
		sim->power->failed = true;
	if (sim->power && sim->power->failed)
		io->result = -EIO;
	else
		switch (io->op) {
		case DEVICE_READ: complete_read(sim, io); break;
		case DEVICE_WRITE: complete_write(sim, io); break;
		case DEVICE_SYNC: complete_sync(sim, io); break;
		case DEVICE_CREATE:
		case DEVICE_UNLINK:
			io->result = io->op == DEVICE_UNLINK ? sim->fail_unlink : 0;
			/* what is behind the end does not exist */
			if (!io->result && io->file < sim->files - 1)
				file_clear(sim, io->file, io->op == DEVICE_CREATE);
			break;
		}
	TAILQ_INSERT_TAIL(&sim->completed, io, next);
	return true;
}

static struct device_io *sim_reap(struct device *device)
{
	struct sim *sim = (struct sim *)device;
	struct device_io *io = TAILQ_FIRST(&sim->completed);

	if (io)
		TAILQ_REMOVE(&sim->completed, io, next);
	return io;
}

static void sim_wait(struct device *device, uint64_t wait_ns)
{
	(void)wait_ns;
	sim_complete((struct sim *)device);
}

struct sim *sim_new(uint32_t segments, uint32_t units, uint64_t *rng)
{
	struct sim *sim = calloc(1, sizeof(*sim));
	struct sim_unit **places;

	if (!sim)
		abort();
	sim->device = (struct device){.name = "simulated",
		.fd = -1,
		.submit = sim_submit,
		.reap = sim_reap,
		.wait = sim_wait};
	sim->files = segments + 1;
	sim->units = units;
	sim->rng = rng;
	sim->file = calloc(sim->files, sizeof(*sim->file));
	places = calloc((size_t)sim->files * units * 2, sizeof(struct sim_unit *));
	if (!sim->file || !places)
		abort();
	for (uint32_t i = 0; i < sim->files; i++) {
		sim->file[i].durable = places + (size_t)i * units * 2;
		sim->file[i].cached = sim->file[i].durable + units;
	}
	sim->file[segments].exists = true;
	TAILQ_INIT(&sim->unsynced);
	TAILQ_INIT(&sim->pending);
	TAILQ_INIT(&sim->completed);
	return sim;
}

struct sim *sim_copy(const struct sim *sim)
{
	struct sim *copy = sim_new(sim->files - 1, sim->units, sim->rng);

	for (uint32_t f = 0; f < sim->files; f++) {
		copy->file[f].exists = sim->file[f].exists;
		for (uint32_t u = 0; u < sim->units; u++) {
			unit_set(&copy->file[f].durable[u], sim->file[f].cached[u]);
			unit_set(&copy->file[f].cached[u], sim->file[f].cached[u]);
		}
	}
	return copy;
}

/* Some sectors of a unit are old and some are new. */
static void tear(struct sim_unit **place, const struct sim_unit *newer, uint64_t *rng)
{
	uint8_t bytes[UNIT] = {0};
	uint64_t mask = sim_random(rng);
	struct sim_unit *torn;

	if (*place)
		memcpy(bytes, (*place)->bytes, UNIT);
	for (uint32_t s = 0; s < UNIT / SECTOR; s++)
		if (mask >> s & 1)
			memcpy(bytes + (size_t)s * SECTOR, newer->bytes + (size_t)s * SECTOR,
				SECTOR);
	torn = unit_new(bytes);
	unit_set(place, torn);
	unit_put(torn);
}

enum crash_kind { CRASH_NONE, CRASH_ALL, CRASH_WRITES, CRASH_UNITS, CRASH_SECTORS, CRASH_KINDS };

static void crash_write(
	struct sim *left, const struct sim_write *write, enum crash_kind kind, uint64_t *rng)
{
	struct sim_file *file = file_of(left, write->file);
	bool whole = sim_random(rng) % 2;

	for (uint32_t i = 0; i < write->units; i++) {
		struct sim_unit **place = &file->durable[write->unit + i];
		uint64_t dice = sim_random(rng);

		if (kind == CRASH_ALL || (kind == CRASH_WRITES && whole) ||
			(kind == CRASH_UNITS && dice % 2) || (kind == CRASH_SECTORS && !(dice % 3)))
			unit_set(place, write->data[i]);
		else if (kind == CRASH_SECTORS && dice % 3 == 1)
			tear(place, write->data[i], rng);
	}
}

struct sim *sim_crash(const struct sim *sim, uint64_t *rng)
{
	struct sim *left = sim_new(sim->files - 1, sim->units, rng);
	enum crash_kind kind = (enum crash_kind)(sim_random(rng) % CRASH_KINDS);
	const struct sim_write *order[4096], *write;
	unsigned writes = 0;

	for (uint32_t f = 0; f < sim->files; f++) {
		left->file[f].exists = sim->file[f].exists;
		for (uint32_t u = 0; u < sim->units; u++)
			unit_set(&left->file[f].durable[u], sim->file[f].durable[u]);
	}
	TAILQ_FOREACH (write, &sim->unsynced, next)
		if (writes < 4096)
			order[writes++] = write;
	/* The device writes its cache back in any order. */
	for (unsigned i = 0; i + 1 < writes && sim_random(rng) % 2; i++) {
		unsigned other = i + (unsigned)(sim_random(rng) % (writes - i));

		write = order[i];
		order[i] = order[other];
		order[other] = write;
	}
	for (unsigned i = 0; i < writes; i++)
		crash_write(left, order[i], kind, rng);
	for (uint32_t f = 0; f < sim->files; f++)
		for (uint32_t u = 0; u < sim->units; u++)
			unit_set(&left->file[f].cached[u], left->file[f].durable[u]);
	return left;
}

void sim_free(struct sim *sim)
{
	while (TAILQ_FIRST(&sim->unsynced))
		write_drop(sim, TAILQ_FIRST(&sim->unsynced));
	for (uint32_t f = 0; f < sim->files; f++)
		for (uint32_t u = 0; u < sim->units; u++) {
			unit_put(sim->file[f].durable[u]);
			unit_put(sim->file[f].cached[u]);
		}
	free(sim->file[0].durable);
	free(sim->file);
	free(sim);
}

uint64_t sim_hash(const struct sim *sim)
{
	uint64_t hash = 0;

	for (uint32_t f = 0; f < sim->files; f++)
		for (uint32_t u = 0; u < sim->units; u++)
			if (sim->file[f].exists && sim->file[f].durable[u]) {
				uint64_t place =
					sim->file[f].durable[u]->hash ^ ((uint64_t)f << 32 | u);

				hash += sim_random(&place);
			}
	return hash;
}

uint8_t *sim_bytes(struct sim *sim, uint32_t file, uint32_t unit)
{
	struct sim_unit **place = &file_of(sim, file)->cached[unit];
	static const uint8_t zeros[UNIT];

	/* A copy of its own: the unit may be shared. */
	if (!*place || (*place)->references > 1) {
		struct sim_unit *own = unit_new(*place ? (*place)->bytes : zeros);

		unit_set(place, own);
		unit_put(own);
	}
	return (*place)->bytes;
}
