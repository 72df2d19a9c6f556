/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared declarations of the extension module peercache._peercache.
 *
 *   session.c   the type Session: opening, closing, memory
 *   lane.c      which channel a call gets
 *   batch.c     one call about pages: Python's lists to a batch, a batch to a list of bool
 *
 * Any Python thread may call. All code that waits runs without the interpreter's lock.
 */
#ifndef PEERCACHE_PYTHON_SESSION_H
#define PEERCACHE_PYTHON_SESSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "engine/client/peercache.h"

#define RESULTS 9 /* number of values of enum pc_result */

/*
 * Purpose of a call. Calls of one purpose share lanes, so that they find the locations which the
 * lane's channel remembers.
 */
enum purpose { PURPOSE_READ, PURPOSE_WRITE, PURPOSES };

/* A channel and the buffers of a batch. Owned by the call that took the lane. */
struct lane {
	struct lane *next;
	struct pc *pc; /* session of the library, valid while a call is running */
	struct pc_channel *channel;
	struct pc_page *page;
	struct pc_segment *segment;
	enum pc_result *result;
	size_t pages, segments; /* capacity of page[] and result[], and of segment[] */
	/* memory registered by the library, through which staged calls copy; or NULL */
	unsigned char *stage;
	size_t stage_bytes;
};

struct session {
	PyObject_HEAD pthread_mutex_t lock;
	pthread_cond_t idle;
	struct pc *pc; /* session of the library; NULL: closed */
	/* per purpose the list of idle lanes; the one given back last is first */
	struct lane *lane[PURPOSES];
	unsigned busy; /* number of calls that are running */
	unsigned lanes;
	struct pc_counts counts; /* sums of the counters of the channels that are closed */
	uint64_t results[RESULTS];
	uint64_t calls;
	uint64_t bytes_sidecar; /* bytes that staged calls have copied */
};

void lane_free(struct session *s, struct lane *lane);
void lane_counts(struct pc_counts *sum, const struct pc_channel *channel);
/*
 * Takes an idle lane or opens one. NULL: the session is closed, or no channel is available. Called
 * without the interpreter's lock.
 */
struct lane *lane_take(struct session *s, enum purpose purpose);
void lane_give(struct session *s, enum purpose purpose, struct lane *lane);
/* Makes room in the lane for at least this many pages and segments. False: out of memory. */
bool lane_room(struct lane *lane, size_t pages, size_t segments);
bool lane_stage(struct lane *lane, size_t bytes);
void session_count(struct session *s, const enum pc_result *result, size_t count);

/* Methods of Session (batch.c). */
PyObject *batch_get(PyObject *self, PyObject *args);
PyObject *batch_set(PyObject *self, PyObject *args);
PyObject *batch_exists(PyObject *self, PyObject *args);
PyObject *batch_prefix(PyObject *self, PyObject *args);
PyObject *batch_remove(PyObject *self, PyObject *args);

#endif
