/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scenarios in which owners, holders and removers are away while the others evict, set and remove
 * pages. All engines have a keeper: their memory outlives them unless the scenario says otherwise.
 * One thread.
 */
#include "tests/sim/disk.h"
#include "tests/sim/faults.h"

#include "engine/control/conns/conns.h"
#include "engine/control/copies/copies.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/loop.h"
#include "tests/sim/copier.h"
#include "tests/sim/nic.h"
#include "tests/sim/paths.h"
#include "tests/sim/run.h"
#include "tests/sim/truth.h"

#define FAULT_PAGES 2000u            /* pages of the load, for each node, */
#define FAULT_USED 350u              /* and of those the ones in use at a time */
#define FAULT_SLOTS 300u             /* pages that a node's pools have room for, about */
#define FAULT_LENGTH (6 * PAGE_UNIT) /* of a page: FAULT_SLOTS fill two pools of this size */
#define FAULT_POOL (4ull << 20)
#define FAULT_REMOVES 12u /* percent */
#define DEAD_NS (3 * SIM_S)
#define BEFORE_NS (2 * SIM_S)
#define AFTER_NS SIM_S
#define HEALED_NS (60 * SIM_S)

enum ending { END_TERM, END_KILL, END_COLD, END_POWER, ENDINGS };

static unsigned one_of(unsigned count)
{
	return (unsigned)(world_random() % count);
}

/* ---- what happens to a node ------------------------------------------------------------------ */

/* SIGTERM: it says goodbye, its clients have gone. */
static void leave(unsigned i)
{
	load_none(i, true);
	world.current = i;
	world.node[i].control.stopping = true;
	member_leave(&world.node[i].control);
	conns_stop(&world.node[i].control);
	load(LOOP_GOODBYE_NS);
	load_none(i, false);
}

/* While messages of the load are in flight. */
static void end(unsigned i, enum ending how)
{
	load_calls();
	world_run(world.now_ns + world_random() % (SIM_MS / 4));
	if (how == END_TERM)
		leave(i);
	if (how == END_COLD || how == END_POWER)
		node_crash(i, how == END_POWER);
	else
		node_keep(i);
}

static void again(unsigned i)
{
	node_open(i, replicas, entries);
}

/* How long a node is away: for a moment, until it is dead, or until its entries are swept. */
static uint64_t away_ns(void)
{
	switch (one_of(4)) {
	case 0: return 20 * SIM_MS + world_random() % (300 * SIM_MS);
	case 1: return SIM_S;
	case 2: return 2 * DEAD_NS;
	default: return (uint64_t)DEPARTED_DEADS * DEAD_NS + 5 * SIM_S;
	}
}

/* A long time passes without load in the end. */
static void away(uint64_t ns)
{
	uint64_t busy_ns = ns < 2 * DEAD_NS ? ns : 2 * DEAD_NS;

	load(busy_ns);
	pass(ns - busy_ns);
}

static void restarts(enum ending how)
{
	for (unsigned times = 1 + one_of(4); times; times--) {
		unsigned i = one_of(world.nodes);

		end(i, how);
		away(away_ns());
		again(i);
		load(AFTER_NS);
	}
}

static void term(void)
{
	restarts(END_TERM);
}

static void kill_warm(void)
{
	restarts(END_KILL);
}

/* A client is stopped while it copies a page into a slot, and its engine is killed. */
static void copying(void)
{
	for (unsigned times = 0; times < 4; times++) {
		unsigned i = one_of(world.nodes);

		world.stopped_writer = i + 1;
		load(100 * SIM_MS);
		end(i, END_KILL);
		world.stopped_writer = 0;
		pass(20 * SIM_MS + world_random() % (300 * SIM_MS));
		again(i);
		load(2 * SIM_S);
	}
	load(AFTER_NS);
}

static void cold(void)
{
	restarts(END_COLD);
}

static void frozen(unsigned i, uint64_t ns)
{
	node_stop(i, true);
	load(ns);
	node_stop(i, false);
	load(AFTER_NS);
}

