/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs one scenario of the simulator and its checkers: see --help. Exit status: 0 every checker was
 * silent, 1 one was not, 2 bad arguments. One thread.
 */
#include <getopt.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/directory/directory_state.h"
#include "tests/sim/faults.h"
#include "tests/sim/nic.h"
#include "tests/sim/run.h"
#include "tests/sim/world.h"

#define ENTRIES 8192u /* directory entries that fill half of a shard */
#define CHOSEN_MAX 64u
#define NODES_LEAST 4u /* of the scenarios that are not in faults.c */

unsigned next_page, replicas = 2;
uint64_t entries = ENTRIES;
uint64_t *page_holder;
static bool progress, json;
static bool started; /* the nodes have started, with PAGES pages each */

/* ---- the run --------------------------------------------------------------------------------- */

/*
 * Bytes of all maps, which have a limit of their own: the words of all slots, their times, and the
 * views, which nodes share.
 */
static uint64_t map_bytes(void)
{
	uint64_t bytes = views_bytes();

	for (unsigned i = 0; i < world.nodes; i++)
		if (node_reads(i))
			bytes += MAP_SLOTS * (sizeof(uint64_t) + 2 * sizeof(uint8_t));
	return bytes;
}

/*
 * Memory of this process, its own and what a keeper keeps, without that of files: its code counts
 * for no node.
 */
static uint64_t resident_bytes(void)
{
	unsigned long long part, bytes = 0;
	FILE *file = fopen("/proc/self/status", "r");
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "RssAnon: %llu kB", &part) == 1 ||
			sscanf(line, "RssShmem: %llu kB", &part) == 1)
			bytes += part << 10;
	if (file)
		fclose(file);
	return bytes;
}

void progress_show(void)
{
	static time_t last;
	time_t now = time(NULL);
	uint64_t fewest = UINT64_MAX, sum = 0;

	if (!progress || now < last + 10)
		return;
	last = now;
	for (unsigned i = 0; i < world.nodes; i++)
		if (world.node[i].running) {
			uint64_t alive = world.node[i].control.members->alive;

			fewest = alive < fewest ? alive : fewest;
			sum += alive;
		}
	fprintf(stderr, "%.2f s, %llu events, members on a map: fewest %llu, mean %llu\n",
		(double)world.now_ns / 1e9 - 1000.0, (unsigned long long)world.events,
		(unsigned long long)fewest, (unsigned long long)(sum / world.nodes));
}

void pass(uint64_t ns)
{
	uint64_t until_ns = world.now_ns + ns;

	while (world.now_ns < until_ns) {
		uint64_t step_ns =
			until_ns - world.now_ns < SIM_S / 10 ? until_ns - world.now_ns : SIM_S / 10;

		world_run(world.now_ns + step_ns);
		progress_show();
	}
}

bool pass_until(bool (*condition)(void), uint64_t limit_ns)
{
	uint64_t until_ns = world.now_ns + limit_ns;

	while (!condition() && world.now_ns < until_ns) {
		world_run(world.now_ns + 10 * SIM_MS);
		progress_show();
	}
	return condition();
}

void set_one(unsigned node)
{
	page_holder = realloc(page_holder, (next_page + 1) * sizeof(*page_holder));
	if (!page_holder)
		abort();
	page_holder[next_page] = node;
	node_set(node, next_page++);
}

void traffic(uint64_t ns)
{
	for (uint64_t t = 0; t < ns; t += 20 * SIM_MS) {
		for (unsigned i = 0; i < world.nodes; i++)
			if (world.node[i].running && !world.node[i].stopped &&
				!world.node[i].gray && !world.node[i].small_mtu)
				set_one(i);
		world_run(world.now_ns + 20 * SIM_MS);
	}
}

void start(uint64_t pages)
{
	uint64_t before = resident_bytes(), from_ns = world.now_ns;

	for (unsigned i = 0; i < world.nodes; i++)
		node_open(i, replicas, entries);
	check(pass_until(nodes_agree, world.nodes > 1024 ? JOIN_NS : AGREE_NS), "join");
	report.joined_ms = (double)(world.now_ns - from_ns) / 1e6;
	malloc_trim(0);
	report.state_bytes = (resident_bytes() - before - map_bytes()) / world.nodes;
	for (unsigned k = 0; k < pages; k++) {
		for (unsigned i = 0; i < world.nodes; i++)
			set_one(i);
		world_run(world.now_ns + SIM_MS);
	}
	pass(5 * SIM_S);
}

void cut(unsigned a, unsigned b, bool lost)
{
	world_cut(a, b, lost);
	world_cut(b, a, lost);
}

