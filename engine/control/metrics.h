/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics thread: serves /metrics, /healthz, /readyz, /api and the dashboard over HTTP, from
 * snapshots. The loop starts and ends it and never waits for it otherwise; a port that is taken is
 * a warning. Functions are the loop's.
 */
#ifndef CONTROL_METRICS_H
#define CONTROL_METRICS_H

struct control;

/* Steps of control_open(). 0 or -errno: no memory or no thread. */
int metrics_open(struct control *control);
void metrics_close(struct control *control);

#endif
