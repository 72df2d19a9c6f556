/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines that are refused, and engines that refuse this one. Both ends know: the engine that
 * refuses sends the reason in a Hello. A refusal is remembered as long as it repeats, and its line
 * is logged once. Control plane's thread only.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "config/log.h"
#include "engine/control/members/member.h"

/* ---- the table ------------------------------------------------------------------------------- */

/* A refusal lasts while attempts repeat: for three of the last pause between two. */
static bool refusal_lasts(const struct refusal *refusal, uint64_t now_ns)
{
	uint64_t lasts_ns = 3 * refusal->gap_ns;

	if (lasts_ns < REFUSAL_LASTS_NS)
		lasts_ns = REFUSAL_LASTS_NS;
	return refusal->last_ns && now_ns - refusal->last_ns < lasts_ns;
}

static struct refusal *refusal_find(struct members *members, uint64_t who)
{
	for (unsigned i = 0; i < REFUSALS; i++)
		if (members->refusal[i].who == who)
			return &members->refusal[i];
	return NULL;
}

/* Remembers the refusal. True if it was not logged yet. */
static bool refusal_note(
	struct control *control, const struct refused_engine *who, bool theirs, const char *text)
{
	struct members *members = control->members;
	const Pc__Member *m = who->member;
	uint64_t id = m ? m->incarnation : placement_hash(who->link->from);
	uint64_t why = placement_hash(text), now_ns = net_now();
	struct refusal *at = refusal_find(members, id ? id : 1);
	bool fresh = !at || at->why != why;

	if (!at) {
		at = &members->refusal[members->refusals++ % REFUSALS];
		*at = (struct refusal){.who = id ? id : 1};
	}
	if (!refusal_lasts(at, now_ns)) {
		at->since_ns = now_ns;
		at->gap_ns = 0;
	} else {
		at->gap_ns = now_ns - at->last_ns;
	}
	if (at->gap_ns > REFUSAL_GAP_NS)
		at->gap_ns = REFUSAL_GAP_NS;
	at->last_ns = now_ns;
	at->why = why;
	at->theirs = theirs;
	at->name_taken = who->name_taken;
	snprintf(at->from, sizeof(at->from), "%s", who->link->from);
	snprintf(at->text, sizeof(at->text), "%s", text);
	at->name[0] = at->address[0] = '\0';
	if (m && member_fits(m)) {
		snprintf(at->name, sizeof(at->name), "%s", m->name);
		address_text(m->address, m->port, at->address);
	}
	return fresh;
}

void member_refusal_end(struct control *control, const Pc__Member *member)
{
	struct members *members = control->members;
	char address[ADDRESS_TEXT_BYTES];

	if (!members->refusals)
		return;
	address_text(member->address, member->port, address);
	for (unsigned i = 0; i < REFUSALS; i++) {
		struct refusal *at = &members->refusal[i];

		if (!at->last_ns)
			continue;
		if (at->who == member->incarnation || strcmp(at->address, address) == 0 ||
			(!at->name_taken && strcmp(at->name, member->name) == 0))
			at->last_ns = at->why = 0;
	}
}

bool member_refusals_last(const struct control *control, uint64_t now_ns)
{
	for (unsigned i = 0; i < REFUSALS; i++)
		if (refusal_lasts(&control->members->refusal[i], now_ns))
			return true;
	return false;
}

void refusals_report(const struct control *control, uint64_t now_ns, struct refusals_report *ret)
{
	ret->engines = ret->named = 0;
	for (unsigned i = 0; i < REFUSALS; i++) {
		const struct refusal *at = &control->members->refusal[i];

		if (!refusal_lasts(at, now_ns))
			continue;
		ret->engines++;
		if (ret->named == REFUSALS_NAMED)
			continue;
		snprintf(ret->engine[ret->named].from, sizeof(at->from), "%s", at->from);
		snprintf(ret->engine[ret->named].text, sizeof(at->text), "%s", at->text);
		ret->engine[ret->named].theirs = at->theirs;
		ret->engine[ret->named++].ms = (now_ns - at->since_ns) / 1000000;
	}
}

/* ---- refusing -------------------------------------------------------------------------------- */

static void seed_refused(const struct rpc_link *link)
{
	struct member_seed *seed = link->dial && link->dial->seed ? link->dial->owner : NULL;

	if (seed)
		seed->refused = true;
}

void member_refuse(
	struct control *control, const struct refused_engine *who, const char *format, ...)
{
	char text[LOG_LINE_BYTES - NAME_BYTES_MAX];
	struct rpc_link *link = who->link;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	control->counter[COUNTER_members_refused]++;
	if (refusal_note(control, who, false, text) && member_source_logs(control, link))
		log_error("the engine at %s is refused: %s", link->from, text);
	seed_refused(link);
	/* an engine that was dialled has our Hello already */
	if (link->dial)
		rpc_link_close(link);
	else
		member_greet_refused(control, link, text);
}

/* Copies a text that people read; what is no printable character becomes a question mark. */
static void text_clean(const char *text, char ret[REFUSAL_BYTES])
{
	size_t i = 0;

	for (; text[i] && i < REFUSAL_BYTES - 1; i++)
		ret[i] = text[i];
	ret[i] = '\0';
	for (i = 0; ret[i]; i++)
		if (ret[i] < ' ' || ret[i] > '~')
			ret[i] = '?';
}

void member_refused(struct control *control, const struct refused_engine *who, const char *text)
{
	struct rpc_link *link = who->link;
	char clean[REFUSAL_BYTES];

	text_clean(text, clean);
	control->counter[COUNTER_members_refused]++;
	if (refusal_note(control, who, true, clean) && member_source_logs(control, link))
		log_error("the engine at %s refuses this engine: \"%s\"", link->from, clean);
	seed_refused(link);
	rpc_link_close(link);
}
