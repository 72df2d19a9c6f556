/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory regions of the software NIC: the key table and what peers may access of it. Setup callers
 * register and deregister; the checks of keys, bounds and rights are in check.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dv/soft/soft.h"

#define ACCESS_ALL (DV_LOCAL_WRITE | DV_REMOTE_READ | DV_REMOTE_WRITE | DV_RELAXED_ORDERING)
#define ACCESS_REMOTE (DV_REMOTE_READ | DV_REMOTE_WRITE)

static struct soft_file *find_file(struct dv_device *nic, const struct stat *status)
{
	for (unsigned i = 0; i < nic->file_count; i++)
		if (nic->files[i].device == status->st_dev && nic->files[i].inode == status->st_ino)
			return &nic->files[i];
	return NULL;
}

/*
 * Takes a reference to the memfd's entry, or creates it: one entry per file, so that peers map it
 * once.
 */
static int take_file(struct dv_device *nic, int memfd, uint64_t end, uint32_t *ret_id)
{
	struct soft_file *file, *grown;
	struct stat status;
	int fd;

	if (fstat(memfd, &status))
		return -errno;
	if (end > (uint64_t)status.st_size)
		return -ERANGE;
	file = find_file(nic, &status);
	if (file) {
		file->references++;
		*ret_id = file->id;
		return 0;
	}
	grown = realloc(nic->files, (nic->file_count + 1) * sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	nic->files = grown;
	fd = fcntl(memfd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0)
		return -errno;
	nic->files[nic->file_count++] = (struct soft_file){.id = ++nic->file_last,
		.references = 1,
		.fd = fd,
		.device = status.st_dev,
		.inode = status.st_ino};
	*ret_id = nic->file_last;
	return 0;
}

/*
 * Queues the file's id, which peers are told to unmap. If memory for the queue is short, they keep
 * the file mapped.
 */
static void note_drop(struct dv_device *nic, uint32_t id)
{
	uint32_t *grown;

	if (nic->tcp)
		return;
	grown = realloc(nic->drops, (nic->drop_count + 1) * sizeof(*grown));
	if (!grown)
		return;
	nic->drops = grown;
	nic->drops[nic->drop_count++] = id;
	soft_link_wake(nic);
}

static void drop_file(struct dv_device *nic, uint32_t id)
{
	for (unsigned i = 0; i < nic->file_count; i++) {
		struct soft_file *file = &nic->files[i];

		if (file->id != id || --file->references)
			continue;
		close(file->fd);
		*file = nic->files[--nic->file_count];
		note_drop(nic, id);
		return;
	}
}

/*
 * Takes a free MR slot. The key differs from the slot's last one, so that a stale key is refused,
 * and keys begin at random ones: those of the NIC's life before are no others' now.
 */
static struct soft_mr *take_mr(struct dv_device *nic)
{
	for (uint32_t tries = 0; tries < SOFT_MRS_MAX; tries++) {
		uint32_t slot = nic->mr_slot_last = (nic->mr_slot_last + 1) % SOFT_MRS_MAX;
		struct soft_mr *mr = &nic->mrs[slot];

		if (slot < SOFT_MR_FIRST || mr->key)
			continue;
		mr->key = slot << 8 | (uint8_t)(++mr->generation + nic->mr_first);
		return mr;
	}
	return NULL;
}

static void show(struct dv_device *nic, const struct soft_mr *mr, uint64_t offset)
{
	struct soft_export_mr *entry = &nic->table->mrs[mr->key >> 8];

	soft_world_write();
	entry->access = mr->access;
	entry->base = (uintptr_t)mr->base;
	entry->length = mr->length;
	entry->offset = offset;
	entry->file = mr->file;
	dv_guard_open(&entry->rkey, mr->key);
	soft_world_done();
}

static int check(void *base, size_t length, unsigned access, uint64_t offset)
{
	if (!base || length == 0 || length > 1ull << 46 || (access & ~(unsigned)ACCESS_ALL))
		return -EINVAL;
	if ((uintptr_t)base + length < (uintptr_t)base || offset + length < offset)
		return -ERANGE;
	return 0;
}

int soft_mr_register(struct dv_device *nic, const struct dv_memory *memory, struct dv_mr *ret_mr)
{
	struct soft_mr *mr = NULL;
	size_t length = memory->length;
	unsigned access = memory->access;
	uint64_t offset = memory->memfd_offset;
	uint32_t file = 0;
	int rc = check(memory->base, length, access, offset);

	if (rc)
		return dv_fail(rc, "%s: registering %zu bytes at %p with access 0x%x: %m",
			nic->name, length, memory->base, access);
	soft_model_register(nic, length);
	soft_lock(nic);
	if (memory->memfd >= 0 && (access & ACCESS_REMOTE))
		rc = take_file(nic, memory->memfd, offset + length, &file);
	if (!rc) {
		mr = take_mr(nic);
		rc = mr ? 0 : -ENOSPC;
	}
	if (!rc) {
		mr->base = memory->base;
		mr->length = length;
		mr->access = access;
		mr->file = file;
		if (access & ACCESS_REMOTE)
			show(nic, mr, offset);
		*ret_mr = (struct dv_mr){.base = memory->base,
			.length = length,
			.lkey = mr->key,
			.rkey = mr->key,
			.handle = mr};
	} else if (file) {
		drop_file(nic, file);
	}
	soft_unlock(nic);
	if (rc)
		return dv_fail(rc, "%s: registering %zu bytes at %p, file %d from %llu on: %m",
			nic->name, length, memory->base, memory->memfd, (unsigned long long)offset);
	return 0;
}

/*
 * Fails the WQEs in flight that use the region, so the service thread no longer writes payload into
 * it.
 */
static void stop_users(struct dv_device *nic, uint32_t key)
{
	for (unsigned i = 0; i < nic->qp_count; i++) {
		struct dv_qp *qp = nic->qps[i];

		for (uint32_t n = qp->head; n != qp->tail; n++) {
			struct soft_op *op = soft_op(qp, n);
			bool uses = false;

			for (unsigned s = 0; s < op->sges; s++)
				uses |= op->sge[s].lkey == key;
			if (!uses || op->state != OP_SENT)
				continue;
			soft_tcp_cancel(qp, op);
			soft_op_fail(op, DV_SYNDROME_LOCAL_PROTECTION, 0);
		}
	}
}

int soft_mr_deregister(struct dv_device *nic, struct dv_mr *handle)
{
	struct soft_mr *mr = handle->handle;

	soft_lock(nic);
	if (!mr || !mr->key || mr->key != handle->lkey) {
		soft_unlock(nic);
		return dv_fail(-EINVAL, "%s: deregistering %zu bytes at %p: not registered: %m",
			nic->name, handle->length, handle->base);
	}
	if (mr->access & ACCESS_REMOTE) {
		/* waits until the other NICs of this process have finished their copies */
		soft_world_write();
		dv_guard_shut(&nic->table->mrs[mr->key >> 8].rkey);
		soft_world_done();
	}
	stop_users(nic, mr->key);
	if (mr->file)
		drop_file(nic, mr->file);
	mr->key = 0;
	mr->foreign = NULL;
	soft_unlock(nic);
	handle->handle = NULL;
	return 0;
}
