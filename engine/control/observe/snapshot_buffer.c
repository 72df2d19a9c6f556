/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three snapshot buffers between the loop (writer) and one reader's thread. `middle` names the
 * buffer that neither owns, and whether it holds a snapshot that the reader has not seen.
 */
#include <stdlib.h>

#include "engine/control/observe/snapshot.h"

#define FRESH 4u /* beside the number of a buffer, 0..2 */

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
