/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nic.h. A NIC gives the lowest free number to a new QP, so the next process has those of the one
 * before. One thread.
 */
#include "tests/sim/nic.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/sim/world.h"

#define NIC_EVENTS_MAX 64u
#define NIC_FD (1 << 20) /* + rail: a number that no descriptor has */
#define NIC_KIND 3       /* of dv_address: a software NIC */

struct dv_qp {
	LIST_ENTRY(dv_qp) next;
	struct dv_device *nic;
	uint32_t number, psn;
	unsigned depth;
	bool connected, error;
	bool dead; /* the process has ended, or dv_qp_kill() has destroyed it */
	struct dv_address remote;
	struct nic_qp_seen seen;
};

struct dv_device {
	unsigned node, rail;
	bool down, mute, stuck, dead;
	LIST_HEAD(, dv_qp) qps;
	struct dv_event event[NIC_EVENTS_MAX]; /* for the process */
	unsigned events;
};

static struct dv_device nics[NIC_NODES_MAX][SIM_RAILS];

void nics_open(void)
{
	memset(nics, 0, sizeof(nics));
	if (world.nodes > NIC_NODES_MAX)
		abort();
	for (unsigned i = 0; i < world.nodes; i++)
		for (unsigned rail = 0; rail < SIM_RAILS; rail++)
			nics[i][rail] = (struct dv_device){.node = i, .rail = rail};
}

struct dv_device *nic_of(unsigned node, unsigned rail)
{
	return &nics[node][rail];
}

static void region_export(struct control_rail *rail, unsigned region, void *base, uint64_t bytes)
{
	rail->exported[region] =
		(struct dv_mr){.base = base, .length = bytes, .rkey = (uint32_t)world_random()};
}

void nic_export(unsigned node)
{
	struct control *control = &world.node[node].control;

	for (unsigned r = 0; r < control->rails; r++) {
		struct control_rail *rail = &control->rail[r];

		for (unsigned of = 0; of < control->rails; of++) {
			const struct pool *pool = control->rail[of].pool;

			region_export(rail, REGION_POOL_0 + of, pool_memory(pool)->base,
				pool_memory(pool)->bytes);
			region_export(rail, REGION_HEADS_0 + of, pool_heads(pool)->base,
				pool_heads(pool)->bytes);
		}
		region_export(rail, REGION_SHARD, control->shard->memory.base,
			control->shard->memory.bytes);
	}
}

static void qp_dies(struct dv_qp *qp)
{
	if (!qp->dead)
		LIST_REMOVE(qp, next);
	qp->dead = true;
}

void nics_process_ends(unsigned node)
{
	for (unsigned rail = 0; rail < SIM_RAILS; rail++) {
		struct dv_device *nic = &nics[node][rail];

		while (!LIST_EMPTY(&nic->qps))
			qp_dies(LIST_FIRST(&nic->qps));
		nic->events = 0;
		nic->dead = false;
	}
}

/* ---- faults and events ----------------------------------------------------------------------- */

static void events_due(struct thing *thing, uint64_t rail)
{
	(void)thing;
	if (nics[world.current][rail].events)
		ready_call(world.current, NIC_FD + (int)rail);
}

static void event_send(struct dv_device *nic, enum dv_event_kind kind, uint32_t qpn)
{
	if (!ready_watched(nic->node, dv_event_fd(nic)) || world.mutant == MUTANT_DEAF_PORT)
		return;
	if (nic->events == NIC_EVENTS_MAX)
		abort();
	nic->event[nic->events++] =
		(struct dv_event){.kind = kind, .port = 1, .qpn = qpn, .text = "a planned fault"};
	world_at(world.now_ns, nic->node, NULL, nic->rail, events_due);
}

void nic_port(unsigned node, unsigned rail, bool up)
{
	struct dv_device *nic = &nics[node][rail];

	if (nic->down == !up)
		return;
	nic->down = !up;
	event_send(nic, up ? DV_EVENT_PORT_UP : DV_EVENT_PORT_DOWN, 0);
}

bool nic_has_link(unsigned node, unsigned rail)
{
	return !nics[node][rail].down && !nics[node][rail].dead;
}

void nic_mute(unsigned node, unsigned rail, bool mute)
{
	nics[node][rail].mute = mute;
}

void nic_stuck(unsigned node, unsigned rail, bool stuck)
{
	nics[node][rail].stuck = stuck;
}

