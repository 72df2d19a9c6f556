/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared declarations of the extension module peercache._peercache.
 *
 *   session.c   the type Session: opens and closes a session, registers memory, returns counts
 *   texts.c     tells the texts of stored keys to peercache-routers
 *   told.c      what came of the pages: counts and texts by outcome
 *   lane.c      lanes: chooses the channel of a call and owns the call's buffers
 *   batch.c     one call about pages: converts Python's lists to a batch and the results back
 *   channel.c   the type Channel: calls that do not wait
 *
 * Any Python thread may call the methods. Code that blocks runs without the interpreter's lock.
 */
#ifndef PEERCACHE_PYTHON_SESSION_H
#define PEERCACHE_PYTHON_SESSION_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "engine/client/peercache.h"

/*
 * What came of a page: a result of the library (enum pc_result), or the reason why the call did not
 * reach the library. The one list of what counts() and failures() tell.
 */
enum outcome {
	OUTCOME_NO_CHANNEL = PC_LONGER + 1, /* no channel could be opened */
	OUTCOME_NO_MEMORY,                  /* no memory for the call's arrays or its stage */
	OUTCOME_CLOSED,                     /* the session is closed */
	OUTCOME_INHERITED,                  /* this process is a child of fork() */
	OUTCOMES
};

#define OUTCOME_TEXT_BYTES 512 /* as long as any text of the library */

/* The pages with one outcome. */
struct told {
	uint64_t pages, calls;         /* numbers of pages, and of calls that had some */
	char text[OUTCOME_TEXT_BYTES]; /* what is wrong with the last one and what to do; or "" */
};

/* bytes that a staged call copies per batch of the library: also the longest page */
#define STAGE_BYTES (64u << 20)

/*
 * Purpose of a call: set writes, others read. Calls of one purpose share lanes, so that a get uses
 * the locations that an exists left in the cache of the lane's channel, and remove drops them.
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
	uint64_t *bytes;        /* lengths of the pages of get_sized() */
	size_t pages, segments; /* capacities of `page`, `result` and `bytes`, and of `segment` */
	unsigned char *stage;   /* STAGE_BYTES of the library's memory for staged calls, or NULL */
	uint64_t bytes_sidecar; /* bytes of the pages of staged calls */
};

/* The counts of a lane, or sums of them. */
struct lane_counts {
	struct pc_counts pages;
	struct pc_verify_counts verify;
	uint64_t bytes_sidecar;
};

/* The Python object Session. `lock` guards the other fields, except the first two. */
struct py_session {
	PyObject_HEAD unsigned forks; /* number of forks above the process that uses it; GIL */
	bool inherited; /* a fork() separates this process from the one that opened it; GIL */
	pthread_mutex_t lock;
	pthread_cond_t idle;         /* signalled when `busy` becomes 0; close() waits for it */
	struct pc *pc;               /* NULL: the session is closed */
	struct lane *lane[PURPOSES]; /* lists of idle lanes; the most recently returned is first */
	unsigned busy;               /* running calls, which keep `pc` open */
	unsigned channels;           /* open objects Channel; the last one closes `ended` */
	struct pc *ended;            /* of a session that was closed before its objects Channel */
	unsigned lanes;              /* lanes opened since the session was opened */
	struct lane_counts counts;   /* sums of the closed lanes' counts */
	struct told told[OUTCOMES];  /* by enum pc_result, or enum outcome */
	uint64_t calls;              /* calls about pages that found the session open */
};

enum verb { VERB_GET, VERB_GET_SIZED, VERB_SET, VERB_EXISTS, VERB_PREFETCH, VERB_REMOVE, VERB_PIN };

/* One call about pages. */
struct call {
	struct py_session *session;
	struct py_channel *channel; /* NULL: the call waits for its end */
	struct lane *lane;
	enum verb verb;
	const char *name_space;
	PyObject *keys;         /* a tuple; this struct holds a reference */
	size_t pages, segments; /* number of keys, and of segments, of the whole call */
	unsigned timeout_ms;    /* of the whole call, with all that it opens and all its batches */
	uint64_t end_ms;        /* the deadline that follows from it */
	int storing;            /* exists: nonzero: a set follows, and its lane is used */
	int gap;                /* set: nonzero: as pc_channel_gap() */
	unsigned seconds;       /* pin; 0: unpin */
	int staged;   /* nonzero: copy through the lane's stage; an int for PyArg_ParseTuple() */
	int results;  /* nonzero: the answer names each page's result; an int as above */
	bool leading; /* only the leading hits count: no batch after one with another result */
	size_t done;  /* number of leading pages whose result is in lane->result */
};

/* Makes the Python result of a call. */
typedef PyObject *answer_fn(const struct call *c);

