/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of HTTP requests. The bytes lie at the end of an allocation of their length, so
 * that a sanitizer sees a read behind them. What is accepted must be what a second, simple reading
 * of the request line says; what is not complete must not be refused before, nor accepted later,
 * for its beginning alone. Runs with libFuzzer when built for it; otherwise main() replays a small
 * corpus: whole, cut short, and with bytes changed. One thread.
 */
#include <string.h>
#include <time.h>

#include "engine/control/observe/http_inner.h"
#include "engine/control/observe/http_token_inner.h"
#include "tests/fuzz/require.h"

#define TOKEN "0123456789abcdef"
#define CODED "MTIzNDU2Nzg5YWJjZGVm" /* of all but the first character, which stands with "u:" */

static unsigned long accepted, incomplete, refused, allowed;

static int parse(const uint8_t *data, size_t size, struct http_request *ret)
{
	char *text = malloc(size ? size : 1);
	int rc;

	if (!text)
		abort();
	memcpy(text, data, size);
	memset(ret, 0xa5, sizeof(*ret));
	rc = http_parse(text, size, ret);
	free(text);
	return rc;
}

/* The request line of what was accepted, read in another way: from both of its ends. */
static void check_line(const uint8_t *data, size_t size, const struct http_request *request)
{
	const char *line = (const char *)data, *path = line + (request->head ? 5 : 4);
	size_t bytes = (size_t)((const char *)memchr(line, '\n', size) - line), path_bytes = 0;

	if (line[bytes - 1] == '\r')
		bytes--;
	require(!memcmp(line, request->head ? "HEAD /" : "GET /", request->head ? 6 : 5));
	require(!memcmp(line + bytes - 9, " HTTP/1.", 8));
	require(line[bytes - 1] >= '0' && line[bytes - 1] <= '9');
	while (path[path_bytes] != '?' && path[path_bytes] != ' ')
		path_bytes++;
	require(path + path_bytes <= line + bytes - 9);
	require(path_bytes < HTTP_PATH_BYTES && request->path[path_bytes] == '\0');
	require(!memcmp(request->path, path, path_bytes));
	for (size_t i = 0; i < path_bytes; i++)
		require(request->path[i] > ' ' && request->path[i] <= '~');
}

/* Bytes from the first space to the next one or to the query. */
static size_t path_length(const uint8_t *data, size_t size)
{
	size_t from = 0, bytes = 0;

	while (from < size && data[from] != ' ')
		from++;
	while (from + 1 + bytes < size && data[from + 1 + bytes] != ' ' &&
		data[from + 1 + bytes] != '?')
		bytes++;
	return bytes;
}

