/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults by seed and the counters tests look at. Setup callers set and read them; steps draw.
 */
#include "dv/soft/soft.h"

void dv_soft_faults(struct dv_device *nic, const struct dv_fault *fault)
{
	soft_lock(nic);
	nic->fault = *fault;
	nic->random = fault->seed * 2 + 1;
	nic->error_count = 0;
	soft_unlock(nic);
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

/* Rung by the record, but not by the register: the device would never look. */
static bool doorbell_missing(const struct dv_qp *qp)
{
	uint32_t record = dv_device_load_record(&qp->record[DV_DBREC_SEND]) & 0xffff;

	for (unsigned half = 0; half < 2; half++) {
		const volatile uint64_t *reg =
			(const void *)(qp->uar + SOFT_BF_REG + (size_t)half * SOFT_BF_SIZE);

		if (dv_device_peek_doorbell(reg))
			return false;
	}
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

/* splitmix64 */
uint64_t soft_random(struct dv_device *nic)
{
	uint64_t z = nic->random += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

bool soft_fault_percent(struct dv_device *nic, unsigned percent)
{
	return percent && soft_random(nic) % 100 < percent;
}

/* Is this the WQE that was chosen to fail? */
bool soft_fault_error(struct dv_qp *qp, struct soft_op *op)
{
	struct dv_device *nic = qp->nic;

	if (!nic->fault.error_syndrome || nic->fault.error_qpn != qp->qpn)
		return false;
	if (nic->error_count++ != nic->fault.error_at)
		return false;
	soft_op_fail(op, nic->fault.error_syndrome, 0xee);
	return true;
}
