/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache-bench: measures how fast one client process calls the library. `policy` and `replay`
 * are in files of their own; `served` and --api python are those of the Python package:
 * bench_python(). Each thread has its own channel to the first engine. Pages to read are stored
 * through the last engine before the measurement starts, so with two sockets the gets are remote
 * and with one socket local.
 *
 * Between its batches every thread copies the same amount of pages with memcpy from private memory,
 * as a baseline of the machine's speed in the same run. Both rates are reported.
 */
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "config/limits.h"
#include "tools/bench.h"
#include "tools/common.h"

/* a channel each */
#define THREADS_MAX SESSION_ALONE(CHANNELS_MAX, CHANNELS_SESSION_SURE)

/* in the order of calls[] and mode_names[] */
enum mode { MODE_GET, MODE_SET, MODE_EXISTS, MODE_EXISTS_GET, MODE_REMOVE, MODE_SERVE };
static const char *const mode_names[] = {"get", "set", "exists", "exists-get", "remove", "serve"};
static const page_call calls[] = {pc_get, pc_set, pc_exists, pc_get, pc_remove};

struct bench {
	enum mode mode;
	const char *json_path, *timeline_path;
	uint64_t page_bytes, working_set, seed;
	unsigned batch, threads, timeout_ms;
	double seconds;
	bool private_memory, baseline, verify, keep_pages;
	bool present;          /* set: the pages are stored already */
	bool absent;           /* get, exists: the pages are not stored */
	bool stored;           /* `serve` on another host has stored the pages */
	char name_space[48];   /* of this run alone, or of `serve` and its readers */
	uint64_t pages;        /* number of pages in the working set */
	struct pc *near, *far; /* sessions with the first and with the last engine of --sockets */
};

/* What --timeline records at the end of one call. */
struct moment {
	uint64_t ns;           /* CLOCK_MONOTONIC at the end of the call, ns */
	uint32_t hits, others; /* pages with the result hit and with other results */
};

/* One client thread of the benchmark. */
struct worker {
	struct bench *bench;
	unsigned index;
	struct pc_channel *channel, *far; /* far: to the last engine, in mode remove */
	struct batch batch;               /* destination of get, source of set */
	/* source of the baseline's memcpy: a working set of the thread's own */
	unsigned char *source;
	/* state of the random generator; the number of the next new page */
	uint64_t random, next;
	/* results of the thread's measurement */
	uint64_t done, misses, wrong, call_ns, copied, copy_ns;
	struct histogram latency; /* of calls whose pages were all hits */
	struct histogram missed;  /* of the other calls */
	struct moment *moment;    /* with --timeline: one entry for each call */
	size_t moments, moments_room;
	pthread_t thread;
};

