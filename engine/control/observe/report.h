/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as JSON text, for tools and tests: engine, members, rails, counters, clients. Any
 * thread.
 */
#ifndef CONTROL_REPORT_H
#define CONTROL_REPORT_H

#include <stddef.h>

struct health;
struct snapshot;

/*
 * With `health`, the report also has its findings and the latency histograms as bucket counts, for
 * percentiles of the time between two reports; NULL: without. Returns 0 with a zero-terminated
 * text of *ret_bytes characters, which the caller frees, or -ENOMEM.
 */
int report_make(const struct snapshot *snapshot, const struct health *health, char **ret_text,
	size_t *ret_bytes);

#endif
