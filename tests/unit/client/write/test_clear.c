/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_clear_cluster(): which hosts it asks, and what it says of those that give no answer. The fake
 * engine's control plane answers for all hosts.
 */
#include "engine/abi/map.h"
#include "engine/client/attach/session.h"
#include "tests/unit/client/rig.h"

#include <errno.h>

#define OTHERS 100u /* hosts of a large map, more than are asked at a time */

static uint32_t asked_ref[OTHERS + 2];
static unsigned asked, told, failed, unasked;
static uint32_t told_ref[OTHERS + 2];

static uint32_t hold_clears(struct fake *f, const struct ctl_op *op)
{
	(void)f;
	if (op->kind != CTL_CLEAR)
		return FAKE_DO;
	assert_true(asked < OTHERS + 2);
	asked_ref[asked++] = op->ref;
	return FAKE_HOLD;
}

static uint32_t do_clears(struct fake *f, const struct ctl_op *op)
{
	return hold_clears(f, op) == FAKE_HOLD ? OP_HIT : FAKE_DO;
}

/* A third host is on the map when the first one is asked. The fake's thread, with its lock. */
static uint32_t do_clears_and_grow(struct fake *f, const struct ctl_op *op)
{
	struct map_shared *map = &f->status->map;
	struct map_member m = map_member_unpack(map->member[FAKE_A]);

	if (op->kind == CTL_CLEAR && map->peers == 2) {
		m.ref = 0x50002;
		m.peer = 2;
		shm_store64(&map->member[2], map_member_pack(&m));
		shm_store_release(&map->peers, 3);
	}
	return do_clears(f, op);
}

static void on_cleared(void *context, const struct pc_cleared *host, unsigned left)
{
	(void)left;
	if (!host) {
		if (context)
			fake_die(context);
		return;
	}
	assert_true(told < OTHERS + 2);
	told_ref[told++] = host->engine;
	failed += host->failed != NULL;
	unasked += host->failed && strstr(host->failed, "was not asked");
	if (host->failed)
		assert_null(strstr(host->failed, "does not answer"));
}

/* The fake engine's map: `members` hosts, without the engine itself if `self` is false. */
static void map_set(unsigned members, bool self)
{
	struct map_shared *map = &fake.status->map;

	asked = told = failed = unasked = 0;
	fake_lock(&fake);
	for (uint32_t i = 0; i < members; i++) {
		struct map_member m = map_member_unpack(map->member[FAKE_A]);

		m.ref = i == 0 && self ? pc->session->ref : 0x50000 + i;
		m.peer = (uint16_t)i;
		shm_store64(&map->member[i], map_member_pack(&m));
	}
	shm_store_release(&map->peers, members);
	fake_unlock(&fake);
}

static bool among(const uint32_t *refs, unsigned count, uint32_t ref)
{
	while (count--)
		if (refs[count] == ref)
			return true;
	return false;
}

static void hosts_that_were_not_asked_are_not_called_silent(void **state)
{
	(void)state;
	map_set(OTHERS, true);
	LET(on_ctl, hold_clears);
	assert_int_equal(pc_clear_cluster(ch, NULL, 300, on_cleared, NULL), -EHOSTUNREACH);
	assert_int_equal(told, OTHERS);
	assert_int_equal(failed, OTHERS);
	assert_int_equal(asked, 64);
	assert_int_equal(unasked, OTHERS - 64);
}

static void a_host_that_is_not_on_its_own_map_is_cleared(void **state)
{
	(void)state;
	map_set(2, false);
	LET(on_ctl, do_clears);
	assert_int_equal(pc_clear_cluster(ch, NULL, PATIENCE_MS, on_cleared, NULL), 0);
	assert_int_equal(told, 3);
	assert_int_equal(asked, 3);
	assert_true(among(asked_ref, asked, pc->session->ref));
	assert_true(among(told_ref, told, 0x50000) && among(told_ref, told, 0x50001));
}

static void a_host_that_is_on_the_map_is_asked_once(void **state)
{
	(void)state;
	map_set(2, true);
	LET(on_ctl, do_clears);
	assert_int_equal(pc_clear_cluster(ch, NULL, PATIENCE_MS, on_cleared, NULL), 0);
	assert_int_equal(told, 2);
	assert_int_equal(asked, 2);
	map_set(0, false);
	assert_int_equal(pc_clear_cluster(ch, NULL, 300, on_cleared, NULL), -ENOTCONN);
	assert_int_equal(asked, 0);
}

static void say_away(struct fake *f, struct ctl_done *answer)
{
	(void)f;
	answer->length = CLEARED_AWAY;
}

/* All that were asked are empty, and yet another one may have pages. */
static void a_host_that_is_away_or_comes_back_meanwhile_is_no_empty_one(void **state)
{
	(void)state;
	map_set(2, true);
	LET(on_ctl, do_clears);
	LET(on_ctl_done, say_away);
	assert_int_equal(pc_clear_cluster(ch, NULL, PATIENCE_MS, on_cleared, NULL), -EHOSTUNREACH);
	assert_int_equal(failed, 0);
	assert_non_null(strstr(pc_error(), "away"));
	LET(on_ctl_done, NULL);
	map_set(2, true);
	LET(on_ctl, do_clears_and_grow);
	assert_int_equal(pc_clear_cluster(ch, NULL, PATIENCE_MS, on_cleared, NULL), -EHOSTUNREACH);
	assert_int_equal(failed, 0);
}

/* All hosts are told of, also when the engine of this host ends meanwhile. */
static void a_lost_engine_is_told_for_each_host(void **state)
{
	(void)state;
	map_set(OTHERS, true);
	LET(on_ctl, hold_clears);
	assert_int_equal(pc_clear_cluster(ch, NULL, PATIENCE_MS, on_cleared, &fake), -EHOSTUNREACH);
	assert_int_equal(told, OTHERS);
	assert_int_equal(failed, OTHERS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(hosts_that_were_not_asked_are_not_called_silent),
		RIG_TEST(a_host_that_is_not_on_its_own_map_is_cleared),
		RIG_TEST(a_host_that_is_on_the_map_is_asked_once),
		RIG_TEST(a_host_that_is_away_or_comes_back_meanwhile_is_no_empty_one),
		RIG_TEST(a_lost_engine_is_told_for_each_host),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
