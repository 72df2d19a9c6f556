/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong with this engine and its cluster, worst first, in words for the operator. Made from
 * snapshots alone; health.def lists every finding. Any thread.
 */
#ifndef CONTROL_HEALTH_INNER_H
#define CONTROL_HEALTH_INNER_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/control/observe/snapshot_inner.h"

enum finding {
#define FINDING(id, severity, help) FINDING_##id,
#include "engine/control/observe/health.def"
#undef FINDING
	FINDING_COUNT
};

#define HEALTH_FINDINGS_MAX 40u
#define HEALTH_TEXT_BYTES 320
#define CERTIFICATE_ENDS_S (14 * 86400)
#define HEALTH_BLOCKED_NS 1500000000ull /* a snapshot this old: the control plane is blocked */

struct health {
	unsigned count;
	struct {
		enum finding id;
		enum severity severity;
		char text[HEALTH_TEXT_BYTES];
	} finding[HEALTH_FINDINGS_MAX];
};

/* `now_ns`: CLOCK_MONOTONIC. */
void health_make(const struct snapshot *s, uint64_t now_ns, struct health *ret);
/* The worst severity among the findings; SEVERITY_OK when there is none. */
enum severity health_worst(const struct health *health);
const char *finding_name(enum finding id);
const char *finding_help(enum finding id);         /* what it means, as in health.def */
const char *severity_name(enum severity severity); /* "ok", "info" ... */

/* When an engine is ready (metrics.ready_*). */
struct health_wanted {
	unsigned members; /* that must be up, this engine included */
	bool alone;       /* it may be alone although it has seeds */
};
/*
 * Does the engine serve, and see what it was told to see? The reason in one line if not; NULL: it
 * does.
 */
const char *health_not_ready(const struct snapshot *s, const struct health_wanted *wanted,
	uint64_t now_ns, char *text, size_t bytes);

#endif
