/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heartbeats: sends one to each member with a link, answers those of others, and removes members
 * that are silent. Also what else is due once per heartbeat: candidates and dead members that are
 * forgotten, contacts that are freed.
 *
 * A member is dead when no message came from it for cluster.dead_after_ms and no other member hears
 * it: an engine that does not hear a member asks all others in its heartbeats (doubts), and those
 * that hear it answer with the age of its last message (vouches). A member stays on the map while
 * one of them is younger than cluster.dead_after_ms. An engine vouches only for what came over its
 * own links, and never for itself, so that no message keeps a dead member alive. The same for a
 * member that answers no probe: those that are served by it say since when; messages of another
 * kind do not count. Above MEMBER_MESH_MAX members, claims take the place of these questions
 * (member_probe.c). If this engine itself did not run, that time counts for no member.
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

/* ---- what other members hear ----------------------------------------------------------------- */

/* The live member with this ref, other than this engine, with a contact; NULL: there is none. */
static struct member *member_live_other(const struct control *control, uint32_t ref)
{
	struct member *member = member_table_ref(&control->members->table, ref);

	return member && !member->record.self && member_has_contact(member) ? member : NULL;
}

/* True if the engine asks the other members whether they hear this live one. */
static bool member_is_doubted(
	const struct control *control, const struct member *member, uint64_t now_ns)
{
	uint64_t beat_ns = (uint64_t)control->settings->cluster_heartbeat_ms * NS_PER_MS;

	/* A beat and a half: early enough that an answer comes before the shortest dead_after. */
	return !member->record.self &&
	       members_since_ns(member->contact->heard_ns, now_ns) > beat_ns * 3 / 2;
}

/* The member answered another one's probe at this time. */
static void served_take(
	struct control *control, struct member *member, uint64_t age_ns, uint64_t now_ns)
{
	if (age_ns <= suspect_removal_ns(members_dead_ns(control)) &&
		member->contact->probe.vouched_ns < now_ns - age_ns)
		member->contact->probe.vouched_ns = now_ns - age_ns;
}

static void vouches_take(
	struct control *control, const struct member *from, const Pc__Heartbeat *beat)
{
	uint64_t now_ns = net_now();

	for (size_t i = 0; i < beat->n_served; i++) {
		struct member *member = member_live_other(control, beat->served[i]->ref);

		if (member && member != from)
			served_take(control, member, beat->served[i]->age_ms * NS_PER_MS, now_ns);
	}

	for (size_t i = 0; i < beat->n_vouches; i++) {
		struct member *member = member_live_other(control, beat->vouches[i]->ref);
		uint64_t age_ns = beat->vouches[i]->age_ms * NS_PER_MS;

		if (!member || member == from || age_ns > members_dead_ns(control))
			continue;
		if (member->contact->vouched_ns < now_ns - age_ns)
			member->contact->vouched_ns = now_ns - age_ns;
	}
}

/*
 * Lists those of the `count` members that have answered probes of this engine. Six parameters: the
 * last two are one output, entries and the pointers that protobuf wants.
 */
static size_t served_list(struct control *control, const struct rpc_link *link,
	const uint32_t *refs, size_t count, Pc__Vouch *ret_vouch, Pc__Vouch **ret_at)
{
	size_t served = 0;
	uint64_t now_ns = net_now();

	for (size_t i = 0; i < count; i++) {
		struct member *member = member_live_other(control, refs[i]);
		uint64_t age_ns = member ? member_served_age_ns(member, now_ns) : UINT64_MAX;

		if (!member || member == link->member)
			continue;
		member->contact->probe.hurry = PROBE_SIZES;
		if (age_ns > suspect_removal_ns(members_dead_ns(control)))
			continue;
		ret_vouch[served] = (Pc__Vouch)PC__VOUCH__INIT;
		ret_vouch[served].ref = refs[i];
		ret_vouch[served].age_ms = (uint32_t)(age_ns / NS_PER_MS);
		ret_at[served] = &ret_vouch[served];
		served++;
	}
	return served;
}

