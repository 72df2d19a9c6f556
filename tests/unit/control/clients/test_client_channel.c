/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels of clients: when they are opened and closed, which rails have them, and that a client
 * that disconnects or dies leaks nothing. See client_world.h.
 */
#include "tests/unit/control/clients/client_world.h"

static void a_channel_segment_cannot_change_its_size(void **state)
{
	const struct channel_layout l = channel_layout(RAILS);
	const size_t bytes = l.staging + STAGING_BYTES_MIN + PAGE_UNIT;
	struct channel_header *header;
	struct answer a;
	int fd = dial();

	assert_true(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(a.fds, 2);
	assert_int_equal(lseek(a.fd[0], 0, SEEK_END), bytes); /* as the setting, in pages */
	assert_int_equal(ftruncate(a.fd[0], 0), -1);
	assert_int_equal(ftruncate(a.fd[0], (off_t)bytes * 2), -1);
	header = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd[0], 0);
	assert_true(header != MAP_FAILED);
	assert_int_equal(header->magic, CHANNEL_MAGIC);
	assert_int_equal(header->rails, RAILS);
	assert_int_equal(told(RAIL_CHANNEL_ADD), RAILS);
	assert_int_equal(told(RAIL_REGION_ADD), RAILS);
	assert_int_equal(world.published, 1);
	munmap(header, bytes);
	forget_fds(&a);
	close(fd);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

/* What the recorder is sent now; the words, of which it returns the number. */
static size_t asked(int fd, uint64_t *ret, size_t most)
{
	struct answer a;
	ssize_t n;

	assert_true(ask(fd, request_of(ATTACH_ASKED, STATISTICS_EXISTS, 0), NULL, 0, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(a.fds, 1);
	n = pread(a.fd[0], ret, most * sizeof(*ret), 0);
	assert_true(n >= 0 && (uint64_t)n >= a.reply.a);
	forget_fds(&a);
	return a.reply.a / sizeof(*ret);
}

/* Writes words as a client does. */
static void asks(struct channel_asked *area, uint64_t words)
{
	for (uint64_t i = 0; i < words; i++)
		area->word[(area->written + i) % ASKED_WORDS] = area->written + i + 1;
	shm_store_release64(&area->written, area->written + words);
}

static void keys_go_to_the_one_process_that_records_them(void **state)
{
	static uint64_t got[2 * ASKED_WORDS];
	const struct channel_layout l = channel_layout(RAILS);
	int client = dial(), recorder = dial(), other = dial();
	struct channel_asked *area;
	unsigned char *map;
	struct answer a;

	assert_true(ask(client, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	map = mmap(NULL, l.staging, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd[0], 0);
	assert_true(map != MAP_FAILED);
	area = (struct channel_asked *)(void *)(map + l.asked);
	forget_fds(&a);
	assert_int_equal(status_of(recorder, ATTACH_ASKED, STATISTICS_SET, 0, -1), -EINVAL);
	assert_int_equal(control.status->asked, 0);
	assert_int_equal(asked(recorder, got, 0), 0);
	assert_int_equal(control.status->asked, 1 + STATISTICS_EXISTS);
	assert_int_equal(status_of(other, ATTACH_ASKED, STATISTICS_EXISTS, 0, -1), -EBUSY);

	asks(area, 3);
	assert_int_equal(asked(recorder, got, 4), 4);
	assert_true(got[0] == 3 && got[1] == 1 && got[3] == 3);
	assert_int_equal(area->taken, 3);
	assert_int_equal(asked(recorder, got, 4), 0);
	/* a full ring whose words go round its end */
	asks(area, ASKED_WORDS);
	assert_int_equal(asked(recorder, got, 2 * ASKED_WORDS), ASKED_WORDS + 1);
	for (uint64_t i = 0; i < ASKED_WORDS; i++)
		assert_int_equal(got[1 + i], 4 + i);
	/* a lie costs the liar its words */
	shm_store_release64(&area->written, area->written + ASKED_WORDS + 1);
	assert_int_equal(asked(recorder, got, 0), 0);
	shm_store_release64(&area->written, 0);
	assert_int_equal(asked(recorder, got, 0), 0);
	/* the last words of a process that has ended */
	asks(area, 2);
	close(client);
	pump();
	rails_answer();
	pump_until_sessions(2);
	assert_int_equal(asked(recorder, got, 3), 3);
	assert_int_equal(got[0], 2);

	close(recorder);
	pump_until_sessions(1);
	assert_int_equal(control.status->asked, 0);
	assert_int_equal(asked(other, got, 0), 0);
	close(other);
	pump_until_sessions(0);
	munmap(map, l.staging);
}

/* world_hold() makes the stub NIC act like one whose driver does not return from a registration. */
static void the_loop_goes_on_while_channels_and_small_memory_are_registered(void **state)
{
	int opens = dial(), adds = dial(), other = dial(), memfd = memfd_of(4096, F_SEAL_SHRINK);
	struct answer a;

	world_hold(true);
	assert_false(ask(opens, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	assert_false(ask(adds, request_of(ATTACH_REGION_ADD, 0, 4096), &memfd, 1, &a));
	assert_int_equal(status_of(other, ATTACH_REPORT, 0, 0, -1), 0);
	assert_int_equal(world.commands + world.published, 0);
	world_hold(false);
	await(opens, &a);
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(told(RAIL_CHANNEL_ADD), RAILS);
	forget_fds(&a);
	await(adds, &a);
	assert_int_equal(a.reply.status, 0);
	close(memfd);
	close(opens);
	close(adds);
	close(other);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

static void a_client_that_leaves_while_its_channel_opens_leaks_nothing(void **state)
{
	struct answer a;

	for (unsigned refused = 0; refused < 2; refused++) {
		int fd = dial();

		world.begun = 0;
		world_hold(true);
		assert_false(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
		world_await_begun(0);
		close(fd);
		pump();
		/* the channel's staging memory is still being registered */
		assert_int_equal(control.clients->channels, 1);
		world.refuse_mrs = refused;
		world_hold(false);
		pump_until_sessions(0);
		assert_int_equal(control.clients->channels + control.clients->regions, 0);
		assert_int_equal(world.commands + world.mrs + world.published, 0);
	}
}

static void a_channel_is_closed_when_every_rail_has_returned_it(void **state)
{
	struct answer a;
	uint64_t id;
	int fd = dial();

	assert_true(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	forget_fds(&a);
	id = a.reply.a;
	world.commands = 0;
	assert_false(ask(fd, request_of(ATTACH_CHANNEL_CLOSE, id, 0), NULL, 0, &a));
	assert_int_equal(world.published, 0);
	assert_int_equal(told(RAIL_CHANNEL_STOP), RAILS);
	assert_int_equal(control.clients->channels, 1);
	rails_answer();
	pump();
	assert_true(receive(fd, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(control.clients->channels, 0);
	assert_int_equal(world.mrs, 0);
	assert_int_equal(status_of(fd, ATTACH_CHANNEL_CLOSE, id, 0, -1), -EINVAL);
	close(fd);
	pump();
}

static void a_channel_number_beyond_the_table_is_none(void **state)
{
	struct clients *clients = control.clients;
	struct answer a;
	int fd = dial();

	assert_true(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	forget_fds(&a);
	/* what lies behind the table looks like a channel of the session */
	static_assert(offsetof(struct clients, region) ==
			      offsetof(struct clients, channel) + sizeof(clients->channel),
		"behind the table");
	memcpy(&clients->region[0], &clients->channel[a.reply.a], sizeof(void *));
	send_raw(fd,
		&(struct attach_request){.magic = ATTACH_MAGIC,
			.version = ABI_VERSION,
			.kind = ATTACH_CHANNEL_CLOSE,
			.a = CHANNELS_MAX},
		sizeof(struct attach_request), NULL, 0);
	for (unsigned i = 0; i < 4; i++)
		event_base_loop(control.base, EVLOOP_NONBLOCK);
	clients->region[0] = NULL;
	assert_true(receive(fd, &a));
	assert_int_equal(a.reply.status, -EINVAL);
	close(fd);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

static void a_segment_stays_mapped_while_a_rail_has_channel_or_staging(void **state)
{
	for (unsigned channel_last = 0; channel_last < 2; channel_last++) {
		struct channel *c;
		struct answer a;
		int fd = dial();

		assert_true(ask(fd, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
		forget_fds(&a);
		c = control.clients->channel[a.reply.a];
		close(fd);
		pump();
		for (unsigned step = 0; step < 2 * RAILS; step++) {
			assert_int_equal(control.clients->channels, 1);
			/*
			 * this write would fault if the engine had unmapped the channel's segment
			 */
			c->map[c->bytes - 1] = 1;
			assert_int_equal(shm_load(&c->ctl.header->drained), c->left == 0);
			if ((step < RAILS) == (channel_last != 0))
				client_region_returned(&control, (uint32_t)a.reply.b);
			else
				client_channel_returned(&control, &c->rail[step % RAILS]);
			pump();
		}
		assert_int_equal(control.clients->channels, 0);
		assert_int_equal(control.clients->sessions, 0);
	}
}

static void a_channel_number_is_reused_only_after_the_rails_return_it(void **state)
{
	enum { SESSIONS = SESSIONS_MAX - 1 };
	int fd[SESSIONS], other = dial();
	unsigned opened = 0;
	struct answer a;

	for (unsigned i = 0; i < CHANNELS_SESSION_SURE; i++, opened++)
		assert_int_equal(status_of(other, ATTACH_CHANNEL_OPEN, 0, 0, -1), 0);
	for (unsigned i = 0; i < SESSIONS; i++) {
		fd[i] = dial();
		/* channel 17 is one of fd[1] */
		while ((i || opened < 17) && status_of(fd[i], ATTACH_CHANNEL_OPEN, 0, 0, -1) == 0)
			opened++;
	}
	assert_int_equal(opened, CHANNELS_MAX);
	assert_int_equal(status_of(other, ATTACH_CHANNEL_OPEN, 0, 0, -1), -EMFILE);
	world.commands = 0;
	assert_false(ask(fd[1], request_of(ATTACH_CHANNEL_CLOSE, 17, 0), NULL, 0, &a));
	assert_int_equal(status_of(other, ATTACH_CHANNEL_OPEN, 0, 0, -1), -EMFILE);
	rails_answer();
	pump();
	assert_true(receive(fd[1], &a));
	assert_true(ask(other, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	assert_int_equal(a.reply.status, 0);
	assert_int_equal(a.reply.a, 17);
	forget_fds(&a);
	for (unsigned i = 0; i < SESSIONS; i++)
		close(fd[i]);
	pump();
	assert_int_equal(control.clients->sessions, SESSIONS + 1);
	rails_answer();
	pump_until_sessions(1);
	assert_int_equal(control.clients->channels, CHANNELS_SESSION_SURE + 1);
	close(other);
	pump();
	rails_answer();
	pump_until_sessions(0);
}

static void a_broken_ring_ends_that_session_and_no_other(void **state)
{
	struct answer a;
	int bad = dial(), good = dial();

	assert_true(ask(bad, request_of(ATTACH_CHANNEL_OPEN, 0, 0), NULL, 0, &a));
	forget_fds(&a);
	client_channel_broken(&control, (uint32_t)a.reply.a);
	client_channel_broken(&control, (uint32_t)a.reply.a);
	client_channel_broken(&control, CHANNELS_MAX + 5);
	assert_int_equal(recv(bad, &a, sizeof(a), MSG_DONTWAIT), 0);
	assert_int_equal(told(RAIL_CHANNEL_STOP), RAILS);
	assert_int_equal(status_of(good, ATTACH_REPORT, 0, 0, -1), 0);
	rails_answer();
	pump_until_sessions(1);
	close(bad);
	close(good);
	pump();
}

/* A client process is killed while it has channels and a region, in the middle of a request. */
static void a_killed_client_leaks_nothing(void **state)
{
	int status, ready[2];
	pid_t child;

	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		int fd = dial(), memfd = memfd_of(1u << 20, F_SEAL_SHRINK);
		const struct attach_request open = request_of(ATTACH_CHANNEL_OPEN, 0, 0);
		const struct attach_request add = request_of(ATTACH_REGION_ADD, 0, 1u << 20);
		const struct attach_request stop = request_of(ATTACH_CHANNEL_CLOSE, 0, 0);

		send_raw(fd, &open, sizeof(open), NULL, 0);
		send_raw(fd, &open, sizeof(open), NULL, 0);
		send_raw(fd, &add, sizeof(add), &memfd, 1);
		send_raw(fd, &stop, sizeof(stop), NULL, 0);
		(void)!write(ready[1], "", 1);
		for (;;)
			pause();
	}
	assert_int_equal(read(ready[0], &status, 1), 1);
	pump();
	assert_int_equal(control.clients->sessions, 1);
	assert_int_equal(control.clients->channels, 2);
	assert_int_equal(control.clients->regions, 3);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	pump();
	/*
	 * the rails have not returned the client's channels and regions, so its session still
	 * exists
	 */
	assert_int_equal(control.clients->sessions, 1);
	assert_int_equal(world.mrs, 3 * RAILS);
	/* The engine may notice the client's death only when it answers CHANNEL_CLOSE. */
	while (rails_answer())
		pump();
	pump_until_sessions(0);
	assert_int_equal(control.clients->channels, 0);
	assert_int_equal(control.clients->regions, 0);
	close(ready[0]);
	close(ready[1]);
}

static void closing_the_engine_frees_channels_and_regions_of_clients(void **state)
{
	int fd = dial(), memfd = memfd_of(4096, F_SEAL_SHRINK);

	assert_int_equal(status_of(fd, ATTACH_CHANNEL_OPEN, 0, 0, -1), 0);
	assert_int_equal(status_of(fd, ATTACH_REGION_ADD, 0, 4096, memfd), 0);
	close(memfd);
	close(fd);
	/*
	 * The teardown closes the engine, which still has the channel and the region, and checks
	 * that nothing is left.
	 */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_channel_segment_cannot_change_its_size),
		TEST(keys_go_to_the_one_process_that_records_them),
		TEST(the_loop_goes_on_while_channels_and_small_memory_are_registered),
		TEST(a_client_that_leaves_while_its_channel_opens_leaks_nothing),
		TEST(a_channel_is_closed_when_every_rail_has_returned_it),
		TEST(a_channel_number_beyond_the_table_is_none),
		TEST(a_segment_stays_mapped_while_a_rail_has_channel_or_staging),
		TEST(a_channel_number_is_reused_only_after_the_rails_return_it),
		TEST(a_broken_ring_ends_that_session_and_no_other),
		TEST(a_killed_client_leaks_nothing),
		TEST(closing_the_engine_frees_channels_and_regions_of_clients),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