static const char help[] =
	"Usage: peercache-bench COMMAND [OPTION]...\n"
	"Measures one client process of running engines.\n\n"
	"Commands that print pages/s, GB/s and the latency of a call:\n"
	"  get               reads pages; beside it, memcpy of the same pages\n"
	"  set               stores new pages; beside it, memcpy of the same pages\n"
	"  exists            looks keys up\n"
	"  exists-get        looks keys up and reads their pages, as SGLang does\n"
	"  remove            removes pages that were stored through the last engine\n"
	"Commands with a --help of their own:\n"
	"  served            what running servers of SGLang gain: dialogues, sent to each --url\n"
	"  replay            replays a trace of requests over several engines, as SGLang calls, and\n"
	"                    verifies every byte\n"
	"  policy            without engines: how many hits pools of given sizes have on a trace\n"
	"                    of requests, and beside the engine's eviction other policies and\n"
	"                    the optimum\n"
	"Over two hosts:\n"
	"  serve             stores the working set until Ctrl-C; on other hosts, get, exists\n"
	"                    and exists-get with --stored read it\n\n"
	"Options:\n"
	"  --sockets LIST    engines' sockets: pages are read through the first and stored\n"
	"                    through the last (default: $PEERCACHE_SOCKETS)\n"
	"  --page-bytes B    bytes of a page (default 128KiB)\n"
	"  --batch N         pages in one call (default 32)\n"
	"  --threads N       client threads, each with its own channel (default 1)\n"
	"  --seconds S       duration of the measurement (default 3)\n"
	"  --working-set B   bytes of all different pages together (default 256MiB)\n"
	"  --present         set: pages that the last engine has already\n"
	"  --absent          get, exists: pages that no engine has; the rate is that of misses\n"
	"  --stored          pages that `serve` stores on another host, with the same\n"
	"                    --page-bytes, --working-set and --seed\n"
	"  --private-memory  read into memory that the engine cannot map, through staging\n"
	"  --no-baseline     do not measure memcpy\n"
	"  --verify          verify every page that was read, not only one page of each call\n"
	"  --crc MODE        the library compares pages with their CRC32C: never, sample (the\n"
	"                    default; one in 1000), sample:N (one in N) or always\n"
	"  --timeline FILE   write for each call when it ended (ns, monotonic clock), its number\n"
	"                    of hits and its number of other results\n"
	"  --seed S          seed of keys and access order (default: the time, so that no run\n"
	"                    finds pages of an earlier one; of serve and --stored: 0)\n"
	"  --keep-pages      leave the pages of this run; otherwise they are removed at its end\n"
	"  --json FILE       also write the results as JSON (\"-\": standard output)\n"
	"  --api c|python    python: make the calls of get, set, exists and exists-get through\n"
	"                    PeerCacheStore, the class that SGLang calls; it has --shape mla|mha\n"
	"                    and --help, but no baseline (default c)\n"
	"  --help            print this text\n"
	"  --version         print the version\n\n"
	"Exit status:\n"
	"  0  success\n"
	"  1  a page was wrong, a request failed, or nothing was measured\n"
	"  2  wrong usage, no engine, no server, all requests of a turn failed, or the output\n"
	"     could not be written\n\n"
	"Examples:\n"
	"  $ peercache-bench get --sockets /tmp/a.sock,/tmp/b.sock --page-bytes 4KiB --batch 128\n"
	"  $ peercache-bench exists-get --api python\n"
	"  $ for n in 1 2 4 8; do peercache-bench get --threads $n; done\n"
	"  $ peercache-bench served --url http://10.0.0.1:30000 --url http://10.0.0.2:30000\n"
	"  $ peercache-bench policy conversation_trace.jsonl --pool 10% --l2 2%\n";

/* ---- the program in Python ------------------------------------------------------------------- */

/*
 * Replaces this process with `python3 -m peercache.bench` and the options, without those of the C
 * program alone.
 */
static void run_python(int argc, char **argv)
{
	char **args = calloc((size_t)argc + 1, sizeof(*args));
	int n = 0;

	if (!args)
		die("out of memory");
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--api"))
			i++;
		else if (strcmp(argv[i], "--no-baseline") && strcmp(argv[i], "--keep-pages"))
			args[n++] = argv[i];
	}
	become_python("peercache.bench", n, args);
}

/*
 * Returns if the C program measures what the options say. Otherwise, for `served` and `--api
 * python`, replaces the process by the Python program, or calls die() with the reason. It finds the
 * package of the build tree by its path relative to this program.
 */
static void bench_python(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "served"))
		run_python(argc, argv);
	for (int i = 1; i + 1 < argc; i++) {
		if (strcmp(argv[i], "--api"))
			continue;
		if (!strcmp(argv[i + 1], "python"))
			run_python(argc, argv);
		else if (strcmp(argv[i + 1], "c"))
			die("--api %s: give c or python", argv[i + 1]);
	}
}

/* ---- signals --------------------------------------------------------------------------------- */

#define END_US 800000 /* from a signal to the report, at most */
#define REMOVE_MS 10000u
#define REMOVE_STOPPED_MS 1000u /* after a signal */

static volatile sig_atomic_t bench_stopped; /* the signal that came: the measurement ends */

static void on_late(int number)
{
	static const char text[] =
		"peercache-bench: interrupted while a call waits: no results, and its pages stay\n";

	(void)number;
	(void)!write(STDERR_FILENO, text, sizeof(text) - 1);
	_exit(1);
}

