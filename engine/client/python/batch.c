/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods get, set, exists, prefix and remove of Session. Any Python thread may call them; a
 * call runs in the calling thread. It converts Python's lists into the lane's arrays, runs the
 * batch without the interpreter's lock, and converts the results into a list of bool. The module
 * makes no Python object per page: the library reads keys from the memory of Python's own objects
 * (the tuple `keys` keeps them alive), and addresses and sizes are numbers.
 *
 * len(ptrs) / len(keys) consecutive segments make one page. A staged call does not pass the
 * caller's segments to the library: a set copies the segments into the lane's stage before it
 * calls the library, a get copies the pages from the stage into the segments after the library
 * returned. The calling thread makes both copies.
 */
#include "engine/client/python/session.h"

#include <errno.h>
#include <string.h>
#include <time.h>

/* bytes that a staged call copies per batch of the library; a single page may be larger */
#define STAGE_BYTES (64u << 20)
#define SEGMENTS_ALL_MAX (1u << 26) /* exclusive upper limit of the segments of one call */

enum verb { VERB_GET, VERB_SET, VERB_EXISTS, VERB_REMOVE };

struct call {
	struct py_session *session;
	struct lane *lane;
	enum verb verb;
	const char *name_space;
	PyObject *keys;         /* a tuple; this struct holds a reference */
	size_t pages, segments; /* number of keys, and of segments, of the whole call */
	unsigned timeout_ms;
	int staged; /* nonzero: copy through the lane's stage; an int for PyArg_ParseTuple() */
	int error;  /* 0, or negative: the whole call failed, and no page is a hit */
};

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- out of Python -------------------------------------------------------------------------- */

/* Fills the lane's pages with the keys. False: a Python exception is set. */
static bool read_keys(struct call *c)
{
	for (size_t i = 0; i < c->pages; i++) {
		PyObject *key = PyTuple_GetItem(c->keys, (Py_ssize_t)i);
		struct pc_page *page = &c->lane->page[i];
		Py_ssize_t bytes;
		const char *text;

		if (PyUnicode_Check(key)) {
			text = PyUnicode_AsUTF8AndSize(key, &bytes);
		} else if (PyBytes_Check(key)) {
			text = PyBytes_AsString(key);
			bytes = PyBytes_Size(key);
		} else {
			PyErr_SetString(PyExc_TypeError, "a key is str or bytes");
			return false;
		}
		if (!text)
			return false;
		*page = (struct pc_page){.key = text, .key_bytes = (size_t)bytes};
	}
	return true;
}

static bool read_number(PyObject *number, uint64_t *ret_value)
{
	*ret_value = PyLong_AsUnsignedLongLong(number);
	return *ret_value != UINT64_MAX || !PyErr_Occurred();
}

/*
 * Fills the lane's segments and points each page at its share of them. ptrs is a tuple of
 * addresses; sizes is a tuple of lengths in bytes, or one number for all segments. False: a Python
 * exception is set.
 */
static bool read_segments(struct call *c, PyObject *ptrs, PyObject *sizes)
{
	size_t each = c->segments / c->pages;
	uint64_t base, bytes = 0;

	if (PyLong_Check(sizes) && !read_number(sizes, &bytes))
		return false;
	for (size_t i = 0; i < c->segments; i++) {
		if (!read_number(PyTuple_GetItem(ptrs, (Py_ssize_t)i), &base))
			return false;
		if (!PyLong_Check(sizes) &&
			!read_number(PyTuple_GetItem(sizes, (Py_ssize_t)i), &bytes))
			return false;
		c->lane->segment[i] = (struct pc_segment){(void *)(uintptr_t)base, bytes};
	}
	for (size_t i = 0; i < c->pages; i++) {
		c->lane->page[i].segments = &c->lane->segment[i * each];
		/* SEGMENTS_ALL_MAX bounds `each`, so the cast loses no bits. */
		c->lane->page[i].segment_count = (unsigned)each;
	}
	return true;
}

/* Sets c->segments. False: the numbers do not fit together, and ValueError is set. */
static bool shapes_fit(struct call *c, PyObject *ptrs, PyObject *sizes)
{
	c->segments = (size_t)PyTuple_Size(ptrs);
	if (c->segments && c->segments % c->pages == 0 && c->segments < SEGMENTS_ALL_MAX &&
		(PyLong_Check(sizes) || (size_t)PyTuple_Size(sizes) == c->segments))
		return true;
	PyErr_Format(PyExc_ValueError, "%zu keys do not divide %zu segments, or sizes differ",
		c->pages, c->segments);
	return false;
}

/* ---- without the interpreter's lock --------------------------------------------------------- */

/* Calls the library for `count` pages. Returns its 0 or negative errno. */
static int ask(struct call *c, const struct pc_page *pages, size_t count, unsigned timeout_ms,
	enum pc_result *result)
{
	struct pc_channel *ch = c->lane->channel;
	unsigned n = (unsigned)count;

