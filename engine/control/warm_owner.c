/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warm.h: who may still write to slots that earlier engines granted, and what this engine stores so
 * that its successor can tell.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/client.h"
#include "engine/control/ctl.h"
#include "engine/control/warm_inner.h"
#include "engine/keeper/service.h"

#define CHANNEL_PREFIX "channel-"

/* ---- slots of earlier engines ---------------------------------------------------------------- */

/* Returns the slots of an owner to their pools. Returns how many. */
static uint32_t slots_return(struct control *control, uint32_t owner)
{
	struct warm *warm = control->warm;
	uint32_t kept = 0, before = warm->slots;

	for (uint32_t i = 0; i < before; i++) {
		const struct pool_quarantined *slot = &warm->slot[i];

		if (slot->owner == owner)
			ctl_credit_return(control, &(struct credit){.place = slot->place,
							   .generation = slot->generation,
							   .length = slot->length});
		else
			warm->slot[kept++] = *slot;
	}
	warm->slots = kept;
	return before - kept;
}

static uint32_t slots_of(const struct warm *warm, uint32_t owner)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < warm->slots; i++)
		count += warm->slot[i].owner == owner;
	return count;
}

static void channel_name(char name[STORED_NAME_BYTES], uint32_t owner)
{
	snprintf(name, STORED_NAME_BYTES, CHANNEL_PREFIX "%" PRIu32, owner);
}

static void left_free(struct left_channel *left)
{
	if (left->closed)
		event_free(left->closed);
	/* the client may have sent descriptors to it, and their close can block */
	closer_take(left->control->clients->closer, left->wake);
	free(left);
}

/*
 * A client that ended with a wake-up unread leaves an error on the socket, which libevent reports
 * as readable, not as closed.
 */
static bool is_closed(int wake)
{
	struct pollfd p = {.fd = wake, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0;
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
	struct left_channel *left = context;
	struct control *control = left->control;
	char name[STORED_NAME_BYTES], bytes[64];
	uint32_t slots;

	(void)what;
	if (!is_closed(fd)) {
		/* no client sends anything; without this, the event would come again at once */
		(void)!recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT);
		return;
	}
	slots = slots_return(control, left->owner);
	log_debug("warm restart: a client has left the engine before; %" PRIu32 " slots are free",
		slots);
	channel_name(name, left->owner);
	service_unstore(name);
	LIST_REMOVE(left, next);
	left_free(left);
}

int left_watch(struct control *control)
{
	struct warm *warm = control->warm;
	uint32_t owner;
	int wake;

	while ((wake = service_stored_number(CHANNEL_PREFIX, &owner)) >= 0) {
		struct left_channel *left = calloc(1, sizeof(*left));

		if (!left) {
			close(wake);
			return -ENOMEM;
		}
		*left = (struct left_channel){.control = control, .owner = owner, .wake = wake};
		LIST_INSERT_HEAD(&warm->left, left, next);
		left->closed = event_new(
			control->base, wake, EV_READ | EV_CLOSED | EV_PERSIST, on_wake, left);
		if (!left->closed || event_add(left->closed, NULL) < 0)
			return -ENOMEM;
	}
	return 0;
}

void lost_tell(const struct warm *warm)
{
	uint32_t lost = warm->forgotten + warm->slots - slots_of(warm, warm->disk_owner);
	const struct left_channel *left;

	LIST_FOREACH (left, &warm->left, next)
		lost -= slots_of(warm, left->owner);
	if (lost)
		log_warn(
			"warm restart: %" PRIu32
			" page slots stay reserved until a cold start: it is not known who may write to them",
			lost);
}

void left_forget(struct control *control)
{
	struct left_channel *left;

	while ((left = LIST_FIRST(&control->warm->left))) {
		LIST_REMOVE(left, next);
		left_free(left);
	}
}

/* ---- owners of this engine's slots ----------------------------------------------------------- */

uint32_t owner_number(struct warm *warm)
{
	uint32_t owner = warm->state->next_owner;

	/* The last number is given to all further owners: their slots are never freed early. */
	if (owner != UINT32_MAX)
		shm_store(&warm->state->next_owner, owner + 1);
	return owner;
}

uint32_t warm_owner_new(struct control *control, int wake)
{
	char name[STORED_NAME_BYTES];
	uint32_t owner;

	if (!control->warm)
		return POOL_OWNER_NONE;
	owner = owner_number(control->warm);
	channel_name(name, owner);
	/* before the first slot is granted */
	if (owner != UINT32_MAX)
		service_store(name, wake);
	return owner;
}

void warm_owner_end(struct control *control, uint32_t owner)
{
	char name[STORED_NAME_BYTES];

	if (!control->warm || owner == POOL_OWNER_NONE || owner == UINT32_MAX)
		return;
	channel_name(name, owner);
	service_unstore(name);
}

uint32_t warm_owner_disk(const struct control *control)
{
	return control->warm ? control->warm->disk_owner : POOL_OWNER_NONE;
}

void warm_disk_locked(struct control *control)
{
	uint32_t slots = control->warm ? slots_return(control, control->warm->disk_owner) : 0;

	if (slots)
		log_debug(
			"warm restart: the disks have ended the I/O of the engine before; %" PRIu32
			" slots are free",
			slots);
}
