/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a waiting call spends its time on few cores: wait.c is included, the clock, the yield and the
 * sleep are replaced. The simulated answer comes after a given time.
 */
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

static int stub_yield(void);
static int stub_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
static int stub_clock(clockid_t clock, struct timespec *ret_now);

#define sched_yield stub_yield
#define poll stub_poll
#define clock_gettime stub_clock
#define wait_for wait_wait_for
#include "engine/client/call/wait.c"

static struct pc pc = {.cores = FEW_CORES};
static struct channel_header header;
static struct client_session session = {.fd = -1};
static struct pc_batch batch;
static struct pc_channel channel;

static uint64_t now_ns, answer_ns;
static uint64_t deadline_ns; /* of the batch, from the start of its wait */
static uint64_t yield_ns;    /* time that one yield takes */
static unsigned yields, sleeps, hurries, lines;

int stub_clock(clockid_t clock, struct timespec *ret_now)
{
	now_ns += 100;
	*ret_now = (struct timespec){
		.tv_sec = (time_t)(now_ns / 1000000000u), .tv_nsec = (long)(now_ns % 1000000000u)};
	return 0;
}

int stub_yield(void)
{
	yields++;
	now_ns += yield_ns;
	return 0;
}

int stub_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
	uint64_t end_ns = now_ns + (uint64_t)timeout_ms * 1000000;

	(void)fds, (void)count;
	sleeps++;
	if (answer_ns > now_ns)
		now_ns = answer_ns < end_ns ? answer_ns : end_ns;
	return 0;
}

/* Replaces the channel's step: the batch ends at `answer_ns`, later than its deadline. */
bool channel_step(struct pc_channel *ch)
{
	batch.expired = now_ns >= batch.deadline_ns;
	batch.abandoned = now_ns >= batch.deadline_ns + ANSWER_GRACE_NS;
	if (now_ns < answer_ns)
		return false;
	batch.left = 0;
	return true;
}

void channel_tell_wait(const struct pc_channel *ch)
{
	lines++;
}

bool device_busy(const struct device_copies *d)
{
	return d;
}

void fetch_copies_end(struct pc_channel *ch, enum fetch_wait wait)
{
	assert_int_equal(wait, FETCH_WAIT_ONE);
	ch->device = NULL;
}

void submit_ctl_hurry(struct pc_channel *ch)
{
	ch->ctl_napped = false;
	hurries++;
}

/* Waits for an answer that comes after `ns`. */
static void wait_once(uint64_t ns)
{
	yields = sleeps = lines = 0;
	answer_ns = now_ns + ns;
	batch.left = 1;
	batch.deadline_ns = now_ns + deadline_ns;
	wait_for(&channel, &batch, UINT64_MAX);
	assert_int_equal(batch.left, 0);
}

static int start(void **state)
{
	static void *ring;

	free(ring);
	ring = aligned_alloc(64, ring_bytes(CTL_DONE_SLOTS, sizeof(struct ctl_done)));
	memset(ring, 0, ring_bytes(CTL_DONE_SLOTS, sizeof(struct ctl_done)));
	channel = (struct pc_channel){.pc = &pc, .session = &session, .header = &header};
	ring_consumer_init(&channel.ctl_done, ring, CTL_DONE_SLOTS, sizeof(struct ctl_done));
	channel.first = &batch;
	now_ns = 1000000;
	deadline_ns = 5000000000;
	yield_ns = 300;
	return 0;
}

static void a_free_core_is_spun_on_then_yielded(void **state)
{
	wait_once(SPIN_FEW_CORES_NS / 2);
	assert_int_equal(yields + sleeps, 0);
	wait_once(SPIN_FEW_CORES_NS + YIELD_NS / 2);
	assert_true(yields > 2);
	assert_int_equal(sleeps, 0);
	assert_int_equal(channel.crowded, 0);
}

static void a_yield_that_ran_another_thread_ends_spinning(void **state)
{
	yield_ns = 4 * CROWDED_NS;
	wait_once(1000000);
	assert_int_equal(yields, 1);
	assert_int_equal(sleeps, 1);
	/* the following waits sleep at once, until one tries again */
	for (unsigned i = 1; i < CROWDED_WAITS; i++) {
		wait_once(SPIN_FEW_CORES_NS / 2);
		assert_int_equal(yields, 0);
		assert_int_equal(sleeps, 1);
	}
	wait_once(1000000);
	assert_int_equal(yields, 1);
}

static void a_core_that_is_free_again_is_spun_on_again(void **state)
{
	yield_ns = 4 * CROWDED_NS;
	wait_once(1000000);
	yield_ns = 300;
	for (unsigned i = 0; i < CROWDED_WAITS; i++)
		wait_once(1000000);
	wait_once(SPIN_FEW_CORES_NS / 2);
	assert_int_equal(yields + sleeps, 0);
}

static void many_cores_never_yield(void **state)
{
	pc.cores = FEW_CORES + 1;
	wait_once(1000000);
	pc.cores = FEW_CORES;
	assert_int_equal(yields, 0);
	assert_int_equal(sleeps, 1);
}

static void a_wait_of_a_second_past_the_deadline_is_told_once(void **state)
{
	wait_once(deadline_ns + DRAIN_WARN_NS - 1000000);
	assert_int_equal(lines, 0);
	wait_once(deadline_ns + DRAIN_WARN_NS + 2 * SLEEP_NS_MAX);
	assert_int_equal(lines, 1);
	wait_once(deadline_ns + 100 * DRAIN_WARN_NS);
	assert_int_equal(lines, 1);
}

static void a_channel_that_closes_tells_that_it_waits(void **state)
{
	for (unsigned late = 0; late < 2; late++) {
		lines = 0;
		channel.now_ns = now_ns;
		answer_ns = now_ns + DRAIN_WARN_NS / 2 + late * DRAIN_WARN_NS;
		batch.left = 1;
		batch.deadline_ns = 0;
		wait_for(&channel, NULL, UINT64_MAX);
		assert_int_equal(lines, late);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_free_core_is_spun_on_then_yielded, start),
		cmocka_unit_test_setup(a_yield_that_ran_another_thread_ends_spinning, start),
		cmocka_unit_test_setup(a_core_that_is_free_again_is_spun_on_again, start),
		cmocka_unit_test_setup(many_cores_never_yield, start),
		cmocka_unit_test_setup(a_wait_of_a_second_past_the_deadline_is_told_once, start),
		cmocka_unit_test_setup(a_channel_that_closes_tells_that_it_waits, start),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
