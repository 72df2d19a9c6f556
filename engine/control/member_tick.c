/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work on the heartbeat timer: sends heartbeats, declares members dead after a time-out.
 * Control plane's thread only.
 */
#include <stdio.h>

#include "engine/control/directory.h"
#include "engine/control/member.h"

#define NS_PER_MS 1000000ull

/*
 * Lists the refs of the members that the other members are asked about: whether they hear them
 * (doubts), whether they are served by them (unserved).
 */
static void doubts_list(const struct control *control, uint64_t now_ns, Pc__Heartbeat *beat)
{
	uint64_t patience_ns =
		suspect_patience_ns((uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS);

	for (unsigned peer = 0; peer < NODES_MAX; peer++) {
		const struct member_entry *entry = control->member->by_peer[peer];

		/* Above MEMBER_MESH_MAX members, claims take the place of these questions. */
		if (!entry || control->member->rings)
			continue;
		if (member_doubted(control, entry, now_ns))
			beat->doubts[beat->n_doubts++] = entry->record.map.ref;
		if (member_unserved_ns(entry, now_ns) > patience_ns)
			beat->unserved[beat->n_unserved++] = entry->record.map.ref;
	}
}

/* A neighbour that is silent is claimed; another member's link is closed, and dialled if needed. */
static void ring_silent(struct control *control, struct member_entry *entry, uint64_t now_ns)
{
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
	uint64_t silent_ns = member_silent_ns(control, entry, now_ns);
	char why[64];

	if (silent_ns <= dead_ns) {
		entry->kept = false;
		return;
	}
	if (entry->neighbour) {
		snprintf(why, sizeof(why), "no message from it for %u ms",
			(unsigned)(silent_ns / NS_PER_MS));
		member_accuse(control, entry, 0, why);
	}
	if (!entry->neighbour || !entry->kept) {
		control->counter[COUNTER_members_kept] += entry->neighbour;
		entry->kept = entry->neighbour;
		if (entry->out)
			rpc_link_close(entry->out);
		if (entry->in)
			rpc_link_close(entry->in);
	}
}

static void entry_tick(
	struct control *control, struct member_entry *entry, Pc__Heartbeat *beat, uint64_t now_ns)
{
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
	Pc__Message message = PC__MESSAGE__INIT;
	char why[64];

	if (entry->state == MEMBER_ALIVE) {
		message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
		message.heartbeat = beat;
		(void)rpc_send(entry->out ? entry->out : entry->in, &message);
		if (control->member->rings) {
			ring_silent(control, entry, now_ns);
		} else if (!member_heard_of(control, entry, now_ns)) {
			snprintf(why, sizeof(why), "no message from it for %u ms",
				(unsigned)((now_ns - entry->heard_ns) / NS_PER_MS));
			member_down(control, entry, why);
			/* A path that large packets do not cross looks silent, too. */
			member_trial_begin(entry, 0);
		}
	} else if (entry->state == MEMBER_CANDIDATE) {
		if (now_ns - entry->since_ns > 10 * dead_ns)
			member_entry_free(entry);
	} else if (entry->state == MEMBER_DEAD) {
		/* On trial: without heartbeats it would remove this engine and close its links. */
		message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
		message.heartbeat = beat;
		(void)rpc_send(entry->out ? entry->out : entry->in, &message);
		if (now_ns - entry->since_ns > MEMBER_DEAD_NS && !entry->out && !entry->in)
			member_entry_free(entry);
	}
}

void member_tick(void *context)
{
	struct control *control = context;
	struct member *member = control->member;
	uint64_t period_ns = (uint64_t)control->settings->cluster_heartbeat_ms * NS_PER_MS;
	uint64_t now_ns = net_now();
	uint64_t late_ns = now_ns - member->tick_ns;
	uint32_t doubts[NODES_MAX], unserved[NODES_MAX];
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;

	member->tick_ns = now_ns;
	if (member->leaving)
		return;
	/*
	 * If this tick is late, this engine did not run and could not receive. Add that time to
	 * every member's heard_ns, so that no member is declared dead for a pause of this engine.
	 */
	late_ns = late_ns > 2 * period_ns ? late_ns - period_ns : 0;
	for (unsigned i = 1; late_ns && i < MEMBER_ENTRIES; i++) {
		member->entry[i].heard_ns += late_ns;
		member->entry[i].vouched_ns += late_ns;
	}
	beat.doubts = doubts;
	beat.unserved = unserved;
	doubts_list(control, now_ns, &beat);
	beat.rings = member->rings;
	member->dials = MEMBER_DIALS_TICK;
	for (unsigned i = 1; i < MEMBER_ENTRIES; i++) {
		struct member_entry *entry = &member->entry[i];

		if (entry->state == MEMBER_FREE)
			continue;
		/* changes when a member of this loop dies */
		beat.members_digest = member->digest;
		entry_tick(control, entry, &beat, now_ns);
		member_demand_tick(control, entry, now_ns);
	}
	member_seeds_tick(control, now_ns);
	member_map_tick(control, now_ns);
	rpc_tick(control);
	if (control->directory)
		directory_tick(control, now_ns);
}
