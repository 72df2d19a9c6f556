/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that keeps several batches of gets in flight, as a prefetcher does. Keys, segments and
 * results are made before the clock starts, so libpeercache and the engine are measured. Pages are
 * stored through the last engine and read through the first. Each thread is a client with its own
 * channel and its own destinations.
 *
 *   stream --page-bytes N --batch N --in-flight N --threads N --seconds S --pages N [--verify]
 *          [--anywhere] [--clock FILE] [--processes]
 *
 * With --in-flight 1 a batch is alone, and its time is the latency. Prints one line of JSON. In it,
 * model_* is by the clock of the modelled ports if --clock names the engine's test.clock_file, else
 * by this machine's clock. client_busy is the part of the threads' time that delivered pages.
 * --verify compares one page per batch; exit status 1 means that one was wrong. Misses are only
 * counted. Pages are read in the order in which they were stored; with --anywhere they are stored
 * in another order, so that those of a batch lie far apart in the pools. --processes: each client
 * is a process with a session of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/rings/channel.h"
#include "engine/client/peercache.h"
#include "engine/rail/model_clock.h"
#include "numa/clock.h"
#include "tools/common.h"

#define IN_FLIGHT_MAX 64u
#define TIMEOUT_MS 10000u
#define WARM_SECONDS 0.3

static struct options {
	uint64_t page_bytes, pages, seed;
	unsigned batch, in_flight, threads;
	double seconds;
	bool verify, anywhere, processes;
} options = {.page_bytes = 128u << 10,
	.pages = 512,
	.batch = 32,
	.in_flight = 4,
	.threads = 1,
	.seconds = 1};

static const struct model_clock_file *clock_file; /* --clock; NULL: none */

struct client {
	struct pc *pc;
	struct pc_channel *channel;
	unsigned char *memory; /* one destination for each page */
	struct pc_page *page;  /* descriptors of all pages, ordered by batch */
	struct pc_segment *segment;
	char (*key)[KEY_TEXT_BYTES];
	enum pc_result *result;
	struct {
		struct pc_batch *handle;
		uint64_t first;  /* index of the batch's first page */
		uint64_t from;   /* time of submission, ns */
		uint64_t behind; /* result of behind() at submission */
	} flight[IN_FLIGHT_MAX];
	uint64_t next, done, misses, wrong, took_ns, behind_ns;
	/* CPU ticks in all, and ticks of polls that delivered no page */
	uint64_t ticks, idle_ticks;
	/* Batch times: by this machine's clock, and by the clock of the modelled ports */
	struct histogram latency, model;
	pthread_t thread;
};

static pthread_barrier_t *ready; /* of all clients, also in other processes */

static void pages_make(struct client *c)
{
	c->page = calloc(options.pages, sizeof(*c->page));
	c->segment = calloc(options.pages, sizeof(*c->segment));
	c->key = malloc(options.pages * sizeof(*c->key));
	c->result = calloc(options.pages, sizeof(*c->result));
	if (!c->page || !c->segment || !c->key || !c->result)
		die("out of memory");
	for (uint64_t i = 0; i < options.pages; i++) {
		key_text(mix64(options.seed) + i, c->key[i]);
		c->segment[i] =
			(struct pc_segment){c->memory + i * options.page_bytes, options.page_bytes};
		c->page[i] = (struct pc_page){c->key[i], KEY_TEXT_BYTES, &c->segment[i], 1};
	}
}

static void client_close(struct client *c)
{
	pc_channel_close(c->channel);
	free(c->page);
	free(c->segment);
	free(c->key);
	free(c->result);
}

static void shuffle(struct pc_page *page, uint64_t count, uint64_t seed)
{
	for (uint64_t i = count - 1; i > 0; i--) {
		uint64_t k = mix64(seed + i) % (i + 1);
		struct pc_page other = page[i];

		page[i] = page[k];
		page[k] = other;
	}
}

/* Stores every page through the engine that will own it. */
static void preload(struct pc *far)
{
	struct client c = {.memory = malloc(options.pages * options.page_bytes)};

	if (!c.memory || pc_channel_open(far, &c.channel))
		die("storing: %s", pc_error());
	pages_make(&c);
	for (uint64_t i = 0; i < options.pages; i++)
		content_fill(c.segment[i].base, options.page_bytes, mix64(options.seed) + i);
	if (options.anywhere)
		shuffle(c.page, options.pages, options.seed);
	for (uint64_t from = 0; from < options.pages; from += options.batch)
		if (pc_set(c.channel, c.page + from, options.batch, TIMEOUT_MS, c.result + from))
			die("storing: %s", pc_error());
	for (uint64_t i = 0; i < options.pages; i++)
		if (c.result[i] != PC_HIT)
			die("storing page %lu: %s; is the pool large enough?", i,
				pc_result_name(c.result[i]));
	client_close(&c);
	free(c.memory);
}

