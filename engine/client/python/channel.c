/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python type Channel: calls about pages that do not wait, for event loops. It has a channel of
 * the library of its own, and a list of the calls that poll() has not returned, each with its
 * arrays. Any Python thread may call the methods; `lock` is held while one uses the library. The
 * library's session is closed after the last channel. Lock order: channel.lock, session.lock.
 */
#include "engine/client/python/session.h"

#include <errno.h>
#include <stdlib.h>

/* A submitted call. */
struct py_call {
	struct py_call *next;
	struct call call;
	struct lane lane; /* its arrays, the session and the channel */
	answer_fn *answer;
	struct pc_batch *batch; /* NULL: it is done */
	uint64_t number;
};

static void call_free(struct py_call *call)
{
	Py_XDECREF(call->call.keys);
	lane_free_arrays(&call->lane);
	free(call);
}

/* The batch of the call has ended just now, in this thread. */
static void call_done(struct py_session *s, struct py_call *call)
{
	call->batch = NULL;
	call->call.done = call->call.pages;
	session_tell_results(s, &call->lane, call->lane.result, call->call.pages);
}

/* ---- closing --------------------------------------------------------------------------------- */

/*
 * In a child of fork() another thread may have been inside the library, which must not be called
 * for these calls any more. They end without their pages.
 */
static void calls_abandon(struct py_channel *ch)
{
	for (struct py_call *call = ch->first; call; call = call->next) {
		if (!call->batch)
			continue;
		call->batch = NULL;
		call->call.done = call->call.pages;
		for (size_t i = 0; i < call->call.pages; i++) {
			call->lane.result[i] = PC_GONE;
			if (call->lane.bytes)
				call->lane.bytes[i] = 0;
		}
	}
}

/* Called first by every method, with the interpreter's lock: as session_enter(). */
static struct py_channel *channel_enter(PyObject *self)
{
	struct py_channel *ch = (struct py_channel *)self;

	session_enter(ch->session);
	if (ch->forks != ch->session->forks) {
		pthread_mutex_init(&ch->lock, NULL);
		calls_abandon(ch);
	}
	ch->forks = ch->session->forks;
	return ch;
}

/* Closes the channel, which ends its calls, and the session if that waits for it alone. */
static void channel_close(struct py_channel *ch)
{
	struct lane lane = {.bytes_sidecar = 0};
	struct py_session *s = ch->session;
	struct pc *ended = NULL;

	pthread_mutex_lock(&ch->lock);
	if (ch->channel) {
		lane.channel = ch->channel;
		pthread_mutex_lock(&s->lock);
		lane_counts(&s->counts, &lane);
		pthread_mutex_unlock(&s->lock);
		pc_channel_close(ch->channel);
		ch->channel = NULL;
		for (struct py_call *call = ch->first; call; call = call->next)
			if (call->batch)
				call_done(s, call);
		pthread_mutex_lock(&s->lock);
		if (!--s->channels) {
			ended = s->ended;
			s->ended = NULL;
		}
		pthread_mutex_unlock(&s->lock);
	}
	pthread_mutex_unlock(&ch->lock);
	pc_close(ended);
}

