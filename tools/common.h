/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that the command-line tools share: parsing sizes and numbers, keys and page contents
 * generated from an id, a latency histogram, the report of an engine, JSON. Any thread.
 */
#ifndef TOOLS_COMMON_H
#define TOOLS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <json-c/json.h>

#include "config/json_read.h"
#include "engine/client/peercache.h"

/* Prints "NAME: message" to stderr and exits with status 2: wrong usage, or no engine or file. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* To be called first: a program whose output was not written ends with status 2. */
void tool_begin(void);

/* Raised when a field of a JSON document changes its name or meaning. */
#define JSON_VERSION 3
#define JSON_VERSION_TEXT "3"
/* True: die() also prints its message as a document, {"error": ...}, to stdout. */
extern bool die_in_json;
/* Adds "json_version" and, if it has none, "version" (of this program) to a document. */
void json_versions_add(json_object *o);
/* Prints one document with its versions, and frees it. */
void print_json(json_object *o, FILE *out);

/* --version: prints the name of the program and the version of the library it is linked with. */
void print_version(void);

/*
 * Parses a size such as "128KiB", "64k", "1GiB" or "4096" and returns it in bytes. When it is not a
 * size from `min` to `max` it calls die() with the name of the option.
 */
uint64_t parse_size(const char *option, const char *text, uint64_t min, uint64_t max);
/* Parses a decimal number from `min` to `max`; otherwise calls die(), like parse_size(). */
uint64_t parse_number(const char *option, const char *text, uint64_t min, uint64_t max);

uint64_t now_ns(void);      /* returns CLOCK_MONOTONIC in ns */
uint64_t mix64(uint64_t x); /* mixes the bits of x; a bijection */

/*
 * ---- pages generated from an id ----------------------------------------------------------------
 */

#define KEY_TEXT_BYTES 64 /* bytes of a key of key_text(), with the terminating zero */

/* Writes the key of page `id`: 64 hex characters like SGLang's page keys, without a final zero. */
void key_text(uint64_t id, char ret_key[KEY_TEXT_BYTES]);
/*
 * Fills the page `id` with its content: its 8-byte words differ from each other and from those of
 * other pages.
 */
void content_fill(void *page, size_t bytes, uint64_t id);
/* Has `page` exactly the content of the page `id`? */
bool content_is(const void *page, size_t bytes, uint64_t id);

/* The common type of pc_get(), pc_set(), pc_exists() and pc_remove(). */
typedef int (*page_call)(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);

/* The pages of one call, each one segment. */
struct batch {
	bool private_memory;   /* `memory` is malloc()'s; else pc_memory_alloc()'s */
	unsigned char *memory; /* of all pages, one after another */
	size_t page_bytes;
	struct pc_page *page;
	struct pc_segment *segment;
	char (*key)[KEY_TEXT_BYTES];
	enum pc_result *result;
};
/*
 * Allocates a batch of `pages`, with memory of the session; `pc` NULL: private memory. Calls die()
 * without memory. Memory of a session lasts as long as that.
 */
void batch_open(struct batch *b, struct pc *pc, size_t page_bytes, unsigned pages);
/* Makes page `i` of the batch that of an id; the memory keeps its bytes. */
void batch_set(struct batch *b, unsigned i, uint64_t id);
void batch_close(struct batch *b);

/* ---- latencies ------------------------------------------------------------------------------- */

/*
 * A log-linear histogram of latencies from 1 ns to about 2^40 ns. Each power of two has 32 buckets,
 * so a percentile is exact within 3 %.
 */
#define HISTOGRAM_BUCKETS (40 * 32)
struct histogram {
	uint64_t count[HISTOGRAM_BUCKETS];
	uint64_t total;  /* number of latencies added */
	uint64_t max_ns; /* largest latency added, ns */
};
void histogram_add(struct histogram *h, uint64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* Returns a percentile in us (fraction 0.5: the median); 0 when the histogram is empty. */
double histogram_us(const struct histogram *h, double fraction);

/* ---- engines --------------------------------------------------------------------------------- */

#define SOCKETS_MAX 64
/*
 * Splits a comma-separated list of sockets; NULL: the list in $PEERCACHE_SOCKETS, else the default
 * of the library. Returns the number of sockets; their texts last until the program ends. To be
 * called once.
 */
unsigned parse_sockets(const char *list, const char **ret_sockets);
/*
 * Takes the value of --crc, which pages are compared with their CRC32C: never, sample, sample:N
 * (one in N) or always. For the calls of open_session() that follow. Calls die() if it is invalid.
 */
void parse_crc(const char *text);
/* File with the secret of the namespaces; NULL: none. */
extern const char *secret_file;
/* Opens a session, or calls die() with the reason. */
struct pc *open_session(const char *socket, const char *name_space);
/* Returns the engine's report as JSON; NULL if that fails. The caller calls json_object_put(). */
json_object *engine_report(struct pc *pc);
/*
 * Waits until the engine's memory is populated, because that takes time from what is measured. Says
 * so if it takes long.
 */
void wait_populated(struct pc *pc);
/* A member of an object; 0 and false when it is not there. */
int64_t json_number(json_object *o, const char *name);
double json_real(json_object *o, const char *name);
bool json_flag(json_object *o, const char *name);
/* These functions add one member to a JSON object. */
void add_number(json_object *o, const char *name, uint64_t value);
void add_text(json_object *o, const char *name, const char *text);
void add_real(json_object *o, const char *name, double value);
/* Writes an object to a file ("-": standard output), or calls die(). */
void write_json(json_object *object, const char *path);

/*
 * Replaces this process with `python3 -m MODULE` and these words. It finds the package of a build
 * tree by its path relative to this program, whose folder it gets in $PEERCACHE_PROGRAMS.
 */
_Noreturn void become_python(const char *module, int count, char **words);

#endif
