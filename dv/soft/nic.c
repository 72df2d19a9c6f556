/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software NIC as a device: open, close, one step over all queues. Steps run in the poll core
 * that calls dv_step(); everything else in setup callers.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "config/clock.h"
#include "dv/soft/soft.h"

/* times that a step yields the CPU to setup callers before it takes nic->lock */
#define YIELDS_MAX 64u

/* Returns when the next step has work, by the NIC's own clock. */
static uint64_t due_ns(const struct dv_device *nic)
{
	uint64_t due = nic->model.due;

	return due == UINT64_MAX ? due : (due + SOFT_TICKS_NS - 1) / SOFT_TICKS_NS;
}

static uint64_t soft_due_ns(const struct dv_device *nic)
{
	uint64_t ns = due_ns(nic);

	return ns == UINT64_MAX ? ns : ns + nic->behind_ns;
}

/* ---- a step ---------------------------------------------------------------------------------- */

void soft_busy(struct dv_qp *qp)
{
	struct dv_device *nic = qp->nic;

	if (qp->busy)
		return;
	qp->busy = true;
	qp->busy_next = NULL;
	*(nic->busy_last ? &nic->busy_last->busy_next : &nic->busy_first) = qp;
	nic->busy_last = qp;
	dv_hint_store(&nic->busy_count, nic->busy_count + 1);
}

static struct dv_qp *take_busy(struct dv_device *nic)
{
	struct dv_qp *qp = nic->busy_first;

	nic->busy_first = qp->busy_next;
	if (!nic->busy_first)
		nic->busy_last = NULL;
	qp->busy = false;
	dv_hint_store(&nic->busy_count, nic->busy_count - 1);
	return qp;
}

/* Takes the doorbells of one QP's register. A QP that is not connected yet keeps its doorbell. */
static unsigned answer_bell(struct dv_device *nic, uint32_t i, uint64_t *bell)
{
	struct dv_qp *qp = nic->bell_qps[i];
	unsigned good;
	bool overrun;

	if (!qp) {
		dv_device_take_doorbell(bell);
		dv_device_take_doorbell(bell + SOFT_BELLS_BLOCK);
		soft_blame(nic, &nic->stats.bad_doorbell, "a doorbell of no queue pair");
		return 0;
	}
	if (qp->state == SOFT_INIT)
		return 0;
	good = soft_doorbell(qp, &overrun);
	if (overrun)
		soft_flush(qp);
	soft_busy(qp);
	return good;
}

/* The number of doorbell registers in use in the block of SOFT_BELLS_BLOCK from `from` on. */
static unsigned block_used(uint32_t bell_count, uint32_t from)
{
	return bell_count - from < SOFT_BELLS_BLOCK ? bell_count - from : SOFT_BELLS_BLOCK;
}

static bool block_rung(const uint64_t *block, unsigned used)
{
	return dv_device_peek_doorbells(block, used) ||
	       dv_device_peek_doorbells(block + SOFT_BELLS_BLOCK, used);
}

static unsigned answer_bells(struct dv_device *nic)
{
	unsigned good = 0;

	for (uint32_t from = 0; from < nic->bell_count; from += SOFT_BELLS_BLOCK) {
		uint64_t *block = nic->bells + 2 * (size_t)from;
		unsigned used = block_used(nic->bell_count, from);

		if (!block_rung(block, used))
			continue;
		for (unsigned i = 0; i < used; i++)
			if (dv_device_peek_doorbell(block + i) ||
				dv_device_peek_doorbell(block + SOFT_BELLS_BLOCK + i))
				good += answer_bell(nic, from + i, block + i);
	}
	return good;
}

/*
 * Serves the QPs that have work once each. QPs for which the byte budget does not suffice are first
 * in the next step.
 */
