/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several rails on one poll core: a kick for any of them wakes it, none starves another, and they
 * stop in any order. This program's ppoll() replaces that of libc, so that a lost wake-up is
 * detected instead of hidden by the end of the sleep.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/rail/model_clock.h"
#include "engine/rail/poll_core.h"
#include "tests/unit/rail/pair.h"

#define RAILS 3u

/* A seat: one rail of the poll core, with the rail's software NICs, client and connection. */
static struct seat {
	struct pair *pair;
	struct world *w;
	struct client *client;
	struct pair_conn *conn;
	uint32_t waits; /* 1: the seat's client has submitted an op or is about to */
} seat[RAILS];
/* number of sleeps of the poll core that continued although a client waited */
static uint32_t lost;
/* number of naps and short sleeps of the poll core that a kick ended */
static uint32_t naps_kicked;

/* ---- detecting lost wake-ups ----------------------------------------------------------------- */

static bool a_client_waits(void)
{
	for (unsigned i = 0; i < RAILS; i++)
		if (__atomic_load_n(&seat[i].waits, __ATOMIC_ACQUIRE))
			return true;
	return false;
}

static int sleep_in_kernel(struct pollfd *fds, nfds_t count, const struct timespec *span)
{
	struct timespec left = *span;

	return (int)syscall(SYS_ppoll, fds, count, &left, NULL, (size_t)8);
}

/*
 * Replaces libc's ppoll(). A client that waits has kicked or is about to, so if a deep sleep ends
 * by time while a client waits, it is extended by 5 s: if that ends by time as well, the kick was
 * lost.
 */
int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *span, const sigset_t *mask)
{
	const struct timespec long_ns = {.tv_sec = 5};
	int n = sleep_in_kernel(fds, count, span);

	if (n > 0 && span->tv_nsec < 100000000)
		__atomic_fetch_add(&naps_kicked, 1, __ATOMIC_RELAXED);
	if (n != 0 || span->tv_nsec < 100000000 || !a_client_waits())
		return n;
	n = sleep_in_kernel(fds, count, &long_ns);
	if (n == 0 && a_client_waits())
		__atomic_fetch_add(&lost, 1, __ATOMIC_RELAXED);
	return n;
}

static void seat_open(unsigned i, bool threaded, bool busy)
{
	struct seat *s = &seat[i];

	s->pair = pair_open(threaded, busy);
	s->w = &s->pair->world;
	wake_open(s->w);
	s->client = client_new(s->w, i, WORLD_SESSION);
	s->conn = pair_conn_new(s->pair, 3, 33, 2);
	world_command(s->w, (struct rail_command){RAIL_CONN_ADD, .object = &s->conn->handle});
	page_put(s->w, 8, 8192, 77);
	s->waits = 0;
}

/* Opens all seats and starts one poll core for their rails. */
static void begin(bool threaded, bool busy)
{
	struct pair *pairs[RAILS];

	lost = naps_kicked = 0;
	for (unsigned i = 0; i < RAILS; i++) {
		seat_open(i, threaded, busy);
		pairs[i] = seat[i].pair;
	}
	pair_start(pairs, RAILS);
}

/* Returns the next event of the seat's rail; fails after ten seconds. */
static struct rail_event hear(struct seat *s, uint32_t kind)
{
	struct rail_event event;
	uint64_t until_ns = clock_now_ns() + 60000000000ull;

	while (!rail_event_take(s->w->rail, &event)) {
		assert_true(clock_now_ns() < until_ns);
		sched_yield();
	}
	assert_int_equal(event.kind, kind);
	return event;
}

static void stop(struct seat *s)
{
	pair_conn_drop(s->pair, s->conn);
	assert_ptr_equal(hear(s, RAIL_CONN_RETURNED).object, s->conn);
	world_command(s->w, (struct rail_command){.kind = RAIL_STOP});
	hear(s, RAIL_STOPPED);
}

static void leave(struct seat *s)
{
	pair_conn_free(s->conn);
	wake_close(s->w);
	assert_int_equal(shm_load(&s->w->status->rail[0].sleeps), 0);
	pair_close(s->pair);
	client_free(s->client);
}

static void end(void)
{
	for (unsigned i = 0; i < RAILS; i++)
		stop(&seat[i]);
	poll_core_close(seat[0].pair->core);
	seat[0].pair->core = NULL;
	for (unsigned i = 0; i < RAILS; i++)
		leave(&seat[i]);
	assert_int_equal(lost, 0);
}

