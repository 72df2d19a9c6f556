/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of this process's software NICs, and the read-write lock over what they export. Any
 * thread may call; the lock is held for one copy, one change of a table, or the rest of a step.
 */
#include <unistd.h>

#include "dv/soft/soft.h"

static pthread_rwlock_t world_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static struct dv_device *world;
static uint64_t world_epoch = 1;

void soft_world_read(void)
{
	pthread_rwlock_rdlock(&world_lock);
}

void soft_world_write(void)
{
	pthread_rwlock_wrlock(&world_lock);
}

void soft_world_done(void)
{
	pthread_rwlock_unlock(&world_lock);
}

void soft_world_keep(struct dv_device *nic)
{
	if (!nic->world_held)
		soft_world_read();
	nic->world_held = true;
}

void soft_world_release(struct dv_device *nic)
{
	if (nic->world_held)
		soft_world_done();
	nic->world_held = false;
}

uint64_t soft_world_epoch(void)
{
	return world_epoch;
}

void soft_world_add(struct dv_device *nic)
{
	soft_world_write();
	nic->world_next = world;
	nic->pid = getpid();
	world = nic;
	world_epoch++;
	soft_world_done();
}

void soft_world_remove(struct dv_device *nic)
{
	struct dv_device **at = &world;

	soft_world_write();
	while (*at && *at != nic)
		at = &(*at)->world_next;
	if (*at)
		*at = nic->world_next;
	world_epoch++;
	soft_world_done();
}

/*
 * Returns the NIC of this process with `gid`; ignores NICs that a parent process opened before
 * fork().
 */
struct dv_device *soft_world_find(const uint8_t gid[16])
{
	int pid = getpid();

	for (struct dv_device *nic = world; nic; nic = nic->world_next)
		if (nic->pid == pid && memcmp(nic->gid, gid, sizeof(nic->gid)) == 0)
			return nic;
	return NULL;
}

void soft_qp_hide(struct dv_qp *qp)
{
	soft_world_release(qp->nic);
	soft_world_write();
	dv_guard_shut(&qp->nic->table->qps[qp->qpn % SOFT_QPS_MAX].qpn);
	soft_world_done();
}
