/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection by seed, and the counters that tests read. Setup callers set the faults and read
 * the counters; steps draw random numbers. All under nic->lock.
 */
#include <errno.h>
#include <unistd.h>

#include "config/clock.h"
#include "dv/soft/soft.h"

/* Makes event_fd readable. The write fails only if the eventfd is full; it is readable then. */
static void tell(struct dv_device *nic)
{
	uint64_t one = 1;
	ssize_t rc = write(nic->event_fd, &one, sizeof(one));

	(void)rc;
}

/* The port's link went down or came up: stores the state that dv_event_next() reports. */
static void tell_port(struct dv_device *nic, bool down)
{
	nic->port_down = down;
	nic->port_told = false;
	tell(nic);
}

void dv_soft_faults(struct dv_device *nic, const struct dv_fault *fault)
{
	bool down = fault->link_down && !fault->silent;

	soft_lock(nic);
	if (down != nic->port_down)
		tell_port(nic, down);
	if (fault->dead & DV_DEAD_SAYS_SO && !nic->fatal_told)
		tell(nic);
	nic->fault = *fault;
	nic->random = fault->seed * 2 + 1;
	nic->error_count = 0;
	nic->faulty = fault->delay_steps_max || fault->shuffle || fault->link_down ||
		      fault->retransmit_percent || fault->piece_bytes || fault->error_syndrome ||
		      fault->lose;
	soft_unlock(nic);
}

int soft_event_fd(struct dv_device *nic)
{
	return nic->event_fd;
}

/*
 * Reports the device's death once, then the port's latest state once. A link that came back before
 * the caller looked is reported only as up. The port is up when the NIC is opened.
 */
int soft_event_next(struct dv_device *nic, struct dv_event *ret)
{
	uint64_t count;
	ssize_t rc;
	int found = 0;

	soft_lock(nic);
	rc = read(nic->event_fd, &count, sizeof(count));
	/* the read only clears event_fd; the fields of `nic` say which event is reported */
	(void)rc;
	if (nic->fault.dead & DV_DEAD_SAYS_SO && !nic->fatal_told) {
		nic->fatal_told = true;
		*ret = (struct dv_event){
			.kind = DV_EVENT_DEVICE_FATAL, .text = "local catastrophic error"};
		found = 1;
	} else if (!nic->port_told) {
		nic->port_told = true;
		*ret = (struct dv_event){
			.kind = nic->port_down ? DV_EVENT_PORT_DOWN : DV_EVENT_PORT_UP,
			.port = 1,
			.text = nic->port_down ? "port error" : "port active"};
		found = 1;
	}
	soft_unlock(nic);
	return found;
}

void dv_soft_patience(struct dv_device *nic, uint64_t retry_ns, uint64_t steps)
{
	soft_lock(nic);
	nic->retry_ns = retry_ns;
	nic->retry_steps = steps;
	soft_unlock(nic);
}

void dv_soft_clock(struct dv_device *nic, const uint64_t *now_ns)
{
	soft_lock(nic);
	nic->clock = now_ns;
	soft_unlock(nic);
}

/*
 * Whether the doorbell record was updated but no register was written: a device does not fetch
 * these WQEs.
 */
static bool doorbell_missing(const struct dv_qp *qp)
{
	uint32_t record = dv_device_load_record(&qp->record[DV_DBREC_SEND]) & 0xffff;

	for (unsigned half = 0; half < 2; half++)
		if (dv_device_peek_doorbell(qp->bell + half * SOFT_BELLS_BLOCK))
			return false;
	return record != (qp->rung & 0xffff);
}

void dv_soft_stats(struct dv_device *nic, struct dv_soft_stats *ret)
{
	soft_lock(nic);
	*ret = nic->stats;
	ret->missing_doorbells = 0;
	for (unsigned i = 0; i < nic->qp_count; i++)
		ret->missing_doorbells += doorbell_missing(nic->qps[i]);
	soft_unlock(nic);
}

/* Fault injection: loses the WQE's request, which is sent again after the ACK time-out. */
bool soft_fault_lost(struct dv_device *nic, struct soft_op *op)
{
	if (!nic->fault.lose || op->state != OP_NEW || op->waited)
		return false;
	nic->fault.lose = false;
	nic->stats.retransmits++;
	nic->step_ns = 0;
	op->retry_ns = soft_step_ns(nic) + nic->ack_ns;
	nic->retrying = true;
	return true;
}

/* Fault injection: fails the WQE if dv_fault.error_at chose it. */
bool soft_fault_error(struct dv_qp *qp, struct soft_op *op)
{
	struct dv_device *nic = qp->nic;

	if (!nic->fault.error_syndrome || (nic->fault.error_qpn && nic->fault.error_qpn != qp->qpn))
		return false;
	if (nic->error_count++ != nic->fault.error_at)
		return false;
	soft_op_fail(op, nic->fault.error_syndrome, 0xee);
	return true;
}
