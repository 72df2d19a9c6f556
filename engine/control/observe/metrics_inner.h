/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of /metrics, which metrics.c renders. The thread's functions are in observe.h.
 */
#ifndef CONTROL_METRICS_INNER_H
#define CONTROL_METRICS_INNER_H

#include <stdbool.h>
#include <stddef.h>

struct health;
struct snapshot;

/*
 * A snapshot in the Prometheus text format. Labels are rail, core, op, result, state, kind and
 * version alone: the number of series does not grow with members, keys or sessions.
 *
 * `health`: the findings of now, from which the alerts are made. `compat`: also the metric names of
 * PeerCache 0.8.4 with their label node. 0 and *ret_text, which the caller frees, of *ret_bytes, or
 * -ENOMEM. Any thread.
 */
int metrics_text(const struct snapshot *snapshot, const struct health *health, bool compat,
	char **ret_text, size_t *ret_bytes);

#endif
