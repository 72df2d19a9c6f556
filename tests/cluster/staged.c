/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads pages of another host into memory that is not registered or, with --registered, into memory
 * that is; with --imported into ordinary memory that this process registers with the NICs. Stores
 * pages through the first engine, reads them through the second one in batches of each given
 * length, and compares every byte. --segments cuts each page into that many pieces of different
 * lengths, which lie in memory in reverse order. --until-eof reads until stdin ends, and then once
 * more; a wrong page ends it.
 *
 * Started by test_staging.py, test_extents.py and test_import.py. Prints one JSON object: the
 * number of extents that the second engine has registered and, for each batch length, the results
 * of the pages.
 */
#include <getopt.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common.h"

#define BATCHES_MAX 32u
#define TIMEOUT_MS 20000u

struct staged {
	uint64_t page_bytes;
	unsigned count, segments;
	bool registered, imported, until_eof;
	/* memory of the destination segments; those of page i lie in its i-th page_bytes */
	unsigned char *memory;
	unsigned char *whole; /* scratch memory for one page as one piece */
	struct pc_page *page;
	struct pc_segment *segment;
	char (*key)[KEY_TEXT_BYTES];
	enum pc_result *result;
};

/* Cuts page i into segments of growing length; the first segment is the last one in memory. */
static void cut(struct staged *s, unsigned i)
{
	uint64_t left = s->page_bytes, step = 2 * left / (s->segments * (s->segments + 1ull));
	struct pc_segment *segment = &s->segment[i * s->segments];
	unsigned char *end = s->memory + (i + 1) * s->page_bytes;

	for (unsigned k = 0; k < s->segments; k++) {
		uint64_t bytes = k + 1 < s->segments ? step * (k + 1) : left;

		end -= bytes;
		left -= bytes;
		segment[k] = (struct pc_segment){end, bytes};
	}
}

static void pages_make(struct staged *s, struct pc *pc)
{
	void *memory = NULL;

	if (!s->registered)
		memory = malloc(s->count * s->page_bytes);
	else if (pc_memory_alloc(pc, s->count * s->page_bytes, &memory))
		die("%s", pc_error());
	s->memory = memory;
	if (s->imported && pc_memory_register(pc, memory, s->count * s->page_bytes, -1, 0))
		die("%s", pc_error());
	s->whole = malloc(s->page_bytes);
	s->page = calloc(s->count, sizeof(*s->page));
	s->segment = calloc(s->count * s->segments, sizeof(*s->segment));
	s->key = calloc(s->count, sizeof(*s->key));
	s->result = calloc(s->count, sizeof(*s->result));
	if (!memory || !s->whole || !s->page || !s->segment || !s->key || !s->result)
		die("out of memory");
	for (unsigned i = 0; i < s->count; i++) {
		key_text(s->page_bytes << 32 | s->segments << 20 | i, s->key[i]);
		cut(s, i);
		s->page[i] = (struct pc_page){
			s->key[i], KEY_TEXT_BYTES, &s->segment[i * s->segments], s->segments};
	}
}

static void pages_free(struct staged *s)
{
	if (!s->registered)
		free(s->memory);
	free(s->whole);
	free(s->segment);
	free(s->page);
	free(s->key);
	free(s->result);
}

static void page_fill(struct staged *s, unsigned i)
{
	unsigned char *from = s->whole;

	content_fill(s->whole, s->page_bytes, i);
	for (unsigned k = 0; k < s->segments; k++) {
		const struct pc_segment *segment = &s->page[i].segments[k];

		memcpy(segment->base, from, segment->bytes);
		from += segment->bytes;
	}
}

static bool page_is_right(struct staged *s, unsigned i)
{
	unsigned char *to = s->whole;

	for (unsigned k = 0; k < s->segments; k++) {
		const struct pc_segment *segment = &s->page[i].segments[k];

		memcpy(to, segment->base, segment->bytes);
		to += segment->bytes;
	}
	return content_is(s->whole, s->page_bytes, i);
}

/* Calls `call` for all pages, with `batch` pages in each call. */
static void call_all(struct staged *s, page_call call, struct pc_channel *channel, unsigned batch)
{
	for (unsigned i = 0; i < s->count; i += batch) {
		unsigned n = s->count - i < batch ? s->count - i : batch;

		if (call(channel, s->page + i, n, TIMEOUT_MS, s->result + i))
			die("%s", pc_error());
	}
}

