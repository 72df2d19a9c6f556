/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warm.h: who may still write to slots that earlier engines granted, and what this engine stores so
 * that its successor can tell.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/abi/segment.h"
#include "engine/control/clients/clients.h"
#include "engine/control/pages/warm_inner.h"
#include "engine/keeper/service.h"

#define PROCESS_PREFIX "process-"

static void process_name(char name[STORED_NAME_BYTES], uint32_t process)
{
	snprintf(name, STORED_NAME_BYTES, PROCESS_PREFIX "%" PRIu32, process);
}

static void channel_prefix(char name[STORED_NAME_BYTES], uint32_t process)
{
	snprintf(name, STORED_NAME_BYTES, "channel-%" PRIu32 "-", process);
}

static void channel_name(char name[STORED_NAME_BYTES], uint32_t process, uint32_t owner)
{
	snprintf(name, STORED_NAME_BYTES, "channel-%" PRIu32 "-%" PRIu32, process, owner);
}

/* ---- slots of earlier engines ---------------------------------------------------------------- */

/* Returns the slots of an owner to their pools, but not the one named `but`. Returns how many. */
static uint32_t slots_return(struct control *control, uint32_t owner, uint64_t but)
{
	struct warm *warm = control->warm;
	uint32_t kept = 0, before = warm->slots;

	for (uint32_t i = 0; i < before; i++) {
		const struct pool_quarantined *slot = &warm->slot[i];

		if (slot->owner == owner && slot_name(slot->place, slot->generation) != but)
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

static bool process_exited(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return pidfd >= 0 && poll(&p, 1, 0) > 0;
}

/*
 * The first page of a channel's segment, which only this engine and the client have mapped. NULL:
 * it cannot be mapped, or another version of the engine made it.
 */
static struct channel_header *header_map(int segment)
{
	struct channel_header *header;
	struct stat st;
	void *base;

	if (fstat(segment, &st) < 0 || st.st_size < (off_t)PAGE_UNIT ||
		!(fcntl(segment, F_GET_SEALS) & F_SEAL_SHRINK))
		return NULL;
	base = mmap(NULL, PAGE_UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, segment, 0);
	if (base == MAP_FAILED)
		return NULL;
	header = base;
	if (header->magic == CHANNEL_MAGIC && header->version == ABI_VERSION)
		return header;
	munmap(base, PAGE_UNIT);
	return NULL;
}
static_assert(sizeof(struct channel_header) <= PAGE_UNIT, "one page is mapped");

/* Returns the slots that the client cannot write to any more; true if that is all of them. */
static bool left_release(struct left_channel *left)
{
	struct control *control = left->control;
	uint64_t but = 0;
	uint32_t slots;

	/* Without the header it is not known which slot the client copies into: all stay. */
	if (!process_exited(left->pidfd)) {
		if (!left->header)
			return !slots_of(control->warm, left->owner);
		/* This acquire load pairs with slot_leave() in client/set.c. */
		but = shm_load_acquire64(&left->header->copying);
	}
	slots = slots_return(control, left->owner, but);
	if (slots)
		log_debug("warm restart: %" PRIu32
			  " slots that the engine before had granted to a client are free",
			slots);
	return !slots_of(control->warm, left->owner);
}

static void left_free(struct left_channel *left)
{
	if (left->header)
		munmap(left->header, PAGE_UNIT);
	if (left->pidfd >= 0)
		close(left->pidfd);
	free(left);
}

static bool process_has_left(const struct warm *warm, uint32_t process)
{
	const struct left_channel *left;

	LIST_FOREACH (left, &warm->left, next)
		if (left->process == process)
			return true;
	return false;
}

static void timer_start(struct warm *warm)
{
	const struct timeval often = {.tv_usec = CLIENT_QUARANTINE_US};

	if (!LIST_EMPTY(&warm->left) && event_add(warm->left_timer, &often) < 0)
		log_error("warm restart: no memory for a timer; slots stay reserved");
}

static void on_timer(evutil_socket_t fd, short what, void *context)
{
	struct control *control = context;
	struct warm *warm = control->warm;
	struct left_channel *left = LIST_FIRST(&warm->left), *next;

	(void)fd;
	(void)what;
	for (; left; left = next) {
		next = LIST_NEXT(left, next);
		if (!left_release(left))
			continue;
		LIST_REMOVE(left, next);
		warm_owner_end(control, left->owner, left->process);
		if (!process_has_left(warm, left->process))
			warm_process_end(control, left->process);
		left_free(left);
	}
	timer_start(warm);
}

/*
 * Ends a channel of an earlier engine as ctl_channel_close() ends one of this engine: the client
 * begins no copy any more. Only the slot that it copies into now stays reserved.
 */
static int channel_end(
	struct control *control, uint32_t process, uint32_t owner, int pidfd, int segment)
{
	struct left_channel *left = calloc(1, sizeof(*left));

	if (!left)
		return -ENOMEM;
	*left = (struct left_channel){.control = control,
		.process = process,
		.owner = owner,
		.header = header_map(segment),
		.pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0)};
	LIST_INSERT_HEAD(&control->warm->left, left, next);
	if (left->header) {
		shm_store(&left->header->stopped, 1);
		shm_fence_store_load(); /* pairs with the fence of slot_enter() in client/set.c */
	}
	return 0;
}

int left_watch(struct control *control)
{
	struct warm *warm = control->warm;
	char prefix[STORED_NAME_BYTES];
	uint32_t process, owner;
	int pidfd, segment, rc = 0;

	warm->left_timer = event_new(control->base, -1, 0, on_timer, control);
	if (!warm->left_timer)
		return -ENOMEM;
	while (!rc && (pidfd = service_stored_number(PROCESS_PREFIX, &process)) >= 0) {
		channel_prefix(prefix, process);
		while (!rc && (segment = service_stored_number(prefix, &owner)) >= 0) {
			rc = channel_end(control, process, owner, pidfd, segment);
			close(segment);
		}
		if (!process_has_left(warm, process))
			warm_process_end(control, process);
		close(pidfd);
	}
	if (!rc)
		on_timer(-1, 0, control);
	return rc;
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
	struct warm *warm = control->warm;
	struct left_channel *left;

	while ((left = LIST_FIRST(&warm->left))) {
		LIST_REMOVE(left, next);
		left_free(left);
	}
	if (warm->left_timer)
		event_free(warm->left_timer);
	warm->left_timer = NULL;
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

/* The process of a channel gets a number, too; without a pidfd it has no credits. */
static uint32_t process_store(struct warm *warm, int pidfd)
{
	char name[STORED_NAME_BYTES];
	uint32_t process = owner_number(warm);

	process_name(name, process);
	if (process != UINT32_MAX)
		service_store(name, pidfd);
	return process;
}

uint32_t warm_owner_new(struct control *control, int segment, int pidfd, uint32_t *process)
{
	char name[STORED_NAME_BYTES];
	uint32_t owner;

	if (!control->warm)
		return POOL_OWNER_NONE;
	/* both are stored before the first slot is granted */
	if (!*process && pidfd >= 0)
		*process = process_store(control->warm, pidfd);
	owner = owner_number(control->warm);
	channel_name(name, *process, owner);
	if (*process && owner != UINT32_MAX)
		service_store(name, segment);
	return owner;
}

void warm_owner_end(struct control *control, uint32_t owner, uint32_t process)
{
	char name[STORED_NAME_BYTES];

	if (!control->warm || owner == POOL_OWNER_NONE || owner == UINT32_MAX || !process)
		return;
	channel_name(name, process, owner);
	service_unstore(name);
}

void warm_process_end(struct control *control, uint32_t process)
{
	char name[STORED_NAME_BYTES];

	if (!control->warm || !process || process == UINT32_MAX)
		return;
	process_name(name, process);
	service_unstore(name);
}

uint32_t warm_owner_disk(const struct control *control)
{
	return control->warm ? control->warm->disk_owner : POOL_OWNER_NONE;
}

void warm_disk_locked(struct control *control)
{
	uint32_t slots = control->warm ? slots_return(control, control->warm->disk_owner, 0) : 0;

	if (slots)
		log_debug(
			"warm restart: the disks have ended the I/O of the engine before; %" PRIu32
			" slots are free",
			slots);
}
