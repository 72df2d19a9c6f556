/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct control: the control plane of one engine, everything that is not on the data path. It runs
 * in one libevent loop on the housekeeping core. All functions of engine/control run on that thread
 * unless they say otherwise, and none of them blocks: helper threads make the calls that may block.
 *
 * This header is the floor of the house: it knows the rooms above only by name. The state of a room
 * is behind a pointer, and the room's header says what others may use of it.
 *
 *   (root)      control_open.c builds and closes everything; loop.c is the thread; upward.c has
 *               the messages of other engines, and the calls that point up
 *   observe/    snapshots, reports, metrics, health, the view of the cluster
 *   conns/      connections to the NICs of other engines; lost NICs
 *   clients/    sessions, memory and ctl rings of this host's clients; statistics
 *   copies/     pages of other hosts that are brought into the pools of this one
 *   directory/  which engine has which page, and what was removed
 *   pages/      pools, index, shard, eviction, disk, scrubber, warm restart
 *   members/    which engines are alive; the cluster map; seeds
 *   net/        time, TCP, links between engines
 *   base/       this header, commands to the rails, helper threads, the watchdog
 *
 * Calls point down this list; engine/control/README.md says more.
 */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include <event2/event.h>

#include "config/settings.h"
#include "dv/setup.h"
#include "engine/abi/latency.h"
#include "engine/abi/segment.h"
#include "engine/control/base/outbox.h"
#include "engine/rail/rail.h"
#include "numa/huge.h"
#include "numa/plan.h"

/* ---- the rooms, from the top of the house to its floor --------------------------------------- */

struct loop;          /* (root) loop.h */
struct registration;  /* (root) control_memory.c: registers the memory on a NIC */
struct populate;      /* (root) control_memory.c: makes the kernel allocate memory */
struct fault_file;    /* (root) test_hooks.c */
struct metrics;       /* observe/: the HTTP server */
struct view;          /* observe/: summaries of the members */
struct snapshots;     /* observe/: snapshots, which the metrics thread reads */
struct moments;       /* observe/: figures of past snapshots, for the recent ones */
struct conns;         /* conns/: queue pairs, and which rails are out of use */
struct device_watch;  /* conns/: events of the NICs */
struct clients;       /* clients/: sessions, channels, regions */
struct client_socket; /* clients/: their socket */
struct ctl;           /* clients/: the ctl rings */
struct clears;        /* clients/: groups of pages that clients clear */
struct clear_asks;    /* clients/: the same on other hosts */
struct statistics;    /* clients/: what the clients count */
struct copies;        /* copies/: pages of other hosts that are brought here */
struct offers;        /* copies/: pages that other hosts offer to this one */
struct drain;         /* copies/: pages of this host that are offered to others */
struct storage;       /* copies/: pages that are offered to storage hosts as they are stored */
struct hot;           /* copies/: pages of this host that others use again and again */
struct directory;     /* directory/: entries that this engine sends to their owners */
struct epochs;        /* directory/: what clears of the cluster have raised */
struct evict;         /* pages/: what each page size needs */
struct index;         /* pages/: the pages of this engine by key */
struct pool;          /* pages/: the memory of one rail */
struct shard;         /* pages/: directory entries that this engine owns */
struct warm;          /* pages/: memory that outlives the process */
struct tier;          /* pages/: the disk */
struct promote;       /* pages/: pages that come from other hosts' disks */
struct scrub;         /* pages/: checks pages */
struct members;       /* members/: the member table */
struct seeds_file;    /* members/: cluster.seeds_file */
struct etcd;          /* members/: cluster.etcd */
struct remembered;    /* members/: the address of a member */
struct rpc;           /* net/: links and dials */
struct secure;        /* net/: the keys of the cluster */
struct net_timer;     /* net/ */
struct watchdog;      /* base/ */

/* what a room calls of rooms above it, in the header of the room */
struct client_events;
struct pages_events;
struct member_events;
struct rpc_events;

/* ---- the engine ------------------------------------------------------------------------------ */

/* What the loop counts. The loop writes it; the watchdog's thread reads `beat`. */
struct loop_pace {
	uint64_t beat;       /* number of turns; the watchdog sees by it that the event loop runs */
	uint64_t started_ns; /* CLOCK_MONOTONIC of control_open() */
	uint64_t started_unix_ms;      /* CLOCK_REALTIME of the same moment */
	uint64_t lag[LATENCY_BUCKETS]; /* how late the loop's timer fired: abi/latency.h */
	uint64_t lag_ns_sum, lag_worst_ns;
};

/* One NIC with its poll core and its pool. */
struct control_rail {
	struct rail *rail;
	struct dv_device *device;
	struct pool *pool;
	/*
	 * eventfd that wakes the rail's poll core; rails of one poll core have duplicates of one
	 * eventfd
	 */
	int kick;
	/*
	 * Memory registrations on this rail's NIC, by region number: every pool and head array of
	 * this host, and the shard. length 0: none.
	 */
	struct dv_mr exported[REGIONS_EXPORTED];
};

