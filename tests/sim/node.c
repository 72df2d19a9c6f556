/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated engines: the product's rpc, member and directory code with stubs of the parts that need
 * a NIC or clients, and the planted mistakes. One thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/control_inner.h"
#include "engine/control/directory/directory.h"
#include "engine/control/observe/observe.h"
#include "engine/control/pages/pages.h"
#include "engine/control/clients/clients.h"
#include "tests/sim/channel.h"
#include "tests/sim/client.h"
#include "tests/sim/copier.h"
#include "tests/sim/disk.h"
#include "tests/sim/keeper.h"
#include "tests/sim/nic.h"
#include "tests/sim/rail.h"
#include "tests/sim/world.h"

/* ---- stubs of other parts of the control plane ----------------------------------------------- */

/* The index takes its secret from here, so that a walk has one order per seed. */
ssize_t getrandom(void *buffer, size_t bytes, unsigned flags);
ssize_t getrandom(void *buffer, size_t bytes, unsigned flags)
{
	uint8_t *to = buffer;

	(void)flags;
	for (size_t i = 0; i < bytes; i++)
		to[i] = (uint8_t)world_random();
	return (ssize_t)bytes;
}

int snapshot_report(struct control *control, char **ret_text, size_t *ret_bytes)
{
	(void)control;
	(void)ret_text;
	(void)ret_bytes;
	abort();
}

/* clients.c and client_channel.c: sessions are not simulated, see channel.c. */
void clients_accept(struct control *control)
{
	(void)control;
}

void client_deny(struct control *control, uint32_t channel, const char *text)
{
	(void)control, (void)channel, (void)text;
	abort();
}

void client_channel_broken(struct control *control, uint32_t channel)
{
	(void)control;
	(void)channel;
	abort();
}

void client_memory_release_held(struct control *control)
{
	(void)control;
}

unsigned clients_lent(const struct control *control)
{
	(void)control;
	return 0;
}

/* NICs of the simulation do not come back: no engine calls these. */
int client_memory_renew(struct control *control, unsigned rail, char *why, size_t bytes)
{
	(void)control, (void)rail, (void)why, (void)bytes;
	abort();
}

int dv_mr_register(struct dv_device *device, const struct dv_memory *memory, struct dv_mr *ret_mr)
{
	(void)device, (void)memory, (void)ret_mr;
	abort();
}

int rail_nic_open(struct rail *rail)
{
	(void)rail;
	abort();
}

void rail_nic_close(struct rail *rail)
{
	(void)rail;
	abort();
}

int dv_reopen(struct dv_device *device)
{
	(void)device;
	abort();
}

bool view_serve_ask(struct control *control, struct rpc_link *link)
{
	(void)control;
	return link != NULL;
}

bool view_serve_summary(struct control *control, struct rpc_link *link, const Pc__Summary *summary)
{
	(void)control;
	(void)link;
	return summary != NULL;
}

/* ---- planted mistakes (ld --wrap) ------------------------------------------------------------ */

__typeof__(conns_member_gone) __real_conns_member_gone, __wrap_conns_member_gone;

void __wrap_conns_member_gone(struct control *control, uint16_t peer, uint32_t ref)
{
	if (world.mutant != MUTANT_KEPT_QPS)
		__real_conns_member_gone(control, peer, ref);
}

int __real_shard_insert(struct shard *shard, const struct page_key *key, uint32_t ref,
	uint32_t place, uint32_t generation);
int __wrap_shard_insert(struct shard *shard, const struct page_key *key, uint32_t ref,
	uint32_t place, uint32_t generation);
int __wrap_shard_insert(struct shard *shard, const struct page_key *key, uint32_t ref,
	uint32_t place, uint32_t generation)
{
	const struct node *n = &world.node[world.current];

	if ((world.mutant == MUTANT_LOST_ACK || n->forgetful) && ref != n->control.ref)
		return 0;
	if (world.mutant == MUTANT_NO_ROOM && dir_tag(key) % 64 == 0)
		return -ENOSPC;
	return __real_shard_insert(shard, key, ref, place, generation);
}