/* The token is taken only if the request has it, or has its base64. */
static void check_token(const uint8_t *data, size_t size, const struct http_request *request)
{
	static const struct http_token token = {.path = "file", .text = TOKEN};

	if (!http_token_allows(&token, request->authorization))
		return;
	allowed++;
	require(memmem(data, size, TOKEN, strlen(TOKEN)) ||
		memmem(data, size, CODED, strlen(CODED)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct http_request request, again;
	int rc;

	if (size > HTTP_REQUEST_BYTES)
		size = HTTP_REQUEST_BYTES; /* the server hands over no more */
	rc = parse(data, size, &request);
	if (rc > 0) {
		accepted++;
		require((size_t)rc <= size && data[rc - 1] == '\n');
		check_line(data, size, &request);
		check_token(data, size, &request);
		/* The same without what follows, and nothing without its last byte. */
		require(parse(data, (size_t)rc, &again) == rc);
		require(again.head == request.head && !strcmp(again.path, request.path));
		require(parse(data, (size_t)rc - 1, &again) == 0);
	} else if (rc == 0) {
		incomplete++;
		require(size < HTTP_REQUEST_BYTES);
	} else {
		refused++;
		require(rc == -400 || rc == -405 || rc == -414 || rc == -431 || rc == -505);
		require(rc != -431 || size == HTTP_REQUEST_BYTES);
		require(rc != -414 || path_length(data, size) >= HTTP_PATH_BYTES);
	}
	return 0;
}

#ifndef FUZZ_LIBFUZZER

#define CORPUS_BYTES (HTTP_REQUEST_BYTES + 64)

static uint8_t corpus[32][CORPUS_BYTES];
static size_t corpus_bytes[32];
static unsigned corpora;

static void corpus_add(const char *format, const char *text, size_t repeat)
{
	size_t bytes = 0;
	char *to = (char *)corpus[corpora];

	for (const char *f = format; *f && bytes < CORPUS_BYTES; f++)
		if (*f != '*')
			to[bytes++] = *f;
		else
			for (size_t i = 0; i < repeat && bytes < CORPUS_BYTES; i++)
				to[bytes++] = text[i % strlen(text)];
	corpus_bytes[corpora++] = bytes;
}

static void corpus_make(void)
{
	static const char *const texts[] = {
		"GET / HTTP/1.1\r\n\r\n",
		"HEAD /api/status HTTP/1.0\r\nHost: a\r\n\r\nmore",
		"GET /metrics?name[]=a HTTP/1.1\nHost: a\n\n",
		"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
		"GET / HTTP/2.0\r\n\r\n",
		"GET http://a/ HTTP/1.1\r\n\r\n",
		"GET /\r\n\r\n",
		"GET  / HTTP/1.1\r\n\r\n",
		"GET /%2e%2e/ HTTP/1.1\r\n\r\n",
		"\r\n\r\n",
		"\x16\x03\x01\x02",
		"GET / HTTP/1.1\r\r\n\r\r\n\r\n",
		"GET /a\tb HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nAuthorization: Bearer " TOKEN "\r\n\r\n",
		"GET / HTTP/1.1\r\nauthorization:Basic dTow" CODED "\r\n\r\n",
	};

	for (unsigned i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		corpus_add(texts[i], "", 0);
	for (size_t over = 0; over < 3; over++) {
		/* The longest path, and one byte to either side. */
		corpus_add("GET /* HTTP/1.1\r\n\r\n", "p", HTTP_PATH_BYTES - 3 + over);
		/* The longest request. */
		corpus_add("GET / HTTP/1.1\r\nA: *\r\n\r\n", "a", HTTP_REQUEST_BYTES - 24 + over);
	}
	corpus_add("GET /?* HTTP/1.1\r\n\r\n", "q", HTTP_REQUEST_BYTES - 100);
	corpus_add("GET / HTTP/1.1\r\n*", "a: b\r\n", HTTP_REQUEST_BYTES);
	corpus_add("*", "\n", HTTP_REQUEST_BYTES);
	corpus_add("GET /*", "a", HTTP_REQUEST_BYTES);
}

/* Replays the corpus. The environment variable SEED repeats the run that printed it. */
int main(void)
{
	static const char likely[] = "\r\n\0 ?/:GHTP1\xff\x7f";
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);
	static uint8_t changed[CORPUS_BYTES];

	printf("SEED=%u\n", seed);
	srandom(seed);
	corpus_make();
	for (unsigned c = 0; c < corpora; c++) {
		for (size_t cut = 0; cut <= corpus_bytes[c]; cut++)
			LLVMFuzzerTestOneInput(corpus[c], cut);
		for (unsigned round = 0; round < 20000; round++) {
			memcpy(changed, corpus[c], corpus_bytes[c]);
			for (unsigned n = (unsigned)random() % 4; n < 4; n++)
				changed[(size_t)random() % (random() % 2 ? corpus_bytes[c] : 4)] =
					random() % 4
						? (uint8_t)likely[(size_t)random() % sizeof(likely)]
						: (uint8_t)random();
			LLVMFuzzerTestOneInput(changed, corpus_bytes[c]);
		}
	}
	printf("replayed %u requests: %lu accepted, %lu not complete, %lu refused\n", corpora,
		accepted, incomplete, refused);
	return accepted && incomplete && refused && allowed ? 0 : 1;
}

#endif
