/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/cut.c against stubs: when a QP or a device counts as destroyed, and that no function of
 * libibverbs is called on a closed device. One thread; in the last test a second one closes the
 * device.
 */
#include <pthread.h>

#include "tests/unit/dv/test_verbs_pair.h"

static void a_killed_qp_is_destroyed_but_its_hot_handle_stays(void **state)
{
	struct pair p = pair_make();

	/* WQEs are posted and not completed, so the QP is not drained */
	p.sq->pi = 5;
	assert_int_equal(ops->qp_kill(p.qp), 0);
	assert_int_equal(stub.alive.qp, 0);
	assert_int_equal(p.sq->pi, 5);
	assert_int_equal(p.sq->qpn, 0x4711);
	assert_int_equal(ops->qp_kill(p.qp), 0);
	assert_int_equal(ops->qp_error(p.qp), -ENODEV);
	pair_drop(&p);
}

static void a_qp_that_cannot_be_destroyed_can_be_killed_again(void **state)
{
	struct pair p = pair_make();

	stub.destroy_fails = true;
	assert_int_equal(ops->qp_kill(p.qp), -EIO);
	error_has("destroying QP 0x4711 of mlx5_0: Input/output error");
	assert_int_equal(ops->qp_kill(p.qp), -EIO);
	stub.destroy_fails = false;
	assert_int_equal(ops->qp_kill(p.qp), 0);
	pair_drop(&p);
}

/*
 * Creates a pair whose doorbell page can be unmapped, and a device file (*ret_fd) that is not
 * mapped yet.
 */
static struct pair pair_to_cut(int *ret_fd)
{
	uint8_t *page =
		mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct pair p;

	assert_ptr_not_equal(page, MAP_FAILED);
	stub.qp_raw.bf.reg = page + 0x800;
	p = pair_make();
	*ret_fd = stub_device_file();
	return p;
}

static void a_cut_closes_a_device_with_queues_and_memory(void **state)
{
	int fd;
	struct pair p = pair_to_cut(&fd);
	struct dv_address remote = peer_address();
	uint8_t *doorbell = p.sq->bf_reg;
	struct dv_mr mr = {0};
	char memory[64];

	assert_int_equal(ops->mr_register(p.device,
				 &(struct dv_memory){.base = memory,
					 .length = 64,
					 .access = DV_LOCAL_WRITE,
					 .memfd = -1},
				 &mr),
		0);
	stub.destroy_fails = true;
	assert_int_equal(ops->qp_kill(p.qp), -EIO);
	assert_int_equal(ops->cut(p.device), 0);
	assert_int_equal(stub.alive.context, 0);
	/* -1 shows that the doorbell page is unmapped */
	assert_int_equal(msync(doorbell - 0x800, 4096, MS_ASYNC), -1);
	close(fd);
	assert_int_equal(ops->cut(p.device), 0);
	/*
	 * None of the calls below uses libibverbs: the stub would count the call or make it fail.
	 */
	stub.calls = 0;
	assert_int_equal(ops->qp_connect(p.qp, &remote), -ENODEV);
	assert_int_equal(ops->qp_error(p.qp), -ENODEV);
	assert_int_equal(ops->qp_kill(p.qp), 0);
	assert_int_equal(ops->mr_deregister(p.device, &mr), 0);
	assert_int_equal(ops->mr_register(p.device,
				 &(struct dv_memory){.base = memory,
					 .length = 64,
					 .access = DV_LOCAL_WRITE,
					 .memfd = -1},
				 &mr),
		0);
	assert_int_equal(ops->mr_deregister(p.device, &mr), 0);
	assert_int_equal(stub.calls, 0);
	pair_drop(&p);
	stub_went_with_the_device();
}

static int registers(struct pair *p, void *memory, struct dv_mr *ret_mr)
{
	return ops->mr_register(p->device,
		&(struct dv_memory){
			.base = memory, .length = 64, .access = DV_LOCAL_WRITE, .memfd = -1},
		ret_mr);
}

