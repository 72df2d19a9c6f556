/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of packets, shared by those that are equal. One thread. */
#ifndef TESTS_SIM_PAYLOAD_H
#define TESTS_SIM_PAYLOAD_H

#include <stddef.h>
#include <stdint.h>

struct payload {
	unsigned uses;
	size_t bytes;
	uint8_t data[];
};

/* With one use, and room for that many bytes. */
struct payload *payload_new(size_t bytes);
/* Ends a use of the payload, which may be NULL. */
void payload_drop(struct payload *payload);
/* The payload, or the one that was sent last if it is equal. Takes the caller's use. */
struct payload *payload_sent(struct payload *payload);

#endif
