/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots: takes them on the loop's thread, by copying the figures of every part of the control
 * plane, of the rails and of the clients. Nothing can fail. snapshot_buffer.c hands them on.
 */
#include "engine/control/observe/snapshot_inner.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "engine/control/net/secure.h"
#include "engine/control/observe/observe.h"
#include "engine/control/observe/view_inner.h"
#include "engine/control/pages/pages.h"

/* A member is silent after this many tenths of a heartbeat interval without a message from it. */
#define SILENT_BEATS_10 20u

static void text_copy(char *to, size_t bytes, const char *from)
{
	snprintf(to, bytes, "%s", from);
}

/* ---- members --------------------------------------------------------------------------------- */

/* Since when the member has been silent; 0: it is up. One without a connection is silent. */
static uint64_t silent_since_ns(
	const struct control *control, const struct member *entry, uint64_t now_ns)
{
	uint64_t beat_ns = (uint64_t)control->settings->cluster_heartbeat_ms * 1000000;
	bool linked = member_link_of(entry) != NULL;

	if (entry->record.self || now_ns < entry->contact->heard_ns)
		return 0;
	if (linked && now_ns - entry->contact->heard_ns <= beat_ns * SILENT_BEATS_10 / 10)
		return 0;
	return entry->contact->heard_ns;
}

static void snapshot_take_probes(
	const struct member *entry, uint64_t now_ns, struct snapshot_member *m)
{
	uint64_t age_ns = member_served_age_ns(entry, now_ns),
		 since_ns = entry->contact->trial.since_ns;

	m->probed_ms = age_ns == UINT64_MAX ? -1 : (int64_t)(age_ns / 1000000);
	m->unprobed_ms = member_unserved_ns(entry, now_ns) / 1000000;
	m->unserving = member_on_trial(entry) && entry->contact->trial.needs_ns;
	m->trial_ms = !since_ns           ? -1
		      : now_ns > since_ns ? (int64_t)((now_ns - since_ns) / 1000000)
					  : 0;
	m->trial_needs_ms = entry->contact->trial.needs_ns / 1000000;
}

/* What this engine exchanges with the member. */
static void snapshot_take_member_links(const struct control *control, const struct member *entry,
	uint64_t now_ns, struct snapshot_member *m)
{
	uint64_t heard_ns = entry->contact->heard_ns;

	if (m->self)
		return;
	m->links = (entry->contact->out != NULL) + (entry->contact->in != NULL);
	m->heard_ms = heard_ns && now_ns > heard_ns ? (now_ns - heard_ns) / 1000000 : 0;
	snapshot_take_probes(entry, now_ns, m);
	if (m->on_map)
		directory_owner(control, entry->record.peer, &m->owner);
}

static void snapshot_take_member(
	const struct control *control, const struct member *entry, struct snapshot *s)
{
	struct snapshot_member *m = &s->member[s->members];
	const struct member_record *record = &entry->record;
	unsigned state = SNAPSHOT_DOWN;
	uint64_t since_ns = entry->since_ns;
	struct member_texts texts;

	if (entry->state != MEMBER_DEAD) {
		since_ns = silent_since_ns(control, entry, s->taken_ns);
		state = since_ns ? SNAPSHOT_SILENT : SNAPSHOT_UP;
	}
	if (s->members >= SNAPSHOT_MEMBERS) {
		s->members_more[state]++;
		return;
	}
	*m = (struct snapshot_member){.incarnation = record->incarnation,
		.ref = record->ref,
		.port = entry->record.port,
		.rails = record->rails,
		.self = record->self,
		.on_map = entry->state == MEMBER_ALIVE,
		.state = state,
		.state_ms = since_ns && since_ns < s->taken_ns ? (s->taken_ns - since_ns) / 1000000
							       : 0};
	snapshot_take_member_links(control, entry, s->taken_ns, m);
	member_texts(record, &texts);
	text_copy(m->name, sizeof(m->name), texts.name);
	text_copy(m->address, sizeof(m->address), texts.address);
	text_copy(m->software, sizeof(m->software), entry->contact->software);
	view_member_fill(control, entry, s->taken_ns, m);
	s->members++;
}

enum contacts { CONTACTS_ONLY, CONTACTS_NOT, CONTACTS_ALL };

static void snapshot_take_some(const struct control *control, struct snapshot *s,
	enum member_state state, enum contacts contacts)
{
	const struct member_table *table = members_table(control);

	for (unsigned i = 0; i < table->entries; i++) {
		const struct member *entry = member_at(table, i);

		if (entry->state != state || entry->left)
			continue;
		if (contacts == CONTACTS_ALL ||
			(contacts == CONTACTS_ONLY) == member_has_contact(entry))
			snapshot_take_member(control, entry, s);
	}
}

