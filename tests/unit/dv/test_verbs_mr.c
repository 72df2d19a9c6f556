/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests dv/mr.c against stubs: the requested access rights, and error texts that name the limit
 * that was hit. One thread.
 */
#include <sys/resource.h>

#include "tests/unit/dv/test_verbs_stub.h"

static const struct dv_ops *ops = &dv_verbs_ops;
static char memory[8192];

static void a_region_gets_the_fewest_access_rights(void **state)
{
	static const struct {
		unsigned access, flags;
	} rows[] = {
		{0, 0},
		{DV_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE},
		{DV_REMOTE_READ, IBV_ACCESS_REMOTE_READ},
		{DV_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE},
		{DV_LOCAL_WRITE | DV_RELAXED_ORDERING,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING},
	};
	struct dv_device *device = stub_open();

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct dv_mr mr;

		assert_int_equal(ops->mr_register(device,
					 &(struct dv_memory){.base = memory,
						 .length = sizeof(memory),
						 .access = rows[i].access,
						 .memfd = -1},
					 &mr),
			0);
		assert_int_equal(stub.mr_access, rows[i].flags);
		assert_ptr_equal(stub.mr_pd, &stub_pd);
		assert_ptr_equal(mr.base, memory);
		assert_int_equal(mr.length, sizeof(memory));
		assert_int_equal(mr.lkey, 0x1111);
		assert_int_equal(mr.rkey, 0x2222);
		assert_int_equal(ops->mr_deregister(device, &mr), 0);
		assert_null(mr.handle);
		assert_int_equal(ops->mr_deregister(device, &mr), -EINVAL);
		error_has("it is not registered");
	}
	ops->close(device);
}

static void a_refused_region_has_an_explanation(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_mr mr = {.lkey = 42};
	struct rlimit old, small, large;

	assert_int_equal(ops->mr_register(device,
				 &(struct dv_memory){.base = NULL, .length = 1, .memfd = -1}, &mr),
		-EINVAL);
	assert_int_equal(
		ops->mr_register(
			device, &(struct dv_memory){.base = memory, .length = 0, .memfd = -1}, &mr),
		-EINVAL);
	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 1, .access = 16, .memfd = -1},
			&mr),
		-EINVAL);
	device->mr_bytes_max = 4096;
	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 4097, .memfd = -1}, &mr),
		-E2BIG);
	error_has("max_mr_size");

	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &old), 0);
	small = (struct rlimit){65536, old.rlim_max};
	if (setrlimit(RLIMIT_MEMLOCK, &small) == 0) {
		stub.fail_at = stub.calls + 1;
		assert_int_equal(
			ops->mr_register(device,
				&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1},
				&mr),
			-ENOMEM);
		error_has("RLIMIT_MEMLOCK is 64 KiB. Raise it: ulimit -l unlimited");
	}
	large = (struct rlimit){RLIM_INFINITY, old.rlim_max};
	if (setrlimit(RLIMIT_MEMLOCK, &large) == 0) {
		stub.fail_at = stub.calls + 1;
		assert_int_equal(
			ops->mr_register(device,
				&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1},
				&mr),
			-ENOMEM);
		error_has("Not RLIMIT_MEMLOCK");
	}
	setrlimit(RLIMIT_MEMLOCK, &old);
	stub.fail_at = stub.calls + 1;
	stub.fail_errno = EFAULT;
	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1}, &mr),
		-EFAULT);
	error_has("not mapped, is read-only");
	assert_int_equal(mr.lkey, 42); /* the call failed and left its outputs unchanged */
	ops->close(device);
}

static void a_region_that_stays_registered_keeps_its_handle(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_mr mr;

	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1}, &mr),
		0);
	stub.fail_at = stub.calls + 1;
	stub.fail_errno = EBUSY;
	assert_int_equal(ops->mr_deregister(device, &mr), -EBUSY);
	assert_ptr_equal(mr.handle, &stub_mr);
	assert_int_equal(ops->mr_deregister(device, &mr), 0);
	ops->close(device);
}

