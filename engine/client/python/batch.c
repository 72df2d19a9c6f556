/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The methods get, get_sized, set, exists, prefix, prefetch, match and remove of Session. Any
 * Python thread may call them; a call runs in the calling thread. It converts Python's lists into
 * the lane's arrays, runs the batch without the interpreter's lock, and converts the results into a
 * list. The module makes no Python object per page: the library reads keys from the memory of
 * Python's own objects (the tuple `keys` keeps them alive), and addresses and sizes are numbers.
 *
 * len(ptrs) / len(keys) consecutive segments make one page. A staged call does not pass the
 * caller's segments to the library: a set copies the segments into the lane's stage before it
 * calls the library, a get copies the pages from the stage into the segments after the library
 * returned. The calling thread makes both copies, so memory of a GPU is refused.
 */
#include "engine/client/python/session.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define SEGMENTS_ALL_MAX (1u << 26) /* exclusive upper limit of the segments of one call */

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
	PyObject *index = PyNumber_Index(number); /* also of numbers of other packages */

	*ret_value = index ? PyLong_AsUnsignedLongLong(index) : 0;
	Py_XDECREF(index);
	if (!PyErr_Occurred())
		return true;
	if (PyErr_ExceptionMatches(PyExc_OverflowError))
		PyErr_SetString(
			PyExc_TypeError, "an address or a length is negative, or above 2^64 - 1");
	return false;
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

int call_submit(struct call *c, const struct pc_page *pages, size_t first, size_t count,
	struct pc_batch **ret_batch)
{
	struct pc_channel *ch = c->lane->channel;
	unsigned n = (unsigned)count, ms = rest_ms(c->end_ms);
	enum pc_result *result = &c->lane->result[first];

	switch (c->verb) {
	case VERB_GET: return pc_submit_get(ch, pages, n, ms, result, ret_batch);
	case VERB_GET_SIZED:
		return pc_submit_get_sized(
			ch, pages, n, ms, result, &c->lane->bytes[first], ret_batch);
	case VERB_SET:
		texts_tell(c->name_space, pages, count);
		pc_channel_gap(ch, c->gap);
		return pc_submit_set(ch, pages, n, ms, result, ret_batch);
	case VERB_EXISTS:
		pc_channel_head(ch, c->storing);
		return pc_submit_exists(ch, pages, n, ms, result, ret_batch);
	case VERB_PREFETCH: return pc_submit_prefetch(ch, pages, n, ms, result, ret_batch);
	case VERB_PIN:
		*ret_batch = NULL;
		return c->seconds ? pc_pin(ch, pages, n, c->seconds, ms, result)
				  : pc_unpin(ch, pages, n, ms, result);
	default: return pc_submit_remove(ch, pages, n, ms, result, ret_batch);
	}
}

/* Calls the library for `count` pages. Returns its 0 or negative errno. */
static int ask(struct call *c, const struct pc_page *pages, size_t first, size_t count)
{
	struct pc_batch *batch = NULL;
	int rc = call_submit(c, pages, first, count, &batch);

	pc_wait(batch);
	return rc;
}

/* Length of a page; more than STAGE_BYTES also for one that the library will refuse. */
static size_t page_bytes(const struct pc_page *page)
{
	size_t bytes = 0;

	for (unsigned s = 0; s < page->segment_count; s++) {
		const struct pc_segment *segment = &page->segments[s];

		if (!segment->base || !segment->bytes || segment->bytes > STAGE_BYTES - bytes)
			return STAGE_BYTES + 1;
		bytes += segment->bytes;
	}
	return bytes;
}

/*
 * Copies the first `bytes` bytes of a page between its segments and the stage; `in`: from the
 * segments to the stage.
 */
static void copy(const struct pc_page *page, unsigned char *stage, size_t bytes, bool in)
{
	const struct pc_segment *segment = page->segments;

	for (size_t n; bytes; bytes -= n, stage += n, segment++) {
		n = segment->bytes < bytes ? segment->bytes : bytes;
		if (in)
			memcpy(stage, segment->base, n);
		else
			memcpy(segment->base, stage, n);
	}
}

