/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is registered in extents: how it is split, that all threads work on it at once, and
 * that nothing is left when one registration fails or the client disconnects meanwhile. See
 * client_world.h. The size of an extent is the setting rail.mr_bytes.
 */
#include "numa/clock.h"
#include "tests/emulated.h"
#include "tests/unit/control/clients/client_world.h"

#define GIB (1ull << 30)

static void pump_until_answer(int fd, struct answer *a)
{
	for (unsigned i = 0; i < 60000; i++) {
		pump();
		if (receive(fd, a))
			return;
		usleep(1000);
	}
	fail_msg("no answer");
}

/* A client begins to register a sparse file of `bytes` bytes. */
static void add(int fd, uint64_t bytes)
{
	int memfd = memfd_of(bytes, F_SEAL_SHRINK);
	const struct attach_request r = request_of(ATTACH_REGION_ADD, 0, bytes);

	send_raw(fd, &r, sizeof(r), &memfd, 1);
	close(memfd);
	pump();
}

static uint32_t added(int fd, uint64_t bytes)
{
	struct answer a;

	add(fd, bytes);
	pump_until_answer(fd, &a);
	if (a.reply.status)
		fail_msg("%s", a.reply.text);
	return (uint32_t)a.reply.a;
}

static void leave(int fd, unsigned sessions)
{
	close(fd);
	for (unsigned i = 0; i < 60000 && control.clients->sessions != sessions; i++) {
		pump();
		rails_answer();
		usleep(1000);
	}
	assert_int_equal(control.clients->sessions, sessions);
}

/*
 * Checks that on every NIC the region's extents are adjacent and have the keys that the rail gets.
 */
static void check_extents(const struct region *r, uint64_t bytes, unsigned shift)
{
	assert_int_equal(r->extent_shift, shift);
	for (unsigned nic = 0; nic < RAILS; nic++) {
		uint64_t at = 0;

		for (unsigned e = 0; e < r->extents; e++) {
			const struct dv_mr *mr = &r->mr[nic * r->extents + e];

			assert_ptr_equal(mr->base, (char *)r->base + at);
			if (shift)
				assert_int_equal(at, (uint64_t)e << shift);
			if (e + 1 < r->extents)
				assert_int_equal(mr->length, 1ull << shift);
			assert_int_equal(r->lkey[nic * r->extents + e], mr->lkey);
			at += mr->length;
		}
		assert_int_equal(at, bytes);
	}
}

static void memory_is_split_into_extents_without_gap_or_overlap(void **state)
{
	static const struct {
		uint64_t bytes, mr_bytes;
		unsigned extents, shift;
	} cases[] = {
		{2 * GIB, 2 * GIB, 1, 0},
		{2 * GIB + 4096, 2 * GIB, 2, 31},
		{2 * GIB - 4096, 2 * GIB, 1, 0},
		{100 * GIB + 12288, 2 * GIB, 51, 31},
		/* rail.mr_bytes is rounded down to a power of two */
		{100 * GIB, 7 * GIB / 2, 50, 31},
		{100 * GIB, 1024 * GIB, 1, 0},
		{3 << 20, 1 << 20, 3, 20},
		{(1 << 20) - 4096, 65536, 16, 16},
	};

	SKIP_EMULATED("it has no room for hundreds of GB of addresses");
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int fd = dial();
		const struct region *r;

		settings.rail_mr_bytes = cases[i].mr_bytes;
		r = control.clients->region[added(fd, cases[i].bytes)];
		assert_int_equal(r->extents, cases[i].extents);
		check_extents(r, cases[i].bytes, cases[i].shift);
		assert_int_equal(told(RAIL_REGION_ADD), RAILS);
		for (unsigned n = 0; n < RAILS; n++) {
			const struct rail_region *told_of = &world.command[n].region;

			assert_int_equal(told_of->extent_shift, cases[i].shift);
			assert_int_equal(told_of->lkey, r->lkey[n * r->extents]);
			assert_ptr_equal(told_of->extent_lkey, &r->lkey[n * r->extents]);
		}
		leave(fd, 0);
		assert_int_equal(world.mrs, 0);
	}
}

