/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stub of libibverbs and mlx5dv for the tests of dv/: it defines every symbol that dv/ uses, so
 * no NIC is needed and the real libraries are not linked. One thread.
 *
 * The stub counts the existing objects, refuses to free an object that another one uses, records
 * the arguments of each call, and makes call number `stub.fail_at` fail.
 */
#ifndef TEST_VERBS_STUB_H
#define TEST_VERBS_STUB_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <infiniband/mlx5dv.h> /* before dv/: dv/mlx5.h */

#include "config/log.h"
#include "dv/ops.h"

#include "dv/error.c"
#include "dv/device.c"
#include "dv/mr.c"
#include "dv/cq.c"
#include "dv/qp.c"
#include "dv/cut.c"

#define STUB_GIDS 8
#define STUB_MODIFIES 8

static struct {
	/* number of calls so far that can fail; number of the call that fails, 0: none fails */
	unsigned calls, fail_at;
	int fail_errno;
	struct { /* number of objects that exist now, by kind */
		int list, context, pd, td, domain, mr, cq, qp;
	} alive;
	/* true: the stub host has no NIC; true: the stub NIC is not a ConnectX */
	bool no_devices, foreign;
	struct ibv_device_attr limits;
	struct ibv_port_attr port;
	struct ibv_gid_entry gids[STUB_GIDS];
	unsigned gid_count;
	/* last handle; those of what another process has registered, one after the other */
	uint32_t handles, orphan, orphan_next;
	uint32_t domain_of_another; /* handle; 0: none */
	unsigned mr_access;
	struct ibv_pd *mr_pd;
	struct ibv_cq_init_attr_ex cq_attr;
	struct mlx5dv_cq_init_attr cq_mlx5_attr;
	struct ibv_qp_init_attr_ex qp_attr;
	struct mlx5dv_qp_init_attr qp_mlx5_attr;
	struct mlx5dv_cq cq_raw;
	struct mlx5dv_qp qp_raw;
	struct {
		struct ibv_qp_attr attr;
		int mask;
	} modify[STUB_MODIFIES];
	unsigned modifies;
	/* ACK time-out that the stub device reports; 0: it reports the requested one */
	uint8_t ack_timeout;
	bool destroy_fails; /* true: ibv_destroy_qp() returns EIO, as for a lost device */
	char log[512];
} stub;

static struct ibv_device stub_device = {.name = "mlx5_0"}, stub_other = {.name = "mlx5_7"};
static struct verbs_context stub_context;
static struct ibv_pd stub_pd, stub_domain;
static struct ibv_td stub_td;
static struct ibv_mr stub_mr = {.lkey = 0x1111, .rkey = 0x2222};
static struct ibv_pd stub_domain_of_another;
static struct ibv_mr stub_orphan; /* the one with the handle stub.orphan */
static struct ibv_cq_ex stub_cq;
static struct ibv_qp stub_qp = {.qp_num = 0x4711};
static uint8_t stub_queue[64 * 64], stub_register[4096];
static __be32 stub_record[2], stub_cq_record[2];

/*
 * Each stub that can fail calls this: counts the call, and returns true when this call must fail.
 */
static bool stub_fails(void)
{
	if (++stub.calls != stub.fail_at)
		return false;
	errno = stub.fail_errno;
	return true;
}

void log_write(struct log_site *site, enum log_level level, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(stub.log, sizeof(stub.log), format, arguments);
	va_end(arguments);
}

/* ---- libibverbs: the device ---------------------------------------------------------------- */

static struct ibv_device *stub_list[] = {&stub_other, &stub_device, NULL};

struct ibv_device **ibv_get_device_list(int *count)
{
	if (stub_fails())
		return NULL;
	stub.alive.list++;
	*count = stub.no_devices ? 0 : 2;
	return stub.no_devices ? stub_list + 2 : stub_list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	assert_true(list == stub_list || list == stub_list + 2);
	stub.alive.list--;
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

bool mlx5dv_is_supported(struct ibv_device *device)
{
	assert_ptr_equal(device, &stub_device);
	return !stub.foreign;
}

static int stub_query_port(
	struct ibv_context *context, uint8_t number, struct ibv_port_attr *port, size_t bytes)
{
	assert_ptr_equal(context, &stub_context.context);
	assert_int_equal(bytes, sizeof(*port));
	assert_true(number >= 1 && number <= stub.limits.phys_port_cnt);
	if (stub_fails())
		return stub.fail_errno;
	*port = stub.port;
	return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t number, struct _compat_ibv_port_attr *port)
{
	fail_msg("dv/ must not call the compatibility entry ibv_query_port()");
	return EINVAL;
}

static struct ibv_td *stub_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	assert_int_equal(attr->comp_mask, 0);
	if (stub_fails())
		return NULL;
	stub_td.context = context;
	stub.alive.td++;
	return &stub_td;
}

static int stub_dealloc_td(struct ibv_td *td)
{
	assert_ptr_equal(td, &stub_td);
	assert_int_equal(stub.alive.domain, 0);
	stub.alive.td--;
	return 0;
}

