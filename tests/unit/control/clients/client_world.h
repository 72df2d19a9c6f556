/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of client*.c with a client that speaks the socket protocol directly. This file stubs the
 * rails, the NICs and ctl.c; pools and shard are real. The client and the loop take turns in
 * one thread, except where a test needs a process of another user or one that dies.
 */
#ifndef TESTS_CLIENT_WORLD_H
#define TESTS_CLIENT_WORLD_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/log.h"
#include "config/passed_fds.h"
#include "engine/control/clients/clients_inner.h"
#include "engine/control/loop.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/pages.h"
#include "tests/emulated.h"
#include "tests/nic_stub.h"
#include "tests/unit/control/warm_stub.h"

enum { RAILS = 2 };

/* ---- stubs ----------------------------------------------------------------------------------- */

static struct control control;
static struct shard shard;
static struct statistics statistics;
static struct settings settings;
static char folder[64];

static struct {
	struct rail_command command[8192];
	unsigned commands;
	bool full;    /* true: outbox_empty() returns false, as if the rails' inboxes were full */
	unsigned mrs; /* number of MRs registered now, on all stub NICs */
	unsigned refuse_mrs; /* if > 0: the registration with this number from now on fails */
	unsigned slow_us;    /* duration of one registration, in us */
	bool hold;           /* true: calls that register memory do not return */
	/* number of registrations in progress, and its maximum so far */
	unsigned at_once, at_once_max;
	unsigned begun;     /* number of registrations begun since the setup */
	uint32_t lkey_last; /* key of the last MR; every MR has a key of its own */
	bool holds_mrs;     /* true: calls that deregister memory fail, as on a NIC that died */
	unsigned lost;      /* bit mask of the rails that the engine declared lost */
	/* true: memory was registered on the control plane's thread, which is an error */
	bool wrong_thread;
	unsigned published; /* number of channels that the stub of ctl.c knows */
	/* true: ctl_channel_release() of the stub reports that clients are copying into a slot */
	bool copying;
	/* number of ctl_channel_release() calls that reported the exit of the client's process */
	unsigned exited;
} world;
static pthread_t loop_thread;
static pthread_mutex_t world_lock = PTHREAD_MUTEX_INITIALIZER;

bool outbox_send(struct control *c, unsigned rail, const struct rail_command *command)
{
	assert_true(world.commands < 8192);
	world.command[world.commands] = *command;
	world.command[world.commands++].spare2 = (uint16_t)rail;
	return true;
}

bool outbox_empty(const struct control *c)
{
	return !world.full;
}

static inline int memory_register(const struct dv_memory *memory, struct dv_mr *ret)
{
	assert_true(memory->memfd >= 0);
	assert_int_equal(memory->access, DV_LOCAL_WRITE | DV_RELAXED_ORDERING);
	if (pthread_equal(pthread_self(), loop_thread))
		world.wrong_thread = true;
	pthread_mutex_lock(&world_lock);
	world.begun++;
	if (++world.at_once > world.at_once_max)
		world.at_once_max = world.at_once;
	while (world.hold) {
		pthread_mutex_unlock(&world_lock);
		usleep(1000);
		pthread_mutex_lock(&world_lock);
	}
	if (world.slow_us) {
		unsigned slow_us = world.slow_us;

		pthread_mutex_unlock(&world_lock);
		usleep(slow_us);
		pthread_mutex_lock(&world_lock);
	}
	world.at_once--;
	if (world.refuse_mrs && --world.refuse_mrs == 0) {
		pthread_mutex_unlock(&world_lock);
		return -ENOMEM;
	}
	world.mrs++;
	*ret = (struct dv_mr){
		.base = memory->base, .length = memory->length, .lkey = ++world.lkey_last};
	pthread_mutex_unlock(&world_lock);
	return 0;
}

static inline int memory_deregister(struct dv_mr *mr)
{
	pthread_mutex_lock(&world_lock);
	/*
	 * A NIC may write to the memory until it is deregistered here, so it must still be mapped.
	 */
	*(volatile char *)mr->base = 1;
	if (world.holds_mrs) {
		pthread_mutex_unlock(&world_lock);
		return -EIO;
	}
	world.mrs--;
	pthread_mutex_unlock(&world_lock);
	return 0;
}

static inline void nic_lost(struct control *c, unsigned rail, const char *why)
{
	(void)c, (void)why;
	world.lost |= 1u << rail;
}

void ctl_channel_open(struct control *c, struct ctl_channel *channel)
{
	(void)c, (void)channel;
	world.published++;
}

void ctl_channel_close(struct control *c, struct ctl_channel *channel)
{
	(void)c, (void)channel;
	world.published--;
}

