/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes of PeerCache 0.8 say, so that this version recognises them: it shares no pages with
 * them, and they do not know it. Their frames are as long as ours say, four bytes of length and a
 * body, which is [method, arguments], and in the answer [ok, result], as JSON or as msgpack. Pure
 * functions: any thread.
 */
#ifndef CONTROL_FORMER_H
#define CONTROL_FORMER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum former_codec { FORMER_NONE, FORMER_JSON, FORMER_MSGPACK };

#define FORMER_FRAME_BYTES 256 /* longest frame that this version sends */

/* The codec of a request. FORMER_NONE: the body is none. Looks only at its beginning. */
enum former_codec former_request(const uint8_t *body, size_t bytes);
/* True if the body is an answer in that codec. */
bool former_answers(enum former_codec codec, const uint8_t *body, size_t bytes);
/* Writes the frame of an answer that refuses a request. Returns its bytes. */
size_t former_refusal(enum former_codec codec, uint8_t ret[FORMER_FRAME_BYTES]);
/*
 * Writes the frame of a request that changes nothing there, for addresses at which a Hello has no
 * answer. Returns its bytes.
 */
size_t former_question(enum former_codec codec, uint8_t ret[FORMER_FRAME_BYTES]);
/* True if the body is that of former_question(): an engine of this version asks. */
bool former_question_ours(const uint8_t *body, size_t bytes);

#endif