/*
 * Members on the map, then those that died; one that left in order is not listed. If the list may
 * be too short, it begins with those that this engine has links with, judges or remembers.
 */
static void snapshot_take_members(const struct control *control, struct snapshot *s)
{
	s->map_epoch = shm_load(&control->status->map.epoch);
	if (members_table(control)->entries <= SNAPSHOT_MEMBERS) {
		snapshot_take_some(control, s, MEMBER_ALIVE, CONTACTS_ALL);
		snapshot_take_some(control, s, MEMBER_DEAD, CONTACTS_ALL);
		return;
	}
	snapshot_take_some(control, s, MEMBER_ALIVE, CONTACTS_ONLY);
	snapshot_take_some(control, s, MEMBER_DEAD, CONTACTS_ONLY);
	snapshot_take_some(control, s, MEMBER_ALIVE, CONTACTS_NOT);
	snapshot_take_some(control, s, MEMBER_DEAD, CONTACTS_NOT);
}

/* ---- rails ----------------------------------------------------------------------------------- */

static void snapshot_take_rail(const struct control *control, unsigned i, struct snapshot_rail *ret)
{
	const struct control_rail *rail = &control->rail[i];
	const struct plan_rail *plan = &control->plan.rail[i];
	struct dv_attributes nic;

	dv_attributes(rail->device, &nic);
	*ret = (struct snapshot_rail){.core = plan->core,
		.node = plan->numa_node,
		.poll_core = plan->poll_core,
		.gbps = (unsigned)(nic.bits_per_second / 1000000000),
		.busy = plan->busy,
		.isolated = plan->isolated,
		.modelled = nic.modelled,
		.pool_bytes = control->status->pool_bytes[i],
		.pool_used_bytes = pool_used_bytes(rail->pool),
		.pages = pool_pages(rail->pool),
		.limbo = pool_limbo(rail->pool),
		.in_flight = rail_in_flight(rail->rail)};
	for (unsigned region = 0; region < REGIONS_EXPORTED && !control->exporting; region++)
		ret->registered_bytes += rail->exported[region].length;
	text_copy(ret->device, sizeof(ret->device), plan->device);
	text_copy(ret->state, sizeof(ret->state), conns_rail_state(control, i, &ret->peers_out));
	text_copy(ret->why, sizeof(ret->why), conns_rail_why(control, i));
	rail_counters(rail->rail, ret->counter);
	rail_latency(rail->rail, ret->latency, &ret->latency_ns_sum);
}