bool ctl_channel_release(struct control *c, struct ctl_channel *channel, bool gone)
{
	(void)c, (void)channel;
	world.exited += gone;
	return gone || !world.copying;
}

static inline int report(struct control *c, char **ret_text, size_t *ret_bytes)
{
	*ret_text = strdup("{\"name\":\"x\"}");
	*ret_bytes = strlen(*ret_text);
	return 0;
}

static const struct client_events client_events = {.nic_lost = nic_lost, .report = report};

/*
 * Returns, in place of the rails, every channel and region that the rails were told to stop or
 * drop.
 */
static inline unsigned rails_answer(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < world.commands; i++) {
		const struct rail_command command = world.command[i];

		if (command.kind == RAIL_CHANNEL_STOP)
			client_channel_returned(&control, command.object);
		else if (command.kind == RAIL_REGION_DROP)
			client_region_returned(&control, command.region.id);
		else
			continue;
		n++;
	}
	world.commands = 0;
	return n;
}

/* Reads a counter of `world` that other threads write. */
static inline unsigned world_seen(const unsigned *counter)
{
	unsigned n;

	pthread_mutex_lock(&world_lock);
	n = *counter;
	pthread_mutex_unlock(&world_lock);
	return n;
}

static inline void world_slow(unsigned us)
{
	pthread_mutex_lock(&world_lock);
	world.slow_us = us;
	pthread_mutex_unlock(&world_lock);
}

static inline void world_hold_mrs(bool hold)
{
	pthread_mutex_lock(&world_lock);
	world.holds_mrs = hold;
	pthread_mutex_unlock(&world_lock);
}

/* Waits at most a minute until a registration has begun after the first `before` of the setup. */
static inline void world_await_begun(unsigned before)
{
	for (unsigned i = 0; i < 60000 && world_seen(&world.begun) <= before; i++)
		usleep(1000);
}

static inline void world_hold(bool hold)
{
	pthread_mutex_lock(&world_lock);
	world.hold = hold;
	pthread_mutex_unlock(&world_lock);
}

/*
 * Returns the number of rails that were sent a command of this kind since the commands were last
 * cleared.
 */
static inline unsigned told(enum rail_command_kind kind)
{
	unsigned n = 0;

	for (unsigned i = 0; i < world.commands; i++)
		n += world.command[i].kind == kind;
	return n;
}

/* Whether the helper threads have work. */
static inline bool helpers_work(void)
{
	const struct clients *a = control.clients;

	for (unsigned i = 0; i < REGIONS_MAX; i++) {
		const struct region *r = a->region[i];

		if (r && (r->state == REGION_REGISTERING ||
				 (r->state == REGION_RELEASING && !r->held)))
			return true;
	}
	return false;
}

/*
 * Makes turns of the event loop, and waits for the helper threads unless the test slows them down.
 */
static inline void pump(void)
{
	unsigned waits = 0;

	for (unsigned i = 0; i < 4; i++) {
		event_base_loop(control.base, EVLOOP_NONBLOCK);
		clients_turn(&control);
		if (!helpers_work() || world.hold || world.slow_us || waits++ == 50000)
			continue;
		usleep(100);
		i = 0;
	}
}

static inline void pump_until_sessions(unsigned sessions)
{
	for (unsigned i = 0; i < 60000 && control.clients->sessions != sessions; i++) {
		pump();
		usleep(1000);
	}
	assert_int_equal(control.clients->sessions, sessions);
}

/* ---- client that speaks the protocol directly ------------------------------------------------ */

struct answer {
	struct attach_reply reply;
	int fd[ATTACH_FDS_MAX];
	unsigned fds;
};

