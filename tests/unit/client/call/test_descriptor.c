/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_channel_fd(): readable when there is something to poll for, and not otherwise. Waits have a
 * limit of PATIENCE_MS, which no test reaches.
 */
#include <errno.h>
#include <poll.h>
#include <sys/wait.h>

#include "tests/unit/client/rig.h"

static unsigned char memory[4][PAGE_BYTES];
static struct one one[4];
static enum pc_result result[4];

static bool readable(int fd, unsigned ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, (int)ms) == 1 && p.revents & POLLIN;
}

static void answer_held(void)
{
	fake_lock(&fake);
	fake_answer_held(&fake);
	fake_unlock(&fake);
}

/* Submits a get of page i, which is on another host. */
static struct pc_batch *submit(unsigned i, unsigned timeout_ms)
{
	struct pc_batch *b = NULL;
	char name[16];

	snprintf(name, sizeof(name), "key-%u", i);
	one_page(&one[i], name, memory[i], PAGE_BYTES);
	assert_int_equal(pc_submit_get(ch, &one[i].page, 1, timeout_ms, &result[i], &b), 0);
	return b;
}

/* Polls when the descriptor says so. Returns the number of polls. */
static unsigned drive(int fd, struct pc_batch *b)
{
	unsigned polls = 1;

	for (; !pc_poll(b); polls++)
		assert_true(readable(fd, PATIENCE_MS));
	return polls;
}

