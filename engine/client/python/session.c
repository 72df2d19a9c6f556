/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python type Session: one attachment to the engine of this host, shared by all threads of a
 * process. This file opens and closes it, registers memory and returns counts; it also makes the
 * module. Any Python thread may call every method.
 */
#include "engine/client/python/session.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

PyTypeObject *session_type;
static unsigned forks; /* number of forks above this process since the module was loaded */

static void count_fork(void)
{
	forks++;
}

/*
 * In a child of fork(), the threads that held the lock or were in a call do not exist. The library
 * has made its session one without an engine.
 */
void session_enter(struct py_session *s)
{
	if (s->forks == forks)
		return;
	s->forks = forks;
	s->inherited = s->pc != NULL;
	s->busy = 0;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->idle, NULL);
}

/*
 * Raises the subclass of OSError that the errno has, such as FileNotFoundError. Python 3.10
 * matches `except` with the type that is given here: that must be the type of the exception made.
 * The text may have a path that is no UTF-8.
 */
static PyObject *raise_text(int error, const char *text)
{
	PyObject *why = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
	PyObject *made = why ? PyObject_CallFunction(PyExc_OSError, "iO", -error, why) : NULL;

	if (made)
		PyErr_SetObject((PyObject *)Py_TYPE(made), made);
	Py_XDECREF(made);
	Py_XDECREF(why);
	return NULL;
}

PyObject *session_raise(int error)
{
	return raise_text(error, pc_error());
}

PyObject *session_raise_inherited(void)
{
	return raise_text(-ENOTCONN,
		"this process is a child of fork(), and the session belongs to its parent: open a session in the child");
}

PyObject *session_raise_closed(void)
{
	PyErr_SetString(PyExc_ValueError, "the session is closed");
	return NULL;
}

/*
 * Takes all idle lanes out of the session and adds their counts to its own. The caller holds the
 * lock, under which counts() looks at lanes.
 */
static struct lane *take_lanes(struct py_session *s)
{
	struct lane *all = NULL;

	for (unsigned p = 0; p < PURPOSES; p++) {
		while (s->lane[p]) {
			struct lane *lane = s->lane[p];

			lane_counts(&s->counts, lane);
			s->lane[p] = lane->next;
			lane->next = all;
			all = lane;
		}
	}
	return all;
}

/*
 * Waits for the running calls, then closes the lanes and the session. The caller does not hold the
 * interpreter's lock. A session that is closed already is left as it is.
 */
static void close_session(struct py_session *s)
{
	struct lane *lanes;
	struct pc *pc;

	pthread_mutex_lock(&s->lock);
	pc = s->pc;
	s->pc = NULL; /* no new call starts after this store */
	while (pc && s->busy)
		pthread_cond_wait(&s->idle, &s->lock);
	lanes = pc ? take_lanes(s) : NULL;
	if (pc && s->channels) {
		s->ended = pc;
		pc = NULL;
	}
	pthread_mutex_unlock(&s->lock);
	while (lanes) {
		struct lane *lane = lanes;

		lanes = lane->next;
		lane_free(lane);
	}
	pc_close(pc);
}

static bool verify_read(const char *text, unsigned char *ret)
{
	static const char *const words[] = {[PC_VERIFY_SAMPLE] = "sample",
		[PC_VERIFY_NEVER] = "never",
		[PC_VERIFY_ALWAYS] = "always"};

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (!strcmp(text, words[i])) {
			*ret = (unsigned char)i;
			return true;
		}
	}
	return false;
}

