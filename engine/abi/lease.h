/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validation by lease: when a page head proves a page although the READs of payload and head had no
 * order. The proof and its assumptions are in engine/control/pages/VALIDATION.md.
 *
 * L is the limbo time of the holder, fixed while its incarnation lives; the holder announces it in
 * Connected. It overwrites no byte of a slot before L has passed since readers could last see the
 * slot's old generation. A reader whose READs all lie between T0 and T1, on its own clock, has seen
 * no overwritten byte if the head matches and T1 - T0 is shorter than L.
 *
 *   T0   read at or before the first WQE or doorbell record of these READs; older is safe
 *   T1   read after the last CQE of these READs was observed, behind a load fence; never a cached
 *        time
 *
 * Both are CLOCK_MONOTONIC_RAW (clock_raw_ns()): CLOCK_MONOTONIC may be slewed by up to 10%.
 */
#ifndef ABI_LEASE_H
#define ABI_LEASE_H

#include <stdbool.h>
#include <stdint.h>

/* Largest L that a reader accepts from a peer, ns: the maximum of engine.limbo_ms. */
#define LEASE_NS_MAX (10000ull * 1000 * 1000)
/*
 * The part of L that a reader uses, in percent. The rest covers the difference in rate between two
 * hosts' clocks, which is far below 1%.
 */
#define LEASE_PERCENT 95u

/*
 * Returns the L to use for a peer that announced `announced_ns`. 0 disables leases: the peer
 * announced none, or a value that no engine has.
 */
static inline uint64_t lease_bounded(uint64_t announced_ns)
{
	return announced_ns <= LEASE_NS_MAX ? announced_ns : 0;
}

/*
 * True: if all heads match, the pages are valid. False: too much time has passed, the times are not
 * in order, or L is 0; the heads must be read again, after the last CQE.
 */
static inline bool lease_valid(uint64_t t0_ns, uint64_t t1_ns, uint64_t limbo_ns)
{
	return t1_ns >= t0_ns && t1_ns - t0_ns < limbo_ns / 100 * LEASE_PERCENT;
}

#endif
