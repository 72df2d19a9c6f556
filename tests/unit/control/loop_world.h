/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stubs for the tests of loop.c and control_open.c: rails, NICs and the other parts of the engine,
 * which count and record calls and fail on request. Pools, shard and libevent are real.
 */
#ifndef TESTS_LOOP_WORLD_H
#define TESTS_LOOP_WORLD_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/log.h"
#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/control_inner.h"
#include "engine/control/control_open.h"
#include "engine/control/loop.h"
#include "engine/control/observe/observe.h"
#include "engine/control/observe/view_inner.h"
#include "engine/control/pages/pages.h"
#include "numa/clock.h"
#include "tests/nic_stub.h"
#include "tests/unit/control/copies_stub.h"
#include "tests/unit/control/warm_stub.h"

enum { RAILS = 2 };

/* ---- stubs ----------------------------------------------------------------------------------- */

struct rail {
	struct rail_options options;
	bool started, stopping, reported_stopped;
};

static struct {
	/* number of parts of the control plane opened so far; opening number `fail_at` fails */
	unsigned opens, fail_at;
	int open;         /* number of parts of the control plane that are open now */
	char order[4096]; /* names of the stub functions that were called, in order */
	bool full;        /* true: the rails' inboxes are full */
	struct rail_command command[64];
	unsigned commands;
	/* number of sessions and of peers that the rails have not returned */
	unsigned sessions, peers;
	unsigned returns_after; /* number of turns after which the rails return them; 0: at once */
	bool stuck; /* true: the rails never return sessions and peers, and poll cores never end */
	unsigned turn_ms; /* time that passes with each turn of a loop that stops; 0: real time */
	/* true: a rail's event appears after the control plane raised its flag, without a kick */
	bool event_when_asleep;
	uint64_t stored_ns; /* time at which a client last stored a page */
	/* looks during naps after which the inboxes have room and the loop stops; 0: never */
	unsigned room_after_naps;
	unsigned saw[3]; /* looks for events of the rail, by the control plane's flag */
	bool wanted_while_stopping;
	unsigned heard, refused, wanted;
	unsigned cores;      /* number of poll cores that are running */
	unsigned snapshots;  /* number of snapshots that were taken */
	unsigned summaries;  /* number of calls of view_own() */
	bool viewed;         /* result of view_active() */
	uint64_t watched_ns; /* as passed to view_tick() last */
} world;
static struct control *control;

static inline void note(const char *what)
{
	strcat(world.order, what);
	strcat(world.order, " ");
}

/* Opens a part (1) or closes one (-1). Threads register memory while other parts are opened. */
static inline int part(int change)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int rc;

	pthread_mutex_lock(&lock);
	rc = change > 0 && ++world.opens == world.fail_at ? -ENOMEM : 0;
	world.open += rc ? 0 : change;
	pthread_mutex_unlock(&lock);
	return rc;
}

int dv_verbs_check(void)
{
	return 0;
}

int dv_open(const struct dv_options *options, struct dv_device **ret)
{
	assert_int_equal(strncmp(options->name, "soft:", 5), 0);
	*ret = (struct dv_device *)&world;
	if (part(1) == 0)
		return 0;
	*ret = NULL;
	return -ENODEV;
}

int dv_port_look(struct dv_device *device)
{
	return 0;
}

void dv_close(struct dv_device *device)
{
	part(-1);
}

void dv_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	*ret = (struct dv_attributes){0};
}

struct model_clock_file *model_clock_map(const char *path)
{
	return (void)path, NULL;
}

static inline int memory_register(const struct dv_memory *memory, struct dv_mr *ret)
{
	int rc;

	assert_int_equal(memory->access & ~(unsigned)DV_LOCAL_WRITE, DV_REMOTE_READ);
	assert_true(memory->memfd >= 0);
	rc = part(1);
	if (rc == 0)
		*ret = (struct dv_mr){.base = memory->base, .length = memory->length};
	return rc;
}

static inline int memory_deregister(struct dv_mr *mr)
{
	return (void)mr, part(-1);
}

int rail_open(const struct rail_options *options, struct rail **ret)
{
	struct rail *rail;

	if (part(1) < 0)
		return -ENOMEM;
	rail = calloc(1, sizeof(*rail));
	rail->options = *options;
	*ret = rail;
	return 0;
}

int poll_core_start(const struct poll_core_options *options, struct rail *const *rails,
	unsigned count, struct poll_core **ret)
{
	assert_true(count > 0);
	if (part(1) < 0)
		return -EAGAIN;
	part(-1);
	for (unsigned i = 0; i < count; i++)
		rails[i]->started = true;
	*ret = (struct poll_core *)rails[0];
	world.cores++;
	return 0;
}

