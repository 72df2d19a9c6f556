/* SPDX-License-Identifier: Apache-2.0 */
/* Request traces: which blocks each request has, read from a file or generated. Any thread. */
#ifndef TOOLS_TRACE_H
#define TOOLS_TRACE_H

#include <stdint.h>

/*
 * The block ids of each request. Two requests with equal ids have the same prefix up to that block.
 * A trace is read from JSON lines as published with Mooncake ({"hash_ids": [..]}; other members are
 * ignored) or generated.
 */
struct trace {
	uint32_t requests; /* number of requests in the trace */
	uint32_t longest;  /* number of blocks of the longest request */
	uint64_t blocks;   /* number of blocks of all requests together */
	/* index in id[] of the first block of each request; requests + 1 entries */
	uint64_t *first;
	uint64_t *id; /* ids of the blocks of all requests, one after another */
};

/* What a cache that never evicts would reach with a trace. */
struct trace_summary {
	uint64_t different; /* number of different block ids in the trace */
	/* number of leading blocks of requests that earlier requests stored */
	uint64_t prefix_hits;
};

/*
 * Loads at most `requests` requests of a file; 0: all. When a line is not a request it calls die()
 * with the file and the line number.
 */
void trace_load(const char *path, uint32_t requests, struct trace *ret_trace);
/* Generates a trace of conversations that grow with each turn and share a few system prompts. */
void trace_generate(uint32_t requests, uint64_t seed, struct trace *ret_trace);
/*
 * Numbers the different blocks from 0, in the order of their first use. Returns the number of each
 * block of the trace, which the caller frees.
 */
uint32_t *trace_number(const struct trace *trace, uint32_t *ret_different);
struct trace_summary trace_summarize(const struct trace *trace);
void trace_free(struct trace *trace);

#endif
