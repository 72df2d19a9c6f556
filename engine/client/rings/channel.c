/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a channel shares with the engine: its segment, the rings in it and the requests
 * in flight. Channel thread.
 */
#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/ring.h"
#include "engine/abi/run.h"
#include "engine/abi/segment.h"
#include "engine/abi/statistics.h"
#include "engine/client/attach/attach.h"
#include "engine/client/attach/session.h"
#include "engine/client/error.h"
#include "engine/client/rings/channel.h"
#include "engine/client/rings/rings.h"
#include "engine/client/rings/staging.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int channel_make_requests(struct pc_channel *ch)
{
	uint32_t count = ch->rails * DONE_RING_SLOTS + CTL_DONE_SLOTS;

	free(ch->request);
	ch->request = calloc(count, sizeof(*ch->request));
	ch->requests = ch->request ? count : 0;
	ch->request_free = ch->request ? 0 : CLIENT_NONE;
	for (uint32_t i = 0; i < ch->requests; i++) {
		ch->request[i].generation = 1;
		ch->request[i].next = i + 1 < count ? i + 1 : CLIENT_NONE;
	}
	return ch->request ? 0 : -ENOMEM;
}

static void channel_make_rings(struct pc_channel *ch)
{
	const struct channel_layout *l = &ch->layout;

	for (uint32_t r = 0; r < ch->rails; r++) {
		struct channel_rail *rail = &ch->rail[r];

		memset(rail, 0, sizeof(*rail));
		ring_producer_init(
			&rail->ops, ch->segment + l->op[r], OP_RING_SLOTS, sizeof(struct run_line));
		ring_consumer_init(&rail->done, ch->segment + l->done[r], DONE_RING_SLOTS,
			sizeof(struct run_done));
	}
	ring_producer_init(&ch->ctl, ch->segment + l->ctl, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_consumer_init(
		&ch->ctl_done, ch->segment + l->ctl_done, CTL_DONE_SLOTS, sizeof(struct ctl_done));
	ch->ctl_unpublished = ch->ctl_awaited = 0;
	ch->ctl_napped = false;
	ch->touches.count = 0;
	ch->least = 0;
	ch->resting = ch->told = 0;
	ch->no_room = false;
}

int channel_map(struct pc_channel *ch, struct client_session *session, struct session_call *call)
{
	struct stat about = {.st_size = 0};
	uint64_t staging;
	void *at;
	int rc;

	ch->layout = channel_layout(session->rails);
	if (call->fds == 2)
		fstat(call->fd[0], &about);
	ch->bytes = (size_t)about.st_size;
	staging = ch->bytes - ch->layout.staging; /* huge if the file is too short */
	if (call->b < REGION_CLIENT_0 || call->b >= REGIONS_MAX || staging < STAGING_BYTES_MIN ||
		staging > STAGING_BYTES_MAX)
		return error_set(-EPROTO,
			"the engine's reply for a new channel is invalid; engine and library must be of the same version");
	at = mmap(NULL, ch->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, call->fd[0], 0);
	if (at == MAP_FAILED)
		return error_set(-errno, "cannot map a channel: %s", strerror(errno));
	ch->header = at;
	if (ch->header->magic != CHANNEL_MAGIC || ch->header->version != ABI_VERSION ||
		ch->header->rails != session->rails) {
		rc = ch->header->version == ABI_VERSION
			     ? error_set(-EPROTO, "the engine's new channel is invalid")
			     : error_set(-EPROTO,
				       "the engine's channel has version %u of the client protocol, this library version %u: use the libpeercache (in Python the package peercache) that came with the engine",
				       ch->header->version, ABI_VERSION);
		munmap(at, ch->bytes);
		return rc;
	}
	ch->rails = session->rails;
	if (channel_make_requests(ch)) {
		munmap(at, ch->bytes);
		return error_set(-ENOMEM, "cannot open a channel: out of memory");
	}
	ch->segment = at;
	ch->statistics = (struct channel_statistics *)(void *)(ch->segment + ch->layout.statistics);
	ch->asked = (struct channel_asked *)(void *)(ch->segment + ch->layout.asked);
	ch->asked_lost = 0;
	ch->counts_told = ch->counts;
	ch->id = (uint32_t)call->a;
	ch->wake = call->fd[1];
	call->fd[1] = -1;
	channel_make_rings(ch);
	staging_init(&ch->staging, ch->segment + ch->layout.staging, (uint32_t)staging,
		(uint16_t)call->b);
	return 0;
}

void channel_unmap(struct pc_channel *ch)
{
	descriptor_mute(ch);
	munmap(ch->segment, ch->bytes);
	close(ch->wake);
	ch->segment = NULL;
	ch->statistics = NULL;
	ch->wake = -1;
	ch->rails = 0;
	ch->ctl_awaited = 0;
}

void channel_inherited(struct pc_channel *ch)
{
	ch->listens = false;
	free(ch->device); /* the driver is the parent's */
	ch->device = NULL;
	if (ch->session)
		channel_unmap(ch);
	ch->session = NULL;
}