/*
 * Returns the number of pages, starting with page `first`, that the next batch of the library
 * moves: PC_BATCH_MAX at most. In a staged call, their total length is at most STAGE_BYTES, or the
 * batch is a single page, which is then too long for the library.
 */
static size_t batch_share(const struct call *c, size_t first)
{
	size_t most = c->pages - first, total = 0, i;

	if (most > PC_BATCH_MAX)
		most = PC_BATCH_MAX;
	if (!c->staged)
		return most;
	for (i = 0; i < most; i++) {
		size_t bytes = page_bytes(&c->lane->page[first + i]);

		if (i && total + bytes > STAGE_BYTES)
			break;
		total += bytes;
	}
	return i;
}

/* Moves pages first to first + count - 1 through the lane's stage. */
static int run_staged(struct call *c, size_t first, size_t count)
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

	if (pc_memory_gpu(lane->pc, lane->page[first].segments, count * c->segments / c->pages)) {
		for (size_t i = first; i < first + count; i++) {
			lane->result[i] = PC_INVALID;
			lane->bytes[i] = 0;
		}
		return 0;
	}
	for (size_t i = 0; i < count; i++) {
		const struct pc_page *page = &lane->page[first + i];

		segment[i] = (struct pc_segment){at, page_bytes(page)};
		staged[i] = *page;
		staged[i].segments = &segment[i];
		staged[i].segment_count = 1;
		if (c->verb == VERB_SET)
			copy(page, at, segment[i].bytes, true);
		at += segment[i].bytes;
	}
	lane->bytes_sidecar += (uint64_t)(at - lane->stage);
	rc = ask(c, staged, first, count);
	for (size_t i = 0; !rc && c->verb != VERB_SET && i < count; i++)
		if (lane->result[first + i] == PC_HIT)
			copy(&lane->page[first + i], segment[i].base,
				c->verb == VERB_GET ? segment[i].bytes : lane->bytes[first + i],
				false);
	return rc;
}

/* Runs one batch of the library. Returns 0 or its negative errno. */
static int run_batch(struct call *c, size_t first, size_t count)
{
	/* a page that the stage has no room for is refused by the library before it is touched */
	bool staged = c->staged && page_bytes(&c->lane->page[first]) <= STAGE_BYTES;
	int rc = staged ? lane_stage(c->lane, c->end_ms) : 0;

	if (rc)
		return rc;
	if (staged)
		return run_staged(c, first, count);
	return ask(c, &c->lane->page[first], first, count);
}

static bool all_hits(const enum pc_result *result, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (result[i] != PC_HIT)
			return false;
	return true;
}

/*
 * Runs the call as a series of batches of the library, which share its deadline, and counts what
 * comes of the pages. The lane belongs to this call until lane_give().
 */
static void run(struct call *c)
{
	if (pc_channel_name_space(c->lane->channel, c->name_space)) {
		session_tell(c->session, OUTCOME_NO_MEMORY, c->pages, pc_error());
		return;
	}
	while (c->done < c->pages) {
		const enum pc_result *result = &c->lane->result[c->done];
		size_t count = batch_share(c, c->done), left = c->pages - c->done;
		int rc;

		if (c->done && now_ms() >= c->end_ms) {
			session_tell(c->session, PC_TIMEOUT, left, "");
			return;
		}
		rc = run_batch(c, c->done, count);
		if (rc) {
			session_tell(c->session, rc == -ETIMEDOUT ? PC_TIMEOUT : OUTCOME_NO_MEMORY,
				left, pc_error());
			return;
		}
		session_tell_results(c->session, c->lane, result, count);
		c->done += count;
		if (c->leading && !all_hits(result, count))
			return;
	}
}

/* ---- into Python ---------------------------------------------------------------------------- */

