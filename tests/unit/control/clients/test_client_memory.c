/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Regions of clients: which memory is refused, when the rails have it, and that a client that
 * disconnects leaks nothing. See client_world.h.
 */
#include "tests/unit/control/clients/client_world.h"

static void bad_memory_is_refused_and_leaks_nothing(void **state)
{
	const uint64_t huge = UINT64_MAX & ~4095ull;
	int fd = dial(), p[2], good = memfd_of(1u << 20, F_SEAL_SHRINK);
	int open_seal = memfd_of(1u << 20, F_SEAL_GROW);
	int read_only = memfd_of(1u << 20, F_SEAL_SHRINK | F_SEAL_WRITE);
	int file = open("/proc/self/exe", O_RDONLY);
	unsigned before;

	assert_int_equal(pipe(p), 0);
	pump();
	before = open_files();
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 4096, p[0]), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 4096, file), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 4096, fd), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 4096, open_seal), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 4096, read_only), -EPERM);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 0, good), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, (1u << 20) + 1, good), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 4096, 1u << 20, good), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 100, 4096, good), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, huge, 8192, good), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 4096, huge, good), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 4096, UINT64_MAX, good), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_REMOVE, 0, 0, -1), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_REMOVE, REGION_CLIENT_0, 0, -1), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_REMOVE, REGIONS_MAX, 0, -1), -EINVAL);
	assert_int_equal(status_of(fd, ATTACH_REGION_REMOVE, UINT64_MAX, 0, -1), -EINVAL);
	assert_int_equal(control.clients->regions, 0);
	assert_int_equal(world.commands, 0);
	open_files_soon(before);
	close(p[0]);
	close(p[1]);
	close(file);
	close(good);
	close(open_seal);
	close(read_only);
	close(fd);
	pump();
}

