/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Crashes the segment log at random moments over simulated devices, recovers it from what a crash
 * can leave, and compares it with what was acknowledged:
 *
 *   - every page that is found has its bytes, and zeros behind them;
 *   - a page that was persisted is found, unless its segment was recycled;
 *   - what the index names after recovery can be read: a footer promises its pages;
 *   - a page that was forgotten is not found before a crash.
 *
 *   crash [--states N] [--seed N]      until N states that differ in their bytes were checked
 *
 * Some states are crashed again while they are recovered, and some become the world that goes on.
 * Exit status 1, with the seed, when a rule does not hold. One thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "numa/clock.h"
#include "tests/disk/world.h"

#define PAGES 40u
#define FLYING 24u
#define FORKS 8u

/* What the test knows of a page. */
struct known {
	uint32_t version; /* content of the next write, or of the page that is there */
	bool writing;
	bool persisted; /* at the crash */
	uint64_t ordinal;
	unsigned path;
};

struct flight {
	struct disk_request request;
	uint32_t number;
	bool busy;
};

static struct known known[PAGES];
static struct flight flight[FLYING];
static struct world slot[3]; /* the world, what recovers from it, and a recovery that crashes */
static struct world *world = &slot[0], *other = &slot[1];
static uint64_t rng, seed;
static unsigned long states, with_persisted, nested, pages_checked, worlds, removals;

static char sink[4096]; /* the log */

static uint64_t *seen;
static uint64_t seen_room;

/* True if the state is new. */
static bool state_new(uint64_t hash)
{
	uint64_t at = hash & (seen_room - 1);

	hash = hash ? hash : 1;
	while (seen[at] && seen[at] != hash)
		at = (at + 1) & (seen_room - 1);
	if (seen[at])
		return false;
	seen[at] = hash;
	return true;
}

__attribute__((noreturn)) static void broken(const char *rule, uint32_t number, uint32_t version)
{
	printf("broken: %s: page %u, version %u, known %u; state %lu, SEED=%llu\n", rule, number,
		version, known[number].version, states, (unsigned long long)seed);
	printf("log: %s\n", sink);
	exit(1);
}

/* The segment that had the page was recycled since the start. */
static bool recycled(const struct world *recovered, const struct known *page)
{
	const struct store_path *path = &recovered->store.path[page->path];

	for (uint32_t i = 0; i < recovered->segments; i++)
		if (path->segment[i].ordinal == page->ordinal)
			return false;
	return path->report.recycled;
}

static bool any_errors(const struct world *recovered)
{
	for (unsigned i = 0; i < recovered->paths; i++)
		if (recovered->store.path[i].report.read_errors +
			recovered->store.path[i].report.crc_errors)
			return true;
	return false;
}

static void check(struct world *recovered)
{
	for (uint32_t number = 0; number < PAGES; number++) {
		const struct known *page = &known[number];
		bool found;
		uint32_t version = world_read(recovered, number, &found);

		pages_checked++;
		if (version == UINT32_MAX)
			broken("wrong bytes", number, version);
		/* or its segment was recycled between the two looks at the index */
		if (found && !version && any_errors(recovered))
			broken("a page of the index cannot be read", number, version);
		if (found && version > page->version)
			broken("a version that was not written", number, version);
		if (!found && page->persisted && !recycled(recovered, page))
			broken("a persisted page is lost", number, version);
	}
}

static void fork_devices(struct sim *const from[], struct sim *to[], uint64_t *random)
{
	for (unsigned i = 0; i < world->paths; i++)
		to[i] = sim_crash(from[i], random);
}

/* Recovers one state that a crash now can leave; keeps it as the world if `adopt`. */
static bool crash(bool adopt)
{
	struct world *recovered = other;
	struct sim *sim[WORLD_PATHS_MAX];
	uint64_t hash = 0;
	bool fresh;

	fork_devices(world->sim, sim, &rng);
	if (sim_random(&rng) % 8 == 0) { /* the recovery of it crashes, too */
		struct sim_power power = {.operations = sim_random(&rng) % 150};
		struct sim *again[WORLD_PATHS_MAX];

		for (unsigned i = 0; i < world->paths; i++)
			sim[i]->power = &power;
		(void)world_open(&slot[2], sim, world->paths, &rng);
		fork_devices(slot[2].sim, again, &rng);
		memcpy(sim, again, sizeof(sim));
		world_close(&slot[2]);
		nested++;
	}
	for (unsigned i = 0; i < world->paths; i++)
		hash = hash * 31 + sim_hash(sim[i]);
	fresh = state_new(hash);
	if (!fresh && !adopt) {
		for (unsigned i = 0; i < world->paths; i++)
			sim_free(sim[i]);
		return false;
	}
	if (world_open(recovered, sim, world->paths, &rng))
		broken("the paths are not usable", 0, 0);
	check(recovered);
	if (!adopt) {
		world_close(recovered);
		return fresh;
	}
	for (unsigned i = 0; i < FLYING; i++) {
		if (flight[i].busy)
			free(flight[i].request.data);
		flight[i].busy = false;
	}
	world_close(world);
	other = world;
	world = recovered;
	return fresh;
}

static void note_persisted(void)
{
	for (uint32_t i = 0; i < PAGES; i++) {
		known[i].ordinal = world_persisted(world, i, &known[i].path);
		known[i].persisted = known[i].ordinal != 0;
	}
}

static bool any_persisted(void)
{
	for (uint32_t i = 0; i < PAGES; i++)
		if (known[i].persisted)
			return true;
	return false;
}

