/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of the last failure, in one buffer for each thread, and the names of syndromes. Any
 * thread, on the slow path only.
 */
#include <errno.h>
#include <stdarg.h>

#include "config/text_fit.h"
#include "dv/layout.h"
#include "dv/ops.h"

static _Thread_local char error_text[DV_ERROR_BYTES] = "no error";

int dv_fail(int error, const char *format, ...)
{
	va_list arguments;

	errno = -error; /* because text_vfit() prints errno for %m */
	va_start(arguments, format);
	text_vfit(error_text, sizeof(error_text), format, arguments);
	va_end(arguments);
	return error;
}

const char *dv_error(void)
{
	return error_text;
}

const char *dv_syndrome(uint8_t syndrome)
{
	static const struct {
		uint8_t syndrome;
		const char *text;
	} names[] = {
		{0, "done"},
		{DV_SYNDROME_LOCAL_LENGTH, "local length error"},
		{DV_SYNDROME_LOCAL_QP_OP, "local QP operation error"},
		{DV_SYNDROME_LOCAL_PROTECTION, "local protection error"},
		{DV_SYNDROME_FLUSHED, "flushed"},
		{DV_SYNDROME_MW_BIND, "memory window bind error"},
		{DV_SYNDROME_BAD_RESPONSE, "bad response"},
		{DV_SYNDROME_LOCAL_ACCESS, "local access error"},
		{DV_SYNDROME_REMOTE_INVALID_REQUEST, "remote invalid request"},
		{DV_SYNDROME_REMOTE_ACCESS, "remote access error"},
		{DV_SYNDROME_REMOTE_OP, "remote operation error"},
		{DV_SYNDROME_RETRY_EXCEEDED, "transport retries exceeded"},
		{DV_SYNDROME_RNR_RETRY_EXCEEDED, "receiver-not-ready retries exceeded"},
		{DV_SYNDROME_ABORTED, "aborted"},
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].syndrome == syndrome)
			return names[i].text;
	return "unknown syndrome";
}
