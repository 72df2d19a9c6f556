/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop.c and control_open.c: start and close of the engine, commands for a full inbox, the sleep
 * protocol and the order of a shutdown. See loop_world.h.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/unit/control/loop_world.h"

#include <poll.h>
#include <sys/stat.h>

#include "engine/control/members/members.h"
#include "engine/control/net/rpc.h"
#include "numa/cgroup.h"
#include "numa/kernel_file.h"

/* members and rpc.c, when the memory is registered */
int rpc_listen(struct control *c)
{
	return 0;
}

void member_seeds_tick(struct control *c, uint64_t now_ns)
{
	(void)c, (void)now_ns;
}

int member_seeds_check(struct control *c)
{
	return 0;
}

/* A machine with huge pages that a limit may refuse. */
static bool huge_pages_there;
static unsigned huge_steps_left;
static int huge_refusal;

int __real_huge_open(const char *name, size_t bytes, int node, bool want_huge, struct huge *ret);
int __real_huge_populate(const struct huge *h, size_t from, size_t bytes);
int __wrap_huge_open(const char *name, size_t bytes, int node, bool want_huge, struct huge *ret);
int __wrap_huge_populate(const struct huge *h, size_t from, size_t bytes);

int __wrap_huge_open(const char *name, size_t bytes, int node, bool want_huge, struct huge *ret)
{
	size_t page_bytes = 2u << 20;
	bool huge = want_huge && huge_pages_there;
	int rc;

	if (huge)
		bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
	rc = __real_huge_open(name, bytes, node, false, ret);
	if (rc == 0 && huge)
		ret->page_bytes = page_bytes;
	return rc;
}

/* What the threads that populate memory do in a call, and what they did. */
static struct {
	bool meet;     /* all wait in the first call for each other; false: they did not come */
	bool wait;     /* they wait for a core */
	bool touched;  /* a client has touched all of the memory, */
	size_t spared; /* but not that much of its end */
	unsigned inside, rests, steps, calls;
	int avoided; /* where none of them may run; -1: anywhere */
} populating = {.avoided = -1};
static __thread bool last_step;

int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	char name[16] = "";

	pthread_getname_np(pthread_self(), name, sizeof(name));
	if (strcmp(name, "pc-populate") == 0 && !last_step)
		__atomic_add_fetch(&populating.rests, 1, __ATOMIC_RELAXED);
	return __real_nanosleep(time, left);
}

static void populate_as_told(const struct huge *h, size_t from, size_t bytes)
{
	cpu_set_t cores;

	last_step = from + bytes >= h->bytes;
	__atomic_add_fetch(&populating.steps, !last_step, __ATOMIC_RELAXED);
	__atomic_add_fetch(&populating.calls, 1, __ATOMIC_RELAXED);
	assert_int_equal(sched_getaffinity(0, sizeof(cores), &cores), 0);
	if (populating.avoided >= 0 && CPU_ISSET((size_t)populating.avoided, &cores))
		populating.meet = populating.wait = false; /* and so the test fails */
	if (populating.meet && __atomic_add_fetch(&populating.inside, 1, __ATOMIC_RELAXED) <= RAILS)
		for (unsigned ms = 0; __atomic_load_n(&populating.inside, __ATOMIC_RELAXED) < RAILS;
			ms++) {
			(void)poll(NULL, 0, 1);
			if (ms == 5000)
				populating.meet = false; /* and so the test fails */
			if (!populating.meet)
				break;
		}
	if (populating.wait)
		(void)poll(NULL, 0, 3);
	for (size_t at = 0; populating.touched && at + populating.spared < h->bytes; at += 4096)
		(void)__atomic_fetch_or((char *)h->base + at, 0, __ATOMIC_RELAXED);
}

int __wrap_huge_populate(const struct huge *h, size_t from, size_t bytes)
{
	populate_as_told(h, from, bytes);
	if (huge_pages_there && huge_steps_left-- == 0)
		return huge_refusal;
	return __real_huge_populate(h, from, bytes);
}

