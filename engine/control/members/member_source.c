/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engines of one address may do: how many of them become members by their Hello, how many
 * processes they name that this engine does not know, and how many lines of the log they cause. A
 * source is an IP address, or the name that was dialled. The table is small and forgets; a source
 * that is forgotten begins anew. Control plane's thread only.
 */
#include "config/log.h"
#include "engine/control/members/member.h"

#define SECOND_NS 1000000000ull

static struct member_source *source_of(struct members *members, const struct rpc_link *link)
{
	uint64_t hash = placement_hash(link->dial ? link->dial->host : link->from);
	struct member_source *source = &members->source[hash % MEMBER_SOURCES];

	if (source->hash != hash)
		*source = (struct member_source){.hash = hash,
			.joins = {.left = SOURCE_JOINS, .since_ns = net_now()},
			.names = {.left = SOURCE_NAMES, .since_ns = net_now()}};
	return source;
}

/*
 * Takes one of a budget that has `most` at a time and gets `per_s` more per second. False: nothing
 * is left; that is counted in `refused`.
 */
static bool budget_take(struct source_budget *budget, unsigned most, unsigned per_s)
{
	uint64_t more = (net_now() - budget->since_ns) / (SECOND_NS / per_s);

	budget->since_ns += more * (SECOND_NS / per_s);
	if (budget->left + more >= most) {
		budget->left = most;
		budget->refused = 0;
	} else {
		budget->left += (unsigned)more;
	}
	if (!budget->left) {
		budget->refused++;
		return false;
	}
	budget->left--;
	return true;
}

bool member_source_joins(struct control *control, const struct rpc_link *link, const char *name)
{
	struct source_budget *joins = &source_of(control->members, link)->joins;

	if (budget_take(joins, SOURCE_JOINS, SOURCE_JOINS_PER_S))
		return true;
	control->counter[COUNTER_joins_refused]++;
	if (joins->refused == 1)
		log_warn(
			"engine %s at %s is refused: more than %u engines of that address have joined, and then %u per second; further ones are only counted (joins_refused)",
			name, link->from, SOURCE_JOINS, SOURCE_JOINS_PER_S);
	return false;
}

bool member_source_names(struct control *control, const struct rpc_link *link, const char *name)
{
	struct members *members = control->members;
	struct source_budget *names;

	/* An engine that has just started learns the whole list of the first member. */
	if (!link || (members->rings && net_now() - members->opened_ns < NAMES_OPENING_NS))
		return true;
	names = &source_of(members, link)->names;
	if (members->rings ? budget_take(names, SOURCE_NAMES, SOURCE_NAMES_PER_S)
			   : budget_take(names, SOURCE_NAMES_MESH, SOURCE_NAMES_MESH_PER_S))
		return true;
	control->counter[COUNTER_names_refused]++;
	if (names->refused == 1)
		log_warn(
			"engine %s, named by %s, is ignored: that address has named too many engines that this one does not know; further ones are only counted (names_refused)",
			name, link->from);
	return false;
}

bool member_source_flooded(struct control *control, const struct rpc_link *link)
{
	const struct member_source *source = source_of(control->members, link);

	return source->joins.refused && source->joins.left < SOURCE_JOINS / 2;
}

bool member_source_cause(struct control *control, const struct rpc_link *link, unsigned cause)
{
	struct members *members = control->members;
	unsigned *causes = link ? &source_of(members, link)->causes : &members->causes;
	bool fresh = !(*causes & 1u << cause);

	*causes |= 1u << cause;
	return fresh;
}

bool member_source_logs(struct control *control, const struct rpc_link *link)
{
	struct member_source *source = source_of(control->members, link);

	if (source->logged > SOURCE_LINES)
		return false;
	if (source->logged++ < SOURCE_LINES)
		return true;
	log_warn(
		"more than %u engines at %s were refused: further ones are only counted (members_refused)",
		SOURCE_LINES, link->from);
	return false;
}
