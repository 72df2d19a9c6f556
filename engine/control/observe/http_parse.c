/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses a request: the request line, then header lines that are skipped. Nothing is believed that
 * does not stand in the bytes given. Any thread.
 */
#include <string.h>

#include "engine/control/observe/http.h"

/* The line that starts at `from`: its length without CRLF; < 0: it has no end. */
static long line_length(const char *text, size_t bytes, size_t from, size_t *ret_next)
{
	const char *end = memchr(text + from, '\n', bytes - from);
	size_t length;

	if (!end)
		return -1;
	length = (size_t)(end - text) - from;
	*ret_next = from + length + 1;
	if (length && text[from + length - 1] == '\r')
		length--;
	return (long)length;
}

static bool starts(const char *text, size_t bytes, const char *with)
{
	return bytes >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
}

/* 0, or the negated status. */
static int parse_line(const char *line, size_t bytes, struct http_request *ret)
{
	const char *version;
	size_t path = 0;

	ret->head = starts(line, bytes, "HEAD ");
	if (!ret->head && !starts(line, bytes, "GET "))
		return memchr(line, ' ', bytes) ? -405 : -400;
	bytes -= ret->head ? 5 : 4;
	line += ret->head ? 5 : 4;
	version = memchr(line, ' ', bytes);
	if (!version)
		return -400;
	bytes -= (size_t)(version - line) + 1;
	if (!starts(version + 1, bytes, "HTTP/"))
		return -400;
	if (!starts(version + 1, bytes, "HTTP/1.") || bytes != 8 || version[8] < '0' ||
		version[8] > '9')
		return -505;
	if (line[0] != '/')
		return -400;
	while (line + path < version && line[path] != '?') {
		if (line[path] <= ' ' || line[path] > '~')
			return -400;
		if (path + 1 == HTTP_PATH_BYTES)
			return -414;
		ret->path[path] = line[path];
		path++;
	}
	ret->path[path] = '\0';
	return 0;
}

int http_parse(const char *text, size_t bytes, struct http_request *ret)
{
	size_t next;
	long length = line_length(text, bytes, 0, &next);
	int rc;

	if (length < 0)
		return bytes >= HTTP_REQUEST_BYTES ? -431 : 0;
	rc = parse_line(text, (size_t)length, ret);
	if (rc < 0)
		return rc;
	while ((length = line_length(text, bytes, next, &next)) > 0)
		continue;
	if (length < 0)
		return bytes >= HTTP_REQUEST_BYTES ? -431 : 0;
	return (int)next;
}
