/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removal that all engines agree on, for clusters of more than MEMBER_MESH_MAX members. An engine
 * that is not served by a member claims it: the record spreads, and the member is removed after a
 * tenth of cluster.dead_after_ms. Until then any engine that has a link with the member probes it;
 * if it answers a small and a padded probe, that engine admits it anew, and the record with the
 * next admission voids the claim. Nothing that the member says itself does. Control plane's thread
 * only.
 */
#include "config/log.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/member.h"

#define NS_PER_MS 1000000ull
#define ALL_SIZES ((1u << PROBE_SIZES) - 1)

static uint64_t dead_ns(const struct control *control)
{
	return (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
}

static bool is_claimed(const struct member *member)
{
	return member->state == MEMBER_ALIVE && member->stage == RECORD_CLAIMED;
}

/* Sets the timer to the earliest claim that ends. */
static void claims_arm(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;
	uint64_t next_ns = 0;

	for (unsigned i = 0; i < members->table.contacts; i++) {
		const struct member_contact *contact = members->table.contact[i];

		if (is_claimed(contact->member) && (!next_ns || contact->claim_until_ns < next_ns))
			next_ns = contact->claim_until_ns;
	}
	if (next_ns)
		net_timer_set(
			members->claims, next_ns > now_ns ? (next_ns - now_ns) / 1000 + 1 : 1);
}

void member_claim(struct control *control, struct member *member, uint64_t trial_ms)
{
	uint64_t most_ms = suspect_trial_ns(dead_ns(control), UINT32_MAX) / NS_PER_MS;
	uint64_t now_ns = net_now();
	struct member_contact *contact;

	if (member->stage == RECORD_CLAIMED)
		return;
	contact = member_contact(&control->members->table, member);
	if (!contact)
		return;
	member->stage = RECORD_CLAIMED;
	member->contact->claim_trial_ms = trial_ms < most_ms ? trial_ms : most_ms;
	member->contact->claim_until_ns = now_ns + dead_ns(control) / SUSPECT_PART;
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
	member_changed(control, member);
}

void member_accuse(
	struct control *control, struct member *member, uint64_t trial_ns, const char *why)
{
	uint64_t now_ns = net_now();
	char label[MEMBER_LABEL_BYTES];

	if (member->stage == RECORD_CLAIMED || !member_contact(&control->members->table, member) ||
		(member->contact->accused_ns &&
			now_ns - member->contact->accused_ns < ACCUSE_PAUSE * dead_ns(control)))
		return;
	member->contact->accused_ns = now_ns;
	control->counter[COUNTER_members_claimed]++;
	log_warn("member %s: %s; it is removed unless another member is served by it",
		member_label(&member->record, label), why);
	member_claim(control, member, trial_ns / NS_PER_MS);
	member_changed(control, member);
}

void member_claims_due(void *context)
{
	struct control *control = context;
	struct members *members = control->members;
	uint64_t now_ns = net_now();

	for (unsigned i = members->table.contacts; i-- > 0;) {
		struct member *member;
		uint64_t trial_ns;

		if (i >= members->table.contacts)
			continue;
		member = members->table.contact[i]->member;
		trial_ns = member->contact->claim_trial_ms * NS_PER_MS;
		if (!is_claimed(member) || member->contact->claim_until_ns > now_ns)
			continue;
		control->counter[COUNTER_members_unserving] += trial_ns != 0;
		member_down(control, member,
			"a member is not served by it, and none has said that it is");
		if (!trial_ns)
			member_trial_begin(control, member, 0);
		else
			member_trial_removed(control, member, trial_ns);
	}
	claims_arm(control, now_ns);
}