static void doubts_answer(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat)
{
	Pc__Vouch vouch[MEMBERS_MAX], *at[MEMBERS_MAX], served[MEMBERS_MAX],
		*served_at[MEMBERS_MAX];
	Pc__Heartbeat answer = PC__HEARTBEAT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	uint64_t now_ns = net_now();

	for (size_t i = 0; i < beat->n_doubts; i++) {
		const struct member *member = member_live_other(control, beat->doubts[i]);
		uint64_t age_ns = member ? members_since_ns(member->contact->heard_ns, now_ns) : 0;

		if (!member || member == link->member || age_ns > members_dead_ns(control))
			continue;
		vouch[answer.n_vouches] = (Pc__Vouch)PC__VOUCH__INIT;
		vouch[answer.n_vouches].ref = member->record.ref;
		vouch[answer.n_vouches].age_ms = (uint32_t)(age_ns / NS_PER_MS);
		at[answer.n_vouches] = &vouch[answer.n_vouches];
		answer.n_vouches++;
	}
	answer.n_served =
		served_list(control, link, beat->unserved, beat->n_unserved, served, served_at);
	answer.served = served_at;
	if (answer.n_vouches + answer.n_served == 0)
		return;
	answer.members_digest = control->members->digest;
	answer.vouches = at;
	message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
	message.heartbeat = &answer;
	rpc_reply(link, &message);
}

/* Takes the vouches of a heartbeat and answers its doubts. False: the message breaks a rule. */
static bool heartbeat_vouch(
	struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat)
{
	if (beat->n_doubts > MEMBERS_MAX || beat->n_vouches > MEMBERS_MAX ||
		beat->n_unserved > MEMBERS_MAX || beat->n_served > MEMBERS_MAX)
		return false;
	for (size_t i = 0; i < beat->n_vouches; i++)
		if (!beat->vouches[i])
			return false;
	for (size_t i = 0; i < beat->n_served; i++)
		if (!beat->served[i])
			return false;
	vouches_take(control, link->member, beat);
	if (beat->n_doubts || beat->n_unserved)
		doubts_answer(control, link, beat);
	return true;
}

static void member_kept_begin(struct control *control, struct member *member, uint64_t silent_ns)
{
	char label[MEMBER_LABEL_BYTES];

	member->contact->kept = true;
	control->counter[COUNTER_members_kept]++;
	log_warn(
		"member %s sent nothing to this engine for %llu ms, but another member hears it: it stays on the map; check the network between it and this host",
		member_label(&member->record, label), (unsigned long long)(silent_ns / NS_PER_MS));
	/* New connections get through as soon as packets do; TCP's own retries take longer. */
	member_links_close(member);
}

/*
 * Called once per heartbeat for a live member. Returns false when the member is dead: neither this
 * engine nor one that vouches for it has heard it for cluster.dead_after_ms.
 */
static bool member_still_heard(struct control *control, struct member *member, uint64_t now_ns)
{
	uint64_t silent_ns = members_since_ns(member->contact->heard_ns, now_ns);
	char label[MEMBER_LABEL_BYTES];

	if (silent_ns <= members_dead_ns(control)) {
		if (member->contact->kept)
			log_info("member %s is heard again", member_label(&member->record, label));
		member->contact->kept = false;
		return true;
	}
	if (members_since_ns(member->contact->vouched_ns, now_ns) > members_dead_ns(control))
		return false;
	if (!member->contact->kept)
		member_kept_begin(control, member, silent_ns);
	return true;
}

/* ---- heartbeats of others -------------------------------------------------------------------- */

void member_heard(struct control *control, struct rpc_link *link)
{
	(void)control;
	link->member->contact->heard_ns = net_now();
}

uint64_t member_silent_ns(
	const struct control *control, const struct member *member, uint64_t now_ns)
{
	bool linked = member_link_of(member) != NULL;

	if (member->record.self || (!member_watched(control, member) && !linked))
		return 0;
	return now_ns > member->contact->heard_ns ? now_ns - member->contact->heard_ns : 0;
}

bool member_heartbeat(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat)
{
	if (!heartbeat_vouch(control, link, beat))
		return false;
	if (beat->members_digest != control->members->digest)
		member_list_compare(control, link, net_now());
	return true;
}

