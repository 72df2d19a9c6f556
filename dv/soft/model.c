/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model link: when would a port of a given rate, at a given distance, complete this WQE?
 *
 * A WQE starts when it was rung, its QP has fewer READs under way than it may and neither the QP
 * nor the port started a message too short a while ago. Its answer reaches the port a round trip
 * later and crosses the link, headers included, behind the answers before it. One of a single
 * packet is only behind those of its kind: a port takes packets of its QPs in turn, so it passes
 * what longer ones have left to send. A QP completes in order. A step that comes late does not move
 * these times: what the port would have done meanwhile is done, at the times it would have been.
 *
 * Simpler than a port: longer answers are not interleaved, and cross in the order in which a step
 * comes to their QPs; requests and the far port's link cost nothing.
 *
 * Runs in a step, under nic->lock, apart from open and far.
 */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <linux/mempolicy.h>

#include "dv/soft/soft.h"

#define FRACTION_BITS 32u /* of soft_model.byte */
#define GBPS_MAX 100000u

static bool power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

static uint64_t gap_of(uint32_t messages_per_s)
{
	return messages_per_s ? 1000000000ull * SOFT_TICKS_NS / messages_per_s : 0;
}

int soft_model_open(struct dv_device *nic, const struct dv_options *options)
{
	const struct dv_model *model = &options->model;
	uint64_t byte;

	nic->model.due = UINT64_MAX;
	nic->numa_node = options->numa_node;
	if (!model->rate_gbps)
		return 0;
	if (model->rate_gbps > GBPS_MAX || !power_of_two(model->mtu) || !model->reads_per_qp ||
		model->reads_per_qp > SOFT_READS_MAX || model->numa_percent > 100)
		return dv_fail(-EINVAL,
			"opening %s: a model of %u Gbit/s, MTU %u, %u READs a queue pair, %u%% of the rate from another node: %m; at most %u, a power of two, 1 to %u and at most 100 (0: as near)",
			nic->name, model->rate_gbps, model->mtu, model->reads_per_qp,
			model->numa_percent, GBPS_MAX, SOFT_READS_MAX);
	byte = ((8ull * SOFT_TICKS_NS << FRACTION_BITS) + model->rate_gbps / 2) / model->rate_gbps;
	nic->model = (struct soft_model){
		.on = true,
		.move_bytes = model->move_bytes,
		.uneven = model->numa_ns || model->numa_percent % 100,
		.mtu_bits = (uint8_t)__builtin_ctz(model->mtu),
		.header_bytes = model->header_bytes,
		.reads_per_qp = model->reads_per_qp,
		.rtt = (uint64_t)model->rtt_ns * SOFT_TICKS_NS,
		.numa = (uint64_t)model->numa_ns * SOFT_TICKS_NS,
		.qp_gap = gap_of(model->qp_messages_per_s),
		.port_gap = gap_of(model->messages_per_s),
		.byte = byte,
		.byte_far = byte * 100 / (model->numa_percent ? model->numa_percent : 100),
		.due = UINT64_MAX,
		.gbps = model->rate_gbps,
	};
	return 0;
}

/* Where the kernel put its first byte; where it does not say, memory is near. */
bool soft_model_far(const struct dv_device *nic, const void *base)
{
	int node = -1;

	if (!nic->model.uneven || nic->numa_node < 0)
		return false;
	if (syscall(SYS_get_mempolicy, &node, NULL, 0ul, base, MPOL_F_NODE | MPOL_F_ADDR))
		return false;
	return node >= 0 && node != nic->numa_node;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* What the last step left for later was not due until `due`. */
void soft_model_step(struct dv_device *nic)
{
	struct soft_model *model = &nic->model;

	model->now = model->on ? soft_step_ns(nic) * SOFT_TICKS_NS : 0;
	model->before = model->due < model->now ? model->due : model->now;
	model->due = UINT64_MAX;
}

bool soft_model_may_start(struct dv_qp *qp, struct soft_op *op)
{
	const struct soft_model *model = &qp->nic->model;
	const struct soft_pace *pace = &qp->pace;
	uint64_t at;

	if (op->ready_at) /* it began in an earlier step */
		return true;
	at = later(later(op->rung_at, pace->message_at), model->message_at);
	if (op->opcode == MLX5_OPCODE_RDMA_READ)
		at = later(at, pace->read_at[(pace->reads - model->reads_per_qp) % SOFT_READS_MAX]);
	if (op->flags & DV_FENCE)
		at = later(at, pace->done_at);
	op->start_at = at;
	return soft_reached(qp->nic, at);
}

static uint64_t wire_time(uint64_t bytes, uint64_t byte)
{
	return (uint64_t)((unsigned __int128)bytes * byte >> FRACTION_BITS);
}

static bool from_afar(struct dv_qp *qp, const struct soft_op *op)
{
	/* the key was checked */
	return qp->nic->model.uneven && op->sges && qp->nic->mrs[op->sge[0].lkey >> 8].far;
}

/* Until when something is taken that is free from `*free_at` on, and wanted from `from` on. */
static uint64_t take(uint64_t *free_at, uint64_t from, uint64_t span)
{
	return *free_at = later(*free_at, from) + span;
}

void soft_model_start(struct dv_qp *qp, struct soft_op *op)
{
	struct soft_model *model = &qp->nic->model;
	struct soft_pace *pace = &qp->pace;
	uint64_t packets = (op->total + (1u << model->mtu_bits) - 1) >> model->mtu_bits;
	uint64_t bytes = op->total + (packets ? packets : 1) * model->header_bytes;
	bool far = from_afar(qp, op);
	uint64_t wire = wire_time(bytes, far ? model->byte_far : model->byte);
	uint64_t arrives = op->start_at + model->rtt + (far ? model->numa : 0), there;

	if (qp->nic->fault.slow > 1)
		wire *= qp->nic->fault.slow;
	/*
	 * QPs are stepped one after the other, so what is reckoned next may start earlier: what is
	 * small against a step takes its part of whatever was free since the last one.
	 */
	if (packets <= 1) {
		take(&model->link_at, model->before + model->rtt, wire);
		there = take(&model->small_at, model->before + model->rtt, wire);
		there = later(there, arrives + wire);
	} else {
		there = take(&model->link_at, arrives, wire);
	}
	take(&model->message_at, model->before, model->port_gap);
	pace->message_at = op->start_at + model->qp_gap;
	op->ready_at = later(there, pace->done_at);
	pace->done_at = op->ready_at;
	if (op->opcode == MLX5_OPCODE_RDMA_READ)
		pace->read_at[pace->reads++ % SOFT_READS_MAX] = op->ready_at;
}
