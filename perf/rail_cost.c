/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures what one page costs a rail's poll core: ops enter through a client's ring, answers leave
 * through its done ring, and the device (instant.c) completes everything at once. Every page is a
 * validated hit, and the client checks one word of each segment. Only the time inside rail_step()
 * is the result; the device's and the client's time in the same run are measured separately. After
 * each run the same WQEs, flags and doorbells are posted by dv/hot.h alone. rail.py runs this
 * program natively and under callgrind.
 *
 *   rail_cost --pages N --runs N --qps N --bytes N [--segments N] [--run N] [--lookup]
 *             [--scattered] [--lease] [--seed N] [--other-core]
 *
 * --run N: runs of N pages (OP_RUN); 0, the default: an OP_PAGE for each page. --lookup: directory
 * buckets instead of pages, in look-ups of N buckets. --lease: pages are validated by lease, not by
 * tail. --scattered: pages lie at shuffled places;
 * the seed is printed to stderr. The poll core is the main thread. The client is the same thread,
 * or with --other-core a second one.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "engine/abi/map.h"
#include "engine/rail/core.h"
#include "perf/instant.h"

#define UNITS (1u << 17) /* units of the simulated peer's pool: 512 MiB, never touched */
#define PAGES_MAX 4096u  /* pages in it, at most */
#define SESSION 7u
#define HOME REGION_CLIENT_0
#define HOME_BYTES (1ull << 30) /* address range of the destinations */
#define BATCH 32u
#define POOL_BASE (1ull << 41)
#define SHARD_BASE (1ull << 42)
#define POOL_RKEY 0x1000u
#define SHARD_RKEY 0x3000u

static struct options {
	uint64_t pages, seed;
	unsigned runs, qps, bytes, window, segments, run;
	bool scattered, other_core, lookup, lease;
} options = {.pages = 200000,
	.seed = 1,
	.runs = 9,
	.qps = 4,
	.bytes = 4096,
	.window = 512,
	.segments = 1};

static void die(const char *what)
{
	fprintf(stderr, "rail_cost: %s\n", what);
	exit(1);
}

/* ---- the peer and the client ----------------------------------------------------------------- */

static struct page_head *heads;
static uint8_t *home;
static uint32_t place[PAGES_MAX]; /* the units at which the pages begin, in the order of reading */
static uint32_t places;
static uint64_t sent, answered;
static struct ring_producer ops;
static struct ring_consumer done;

