/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What came of the pages of all calls: how many had each outcome, and the text about the last one.
 * The store logs and counts every outcome but hit and miss from here. Any thread; session.lock.
 */
#include "config/text_fit.h"
#include "engine/client/python/session.h"

#include <string.h>
#include <time.h>

/* Names and texts of the outcomes that the library does not know. */
static const struct {
	const char *name, *text;
} outcome[OUTCOMES] = {
	[OUTCOME_NO_CHANNEL] = {"no_channel", "no channel could be opened"},
	[OUTCOME_NO_MEMORY] = {"no_memory", "this process has no memory left for the call"},
	[OUTCOME_CLOSED] = {"closed", "the store is closed"},
	[OUTCOME_INHERITED] = {"inherited",
		"this process is a child of fork(), and the store belongs to its parent: open a store in the child"},
};

static const char *outcome_name(unsigned number)
{
	return outcome[number].name ? outcome[number].name : pc_result_name((enum pc_result)number);
}

static const char *outcome_text(unsigned number)
{
	return outcome[number].text ? outcome[number].text : pc_result_text((enum pc_result)number);
}

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

unsigned rest_ms(uint64_t end_ms)
{
	uint64_t now = now_ms();

	return now < end_ms ? (unsigned)(end_ms - now) : 1;
}

/* The caller holds the lock. */
static void tell(struct told *told, size_t pages, const char *text)
{
	told->pages += pages;
	told->calls++;
	text_fit(told->text, sizeof(told->text), "%s", text);
}

void session_tell(struct py_session *s, unsigned number, size_t pages, const char *text)
{
	pthread_mutex_lock(&s->lock);
	tell(&s->told[number], pages, text);
	pthread_mutex_unlock(&s->lock);
}

void session_tell_results(
	struct py_session *s, const struct lane *lane, const enum pc_result *result, size_t count)
{
	size_t pages[OUTCOME_NO_CHANNEL] = {0};

	for (size_t i = 0; i < count; i++)
		pages[(unsigned)result[i] < OUTCOME_NO_CHANNEL ? result[i] : PC_PENDING]++;
	pthread_mutex_lock(&s->lock);
	for (unsigned r = 0; r < OUTCOME_NO_CHANNEL; r++)
		if (pages[r])
			/* the library has a text of its own for invalid pages, and then for those
			 * that an engine refused */
			tell(&s->told[r], pages[r],
				r == PC_INVALID ? pc_error()
				: r == PC_GONE  ? pc_refusal(lane->pc)
						: "");
	pthread_mutex_unlock(&s->lock);
}

/* Puts `name`: (pages, calls, text) into the dict. */
static bool put_told(PyObject *dict, unsigned number, const struct told *told)
{
	const char *text = told->text[0] ? told->text : outcome_text(number);
	/* the text may have a path that is no UTF-8 */
	PyObject *row = Py_BuildValue("(KKN)", (unsigned long long)told->pages,
		(unsigned long long)told->calls,
		PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"));
	int rc = row ? PyDict_SetItemString(dict, outcome_name(number), row) : -1;

	Py_XDECREF(row);
	return rc == 0;
}

PyObject *session_failures(PyObject *self, PyObject *nothing)
{
	struct py_session *s = (struct py_session *)self;
	PyObject *dict = PyDict_New();
	bool ok = dict != NULL;

	(void)nothing;
	session_enter(s);
	for (unsigned r = PC_MISS + 1; ok && r < OUTCOMES; r++) {
		struct told told;

		pthread_mutex_lock(&s->lock);
		told = s->told[r];
		pthread_mutex_unlock(&s->lock);
		/* that a page is longer is an answer */
		ok = !told.calls || r == PC_LONGER || put_told(dict, r, &told);
	}
	if (ok)
		return dict;
	Py_XDECREF(dict);
	return NULL;
}
