/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine shows of itself: snapshots, findings, metrics over HTTP, the dashboard and the
 * summaries that engines exchange. This is all that the loop, the steps of control_open() and other
 * rooms use; README.md beside it says how the parts work together.
 *
 * Functions are the control plane's thread's. They only read the rest of the control plane.
 */
#ifndef CONTROL_OBSERVE_H
#define CONTROL_OBSERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "engine/abi/message.pb-c.h"

struct control;
struct rpc_link;
struct snapshot;

/* ---- snapshots: the engine's state at one moment, as plain data ------------------------------ */

#define SNAPSHOT_MS 500u        /* between two that the loop publishes */
#define SNAPSHOT_VIEWED_MS 200u /* the same, while a page shows this engine: view_active() */

/*
 * Fills *ret; reads rails and clients and changes nothing but control->moments, the past snapshots
 * that it is compared with.
 */
void snapshot_take(struct control *control, struct snapshot *ret);
/* For control->moments; the caller frees it with free(). NULL: no memory. */
struct moments *moments_open(void);

/*
 * Takes a snapshot and makes the report of it as JSON, with findings. 0, and the caller frees
 * *ret_text, which is zero-terminated and has *ret_bytes characters, or -ENOMEM.
 */
int snapshot_report(struct control *control, char **ret_text, size_t *ret_bytes);

/* CLOCK_REALTIME in ms since 1970. Any thread. */
static inline uint64_t snapshot_unix_ms(void)
{
	struct timespec wall;

	clock_gettime(CLOCK_REALTIME, &wall);
	return (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
}

/*
 * The newest snapshot, handed from the loop to one other thread without waiting on either side: of
 * three buffers the writer owns one, the reader one, and they exchange theirs for the third. The
 * reader is the metrics thread (snapshot_inner.h).
 */
struct snapshots;

/* NULL: no memory. */
struct snapshots *snapshots_open(void);
void snapshots_close(struct snapshots *snapshots);
/* The buffer to fill, then make it the newest. */
struct snapshot *snapshots_writing(struct snapshots *snapshots);
void snapshots_publish(struct snapshots *snapshots);

/* ---- the metrics thread: /metrics, /healthz, /readyz, /api and the dashboard ----------------- */

/*
 * Steps of control_open(): the port is bound before memory is made, and listens once the engine
 * serves. A port that is taken is an error if metrics.port or metrics.address was given, else a
 * warning. 0 or -errno. The loop never waits for the thread but in metrics_close().
 */
int metrics_port_open(struct control *control);
/* Is metrics.address one of this host, for any port? 0 or -errno after logging the reason. */
int metrics_port_check(struct control *control);
/* Are metrics.token_file and tls_dir right? Part of metrics_port_open(). 0 or -errno, logged. */
int metrics_files_check(struct control *control);
void metrics_port_close(struct control *control);
int metrics_open(struct control *control);
void metrics_close(struct control *control);

/* ---- the cluster view: summaries of the members, while a page is watched --------------------- */

/* Steps of control_open(). 0 or -ENOMEM. */
int view_open(struct control *control);
void view_close(struct control *control);

/*
 * Called every LOOP_LAG_US: sends the requests that are due. watched_ns: the time of the last
 * request of the page, 0: none.
 */
void view_tick(struct control *control, uint64_t watched_ns, uint64_t now_ns);
/*
 * A page of this engine or of a member that asks this one is watched: snapshots are made more
 * often, so that a fault of any member is seen within two seconds.
 */
bool view_active(const struct control *control, uint64_t watched_ns, uint64_t now_ns);
/* Makes this engine's summary from a snapshot and puts it into its own row there. */
void view_own(struct control *control, struct snapshot *s);

/* Messages of other engines; false: the message breaks a rule, and the caller closes the link. */
bool view_serve_ask(struct control *control, struct rpc_link *link);
bool view_serve_summary(struct control *control, struct rpc_link *link, const Pc__Summary *summary);

#endif