/* Stopped for longer than dead_after_ms, and for a shorter time. */
static void freeze(void)
{
	frozen(one_of(world.nodes), 2 * DEAD_NS);
	frozen(one_of(world.nodes), SIM_S / 2);
	frozen(one_of(world.nodes), 2 * DEAD_NS);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void cut_link(void)
{
	unsigned a = one_of(world.nodes), b = (a + 1 + one_of(world.nodes - 1)) % world.nodes;

	cut(a, b, true);
	load(10 * SIM_S);
	cut(a, b, false);
	load(AFTER_NS);
}

static void flap_link(void)
{
	unsigned a = one_of(world.nodes), b = (a + 1 + one_of(world.nodes - 1)) % world.nodes;

	for (unsigned times = 0; times < 12; times++) {
		cut(a, b, true);
		load(50 * SIM_MS + world_random() % (2 * SIM_S));
		cut(a, b, false);
		load(50 * SIM_MS + world_random() % SIM_S);
	}
}

static void halves(bool lost)
{
	unsigned half = world.nodes / 2;

	for (unsigned a = 0; a < half; a++)
		for (unsigned b = half; b < world.nodes; b++)
			cut(a, b, lost);
}

static void split(void)
{
	halves(true);
	load(10 * SIM_S);
	halves(false);
	load(AFTER_NS);
}

static void isolate(unsigned i, bool lost)
{
	for (unsigned j = 0; j < world.nodes; j++)
		if (j != i)
			cut(i, j, lost);
}

/* ---- disks ----------------------------------------------------------------------------------- */

static void spill(void)
{
	truth_calm(true);
	load(5 * SIM_S);
	truth_calm(false);
}

static void disk_start(void)
{
	for (unsigned times = 0; times < 2; times++) {
		unsigned i = one_of(world.nodes);

		end(i, (enum ending)one_of(END_POWER));
		away(one_of(2) ? SIM_S / 4 : 2 * DEAD_NS);
		again(i);
		load(AFTER_NS);
	}
}

static void disk_power(void)
{
	for (unsigned times = 0; times < 4; times++) {
		unsigned i = one_of(world.nodes);

		end(i, END_POWER);
		away(SIM_S);
		again(i);
		load(AFTER_NS);
	}
}

/* One disk of a host fails or hangs, and its engine is started again with the disk in order. */
static void disk_fail(void)
{
	for (unsigned times = 0; times < 3; times++) {
		unsigned i = one_of(world.nodes), path = one_of(SIM_PATHS);

		disk_fault(i, path, (enum disk_fault)(1 + one_of(DISK_FAULTS - 1)));
		load(one_of(2) ? SIM_S : 3 * SIM_S);
		end(i, (enum ending)one_of(ENDINGS));
		load(200 * SIM_MS);
		disk_fault(i, path, DISK_FAULT_NONE);
		again(i);
		load(2 * SIM_S);
	}
}

/* ---- connections ----------------------------------------------------------------------------- */

/* One rail of a node, or both, lose their links or, without an event, all packets; or do not. */
static void rails_fail(unsigned node, unsigned rail, bool both, bool mute, bool fail)
{
	for (unsigned r = 0; r < SIM_RAILS; r++) {
		if (r != rail && !both)
			continue;
		if (mute)
			nic_mute(node, r, fail);
		else
			nic_port(node, r, !fail);
	}
}

/* Rails fail, and packets between two hosts are lost in one direction. */
static void ports(void)
{
	for (unsigned times = 0; times < 6; times++) {
		unsigned a = one_of(world.nodes), rail = one_of(SIM_RAILS),
			 b = (a + 1 + one_of(world.nodes - 1)) % world.nodes;
		bool both = one_of(3) == 0;

		if (times % 3 == 2)
			world_cut(a, b, true);
		else
			rails_fail(a, rail, both, times % 3, true);
		load(one_of(2) ? 100 * SIM_MS : 2 * SIM_S);
		world_cut(a, b, false);
		rails_fail(a, rail, both, times % 3, false);
		load(one_of(2) ? 200 * SIM_MS : 1200 * SIM_MS);
	}
}

static void port_fails(unsigned node)
{
	nic_port(node, 0, false);
	load(100 * SIM_MS);
	nic_port(node, 0, true);
}

/* Drivers are slow and packets are lost while connections are made, and engines end meanwhile. */
static void handshake(void)
{
	world.loss = 0.01;
	for (unsigned times = 0; times < 4; times++) {
		unsigned i = one_of(world.nodes);

		world.driver_ns = one_of(2) ? 500 * SIM_MS : 4 * SIM_S;
		end(i, (enum ending)one_of(ENDINGS));
		load(20 * SIM_MS + world_random() % (300 * SIM_MS));
		if (one_of(2))
			port_fails((i + 1) % world.nodes); /* which ends connections to the first */
		again(i);
		load(100 * SIM_MS + world_random() % (2 * SIM_S));
		if (one_of(2))
			port_fails(i);
	}
	load(SIM_S);
	world.driver_ns = NIC_DRIVER_NS;
	world.loss = 0;
	load(AFTER_NS);
	pass(4 * SIM_S); /* calls of the driver that take long */
}

/* Engines are started again while another one, whose rails reach them, is not told. */
static void apart(void)
{
	world.rails_apart = true;
	world.driver_ns = SIM_MS; /* others have connections before a READ gives up */
	for (unsigned times = 0; times < 3; times++) {
		unsigned i = one_of(world.nodes),
			 b = (i + 1 + one_of(world.nodes - 1)) % world.nodes;

		cut(i, b, true);
		load(100 * SIM_MS);
		end(i, (enum ending)one_of(ENDINGS));
		load(4 * SIM_MS + world_random() % (16 * SIM_MS));
		again(i);
		load(SIM_S);
		cut(i, b, false);
		load(AFTER_NS);
	}
	world.rails_apart = false;
	world.driver_ns = NIC_DRIVER_NS;
}

/* QPs fail, NICs do not complete what was posted, or die until the engine is started again. */
static void broken_nics(void)
{
	for (unsigned times = 0; times < 3; times++) {
		unsigned i = one_of(world.nodes), rail = one_of(SIM_RAILS);

		switch (one_of(3)) {
		case 0: nic_dies(i, rail); break;
		case 1:
			nic_stuck(i, rail, true);
			nic_mute(i, rail, true);
			break;
		default: break;
		}
		for (unsigned k = 0; k < 6; k++) {
			nic_qp_fails(one_of(world.nodes), one_of(SIM_RAILS));
			load(100 * SIM_MS);
		}
		nic_mute(i, rail, false);
		load(2 * SIM_S);
		nic_stuck(i, rail, false);
		end(i, (enum ending)one_of(END_POWER));
		load(200 * SIM_MS);
		again(i);
		load(AFTER_NS);
	}
}

/* ---- clears ---------------------------------------------------------------------------------- */

enum absence { ABSENT_STOPPED = ENDINGS, ABSENT_CUT, ABSENCES };

static void cleared(void *context, const struct call_result *result)
{
	*(enum call_end *)context = result->end;
}

/* A client of the node clears the cluster until all members of the map have taken it. */
static void clear_by(unsigned by)
{
	static const uint64_t none = 0;
	enum call_end end;

	truth_clear(false);
	do {
		end = CALL_ENDS;
		call_start(&(struct call_for){.kind = CALL_CLEAR,
				   .node = by,
				   .number = one_of(2),
				   .value = &none},
			cleared, &end);
		while (end == CALL_ENDS)
			world_run(world.now_ns + SIM_MS);
	} while (end != CALL_HIT);
	world.epoch = node_epoch(by);
	truth_clear(true);
}

static void absent(unsigned i, enum absence how, bool gone)
{
	if (how == ABSENT_STOPPED)
		node_stop(i, gone);
	else if (how == ABSENT_CUT)
		isolate(i, gone);
	else if (gone)
		end(i, (enum ending)how);
	else
		again(i);
}

static bool aware(unsigned i)
{
	const struct epoch epoch = node_epoch(i);

	return epoch.all == world.epoch.all && epoch.group == world.epoch.group;
}

/*
 * The clients of a node that comes back ask for what was stored before the clear. One that was
 * started again takes none before it knows of the clear.
 */
static void old_asked(unsigned i, bool restarted)
{
	uint64_t until_ns = world.now_ns + HEALED_NS;

	for (unsigned more = 200; more && world.now_ns < until_ns; more -= aware(i)) {
		truth_unaware(i, !restarted && !aware(i));
		truth_call(CALL_GET, i, load_page(), NULL, NULL);
		world_run(world.now_ns + SIM_MS / 2);
	}
	truth_unaware(i, false);
	check(aware(i), "a clear reaches each host");
}

/* All at once: what they know of clears is in the memory that is kept, or on their disks. */
static void all_restart(void)
{
	pass(SIM_S);
	for (unsigned i = 0; i < world.nodes; i++)
		end(i, run_has_disks() ? END_POWER : END_KILL);
	pass(SIM_S);
	for (unsigned i = 0; i < world.nodes; i++)
		again(i);
	for (unsigned i = 0; i < world.nodes; i++)
		old_asked(i, true);
}

/* A node is away, or leaves at this moment, while another one clears the cluster. */
static void clears(void)
{
	for (unsigned times = 0; times < 4; times++) {
		unsigned i = one_of(world.nodes),
			 by = (i + 1 + one_of(world.nodes - 1)) % world.nodes;
		enum absence how = one_of(ABSENCES);

		absent(i, how, true);
		load_none(i, true);
		if (one_of(2))
			away(away_ns());
		while (truth_open_calls())
			world_run(world.now_ns + SIM_MS);
		clear_by(by);
		load(one_of(2) ? 8 * SIM_MS : SIM_S);
		absent(i, how, false);
		old_asked(i, how < ABSENT_STOPPED);
		load_none(i, false);
		load(AFTER_NS);
	}
	all_restart();
}

static void clear_disks(void)
{
	clears();
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Clients prefetch pages meanwhile. */
static void copies_load(uint64_t ns)
{
	for (uint64_t t = 0; t < ns; t += 2 * SIM_MS) {
		unsigned i = one_of(world.nodes);

		for (unsigned k = 0; k < 16; k++)
			if (world.node[i].running && !world.node[i].stopped)
				copier_wish(i, load_page());
		load(2 * SIM_MS);
	}
}

/* A node's pages are offered to the others, for this time. */
static void drained(unsigned i, uint64_t ns)
{
	world.current = i;
	copies_drain(&world.node[i].control, ns);
}

/*
 * Copies that clients request, of hot pages and of drained hosts, beside removals, evictions and
 * clears; first without a fault, then with holders and readers that are away.
 */
static void copies(void)
{
	uint64_t was = copier_made();

	truth_calm(true);
	copies_load(4 * SIM_S);
	drained(0, SIM_S);
	copies_load(SIM_S);
	drained(0, 0);
	truth_calm(false);
	check(copier_made() > was + 100, "copies are made");
	for (unsigned times = 0; times < 3; times++) {
		unsigned i = one_of(world.nodes),
			 by = (i + 1 + one_of(world.nodes - 1)) % world.nodes;

		drained(i, 2 * SIM_S);
		copies_load(100 * SIM_MS);
		if (one_of(2)) {
			while (truth_open_calls())
				world_run(world.now_ns + SIM_MS);
			clear_by(by);
			copies_load(200 * SIM_MS);
		}
		end(i, (enum ending)one_of(END_POWER));
		copies_load(one_of(2) ? 200 * SIM_MS : 2 * DEAD_NS);
		load_none(i, true); /* until it knows of the clear */
		again(i);
		while (!aware(i))
			copies_load(2 * SIM_MS);
		load_none(i, false);
		copies_load(AFTER_NS);
		frozen(by, SIM_S / 2);
	}
	copies_load(AFTER_NS);
	pass(15 * SIM_S); /* offers that were lost */
}

/* ---- more ------------------------------------------------------------------------------------ */

static void calm(void)
{
	truth_calm(true);
	load(10 * SIM_S);
	truth_calm(false);
}

static void rolling_warm(void)
{
	for (unsigned i = 0; i < world.nodes; i++) {
		end(i, END_TERM);
		load(200 * SIM_MS);
		again(i);
		load(SIM_S);
	}
}

/* Shards have no room for the entries of all pages; then for twice as many, with restarts. */
static void full(void)
{
	load_set(FAULT_PAGES * world.nodes, FAULT_PAGES * world.nodes, FAULT_REMOVES);
	load(10 * SIM_S);
	load_set(FAULT_PAGES * world.nodes, FAULT_USED * world.nodes, FAULT_REMOVES);
	for (unsigned i = 0; i < world.nodes; i++) {
		world.node[i].pages.limit = FAULT_SLOTS;
		pages_evict(i, UINT64_MAX);
	}
	load(AFTER_NS);
	for (unsigned times = 0; times < 10; times++) {
		end(times % world.nodes, END_TERM);
		load(SIM_S);
		again(times % world.nodes);
		load(SIM_S);
	}
	pass(3 * (COMPARE_MIN_NS + COMPARE_SPREAD_NS));
}

/* Pages of which each owner gets more removes than are queued. */
static uint64_t dropped_pages(void)
{
	return OWNER_REMOVES_MAX * 5 / 4 * world.nodes / (replicas < world.nodes ? replicas : 1);
}

/* Sets this many pages on node 0, more than the oracle watches. */
static void fill(uint64_t pages)
{
	uint64_t first = FAULT_PAGES * world.nodes;

	for (uint64_t k = 0; k < pages; k++) {
		page_fill(0, first + k);
		if (k % 64)
			continue;
		directory_flush(&world.node[0].control);
		world_run(world.now_ns + SIM_MS);
	}
	pass(10 * SIM_S);
}

/* An owner is stopped, and more pages whose entries it has are evicted than removes are queued. */
static void dropped(void)
{
	const uint64_t *counter = world.node[0].control.counter;
	unsigned owner = world.nodes - 1;
	uint64_t was = counter[COUNTER_removes_dropped];

	fill(dropped_pages());
	node_stop(owner, true);
	pages_evict(0, UINT64_MAX);
	load(SIM_S);
	check(counter[COUNTER_removes_dropped] > was, "removes are dropped");
	node_stop(owner, false);
	load(AFTER_NS);
}

/* Faults of all kinds, one after another or two at a time. */
static void mixture(void)
{
	for (unsigned times = 0; times < 12; times++) {
		unsigned a = one_of(world.nodes),
			 b = (a + 1 + one_of(world.nodes - 1)) % world.nodes;

		if (one_of(2))
			cut(a, b, true);
		switch (one_of(6)) {
		case 0: node_stop(a, true); break;
		case 1: end(a, END_TERM); break;
		case 2: end(a, END_KILL); break;
		case 3: end(a, END_COLD); break;
		case 4: world.loss = 0.01; break;
		default: isolate(a, true);
		}
		load(one_of(2) ? 200 * SIM_MS : 2 * DEAD_NS);
		world.loss = 0;
		node_stop(a, false);
		isolate(a, false);
		cut(a, b, false);
		if (!world.node[a].running)
			again(a);
		load(100 * SIM_MS + world_random() % (3 * SIM_S));
	}
}

const struct scenario faults[] = {
	{"calm", "no fault", calm, PAGES_FAULT},
	{"clear", "the cluster is cleared while a node is away", clears, PAGES_FAULT},
	{"cleardisk", "the same, with disks", clear_disks, PAGES_FAULT},
	{"spill", "no fault; pages that leave memory are on disk", spill, PAGES_FAULT},
	{"diskstart", "engines with disks are stopped or killed, and started again", disk_start,
		PAGES_FAULT},
	{"diskpower", "hosts with disks lose power, and start again", disk_power, PAGES_FAULT},
	{"diskfail", "a disk fails or hangs, then its engine is started again", disk_fail,
		PAGES_FAULT},
	{"term", "engines are stopped and started again, with their pages and shards", term,
		PAGES_FAULT},
	{"kill9", "engines are killed and started again, with their pages and shards", kill_warm,
		PAGES_FAULT},
	{"copies", "pages are copied beside removals and clears, then holders are away", copies,
		PAGES_FAULT},
	{"copying", "engines are killed while their clients write into slots", copying,
		PAGES_FAULT},
	{"cold", "engines are killed and started again without memory", cold, PAGES_FAULT},
	{"freeze", "engines are stopped and resumed", freeze, PAGES_FAULT},
	{"cutlink", "a link is cut", cut_link, PAGES_FAULT},
	{"flaplink", "a link is cut and healed, again and again", flap_link, PAGES_FAULT},
	{"split", "the two halves are cut apart", split, PAGES_FAULT},
	{"upgrade", "all engines are stopped and started again, one after another", rolling_warm,
		PAGES_FAULT},
	{"full", "shards have no room for all entries, until most pages are evicted", full,
		PAGES_FAULT},
	{"dropped", "an owner is stopped while more pages are evicted than are queued", dropped,
		PAGES_FAULT},
	{"ports", "rails lose their links, or packets without an event", ports, PAGES_FAULT},
	{"handshake", "drivers are slow and packets are lost while engines are started again",
		handshake, PAGES_FAULT},
	{"apart", "engines are started again while one whose rails reach them is not told", apart,
		PAGES_FAULT},
	{"nics", "queue pairs fail, and NICs hang or die", broken_nics, PAGES_FAULT},
	{"mixture", "faults of all kinds at random", mixture, PAGES_FAULT},
	{NULL, NULL, NULL, 0},
};

/* ---- the frame of all of them ---------------------------------------------------------------- */

static void heal(void)
{
	check(pass_until(nodes_linked, HEALED_NS), "healed back");
	compare_all();
}

static bool fault_has_disks(void (*fault)(void))
{
	return fault == spill || fault == disk_start || fault == disk_power || fault == disk_fail ||
	       fault == clear_disks;
}

static bool fault_is_of_rails(void (*fault)(void))
{
	return fault == ports || fault == handshake || fault == apart || fault == broken_nics;
}

void fault_run(void (*fault)(void))
{
	/* of the load: few where rails fail, because the judgement reads all */
	uint64_t pages = (fault_is_of_rails(fault) ? FAULT_USED : FAULT_PAGES) * world.nodes;

	world.keeper = true;
	world.copies = fault == copies;
	nics_open();
	entries = fault == dropped ? 64 * 1024u
		  : fault == full  ? FAULT_SLOTS * replicas
		  /* room for all pages on disk and what restarts leave for a while */
		  : fault_has_disks(fault) ? FAULT_USED * 16u
					   : FAULT_USED * 8u;
	truth_open(pages);
	load_set(pages, FAULT_USED * world.nodes, FAULT_REMOVES);
	for (unsigned i = 0; i < world.nodes; i++)
		world.node[i].pages =
			(struct pages){.pool_bytes = FAULT_POOL, .length = FAULT_LENGTH};
	/* room for all pages */
	if (fault == dropped)
		world.node[0].pages.pool_bytes = 4 * PAGE_UNIT * dropped_pages();
	for (unsigned i = 0; fault == full && i < world.nodes; i++)
		world.node[i].pages = (struct pages){
			.pool_bytes = FAULT_PAGES * world.nodes * PAGE_UNIT, .length = PAGE_UNIT};
	for (unsigned i = 0; fault_has_disks(fault) && i < world.nodes; i++) {
		world.node[i].pages.disks = true;
		disks_open(i);
	}
	start(0);
	paths_watch();
	load(BEFORE_NS);
	fault();
	heal();
	truth_judge();
	paths_judge();
	truth_close();
}
