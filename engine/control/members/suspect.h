/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which member is suspect, and what that means for a publish: pure functions, which the engine, the
 * simulator and the tests share.
 *
 * A suspicion is local. It ends the waiting for an owner; it removes no member from the map, and
 * publishes to a suspect owner continue within its limits. Heartbeats do not end the suspicion that
 * a member does not serve: only an acknowledgement or an answered probe does.
 *
 * A member that answers no probe for longer than suspect_removal_ns() is removed from the map,
 * unless another engine is served by it. It comes back when it has answered probes for
 * suspect_trial_ns().
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

/* Members are probed at this part of cluster.dead_after_ms. */
#define PROBE_PART 30u
#define PROBE_PAD_EVERY 5u /* one probe of these is padded; on trial, every second one */
/* A probe without an answer is sent again on the same link after this part of dead_after_ms. */
#define PROBE_AGAIN_PART 2u
/* Members that are probed at a time, in turn; those that owe an answer do not count. */
#define PROBE_TARGETS 2u
/* Removals of a member within this time of each other double the time of its trial. */
#define TRIAL_MEMORY_NS (600ull * 1000000000)
#define TRIAL_DOUBLINGS_MAX 6u

enum suspect_why {
	SUSPECT_NOT,
	SUSPECT_UNSERVED, /* a request waits too long for its acknowledgement */
	SUSPECT_UNREAD,   /* READs of it hang, and READs of other members complete */
	SUSPECT_SILENT,   /* no message for SUSPECT_BEATS heartbeats */
	SUSPECT_UNLINKED, /* there is no connection; shown, but no reason to stop waiting */
};

/*
 * How long this engine did not run before a tick that is due every `period_ns`; 0: the tick is not
 * late, or not by more than a period.
 */
static inline uint64_t suspect_pause_ns(uint64_t last_ns, uint64_t now_ns, uint64_t period_ns)
{
	uint64_t since_ns = now_ns - last_ns;

	return since_ns > 2 * period_ns ? since_ns - period_ns : 0;
}

/*
 * A time of a member after a pause of this engine, in which it could hear nothing: later by the
 * pause, but not in the future, where what came since the end of the pause would put it.
 */
static inline uint64_t suspect_after_pause(uint64_t then_ns, uint64_t pause_ns, uint64_t now_ns)
{
	return then_ns + pause_ns < now_ns ? then_ns + pause_ns : now_ns;
}

/* What this engine knows of a member. Times in ns. */
struct suspect_evidence {
	uint64_t silent_ns; /* since its last message */
	/* since the oldest request or probe without an answer was sent; 0: none */
	uint64_t unserved_ns;
	uint64_t beat_ns; /* interval of heartbeats */
	uint64_t dead_ns; /* cluster.dead_after_ms */
	bool linked;
	bool unread;          /* SUSPECT_UNREAD; see directory_unread() */
	bool unserved_before; /* it was SUSPECT_UNSERVED, and has acknowledged nothing since */
	bool paused;          /* this engine did not run: its own pause proves nothing */
};

static inline uint64_t suspect_patience_ns(uint64_t dead_ns)
{
	return dead_ns / SUSPECT_PART;
}

/* A member that serves nothing is removed after this time: 3.5 s of 3 s. */
static inline uint64_t suspect_removal_ns(uint64_t dead_ns)
{
	return dead_ns + dead_ns / 6;
}

/* Time for which others may refute a claim before the member is removed: 1.5 s of 3 s. */
static inline uint64_t suspect_wait_ns(uint64_t dead_ns)
{
	return dead_ns / 2;
}

/*
 * Until when an engine does not remove a claimed member that it hears itself: as long as if there
 * were no claim, less a round of probes. heard_ns: when its last message came; served_ns: when a
 * probe of each size was sent that it has answered, 0: never.
 */
static inline uint64_t suspect_spares_ns(uint64_t heard_ns, uint64_t served_ns, uint64_t dead_ns)
{
	uint64_t silent_ns = heard_ns + dead_ns;
	uint64_t unserved_ns = served_ns ? served_ns + suspect_removal_ns(dead_ns) : 0;

	return silent_ns < unserved_ns ? silent_ns : unserved_ns;
}

/* Time for which a removed member answers probes before it comes back: 5 s of 3 s, doubling. */
static inline uint64_t suspect_trial_ns(uint64_t dead_ns, unsigned removals)
{
	unsigned doublings = removals ? removals - 1 : 0;

	return dead_ns * 5 / 3 << (doublings < TRIAL_DOUBLINGS_MAX ? doublings
								   : TRIAL_DOUBLINGS_MAX);
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
	if (e->unread)
		return SUSPECT_UNREAD;
	return e->linked ? SUSPECT_NOT : SUSPECT_UNLINKED;
}

/* The name that tools and JSON show; "": not suspect. */
static inline const char *suspect_name(enum suspect_why why)
{
	switch (why) {
	case SUSPECT_UNSERVED: return "unserved";
	case SUSPECT_UNREAD: return "unread";
	case SUSPECT_SILENT: return "silent";
	case SUSPECT_UNLINKED: return "unlinked";
	case SUSPECT_NOT:
	default: return "";
	}
}

/* True if a publish does not wait for this owner any longer. */
static inline bool suspect_steers(enum suspect_why why)
{
	return why == SUSPECT_UNSERVED || why == SUSPECT_UNREAD || why == SUSPECT_SILENT;
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
