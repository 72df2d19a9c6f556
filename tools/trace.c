/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and generates request traces. Any thread. */
#include "tools/trace.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common.h"

#define BLOCKS_PER_REQUEST_MAX 65536u

/* Makes room in the trace for one more request with `ids` blocks. */
static void trace_grow(struct trace *t, uint64_t *capacity, uint64_t ids)
{
	if (t->blocks + ids >= UINT32_MAX)
		die("a trace of more than %u blocks; use --requests", UINT32_MAX);
	if (t->blocks + ids >= *capacity) {
		*capacity = (t->blocks + ids) * 2 + 1024;
		t->id = realloc(t->id, *capacity * sizeof(*t->id));
	}
	t->first = realloc(t->first, (t->requests + 2ull) * sizeof(*t->first));
	if (!t->id || !t->first)
		die("out of memory for the trace");
}

static void trace_add(struct trace *t, uint64_t *capacity, const uint64_t *ids, uint32_t count)
{
	trace_grow(t, capacity, count);
	t->first[t->requests] = t->blocks;
	memcpy(t->id + t->blocks, ids, count * sizeof(*ids));
	t->blocks += count;
	t->requests++;
	t->first[t->requests] = t->blocks;
	if (count > t->longest)
		t->longest = count;
}

/* Parses one line of a trace file into `ids`; returns the number of ids. */
static uint32_t parse_line(const char *path, unsigned line, const char *text, uint64_t *ids)
{
	json_object *request = json_tokener_parse(text), *list;
	size_t count;

	if (!request || !json_object_object_get_ex(request, "hash_ids", &list) ||
		!json_object_is_type(list, json_type_array))
		die("%s:%u: not a JSON object with a list \"hash_ids\"", path, line);
	count = json_object_array_length(list);
	if (count > BLOCKS_PER_REQUEST_MAX)
		die("%s:%u: %zu blocks in one request; at most %u", path, line, count,
			BLOCKS_PER_REQUEST_MAX);
	for (size_t i = 0; i < count; i++) {
		json_object *id = json_object_array_get_idx(list, i);

		if (!json_object_is_type(id, json_type_int))
			die("%s:%u: hash_ids[%zu] is not an integer", path, line, i);
		ids[i] = (uint64_t)json_object_get_int64(id);
	}
	json_object_put(request);
	return (uint32_t)count;
}

void trace_load(const char *path, uint32_t requests, struct trace *ret_trace)
{
	FILE *in = fopen(path, "r");
	uint64_t capacity = 0, *ids = malloc(BLOCKS_PER_REQUEST_MAX * sizeof(*ids));
	char *text = NULL;
	size_t text_bytes = 0;
	unsigned line = 0;

	if (!in)
		die("trace %s: %s", path, strerror(errno));
	if (!ids)
		die("out of memory for the trace");
	memset(ret_trace, 0, sizeof(*ret_trace));
	while ((!requests || ret_trace->requests < requests) &&
		getline(&text, &text_bytes, in) > 0) {
		line++;
		if (text[strspn(text, " \t\r\n")] == 0)
			continue;
		trace_add(ret_trace, &capacity, ids, parse_line(path, line, text, ids));
	}
	if (!ret_trace->requests)
		die("trace %s: the file has no request", path);
	free(text);
	free(ids);
	fclose(in);
}

#define CONVERSATIONS 64     /* conversations of a generated trace that are open at a time */
#define TURN_BLOCKS_MAX 128u /* blocks of the longest conversation; a longer one is restarted */

struct conversation {
	uint64_t id[TURN_BLOCKS_MAX];
	uint32_t blocks;
};

static uint64_t next_random(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	return mix64(*state);
}

/* Starts a conversation with one of eight system prompts; each prompt has 2 to 5 blocks. */
static void conversation_start(struct conversation *c, uint64_t *random)
{
	uint64_t prompt = next_random(random) % 8;

	c->blocks = 2 + (uint32_t)prompt % 4;
	for (uint32_t i = 0; i < c->blocks; i++)
		c->id[i] = (prompt + 1) << 32 | i;
}

void trace_generate(uint32_t requests, uint64_t seed, struct trace *ret_trace)
{
	struct conversation *open = calloc(CONVERSATIONS, sizeof(*open));
	uint64_t random = seed, capacity = 0, next = 1ull << 40;

	if (!open)
		die("out of memory for the trace");
	memset(ret_trace, 0, sizeof(*ret_trace));
	for (uint32_t r = 0; r < requests; r++) {
		struct conversation *c = &open[next_random(&random) % CONVERSATIONS];
		uint32_t more = 1 + (uint32_t)(next_random(&random) % 12);

		if (!c->blocks || c->blocks + more > TURN_BLOCKS_MAX ||
			next_random(&random) % 8 == 0)
			conversation_start(c, &random);
		for (uint32_t i = 0; i < more; i++)
			c->id[c->blocks++] = next++;
		trace_add(ret_trace, &capacity, c->id, c->blocks);
	}
	free(open);
}

uint32_t *trace_number(const struct trace *trace, uint32_t *ret_different)
{
	uint64_t mask = 1;
	uint32_t *first, *number = malloc((trace->blocks + 1) * sizeof(*number));

	while (mask < trace->blocks * 2)
		mask = mask * 2 + 1;
	first = calloc(mask + 1, sizeof(*first));
	if (!first || !number)
		die("out of memory for the trace");
	*ret_different = 0;
	for (uint32_t i = 0; i < trace->blocks; i++) {
		uint64_t at = mix64(trace->id[i]) & mask;

		while (first[at] && trace->id[first[at] - 1] != trace->id[i])
			at = (at + 1) & mask;
		number[i] = first[at] ? number[first[at] - 1] : (*ret_different)++;
		if (!first[at])
			first[at] = i + 1;
	}
	free(first);
	return number;
}

struct trace_summary trace_summarize(const struct trace *trace)
{
	struct trace_summary sum = {0};
	uint32_t different, *number = trace_number(trace, &different);

	for (uint32_t r = 0; r < trace->requests; r++) {
		bool run = true;

		for (uint64_t i = trace->first[r]; i < trace->first[r + 1]; i++) {
			bool added = number[i] == sum.different;

			/* an id that is new and occurs twice in a request is not a hit: no
			 * earlier request stored it */
			run = run && !added;
			sum.different += added;
			sum.prefix_hits += run;
		}
	}
	free(number);
	return sum;
}

void trace_free(struct trace *trace)
{
	free(trace->first);
	free(trace->id);
	memset(trace, 0, sizeof(*trace));
}