/* ---- start and close ------------------------------------------------------------------------- */

static void a_failed_start_undoes_every_step(void **state)
{
	unsigned files = open_files(), total;
	char log[8192];

	engine_open();
	total = world.opens;
	control_close(control);
	assert_int_equal(world.open, 0);
	assert_int_equal(open_files(), files);
	assert_true(total >= RAILS * (1 + 5 + 1 + 1) + 6);
	log_test_capture(log, sizeof(log));
	for (unsigned n = 1; n <= total; n++) {
		setup(state);
		world.fail_at = n;
		control = (struct control *)1;
		assert_true(control_open(&settings, &plan, &control) < 0);
		assert_ptr_equal(control, (struct control *)1);
		assert_int_equal(world.open, 0);
		assert_int_equal(open_files(), files);
		control = NULL;
	}
	log_test_capture(NULL, 0);
}

static void parts_close_in_reverse_and_answers_after_the_directory(void **state)
{
	engine_open();
	control_close(control);
	assert_non_null(strstr(world.order,
		"+view +epochs +rpc +members +seeds_file +directory +conns +tick +ctl +promote +tier +scrub +clients RAIL_STOP RAIL_STOP -clients -scrub -tier -promote -ctl -tick -conns -directory -seeds_file -members -rpc -epochs -view -answers -etcd -rpc_port -client_socket"));
}

static void socket_and_port_are_bound_before_memory_is_allocated(void **state)
{
	char log[1024] = "";

	for (unsigned n = 1; n <= 2; n++) {
		setup(state);
		/* a pool size that cannot be allocated, so control_open() fails */
		settings.engine_pool_bytes = UINT64_MAX / 2;
		world.fail_at = n;
		log_test_capture(log, sizeof(log));
		assert_true(control_open(&settings, &plan, &control) < 0);
		log_test_capture(NULL, 0);
		assert_string_equal(world.order,
			n == 1 ? "upward_fill +client_socket "
			       : "upward_fill +client_socket +rpc_port -client_socket ");
		assert_null(strstr(log, "pool"));
	}
}

static void a_metrics_port_that_is_taken_is_reported_before_memory_is_allocated(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char log[1024] = "", port[8], err[256];
	socklen_t bytes = sizeof(at);

	assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
	snprintf(port, sizeof(port), "%u", ntohs(at.sin_port));
	settings.engine_pool_bytes = UINT64_MAX / 2;
	assert_int_equal(settings_set(&settings, "metrics", "port", port, err, sizeof(err)), 0);
	log_test_capture(log, sizeof(log));
	assert_int_equal(control_open(&settings, &plan, &control), -EADDRINUSE);
	log_test_capture(NULL, 0);
	assert_non_null(strstr(log, "error metrics: cannot listen at 127.0.0.1 port "));
	assert_null(strstr(log, "pool"));
	close(fd);
}

static void reenter(evutil_socket_t fd, short what, void *base)
{
	(void)fd, (void)what;
	assert_int_equal(event_base_loop(base, 0), -1);
}

static void messages_of_libevent_are_lines_of_the_log(void **state)
{
	const struct timeval now = {.tv_usec = 0};
	char log[1024] = "";
	struct event *event;

	engine_open();
	event = event_new(control->base, -1, 0, reenter, control->base);
	assert_int_equal(event_add(event, &now), 0);
	log_test_capture(log, sizeof(log));
	assert_int_equal(event_base_loop(control->base, EVLOOP_ONCE), 0);
	log_test_capture(NULL, 0);
	assert_non_null(strstr(log, "warn  libevent: event_base_loop: reentrant"));
	event_free(event);
	control_close(control);
}

