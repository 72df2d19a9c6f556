/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory shard outlives its process: the next one adopts it, unless the kernel ended the
 * process in the middle of a change.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/abi/ring.h"
#include "engine/control/pages/pages_inner.h"
#include "tests/unit/control/pages/random_world.h"

#define REF 7u
#define OWNERS 5u    /* the number that shard_keep() gets */
#define ENTRIES 128u /* makes 64 buckets with 256 cells */
#define KEYS 232u    /* so that buckets are full and entries are moved */

static struct page_key key_of(uint64_t n)
{
	return (struct page_key){{map_mix(2 * n + 1), map_mix(2 * n + 2)}};
}

/* What a process does to the shard: step by step, always the same for a seed. */
struct model {
	uint64_t random;
	uint32_t generation[KEYS]; /* of each key; 0: it has no entry */
	uint32_t last;             /* generation that was used last */
};

static uint64_t draw(struct model *model)
{
	model->random += 0x9e3779b97f4a7c15ull;
	return map_mix(model->random);
}

static void step(struct model *model, struct shard *shard)
{
	uint32_t number = (uint32_t)(draw(model) % KEYS);
	struct page_key key = key_of(number);
	bool add = draw(model) % 8 < 5;

	if (add || !model->generation[number]) {
		if (shard_insert(shard, &key, REF, number, ++model->last) == 0)
			model->generation[number] = model->last;
	} else {
		(void)shard_remove(shard, &key, REF, number, model->generation[number]);
		model->generation[number] = 0;
	}
}

/* True if each key is found as the model has it, and as often. */
static bool agrees(const struct model *model, const struct shard *shard)
{
	uint64_t entries = 0;

	for (uint32_t n = 0; n < KEYS; n++) {
		struct page_key key = key_of(n);
		struct dir_entry found[2 * BUCKET_ENTRIES];
		unsigned count = shard_find(shard, &key, found, 2 * BUCKET_ENTRIES);

		if (count != (model->generation[n] != 0))
			return false;
		if (count && (found[0].generation != model->generation[n] || found[0].ref != REF))
			return false;
		entries += count;
	}
	return shard->entries == entries;
}

static struct shard shard_new(void)
{
	struct shard shard;

	assert_int_equal(shard_open(ENTRIES, -1, false, &shard), 0);
	assert_int_equal(shard.bits, 6);
	shard_keep(&shard, OWNERS);
	return shard;
}

static int adopt(const struct shard *left, uint64_t entries, uint64_t owners, struct shard *ret)
{
	return shard_adopt(entries, dup(left->memory.fd), dup(left->state_memory.fd), owners, ret);
}

static void the_next_process_has_the_entries_and_goes_on(void **state)
{
	struct shard left = shard_new(), shard;
	struct model model = {.random = 1};

	for (unsigned i = 0; i < 3000; i++)
		step(&model, &left);
	assert_true(agrees(&model, &left));
	assert_int_equal(adopt(&left, ENTRIES, OWNERS, &shard), 0);
	shard_close(&left);
	assert_true(agrees(&model, &shard));
	for (unsigned i = 0; i < 3000; i++)
		step(&model, &shard);
	assert_true(agrees(&model, &shard));
	shard_close(&shard);
}

static unsigned open_files(void)
{
	unsigned count = 0;

	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void files_that_are_not_one_shard_are_refused(void **state)
{
	struct shard left = shard_new(), other = shard_new(), shard;
	uint32_t *word = left.state_memory.base; /* magic, layout, bits, busy, entries (64 bits) */
	unsigned files = open_files();

	assert_int_equal(adopt(&left, ENTRIES, OWNERS + 1, &shard), -EPROTO);
	assert_int_equal(adopt(&left, 4096 * ENTRIES, OWNERS, &shard), -EPROTO);
	assert_int_equal(adopt(&left, UINT64_MAX, OWNERS, &shard), -EPROTO);
	assert_int_equal(shard_adopt(ENTRIES, dup(other.memory.fd), dup(left.state_memory.fd),
				 OWNERS, &shard),
		-EPROTO);
	assert_int_equal(shard_adopt(ENTRIES, dup(left.state_memory.fd), dup(left.memory.fd),
				 OWNERS, &shard),
		-EPROTO);
	for (unsigned i = 0; i < 4; i++) {
		word[i]++;
		assert_int_equal(adopt(&left, ENTRIES, OWNERS, &shard), -EPROTO);
		word[i]--;
	}
	word[5] = 1; /* more entries than cells */
	assert_int_equal(adopt(&left, ENTRIES, OWNERS, &shard), -EPROTO);
	word[5] = 0;
	assert_int_equal(open_files(), files);
	assert_int_equal(adopt(&left, ENTRIES, OWNERS, &shard), 0);
	shard_close(&shard);
	shard_keep(&left, 0);
	assert_int_equal(adopt(&left, ENTRIES, OWNERS, &shard), -EPROTO);
	shard_close(&left);
	shard_close(&other);
}

/* Runs steps in another process until that is killed. Returns how many it finished. */
static uint64_t killed_steps(struct model *model, struct shard *shard, long delay_ns)
{
	uint64_t *steps = mmap(
		NULL, sizeof(*steps), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	const struct timespec delay = {.tv_nsec = delay_ns};
	uint64_t done;
	pid_t pid;

	assert_true(steps != MAP_FAILED);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		for (uint64_t n = 1;; n++) {
			step(model, shard);
			shm_store64(steps, n);
		}
	while (shm_load64(steps) == 0)
		sched_yield(); /* the other process may need this core */
	nanosleep(&delay, NULL);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	done = shm_load64(steps);
	munmap(steps, sizeof(*steps));
	return done;
}

/*
 * A process is killed at a random moment again and again. Each time the shard is either refused, or
 * it is that of a moment between two steps, and goes on as the model does.
 */
static void a_shard_is_adopted_only_between_two_changes(void **state)
{
	unsigned refused = 0, adopted = 0;
	uint64_t random = random_next();

	for (unsigned round = 0; round < 4000 && (round < 300 || !refused || !adopted); round++) {
		struct shard left = shard_new(), shard, twin = shard_new();
		struct model model = {.random = map_mix(random + round)};
		uint64_t steps =
			killed_steps(&model, &left, (long)(map_mix(random ^ round) % 200000));

		for (uint64_t i = 0; i < steps; i++)
			step(&model, &twin);
		if (adopt(&left, ENTRIES, OWNERS, &shard) < 0) {
			refused++;
		} else {
			adopted++;
			/* killed between the end of a step and its count */
			if (!agrees(&model, &shard))
				step(&model, &twin);
			assert_true(agrees(&model, &shard));
			for (unsigned i = 0; i < 1000; i++)
				step(&model, &shard);
			assert_true(agrees(&model, &shard));
			shard_close(&shard);
		}
		shard_close(&left);
		shard_close(&twin);
	}
	print_message("%u adopted, %u refused\n", adopted, refused);
	assert_true(adopted && refused);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_next_process_has_the_entries_and_goes_on),
		cmocka_unit_test(files_that_are_not_one_shard_are_refused),
		cmocka_unit_test(a_shard_is_adopted_only_between_two_changes),
	};

	return cmocka_run_group_tests(tests, start, NULL);
}
