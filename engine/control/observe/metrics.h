/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metrics thread: serves /metrics, /healthz, /readyz, /api and the dashboard over HTTP, from
 * snapshots. The loop starts and ends it and never waits for it otherwise. A port that is taken is
 * an error if metrics.port or metrics.address was given, else a warning. Functions are the loop's.
 */
#ifndef CONTROL_METRICS_H
#define CONTROL_METRICS_H

struct control;

/*
 * Steps of control_open(): the port is bound before memory is made, and listens once the engine
 * serves. 0 or -errno.
 */
int metrics_port_open(struct control *control);
void metrics_port_close(struct control *control);
/* The caller owns *ret_fd, which listens; -1: the engine runs without metrics. 0 or -errno. */
int metrics_port_listen(struct control *control, int *ret_fd);
int metrics_open(struct control *control);
void metrics_close(struct control *control);

#endif
