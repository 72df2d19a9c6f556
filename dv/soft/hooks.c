/* SPDX-License-Identifier: Apache-2.0 */
/* Test hooks of the software NIC that dv/setup.h declares. Any thread, within its rules. */
#include <errno.h>

#include "dv/soft/soft.h"

void dv_leave_out(struct dv_device *const *devices, unsigned count, uint64_t ns)
{
	for (unsigned i = 0; i < count; i++)
		if (devices[i]->ops == &dv_soft_ops)
			devices[i]->behind_ns += ns;
}

int dv_trouble(struct dv_device *device, const struct dv_trouble *trouble)
{
	const struct dv_fault fault = {.link_down = trouble->link_down || trouble->mute,
		.silent = trouble->mute,
		.slow = trouble->slow,
		.lose = trouble->lose,
		.retransmit_percent = trouble->late_ms ? 100 : 0,
		.retransmit_ns = trouble->late_ms * 1000000ull,
		.dead = trouble->dead,
		.error_syndrome = trouble->error ? DV_SYNDROME_ABORTED : 0};

	if (device->ops != &dv_soft_ops)
		return -EOPNOTSUPP;
	dv_soft_faults(device, &fault);
	return 0;
}