struct control {
	const struct settings *settings;
	struct port_model port_model; /* soft.model */
	struct plan plan;
	struct event_base *base;
	uint64_t incarnation;
	uint32_t ref; /* low 32 bits of this engine's incarnation, never 0 */
	/*
	 * where the ref is kept for the engine that is started with this memory, see warm.c; NULL:
	 * nowhere. 0 there: that engine chooses another ref.
	 */
	uint32_t *kept_ref;
	/* where addresses of members are kept for that engine, see members.h; NULL: nowhere */
	struct remembered *remembered;
	/* name of this engine in the cluster; the same after a restart */
	char name[NAME_BYTES_MAX];

	struct huge status_memory;
	struct status_segment *status;
	int kick; /* eventfd by which clients and rails wake the control plane */

	unsigned rails;
	struct control_rail rail[RAILS_MAX];
	struct outbox outbox[RAILS_MAX]; /* commands that wait for room in the inbox of a rail */
	/* indexed by plan.rail[].poll_core, the number of a poll core */
	struct poll_core *poll_core[RAILS_MAX];
	struct registration *registration; /* of the engine's memory; see control_memory.c */
	/*
	 * the memory is not registered yet: no engine is dialled and none is answered, because none
	 * could READ. Clients of this host are served.
	 */
	bool exporting;
	struct populate *populate;
	/* of shard, pools and page heads; how much of it the kernel has allocated */
	uint64_t memory_bytes, populated_bytes;
	struct shard *shard;
	uint8_t bucket_bits; /* log2 of the number of buckets of the shard */
	struct index *index;
	uint64_t counter[COUNTER_COUNT];
	struct statistics *statistics; /* of all clients, since the engine started */

	/* Bound before the memory is allocated; clients are served once everything else is open. */
	struct client_socket *client_socket;
	int port_fd;    /* socket bound to cluster.address; -1: rpc's listener has taken it over */
	int metrics_fd; /* the same for metrics.port; -1: none, or its server has taken it over */

	/* the tables of upward.c; every room finds its own here when it is opened */
	const struct client_events *client_events;
	const struct pages_events *pages_events;
	const struct member_events *member_events;
	const struct rpc_events *rpc_events;

	struct clients *clients;
	struct ctl *ctl;
	struct evict *evict;           /* opened and closed with ctl */
	struct clears *clears;         /* NULL: none was requested */
	struct clear_asks *clear_asks; /* NULL: none was requested */
	struct secure *secure;         /* NULL: links between engines are in clear text */
	struct rpc *rpc;
	struct members *members;
	struct seeds_file *seeds_file; /* NULL: no cluster.seeds_file */
	struct etcd *etcd;             /* NULL: no cluster.etcd */
	struct directory *directory;
	struct conns *conns;
	struct net_timer *tick;  /* the heartbeat */
	struct net_timer *alive; /* signs of life for systemd; NULL: it wants none */
	struct device_watch *device_watch;
#ifdef TEST_HOOKS
	struct fault_file *fault_file;       /* NULL: no file */
	struct model_clock_file *clock_file; /* NULL: none */
#endif
	struct watchdog *watchdog;
	struct metrics *metrics; /* NULL: no HTTP */
	struct view *view;
	struct warm *warm; /* NULL: no process keeps the memory of this engine */
	struct tier *tier; /* NULL: no disk */
	struct promote *promote;
	struct copies *copies; /* NULL: no rails; so are the next two */
	struct offers *offers;
	struct drain *drain;
	bool drained;            /* this host is to be stopped; its heartbeats say so */
	struct storage *storage; /* NULL: engine.write_policy = local */
	struct hot *hot;         /* NULL: copies.hot_percent = 0 */
	struct epochs *epochs;
	/* this engine has pages and has not heard yet what was cleared: nothing finds them, and no
	 * client is accepted */
	bool door_shut;
	struct scrub *scrub; /* NULL: no scrubber */
	/* true: a device may still access the pools, so they stay mapped until the process exits */
	bool pools_stay;
	bool keeper_gone; /* it had one, which has ended */
	bool stopping;
	/* -errno: the control plane shuts down in order, and control_run() returns this value */
	int failed;
	struct loop *loop;
	struct loop_pace pace;
	struct snapshots *snapshots;
	struct moments *moments;
	/* time of the last request of /api/cluster, written by the metrics thread; 0: none */
	uint64_t watched_ns;
	uint64_t http_unauthorized; /* without token or TLS; written by the metrics thread */
};

/*
 * The limbo time of all pools of this engine, which connections announce as their lease, ns. Fixed
 * while the engine runs.
 */
static inline uint64_t control_limbo_ns(const struct control *control)
{
	return (uint64_t)control->settings->engine_limbo_ms * 1000000;
}

/*
 * What a NIC may do with the exported region of that number. The READs of copies land in pools; no
 * other host can write anything.
 */
static inline unsigned memory_access(unsigned region)
{
	return DV_REMOTE_READ | (region < REGION_HEADS_0 ? DV_LOCAL_WRITE : 0);
}

/* cluster.dead_after_ms and cluster.heartbeat_ms, ns. */
static inline uint64_t control_dead_ns(const struct control *control)
{
	return (uint64_t)control->settings->cluster_dead_after_ms * 1000000;
}

static inline uint64_t control_beat_ns(const struct control *control)
{
	return (uint64_t)control->settings->cluster_heartbeat_ms * 1000000;
}

#endif
