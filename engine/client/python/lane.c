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

#include <errno.h>
#include <stdlib.h>

/* The counts are added as arrays of 64-bit numbers. */
void lane_counts(struct lane_counts *sum, const struct lane *lane)
{
	struct lane_counts c = {.bytes_sidecar = lane->bytes_sidecar};
	uint64_t *to = (uint64_t *)sum;
	const uint64_t *from = (const uint64_t *)&c;

	_Static_assert(sizeof(c) % sizeof(*to) == 0, "counts are 64-bit numbers throughout");
	pc_channel_counts(lane->channel, &c.pages);
	pc_channel_verify_counts(lane->channel, &c.verify);
	for (size_t i = 0; i < sizeof(c) / sizeof(*to); i++)
		to[i] += from[i];
}

void lane_free_arrays(struct lane *lane)
{
	free(lane->page);
	free(lane->segment);
	free(lane->result);
	free(lane->bytes);
}

void lane_free(struct lane *lane)
{
	pc_channel_close(lane->channel);
	/* pc_close(), which follows, frees the stage without a request that a stopped engine would
	 * not answer */
	lane_free_arrays(lane);
	free(lane);
}

void session_leave(struct py_session *s)
{
	pthread_mutex_lock(&s->lock);
	if (--s->busy == 0)
		pthread_cond_broadcast(&s->idle);
	pthread_mutex_unlock(&s->lock);
}

/* Opens a lane by `end_ms`. Returns 0 or a negative errno. */
static int lane_open(struct py_session *s, struct pc *pc, uint64_t end_ms, struct lane **ret_lane)
{
	struct lane *lane = calloc(1, sizeof(*lane));
	int rc = lane ? pc_channel_open_within(pc, rest_ms(end_ms), &lane->channel) : -ENOMEM;

	if (rc) {
		free(lane);
		return rc;
	}
	lane->pc = pc;
	pthread_mutex_lock(&s->lock);
	s->lanes++;
	pthread_mutex_unlock(&s->lock);
	*ret_lane = lane;
	return 0;
}

int lane_take(struct py_session *s, enum purpose purpose, uint64_t end_ms, struct lane **ret_lane)
{
	struct lane *lane = NULL;
	struct pc *pc;
	int rc;

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
	*ret_lane = lane;
	if (!pc)
		return LANE_CLOSED;
	if (lane)
		return 0;
	rc = lane_open(s, pc, end_ms, ret_lane);
	if (rc)
		session_leave(s);
	return rc;
}

void lane_give(struct py_session *s, enum purpose purpose, struct lane *lane)
{
	pthread_mutex_lock(&s->lock);
	lane->next = s->lane[purpose];
	s->lane[purpose] = lane;
	pthread_mutex_unlock(&s->lock);
	session_leave(s);
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
	/* these grow before `page`, so `pages` is their capacity */
	size_t results = lane->pages, lengths = lane->pages;

	return grow((void **)&lane->result, &results, pages, sizeof(*lane->result)) &&
	       grow((void **)&lane->bytes, &lengths, pages, sizeof(*lane->bytes)) &&
	       grow((void **)&lane->page, &lane->pages, pages, sizeof(*lane->page)) &&
	       grow((void **)&lane->segment, &lane->segments, segments, sizeof(*lane->segment));
}

int lane_stage(struct lane *lane, uint64_t end_ms)
{
	void *stage;
	int rc;

	if (lane->stage)
		return 0;
	rc = pc_memory_alloc_within(lane->pc, STAGE_BYTES, rest_ms(end_ms), &stage);
	if (!rc)
		lane->stage = stage;
	return rc;
}
