/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does this machine run under a hypervisor? A guest can be paused, together with its clock, while a
 * NIC that was passed through to it goes on, so a guest must not trust spans of its own clock where
 * a NIC acts at the same time (rail.validate). At start-up only; one thread.
 */
#ifndef NUMA_GUEST_H
#define NUMA_GUEST_H

/*
 * Returns the sign by which this machine was recognized as a guest, for the log; NULL: there is
 * none. The text stays valid until the next call. Containers are not guests.
 */
const char *guest_sign(void);
/* Tests only: takes 0 or 1 for the processor's hypervisor bit; -1: that of the processor. */
void guest_test_cpu(int cpu_bit);

#endif