static struct ibv_pd *stub_alloc_parent_domain(
	struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	assert_ptr_equal(attr->pd, &stub_pd);
	assert_ptr_equal(attr->td, &stub_td);
	assert_int_equal(attr->comp_mask, 0);
	if (stub_fails())
		return NULL;
	stub_domain.context = context;
	stub.alive.domain++;
	return &stub_domain;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	assert_int_equal(stub.alive.list, 1);
	if (stub_fails())
		return NULL;
	memset(&stub_context, 0, sizeof(stub_context));
	stub_context.sz = sizeof(stub_context);
	stub_context.query_port = stub_query_port;
	stub_context.alloc_td = stub_alloc_td;
	stub_context.dealloc_td = stub_dealloc_td;
	stub_context.alloc_parent_domain = stub_alloc_parent_domain;
	stub_context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	stub_context.context.device = device;
	stub.alive.context++;
	return &stub_context.context;
}

int ibv_close_device(struct ibv_context *context)
{
	assert_ptr_equal(context, &stub_context.context);
	stub.alive.context--;
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *limits)
{
	assert_ptr_equal(context, &stub_context.context);
	if (stub_fails())
		return stub.fail_errno;
	*limits = stub.limits;
	return 0;
}

const char *ibv_port_state_str(enum ibv_port_state state)
{
	return state == IBV_PORT_DOWN ? "PORT_DOWN" : "PORT_INIT";
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
	size_t max_entries, uint32_t flags, size_t entry_size)
{
	assert_ptr_equal(context, &stub_context.context);
	assert_int_equal(flags, 0);
	assert_int_equal(entry_size, sizeof(*entries));
	if (stub_fails())
		return -stub.fail_errno;
	assert_true(max_entries >= stub.gid_count);
	memcpy(entries, stub.gids, stub.gid_count * sizeof(*entries));
	return stub.gid_count;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	if (stub_fails())
		return NULL;
	stub_pd.context = context;
	stub.alive.pd++;
	return &stub_pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	if (pd == &stub_domain) {
		if (stub.alive.cq || stub.alive.qp)
			return EBUSY;
		stub.alive.domain--;
		return 0;
	}
	if (pd == &stub_domain_of_another) {
		stub.domain_of_another = 0;
		return 0;
	}
	assert_ptr_equal(pd, &stub_pd);
	assert_int_equal(stub.alive.domain, 0);
	if (stub.alive.mr)
		return EBUSY;
	stub.alive.pd--;
	return 0;
}

/* ---- memory and queues --------------------------------------------------------------------- */

struct ibv_mr *ibv_reg_mr_iova2(
	struct ibv_pd *pd, void *base, size_t length, uint64_t iova, unsigned access)
{
	assert_int_equal(iova, (uintptr_t)base);
	assert_true(length > 0);
	stub.mr_pd = pd;
	stub.mr_access = access;
	if (stub_fails())
		return NULL;
	stub.alive.mr++;
	stub_mr.handle = ++stub.handles;
	return &stub_mr;
}

struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t handle)
{
	assert_ptr_equal(context, &stub_context.context);
	return handle && handle == stub.domain_of_another ? &stub_domain_of_another : NULL;
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
	assert_ptr_equal(pd, &stub_domain_of_another);
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	assert_ptr_equal(pd, &stub_pd);
	if (handle != stub.orphan || stub_fails()) {
		errno = ENOENT;
		return NULL;
	}
	stub_orphan = (struct ibv_mr){.handle = handle, .lkey = 0x3333, .length = 4096};
	return &stub_orphan;
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
	assert_ptr_equal(mr, &stub_orphan);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	assert_true(mr == &stub_mr || mr == &stub_orphan);
	if (stub_fails())
		return stub.fail_errno;
	if (mr == &stub_orphan) {
		stub.orphan = stub.orphan_next;
		stub.orphan_next = 0;
	} else {
		stub.alive.mr--;
	}
	return 0;
}

struct ibv_cq_ex *mlx5dv_create_cq(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr,
	struct mlx5dv_cq_init_attr *mlx5_attr)
{
	assert_ptr_equal(context, &stub_context.context);
	stub.cq_attr = *attr;
	stub.cq_mlx5_attr = *mlx5_attr;
	if (stub_fails())
		return NULL;
	stub.alive.cq++;
	stub_cq.context = context;
	return &stub_cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	assert_ptr_equal(cq, ibv_cq_ex_to_cq(&stub_cq));
	if (stub.alive.qp)
		return EBUSY;
	stub.alive.cq--;
	return 0;
}

struct ibv_qp *mlx5dv_create_qp(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr,
	struct mlx5dv_qp_init_attr *mlx5_attr)
{
	assert_ptr_equal(context, &stub_context.context);
	stub.qp_attr = *attr;
	stub.qp_mlx5_attr = *mlx5_attr;
	if (stub_fails())
		return NULL;
	stub.alive.qp++;
	return &stub_qp;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	assert_ptr_equal(qp, &stub_qp);
	if (stub.destroy_fails)
		return EIO;
	stub.alive.qp--;
	return 0;
}

