/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that another process registers with an imported device and domain: the NIC of this process
 * writes into it, in bounds and while it is registered, also when that process has been killed. The
 * other process is this program, started with the number of the socket over which it gets
 * descriptors.
 */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "config/passed_fds.h"
#include "tests/verbs/side.h"

struct order {
	uint32_t pd, access;
	uint8_t expect; /* not 0: the memory has these bytes */
};

struct answer {
	int error;
	uint32_t handle, lkey;
	uint64_t at;
};

static struct side s;
static struct {
	pid_t pid;
	int socket;
} child;
static struct answer theirs;

/* ---- the other process ----------------------------------------------------------------------- */

static int take_order(int from, struct order *ret, int *ret_fd)
{
	_Alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(1)];
	struct iovec iov = {ret, sizeof(*ret)};
	struct msghdr message = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};

	if (recvmsg(from, &message, 0) != sizeof(*ret))
		return -1;
	*ret_fd = -1;
	(void)fds_take(&message, ret_fd, 1);
	return 0;
}

static struct answer registered(const struct order *order, int fd, uint8_t *memory)
{
	struct ibv_context *context = ibv_import_device(fd);
	struct ibv_pd *pd = context ? ibv_import_pd(context, order->pd) : NULL;
	struct ibv_mr *mr = pd ? ibv_reg_mr(pd, memory, SIDE_BYTES, (int)order->access) : NULL;
	struct answer answer = {.error = mr ? 0 : errno, .at = (uintptr_t)memory};

	if (mr) {
		answer.handle = mr->handle;
		answer.lkey = mr->lkey;
		ibv_unimport_mr(mr); /* frees the struct; the region stays registered */
	}
	if (pd)
		ibv_unimport_pd(pd);
	if (context)
		ibv_close_device(context);
	return answer;
}

