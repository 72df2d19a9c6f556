/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several threads share one session, each with its own channel, while the engine dies and returns.
 */
#include "config/clock.h"
#include "engine/client/rings/channel.h"
#include "tests/unit/client/rig.h"

#include <unistd.h>

#define THREADS 3
#define PAGES 32
#define RUN_MS 1500 /* run time in ms; longer until each thread has had a hit */

struct worker {
	pthread_t thread;
	unsigned index;
	unsigned hits, wrong;
};

static uint64_t started_ns;
static struct worker worker[THREADS];

/* True while the threads go on: for RUN_MS and until each has had a hit, but not for ever. */
static bool going_on(void)
{
	if (elapsed_ms(started_ns) >= RUN_MS + PATIENCE_MS)
		return false;
	for (unsigned k = 0; k < THREADS; k++)
		if (!__atomic_load_n(&worker[k].hits, __ATOMIC_RELAXED))
			return true;
	return elapsed_ms(started_ns) < RUN_MS;
}

static void move_pages(struct worker *w, struct pc_channel *mine, unsigned char *at, unsigned turn)
{
	struct one one[PAGES];
	struct pc_page pages[PAGES];
	enum pc_result result[PAGES];

	for (unsigned k = 0; k < PAGES; k++) {
		char name[32];

		snprintf(name, sizeof(name), "page-%u-%u", (w->index + turn) % THREADS, k);
		pages[k] = *one_page(&one[k], name, at + k * 4096, 4096);
		fill(name, at + k * 4096, 4096);
	}
	if (pc_set(mine, pages, PAGES, 1000, result))
		w->wrong++;
	memset(at, 0, PAGES * 4096);
	if (pc_get(mine, pages, PAGES, 1000, result))
		w->wrong++;
	for (unsigned k = 0; k < PAGES; k++) {
		if (result[k] != PC_HIT)
			continue;
		__atomic_fetch_add(&w->hits, 1, __ATOMIC_RELAXED);
		w->wrong += !same(one[k].name, at + k * 4096, 0, 4096);
	}
}

static void *work(void *context)
{
	struct worker *w = context;
	struct pc_channel *mine = NULL;

	for (unsigned turn = 0; going_on(); turn++) {
		void *at = NULL;

		if (turn % 8 == 0) {
			pc_channel_close(mine);
			if (pc_channel_open(pc, &mine))
				mine = NULL; /* the engine died between the two calls */
		}
		if (!mine || pc_memory_alloc(pc, PAGES * 4096, &at))
			continue;
		move_pages(w, mine, at, turn);
		pc_attached(pc);
		w->wrong += pc_memory_release(pc, at) != 0;
	}
	pc_channel_close(mine);
	return NULL;
}

static void threads_share_a_session_while_the_engine_dies_and_returns(void **state)
{
	started_ns = clock_monotonic_ns();
	for (unsigned k = 0; k < THREADS; k++) {
		worker[k].index = k;
		assert_int_equal(pthread_create(&worker[k].thread, NULL, work, &worker[k]), 0);
	}
	while (going_on()) {
		usleep(300000);
		fake_die(&fake);
		usleep(20000);
		fake_revive(&fake);
	}
	for (unsigned k = 0; k < THREADS; k++) {
		pthread_join(worker[k].thread, NULL);
		assert_int_equal(worker[k].wrong, 0);
		assert_true(worker[k].hits > 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(threads_share_a_session_while_the_engine_dies_and_returns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
