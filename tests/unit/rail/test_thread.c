/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail with its own poll core: it sleeps when it has no work, is woken by clients and the control
 * plane, wakes them, shares a core with threads it waits for, and stops.
 */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/rail/poll_core.h"
#include "tests/unit/rail/pair.h"

static struct pair *pair;
static struct world *w;
static struct client *client;
static struct pair_conn *conn;

static void begin(bool threaded, bool busy)
{
	pair = pair_open(threaded, busy);
	w = &pair->world;
	wake_open(w);
	client = client_new(w, 5, WORLD_SESSION);
	conn = pair_conn_new(pair, 3, 33, 2);
	world_command(w, (struct rail_command){.kind = RAIL_CONN_ADD, .object = &conn->handle});
	page_put(w, 8, 8192, 77);
	pair_start(&pair, 1);
}

/* Sleeps like the control plane until an event of the rail comes; fails after ten seconds. */
static struct rail_event hear(uint32_t kind)
{
	struct pollfd pollfd = {.fd = pair->control_kick, .events = POLLIN};
	struct rail_event event;
	uint64_t count;

	for (;;) {
		shm_store(&w->status->control_sleeps, 1);
		shm_fence_sleep();
		if (rail_event_take(w->rail, &event))
			break;
		assert_int_equal(poll(&pollfd, 1, 60000), 1);
		assert_int_equal(read(pollfd.fd, &count, sizeof(count)), sizeof(count));
	}
	shm_store(&w->status->control_sleeps, 0);
	assert_int_equal(event.kind, kind);
	return event;
}

static void end(void)
{
	pair_conn_drop(pair, conn);
	assert_ptr_equal(hear(RAIL_CONN_RETURNED).object, conn);
	world_command(w, (struct rail_command){.kind = RAIL_STOP});
	hear(RAIL_STOPPED);
	pair_conn_free(conn);
	wake_close(w);
	pair_close(pair);
	client_free(client);
}

static void kick_rail(void)
{
	uint64_t one = 1;

	shm_fence_sleep();
	if (shm_load(&w->status->rail[0].sleeps))
		assert_int_equal(write(pair->kick, &one, sizeof(one)), sizeof(one));
}

/* Sleeps like a client until the completion of its op is there. */
static struct op_done await(void)
{
	struct pollfd pollfd = {.fd = w->woken, .events = POLLIN};
	struct op_done done;
	uint64_t count;

	for (;;) {
		shm_store(&client->header->client_waits, 1);
		shm_fence_sleep();
		if (client_done(client, &done))
			break;
		assert_int_equal(poll(&pollfd, 1, 60000), 1);
		assert_true(recv(pollfd.fd, &count, sizeof(count), MSG_DONTWAIT) > 0);
	}
	shm_store(&client->header->client_waits, 0);
	return done;
}

static void a_sleeping_client_and_a_sleeping_rail_wake_each_other(void **state)
{
	begin(true, false);
	for (unsigned i = 0; i < 2000; i++) {
		struct op_done done;

		page_get(w, client, i, 8, 8192, 77, 0);
		kick_rail();
		done = await();
		assert_int_equal(done.cookie, i);
		assert_int_equal(done.status, OP_HIT);
		/* From time to time waits until the rail sleeps. */
		while (i % 500 == 0 && !shm_load(&w->status->rail[0].sleeps))
			sched_yield();
	}
	end();
}

