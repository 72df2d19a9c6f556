/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calling thread's last error text, and the names of results. Any thread; each thread has its
 * own text.
 */
#include "config/version.h"
#include "engine/abi/op.h"
#include "engine/client/error.h"
#include "engine/client/peercache.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char error_text[512];

int error_set(int error, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vsnprintf(error_text, sizeof(error_text), format, list);
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

const char *pc_result_name(enum pc_result result)
{
	static const char *const name[] = {
		[PC_HIT] = "hit",
		[PC_MISS] = "miss",
		[PC_STALE] = "stale",
		[PC_UNREACHABLE] = "unreachable",
		[PC_TIMEOUT] = "timeout",
		[PC_FULL] = "full",
		[PC_INVALID] = "invalid",
		[PC_GONE] = "gone",
		[PC_PENDING] = "pending",
	};

	if ((unsigned)result >= sizeof(name) / sizeof(name[0]))
		return "unknown";
	return name[result];
}

const char *pc_version(void)
{
	return PEERCACHE_VERSION;
}