/* The Python object Channel; `lock` guards the other fields, except `forks`: see py_session. */
struct py_channel {
	PyObject_HEAD struct py_session *session; /* a reference */
	unsigned forks;
	pthread_mutex_t lock;
	struct pc_channel *channel; /* NULL: closed */
	struct py_call *first;      /* calls that poll() has not returned */
	uint64_t number;            /* of the last call */
};

/* Frees the lane's arrays. */
void lane_free_arrays(struct lane *lane);
/* Closes the lane's channel and frees the lane with its buffers. It is in no list. */
void lane_free(struct lane *lane);
/* Adds the lane's counts to *sum. No call may be using the lane. */
void lane_counts(struct lane_counts *sum, const struct lane *lane);
#define LANE_CLOSED 1 /* the session is closed */
/*
 * Takes an idle lane or opens one by `end_ms`, and counts a running call. Returns 0; else *ret_lane
 * is NULL: LANE_CLOSED, or the library's negative errno, whose text pc_error() has. Called without
 * the interpreter's lock, because opening a channel blocks.
 */
int lane_take(struct py_session *s, enum purpose purpose, uint64_t end_ms, struct lane **ret_lane);
/* Returns a lane to the session's idle lanes and ends the running call. */
void lane_give(struct py_session *s, enum purpose purpose, struct lane *lane);
/* Gives the lane's arrays room for these numbers of pages and segments. False: out of memory. */
bool lane_room(struct lane *lane, size_t pages, size_t segments);
/*
 * Gives the lane its stage, STAGE_BYTES of registered memory, by `end_ms`. Returns 0 or the
 * library's negative errno.
 */
int lane_stage(struct lane *lane, uint64_t end_ms);
/* Milliseconds of CLOCK_MONOTONIC, and how many are left until `end_ms`; at least 1. */
uint64_t now_ms(void);
unsigned rest_ms(uint64_t end_ms);
/* Adds `pages` pages of one call with this outcome. `text`: what is wrong, or "". */
void session_tell(struct py_session *s, unsigned outcome, size_t pages, const char *text);
/* session_tell() for each result of a batch; right after the batch, in its thread. */
void session_tell_results(
	struct py_session *s, const struct lane *lane, const enum pc_result *result, size_t count);
/* Ends a running call. */
void session_leave(struct py_session *s);
/* Called first by every method, with the interpreter's lock: notices a fork(). */
void session_enter(struct py_session *s);

/* Methods of Session (told.c, batch.c); their help texts are in session.c. */
PyObject *session_failures(PyObject *self, PyObject *nothing);
PyObject *batch_get(PyObject *self, PyObject *args);
PyObject *batch_get_sized(PyObject *self, PyObject *args);
PyObject *batch_set(PyObject *self, PyObject *args);
PyObject *batch_exists(PyObject *self, PyObject *args);
PyObject *batch_prefetch(PyObject *self, PyObject *args);
PyObject *batch_prefix(PyObject *self, PyObject *args);
PyObject *batch_remove(PyObject *self, PyObject *args);
PyObject *batch_pin(PyObject *self, PyObject *args);
PyObject *batch_match(PyObject *self, PyObject *args);
PyObject *session_clear(PyObject *self, PyObject *args);
/*
 * session.c. Raises the OSError of the library's negative errno, with the text of pc_error(); that
 * of a session that is a parent's; the ValueError of a closed one. Returns NULL.
 */
PyObject *session_raise(int error);
PyObject *session_raise_inherited(void);
PyObject *session_raise_closed(void);
/*
 * Returns s->pc for a call without a lane and counts the call as running, so that close() waits
 * until session_leave(). NULL: the session is closed, and ValueError is set.
 */
struct pc *session_hold(struct py_session *s);
extern PyTypeObject *session_type;

/*
 * batch.c. Sizes the lane's arrays for the call and fills them. False: a Python exception is set.
 */
bool call_prepare(struct call *c, PyObject *ptrs, PyObject *sizes);
/* Submits pages to the library, with the rest of the time. Returns its 0 or negative errno. */
int call_submit(struct call *c, const struct pc_page *pages, size_t first, size_t count,
	struct pc_batch **ret_batch);
/* Makes the call with these arguments of a method; `channel` as in struct call. */
PyObject *call_of(
	struct py_session *session, struct py_channel *channel, PyObject *args, enum verb verb);

/* texts.c: tells peercache-routers the texts of keys that are stored. */
void texts_tell(const char *name_space, const struct pc_page *pages, size_t count);

/* channel.c. Submits a call, whose arguments these are. Returns its number as a Python object. */
PyObject *channel_submit(const struct call *c, PyObject *ptrs, PyObject *sizes, answer_fn *answer);
extern PyType_Spec channel_spec;

#endif
