/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers on several hosts of the pages of one: each thread is a client of its own engine and reads
 * prompts of pages, which it draws by Zipf's law, as SGLang does: an exists of all pages, then a
 * get. They are stored through the last engine, which has no reader.
 *
 *   hot --page-bytes N --pages N (of a prompt) --prompts N --alpha A --pause-ms N --warm S
 *       --seconds S --own N (pages that each reader's host stores first)
 *
 * $PEERCACHE_SOCKETS: of all engines. Prints "measures" when the warm-up is over, and then one line
 * of JSON: times of the batches, exists and get together, of the measured seconds. Exit status 1: a
 * page was wrong. One page of each batch is compared.
 */
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/client/peercache.h"
#include "tools/common.h"

#define TIMEOUT_MS 20000u
#define READERS_MAX 32u

static struct options {
	uint64_t page_bytes, pages, prompts, pause_ms, own;
	double alpha, warm, seconds;
} options = {.page_bytes = 64u << 10,
	.pages = 16,
	.prompts = 128,
	.pause_ms = 20,
	.alpha = 1,
	.warm = 10,
	.seconds = 10};

struct reader {
	pthread_t thread;
	struct pc *pc;
	struct pc_channel *channel;
	unsigned char *memory;
	uint64_t random, misses, wrong;
	struct histogram latency;
};

static double *share; /* of the prompts up to each one */
static uint64_t from_ns, end_ns;

static void prompts_weigh(void)
{
	double sum = 0;

	share = calloc(options.prompts, sizeof(*share));
	if (!share)
		die("out of memory");
	for (uint64_t i = 0; i < options.prompts; i++)
		share[i] = sum += 1 / pow((double)(i + 1), options.alpha);
	for (uint64_t i = 0; i < options.prompts; i++)
		share[i] /= sum;
}

static uint64_t prompt_draw(struct reader *r)
{
	double at;
	uint64_t i = 0;

	r->random = mix64(r->random + 0x9e3779b97f4a7c15ull);
	at = (double)(r->random >> 11) / (double)(1ull << 53);
	while (i < options.prompts - 1 && share[i] < at)
		i++;
	return i;
}

/* The pages of one prompt, in memory that begins at `memory`. */
struct prompt {
	char (*key)[KEY_TEXT_BYTES];
	struct pc_segment *segment;
	struct pc_page *page;
	enum pc_result *result;
};

static struct prompt prompt_new(void)
{
	struct prompt p = {.key = calloc(options.pages, sizeof(*p.key)),
		.segment = calloc(options.pages, sizeof(*p.segment)),
		.page = calloc(options.pages, sizeof(*p.page)),
		.result = calloc(options.pages, sizeof(*p.result))};

	if (!p.key || !p.segment || !p.page || !p.result)
		die("out of memory");
	return p;
}

static void prompt_fill(const struct prompt *p, uint64_t number, unsigned char *memory)
{
	for (uint64_t i = 0; i < options.pages; i++) {
		key_text(number * options.pages + i, p->key[i]);
		p->segment[i] =
			(struct pc_segment){memory + i * options.page_bytes, options.page_bytes};
		p->page[i] = (struct pc_page){p->key[i], KEY_TEXT_BYTES, &p->segment[i], 1};
	}
}

static void prompt_free(struct prompt *p)
{
	free(p->key);
	free(p->segment);
	free(p->page);
	free(p->result);
}

/* Stores `prompts` prompts from number `first` on. */
static void store_all(struct pc *pc, uint64_t first, uint64_t prompts)
{
	unsigned char *memory = malloc(options.pages * options.page_bytes);
	struct prompt p = prompt_new();
	struct pc_channel *channel;

	if (!memory || pc_channel_open(pc, &channel))
		die("storing: %s", pc_error());
	for (uint64_t n = first; n < first + prompts; n++) {
		prompt_fill(&p, n, memory);
		for (uint64_t i = 0; i < options.pages; i++)
			content_fill(p.segment[i].base, options.page_bytes, n * options.pages + i);
		if (pc_set(channel, p.page, (unsigned)options.pages, TIMEOUT_MS, p.result))
			die("storing: %s", pc_error());
		for (uint64_t i = 0; i < options.pages; i++)
			if (p.result[i] != PC_HIT)
				die("storing: %s", pc_result_name(p.result[i]));
	}
	pc_channel_close(channel);
	prompt_free(&p);
	free(memory);
}

static void read_one(struct reader *r, const struct prompt *p, bool measured)
{
	uint64_t number = prompt_draw(r), from, one = r->random % options.pages;

	prompt_fill(p, number, r->memory);
	from = now_ns();
	if (pc_exists(r->channel, p->page, (unsigned)options.pages, TIMEOUT_MS, p->result) ||
		pc_get(r->channel, p->page, (unsigned)options.pages, TIMEOUT_MS, p->result))
		die("%s", pc_error());
	if (measured)
		histogram_add(&r->latency, now_ns() - from);
	for (uint64_t i = 0; i < options.pages; i++)
		r->misses += measured && p->result[i] != PC_HIT;
	if (p->result[one] == PC_HIT)
		r->wrong += !content_is(
			p->segment[one].base, options.page_bytes, number * options.pages + one);
}

static void *read_all(void *argument)
{
	struct reader *r = argument;
	struct prompt p = prompt_new();

	while (now_ns() < end_ns) {
		read_one(r, &p, now_ns() >= from_ns);
		/* half to one and a half of it: readers do not follow each other */
		usleep((useconds_t)(options.pause_ms * (500 + r->random % 1000)));
	}
	prompt_free(&p);
	return NULL;
}

static void parse(int argc, char **argv)
{
	static const struct option names[] = {{"page-bytes", 1, 0, 'b'}, {"pages", 1, 0, 'n'},
		{"prompts", 1, 0, 'p'}, {"alpha", 1, 0, 'a'}, {"pause-ms", 1, 0, 'u'},
		{"warm", 1, 0, 'w'}, {"seconds", 1, 0, 's'}, {"own", 1, 0, 'o'}, {0}};
	int o;

	while ((o = getopt_long(argc, argv, "", names, NULL)) != -1) {
		switch (o) {
		case 'b':
			options.page_bytes = parse_size("--page-bytes", optarg, 1, 64u << 20);
			break;
		case 'n': options.pages = parse_number("--pages", optarg, 1, 1024); break;
		case 'p': options.prompts = parse_number("--prompts", optarg, 1, 1u << 20); break;
		case 'u': options.pause_ms = parse_number("--pause-ms", optarg, 0, 10000); break;
		case 'o': options.own = parse_number("--own", optarg, 0, 1u << 24); break;
		case 'a': options.alpha = strtod(optarg, NULL); break;
		case 'w': options.warm = strtod(optarg, NULL); break;
		case 's': options.seconds = strtod(optarg, NULL); break;
		default: die("unknown option; the options are listed at the top of perf/hot.c");
		}
	}
}

static int report(const struct reader *reader, unsigned readers)
{
	json_object *o = json_object_new_object();
	struct histogram latency = {0};
	uint64_t misses = 0, wrong = 0;

	for (unsigned i = 0; i < readers; i++) {
		histogram_merge(&latency, &reader[i].latency);
		misses += reader[i].misses;
		wrong += reader[i].wrong;
	}
	add_number(o, "batches", latency.total);
	add_real(o, "p50_us", histogram_us(&latency, 0.5));
	add_real(o, "p99_us", histogram_us(&latency, 0.99));
	add_number(o, "misses", misses);
	add_number(o, "wrong", wrong);
	write_json(o, "-");
	json_object_put(o);
	return wrong > 0;
}

int main(int argc, char **argv)
{
	static struct reader reader[READERS_MAX];
	const char *socket[SOCKETS_MAX];
	unsigned readers;
	struct pc *hot;

	parse(argc, argv);
	readers = parse_sockets(NULL, socket) - 1;
	if (readers < 1 || readers > READERS_MAX)
		die("PEERCACHE_SOCKETS has to name 2 to %u engines", READERS_MAX + 1);
	parse_crc("never"); /* the pages that are compared are compared here */
	prompts_weigh();
	hot = open_session(socket[readers], "hot");
	store_all(hot, 0, options.prompts);
	for (unsigned i = 0; i < readers; i++) {
		reader[i].pc = open_session(socket[i], "hot");
		store_all(reader[i].pc, (i + 1) << 24, options.own / options.pages);
	}
	from_ns = now_ns() + (uint64_t)(options.warm * 1e9);
	end_ns = from_ns + (uint64_t)(options.seconds * 1e9);
	for (unsigned i = 0; i < readers; i++) {
		struct reader *r = &reader[i];
		void *memory;

		r->random = mix64(i + 1);
		if (pc_memory_alloc(r->pc, options.pages * options.page_bytes, &memory) ||
			pc_channel_open(r->pc, &r->channel))
			die("%s", pc_error());
		r->memory = memory;
		if (pthread_create(&r->thread, NULL, read_all, r))
			die("cannot start reader %u", i);
	}
	while (now_ns() < from_ns)
		usleep(1000);
	puts("measures");
	fflush(stdout);
	for (unsigned i = 0; i < readers; i++)
		pthread_join(reader[i].thread, NULL);
	return report(reader, readers);
}
