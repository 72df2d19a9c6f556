/* SPDX-License-Identifier: Apache-2.0 */
/* paths.h. One thread. */
#include "tests/sim/paths.h"

#include <string.h>

#include "engine/control/conns/conns.h"
#include "engine/control/members/members.h"
#include "engine/rail/inbox.h"
#include "tests/sim/nic.h"
#include "tests/sim/rail.h"
#include "tests/sim/run.h"
#include "tests/sim/world.h"

#define LOOK_NS (250 * SIM_MS)
/*
 * From when both ends can reach each other until READs are taken: an attempt that began before,
 * CONN_MADE_MS, its back-off, CONN_BACKOFF_MAX_MS, and an attempt with its probe.
 */
#define UP_NS (9 * SIM_S)
/* From a READ that cannot be answered until the rail takes no more of them. */
#define BREAK_NS SIM_S
/*
 * From when the end that READs has gone, both processes can talk, and the rail has or owes another
 * connection, until the other end goes: a Disconnect, or the next Connect after a back-off.
 */
#define ALONE_NS (9 * SIM_S)
/* with some calls of the driver */
#define DRAIN_NS (CONN_DRAIN_NS + 300 * SIM_MS)
#define SLOW_NS (4 * SIM_S)    /* longest time of slow calls of the driver */
#define PORT_NS (500 * SIM_MS) /* from an event of a port until clients see it */
#define STOP_NS (200 * SIM_MS) /* in which an engine ends all its connections */

/* Times from when on; 0: it does not hold. */
struct path {
	uint64_t incarnation[2];
	uint64_t talks_ns;   /* both processes run and have a link that is not cut, */
	uint64_t needs_ns;   /* and the rail has a connection, or owes one */
	uint64_t unready_ns; /* the rail takes no READs, although it should */
	uint64_t mute_ns;    /* the connection is open, and READs on it cannot be answered, */
	uint64_t vain_ns;    /* and one was posted since */
};

static struct path paths[NIC_NODES_MAX][SIM_RAILS][NIC_NODES_MAX];
/* since when clients see another state of a port, and since when a connection has ended */
static uint64_t port_wrong_ns[NIC_NODES_MAX][SIM_RAILS], ended_ns[NIC_NODES_MAX][SIM_RAILS];

static uint64_t fast_ns; /* since when new calls of drivers are fast */

/* Notes since when the condition holds. */
static void since(uint64_t *at_ns, bool holds)
{
	if (!holds)
		*at_ns = 0;
	else if (!*at_ns)
		*at_ns = world.now_ns;
}

static bool longer(uint64_t at_ns, uint64_t ns)
{
	return at_ns && world.now_ns - at_ns > ns;
}

static bool runs(unsigned node)
{
	const struct node *n = &world.node[node];

	return n->running && !n->stopped && n->control.conns && !n->control.stopping;
}

/* Messages from `node` to `to` arrive. An engine learns only after a time that its link is cut. */
static bool linked(unsigned node, unsigned to)
{
	struct control *control = &world.node[node].control;

	return node_sees(node, to) && wire_reaches(node, to) &&
	       member_link_now(control, world.node[to].control.ref) != NULL;
}

/* ---- one path -------------------------------------------------------------------------------- */

static bool is_out(unsigned node, unsigned rail, unsigned to)
{
	const struct control *control = &world.node[node].control;
	const struct member_record *record = member_by_ref(control, world.node[to].control.ref);

	return record && shm_load(&control->status->peer_rails_out[record->peer]) >> rail & 1;
}