/* A device that was cut has as many lives as it is opened anew; each call of one may fail. */
static void a_device_is_opened_anew_or_stays_as_after_the_cut(void **state)
{
	struct dv_mr before = {0}, between = {0}, after = {0};
	struct pair p;
	char memory[64];
	int fd, rc;

	p = pair_to_cut(&fd);
	assert_int_equal(ops->reopen(p.device), 0); /* it is open */
	assert_int_equal(registers(&p, memory, &before), 0);
	assert_int_equal(ops->cut(p.device), 0);
	close(fd);
	ops->qp_destroy(p.qp);
	ops->cq_destroy(p.device, &p.cq);
	stub_went_with_the_device();
	assert_int_equal(registers(&p, memory, &between), 0);
	stub.no_devices = true;
	assert_int_equal(ops->reopen(p.device), -ENODEV);
	error_has("there is no NIC mlx5_0 here");
	stub.no_devices = false;
	stub.fail_errno = EIO;
	for (stub.fail_at = 1;; stub.fail_at++) {
		stub.calls = 0;
		rc = ops->reopen(p.device);
		if (rc == 0)
			break;
		assert_int_equal(stub.alive.context, 0);
		assert_int_equal(ops->port_look(p.device), -ENODEV);
		assert_false(ops->mr_stale(p.device, &before));
	}
	assert_true(stub.fail_at > 5);
	stub.fail_at = 0;
	assert_int_equal(ops->port_look(p.device), 0);
	assert_true(ops->mr_stale(p.device, &before) && ops->mr_stale(p.device, &between));
	assert_int_equal(registers(&p, memory, &after), 0);
	assert_false(ops->mr_stale(p.device, &after));
	/* libibverbs is not asked to free what went with the closed device */
	assert_int_equal(ops->mr_deregister(p.device, &before), 0);
	assert_int_equal(ops->mr_deregister(p.device, &between), 0);
	assert_int_equal(stub.alive.mr, 1);
	assert_int_equal(ops->mr_deregister(p.device, &after), 0);
	assert_int_equal(stub.alive.mr, 0);
	ops->close(p.device);
}

static void a_cut_fails_while_a_page_of_the_device_is_mapped(void **state)
{
	int fd;
	struct pair p = pair_to_cut(&fd);
	void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);

	assert_ptr_not_equal(page, MAP_FAILED);
	assert_int_equal(ops->cut(p.device), -EBUSY);
	error_has("a page of it is still mapped");
	assert_int_equal(ops->cut(p.device), -EBUSY);
	/* The NIC may still write, because dv_cut() failed. */
	assert_int_equal(ops->qp_kill(p.qp), -EBUSY);
	munmap(page, 4096);
	close(fd);
	p.qp->qp = NULL; /* marks the QP as killed, so that pair_drop() frees only its handle */
	pair_drop(&p);
	stub_went_with_the_device();
}

static void *cut(void *device)
{
	return (void *)(intptr_t)ops->cut(device);
}

/*
 * As if threads registered one MR after another, so that one of them always holds the read lock:
 * while dv_cut() waits for the write lock, dv_verbs_enter() must fail.
 */
static void overlapping_calls_do_not_block_a_cut(void **state)
{
	int fd;
	struct pair p = pair_to_cut(&fd);
	pthread_t cutter;
	void *rc;

	alarm(20); /* the signal ends the loop below if dv_cut() never gets the lock */
	assert_true(dv_verbs_enter(p.device));
	assert_int_equal(pthread_create(&cutter, NULL, cut, p.device), 0);
	while (dv_verbs_enter(p.device))
		dv_verbs_leave(p.device);
	/* the device is not closed, because this thread holds the read lock */
	assert_int_equal(stub.alive.context, 1);
	dv_verbs_leave(p.device);
	pthread_join(cutter, &rc);
	alarm(0);
	assert_null(rc);
	assert_int_equal(stub.alive.context, 0);
	close(fd);
	pair_drop(&p);
	stub_went_with_the_device();
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(a_killed_qp_is_destroyed_but_its_hot_handle_stays),
		TEST(a_qp_that_cannot_be_destroyed_can_be_killed_again),
		TEST(a_cut_closes_a_device_with_queues_and_memory),
		TEST(a_device_is_opened_anew_or_stays_as_after_the_cut),
		TEST(a_cut_fails_while_a_page_of_the_device_is_mapped),
		TEST(overlapping_calls_do_not_block_a_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