static void kick(struct seat *s)
{
	uint64_t one = 1;

	shm_fence_sleep();
	if (shm_load(&s->w->status->rail[0].sleeps))
		assert_int_equal(write(s->pair->kick, &one, sizeof(one)), sizeof(one));
}

/* Sleeps like a client until the completion of its op is there; the completion must be a hit. */
static void await_hit(struct seat *s)
{
	struct pollfd pollfd = {.fd = s->w->woken, .events = POLLIN};
	struct op_done done;
	uint64_t count;

	for (;;) {
		shm_store(&s->client->header->client_waits, 1);
		shm_fence_sleep();
		if (client_done(s->client, &done))
			break;
		assert_int_equal(poll(&pollfd, 1, 20000), 1);
		assert_true(recv(pollfd.fd, &count, sizeof(count), MSG_DONTWAIT) > 0);
	}
	shm_store(&s->client->header->client_waits, 0);
	assert_int_equal(done.status, OP_HIT);
}

static void get(struct seat *s, uint64_t cookie)
{
	__atomic_store_n(&s->waits, 1, __ATOMIC_RELEASE);
	page_get(s->w, s->client, cookie, 8, 8192, 77, 0);
	kick(s);
	await_hit(s);
	__atomic_store_n(&s->waits, 0, __ATOMIC_RELEASE);
}

static void await_sleep(void)
{
	for (unsigned i = 0; i < RAILS; i++)
		while (!shm_load(&seat[i].w->status->rail[0].sleeps))
			sched_yield();
}

/* ---- sleeping -------------------------------------------------------------------------------- */

static void a_kick_for_any_rail_wakes_the_shared_poll_core(void **state)
{
	begin(true, false);
	for (unsigned i = 0; i < 30; i++) {
		await_sleep();
		get(&seat[i % RAILS], i);
	}
	end();
}

static void *many_gets(void *argument)
{
	struct seat *s = argument;
	unsigned seed = (unsigned)(s - seat) + 1;

	for (unsigned i = 0; i < 300; i++) {
		struct timespec span = {.tv_nsec = rand_r(&seed) % 200000};

		get(s, i);
		/* waits for a random time up to about that after which the poll core sleeps */
		nanosleep(&span, NULL);
	}
	return NULL;
}

static void no_wake_up_is_lost_when_all_rails_are_used_concurrently(void **state)
{
	pthread_t thread[RAILS];

	begin(true, false);
	for (unsigned i = 0; i < RAILS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, many_gets, &seat[i]), 0);
	for (unsigned i = 0; i < RAILS; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 1; i < RAILS; i++)
		assert_int_equal(world_counter(seat[i].w, COUNTER_sleeps), 0);
	assert_true(world_counter(seat[0].w, COUNTER_sleeps) > 0);
	end();
}

static void a_core_that_naps_for_one_nic_is_woken_by_a_kick_for_another_rail(void **state)
{
	struct dv_fault down = {.link_down = true}, none = {.seed = 0};
	struct op_segment segment = home_at(0, 8192);
	struct op op;

	begin(true, false);
	dv_soft_patience(seat[0].pair->near, 60000000000ull, 0);
	dv_soft_faults(seat[0].pair->near, &down);
	op = page_op(seat[0].w, 1, 8, 8192, 77);
	op.deadline_ns = clock_now_ns() + 60000000000ull;
	client_submit(seat[0].client, &op, &segment);
	kick(&seat[0]);
	for (uint64_t i = 0; __atomic_load_n(&naps_kicked, __ATOMIC_RELAXED) < 10; i++) {
		assert_true(clock_now_ns() < op.deadline_ns);
		await_sleep();
		get(&seat[1], i);
	}
	dv_soft_faults(seat[0].pair->near, &none);
	await_hit(&seat[0]);
	end();
}

/* ---- turns ----------------------------------------------------------------------------------- */

/*
 * Counts the turns of a poll core without a thread until one page of rail 1 has arrived. Rail 0 is
 * given `load` reads meanwhile.
 */