int mlx5dv_init_obj(struct mlx5dv_obj *object, uint64_t type)
{
	if (stub_fails())
		return stub.fail_errno;
	if (type == MLX5DV_OBJ_CQ) {
		assert_ptr_equal(object->cq.in, ibv_cq_ex_to_cq(&stub_cq));
		*object->cq.out = stub.cq_raw;
	} else {
		assert_int_equal(type, MLX5DV_OBJ_QP);
		assert_ptr_equal(object->qp.in, &stub_qp);
		*object->qp.out = stub.qp_raw;
	}
	return 0;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	assert_ptr_equal(qp, &stub_qp);
	assert_true(stub.modifies < STUB_MODIFIES);
	stub.modify[stub.modifies].attr = *attr;
	stub.modify[stub.modifies].mask = mask;
	stub.modifies++;
	return stub_fails() ? stub.fail_errno : 0;
}

int ibv_query_qp(
	struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	assert_ptr_equal(qp, &stub_qp);
	assert_int_equal(mask, IBV_QP_TIMEOUT);
	if (stub_fails())
		return stub.fail_errno;
	attr->timeout =
		stub.ack_timeout ? stub.ack_timeout : stub.modify[stub.modifies - 1].attr.timeout;
	return 0;
}

/* ---- the default machine ------------------------------------------------------------------ */

static void stub_gid(unsigned at, uint32_t type, const char *text)
{
	stub.gids[at] = (struct ibv_gid_entry){.gid_index = at, .port_num = 1, .gid_type = type};
	assert_int_equal(inet_pton(AF_INET6, text, stub.gids[at].gid.raw), 1);
	if (stub.gid_count <= at)
		stub.gid_count = at + 1;
}

/*
 * Gives the stub a RoCE port like that of a ConnectX: each address is in the GID table as RoCE v1
 * and as v2.
 */
static int stub_setup(void **state)
{
	memset(&stub, 0, sizeof(stub));
	stub.fail_errno = ENOMEM;
	stub.limits = (struct ibv_device_attr){.max_mr_size = UINT64_MAX,
		.max_qp_wr = 32768,
		.max_cqe = 4194303,
		.max_qp_rd_atom = 16,
		.max_sge_rd = 30,
		.max_qp_init_rd_atom = 16,
		.phys_port_cnt = 1};
	stub.port = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = STUB_GIDS,
		.active_width = 2,
		.active_speed = 128,
		.link_layer = IBV_LINK_LAYER_ETHERNET};
	stub_gid(0, IBV_GID_TYPE_ROCE_V1, "fe80::1");
	stub_gid(1, IBV_GID_TYPE_ROCE_V2, "fe80::1");
	stub_gid(2, IBV_GID_TYPE_ROCE_V1, "::ffff:10.0.0.1");
	stub_gid(3, IBV_GID_TYPE_ROCE_V2, "::ffff:10.0.0.1");
	stub.cq_raw = (struct mlx5dv_cq){.buf = stub_queue,
		.dbrec = stub_cq_record,
		.cqe_cnt = 64,
		.cqe_size = 64,
		.cqn = 0x77};
	stub.qp_raw = (struct mlx5dv_qp){.dbrec = stub_record,
		.bf = {stub_register + 0x800, 256},
		.sq = {stub_queue, 64, 64}};
	return 0;
}

/* Checks that all objects of the stub were freed. */
static int stub_teardown(void **state)
{
	static const __typeof__(stub.alive) none;

	return memcmp(&stub.alive, &none, sizeof(none)) ? -1 : 0;
}

/* Creates a memfd that stands in for the device file and is not mapped. The test closes it. */
static inline int stub_device_file(void)
{
	int fd = memfd_create("uverbs0", MFD_CLOEXEC);

	assert_true(fd >= 0 && ftruncate(fd, 4096) == 0);
	stub_context.context.cmd_fd = fd;
	return fd;
}

/*
 * Forgets all objects of the stub: dv_cut() closed the device, so they cannot be freed one by one.
 */
static inline void stub_went_with_the_device(void)
{
	memset(&stub.alive, 0, sizeof(stub.alive));
}

static struct dv_device *stub_open(void)
{
	struct dv_options options = {.name = "mlx5_0", .gid_index = -1, .traffic_class = -1};
	struct dv_device *device = NULL;

	assert_int_equal(dv_verbs_ops.open(&options, &device), 0);
	assert_non_null(device);
	return device;
}

/* Checks that dv_error() contains `words`. */
static inline void error_has(const char *words)
{
	if (!strstr(dv_error(), words))
		fail_msg("\"%s\" does not say \"%s\"", dv_error(), words);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, stub_setup, stub_teardown)

/*
 * Stubs of the event functions: only test_verbs_event.c defines STUB_EVENTS and tests the real
 * ones.
 */
#ifndef STUB_EVENTS
int dv_verbs_event_fd(struct dv_device *device)
{
	return -EOPNOTSUPP;
}

int dv_verbs_event_next(struct dv_device *device, struct dv_event *ret)
{
	return 0;
}
#endif

#endif
