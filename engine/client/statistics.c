/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The channel's statistics area: what the engine cannot see, latency and results of whole batches.
 * Written once for each batch, when it ends; abi/statistics.h has the protocol. Channel thread.
 */
#include "config/clock.h"
#include "engine/abi/latency.h"
#include "engine/abi/ring.h"
#include "engine/abi/statistics.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/peercache.h"
#include "engine/client/statistics.h"

static_assert((unsigned)PC_MISS == STATISTICS_MISS && (unsigned)PC_STALE == STATISTICS_STALE &&
		      (unsigned)PC_UNREACHABLE == STATISTICS_UNREACHABLE &&
		      (unsigned)PC_TIMEOUT == STATISTICS_TIMEOUT &&
		      (unsigned)PC_FULL == STATISTICS_NO_SPACE &&
		      (unsigned)PC_INVALID == STATISTICS_OTHER,
	"page_count() uses one as the other");
static_assert((unsigned)BATCH_GET == STATISTICS_GET && (unsigned)BATCH_SET == STATISTICS_SET &&
		      (unsigned)BATCH_EXISTS == STATISTICS_EXISTS &&
		      (unsigned)BATCH_REMOVE == STATISTICS_REMOVE,
	"the kinds of batches are the kinds of calls");

/* Adds to the area what the channel counted since the last batch that ended. */
static void counts_add(struct pc_channel *ch, struct statistics_words *to)
{
	const struct pc_counts *now = &ch->counts, *told = &ch->counts_told;

	shm_count(&to->get_local, now->hits_local - told->hits_local);
	shm_count(&to->get_remote, now->hits_remote - told->hits_remote);
	shm_count(&to->get_bytes, now->bytes_read - told->bytes_read);
	shm_count(&to->get_staged, now->bytes_staged - told->bytes_staged);
	shm_count(&to->set_bytes, now->bytes_written - told->bytes_written);
	shm_count(&to->set_present, now->sets_already - told->sets_already);
	shm_count(&to->reissued, now->reissued - told->reissued);
	shm_count(&to->lookups, now->lookups - told->lookups);
	shm_count(&to->lookups_cached, now->lookups_cached - told->lookups_cached);
	ch->counts_told = *now;
}

void statistics_batch(const struct pc_batch *b)
{
	struct channel_statistics *s = b->channel->statistics;
	uint64_t ns, hits = b->count;
	struct statistics_calls *calls;

	if (!s || b->kind >= BATCH_PEEK)
		return; /* the engine is gone, and its totals with it; or it is no call */
	ns = clock_monotonic_ns() - b->submitted_ns;
	if (ns > STATISTICS_LATENCY_MAX_NS)
		ns = STATISTICS_LATENCY_MAX_NS; /* the engine refuses a longer one */
	calls = &s->words.calls[b->kind];
	statistics_write_begin(s);
	for (unsigned result = STATISTICS_MISS; result < STATISTICS_RESULTS; result++) {
		if (!b->missed[result])
			continue;
		hits -= b->missed[result];
		shm_count(&calls->result[result], b->missed[result]);
	}
	shm_count(&calls->batches, 1);
	shm_count(&calls->pages, b->count);
	shm_count(&calls->result[STATISTICS_HIT], hits);
	shm_count(&calls->latency_ns_sum, ns);
	shm_count(&calls->latency[latency_bucket(ns)], 1);
	counts_add(b->channel, &s->words);
	statistics_write_end(s);
}