static void path_look(unsigned node, unsigned rail, unsigned to)
{
	struct path *path = &paths[node][rail][to];
	uint64_t a = world.node[node].control.incarnation, b = world.node[to].control.incarnation;
	bool talks = runs(node) && runs(to) && linked(node, to) && linked(to, node);
	bool reaches = nic_reaches(node, rail, to, rail) && nic_reaches(to, rail, node, rail);
	struct rail_seen seen = {.wants = false};

	if (path->incarnation[0] != a || path->incarnation[1] != b)
		*path = (struct path){.incarnation = {a, b}};
	if (runs(node) && b)
		rail_look(node, rail, (uint32_t)b, &seen);
	since(&path->talks_ns, talks);
	since(&path->needs_ns, talks && (seen.wants || seen.connected || is_out(node, rail, to)));
	since(&path->unready_ns,
		talks && reaches && world.driver_ns <= NIC_DRIVER_NS &&
			(seen.wants || (seen.connected && !seen.open) || is_out(node, rail, to)));
	since(&path->mute_ns, seen.open && (!reaches || !seen.paired));
	since(&path->vain_ns, path->mute_ns && seen.posted_ns > path->mute_ns);
	check(!longer(path->unready_ns, UP_NS), "a connection comes up");
	check(!longer(path->vain_ns, BREAK_NS), "a connection without an answer breaks");
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static void qp_look(struct nic_qp_seen *seen)
{
	struct path *path = &paths[seen->to][seen->to_rail][seen->node];

	if (!seen->connected || seen->reads)
		return;
	since(&seen->unpaired_ns, !seen->paired && world.driver_ns <= NIC_DRIVER_NS);
	check(!longer(seen->unpaired_ns, ALONE_NS) || !longer(path->needs_ns, ALONE_NS),
		"half a connection ends");
}

/* ---- rails ----------------------------------------------------------------------------------- */

/* Number of members that clients do not read over this rail. */
static unsigned peers_out(const struct control *control, unsigned rail)
{
	unsigned count = 0;

	for (unsigned peer = 0; peer < members_table(control)->peers_used; peer++) {
		bool out = shm_load(&control->status->peer_rails_out[peer]) >> rail & 1;

		check(!out || member_by_peer(control, (uint16_t)peer), "who has left is not out");
		count += out;
	}
	return count;
}

/* Clients see at once which rails have a link, and what the engine says of its rails. */
static void rail_judge(unsigned node, unsigned rail)
{
	const struct control *control = &world.node[node].control;
	bool out = runs(node) && shm_load(&control->status->rails_out) >> rail & 1;
	bool ended = runs(node) && longer(fast_ns, SLOW_NS), port_wrong;
	unsigned said = 0;

	if (runs(node))
		(void)conns_rail_state(control, rail, &said);
	check(!runs(node) || said == peers_out(control, rail), "clients see which rails are out");
	since(&ended_ns[node][rail], ended && rail_ended_ns(node, rail));
	check(!longer(ended_ns[node][rail], DRAIN_NS) ||
			!longer(rail_ended_ns(node, rail), DRAIN_NS),
		"a broken connection is returned");
	/* a driver's call finds that the port can be used, an event that it cannot */
	port_wrong = out ? ended && nic_has_link(node, rail) : !nic_has_link(node, rail);
	since(&port_wrong_ns[node][rail], runs(node) && port_wrong);
	check(!longer(port_wrong_ns[node][rail], PORT_NS), "a rail is out while its port is");
}

static void paths_look(struct thing *thing, uint64_t word)
{
	(void)thing;
	(void)word;
	since(&fast_ns, world.driver_ns <= NIC_DRIVER_NS);
	nic_each_qp(qp_look);
	for (unsigned i = 0; i < world.nodes; i++)
		for (unsigned rail = 0; rail < SIM_RAILS; rail++) {
			rail_judge(i, rail);
			for (unsigned to = 0; to < world.nodes; to++)
				if (to != i)
					path_look(i, rail, to);
		}
	world_always(world.now_ns + LOOK_NS, 0, NULL, 0, paths_look);
}

void paths_watch(void)
{
	memset(paths, 0, sizeof(paths));
	memset(port_wrong_ns, 0, sizeof(port_wrong_ns));
	memset(ended_ns, 0, sizeof(ended_ns));
	fast_ns = 0;
	paths_look(NULL, 0);
}

/* ---- books ----------------------------------------------------------------------------------- */

static unsigned connections(unsigned node)
{
	unsigned count = 0;

	for (unsigned rail = 0; rail < SIM_RAILS; rail++)
		count += rail_connections(node, rail);
	return count;
}

static void books(unsigned node, bool stopped)
{
	const struct control *control = &world.node[node].control;
	struct conn_counts counts;
	unsigned reads = 0;

	for (unsigned rail = 0; rail < SIM_RAILS; rail++)
		reads += rail_reads(node, rail);
	conn_counts(control, &counts);
	check(reads == 0 && outbox_empty(control), "READ is lost");
	check(counts.asked == 0 && counts.live == connections(node) &&
			counts.live == conns_outstanding(control) &&
			!(stopped && (counts.live || counts.served)),
		"connection is lost");
	check(counts.qps == nic_qps(node) && !(stopped && counts.qps), "QP is lost");
}

/* The engine that has just ended its connections, and has told the others. */
static unsigned closer;

static void qp_is_of_others(struct nic_qp_seen *seen)
{
	check(seen->reads || !seen->connected || seen->to != closer, "half a connection ends");
}

void paths_judge(void)
{
	for (unsigned i = 0; i < world.nodes; i++)
		books(i, false);
	for (closer = 0; closer < world.nodes; closer++) {
		world.current = closer;
		world.node[closer].control.stopping = true;
		conns_stop(&world.node[closer].control);
		world_run(world.now_ns + STOP_NS);
		nic_each_qp(qp_is_of_others);
	}
	for (unsigned i = 0; i < world.nodes; i++)
		books(i, true);
}