static void snapshot_take_poll_cores(const struct control *control, struct snapshot *s)
{
	for (unsigned p = 0; p < control->plan.poll_cores; p++) {
		struct snapshot_poll_core *core = &s->poll_core[s->poll_cores];

		if (!control->poll_core[p])
			continue;
		*core = (struct snapshot_poll_core){.number = p};
		for (unsigned i = 0; i < control->plan.rails; i++)
			core->rails += control->plan.rail[i].poll_core == p;
		poll_core_report(control->poll_core[p], &core->report);
		s->poll_cores++;
	}
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void snapshot_take_clients(struct control *control, struct snapshot *s)
{
	client_statistics_collect(control, s->taken_ns);
	client_counts(control, &s->attached);
	ctl_counts(control, &s->published);
	copies_counts(control, &s->copies);
	drain_counts(control, &s->drain);
	warm_counts(control, &s->warm);
	s->clients = control->statistics->total;
	s->statistics_refused = control->statistics->refused;
	s->http_unauthorized = shm_load64(&control->http_unauthorized);
}

static void snapshot_take_group(const struct index_group *group, struct snapshot *s)
{
	if (s->groups < SNAPSHOT_GROUPS)
		s->group[s->groups++] = *group;
	else
		s->groups_more = true;
}

static void snapshot_take_groups(const struct index_account *account, struct snapshot *s)
{
	const struct index_group *group;

	s->groups = 0;
	s->groups_more = false;
	s->pinned_bytes = account->pinned;
	TAILQ_FOREACH (group, &account->limited, next_limited)
		snapshot_take_group(group, s);
	TAILQ_FOREACH (group, &account->groups, next) {
		if (s->groups_more)
			break;
		if (!group->limited)
			snapshot_take_group(group, s);
	}
}

static void snapshot_take_directory(const struct control *control, struct snapshot *s)
{
	directory_counts(control, &s->directory);
	s->shard_entries = control->shard->entries;
	s->shard_capacity = (uint64_t)BUCKET_ENTRIES << control->shard->bits;
	s->keys = index_count(control->index);
	snapshot_take_groups(index_account(control->index), s);
}

static void snapshot_take_path(const struct tier_counts *t, unsigned i, uint32_t segment_bytes,
	struct snapshot_disk_path *ret)
{
	static const char *const states[] = {"opening", "up", "out"};
	const struct disk_path_report *r = &t->report->path[i];
	const char *name = t->options->path[i].directory;
	size_t length = strlen(name);
	enum disk_path_state state = t->state == TIER_OPENING  ? DISK_PATH_OPENING
				     : t->state == TIER_FAILED ? DISK_PATH_OUT
							       : r->state;

	*ret = (struct snapshot_disk_path){.bytes = (uint64_t)r->segments * segment_bytes,
		.used_bytes = (uint64_t)r->sealed * segment_bytes,
		.report = *r};
	text_copy(ret->directory, sizeof(ret->directory),
		length < sizeof(ret->directory) ? name
						: name + length - sizeof(ret->directory) + 1);
	text_copy(ret->state, sizeof(ret->state), states[state]);
}

static void snapshot_take_disk(const struct control *control, struct snapshot_disk *ret)
{
	struct tier_counts counts;

	memset(ret, 0, sizeof(*ret));
	if (!control->tier)
		return;
	tier_counts(control, &counts);
	ret->pages = counts.report->pages;
	ret->index_bytes = counts.report->index_bytes;
	ret->spills = counts.spills;
	ret->promotes = counts.promotes;
	ret->waiting = counts.waiting;
	ret->pins = counts.pins;
	ret->spill_bytes = counts.spill_bytes;
	ret->pinned_bytes = counts.pinned_bytes;
	ret->writing_ns = counts.writing_ns;
	ret->paths = counts.options->paths;
	for (unsigned i = 0; i < ret->paths; i++) {
		const struct snapshot_disk_path *path = &ret->path[i];
		const struct disk_path_report *r = &path->report;

		snapshot_take_path(&counts, i, counts.options->segment_bytes, &ret->path[i]);
		ret->paths_out += !strcmp(path->state, "out");
		ret->bytes += path->bytes;
		ret->used_bytes += path->used_bytes;
		ret->bytes_written += r->bytes_written;
		ret->bytes_read += r->bytes_read;
		ret->errors += r->read_errors + r->crc_errors + r->io_errors;
	}
}

/* ---- the whole snapshot ---------------------------------------------------------------------- */

void snapshot_take(struct control *control, struct snapshot *ret)
{
	ret->members = ret->poll_cores = 0;
	memset(ret->members_more, 0, sizeof(ret->members_more));
	ret->taken_ns = net_now();
	ret->unix_ms = snapshot_unix_ms();
	ret->started_unix_ms = control->pace.started_unix_ms;
	ret->uptime_ms = (ret->taken_ns - control->pace.started_ns) / 1000000;
	text_copy(ret->name, sizeof(ret->name), control->name);
	ret->settings = control->settings;
	text_copy(ret->cluster, sizeof(ret->cluster), control->settings->cluster_id);
	ret->incarnation = control->incarnation;
	ret->pid = getpid();
	ret->control_core = control->plan.control_core;
	ret->stopping = control->stopping;
	ret->keeper_gone = control->keeper_gone;
	ret->security = secure_word(control);
	ret->unsecured = secure_missing(control);
	ret->secure_ends_s = secure_ends_s(control);
	ret->addresses_gone = control->rpc ? control->rpc->addresses_gone : 0;
	ret->registering = control->exporting;
	ret->memory_bytes = control->memory_bytes;
	ret->populated_bytes = control->populated_bytes;
	ret->rails = control->rails;
	for (unsigned i = 0; i < control->rails; i++)
		snapshot_take_rail(control, i, &ret->rail[i]);
	snapshot_take_poll_cores(control, ret);
	snapshot_take_members(control, ret);
	seeds_report(control, ret->taken_ns, &ret->seeds);
	refusals_report(control, ret->taken_ns, &ret->refusals);
	snapshot_take_directory(control, ret);
	snapshot_take_clients(control, ret);
	snapshot_take_disk(control, &ret->disk);
	conn_counts(control, &ret->connections);
	memcpy(ret->counter, control->counter, sizeof(ret->counter));
	memcpy(ret->lag, control->pace.lag, sizeof(ret->lag));
	ret->lag_ns_sum = control->pace.lag_ns_sum;
	ret->lag_worst_ns = control->pace.lag_worst_ns;
	moments_compare(control->moments, ret);
}

int snapshot_report(struct control *control, char **ret_text, size_t *ret_bytes)
{
	struct snapshot *snapshot = snapshots_writing(control->snapshots);

	snapshot_take(control, snapshot);
	return report_make(snapshot, snapshot->taken_ns, ret_text, ret_bytes);
}