static void on_signal(int number)
{
	const struct itimerval late = {.it_value = {.tv_usec = END_US}};

	bench_stopped = number;
	(void)setitimer(ITIMER_REAL, &late, NULL);
}

/* Before it stores pages and while it removes them, signals end the program. */
static void bench_stop_default(void)
{
	signal(SIGINT, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	(void)setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0}}, NULL);
}

/*
 * From now on, signals set bench_stopped. A program that has not reported 0.8 s later ends without
 * results, because a call may wait for its deadline.
 */
static void bench_stop_catch(void)
{
	signal(SIGALRM, on_late);
	signal(SIGINT, on_signal);
	signal(SIGTERM, on_signal);
}

/* ---- the measurement ------------------------------------------------------------------------- */

/* Returns the id of page `index` of this run's working set. */
static uint64_t page_id(const struct bench *b, uint64_t index)
{
	return mix64(b->seed) + index;
}

/* Removes what this run has stored through an engine, or says that it stays. */
static void pages_remove(const struct bench *b, struct pc *pc)
{
	unsigned timeout_ms = bench_stopped ? REMOVE_STOPPED_MS : REMOVE_MS;
	struct pc_channel *channel = NULL;

	if (pc_channel_open_within(pc, timeout_ms, &channel) ||
		pc_clear(channel, b->name_space, timeout_ms, NULL))
		fprintf(stderr,
			"peercache-bench: the pages of this run stay: %s; remove them with peercachectl clear --namespace %s\n",
			pc_error(), b->name_space);
	pc_channel_close(channel);
}

/* At the end of the program, also by die(), which may be in a thread of the measurement. */
static struct bench *bench_stores;

static void bench_clean(void)
{
	struct bench *b = bench_stores;

	bench_stores = NULL;
	if (!b || b->keep_pages)
		return;
	bench_stop_default();
	pages_remove(b, b->far);
	if (b->near != b->far && b->mode == MODE_SET)
		pages_remove(b, b->near);
}

/* Stores the working set through the last engine, until a signal comes. */
static void preload(struct bench *b)
{
	struct pc_channel *channel;
	struct batch batch;

	batch_open(&batch, NULL, b->page_bytes, b->batch);
	if (pc_channel_open(b->far, &channel))
		die("%s", pc_error());
	for (uint64_t from = 0; from < b->pages && !bench_stopped; from += b->batch) {
		unsigned n = (unsigned)(b->pages - from < b->batch ? b->pages - from : b->batch);

		for (unsigned i = 0; i < n; i++) {
			batch_set(&batch, i, page_id(b, from + i));
			content_fill(batch.segment[i].base, b->page_bytes, page_id(b, from + i));
		}
		if (pc_set(channel, batch.page, n, 10000, batch.result))
			die("%s", pc_error());
		for (unsigned i = 0; i < n; i++)
			if (batch.result[i] != PC_HIT)
				die("storing page %lu of %lu before the measurement: %s; raise engine.pool_bytes or lower --working-set",
					from + i, b->pages, pc_result_name(batch.result[i]));
	}
	pc_channel_close(channel);
	batch_close(&batch);
}

/* Has each call new pages, or those of the working set? */
static bool has_new_pages(const struct bench *b)
{
	return (b->mode == MODE_SET && !b->present) || b->mode == MODE_REMOVE || b->absent;
}

/*
 * Chooses the pages of the next batch and returns the index of the first one. Those of the working
 * set are a run of consecutive indices at a random place, like the blocks of a prefix.
 */
static uint64_t choose(struct worker *w)
{
	struct bench *b = w->bench;
	uint64_t first;

	if (has_new_pages(b)) {
		first = b->pages + ((uint64_t)w->index << 40) + w->next;
		w->next += b->batch;
	} else {
		w->random += 0x9e3779b97f4a7c15ull;
		first = mix64(w->random) % (b->pages - b->batch + 1);
	}
	for (unsigned i = 0; i < b->batch; i++)
		batch_set(&w->batch, i, page_id(b, first + i));
	return first;
}

