/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one engine tells another about itself for the cluster view of the dashboard: 256 bytes,
 * little-endian, sent as Summary.data. The sender's control plane fills it, the receiver's control
 * plane checks and stores it, the metrics thread merges and shows it. All functions are pure: any
 * thread.
 *
 * Latencies of about the last ten seconds are histograms that are merged by adding counts. A bucket
 * is two buckets of abi/latency.h, so there are two for each power of two, and a count is one byte
 * on a logarithmic scale. Bounds for a percentile of merged histograms:
 *   - a bucket's upper bound is at most 1.5 times its lower bound;
 *   - a count that is sent differs from the true one by at most 1/17 of it, so the odds of the
 *     rank, p / (1 - p), are met within a factor of 9/8: "p99" lies between the true p98.8 and
 *     p99.2, "p50" between the true p47 and p53.
 *
 * A member that lies spoils its own row. In the merged histogram it has the weight of the batches
 * that it claims, at most SUMMARY_BATCHES_MAX of each call, and in the totals what it claims, at
 * most the limits below.
 */
#ifndef CONTROL_SUMMARY_INNER_H
#define CONTROL_SUMMARY_INNER_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/abi/latency.h"

#define SUMMARY_BYTES 256u
#define SUMMARY_BUCKETS (2u * (LATENCY_POWER_MAX - LATENCY_POWER_MIN) + 2u)
#define SUMMARY_FINDING_BYTES 24
#define SUMMARY_NONE 0xffffu /* a share of nothing: no page was read */

/* Limits of what a receiver accepts; larger values are cut to the limit. */
#define SUMMARY_BYTES_PER_S_MAX (1ull << 44)
#define SUMMARY_PER_S_MAX 4000000000u
#define SUMMARY_WINDOW_MS_MAX 60000u
#define SUMMARY_MEMBERS_MAX (2u * NODES_MAX)
/* Batches of one call in one summary: more make the histogram count as empty */
#define SUMMARY_BATCHES_MAX 1000000000ull

enum severity { SEVERITY_OK, SEVERITY_INFO, SEVERITY_WARNING, SEVERITY_CRITICAL };
enum summary_call { SUMMARY_GET, SUMMARY_SET, SUMMARY_EXISTS, SUMMARY_CALLS };

#define SUMMARY_MOVING 1u   /* directory entries move to new owners */
#define SUMMARY_BEHIND 2u   /* an owner has not yet taken all entries of the sender */
#define SUMMARY_STOPPING 4u /* the sender was told to stop */
#define SUMMARY_FLAGS 7u

struct summary {
	uint8_t made;     /* not 0; 0: no summary */
	uint8_t severity; /* enum severity of the worst finding */
	uint8_t flags;
	uint8_t findings; /* number of findings about the engine itself */
	uint8_t rails, rails_up;
	uint16_t members_up, members_down; /* as the sender sees them; down: silent or down */
	uint16_t pool_used;                /* 1/1000 of the pools of all rails */
	uint16_t directory_used;           /* 1/1000 of the shard's entries */
	/* `hits`: 1/1000 of the pages of get in the window, or SUMMARY_NONE */
	uint16_t hits, unused;
	uint16_t window_ms; /* time that rates, shares and histograms cover */
	uint32_t uptime_s;
	uint64_t get_bytes_per_s, set_bytes_per_s;
	uint32_t get_pages_per_s, evictions_per_s;
	/* id of the most important finding (health.def), zeros behind it; "": none */
	char finding[SUMMARY_FINDING_BYTES];
	/* of the dashboard at cluster.address; 0: none, elsewhere, or the sender is older */
	uint16_t dashboard_port;
	uint8_t spare[20];                               /* zero */
	uint8_t latency[SUMMARY_CALLS][SUMMARY_BUCKETS]; /* batches: summary_code() */
};
static_assert(sizeof(struct summary) == SUMMARY_BYTES, "sent as it is");
static_assert(offsetof(struct summary, hits) == 14, "sent as it is");
static_assert(offsetof(struct summary, get_bytes_per_s) == 24, "sent as it is");
static_assert(offsetof(struct summary, finding) == 48, "sent as it is");
static_assert(offsetof(struct summary, dashboard_port) == 72, "sent as it is");
static_assert(offsetof(struct summary, latency) == 94, "sent as it is");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "sent as it is");

/*
 * A count as one byte: exact up to 16, above that one of eight for each power of two, the nearest.
 * The largest is 15 << 30.
 */
uint8_t summary_code(uint64_t count);
uint64_t summary_count(uint8_t code);

/* The codes of a histogram of abi/latency.h. */
void summary_latency(const uint64_t latency[LATENCY_BUCKETS], uint8_t ret_codes[SUMMARY_BUCKETS]);

/*
 * Copies a received summary; every value of *ret is within its limits afterwards. False: `bytes` is
 * not SUMMARY_BYTES, or `made` is 0; *ret is then undefined.
 */
bool summary_decode(const uint8_t *data, size_t bytes, struct summary *ret);

/* Histograms of several members. All zero: none. */
struct summary_merged {
	uint64_t batches[SUMMARY_CALLS][SUMMARY_BUCKETS];
};
void summary_merge(struct summary_merged *merged, const struct summary *summary);

/* The shortest latency that `bucket` counts, in ns. */
uint64_t summary_lower_ns(unsigned bucket);
uint64_t summary_batches(const uint64_t batches[SUMMARY_BUCKETS]);
/*
 * The latency that `permille` of 1000 batches do not exceed, in ns: the upper bound of the bucket
 * that percentile lies in (of the last bucket, its lower bound). 0: no batches.
 */
uint64_t summary_quantile_ns(const uint64_t batches[SUMMARY_BUCKETS], unsigned permille);

#endif
