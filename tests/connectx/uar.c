/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Doorbell pages (UARs): memory that the program maps through its descriptor and that the NIC's
 * thread polls. A page has two BlueFlame registers, at 0x800 and 0xa00, each of two halves that the
 * writer alternates, and the CQ doorbell at 0x20.
 *
 * A WQE is executed only after its doorbell was written (dv/soft/wqe.c), so each doorbell taken
 * here is forwarded to its QP. QPs share a register, and a second doorbell may replace the first
 * before it is read; a ConnectX would receive both. So when a register was written, the other QPs
 * that ring it also get a doorbell if their record has moved. Program threads create pages, under
 * uv_lock and uars_lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/connectx/uverbs.h"

#define CQ_DOORBELL 0x20u

/* List of all doorbell pages of the process. It changes under uv_lock and uars_lock. */
static struct uv_uar *uars;
/* innermost lock: its holder takes no other one */
static pthread_mutex_t uars_lock = PTHREAD_MUTEX_INITIALIZER;

int uv_uar_alloc(struct uv_context *context, struct uv_uar **ret_uar)
{
	struct uv_uar *uar = calloc(1, sizeof(*uar));
	void *at = MAP_FAILED;

	if (!uar)
		return ENOMEM;
	uar->fd = memfd_create("soft-connectx-uar", MFD_CLOEXEC);
	if (uar->fd >= 0 && ftruncate(uar->fd, SOFT_UAR_BYTES) == 0)
		at = mmap(NULL, SOFT_UAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, uar->fd, 0);
	if (at == MAP_FAILED) {
		if (uar->fd >= 0)
			close(uar->fd);
		free(uar);
		return ENOMEM;
	}
	uar->at = at;
	uar->page = ++context->page_last;
	uv_object_add(context, &uar->object, UV_UAR);
	pthread_mutex_lock(&uars_lock);
	uar->uar_next = uars;
	uars = uar;
	pthread_mutex_unlock(&uars_lock);
	*ret_uar = uar;
	return 0;
}

/* Frees a doorbell page. libmlx5 has unmapped it before, so the NIC's mapping is the last one. */
void uv_uar_free(struct uv_uar *uar)
{
	struct uv_uar **at = &uars;

	pthread_mutex_lock(&uars_lock);
	while (*at && *at != uar)
		at = &(*at)->uar_next;
	if (*at)
		*at = uar->uar_next;
	pthread_mutex_unlock(&uars_lock);
	uv_object_remove(&uar->object);
	munmap(uar->at, SOFT_UAR_BYTES);
	close(uar->fd);
	free(uar);
}

/*
 * Maps a doorbell page for the program. It requests only write access, but the NIC also reads when
 * it takes a doorbell.
 */
