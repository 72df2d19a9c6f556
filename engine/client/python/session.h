/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared declarations of the extension module peercache._peercache.
 *
 *   session.c   the type Session: opens and closes a session, registers memory, returns counts
 *   lane.c      lanes: chooses the channel of a call and owns the call's buffers
 *   batch.c     one call about pages: converts Python's lists to a batch and the results back
 *
 * Any Python thread may call the methods. Code that blocks runs without the interpreter's lock.
 */
#ifndef PEERCACHE_PYTHON_SESSION_H
#define PEERCACHE_PYTHON_SESSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "engine/client/peercache.h"

#define RESULTS 9 /* number of values of enum pc_result */

/*
 * Purpose of a call: get and exists read, set and remove write. Calls of one purpose share lanes,
 * so that a get uses the locations that an exists left in the cache of the lane's channel.
 */
enum purpose { PURPOSE_READ, PURPOSE_WRITE, PURPOSES };

/* A channel and the buffers of a batch. Owned by the call that took it, else by the session. */
struct lane {
	struct lane *next; /* next idle lane of the session's list */
	struct pc *pc; /* the library's session of `channel` and `stage`; used only during a call */
	struct pc_channel *channel;
	struct pc_page *page;
	struct pc_segment *segment;
	enum pc_result *result;
	size_t pages, segments; /* capacities of `page` and `result`, and of `segment` */
	unsigned char *stage;   /* registered memory of the library for staged calls, or NULL */
	size_t stage_bytes;     /* size of `stage` */
};

/* The counts of a channel, or sums of them. */
struct lane_counts {
	struct pc_counts pages;
	struct pc_verify_counts verify;
};

/* The Python object Session. `lock` guards the other fields. */
struct py_session {
	PyObject_HEAD pthread_mutex_t lock;
	pthread_cond_t idle;         /* signalled when `busy` becomes 0; close() waits for it */
	struct pc *pc;               /* NULL: the session is closed */
	struct lane *lane[PURPOSES]; /* lists of idle lanes; the most recently returned is first */
	unsigned busy;               /* running calls, which keep `pc` open */
	unsigned lanes;              /* lanes opened since the session was opened */
	struct lane_counts counts;   /* sums of the closed channels' counts */
	uint64_t results[RESULTS];   /* pages by result, indexed by enum pc_result */
	uint64_t calls;              /* calls about pages that found the session open */
	uint64_t bytes_sidecar;      /* bytes of the pages of staged calls */
};

/* Closes the lane's channel, adds its counts to s->counts and frees the lane's buffers. */
void lane_free(struct py_session *s, struct lane *lane);
/* Adds the channel's counts to *sum. No call may be using the channel. */
void lane_counts(struct lane_counts *sum, const struct pc_channel *channel);
/*
 * Takes an idle lane or opens one, and counts a running call. NULL: the session is closed, or no
 * channel is available. Called without the interpreter's lock, because opening a channel blocks.
 */
struct lane *lane_take(struct py_session *s, enum purpose purpose);
/* Returns a lane to the session's idle lanes and ends the running call. */
void lane_give(struct py_session *s, enum purpose purpose, struct lane *lane);
/* Gives the lane's arrays room for these numbers of pages and segments. False: out of memory. */
bool lane_room(struct lane *lane, size_t pages, size_t segments);
/*
 * Gives the lane a stage of at least `bytes` of registered memory. False: the library could not
 * allocate it; the former stage stays.
 */
bool lane_stage(struct lane *lane, size_t bytes);
/* Adds the results of `count` pages to s->results. */
void session_count(struct py_session *s, const enum pc_result *result, size_t count);

/* Methods of Session (batch.c); their help texts are in session.c. */
PyObject *batch_get(PyObject *self, PyObject *args);
PyObject *batch_set(PyObject *self, PyObject *args);
PyObject *batch_exists(PyObject *self, PyObject *args);
PyObject *batch_prefix(PyObject *self, PyObject *args);
PyObject *batch_remove(PyObject *self, PyObject *args);
PyObject *session_clear(PyObject *self, PyObject *args);
/* session.c. Raises the OSError of a negative errno, with the text of pc_error(). Returns NULL. */
PyObject *session_raise(int rc);

#endif