static unsigned step_locked(struct dv_device *nic)
{
	unsigned work = 0, count;

	if (nic->hooks || nic->tcp)
		nic->step_ns = 0;
	nic->steps++;
	nic->step_bytes = 0;
	soft_model_step(nic);
	nic->retrying = nic->faulty;
	if (nic->hooks)
		work += nic->hooks->step(nic);
	work += answer_bells(nic);
	count = nic->busy_count;
	if (nic->fault.shuffle && count)
		for (uint64_t turns = soft_random(nic) % count; turns; turns--)
			soft_busy(take_busy(nic));
	while (nic->step_bytes < SOFT_STEP_BYTES && count--) {
		struct dv_qp *qp = take_busy(nic);

		work += soft_qp_step(qp);
		if (qp->head != qp->tail || qp->fetched != qp->rung)
			soft_busy(qp);
	}
	soft_world_release(nic);
	nic->idle_until = due_ns(nic);
	if (nic->retrying || count != UINT32_MAX || (nic->busy_count && !nic->model.on))
		nic->idle_until = 0;
	if (nic->tx_any)
		soft_link_flush(nic);
	return work;
}

/* dv_fault.slow: a pause of (slow - 1) times the time that a step took follows it. */
static unsigned step_slowly(struct dv_device *nic)
{
	uint64_t since_ns = clock_monotonic_ns(), now_ns;
	unsigned work;

	if (since_ns < nic->rest_until_ns)
		return 0;
	work = step_locked(nic);
	now_ns = clock_monotonic_ns();
	if (work)
		nic->rest_until_ns = now_ns + (now_ns - since_ns) * (nic->fault.slow - 1);
	return work;
}

/*
 * Whether a step has no work. Runs without nic->lock: it reads fields that only steps write, a
 * hint, and registers that live as long as the NIC.
 */
static bool nothing_to_do(struct dv_device *nic)
{
	uint32_t bell_count = dv_hint_load(&nic->bell_count);

	if (nic->hooks || nic->tcp)
		return false;
	if (nic->idle_until != UINT64_MAX && nic->idle_until <= soft_step_ns(nic))
		return false;
	for (uint32_t from = 0; from < bell_count; from += SOFT_BELLS_BLOCK)
		if (block_rung(nic->bells + 2 * (size_t)from, block_used(bell_count, from)))
			return false;
	return true;
}

/*
 * Steps one NIC. *now_ns: a recent reading of the clock, 0: none; the step may use it and leaves
 * one for the next NIC.
 */
static unsigned step(struct dv_device *nic, uint64_t *now_ns)
{
	unsigned work;

	nic->step_ns = 0;
	if (*now_ns && !nic->clock)
		soft_step_at(nic, *now_ns);
	if (nothing_to_do(nic))
		return 0;
	/*
	 * Setup callers hold the lock for microseconds; with only a mutex a busy poll core would
	 * starve them.
	 */
	for (unsigned turn = 0; turn < YIELDS_MAX && dv_hint_load(&nic->waiting); turn++)
		sched_yield();
	pthread_mutex_lock(&nic->lock);
	work = nic->fault.slow > 1 && !nic->model.on ? step_slowly(nic) : step_locked(nic);
	pthread_mutex_unlock(&nic->lock);
	/* Moving bytes takes long, so a reading of the clock from before it is not left for the
	 * next NIC. */
	*now_ns = 0;
	if (nic->step_ns && !nic->step_bytes && !nic->clock)
		*now_ns = nic->step_ns + nic->behind_ns;
	return work;
}

static unsigned soft_step_all(struct dv_device *const *nics, unsigned count)
{
	uint64_t now_ns = 0;
	unsigned work = 0;

	for (unsigned i = 0; i < count; i++)
		work += step(nics[i], &now_ns);
	return work;
}

static int check_options(const struct dv_options *options)
{
	const char *link = options->link;

	if (strlen(options->name) >= NAME_BYTES_MAX)
		return dv_fail(-ENAMETOOLONG, "opening software NIC %s: %m", options->name);
	if (link && link[0] && strcmp(link, "shm") != 0 && strcmp(link, "tcp") != 0)
		return dv_fail(-EINVAL, "opening %s: link \"%s\": %m; it is \"shm\" or \"tcp\"",
			options->name, link);
	return 0;
}

static void free_nic(struct dv_device *nic)
{
	if (nic->event_fd >= 0)
		close(nic->event_fd);
	soft_model_close(nic);
	pthread_mutex_destroy(&nic->lock);
	free(nic->qps);
	free(nic->qp_slots);
	free(nic->qp_generations);
	free(nic->bells);
	free(nic->bell_qps);
	free(nic->cqs);
	free(nic->mrs);
	free(nic->files);
	free(nic->drops);
	free(nic);
}