static int session_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
	struct py_session *s = (struct py_session *)self;
	struct pc_options options = {.socket = NULL};
	const char *verify = "sample", *secret = NULL;
	struct pc *pc = NULL;
	int rc;

	if ((kwargs && PyDict_Size(kwargs)) ||
		!PyArg_ParseTuple(args, "|zsIz:Session", &options.socket, &verify,
			&options.verify_one_in, &secret)) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_TypeError,
				"Session(socket=None, verify='sample', verify_one_in=0, secret_file=None) takes no keywords");
		return -1;
	}
	if (!verify_read(verify, &options.verify)) {
		PyErr_Format(
			PyExc_ValueError, "verify is '%s': give never, sample or always", verify);
		return -1;
	}
	session_enter(s);
	if (s->pc || s->ended) {
		PyErr_SetString(PyExc_RuntimeError, "this session is open already");
		return -1;
	}
	Py_BEGIN_ALLOW_THREADS rc = pc_open_with_secret(&options, secret, &pc);
	Py_END_ALLOW_THREADS if (rc)
	{
		session_raise(rc);
		return -1;
	}
	s->pc = pc;
	return 0;
}

static PyObject *session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct py_session *s = (struct py_session *)alloc(type, 0);

	(void)args;
	(void)kwargs;
	if (s) {
		s->forks = forks;
		pthread_mutex_init(&s->lock, NULL);
		pthread_cond_init(&s->idle, NULL);
	}
	return (PyObject *)s;
}

static void session_dealloc(PyObject *self)
{
	struct py_session *s = (struct py_session *)self;
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	session_enter(s);
	Py_BEGIN_ALLOW_THREADS close_session(s);
	Py_END_ALLOW_THREADS pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->idle);
	release(self);
	Py_DECREF(type);
}

