/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The export table of a software NIC: which of its QPs answer which remote QP, and which memory
 * peers may access. Written under the world's lock. Other processes of this host read it through a
 * mapping, so each entry has a guard word, and readers check every value before they use it.
 */
#ifndef DV_SOFT_EXPORT_H
#define DV_SOFT_EXPORT_H

#include <assert.h>
#include <stdint.h>

#include "config/limits.h"
#include "dv/setup.h"

#define SOFT_SLOT_BITS 13u
/* a QP number is generation << SOFT_SLOT_BITS | slot of the table; slot 0 is unused */
#define SOFT_QPS_MAX (1u << SOFT_SLOT_BITS)
#define SOFT_MRS_MAX 8192u /* slots for MRs; a memory key is slot << 8 | generation */
/* first MR slot used: keys below 0x1000 are never given out, 0x100 is special to mlx5 */
#define SOFT_MR_FIRST 16u
/* An engine's MRs: client extents, staging, pools with their heads, the shard, rail heads. */
static_assert(EXTENTS_MAX + CHANNELS_MAX + 2 * RAILS_MAX + 2 <= SOFT_MRS_MAX - SOFT_MR_FIRST,
	"an engine's MRs fit");

struct soft_export_mr {
	uint32_t rkey; /* guard of this entry (dv/order.h) and key; 0: the entry is free */
	uint32_t access;
	uint64_t base, length;
	uint64_t offset; /* offset of `base` in the memfd */
	uint32_t file;   /* id of the memfd (soft_file.id); 0: no memfd backs the memory */
	uint32_t spare;
};

struct soft_export_qp {
	/* guard of this entry (dv/order.h) and QP number; 0: free, the QP answers no peer */
	uint32_t qpn;
	uint32_t peer_qpn;
	uint32_t peer_psn;
	uint32_t psn;
	uint8_t token[DV_TOKEN_BYTES]; /* with the TCP link, of the QP; else 0 */
};

struct soft_export {
	uint64_t magic;
	uint64_t spare[7];
	struct soft_export_qp qps[SOFT_QPS_MAX];
	struct soft_export_mr mrs[SOFT_MRS_MAX];
};
/* the bytes "pexport2"; they change with the layout of the table */
#define SOFT_EXPORT_MAGIC 0x3274726f70786570ull
static_assert(sizeof(struct soft_export_mr) == 40 && sizeof(struct soft_export_qp) == 32,
	"two processes of one build agree");

/*
 * What a requester names: QPs, key, memory, rights. The responder checks it against its table. A
 * part of a request over TCP.
 */
struct soft_ask {
	uint32_t dest_qpn, dest_psn; /* numbers of the responder's QP */
	uint32_t src_qpn, src_psn;   /* numbers of the requester's QP */
	uint32_t rkey, access;
	uint64_t address, length;
};

#endif