/* As if the member had answered all probes now. */
static void probes_answered(struct member_contact *contact)
{
	for (unsigned size = 0; size < PROBE_SIZES; size++) {
		contact->probe.asked_ns[size] = 0;
		contact->probe.served_ns[size] = net_now();
	}
}

bool __real_members_tick(struct control *control, uint64_t now_ns);
bool __wrap_members_tick(struct control *control, uint64_t now_ns);
bool __wrap_members_tick(struct control *control, uint64_t now_ns)
{
	if (world.mutant == MUTANT_NO_COMPARE)
		control->directory->turn.at_ns = UINT64_MAX;
	if (world.mutant == MUTANT_DEAF_DEATH)
		for (unsigned i = 0; i < control->members->table.contacts; i++) {
			control->members->table.contact[i]->heard_ns = net_now();
			probes_answered(control->members->table.contact[i]);
		}
	return __real_members_tick(control, now_ns);
}

bool __real_member_heartbeat(
	struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat);
bool __wrap_member_heartbeat(
	struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat);
bool __wrap_member_heartbeat(
	struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat)
{
	if (world.mutant == MUTANT_OWN_WORD)
		probes_answered(link->member->contact);
	for (unsigned size = 0; world.mutant == MUTANT_BEAT_REFUTE && size < PROBE_SIZES; size++)
		member_claim_served(control, link->member, size);
	return __real_member_heartbeat(control, link, beat);
}

bool __real_member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
bool __wrap_member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello);
bool __wrap_member_hello(struct control *control, struct rpc_link *link, const Pc__Hello *hello)
{
	const struct member_table *table = &control->members->table;

	for (unsigned i = 0; world.mutant == MUTANT_NO_LATCH && i < table->contacts; i++)
		table->contact[i]->trial.incarnation = 0;
	return __real_member_hello(control, link, hello);
}

bool __real_rpc_send(struct rpc_link *link, const Pc__Message *message);
bool __wrap_rpc_send(struct rpc_link *link, const Pc__Message *message);
bool __wrap_rpc_send(struct rpc_link *link, const Pc__Message *message)
{
	if (world.mutant == MUTANT_NO_PAD && message->body_case == PC__MESSAGE__BODY_PROBE)
		message->probe->pad.len = 0;
	return __real_rpc_send(link, message);
}

void __real_departed_add(struct directory *dir, uint32_t ref);
void __wrap_departed_add(struct directory *dir, uint32_t ref);
void __wrap_departed_add(struct directory *dir, uint32_t ref)
{
	__real_departed_add(dir, ref);
	if (world.mutant == MUTANT_SWEEP_AT_ONCE)
		departed_tick(dir, UINT64_MAX);
}

bool __real_member_probe_ack(
	struct control *control, struct rpc_link *link, const Pc__ProbeAck *ack);
bool __wrap_member_probe_ack(
	struct control *control, struct rpc_link *link, const Pc__ProbeAck *ack);
bool __wrap_member_probe_ack(
	struct control *control, struct rpc_link *link, const Pc__ProbeAck *ack)
{
	if (world.mutant == MUTANT_NO_PAD)
		((Pc__ProbeAck *)ack)->pad.len = ack->serial & 1 ? PROBE_PAD_BYTES : 0;
	/* One answer alone refutes no claim. */
	if (world.mutant == MUTANT_NO_REFUTE && member_has_contact(link->member))
		link->member->contact->claim_served = 0;
	return __real_member_probe_ack(control, link, ack);
}

/* ---- engines --------------------------------------------------------------------------------- */