void poll_core_report(const struct poll_core *core, struct poll_core_report *ret)
{
	memset(ret, 0, sizeof(*ret));
}

void snapshot_take(struct control *c, struct snapshot *ret)
{
	assert_ptr_equal(c, control);
	ret->taken_ns = clock_now_ns();
	world.snapshots++;
}

void view_dashboard(struct control *c, int fd)
{
	assert_ptr_equal(c, control);
	assert_true(fd >= 0);
}

void view_own(struct control *c, struct snapshot *s)
{
	assert_ptr_equal(c, control);
	assert_true(s->taken_ns > 0);
	world.summaries++;
}

bool view_active(const struct control *c, uint64_t watched_ns, uint64_t now_ns)
{
	return (void)c, (void)watched_ns, (void)now_ns, world.viewed;
}

void view_tick(struct control *c, uint64_t watched_ns, uint64_t now_ns)
{
	assert_ptr_equal(c, control);
	assert_true(now_ns > 0);
	world.watched_ns = watched_ns;
}

int view_json(const struct snapshot *s, uint64_t now_ns, char **ret_text, size_t *ret_bytes)
{
	return (void)s, (void)now_ns, (void)ret_text, (void)ret_bytes, -ENOMEM;
}

uint64_t poll_core_beat(const struct poll_core *core)
{
	static uint64_t beat;

	return (void)core, ++beat;
}

uint64_t gap_bucket_ns(unsigned bucket)
{
	return bucket;
}

void poll_core_close(struct poll_core *core)
{
	struct rail *rail = (struct rail *)core;

	if (!core)
		return;
	assert_true(rail->reported_stopped);
	world.cores--;
}

void rail_close(struct rail *rail)
{
	assert_true(!rail->started || rail->reported_stopped);
	assert_int_equal(world.cores, 0);
	part(-1);
	free(rail);
}

bool rail_command_send(struct rail *rail, const struct rail_command *command)
{
	if (world.full)
		return false;
	if (command->kind == RAIL_STOP) {
		if (!rail->stopping)
			note("RAIL_STOP");
		rail->stopping = true;
	}
	if (world.commands < 64)
		world.command[world.commands++] = *command;
	return true;
}

bool rail_event_take(struct rail *rail, struct rail_event *ret)
{
	bool look = world.event_when_asleep || world.room_after_naps;
	uint32_t sleeps = look ? shm_load(&control->status->control_sleeps) : CONTROL_AWAKE;

	*ret = (struct rail_event){.kind = RAIL_CONN_WANTED};
	world.saw[sleeps]++;
	if (world.room_after_naps && sleeps == CONTROL_NAPS && --world.room_after_naps == 0) {
		world.full = false;
		control_stop(control);
	}
	if (world.event_when_asleep && sleeps == CONTROL_SLEEPS) {
		world.event_when_asleep = false;
		return true;
	}
	if (world.wanted_while_stopping && control && control->stopping) {
		world.wanted_while_stopping = false;
		return true;
	}
	if (!rail->stopping || rail->reported_stopped || world.stuck)
		return false;
	rail->reported_stopped = true;
	ret->kind = RAIL_STOPPED;
	return true;
}

#define PART_OF(opens, closes, name)                                                               \
	int opens(struct control *c)                                                               \
	{                                                                                          \
		(void)c;                                                                           \
		note("+" name);                                                                    \
		return part(1);                                                                    \
	}                                                                                          \
	void closes(struct control *c)                                                             \
	{                                                                                          \
		(void)c;                                                                           \
		note("-" name);                                                                    \
		part(-1);                                                                          \
	}
#define PART(name) PART_OF(name##_open, name##_close, #name)

PART(client_socket)
PART(rpc_port)
PART(view)
PART(rpc)
PART(members)
PART(clients)

int epochs_open(struct control *c, void (*opened)(struct control *control))
{
	(void)c, (void)opened;
	note("+epochs");
	return part(1);
}

void epochs_close(struct control *c)
{
	note("-epochs");
	part(-1);
}

PART(seeds_file)
PART(etcd)
PART(directory)
PART(conns)
PART(tick)
PART(ctl)
PART(promote)
PART(tier)
PART(scrub)

void upward_fill(struct control *c)
{
	assert_ptr_equal(c->base, NULL); /* no step has been opened */
	note("upward_fill");
}

unsigned tier_turn(struct control *c)
{
	return (void)c, 0;
}

void tier_counts(const struct control *c, struct tier_counts *ret)
{
	(void)c, (void)ret;
}

