/* SPDX-License-Identifier: Apache-2.0 */
/* Tests numa/plan.c: plans for synthetic topologies and for a saved one with eight NICs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "config/log.h"
#include "numa/plan.h"
#include "tests/unit/numa/plan_world.h"

#define SAVED SOURCE_DIR "/tests/unit/numa/eight-nics.xml"
#define EIGHT "mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7"
#define TWO_CORES "synthetic:pack:1 [numa] core:2 pu:1"

static void assert_noted(const char *part)
{
	if (!strstr(p.note, part))
		fail_msg("\"%s\" does not say \"%s\"", p.note, part);
}

static void rails_of_a_full_node_get_cores_of_another_and_a_note(void **state)
{
	machine(SAVED);
	set("rail.devices=mlx5_4,mlx5_5");
	for (unsigned i = 0; i < t->cpus; i++) {
		if (t->cpu[i].node == 1 && t->cpu[i].cpu != 12)
			t->cpu[i].allowed = false;
	}
	assert_int_equal(make(), 0);
	assert_int_equal(p.rail[0].core, 12);
	assert_int_equal(topology_cpu(t, p.rail[1].core)->node, 0);
	assert_noted("rail mlx5_5 of node 1 gets core");
}

static void physical_cores_are_shared_only_when_none_is_free(void **state)
{
	machine("synthetic:pack:1 [numa] core:3 pu:2");
	set("rail.devices=soft,soft");
	assert_int_equal(make(), 0);
	assert_int_equal(p.rail[0].core, 2);
	assert_int_equal(p.rail[1].core, 4);
	assert_int_equal(p.control_core, 0);
	assert_string_equal(p.note, "");
	set("rail.devices=soft,soft,soft,soft");
	assert_int_equal(make(), 0);
	assert_int_equal(p.poll_cores, 4);
	assert_noted("shares its physical core");
}

static void with_two_cores_nothing_is_pinned(void **state)
{
	machine(TWO_CORES);
	assert_int_equal(make(), 0);
	assert_int_equal(p.rail[0].core, -1);
	assert_int_equal(p.control_core, -1);
	assert_false(p.rail[0].alone || p.rail[0].busy);
	assert_int_equal(p.rail[0].numa_node, -1);
	assert_noted("2 usable cores for 1 rails");
}

/* A seed only: no core is taken, and its memory belongs to no node. */
static void an_engine_without_rails_pins_nothing(void **state)
{
	machine("synthetic:pack:1 [numa] core:1 pu:1");
	set("rail.devices=none");
	set("rail.polling=busy");
	assert_int_equal(make(), 0);
	assert_string_equal(p.note, "");
	assert_int_equal(p.rails, 0);
	assert_int_equal(p.poll_cores, 0);
	assert_int_equal(p.control_core, -1);
	assert_int_equal(p.rail[0].numa_node, -1);
	set("rail.devices=none,soft");
	assert_int_equal(make(), -EINVAL);
}

static void busy_polling_on_a_named_shared_core_is_refused(void **state)
{
	machine(FOUR_CORES);
	set("rail.cores=2");
	set("control.core=2");
	assert_int_equal(make(), 0);
	assert_int_equal(p.rail[0].core, 2);
	assert_false(p.rail[0].alone || p.rail[0].busy);
	assert_noted("shares core 2 with the control plane");
	set("rail.polling=busy");
	assert_int_equal(make(), -EINVAL);
}

static void unpinned_rails_share_one_poll_core_by_default(void **state)
{
	machine(TWO_CORES);
	set("rail.devices=soft:0,soft:1,soft:2");
	assert_int_equal(make(), 0);
	assert_int_equal(p.poll_cores, 1);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(p.rail[i].poll_core, 0);
		assert_int_equal(p.rail[i].core, -1);
	}
	set("rail.poll_cores=2");
	assert_int_equal(make(), 0);
	assert_int_equal(p.poll_cores, 2);
	assert_int_equal(p.rail[2].poll_core, 1);
	set("rail.poll_cores=15");
	assert_int_equal(make(), 0);
	assert_int_equal(p.poll_cores, 3);
}

static void rails_with_the_same_named_core_share_a_poll_core(void **state)
{
	machine(FOUR_CORES);
	set("rail.devices=soft:0,soft:1,soft:2");
	set("rail.cores=2,3,2");
	set("rail.polling=busy");
	assert_int_equal(make(), 0);
	assert_int_equal(p.poll_cores, 2);
	assert_int_equal(p.rail[0].poll_core, 0);
	assert_int_equal(p.rail[1].poll_core, 1);
	assert_int_equal(p.rail[2].poll_core, 0);
	assert_int_equal(p.rail[2].core, 2);
	assert_true(p.rail[0].busy && p.rail[1].busy && p.rail[2].busy);
	set("rail.poll_cores=2");
	assert_int_equal(make(), 0);
	set("rail.poll_cores=1");
	assert_int_equal(make(), -EINVAL);
	assert_logged("rail.cores: 2 different cores, but rail.poll_cores = 1");
}

static void named_cores_are_used(void **state)
{
	machine(SAVED);
	set("rail.devices=mlx5_0,mlx5_1");
	set("rail.cores= 5 , 3");
	set("control.core=1");
	assert_int_equal(make(), 0);
	assert_int_equal(p.rail[0].core, 5);
	assert_int_equal(p.rail[1].core, 3);
	assert_int_equal(p.control_core, 1);
	set("control.core=auto");
	set("rail.cores=0,1");
	assert_int_equal(make(), 0);
	assert_int_equal(p.control_core, 2);
	set("rail.cores=auto");
	set("control.core=1");
	assert_int_equal(make(), 0);
	assert_int_equal(p.rail[0].core, 2);
	assert_int_equal(p.rail[1].core, 3);
	set("rail.cores=3,23");
	assert_int_equal(make(), 0);
	assert_noted("core 3 of rail mlx5_0 shares its physical core");
}

