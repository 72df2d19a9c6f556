/* SPDX-License-Identifier: Apache-2.0 */
/* Which descriptors a message passes, and that none of them stays open unnoticed. */
#include <setjmp.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "config/passed_fds.h"
#include "tests/emulated.h"

#define SENT_MAX 8u

static int ends[2], file[SENT_MAX];

static int setup(void **state)
{
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	for (unsigned i = 0; i < SENT_MAX; i++) {
		int both[2];

		assert_int_equal(pipe(both), 0); /* each one has an inode of its own */
		file[i] = both[0];
		close(both[1]);
	}
	return 0;
}

static int teardown(void **state)
{
	for (unsigned i = 0; i < SENT_MAX; i++)
		close(file[i]);
	close(ends[0]);
	close(ends[1]);
	return 0;
}

static void send_fds(unsigned count)
{
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(SENT_MAX)];
	char byte = 7;
	struct iovec io = {&byte, 1};
	struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};

	fds_attach(&message, control, file, count);
	assert_int_equal(sendmsg(ends[0], &message, 0), 1);
}

/* Receives with control data for `room` descriptors, takes `max` of them; returns how many. */
static unsigned receive_fds(unsigned room, int *ret_fds, unsigned max, int *ret_flags)
{
	alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(PASSED_FDS_MAX)];
	char byte = 0;
	struct iovec io = {&byte, 1};
	struct msghdr message = {.msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = room ? PASSED_FDS_BYTES(room) : 0};
	unsigned taken;

	assert_int_equal(recvmsg(ends[1], &message, MSG_CMSG_CLOEXEC), 1);
	assert_int_equal(byte, 7);
	taken = fds_take(&message, ret_fds, max);
	*ret_flags = message.msg_flags;
	return taken;
}

static bool same_file(int a, int b)
{
	struct stat of_a, of_b;

	assert_int_equal(fstat(a, &of_a), 0);
	assert_int_equal(fstat(b, &of_b), 0);
	return of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

static int next_fd(void)
{
	int fd = dup(ends[0]);

	close(fd);
	return fd;
}

static void descriptors_arrive_in_their_order(void **state)
{
	int fds[SENT_MAX], flags;

	for (unsigned count = 0; count <= SENT_MAX; count++) {
		send_fds(count);
		assert_int_equal(receive_fds(SENT_MAX, fds, SENT_MAX, &flags), count);
		assert_int_equal(flags & MSG_CTRUNC, 0);
		for (unsigned i = 0; i < count; i++) {
			assert_true(same_file(fds[i], file[i]));
			close(fds[i]);
		}
	}
}

static void descriptors_beyond_the_limit_are_closed(void **state)
{
	int fds[SENT_MAX] = {-1, -1, -1}, flags, next = next_fd();

	send_fds(SENT_MAX);
	assert_int_equal(receive_fds(SENT_MAX, fds, 2, &flags), 2);
	assert_int_equal(fds[2], -1);
	assert_true(same_file(fds[0], file[0]) && same_file(fds[1], file[1]));
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(next_fd(), next);
	assert_int_equal(fcntl(next + 2, F_GETFD), -1);
}

static void descriptors_without_room_are_flagged(void **state)
{
	int fds[SENT_MAX], flags, next = next_fd();

	SKIP_EMULATED("it flags no control data that is cut off");
	send_fds(SENT_MAX);
	assert_int_equal(receive_fds(0, fds, SENT_MAX, &flags), 0);
	assert_int_not_equal(flags & MSG_CTRUNC, 0);
	send_fds(SENT_MAX);
	assert_int_equal(receive_fds(2, fds, SENT_MAX, &flags), 2);
	assert_int_not_equal(flags & MSG_CTRUNC, 0);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(next_fd(), next);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(descriptors_arrive_in_their_order),
		TEST(descriptors_beyond_the_limit_are_closed),
		TEST(descriptors_without_room_are_flagged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