	switch (c->verb) {
	case VERB_GET: return pc_get(ch, pages, n, timeout_ms, result);
	case VERB_SET: return pc_set(ch, pages, n, timeout_ms, result);
	case VERB_EXISTS: return pc_exists(ch, pages, n, timeout_ms, result);
	default: return pc_remove(ch, pages, n, timeout_ms, result);
	}
}

static size_t page_bytes(const struct pc_page *page)
{
	size_t bytes = 0;

	for (unsigned s = 0; s < page->segment_count; s++)
		bytes += page->segments[s].bytes;
	return bytes;
}

/* Copies a page between its segments and the stage; `in`: from the segments to the stage. */
static void copy(const struct pc_page *page, unsigned char *stage, bool in)
{
	for (unsigned s = 0; s < page->segment_count; s++) {
		const struct pc_segment *segment = &page->segments[s];

		if (in)
			memcpy(stage, segment->base, segment->bytes);
		else
			memcpy(segment->base, stage, segment->bytes);
		stage += segment->bytes;
	}
}

/*
 * Returns the number of pages, starting with page `first`, that one batch of a staged call moves:
 * their total length is at most STAGE_BYTES, or the batch is a single page. *ret_bytes: the total
 * length.
 */
static size_t stage_share(const struct call *c, size_t first, size_t *ret_bytes)
{
	size_t total = 0, i;

	for (i = first; i < c->pages; i++) {
		size_t bytes = page_bytes(&c->lane->page[i]);

		if (i > first && total + bytes > STAGE_BYTES)
			break;
		total += bytes;
	}
	*ret_bytes = total;
	return i - first;
}

/* Moves pages first to first + count - 1 through the lane's stage, which has room for them. */
static int run_share(struct call *c, size_t first, size_t count, unsigned timeout_ms)
{
	struct lane *lane = c->lane;
	/*
	 * prepare() made room for a second set of pages and segments, which describe the stage.
	 * They follow the caller's in the same arrays.
	 */
	struct pc_page *staged = &lane->page[c->pages];
	struct pc_segment *segment = &lane->segment[c->segments];
	unsigned char *at = lane->stage;
	int rc;

	for (size_t i = 0; i < count; i++) {
		const struct pc_page *page = &lane->page[first + i];

		segment[i] = (struct pc_segment){at, page_bytes(page)};
		staged[i] = *page;
		staged[i].segments = &segment[i];
		staged[i].segment_count = 1;
		if (c->verb == VERB_SET)
			copy(page, at, true);
		at += segment[i].bytes;
	}
	pthread_mutex_lock(&c->session->lock);
	c->session->bytes_sidecar += (uint64_t)(at - lane->stage);
	pthread_mutex_unlock(&c->session->lock);
	rc = ask(c, staged, count, timeout_ms, &lane->result[first]);
	for (size_t i = 0; !rc && c->verb == VERB_GET && i < count; i++)
		if (lane->result[first + i] == PC_HIT)
			copy(&lane->page[first + i], segment[i].base, false);
	return rc;
}

/* Runs a staged call as a series of batches. Returns 0, or negative if one of them failed. */
static int run_staged(struct call *c)
{
	uint64_t end_ms = now_ms() + c->timeout_ms;
	int rc = 0;

	for (size_t first = 0; first < c->pages && !rc;) {
		uint64_t now = now_ms();
		size_t bytes, count = stage_share(c, first, &bytes);

		if (!lane_stage(c->lane, bytes < STAGE_BYTES ? STAGE_BYTES : bytes))
			return -1;
		rc = run_share(c, first, count, now < end_ms ? (unsigned)(end_ms - now) : 1);
		first += count;
	}
	return rc;
}

/* Runs the call and counts its results. The lane belongs to this call until lane_give(). */
static void run(struct call *c)
{
	pc_channel_name_space(c->lane->channel, c->name_space);
	if (c->staged)
		c->error = run_staged(c);
	else
		c->error = ask(c, c->lane->page, c->pages, c->timeout_ms, c->lane->result);
	for (size_t i = 0; c->error && i < c->pages; i++)
		/* The whole call failed, so the library set no results: count invalid pages. */
		c->lane->result[i] = PC_INVALID;
	session_count(c->session, c->lane->result, c->pages);
}

/* ---- into Python ---------------------------------------------------------------------------- */

/* List of bool, one per key: True for PC_HIT. */
static PyObject *hits(const struct call *c)
{
	PyObject *list = PyList_New((Py_ssize_t)c->pages);

	for (size_t i = 0; list && i < c->pages; i++) {
		bool hit = c->lane && !c->error && c->lane->result[i] == PC_HIT;

		if (PyList_SetItem(list, (Py_ssize_t)i, PyBool_FromLong(hit))) {
			Py_DECREF(list);
			return NULL;
		}
	}
	return list;
}