void counts_clear(void)
{
	for (unsigned i = 0; i < world.nodes; i++)
		world.node[i].sets = world.node[i].hits = world.node[i].timeouts =
			world.node[i].others = 0;
}

double timeouts_share(void)
{
	uint64_t sets = 0, timeouts = 0;

	for (unsigned i = 0; i < world.nodes; i++) {
		sets += world.node[i].sets;
		timeouts += world.node[i].timeouts;
	}
	return sets ? 100.0 * (double)timeouts / (double)sets : 0;
}

unsigned victim(void)
{
	return world.nodes - 1;
}

void nobody_died(void)
{
	for (unsigned i = 0; i < world.nodes; i++)
		report.died += world.node[i].control.counter[COUNTER_members_died];
	check(report.died == 0, "false removal");
}

/* ---- scenarios ------------------------------------------------------------------------------- */

static const struct scenario scenarios[] = {
	{"join", "all nodes start at once", join, 1},
	{"onelink", "one link of node 0 is cut for 20 s", one_link, PAGES},
	{"gray", "the last node sends heartbeats and serves nothing for a while", gray, PAGES},
	{"mtu", "large packets from and to the last node are lost for a while", small_mtu, PAGES},
	{"late", "the last node's process does not run for 1 s, again and again", late, PAGES},
	{"stalls", "one link is cut, and processes do not run for 1 s, in turn", stalls, PAGES},
	{"power", "the last node's host loses power", power, PAGES},
	{"kill", "the last node's process is killed, then started again", killed, PAGES},
	{"seed", "the last node is started again as a seed only, twice", seed_only, PAGES},
	{"crash", "the last node dies at a random message, then starts again", crash, PAGES},
	{"flap", "the last node is killed or started every 40 ms, for 13 s", flap, 0},
	{"partition", "the two halves are cut apart for 20 s", partition, PAGES},
	{"oneway", "packets from node 0 to another one are lost for 20 s", one_way, PAGES},
	{"stop", "the last node's process is stopped until it is removed", stopped, PAGES},
	{"loss", "one packet in a hundred is lost for 60 s", lossy, PAGES},
	{"clock", "clocks jump by an hour and run at different rates", clocks, PAGES},
	{"repair", "the last node acknowledges publishes for 2 s and loses them", repair, PAGES},
	{"refill", "of two owners that come back, one stops before it has its entries", refill, 0},
	{"turns", "the last two nodes die one after the other", turns, 0},
	{"flapper", "the last node is stopped and resumed, again and again", flapper, PAGES},
	{"chaos", "faults of all kinds begin and end at random", chaos, 0},
	{"rack", "one node in 25 loses power at once, then starts again", rack, 0},
	{"rolling", "one node after another is started again", rolling, 0},
	{"churn", "nodes are killed and started at random for 30 s", churn, 0},
	{"cross", "36 nodes and more become 26, then as many as before", cross, 0},
	{"slow", "packets to the last node take 50 ms", slow, PAGES},
};
#define SCENARIOS (sizeof(scenarios) / sizeof(scenarios[0]))

static const char *const mutants[MUTANTS] = {"none", "first-absent", "lost-ack", "deaf-death",
	"own-word", "beat-refute", "no-latch", "no-pad", "no-compare", "suspect-fact",
	"sweep-at-once", "no-refute", "reshuffle", "walk-restart", "global-cap", "any-ref",
	"fresh-trusted", "no-verify", "half-forget", "lost-remove", "disk-remove", "no-promise",
	"no-room", "no-show", "lost-return", "no-quarantine", "no-tombstone", "unread",
	"disk-untold", "no-recovery", "error-is-ok", "lost-write", "qp-reused", "unproven",
	"kept-conn", "deaf-port", "lost-qp", "kept-qps", "kept-stuck", "no-stall", "no-epoch",
	"open-door", "deaf-epoch", "lost-epochs", "no-sweep", "late-copy"};

static int usage(int status)
{
	fprintf(status ? stderr : stdout,
		"usage: run [--nodes N] [--seed S] [--replicas R] [--scenario NAME,..] [--mutant NAME]\n"
		"           [--json] [--progress] [--log]\n"
		"Simulates N engines (4..%u, default 4; in the scenarios of faults 2..%u) in one process. A seed gives one run.\n"
		"Scenarios:\n",
		SIM_NODES_MAX, NIC_NODES_MAX);
	for (unsigned i = 0; i < SCENARIOS; i++)
		fprintf(status ? stderr : stdout, "  %-10s %s\n", scenarios[i].name,
			scenarios[i].what);
	for (unsigned i = 0; faults[i].name; i++)
		fprintf(status ? stderr : stdout, "  %-10s %s\n", faults[i].name, faults[i].what);
	fprintf(status ? stderr : stdout, "Mutants:");
	for (unsigned i = 1; i < MUTANTS; i++)
		fprintf(status ? stderr : stdout, " %s", mutants[i]);
	fprintf(status ? stderr : stdout, "\n");
	return status;
}

