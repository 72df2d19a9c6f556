/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Candidates: engines that another one names, in a Hello or in Members. They are dialled, a few at
 * a time, and become members by their own Hello. Control plane's thread only.
 */
#include <string.h>

#include "engine/control/members/member.h"

#define CANDIDATES_MAX 32u /* candidates that are dialled for the first time */

static bool text_fits(const char *text)
{
	size_t bytes = strnlen(text, NAME_BYTES_MAX);

	if (bytes == 0 || bytes >= NAME_BYTES_MAX)
		return false;
	for (size_t i = 0; i < bytes; i++)
		if (text[i] <= ' ' || text[i] > '~')
			return false;
	return true;
}

bool member_fits(const Pc__Member *m)
{
	return m && text_fits(m->name) && text_fits(m->address) && m->port >= 1 &&
	       m->port <= 65535 && m->rails >= 1 && m->rails <= RAILS_MAX && m->bucket_bits <= 31 &&
	       (uint32_t)m->incarnation != 0;
}

/* True if many candidates are dialled for the first time; gossip names others again. */
static bool candidates_full(const struct members *members)
{
	unsigned count = 0;

	for (unsigned i = 0; i < members->table.contacts && count < CANDIDATES_MAX; i++) {
		const struct member_contact *contact = members->table.contact[i];

		count += contact->member->state == MEMBER_CANDIDATE && contact->dial &&
			 contact->dial->fails == 0;
	}
	return count == CANDIDATES_MAX;
}

void member_learn(struct control *control, const struct rpc_link *link, const Pc__Member *m)
{
	struct members *members = control->members;
	struct member *member;

	if (members->leaving || m->incarnation == control->incarnation ||
		strcmp(m->name, control->name) == 0 ||
		member_address_local(control, m->address) != control->rpc->loopback)
		return;
	member = member_find(members, m->name);
	if (member && (member->state == MEMBER_ALIVE ||
			      (member->state == MEMBER_DEAD &&
				      member->record.incarnation == m->incarnation)))
		return;
	/* what it says of itself decides, while its links are up */
	if (member && member_on_trial(member) && member_link_of(member))
		return;
	if (!member && candidates_full(members))
		return;
	if (!member || member->state != MEMBER_CANDIDATE ||
		member->record.incarnation != m->incarnation) {
		if (!member_source_names(control, link, m->name))
			return;
		if (!member)
			member = member_take(control);
		if (!member)
			return;
		if (!member_fill(control, member, m)) {
			member_put_back(control, member);
			return;
		}
		member_state_set(control->members, member, MEMBER_CANDIDATE);
		member->left = false;
		member_dial(control, member, false);
	}
	member->since_ns = net_now();
}

bool member_learn_all(struct control *control, const struct rpc_link *link, size_t count,
	Pc__Member *const *members)
{
	if (count > MEMBERS_MAX)
		return false;
	for (size_t i = 0; i < count; i++)
		if (!member_fits(members[i]))
			return false;
	for (size_t i = 0; i < count; i++)
		member_learn(control, link, members[i]);
	return true;
}
