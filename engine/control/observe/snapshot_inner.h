/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's state at one moment, as plain data: the loop takes it, and everything that is shown
 * (report, metrics, dashboard) is made from it, on whatever thread. Rendering never touches the
 * control plane. Functions of the loop are in observe.h.
 */
#ifndef CONTROL_SNAPSHOT_INNER_H
#define CONTROL_SNAPSHOT_INNER_H

#include <string.h>

#include "engine/abi/latency.h"
#include "engine/abi/statistics.h"
#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/copies/copies.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/observe/figures_inner.h"
#include "engine/control/observe/observe.h"
#include "engine/control/observe/summary_inner.h"
#include "engine/control/pages/pages.h"
#include "engine/rail/rail.h"

#define SNAPSHOT_STATE_BYTES 8 /* "up", "down", "slow", "lost"; "opening", "out" */
#define SNAPSHOT_WHY_BYTES 200
#define SNAPSHOT_SOFTWARE_BYTES 32
/* Members that are listed; of larger clusters those come first that this engine has to do with. */
#define SNAPSHOT_MEMBERS 2048

#define SNAPSHOT_GROUPS 64u /* groups of namespaces */

enum { SNAPSHOT_UP, SNAPSHOT_SILENT, SNAPSHOT_DOWN, SNAPSHOT_MEMBER_STATES };

/* The name of a member's state. */
static inline const char *snapshot_state_name(unsigned state)
{
	static const char *const names[SNAPSHOT_MEMBER_STATES] = {"up", "silent", "down"};

	return names[state];
}

struct snapshot_member {
	char name[NAME_BYTES_MAX];
	char address[NAME_BYTES_MAX];
	char software[SNAPSHOT_SOFTWARE_BYTES]; /* program version; "": not known */
	unsigned state; /* SNAPSHOT_UP, SNAPSHOT_SILENT for two heartbeats, or SNAPSHOT_DOWN */
	uint64_t incarnation;
	uint32_t ref;
	uint16_t port;
	uint16_t rails;
	bool self;
	bool on_map;
	uint64_t state_ms;            /* how long it has been silent or down; up: 0 */
	unsigned links;               /* connections with it, 0 to 2 */
	uint64_t heard_ms;            /* since its last message */
	struct directory_owner owner; /* what this engine sends to it; not of this engine itself */
	/* probes (member_probe.c): since the last served one was sent, -1: none was */
	int64_t probed_ms;
	uint64_t unprobed_ms;    /* how long the oldest one waits for its answer; 0: none waits */
	bool unserving;          /* it is down because it did not serve */
	int64_t trial_ms;        /* how long it has answered all probes; -1: it does not */
	uint64_t trial_needs_ms; /* when it is a member again */
	/* its summary (view_inner.h) */
	bool summary_silent; /* it has not answered requests for VIEW_SILENT_NS */
	uint64_t summary_ns; /* CLOCK_MONOTONIC of `summary`; 0: there is none */
	struct summary summary;
};

struct snapshot_rail {
	char device[NAME_BYTES_MAX];
	char state[SNAPSHOT_STATE_BYTES]; /* "up", "down", "slow", "lost" */
	char why[SNAPSHOT_WHY_BYTES];     /* the port cannot be used, and the remedy; "": it can */
	int core, node;
	unsigned poll_core, gbps;
	bool busy, isolated, modelled; /* the first two: of its poll core */
	uint64_t pool_bytes, pool_used_bytes, registered_bytes;
	uint64_t pages;
	uint32_t limbo; /* slots */
	uint32_t in_flight, peers_out;
	uint64_t counter[COUNTER_COUNT];
	uint64_t latency[LATENCY_BUCKETS]; /* sampled READs */
	uint64_t latency_ns_sum;
};

struct snapshot_disk_path {
	char directory[NAME_BYTES_MAX];   /* the end of a long name */
	char state[SNAPSHOT_STATE_BYTES]; /* "opening", "up", "out": as the tier uses it */
	uint64_t bytes, used_bytes;
	struct disk_path_report report; /* `state` of it counts only while the tier serves */
};

