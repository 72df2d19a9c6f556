/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a scenario: its figures, and the names of the checkers that fired. One thread. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/control/directory/directory_state.h"
#include "tests/sim/run.h"
#include "tests/sim/truth.h"

#define STATE_BYTES_MAX (1u << 20)

struct report report = {.gone_ms = -1, .agreed_ms = -1, .kbits = -1, .moved = -1, .moved_most = -1};

void check(bool good, const char *name)
{
	for (unsigned i = 0; i < report.fails; i++)
		if (strcmp(report.failed[i], name) == 0)
			return;
	if (!good && report.fails < sizeof(report.failed) / sizeof(report.failed[0]))
		report.failed[report.fails++] = name;
}

static void check_bounds(void)
{
	/* the disk tier allocates its buffers when it opens */
	check(report.state_bytes <= STATE_BYTES_MAX * (run_has_disks() ? 2 : 1),
		"state above 1 MiB a node");
	for (unsigned i = 0; i < world.nodes; i++) {
		const struct node *n = &world.node[i];

		check(n->set_worst_ns <= SIM_S + 100 * SIM_MS, "set past its deadline");
		check(n->queue_worst <= RPC_OUT_BYTES_MAX, "queue bounded");
		if (n->running && n->control.directory)
			check(n->control.directory->background <= BACKGROUND_MAX, "claims bounded");
	}
}

static void print(const char *scenario, bool json)
{
	printf(json ? "{\"scenario\": \"%s\", \"nodes\": %u, \"seed\": %llu, \"trace\": \"%016llx\", "
		      "\"events\": %llu, \"virtual_s\": %.1f, \"state_bytes\": %llu, "
		      "\"timeouts_percent\": %.1f, \"joined_ms\": %.0f, \"gone_ms\": %.0f, \"agreed_ms\": %.0f, \"kbits\": %.0f, \"moved\": %.1f, \"moved_most\": %.1f, \"cpu_s\": %.1f, \"false_absent\": %llu, "
		      "\"true_absent\": %llu, \"unserved\": %llu, \"false_removals\": %llu, \"misses_percent\": ["
		    : "%s: %u nodes, seed %llu, trace %016llx, %llu events, %.1f s of virtual time\n"
		      "state %llu bytes a node; sets timed out %.1f%%; joined after %.0f ms; gone after %.0f ms; "
		      "agreed after %.0f ms; %.0f kbit/s a node; entries moved %.1f%%, at most %.1f%%; %.1f s of processor; "
		      "false absences %llu, true %llu, holder not served %llu; false removals %llu\nworst misses per reader, percent:",
		scenario, world.nodes, (unsigned long long)world.seed,
		(unsigned long long)world.trace, (unsigned long long)world.events,
		(double)world.now_ns / 1e9 - 1000, (unsigned long long)report.state_bytes,
		report.timeouts, report.joined_ms, report.gone_ms, report.agreed_ms, report.kbits,
		report.moved, report.moved_most, (double)clock() / CLOCKS_PER_SEC,
		(unsigned long long)report.false_absent, (unsigned long long)report.true_absent,
		(unsigned long long)report.unserved, (unsigned long long)report.died);
	for (unsigned i = 0, shown = 0; i < world.nodes; i++)
		if (node_reads(i))
			printf(json ? "%s%.1f" : "%s %.1f", json && shown++ ? ", " : "",
				report.misses[i]);
	printf(json ? "], " : "\n");
	truth_print(json);
	printf(json ? "\"failed\": [" : "");
	for (unsigned i = 0; i < report.fails; i++)
		printf(json ? "%s\"%s\"" : "%sfailed: %s\n", json && i ? ", " : "",
			report.failed[i]);
	printf(json ? "]}\n" : "");
}

int report_end(const char *scenario, bool json)
{
	check_bounds();
	print(scenario, json);
	return report.fails ? 1 : 0;
}
