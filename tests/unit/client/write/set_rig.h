/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Common setup of the tests of a set whose keys the directory has: PAGES short pages, and checks of
 * what became of them. Nothing below is needed by every test.
 */
#ifndef TESTS_CLIENT_SET_RIG_H
#define TESTS_CLIENT_SET_RIG_H

#include "engine/client/constants.h"
#include "engine/client/rings/rings.h"
#include "tests/unit/client/rig.h"

#define PAGES 128u
#define SHORT 4096u

static char name[PAGES][FAKE_NAME_BYTES];
static struct one one[PAGES];
static struct pc_page pages[PAGES];
static enum pc_result results[PAGES];
static uint32_t places[PAGES];
static unsigned char from[PAGES][SHORT];

/* Makes the calls' pages "<stem>-<k>"; `node` has them, unless it is FAKE_NODES. */
static inline void make(const char *stem, uint32_t node)
{
	for (unsigned k = 0; k < PAGES; k++) {
		snprintf(name[k], sizeof(name[k]), "%s-%u", stem, k);
		fill(name[k], from[k], SHORT);
		pages[k] = *one_page(&one[k], name[k], from[k], SHORT);
		if (node < FAKE_NODES)
			places[k] = fake_page(&fake, name[k], node, k % FAKE_RAILS, SHORT);
	}
}

static inline void set_all(unsigned count)
{
	assert_int_equal(pc_set(ch, pages, count, PATIENCE_MS, results), 0);
}

static inline void all_are(unsigned count, enum pc_result result)
{
	for (unsigned k = 0; k < count; k++)
		assert_int_equal(results[k], result);
}

static inline void retire(uint32_t node, uint32_t place)
{
	fake_lock(&fake);
	page_head_retire(fake_head(&fake, node, place));
	fake_unlock(&fake);
}

/* A get by a channel that knows no location. */
static inline void assert_readable(const char *key)
{
	static unsigned char at[SHORT];
	struct pc_channel *first = ch;

	assert_int_equal(pc_channel_open(pc, &ch), 0);
	assert_int_equal(get_one(key, at, SHORT, PATIENCE_MS), PC_HIT);
	assert_true(same(key, at, 0, SHORT));
	pc_channel_close(ch);
	ch = first;
}

/* No request is in flight, and all scratch slots are free. */
static inline void assert_idle(void)
{
	for (uint64_t start_ns = clock_monotonic_ns();
		ch->ctl_awaited && elapsed_ms(start_ns) < PATIENCE_MS;)
		channel_step(ch);
	for (uint32_t i = 0; i < ch->requests; i++)
		assert_int_equal(ch->request[i].kind, REQUEST_FREE);
	for (unsigned w = 0; w < SCRATCH_SLOTS / 32; w++)
		assert_int_equal(ch->staging.scratch_free[w], UINT32_MAX);
	assert_int_equal(ch->waits[0] + ch->waits[1], 0);
}

static inline bool of_head(const struct op *op)
{
	return op->kind == OP_LOOKUP && op->region != REGION_SHARD;
}

#endif