static void note_moment(struct worker *w, uint64_t ns, uint32_t hits)
{
	if (w->moments == w->moments_room) {
		w->moments_room = w->moments_room * 2 + 4096;
		w->moment = realloc(w->moment, w->moments_room * sizeof(*w->moment));
		if (!w->moment)
			die("out of memory for --timeline");
	}
	w->moment[w->moments++] = (struct moment){ns, hits, w->bench->batch - hits};
}

static void write_timeline(const struct bench *b, const struct worker *workers)
{
	FILE *f = fopen(b->timeline_path, "w");

	if (!f)
		die("%s: %s", b->timeline_path, strerror(errno));
	for (unsigned i = 0; i < b->threads; i++)
		for (size_t m = 0; m < workers[i].moments; m++)
			fprintf(f, "%lu %u %u\n", workers[i].moment[m].ns,
				workers[i].moment[m].hits, workers[i].moment[m].others);
	if (fclose(f))
		die("%s: %s", b->timeline_path, strerror(errno));
}

static void call_one(
	struct worker *w, page_call function, struct pc_channel *channel, unsigned count)
{
	if (function(channel, w->batch.page, count, w->bench->timeout_ms, w->batch.result))
		die("%s", pc_error());
}

/* Makes the call of the mode. exists-get reads the leading pages that exist. */
static void call_mode(struct worker *w)
{
	unsigned count = w->bench->batch;

	if (w->bench->mode == MODE_EXISTS_GET) {
		call_one(w, pc_exists, w->channel, count);
		for (count = 0; count < w->bench->batch && w->batch.result[count] == PC_HIT;)
			count++;
	}
	if (count)
		call_one(w, calls[w->bench->mode], w->channel, count);
}

/* Makes one call, measures its latency and verifies its pages. */
static void measure_batch(struct worker *w)
{
	struct bench *b = w->bench;
	enum pc_result expected = b->absent ? PC_MISS : PC_HIT;
	bool reads = b->mode == MODE_GET || b->mode == MODE_EXISTS_GET;
	uint64_t first = choose(w), from, took, done = w->done;

	if (b->mode == MODE_SET)
		for (unsigned i = 0; i < b->batch; i++)
			memcpy(w->batch.segment[i].base, &first,
				sizeof(first) < b->page_bytes ? sizeof(first) : b->page_bytes);
	if (b->mode == MODE_REMOVE)
		call_one(w, pc_set, w->far, b->batch);
	from = now_ns();
	call_mode(w);
	took = now_ns() - from;
	w->call_ns += took;
	for (unsigned i = 0; i < b->batch; i++) {
		bool hit = w->batch.result[i] == expected;

		w->done += hit;
		w->misses += !hit;
		/*
		 * Verifies one page of the batch, or all with --verify; this time is not measured.
		 */
		if (hit && reads && !b->absent && (b->verify || i == w->random % b->batch))
			w->wrong += !content_is(
				w->batch.segment[i].base, b->page_bytes, page_id(b, first + i));
	}
	histogram_add(w->done - done == b->batch ? &w->latency : &w->missed, took);
	if (b->timeline_path)
		note_moment(w, from + took, (uint32_t)(w->done - done));
}

/* The baseline: copies one batch of pages with memcpy and measures the time. */
static void copy_batch(struct worker *w)
{
	struct bench *b = w->bench;
	uint64_t first = choose(w) % (b->pages - b->batch + 1), from = now_ns();

	for (unsigned i = 0; i < b->batch; i++)
		memcpy(w->batch.memory + i * b->page_bytes, w->source + (first + i) * b->page_bytes,
			b->page_bytes);
	w->copy_ns += now_ns() - from;
	w->copied += b->batch;
}