/* Number of leading keys whose result is PC_HIT. */
static PyObject *prefix(const struct call *c)
{
	size_t n = 0;

	while (c->lane && !c->error && n < c->pages && c->lane->result[n] == PC_HIT)
		n++;
	return PyLong_FromSize_t(n);
}

/* Sizes the lane's arrays for the call and fills them. False: a Python exception is set. */
static bool prepare(struct call *c, PyObject *ptrs, PyObject *sizes)
{
	size_t pages = c->pages, segments = c->segments;

	if (c->staged) {
		segments += pages;
		pages *= 2;
	}
	if (!lane_room(c->lane, pages, segments)) {
		PyErr_NoMemory();
		return false;
	}
	return read_keys(c) && (!ptrs || read_segments(c, ptrs, sizes));
}

/*
 * Runs a call from the lane's choice to the Python result, which `answer` makes. Without a lane the
 * result is a miss for every key: the session is closed, or no channel is available.
 */
static PyObject *call(
	struct call *c, PyObject *ptrs, PyObject *sizes, PyObject *(*answer)(const struct call *c))
{
	enum purpose purpose =
		c->verb == VERB_GET || c->verb == VERB_EXISTS ? PURPOSE_READ : PURPOSE_WRITE;
	PyObject *result = NULL;

	if (!c->pages)
		return answer(c);
	Py_BEGIN_ALLOW_THREADS c->lane = lane_take(c->session, purpose);
	Py_END_ALLOW_THREADS if (!c->lane) return answer(c);
	if (prepare(c, ptrs, sizes)) {
		Py_BEGIN_ALLOW_THREADS run(c);
		Py_END_ALLOW_THREADS result = answer(c);
	}
	lane_give(c->session, purpose, c->lane);
	return result;
}

/* get and set: calls with segments. */
static PyObject *move(PyObject *self, PyObject *args, enum verb verb)
{
	struct call c = {.session = (struct py_session *)self, .verb = verb};
	PyObject *keys, *ptrs, *sizes, *result = NULL;

	if (!PyArg_ParseTuple(
		    args, "sOOOI|p", &c.name_space, &keys, &ptrs, &sizes, &c.timeout_ms, &c.staged))
		return NULL;
	c.keys = PySequence_Tuple(keys);
	ptrs = PySequence_Tuple(ptrs);
	sizes = PyLong_Check(sizes) ? Py_NewRef(sizes) : PySequence_Tuple(sizes);
	if (c.keys && ptrs && sizes) {
		c.pages = (size_t)PyTuple_Size(c.keys);
		if (!c.pages || shapes_fit(&c, ptrs, sizes))
			result = call(&c, ptrs, sizes, hits);
	}
	Py_XDECREF(c.keys);
	Py_XDECREF(ptrs);
	Py_XDECREF(sizes);
	return result;
}

/* exists, prefix and remove: calls without segments. */
static PyObject *look(
	PyObject *self, PyObject *args, enum verb verb, PyObject *(*answer)(const struct call *c))
{
	struct call c = {.session = (struct py_session *)self, .verb = verb};
	PyObject *keys, *result;

	if (!PyArg_ParseTuple(args, "sOI", &c.name_space, &keys, &c.timeout_ms))
		return NULL;
	c.keys = PySequence_Tuple(keys);
	if (!c.keys)
		return NULL;
	c.pages = (size_t)PyTuple_Size(c.keys);
	result = call(&c, NULL, NULL, answer);
	Py_DECREF(c.keys);
	return result;
}

PyObject *batch_get(PyObject *self, PyObject *args)
{
	return move(self, args, VERB_GET);
}

PyObject *batch_set(PyObject *self, PyObject *args)
{
	return move(self, args, VERB_SET);
}

PyObject *batch_exists(PyObject *self, PyObject *args)
{
	return look(self, args, VERB_EXISTS, hits);
}

PyObject *batch_prefix(PyObject *self, PyObject *args)
{
	return look(self, args, VERB_EXISTS, prefix);
}

PyObject *batch_remove(PyObject *self, PyObject *args)
{
	return look(self, args, VERB_REMOVE, hits);
}

PyObject *session_clear(PyObject *self, PyObject *args)
{
	struct py_session *session = (struct py_session *)self;
	unsigned timeout_ms;
	const char *group;
	struct lane *lane;
	uint64_t pages = 0;
	int rc = -ENOTCONN;

	if (!PyArg_ParseTuple(args, "zI", &group, &timeout_ms))
		return NULL;
	Py_BEGIN_ALLOW_THREADS lane = lane_take(session, PURPOSE_WRITE);
	if (lane)
		rc = pc_clear(lane->channel, group, timeout_ms, &pages);
	Py_END_ALLOW_THREADS if (lane) lane_give(session, PURPOSE_WRITE, lane);
	if (rc)
		return session_raise(rc);
	return PyLong_FromUnsignedLongLong(pages);
}
