/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the engines of one address may do: how many of them become members by their Hello, and how
 * many lines of the log they cause. A source is an IP address, or the name that was dialled. The
 * table is small and forgets; a source that is forgotten begins anew. Control plane's thread only.
 */
#include "config/log.h"
#include "engine/control/member.h"

#define SECOND_NS 1000000000ull

static struct member_source *source_of(struct member *member, const struct rpc_link *link)
{
	uint64_t hash = placement_hash(link->dial ? link->dial->host : link->from);
	struct member_source *source = &member->source[hash % MEMBER_SOURCES];

	if (source->hash != hash)
		*source = (struct member_source){
			.hash = hash, .joins = SOURCE_JOINS, .joins_ns = net_now()};
	return source;
}

/* Adds the joins for the time since the last addition. */
static void joins_add(struct member_source *source, uint64_t now_ns)
{
	uint64_t more = (now_ns - source->joins_ns) / (SECOND_NS / SOURCE_JOINS_PER_S);

	if (!more)
		return;
	source->joins_ns += more * (SECOND_NS / SOURCE_JOINS_PER_S);
	source->joins =
		more < SOURCE_JOINS - source->joins ? source->joins + (unsigned)more : SOURCE_JOINS;
}

bool member_source_joins(struct control *control, const struct rpc_link *link, const char *name)
{
	struct member_source *source = source_of(control->member, link);

	joins_add(source, net_now());
	if (source->joins) {
		source->joins--;
		return true;
	}
	control->counter[COUNTER_joins_refused]++;
	if (!source->flooded)
		log_warn(
			"engine %s at %s is refused: more than %u engines of that address have joined, and then %u per second; further ones are only counted (joins_refused)",
			name, link->from, SOURCE_JOINS, SOURCE_JOINS_PER_S);
	source->flooded = true;
	return false;
}

bool member_source_flooded(struct control *control, const struct rpc_link *link)
{
	const struct member_source *source = source_of(control->member, link);

	return source->flooded && source->joins < SOURCE_JOINS / 2;
}

bool member_source_cause(struct control *control, const struct rpc_link *link, unsigned cause)
{
	struct member *member = control->member;
	unsigned *causes = link ? &source_of(member, link)->causes : &member->causes;
	bool fresh = !(*causes & 1u << cause);

	*causes |= 1u << cause;
	return fresh;
}

bool member_source_names(struct control *control, const struct rpc_link *link)
{
	struct member_source *source = source_of(control->member, link);

	if (source->named > SOURCE_LINES)
		return false;
	if (source->named++ < SOURCE_LINES)
		return true;
	log_warn(
		"more than %u engines at %s were refused: further ones are only counted (members_refused)",
		SOURCE_LINES, link->from);
	return false;
}
