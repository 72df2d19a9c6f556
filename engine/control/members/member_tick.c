/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work on the heartbeat timer: sends heartbeats, declares members dead after a time-out.
 * Control plane's thread only.
 */
#include <stdio.h>

#include "engine/control/directory/directory.h"
#include "engine/control/members/member.h"

#define NS_PER_MS 1000000ull
#define SWEEP_TICKS 32u /* heartbeats in which the whole table is swept */

/*
 * Lists the refs of the members that the other members are asked about: whether they hear them
 * (doubts), whether they are served by them (unserved).
 */
static void doubts_list(const struct control *control, uint64_t now_ns, Pc__Heartbeat *beat)
{
	const struct members *members = control->members;
	uint64_t patience_ns =
		suspect_patience_ns((uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS);

	/* Above MEMBER_MESH_MAX members, claims take the place of these questions. */
	if (members->rings)
		return;
	for (unsigned i = 0; i < members->table.contacts && beat->n_unserved < MEMBERS_MAX; i++) {
		const struct member *member = members->table.contact[i]->member;

		if (member->state != MEMBER_ALIVE || beat->n_doubts == MEMBERS_MAX)
			continue;
		if (member_doubted(control, member, now_ns))
			beat->doubts[beat->n_doubts++] = member->record.ref;
		if (member_unserved_ns(member, now_ns) > patience_ns)
			beat->unserved[beat->n_unserved++] = member->record.ref;
	}
}

/* A neighbour that is silent is claimed; another member's link is closed, and dialled if needed. */
static void ring_silent(struct control *control, struct member *member, uint64_t now_ns)
{
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
	uint64_t silent_ns = member_silent_ns(control, member, now_ns);
	char why[64];

	if (silent_ns <= dead_ns) {
		member->contact->kept = false;
		return;
	}
	if (member->neighbour) {
		snprintf(why, sizeof(why), "no message from it for %u ms",
			(unsigned)(silent_ns / NS_PER_MS));
		member_accuse(control, member, 0, why);
	}
	if (!member->neighbour || !member->contact->kept) {
		control->counter[COUNTER_members_kept] += member->neighbour;
		member->contact->kept = member->neighbour;
		member_links_close(member);
	}
}

/*
 * How long a dead member is remembered. One that never answered is no engine, as far as this one
 * knows; with rings its record is kept, so that an older one does not bring it back.
 */
static uint64_t dead_keep_ns(const struct control *control, const struct member *member)
{
	if (member->proven || control->members->rings || member->contact->trial.removed_ns)
		return MEMBER_DEAD_NS;
	return 10 * (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
}

/* It has answered no dial, and has never been a member: what is true is named again. */
static bool candidate_mute(const struct member *member)
{
	const struct rpc_dial *dial = member->contact->dial;

	return dial && dial->fails >= CANDIDATE_FAILS && !member->proven && !member->admission &&
	       !member->contact->trial.removed_ns;
}

static void entry_tick(
	struct control *control, struct member *member, Pc__Heartbeat *beat, uint64_t now_ns)
{
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
	Pc__Message message = PC__MESSAGE__INIT;
	char why[64];

	if (member->state == MEMBER_ALIVE) {
		message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
		message.heartbeat = beat;
		(void)rpc_send(member_link_of(member), &message);
		if (control->members->rings) {
			ring_silent(control, member, now_ns);
		} else if (!member_heard_of(control, member, now_ns)) {
			snprintf(why, sizeof(why), "no message from it for %u ms",
				(unsigned)((now_ns - member->contact->heard_ns) / NS_PER_MS));
			member_down(control, member, why);
			/* A path that large packets do not cross looks silent, too. */
			member_trial_begin(control, member, 0);
		}
	} else if (member->state == MEMBER_CANDIDATE) {
		if (now_ns - member->since_ns > 10 * dead_ns || candidate_mute(member))
			member_free(control, member);
	} else if (member->state == MEMBER_DEAD) {
		/* On trial: without heartbeats it would remove this engine and close its links. */
		message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
		message.heartbeat = beat;
		(void)rpc_send(member_link_of(member), &message);
		if (!member->proven)
			member_dial_stop(member);
		if (now_ns - member->since_ns > dead_keep_ns(control, member) &&
			!member_link_of(member))
			member_free(control, member);
	}
}

/* True if nothing of the contact is in use or must be remembered. */
static bool contact_idle(
	const struct control *control, const struct member_contact *contact, uint64_t now_ns)
{
	const struct member *member = contact->member;
	uint64_t pause_ns =
		ACCUSE_PAUSE * (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;

	if (!control->members->rings || member->state != MEMBER_ALIVE || member->record.self ||
		member->stage != RECORD_ALIVE || member->neighbour || member->wanted)
		return false;
	return !contact->dial && !contact->out && !contact->in &&
	       now_ns - contact->used_ns > MEMBER_IDLE_NS &&
	       (!contact->accused_ns || now_ns - contact->accused_ns > pause_ns) &&
	       (!contact->trial.removed_ns || now_ns - contact->trial.removed_ns > TRIAL_MEMORY_NS);
}

/* Candidates and dead members without a contact are forgotten; a part of the table each time. */
static void sweep(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	uint64_t dead_ns = (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
	unsigned count = members->table.entries / SWEEP_TICKS + 1;

	for (unsigned i = 0; i < count; i++) {
		struct member *member;

		if (members->swept >= members->table.entries)
			members->swept = 0;
		member = member_at(&members->table, members->swept++);
		if (member_has_contact(member) || member->state == MEMBER_FREE ||
			member->state == MEMBER_ALIVE)
			continue;
		if (now_ns - member->since_ns >
			(member->state == MEMBER_DEAD ? MEMBER_DEAD_NS : 10 * dead_ns))
			member_free(control, member);
	}
}

static void contacts_tick(struct control *control, Pc__Heartbeat *beat, uint64_t now_ns)
{
	struct members *members = control->members;

	/* From the end, so that one whose contact goes away hides no other. */
	for (unsigned i = members->table.contacts; i-- > 0;) {
		struct member *member;

		if (i >= members->table.contacts)
			continue;
		member = members->table.contact[i]->member;
		if (member == members->self)
			continue;
		/* changes when a member of this loop dies */
		beat->members_digest = members->digest;
		entry_tick(control, member, beat, now_ns);
		if (!member_has_contact(member))
			continue;
		member_demand_tick(control, member, now_ns);
		if (contact_idle(control, member->contact, now_ns))
			member_contact_free(&members->table, member);
	}
}

bool members_tick(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	uint64_t period_ns = (uint64_t)control->settings->cluster_heartbeat_ms * NS_PER_MS;
	uint64_t late_ns = now_ns - members->tick_ns;
	uint32_t doubts[MEMBERS_MAX], unserved[MEMBERS_MAX];
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;

	members->tick_ns = now_ns;
	if (members->leaving)
		return false;
	/*
	 * If this tick is late, this engine did not run and could not receive. Add that time to
	 * every member's heard_ns, so that no member is declared dead for a pause of this engine.
	 */
	late_ns = late_ns > 2 * period_ns ? late_ns - period_ns : 0;
	for (unsigned i = 0; late_ns && i < members->table.contacts; i++) {
		struct member_contact *contact = members->table.contact[i];

		contact->heard_ns = suspect_after_pause(contact->heard_ns, late_ns, now_ns);
		contact->vouched_ns = suspect_after_pause(contact->vouched_ns, late_ns, now_ns);
	}
	beat.doubts = doubts;
	beat.unserved = unserved;
	doubts_list(control, now_ns, &beat);
	beat.rings = members->rings;
	members->dials = MEMBER_DIALS_TICK;
	contacts_tick(control, &beat, now_ns);
	sweep(control, now_ns);
	member_seeds_tick(control, now_ns);
	member_map_tick(control, now_ns);
	return true;
}
