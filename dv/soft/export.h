/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a software NIC shows to its peers: which of its QPs answer whom, and which memory they may
 * have. Written under the world's lock; other processes of this host read it through a mapping, so
 * each entry has a guard word, and they believe nothing of it without a check.
 */
#ifndef DV_SOFT_EXPORT_H
#define DV_SOFT_EXPORT_H

#include <assert.h>
#include <stdint.h>

#include "config/limits.h"

#define SOFT_SLOT_BITS 13u
#define SOFT_QPS_MAX (1u << SOFT_SLOT_BITS) /* qpn = generation << SLOT_BITS | slot; 0 unused */
#define SOFT_MRS_MAX 8192u                  /* key = slot << 8 | generation */
#define SOFT_MR_FIRST 16u /* keys below 0x1000 are never handed out: 0x100 is special to mlx5 */
/* Clients' ranges, staging, pools with their heads, the shard, the rail's heads. */
static_assert(EXTENTS_MAX + CHANNELS_MAX + 2 * RAILS_MAX + 2 <= SOFT_MRS_MAX - SOFT_MR_FIRST,
	"an engine's MRs fit");

struct soft_export_mr {
	uint32_t rkey; /* the guard; 0: nothing */
	uint32_t access;
	uint64_t base, length;
	uint64_t offset; /* of base, in the file */
	uint32_t file;   /* 0: not backed by one */
	uint32_t spare;
};

struct soft_export_qp {
	uint32_t qpn; /* the guard; 0: does not answer */
	uint32_t peer_qpn;
	uint32_t peer_psn;
	uint32_t psn;
};

struct soft_export {
	uint64_t magic;
	uint64_t spare[7];
	struct soft_export_qp qps[SOFT_QPS_MAX];
	struct soft_export_mr mrs[SOFT_MRS_MAX];
};
#define SOFT_EXPORT_MAGIC 0x3174726f70786570ull /* "pexport1"; changes with the layout */
static_assert(sizeof(struct soft_export_mr) == 40 && sizeof(struct soft_export_qp) == 16,
	"two processes of one build agree");

#endif
