/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work on the heartbeat timer: sends heartbeats, declares members dead after a time-out.
 * Control plane's thread only.
 */
#include <stdio.h>

#include "engine/control/directory.h"
#include "engine/control/member.h"

#define NS_PER_MS 1000000ull
#define SWEEP_TICKS 32u /* heartbeats in which the whole table is swept */

/*
 * Lists the refs of the members that the other members are asked about: whether they hear them
 * (doubts), whether they are served by them (unserved).
 */
static void doubts_list(const struct control *control, uint64_t now_ns, Pc__Heartbeat *beat)
{
	const struct member *member = control->member;
	uint64_t patience_ns =
		suspect_patience_ns((uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS);

	/* Above MEMBER_MESH_MAX members, claims take the place of these questions. */
	if (member->rings)
		return;
	for (unsigned i = 0; i < member->table.contacts && beat->n_unserved < MEMBERS_MAX; i++) {
		const struct member_entry *entry = member->table.contact[i]->entry;

		if (entry->state != MEMBER_ALIVE || beat->n_doubts == MEMBERS_MAX)
			continue;
		if (member_doubted(control, entry, now_ns))
			beat->doubts[beat->n_doubts++] = entry->record.ref;
		if (member_unserved_ns(entry, now_ns) > patience_ns)
			beat->unserved[beat->n_unserved++] = entry->record.ref;
	}
}

/* A neighbour that is silent is claimed; another member's link is closed, and dialled if needed. */
static void ring_silent(struct control *control, struct member_entry *entry, uint64_t now_ns)
{
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
	uint64_t silent_ns = member_silent_ns(control, entry, now_ns);
	char why[64];

	if (silent_ns <= dead_ns) {
		entry->contact->kept = false;
		return;
	}
	if (entry->neighbour) {
		snprintf(why, sizeof(why), "no message from it for %u ms",
			(unsigned)(silent_ns / NS_PER_MS));
		member_accuse(control, entry, 0, why);
	}
	if (!entry->neighbour || !entry->contact->kept) {
		control->counter[COUNTER_members_kept] += entry->neighbour;
		entry->contact->kept = entry->neighbour;
		member_links_close(entry);
	}
}

/*
 * How long a dead member is remembered. One that never answered is no engine, as far as this one
 * knows; with rings its record is kept, so that an older one does not bring it back.
 */
static uint64_t dead_keep_ns(const struct control *control, const struct member_entry *entry)
{
	if (entry->proven || control->member->rings || entry->contact->trial.removed_ns)
		return MEMBER_DEAD_NS;
	return 10 * (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
}

/* It has answered no dial, and has never been a member: what is true is named again. */
static bool candidate_mute(const struct member_entry *entry)
{
	const struct rpc_dial *dial = entry->contact->dial;

	return dial && dial->fails >= CANDIDATE_FAILS && !entry->proven && !entry->admission &&
	       !entry->contact->trial.removed_ns;
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
		(void)rpc_send(member_entry_link(entry), &message);
		if (control->member->rings) {
			ring_silent(control, entry, now_ns);
		} else if (!member_heard_of(control, entry, now_ns)) {
			snprintf(why, sizeof(why), "no message from it for %u ms",
				(unsigned)((now_ns - entry->contact->heard_ns) / NS_PER_MS));
			member_down(control, entry, why);
			/* A path that large packets do not cross looks silent, too. */
			member_trial_begin(control, entry, 0);
		}
	} else if (entry->state == MEMBER_CANDIDATE) {
		if (now_ns - entry->since_ns > 10 * dead_ns || candidate_mute(entry))
			member_entry_free(control, entry);
	} else if (entry->state == MEMBER_DEAD) {
		/* On trial: without heartbeats it would remove this engine and close its links. */
		message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
		message.heartbeat = beat;
		(void)rpc_send(member_entry_link(entry), &message);
		if (!entry->proven)
			member_dial_stop(entry);
		if (now_ns - entry->since_ns > dead_keep_ns(control, entry) &&
			!member_entry_link(entry))
			member_entry_free(control, entry);
	}
}

/* True if nothing of the contact is in use or must be remembered. */
static bool contact_idle(
	const struct control *control, const struct member_contact *contact, uint64_t now_ns)
{
	const struct member_entry *entry = contact->entry;
	uint64_t pause_ns =
		ACCUSE_PAUSE * (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;

	if (!control->member->rings || entry->state != MEMBER_ALIVE || entry->record.self ||
		entry->stage != RECORD_ALIVE || entry->neighbour || entry->wanted)
		return false;
	return !contact->dial && !contact->out && !contact->in &&
	       now_ns - contact->used_ns > MEMBER_IDLE_NS &&
	       (!contact->accused_ns || now_ns - contact->accused_ns > pause_ns) &&
	       (!contact->trial.removed_ns || now_ns - contact->trial.removed_ns > TRIAL_MEMORY_NS);
}

/* Candidates and dead members without a contact are forgotten; a part of the table each time. */
static void sweep(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
	unsigned count = member->table.entries / SWEEP_TICKS + 1;

	for (unsigned i = 0; i < count; i++) {
		struct member_entry *entry;

		if (member->swept >= member->table.entries)
			member->swept = 0;
		entry = member_at(&member->table, member->swept++);
		if (member_has_contact(entry) || entry->state == MEMBER_FREE ||
			entry->state == MEMBER_ALIVE)
			continue;
		if (now_ns - entry->since_ns >
			(entry->state == MEMBER_DEAD ? MEMBER_DEAD_NS : 10 * dead_ns))
			member_entry_free(control, entry);
	}
}

static void contacts_tick(struct control *control, Pc__Heartbeat *beat, uint64_t now_ns)
{
	struct member *member = control->member;

	/* From the end, so that one whose contact goes away hides no other. */
	for (unsigned i = member->table.contacts; i-- > 0;) {
		struct member_entry *entry;

		if (i >= member->table.contacts)
			continue;
		entry = member->table.contact[i]->entry;
		if (entry == member->self)
			continue;
		/* changes when a member of this loop dies */
		beat->members_digest = member->digest;
		entry_tick(control, entry, beat, now_ns);
		if (!member_has_contact(entry))
			continue;
		member_demand_tick(control, entry, now_ns);
		if (contact_idle(control, entry->contact, now_ns))
			member_contact_free(&member->table, entry);
	}
}

void member_tick(void *context)
{
	struct control *control = context;
	struct member *member = control->member;
	uint64_t period_ns = (uint64_t)control->settings->cluster_heartbeat_ms * NS_PER_MS;
	uint64_t now_ns = net_now();
	uint64_t late_ns = now_ns - member->tick_ns;
	uint32_t doubts[MEMBERS_MAX], unserved[MEMBERS_MAX];
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;

	member->tick_ns = now_ns;
	if (member->leaving)
		return;
	/*
	 * If this tick is late, this engine did not run and could not receive. Add that time to
	 * every member's heard_ns, so that no member is declared dead for a pause of this engine.
	 */
	late_ns = late_ns > 2 * period_ns ? late_ns - period_ns : 0;
	for (unsigned i = 0; late_ns && i < member->table.contacts; i++) {
		member->table.contact[i]->heard_ns += late_ns;
		member->table.contact[i]->vouched_ns += late_ns;
	}
	beat.doubts = doubts;
	beat.unserved = unserved;
	doubts_list(control, now_ns, &beat);
	beat.rings = member->rings;
	member->dials = MEMBER_DIALS_TICK;
	contacts_tick(control, &beat, now_ns);
	sweep(control, now_ns);
	member_seeds_tick(control, now_ns);
	member_map_tick(control, now_ns);
	rpc_tick(control);
	if (control->directory)
		directory_tick(control, now_ns);
}
