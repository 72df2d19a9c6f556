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

int dv_test_fault(struct dv_device *device, const struct dv_test_fault *test)
{
	const struct dv_fault fault = {.link_down = test->link_down || test->mute,
		.silent = test->mute,
		.slow = test->slow,
		.lose = test->lose,
		.retransmit_percent = test->late_ms ? 100 : 0,
		.retransmit_ns = test->late_ms * 1000000ull,
		.dead = test->dead,
		.error_syndrome = test->error ? DV_SYNDROME_ABORTED : 0};

	if (device->ops != &dv_soft_ops)
		return -EOPNOTSUPP;
	dv_soft_faults(device, &fault);
	return 0;
}