uint64_t members_tick_ns(const struct control *control)
{
	return control->members->tick_ns;
}

/* ---- the own heartbeat ----------------------------------------------------------------------- */

/*
 * Lists the refs of the members that the other members are asked about: whether they hear them
 * (doubts), whether they are served by them (unserved).
 */
static void doubts_list(const struct control *control, uint64_t now_ns, Pc__Heartbeat *beat)
{
	const struct members *members = control->members;
	uint64_t patience_ns = suspect_patience_ns(members_dead_ns(control));

	/* Above MEMBER_MESH_MAX members, claims take the place of these questions. */
	if (members->rings)
		return;
	for (unsigned i = 0; i < members->table.contacts && beat->n_unserved < MEMBERS_MAX; i++) {
		const struct member *member = members->table.contact[i]->member;

		if (member->state != MEMBER_ALIVE || beat->n_doubts == MEMBERS_MAX)
			continue;
		if (member_is_doubted(control, member, now_ns))
			beat->doubts[beat->n_doubts++] = member->record.ref;
		if (member_unserved_ns(member, now_ns) > patience_ns)
			beat->unserved[beat->n_unserved++] = member->record.ref;
	}
}

/* A neighbour that is silent is claimed; another member's link is closed, and dialled if needed. */
static void neighbour_silent(struct control *control, struct member *member, uint64_t now_ns)
{
	uint64_t dead_ns = members_dead_ns(control);
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
	return 10 * members_dead_ns(control);
}

/* It has answered no dial, and has never been a member: what is true is named again. */
static bool candidate_mute(const struct member *member)
{
	const struct rpc_dial *dial = member->contact->dial;

	return dial && dial->fails >= CANDIDATE_FAILS && !member->proven && !member->admission &&
	       !member->contact->trial.removed_ns;
}

static void member_entry_tick(
	struct control *control, struct member *member, Pc__Heartbeat *beat, uint64_t now_ns)
{
	uint64_t dead_ns = members_dead_ns(control);
	Pc__Message message = PC__MESSAGE__INIT;
	char why[64];

	if (member->state == MEMBER_ALIVE) {
		message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
		message.heartbeat = beat;
		(void)rpc_send(member_link_of(member), &message);
		if (control->members->rings) {
			neighbour_silent(control, member, now_ns);
		} else if (!member_still_heard(control, member, now_ns)) {
			snprintf(why, sizeof(why), "no message from it for %u ms",
				(unsigned)((now_ns - member->contact->heard_ns) / NS_PER_MS));
			member_take_off_map(control, member, why);
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
	uint64_t pause_ns = ACCUSE_PAUSE * members_dead_ns(control);

	if (!control->members->rings || member->state != MEMBER_ALIVE || member->record.self ||
		member->stage != RECORD_ALIVE || member->neighbour || member->wanted)
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
	uint64_t dead_ns = members_dead_ns(control);
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
	uint64_t period_ns = (uint64_t)control->settings->cluster_heartbeat_ms * NS_PER_MS;
	uint64_t pause_ns = suspect_pause_ns(members->tick_ns, now_ns, period_ns);
	uint32_t doubts[MEMBERS_MAX], unserved[MEMBERS_MAX];
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;

	members->tick_ns = now_ns;
	if (members->leaving)
		return false;
	member_former_take(control);
	/*
	 * If this tick is late, this engine did not run and could not receive. Add that time to
	 * every member's heard_ns, so that no member is declared dead for a pause of this engine.
	 */
	for (unsigned i = 0; pause_ns && i < members->table.contacts; i++) {
		struct member_contact *contact = members->table.contact[i];

		contact->heard_ns = suspect_after_pause(contact->heard_ns, pause_ns, now_ns);
		contact->vouched_ns = suspect_after_pause(contact->vouched_ns, pause_ns, now_ns);
	}
	beat.doubts = doubts;
	beat.unserved = unserved;
	doubts_list(control, now_ns, &beat);
	members->dials = MEMBER_DIALS_TICK;
	contacts_tick(control, &beat, now_ns);
	members_sweep(control, now_ns);
	member_seeds_tick(control, now_ns);
	member_map_tick(control, now_ns);
	return true;
}
