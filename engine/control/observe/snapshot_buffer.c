/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hands the newest snapshot from the loop to the metrics thread, through three buffers that neither
 * thread waits for. Nothing can fail but their allocation. Either thread, as observe.h says.
 */
#include "engine/control/observe/snapshot_inner.h"

#include <stdlib.h>

#include "engine/control/observe/observe.h"

#define FRESH 4u /* beside the number of a buffer, 0..2 */

/*
 * `middle` names the buffer that neither thread owns, and whether it holds a snapshot that the
 * reader has not seen.
 */
struct snapshots {
	struct snapshot buffer[3];
	uint32_t middle; /* exchanged by both threads */
	/* owner: writer */
	uint32_t writing;
	/* owner: reader */
	uint32_t reading;
	bool any;
};

struct snapshots *snapshots_open(void)
{
	struct snapshots *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->writing = 0;
	s->middle = 1;
	s->reading = 2;
	return s;
}

void snapshots_close(struct snapshots *snapshots)
{
	free(snapshots);
}

struct snapshot *snapshots_writing(struct snapshots *snapshots)
{
	return &snapshots->buffer[snapshots->writing];
}

/* shm_exchange() orders both ways: the reader sees a whole snapshot, the writer a free buffer. */
void snapshots_publish(struct snapshots *snapshots)
{
	uint32_t before = shm_exchange(&snapshots->middle, snapshots->writing | FRESH);

	snapshots->writing = before & ~FRESH;
}

const struct snapshot *snapshots_newest(struct snapshots *snapshots)
{
	if (shm_load(&snapshots->middle) & FRESH) {
		snapshots->reading = shm_exchange(&snapshots->middle, snapshots->reading) & ~FRESH;
		snapshots->any = true;
	}
	return snapshots->any ? &snapshots->buffer[snapshots->reading] : NULL;
}
