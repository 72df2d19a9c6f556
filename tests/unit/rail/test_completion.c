/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The status that the probe `completion` tells (engine/abi/probe.h): run.c fires a probe that the
 * test records.
 */
#include "engine/abi/probe.h"

static int probed; /* status of the last completion */
#undef PROBE_COMPLETION
#define PROBE_COMPLETION(channel, cookie, rail, status, length) (probed = (int)(status))
#include "engine/rail/run.c"

#include "tests/unit/rail/lease_world.h"

static void a_stale_lone_page_is_told_as_stale(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 8192, 77);
	for (unsigned stale = 0; stale < 2; stale++) {
		page_get(w, client, 1, 8, 8192, 77, 0);
		w->heads[8].generation += stale;
		world_run(w);
		client_expect(client, 1, stale ? OP_STALE : OP_HIT);
		assert_int_equal(probed, stale ? OP_STALE : OP_HIT);
	}
}

/* The masks of the answer have what became of each page. */
static void a_run_with_a_stale_page_is_told_as_read(void **state)
{
	struct world *w = *state;

	submit_pages(w, 1, 64, 16, 2, 4096);
	w->heads[64].generation++;
	world_run(w);
	run_expect(client, 1, 2, 1, OP_HIT);
	assert_int_equal(probed, OP_HIT);
}

static void a_lone_page_without_its_peer_is_told_with_its_error(void **state)
{
	struct world *w = *state;

	page_put(w, 8, 8192, 77);
	page_get(w, client, 1, 8, 8192, 77, 0);
	world_settle(w);
	nic_pull(w);
	nic_complete(w, 0, DV_SYNDROME_REMOTE_ACCESS);
	world_run(w);
	client_expect(client, 1, OP_NIC_ERROR);
	assert_int_equal(probed, OP_NIC_ERROR);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_stale_lone_page_is_told_as_stale),
		TEST(a_run_with_a_stale_page_is_told_as_read),
		TEST(a_lone_page_without_its_peer_is_told_with_its_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