static uint64_t rail_cpu_ns(void)
{
	struct timespec t;
	clockid_t id;

	assert_int_equal(pthread_getcpuclockid(pair->core->thread, &id), 0);
	assert_int_equal(clock_gettime(id, &t), 0);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/*
 * The use must be below 5 % in one of ten windows; other load and sanitizers can only increase it.
 */
static void an_idle_rail_sleeps_and_uses_less_than_5_percent_of_a_core(void **state)
{
	struct pollfd no_fd = {.fd = -1};
	uint64_t cpu, wall, slept;
	unsigned windows = 0;

	begin(true, false);
	while (world_counter(w, COUNTER_sleeps) < 1)
		poll(&no_fd, 1, 1);
	do {
		cpu = rail_cpu_ns();
		wall = clock_now_ns();
		slept = world_counter(w, COUNTER_sleeps);
		while (world_counter(w, COUNTER_sleeps) < slept + 5)
			poll(&no_fd, 1, 10);
		cpu = rail_cpu_ns() - cpu;
		wall = clock_now_ns() - wall;
		print_message("idle: %.3f %% of a core\n", 100.0 * (double)cpu / (double)wall);
	} while (cpu * 20 >= wall && ++windows < 10);
	assert_true(cpu * 20 < wall);
	end();
}

static void the_control_plane_wakes_a_sleeping_rail(void **state)
{
	struct pair_conn *second;

	begin(true, false);
	second = pair_conn_new(pair, 4, 44, 1);
	for (unsigned i = 0; i < 5; i++) {
		while (!shm_load(&w->status->rail[0].sleeps))
			sched_yield();
		world_command(
			w, (struct rail_command){.kind = RAIL_CONN_ADD, .object = &second->handle});
		while (!shm_load(&w->status->rail[0].sleeps))
			sched_yield();
		world_command(
			w, (struct rail_command){
				   .kind = RAIL_CONN_DROP, .peer = 4, .object = &second->handle});
		assert_ptr_equal(hear(RAIL_CONN_RETURNED).object, second);
	}
	pair_conn_free(second);
	end();
}

static void a_parked_op_ends_at_its_deadline_while_the_rail_sleeps(void **state)
{
	struct op op;
	struct op_segment s = home_at(0, 8192);
	struct op_done done;
	uint64_t late;

	begin(true, false);
	op = page_op(w, 1, 8, 8192, 77);
	op.peer = 7;
	op.deadline_ns = clock_now_ns() + 500000000;
	client_submit(client, &op, &s);
	kick_rail();
	assert_int_equal(hear(RAIL_CONN_WANTED).peer, 7);
	done = await();
	late = clock_now_ns();
	assert_int_equal(done.status, OP_TIMEOUT);
	assert_true(late >= op.deadline_ns);
	end();
}

/* Runs the rail, both software NICs and the client on one core, so that they must take turns. */
static void a_rail_lets_other_threads_run_on_its_core(void **state)
{
	cpu_set_t one, all;
	int cpu = sched_getcpu();

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	/* the threads that are started here inherit the affinity of this thread */
	begin(true, false);
	for (unsigned i = 0; i < 500; i++) {
		page_get(w, client, i, 8, 8192, 77, 0);
		kick_rail();
		assert_int_equal(await().status, OP_HIT);
	}
	end();
	sched_setaffinity(0, sizeof(all), &all);
}

static void a_rail_steps_a_nic_that_has_no_thread(void **state)
{
	begin(false, true);
	for (unsigned i = 0; i < 100; i++) {
		page_get(w, client, i, 8, 8192, 77, 0);
		assert_int_equal(await().status, OP_HIT);
	}
	end();
}

static void deep_batches_of_a_running_client_are_all_answered(void **state)
{
	unsigned sent = 0, answered = 0;

	begin(true, false);
	while (answered < 20000) {
		struct op_done done;

		while (sent < 20000 && sent - answered < 500 && ring_room(&client->ops, 2) >= 2) {
			page_get(w, client, sent, 8, 8192, 77, sent % 100 * 8192);
			sent++;
		}
		kick_rail();
		done = await();
		do {
			assert_int_equal(done.status, OP_HIT);
			answered++;
		} while (client_done(client, &done));
	}
	assert_int_equal(rail_in_flight(w->rail), 0);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sleeping_client_and_a_sleeping_rail_wake_each_other),
		cmocka_unit_test(an_idle_rail_sleeps_and_uses_less_than_5_percent_of_a_core),
		cmocka_unit_test(the_control_plane_wakes_a_sleeping_rail),
		cmocka_unit_test(a_parked_op_ends_at_its_deadline_while_the_rail_sleeps),
		cmocka_unit_test(a_rail_lets_other_threads_run_on_its_core),
		cmocka_unit_test(a_rail_steps_a_nic_that_has_no_thread),
		cmocka_unit_test(deep_batches_of_a_running_client_are_all_answered),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