static unsigned turns_for_one_page(struct poll_core *core, unsigned load)
{
	struct op_done done;
	unsigned turns = 0, sent = 0;
	uint64_t taken = world_counter(seat[0].w, COUNTER_ops_taken);

	page_get(seat[1].w, seat[1].client, 1, 8, 8192, 77, 0);
	do {
		while (sent < load && ring_room(&seat[0].client->ops, 2) >= 2) {
			page_get(seat[0].w, seat[0].client, sent, 8, 8192, 77, sent % 100 * 8192);
			sent++;
		}
		if (TEST_HOOK(core->options.clock))
			model_clock_turn(core);
		else
			poll_turn(core);
		for (unsigned i = 0; i < 2; i++)
			dv_step(seat[i].pair->far);
		while (client_done(seat[0].client, &done))
			;
		turns++;
		assert_true(turns < 1000);
		assert_true(world_counter(seat[0].w, COUNTER_ops_taken) - taken <=
			    (uint64_t)turns * RAIL_TAKE_BURST);
	} while (!client_done(seat[1].client, &done));
	assert_int_equal(done.status, OP_HIT);
	return turns;
}

/* Returns a poll core without a thread for the first two rails; the test calls poll_turn(). */
static struct poll_core *begin_stepped(void)
{
	struct poll_core *core = aligned_alloc(64, sizeof(*core));
	struct rail *rail[2];

	memset(core, 0, sizeof(*core));
	for (unsigned i = 0; i < 2; i++) {
		seat_open(i, false, true);
		rail[i] = seat[i].w->rail;
	}
	poll_core_set(core, rail, 2);
	return core;
}

static void end_stepped(struct poll_core *core)
{
	for (unsigned i = 0; i < 2; i++) {
		struct seat *s = &seat[i];
		struct rail_event event;

		pair_run(s->pair, 3);
		pair_conn_drop(s->pair, s->conn);
		world_command(s->w, (struct rail_command){.kind = RAIL_STOP});
		while (!rail_event_take(s->w->rail, &event) || event.kind != RAIL_STOPPED)
			poll_turn(core);
	}
	for (unsigned i = 0; i < 2; i++)
		leave(&seat[i]);
	free(core);
}

static void a_saturated_rail_does_not_starve_its_sibling(void **state)
{
	struct poll_core *core = begin_stepped();
	unsigned alone, beside;

	alone = turns_for_one_page(core, 0);
	for (unsigned i = 0; i < 20; i++) {
		beside = turns_for_one_page(core, 100000);
		assert_int_equal(beside, alone);
	}
	/* READs of rail 0 are in flight at the end too, so it always had work */
	assert_true(rail_in_flight(seat[0].w->rail) > 0);
	end_stepped(core);
}

#ifdef TEST_HOOKS
/*
 * With a clock file, each NIC executes its rail's doorbells in the same turn, and the clock of each
 * NIC is behind by all the time that was subtracted.
 */
static void with_a_clock_file_each_nic_is_stepped_before_and_after_its_rail(void **state)
{
	struct poll_core *core = begin_stepped();
	static struct model_clock_file file;
	const struct model_clock *clock = &core->clock;
	const uint64_t *behind_ns = &file.core[0].behind_ns;
	uint64_t before;

	/* the first page connects the peer and warms the caches */
	assert_in_range(turns_for_one_page(core, 0), 1, 999);
	assert_int_equal(*behind_ns, 0);
	core->options.clock = &file;
	core->options.doorbell_ns = core->options.line_ns = 0; /* or a step may cost nothing */
	page_get(seat[1].w, seat[1].client, 1, 8, 8192, 77, 0);
	model_clock_turn(core);
	assert_true(dv_cq_has(&seat[1].w->rail->cq));
	before = *behind_ns;
	assert_true(before > 0 && before == clock->behind_ns);
	/* where the counter of ticks is coarse, a step may take no time */
	assert_true(clock->told_ns[0] <= clock->told_ns[1] && clock->told_ns[1] <= before);
	assert_true(clock->told_ns[0] < before);
	model_clock_turn(core);
	assert_true(clock->told_ns[0] >= before && clock->told_ns[1] >= clock->told_ns[0]);
	assert_true(*behind_ns > before);
	assert_in_range(turns_for_one_page(core, 100), 1, 999);
	end_stepped(core);
}

#endif

/* ---- stopping -------------------------------------------------------------------------------- */