static void places_open(void)
{
	uint32_t stride = (options.bytes + PAGE_UNIT - 1) / PAGE_UNIT;
	uint64_t random = options.seed;

	places = UNITS / stride < PAGES_MAX ? UNITS / stride : PAGES_MAX;
	for (uint32_t i = 0; i < places; i++)
		place[i] = i * stride;
	for (uint32_t i = places - 1; options.scattered && i; i--) {
		uint32_t j = (uint32_t)(map_mix(random++) % (i + 1)), swap = place[i];

		place[i] = place[j];
		place[j] = swap;
	}
	if (options.scattered)
		fprintf(stderr, "rail_cost: seed %llu\n", (unsigned long long)options.seed);
	heads = zeroed(UNITS * sizeof(*heads));
	for (uint32_t i = 0; i < UNITS; i++)
		heads[i] = (struct page_head){
			.key = {{i, ~(uint64_t)i}}, .generation = i, .length = options.bytes};
	home = mmap(NULL, HOME_BYTES, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (home == MAP_FAILED)
		die("mmap");
	instant.granule =
		options.lookup ? (uint32_t)sizeof(struct bucket) : options.bytes / options.segments;
}

static uint32_t unit_of(uint64_t page)
{
	return place[page % places];
}

/* Bytes from one segment of a page to the next: with several segments there are gaps. */
static uint64_t stride(void)
{
	return options.segments == 1 ? 0 : 2 * (uint64_t)(options.bytes / options.segments);
}

/* Offset in HOME of the page's first segment. Every page in flight has its own place. */
static uint64_t to_of(uint64_t page)
{
	uint64_t span = options.segments == 1 ? options.bytes : 2 * (uint64_t)options.bytes;

	return page % (2 * options.window) * span;
}

/* Is the page in HOME? Removes it. */
static void page_check(uint64_t page)
{
	uint64_t remote = POOL_BASE + (uint64_t)unit_of(page) * PAGE_UNIT;

	for (unsigned i = 0; i < options.segments; i++) {
		uint8_t *at = home + to_of(page) + i * stride();
		uint64_t word;

		memcpy(&word, at, sizeof(word));
		if (word != remote + i * (options.bytes / options.segments))
			die("a hit without its bytes");
		memset(at, 0, sizeof(word));
	}
}

static void bucket_check(uint64_t page)
{
	uint8_t *at = home + page % (2 * options.window) * sizeof(struct bucket);
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	if (word != SHARD_BASE + unit_of(page) * sizeof(struct bucket))
		die("a bucket without its bytes");
	memset(at, 0, sizeof(word));
}

/* Writes one op into the ring; returns the number of slots it takes. */
static uint32_t op_write(uint64_t page, uint64_t deadline_ns, uint32_t at)
{
	uint32_t unit = unit_of(page), bytes = options.bytes / options.segments;
	struct run run = {.cookie = (uint32_t)page,
		.peer_ref = 33,
		.kind = OP_PAGE,
		.peer = 3,
		.region = REGION_POOL_0,
		.segments = (uint16_t)options.segments,
		.to_region = HOME,
		.page_bytes = options.bytes,
		.stride_or_to = options.bytes,
		.deadline_ns = deadline_ns};
	struct op_segment segment[SEGMENTS_MAX];

	run_encode(&run, ring_slot_new(&ops, at));
	*run_entry_new(&ops, at, 0) = (struct run_entry){.unit = unit,
		.generation = unit,
		.to = to_of(page),
		.key = {{unit, ~(uint64_t)unit}}};
	for (unsigned i = 0; i < options.segments; i++)
		segment[i] = (struct op_segment){
			.region = HOME, .length = bytes, .offset = to_of(page) + i * stride()};
	if (options.segments > 1)
		run_segments_new(&ops, at, segment, options.segments);
	return op_page_lines(options.segments);
}

/* Writes a run of pages, or a look-up, from number `page` on. Its cookie is that number. */
static uint32_t run_write(uint64_t page, uint64_t deadline_ns, uint32_t at)
{
	struct run run = {.cookie = (uint32_t)page,
		.peer_ref = 33,
		.kind = options.lookup ? OP_LOOKUP : OP_RUN,
		.pages = (uint8_t)options.run,
		.peer = 3,
		.region = options.lookup ? REGION_SHARD : REGION_POOL_0,
		.segments = options.lookup ? 0 : (uint16_t)options.segments,
		.to_region = HOME,
		.page_bytes = options.lookup ? 0 : options.bytes,
		.stride_or_to = options.lookup ? page % (2 * options.window) * sizeof(struct bucket)
					       : stride(),
		.deadline_ns = deadline_ns};

	run_encode(&run, ring_slot_new(&ops, at));
	for (uint32_t i = 0; i < options.run; i++) {
		uint32_t unit = unit_of(page + i);

		if (options.lookup)
			*run_bucket_new(&ops, at, i) = unit;
		else
			*run_entry_new(&ops, at, i) = (struct run_entry){.unit = unit,
				.generation = unit,
				.to = to_of(page + i),
				.key = {{unit, ~(uint64_t)unit}}};
	}
	return run_lines(run.kind, options.run);
}

/* Checks an answer and its pages; returns the number of pages. */
static uint32_t answer_check(const void *answer)
{
	const struct run_done *d = answer;
	uint32_t pages = options.run ? options.run : 1;

	if (d->hit != run_mask(0, pages) || d->stale)
		die("a page is not a hit");
	for (uint32_t i = 0; i < pages; i++)
		if (options.lookup)
			bucket_check(d->cookie + i);
		else
			page_check(d->cookie + i);
	return pages;
}

/* Takes all answers, and submits batches as long as the window has room. */
static void client_turn(uint64_t pages)
{
	int32_t ready = ring_ready_now(&done);
	uint32_t step = options.run ? options.run : 1, slots;

	for (int32_t i = 0; i < ready; i++)
		answered += answer_check(ring_slot_old(&done, (uint32_t)i));
	ring_release(&done, (uint32_t)ready);
	slots = options.run ? run_lines(options.lookup ? OP_LOOKUP : OP_RUN, options.run)
			    : op_page_lines(options.segments);
	slots *= BATCH / step;
	while (sent < pages && sent + BATCH - answered <= options.window) {
		uint64_t deadline_ns = clock_now_ns() + 10000000000ull;
		uint32_t at = 0;

		if (ring_room(&ops, slots) < (int32_t)slots)
			return;
		for (uint32_t i = 0; i < BATCH; i += step)
			at += (options.run ? run_write : op_write)(sent + i, deadline_ns, at);
		ring_publish(&ops, slots);
		sent += BATCH;
	}
}

static void *client_main(void *argument)
{
	const uint64_t *pages = argument;

	while (answered < *pages)
		client_turn(*pages);
	return NULL;
}

/* ---- the rail -------------------------------------------------------------------------------- */

static struct rail *rail;

static void tell(struct rail_command command)
{
	if (!rail_command_send(rail, &command))
		die("the inbox is full");
	rail_step(rail, 0);
}

static struct rail_channel *channel_open(void)
{
	struct rail_channel *channel = zeroed(sizeof(*channel));
	void *op_memory = zeroed(ring_bytes(OP_RING_SLOTS, sizeof(struct run_line)));
	void *done_memory = zeroed(ring_bytes(DONE_RING_SLOTS, sizeof(struct run_done)));

	ring_producer_init(&ops, op_memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_consumer_init(&done, done_memory, DONE_RING_SLOTS, sizeof(struct run_done));
	*channel = (struct rail_channel){.id = 5, .session = SESSION, .wake = -1};
	channel->client_waits = zeroed(64);
	ring_consumer_init(&channel->ops, op_memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_producer_init(&channel->done, done_memory, DONE_RING_SLOTS, sizeof(struct run_done));
	return channel;
}

static void rail_make(void)
{
	struct rail_options rail_options = {.kick = -1,
		.control_kick = -1,
		.status = zeroed(sizeof(struct status_segment)),
		.lease = options.lease};
	struct rail_region region = {.id = HOME,
		.session = SESSION,
		.base = (uintptr_t)home,
		.length = HOME_BYTES,
		.lkey = 2};
	struct rail_conn *handle = zeroed(sizeof(*handle));

	if (rail_open(&rail_options, &rail))
		die("rail_open");
	*handle =
		(struct rail_conn){.peer = 3, .ref = 33, .qps = options.qps, .limbo_ns = 20000000};
	for (unsigned i = 0; i < options.qps; i++)
		handle->sq[i] = &instant.qp[i].sq;
	handle->region[REGION_POOL_0] = (struct rail_remote){
		.base = POOL_BASE, .length = (uint64_t)UNITS * PAGE_UNIT, .rkey = POOL_RKEY};
	handle->region[REGION_HEADS_0] = (struct rail_remote){.base = (uintptr_t)heads,
		.length = UNITS * sizeof(*heads),
		.rkey = INSTANT_HEADS_RKEY};
	handle->region[REGION_SHARD] = (struct rail_remote){.base = SHARD_BASE,
		.length = (uint64_t)UNITS * sizeof(struct bucket),
		.rkey = SHARD_RKEY};
	tell((struct rail_command){.kind = RAIL_REGION_ADD, .region = region});
	tell((struct rail_command){.kind = RAIL_CHANNEL_ADD, .object = channel_open()});
	tell((struct rail_command){.kind = RAIL_CONN_ADD, .object = handle});
}

/* A function of its own, so that callgrind can count its instructions. */
__attribute__((noinline)) static unsigned measured_step(void)
{
	return rail_step(rail, 0);
}

struct times {
	uint64_t rail, device, client, bare;
};

/*
 * Runs until all pages are read. Steps without work are not counted: they mean that the client was
 * slow.
 */
static void rail_run(uint64_t pages, struct times *ret)
{
	uint64_t t0 = clock_now_ns(), t1;
	uint64_t *counter =
		&rail->counter[options.lookup ? COUNTER_buckets_read : COUNTER_pages_read];
	pthread_t thread;

	sent = answered = 0;
	*ret = (struct times){0};
	if (options.other_core && pthread_create(&thread, NULL, client_main, &pages))
		die("pthread_create");
	while (options.other_core ? *counter < pages : answered < pages) {
		unsigned work = measured_step();

		t1 = clock_now_ns();
		ret->rail += work ? t1 - t0 : 0;
		instant_step();
		t0 = clock_now_ns();
		ret->device += t0 - t1;
		if (options.other_core)
			continue;
		client_turn(pages);
		t1 = clock_now_ns();
		ret->client += t1 - t0;
		t0 = t1;
	}
	if (options.other_core)
		pthread_join(thread, NULL);
	*counter = 0;
}

/* ---- main ------------------------------------------------------------------------------------ */

static void parse(int argc, char **argv)
{
	static const struct option long_options[] = {{"pages", 1, NULL, 'n'},
		{"runs", 1, NULL, 'r'}, {"qps", 1, NULL, 'q'}, {"bytes", 1, NULL, 'b'},
		{"scattered", 0, NULL, 's'}, {"seed", 1, NULL, 'e'}, {"other-core", 0, NULL, 'o'},
		{"window", 1, NULL, 'w'}, {"segments", 1, NULL, 'g'}, {"run", 1, NULL, 'u'},
		{"lookup", 0, NULL, 'l'}, {"lease", 0, NULL, 'L'}, {0}};
	int o;

	while ((o = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (o) {
		case 'n': options.pages = strtoull(optarg, NULL, 0); break;
		case 'r': options.runs = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'q': options.qps = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'b': options.bytes = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'w': options.window = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'g': options.segments = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'u': options.run = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'e': options.seed = strtoull(optarg, NULL, 0); break;
		case 's': options.scattered = true; break;
		case 'o': options.other_core = true; break;
		case 'l': options.lookup = true; break;
		case 'L': options.lease = true; break;
		default:
			die("unknown option; the options are listed at the top of perf/rail_cost.c");
		}
	}
	if (!options.qps || options.qps > QPS_PER_PEER_MAX || !options.runs || !options.bytes)
		die("--qps, --runs or --bytes is out of range");
	/* A batch must fit the op ring. */
	if (!options.segments || BATCH * op_page_lines(options.segments) > OP_RING_SLOTS / 2 ||
		options.bytes % options.segments || options.bytes / options.segments < 8)
		die("--segments is 1 to 120 and divides --bytes");
	if (options.window < BATCH || 4ull * options.window * options.bytes > HOME_BYTES)
		die("--window is at least 32, and 4 x --window x --bytes is at most 1 GiB");
	if (options.run > BATCH || (options.run && BATCH % options.run) ||
		(options.lookup && !options.run))
		die("--run divides 32; --lookup needs it");
	options.pages = options.pages / BATCH * BATCH;
}

/*
 * Prints one line per run: nanoseconds per page in rail, device and client, and of the replay by
 * dv/hot.h alone; then WQEs, CQEs and doorbells per page.
 */
int main(int argc, char **argv)
{
	parse(argc, argv);
	clock_start();
	places_open();
	instant_open(options.qps);
	rail_make();
	instant.trace = zeroed(
		3 * options.pages * (1 + options.segments / DV_SGES_MAX) * sizeof(*instant.trace));
	for (unsigned run = 0; run < options.runs; run++) {
		double pages = (double)options.pages;
		uint64_t wqes = instant.wqes, cqes = instant.cqes, doorbells = instant.doorbells;
		struct times t;

		instant.traced = 0;
		instant.trace_max = 3 * options.pages * (1 + options.segments / DV_SGES_MAX);
		rail_run(options.pages, &t);
		wqes = instant.wqes - wqes;
		cqes = instant.cqes - cqes;
		doorbells = instant.doorbells - doorbells;
		t.bare = instant_replay();
		instant_settle(&rail->cq);
		printf("%.1f %.1f %.1f %.1f %.3f %.3f %.3f\n", (double)t.rail / pages,
			(double)t.device / pages, (double)t.client / pages, (double)t.bare / pages,
			(double)wqes / pages, (double)cqes / pages, (double)doorbells / pages);
	}
	return 0;
}
