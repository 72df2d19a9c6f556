/* SPDX-License-Identifier: Apache-2.0 */
/* What the scenarios of run.c and of other files share. One thread. */
#ifndef TESTS_SIM_RUN_H
#define TESTS_SIM_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/world.h"

#define AGREE_NS (30 * SIM_S)
#define JOIN_NS (60 * SIM_S) /* more than 1,024 nodes start at once */
#define PAGES 500u           /* pages that each node sets before the scenario begins */

struct scenario {
	const char *name, *what;
	void (*run)(void);
	/* that each node sets before `run` is called; 0: it starts the nodes; or PAGES_FAULT */
	uint64_t pages;
};

#define PAGES_FAULT UINT64_MAX /* fault_run() starts the nodes */

struct report {
	const char *failed[16]; /* names of the checkers that fired */
	unsigned fails;
	double misses[SIM_NODES_MAX]; /* per reader: worst share of one holder's pages, percent */
	double timeouts;              /* share of sets, percent */
	double joined_ms;             /* from the first start until all maps are equal */
	double agreed_ms;  /* from the last event until all maps are equal; -1: not measured */
	double kbits;      /* control traffic sent by a node per second without sets; -1 */
	double moved;      /* directory entries stored anew after the event, percent of all; -1 */
	double moved_most; /* the same, at most */
	double gone_ms;    /* from the fault to the last node's map; -1: not measured */
	uint64_t false_absent, foreign, true_absent, unserved, died, state_bytes;
};

extern struct report report;
extern unsigned next_page, replicas;
extern uint64_t entries;      /* directory entries that fill half of a shard */
extern uint64_t *page_holder; /* of each page below next_page: the node that set it */

/* The checker `name` fires unless `good`. */
void check(bool good, const char *name);
/* Runs the checkers of all scenarios and prints the report. Returns 1 if a checker fired, or 0. */
int report_end(const char *scenario, bool json);
/* Lets this virtual time pass. */
void pass(uint64_t ns);
/* The same until the condition holds; false: it did not within `limit_ns`. */
bool pass_until(bool (*condition)(void), uint64_t limit_ns);
/* Stores a new page on the node. */
void set_one(unsigned node);
/* Opens all nodes; each sets `pages` pages. */
void start(uint64_t pages);
/* The node to which the scenario happens: the last one. */
unsigned victim(void);

/* Sets of all nodes that can, one per node in each 20 ms. */
void traffic(uint64_t ns);
/* Running nodes, at most 128, look up every page; fills report.misses. look_all.c */
void look_all(void);
void look_all_close(void);
/* With --progress, a line about every 10 s. */
void progress_show(void);
/* Results of sets: counted from now on; the share of them that timed out, percent. */
void counts_clear(void);
double timeouts_share(void);
/* Fills report.kbits in 20 s without sets. */
void measure_traffic(void);
/* The checker: no node has removed another one. */
void nobody_died(void);

/* Entries that move are counted from now on. moved.c */
void moved_begin(void);
/* Node i, which runs, is to end now: this is an event, and its return may be another one. */
void moved_leaves(unsigned i, unsigned events);
/* Fills report.moved; the checker: no more entries have moved than the events explain. */
void moved_end(void);

/* Lets the time pass in which each holder compares with each owner twice. repair.c */
void compare_all(void);
/* Number of entries that an owner of a page does not have. repair.c */
uint64_t owners_lack(void);
/* Number of owners that do not have the entry of this page of this node. repair.c */
unsigned page_lacks(unsigned holder, const struct page_key *key);
/* The same of all pages, at one owner. repair.c */
uint64_t owner_lacks(unsigned node);

/* Packets between a and b are lost from now on in both directions, or are not. */
void cut(unsigned a, unsigned b, bool lost);

/* Scenarios of one fault each. basic.c */
void one_link(void);
void power(void);
void killed(void);
void seed_only(void);
void crash(void);
void partition(void);
void one_way(void);
void stopped(void);
void join(void);
/* Scenarios: flap.c, flapper.c, gray.c, impaired.c, repair.c, chaos.c, large.c. */
void rack(void);
void rolling(void);
void churn(void);
void cross(void);
void flap(void);
void gray(void);
void small_mtu(void);
void late(void);
void stalls(void);
/* The last node acknowledges publishes and loses them; all are back after two comparisons. */
void repair(void);
/* Of two owners that come back, one stops at once. refill.c */
void refill(void);
/* Two owners die one after the other, the second one before the third one has entries. turns.c */
void turns(void);
/* The last node is stopped and resumed, again and again. */
void flapper(void);
/* Packets are lost, clocks differ, the last node is slow. */
void lossy(void);
void clocks(void);
void slow(void);
/* Faults of all kinds begin and end at random. */
void chaos(void);

#endif