void nic_qp_fails(unsigned node, unsigned rail)
{
	struct dv_device *nic = &nics[node][rail];
	unsigned count = 0, which;
	struct dv_qp *qp;

	LIST_FOREACH (qp, &nic->qps, next)
		count++;
	which = count ? (unsigned)(world_random() % count) : 0;
	LIST_FOREACH (qp, &nic->qps, next)
		if (which-- == 0)
			break;
	if (!qp || !qp->connected)
		return;
	qp->error = true;
	event_send(nic, DV_EVENT_QP_ERROR, qp->number);
}

void nic_dies(unsigned node, unsigned rail)
{
	nics[node][rail].dead = true;
	event_send(&nics[node][rail], DV_EVENT_DEVICE_FATAL, 0);
}

static bool nic_is_well(const struct dv_device *nic)
{
	return !nic->down && !nic->mute && !nic->dead;
}

bool nic_reaches(unsigned node, unsigned rail, unsigned to, unsigned to_rail)
{
	bool network = world.rails_apart ? world.node[node].powered && world.node[to].powered
					 : wire_reaches(node, to);

	return network && nic_is_well(&nics[node][rail]) && nic_is_well(&nics[to][to_rail]);
}

int dv_event_fd(struct dv_device *device)
{
	return NIC_FD + (int)device->rail;
}

int dv_event_next(struct dv_device *device, struct dv_event *ret_event)
{
	if (!device->events)
		return 0;
	*ret_event = device->event[0];
	memmove(device->event, device->event + 1, --device->events * sizeof(*device->event));
	return 1;
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static struct dv_qp *qp_find(struct dv_device *nic, uint32_t number)
{
	struct dv_qp *qp;

	LIST_FOREACH (qp, &nic->qps, next)
		if (qp->number == number)
			return qp;
	return NULL;
}

/* The other end; NULL: it is not there, or not connected. */
static struct dv_qp *qp_other(const struct dv_qp *qp)
{
	struct dv_qp *other;

	if (!qp->connected)
		return NULL;
	other = qp_find(&nics[qp->remote.lid][qp->remote.gid[0]], qp->remote.qpn);
	if (!other || !other->connected)
		return NULL;
	if (world.mutant == MUTANT_QP_REUSED)
		return other;
	return other->psn == qp->remote.psn && other->remote.psn == qp->psn &&
			       other->remote.qpn == qp->number &&
			       other->remote.lid == qp->nic->node &&
			       other->remote.gid[0] == qp->nic->rail
		       ? other
		       : NULL;
}

int dv_qp_create(struct dv_device *device, struct dv_cq *cq, unsigned depth, struct dv_qp **ret_qp,
	struct dv_sq **ret_sq)
{
	struct dv_qp *qp = calloc(1, sizeof(*qp));

	(void)cq;
	if (!qp)
		abort();
	*qp = (struct dv_qp){.nic = device, .depth = depth, .psn = (uint32_t)world_random()};
	while (qp_find(device, qp->number))
		qp->number++;
	/* as at the end of a process, whose helper threads may be making QPs */
	qp->dead = !world.node[device->node].running;
	if (!qp->dead)
		LIST_INSERT_HEAD(&device->qps, qp, next);
	*ret_qp = qp;
	*ret_sq = (struct dv_sq *)(void *)qp;
	return 0;
}

void dv_qp_address(const struct dv_qp *qp, struct dv_address *ret_address)
{
	*ret_address = (struct dv_address){.version = 1,
		.kind = NIC_KIND,
		.qpn = qp->number,
		.psn = qp->psn,
		.lid = (uint16_t)qp->nic->node,
		.gid = {(uint8_t)qp->nic->rail}};
}

uint32_t dv_qp_number(const struct dv_qp *qp)
{
	return qp->number;
}

int dv_qp_connect(struct dv_qp *qp, const struct dv_address *remote)
{
	if (remote->kind != NIC_KIND || remote->lid >= world.nodes || remote->gid[0] >= SIM_RAILS)
		return -EPROTO;
	qp->remote = *remote;
	qp->connected = true;
	return 0;
}

uint64_t dv_qp_ack_ns(const struct dv_qp *qp)
{
	return qp->connected ? NIC_ACK_NS : 0;
}

int dv_qp_error(struct dv_qp *qp)
{
	if (qp->nic->dead)
		return -EIO;
	qp->error = true;
	return 0;
}

int dv_qp_kill(struct dv_qp *qp)
{
	if (qp->nic->dead)
		return -EIO;
	qp_dies(qp);
	return 0;
}

void dv_qp_destroy(struct dv_qp *qp)
{
	if (!qp)
		return;
	if (world.mutant == MUTANT_LOST_QP && !qp->dead && qp->number % 8 == 0)
		return;
	qp_dies(qp);
	free(qp);
}

/* The process has closed the device: its QPs are gone. */
int dv_cut(struct dv_device *device)
{
	while (!LIST_EMPTY(&device->qps))
		qp_dies(LIST_FIRST(&device->qps));
	return 0;
}

const char *dv_error(void)
{
	return "a planned fault";
}

const char *dv_syndrome(uint8_t syndrome)
{
	return syndrome ? "an error" : "none";
}

void dv_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	(void)device;
	*ret = (struct dv_attributes){0};
}

