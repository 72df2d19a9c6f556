/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that do not serve. Each member is probed in turn, with a small request and with one that
 * fills packets of full size, which vanish where a path has a smaller MTU than its ends believe. A
 * member that does not answer leaves the map, although its heartbeats arrive. It is then on trial:
 * its links are kept and probed, and it is a member again when it has answered all probes for a
 * while.
 *
 * All engines agree on a removal. An engine that does not hear a member, or is not served by it,
 * claims it: the record spreads, and the member is removed after the time that the record says.
 * Until then any engine that has a link with the member probes it; if it answers a small and a
 * padded probe, that engine admits it anew, and the record with the next admission voids the claim.
 * Nothing that the member says itself does. An engine that hears the member removes it at most a
 * round of probes earlier than without a claim (suspect_spares_ns()). Control plane's thread only.
 */
#include <stdio.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

#define PERIOD_NS_MIN (5 * NS_PER_MS)
#define ALL_SIZES ((1u << PROBE_SIZES) - 1)

uint64_t member_probe_period_ns(const struct control *control)
{
	uint64_t period_ns = control_dead_ns(control) / PROBE_PART;

	return period_ns < PERIOD_NS_MIN ? PERIOD_NS_MIN : period_ns;
}

uint64_t members_probe_ns(const struct control *control)
{
	return control->members->probe_ns;
}

uint64_t member_unserved_ns(const struct member *member, uint64_t now_ns)
{
	uint64_t worst_ns = 0;

	for (unsigned size = 0; size < PROBE_SIZES; size++) {
		uint64_t asked_ns = member->contact->probe.asked_ns[size];

		if (asked_ns && members_since_ns(asked_ns, now_ns) > worst_ns)
			worst_ns = members_since_ns(asked_ns, now_ns);
	}
	return worst_ns;
}

uint64_t member_served_age_ns(const struct member *member, uint64_t now_ns)
{
	const uint64_t *served_ns = member->contact->probe.served_ns;

	if (!served_ns[PROBE_SMALL] || !served_ns[PROBE_PADDED])
		return UINT64_MAX;
	return members_since_ns(served_ns[PROBE_SMALL] < served_ns[PROBE_PADDED]
					? served_ns[PROBE_SMALL]
					: served_ns[PROBE_PADDED],
		now_ns);
}

/* ---- probes ---------------------------------------------------------------------------------- */

/*
 * Small and padded probes take turns. A probe that waits for its answer is sent again on a new
 * link, and on the same one only after a while.
 */
static void probe_send(
	const struct control *control, struct member *member, unsigned size, uint64_t now_ns)
{
	static uint8_t pad[PROBE_PAD_BYTES];
	struct rpc_link *link = member_link_of(member);
	struct member_probe *p = &member->contact->probe;
	Pc__Probe ask = PC__PROBE__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_PROBE, &ask);

	if (p->asked_ns[size] && link && p->via[size] == link &&
		members_since_ns(p->sent_ns[size], now_ns) <
			control_dead_ns(control) / PROBE_AGAIN_PART)
		return;
	if (!p->asked_ns[size])
		p->asked_ns[size] = now_ns;
	p->via[size] = NULL;
	ask.serial = (uint64_t)net_random() << 1 | size;
	if (size == PROBE_PADDED)
		ask.pad = (ProtobufCBinaryData){.len = sizeof(pad), .data = pad};
	if (!rpc_send(link, &message))
		return;
	p->serial[size] = ask.serial;
	p->sent_ns[size] = now_ns;
	p->via[size] = link;
}

/* One probe of `every` is padded. */
static void probe_take_turn(
	const struct control *control, struct member *member, unsigned every, uint64_t now_ns)
{
	unsigned turn = member->contact->probe.turn++;

	probe_send(control, member, turn % every ? PROBE_SMALL : PROBE_PADDED, now_ns);
}

/* Sends a probe of each size to the member now, unless one waits for its answer. */
static void member_probe_now(const struct control *control, struct member *member)
{
	if (member_link_of(member))
		for (unsigned size = 0; size < PROBE_SIZES; size++)
			probe_send(control, member, size, net_now());
}

/* ---- claims ---------------------------------------------------------------------------------- */

static bool is_claimed(const struct member *member)
{
	return member->state == MEMBER_ALIVE && member->stage == RECORD_CLAIMED;
}

/* When the claimed member is removed. */
static uint64_t claim_due_ns(
	const struct control *control, const struct member *member, uint64_t now_ns)
{
	const struct member_contact *contact = member->contact;
	uint64_t age_ns = member_served_age_ns(member, now_ns), spares_ns = 0;

	if (member->neighbour && age_ns != UINT64_MAX)
		spares_ns = suspect_spares_ns(
			contact->heard_ns, now_ns - age_ns, control_dead_ns(control));
	return spares_ns > contact->claim_until_ns ? spares_ns : contact->claim_until_ns;
}