static void *work(void *argument)
{
	struct worker *w = argument;
	uint64_t start, end, round = 0;

	for (unsigned i = 0; i < 8; i++)
		/* warm-up call: it is not measured, because connections are made and pages are
		 * touched first */
		measure_batch(w);
	memset(&w->latency, 0, sizeof(w->latency));
	memset(&w->missed, 0, sizeof(w->missed));
	w->done = w->misses = w->call_ns = w->moments = 0;
	start = now_ns();
	end = start + (uint64_t)(w->bench->seconds * 1e9);
	while (now_ns() < end && !bench_stopped) {
		measure_batch(w);
		if (w->source && ++round % 4 == 0)
			copy_batch(w);
	}
	return NULL;
}

static bool moves_pages(const struct bench *b)
{
	return b->mode != MODE_EXISTS && b->mode != MODE_REMOVE && !b->absent;
}

static void worker_open(struct bench *b, struct worker *w)
{
	w->bench = b;
	w->random = b->seed + w->index;
	batch_open(&w->batch, b->private_memory ? NULL : b->near, b->page_bytes, b->batch);
	memset(w->batch.memory, 0, b->page_bytes * b->batch);
	if (b->baseline && moves_pages(b)) {
		w->source = malloc(b->pages * b->page_bytes);
		if (!w->source)
			die("out of memory for the baseline; try --no-baseline");
		memset(w->source, 1, b->pages * b->page_bytes);
	}
	if (pc_channel_open(b->near, &w->channel) ||
		(b->mode == MODE_REMOVE && pc_channel_open(b->far, &w->far)))
		die("%s", pc_error());
}

static void worker_close(struct worker *w)
{
	pc_channel_close(w->channel);
	pc_channel_close(w->far);
	batch_close(&w->batch);
	free(w->source);
	free(w->moment);
}

/* Prints the results of all threads. Returns the exit status. */
static int report(const struct bench *b, struct worker *workers)
{
	json_object *o = json_object_new_object();
	struct histogram latency = {0}, missed = {0};
	double rate = 0, copy_rate = 0, gbps, copy_gbps;
	uint64_t misses = 0, wrong = 0, local = 0, remote = 0;

	for (unsigned i = 0; i < b->threads; i++) {
		const struct worker *w = &workers[i];
		struct pc_counts c;

		rate += w->call_ns ? (double)w->done * 1e9 / (double)w->call_ns : 0;
		copy_rate += w->copy_ns ? (double)w->copied * 1e9 / (double)w->copy_ns : 0;
		misses += w->misses;
		wrong += w->wrong;
		histogram_merge(&latency, &w->latency);
		histogram_merge(&missed, &w->missed);
		pc_channel_counts(w->channel, &c);
		local += c.hits_local;
		remote += c.hits_remote;
	}
	gbps = moves_pages(b) ? rate * (double)b->page_bytes / 1e9 : 0;
	copy_gbps = copy_rate * (double)b->page_bytes / 1e9;
	printf("%s: %lu-byte pages, batch %u, %u thread%s: %.0f %s/s", mode_names[b->mode],
		b->page_bytes, b->batch, b->threads, b->threads == 1 ? "" : "s", rate,
		b->mode == MODE_EXISTS ? "keys" : "pages");
	if (gbps > 0)
		printf(", %.2f GB/s", gbps);
	if (copy_gbps > 0)
		printf("; memcpy %.2f GB/s, ratio %.2f", copy_gbps, gbps / copy_gbps);
	printf("\n  a call of hits: p50 %.1f us, p95 %.1f us, p99 %.1f us, p99.9 %.1f us, max %.1f us; calls %lu\n",
		histogram_us(&latency, 0.5), histogram_us(&latency, 0.95),
		histogram_us(&latency, 0.99), histogram_us(&latency, 0.999),
		(double)latency.max_ns / 1e3, latency.total);
	if (missed.total)
		printf("  a call with a page that was no hit: p50 %.1f us, p99 %.1f us; calls %lu\n",
			histogram_us(&missed, 0.5), histogram_us(&missed, 0.99), missed.total);
	printf("  not hits %lu, wrong %lu; pages read: local %lu, remote %lu\n", misses, wrong,
		local, remote);
	add_text(o, "mode", mode_names[b->mode]);
	add_number(o, "page_bytes", b->page_bytes);
	add_number(o, "batch", b->batch);
	add_number(o, "threads", b->threads);
	add_real(o, "pages_per_second", rate);
	add_real(o, "gbps", gbps);
	add_real(o, "memcpy_gbps", copy_gbps);
	add_real(o, "memcpy_ratio", copy_gbps > 0 ? gbps / copy_gbps : 0);
	add_real(o, "p50_us", histogram_us(&latency, 0.5));
	add_real(o, "p95_us", histogram_us(&latency, 0.95));
	add_real(o, "p99_us", histogram_us(&latency, 0.99));
	add_real(o, "p999_us", histogram_us(&latency, 0.999));
	add_real(o, "max_us", (double)latency.max_ns / 1e3);
	add_number(o, "calls", latency.total);
	add_real(o, "missed_p50_us", histogram_us(&missed, 0.5));
	add_real(o, "missed_p99_us", histogram_us(&missed, 0.99));
	add_number(o, "missed_calls", missed.total);
	add_number(o, "misses", misses);
	add_number(o, "wrong", wrong);
	add_number(o, "hits_local", local);
	add_number(o, "hits_remote", remote);
	json_versions_add(o);
	if (b->json_path)
		write_json(o, b->json_path);
	json_object_put(o);
	if (b->stored && rate <= 0)
		fprintf(stderr,
			"peercache-bench: no page of serve was found: does it run, with the same --page-bytes, --working-set and --seed, and do the engines see each other (peercachectl members)?\n");
	return wrong || rate <= 0 ? 1 : 0;
}