static struct dv_device *new_nic(const struct dv_options *options)
{
	struct dv_device *nic = calloc(1, sizeof(*nic));

	if (!nic)
		return NULL;
	nic->ops = &dv_soft_ops;
	pthread_mutex_init(&nic->lock, NULL);
	snprintf(nic->name, sizeof(nic->name), "%s", options->name);
	nic->tcp = options->link && strcmp(options->link, "tcp") == 0;
	nic->idle_until = UINT64_MAX;
	nic->retry_ns = SOFT_RETRY_NS;
	nic->ack_ns = dv_ack_ns(options->ack_timeout ? options->ack_timeout : DV_ACK_TIMEOUT);
	nic->random = 1;
	nic->event_fd = -1;
	nic->port_told = true;
	nic->mr_slot_last = SOFT_MR_FIRST - 1;
	nic->qp_slots = calloc(SOFT_QPS_MAX, sizeof(*nic->qp_slots));
	nic->qp_generations = calloc(SOFT_QPS_MAX, sizeof(*nic->qp_generations));
	nic->mrs = calloc(SOFT_MRS_MAX, sizeof(*nic->mrs));
	nic->bells = aligned_alloc(SOFT_UAR_BYTES, SOFT_BELLS_BYTES);
	nic->bell_qps = calloc(SOFT_QPS_MAX, sizeof(struct dv_qp *));
	if (nic->bells)
		memset(nic->bells, 0, SOFT_BELLS_BYTES);
	if (nic->qp_slots && nic->qp_generations && nic->mrs && nic->bells && nic->bell_qps)
		return nic;
	free_nic(nic);
	return NULL;
}

int soft_nic_open(const struct dv_options *options, const uint8_t *gid,
	const struct soft_hooks *hooks, struct dv_device **ret_device)
{
	struct dv_device *nic;
	int rc = check_options(options);

	if (rc)
		return rc;
	nic = new_nic(options);
	if (!nic)
		return dv_fail(-ENOMEM, "opening %s: %m", options->name);
	nic->hooks = hooks;
	if (gid)
		memcpy(nic->gid, gid, sizeof(nic->gid));
	nic->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = nic->event_fd < 0 ? -errno : 0;
	if (rc)
		dv_fail(rc, "opening %s: eventfd of its events: %m%s", nic->name, soft_remedy(rc));
	else
		rc = soft_model_open(nic, options);
	if (!rc)
		rc = soft_link_open(nic, options);
	if (rc)
		free_nic(nic);
	else
		*ret_device = nic;
	return rc;
}

static int soft_open(const struct dv_options *options, struct dv_device **ret_device)
{
	return soft_nic_open(options, NULL, NULL, ret_device);
}

static void soft_close(struct dv_device *nic)
{
	soft_link_close(nic);
	free_nic(nic);
}

static void soft_attributes(const struct dv_device *nic, struct dv_attributes *ret)
{
	*ret = (struct dv_attributes){
		.bits_per_second = nic->model.gbps * 1000000000u, .modelled = nic->model.on};
}

static int soft_port_look(struct dv_device *nic)
{
	bool down;

	soft_lock(nic);
	down = nic->port_down;
	soft_unlock(nic);
	return down ? dv_fail(-ENETDOWN, "%s has no link", nic->name) : 0;
}

const struct dv_ops dv_soft_ops = {
	.open = soft_open,
	.close = soft_close,
	.attributes = soft_attributes,
	.port_look = soft_port_look,
	.step_all = soft_step_all,
	.due_ns = soft_due_ns,
	.mr_register = soft_mr_register,
	.mr_deregister = soft_mr_deregister,
	.cq_create = soft_cq_create,
	.cq_destroy = soft_cq_destroy,
	.qp_create = soft_qp_create,
	.qp_address = soft_qp_address,
	.qp_connect = soft_qp_connect,
	.qp_ack_ns = soft_qp_ack_ns,
	.qp_error = soft_qp_error,
	.qp_kill = soft_qp_kill,
	.qp_destroy = soft_qp_destroy,
	.cut = soft_cut,
	.event_fd = soft_event_fd,
	.event_next = soft_event_next,
};