/*
 * The memory of a real deployment: 8 SGLang ranks with a host pool of 500 GB each, on small pages.
 */
static void eight_ranks_with_500_gb_each_fit(void **state)
{
	const uint64_t bytes = 500ull * 1000 * 1000 * 1000 / 4096 * 4096;
	void *at;
	int fd[8];

	/* before the mapping: the emulator takes 23 GB for a table of 4 TB of addresses */
	SKIP_EMULATED("it has no room for hundreds of GB of addresses");
	at = mmap(NULL, 8 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED) {
		printf("skipped: cannot reserve 4 TB of addresses (a sanitizer uses them)\n");
		skip();
	}
	munmap(at, 8 * bytes);
	for (unsigned i = 0; i < 8; i++) {
		fd[i] = dial();
		check_extents(control.clients->region[added(fd[i], bytes)], bytes, 31);
		/* Registers as many small ranges as this rank may have besides its pool. */
		for (unsigned k = 0; k < RANGES_SESSION_MIN - 1; k++)
			(void)added(fd[i], 4096);
		world.commands = 0;
	}
	assert_int_equal(control.clients->extents, 8 * (233 + RANGES_SESSION_MIN - 1));
	for (unsigned i = 0; i < 8; i++) {
		close(fd[i]);
		pump();
		for (unsigned k = 0; k < 60000 && control.clients->sessions != 7 - i; k++) {
			pump();
			rails_answer();
			usleep(1000);
		}
	}
	assert_int_equal(control.clients->extents, 0);
}

static void exceeding_the_quota_of_extents_is_refused_with_advice(void **state)
{
	int fd = dial(), other = dial(), memfd = memfd_of(EXTENTS_MAX * 65536ull, F_SEAL_SHRINK);
	struct answer a;

	settings.rail_mr_bytes = 65536;
	assert_true(
		ask(fd, request_of(ATTACH_REGION_ADD, 0, EXTENTS_MAX * 65536ull), &memfd, 1, &a));
	assert_int_equal(a.reply.status, -EMFILE);
	assert_non_null(strstr(a.reply.text, "needs 7168 registrations"));
	assert_non_null(strstr(a.reply.text, "rail.mr_bytes"));
	(void)added(fd, SESSION_ALONE(EXTENTS_MAX, EXTENTS_SESSION_SURE) * 65536ull);
	assert_true(ask(fd, request_of(ATTACH_REGION_ADD, 0, 4096), &memfd, 1, &a));
	assert_int_equal(a.reply.status, -EMFILE);
	(void)added(other, EXTENTS_SESSION_MIN * 65536ull);
	close(memfd);
	leave(fd, 1);
	leave(other, 0);
}

static void all_threads_work_on_one_large_region(void **state)
{
	int fd = dial();
	struct answer a;

	settings.rail_mr_bytes = 1 << 20;
	world_hold(true);
	add(fd, 64 << 20);
	for (unsigned i = 0; i < 60000 && world_seen(&world.at_once) < CLIENT_HELPERS; i++)
		usleep(1000);
	assert_int_equal(world_seen(&world.at_once_max), CLIENT_HELPERS);
	/*
	 * While the large range is being registered, its request is not answered, but the loop
	 * serves other clients.
	 */
	assert_false(receive(fd, &a));
	world_hold(false);
	pump_until_answer(fd, &a);
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(world.mrs, 64 * RAILS);
	leave(fd, 0);
	assert_int_equal(world.mrs, 0);
}

/* A small range is registered before a large one, requested earlier, is finished. */
static void a_small_region_does_not_wait_for_a_large_one(void **state)
{
	int huge = dial(), small = dial();
	struct answer a;

	settings.rail_mr_bytes = 1 << 20;
	world_slow(20000); /* all together take 5 s or more */
	add(huge, 1000 << 20);
	(void)added(small, 2 << 20);
	assert_false(receive(huge, &a));
	assert_true(world_seen(&world.begun) < 1000);
	world_slow(0);
	pump_until_answer(huge, &a);
	assert_int_equal(a.reply.status, 0);
	leave(huge, 1);
	leave(small, 0);
}