static uint32_t hold_pages(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f, (void)rail;
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

/* A get whose READ of the page is held: everything before it was answered. */
static struct pc_batch *submit_held(int fd, unsigned i, unsigned timeout_ms)
{
	unsigned held = SEEN(held_count);
	struct pc_batch *b = submit(i, timeout_ms);

	while (SEEN(held_count) == held) {
		assert_true(readable(fd, PATIENCE_MS));
		assert_false(pc_poll(b));
	}
	return b;
}

/* Without the timer, the answer to the batch makes it readable. */
static void answered(int fd, struct pc_batch *b)
{
	descriptor_wake_at(ch, DESCRIPTOR_IDLE, ch->now_ns);
	answer_held();
	assert_true(readable(fd, PATIENCE_MS));
	(void)drive(fd, b);
}

static int setup(void **state)
{
	int rc = rig_setup(state);

	for (unsigned i = 0; i < 4; i++) {
		char name[16];

		snprintf(name, sizeof(name), "key-%u", i);
		fake_page(&fake, name, FAKE_A, i % 2, PAGE_BYTES);
	}
	return rc;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, rig_teardown)

static void batches_are_driven_by_the_descriptor(void **state)
{
	int fd = pc_channel_fd(ch);

	assert_true(fd >= 0);
	assert_int_equal(pc_channel_fd(ch), fd);
	for (unsigned n = 0; n < 200; n++) {
		struct pc_batch *b = submit(n % 4, PATIENCE_MS);

		/* a look-up, the page, and one without a reason for each of them */
		assert_true(drive(fd, b) <= 8);
		assert_int_equal(result[n % 4], PC_HIT);
		assert_true(same(one[n % 4].name, memory[n % 4], 0, PAGE_BYTES));
		assert_false(readable(fd, 0));
	}
	assert_int_equal(get_one("key-1", memory[0], PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_false(readable(fd, 0));
}

static void it_is_readable_when_the_answer_comes_and_not_before(void **state)
{
	int fd = pc_channel_fd(ch);
	struct pc_batch *b;
	unsigned turns = 0;

	LET(on_op, hold_pages);
	b = submit_held(fd, 0, PATIENCE_MS);
	for (uint64_t since_ns = clock_monotonic_ns(); elapsed_ms(since_ns) < 350; turns++)
		if (readable(fd, 350))
			assert_false(pc_poll(b));
	assert_true(turns <= 12); /* once in SLEEP_NS_MAX, not all the time */
	answered(fd, b);
	assert_int_equal(result[0], PC_HIT);
	/* a wake-up that comes late has no batch */
	fake_lock(&fake);
	fake_wake(&fake.channel[ch->id]);
	fake_unlock(&fake);
	assert_false(readable(fd, 0));
}

/* The answers of both come at once: polling one batch ends the other, too. */
static void a_batch_that_another_poll_has_ended_keeps_it_readable(void **state)
{
	int fd = pc_channel_fd(ch);
	struct pc_batch *a, *b;

	LET(on_op, hold_pages);
	a = submit_held(fd, 0, PATIENCE_MS);
	b = submit_held(fd, 1, PATIENCE_MS);
	answer_held();
	(void)drive(fd, b);
	for (unsigned n = 0; n < 3; n++)
		assert_true(readable(fd, 0));
	assert_true(pc_poll(a));
	assert_false(readable(fd, 0));
}

/* A call that waits takes the answer of a submitted batch, and ends a wait for the wake-up. */
static void a_call_between_leaves_it_readable(void **state)
{
	int fd = pc_channel_fd(ch);
	struct pc_batch *a;

	LET(on_op, hold_pages);
	a = submit_held(fd, 0, PATIENCE_MS);
	LET(on_op, NULL);
	assert_int_equal(get_one("key-1", memory[1], PAGE_BYTES, PATIENCE_MS), PC_HIT);
	answer_held();
	(void)drive(fd, a);
	a = submit(0, PATIENCE_MS);
	assert_int_equal(exists_one("absent", PATIENCE_MS), PC_MISS);
	(void)drive(fd, a);
	assert_int_equal(result[0], PC_HIT);
	assert_false(readable(fd, 0));
}

static void a_deadline_makes_it_readable(void **state)
{
	uint64_t since_ns = clock_monotonic_ns();
	int fd = pc_channel_fd(ch);
	struct pc_batch *b;

	LET(on_op, hold_pages);
	b = submit_held(fd, 0, 60);
	assert_true(b->expired || ch->timer_ns <= b->deadline_ns);
	(void)drive(fd, b);
	assert_int_equal(result[0], PC_TIMEOUT);
	assert_in_range(elapsed_ms(since_ns), 60, PATIENCE_MS / 2);
	assert_false(readable(fd, 0));
}

static void an_engine_that_dies_makes_it_readable(void **state)
{
	int fd = pc_channel_fd(ch);
	struct pc_batch *b;

	LET(on_op, hold_pages);
	b = submit_held(fd, 0, PATIENCE_MS);
	descriptor_wake_at(ch, DESCRIPTOR_IDLE, ch->now_ns);
	fake_die(&fake);
	assert_true(readable(fd, PATIENCE_MS)); /* without the timer */
	(void)drive(fd, b);
	assert_int_equal(result[0], PC_GONE);
	assert_false(readable(fd, 0));
	b = submit(1, 100); /* without an engine */
	assert_true(readable(fd, 0));
	assert_true(pc_poll(b));
	assert_int_equal(result[1], PC_GONE);
	LET(on_op, NULL);
	fake_revive(&fake);
	do
		(void)drive(fd, submit(1, PATIENCE_MS));
	while (result[1] == PC_GONE);
	assert_int_equal(result[1], PC_HIT);
	assert_int_equal(pc_channel_fd(ch), fd);
}

static void *wait_for_it(void *fd)
{
	return readable(*(int *)fd, PATIENCE_MS) ? fd : NULL;
}

static void closing_the_channel_ends_a_wait_for_it(void **state)
{
	void *woken = NULL;
	pthread_t thread;
	int fd, copy;

	for (unsigned n = 0; n < 20; n++) {
		fd = pc_channel_fd(ch);
		copy = dup(fd);
		assert_int_equal(
			pthread_create(&thread, NULL, wait_for_it, n % 2 ? &fd : &copy), 0);
		if (n % 4 < 2)
			usleep(1000);
		pc_channel_close(ch);
		assert_true(readable(copy, PATIENCE_MS));
		pthread_join(thread, &woken);
		assert_true(n % 2 || woken); /* the number may be closed before it is waited for */
		close(copy);
		assert_int_equal(pc_channel_open(pc, &ch), 0);
	}
}

static void a_channel_without_one_asks_for_no_wake_up(void **state)
{
	struct pc_batch *b;

	LET(on_op, hold_pages);
	b = submit(0, PATIENCE_MS);
	while (!SEEN(held_count))
		assert_false(pc_poll(b));
	assert_int_equal(shm_load(&ch->header->client_waits), 0);
	answer_held();
	pc_wait(b);
	assert_int_equal(ch->descriptor, -1);
}

/* The epoll instance belongs to both processes: the child must leave it as it is. */
static void a_child_of_fork_leaves_it_to_its_parent(void **state)
{
	int fd = pc_channel_fd(ch), status = -1;
	struct pc_batch *b;
	pid_t child;

	LET(on_op, hold_pages);
	b = submit_held(fd, 0, PATIENCE_MS);
	child = fork();
	if (!child) {
		bool right = pc_channel_fd(ch) == -ENOTCONN && pc_poll(b);

		pc_channel_close(ch);
		_exit(!right);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	answered(fd, b);
	assert_int_equal(result[0], PC_HIT);
	assert_false(readable(fd, 0));
	assert_int_equal(pc_channel_fd(NULL), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(batches_are_driven_by_the_descriptor),
		TEST(it_is_readable_when_the_answer_comes_and_not_before),
		TEST(a_batch_that_another_poll_has_ended_keeps_it_readable),
		TEST(a_call_between_leaves_it_readable),
		TEST(a_deadline_makes_it_readable),
		TEST(an_engine_that_dies_makes_it_readable),
		TEST(closing_the_channel_ends_a_wait_for_it),
		TEST(a_channel_without_one_asks_for_no_wake_up),
		TEST(a_child_of_fork_leaves_it_to_its_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
