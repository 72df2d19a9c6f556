/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the command-line tools share: sizes and numbers from arguments, keys and page content made
 * from a number, a latency histogram, the report of an engine. Any thread; no state of its own.
 */
#ifndef TOOLS_COMMON_H
#define TOOLS_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <json-c/json.h>

#include "engine/client/peercache.h"

/* Prints "NAME: message" to stderr and exits with 2: wrong usage, or nothing to work with. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --version: prints the name of the program and the version of the library it is linked with. */
void print_version(void);

/* "128KiB", "64k", "1GiB", "4096" -> bytes; dies naming the option when it is no size in range. */
uint64_t parse_size(const char *option, const char *text, uint64_t min, uint64_t max);
uint64_t parse_number(const char *option, const char *text, uint64_t min, uint64_t max);

uint64_t now_ns(void); /* CLOCK_MONOTONIC */
uint64_t mix64(uint64_t x);

/* ---- pages made from a number ---------------------------------------------------------------- */

#define KEY_TEXT_BYTES 64

/* 64 hex characters, as SGLang's page keys are; not terminated. */
void key_text(uint64_t id, char ret_key[KEY_TEXT_BYTES]);
/* Every 8 bytes of a page differ from page to page and from each other. */
void content_fill(void *page, size_t bytes, uint64_t id);
bool content_is(const void *page, size_t bytes, uint64_t id);

/* pc_get, pc_set, pc_exists or pc_remove. */
typedef int (*page_call)(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results);

/* ---- latencies ------------------------------------------------------------------------------- */

/* Log-linear: 32 buckets a power of two, so a percentile is within 3%. 1 ns to 2^40 ns. */
#define HISTOGRAM_BUCKETS (40 * 32)
struct histogram {
	uint64_t count[HISTOGRAM_BUCKETS];
	uint64_t total;
	uint64_t max_ns;
};
void histogram_add(struct histogram *h, uint64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);
double histogram_us(const struct histogram *h, double fraction); /* 0.5: median; 0 when empty */

/* ---- engines --------------------------------------------------------------------------------- */

#define SOCKETS_MAX 64
/*
 * Splits a comma-separated list of sockets; NULL: $PEERCACHE_SOCKETS, else the library's default.
 * Returns how many; they lie in *ret_text, which the caller frees.
 */
unsigned parse_sockets(const char *list, const char **ret_sockets, char **ret_text);
/* Opens a session or dies saying why. */
struct pc *open_session(const char *socket, const char *name_space);
/* The engine's report, parsed; NULL when it does not answer. json_object_put() it. */
json_object *engine_report(struct pc *pc);
/* A number in it, "counters.pages_evicted"; 0 when it is not there. */
int64_t report_number(json_object *report, const char *path);
/* One member of a JSON object. */
void add_number(json_object *o, const char *name, uint64_t value);
void add_real(json_object *o, const char *name, double value);
/* Writes an object to a file ("-": standard output), or dies. */
void write_json(json_object *object, const char *path);

#endif