static void one_failed_extent_undoes_all_extents_on_every_nic(void **state)
{
	int fd = dial();

	settings.rail_mr_bytes = 1 << 20;
	for (unsigned nth = 1; nth <= 16 * RAILS; nth += 5) {
		struct answer a;

		world.refuse_mrs = nth;
		add(fd, 16 << 20);
		pump_until_answer(fd, &a);
		assert_int_equal(a.reply.status, -ENOMEM);
		assert_non_null(strstr(a.reply.text, "the NIC is full"));
		for (unsigned i = 0; i < 60000 && control.clients->regions; i++) {
			pump();
			usleep(1000);
		}
		assert_int_equal(control.clients->regions, 0);
		assert_int_equal(control.clients->extents, 0);
		assert_int_equal(world.mrs, 0);
		assert_int_equal(told(RAIL_REGION_ADD), 0);
		world.refuse_mrs = 0;
	}
	close(fd);
	pump();
}

static void a_client_that_leaves_cancels_the_registration_of_its_memory(void **state)
{
	int fd = dial();

	settings.rail_mr_bytes = 1 << 20;
	world_hold(true);
	add(fd, 1000 << 20);
	for (unsigned i = 0; i < 60000 && world_seen(&world.at_once) < CLIENT_HELPERS; i++)
		usleep(1000);
	close(fd);
	pump();
	assert_int_equal(control.clients->sessions, 1);
	world_hold(false);
	pump_until_sessions(0);
	/* The registrations in progress were finished; the helper threads began no others. */
	assert_true(world.begun <= 2 * CLIENT_HELPERS);
	assert_int_equal(world.mrs, 0);
	assert_int_equal(told(RAIL_REGION_ADD), 0);
}

/* The test's teardown closes the engine while helper threads register memory. */
static void closing_the_engine_ends_registrations(void **state)
{
	int fd = dial();

	settings.rail_mr_bytes = 1 << 20;
	world_slow(1000);
	add(fd, 1000 << 20);
	world_await_begun(0);
	close(fd);
}

/*
 * Ends the capture of the log in `log`. True: a line with `text` is in it, or is written
 * soon: a helper thread may write its line after the others have finished the region. Two buffers
 * take turns, so that no thread writes the one that is searched.
 */
static bool logged(const char *log, const char *text)
{
	char late[2][1024];
	bool found;

	log_test_capture(late[0], sizeof(late[0]));
	found = strstr(log, text) != NULL;
	for (unsigned i = 0; i < 60000 && !found; i++) {
		usleep(1000);
		log_test_capture(late[(i + 1) % 2], sizeof(late[0]));
		found = strstr(late[i % 2], text) != NULL;
	}
	log_test_capture(NULL, 0);
	return found;
}

static void a_long_registration_logs_its_progress(void **state)
{
	char log[4096] = "";
	bool progress;
	uint64_t now_ns = clock_now_ns();
	int fd = dial();
	struct answer a;

	settings.rail_mr_bytes = 1 << 20;
	clock_test_set(now_ns);
	world_hold(true);
	add(fd, 64 << 20);
	for (unsigned i = 0; i < 60000 && world_seen(&world.at_once) < CLIENT_HELPERS; i++)
		usleep(1000);
	clock_test_set(now_ns + 7000000000ull);
	log_test_capture(log, sizeof(log));
	world_hold(false);
	pump_until_answer(fd, &a);
	progress = logged(log, " of 128 registrations done after 7 s");
	clock_test_set(0);
	assert_int_equal(a.reply.status, 0);
	assert_true(progress);
	assert_non_null(strstr(log, "registered on 2 NICs after 7 s"));
	leave(fd, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(memory_is_split_into_extents_without_gap_or_overlap),
		TEST(eight_ranks_with_500_gb_each_fit),
		TEST(exceeding_the_quota_of_extents_is_refused_with_advice),
		TEST(all_threads_work_on_one_large_region),
		TEST(a_small_region_does_not_wait_for_a_large_one),
		TEST(one_failed_extent_undoes_all_extents_on_every_nic),
		TEST(a_client_that_leaves_cancels_the_registration_of_its_memory),
		TEST(closing_the_engine_ends_registrations),
		TEST(a_long_registration_logs_its_progress),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
