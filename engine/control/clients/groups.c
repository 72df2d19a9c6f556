/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of groups. A group that has more than its quota gives its own oldest pages in
 * groups_turn(). If the slots that its clients request find no room, it gives them before
 * (evict_refill_by()), so that they cost no other group a page.
 *
 * With a time, its list in the index is in the order of storing, so the first page that is young
 * enough ends the search. A page that an earlier process has stored has no time: it is too old.
 */
#include "engine/control/clients/ctl_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "config/group_limits.h"
#include "config/log.h"
#include "config/settings.h"
#include "engine/abi/epoch.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

#define GROUPS_BURST 8192u          /* pages that one turn evicts, at most */
#define GROUPS_TICK_NS 100000000ull /* of index_account.now */
#define GROUP_TTL_MAX_S 31536000
#define GROUPS_TICKS_S 10u

/* Returns 0, -ENOSPC: too many groups have limits, -ERANGE: these are too large; or -ENOMEM. */
static int group_limit(struct control *control, uint32_t number, const struct group_limits *limits)
{
	const struct index_group *group = index_group(control->index, number);

	if (limits->quota > (int64_t)GROUP_LIMIT_MAX || limits->ttl_s > GROUP_TTL_MAX_S)
		return -ERANGE;
	log_info(
		"group 0x%06x: quota %lld bytes, pages stay %lld s; until now %llu and %u; -1: as it was, 0: no limit",
		number, (long long)limits->quota, (long long)limits->ttl_s,
		(unsigned long long)(group ? group->quota : 0), group ? group->ttl_s : 0);
	return index_limit(control->index, number, limits);
}

void groups_serve(struct control *control, struct ctl_channel *c, const struct ctl_op *op)
{
	const struct group_limits limits = {(int64_t)op->cookie, (int64_t)op->deadline_ns};
	uint32_t number = epoch_group(&op->key);
	const struct index_group *group = index_group(control->index, number);
	bool no = control->settings->engine_clients_clear == CLIENTS_CLEAR_NO;

	if ((limits.quota < 0 || (uint64_t)limits.quota == (group ? group->quota : 0)) &&
		(limits.ttl_s < 0 || limits.ttl_s == (group ? group->ttl_s : 0)))
		return;
	if (c->restricted && (no || (group && group->fixed)))
		client_deny(control, c->id,
			no ? "it sets limits of a group, which only administrators may (engine.clients_clear = no)"
			   : "it sets other limits than engine.quotas or engine.ttls have for its group, which only administrators may");
	else if (group_limit(control, number, &limits) < 0)
		client_deny(control, c->id,
			"its limits are too large, too many groups have limits, or no memory");
}

/* As clients hash the name of a group without a secret: client/page/space.c. */
static uint32_t group_number(const char *name)
{
	XXH128_hash_t hash = XXH3_128bits(name, strlen(name));
	uint32_t number;

	return group_limits_number(name, &number)
		       ? number
		       : epoch_group(&(struct page_key){{hash.low64, hash.high64}});
}

static void groups_configure(struct control *control)
{
	const char *const lists[] = {
		control->settings->engine_quotas, control->settings->engine_ttls};
	struct group_limit limit;

	for (unsigned i = 0; i < 2; i++)
		/* settings_check() has seen them */
		for (const char *at = lists[i], *why; group_limits_next(&at, &limit, &why) > 0;) {
			struct group_limits limits = {-1, -1};
			uint32_t number = group_number(limit.name);

			*(i ? &limits.ttl_s : &limits.quota) = (int64_t)limit.value;
			if (group_limit(control, number, &limits) == 0)
				index_group(control->index, number)->fixed = true;
		}
}

/* Removes pages that are too old, up to `max`. Returns how many. */
static unsigned group_expire(struct control *control, struct index_group *group, unsigned max)
{
	uint32_t now = index_account(control->index)->now;
	const struct index_entry *e;
	unsigned n = 0;

	while (n < max && !control->pages_events->busy(control) &&
		(e = index_oldest(control->index, group)) &&
		(!e->stored || now - e->stored >= group->ttl_s * GROUPS_TICKS_S)) {
		evict_take_away(control->evict, &e->key, e->place, e->generation);
		n++;
	}
	group->expired += n;
	control->counter[COUNTER_pages_expired] += n;
	return n;
}

unsigned groups_turn(struct control *control)
{
	struct index_account *account = index_account(control->index);
	uint32_t beat = control->status->beat;
	unsigned left = GROUPS_BURST;
	bool due = account->over;

	if (control->evict->beat == UINT32_MAX) /* the first turn */
		groups_configure(control);
	if (control->evict->beat != beat) {
		control->evict->beat = beat;
		account->now = (uint32_t)(net_now() / GROUPS_TICK_NS) + 1;
		due = true;
	}
	account->over = false;
	for (unsigned i = 0; due && i < account->limits && left; i++) {
		struct index_group *group = TAILQ_FIRST(&account->limited);

		/* the next turn begins with another one */
		TAILQ_REMOVE(&account->limited, group, next_limited);
		TAILQ_INSERT_TAIL(&account->limited, group, next_limited);
		if (group->quota)
			left -= evict_group(control->evict, group, 0, left);
		if (group->ttl_s)
			left -= group_expire(control, group, left);
	}
	if (!left)
		account->over = true;
	return GROUPS_BURST - left;
}