/* Sets the timer to the earliest claim that ends. */
static void claims_arm(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	uint64_t next_ns = 0;

	for (unsigned i = 0; i < members->table.contacts; i++) {
		const struct member *member = members->table.contact[i]->member;
		uint64_t due_ns = is_claimed(member) ? claim_due_ns(control, member, now_ns) : 0;

		if (due_ns && (!next_ns || due_ns < next_ns))
			next_ns = due_ns;
	}
	if (next_ns)
		net_timer_set(
			members->claims, next_ns > now_ns ? (next_ns - now_ns) / 1000 + 1 : 1);
}

void member_claim(
	struct control *control, struct member *member, uint64_t trial_ms, uint64_t wait_ms)
{
	uint64_t dead_ns = control_dead_ns(control), wait_ns = wait_ms * NS_PER_MS;
	uint64_t most_ms = suspect_trial_ns(dead_ns, UINT32_MAX) / NS_PER_MS;
	uint64_t now_ns = net_now();
	struct member_contact *contact;

	if (member->stage == RECORD_CLAIMED)
		return;
	contact = member_contact(&control->members->table, member);
	if (!contact)
		return;
	member->stage = RECORD_CLAIMED;
	if (wait_ns > suspect_wait_ns(dead_ns))
		wait_ns = suspect_wait_ns(dead_ns);
	if (wait_ns < suspect_patience_ns(dead_ns))
		wait_ns = suspect_patience_ns(dead_ns);
	member->contact->claim_trial_ms = trial_ms < most_ms ? trial_ms : most_ms;
	member->contact->claim_until_ns = now_ns + wait_ns;
	member->contact->claim_served = 0;
	claims_arm(control, now_ns);
	member_probe_now(control, member);
}

void member_claim_served(struct control *control, struct member *member, unsigned size)
{
	char label[MEMBER_LABEL_BYTES];

	if (!is_claimed(member))
		return;
	member->contact->claim_served |= 1u << size;
	if (member->contact->claim_served != ALL_SIZES)
		return;
	log_info("member %s serves this engine: the claim that it does not is refuted",
		member_label(&member->record, label));
	control->counter[COUNTER_claims_refuted]++;
	member->stage = RECORD_ALIVE;
	member->admission++;
	member_record_changed(control, member);
}

void member_accuse(struct control *control, struct member *member, uint64_t trial_ns,
	uint64_t wait_ns, const char *why)
{
	uint64_t now_ns = net_now();
	char label[MEMBER_LABEL_BYTES];

	if (member->stage == RECORD_CLAIMED) {
		claims_arm(control, now_ns);
		return;
	}
	if (!member_contact(&control->members->table, member) ||
		(member->contact->accused_ns && now_ns - member->contact->accused_ns <
							ACCUSE_PAUSE * control_dead_ns(control)))
		return;
	member->contact->accused_ns = now_ns;
	control->counter[COUNTER_members_claimed]++;
	if (!member->contact->kept)
		log_warn("member %s: %s; it is removed unless another member is served by it",
			member_label(&member->record, label), why);
	member_claim(control, member, trial_ns / NS_PER_MS, wait_ns / NS_PER_MS);
	member_record_changed(control, member);
}

/* ---- removal and trial ----------------------------------------------------------------------- */

bool member_on_trial(const struct member *member)
{
	return member->state != MEMBER_ALIVE && member->contact->trial.incarnation != 0;
}

/* How often it was removed because it did not serve, shortly one after the other, with once now. */
static unsigned trial_removals(const struct member_trial *trial, uint64_t now_ns)
{
	bool again = trial->removed_ns && now_ns - trial->removed_ns < TRIAL_MEMORY_NS;

	return again ? trial->removals + 1 : 1;
}

/*
 * A member was removed because it did not serve, and the claim says for how long it must
 * (`needs_ns`), or because it was silent: 0.
 */
static void trial_begin(struct control *control, struct member *member, uint64_t needs_ns)
{
	struct member_contact *contact = member_contact(&control->members->table, member);
	uint64_t now_ns = net_now(), own_ns = 0;
	struct member_trial *trial;

	if (!contact)
		return;
	trial = &contact->trial;
	if (needs_ns) {
		trial->removals = trial_removals(trial, now_ns);
		trial->removed_ns = now_ns;
		own_ns = suspect_trial_ns(control_dead_ns(control), trial->removals);
	}
	trial->incarnation = member->record.incarnation;
	trial->began_ns = now_ns;
	trial->needs_ns = own_ns > needs_ns ? own_ns : needs_ns;
	trial->since_ns = 0;
}

