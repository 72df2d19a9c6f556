/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of groups. A group that has more than its quota gives its own oldest pages in
 * groups_turn(). If the slots that its clients request find no room, it gives them before
 * (evict_refill_by()), so that they cost no other group a page.
 *
 * A page that clients have pinned is in no list of its group, and pools do not evict it. pins_end()
 * finds that pins are over: it looks at a part of them at each beat.
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

#define GROUPS_BURST 4096u /* pages that one turn evicts, at most */
#define GROUPS_TICK_NS (1000000000ull / INDEX_TICKS_S)
#define PINS_LOOK 16384u /* at one beat, at most */
#define PINS_LAP 8u      /* beats in which all pins are looked at */
#define PIN_MAX_S 86400u

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
			if (group_limit(control, number, &limits) < 0)
				log_error(
					"engine.quotas or engine.ttls: no limit of %s: out of memory",
					limit.name);
			else
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
		(!e->stored || now - e->stored >= group->ttl_s * INDEX_TICKS_S)) {
		const struct page_key key = e->key;

		evict_take_away(control->evict, &key, e->place, e->generation);
		(void)tier_forget(control, &key); /* it was there before its group had a time */
		n++;
	}
	group->expired += n;
	control->counter[COUNTER_pages_expired] += n;
	return n;
}

/* ---- pins ------------------------------------------------------------------------------------ */

static void pin_end(struct control *control, const struct page_key *key)
{
	const struct index_entry *e = index_find(control->index, key);

	if (!e)
		return;
	pool_unpin(
		control->rail[place_rail(e->place)].pool, e->place, e->generation, POOL_PIN_CLIENT);
	index_unpin(control->index, &e->key);
}

static void pins_end(struct control *control)
{
	uint32_t pins = index_account(control->index)->pins / PINS_LAP + 1;
	uint32_t look = pins < PINS_LOOK ? pins : PINS_LOOK;
	const struct index_entry *e;

	while ((e = index_pin_over(control->index, &look)))
		pin_end(control, &e->key);
}

enum op_status pin_serve(struct control *control, const struct ctl_op *op)
{
	struct index_pins pins = {
		.until = index_account(control->index)->now + op->length * INDEX_TICKS_S,
		.percent = (unsigned)control->settings->engine_pinned_percent};
	const struct index_entry *e = index_find(control->index, &op->key);
	int rc;

	if (op->length > PIN_MAX_S)
		return OP_INVALID;
	if (!e)
		return OP_MISS;
	if (!op->length) {
		pin_end(control, &op->key);
		return OP_HIT;
	}
	for (unsigned i = 0; i < control->rails; i++)
		pins.most += control->status->pool_bytes[i] * pins.percent / 100;
	rc = index_pin(control->index, &op->key, &pins);
	if (rc == 0)
		rc = pool_pin(control->rail[place_rail(e->place)].pool, e->place, e->generation,
			POOL_PIN_CLIENT);
	control->counter[COUNTER_pins_refused] += rc < 0;
	return rc < 0 ? OP_NO_SPACE : OP_HIT;
}

/* ---- turns ----------------------------------------------------------------------------------- */

unsigned groups_turn(struct control *control)
{
	struct index_account *account = index_account(control->index);
	uint32_t beat = control->status->beat;
	unsigned left = GROUPS_BURST, at = 0;
	struct index_group *group;
	bool due = account->over, stopped;

	if (control->evict->beat == UINT32_MAX) /* the first turn */
		groups_configure(control);
	if (control->evict->beat != beat) {
		control->evict->beat = beat;
		account->now = (uint32_t)(net_now() / GROUPS_TICK_NS) + 1;
		due = true;
		pins_end(control);
	}
	TAILQ_FOREACH (group, &account->limited, next_limited) {
		if (!due || !left || control->pages_events->busy(control))
			break;
		if (at++ < control->evict->group_at)
			continue;
		if (group->quota)
			left -= evict_group(control->evict, group, 0, left, NULL);
		if (group->ttl_s)
			left -= group_expire(control, group, left);
	}
	/* the next turn goes on where this one has stopped, and then with those before */
	stopped = due && (group || !left);
	account->over = stopped || (due && control->evict->group_at);
	if (!stopped)
		control->evict->group_at = 0;
	else if (at > control->evict->group_at)
		control->evict->group_at = at - 1;
	return GROUPS_BURST - left;
}
