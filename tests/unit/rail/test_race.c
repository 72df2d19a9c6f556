/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that changes its op while the rail takes it. The rail copies a slot once and validates
 * the copy, so each READ stays inside the client's regions whatever the client writes meanwhile;
 * the fake NIC (fake.c) fails the test if one does not.
 *
 * Two threads would hit the few nanoseconds between two loads of a word too rarely. Therefore the
 * rail runs single-stepped in a child process, and the parent changes the word between two
 * instructions.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/rail/client_world.h"

/* number of ops whose ring entry the parent process changes while the child reads it */
#define OPS 60u
#define SHORT_BYTES 64u /* length of an op that ends at the end of the region */
#define LONG_BYTES 128u /* length with which the op would leave the region */

/*
 * Shared by parent and child. The child writes it; the parent reads it while the child is stopped.
 */
static struct {
	/*
	 * the word that the parent process changes after each instruction of the child; NULL: the
	 * child runs freely
	 */
	uint32_t *word;
	bool over; /* true: the tests are done, and the parent process detaches */
} * target;

/* Sets `target` and stops this process, so that the parent reads `target`. */
static void tell_parent(uint32_t *word, bool over)
{
	target->word = word;
	target->over = over;
	raise(SIGSTOP);
}

static void an_op_that_changes_while_it_is_taken_is_read_once(void **state)
{
	struct world *w = *state;
	struct op op;
	struct op_segment s = home_at(WORLD_HOME_BYTES - SHORT_BYTES, SHORT_BYTES);
	unsigned hits = 0, refused = 0;
	struct op_done done;

	page_put(w, 0, LONG_BYTES, 77);
	op = page_op(w, 1, 0, LONG_BYTES, 77);
	op.length = SHORT_BYTES;
	for (unsigned i = 0; i < OPS; i++) {
		struct run_line *line =
			(void *)(client->ops.slots +
				 ring_at(OP_RING_SLOTS, sizeof(*line), client->ops.tail));

		client_submit(client, &op, &s);
		tell_parent((uint32_t *)&line->header.to, false);
		rail_step(w->rail, 0);
		tell_parent(NULL, false);
		world_run(w);
		assert_true(client_done(client, &done));
		assert_true(done.status == OP_HIT || done.status == OP_INVALID);
		hits += done.status == OP_HIT;
		refused += done.status == OP_INVALID;
	}
	printf("%u read, %u refused\n", hits, refused);
	assert_true(hits && refused); /* the rail has read both lengths at least once */
}

static int child(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			an_op_that_changes_while_it_is_taken_is_read_once, setup, teardown),
	};
	int failed;

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0) {
		printf("skipped: ptrace(PTRACE_TRACEME) is refused here: %s\n", strerror(errno));
		return 77;
	}
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	tell_parent(NULL, true); /* LeakSanitizer does not work under ptrace */
	return failed;
}

/* Writes SHORT_BYTES or LONG_BYTES to the word, with equal probability. */
static void change(pid_t pid, uint32_t *word, uint64_t *seed)
{
	uintptr_t at = (uintptr_t)word & ~(uintptr_t)7;
	unsigned shift = (unsigned)((uintptr_t)word - at) * 8;
	unsigned long value;

	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	value = (unsigned long)ptrace(PTRACE_PEEKDATA, pid, (void *)at, NULL);
	value &= ~(0xfffffffful << shift);
	value |= (unsigned long)(*seed >> 63 ? SHORT_BYTES : LONG_BYTES) << shift;
	ptrace(PTRACE_POKEDATA, pid, (void *)at, (void *)value);
}

/* Runs the child process to its end. Returns its exit status. */
static int parent(pid_t pid, uint64_t seed)
{
	int status;

	while (waitpid(pid, &status, 0) == pid) {
		int signal = WIFSTOPPED(status) ? WSTOPSIG(status) : 0;

		if (!WIFSTOPPED(status))
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		if (signal == SIGSTOP && target->over) {
			ptrace(PTRACE_DETACH, pid, NULL, NULL);
			continue;
		}
		if (target->word && signal == SIGTRAP)
			change(pid, target->word, &seed);
		if (signal == SIGSTOP || signal == SIGTRAP)
			signal = 0;
		ptrace(target->word ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL,
			(void *)(intptr_t)signal);
	}
	return 1;
}

int main(void)
{
	const char *text = getenv("SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)getpid();
	pid_t pid;

	printf("SEED=%lu\n", seed);
	fflush(stdout);
	target = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert(target != MAP_FAILED);
	pid = fork();
	if (pid == 0)
		return child();
	return pid < 0 ? 1 : parent(pid, seed);
}
