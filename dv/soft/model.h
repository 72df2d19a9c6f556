/* SPDX-License-Identifier: Apache-2.0 */
/* State of a modelled port and of its QPs; part of soft.h. Written by steps, under nic->lock. */
#ifndef DV_SOFT_MODEL_H
#define DV_SOFT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

/*
 * State of the port. Times are in ticks of 1/64 ns of CLOCK_MONOTONIC: fine enough for a 64-byte
 * message at 400 Gbit/s; a 64-bit tick counter lasts for nine years of uptime.
 */
#define SOFT_TICKS_NS 64u
#define SOFT_READS_MAX 16u /* READs that one QP may have in flight, at most */

/* A port of this machine, by a hash of its gid, in memory that all processes share. */
#define SOFT_FAR_PORTS 4096u
struct soft_far_port {
	uint64_t free_at; /* ticks: from then on its link is free for an answer */
	uint64_t bytes;   /* of the answers that crossed it, with headers */
};

struct soft_model {
	bool on, still;
	uint8_t mtu_bits;
	uint32_t header_bytes, reads_per_qp;
	uint64_t rtt, qp_gap, port_gap;
	uint64_t byte;    /* time of one byte on the wire in ticks, as 32.32 fixed point */
	uint64_t link_at; /* time from which the simulated link is free */
	/* time from which the simulated link is free for an answer of one packet */
	uint64_t small_at;
	uint64_t message_at; /* time from which the port may start its next message */
	/* clock of the model in this step; 0: not read yet (never 0 with a model) */
	uint64_t now;
	uint64_t before; /* lower bound of the start times of the WQEs that this step starts */
	uint64_t due;    /* earliest time of the work that the last step postponed */
	uint64_t gbps;
	struct soft_far_port *far; /* NULL: links of far ports cost nothing */
};

/* State of one QP of the port. */
struct soft_pace {
	/* time of the QP's last doorbell: WQEs decoded after it count as rung then */
	uint64_t rung_at;
	uint64_t message_at;              /* time from which the QP may start its next message */
	uint64_t done_at;                 /* completion time of the QP's last started WQE */
	uint64_t read_at[SOFT_READS_MAX]; /* completion times of the QP's last READs */
	uint32_t reads;
};

#endif