static PyObject *py_channel_close(PyObject *self, PyObject *nothing)
{
	struct py_channel *ch = channel_enter(self);

	(void)nothing;
	Py_BEGIN_ALLOW_THREADS channel_close(ch);
	Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static void channel_dealloc(PyObject *self)
{
	struct py_channel *ch = (struct py_channel *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	if (ch->session) {
		channel_enter(self);
		Py_BEGIN_ALLOW_THREADS channel_close(ch);
		Py_END_ALLOW_THREADS pthread_mutex_destroy(&ch->lock);
		Py_DECREF(ch->session);
	}
	while (ch->first) {
		struct py_call *call = ch->first;

		ch->first = call->next;
		call_free(call);
	}
	release(self);
	Py_DECREF(type);
}

/* ---- opening --------------------------------------------------------------------------------- */

static PyObject *channel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct pc_channel *opened = NULL;
	struct py_session *s;
	struct py_channel *ch;
	struct pc *pc;
	int rc;

	if ((kwargs && PyDict_Size(kwargs)) ||
		!PyArg_ParseTuple(args, "O!:Channel", session_type, &s)) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError, "Channel(session) takes no keywords");
		return NULL;
	}
	pc = session_hold(s);
	if (!pc)
		return NULL;
	ch = (struct py_channel *)alloc(type, 0);
	Py_BEGIN_ALLOW_THREADS rc = ch ? pc_channel_open(pc, &opened) : -ENOMEM;
	if (!rc) {
		pthread_mutex_init(&ch->lock, NULL);
		ch->session = s;
		ch->forks = s->forks;
		ch->channel = opened;
		pthread_mutex_lock(&s->lock);
		s->channels++;
		s->lanes++;
		pthread_mutex_unlock(&s->lock);
	}
	session_leave(s);
	Py_END_ALLOW_THREADS if (!ch) return NULL;
	if (!rc) {
		Py_INCREF(s);
		return (PyObject *)ch;
	}
	session_raise(rc);
	Py_DECREF(ch);
	return NULL;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static PyObject *channel_fileno(PyObject *self, PyObject *nothing)
{
	struct py_channel *ch = channel_enter(self);
	int fd = -EBADF;

	(void)nothing;
	Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&ch->lock);
	if (ch->channel)
		fd = pc_channel_fd(ch->channel);
	pthread_mutex_unlock(&ch->lock);
	Py_END_ALLOW_THREADS if (fd == -EBADF) return session_raise_closed();
	return fd < 0 ? session_raise(fd) : PyLong_FromLong(fd);
}

/* Submits a call to the library. Returns its 0 or negative errno. */
static int submit(struct py_channel *ch, struct py_call *call)
{
	struct py_session *s = ch->session;
	int rc;

	pthread_mutex_lock(&s->lock);
	s->calls++;
	pthread_mutex_unlock(&s->lock);
	call->lane.channel = ch->channel;
	rc = pc_channel_name_space(ch->channel, call->call.name_space);
	if (rc)
		return rc;
	return call_submit(&call->call, call->lane.page, 0, call->call.pages, &call->batch);
}

/* Makes the record of a call. NULL: a Python exception is set. */
static struct py_call *call_new(
	const struct call *c, PyObject *ptrs, PyObject *sizes, answer_fn *answer)
{
	struct py_call *call;

	if (c->staged || c->pages > PC_BATCH_MAX) {
		PyErr_Format(PyExc_ValueError,
			"a call of a channel has at most %u keys, not staged", PC_BATCH_MAX);
		return NULL;
	}
	call = calloc(1, sizeof(*call));
	if (!call) {
		PyErr_NoMemory();
		return NULL;
	}
	call->call = *c;
	call->call.lane = &call->lane;
	call->answer = answer;
	Py_INCREF(c->keys);
	if (!c->pages || call_prepare(&call->call, ptrs, sizes))
		return call;
	call_free(call);
	return NULL;
}

PyObject *channel_submit(const struct call *c, PyObject *ptrs, PyObject *sizes, answer_fn *answer)
{
	struct py_channel *ch = channel_enter((PyObject *)c->channel);
	struct py_call *call = call_new(c, ptrs, sizes, answer), **at;
	unsigned long long number = 0;
	int rc = -EBADF;

	if (!call)
		return NULL;
	call->lane.pc = session_hold(ch->session);
	if (!call->lane.pc) {
		call_free(call);
		return NULL;
	}
	Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&ch->lock);
	if (ch->channel)
		rc = submit(ch, call);
	if (!rc) {
		number = call->number = ++ch->number;
		for (at = &ch->first; *at; at = &(*at)->next)
			continue;
		*at = call;
	}
	pthread_mutex_unlock(&ch->lock);
	session_leave(ch->session);
	/* another thread's poll() may have freed the call already */
	Py_END_ALLOW_THREADS if (!rc) return PyLong_FromUnsignedLongLong(number);
	call_free(call);
	return rc == -EBADF ? session_raise_closed() : session_raise(rc);
}

/* Takes the calls that are done out of the list, oldest first. */
static struct py_call *take_done(struct py_channel *ch)
{
	struct py_call *done = NULL, **last = &done, **at = &ch->first;

	while (*at) {
		struct py_call *call = *at;

		if (call->batch && !pc_poll(call->batch)) {
			at = &call->next;
			continue;
		}
		if (call->batch)
			call_done(ch->session, call);
		*at = call->next;
		call->next = NULL;
		*last = call;
		last = &call->next;
	}
	return done;
}