static void memory_without_seals_is_accepted_only_if_the_settings_allow_it(void **state)
{
	int fd = dial(), memfd = memfd_create("theirs", MFD_CLOEXEC);
	struct answer a;

	assert_int_equal(ftruncate(memfd, 8192), 0);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 8192, memfd), -EINVAL);
	settings.engine_unsealed_memory = true;
	assert_true(ask(fd, request_of(ATTACH_REGION_ADD, 0, 8192), &memfd, 1, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(control.clients->regions, 1);
	settings.engine_unsealed_memory = false;
	close(memfd);
	close(fd);
	pump();
	for (unsigned i = 0; i < RAILS; i++)
		client_region_returned(&control, (uint32_t)a.reply.a);
	pump();
	assert_int_equal(control.clients->regions, 0);
}

static void a_region_is_given_to_and_returned_by_every_rail(void **state)
{
	int fd = dial(), memfd = memfd_of(1u << 20, F_SEAL_SHRINK);
	struct answer a;
	uint64_t id;

	assert_true(ask(fd, request_of(ATTACH_REGION_ADD, 4096, 8192), &memfd, 1, &a));
	assert_int_equal(a.reply.status, 0);
	id = a.reply.a;
	assert_true(id >= REGION_CLIENT_0 && id < REGIONS_MAX);
	assert_int_equal(told(RAIL_REGION_ADD), RAILS);
	assert_int_equal(world.command[1].region.id, id);
	assert_int_equal(world.command[1].region.length, 8192);
	assert_int_equal(world.command[0].region.lkey + world.command[1].region.lkey, 1 + 2);
	assert_int_equal(world.command[1].region.extent_shift, 0);
	assert_int_equal(world.mrs, RAILS);
	/* a rail returns nothing that it was not told to drop */
	client_region_returned(&control, REGIONS_MAX);
	for (unsigned i = 0; i < RAILS; i++)
		client_region_returned(&control, (uint32_t)id);
	pump();
	assert_int_equal(world.mrs, RAILS);
	world.commands = 0;
	/*
	 * The removal of a region is answered when the last rail has returned the region, not
	 * before.
	 */
	assert_false(ask(fd, request_of(ATTACH_REGION_REMOVE, id, 0), NULL, 0, &a));
	client_region_returned(&control, (uint32_t)id);
	pump();
	assert_false(receive(fd, &a));
	assert_int_equal(world.mrs, RAILS);
	client_region_returned(&control, (uint32_t)id);
	pump();
	assert_true(receive(fd, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(world.mrs, 0);
	assert_int_equal(control.clients->regions, 0);
	close(memfd);
	close(fd);
	pump();
}

static void memory_that_a_dying_nic_holds_is_released_when_its_device_is_closed(void **state)
{
	int fd = dial(), memfd = memfd_of(8192, F_SEAL_SHRINK);
	struct answer a;
	uint64_t id;

	assert_true(ask(fd, request_of(ATTACH_REGION_ADD, 0, 8192), &memfd, 1, &a));
	assert_int_equal(a.reply.status, 0);
	id = a.reply.a;
	world_hold_mrs(true);
	assert_false(ask(fd, request_of(ATTACH_REGION_REMOVE, id, 0), NULL, 0, &a));
	rails_answer();
	pump();
	assert_int_equal(world.lost, (1u << RAILS) - 1);
	assert_int_equal(world.mrs, RAILS);
	pump();
	assert_false(receive(fd, &a)); /* no reply yet: the NIC may still write to the memory */
	/* from here on the NIC's device is closed, so deregistration succeeds */
	world_hold_mrs(false);
	client_memory_release_held(&control);
	pump();
	assert_true(receive(fd, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(world.mrs, 0);
	client_memory_release_held(&control); /* a second call finds no region */
	close(memfd);
	close(fd);
	pump();
}

/*
 * The helper threads report the failed deregistration after the control plane learns that the
 * device is closed.
 */
static void memory_that_a_nic_held_until_its_device_was_closed_is_released(void **state)
{
	const size_t bytes = CLIENT_SMALL_BYTES + 4096;
	int fd = dial(), memfd = memfd_of(bytes, F_SEAL_SHRINK);
	struct answer a;

	if (!ask(fd, request_of(ATTACH_REGION_ADD, 0, bytes), &memfd, 1, &a))
		await(fd, &a);
	assert_int_equal(a.reply.status, 0);
	world_hold_mrs(true);
	assert_false(ask(fd, request_of(ATTACH_REGION_REMOVE, a.reply.a, 0), NULL, 0, &a));
	rails_answer();
	assert_true(works_wait(control.clients->large, 60000000000ull));
	assert_int_equal(world.mrs, RAILS);
	world_hold_mrs(false);
	client_memory_release_held(&control);
	await(fd, &a);
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(world.mrs, 0);
	assert_int_equal(world.lost, 0);
	close(memfd);
	close(fd);
	pump_until_sessions(0);
}

static void a_session_cannot_release_the_memory_of_another(void **state)
{
	int a = dial(), b = dial(), memfd = memfd_of(4096, F_SEAL_SHRINK);
	struct answer region, channel;

	assert_true(ask(a, request_of(ATTACH_REGION_ADD, 0, 4096), &memfd, 1, &region));
	assert_true(ask(a, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &channel));
	assert_int_equal(status_of(b, ATTACH_REGION_REMOVE, region.reply.a, 0, -1), -EINVAL);
	assert_int_equal(status_of(b, ATTACH_CHANNEL_CLOSE, channel.reply.a, 0, -1), -EINVAL);
	/*
	 * A client cannot remove its staging memory by itself: that is released with the channel.
	 */
	assert_int_equal(status_of(a, ATTACH_REGION_REMOVE, channel.reply.b, 0, -1), -EINVAL);
	forget_fds(&channel);
	close(memfd);
	close(a);
	close(b);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

static void a_reply_waits_until_the_inboxes_have_the_region(void **state)
{
	int fd = dial(), memfd = memfd_of(4096, F_SEAL_SHRINK);
	struct answer a;

	world.full = true;
	assert_false(ask(fd, request_of(ATTACH_REGION_ADD, 0, 4096), &memfd, 1, &a));
	world.full = false;
	pump();
	assert_true(receive(fd, &a));
	assert_int_equal(a.reply.status, 0);
	close(memfd);
	close(fd);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

static void a_failed_registration_leaves_nothing_on_any_nic(void **state)
{
	int fd = dial(), memfd = memfd_of(4096, F_SEAL_SHRINK);
	struct answer a;

	world.refuse_mrs = 2;
	assert_true(ask(fd, request_of(ATTACH_REGION_ADD, 0, 4096), &memfd, 1, &a));
	assert_int_equal(a.reply.status, -ENOMEM);
	assert_non_null(strstr(a.reply.text, "the NIC is full"));
	world.refuse_mrs = 1;
	assert_int_equal(status_of(fd, ATTACH_CHANNEL_OPEN, 0, 0, -1), -ENOMEM);
	world.refuse_mrs = 2;
	assert_int_equal(status_of(fd, ATTACH_CHANNEL_OPEN, 0, 0, -1), -ENOMEM);
	assert_int_equal(world.mrs, 0);
	assert_int_equal(control.clients->regions, 0);
	assert_int_equal(control.clients->channels, 0);
	close(memfd);
	close(fd);
	pump();
}

static void large_memory_is_registered_on_another_thread(void **state)
{
	const size_t bytes = CLIENT_SMALL_BYTES + 4096;
	int fd = dial(), other = dial(), memfd = memfd_of(bytes, F_SEAL_SHRINK);
	struct answer a;

	world_hold(true);
	assert_false(ask(fd, request_of(ATTACH_REGION_ADD, 0, bytes), &memfd, 1, &a));
	assert_int_equal(status_of(other, ATTACH_REPORT, 0, 0, -1), 0);
	world_hold(false);
	await(fd, &a);
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(world.mrs, RAILS);
	assert_false(ask(fd, request_of(ATTACH_REGION_REMOVE, a.reply.a, 0), NULL, 0, &a));
	rails_answer();
	await(fd, &a);
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(world.mrs, 0);
	close(memfd);
	close(fd);
	close(other);
	pump();
}

static void a_client_that_leaves_during_a_registration_leaks_nothing(void **state)
{
	const size_t bytes = CLIENT_SMALL_BYTES + 4096;
	int fd = dial(), memfd = memfd_of(bytes, F_SEAL_SHRINK);
	struct answer a;

	world_hold(true);
	assert_false(ask(fd, request_of(ATTACH_REGION_ADD, 0, bytes), &memfd, 1, &a));
	world_await_begun(0);
	close(memfd);
	close(fd);
	pump();
	/* the session stays while its memory is being registered */
	assert_int_equal(control.clients->sessions, 1);
	world_hold(false);
	pump_until_sessions(0);
	assert_int_equal(world.mrs, 0);
	assert_int_equal(told(RAIL_REGION_ADD), 0);
	/*
	 * As above, a client leaves during a registration, but here the teardown closes the engine
	 * meanwhile.
	 */
	world_slow(20000);
	fd = dial();
	memfd = memfd_of(bytes, F_SEAL_SHRINK);
	(void)ask(fd, request_of(ATTACH_REGION_ADD, 0, bytes), &memfd, 1, &a);
	close(memfd);
	close(fd);
}

/* ---- a NIC whose device was opened anew ------------------------------------------------------ */

static uint32_t stale_to; /* MRs up to this key are of an earlier life of their device */

static bool is_stale(const struct dv_mr *mr)
{
	return mr->lkey && mr->lkey <= shm_load(&stale_to);
}

static int deregister(struct dv_mr *mr)
{
	return is_stale(mr) ? 0 : memory_deregister(mr);
}

/* All NICs were lost, closed and opened: they have none of the MRs of before. */
static void nics_reopened(void)
{
	nic_stub.mr_stale = is_stale;
	nic_stub.mr_deregister = deregister;
	pthread_mutex_lock(&world_lock);
	shm_store(&stale_to, world.lkey_last);
	world.mrs = 0;
	pthread_mutex_unlock(&world_lock);
}

static int renewed(char *why)
{
	int left;

	for (unsigned i = 0; i < 60000; i++) {
		left = client_memory_renew(&control, 1, why, 64);
		if (left <= 0)
			return left;
		usleep(1000);
		pump();
	}
	return 1;
}

static uint64_t region_made(int fd, int memfd, size_t bytes)
{
	struct answer a;

	if (!ask(fd, request_of(ATTACH_REGION_ADD, 0, bytes), &memfd, 1, &a))
		await(fd, &a);
	assert_int_equal(a.reply.status, 0);
	return a.reply.a;
}

static void region_gone(int fd, uint64_t id)
{
	struct answer a;

	assert_false(ask(fd, request_of(ATTACH_REGION_REMOVE, id, 0), NULL, 0, &a));
	rails_answer();
	await(fd, &a);
	assert_int_equal(a.reply.status, 0);
}

static void memory_is_registered_again_on_a_nic_that_was_opened_anew(void **state)
{
	int fd = dial(), memfd = memfd_of(8192, F_SEAL_SHRINK);
	uint64_t id = region_made(fd, memfd, 8192);
	char why[64] = "";

	assert_int_equal(renewed(why), 0);
	assert_int_equal(told(RAIL_REGION_KEY), 0); /* no NIC was opened anew */
	world.commands = 0;
	nics_reopened();
	assert_int_equal(renewed(why), 0);
	assert_int_equal(world.mrs, RAILS);
	assert_int_equal(told(RAIL_REGION_KEY), RAILS);
	assert_int_equal(world.command[1].region.id, id);
	assert_true(world.command[1].region.lkey > stale_to);
	assert_int_equal(renewed(why), 0);
	assert_int_equal(told(RAIL_REGION_KEY), RAILS);
	assert_false(world.wrong_thread);
	world.commands = 0;
	region_gone(fd, id);
	assert_int_equal(world.mrs, 0);
	close(memfd);
	close(fd);
	pump_until_sessions(0);
}

static void a_failed_renewal_is_reported_once_and_made_again(void **state)
{
	int fd = dial(), memfd = memfd_of(8192, F_SEAL_SHRINK);
	uint64_t id = region_made(fd, memfd, 8192), other = region_made(fd, memfd, 8192);
	char why[64] = "";

	world.commands = 0;
	nics_reopened();
	world.refuse_mrs = 1;
	assert_int_equal(renewed(why), -ENOMEM);
	assert_string_equal(why, "the NIC is full");
	assert_int_equal(renewed(why), 0);
	assert_int_equal(world.mrs, 2 * RAILS);
	assert_int_equal(told(RAIL_REGION_KEY), 2 * RAILS);
	world.commands = 0;
	region_gone(fd, id);
	region_gone(fd, other);
	assert_int_equal(world.mrs, 0);
	close(memfd);
	close(fd);
	pump_until_sessions(0);
}

/* The client's request waits for the rails and for the helper threads, whichever is last. */
static void memory_that_is_dropped_while_it_is_renewed_is_released_once(void **state)
{
	int fd = dial(), memfd = memfd_of(8192, F_SEAL_SHRINK);
	char why[64];

	for (unsigned last = 0; last < 2; last++) {
		uint64_t id = region_made(fd, memfd, 8192);
		unsigned before = world_seen(&world.begun);
		struct answer a;

		nics_reopened();
		world_hold(true);
		assert_int_equal(client_memory_renew(&control, 1, why, sizeof(why)), 1);
		/* what has not begun is not begun any more */
		world_await_begun(before);
		assert_false(ask(fd, request_of(ATTACH_REGION_REMOVE, id, 0), NULL, 0, &a));
		if (last == 0)
			rails_answer();
		pump();
		assert_false(receive(fd, &a));
		world_hold(false);
		assert_int_equal(renewed(why), 0);
		pump();
		if (last)
			rails_answer();
		await(fd, &a);
		assert_int_equal(a.reply.status, 0);
		assert_int_equal(world.mrs, 0);
		assert_int_equal(control.clients->regions, 0);
		assert_int_equal(told(RAIL_REGION_KEY), 0);
		world.commands = 0;
	}
	close(memfd);
	close(fd);
	pump_until_sessions(0);
}

static void memory_registered_while_a_nic_is_opened_anew_is_known_to_it(void **state)
{
	const size_t bytes = CLIENT_SMALL_BYTES + 4096;
	int fd = dial(), memfd = memfd_of(bytes, F_SEAL_SHRINK);
	struct answer a;

	world_hold(true);
	assert_false(ask(fd, request_of(ATTACH_REGION_ADD, 0, bytes), &memfd, 1, &a));
	world_await_begun(0);
	nic_stub.mr_stale = is_stale;
	shm_store(&stale_to, 1); /* one of the NICs: the key is given below */
	world_hold(false);
	await(fd, &a);
	assert_int_equal(a.reply.status, 0);
	for (unsigned i = 0; i < world.commands; i++)
		assert_true(world.command[i].region.lkey > 1);
	assert_int_equal(world.lkey_last, RAILS + 1);
	assert_int_equal(world.mrs--, RAILS + 1);
	region_gone(fd, a.reply.a);
	close(memfd);
	close(fd);
	pump_until_sessions(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(bad_memory_is_refused_and_leaks_nothing),
		TEST(memory_without_seals_is_accepted_only_if_the_settings_allow_it),
		TEST(a_region_is_given_to_and_returned_by_every_rail),
		TEST(memory_that_a_dying_nic_holds_is_released_when_its_device_is_closed),
		TEST(memory_that_a_nic_held_until_its_device_was_closed_is_released),
		TEST(a_session_cannot_release_the_memory_of_another),
		TEST(a_reply_waits_until_the_inboxes_have_the_region),
		TEST(a_failed_registration_leaves_nothing_on_any_nic),
		TEST(large_memory_is_registered_on_another_thread),
		TEST(a_client_that_leaves_during_a_registration_leaks_nothing),
		TEST(memory_is_registered_again_on_a_nic_that_was_opened_anew),
		TEST(a_failed_renewal_is_reported_once_and_made_again),
		TEST(memory_that_is_dropped_while_it_is_renewed_is_released_once),
		TEST(memory_registered_while_a_nic_is_opened_anew_is_known_to_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
