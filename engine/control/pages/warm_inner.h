/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations shared by warm.c and warm_owner.c; no other file includes this header. */
#ifndef CONTROL_WARM_INNER_H
#define CONTROL_WARM_INNER_H

#include <sys/queue.h>

#include "engine/control/pages/warm.h"

#define STORED_NAME_BYTES 32u /* of a name and its zero byte */

/* A channel of an earlier engine whose client may still write to a slot. */
struct left_channel {
	LIST_ENTRY(left_channel) next;
	struct control *control;
	uint32_t process, owner;       /* numbers of the client's process and of the channel */
	struct channel_header *header; /* of its segment; NULL: of another version */
	int pidfd;                     /* of the client's process; -1: it cannot be watched */
};

struct warm {
	int fd, lock_fd; /* the state, and its lock: an open file description of its own */
	struct warm_state *state;
	bool adopts;  /* an earlier engine has left the state */
	uint32_t ref; /* the earlier engine's; 0: not known, or a rail was not adopted */
	uint32_t disk_owner;
	uint64_t adopted;
	/* slots that earlier engines granted and that were not returned since */
	struct pool_quarantined *slot;
	uint32_t slots, room;
	uint32_t forgotten; /* further slots: there was no memory to note them */
	LIST_HEAD(, left_channel) left;
	struct event *left_timer; /* looks at them again; armed while there is one */
};

/* Returns a number that no owner of slots in this memory has had. */
uint32_t owner_number(struct warm *warm);
/* Ends the channels that earlier engines stored, and watches clients that copy. 0 or -ENOMEM. */
int left_watch(struct control *control);
void left_forget(struct control *control);
/* Logs how many slots are never free again: their owner is no watched channel and no disk. */
void lost_tell(const struct warm *warm);

#endif