/* ---- runs of scenarios ----------------------------------------------------------------------- */

static int run_one(const struct scenario *scenario)
{
	if (scenario->pages && scenario->pages != PAGES_FAULT && !started)
		start(scenario->pages);
	if (scenario->pages == PAGES_FAULT)
		fault_run(scenario->run);
	else
		scenario->run();
	return report_end(scenario->name, json);
}

static void close_all(void)
{
	world_close();
	free(page_holder);
	look_all_close();
}

/* In a copy of this process. */
static int run_copy(const struct scenario *scenario)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		status = run_one(scenario);
		close_all();
		exit(status);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0) {
		perror("run: no copy of the process");
		return 2;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

static int worse(int a, int b)
{
	return a > b ? a : b;
}

/* Those that begin alike share the start, which takes as long as a short scenario. */
static int run_several(const struct scenario *chosen, unsigned count)
{
	int status = 0;
	bool alike = false;

	for (unsigned i = 0; i < count; i++)
		if (chosen[i].pages != PAGES)
			status = worse(status, run_copy(&chosen[i]));
		else
			alike = true;
	if (!alike)
		return status;
	start(PAGES);
	started = true;
	for (unsigned i = 0; i < count; i++)
		if (chosen[i].pages == PAGES)
			status = worse(status, run_copy(&chosen[i]));
	return status;
}

/* The scenario with this name. False: there is none. */
static bool scenario_find(const char *name, struct scenario *ret)
{
	for (unsigned i = 0; i < SCENARIOS; i++)
		if (strcmp(scenarios[i].name, name) == 0) {
			*ret = scenarios[i];
			return true;
		}
	for (unsigned i = 0; faults[i].name; i++)
		if (strcmp(faults[i].name, name) == 0) {
			*ret = faults[i];
			return true;
		}
	return false;
}

/* Reads names, separated by commas. Returns their number; 0: a name is not known. */
static unsigned choose(char *names, unsigned nodes, struct scenario *ret_chosen)
{
	unsigned count = 0;

	for (char *name = strtok(names, ","); name; name = strtok(NULL, ",")) {
		if (count == CHOSEN_MAX || !scenario_find(name, &ret_chosen[count]))
			return 0;
		if (ret_chosen[count].pages == PAGES_FAULT ? nodes > NIC_NODES_MAX
							   : nodes < NODES_LEAST)
			return 0;
		count++;
	}
	return count;
}

static int run(unsigned nodes, uint64_t seed, enum mutant mutant, char *names)
{
	struct scenario chosen[CHOSEN_MAX];
	unsigned count = choose(names, nodes, chosen);
	int status;

	if (!count)
		return usage(2);
	world_open(nodes, seed);
	world.mutant = mutant;
	status = count == 1 ? run_one(&chosen[0]) : run_several(chosen, count);
	close_all();
	return status;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"nodes", 1, 0, 'n'}, {"seed", 1, 0, 's'},
		{"scenario", 1, 0, 'c'}, {"mutant", 1, 0, 'm'}, {"replicas", 1, 0, 'r'},
		{"json", 0, 0, 'j'}, {"progress", 0, 0, 'p'}, {"log", 0, 0, 'l'},
		{"help", 0, 0, 'h'}, {0}};
	unsigned nodes = 4, mutant = MUTANT_NONE;
	char onelink[] = "onelink", *names = onelink;
	uint64_t seed = 1;
	int option;

	/* Zeroed blocks take memory as they are used, as in an engine that has just started. */
	mallopt(M_MMAP_THRESHOLD, 128 << 10);
	log_level_set(LOG_ERROR);
	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (option) {
		case 'n': nodes = (unsigned)strtoul(optarg, NULL, 10); break;
		case 's': seed = strtoull(optarg, NULL, 10); break;
		case 'r': replicas = (unsigned)strtoul(optarg, NULL, 10); break;
		case 'c': names = optarg; break;
		case 'm':
			for (mutant = 0; mutant < MUTANTS; mutant++)
				if (strcmp(mutants[mutant], optarg) == 0)
					break;
			break;
		case 'j': json = true; break;
		case 'p': progress = true; break;
		case 'l': log_level_set(LOG_INFO); break;
		case 'h': return usage(0);
		default: return usage(2);
		}
	}
	if (nodes < 2 || nodes > SIM_NODES_MAX || replicas < 1 || replicas > REPLICAS_MAX ||
		mutant >= MUTANTS)
		return usage(2);
	return run(nodes, seed, mutant, names);
}
