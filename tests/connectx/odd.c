/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways in which a card may differ from what this project's code assumes: $SOFT_CONNECTX_ODD, a
 * list. Those of a READ are here. Run by the NIC's thread, under nic->lock.
 *
 *   tail       1 READ in 16 completes with its last line still missing, which comes with the next
 *   stale      1 short READ in 3 returns what the short READ before it returned
 *   torn       the halves of an 8-byte READ are taken one after the other
 *   order      READs are executed again after a later one: a lost response
 *   syndrome   a refused READ ends with 0x12 instead of 0x13
 *   way        READs of more than 2048 bytes are lost, those of mlx5_0 only
 *   mtu        mlx5_1 has an MTU of 2048
 *   segments   a READ has at most 8 segments
 *   nobf       a doorbell register has no second half
 *   qps        a context has at most 64 queue pairs
 */
#include <time.h>

#include "tests/connectx/uverbs.h"

#define TAIL_ONE_IN 16
#define STALE_ONE_IN 3
#define SHORT_BYTES 32 /* of a page head */
#define LINE 64
#define WAY_MTU 2048

/* The last line of a READ that has completed without it. */
static struct {
	uint8_t *at; /* NULL: none */
	uint8_t bytes[LINE];
} late;

static void tail_hold(const struct soft_op *op, const uint8_t *before)
{
	const struct dv_sge *last = &op->sge[op->sges - 1];

	late.at = (uint8_t *)(uintptr_t)last->address + last->bytes - LINE;
	memcpy(late.bytes, late.at, LINE);
	memcpy(late.at, before, LINE);
}

static void stale_swap(const struct soft_op *op)
{
	static uint8_t kept[SHORT_BYTES];
	static uint64_t turn;
	uint8_t now[SHORT_BYTES], *at = (uint8_t *)(uintptr_t)op->sge[0].address;

	memcpy(now, at, op->sge[0].bytes);
	if (++turn % STALE_ONE_IN == 0)
		memcpy(at, kept, op->sge[0].bytes);
	memcpy(kept, now, op->sge[0].bytes);
}

static enum soft_result torn_move(struct dv_qp *qp, struct soft_op *op)
{
	const struct timespec pause = {.tv_nsec = 1000};
	enum soft_result result = uv_move_plain(qp, op, 0, 4);

	if (result != SOFT_DONE)
		return result;
	nanosleep(&pause, NULL);
	return uv_move_plain(qp, op, 4, 4);
}

enum soft_result uv_move(struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count)
{
	static uint64_t turn;
	const struct uv_device *device = uv_device_of(qp->nic);
	bool reads = op->opcode == MLX5_OPCODE_RDMA_READ && count == op->total;
	const struct dv_sge *last = &op->sge[op->sges ? op->sges - 1 : 0];
	uint8_t before[LINE];
	enum soft_result result;

	if (!device->odd || !reads || !op->sges)
		return uv_move_plain(qp, op, from, count);
	turn++;
	if (late.at)
		memcpy(late.at, late.bytes, LINE);
	late.at = NULL;
	if (device->odd & UV_ODD_WAY && device->index == 0 && op->total > WAY_MTU)
		return SOFT_RETRY;
	if (last->bytes >= LINE)
		memcpy(before, (uint8_t *)(uintptr_t)last->address + last->bytes - LINE, LINE);
	result = device->odd & UV_ODD_TORN && count == 8 && op->sges == 1
			 ? torn_move(qp, op)
			 : uv_move_plain(qp, op, from, count);
	if (result == SOFT_REFUSED && device->odd & UV_ODD_SYNDROME) {
		soft_op_fail(op, DV_SYNDROME_REMOTE_INVALID_REQUEST, 0);
		return SOFT_RETRY;
	}
	if (result != SOFT_DONE)
		return result;
	if (device->odd & UV_ODD_TAIL && last->bytes >= LINE && turn % TAIL_ONE_IN == 0)
		tail_hold(op, before);
	if (device->odd & UV_ODD_STALE && op->total <= SHORT_BYTES)
		stale_swap(op);
	return result;
}