/* The disk tier; paths 0: there is none. */
struct snapshot_disk {
	unsigned paths, paths_out;
	struct snapshot_disk_path path[DISK_PATHS_MAX];
	uint64_t pages, index_bytes;
	uint32_t spills, promotes, waiting, pins;
	uint64_t spill_bytes, pinned_bytes;
	uint64_t writing_ns; /* time in which pages were being written, since the start */
	/* sums of the paths */
	uint64_t bytes, used_bytes, bytes_written, bytes_read, errors;
};

struct snapshot_poll_core {
	unsigned number; /* as in snapshot_rail.poll_core */
	unsigned rails;
	struct poll_core_report report;
};

struct snapshot {
	uint64_t taken_ns; /* CLOCK_MONOTONIC */
	uint64_t unix_ms;  /* CLOCK_REALTIME */
	uint64_t uptime_ms;
	uint64_t started_unix_ms; /* constant while the engine runs */
	char name[NAME_BYTES_MAX];
	char cluster[NAME_BYTES_MAX];
	uint64_t incarnation;
	int pid, control_core;
	bool stopping, keeper_gone;
	const char *security;    /* of links between engines: secure_word() */
	bool unsecured;          /* secure_missing() */
	int64_t secure_ends_s;   /* secure_ends_s() */
	unsigned addresses_gone; /* bits of addresses_here(): net/address.h */
	bool registering;        /* control.exporting: it has not joined the cluster */
	uint64_t memory_bytes, populated_bytes; /* as in struct control */
	const struct settings *settings;        /* constant while the engine runs */
	/* members that are listed, and the number of those that are not, by state */
	unsigned members, members_more[SNAPSHOT_MEMBER_STATES];
	uint32_t map_epoch;
	struct seeds_report seeds;
	struct refusals_report refusals;
	unsigned rails;
	struct snapshot_rail rail[RAILS_MAX];
	unsigned poll_cores;
	struct snapshot_poll_core poll_core[RAILS_MAX];
	uint64_t counter[COUNTER_COUNT]; /* the control plane's own */
	uint64_t shard_entries, shard_capacity;
	uint64_t keys;
	struct directory_counts directory;
	struct conn_counts connections;
	struct snapshot_disk disk;
	struct client_counts attached;
	struct ctl_counts published;
	struct copies_counts copies;
	struct drain_counts drain;
	/* those with limits first; `groups_more`: others have pages, too */
	struct index_group group[SNAPSHOT_GROUPS];
	unsigned groups;
	bool groups_more;
	uint64_t pinned_bytes;
	struct warm_counts warm;
	struct statistics_words clients; /* totals of all clients since the engine started */
	uint64_t http_unauthorized;
	uint64_t statistics_refused; /* channels that wrote impossible figures */
	/* how late the loop's timers fired: abi/latency.h */
	uint64_t lag[LATENCY_BUCKETS];
	uint64_t lag_ns_sum, lag_worst_ns;
	struct moment past; /* about ten seconds before; of a young engine its first snapshot */
	struct recents recent;
	/* the last one: memory behind `members` of them is not touched */
	struct snapshot_member member[SNAPSHOT_MEMBERS];
};

/* 0: it was taken after `now_ns` was read, by another thread. */
static inline uint64_t snapshot_age_ns(const struct snapshot *s, uint64_t now_ns)
{
	return now_ns > s->taken_ns ? now_ns - s->taken_ns : 0;
}

/* Number of members in a state, listed or not. Any thread. */
static inline unsigned snapshot_members(const struct snapshot *s, unsigned state)
{
	unsigned count = s->members_more[state];

	for (unsigned i = 0; i < s->members; i++)
		count += s->member[i].state == state;
	return count;
}

/*
 * The report: a snapshot as JSON text, for peercachectl, the dashboard and tests. `now_ns`:
 * CLOCK_MONOTONIC; the findings are of that moment. 0 with a zero-terminated text of *ret_bytes
 * characters, which the caller frees, or -ENOMEM. Any thread.
 */
int report_make(const struct snapshot *s, uint64_t now_ns, char **ret_text, size_t *ret_bytes);

/* Reader's thread: the newest one, its own until the next call; NULL: none was published yet. */
const struct snapshot *snapshots_newest(struct snapshots *snapshots);

#endif
