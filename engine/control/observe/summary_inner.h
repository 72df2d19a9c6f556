/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one engine tells another about itself for the cluster view of the dashboard: 256 bytes,
 * little-endian, sent as Summary.data. The sender's control plane fills it, the receiver's control
 * plane checks and stores it, the metrics thread merges and shows it. All functions are pure: any
 * thread.
 *
 * Percentiles of the latencies of about the last ten seconds are those of each member. Of several
 * members the longest counts: "p99" of the cluster is that of the member with the longest p99.
 *
 * A member that lies spoils its own row, and the totals within the limits below.
 */
#ifndef CONTROL_SUMMARY_INNER_H
#define CONTROL_SUMMARY_INNER_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SUMMARY_BYTES 256u
#define SUMMARY_FINDING_BYTES 24
#define SUMMARY_NONE 0xffffu /* a share of nothing: no page was read */

/* Limits of what a receiver accepts; larger values are cut to the limit. */
#define SUMMARY_BYTES_PER_S_MAX (1ull << 44)
#define SUMMARY_PER_S_MAX 4000000000u
#define SUMMARY_WINDOW_MS_MAX 60000u
#define SUMMARY_MEMBERS_MAX (2u * NODES_MAX)
#define SUMMARY_BATCHES_MAX 1000000000u

enum severity { SEVERITY_OK, SEVERITY_INFO, SEVERITY_WARNING, SEVERITY_CRITICAL };
enum summary_call { SUMMARY_GET, SUMMARY_SET, SUMMARY_EXISTS, SUMMARY_CALLS };
enum summary_time { SUMMARY_P50, SUMMARY_P99, SUMMARY_P999, SUMMARY_TIMES };

#define SUMMARY_MOVING 1u   /* directory entries move to new owners */
#define SUMMARY_BEHIND 2u   /* an owner has not yet taken all entries of the sender */
#define SUMMARY_STOPPING 4u /* the sender was told to stop */
#define SUMMARY_FLAGS 7u

/* Batches of a call, and times that 50%, 99% and 99.9% of them did not exceed. */
struct summary_calls {
	uint32_t batches, us[SUMMARY_TIMES];
};

struct summary {
	uint8_t made;     /* not 0; 0: no summary */
	uint8_t severity; /* enum severity of the worst finding */
	uint8_t flags;
	uint8_t findings; /* number of findings about the engine itself */
	uint8_t rails, rails_up;
	uint16_t members_up, members_down; /* as the sender sees them; down: silent or down */
	uint16_t pool_used;                /* 1/1000 of the pools of all rails */
	uint16_t directory_used;           /* 1/1000 of the shard's entries */
	uint16_t hits;           /* 1/1000 of the pages of get in the window, or SUMMARY_NONE */
	uint16_t dashboard_port; /* of the dashboard at cluster.address; 0: none, or elsewhere */
	uint16_t window_ms;      /* time that rates, shares and percentiles cover */
	uint32_t uptime_s;
	uint64_t get_bytes_per_s, set_bytes_per_s;
	uint32_t get_pages_per_s, evictions_per_s;
	/* id of the most important finding (health.def), zeros behind it; "": none */
	char finding[SUMMARY_FINDING_BYTES];
	struct summary_calls calls[SUMMARY_CALLS];
	uint8_t spare[136]; /* zero */
};
static_assert(sizeof(struct summary) == SUMMARY_BYTES, "sent as it is");
static_assert(offsetof(struct summary, hits) == 14, "sent as it is");
static_assert(offsetof(struct summary, get_bytes_per_s) == 24, "sent as it is");
static_assert(offsetof(struct summary, finding) == 48, "sent as it is");
static_assert(offsetof(struct summary, calls) == 72, "sent as it is");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sent as it is");

/*
 * Copies a received summary; every value of *ret is within its limits afterwards. False: `bytes` is
 * not SUMMARY_BYTES, or `made` is 0; *ret is then undefined.
 */
bool summary_decode(const uint8_t *data, size_t bytes, struct summary *ret);

#endif
