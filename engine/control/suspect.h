/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which member is suspect, and what that means for a publish: pure functions, which the engine, the
 * simulator and the tests share.
 *
 * A suspicion is local. It ends the waiting for an owner; it removes no member from the map, and
 * publishes to a suspect owner continue within its limits. Heartbeats do not end the suspicion that
 * a member does not serve: only an acknowledgement does.
 */
#ifndef CONTROL_SUSPECT_H
#define CONTROL_SUSPECT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A member is suspect after this many heartbeat intervals without a message from it, but not before
 * the time below.
 */
#define SUSPECT_BEATS 2u
/* It is suspect when a request has waited for this part of cluster.dead_after_ms. */
#define SUSPECT_PART 10u
/* How often owners that owe an answer are looked at, within that time. */
#define SUSPECT_LOOKS 6u

enum suspect_why {
	SUSPECT_NOT,
	SUSPECT_UNSERVED, /* a request waits too long for its acknowledgement */
	SUSPECT_SILENT,   /* no message for SUSPECT_BEATS heartbeats */
	SUSPECT_UNLINKED, /* there is no connection; shown, but no reason to stop waiting */
};

/* What this engine knows of a member. Times in ns. */
struct suspect_evidence {
	uint64_t silent_ns;   /* since its last message */
	uint64_t unserved_ns; /* since the oldest request without an answer was sent; 0: none */
	uint64_t beat_ns;     /* interval of heartbeats */
	uint64_t dead_ns;     /* cluster.dead_after_ms */
	bool linked;
	bool unserved_before; /* it was SUSPECT_UNSERVED, and has acknowledged nothing since */
	bool paused;          /* this engine did not run: its own pause proves nothing */
};

static inline uint64_t suspect_patience_ns(uint64_t dead_ns)
{
	return dead_ns / SUSPECT_PART;
}

static inline enum suspect_why suspect_judge(const struct suspect_evidence *e)
{
	uint64_t patience_ns = suspect_patience_ns(e->dead_ns);

	if (e->unserved_before)
		return SUSPECT_UNSERVED;
	if (!e->paused && e->unserved_ns > patience_ns)
		return SUSPECT_UNSERVED;
	if (!e->paused && e->silent_ns > patience_ns && e->silent_ns > SUSPECT_BEATS * e->beat_ns)
		return SUSPECT_SILENT;
	return e->linked ? SUSPECT_NOT : SUSPECT_UNLINKED;
}

/* The name that tools and JSON show; "": not suspect. */
static inline const char *suspect_name(enum suspect_why why)
{
	switch (why) {
	case SUSPECT_UNSERVED: return "unserved";
	case SUSPECT_SILENT: return "silent";
	case SUSPECT_UNLINKED: return "unlinked";
	case SUSPECT_NOT:
	default: return "";
	}
}

/* True if a publish does not wait for this owner any longer. */
static inline bool suspect_steers(enum suspect_why why)
{
	return why == SUSPECT_UNSERVED || why == SUSPECT_SILENT;
}

enum publish_verdict {
	PUBLISH_WAIT,
	PUBLISH_WHOLE,       /* every owner has answered */
	PUBLISH_PARTIAL,     /* the page can be found; the missing owners are suspect */
	PUBLISH_UNREACHABLE, /* no owner has it, and those that have not answered are suspect */
};

/*
 * Decides whether a publish is complete. acked: owners that stored the entry; waiting: owners
 * without an answer; suspects: those of them for which suspect_steers().
 */
static inline enum publish_verdict publish_judge(
	unsigned acked, unsigned waiting, unsigned suspects)
{
	if (waiting == 0)
		return PUBLISH_WHOLE;
	if (suspects < waiting)
		return PUBLISH_WAIT;
	return acked ? PUBLISH_PARTIAL : PUBLISH_UNREACHABLE;
}

#endif
