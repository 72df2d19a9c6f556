/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads read the directory's table without a lock while its owner inserts, moves and removes
 * entries. An entry that is in the table during a whole look-up must be found.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/control/pages/pages_inner.h"

#define REF 7u
/* number of keys that the writer inserts and removes; the table has room for 256 entries */
#define KEYS 400u
#define RUN_NS 1000000000ull

struct reader {
	uint64_t random, looked, second, missed, wrong, single_missed;
};

static struct shard shard;
static struct page_key keys[KEYS];
/* per key: its generation while it is in the table; 0: it may be absent */
static uint32_t present[KEYS];
static uint32_t stop;
static uint64_t seed;

static uint64_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t time_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/*
 * Looks up a key; `settled`: loads each bucket until two loads agree. Returns how many buckets were
 * read; 0: not found.
 */
static unsigned look_up(const struct page_key *key, bool settled, struct dir_entry *ret)
{
	uint32_t at = dir_bucket_first(key, shard.bits), tag = dir_tag(key);

	for (unsigned reads = 1; reads <= 2; reads++) {
		struct bucket copy = settled ? bucket_load(&shard.bucket[at])
					     : bucket_load_once(&shard.bucket[at]);

		for (unsigned i = 0; i < BUCKET_ENTRIES; i++)
			if (copy.entry[i].tag == tag && copy.entry[i].ref == REF) {
				*ret = copy.entry[i];
				return reads;
			}
		if (bucket_has_empty(&copy))
			break;
		shm_fence_load();
		at = dir_bucket_other(at, tag, shard.bits);
	}
	return 0;
}

/*
 * Looks up random keys. Counts a look-up only if the key was in the table with one generation all
 * the time.
 */
static void *reader_main(void *argument)
{
	struct reader *r = argument;

	while (!shm_load(&stop)) {
		bool settled = random_next(&r->random) % 4 != 0;
		uint32_t n = (uint32_t)(random_next(&r->random) % KEYS);
		uint32_t generation = shm_load_acquire(&present[n]);
		struct dir_entry found = {0};
		unsigned reads;

		if (!generation)
			continue;
		reads = look_up(&keys[n], settled, &found);
		shm_fence_load();
		if (shm_load(&present[n]) != generation)
			continue;
		r->looked++;
		r->second += reads == 2;
		if (reads && found.generation == generation && found.place == n)
			continue;
		if (!settled)
			r->single_missed++;
		else if (!reads)
			r->missed++;
		else
			r->wrong++;
	}
	return NULL;
}

/*
 * Inserts and removes keys. In some phases removes prevail, in others the table is full. Returns
 * the next random number.
 */
static uint64_t churn(uint64_t random)
{
	uint64_t end_ns = time_ns() + RUN_NS, steps = 0;
	uint32_t in[KEYS] = {0};

	for (uint32_t step = 1; step % 256 || time_ns() < end_ns; step++, steps++) {
		uint32_t n = (uint32_t)(random_next(&random) % KEYS);
		bool fill = step / 4096 % 2;

		if (in[n] && random_next(&random) % 4 < (fill ? 1 : 3)) {
			shm_store(&present[n], 0);
			shm_fence_store();
			assert_true(shard_remove(&shard, &keys[n], REF, n, in[n]));
			in[n] = 0;
		} else if (!in[n] && shard_insert(&shard, &keys[n], REF, n, step) == 0) {
			in[n] = step;
			shm_store_release(&present[n], step);
		}
	}
	return steps;
}

static void readers_never_miss_an_entry_while_others_change(void **state)
{
	struct reader reader[2] = {0};
	pthread_t thread[2];
	uint64_t steps;

	assert_int_equal(shard_open(1, -1, false, &shard), 0);
	for (uint64_t n = 0; n < KEYS; n++)
		for (unsigned w = 0; w < 2; w++)
			keys[n].word[w] = random_next(&seed);
	for (unsigned i = 0; i < 2; i++) {
		reader[i].random = random_next(&seed);
		assert_int_equal(pthread_create(&thread[i], NULL, reader_main, &reader[i]), 0);
	}
	steps = churn(random_next(&seed));
	shm_store(&stop, 1);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(pthread_join(thread[i], NULL), 0);
	for (unsigned i = 0; i < 2; i++) {
		struct reader *r = &reader[i];

		print_message(
			"%llu look-ups, %llu in the second bucket, missed %llu, wrong %llu; missed when each bucket is loaded once: %llu\n",
			(unsigned long long)r->looked, (unsigned long long)r->second,
			(unsigned long long)r->missed, (unsigned long long)r->wrong,
			(unsigned long long)r->single_missed);
		assert_true(r->looked > 1000 && r->second > 0);
		assert_int_equal(r->missed, 0);
		assert_int_equal(r->wrong, 0);
	}
	print_message("%llu writer steps\n", (unsigned long long)steps);
	shard_close(&shard);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(readers_never_miss_an_entry_while_others_change),
	};
	const char *text = getenv("SEED");

	seed = text ? strtoull(text, NULL, 0) : time_ns();
	seed += seed == 0;
	print_message("SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