static void every_nic_registers_every_pool_and_the_shard(void **state)
{
	engine_open();
	for (unsigned nic = 0; nic < RAILS; nic++) {
		for (unsigned r = 0; r < REGIONS_EXPORTED; r++) {
			bool there = r < RAILS || r == REGION_SHARD ||
				     (r >= REGION_HEADS_0 && r < REGION_HEADS_0 + RAILS);

			assert_int_equal(control->rail[nic].exported[r].length != 0, there);
		}
	}
	assert_int_not_equal(control->ref, 0);
	assert_int_equal(control->ref, (uint32_t)control->incarnation);
	assert_int_equal(control->status->ref, control->ref);
	assert_int_equal(control->status->magic, STATUS_MAGIC);
	assert_string_equal(control->name, "127.0.0.1:31998");
	control_close(control);
}

static void rails_of_one_poll_core_share_their_eventfd(void **state)
{
	eventfd_t value = 0;

	engine_open();
	assert_int_equal(world.cores, RAILS);
	assert_int_equal(eventfd_write(control->rail[0].kick, 5), 0);
	assert_int_equal(eventfd_read(control->rail[1].kick, &value), -1);
	control_close(control);
	assert_int_equal(world.cores, 0);

	setup(state);
	plan.poll_cores = 1;
	plan.rail[1].poll_core = 0;
	engine_open();
	assert_int_equal(world.cores, 1);
	assert_int_not_equal(control->rail[0].kick, control->rail[1].kick);
	assert_int_equal(eventfd_write(control->rail[0].kick, 5), 0);
	assert_int_equal(eventfd_read(control->rail[1].kick, &value), 0);
	assert_int_equal(value, 5);
	control_close(control);
	assert_int_equal(world.open, 0);
}

/* ---- commands -------------------------------------------------------------------------------- */

