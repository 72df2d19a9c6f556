/* SPDX-License-Identifier: Apache-2.0 */
/* Tests numa/topology.c: synthetic topologies, a saved one, and the one of this machine. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "numa/pin.h"
#include "numa/topology.h"
#include "tests/unit/numa/folder.h"
#include "tests/unit/numa/machine.h"

#define SAVED SOURCE_DIR "/tests/unit/numa/eight-nics.xml"

static char text[4096];

static int start(void **state)
{
	log_test_capture(text, sizeof(text));
	return 0;
}

static void a_synthetic_topology_has_its_cores_and_nodes(void **state)
{
	struct topology *t;

	assert_int_equal(machine_open("synthetic:pack:2 [numa] core:4 pu:2", &t), 0);
	assert_int_equal(t->cpus, 16);
	assert_int_equal(t->nodes, 2);
	for (unsigned i = 0; i < t->cpus; i++) {
		assert_int_equal(t->cpu[i].cpu, i);
		assert_int_equal(t->cpu[i].physical, i / 2);
		assert_int_equal(t->cpu[i].node, i / 8);
		assert_true(t->cpu[i].allowed);
		assert_int_equal(t->cpu[i].holder, 0);
	}
	assert_int_equal(t->devices, 0);
	assert_int_equal(topology_distance(t, 0, 0), 10);
	assert_true(topology_distance(t, 0, 1) > topology_distance(t, 1, 1));
	assert_int_equal(topology_distance(t, -1, 1), 10);
	assert_null(topology_cpu(t, 16));
	assert_null(topology_cpu(t, -1));
	topology_close(t);
}

static void a_saved_topology_has_the_node_of_each_nic(void **state)
{
	struct topology *t;

	assert_int_equal(machine_open(SAVED, &t), 0);
	assert_int_equal(t->cpus, 40);
	assert_int_equal(t->nodes, 2);
	assert_int_equal(t->node[1].bytes, 512ull << 30);
	for (int i = 0; i < 8; i++) {
		char name[16];

		snprintf(name, sizeof(name), "mlx5_%d", i);
		assert_non_null(topology_device(t, name));
		assert_int_equal(topology_device(t, name)->node, i / 4);
	}
	assert_int_equal(t->devices, 8);
	assert_null(topology_device(t, "ib5")); /* a network interface */
	assert_null(topology_device(t, "mlx5_8"));
	topology_close(t);
}

static void hardware_threads_of_one_core_share_a_physical_number(void **state)
{
	struct topology *t;

	assert_int_equal(machine_open(SAVED, &t), 0);
	for (int cpu = 0; cpu < 20; cpu++) {
		assert_int_equal(
			topology_cpu(t, cpu)->physical, topology_cpu(t, cpu + 20)->physical);
		assert_int_equal(topology_cpu(t, cpu)->node, cpu / 10);
		assert_int_equal(topology_cpu(t, cpu + 20)->node, cpu / 10);
	}
	topology_close(t);
}

static void allowed_cores_follow_the_affinity_mask(void **state)
{
	cpu_set_t all, one;
	struct topology *t;
	int first = 0;

	assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
	while (!CPU_ISSET(first, &all))
		first++;
	assert_int_equal(topology_open(&t), 0);
	for (unsigned i = 0; i < t->cpus; i++)
		assert_int_equal(t->cpu[i].allowed, CPU_ISSET(t->cpu[i].cpu, &all) != 0);
	topology_close(t);
	CPU_ZERO(&one);
	CPU_SET(first, &one);
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_int_equal(topology_open(&t), 0);
	for (unsigned i = 0; i < t->cpus; i++)
		assert_int_equal(t->cpu[i].allowed, t->cpu[i].cpu == first);
	topology_close(t);
	assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

static void claimed_cores_have_their_holder(void **state)
{
	struct topology *t;
	int core = sched_getcpu(), fd, holder;

	assert_int_equal(pin_claim(core, &fd, &holder), 0);
	assert_int_equal(topology_open(&t), 0);
	for (unsigned i = 0; i < t->cpus; i++)
		assert_int_equal(t->cpu[i].holder, t->cpu[i].cpu == core ? getpid() : 0);
	topology_close(t);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_synthetic_topology_has_its_cores_and_nodes, start),
		cmocka_unit_test_setup(a_saved_topology_has_the_node_of_each_nic, start),
		cmocka_unit_test_setup(hardware_threads_of_one_core_share_a_physical_number, start),
		cmocka_unit_test_setup(allowed_cores_follow_the_affinity_mask, start),
		cmocka_unit_test_setup(claimed_cores_have_their_holder, start),
	};

	return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
