/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A snapshot as JSON text, for peercachectl, the dashboard and tests. Any thread.
 */
#ifndef CONTROL_REPORT_INNER_H
#define CONTROL_REPORT_INNER_H

#include <stddef.h>
#include <stdint.h>

struct snapshot;

/*
 * `now_ns`: CLOCK_MONOTONIC; the findings are of that moment. 0 with a zero-terminated text of
 * *ret_bytes characters, which the caller frees, or -ENOMEM.
 */
int report_make(
	const struct snapshot *snapshot, uint64_t now_ns, char **ret_text, size_t *ret_bytes);

#endif
