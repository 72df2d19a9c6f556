/* SPDX-License-Identifier: Apache-2.0 */
/* Planted mistakes in claims (ld --wrap). One thread. */
#include "tests/sim/world.h"

/* As if what one member says were a fact. */
static void believe(struct control *control, const Pc__MemberNews *news)
{
	for (size_t i = 0; i < news->n_records; i++) {
		struct member *member =
			member_find(control->members, news->records[i]->member->name);

		if (member && member->state == MEMBER_ALIVE && member->stage == RECORD_CLAIMED)
			member_take_off_map(control, member, "claimed");
	}
}

bool __real_member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news);
bool __wrap_member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news);
bool __wrap_member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news)
{
	bool good = __real_member_news(control, link, news);

	if (world.mutant == MUTANT_SUSPECT_FACT)
		believe(control, news);
	return good;
}
