/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heartbeats: sends one to each member with a link, compares the digest in those of others, and
 * claims members that are silent. Also what else is due once per heartbeat: candidates and dead
 * members that are forgotten, contacts that are freed.
 *
 * A neighbour that is silent for half of cluster.dead_after_ms is claimed (member_probe.c). If this
 * engine itself did not run, that time counts for no member.
 *
 * Control plane's thread only.
 */
#include <stdio.h>

#include "config/log.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

/* Dials without an answer after which a candidate that was never a member is forgotten. */
#define CANDIDATE_FAILS 8u
#define SWEEP_TICKS 32u /* heartbeats in which the whole table is swept */

/* ---- heartbeats of others -------------------------------------------------------------------- */

void member_heard(struct control *control, struct rpc_link *link)
{
	(void)control;
	link->member->contact->heard_ns = net_now();
}

uint64_t member_silent_ns(const struct member *member, uint64_t now_ns)
{
	bool linked = member_link_of(member) != NULL;

	if (member->record.self || (!member_watched(member) && !linked))
		return 0;
	return now_ns > member->contact->heard_ns ? now_ns - member->contact->heard_ns : 0;
}

bool member_heartbeat(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat)
{
	if (beat->members_digest != control->members->digest)
		member_list_compare(control, link, net_now());
	return true;
}

uint64_t members_tick_ns(const struct control *control)
{
	return control->members->tick_ns;
}

/* ---- the own heartbeat ----------------------------------------------------------------------- */

static void member_kept_begin(struct control *control, struct member *member, uint64_t silent_ns)
{
	char label[MEMBER_LABEL_BYTES];

	member->contact->kept = true;
	control->counter[COUNTER_members_kept]++;
	log_warn(
		"member %s sent nothing to this engine for %llu ms, but serves another member: it stays on the map; check the network between it and this host",
		member_label(&member->record, label), (unsigned long long)(silent_ns / NS_PER_MS));
	/* New connections get through as soon as packets do; TCP's own retries take longer. */
	member_links_close(member);
}

/* A neighbour that is silent is claimed; another member's link is closed, and dialled if needed. */
static void member_silent(struct control *control, struct member *member, uint64_t now_ns)
{
	uint64_t dead_ns = control_dead_ns(control);
	uint64_t silent_ns = member_silent_ns(member, now_ns);
	char why[64];

	if (silent_ns <= dead_ns - suspect_wait_ns(dead_ns)) {
		member->contact->kept = false;
		return;
	}
	if (member->neighbour) {
		snprintf(why, sizeof(why), "no message from it for %u ms",
			(unsigned)(silent_ns / NS_PER_MS));
		member_accuse(control, member, 0, suspect_wait_ns(dead_ns), why);
	}
	if (silent_ns <= dead_ns)
		return;
	if (!member->neighbour)
		member_links_close(member);
	else if (!member->contact->kept && member->stage == RECORD_ALIVE)
		member_kept_begin(control, member, silent_ns);
}

/*
 * How long a dead member is remembered. A neighbour that never answered is no engine; the record of
 * another member is kept, so that an older one does not bring it back.
 */
static uint64_t dead_keep_ns(const struct control *control, const struct member *member)
{
	if (member->proven || !member->neighbour || member->contact->trial.removed_ns)
		return MEMBER_DEAD_NS;
	return 10 * control_dead_ns(control);
}

/* It has answered no dial, and was never removed: what is true is named again. */
static bool candidate_mute(const struct member *member)
{
	const struct rpc_dial *dial = member->contact->dial;

	return dial && dial->fails >= CANDIDATE_FAILS && !member->proven &&
	       member->stage == RECORD_ALIVE && !member->contact->trial.removed_ns;
}

static void member_entry_tick(
	struct control *control, struct member *member, Pc__Heartbeat *beat, uint64_t now_ns)
{
	uint64_t dead_ns = control_dead_ns(control);
	const Pc__Message message = message_of(PC__MESSAGE__BODY_HEARTBEAT, beat);

	if (member->state == MEMBER_ALIVE) {
		(void)rpc_send(member_link_of(member), &message);
		if (member->contact->prove_ns && now_ns >= member->contact->prove_ns)
			member_barred(control, member);
		member_silent(control, member, now_ns);
	} else if (member->state == MEMBER_CANDIDATE) {
		if (now_ns - member->since_ns > 10 * dead_ns || candidate_mute(member))
			member_free(control, member);
	} else if (member->state == MEMBER_DEAD) {
		/* On trial: without heartbeats it would remove this engine and close its links. */
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
	uint64_t pause_ns = ACCUSE_PAUSE * control_dead_ns(control);

	if (member->state != MEMBER_ALIVE || member->record.self || member->stage != RECORD_ALIVE ||
		member->neighbour || member->wanted || contact->prove_ns)
		return false;
	return !contact->dial && !contact->out && !contact->in &&
	       now_ns - contact->used_ns > MEMBER_IDLE_NS &&
	       (!contact->accused_ns || now_ns - contact->accused_ns > pause_ns) &&
	       (!contact->trial.removed_ns || now_ns - contact->trial.removed_ns > TRIAL_MEMORY_NS);
}

/* Candidates and dead members without a contact are forgotten; a part of the table each time. */
static void members_sweep(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	uint64_t dead_ns = control_dead_ns(control);
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
		member_entry_tick(control, member, beat, now_ns);
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
	uint64_t pause_ns = suspect_pause_ns(members->tick_ns, now_ns, control_beat_ns(control));
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;

	beat.drained = control->drained;
	members->tick_ns = now_ns;
	if (members->leaving)
		return false;
	/*
	 * If this tick is late, this engine did not run and could not receive. Add that time to
	 * every member's heard_ns, so that no member is declared dead for a pause of this engine.
	 */
	for (unsigned i = 0; pause_ns && i < members->table.contacts; i++) {
		struct member_contact *contact = members->table.contact[i];

		contact->heard_ns = suspect_after_pause(contact->heard_ns, pause_ns, now_ns);
	}
	members->dials = MEMBER_DIALS_TICK;
	contacts_tick(control, &beat, now_ns);
	members_sweep(control, now_ns);
	return true;
}