static void unusable_named_cores_are_refused(void **state)
{
	static const struct {
		const char *cores;
		int rc;
		const char *says;
	} bad[] = {
		{"4", -EINVAL, "there is no core 4 on this machine; name one up to 3, or auto"},
		{"-1", -EINVAL, "there is no core -1"},
		{"1x", -EINVAL, "\"1x\" is not a core"},
		{"1,", -EINVAL, "\"\" is not a core"},
		{"4294967297", -EINVAL, "there is no core 4294967297"},
		{"1,0", -EINVAL, "2 cores for 1 rails"},
		{"1,1", -EINVAL, "2 cores for 1 rails"},
		{"2", -EINVAL, "core 2 is outside the affinity mask"},
		{"3", -EBUSY, "core 3 is claimed by process 4711"},
	};

	machine(FOUR_CORES);
	t->cpu[2].allowed = false;
	t->cpu[3].holder = 4711;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(s.rail_cores, sizeof(s.rail_cores), "%s", bad[i].cores);
		assert_int_equal(make(), bad[i].rc);
		assert_logged(bad[i].says);
	}
	set("rail.cores=1");
	set("control.core=3");
	assert_int_equal(make(), -EBUSY);
	assert_logged("control.core: core 3 is claimed");
	set("control.core=busy");
	assert_int_equal(make(), -EINVAL);
}

static void a_nic_that_has_vanished_is_a_rail_that_is_absent(void **state)
{
	machine(SAVED);
	set("rail.devices=mlx5_8,mlx5_0");
	assert_int_equal(make(), 0);
	assert_int_equal(p.rails, 2);
	assert_true(p.rail[0].absent);
	assert_false(p.rail[1].absent);
	assert_int_equal(p.rail[0].numa_node, -1); /* it takes a stored pool of any node */
	assert_non_null(strstr(p.note, "1 of 2 NICs are not on this machine, the first is mlx5_8"));
	set("rail.require_all=yes");
	assert_int_equal(make(), -EINVAL);
	assert_logged("no NIC mlx5_8 on this machine");
	set("rail.require_all=no");
}

static void devices_must_exist_and_be_named_once(void **state)
{
	machine(SAVED);
	set("rail.devices=mlx5_9");
	assert_int_equal(make(), -EINVAL);
	assert_logged("no NIC mlx5_9 on this machine; there are: mlx5_0 mlx5_1");
	set("rail.devices=ib0");
	assert_int_equal(make(), -EINVAL);
	set("rail.devices=mlx5_0,mlx5_1,mlx5_0");
	assert_int_equal(make(), -EINVAL);
	assert_logged("mlx5_0 is named twice");
	set("rail.devices=soft:0,soft:0");
	assert_int_equal(make(), -EINVAL);
	set("rail.devices=mlx5_0,,mlx5_1");
	assert_int_equal(make(), -EINVAL);
	assert_logged("rail.devices = mlx5_0,,mlx5_1: an empty name");
	set("rail.devices=s,s,s");
	assert_int_equal(make(), -EINVAL);
	set("rail.devices=soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft");
	assert_int_equal(make(), 0);
	assert_int_equal(p.rails, 15);
	strcat(s.rail_devices, ",soft");
	assert_int_equal(make(), -EINVAL);
	assert_logged("more than 15");
}

static void a_note_that_is_too_long_is_truncated(void **state)
{
	machine("synthetic:pack:1 [numa] core:17 pu:2");
	set("rail.devices=soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft,soft");
	set("rail.cores=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14");
	assert_int_equal(make(), 0);
	assert_int_equal(strlen(p.note), sizeof(p.note) - 1);
}

/* On the machine of the test, whose cores are named one after the other. */
static void helper_threads_avoid_the_named_cores_but_the_last_one(void **state)
{
	cpu_set_t all, left;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	p = (struct plan){.control_core = -1};
	plan_cores_beside(&p, &left);
	assert_true(CPU_EQUAL(&left, &all));
	for (int core = 0; core < CPU_SETSIZE && p.rails < RAILS_MAX; core++) {
		if (!CPU_ISSET((size_t)core, &all))
			continue;
		p.rail[p.rails++].core = core;
		plan_cores_beside(&p, &left);
		assert_int_equal(CPU_COUNT(&left),
			CPU_COUNT(&all) > (int)p.rails ? CPU_COUNT(&all) - (int)p.rails : 1);
		assert_int_equal(CPU_ISSET((size_t)core, &left), CPU_COUNT(&all) == (int)p.rails);
		p.control_core = p.rail[--p.rails].core; /* the control plane's, too */
		plan_cores_beside(&p, &left);
		assert_int_equal(
			CPU_ISSET((size_t)core, &left), CPU_COUNT(&all) == (int)p.rails + 1);
		p.control_core = -1;
		p.rails++;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
		TEST(rails_of_a_full_node_get_cores_of_another_and_a_note),
		TEST(physical_cores_are_shared_only_when_none_is_free),
		TEST(with_two_cores_nothing_is_pinned),
		TEST(an_engine_without_rails_pins_nothing),
		TEST(busy_polling_on_a_named_shared_core_is_refused),
		TEST(unpinned_rails_share_one_poll_core_by_default),
		TEST(rails_with_the_same_named_core_share_a_poll_core),
		TEST(named_cores_are_used),
		TEST(unusable_named_cores_are_refused),
		TEST(a_nic_that_has_vanished_is_a_rail_that_is_absent),
		TEST(devices_must_exist_and_be_named_once),
		TEST(a_note_that_is_too_long_is_truncated),
		TEST(helper_threads_avoid_the_named_cores_but_the_last_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