static void forget(uint32_t number)
{
	bool found;

	for (unsigned i = 0; i < FLYING; i++)
		if (flight[i].busy && flight[i].number == number)
			disk_write_forget(&flight[i].request);
	(void)world_forget(world, number);
	known[number].version++;
	removals++;
	if (world_read(world, number, &found) || found)
		broken("a forgotten page is found", number, 0);
}

static void start_one(struct flight *one)
{
	struct disk_request *request = &one->request;
	uint32_t number = (uint32_t)(sim_random(&rng) % PAGES), bytes;
	struct known *page = &known[number];

	if (sim_random(&rng) % 5 == 0)
		forget(number);
	if (page->writing)
		return;
	one->number = number;
	*request = (struct disk_request){.op = DISK_WRITE,
		.key = page_key_of(number),
		.length = page_length(number, page->version)};
	bytes = disk_units(request->length) * PAGE_UNIT;
	request->data = aligned_alloc(PAGE_UNIT, bytes);
	if (!request->data)
		abort();
	memset(request->data, 0xee, bytes);
	page_fill(request->data, number, page->version);
	page->writing = true;
	one->busy = true;
	store_submit(&world->store, request);
}

static void finish_all(void)
{
	struct disk_index_found found;
	struct disk_request *request;

	while ((request = STAILQ_FIRST(&world->store.finished))) {
		struct flight *one = (struct flight *)(void *)request;
		struct known *page = &known[one->number];

		STAILQ_REMOVE_HEAD(&world->store.finished, next);
		if (request->status != DISK_OK && request->status != DISK_EXISTS)
			broken("a write failed", one->number, request->status);
		if (request->forgotten &&
			disk_index_find(&world->store.index, &request->key, &found))
			broken("a forgotten page is found", one->number, 0);
		page->writing = false;
		free(request->data);
		one->busy = false;
	}
}

static void work(void)
{
	unsigned turns = 1 + (unsigned)(sim_random(&rng) % 30);

	for (unsigned turn = 0; turn < turns; turn++) {
		struct flight *one = &flight[sim_random(&rng) % FLYING];

		if (!one->busy && sim_random(&rng) % 2)
			start_one(one);
		world_turn(world);
		finish_all();
	}
}

/* After a crash the contents go on from what is there. */
static void adopt(void)
{
	crash(true);
	for (uint32_t i = 0; i < PAGES; i++) {
		known[i].writing = false;
		forget(i);
		if (sim_random(&rng) % 2)
			continue;
		if (world_write(world, i, known[i].version) != DISK_OK)
			broken("a write failed", i, 0);
	}
	worlds++;
}

static void world_new(void)
{
	struct sim *sim[WORLD_PATHS_MAX];
	unsigned paths = 1 + (unsigned)(sim_random(&rng) % WORLD_PATHS_MAX);
	uint32_t segments = DISK_SEGMENTS_MIN + (uint32_t)(sim_random(&rng) % 2);
	uint32_t units = 20 + (uint32_t)(sim_random(&rng) % 16);

	memset(known, 0, sizeof(known));
	for (uint32_t i = 0; i < PAGES; i++)
		known[i].version = 1;
	for (unsigned i = 0; i < paths; i++)
		sim[i] = sim_new(segments, units, &rng);
	if (world_open(world, sim, paths, &rng))
		broken("a new path is not usable", 0, 0);
	worlds++;
}

static void world_end(void)
{
	for (unsigned i = 0; i < FLYING; i++) {
		if (flight[i].busy)
			free(flight[i].request.data);
		flight[i].busy = false;
	}
	world_close(world);
}

static void run(unsigned long target)
{
	unsigned long points = 0;

	world_new();
	while (states < target) {
		bool persisted;

		work();
		points++;
		note_persisted();
		persisted = any_persisted();
		for (unsigned fork = 0; fork < FORKS && states < target; fork++) {
			if (!crash(false))
				continue;
			states++;
			with_persisted += persisted;
		}
		if (points % 700 == 0) {
			world_end();
			world_new();
		} else if (points % 60 == 0) {
			/* Crashed while pages may be in flight; contents go on. */
			adopt();
		}
	}
	world_end();
	printf("%lu crash points\n", points);
}

int main(int argc, char **argv)
{
	unsigned long target = 3000;
	uint64_t began, spent;

	seed = clock_now_ns();
	if (getenv("SEED"))
		seed = strtoull(getenv("SEED"), NULL, 10);
	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--states"))
			target = strtoul(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 10);
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("SEED=%llu\n", (unsigned long long)seed);
	log_level_set(LOG_ERROR);
	log_test_capture(sink, sizeof(sink));
	rng = seed;
	for (seen_room = 1024; seen_room < target * 4; seen_room *= 2)
		;
	seen = calloc(seen_room, sizeof(*seen));
	if (!seen)
		return 1;
	began = clock_now_ns();
	run(target);
	spent = clock_now_ns() - began;
	free(seen);
	printf("%lu states distinct by their bytes, %lu with persisted pages, %lu crashed again in recovery, "
	       "%lu worlds, %lu removals, %lu pages checked, 0 wrong, 0 persisted lost, "
	       "%.0f states/s\n",
		states, with_persisted, nested, worlds, removals, pages_checked,
		(double)states * 1e9 / (double)spent);
	/* A run that never seals a segment shows nothing. */
	return with_persisted * 2 >= states ? 0 : 1;
}