static inline int dial(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	strcpy(address.sun_path, settings.engine_socket);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

static inline void send_raw(int fd, const void *bytes, size_t n, const int *fds, unsigned count)
{
	alignas(struct cmsghdr) char buffer[PASSED_FDS_BYTES(64)];
	struct iovec iov = {(void *)(uintptr_t)bytes, n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	fds_attach(&m, buffer, fds, count);
	assert_int_equal(sendmsg(fd, &m, MSG_NOSIGNAL), n);
}

/*
 * Receives the engine's reply on a client's socket. False: the engine closed it, or there is no
 * reply yet.
 */
static inline bool receive(int fd, struct answer *a)
{
	alignas(struct cmsghdr) char buffer[PASSED_FDS_BYTES(ATTACH_FDS_MAX)];
	struct iovec iov = {&a->reply, sizeof(a->reply)};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = buffer,
		.msg_controllen = sizeof(buffer)};

	a->fds = 0;
	if (recvmsg(fd, &m, MSG_DONTWAIT) != sizeof(a->reply))
		return false;
	a->fds = fds_take(&m, a->fd, ATTACH_FDS_MAX);
	return true;
}

static inline struct attach_request request_of(enum attach_kind kind, uint64_t a, uint64_t b)
{
	static uint32_t serial;

	return (struct attach_request){.magic = ATTACH_MAGIC,
		.version = ABI_VERSION,
		.kind = (uint16_t)kind,
		.serial = ++serial,
		.a = a,
		.b = b};
}

static inline bool ask(
	int fd, struct attach_request r, const int *fds, unsigned count, struct answer *a)
{
	send_raw(fd, &r, sizeof(r), fds, count);
	pump();
	if (!receive(fd, a))
		return false;
	assert_int_equal(a->reply.serial, r.serial);
	assert_int_equal(a->reply.kind, r.kind);
	assert_int_equal(a->reply.status < 0, a->reply.text[0] != 0);
	return true;
}

/*
 * Makes turns of the event loop until the engine's reply comes; helper threads work on the request
 * meanwhile.
 */
static inline void await(int fd, struct answer *a)
{
	for (unsigned i = 0; i < 60000; i++) {
		pump();
		if (receive(fd, a))
			return;
		usleep(1000);
	}
	fail_msg("no answer");
}

static inline void forget_fds(struct answer *a)
{
	for (unsigned i = 0; i < a->fds; i++)
		close(a->fd[i]);
}

static inline int status_of(int fd, enum attach_kind kind, uint64_t a, uint64_t b, int memfd)
{
	struct answer answer;

	assert_true(ask(fd, request_of(kind, a, b), &memfd, memfd >= 0, &answer));
	forget_fds(&answer);
	return answer.reply.status;
}

static inline int memfd_of(size_t bytes, unsigned seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static inline unsigned open_files(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 8192; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/*
 * Waits until the closer's thread has closed the descriptors that it was given and `count` are
 * open.
 */
static inline void open_files_soon(unsigned count)
{
	for (unsigned i = 0; i < 60000 && open_files() != count; i++)
		usleep(1000);
	assert_int_equal(open_files(), count);
}

/* ---- set up ---------------------------------------------------------------------------------- */

static unsigned files_before;

static inline int setup(void **state)
{
	struct rlimit files;

	memset(&control, 0, sizeof(control));
	memset(&world, 0, sizeof(world));
	nic_stub = (struct nic_stub){
		.mr_register = memory_register, .mr_deregister = memory_deregister};
	loop_thread = pthread_self();
	/* Each memory range needs a descriptor, so the limit of open files is raised. */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	files_before = open_files();
	strcpy(folder, "/tmp/attach-XXXXXX");
	assert_non_null(mkdtemp(folder));
	assert_int_equal(chmod(folder, 0755), 0);
	snprintf(
		settings.engine_socket, sizeof(settings.engine_socket), "%s/a/engine.sock", folder);
	settings.rail_mr_bytes = 2ll << 30;
	settings.engine_staging_bytes = STAGING_BYTES_MIN + PAGE_UNIT + 7;
	control.settings = &settings;
	shard = (struct shard){.bits = 0};
	control.shard = &shard;
	statistics = (struct statistics){.refused = 0};
	control.statistics = &statistics;
	control.rails = RAILS;
	control.base = event_base_new();
	control.kick = eventfd(0, EFD_NONBLOCK);
	assert_int_equal(
		huge_open("status", sizeof(*control.status), -1, false, &control.status_memory), 0);
	control.status = control.status_memory.base;
	assert_int_equal(shard_open(1000, -1, false, control.shard), 0);
	for (unsigned i = 0; i < RAILS; i++) {
		const struct pool_options options = {.rail = i, .bytes = 4u << 20, .numa_node = -1};

		assert_int_equal(pool_open(&options, &control.rail[i].pool), 0);
		control.rail[i].kick = eventfd(0, EFD_NONBLOCK);
	}
	assert_int_equal(client_socket_open(&control), 0);
	control.client_events = &client_events;
	assert_int_equal(clients_open(&control), 0);
	return 0;
}

static inline int teardown(void **state)
{
	char command[128];

	clients_close(&control);
	client_socket_close(&control);
	assert_int_equal(access(settings.engine_socket, F_OK), -1);
	assert_int_equal(world.mrs, 0);
	assert_int_equal(world.published, 0);
	assert_false(world.wrong_thread);
	for (unsigned i = 0; i < RAILS; i++) {
		pool_close(control.rail[i].pool);
		close(control.rail[i].kick);
	}
	shard_close(control.shard);
	huge_close(&control.status_memory);
	close(control.kick);
	event_base_free(control.base);
	assert_int_equal(open_files(), files_before);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	assert_int_equal(system(command), 0);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