static PyObject *session_close(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;

	(void)nothing;
	session_enter(s);
	Py_BEGIN_ALLOW_THREADS close_session(s);
	Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *session_inherited(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;

	(void)nothing;
	session_enter(s);
	return PyBool_FromLong(s->inherited);
}

struct pc *session_hold(struct py_session *s)
{
	struct pc *pc;

	session_enter(s);
	pthread_mutex_lock(&s->lock);
	pc = s->pc;
	s->busy += pc != NULL;
	pthread_mutex_unlock(&s->lock);
	if (!pc)
		session_raise_closed();
	return pc;
}

static PyObject *session_attached(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;
	struct pc *pc = session_hold(s);
	bool attached;

	(void)nothing;
	if (!pc) {
		PyErr_Clear();
		Py_RETURN_FALSE;
	}
	attached = pc_attached(pc);
	session_leave(s);
	return PyBool_FromLong(attached);
}

static PyObject *session_refusal(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;
	struct pc *pc = session_hold(s);
	const char *text;

	(void)nothing;
	if (!pc) {
		PyErr_Clear();
		return PyUnicode_FromString("");
	}
	text = pc_refusal(pc);
	session_leave(s);
	return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *session_limits(PyObject *self, PyObject *args)
{
	struct py_session *s = (struct py_session *)self;
	long long quota_bytes, ttl_s;
	struct pc *pc;
	int rc;

	if (!PyArg_ParseTuple(args, "LL:limits", &quota_bytes, &ttl_s))
		return NULL;
	pc = session_hold(s);
	if (!pc)
		return NULL;
	rc = pc_limits(pc, quota_bytes, ttl_s);
	session_leave(s);
	if (rc)
		return session_raise(rc);
	Py_RETURN_NONE;
}

static PyObject *session_page_bytes_max(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;
	struct pc *pc = session_hold(s);
	uint64_t bytes;

	(void)nothing;
	if (!pc)
		return NULL;
	bytes = pc_page_bytes_max(pc);
	session_leave(s);
	return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *session_report(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;
	struct pc *pc = session_hold(s);
	char *json = NULL;
	PyObject *text;
	int rc;

	(void)nothing;
	if (!pc)
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pc_report(pc, &json);
	session_leave(s);
	Py_END_ALLOW_THREADS if (rc) return session_raise(rc);
	text = PyUnicode_FromString(json);
	free(json);
	return text;
}

static PyObject *session_register(PyObject *self, PyObject *args)
{
	struct py_session *s = (struct py_session *)self;
	unsigned long long base, bytes, offset = 0;
	struct pc *pc;
	int fd, rc;

	if (!PyArg_ParseTuple(args, "KKi|K:register", &base, &bytes, &fd, &offset))
		return NULL;
	pc = session_hold(s);
	if (!pc)
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc =
		pc_memory_register(pc, (void *)(uintptr_t)base, bytes, fd, offset);
	session_leave(s);
	Py_END_ALLOW_THREADS if (rc < 0) return session_raise(rc);
	if (rc > 0)
		return PyUnicode_FromString(pc_error());
	Py_RETURN_NONE;
}

static PyObject *session_release(PyObject *self, PyObject *args)
{
	struct py_session *s = (struct py_session *)self;
	unsigned long long base;
	struct pc *pc;
	int rc;

	if (!PyArg_ParseTuple(args, "K:release", &base))
		return NULL;
	pc = session_hold(s);
	if (!pc)
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pc_memory_release(pc, (void *)(uintptr_t)base);
	session_leave(s);
	Py_END_ALLOW_THREADS if (rc) return session_raise(rc);
	Py_RETURN_NONE;
}

static PyObject *session_alloc(PyObject *self, PyObject *args)
{
	struct py_session *s = (struct py_session *)self;
	unsigned long long bytes;
	void *memory = NULL;
	struct pc *pc;
	int rc;

	if (!PyArg_ParseTuple(args, "K:alloc", &bytes))
		return NULL;
	pc = session_hold(s);
	if (!pc)
		return NULL;
	Py_BEGIN_ALLOW_THREADS rc = pc_memory_alloc(pc, bytes, &memory);
	session_leave(s);
	Py_END_ALLOW_THREADS if (rc) return session_raise(rc);
	return PyLong_FromUnsignedLongLong((uintptr_t)memory);
}

static bool put_number(PyObject *dict, const char *name, uint64_t value)
{
	PyObject *number = PyLong_FromUnsignedLongLong(value);
	int rc = number ? PyDict_SetItemString(dict, name, number) : -1;

	Py_XDECREF(number);
	return rc == 0;
}

/*
 * Sums the counts of the closed lanes and of the idle ones. The lanes of running calls are left
 * out, because only the thread that uses a lane may read its counts.
 */
static PyObject *session_counts(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;
	uint64_t results[OUTCOME_NO_CHANNEL], calls, lanes;
	PyObject *dict = PyDict_New();
	struct lane_counts sum;
	struct pc_counts c;
	bool ok;

	(void)nothing;
	session_enter(s);
	pthread_mutex_lock(&s->lock);
	sum = s->counts;
	for (unsigned r = 0; r < OUTCOME_NO_CHANNEL; r++)
		results[r] = s->told[r].pages;
	calls = s->calls;
	lanes = s->lanes;
	for (unsigned p = 0; p < PURPOSES; p++)
		for (struct lane *lane = s->lane[p]; lane; lane = lane->next)
			lane_counts(&sum, lane);
	pthread_mutex_unlock(&s->lock);
	c = sum.pages;
	ok = dict && put_number(dict, "calls", calls) && put_number(dict, "channels", lanes) &&
	     put_number(dict, "hits_local", c.hits_local) &&
	     put_number(dict, "hits_remote", c.hits_remote) && put_number(dict, "sets", c.sets) &&
	     put_number(dict, "sets_already", c.sets_already) &&
	     put_number(dict, "lookups", c.lookups) &&
	     put_number(dict, "lookups_cached", c.lookups_cached) &&
	     put_number(dict, "bytes_read", c.bytes_read) &&
	     put_number(dict, "bytes_written", c.bytes_written) &&
	     put_number(dict, "bytes_staged", c.bytes_staged) &&
	     put_number(dict, "verified", sum.verify.verified) &&
	     put_number(dict, "corrupt", sum.verify.corrupt) &&
	     put_number(dict, "bytes_sidecar", sum.bytes_sidecar);
	for (unsigned r = 0; ok && r < OUTCOME_NO_CHANNEL; r++)
		ok = r == PC_PENDING ||
		     put_number(dict, pc_result_name((enum pc_result)r), results[r]);
	if (ok)
		return dict;
	Py_XDECREF(dict);
	return NULL;
}

static PyMethodDef methods[] = {
	{"close", session_close, METH_NOARGS,
		"close() -> None. Waits for running calls, then detaches. Later calls about pages return misses, other calls raise ValueError. Any thread."},
	{"attached", session_attached, METH_NOARGS,
		"attached() -> bool: True while the session is attached to a running engine. Does not block. Any thread."},
	{"inherited", session_inherited, METH_NOARGS,
		"inherited() -> bool: True in a child of fork(), where the session belongs to the parent: calls about pages return misses. Any thread."},
	{"refusal", session_refusal, METH_NOARGS,
		"refusal() -> str: what an engine answered that gives this process no session any more, such as one of another version; '' while attached, or if none answered. Does not block. Any thread."},
	{"limits", session_limits, METH_VARARGS,
		"limits(quota_bytes, ttl_s) -> None: what the groups of this session's namespaces may have of the pools of this host, and after how many seconds their pages are gone; 0: no limit, -1: as it is. The engine is told with the next call of each channel. Any thread. Raises OSError."},
	{"page_bytes_max", session_page_bytes_max, METH_NOARGS,
		"page_bytes_max() -> int: the longest page that a set can store here, in bytes; 0 without an engine. Does not block. Any thread."},
	{"failures", session_failures, METH_NOARGS,
		"failures() -> dict: name -> (pages, calls, text) of everything that came of pages except hits and misses: results of the library, and calls that did not reach it. The text is about the last one and says what to do. Any thread."},
	{"report", session_report, METH_NOARGS,
		"report() -> str: the engine's status and members as JSON. Waits at most about 10 s. Raises OSError without an engine."},
	{"counts", session_counts, METH_NOARGS,
		"counts() -> dict of str to int: calls, channels, pages and bytes since the session was opened; running calls are left out."},
	{"register", session_register, METH_VARARGS,
		"register(base, bytes, memfd, offset=0) -> None: RDMA READs write into this mapping of the memfd without a copy. base and offset are multiples of 4096. The caller keeps the mapping until release(); the memfd is duplicated. memfd -1: other memory, also of a GPU, at any address; a str: its pages are staged, and why. Raises OSError."},
	{"release", session_release, METH_VARARGS,
		"release(base) -> None: ends register() or alloc(); memory of alloc() is unmapped. Raises OSError: EBUSY while a call uses the range, ENOENT if no range starts at base."},
	{"alloc", session_alloc, METH_VARARGS,
		"alloc(bytes) -> int: address of new registered memory, owned by the session until release() or the end of the session. Raises OSError."},
	{"pin", batch_pin, METH_VARARGS,
		"pin(name_space, keys, seconds, timeout_ms, results=False) -> list of bool, one per key: True if the page is in the memory of this host and is not evicted for that time, at most 86400; 0: it may be again. False: it is not there, or too much is pinned. results: as in set()."},
	{"get", batch_get, METH_VARARGS,
		"get(name_space, keys, ptrs, sizes, timeout_ms, staged=False) -> list of bool, one per key: True if the page's bytes are in its segments. keys: str or bytes. ptrs: addresses; sizes: bytes, a sequence or one int. len(ptrs) / len(keys) consecutive segments make a page. staged: write the segments only at the end, in this thread. Any thread. Raises ValueError or TypeError for wrong arguments."},
	{"get_sized", batch_get_sized, METH_VARARGS,
		"get_sized(name_space, keys, ptrs, sizes, timeout_ms, staged=False) -> list of int, one per key: n > 0: the page, of n bytes, is in its segments, from their start; 0: no page; n < 0: the page is longer than its segments, -n bytes. Arguments as in get()."},
	{"set", batch_set, METH_VARARGS,
		"set(name_space, keys, ptrs, sizes, timeout_ms, staged=False, results=False, gap=False) -> list of bool, one per key: True if every node can find the page. Arguments as in get(). staged: copy the segments first, in this thread. results: a list of int instead, enum pc_result of each page. gap: a page before these is not stored, so they are evicted before others."},
	{"exists", batch_exists, METH_VARARGS,
		"exists(name_space, keys, timeout_ms, results=False, storing=False) -> list of bool, one per key: True if the page can be found. A hint: a later get may miss. results: as in set(). storing: a set of what follows these pages comes next."},
	{"prefix", batch_prefix, METH_VARARGS,
		"prefix(name_space, keys, timeout_ms) -> int: number of leading keys whose pages can be found"},
	{"prefetch", batch_prefetch, METH_VARARGS,
		"prefetch(name_space, keys, timeout_ms, results=False) -> list of bool, one per key: True if the page is in the memory of this host, is being brought there, or is on another host's disk. Returns when the locations are known. results: as in set()."},
	{"remove", batch_remove, METH_VARARGS,
		"remove(name_space, keys, timeout_ms, results=False) -> list of bool, one per key: True if the page was stored and is removed from every node. results: as in set()."},
	{"match", batch_match, METH_VARARGS,
		"match(name_space, keys, timeout_ms, results=False) -> (prefix, unknown, hosts, holders): which hosts have the pages of these keys, at most 65536. prefix: leading keys that some host has; unknown: keys of which an owner could not be asked; hosts: how many have pages. holders: of at most 64 of them, the longest prefix first, then most pages: (ref, prefix, pages, pages on disk, here). ref: the last 8 digits of 'incarnation' in a report's members. results: a fifth element, a list of int as of exists(). A hint, as that is; no page counts as used. Raises OSError."},
	{"clear", session_clear, METH_VARARGS,
		"clear(group, timeout_ms, cluster=False) -> int: removes the pages of the group from this host, in memory and on disk, whatever process has stored them; None: all pages. The group of a namespace is its part in front of the first ||. Returns the number of keys. cluster: then also from all other hosts, whose keys are not counted. Raises OSError: ETIMEDOUT while the engine goes on, ENOTCONN without an engine and in a child of fork()."},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_doc,
		(void *)"Session(socket=None, verify='sample', verify_one_in=0, secret_file=None): an attachment to the engine of this host. socket: path of the engine's Unix socket; None: $PEERCACHE_SOCKET or the default. verify: never, sample or always: which pages of a get are compared with their CRC32C; verify_one_in: of a sample, one page in this number; 0: 1000. secret_file: a secret of 32 to 64 bytes, which is hashed into all namespaces. Any thread may use it; calls run without the interpreter's lock. Raises OSError if no engine runs there."},
	{Py_tp_new, (void *)session_new},
	{Py_tp_init, (void *)session_init},
	{Py_tp_dealloc, (void *)session_dealloc},
	{Py_tp_methods, methods},
	{0, NULL},
};

static PyType_Spec spec = {
	.name = "peercache._peercache.Session",
	.basicsize = sizeof(struct py_session),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "peercache._peercache",
	.m_doc = "libpeercache for Python: one C call per batch, without the interpreter's lock.",
	.m_size = -1,
};

PyMODINIT_FUNC PyInit__peercache(void);
PyMODINIT_FUNC PyInit__peercache(void)
{
	PyObject *m = PyModule_Create(&module);
	PyObject *type = m ? PyType_FromSpec(&spec) : NULL;
	PyObject *channel = type ? PyType_FromSpec(&channel_spec) : NULL;

	if (!channel || pthread_atfork(NULL, NULL, count_fork) ||
		PyModule_AddStringConstant(m, "__version__", pc_version()) ||
		PyModule_AddIntConstant(m, "SEGMENTS_MAX", PC_SEGMENTS_MAX) ||
		PyModule_AddObject(m, "Channel", channel) ||
		PyModule_AddObject(m, "Session", type)) {
		Py_XDECREF(type);
		Py_XDECREF(m);
		return NULL;
	}
	session_type = (PyTypeObject *)type;
	return m;
}
