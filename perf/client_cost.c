/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what a get, an exists or a set costs the client's own thread: callgrind counts the
 * instructions of counted_submit() and counted_poll() below (perf/README.md). The engine is the
 * fake one of the unit tests, with eight rails, and runs in the same thread between the two calls,
 * so neither its work nor waiting for it is counted.
 *
 *   client_cost BYTES SEGMENTS BATCH ROUNDS SEED
 *   client_cost exists BATCH ROUNDS SEED
 *   client_cost set here|there|known BATCH ROUNDS SEED
 *
 * Pages of BYTES bytes in SEGMENTS segments are read in batches, in an order shuffled by SEED, from
 * pools in which they lie in another order. Their locations are known from a first pass, which is
 * not counted, and the counted rounds move no payload. Every page of a last round, which does, is
 * compared with its content.
 *
 * exists: the keys are present, no location is in the cache, and the owners of all keys are two
 * other engines. Every key is then reported as used.
 *
 * set: the pages are stored already, on this host or on another one, and the owners of their keys
 * are as above. No location is in the cache; `known` is `there` with all locations in it.
 *
 * Prints the number of pages, batches and polls that were counted, and the time that the counted
 * calls took for a page (perf/saturate.py; without valgrind).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "numa/clock.h"
#include "tests/unit/client/fake.h"
#include "tools/common.h"

#define PAGES 256u
#define KEY_LENGTH 64u
#define CLOCK_STEP_NS 10000u

static struct fake fake;
static struct pc_page page[PAGES];
static struct pc_segment *segment;
static enum pc_result result[PAGES];
static unsigned submits, polls;
static uint64_t counted_ticks;         /* that the counted calls took */
static enum { GET, EXISTS, SET } call; /* which calls are counted */
static char name[PAGES][KEY_LENGTH + 1];

/*
 * The clock of the whole program, instead of libc's: each look at it takes CLOCK_STEP_NS, so that
 * nothing depends on the time that valgrind takes. About four looks are made for a batch, so one of
 * 4 MiB takes 40 us.
 */
int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
	static uint64_t clock_ns = 1000000000000ull;
	uint64_t now_ns = shm_load64(&clock_ns) + CLOCK_STEP_NS;

	(void)clock;
	shm_store64(&clock_ns, now_ns);
	*ret_now = (struct timespec){(time_t)(now_ns / 1000000000), (long)(now_ns % 1000000000)};
	return 0;
}

/* The time by the clock of the machine, which the program's own one hides. */
static double real_ns(void)
{
	struct timespec now;

	if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now))
		die("clock_gettime: %m");
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static struct pc_batch *start(struct pc_channel *ch, unsigned from, unsigned count)
{
	struct pc_batch *b;
	int rc = call == EXISTS ? pc_submit_exists(ch, page + from, count, 10000, result + from, &b)
		 : call == SET  ? pc_submit_set(ch, page + from, count, 10000, result + from, &b)
				: pc_submit_get(ch, page + from, count, 10000, result + from, &b);

	if (rc)
		die("%s", pc_error());
	return b;
}

/* Functions of their own, so that callgrind can count them. */
__attribute__((noinline)) static struct pc_batch *counted_submit(
	struct pc_channel *ch, unsigned from, unsigned count)
{
	struct pc_batch *b = start(ch, from, count);

	submits++;
	return b;
}

__attribute__((noinline)) static bool counted_poll(struct pc_batch *b)
{
	bool done = pc_poll(b);

	polls++; /* work after the call, so that the call is not made by a jump */
	return done;
}

/* Says that a page was read; so a round is short, and the pages of most rounds are not reported. */
static uint32_t no_payload(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f;
	(void)rail;
	return op->kind == OP_PAGE ? OP_HIT : FAKE_DO;
}

static void get_all(struct pc_channel *ch, unsigned batch)
{
	for (unsigned from = 0; from + batch <= PAGES; from += batch) {
		struct pc_batch *b = start(ch, from, batch);

		do
			fake_serve_rings(&fake);
		while (!pc_poll(b));
	}
}

static void count_all(struct pc_channel *ch, unsigned batch)
{
	for (unsigned from = 0; from + batch <= PAGES; from += batch) {
		uint64_t before = clock_ticks();
		struct pc_batch *b = counted_submit(ch, from, batch);
		bool done = false;

		counted_ticks += clock_ticks() - before;
		while (!done) {
			fake_serve_rings(&fake);
			before = clock_ticks();
			done = counted_poll(b);
			counted_ticks += clock_ticks() - before;
		}
	}
}

static void check_hits(unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (result[i] != PC_HIT)
			die("a page is \"%s\"", pc_result_name(result[i]));
}

static void check(uint32_t bytes, unsigned segments)
{
	for (unsigned i = 0; i < PAGES; i++) {
		for (uint32_t k = 0; k < bytes; k++) {
			const struct pc_segment *s = &page[i].segments[k / (bytes / segments)];
			const unsigned char *at = s->base;

			if (at[k % (bytes / segments)] != fake_byte(name[i], k))
				die("page %u has a wrong byte at %u", i, k);
		}
	}
}

static void shuffle(unsigned *order, uint64_t seed)
{
	for (unsigned i = 0; i < PAGES; i++)
		order[i] = i;
	for (unsigned i = PAGES - 1; i > 0; i--) {
		unsigned k = (unsigned)(mix64(seed + i) % (i + 1)), other = order[i];

		order[i] = order[k];
		order[k] = other;
	}
}