/* Keeps the pages until a signal comes. */
static void serve(const struct bench *b)
{
	printf("serving; on another host: peercache-bench get --stored --page-bytes %lu --working-set %lu --seed %lu\nCtrl-C ends it\n",
		b->page_bytes, b->working_set, b->seed);
	fflush(stdout);
	while (!bench_stopped)
		usleep(50000);
}

static void parse_mode(struct bench *b, const char *command)
{
	for (b->mode = MODE_GET; strcmp(command, mode_names[b->mode]) != 0; b->mode++)
		if (b->mode == MODE_SERVE)
			die("\"%s\" is not a command: give get, set, exists or another of --help",
				command);
	if (b->present && b->mode != MODE_SET)
		die("--present is an option of set");
	if (b->absent && b->mode != MODE_GET && b->mode != MODE_EXISTS)
		die("--absent is an option of get and exists");
	if (b->stored && (b->absent || (b->mode != MODE_GET && b->mode != MODE_EXISTS &&
					       b->mode != MODE_EXISTS_GET)))
		die("--stored is an option of get, exists and exists-get, without --absent");
}

static void parse(struct bench *b, int argc, char **argv, const char **sockets)
{
	static const struct option options[] = {{"sockets", 1, NULL, 's'},
		{"page-bytes", 1, NULL, 'b'}, {"batch", 1, NULL, 'n'}, {"threads", 1, NULL, 't'},
		{"seconds", 1, NULL, 'd'}, {"working-set", 1, NULL, 'w'},
		{"private-memory", 0, NULL, 'p'}, {"no-baseline", 0, NULL, 'x'},
		{"keep-pages", 0, NULL, 'k'}, {"present", 0, NULL, 'P'}, {"absent", 0, NULL, 'A'},
		{"stored", 0, NULL, 'S'}, {"verify", 0, NULL, 'v'}, {"crc", 1, NULL, 'c'},
		{"timeline", 1, NULL, 'l'}, {"seed", 1, NULL, 'r'}, {"json", 1, NULL, 'j'},
		{"api", 1, NULL, 'a'}, {"help", 0, NULL, 'h'}, {"version", 0, NULL, 'V'},
		{NULL, 0, NULL, 0}};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 's': *sockets = optarg; break;
		case 'b': b->page_bytes = parse_size("--page-bytes", optarg, 1, 64u << 20); break;
		case 'n': b->batch = (unsigned)parse_number("--batch", optarg, 1, 65536); break;
		case 't':
			b->threads = (unsigned)parse_number("--threads", optarg, 1, THREADS_MAX);
			break;
		case 'd': b->seconds = (double)parse_number("--seconds", optarg, 1, 3600); break;
		case 'w':
			b->working_set = parse_size("--working-set", optarg, 4096, 1ull << 40);
			break;
		case 'p': b->private_memory = true; break;
		case 'x': b->baseline = false; break;
		case 'k': b->keep_pages = true; break;
		case 'P': b->present = true; break;
		case 'A': b->absent = true; break;
		case 'S': b->stored = b->keep_pages = true; break;
		case 'v': b->verify = true; break;
		case 'c': parse_crc(optarg); break;
		case 'l': b->timeline_path = optarg; break;
		case 'r': b->seed = parse_number("--seed", optarg, 0, UINT64_MAX); break;
		case 'j': b->json_path = optarg; break;
		case 'a': break; /* option --api: bench_python() has handled it */
		case 'h': fputs(help, stdout); exit(0);
		case 'V': print_version(); exit(0);
		default: die("see --help");
		}
	}
	if (optind + 1 != argc)
		die("name one command, such as get; see --help");
	parse_mode(b, argv[optind]);
}

