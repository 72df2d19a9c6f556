/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways in which a card may differ from what this project's code assumes: $SOFT_CONNECTX_ODD, a
 * list. Those of a READ are here, and how
 * ports are set up elsewhere. Run by the NIC's thread, under nic->lock.
 *
 *   tail       1 READ in 15 completes without its last line, which comes four READs later, and
 *              within LATE_NS. A line that comes after its call has returned is wrong bytes with
 *              rail.validate = crc, too: LATE_NS is no limit of what that setting cures
 *   stale      1 short READ in 3 returns what the short READ before it returned
 *   torn       the halves of an 8-byte READ are taken one after the other
 *   order      READs are executed again after a later one: a lost response
 *   syndrome   a refused READ ends with 0x12 instead of 0x13
 *   way        READs of more than 2048 bytes are lost, those of mlx5_0 only
 *   mtu        mlx5_1 has an MTU of 2048
 *   segments   a READ has at most 8 segments
 *   nobf       a doorbell register has no second half
 *   qps        a context has at most 64 queue pairs, as a VF may
 *   gids       the GIDs are in another order
 *   relaxed    the second half of a READ is taken before the first one, 1 in 8 with a pause
 *   vlan       the port has the GIDs of a VLAN, too
 *   bond       the names are mlx5_bond_0, ...
 */
#include <time.h>

#include "tests/connectx/uverbs.h"
#include "config/clock.h"
#include "dv/soft/check.h"

#define TAIL_ONE_IN 15
#define TAIL_READS 4
#define STALE_ONE_IN 3
#define RELAXED_ONE_IN 8
#define SHORT_BYTES 32 /* of a page head */
#define LINE 64
#define LATE_NS 50000u
#define WAY_MTU 2048

/* The last lines of READs that have completed without them, by the number of the READ. */
struct late {
	struct dv_sge to; /* bytes 0: none */
	uint64_t since_ns;
	uint8_t bytes[LINE];
};
static struct late late[UV_DEVICES_MAX][TAIL_READS];

/* The line comes, unless its memory was deregistered meanwhile. */
static void tail_come(struct dv_device *nic, struct late *l)
{
	if (l->to.bytes && soft_mr_local(nic, &l->to, true))
		memcpy((uint8_t *)(uintptr_t)l->to.address, l->bytes, LINE);
	l->to.bytes = 0;
}

void uv_odd_step(struct dv_device *nic)
{
	const struct uv_device *device = uv_device_of(nic);
	uint64_t now_ns;

	if (!(device->odd & UV_ODD_TAIL))
		return;
	now_ns = clock_monotonic_ns();
	for (unsigned i = 0; i < TAIL_READS; i++) {
		struct late *l = &late[device->index][i];

		if (l->to.bytes && now_ns - l->since_ns > LATE_NS)
			tail_come(nic, l);
	}
}

static void tail_hold(struct late *l, const struct soft_op *op, const uint8_t *before)
{
	const struct dv_sge *last = &op->sge[op->sges - 1];
	uint8_t *at = (uint8_t *)(uintptr_t)last->address + last->bytes - LINE;

	l->to = (struct dv_sge){(uintptr_t)at, LINE, last->lkey};
	l->since_ns = clock_monotonic_ns();
	memcpy(l->bytes, at, LINE);
	memcpy(at, before, LINE);
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

static enum soft_result relaxed_move(struct dv_qp *qp, struct soft_op *op, bool pauses)
{
	const struct timespec pause = {.tv_nsec = 1000};
	uint64_t half = op->total / 2;
	enum soft_result result = uv_move_plain(qp, op, half, op->total - half);

	if (result != SOFT_DONE)
		return result;
	if (pauses)
		nanosleep(&pause, NULL);
	return uv_move_plain(qp, op, 0, half);
}

enum soft_result uv_move(struct dv_qp *qp, struct soft_op *op, uint64_t from, uint64_t count)
{
	static uint64_t turns[UV_DEVICES_MAX];
	const struct uv_device *device = uv_device_of(qp->nic);
	uint64_t turn;
	bool reads = op->opcode == MLX5_OPCODE_RDMA_READ && count == op->total;
	const struct dv_sge *last = &op->sge[op->sges ? op->sges - 1 : 0];
	uint8_t before[LINE];
	enum soft_result result;

	if (!device->odd || !reads || !op->sges)
		return uv_move_plain(qp, op, from, count);
	turn = ++turns[device->index];
	tail_come(qp->nic, &late[device->index][turn % TAIL_READS]);
	if (device->odd & UV_ODD_WAY && device->index == 0 && op->total > WAY_MTU) {
		soft_op_fail(op, DV_SYNDROME_RETRY_EXCEEDED, 0);
		return SOFT_RETRY;
	}
	if (last->bytes >= LINE)
		memcpy(before, (uint8_t *)(uintptr_t)last->address + last->bytes - LINE, LINE);
	if (device->odd & UV_ODD_TORN && count == 8 && op->sges == 1)
		result = torn_move(qp, op);
	else if (device->odd & UV_ODD_RELAXED && count > LINE)
		result = relaxed_move(qp, op, turn % RELAXED_ONE_IN == 0);
	else
		result = uv_move_plain(qp, op, from, count);
	if (result == SOFT_REFUSED && device->odd & UV_ODD_SYNDROME) {
		soft_op_fail(op, DV_SYNDROME_REMOTE_INVALID_REQUEST, 0);
		return SOFT_RETRY;
	}
	if (result != SOFT_DONE)
		return result;
	if (device->odd & UV_ODD_TAIL && last->bytes >= LINE && turn % TAIL_ONE_IN == 0)
		tail_hold(&late[device->index][turn % TAIL_READS], op, before);
	if (device->odd & UV_ODD_STALE && op->total <= SHORT_BYTES)
		stale_swap(op);
	return result;
}