/* Segment j of all pages lies together, as the layers of SGLang's layer_first layout do. */
static void make_pages(unsigned char *memory, uint32_t bytes, unsigned segments, uint64_t seed)
{
	static unsigned stored[PAGES], read[PAGES];
	uint32_t length = bytes / segments;

	shuffle(stored, seed);
	shuffle(read, mix64(seed));
	for (unsigned i = 0; i < PAGES; i++) {
		snprintf(name[i], sizeof(name[i]), "%063u%c", i, 'a' + (int)(i % 26));
		page[i] = (struct pc_page){
			name[i], KEY_LENGTH, segment + (size_t)i * segments, segments};
		for (unsigned j = 0; j < segments; j++)
			segment[(size_t)i * segments + j] = (struct pc_segment){
				memory + ((size_t)j * PAGES + read[i]) * length, length};
	}
	for (unsigned i = 0; i < PAGES; i++)
		fake_page(&fake, name[stored[i]], FAKE_A, i % FAKE_RAILS, bytes);
}

static void count_gets(
	struct pc *pc, struct pc_channel *ch, char **argv, unsigned batch, unsigned rounds)
{
	uint32_t bytes = (uint32_t)parse_size("BYTES", argv[1], 64, PAGE_BYTES_MAX);
	unsigned segments = (unsigned)parse_number("SEGMENTS", argv[2], 1, SEGMENTS_MAX);
	void *memory;

	segment = calloc((size_t)PAGES * segments, sizeof(*segment));
	if (!segment || pc_memory_alloc(pc, (size_t)PAGES * bytes, &memory))
		die("%s", pc_error());
	fake_lock(&fake); /* from here on this thread is the engine, too */
	make_pages(memory, bytes, segments, strtoull(argv[5], NULL, 0));
	get_all(ch, batch);
	fake.on_op = no_payload;
	for (unsigned r = 0; r < rounds; r++)
		count_all(ch, batch);
	fake.on_op = NULL;
	get_all(ch, batch);
	check_hits(PAGES / batch * batch);
	check(bytes, segments);
}

/* Keys that other engines own, of pages of `holder`, in an order shuffled by the seed. */
static void make_keys(uint32_t holder, uint64_t seed)
{
	static unsigned char payload[PAGE_UNIT];
	static const struct pc_segment same = {payload, PAGE_UNIT};
	static unsigned order[PAGES];
	unsigned number = 0;

	shuffle(order, seed);
	for (unsigned i = 0; i < PAGES; i++) {
		char *key = name[order[i]];

		do
			snprintf(key, sizeof(name[0]), "%064u", number++);
		while (fake_owner(&fake, key) == FAKE_SELF);
		fake_page(&fake, key, holder, i % FAKE_RAILS, PAGE_UNIT);
		page[order[i]] = (struct pc_page){key, KEY_LENGTH, &same, 1};
	}
}

/* Counts calls that find all pages, which `holder` has. `known`: so does the location cache. */
static void count_found(struct pc_channel *ch, uint32_t holder, bool known, char **counts)
{
	unsigned batch = (unsigned)strtoul(counts[0], NULL, 0);
	unsigned rounds = (unsigned)strtoul(counts[1], NULL, 0);

	fake_lock(&fake);
	fake_map(&fake, FAKE_NODES, 1);
	make_keys(holder, strtoull(counts[2], NULL, 0));
	get_all(ch, batch); /* the channel reads the map */
	for (unsigned r = 0; r < rounds; r++) {
		if (!known)
			memset(ch->cache, 0, CACHE_SETS * sizeof(*ch->cache));
		count_all(ch, batch);
		check_hits(PAGES / batch * batch);
	}
}

int main(int argc, char **argv)
{
	char **counts = argv + argc - 3;
	unsigned batch, rounds, counted;
	uint64_t ticks = clock_ticks();
	double from_ns = real_ns(), tick_ns;
	struct pc *pc;
	struct pc_channel *ch;

	if (argc != 6 && (argc != 5 || strcmp(argv[1], "exists")))
		die("client_cost: BYTES SEGMENTS BATCH ROUNDS SEED | exists BATCH ROUNDS SEED | "
		    "set here|there|known BATCH ROUNDS SEED");
	call = argc == 5 ? EXISTS : !strcmp(argv[1], "set") ? SET : GET;
	batch = (unsigned)parse_number("BATCH", counts[0], 1, PAGES);
	rounds = (unsigned)parse_number("ROUNDS", counts[1], 1, 1000);
	fake_start(&fake);
	if (fake.pidfd < 0) /* under valgrind; any descriptor that reports nothing will do */
		fake.pidfd = eventfd(0, EFD_CLOEXEC);
	if (pc_open(
		    &(struct pc_options){
			    .socket = fake.path, .name_space = "tests", .verify = PC_VERIFY_NEVER},
		    &pc) ||
		pc_channel_open(pc, &ch))
		die("%s", pc_error());
	fake.no_sleep = true;
	if (call == EXISTS)
		count_found(ch, FAKE_A, false, counts);
	else if (call == SET)
		count_found(ch, strcmp(argv[2], "here") ? FAKE_A : FAKE_SELF,
			!strcmp(argv[2], "known"), counts);
	else
		count_gets(pc, ch, argv, batch, rounds);
	counted = PAGES / batch * batch * rounds;
	tick_ns = (real_ns() - from_ns) / (double)(clock_ticks() - ticks);
	printf("pages %u batches %u polls %u page_ns %.1f\n", counted, submits, polls,
		(double)counted_ticks * tick_ns / counted);
	fake_unlock(&fake);
	pc_channel_close(ch);
	pc_close(pc);
	fake_stop(&fake);
	free(segment);
	return 0;
}
