/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The modelled link: computes when a port of a given rate, at a given round-trip time, would
 * complete a WQE.
 *
 * A WQE starts once its doorbell was rung, its QP is below the READ limit (max_rd_atomic), and the
 * minimum gap between messages of the QP and of the port has passed. Its answer reaches the port
 * one round trip later and crosses the link, headers included, behind the answers before it. An
 * answer of one packet waits only for other answers of one packet: a port takes packets from its
 * QPs in turn, so a small answer passes what longer ones still have to send. A QP completes in
 * order. A step that runs late does not move these times: it computes what the port would have done
 * meanwhile, at the times it would have done it.
 *
 * Simplifications: longer answers are not interleaved, and cross the link in the order in which
 * steps serve their QPs; requests cost nothing, nor does the remote port's link without far=N.
 *
 * Runs in a step, under nic->lock, except soft_model_open().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "config/hooks.h"
#include "dv/soft/soft.h"

#define FRACTION_BITS 32u /* number of fraction bits in soft_model.byte */
#define GBPS_MAX 100000u

static bool power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

static uint64_t gap_of(uint32_t messages_per_s)
{
	return messages_per_s ? 1000000000ull * SOFT_TICKS_NS / messages_per_s : 0;
}

#ifdef TEST_HOOKS
/* Maps the links of all ports of this machine. */
static int far_ports_open(struct dv_device *nic, uint32_t number)
{
	size_t bytes = SOFT_FAR_PORTS * sizeof(struct soft_far_port);
	char name[48];
	void *at;
	int fd;

	snprintf(name, sizeof(name), "/peercache-ports-%u", number);
	fd = shm_open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return dv_fail(-errno, "opening %s: the file %s of far ports: %m", nic->name, name);
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (at == MAP_FAILED)
		return dv_fail(-errno, "opening %s: mapping %s: %m", nic->name, name);
	nic->model.far = at;
	return 0;
}
#endif

int soft_model_open(struct dv_device *nic, const struct dv_options *options)
{
	const struct port_model *model = &options->model;

	nic->model.due = UINT64_MAX;
	nic->register_ms_per_gib = model->register_ms_per_gib;
	if (!model->rate_gbps)
		return 0;
	if (model->rate_gbps > GBPS_MAX || !power_of_two(model->mtu) || !model->reads_per_qp ||
		model->reads_per_qp > SOFT_READS_MAX)
		return dv_fail(-EINVAL,
			"opening %s: a model of %u Gbit/s, MTU %u, %u READs a queue pair: %m; allowed: a rate of at most %u, an MTU that is a power of two, and 1 to %u READs",
			nic->name, model->rate_gbps, model->mtu, model->reads_per_qp, GBPS_MAX,
			SOFT_READS_MAX);
	nic->model = (struct soft_model){
		.on = true,
		.still = TEST_HOOK(model->still),
		.mtu_bits = (uint8_t)__builtin_ctz(model->mtu),
		.header_bytes = model->header_bytes,
		.reads_per_qp = model->reads_per_qp,
		.rtt = (uint64_t)model->rtt_ns * SOFT_TICKS_NS,
		.qp_gap = gap_of(model->qp_messages_per_s),
		.port_gap = gap_of(model->messages_per_s),
		.byte = ((8ull * SOFT_TICKS_NS << FRACTION_BITS) + model->rate_gbps / 2) /
			model->rate_gbps,
		.due = UINT64_MAX,
		.gbps = model->rate_gbps,
	};
#ifdef TEST_HOOKS
	return model->far_ports ? far_ports_open(nic, model->far_ports) : 0;
#else
	return 0;
#endif
}

void soft_model_close(struct dv_device *nic)
{
	if (nic->model.far)
		munmap(nic->model.far, SOFT_FAR_PORTS * sizeof(*nic->model.far));
	nic->model.far = NULL;
}

/* The answer, which is ready at `from`, crosses the link of the port that it comes from. */
static uint64_t far_link(struct dv_qp *qp, uint64_t from, uint64_t bytes, uint64_t wire)
{
	struct soft_far_port *port;
	uint64_t hash;

	memcpy(&hash, qp->remote.gid + 8, sizeof(hash));
	port = &qp->nic->model.far[(hash * 0x9e3779b97f4a7c15ull) >> 52];
	dv_hint_store64(&port->bytes, dv_hint_load64(&port->bytes) + bytes);
	return dv_hint_take64(&port->free_at, from, wire) - wire;
}
static_assert(SOFT_FAR_PORTS == 1u << 12, "the upper 12 bits of a hash");

void soft_model_register(const struct dv_device *nic, size_t length)
{
	uint64_t ms = (uint64_t)((double)length * nic->register_ms_per_gib / (1u << 30));
	struct timespec left = {
		.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};

	while (ms && nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Begins a step of the model. No work that the last step postponed was due before model->due. */
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

	if (op->ready_at) /* the model started the WQE in an earlier step */
		return true;
	at = later(later(op->rung_at, pace->message_at), model->message_at);
	if (op->opcode == MLX5_OPCODE_RDMA_READ)
		at = later(at, pace->read_at[(pace->reads - model->reads_per_qp) % SOFT_READS_MAX]);
	op->start_at = at;
	return soft_reached(qp->nic, at);
}

static uint64_t wire_time(uint64_t bytes, uint64_t byte)
{
	return (uint64_t)((unsigned __int128)bytes * byte >> FRACTION_BITS);
}

/*
 * Reserves a time `span` on a resource that does one thing at a time, from `from` on or when it is
 * free. Returns the end.
 */
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
	uint64_t wire = wire_time(bytes, model->byte);
	uint64_t arrives = op->start_at + model->rtt, there;

	if (qp->nic->fault.slow > 1)
		wire *= qp->nic->fault.slow;
	/*
	 * QPs are simulated one after another, so a later one may have an earlier start time.
	 * Single-packet messages therefore reserve link time from the beginning of the step instead
	 * of after the last reservation.
	 */
	if (packets <= 1) {
		take(&model->link_at, model->before + model->rtt, wire);
		there = take(&model->small_at, model->before + model->rtt, wire);
		there = later(there, arrives + wire);
	} else {
		if (TEST_HOOK(model->far))
			arrives = model->rtt + far_link(qp, arrives - model->rtt, bytes, wire);
		there = take(&model->link_at, arrives, wire);
	}
	take(&model->message_at, model->before, model->port_gap);
	pace->message_at = op->start_at + model->qp_gap;
	op->ready_at = later(there, pace->done_at);
	pace->done_at = op->ready_at;
	if (op->opcode == MLX5_OPCODE_RDMA_READ)
		pace->read_at[pace->reads++ % SOFT_READS_MAX] = op->ready_at;
}
