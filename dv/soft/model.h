/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a modelled port and its QPs remember; part of soft.h. Owned by the steps, under nic->lock.
 */
#ifndef DV_SOFT_MODEL_H
#define DV_SOFT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The port. Times are ticks of 1/64 ns of CLOCK_MONOTONIC: fine enough
 * for a 64-byte message at 400 Gbit/s, and good for nine years of uptime.
 */
#define SOFT_TICKS_NS 64u
#define SOFT_READS_MAX 16u /* READs of one QP under way */

struct soft_model {
	bool on, move_bytes, uneven; /* uneven: memory of another node is farther */
	uint8_t mtu_bits;
	uint32_t header_bytes, reads_per_qp;
	uint64_t rtt, numa, qp_gap, port_gap;
	uint64_t byte, byte_far; /* ticks on the wire, / 2^32 */
	uint64_t link_at;        /* the link is free from here on */
	uint64_t small_at;       /* ... for an answer of one packet */
	uint64_t message_at;     /* the port can start another message */
	uint64_t now;            /* in this step; 0: not asked yet, which a model always does */
	uint64_t before;         /* nothing that starts in this step starts earlier */
	uint64_t due;            /* the next thing that the last step left for later */
	uint64_t gbps;
};

/* One QP of it. */
struct soft_pace {
	uint64_t rung_at;    /* of the last doorbell: WQEs decoded after it were rung then */
	uint64_t message_at; /* it can start another message */
	uint64_t done_at;    /* of its last WQE started */
	uint64_t read_at[SOFT_READS_MAX]; /* when its last READs complete */
	uint32_t reads;
};

#endif
