/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a test that has the interposer linked in may ask of the NIC behind a device. Any thread.
 */
#ifndef DV_SOFT_UVERBS_TESTING_H
#define DV_SOFT_UVERBS_TESTING_H

#include "dv/soft/fault.h"

/* The software NIC of mlx5_<index>, for dv_soft_stats(); NULL: no context of it is open. */
struct dv_device *soft_connectx_nic(unsigned index);
/* Pulls the cable (false) or puts it back. */
void soft_connectx_port(unsigned index, bool up);
/* Events: the device, or that queue pair of it, failed. What no longer works: dv_soft_faults(). */
void soft_connectx_dies(unsigned index);
void soft_connectx_qp_fails(unsigned index, uint32_t qpn);

/* Has port `index` a file of some peer mapped? */
bool soft_connectx_mapped(unsigned index, bool writable);
/* uv_shared_open() */
int soft_connectx_shared(const void *at, uint64_t bytes, uint64_t *ret_offset);

#endif