/* Removes the pages, so that the next run does not find the pools full of them. */
static void forget(struct pc *far)
{
	struct client c = {.memory = NULL};

	if (pc_channel_open(far, &c.channel))
		die("removing: %s", pc_error());
	pages_make(&c);
	for (uint64_t from = 0; from < options.pages; from += options.batch)
		if (pc_remove(c.channel, c.page + from, options.batch, TIMEOUT_MS, c.result + from))
			die("removing: %s", pc_error());
	client_close(&c);
}

/*
 * Nanoseconds that the clock of the modelled ports is behind this machine's clock: it stands still
 * while they are simulated. 0 without --clock.
 */
static uint64_t behind(void)
{
	uint64_t ns = 0, clocks = 0;

	for (unsigned r = 0; clock_file && r < RAILS_MAX; r++) {
		uint64_t one = shm_load64(&clock_file->core[r].behind_ns);

		ns += one;
		clocks += one != 0;
	}
	return clocks ? ns / clocks : 0;
}

static void clock_map(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	void *at =
		fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*clock_file), PROT_READ, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		die("--clock %s: %s", path, strerror(errno));
	close(fd);
	clock_file = at;
}

static void submit(struct client *c, unsigned slot)
{
	c->flight[slot].first = c->next;
	c->flight[slot].behind = behind();
	c->flight[slot].from = now_ns();
	if (pc_submit_get(c->channel, c->page + c->next, options.batch, TIMEOUT_MS,
		    c->result + c->next, &c->flight[slot].handle))
		die("%s", pc_error());
	c->next = c->next + 2 * options.batch <= options.pages ? c->next + options.batch : 0;
}

static void settle(struct client *c, unsigned slot)
{
	uint64_t first = c->flight[slot].first, one = first + c->done % options.batch;
	uint64_t took = now_ns() - c->flight[slot].from;
	uint64_t stood = behind() - c->flight[slot].behind;

	histogram_add(&c->latency, took);
	histogram_add(&c->model, took > stood ? took - stood : 0);
	for (uint64_t i = first; i < first + options.batch; i++)
		c->misses += c->result[i] != PC_HIT;
	if (options.verify && c->result[one] == PC_HIT)
		c->wrong += !content_is(
			c->segment[one].base, options.page_bytes, mix64(options.seed) + one);
	c->done += options.batch;
}

/*
 * Waits for the batch by polling, and counts the time of polls that delivered no page: the rest of
 * the time is what the pages cost this thread.
 */
static void await(struct client *c, struct pc_batch *batch)
{
	struct pc_counts counts;
	uint64_t from = clock_ticks(), to, hits;
	bool done;

	pc_channel_counts(c->channel, &counts);
	do {
		hits = counts.hits_remote;
		done = pc_poll(batch);
		pc_channel_counts(c->channel, &counts);
		to = clock_ticks();
		if (!done && counts.hits_remote == hits)
			c->idle_ticks += to - from;
		from = to;
	} while (!done);
}

/* Waits for the oldest batch and submits the next one in its place, for `seconds`. */
static void stream(struct client *c, double seconds)
{
	uint64_t start = now_ns(), end = start + (uint64_t)(seconds * 1e9);
	unsigned slot = 0;

	c->done = c->misses = c->wrong = 0;
	memset(&c->latency, 0, sizeof(c->latency));
	memset(&c->model, 0, sizeof(c->model));
	c->behind_ns = behind();
	c->ticks = clock_ticks();
	c->idle_ticks = 0;
	for (unsigned i = 0; i < options.in_flight; i++)
		submit(c, i);
	while (now_ns() < end) {
		await(c, c->flight[slot].handle);
		settle(c, slot);
		submit(c, slot);
		slot = slot + 1 < options.in_flight ? slot + 1 : 0;
	}
	c->took_ns = now_ns() - start;
	c->ticks = clock_ticks() - c->ticks;
	c->behind_ns = behind() - c->behind_ns;
	for (unsigned i = 0; i < options.in_flight; i++)
		pc_wait(c->flight[i].handle);
}

static void *work(void *argument)
{
	struct client *c = argument;

	stream(c, WARM_SECONDS);
	pthread_barrier_wait(ready);
	stream(c, options.seconds);
	return NULL;
}

static void client_open(struct client *c, struct pc *near)
{
	void *memory;

	c->pc = near;
	if (pc_memory_alloc(near, options.pages * options.page_bytes, &memory) ||
		pc_channel_open(near, &c->channel))
		die("%s", pc_error());
	c->memory = memory;
	pages_make(c);
}