static void rails_stop_in_any_order_and_the_others_continue(void **state)
{
	for (unsigned first = 0; first < RAILS; first++) {
		begin(true, false);
		for (unsigned n = 0; n < RAILS; n++) {
			unsigned gone = (first + n) % RAILS;

			stop(&seat[gone]);
			for (unsigned i = n + 1; i < RAILS; i++)
				for (unsigned k = 0; k < 5; k++)
					get(&seat[(first + i) % RAILS], k);
		}
		poll_core_close(seat[0].pair->core);
		seat[0].pair->core = NULL;
		for (unsigned i = 0; i < RAILS; i++)
			leave(&seat[i]);
		assert_int_equal(lost, 0);
	}
}

static struct poll_core_report report(void)
{
	struct poll_core_report r;

	poll_core_report(seat[0].pair->core, &r);
	return r;
}

static void a_busy_core_that_steps_its_nics_serves_all_rails(void **state)
{
	struct poll_core_report r;

	begin(false, true);
	assert_int_equal(report().nic_ns, 0);
	for (unsigned i = 0; i < 100; i++)
		get(&seat[i % RAILS], i);
	r = report();
	assert_true(r.nic_ns > 0 && r.nic_ns <= r.busy_ns);
	end();
}

/* ---- gaps ------------------------------------------------------------------------------------ */

/* Signal handler on the poll core's thread: keeps the poll core from running for 20 ms. */
static void interrupted(int number)
{
	const struct timespec span = {.tv_nsec = 20000000};

	nanosleep(&span, NULL);
}

static void an_interruption_of_the_core_is_reported_as_a_gap(void **state)
{
	struct sigaction action = {.sa_handler = interrupted}, before;
	struct poll_core_report r;

	begin(true, true);
	sigaction(SIGUSR2, &action, &before);
	while (report().spin_ns == 0)
		sched_yield();
	assert_int_equal(pthread_kill(seat[0].pair->core->thread, SIGUSR2), 0);
	while (report().gap_worst_ns < 20000000)
		sched_yield();
	r = report();
	assert_true(r.gaps_long >= 1);
	assert_true(r.gaps[GAP_BUCKETS - 1] >= 1);
	assert_true(r.age_ns >= 20000000);
	assert_true(world_counter(seat[0].w, COUNTER_poll_gap_worst_ns) >= 20000000);
	assert_true(world_counter(seat[0].w, COUNTER_poll_gaps_long) >= r.gaps_long);
	assert_int_equal(world_counter(seat[1].w, COUNTER_poll_gaps_long), 0);
	end();
	sigaction(SIGUSR2, &before, NULL);
}

static void a_sleep_is_not_counted_as_a_gap(void **state)
{
	struct poll_core_report r;

	begin(true, false);
	while (world_counter(seat[0].w, COUNTER_sleeps) < 6)
		sched_yield();
	r = report();
	assert_true(r.busy_ns + r.spin_ns + 5 * 100000000ull <= r.age_ns);
	end();
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void a_core_without_rails_or_with_too_many_is_refused(void **state)
{
	struct poll_core_options options = {.core = -1};
	struct poll_core *core = NULL;
	struct rail *rail[RAILS_MAX + 1] = {NULL};

	assert_int_equal(poll_core_start(&options, rail, 0, &core), -EINVAL);
	assert_int_equal(poll_core_start(&options, rail, RAILS_MAX + 1, &core), -EINVAL);
	assert_null(core);
	poll_core_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_kick_for_any_rail_wakes_the_shared_poll_core),
		cmocka_unit_test(no_wake_up_is_lost_when_all_rails_are_used_concurrently),
		cmocka_unit_test(a_core_that_naps_for_one_nic_is_woken_by_a_kick_for_another_rail),
		cmocka_unit_test(a_saturated_rail_does_not_starve_its_sibling),
#ifdef TEST_HOOKS
		cmocka_unit_test(with_a_clock_file_each_nic_is_stepped_before_and_after_its_rail),
#endif
		cmocka_unit_test(rails_stop_in_any_order_and_the_others_continue),
		cmocka_unit_test(a_busy_core_that_steps_its_nics_serves_all_rails),
		cmocka_unit_test(an_interruption_of_the_core_is_reported_as_a_gap),
		cmocka_unit_test(a_sleep_is_not_counted_as_a_gap),
		cmocka_unit_test(a_core_without_rails_or_with_too_many_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
