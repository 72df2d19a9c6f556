/* SPDX-License-Identifier: Apache-2.0 */
/* Controls of the NIC behind a device, for a test that links the interposer. Any thread. */
#ifndef DV_SOFT_UVERBS_TESTING_H
#define DV_SOFT_UVERBS_TESTING_H

#include "dv/soft/fault.h"

/* The software NIC of mlx5_<index>, for dv_soft_stats(); NULL: it has no open context. */
struct dv_device *soft_connectx_nic(unsigned index);
/* Sets the link of the device's port down (false) or up. */
void soft_connectx_port(unsigned index, bool up);
/*
 * Raise an event: the device failed, or one of its QPs did. dv_soft_faults() makes functions fail.
 */
void soft_connectx_dies(unsigned index);
void soft_connectx_qp_fails(unsigned index, uint32_t qpn);
/* Removes the device, or brings it back. */
void soft_connectx_removed(unsigned index, bool removed);

/* Has port `index` mapped a file of a peer? */
bool soft_connectx_mapped(unsigned index, bool writable);
/* Calls uv_shared_open() for the `bytes` bytes at `at`. */
int soft_connectx_shared(const void *at, uint64_t bytes, uint64_t *ret_offset);
/* CPU time for which this thread stepped the devices in sched_yield(), ns. */
uint64_t soft_connectx_yield_ns(void);

#endif
