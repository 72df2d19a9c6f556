/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's last error text, and the names of results. Any thread; each thread has its
 * own text.
 */
#include "config/text_fit.h"
#include "config/version.h"
#include "engine/abi/op.h"
#include "engine/client/error.h"
#include "engine/client/peercache.h"

#include <stdarg.h>

static _Thread_local char error_text[ERROR_TEXT_BYTES];

int error_set(int error, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	text_vfit(error_text, sizeof(error_text), format, list);
	va_end(list);
	return error;
}

void error_clear(void)
{
	error_text[0] = '\0';
}

const char *pc_error(void)
{
	return error_text;
}

void error_length(unsigned bytes, unsigned stored)
{
	if (stored)
		error_set(0,
			"a page of %u bytes was given, but %u bytes are stored under its key: do two configurations share a namespace?",
			bytes, stored);
	else
		error_set(0,
			"a page of %u bytes was given, but one of another length is stored under its key: do two configurations share a namespace?",
			bytes);
}

/* The results, by enum pc_result. */
static const struct {
	const char *name, *text;
} outcome[] = {
	[PC_HIT] = {"hit", "the page is there"},
	[PC_MISS] = {"miss", "the page is not stored"},
	[PC_STALE] = {"stale",
		"the page was evicted or removed while it was read; if that is frequent, the pool is too small: raise engine.pool_bytes"},
	[PC_UNREACHABLE] = {"unreachable",
		"the host that has the page, or an owner of its key, is dead or cannot be read: see `peercachectl health` and `peercachectl members`"},
	[PC_TIMEOUT] = {"timeout",
		"the deadline passed before the result was known: is the engine stopped, its host overloaded, or the deadline too short for the number of pages?"},
	[PC_FULL] = {"full",
		"the pools of this host have no room: raise engine.pool_bytes, and see `peercachectl health`"},
	[PC_INVALID] = {"invalid",
		"an argument is wrong, or the page stored under the key has another length"},
	[PC_GONE] = {"gone",
		"the process is not attached to an engine: is one running at its socket? Its log says why it ended"},
	[PC_PENDING] = {"pending", "the page is not done yet"},
	[PC_LONGER] = {"longer",
		"the page stored under the key is longer than the room for it: give it the length that the call has returned"},
};
#define OUTCOMES (sizeof(outcome) / sizeof(outcome[0]))

const char *pc_result_name(enum pc_result result)
{
	return (unsigned)result < OUTCOMES ? outcome[result].name : "unknown";
}

const char *pc_result_text(enum pc_result result)
{
	return (unsigned)result < OUTCOMES ? outcome[result].text : "not a result";
}

const char *pc_version(void)
{
	return PEERCACHE_VERSION;
}
