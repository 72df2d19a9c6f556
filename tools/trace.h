/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request trace: for each request the ids of its blocks, equal ids meaning equal prefixes. Read
 * from JSON lines as published with Mooncake ({"hash_ids": [..]}; other members are ignored) or
 * generated.
 */
#ifndef TOOLS_TRACE_H
#define TOOLS_TRACE_H

#include <stdint.h>

struct trace {
	uint32_t requests;
	uint32_t longest; /* blocks of the longest request */
	uint64_t blocks;  /* of all requests */
	uint64_t *first;  /* requests + 1: where each request's ids start */
	uint64_t *id;
};

/* Up to `requests` of the file; 0: all. Dies naming file and line when it is no trace. */
void trace_load(const char *path, uint32_t requests, struct trace *ret_trace);
/* Conversations that grow turn by turn under a few shared system prompts. */
void trace_generate(uint32_t requests, uint64_t seed, struct trace *ret_trace);

/* What a cache that never evicts would do with it. */
struct trace_summary {
	uint64_t different;   /* blocks */
	uint64_t prefix_hits; /* blocks of leading runs that were seen in an earlier request */
};
struct trace_summary trace_summarize(const struct trace *trace);
void trace_free(struct trace *trace);

#endif