static void unserving_accuse(struct control *control, struct member *member, uint64_t now_ns)
{
	const struct member_trial *trial = &member->contact->trial;
	char why[96];

	snprintf(why, sizeof(why), "it answered no %s for %u ms",
		member->contact->probe.asked_ns[PROBE_SMALL] ? "probe"
							     : "probe of 9 KB (check the MTU)",
		(unsigned)(member_unserved_ns(member, now_ns) / NS_PER_MS));
	member_accuse(control, member,
		suspect_trial_ns(control_dead_ns(control), trial_removals(trial, now_ns)),
		suspect_wait_ns(control_dead_ns(control)), why);
}

bool member_trial_hello(struct control *control, struct member *member, uint64_t incarnation)
{
	if (!member->contact->trial.incarnation || member->state == MEMBER_ALIVE)
		return false;
	if (member->contact->trial.incarnation == incarnation) {
		member_state_set(control->members, member, MEMBER_DEAD);
		return true;
	}
	/* It was started again. The links are those of its former process. */
	member_links_close(member);
	member->contact->trial.incarnation = 0;
	return false;
}

/* The next Hello makes it a member. */
static void trial_end(struct control *control, struct member *member, uint64_t now_ns)
{
	char label[MEMBER_LABEL_BYTES];

	log_info("member %s has answered all probes for %u ms: it may come back",
		member_label(&member->record, label),
		(unsigned)((now_ns - member->contact->trial.since_ns) / NS_PER_MS));
	member_links_close(member);
	member->contact->trial.incarnation = 0;
	member_dial(control, member, false);
}

static void trial_tick(struct control *control, struct member *member, uint64_t now_ns)
{
	struct member_trial *trial = &member->contact->trial;
	uint64_t served_ns = member_served_age_ns(member, now_ns);

	probe_take_turn(control, member, PROBE_SIZES, now_ns);
	if (member_unserved_ns(member, now_ns) > suspect_patience_ns(control_dead_ns(control)))
		trial->since_ns = 0;
	else if (!trial->since_ns && served_ns < now_ns - trial->began_ns)
		trial->since_ns = now_ns;
	if (trial->since_ns && now_ns - trial->since_ns >= trial->needs_ns)
		trial_end(control, member, now_ns);
}

void member_claims_due(void *context)
{
	struct control *control = context;
	struct members *members = control->members;
	uint64_t now_ns = net_now(), period_ns = member_probe_period_ns(control);

	/* What came while this engine did not run may refute them. */
	if (suspect_pause_ns(members->probe_ns, now_ns, period_ns)) {
		net_timer_set(members->claims, period_ns / 1000);
		return;
	}
	for (unsigned i = members->table.contacts; i-- > 0;) {
		struct member *member;
		uint64_t trial_ns;

		if (i >= members->table.contacts)
			continue;
		member = members->table.contact[i]->member;
		trial_ns = member->contact->claim_trial_ms * NS_PER_MS;
		if (!is_claimed(member) || claim_due_ns(control, member, now_ns) > now_ns)
			continue;
		control->counter[COUNTER_members_unserving] += trial_ns != 0;
		member_take_off_map(control, member,
			"a member is not served by it, and none has said that it is");
		trial_begin(control, member, trial_ns);
	}
	claims_arm(control, now_ns);
}

/* ---- messages of others ---------------------------------------------------------------------- */

bool member_probe_ack(struct control *control, struct rpc_link *link, const Pc__ProbeAck *ack)
{
	struct member *member = link->member;
	struct member_probe *p = &member->contact->probe;
	unsigned size = ack->serial % PROBE_SIZES;

	if (ack->pad.len > PROBE_PAD_BYTES)
		return false;
	/* the answer to an earlier probe, or one that did not cross the path in full size */
	if (p->via[size] != link || ack->serial != p->serial[size] ||
		(size == PROBE_PADDED && ack->pad.len != PROBE_PAD_BYTES))
		return true;
	member->proven = true;
	p->via[size] = NULL;
	p->asked_ns[size] = 0;
	p->served_ns[size] = p->sent_ns[size];
	if (!member_unserved_ns(member, net_now()))
		member->contact->accused_ns = 0;
	member_claim_served(control, member, size);
	/* Another probe may have been sent meanwhile; one that waits for too long counts. */
	if (member->state == MEMBER_ALIVE && member_unserved_ns(member, net_now()) <=
						     suspect_patience_ns(control_dead_ns(control)))
		control->member_events->probed(control, member->record.peer, true);
	return true;
}

