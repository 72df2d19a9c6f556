/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a channel, and its small public calls. channel.c attaches it to a session.
 * Channel thread.
 */
#include "config/clock.h"
#include "config/limits.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/abi/segment.h"
#include "engine/client/attach.h"
#include "engine/client/batch.h"
#include "engine/client/cache.h"
#include "engine/client/channel.h"
#include "engine/client/constants.h"
#include "engine/client/credit.h"
#include "engine/client/error.h"
#include "engine/client/key.h"
#include "engine/client/map.h"
#include "engine/client/memory.h"
#include "engine/client/peercache.h"
#include "engine/client/reattach.h"
#include "engine/client/session.h"
#include "engine/client/submit.h"
#include "engine/client/verify.h"
#include "engine/client/wait.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define OPEN_TIMEOUT_MS 10000u /* of pc_channel_open() */
/* longest wait for the answer to a close; a hanging engine closes the channel later */
#define CLOSE_TIMEOUT_MS 1000u

/* Makes an empty location cache. The kernel zeroes its pages when they are first used. */
static struct cache_set *cache_new(void)
{
	void *at = mmap(NULL, CACHE_SETS * sizeof(struct cache_set), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

static void channel_free(struct pc_channel *ch)
{
	if (ch->staging.large)
		pc_memory_release(ch->pc, ch->staging.large);
	while (ch->spare) {
		struct pc_batch *b = ch->spare;

		ch->spare = b->next;
		free(b);
	}
	free(ch->request);
	if (ch->cache)
		munmap(ch->cache, CACHE_SETS * sizeof(*ch->cache));
	free(ch->memory);
	free(ch->peer_rest_until_ns);
	map_free(ch);
	free(ch);
}

int pc_channel_open(struct pc *pc, struct pc_channel **ret_channel)
{
	return pc_channel_open_within(pc, OPEN_TIMEOUT_MS, ret_channel);
}

int pc_channel_open_within(struct pc *pc, unsigned timeout_ms, struct pc_channel **ret_channel)
{
	uint64_t now_ns = clock_monotonic_ns(), wait_ns = timeout_ms * 1000000ull;
	struct pc_channel *ch;
	int rc = 0;

	error_clear();
	if (!pc || !ret_channel)
		return error_set(
			-EINVAL, "pc_channel_open() needs a session and a place for its result");
	ch = calloc(1, sizeof(*ch));
	if (!ch)
		return error_set(-ENOMEM, "cannot open a channel: out of memory");
	ch->pc = pc;
	verify_open(ch);
	key_text_init(&ch->key_text, &pc->name_space);
	ch->wake = -1;
	ch->memory_changes = UINT32_MAX;
	ch->cache = cache_new();
	ch->memory = calloc(REGIONS_MAX, sizeof(*ch->memory));
	ch->peer_rest_until_ns = calloc(NODES_MAX, sizeof(*ch->peer_rest_until_ns));
	if (!ch->cache || !ch->memory || !ch->peer_rest_until_ns) {
		channel_free(ch);
		return error_set(-ENOMEM, "cannot open a channel: out of memory");
	}
	/* as in channel_ready(): half of the time is for the rest */
	pc_reattach(pc, now_ns + (wait_ns / 2 < ATTACH_WAIT_NS ? wait_ns / 2 : ATTACH_WAIT_NS));
	rc = channel_adopt(ch) ? 0 : channel_attach(ch, now_ns + wait_ns);
	if (rc && rc != -ENOTCONN) {
		channel_free(ch);
		return rc;
	}
	pc_channel_add(pc, ch);
	/* Without an engine the channel is open but waits for one: its pages end as PC_GONE
	 * until then. */
	if (rc)
		pc_channels_wanting(pc, 1);
	*ret_channel = ch;
	return 0;
}

/*
 * Waits for READs into the caller's memory, returns the credits and tells the engine. The engine
 * answers when nothing is in flight into the channel's own memory either.
 */
static void close_attached(struct pc_channel *ch)
{
	struct client_session *session = ch->session;
	struct session_call call = {.kind = ATTACH_CHANNEL_CLOSE,
		.a = ch->id,
		.send_fd = -1,
		.timeout_ms = CLOSE_TIMEOUT_MS};

	for (struct pc_batch *b = ch->first; b; b = b->next)
		b->deadline_ns = 0;
	ch->due_ns = 0;
	channel_step(ch);
	wait_for(ch, NULL, UINT64_MAX);
	if (!ch->session)
		return;
	credit_return(ch, UINT64_MAX, 0);
	submit_flush(ch);
	if (!pc_wire_lock(ch->pc, clock_monotonic_ns() + CLOSE_TIMEOUT_MS * 1000000ull)) {
		if (!session_ask(session, &call))
			session_close_fds(&call);
		pthread_mutex_unlock(&ch->pc->wire);
	}
	if (shm_load(&session->dead))
		pc_session_end(ch->pc, session);
	channel_detach(ch);
}

void pc_channel_close(struct pc_channel *ch)
{
	if (!ch)
		return;
	if (ch->session)
		close_attached(ch);
	while (ch->first) {
		batch_gone(ch->first, PC_GONE);
		batch_free(ch->first);
	}
	/* this channel no longer waits for a session: it is detached here, or was never attached */
	pc_channels_wanting(ch->pc, -1);
	pc_channel_remove(ch->pc, ch);
	channel_free(ch);
}

int pc_channel_name_space(struct pc_channel *ch, const char *name_space)
{
	struct key_space space;

	error_clear();
	if (!ch)
		return error_set(-EINVAL, "pc_channel_name_space() needs a channel");
	if (name_space)
		key_name_space(name_space, &space);
	key_text_init(&ch->key_text, name_space ? &space : &ch->pc->name_space);
	return 0;
}

void pc_channel_counts(const struct pc_channel *channel, struct pc_counts *ret_counts)
{
	if (channel && ret_counts)
		*ret_counts = channel->counts;
}

void pc_channel_verify_counts(const struct pc_channel *channel, struct pc_verify_counts *ret_counts)
{
	if (channel && ret_counts)
		*ret_counts = channel->verify_counts;
}
