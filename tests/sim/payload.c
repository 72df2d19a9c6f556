/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of packets. A node sends the same message to all its neighbours, one after the other: only
 * the payload sent last is compared. One thread.
 */
#include "tests/sim/payload.h"

#include <stdlib.h>
#include <string.h>

static struct payload *last;

struct payload *payload_new(size_t bytes)
{
	struct payload *payload = malloc(sizeof(*payload) + bytes);

	if (!payload)
		abort();
	payload->uses = 1;
	payload->bytes = bytes;
	return payload;
}

void payload_drop(struct payload *payload)
{
	if (payload && --payload->uses == 0)
		free(payload);
}

struct payload *payload_sent(struct payload *payload)
{
	if (last && last->bytes == payload->bytes &&
		memcmp(last->data, payload->data, last->bytes) == 0) {
		payload_drop(payload);
		last->uses++;
		return last;
	}
	payload_drop(last);
	last = payload;
	last->uses++;
	return payload;
}