static void settings_fill(struct node *n, unsigned i, unsigned replicas)
{
	struct settings *s = &n->settings;
	char seed[32];

	settings_default(s);
	s->cluster_replicas = replicas;
	s->cluster_port = SIM_PORT;
	snprintf(s->cluster_address, sizeof(s->cluster_address), "10.0.%u.%u", (i + 1) >> 8,
		(i + 1) & 255);
	snprintf(seed, sizeof(seed), "10.0.0.1:%u,10.0.0.2:%u", SIM_PORT, SIM_PORT);
	snprintf(s->cluster_seeds, sizeof(s->cluster_seeds), "%s", seed);
	if (!n->pages.disks)
		return;
	snprintf(s->disk_paths, sizeof(s->disk_paths), "/0,/1");
	s->disk_segment_bytes = SIM_SEGMENT_UNITS * PAGE_UNIT;
	s->disk_bytes = SIM_SEGMENTS * s->disk_segment_bytes;
	s->disk_timeout_ms = SIM_DISK_TIMEOUT_MS;
}

/* Hash table of the nodes by ref; those of former processes stay in it. */
#define REFS (1u << 18)
static uint32_t refs[REFS], refs_used; /* 1 + node; 0: free */

static void ref_add(unsigned i)
{
	uint32_t at = world.node[i].control.ref % REFS;

	if (++refs_used == REFS)
		abort();
	while (refs[at])
		at = (at + 1) % REFS;
	refs[at] = i + 1;
}

int node_by_ref(uint32_t ref)
{
	for (uint32_t at = ref % REFS; refs[at]; at = (at + 1) % REFS) {
		const struct node *n = &world.node[refs[at] - 1];

		if (n->running && n->control.ref == ref)
			return (int)(refs[at] - 1);
	}
	return -1;
}

bool node_reads(unsigned i)
{
	unsigned step = world.nodes / READERS_MAX + 1;

	return i % step == world.seed % step;
}