/* List of bool, one per key: True for PC_HIT; or of int, the results. */
static PyObject *hits(const struct call *c)
{
	PyObject *list = PyList_New((Py_ssize_t)c->pages);

	for (size_t i = 0; list && i < c->pages; i++) {
		/* what did not reach the library */
		enum pc_result result = i < c->done ? c->lane->result[i] : PC_GONE;
		PyObject *answer = c->results ? PyLong_FromLong((long)result)
					      : PyBool_FromLong(result == PC_HIT);

		if (!answer || PyList_SetItem(list, (Py_ssize_t)i, answer)) {
			Py_DECREF(list);
			return NULL;
		}
	}
	return list;
}

/* List of int, one per key: the length of a hit, minus that of a page that is longer; else 0. */
static PyObject *lengths(const struct call *c)
{
	PyObject *list = PyList_New((Py_ssize_t)c->pages);

	for (size_t i = 0; list && i < c->pages; i++) {
		long long bytes = i < c->done ? (long long)c->lane->bytes[i] : 0;
		bool longer = i < c->done && c->lane->result[i] == PC_LONGER;
		PyObject *number = PyLong_FromLongLong(longer ? -bytes : bytes);

		if (!number || PyList_SetItem(list, (Py_ssize_t)i, number)) {
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

	while (n < c->done && c->lane->result[n] == PC_HIT)
		n++;
	return PyLong_FromSize_t(n);
}

bool call_prepare(struct call *c, PyObject *ptrs, PyObject *sizes)
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

/* True if the call has a lane; otherwise its pages are counted. Without the interpreter's lock. */
static bool begin(struct call *c, enum purpose purpose)
{
	int rc;

	rc = lane_take(c->session, purpose, c->end_ms, &c->lane);
	if (rc == 0)
		return true;
	session_tell(c->session,
		rc == LANE_CLOSED  ? OUTCOME_CLOSED
		: rc == -ENOMEM    ? OUTCOME_NO_MEMORY
		: rc == -ETIMEDOUT ? PC_TIMEOUT
				   : OUTCOME_NO_CHANNEL,
		c->pages, rc == LANE_CLOSED ? "" : pc_error());
	return false;
}

/*
 * Runs a call from the lane's choice to the Python result, which `answer` makes. Without a lane the
 * result is a miss for every key.
 */
static PyObject *call(struct call *c, PyObject *ptrs, PyObject *sizes, answer_fn *answer)
{
	enum purpose purpose = c->verb == VERB_SET || c->storing ? PURPOSE_WRITE : PURPOSE_READ;
	PyObject *result = NULL;
	bool begun;

	c->end_ms = now_ms() + (c->timeout_ms ? c->timeout_ms : PC_TIMEOUT_MS_DEFAULT);
	if (c->channel)
		return channel_submit(c, ptrs, sizes, answer);
	session_enter(c->session);
	if (c->session->inherited && c->pages)
		session_tell(c->session, OUTCOME_INHERITED, c->pages, "");
	if (c->session->inherited || !c->pages)
		return answer(c);
	Py_BEGIN_ALLOW_THREADS begun = begin(c, purpose);
	Py_END_ALLOW_THREADS if (!begun) return answer(c);
	if (call_prepare(c, ptrs, sizes)) {
		Py_BEGIN_ALLOW_THREADS run(c);
		Py_END_ALLOW_THREADS result = answer(c);
	}
	lane_give(c->session, purpose, c->lane);
	return result;
}

/* A tuple of the keys. NULL: a Python exception is set, also for one text in place of a list. */
static PyObject *keys_of(PyObject *keys)
{
	if (PyUnicode_Check(keys) || PyBytes_Check(keys)) {
		PyErr_SetString(PyExc_TypeError, "keys is one text: give a list of keys");
		return NULL;
	}
	return PySequence_Tuple(keys);
}

/* get, get_sized and set: calls with segments. */
static PyObject *move(
	struct py_session *session, struct py_channel *channel, PyObject *args, enum verb verb)
{
	struct call c = {.session = session, .channel = channel, .verb = verb};
	PyObject *keys, *ptrs, *sizes, *result = NULL;

	if (!PyArg_ParseTuple(args, "sOOOI|ppp", &c.name_space, &keys, &ptrs, &sizes, &c.timeout_ms,
		    &c.staged, &c.results, &c.gap))
		return NULL;
	c.keys = keys_of(keys);
	ptrs = c.keys ? PySequence_Tuple(ptrs) : NULL;
	sizes = !ptrs ? NULL : PyLong_Check(sizes) ? Py_NewRef(sizes) : PySequence_Tuple(sizes);
	if (c.keys && ptrs && sizes) {
		c.pages = (size_t)PyTuple_Size(c.keys);
		if (!c.pages || shapes_fit(&c, ptrs, sizes))
			result = call(&c, ptrs, sizes, verb == VERB_GET_SIZED ? lengths : hits);
	}
	Py_XDECREF(c.keys);
	Py_XDECREF(ptrs);
	Py_XDECREF(sizes);
	return result;
}

/* A call without segments, of these keys. */
static PyObject *keys_call(struct call *c, PyObject *keys, answer_fn *answer)
{
	PyObject *result;

	c->keys = keys_of(keys);
	if (!c->keys)
		return NULL;
	c->pages = (size_t)PyTuple_Size(c->keys);
	result = call(c, NULL, NULL, answer);
	Py_DECREF(c->keys);
	return result;
}

/* exists, prefix, prefetch and remove. */
static PyObject *look(struct py_session *session, struct py_channel *channel, PyObject *args,
	enum verb verb, answer_fn *answer)
{
	struct call c = {
		.session = session, .channel = channel, .verb = verb, .leading = answer == prefix};
	PyObject *keys;

	if (!PyArg_ParseTuple(
		    args, "sOI|pp", &c.name_space, &keys, &c.timeout_ms, &c.results, &c.storing))
		return NULL;
	return keys_call(&c, keys, answer);
}

PyObject *call_of(
	struct py_session *session, struct py_channel *channel, PyObject *args, enum verb verb)
{
	if (verb >= VERB_EXISTS)
		return look(session, channel, args, verb, hits);
	return move(session, channel, args, verb);
}

PyObject *batch_get(PyObject *self, PyObject *args)
{
	return call_of((struct py_session *)self, NULL, args, VERB_GET);
}

PyObject *batch_get_sized(PyObject *self, PyObject *args)
{
	return call_of((struct py_session *)self, NULL, args, VERB_GET_SIZED);
}

PyObject *batch_set(PyObject *self, PyObject *args)
{
	return call_of((struct py_session *)self, NULL, args, VERB_SET);
}

PyObject *batch_exists(PyObject *self, PyObject *args)
{
	return call_of((struct py_session *)self, NULL, args, VERB_EXISTS);
}

PyObject *batch_prefetch(PyObject *self, PyObject *args)
{
	return call_of((struct py_session *)self, NULL, args, VERB_PREFETCH);
}

PyObject *batch_prefix(PyObject *self, PyObject *args)
{
	return look((struct py_session *)self, NULL, args, VERB_EXISTS, prefix);
}

PyObject *batch_remove(PyObject *self, PyObject *args)
{
	return call_of((struct py_session *)self, NULL, args, VERB_REMOVE);
}

PyObject *batch_pin(PyObject *self, PyObject *args)
{
	struct call c = {.session = (struct py_session *)self, .verb = VERB_PIN};
	PyObject *keys;

	if (!PyArg_ParseTuple(args, "sOII|p:pin", &c.name_space, &keys, &c.seconds, &c.timeout_ms,
		    &c.results))
		return NULL;
	return keys_call(&c, keys, hits);
}

/* What match() returns. */
static PyObject *match_tuple(const struct call *c, const struct pc_match *match)
{
	PyObject *holders = PyList_New((Py_ssize_t)match->holders);

	for (unsigned k = 0; holders && k < match->holders; k++) {
		const struct pc_holder *h = &match->holder[k];
		PyObject *one;
		char ref[9];

		snprintf(ref, sizeof(ref), "%08x", h->ref);
		one = Py_BuildValue("(sIIIN)", ref, h->prefix, h->pages, h->pages_on_disk,
			PyBool_FromLong(h->here));
		if (!one || PyList_SetItem(holders, (Py_ssize_t)k, one)) {
			Py_DECREF(holders);
			return NULL;
		}
	}
	if (!holders)
		return NULL;
	if (!c->results)
		return Py_BuildValue(
			"(IIIN)", match->prefix, match->unknown, match->holders_all, holders);
	return Py_BuildValue(
		"(IIINN)", match->prefix, match->unknown, match->holders_all, holders, hits(c));
}

/* Asks the library, on a lane of its own. NULL: a Python exception is set. */
static PyObject *match_ask(struct call *c)
{
	struct pc_match *match = PyMem_Malloc(sizeof(*match));
	PyObject *result = NULL;
	int rc;

	if (!match)
		return PyErr_NoMemory();
	Py_BEGIN_ALLOW_THREADS rc = lane_take(c->session, PURPOSE_READ, c->end_ms, &c->lane);
	Py_END_ALLOW_THREADS if (c->lane && call_prepare(c, NULL, NULL))
	{
		Py_BEGIN_ALLOW_THREADS rc = pc_channel_name_space(c->lane->channel, c->name_space);
		if (!rc)
			rc = pc_match(c->lane->channel, c->lane->page, (unsigned)c->pages,
				rest_ms(c->end_ms), match, c->lane->result);
		c->done = c->pages;
		Py_END_ALLOW_THREADS if (!rc) result = match_tuple(c, match);
	}
	if (rc && !PyErr_Occurred())
		rc == LANE_CLOSED ? session_raise_closed() : session_raise(rc);
	if (c->lane)
		lane_give(c->session, PURPOSE_READ, c->lane);
	PyMem_Free(match);
	return result;
}

PyObject *batch_match(PyObject *self, PyObject *args)
{
	struct call c = {.session = (struct py_session *)self, .verb = VERB_EXISTS};
	PyObject *keys, *result = NULL;

	if (!PyArg_ParseTuple(args, "sOI|p", &c.name_space, &keys, &c.timeout_ms, &c.results))
		return NULL;
	session_enter(c.session);
	if (c.session->inherited)
		return session_raise_inherited();
	c.end_ms = now_ms() + (c.timeout_ms ? c.timeout_ms : PC_TIMEOUT_MS_DEFAULT);
	c.keys = keys_of(keys);
	if (!c.keys)
		return NULL;
	c.pages = (size_t)PyTuple_Size(c.keys);
	if (c.pages > PC_BATCH_MAX)
		PyErr_Format(PyExc_ValueError, "match takes at most %u keys", PC_BATCH_MAX);
	else
		result = match_ask(&c);
	Py_DECREF(c.keys);
	return result;
}

PyObject *session_clear(PyObject *self, PyObject *args)
{
	struct py_session *session = (struct py_session *)self;
	unsigned timeout_ms;
	int cluster = 0;
	const char *group;
	struct lane *lane;
	uint64_t pages = 0, end_ms;
	int rc;

	if (!PyArg_ParseTuple(args, "zI|p", &group, &timeout_ms, &cluster))
		return NULL;
	session_enter(session);
	if (session->inherited)
		return session_raise_inherited();
	Py_BEGIN_ALLOW_THREADS end_ms = now_ms() + timeout_ms;
	rc = lane_take(session, PURPOSE_WRITE, end_ms, &lane);
	if (lane) {
		rc = pc_clear(lane->channel, group, rest_ms(end_ms), &pages);
		if (!rc && cluster)
			rc = pc_clear_cluster(lane->channel, group, rest_ms(end_ms), NULL);
		lane_give(session, PURPOSE_WRITE, lane);
	}
	Py_END_ALLOW_THREADS if (rc == LANE_CLOSED) return session_raise_closed();
	if (rc)
		return session_raise(rc);
	return PyLong_FromUnsignedLongLong(pages);
}
