/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes. A lane is a channel of a session together with the buffers that a call needs. A call takes
 * an idle lane of its purpose or opens a new one, so the number of lanes is the largest number of
 * concurrent calls per purpose, whatever number of threads start and end. The most recently
 * returned lane is taken first: its channel has cached the locations that the previous exists
 * looked up, and the get that follows uses them, even if another thread made the exists.
 *
 * Any thread, without the interpreter's lock. session.lock guards the lists and the counts.
 */
#include "engine/client/python/session.h"

#include <stdlib.h>

/* `sum` and the channel's counts are added as arrays of 64-bit numbers. */
void lane_counts(struct lane_counts *sum, const struct pc_channel *channel)
{
	struct lane_counts c;
	uint64_t *to = (uint64_t *)sum;
	const uint64_t *from = (const uint64_t *)&c;

	_Static_assert(sizeof(c) % sizeof(*to) == 0, "counts are 64-bit numbers throughout");
	pc_channel_counts(channel, &c.pages);
	pc_channel_verify_counts(channel, &c.verify);
	for (size_t i = 0; i < sizeof(c) / sizeof(*to); i++)
		to[i] += from[i];
}

void lane_free(struct py_session *s, struct lane *lane)
{
	struct pc_channel *channel = lane->channel;

	if (channel)
		lane_counts(&s->counts, channel);
	pc_channel_close(channel);
	if (lane->stage)
		pc_memory_release(lane->pc, lane->stage);
	free(lane->page);
	free(lane->segment);
	free(lane->result);
	free(lane);
}

struct lane *lane_take(struct py_session *s, enum purpose purpose)
{
	struct lane *lane = NULL;
	struct pc *pc;

	pthread_mutex_lock(&s->lock);
	pc = s->pc;
	if (pc) {
		s->busy++;
		s->calls++;
		lane = s->lane[purpose];
		if (lane)
			s->lane[purpose] = lane->next;
	}
	pthread_mutex_unlock(&s->lock);
	if (lane || !pc)
		return lane;
	lane = calloc(1, sizeof(*lane));
	if (lane && !pc_channel_open(pc, &lane->channel)) {
		lane->pc = pc;
		pthread_mutex_lock(&s->lock);
		s->lanes++;
		pthread_mutex_unlock(&s->lock);
		return lane;
	}
	free(lane);
	pthread_mutex_lock(&s->lock);
	if (--s->busy == 0)
		pthread_cond_broadcast(&s->idle);
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

void lane_give(struct py_session *s, enum purpose purpose, struct lane *lane)
{
	pthread_mutex_lock(&s->lock);
	lane->next = s->lane[purpose];
	s->lane[purpose] = lane;
	if (--s->busy == 0)
		pthread_cond_broadcast(&s->idle);
	pthread_mutex_unlock(&s->lock);
}

/*
 * Enlarges the array *memory to `want` elements of `each` bytes and sets *have, unless it has that
 * number already. False: out of memory; the array is unchanged.
 */
static bool grow(void **memory, size_t *have, size_t want, size_t each)
{
	void *more;

	if (*have >= want)
		return true;
	if (want > SIZE_MAX / 2 / each)
		return false;
	more = realloc(*memory, want * each);
	if (!more)
		return false;
	*memory = more;
	*have = want;
	return true;
}

bool lane_room(struct lane *lane, size_t pages, size_t segments)
{
	size_t results = lane->pages; /* `result` grows before `page`, so `pages` is its capacity */

	return grow((void **)&lane->result, &results, pages, sizeof(*lane->result)) &&
	       grow((void **)&lane->page, &lane->pages, pages, sizeof(*lane->page)) &&
	       grow((void **)&lane->segment, &lane->segments, segments, sizeof(*lane->segment));
}

bool lane_stage(struct lane *lane, size_t bytes)
{
	void *stage;

	if (lane->stage_bytes >= bytes)
		return true;
	if (pc_memory_alloc(lane->pc, bytes, &stage))
		return false;
	if (lane->stage)
		pc_memory_release(lane->pc, lane->stage);
	lane->stage = stage;
	lane->stage_bytes = bytes;
	return true;
}

void session_count(struct py_session *s, const enum pc_result *result, size_t count)
{
	uint64_t results[RESULTS] = {0};

	for (size_t i = 0; i < count; i++)
		results[(unsigned)result[i] < RESULTS ? result[i] : PC_PENDING]++;
	pthread_mutex_lock(&s->lock);
	for (unsigned r = 0; r < RESULTS; r++)
		s->results[r] += results[r];
	pthread_mutex_unlock(&s->lock);
}
