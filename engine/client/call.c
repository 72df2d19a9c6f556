/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls about pages: make a batch of the arguments and hand the finished batch back to its
 * caller. Channel thread.
 */
#include "config/clock.h"
#include "config/limits.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/error.h"
#include "engine/client/map.h"
#include "engine/client/memory.h"
#include "engine/client/pages.h"
#include "engine/client/peercache.h"
#include "engine/client/wait.h"

#include <errno.h>
#include <string.h>

/* As many parameters as the public calls, whose arguments they are, and the kind. */
static int submit(struct pc_channel *ch, enum batch_kind kind, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	uint64_t submitted_ns = clock_monotonic_ns();
	uint64_t deadline_ns =
		submitted_ns + (timeout_ms ? timeout_ms : PC_TIMEOUT_MS_DEFAULT) * 1000000ull;
	struct pc_batch *b;
	bool ready;

	if (!ch || !ret_batch || count > BATCH_MAX || (count && (!pages || !results)))
		return error_set(-EINVAL,
			"a batch needs a channel, at most %u pages and a place for their results",
			BATCH_MAX);
	/* Called before the batch is made, because a channel that loses its engine ends all its
	 * batches. */
	ready = channel_ready(ch, deadline_ns);
	b = batch_make(ch, count);
	if (!b)
		return error_set(-ENOMEM, "out of memory for a batch of %u pages", count);
	b->kind = kind;
	b->pages = pages;
	b->results = results;
	b->submitted_ns = submitted_ns;
	b->deadline_ns = deadline_ns;
	if (b->deadline_ns < ch->due_ns)
		ch->due_ns = b->deadline_ns;
	ch->writers += batch_writes(b);
	if (ready) {
		map_refresh(ch);
		memory_refresh(ch);
	}
	pages_init(b);
	if (ready) {
		pages_pin(b);
		batch_begin(b);
		channel_step(ch);
	} else {
		b->pins = 0; /* nothing was pinned */
		batch_gone(b, PC_GONE);
	}
	*ret_batch = b;
	return 0;
}

bool pc_poll(struct pc_batch *b)
{
	if (!b)
		return true;
	if (b->left)
		channel_step(b->channel);
	if (b->left)
		return false;
	batch_free(b);
	return true;
}

void pc_wait(struct pc_batch *b)
{
	if (!b)
		return;
	wait_for(b->channel, b, UINT64_MAX);
	batch_free(b);
}

static int call(struct pc_channel *ch, enum batch_kind kind, const struct pc_page *pages,
	unsigned count, unsigned timeout_ms, enum pc_result *results)
{
	struct pc_batch *b = NULL;
	int rc = submit(ch, kind, pages, count, timeout_ms, results, &b);

	if (!rc)
		pc_wait(b);
	return rc;
}

int pc_submit_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return submit(channel, BATCH_GET, pages, count, timeout_ms, results, ret_batch);
}

int pc_submit_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return submit(channel, BATCH_SET, pages, count, timeout_ms, results, ret_batch);
}

int pc_submit_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return submit(channel, BATCH_EXISTS, pages, count, timeout_ms, results, ret_batch);
}

int pc_submit_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *results, struct pc_batch **ret_batch)
{
	return submit(channel, BATCH_REMOVE, pages, count, timeout_ms, results, ret_batch);
}

int pc_get(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return call(channel, BATCH_GET, pages, count, timeout_ms, ret_results);
}

int pc_set(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return call(channel, BATCH_SET, pages, count, timeout_ms, ret_results);
}

int pc_exists(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return call(channel, BATCH_EXISTS, pages, count, timeout_ms, ret_results);
}

int pc_remove(struct pc_channel *channel, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, enum pc_result *ret_results)
{
	return call(channel, BATCH_REMOVE, pages, count, timeout_ms, ret_results);
}
