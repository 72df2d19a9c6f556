/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane of one engine: everything that is not on the data path, in one libevent loop on
 * the housekeeping core. All functions of this folder run on the control plane's thread unless they
 * say otherwise, and none of them blocks: helper threads make the driver calls, which may block
 * (work.c, client_helper.c).
 *
 *   loop.c       the loop: kick, rails' events, timers, sleep protocol; control_open/run/stop/close
 *   outbox.c     commands to the rails
 *   client.c     clients: sessions, channels, regions; client_socket.c their socket
 *   ctl.c    ctl rings: credits, publish, touch, stale, remove; eviction
 *   report.c     counters and members as JSON
 *   rpc.c        frames and links between engines
 *   net.h        the only door of rpc, member and directory to time, TCP and names; net_event.c
 *   member.c     which members are alive; the cluster map; tick.c the heartbeat
 *   seeds_file.c etcd.c    addresses of engines to join, from a file and from etcd
 *   directory.c  owners, batches, acknowledgements, re-publishing
 *   conn_events.c    queue pairs; which rails are out of use; lost NICs
 *   view.c       summaries of the members, while a dashboard is watched
 *   watchdog.c   ends an engine whose loop or poll core has stopped
 *   tier.c       the disk: pages that are written before eviction, pages that come back
 *   pool.c index.c shard.c    the data: pages, keys, directory entries
 */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include <event2/event.h>

#include "config/settings.h"
#include "dv/setup.h"
#include "engine/abi/segment.h"
#include "engine/control/pages/pages.h"
#include "engine/control/loop.h"
#include "engine/control/base/outbox.h"
#include "engine/control/clients/clients.h"
#include "engine/rail/rail.h"
#include "numa/plan.h"

struct clients;       /* private to client.c */
struct client_socket; /* private to client_socket.c */
struct ctl;           /* private to ctl.c */
struct evict;         /* pages/evict.h: what each page size needs */
struct rpc;           /* private to rpc.c */
struct members;       /* private to member.c: the member table */
struct directory;     /* private to directory.c */
struct conns;         /* private to conn_events.c */
struct device_watch;  /* private to device_event.c */
struct watchdog;      /* private to watchdog.c */
struct metrics;       /* private to metrics.c: the metrics thread */
struct view;          /* private to view.c: summaries of the members */
struct tier;          /* pages/tier_inner.h: the disk */
struct seeds_file;    /* private to seeds_file.c */
struct etcd;          /* private to etcd.c */
struct net_timer;

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
	/* of each NIC, while its thread registers the memory of the engine; see control_memory.c */
	struct registration *registration;
	/*
	 * the memory is not registered yet: no engine is dialled and none is answered, because none
	 * could READ. Clients of this host are served.
	 */
	bool exporting;
	uint64_t export_ns, export_told_ns; /* when it began, and when it was logged last */
	struct populate *populate;          /* NULL: all memory that clients map is populated */
	struct shard shard;
	struct index *index;
	uint64_t counter[COUNTER_COUNT];
	struct statistics statistics; /* of all clients, since the engine started */

	/* Bound before the memory is allocated; clients are served once everything else is open. */
	struct client_socket *client_socket;
	int port_fd;    /* socket bound to cluster.address; -1: rpc's listener has taken it over */
	int metrics_fd; /* the same for metrics.port; -1: none, or its server has taken it over */

	struct clients *clients;
	struct ctl *ctl;
	struct evict *evict; /* opened and closed with ctl */
	const struct pages_events *pages_events;
	struct clears *clears; /* NULL: none was requested */
	struct rpc *rpc;
	struct members *members;
	struct seeds_file *seeds_file; /* NULL: no cluster.seeds_file */
	struct etcd *etcd;             /* NULL: no cluster.etcd */
	struct directory *directory;
	struct conns *conns;
	struct net_timer *tick; /* tick.c: the heartbeat */
	struct device_watch *device_watch;
#ifdef TEST_HOOKS
	struct fault_file *fault_file;       /* private to test_hooks.c; NULL: no file */
	struct model_clock_file *clock_file; /* NULL: none */
#endif
	struct watchdog *watchdog;
	struct metrics *metrics; /* NULL: no HTTP */
	struct view *view;
	struct warm *warm; /* NULL: no process keeps the memory of this engine */
	struct tier *tier; /* NULL: no disk */
	struct promote *promote;
	struct removals *removals;
	/*
	 * this engine was started again, and pages of before may be ones that were removed: nothing
	 * finds them yet
	 */
	bool door_shut;
	struct scrub *scrub; /* NULL: no scrubber */
	/* true: a device may still access the pools, so they stay mapped until the process exits */
	bool pools_stay;
	bool stopping;
	/* -errno: the control plane shuts down in order, and control_run() returns this value */
	int failed;
	struct loop loop;
};

/*
 * For --check: logs everything that is known to be wrong with the settings on this host, as far as
 * it needs nothing that a serving engine may hold. Returns 0 or the first -errno.
 */
int control_check(const struct settings *settings, const struct plan *plan);
/*
 * Builds all parts; the engine serves clients from control_run() on. Returns 0 or -errno, after
 * logging the reason.
 */
int control_open(
	const struct settings *settings, const struct plan *plan, struct control **ret_control);
/*
 * Runs the loop until control_stop(), which returns 0, or until the engine cannot work any more:
 * -errno.
 */
int control_run(struct control *control);
/* Asks the control plane to shut down in order. Any thread and any signal handler may call it. */
void control_stop(struct control *control);
void control_close(struct control *control);

/* ---- calls between the files of this folder -------------------------------------------------- */

/*
 * The limbo time of all pools of this engine, which connections announce as their lease, ns. Fixed
 * while the engine runs.
 */
static inline uint64_t control_limbo_ns(const struct control *control)
{
	return (uint64_t)control->settings->engine_limbo_ms * 1000000;
}

/*
 * Of control_open.c and control_check.c. control_new(): no step is open; NULL: no memory, or the
 * plan has no rails. identity_open() chooses the name; seeds_check() finds mistakes in
 * cluster.seeds before memory is allocated, members_open() parses the text again.
 */
struct control *control_new(const struct settings *settings, const struct plan *plan);
int identity_open(struct control *control);
int seeds_check(struct control *control);

/*
 * Functions of control_memory.c that are steps of control_open(). A step that fails has undone its
 * own work.
 */
int memory_status_open(struct control *control);
int memory_pools_open(struct control *control);
int memory_shard_open(struct control *control);
/* Starts the registration of the engine's memory on all NICs. */
int memory_export(struct control *control);
/*
 * Waits a short time for it. If it is done, listens for other engines and dials the seeds. If not,
 * memory_export_turn() does that later, which each turn of the loop calls.
 */
int memory_export_wait(struct control *control);
unsigned memory_export_turn(struct control *control);
void memory_status_close(struct control *control);
void memory_pools_close(struct control *control);
void memory_shard_close(struct control *control);
void memory_unexport(struct control *control);

#endif