static int report(struct client *clients)
{
	json_object *o = json_object_new_object();
	struct histogram latency = {0}, model = {0};
	uint64_t misses = 0, wrong = 0;
	double rate = 0, model_rate = 0, busy = 0;

	for (unsigned i = 0; i < options.threads; i++) {
		struct client *c = &clients[i];

		rate += (double)(c->done - c->misses) * 1e9 / (double)c->took_ns;
		model_rate +=
			(double)(c->done - c->misses) * 1e9 / (double)(c->took_ns - c->behind_ns);
		busy += 1 - (double)c->idle_ticks / (double)c->ticks;
		misses += c->misses;
		wrong += c->wrong;
		histogram_merge(&latency, &c->latency);
		histogram_merge(&model, &c->model);
	}
	add_real(o, "pages_per_s", rate);
	add_real(o, "gbps", rate * (double)options.page_bytes / 1e9);
	add_real(o, "p50_us", histogram_us(&latency, 0.5));
	add_real(o, "p99_us", histogram_us(&latency, 0.99));
	add_real(o, "model_pages_per_s", model_rate);
	add_real(o, "model_p50_us", histogram_us(&model, 0.5));
	add_real(o, "model_p99_us", histogram_us(&model, 0.99));
	add_real(o, "client_busy", busy / options.threads);
	add_number(o, "batches", latency.total);
	add_number(o, "misses", misses);
	add_number(o, "wrong", wrong);
	write_json(o, "-");
	json_object_put(o);
	return wrong > 0;
}

static void parse(int argc, char **argv)
{
	static const struct option names[] = {{"page-bytes", 1, 0, 'b'}, {"batch", 1, 0, 'n'},
		{"in-flight", 1, 0, 'f'}, {"threads", 1, 0, 't'}, {"seconds", 1, 0, 's'},
		{"pages", 1, 0, 'p'}, {"verify", 0, 0, 'v'}, {"anywhere", 0, 0, 'a'},
		{"clock", 1, 0, 'c'}, {"processes", 0, 0, 'r'}, {0}};
	int o;

	while ((o = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (o) {
		case 'b':
			options.page_bytes = parse_size("--page-bytes", optarg, 1, 64u << 20);
			break;
		case 'n': options.batch = (unsigned)parse_number("--batch", optarg, 1, 4096); break;
		case 'f':
			options.in_flight =
				(unsigned)parse_number("--in-flight", optarg, 1, IN_FLIGHT_MAX);
			break;
		case 't':
			options.threads = (unsigned)parse_number("--threads", optarg, 1, 64);
			break;
		case 's': options.seconds = strtod(optarg, NULL); break;
		case 'p': options.pages = parse_number("--pages", optarg, 1, 1u << 24); break;
		case 'v': options.verify = true; break;
		case 'a': options.anywhere = true; break;
		case 'c': clock_map(optarg); break;
		case 'r': options.processes = true; break;
		default: die("unknown option; the options are listed at the top of perf/stream.c");
		}
	}
	/* Whole batches only; and enough pages that no page is in two batches in flight. */
	options.pages -= options.pages % options.batch;
	if (options.pages < (uint64_t)options.batch * options.in_flight)
		options.pages = (uint64_t)options.batch * options.in_flight;
	options.seed = now_ns();
}

/* One client, in a process of its own. */
static void process_run(struct client *c, const char *socket)
{
	struct pc *near = open_session(socket, "stream");

	client_open(c, near);
	work(c);
	client_close(c);
	pc_close(near);
	_exit(0);
}

static void clients_run(struct client *clients, struct pc *near, const char *socket)
{
	int status;

	for (unsigned i = 0; i < options.threads; i++) {
		pid_t pid = options.processes ? fork() : 0;

		if (options.processes && pid == 0)
			process_run(&clients[i], socket);
		if (!options.processes)
			client_open(&clients[i], near);
		if (pid < 0 || (!options.processes &&
				       pthread_create(&clients[i].thread, NULL, work, &clients[i])))
			die("cannot start client %u", i);
	}
	for (unsigned i = 0; i < options.threads; i++) {
		if (!options.processes)
			pthread_join(clients[i].thread, NULL);
		else if (wait(&status) < 0 || status)
			die("a process of a client ended with %d", status);
	}
}

/* Memory that this process shares with its children. */
static void *shared(size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		die("out of memory");
	return at;
}

int main(int argc, char **argv)
{
	const char *socket[SOCKETS_MAX];
	pthread_barrierattr_t between;
	struct client *clients;
	struct pc *near, *far;
	unsigned sockets;
	int status;

	parse(argc, argv);
	sockets = parse_sockets(NULL, socket);
	/* without --verify, modelled ports that move no bytes: none would match its CRC32C */
	parse_crc(options.verify ? "sample" : "never");
	near = open_session(socket[0], "stream");
	far = sockets > 1 ? open_session(socket[sockets - 1], "stream") : near;
	clients = shared(options.threads * sizeof(*clients));
	ready = shared(sizeof(*ready));
	preload(far);
	pthread_barrierattr_init(&between);
	pthread_barrierattr_setpshared(&between, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(ready, &between, options.threads);
	clients_run(clients, near, socket[0]);
	status = report(clients);
	for (unsigned i = 0; i < options.threads && !options.processes; i++)
		client_close(&clients[i]);
	forget(far);
	if (far != near)
		pc_close(far);
	pc_close(near);
	return status;
}
