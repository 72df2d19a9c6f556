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
#include "engine/control/directory.h"
#include "engine/control/member.h"

#define NS_PER_MS 1000000ull
#define ALL_SIZES ((1u << PROBE_SIZES) - 1)

static uint64_t dead_ns(const struct control *control)
{
	return (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
}

static bool is_claimed(const struct member_entry *entry)
{
	return entry->state == MEMBER_ALIVE && entry->stage == RECORD_CLAIMED;
}

/* Sets the timer to the earliest claim that ends. */
static void claims_arm(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;
	uint64_t next_ns = 0;

	for (unsigned i = 0; i < member->table.contacts; i++) {
		const struct member_contact *contact = member->table.contact[i];

		if (is_claimed(contact->entry) && (!next_ns || contact->claim_until_ns < next_ns))
			next_ns = contact->claim_until_ns;
	}
	if (next_ns)
		net_timer_set(member->claims, next_ns > now_ns ? (next_ns - now_ns) / 1000 + 1 : 1);
}

void member_claim(struct control *control, struct member_entry *entry, uint64_t trial_ms)
{
	uint64_t most_ms = suspect_trial_ns(dead_ns(control), UINT32_MAX) / NS_PER_MS;
	uint64_t now_ns = net_now();
	struct member_contact *contact;

	if (entry->stage == RECORD_CLAIMED)
		return;
	contact = member_contact(&control->member->table, entry);
	if (!contact)
		return;
	entry->stage = RECORD_CLAIMED;
	entry->contact->claim_trial_ms = trial_ms < most_ms ? trial_ms : most_ms;
	entry->contact->claim_until_ns = now_ns + dead_ns(control) / SUSPECT_PART;
	entry->contact->claim_served = 0;
	claims_arm(control, now_ns);
	member_probe_now(control, entry);
}

void member_claim_served(struct control *control, struct member_entry *entry, unsigned size)
{
	struct member_texts texts;

	if (!is_claimed(entry))
		return;
	entry->contact->claim_served |= 1u << size;
	if (entry->contact->claim_served != ALL_SIZES)
		return;
	member_texts(&entry->record, &texts);
	log_info("member %s (%s:%u) serves this engine: the claim that it does not is refuted",
		texts.name, texts.address, entry->record.port);
	control->counter[COUNTER_claims_refuted]++;
	entry->stage = RECORD_ALIVE;
	entry->admission++;
	member_changed(control, entry);
}

void member_accuse(
	struct control *control, struct member_entry *entry, uint64_t trial_ns, const char *why)
{
	uint64_t now_ns = net_now();
	struct member_texts texts;

	if (entry->stage == RECORD_CLAIMED || !member_contact(&control->member->table, entry) ||
		(entry->contact->accused_ns &&
			now_ns - entry->contact->accused_ns < ACCUSE_PAUSE * dead_ns(control)))
		return;
	entry->contact->accused_ns = now_ns;
	control->counter[COUNTER_members_claimed]++;
	member_texts(&entry->record, &texts);
	log_warn("member %s (%s:%u): %s; it is removed unless another member is served by it",
		texts.name, texts.address, entry->record.port, why);
	member_claim(control, entry, trial_ns / NS_PER_MS);
	member_changed(control, entry);
}

void member_claims_due(void *context)
{
	struct control *control = context;
	struct member *member = control->member;
	uint64_t now_ns = net_now();

	for (unsigned i = member->table.contacts; i-- > 0;) {
		struct member_entry *entry;
		uint64_t trial_ns;

		if (i >= member->table.contacts)
			continue;
		entry = member->table.contact[i]->entry;
		trial_ns = entry->contact->claim_trial_ms * NS_PER_MS;
		if (!is_claimed(entry) || entry->contact->claim_until_ns > now_ns)
			continue;
		control->counter[COUNTER_members_unserving] += trial_ns != 0;
		member_down(control, entry,
			"a member is not served by it, and none has said that it is");
		if (!trial_ns)
			member_trial_begin(control, entry, 0);
		else
			member_trial_removed(control, entry, trial_ns);
	}
	claims_arm(control, now_ns);
}