/* Appends (number, result) to the list. False: a Python exception is set. */
static bool put_done(PyObject *list, const struct py_call *call)
{
	PyObject *result = call->answer(&call->call);
	PyObject *pair =
		result ? Py_BuildValue("(KN)", (unsigned long long)call->number, result) : NULL;
	int rc = pair ? PyList_Append(list, pair) : -1;

	Py_XDECREF(pair);
	return rc == 0;
}

/* No memory for their results: the next poll() returns these calls. */
static void put_back(struct py_channel *ch, struct py_call *done)
{
	struct py_call **at = &done;

	while (*at)
		at = &(*at)->next;
	Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&ch->lock);
	*at = ch->first;
	ch->first = done;
	pthread_mutex_unlock(&ch->lock);
	Py_END_ALLOW_THREADS
}

static PyObject *channel_poll(PyObject *self, PyObject *nothing)
{
	struct py_channel *ch = (struct py_channel *)self;
	PyObject *list = PyList_New(0);
	struct py_call *done;

	(void)nothing;
	channel_enter(self);
	Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&ch->lock);
	done = take_done(ch);
	pthread_mutex_unlock(&ch->lock);
	Py_END_ALLOW_THREADS for (struct py_call *call = done; call && list; call = call->next)
	{
		if (put_done(list, call))
			continue;
		Py_DECREF(list);
		list = NULL;
	}
	if (!list) {
		put_back(ch, done);
		return NULL;
	}
	while (done) {
		struct py_call *call = done;

		done = call->next;
		call_free(call);
	}
	return list;
}

#define CHANNEL_CALL(name, verb)                                                                   \
	static PyObject *channel_##name(PyObject *self, PyObject *args)                            \
	{                                                                                          \
		return call_of(((struct py_channel *)self)->session, (struct py_channel *)self,    \
			args, verb);                                                               \
	}
CHANNEL_CALL(get, VERB_GET)
CHANNEL_CALL(get_sized, VERB_GET_SIZED)
CHANNEL_CALL(set, VERB_SET)
CHANNEL_CALL(exists, VERB_EXISTS)
CHANNEL_CALL(prefetch, VERB_PREFETCH)
CHANNEL_CALL(remove, VERB_REMOVE)

#define SUBMITS                                                                                    \
	"submits the call of Session with these arguments and returns its number, for poll(). The memory is used until the call is done."

static PyMethodDef methods[] = {
	{"fileno", channel_fileno, METH_NOARGS,
		"fileno() -> int: a descriptor for select, poll and event loops: readable when poll() may have something to do. Valid until close()."},
	{"poll", channel_poll, METH_NOARGS,
		"poll() -> list of (number, result): the calls that have ended since the last poll(), oldest first, each with the result of the method of Session. Does not wait."},
	{"close", py_channel_close, METH_NOARGS,
		"close() -> None: ends all calls, waits for the memory that they use, and makes fileno() readable. poll() returns what is left."},
	{"get", channel_get, METH_VARARGS,
		"get(name_space, keys, ptrs, sizes, timeout_ms) -> int: " SUBMITS},
	{"get_sized", channel_get_sized, METH_VARARGS,
		"get_sized(name_space, keys, ptrs, sizes, timeout_ms) -> int: " SUBMITS},
	{"set", channel_set, METH_VARARGS,
		"set(name_space, keys, ptrs, sizes, timeout_ms) -> int: " SUBMITS},
	{"exists", channel_exists, METH_VARARGS,
		"exists(name_space, keys, timeout_ms) -> int: " SUBMITS},
	{"prefetch", channel_prefetch, METH_VARARGS,
		"prefetch(name_space, keys, timeout_ms) -> int: " SUBMITS},
	{"remove", channel_remove, METH_VARARGS,
		"remove(name_space, keys, timeout_ms) -> int: " SUBMITS},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc,
		(void *)"Channel(session): calls about pages that do not wait, for event loops (peercache.aio). Any thread may use it. Closing its session ends none of its calls, but new ones raise ValueError. Raises OSError without a free channel."},
	{Py_tp_new, (void *)channel_new},
	{Py_tp_dealloc, (void *)channel_dealloc},
	{Py_tp_methods, methods},
	{0, NULL},
};

PyType_Spec channel_spec = {
	.name = "peercache._peercache.Channel",
	.basicsize = sizeof(struct py_channel),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