bool member_probe_serve(struct control *control, struct rpc_link *link, const Pc__Probe *probe)
{
	Pc__ProbeAck ack = PC__PROBE_ACK__INIT;
	const Pc__Message message = message_of(PC__MESSAGE__BODY_PROBE_ACK, &ack);

	(void)control;
	if (probe->pad.len > PROBE_PAD_BYTES)
		return false;
	ack.serial = probe->serial;
	ack.pad = probe->pad;
	rpc_reply(link, &message);
	return true;
}

bool member_trial_serve(struct rpc_link *link, const Pc__Message *message)
{
	switch (message->body_case) {
	case PC__MESSAGE__BODY_PROBE:
		return member_probe_serve(link->control, link, message->probe);
	case PC__MESSAGE__BODY_PROBE_ACK:
		return member_probe_ack(link->control, link, message->probe_ack);
	case PC__MESSAGE__BODY_HELLO: return member_refused(link->control, link, message->hello);
	case PC__MESSAGE__BODY__NOT_SET: return false;
	case PC__MESSAGE__BODY_LEAVE: rpc_link_close(link); return true;
	/* Its requests are sent again to a member: after the trial on another link. */
	default: return true;
	}
}

/* ---- the timer ------------------------------------------------------------------------------- */

static bool member_is_probed(const struct control *control, const struct member *member)
{
	return !member->record.self &&
	       (member_watched(member) ||
		       control->member_events->overdue(control, member->record.peer));
}

/* Each engine has an order of its own, so that a member is probed by some engine at any time. */
static void probe_next(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	struct member_table *table = &members->table;
	unsigned first = members->probe_next, count = table->contacts, turns = PROBE_TARGETS;

	for (unsigned i = 0; i < count; i++) {
		unsigned place = (first + i) % count;
		struct member *member = table->contact[place]->member;

		if (member->state != MEMBER_ALIVE || !member_is_probed(control, member))
			continue;
		if (turns) {
			turns--;
			members->probe_next = place + 1;
		} else if (!member_unserved_ns(member, now_ns)) {
			continue;
		}
		probe_take_turn(control, member, PROBE_PAD_EVERY, now_ns);
	}
}

static void probe_judge(struct control *control, struct member *member, uint64_t now_ns)
{
	uint64_t unserved_ns = member_unserved_ns(member, now_ns);
	uint64_t dead_ns = control_dead_ns(control);

	if (unserved_ns <= suspect_patience_ns(dead_ns))
		return;
	if (unserved_ns > suspect_removal_ns(dead_ns) - suspect_wait_ns(dead_ns))
		unserving_accuse(control, member, now_ns);
	if (member->state == MEMBER_ALIVE)
		control->member_events->probed(control, member->record.peer, false);
}

/* This engine did not run for this time, and could not receive: members get it in addition. */
static void probe_forgive_pause(const struct control *control, uint64_t pause_ns, uint64_t now_ns)
{
	const struct members *members = control->members;
	/* a claim that was received in this turn lasts no longer than another one */
	uint64_t most_ns = now_ns + suspect_wait_ns(control_dead_ns(control));

	for (unsigned i = 0; i < members->table.contacts; i++) {
		struct member_contact *contact = members->table.contact[i];
		uint64_t *const times[] = {&contact->probe.asked_ns[PROBE_SMALL],
			&contact->probe.asked_ns[PROBE_PADDED], &contact->trial.since_ns};

		for (unsigned t = 0; t < sizeof(times) / sizeof(times[0]); t++)
			if (*times[t])
				*times[t] = suspect_after_pause(*times[t], pause_ns, now_ns);
		contact->claim_until_ns += pause_ns;
		if (contact->claim_until_ns > most_ns)
			contact->claim_until_ns = most_ns;
	}
}

void member_probe_tick(void *context)
{
	struct control *control = context;
	struct members *members = control->members;
	uint64_t now_ns = net_now(), pause_ns = suspect_pause_ns(members->probe_ns, now_ns,
					     member_probe_period_ns(control));

	members->probe_ns = now_ns;
	if (members->leaving)
		return;
	if (pause_ns)
		probe_forgive_pause(control, pause_ns, now_ns);
	probe_next(control, now_ns);
	/* From the end, so that one whose contact goes away hides no other. */
	for (unsigned i = members->table.contacts; i-- > 0;) {
		struct member *member;

		if (i >= members->table.contacts)
			continue;
		member = members->table.contact[i]->member;
		if (member->state == MEMBER_ALIVE && member_is_probed(control, member))
			probe_judge(control, member, now_ns);
		else if (member->state == MEMBER_ALIVE)
			memset(member->contact->probe.asked_ns, 0,
				sizeof(member->contact->probe.asked_ns));
		else if (member_on_trial(member))
			trial_tick(control, member, now_ns);
	}
}
