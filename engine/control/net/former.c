/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of PeerCache 0.8. Pure functions: any thread. */
#include "engine/control/net/former.h"

#include <arpa/inet.h>
#include <assert.h>
#include <string.h>

#include "config/version.h"

/* What an operator there reads in the log, and which page tells more. */
#define REFUSAL                                                                                    \
	"this is peercache-engine " PEERCACHE_VERSION                                              \
	", which shares no pages with PeerCache 0.8: see the page Migration"
#define QUESTION "members"
#define ASKED_BY "engine"

/* msgpack: arrays of two, maps of one, texts of up to 31 and up to 255 bytes, false, true, 1 */
enum { PAIR = 0x92, MAP_ONE = 0x81, TEXT_SHORT = 0xa0, TEXT_8 = 0xd9, NO = 0xc2, YES = 0xc3 };
static_assert(sizeof(REFUSAL) - 1 > 31 && sizeof(REFUSAL) - 1 < 256, "a text of TEXT_8");
static_assert(sizeof(REFUSAL) + 32 < FORMER_FRAME_BYTES, "it fits");

/* Length of the method's name at the beginning of `text`; 0: there is none. */
static size_t method_bytes(const uint8_t *text, size_t bytes)
{
	size_t n = 0;

	while (n < bytes && ((text[n] >= 'a' && text[n] <= 'z') || text[n] == '_'))
		n++;
	return n;
}

enum former_codec former_request(const uint8_t *body, size_t bytes)
{
	size_t name = bytes > 2 ? method_bytes(body + 2, bytes - 2) : 0;

	if (name == 0)
		return FORMER_NONE;
	if (body[0] == '[' && body[1] == '"' && bytes >= name + 4 && body[name + 2] == '"' &&
		body[name + 3] == ',')
		return FORMER_JSON;
	/* what follows the name may look like more of it */
	if (body[0] == PAIR && body[1] > TEXT_SHORT && body[1] < TEXT_SHORT + 32 &&
		name >= body[1] - (size_t)TEXT_SHORT)
		return FORMER_MSGPACK;
	return FORMER_NONE;
}

static bool begins(const uint8_t *body, size_t bytes, const char *with)
{
	return bytes >= strlen(with) && memcmp(body, with, strlen(with)) == 0;
}

bool former_answers(enum former_codec codec, const uint8_t *body, size_t bytes)
{
	if (codec == FORMER_JSON)
		return begins(body, bytes, "[true,") || begins(body, bytes, "[false,");
	return codec == FORMER_MSGPACK && bytes > 2 && body[0] == PAIR &&
	       (body[1] == NO || body[1] == YES);
}

/* ---- what this version sends ----------------------------------------------------------------- */

static size_t text_put(uint8_t *ret, const char *text)
{
	memcpy(ret, text, strlen(text));
	return strlen(text);
}

static size_t frame_end(uint8_t *ret, size_t body)
{
	uint32_t length = htonl((uint32_t)body);

	memcpy(ret, &length, 4);
	return body + 4;
}

size_t former_refusal(enum former_codec codec, uint8_t ret[FORMER_FRAME_BYTES])
{
	uint8_t *body = ret + 4;
	size_t n = 0;

	if (codec == FORMER_JSON)
		return frame_end(ret, text_put(body, "[false, \"" REFUSAL "\"]"));
	body[n++] = PAIR;
	body[n++] = NO;
	body[n++] = TEXT_8;
	body[n++] = sizeof(REFUSAL) - 1;
	n += text_put(body + n, REFUSAL);
	return frame_end(ret, n);
}

/* The handler there ignores the argument, by which this version knows its own question. */
static size_t question_body(enum former_codec codec, uint8_t *ret)
{
	size_t n = 0;

	if (codec == FORMER_JSON)
		return text_put(ret, "[\"" QUESTION "\", {\"" ASKED_BY "\": 1}]");
	ret[n++] = PAIR;
	ret[n++] = TEXT_SHORT | (sizeof(QUESTION) - 1);
	n += text_put(ret + n, QUESTION);
	ret[n++] = MAP_ONE;
	ret[n++] = TEXT_SHORT | (sizeof(ASKED_BY) - 1);
	n += text_put(ret + n, ASKED_BY);
	ret[n++] = 1;
	return n;
}

size_t former_question(enum former_codec codec, uint8_t ret[FORMER_FRAME_BYTES])
{
	return frame_end(ret, question_body(codec, ret + 4));
}

bool former_question_ours(const uint8_t *body, size_t bytes)
{
	for (unsigned codec = FORMER_JSON; codec <= FORMER_MSGPACK; codec++) {
		uint8_t ours[FORMER_FRAME_BYTES];
		size_t n = question_body((enum former_codec)codec, ours);

		if (n == bytes && memcmp(ours, body, n) == 0)
			return true;
	}
	return false;
}