/* Zeroed; only what is written takes memory. */
static struct status_segment *status_new(void)
{
	void *at = mmap(NULL, sizeof(struct status_segment), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		abort();
	return at;
}

/*
 * The memory is private, so that a copy of the process (run.c) has a copy of the shard. Its file is
 * closed: 10,000 engines would need more files than a process may have open.
 */
static void memory_own(struct huge *memory)
{
	if (mmap(memory->base, memory->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
		    memory->fd, 0) == MAP_FAILED)
		abort();
	close(memory->fd);
	memory->fd = -1;
}

/* The parts that serve clients. */
static void clients_begin(unsigned i)
{
	struct control *control = &world.node[i].control;

	if (ctl_open(control) < 0 || promote_open(control) < 0 || tier_open(control) < 0 ||
		warm_begin(control) < 0)
		abort();
	copier_open(i);
	channel_open(i);
}

/* The same when the process ends; what it has in shared memory stays as it is. */
static void clients_end(unsigned i)
{
	struct control *control = &world.node[i].control;
	int64_t clock_ns = world.node[i].clock_ns;

	channel_close(i);
	copier_close(i);
	warm_end(control);
	tier_close(control);
	world.node[i].clock_ns = clock_ns; /* the time of the stop is that of no other event */
	promote_close(control);
	ctl_close(control);
}

/* Rails, NICs and the connections between them. */
static int connections_begin(unsigned i)
{
	struct control *control = &world.node[i].control;
	int rc;

	rails_open(i);
	rc = device_event_open(control);
	return rc < 0 ? rc : conns_open(control);
}

static void connections_end(unsigned i)
{
	struct control *control = &world.node[i].control;

	if (!control->conns)
		return;
	nics_process_ends(i);
	rails_close(i);
	conns_close(control);
	device_event_close(control);
	outbox_close(control);
}

void node_turn(unsigned i)
{
	struct control *control = &world.node[i].control;

	if (!control->directory)
		return;
	if (control->ctl) {
		client_turn_begin(i);
		while (rails_turn(i) + tier_turn(control) + copier_turn(i) + ctl_turn(control) +
			clear_turn(control))
			;
		client_turn_end(i);
	}
	directory_flush(control);
	if (!control->ctl)
		return;
	ctl_flush(control);
	channel_look(i);
}

uint64_t node_now(unsigned i)
{
	unsigned was = world.current;
	uint64_t now_ns;

	world.current = i;
	now_ns = net_now();
	world.current = was;
	return now_ns;
}

void node_open(unsigned i, unsigned replicas, uint64_t entries)
{
	struct node *n = &world.node[i];
	struct control *control = &n->control;

	world.current = i;
	memset(control, 0, sizeof(*control));
	control->shard = &n->shard;
	settings_fill(n, i, replicas);
	n->base.node = i;
	control->settings = &n->settings;
	control->base = &n->base;
	control->incarnation = world_random() | 1;
	control->ref = (uint32_t)control->incarnation;
	control->rails = world.bare == i + 1 ? 0 : 2;
	control->port_fd = -1;
	control->status = n->status = node_reads(i) ? status_new() : NULL;
	snprintf(control->name, sizeof(control->name), "10.0.%u.%u:%u", (i + 1) >> 8, (i + 1) & 255,
		SIM_PORT);
	n->running = n->powered = true;
	n->stopped = n->gray = n->small_mtu = false;
	keeper_start(i);
	upward_fill(control);
	if (warm_open(control) < 0 || index_open(entries, &control->index) < 0)
		abort();
	if (world.keeper)
		pools_open(i);
	if (warm_identity(control) < 0 || warm_shard_open(control, entries, -1, false) < 0)
		abort();
	ref_add(i);
	control->bucket_bits = (uint8_t)control->shard->bits;
	if (!world.keeper) {
		memory_own(&control->shard->memory);
		memory_own(&control->shard->state_memory);
	}
	if ((world.keeper && epochs_open(control, clients_accept) < 0) || rpc_open(control) < 0 ||
		members_open(control) < 0 || directory_open(control) < 0 ||
		(world.keeper && connections_begin(i) < 0) || tick_open(control) < 0)
		abort();
	if (world.keeper)
		clients_begin(i);
}

static void process_end(unsigned i, bool power, bool kept)
{
	struct node *n = &world.node[i];
	unsigned was = world.current;

	if (!n->running)
		return;
	world.current = i;
	n->running = false;
	n->powered = !power;
	world_resume(i);
	wire_crash(i);
	if (!kept)
		keeper_drop(i);
	if (n->control.ctl) {
		if (!n->control.stopping)
			disks_crash(i, power);
		pages_lost(i);
		clients_end(i);
		disks_crashed(i);
	}
	tick_close(&n->control);
	connections_end(i);
	directory_close(&n->control);
	members_close(&n->control);
	rpc_close(&n->control);
	epochs_close(&n->control);
	clear_close(&n->control);
	ctl_free(n->control.ctl);
	shard_close(n->control.shard);
	if (world.keeper)
		pools_close(i);
	index_close(n->control.index);
	warm_close(&n->control);
	if (n->status)
		munmap(n->status, sizeof(*n->status));
	memset(&n->control, 0, sizeof(n->control));
	n->shard = (struct shard){.bits = 0};
	n->control.shard = &n->shard;
	world.current = was;
}

void node_crash(unsigned i, bool power)
{
	process_end(i, power, false);
}

void node_keep(unsigned i)
{
	process_end(i, false, true);
}

void node_stop(unsigned i, bool stopped)
{
	if (world.node[i].stopped && !stopped) {
		world.node[i].resumed_ns = world.now_ns;
		world_resume(i);
	}
	world.node[i].stopped = stopped;
}

/* As key_hash(): all keys are of one group. */
static struct page_key key_in(const struct epoch *epoch, uint64_t number)
{
	uint64_t at = map_mix(world.seed ^ epoch->all ^ epoch->group) + 2 * number;
	struct page_key key = {.word = {map_mix(at), map_mix(at + 1)}};

