/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics thread: serves /metrics, /healthz, /readyz, /api and the dashboard over HTTP, from
 * snapshots. The loop starts and ends it and never waits for it otherwise. A port that is taken is
 * an error if metrics.port or metrics.address was given, else a warning. Functions are the loop's.
 */
#ifndef CONTROL_METRICS_H
#define CONTROL_METRICS_H

#include <stdbool.h>
#include <stddef.h>

struct control;
struct health;
struct snapshot;

/*
 * Steps of control_open(): the port is bound before memory is made, and listens once the engine
 * serves. 0 or -errno.
 */
int metrics_port_open(struct control *control);
void metrics_port_close(struct control *control);
int metrics_open(struct control *control);
void metrics_close(struct control *control);

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