int dv_port_look(struct dv_device *device)
{
	return device->down && world.mutant != MUTANT_DEAF_PORT ? -ENETDOWN : 0;
}

bool dv_qp_stale(const struct dv_qp *qp)
{
	(void)qp;
	return false;
}

void nics_close(void)
{
	for (unsigned i = 0; i < world.nodes && i < NIC_NODES_MAX; i++)
		for (unsigned rail = 0; rail < SIM_RAILS; rail++)
			while (!LIST_EMPTY(&nics[i][rail].qps)) {
				struct dv_qp *lost = LIST_FIRST(&nics[i][rail].qps);

				qp_dies(lost);
				free(lost);
			}
}

/* ---- READs ----------------------------------------------------------------------------------- */

/* The process of the node has registered memory with this key on the NIC. */
static bool rkey_is_of(const struct dv_device *nic, uint32_t rkey)
{
	const struct dv_mr *mr = world.node[nic->node].control.rail[nic->rail].exported;

	for (unsigned i = 0; i < REGIONS_EXPORTED; i++)
		if (mr[i].length && mr[i].rkey == rkey)
			return true;
	return world.mutant == MUTANT_QP_REUSED;
}

bool nic_qp_paired(const struct dv_qp *qp)
{
	return qp_other(qp) != NULL;
}

unsigned nic_qp_to(const struct dv_qp *qp)
{
	return qp->remote.lid;
}

enum nic_answer nic_serve(const struct dv_qp *qp, uint32_t rkey, unsigned *ret_node)
{
	const struct dv_qp *other = qp_other(qp);

	if (!other || other->error || world.node[other->nic->node].gray ||
		!nic_reaches(qp->nic->node, qp->nic->rail, qp->remote.lid, qp->remote.gid[0]) ||
		(double)(world_random() >> 11) * 0x1p-53 < world.loss)
		return NIC_LOST;
	if (!rkey_is_of(other->nic, rkey))
		return NIC_REFUSED;
	*ret_node = other->nic->node;
	return NIC_SERVED;
}

bool nic_answers(const struct dv_qp *qp)
{
	return nic_reaches(qp->remote.lid, qp->remote.gid[0], qp->nic->node, qp->nic->rail) &&
	       (double)(world_random() >> 11) * 0x1p-53 >= world.loss;
}

bool nic_hangs(const struct dv_qp *qp)
{
	return qp->nic->dead || (qp->error && qp->nic->stuck);
}

bool nic_qp_failed(const struct dv_qp *qp)
{
	return qp->error;
}

void nic_qp_error(struct dv_qp *qp)
{
	qp->error = true;
}

/* ---- what the checkers see ------------------------------------------------------------------- */

void nic_each_qp(void (*call)(struct nic_qp_seen *seen))
{
	for (unsigned i = 0; i < world.nodes; i++)
		for (unsigned rail = 0; rail < SIM_RAILS; rail++) {
			struct dv_qp *qp;

			LIST_FOREACH (qp, &nics[i][rail].qps, next) {
				qp->seen.node = i;
				qp->seen.rail = rail;
				qp->seen.to = qp->remote.lid;
				qp->seen.to_rail = qp->remote.gid[0];
				qp->seen.connected = qp->connected;
				qp->seen.reads = qp->depth > 1;
				qp->seen.paired = qp_other(qp) != NULL;
				call(&qp->seen);
			}
		}
}

unsigned nic_qps(unsigned node)
{
	unsigned count = 0;

	for (unsigned rail = 0; rail < SIM_RAILS; rail++) {
		const struct dv_qp *qp;

		LIST_FOREACH (qp, &nics[node][rail].qps, next)
			count++;
	}
	return count;
}