void conn_refuse(struct control *c, unsigned rail, uint16_t peer, uint32_t ref)
{
	(void)c, (void)rail, (void)peer, (void)ref;
	world.refused++;
}

void conns_wanted(struct control *c, unsigned rail, uint16_t peer, uint32_t ref)
{
	(void)rail, (void)peer, (void)ref;
	world.wanted++;
	control_stop(c);
}

void conns_broken(struct control *c, unsigned rail, struct rail_conn *handle, uint32_t syndrome)
{
	(void)c, (void)rail, (void)handle, (void)syndrome;
}

void conns_returned(struct control *c, unsigned rail, struct rail_conn *handle)
{
	(void)c, (void)rail, (void)handle;
}

void conns_proven(struct control *c, unsigned rail, struct rail_conn *handle)
{
	(void)c, (void)rail, (void)handle;
}

void conns_stuck(struct control *c, unsigned rail, struct rail_conn *handle, uint64_t ns)
{
	(void)c, (void)rail, (void)handle, (void)ns;
}

void conns_quiet(struct control *c, unsigned rail)
{
	(void)c, (void)rail;
}

int device_event_open(struct control *c)
{
	return (void)c, 0;
}

void device_event_close(struct control *c)
{
}

void conns_stop(struct control *c)
{
	assert_true(c->stopping);
	note("conns_stop");
}

unsigned conns_outstanding(const struct control *c)
{
	return (void)c, world.peers;
}

void member_leave(struct control *c)
{
	note("member_leave");
}

unsigned member_count(const struct control *c)
{
	return (void)c, 1;
}

void clients_stop(struct control *c)
{
	note("clients_stop");
}

void client_counts(const struct control *c, struct client_counts *ret)
{
	*ret = (struct client_counts){.sessions = world.sessions};
}

void clients_accept(struct control *c)
{
}

unsigned clients_turn(struct control *c)
{
	if (c->stopping && world.turn_ms)
		clock_test_set(clock_now_ns() + world.turn_ms * 1000000ull);
	if (!c->stopping || world.stuck)
		return 0;
	if (world.returns_after)
		return world.returns_after--, 1;
	world.sessions = world.peers = 0;
	return 0;
}

void client_channel_broken(struct control *c, uint32_t channel)
{
	(void)c, (void)channel;
}

void client_channel_returned(struct control *c, struct rail_channel *returned)
{
	(void)c, (void)returned;
}

void client_region_returned(struct control *c, uint32_t region)
{
	(void)c, (void)region;
}

int copies_open(struct control *c)
{
	return (void)c, 0;
}

void copies_close(struct control *c)
{
}

unsigned copies_turn(struct control *c)
{
	return (void)c, 0;
}

void copies_stop(struct control *c)
{
}

bool copies_rest(const struct control *c)
{
	return (void)c, true;
}

void copies_returned(struct control *c)
{
}

unsigned groups_turn(struct control *c)
{
	return 0;
}

unsigned clear_turn(struct control *c)
{
	return 0;
}

void clear_close(struct control *c)
{
}

unsigned ctl_turn(struct control *c)
{
	return (void)c, 0;
}

void ctl_flush(struct control *c)
{
}

void ctl_free(struct ctl *ctl)
{
	note("-answers");
}

void directory_flush(struct control *c)
{
}

/* ---- helpers --------------------------------------------------------------------------------- */

static struct settings settings;
static struct plan plan;

static inline int setup(void **state)
{
	char err[SETTINGS_ERR_BYTES];

	memset(&world, 0, sizeof(world));
	nic_stub = (struct nic_stub){
		.mr_register = memory_register, .mr_deregister = memory_deregister};
	control = NULL;
	assert_int_equal(settings_default(&settings), 0);
	assert_int_equal(
		settings_set(&settings, "engine", "pool_bytes", "4MiB", err, sizeof(err)), 0);
	settings.engine_huge_pages = false;
	settings.metrics_port = 0;
	plan = (struct plan){.rails = RAILS, .poll_cores = RAILS, .control_core = -1};
	for (unsigned i = 0; i < RAILS; i++) {
		strcpy(plan.rail[i].device, "soft");
		plan.rail[i].core = plan.rail[i].numa_node = -1;
		plan.rail[i].poll_core = i;
	}
	alarm(30); /* a signal ends the test program if it hangs for 30 s */
	return 0;
}

static inline unsigned open_files(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static inline void engine_open(void)
{
	assert_int_equal(control_open(&settings, &plan, &control), 0);
}

static inline bool before(const char *a, const char *b)
{
	const char *at_a = strstr(world.order, a), *at_b = strstr(world.order, b);

	return at_a && at_b && at_a < at_b;
}

#endif
