/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes of PeerCache 0.8 say is recognised, and nothing else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <string.h>

#include "engine/control/net/former.h"
#include "tests/former_frames.h"

#define FRAMES 4u

static enum former_codec request_of(const struct former_frame *frame, size_t cut)
{
	return former_request((const uint8_t *)frame->bytes + 4, frame->count - 4 - cut);
}

static enum former_codec text_request(const char *text)
{
	return former_request((const uint8_t *)text, strlen(text));
}

static void captured_requests_are_recognised_in_both_codecs(void **state)
{
	(void)state;
	for (unsigned i = 0; i < FRAMES; i++) {
		uint32_t length;

		memcpy(&length, former_json[i].bytes, 4);
		assert_int_equal(ntohl(length), former_json[i].count - 4);
		assert_int_equal(request_of(&former_json[i], 0), FORMER_JSON);
		memcpy(&length, former_msgpack[i].bytes, 4);
		assert_int_equal(ntohl(length), former_msgpack[i].count - 4);
		assert_int_equal(request_of(&former_msgpack[i], 0), FORMER_MSGPACK);
		assert_false(former_question_ours(
			(const uint8_t *)former_json[i].bytes + 4, former_json[i].count - 4));
	}
	/* cut within its name, or before it ends */
	assert_int_equal(request_of(&former_json[2], 7), FORMER_NONE);
	assert_int_equal(request_of(&former_msgpack[2], 3), FORMER_NONE);
}

static void other_bytes_are_no_request(void **state)
{
	static const char *const wrong[] = {"", "[", "[\"", "[\"\",", "[\"Register\",", "[\"a\"]",
		"[\"a b\",", "[ \"a\",", "{\"a\",", "\x92", "\x92\xa3",
		"\x92\xa3"
		"ab",
		"\x92\xa0"
		"ab",
		"\x93\xa2"
		"ab",
		"\x92\xd9\x02"
		"ab",
		"GET / HTTP/1.1"};

	(void)state;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (text_request(wrong[i]) != FORMER_NONE)
			fail_msg("\"%s\" is taken for a request", wrong[i]);
	assert_int_equal(text_request("[\"a\","), FORMER_JSON);
	assert_int_equal(text_request("\x92\xa2"
				      "abcd"),
		FORMER_MSGPACK);
}

/* The body of the frame, whose length is right. */
static const uint8_t *body_of(const uint8_t *frame, size_t bytes)
{
	uint32_t length;

	memcpy(&length, frame, 4);
	assert_int_equal(ntohl(length), bytes - 4);
	return frame + 4;
}

static void a_refusal_is_an_answer_and_a_question_is_a_request(void **state)
{
	uint8_t frame[FORMER_FRAME_BYTES];

	(void)state;
	for (unsigned codec = FORMER_JSON; codec <= FORMER_MSGPACK; codec++) {
		unsigned other = FORMER_JSON + FORMER_MSGPACK - codec;
		size_t bytes = former_refusal(codec, frame);
		const uint8_t *body = body_of(frame, bytes);

		assert_true(former_answers(codec, body, bytes - 4));
		assert_false(former_answers(other, body, bytes - 4));
		assert_false(former_answers(FORMER_NONE, body, bytes - 4));
		assert_int_equal(former_request(body, bytes - 4), FORMER_NONE);
		bytes = former_question(codec, frame);
		body = body_of(frame, bytes);
		assert_true(former_question_ours(body, bytes - 4));
		assert_false(former_question_ours(body, bytes - 5));
		assert_int_equal(former_request(body, bytes - 4), codec);
		assert_false(former_answers(codec, body, bytes - 4));
	}
	assert_true(former_answers(FORMER_JSON, (const uint8_t *)"[true, {\"members\": []}]", 24));
	assert_true(former_answers(FORMER_MSGPACK, (const uint8_t *)"\x92\xc3\x81", 3));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(captured_requests_are_recognised_in_both_codecs),
		cmocka_unit_test(other_bytes_are_no_request),
		cmocka_unit_test(a_refusal_is_an_answer_and_a_question_is_a_request),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
