/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores numbered pages through one engine, or looks for them through another one, and remembers in
 * a file which were stored: one byte a page, '1' if its set said "hit".
 *
 *   kept set --results FILE --from N --count N [--bytes N] [--timeout-ms N] [--rest-us N]
 *                                     SIGTERM ends it early
 *   kept find --results FILE [...]    prints how many pages of the file were found and read
 *                                     right, and the results of both calls; SIGTERM ends it
 *
 * Started by kept.py with one engine in $PEERCACHE_SOCKETS. Prints one JSON object. One thread.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common.h"

#define BATCH 16u
#define BYTES_MAX (256u << 10)

struct kept {
	const char *results;
	uint64_t from, count;
	size_t bytes;
	unsigned timeout_ms, rest_us;
	char key[BATCH][KEY_TEXT_BYTES];
	struct pc_page page[BATCH];
	struct pc_segment segment[BATCH];
	unsigned char *memory;
	enum pc_result result[BATCH];
};

static volatile sig_atomic_t stopped; /* SIGTERM: the batch that runs is the last one */

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

/* Calls `function` for pages from..from + n. Returns the time that it took, ns. */
static uint64_t call(
	struct kept *k, struct pc_channel *channel, page_call function, uint64_t from, unsigned n)
{
	uint64_t start_ns = now_ns();

	for (unsigned i = 0; i < n; i++) {
		key_text(from + i, k->key[i]);
		k->segment[i] = (struct pc_segment){k->memory + i * k->bytes, k->bytes};
		k->page[i] = (struct pc_page){k->key[i], KEY_TEXT_BYTES, &k->segment[i], 1};
	}
	if (function(channel, k->page, n, k->timeout_ms, k->result))
		die("%s", pc_error());
	return now_ns() - start_ns;
}

static void set(struct kept *k, struct pc_channel *channel, json_object *all)
{
	uint64_t outcome[PC_PENDING + 1] = {0}, at;
	FILE *file = fopen(k->results, "wb");
	struct histogram *h = calloc(1, sizeof(*h));

	if (!file || !h)
		die("%s: %s", k->results, strerror(errno));
	for (at = 0; at < k->count && !stopped; at += BATCH) {
		unsigned n = (unsigned)(k->count - at < BATCH ? k->count - at : BATCH);

		for (unsigned i = 0; i < n; i++)
			content_fill(k->memory + i * k->bytes, k->bytes, k->from + at + i);
		histogram_add(h, call(k, channel, pc_set, k->from + at, n));
		for (unsigned i = 0; i < n; i++) {
			outcome[k->result[i]]++;
			fputc(k->result[i] == PC_HIT ? '1' : '0', file);
		}
		if (k->rest_us)
			usleep(k->rest_us);
	}
	if (fclose(file))
		die("%s: %s", k->results, strerror(errno));
	for (unsigned r = 0; r <= PC_PENDING; r++)
		if (outcome[r])
			add_number(all, pc_result_name((enum pc_result)r), outcome[r]);
	add_number(all, "sets", at < k->count ? at : k->count);
	add_real(all, "p50_us", histogram_us(h, 0.5));
	add_real(all, "p99_us", histogram_us(h, 0.99));
	add_real(all, "worst_us", (double)h->max_ns / 1000);
	free(h);
}

static void find(struct kept *k, struct pc_channel *channel, json_object *all)
{
	uint64_t outcome[PC_PENDING + 1] = {0}, kept = 0, found = 0, read = 0, wrong = 0;
	FILE *file = fopen(k->results, "rb");

	if (!file)
		die("%s: %s", k->results, strerror(errno));
	for (uint64_t at = 0; at < k->count && !stopped; at += BATCH) {
		unsigned n = (unsigned)(k->count - at < BATCH ? k->count - at : BATCH);
		bool stored[BATCH];

		for (unsigned i = 0; i < n; i++)
			kept += stored[i] = fgetc(file) == '1';
		call(k, channel, pc_exists, k->from + at, n);
		for (unsigned i = 0; i < n; i++) {
			found += stored[i] && k->result[i] == PC_HIT;
			outcome[k->result[i]] += stored[i];
		}
		call(k, channel, pc_get, k->from + at, n);
		for (unsigned i = 0; i < n; i++) {
			bool right =
				content_is(k->memory + i * k->bytes, k->bytes, k->from + at + i);

			read += stored[i] && k->result[i] == PC_HIT;
			outcome[k->result[i]] += stored[i];
			wrong += k->result[i] == PC_HIT && !right;
		}
	}
	fclose(file);
	for (unsigned r = 0; r <= PC_PENDING; r++)
		if (outcome[r])
			add_number(all, pc_result_name((enum pc_result)r), outcome[r]);
	add_number(all, "kept", kept);
	add_number(all, "found", found);
	add_number(all, "read", read);
	add_number(all, "wrong", wrong);
}

static void parse(struct kept *k, int argc, char **argv)
{
	static const struct option options[] = {{"timeout-ms", 1, NULL, 't'},
		{"results", 1, NULL, 'f'}, {"from", 1, NULL, 'F'}, {"count", 1, NULL, 'n'},
		{"bytes", 1, NULL, 'b'}, {"rest-us", 1, NULL, 'r'}, {NULL, 0, NULL, 0}};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 't':
			k->timeout_ms = (unsigned)parse_number("--timeout-ms", optarg, 1, 600000);
			break;
		case 'f': k->results = optarg; break;
		case 'F': k->from = parse_number("--from", optarg, 0, UINT32_MAX); break;
		case 'n': k->count = parse_number("--count", optarg, 1, UINT32_MAX); break;
		case 'b': k->bytes = parse_size("--bytes", optarg, 64, BYTES_MAX); break;
		case 'r':
			k->rest_us = (unsigned)parse_number("--rest-us", optarg, 0, 999999);
			break;
		default: die("usage: see the top of kept.c");
		}
	}
}

int main(int argc, char **argv)
{
	static struct kept k = {.bytes = 4096, .count = 1000, .timeout_ms = 5000};
	json_object *all = json_object_new_object();
	const char *socket[SOCKETS_MAX];
	struct pc_channel *channel;
	struct pc *pc;

	parse(&k, argc, argv);
	if (!k.results || optind + 1 != argc || parse_sockets(NULL, socket) != 1)
		die("needs set or find, --results and one engine in $PEERCACHE_SOCKETS");
	k.memory = calloc(BATCH, k.bytes);
	signal(SIGTERM, stop);
	if (!k.memory)
		die("out of memory");
	pc = open_session(socket[0], "kept");
	if (pc_channel_open(pc, &channel))
		die("%s", pc_error());
	(strcmp(argv[optind], "set") ? find : set)(&k, channel, all);
	write_json(all, "-");
	json_object_put(all);
	pc_channel_close(channel);
	pc_close(pc);
	free(k.memory);
	return 0;
}