static int import(struct dv_device *device, uint32_t handle, uint32_t lkey, size_t bytes,
	struct dv_mr *ret_mr)
{
	return ops->mr_import(
		device, &(struct dv_memory){.base = memory, .length = bytes}, handle, lkey, ret_mr);
}

static void a_registration_of_another_process_is_taken_over_once(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_mr own, mr = {0}, other;

	assert_int_equal(
		ops->mr_register(device,
			&(struct dv_memory){.base = memory, .length = 4096, .memfd = -1}, &own),
		0);
	stub.orphan = stub.handles;
	assert_int_equal(import(device, stub.orphan, 0x3333, 4096, &mr), -EPERM);
	error_has("is not one of the process");
	stub.orphan = 4097; /* in another page of the table */
	assert_int_equal(import(device, 4097, 0x3334, 4096, &mr), -EPERM);
	assert_int_equal(import(device, 4097, 0x3333, 4095, &mr), -EPERM);
	error_has("has another key, length or address");
	assert_int_equal(import(device, 4098, 0x3333, 4096, &mr), -ENOENT);
	assert_int_equal(import(device, UINT32_MAX, 0x3333, 4096, &mr), -EPERM);
	assert_int_equal(import(device, 4097, 0x3333, 4096, &mr), 0);
	assert_int_equal(mr.lkey, 0x3333);
	assert_int_equal(import(device, 4097, 0x3333, 4096, &other), -EPERM);
	assert_int_equal(ops->mr_sweep(device), 0);
	assert_int_equal(ops->mr_deregister(device, &mr), 0);
	assert_int_equal(stub.orphan, 0);
	assert_int_equal(ops->mr_deregister(device, &own), 0);
	ops->close(device);
}

static void what_was_not_taken_over_is_deregistered(void **state)
{
	struct dv_device *device = stub_open();

	stub.orphan = 300;
	assert_int_equal(ops->mr_sweep(device), 1);
	assert_int_equal(stub.orphan, 0);
	/* far beyond those in use, behind another one */
	stub.orphan = 15000;
	stub.orphan_next = 30000;
	assert_int_equal(ops->mr_sweep(device), 2);
	ops->close(device);
}

static void memory_is_not_taken_over_while_a_process_has_a_domain_of_its_own(void **state)
{
	struct dv_device *device = stub_open();
	struct dv_mr mr = {0};
	uint32_t domain;
	int fd;

	stub.domain_of_another = 5; /* made before the device was lent: libmlx5's */
	assert_int_equal(ops->lend(device, &fd, &domain), 0);
	close(fd);
	stub.orphan = 300;
	assert_int_equal(import(device, 300, 0x3333, 4096, &mr), 0);
	assert_int_equal(ops->mr_deregister(device, &mr), 0);
	stub.domain_of_another = 2000;
	assert_int_equal(ops->lend(device, &fd, &domain), 0);
	close(fd);
	stub.orphan = 301;
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(import(device, 301, 0x3333, 4096, &mr), -EAGAIN);
		error_has("has made a domain");
	}
	assert_int_equal(ops->mr_sweep(device), 1);
	assert_int_equal(stub.domain_of_another, 0);
	stub.orphan = 302;
	assert_int_equal(import(device, 302, 0x3333, 4096, &mr), 0);
	assert_int_equal(ops->mr_deregister(device, &mr), 0);
	ops->close(device);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(a_region_gets_the_fewest_access_rights),
		TEST(a_refused_region_has_an_explanation),
		TEST(a_region_that_stays_registered_keeps_its_handle),
		TEST(a_registration_of_another_process_is_taken_over_once),
		TEST(what_was_not_taken_over_is_deregistered),
		TEST(memory_is_not_taken_over_while_a_process_has_a_domain_of_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