static void open_sessions(struct bench *b, const char *list)
{
	const char *socket[SOCKETS_MAX];
	unsigned sockets = parse_sockets(list, socket);

	if (b->stored || b->mode == MODE_SERVE) {
		snprintf(b->name_space, sizeof(b->name_space), "bench-served-%lu", b->seed);
	} else {
		b->seed = b->seed ? b->seed : now_ns();
		snprintf(b->name_space, sizeof(b->name_space), "bench-%d-%lx", (int)getpid(),
			now_ns());
	}
	b->near = open_session(socket[0], b->name_space);
	b->far = sockets > 1 ? open_session(socket[sockets - 1], b->name_space) : b->near;
	wait_populated(b->near);
	if (b->far != b->near)
		wait_populated(b->far);
}

/* Runs all threads. Returns the exit status. */
static int measure(struct bench *b)
{
	struct worker *workers = calloc(b->threads, sizeof(*workers));
	int status;

	if (!workers)
		die("out of memory");
	for (unsigned i = 0; i < b->threads; i++) {
		workers[i].index = i;
		worker_open(b, &workers[i]);
	}
	for (unsigned i = 0; i < b->threads; i++)
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			die("cannot start thread %u of %u", i + 1, b->threads);
	for (unsigned i = 0; i < b->threads; i++)
		pthread_join(workers[i].thread, NULL);
	status = report(b, workers);
	if (b->timeline_path)
		write_timeline(b, workers);
	for (unsigned i = 0; i < b->threads; i++)
		worker_close(&workers[i]);
	free(workers);
	return status;
}

int main(int argc, char **argv)
{
	struct bench b = {.page_bytes = 128 << 10,
		.batch = 32,
		.threads = 1,
		.seconds = 3,
		.working_set = 256ull << 20,
		.timeout_ms = 5000,
		.baseline = true};
	const char *list = NULL;
	int status = 0;

	tool_begin();
	bench_stop_default();
	if (argc > 1 && !strcmp(argv[1], "policy"))
		return bench_policy(argc - 1, argv + 1);
	if (argc > 1 && !strcmp(argv[1], "replay"))
		return bench_replay(argc - 1, argv + 1);
	bench_python(argc, argv);
	parse(&b, argc, argv, &list);
	b.pages = b.working_set / b.page_bytes;
	if (b.pages < b.batch)
		b.pages = b.batch;
	open_sessions(&b, list);
	bench_stores = &b;
	atexit(bench_clean);
	bench_stop_catch();
	if (!has_new_pages(&b) && !b.stored)
		preload(&b);
	if (bench_stopped) {
		bench_clean();
		raise(bench_stopped);
	}
	if (b.mode == MODE_SERVE)
		serve(&b);
	else
		status = measure(&b);
	bench_clean();
	if (b.far != b.near)
		pc_close(b.far);
	pc_close(b.near);
	return status;
}