	key.word[0] = (key.word[0] & ~(PAGE_GROUP_0 | PAGE_EPOCH_0)) | epoch_bits(epoch);
	key.word[1] &= ~PAGE_GROUP_1;
	return key;
}

struct page_key node_key(uint64_t number)
{
	return key_in(&world.epoch, number);
}

struct epoch node_epoch(unsigned i)
{
	const struct status_segment *status = world.node[i].control.status;

	if (!status || world.mutant == MUTANT_NO_EPOCH)
		return (struct epoch){.all = 0};
	return epoch_load(&status->epochs, 0);
}

struct page_key node_key_of(unsigned i, uint64_t number)
{
	const struct epoch epoch = node_epoch(i);

	return key_in(&epoch, number);
}

static void set_done(void *context, uint64_t started_ns, enum op_status status)
{
	struct node *n = context;
	uint64_t took_ns = world.now_ns - started_ns;

	if (status == OP_CANCELLED)
		return;
	n->hits += status == OP_HIT;
	n->timeouts += status == OP_TIMEOUT;
	n->others += status != OP_HIT && status != OP_TIMEOUT;
	if (took_ns > n->set_worst_ns && started_ns > n->resumed_ns)
		n->set_worst_ns = took_ns;
}

/* Without pools, the place of a page is its number. */
__typeof__(page_key_at) __real_page_key_at, __wrap_page_key_at;

bool __wrap_page_key_at(
	struct control *control, uint32_t place, uint32_t generation, struct page_key *ret_key)
{
	if (world.keeper)
		return __real_page_key_at(control, place, generation, ret_key);
	*ret_key = node_key(place_unit(place));
	return index_find(control->index, ret_key) != NULL;
}

void node_set(unsigned i, uint64_t number)
{
	struct node *n = &world.node[i];
	struct index_entry page = {.key = node_key(number),
		.place = place_make(0, (uint32_t)number),
		.generation = 1,
		.length = PAGE_UNIT};

	world.current = i;
	n->sets++;
	if (index_put(n->control.index, &page, NULL) < 0)
		abort();
	directory_publish(&n->control, &page.key,
		&(struct location){.place = page.place, .generation = page.generation},
		&(struct waiter){.deadline_ns = net_now() + SIM_S,
			.done = set_done,
			.context = n,
			.cookie = world.now_ns});
	directory_flush(&n->control);
}

bool node_holds(unsigned i, const struct page_key *key)
{
	const struct node *n = &world.node[i];

	return n->running && index_find(n->control.index, key) != NULL;
}

bool node_sees(unsigned i, unsigned j)
{
	const struct control *control = &world.node[j].control;
	const struct member_record *record = member_by_ref(&world.node[i].control, control->ref);

	return record && record->incarnation == control->incarnation;
}

bool nodes_agree(void)
{
	unsigned running = 0;
	uint64_t digest = 0;

	for (unsigned i = 0; i < world.nodes; i++) {
		running += world.node[i].running;
		if (world.node[i].running)
			digest += map_mix(world.node[i].control.incarnation);
	}
	for (unsigned i = 0; i < world.nodes; i++)
		if (world.node[i].running &&
			(member_count(&world.node[i].control) != running ||
				world.node[i].control.members->digest != digest))
			return false;
	return true;
}

bool nodes_linked(void)
{
	if (!nodes_agree())
		return false;
	for (unsigned i = 0; i < world.nodes; i++) {
		const struct members *member = world.node[i].control.members;

		for (unsigned k = 0; world.node[i].running && k < member->table.contacts; k++) {
			const struct member *entry = member->table.contact[k]->member;

			if (entry->state == MEMBER_ALIVE && member_watched(entry) &&
				(entry->contact->kept || !member_link_of(entry)))
				return false;
		}
	}
	return true;
}
