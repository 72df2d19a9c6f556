/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements pair.h: does by hand what the control plane does to connect two rails. The test's
 * thread.
 */
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/rail/pair.h"

#define NIC_SLEEP_NS 20000 /* of the thread that steps NICs, between two looks for work */

static struct dv_device *open_nic(void)
{
	struct dv_options options = {.name = "soft", .gid_index = -1};
	struct dv_device *device;

	if (dv_open(&options, &device))
		fail_msg("%s", dv_error());
	return device;
}

static void add_region(
	struct dv_device *device, void *base, size_t bytes, unsigned access, struct dv_mr *ret_mr)
{
	if (dv_mr_register(device,
		    &(struct dv_memory){
			    .base = base, .length = bytes, .access = access, .memfd = -1},
		    ret_mr))
		fail_msg("%s", dv_error());
}

/* Steps both NICs, as hardware that works by itself, until the pair is closed. */
static void *step_nics(void *argument)
{
	struct pair *p = argument;

	while (!__atomic_load_n(&p->closing, __ATOMIC_RELAXED))
		if (dv_step(p->near) + dv_step(p->far) == 0)
			nanosleep(&(struct timespec){.tv_nsec = NIC_SLEEP_NS}, NULL);
	return NULL;
}

struct pair *pair_open(bool threaded, bool busy)
{
	struct pair *p = calloc(1, sizeof(*p));
	struct world *w = &p->world;
	struct rail_options options = {.index = 0};
	struct rail_region home = {.id = WORLD_REGION, .session = WORLD_SESSION};

	clock_start();
	world_memory(w);
	w->wake = -1;
	p->busy = busy;
	p->near = open_nic();
	p->far = open_nic();
	p->kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	p->control_kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	add_region(p->far, w->pool, WORLD_UNITS * PAGE_UNIT, DV_REMOTE_READ, &p->pool);
	add_region(p->far, w->heads, WORLD_UNITS * 32, DV_REMOTE_READ, &p->heads);
	add_region(p->far, w->shard, WORLD_BUCKETS * 64, DV_REMOTE_READ, &p->shard);
	add_region(p->near, w->home, WORLD_HOME_BYTES, DV_LOCAL_WRITE, &p->home);
	assert_int_equal(dv_cq_create(p->far, 16, &p->far_cq), 0);
	options.device = p->near;
	options.status = w->status;
	options.kick = p->kick;
	options.control_kick = p->control_kick;
	assert_int_equal(rail_open(&options, &w->rail), 0);
	p->threaded = threaded;
	if (threaded) {
		w->rail->device_steps = false;
		assert_int_equal(pthread_create(&p->nics, NULL, step_nics, p), 0);
	}
	home.base = (uintptr_t)w->home;
	home.length = WORLD_HOME_BYTES;
	home.lkey = p->home.lkey;
	world_command(w, (struct rail_command){.kind = RAIL_REGION_ADD, .region = home});
	return p;
}

void pair_start(struct pair *const *pairs, unsigned count)
{
	struct poll_core_options options = {.core = -1, .busy = pairs[0]->busy, .spin_ns = 50000};
	struct rail *rail[RAILS_MAX];

	for (unsigned i = 0; i < count; i++) {
		rail[i] = pairs[i]->world.rail;
		if (i > 0)
			assert_int_equal(dup2(pairs[0]->kick, pairs[i]->kick), pairs[i]->kick);
	}
	assert_int_equal(poll_core_start(&options, rail, count, &pairs[0]->core), 0);
}

void pair_close(struct pair *p)
{
	struct dv_soft_stats stats;

	dv_soft_stats(p->near, &stats);
	if (stats.bad_doorbell || stats.bad_index || stats.bad_qpn || stats.bad_wqe ||
		stats.sq_overruns || stats.cq_overruns || stats.missing_doorbells)
		fail_msg("the software NIC reports a misuse by the rail: %s", stats.reason);
	poll_core_close(p->core);
	if (p->threaded) {
		__atomic_store_n(&p->closing, true, __ATOMIC_RELAXED);
		pthread_join(p->nics, NULL);
	}
	rail_close(p->world.rail);
	dv_cq_destroy(p->far, &p->far_cq);
	dv_mr_deregister(p->far, &p->pool);
	dv_mr_deregister(p->far, &p->heads);
	dv_mr_deregister(p->far, &p->shard);
	dv_mr_deregister(p->near, &p->home);
	dv_close(p->near);
	dv_close(p->far);
	close(p->kick);
	close(p->control_kick);
	world_memory_free(&p->world);
	free(p);
}

void pair_step(struct pair *p)
{
	rail_step(p->world.rail, 0);
	dv_step(p->near);
	dv_step(p->far);
}

void pair_run(struct pair *p, unsigned quiet)
{
	unsigned calm = 0;

	while (calm < quiet) {
		unsigned work = rail_step(p->world.rail, 0);

		work += dv_step(p->near) + dv_step(p->far);
		calm = work ? 0 : calm + 1;
	}
}

static void connect_qps(struct pair *p, struct pair_conn *conn, unsigned i)
{
	struct dv_address near, far;
	struct dv_sq *unused;

	assert_int_equal(dv_qp_create(p->near, rail_cq(p->world.rail), QP_DEPTH, &conn->near[i],
				 &conn->handle.sq[i]),
		0);
	assert_int_equal(dv_qp_create(p->far, &p->far_cq, 1, &conn->far[i], &unused), 0);
	dv_qp_address(conn->near[i], &near);
	dv_qp_address(conn->far[i], &far);
	assert_int_equal(dv_qp_connect(conn->far[i], &near), 0);
	assert_int_equal(dv_qp_connect(conn->near[i], &far), 0);
}

static struct rail_remote remote(const struct dv_mr *mr)
{
	return (struct rail_remote){
		.base = (uintptr_t)mr->base, .length = mr->length, .rkey = mr->rkey};
}

struct pair_conn *pair_conn_new(struct pair *p, uint16_t number, uint32_t ref, unsigned qps)
{
	struct pair_conn *conn = calloc(1, sizeof(*conn));

	conn->handle.peer = number;
	conn->handle.ref = ref;
	conn->handle.qps = qps;
	conn->handle.region[REGION_POOL_0] = remote(&p->pool);
	conn->handle.region[REGION_HEADS_0] = remote(&p->heads);
	conn->handle.region[REGION_SHARD] = remote(&p->shard);
	for (unsigned i = 0; i < qps; i++)
		connect_qps(p, conn, i);
	return conn;
}

void pair_conn_drop(struct pair *p, struct pair_conn *conn)
{
	for (unsigned i = 0; i < conn->handle.qps; i++)
		assert_int_equal(dv_qp_error(conn->near[i]), 0);
	world_command(&p->world, (struct rail_command){.kind = RAIL_CONN_DROP,
					 .peer = conn->handle.peer,
					 .ref = conn->handle.ref,
					 .object = &conn->handle});
}

void pair_conn_free(struct pair_conn *conn)
{
	for (unsigned i = 0; i < conn->handle.qps; i++) {
		dv_qp_destroy(conn->near[i]);
		dv_qp_destroy(conn->far[i]);
	}
	free(conn);
}

void wake_open(struct world *w)
{
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	w->wake = ends[0];
	w->woken = ends[1];
}

void wake_close(struct world *w)
{
	close(w->wake);
	close(w->woken);
}