static void store(struct staged *s, struct pc *pc)
{
	struct pc_channel *channel;

	if (pc_channel_open(pc, &channel))
		die("%s", pc_error());
	for (unsigned i = 0; i < s->count; i++)
		page_fill(s, i);
	call_all(s, pc_set, channel, 64);
	for (unsigned i = 0; i < s->count; i++)
		if (s->result[i] != PC_HIT)
			die("page %u was not stored: %s", i, pc_result_name(s->result[i]));
	pc_channel_close(channel);
}

/*
 * Reads all pages and counts the results; returns JSON: {"hit": N, ..., "wrong": N, "bytes_staged":
 * N}.
 */
static json_object *fetch(struct staged *s, struct pc *pc, unsigned batch)
{
	uint64_t outcome[PC_PENDING + 1] = {0}, wrong = 0;
	json_object *o = json_object_new_object();
	struct pc_channel *channel;
	struct pc_counts counts;

	if (pc_channel_open(pc, &channel))
		die("%s", pc_error());
	memset(s->memory, 0xee, s->count * s->page_bytes);
	call_all(s, pc_get, channel, batch);
	for (unsigned i = 0; i < s->count; i++) {
		outcome[s->result[i]]++;
		wrong += s->result[i] == PC_HIT && !page_is_right(s, i);
	}
	pc_channel_counts(channel, &counts);
	pc_channel_close(channel);
	for (unsigned r = 0; r <= PC_PENDING; r++)
		if (outcome[r])
			add_number(o, pc_result_name((enum pc_result)r), outcome[r]);
	add_number(o, "wrong", wrong);
	add_number(o, "bytes_staged", counts.bytes_staged);
	return o;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"page-bytes", 1, NULL, 'b'},
		{"pages", 1, NULL, 'n'}, {"batch", 1, NULL, 'k'}, {"segments", 1, NULL, 's'},
		{"registered", 0, NULL, 'r'}, {"imported", 0, NULL, 'i'},
		{"until-eof", 0, NULL, 'u'}, {NULL, 0, NULL, 0}};
	unsigned batch[BATCHES_MAX], batches = 0;
	struct staged s = {.page_bytes = 4096, .count = 4096, .segments = 1};
	json_object *all = json_object_new_object(), *report;
	const char *socket[SOCKETS_MAX];
	struct pc *pc[2];
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'b': s.page_bytes = parse_size("--page-bytes", optarg, 8, 64 << 20); break;
		case 'n': s.count = (unsigned)parse_number("--pages", optarg, 1, 1 << 20); break;
		case 's':
			s.segments =
				(unsigned)parse_number("--segments", optarg, 1, PC_SEGMENTS_MAX);
			break;
		case 'r': s.registered = true; break;
		case 'i': s.imported = true; break;
		case 'u': s.until_eof = true; break;
		case 'k':
			if (batches == BATCHES_MAX)
				die("more than %u lengths of batches", BATCHES_MAX);
			batch[batches++] = (unsigned)parse_number("--batch", optarg, 1, 65536);
			break;
		default:
			die("unknown option; the options are listed in main() of tests/cluster/staged.c");
		}
	}
	if (parse_sockets(NULL, socket) != 2)
		die("needs two engines in $PEERCACHE_SOCKETS");
	for (unsigned i = 0; i < 2; i++)
		pc[i] = open_session(socket[i], "staged");
	pages_make(&s, pc[1]);
	report = engine_report(pc[1]);
	add_number(all, "extents",
		(uint64_t)json_number(json_get(report, "figures"), "client_extents"));
	json_object_put(report);
	store(&s, pc[0]);
	while (s.until_eof && !poll(&(struct pollfd){.fd = 0, .events = POLLIN}, 1, 0)) {
		json_object *got = fetch(&s, pc[1], batch[0]);

		if (json_number(got, "wrong"))
			die("%s", json_object_to_json_string(got));
		json_object_put(got);
	}
	for (unsigned i = 0; i < batches; i++) {
		char name[16];

		snprintf(name, sizeof(name), "%u", batch[i]);
		json_object_object_add(all, name, fetch(&s, pc[1], batch[i]));
	}
	write_json(all, "-");
	json_object_put(all);
	pages_free(&s);
	for (unsigned i = 0; i < 2; i++)
		pc_close(pc[i]);
	return 0;
}
