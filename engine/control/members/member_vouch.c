/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members that only other members hear. An engine that does not hear a member asks all others in
 * its heartbeats (doubts); those that hear it answer with the age of its last message (vouches). A
 * member stays on the map while one of them is younger than cluster.dead_after_ms. An engine
 * vouches only for what came over its own links, and never for itself, so that no message keeps a
 * dead member alive. The same for a member that answers no probe: those that are served by it say
 * since when; messages of another kind do not count. Control plane's thread only.
 */
#include "config/log.h"
#include "engine/control/members/member.h"

#define NS_PER_MS 1000000ull

static uint64_t since_ns(uint64_t then_ns, uint64_t now_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : 0;
}

static uint64_t dead_ns(const struct control *control)
{
	return (uint64_t)control->settings->cluster_dead_after_ms * NS_PER_MS;
}

/* The live member with this ref, other than this engine, with a contact; NULL: there is none. */
static struct member *live_other(const struct control *control, uint32_t ref)
{
	struct member *member = member_table_ref(&control->members->table, ref);

	return member && !member->record.self && member_has_contact(member) ? member : NULL;
}

bool member_doubted(const struct control *control, const struct member *member, uint64_t now_ns)
{
	uint64_t beat_ns = (uint64_t)control->settings->cluster_heartbeat_ms * NS_PER_MS;

	/* A beat and a half: early enough that an answer comes before the shortest dead_after. */
	return !member->record.self &&
	       since_ns(member->contact->heard_ns, now_ns) > beat_ns * 3 / 2;
}

/* The member answered another one's probe at this time. */
static void served_take(
	struct control *control, struct member *member, uint64_t age_ns, uint64_t now_ns)
{
	if (age_ns <= suspect_removal_ns(dead_ns(control)) &&
		member->contact->probe.vouched_ns < now_ns - age_ns)
		member->contact->probe.vouched_ns = now_ns - age_ns;
}

static void vouches_take(
	struct control *control, const struct member *from, const Pc__Heartbeat *beat)
{
	uint64_t now_ns = net_now();

	for (size_t i = 0; i < beat->n_served; i++) {
		struct member *member = live_other(control, beat->served[i]->ref);

		if (member && member != from)
			served_take(control, member, beat->served[i]->age_ms * NS_PER_MS, now_ns);
	}

	for (size_t i = 0; i < beat->n_vouches; i++) {
		struct member *member = live_other(control, beat->vouches[i]->ref);
		uint64_t age_ns = beat->vouches[i]->age_ms * NS_PER_MS;

		if (!member || member == from || age_ns > dead_ns(control))
			continue;
		if (member->contact->vouched_ns < now_ns - age_ns)
			member->contact->vouched_ns = now_ns - age_ns;
		/* An engine that sends no probes knows no more. */
		if (!from->probes)
			served_take(control, member, age_ns, now_ns);
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
		struct member *member = live_other(control, refs[i]);
		uint64_t age_ns = member ? member_served_age_ns(member, now_ns) : UINT64_MAX;

		if (!member || member == link->member)
			continue;
		member->contact->probe.hurry = PROBE_SIZES;
		if (age_ns > suspect_removal_ns(dead_ns(control)))
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
		const struct member *member = live_other(control, beat->doubts[i]);
		uint64_t age_ns = member ? since_ns(member->contact->heard_ns, now_ns) : 0;

		if (!member || member == link->member || age_ns > dead_ns(control))
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

bool member_vouch(struct control *control, struct rpc_link *link, const Pc__Heartbeat *beat)
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

static void kept_begin(struct control *control, struct member *member, uint64_t silent_ns)
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

bool member_heard_of(struct control *control, struct member *member, uint64_t now_ns)
{
	uint64_t silent_ns = since_ns(member->contact->heard_ns, now_ns);
	char label[MEMBER_LABEL_BYTES];

	if (silent_ns <= dead_ns(control)) {
		if (member->contact->kept)
			log_info("member %s is heard again", member_label(&member->record, label));
		member->contact->kept = false;
		return true;
	}
	if (since_ns(member->contact->vouched_ns, now_ns) > dead_ns(control))
		return false;
	if (!member->contact->kept)
		kept_begin(control, member, silent_ns);
	return true;
}