static void be_the_other(int socket)
{
	uint8_t *memory =
		mmap(NULL, SIDE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct order order;
	int fd;

	while (!take_order(socket, &order, &fd)) {
		struct answer answer = {0};

		if (order.pd)
			answer = registered(&order, fd, memory);
		for (unsigned i = 0; order.expect && i < SIDE_BYTES / 2; i++)
			if (memory[SIDE_BYTES / 4 + i] != order.expect)
				answer.error = EBADMSG;
		if (send(socket, &answer, sizeof(answer), 0) < 0)
			break;
	}
	_exit(0);
}

/* ---- this process ---------------------------------------------------------------------------- */

static struct answer ask(const struct order *order, int fd)
{
	_Alignas(struct cmsghdr) char control[PASSED_FDS_BYTES(1)];
	struct iovec iov = {(void *)(uintptr_t)order, sizeof(*order)};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	struct answer answer;

	fds_attach(&message, control, &fd, fd >= 0);
	assert_int_equal(sendmsg(child.socket, &message, 0), sizeof(*order));
	assert_int_equal(recv(child.socket, &answer, sizeof(answer), 0), sizeof(answer));
	return answer;
}

static int setup(void **state)
{
	char number[16];
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	snprintf(number, sizeof(number), "%d", pair[1]);
	child.pid = fork();
	if (!child.pid) {
		close(pair[0]);
		execl("/proc/self/exe", "other", number, NULL);
		_exit(127);
	}
	close(pair[1]);
	child.socket = pair[0];
	side_open(&s);
	theirs = ask(&(struct order){s.near->pd->handle, IBV_ACCESS_LOCAL_WRITE, 0},
		s.near->context->cmd_fd);
	assert_int_equal(theirs.error, 0);
	return 0;
}

static void end_child(void)
{
	if (child.pid) {
		kill(child.pid, SIGKILL);
		assert_int_equal(waitpid(child.pid, NULL, 0), child.pid);
		close(child.socket);
	}
	child.pid = 0;
}

static int teardown(void **state)
{
	struct ibv_mr *mr = ibv_import_mr(s.near->pd, theirs.handle);

	if (mr)
		assert_int_equal(ibv_dereg_mr(mr), 0);
	end_child();
	side_close(&s);
	/* no copy of the descriptor is left, so the device has no context */
	assert_null(soft_connectx_nic(0));
	return 0;
}

static int read_into(uint32_t lkey, uint64_t at, uint32_t bytes)
{
	struct dv_sge sge = {at, bytes, lkey};

	dv_post(s.sq, DV_READ, (uintptr_t)s.remote, s.remote_mr.rkey, &sge, 1, DV_CE_ALWAYS);
	dv_ring(s.sq);
	return side_reap(&s);
}

static void the_nic_writes_into_memory_of_the_other_process(void **state)
{
	memset(s.remote, 0x5a, SIDE_BYTES);
	assert_int_equal(read_into(theirs.lkey, theirs.at + SIDE_BYTES / 4, SIDE_BYTES / 2), 0);
	assert_int_equal(ask(&(struct order){.expect = 0x5a}, -1).error, 0);
	memset(s.remote, 0xa5, SIDE_BYTES);
	assert_int_equal(ask(&(struct order){.expect = 0xa5}, -1).error, EBADMSG);
	assert_int_equal(read_into(theirs.lkey, theirs.at + SIDE_BYTES / 2, SIDE_BYTES / 2 + 1),
		DV_SYNDROME_LOCAL_PROTECTION);
}

static void a_dead_process_loses_the_bytes_and_its_region_stays(void **state)
{
	struct ibv_mr *mr;
	int handle = (int)theirs.handle;

	end_child();
	assert_int_equal(read_into(theirs.lkey, theirs.at, SIDE_BYTES), 0);
	mr = ibv_import_mr(s.near->pd, (uint32_t)handle);
	assert_non_null(mr);
	assert_int_equal(mr->lkey, theirs.lkey);
	assert_int_equal(mr->length, SIDE_BYTES);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_null(ibv_import_mr(s.near->pd, (uint32_t)handle));
	assert_int_equal(
		read_into(theirs.lkey, theirs.at, SIDE_BYTES), DV_SYNDROME_LOCAL_PROTECTION);
}

static void a_key_of_another_domain_is_refused(void **state)
{
	struct ibv_pd *pd = ibv_alloc_pd(s.near->context);
	struct answer other = ask(
		&(struct order){pd->handle, IBV_ACCESS_LOCAL_WRITE, 0}, s.near->context->cmd_fd);
	struct ibv_mr *mr = ibv_import_mr(s.near->pd, other.handle);

	assert_int_equal(other.error, 0);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
	assert_int_equal(read_into(other.lkey, other.at, SIDE_BYTES), DV_SYNDROME_LOCAL_PROTECTION);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dealloc_pd(pd), 0);
}

static void what_a_kernel_refuses_is_refused(void **state)
{
	assert_int_equal(ask(&(struct order){s.near->pd->handle, IBV_ACCESS_REMOTE_WRITE, 0},
				 s.near->context->cmd_fd)
				 .error,
		EINVAL);
	assert_int_equal(
		ask(&(struct order){9999, IBV_ACCESS_LOCAL_WRITE, 0}, s.near->context->cmd_fd)
			.error,
		ENOENT);
	assert_int_equal(
		ask(&(struct order){1, IBV_ACCESS_LOCAL_WRITE, 0}, child.socket).error, EINVAL);
}

/* As the kernel keeps the objects of a file for the last descriptor. */
static void a_copy_of_the_descriptor_keeps_the_objects(void **state)
{
	int copy = dup(s.near->context->cmd_fd);

	end_child();
	assert_int_equal(ibv_dereg_mr(ibv_import_mr(s.near->pd, theirs.handle)), 0);
	side_close(&s);
	assert_non_null(soft_connectx_nic(0));
	close(copy);
	for (unsigned i = 0; soft_connectx_nic(0); i++) {
		assert_true(i < 100000);
		usleep(100);
	}
	side_open(&s);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(the_nic_writes_into_memory_of_the_other_process),
		CASE(a_dead_process_loses_the_bytes_and_its_region_stays),
		CASE(a_key_of_another_domain_is_refused),
		CASE(what_a_kernel_refuses_is_refused),
		CASE(a_copy_of_the_descriptor_keeps_the_objects),
	};

	if (argc > 1)
		be_the_other(atoi(argv[1]));
	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
