/* SPDX-License-Identifier: Apache-2.0 */
/* Planted mistakes in claims of clusters above 32 nodes (ld --wrap). One thread. */
#include <string.h>

#include "tests/sim/world.h"

/* As if a member's own statement voided a claim. */
static void refute_own(struct control *control, const Pc__MemberNews *news)
{
	struct member *self = control->members->self;

	for (size_t i = 0; i < news->n_records; i++) {
		const Pc__MemberRecord *r = news->records[i];

		if (strcmp(r->member->name, control->name) != 0 || r->state != RECORD_CLAIMED ||
			r->admission < self->admission)
			continue;
		self->admission = r->admission + 1;
		member_record_changed(control, self);
	}
}

bool __real_member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news);
bool __wrap_member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news);
bool __wrap_member_news(struct control *control, struct rpc_link *link, const Pc__MemberNews *news)
{
	bool good = __real_member_news(control, link, news);

	if (world.mutant == MUTANT_OWN_REFUTE)
		refute_own(control, news);
	return good;
}