void *uv_uar_map(struct uv_context *context, uint64_t offset, size_t length)
{
	void *at = MAP_FAILED;
	int fd = -1;

	pthread_mutex_lock(&uv_lock);
	for (struct uv_object *object = context->objects; object; object = object->next) {
		struct uv_uar *uar = (void *)object;

		if (object->kind == UV_UAR && uar->page == offset / SOFT_UAR_BYTES)
			fd = uar->fd;
	}
	if (fd >= 0 && length <= SOFT_UAR_BYTES)
		at = mmap(NULL, SOFT_UAR_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	else
		errno = EINVAL;
	pthread_mutex_unlock(&uv_lock);
	return at;
}

/* ---- taking doorbells: the NIC's thread, under nic->lock ------------------------------------- */

static void hand_over(struct dv_qp *qp, unsigned half, uint64_t doorbell)
{
	dv_mmio_store64(qp->bell + half * SOFT_BELLS_BLOCK, doorbell);
}

/* Returns the doorbell that the QP would have written if its last WQE had one WQEBB. */
static uint64_t made_up(const struct dv_qp *qp, uint32_t record)
{
	uint32_t words[2] = {htobe32((record - 1) << 8), htobe32(qp->qpn << 8)};
	uint64_t doorbell;

	memcpy(&doorbell, words, sizeof(doorbell));
	return doorbell;
}

static void ring_sharers(
	struct dv_device *nic, const struct uv_uar *uar, int bfreg, const struct dv_qp *rung)
{
	for (unsigned i = 0; i < nic->qp_count; i++) {
		struct dv_qp *qp = nic->qps[i];
		const struct uv_qp *uq = qp->foreign;
		uint32_t record;

		if (!uq || qp == rung || uq->page != uar->page ||
			uq->object.context != uar->object.context ||
			(uq->bfreg >= 0 && uq->bfreg != bfreg))
			continue;
		record = dv_device_load_record(&qp->record[DV_DBREC_SEND]);
		if ((uint16_t)record != (uint16_t)qp->rung)
			hand_over(qp, 0, made_up(qp, record));
	}
}

static void take(struct dv_device *nic, const struct uv_uar *uar, int bfreg, unsigned half,
	uint64_t doorbell)
{
	struct dv_qp *qp;
	uint32_t words[2];
	struct uv_qp *uq;

	memcpy(words, &doorbell, sizeof(words));
	qp = soft_qp_find(nic, be32toh(words[1]) >> 8);
	uq = qp ? qp->foreign : NULL;
	if (!uq || uq->page != uar->page || uq->object.context != uar->object.context) {
		soft_blame(nic, &nic->stats.bad_doorbell,
			"a doorbell in page %u names queue pair 0x%x, which does not use this page",
			uar->page, be32toh(words[1]) >> 8);
		qp = NULL;
	} else {
		uq->bfreg = bfreg;
		hand_over(qp, half, doorbell);
	}
	ring_sharers(nic, uar, bfreg, qp);
}

/* Scans the doorbell pages. Returns the number of doorbells taken. */
unsigned uv_uar_scan(struct dv_device *nic)
{
	const struct uv_device *device = uv_device_of(nic);
	unsigned work = 0;

	pthread_mutex_lock(&uars_lock);
	for (struct uv_uar *uar = uars; uar; uar = uar->uar_next) {
		if (uar->object.context->device != device || uv_context_dead(uar->object.context))
			continue;
		for (unsigned n = 0; n < 4; n++) {
			size_t offset = SOFT_BF_REG + (size_t)n * SOFT_BF_SIZE;
			volatile uint64_t *reg = (void *)(uar->at + offset);
			uint64_t doorbell;

			if (!dv_device_peek_doorbell(reg))
				continue;
			doorbell = dv_device_take_doorbell(reg);
			take(nic, uar, (int)(n / 2), n % 2, doorbell);
			work++;
		}
	}
	pthread_mutex_unlock(&uars_lock);
	return work;
}

bool uv_uar_armed(struct dv_device *nic)
{
	const struct uv_device *device = uv_device_of(nic);
	bool armed = false;

	pthread_mutex_lock(&uars_lock);
	for (struct uv_uar *uar = uars; uar; uar = uar->uar_next) {
		volatile uint64_t *reg = (void *)(uar->at + CQ_DOORBELL);

		if (uar->object.context->device == device && dv_device_peek_doorbell(reg))
			armed |= dv_device_take_doorbell(reg) != 0;
	}
	pthread_mutex_unlock(&uars_lock);
	return armed;
}

/*
 * Sends an asynchronous event to each context of the NIC once: each context has exactly one page
 * with number 1.
 */
void uv_uar_tell(struct dv_device *nic, uint64_t element, uint32_t type)
{
	const struct uv_device *device = uv_device_of(nic);

	pthread_mutex_lock(&uars_lock);
	for (struct uv_uar *uar = uars; uar; uar = uar->uar_next)
		if (uar->object.context->device == device && uar->page == 1)
			uv_async(uar->object.context, element, type);
	pthread_mutex_unlock(&uars_lock);
}