static void commands_for_a_full_inbox_are_sent_later_in_order(void **state)
{
	struct rail_command command = {.kind = RAIL_CONN_DROP};

	engine_open();
	world.full = true;
	for (uint16_t i = 0; i < 40; i++) {
		command.peer = i;
		assert_true(outbox_send(control, 0, &command));
		assert_false(outbox_empty(control));
	}
	world.full = false;
	command.peer = 40;
	/* this command must not overtake the commands that wait for a full inbox */
	assert_true(outbox_send(control, 0, &command));
	assert_int_equal(world.commands, 0);
	assert_int_equal(outbox_flush(control), 41);
	assert_true(outbox_empty(control));
	for (uint16_t i = 0; i <= 40; i++)
		assert_int_equal(world.command[i].peer, i);
	control_close(control);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static uint64_t time_of_an_event_between_flag_and_sleep(void)
{
	uint64_t took_ns, began_ns;

	engine_open();
	world.event_when_asleep = true;
	began_ns = clock_now_ns();
	assert_int_equal(control_run(control), 0);
	took_ns = clock_now_ns() - began_ns;
	assert_int_equal(world.wanted, 1);
	assert_int_equal(control->status->control_sleeps, 0);
	control_close(control);
	return took_ns;
}

/*
 * There is no kick. Without the second look at the rings, the loop would sleep until its next timer
 * each time. A slow machine may need several attempts.
 */
static void an_event_between_the_flag_and_the_sleep_is_seen(void **state)
{
	unsigned attempts = 0;

	while (time_of_an_event_between_flag_and_sleep() >= LOOP_WAKEUP_US * 1000ull / 2)
		assert_true(++attempts < 10);
}

uint64_t ctl_stored_ns(const struct control *c)
{
	return world.stored_ns;
}

/*
 * Returns the time until the loop slept, when a client has just stored a page; UINT64_MAX: it never
 * napped.
 */
static uint64_t time_until_the_loop_sleeps(void)
{
	uint64_t took_ns;

	engine_open();
	world.event_when_asleep = true;
	memset(world.saw, 0, sizeof(world.saw));
	world.wanted = 0;
	world.stored_ns = clock_now_ns();
	assert_int_equal(control_run(control), 0);
	took_ns = clock_now_ns() - world.stored_ns;
	assert_true(took_ns >= LOOP_NAP_FOR_NS);
	assert_int_equal(world.wanted, 1);
	assert_int_equal(control->status->control_sleeps, CONTROL_AWAKE);
	control_close(control);
	world.stored_ns = 0;
	return world.saw[CONTROL_NAPS] ? took_ns : UINT64_MAX;
}

/* Nothing ends a nap but its timer. A slow machine may need several attempts. */
static void after_a_store_the_loop_naps_for_a_while_and_then_sleeps(void **state)
{
	unsigned attempts = 0;

	while (time_until_the_loop_sleeps() >= LOOP_LAG_US * 1000ull / 2)
		assert_true(++attempts < 10);
}

/* A rail that makes room in its inbox does not kick: the loop must look again by itself. */
static void the_loop_does_not_sleep_while_a_command_waits_for_an_inbox(void **state)
{
	const struct rail_command command = {.kind = RAIL_CONN_DROP};

	engine_open();
	world.full = true;
	world.room_after_naps = 20;
	assert_true(outbox_send(control, 0, &command));
	memset(world.saw, 0, sizeof(world.saw));
	assert_int_equal(control_run(control), 0);
	assert_int_equal(world.command[0].kind, RAIL_CONN_DROP);
	assert_int_equal(world.room_after_naps, 0);
	assert_int_equal(world.saw[CONTROL_SLEEPS], 0);
	control_close(control);
}

static void shutdown_goes_in_order_and_waits_for_the_rails(void **state)
{
	engine_open();
	world.sessions = 3;
	world.peers = 2;
	world.returns_after = 5;
	world.wanted_while_stopping = true;
	control_stop(control);
	assert_int_equal(control_run(control), 0);
	assert_true(before("clients_stop", "member_leave"));
	assert_true(before("member_leave", "conns_stop"));
	assert_true(before("conns_stop", "RAIL_STOP"));
	assert_int_equal(world.returns_after, 0);
	assert_int_equal(world.wanted, 0);
	/* a stopping engine refuses to connect the peer that the rail requests */
	assert_int_equal(world.refused, 1);
	control_close(control);
	assert_int_equal(world.open, 0);
}

static void rails_that_return_nothing_do_not_block_the_shutdown(void **state)
{
	uint64_t began_ns;
	char log[1024] = "";

	engine_open();
	world.sessions = 1;
	world.returns_after = UINT32_MAX;
	world.turn_ms = 100;
	log_test_capture(log, sizeof(log));
	began_ns = clock_now_ns();
	control_stop(control);
	assert_int_equal(control_run(control), 0);
	log_test_capture(NULL, 0);
	assert_in_range(clock_now_ns() - began_ns, LOOP_DRAIN_NS, 2 * LOOP_DRAIN_NS);
	clock_test_set(0);
	assert_non_null(strstr(log, "have not returned everything"));
	control_close(control);
}

/* Writes a file that stands in for one of /proc or /sys, below the folder. */
static void machine_put(const char *folder, const char *path, const char *content)
{
	char full[128];
	FILE *file;

	for (const char *p = path; (p = strchr(p, '/')) != NULL; p++) {
		snprintf(full, sizeof(full), "%s/%.*s", folder, (int)(p - path), path);
		(void)mkdir(full, 0700);
	}
	snprintf(full, sizeof(full), "%s/%s", folder, path);
	file = fopen(full, "we");
	assert_non_null(file);
	fputs(content, file);
	fclose(file);
}

/* Runs an engine on the machine of the folder, removes the folder, and expects -ENOMEM. */
static void machine_refuses_memory(const char *folder, const char *limit)
{
	char text[4096], command[64];

	kernel_file_root(folder);
	log_flush();
	log_test_capture(text, sizeof(text));
	engine_open();
	assert_int_equal(control_run(control), -ENOMEM);
	control_close(control);
	log_test_capture(NULL, 0);
	kernel_file_root(NULL);
	print_message("%s", text);
	assert_non_null(strstr(text, "GiB can be populated: Cannot allocate memory"));
	assert_non_null(strstr(text, limit));
	snprintf(command, sizeof(command), "rm -r '%s'", folder);
	assert_int_equal(system(command), 0);
}

/* Runs the loop until all memory is populated, then closes the engine. */
static void memory_is_populated(void)
{
	uint64_t end_ns = clock_now_ns() + 20000000000;

	engine_open();
	assert_true(control->memory_bytes > RAILS * settings.engine_pool_bytes);
	while (control->populated_bytes < control->memory_bytes && clock_now_ns() < end_ns)
		event_base_loop(control->base, EVLOOP_ONCE);
	assert_int_equal(control->populated_bytes, control->memory_bytes);
	control_close(control);
}

static void pools_are_populated_at_the_same_time_on_free_cores(void **state)
{
	cpu_set_t cores;

	assert_int_equal(sched_getaffinity(0, sizeof(cores), &cores), 0);
	for (populating.avoided = 0; !CPU_ISSET((size_t)populating.avoided, &cores);)
		populating.avoided++;
	plan.control_core = populating.avoided;
	if (CPU_COUNT(&cores) == 1)
		populating.avoided = -1;
	populating.meet = true;
	memory_is_populated();
	assert_true(populating.meet);
	populating.meet = false;
	populating.avoided = -1;
}

/* A thread that waits for a core rests, unless a client is ahead, which pays for its pages. */
static void population_gives_way_to_other_work_but_not_to_clients_that_pay(void **state)
{
	unsigned calls[3];

	populating.wait = true;
	for (unsigned i = 0; i < 3; i++) {
		populating.touched = i;
		populating.spared = i == 1 ? 4096 : 0;
		populating.rests = populating.steps = populating.calls = 0;
		memory_is_populated();
		assert_in_range(populating.steps, RAILS, UINT32_MAX);
		assert_int_equal(populating.rests, populating.touched ? 0 : populating.steps);
		calls[i] = populating.calls;
	}
	assert_int_equal(calls[1], calls[0]);
	assert_in_range(calls[2], 1, calls[0] - RAILS); /* nothing is left: it ends early */
	populating.wait = populating.touched = false;
}

/* 9.5 MiB are enough to open 8 MiB of pools, but populating them would leave too little. */
static void memory_that_the_limits_do_not_allow_ends_the_engine(void **state)
{
	char folder[] = "/tmp/peercache-test-XXXXXX";

	assert_non_null(mkdtemp(folder));
	machine_put(folder, "proc/meminfo", "MemAvailable: 9728 kB\n");
	machine_refuses_memory(folder, "(lowest limit: MemAvailable); lower engine.pool_bytes");
}

/* The limit is that of the cgroup, if it is used up; else it is not known which one. */
static void huge_pages_that_a_limit_refuses_end_the_engine_and_name_it(void **state)
{
	static const char *const used[] = {"4194304\n", "2097152\n"};
	static const char *const limit[] = {
		"(lowest limit: hugetlb.2MB.max of cgroup /pod); lower engine.pool_bytes",
		"(lowest limit: free huge pages, or a hugetlb limit that this process cannot see);"};

	settings.engine_huge_pages = huge_pages_there = true;
	for (unsigned i = 0; i < 2; i++) {
		char folder[] = "/tmp/peercache-test-XXXXXX";

		assert_non_null(mkdtemp(folder));
		machine_put(folder, "proc/meminfo", "MemAvailable: 8388608 kB\n");
		machine_put(folder, "proc/self/cgroup", "0::/pod\n");
		machine_put(folder, "proc/self/mountinfo",
			"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
		machine_put(folder, "sys/fs/cgroup/pod/hugetlb.2MB.max", "4194304\n");
		machine_put(folder, "sys/fs/cgroup/pod/hugetlb.2MB.current", used[i]);
		huge_steps_left = 3;
		huge_refusal = i ? -EFAULT : -ENOSPC;
		machine_refuses_memory(folder, limit[i]);
	}
	huge_pages_there = false;
}

static void a_poll_core_that_does_not_end_is_reported(void **state)
{
	uint64_t began_ns;
	char log[1024] = "";

	engine_open();
	world.stuck = true;
	world.turn_ms = 100;
	log_test_capture(log, sizeof(log));
	began_ns = clock_now_ns();
	control_stop(control);
	assert_int_equal(control_run(control), -ETIMEDOUT);
	log_test_capture(NULL, 0);
	assert_in_range(clock_now_ns() - began_ns, LOOP_STOP_NS, 2 * LOOP_STOP_NS);
	clock_test_set(0);
	world.stuck = false; /* the poll cores end again, so that the engine below can be closed */
	control->loop->result = 0;
	control_close(control);
	assert_int_equal(world.open, 0);
}

/* A snapshot every half second, whether the loop works or sleeps; the lag is counted with it. */
static void *stop_after_a_snapshot(void *argument)
{
	while (!snapshots_newest(control->snapshots))
		usleep(1000);
	control_stop(control);
	return argument;
}

static void the_running_loop_publishes_snapshots(void **state)
{
	pthread_t thread;

	engine_open();
	shm_store64(&control->watched_ns, 77);
	assert_int_equal(pthread_create(&thread, NULL, stop_after_a_snapshot, NULL), 0);
	assert_int_equal(control_run(control), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(world.snapshots >= 1);
	assert_true(world.summaries >= 1);
	assert_int_equal(world.watched_ns, 77);
	assert_true(latency_count(control->pace.lag) >= 1);
	control_close(control);
}

/* Ends when two snapshots were closer than SNAPSHOT_MS by far. */
static void *stop_after_a_short_gap(void *argument)
{
	uint64_t last_ns = 0, gap_ns = SNAPSHOT_MS * 1000000ull;

	while (gap_ns >= (SNAPSHOT_MS - 100) * 1000000ull) {
		const struct snapshot *s = snapshots_newest(control->snapshots);

		if (s && last_ns && s->taken_ns != last_ns)
			gap_ns = s->taken_ns - last_ns;
		if (s)
			last_ns = s->taken_ns;
		usleep(1000);
	}
	control_stop(control);
	return argument;
}

static void snapshots_come_more_often_while_a_page_shows_the_engine(void **state)
{
	pthread_t thread;

	engine_open();
	world.viewed = true;
	assert_int_equal(pthread_create(&thread, NULL, stop_after_a_short_gap, NULL), 0);
	assert_int_equal(control_run(control), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	control_close(control);
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_failed_start_undoes_every_step),
		TEST(parts_close_in_reverse_and_answers_after_the_directory),
		TEST(socket_and_port_are_bound_before_memory_is_allocated),
		TEST(a_metrics_port_that_is_taken_is_reported_before_memory_is_allocated),
		TEST(messages_of_libevent_are_lines_of_the_log),
		TEST(every_nic_registers_every_pool_and_the_shard),
		TEST(rails_of_one_poll_core_share_their_eventfd),
		TEST(commands_for_a_full_inbox_are_sent_later_in_order),
		TEST(an_event_between_the_flag_and_the_sleep_is_seen),
		TEST(after_a_store_the_loop_naps_for_a_while_and_then_sleeps),
		TEST(the_loop_does_not_sleep_while_a_command_waits_for_an_inbox),
		TEST(shutdown_goes_in_order_and_waits_for_the_rails),
		TEST(rails_that_return_nothing_do_not_block_the_shutdown),
		TEST(the_running_loop_publishes_snapshots),
		TEST(snapshots_come_more_often_while_a_page_shows_the_engine),
		TEST(pools_are_populated_at_the_same_time_on_free_cores),
		TEST(population_gives_way_to_other_work_but_not_to_clients_that_pay),
		TEST(memory_that_the_limits_do_not_allow_ends_the_engine),
		TEST(huge_pages_that_a_limit_refuses_end_the_engine_and_name_it),
		TEST(a_poll_core_that_does_not_end_is_reported),
	};

	clock_start();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
