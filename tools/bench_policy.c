/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache-bench policy: how many hits a trace of requests has in pools of given sizes, under the
 * engine's own eviction, under other policies, and at best. Starts no engine. One thread.
 *
 * A request is at a host, by a seed. The host's L2, an LRU, serves the first blocks of the request.
 * Those behind them are usable hits as far as no block is missing in the pools. They are touched,
 * the others are stored in the host's own pool, and the blocks that L2 served are touched, because
 * they were used with those behind them.
 */
#include "tools/bench.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/pages/pages_inner.h"
#include "tools/common.h"
#include "tools/trace.h"

#define LIST_MAX 16u /* values of an option */
#define HOSTS_LIMIT 64u
#define CALL_PAGES 128u /* pages that SGLang stores in one call */
#define NONE UINT32_MAX

/* ---- pools of blocks ------------------------------------------------------------------------- */

/* Lists that a block is in. Those from FIRST on are the pool, the others what it had. */
enum { NOWHERE, GONE, GONE_AGAIN, FIRST, AGAIN, LISTS };

struct cache {
	uint32_t blocks, capacity, held;
	/* lists of blocks, circular; the end of list l is number blocks + l */
	uint32_t *in, *older, *newer, *length;
	uint32_t *note;       /* of each block: a mark of the policy; the engine's: its place */
	uint32_t target;      /* ARC: length of FIRST; the optimum: no block is in a later list */
	uint32_t never;       /* the optimum: the list of blocks that are not used again */
	const uint32_t *uses; /* the optimum: the request that uses each block next */
	/* the engine's pool; of a call: blocks still to be stored, place of the last one */
	struct pool *pool;
	uint32_t left, before, calls;
	bool gap; /* of a call: a block before its blocks is in no pool */
	struct used_weight weight;
	struct ghosts *ghosts; /* of all hosts: the directory has them */
	uint64_t entries;      /* of the directory */
};

struct policy {
	const char *name;
	uint32_t call; /* blocks that are stored at once; 1: the last one of a prompt first */
	void (*touch)(struct cache *cache, uint32_t block);
	void (*set)(struct cache *cache, uint32_t block); /* it is not there */
};

static bool cache_has(const struct cache *c, uint32_t block)
{
	return c->in[block] >= FIRST;
}

/* Makes the block the newest of a list; it leaves the one that it is in. */
static void list_enter(struct cache *c, uint32_t block, uint32_t list)
{
	uint32_t end = c->blocks + list, was = c->in[block];

	c->older[c->newer[block]] = c->older[block];
	c->newer[c->older[block]] = c->newer[block];
	c->older[block] = c->older[end];
	c->newer[block] = end;
	c->newer[c->older[end]] = block;
	c->older[end] = block;
	c->length[was]--;
	c->length[list]++;
	c->held = c->held + (list >= FIRST) - (was >= FIRST);
	c->in[block] = list;
}

static uint32_t list_oldest(const struct cache *c, uint32_t list)
{
	return c->newer[c->blocks + list];
}

/* Moves the oldest block of a list to another list. */
static void list_move(struct cache *c, uint32_t from, uint32_t to)
{
	list_enter(c, list_oldest(c, from), to);
}

static void lru_set(struct cache *c, uint32_t block)
{
	list_enter(c, block, FIRST);
	if (c->held > c->capacity)
		list_move(c, FIRST, NOWHERE);
}

/* Half of the pool is for blocks that were used again. */
static void slru_touch(struct cache *c, uint32_t block)
{
	list_enter(c, block, AGAIN);
	if (c->length[AGAIN] > c->capacity / 2)
		list_move(c, AGAIN, FIRST);
}

/* Notes up to three uses. CLOCK takes them for one. */
static void note_touch(struct cache *c, uint32_t block)
{
	c->note[block] += c->note[block] < 3;
}

static void clock_set(struct cache *c, uint32_t block)
{
	while (c->held == c->capacity) {
		uint32_t *uses = &c->note[list_oldest(c, FIRST)];

		list_move(c, FIRST, *uses ? FIRST : NOWHERE);
		*uses = 0;
	}
	list_enter(c, block, FIRST);
}

/* S3-FIFO (Yang et al., SOSP'23): FIRST is a tenth of the pool. */
static void s3fifo_set(struct cache *c, uint32_t block)
{
	bool first = c->length[FIRST] >= c->capacity / 10 || !c->length[AGAIN];

	while (c->held == c->capacity) {
		uint32_t from = first && c->length[FIRST] ? FIRST : AGAIN;
		uint32_t *uses = &c->note[list_oldest(c, from)], was = *uses;

		*uses = from == AGAIN && was ? was - 1 : 0;
		if (from == AGAIN)
			list_move(c, AGAIN, was ? AGAIN : NOWHERE);
		else
			list_move(c, FIRST, was > 1 ? AGAIN : GONE);
		if (c->length[GONE] > c->capacity)
			list_move(c, GONE, NOWHERE);
	}
	list_enter(c, block, c->in[block] == GONE ? AGAIN : FIRST);
}

/* ARC (Megiddo and Modha, FAST'03). */
static void arc_touch(struct cache *c, uint32_t block)
{
	list_enter(c, block, AGAIN);
}

static void arc_set(struct cache *c, uint32_t block)
{
	uint32_t gone = c->length[GONE], again = c->length[GONE_AGAIN], was = c->in[block], step;

	if (was == GONE) {
		step = again > gone ? again / gone : 1;
		c->target = c->target + step < c->capacity ? c->target + step : c->capacity;
	} else if (was == GONE_AGAIN) {
		step = gone > again ? gone / again : 1;
		c->target -= step < c->target ? step : c->target;
	} else if (c->length[FIRST] + gone >= c->capacity) {
		list_move(c, gone ? GONE : FIRST, NOWHERE);
	} else if (c->held + gone + again >= 2 * c->capacity && again) {
		list_move(c, GONE_AGAIN, NOWHERE);
	}
	if (c->held == c->capacity) {
		bool over = c->length[FIRST] + (was == GONE_AGAIN) > c->target;

		if (c->length[FIRST] && (over || !c->length[AGAIN]))
			list_move(c, FIRST, GONE);
		else
			list_move(c, AGAIN, GONE_AGAIN);
	}
	list_enter(c, block, was == NOWHERE ? FIRST : AGAIN);
}

/* The optimum (Belady): a list for each request, with the blocks that it uses next. */
static void optimum_touch(struct cache *c, uint32_t block)
{
	uint32_t list = c->uses[block] == NONE ? c->never : FIRST + c->uses[block];

	list_enter(c, block, list);
	if (list != c->never && list > c->target)
		c->target = list;
}

/* The block that is used last leaves, maybe the new one. */
static void optimum_set(struct cache *c, uint32_t block)
{
	uint32_t last = c->never;

	optimum_touch(c, block);
	if (c->held <= c->capacity)
		return;
	if (!c->length[last])
		for (last = c->target; !c->length[last]; last--)
			c->target = last - 1;
	list_move(c, last, NOWHERE);
}

/* The pools' clock: a second passes before each call, so that no look-up follows another. */
static uint64_t calls_ns;
static uint64_t clock_of_calls(void)
{
	return calls_ns;
}

static void engine_touch(struct cache *c, uint32_t block)
{
	c->weight.used += pool_touch(c->pool, c->note[block]);
}

/* Makes room for the rest of the call at once. A pool has whole chunks: `capacity` is kept here. */
static void engine_evict(struct cache *c, uint32_t most)
{
	struct pool_victim victim[CALL_PAGES];
	unsigned n;

	pool_weigh(c->pool, c->weight.value);
	n = pool_victims(c->pool, PAGE_UNIT, false, c->left < most ? c->left : most, victim);
	for (unsigned i = 0; i < n; i++) {
		used_weight_evicted(&c->weight, victim[i].queue, c->held);
		ghost_put(c->ghosts, &victim[i].key, victim[i].queue, c->entries);
		(void)pool_retire(c->pool, victim[i].place, victim[i].generation);
		list_enter(c, (uint32_t)victim[i].key.word[1] - 1, NOWHERE);
	}
}

static void engine_set(struct cache *c, uint32_t block)
{
	const struct page_key key = {{mix64(block), block + 1ull}};
	uint32_t most = c->capacity - (uint32_t)evict_reserve(c->capacity), generation;
	bool first_out = c->gap || used_weight_keeps(&c->weight, c->calls);
	enum evicted from;

	if (c->held >= most)
		engine_evict(c, most);
	if (!first_out)
		pool_order(c->pool, c->before);
	if (c->held == most || pool_take(c->pool, PAGE_UNIT, &c->note[block], &generation) ||
		pool_publish(c->pool, c->note[block], generation, &key, PAGE_UNIT))
		die("the engine's pool of %u pages has no room beside %u", most, c->held);
	list_enter(c, block, FIRST);
	from = ghost_take(c->ghosts, &key, c->entries);
	if (from != EVICTED_NOT &&
		(c->weight.keeps || pool_again(c->pool, c->note[block], generation)))
		used_weight_again(&c->weight, from, c->held);
	if (first_out)
		(void)pool_last(c->pool, c->note[block], generation);
	else
		c->before = c->note[block];
}

enum { POLICY_ENGINE, POLICY_LRU, POLICY_OPTIMUM = 6, POLICIES };
static const struct policy policies[POLICIES] = {
	{"engine", CALL_PAGES, engine_touch, engine_set},
	{"lru", 1, lru_set, lru_set},
	{"clock", 1, note_touch, clock_set},
	{"slru", 1, slru_touch, lru_set},
	{"s3fifo", 1, note_touch, s3fifo_set},
	{"arc", 1, arc_touch, arc_set},
	{"optimum", 1, optimum_touch, optimum_set},
};

/* Opens a pool of a policy, whose pages are never touched if it is the engine's. */
static void cache_open(
	struct cache *c, uint32_t blocks, uint32_t capacity, uint32_t lists, bool engine)
{
	const struct pool_options options = {
		.bytes = capacity * (PAGE_UNIT * 17ull / 16) + (4 << 20),
		.numa_node = -1,
		.clock_ns = clock_of_calls};
	uint32_t *words = calloc(4ull * blocks + 3ull * lists, sizeof(*words));

	*c = (struct cache){.blocks = blocks,
		.capacity = capacity ? capacity : 1,
		.target = lists == LISTS ? 0 : FIRST,
		.never = lists - 1,
		.older = words,
		.newer = words + blocks + lists,
		.length = words + 2ull * (blocks + lists),
		.in = words + 2ull * blocks + 3ull * lists,
		.note = words + 3ull * (blocks + lists)};
	if (!words || (engine && pool_open(&options, &c->pool)))
		die("cannot open a pool of %u pages for want of memory; choose a smaller one",
			capacity);
	/* a block in no list is its own neighbour; so is the end of an empty list */
	for (uint32_t i = 0; i < blocks + lists; i++)
		c->older[i] = c->newer[i] = i;
}

static void cache_close(struct cache *c)
{
	pool_close(c->pool);
	free(c->older);
}

/* ---- the replay ------------------------------------------------------------------------------ */

struct lab {
	unsigned pools, hosts, l2s; /* numbers of values of the options */
	double pool[LIST_MAX], host[LIST_MAX], l2[LIST_MAX];
	bool policy[POLICIES];
	uint64_t seeds, seed, requests_max;
	const char *json_path;
	bool table; /* print it */
	/* the trace, and its blocks by their numbers */
	struct trace trace;
	uint32_t *block, blocks;
	/*
	 * Of each request: its host, and how many blocks L2 serves. next[] of each of its blocks:
	 * the next request that asks the pools for it. uses[] of each block: the same, by now.
	 */
	uint32_t *at, *served, *next, *uses;
	/* pools of all hosts, and which of them had each block last */
	struct cache cache[HOSTS_LIMIT];
	uint32_t *home;
	struct ghosts ghosts; /* of pages that the engine's pools evicted */
	/* of a cell, over all seeds: blocks that were usable hits, and that were stored */
	uint64_t hits[POLICIES], writes[POLICIES];
};

/* The blocks of a request. */
static const uint32_t *request(const struct lab *lab, uint32_t r, uint32_t *ret_count)
{
	*ret_count = (uint32_t)(lab->trace.first[r + 1] - lab->trace.first[r]);
	return lab->block + lab->trace.first[r];
}

/* Assigns requests to hosts; finds what L2 serves, which no pool changes, and the next uses. */
static uint64_t serve_l2(struct lab *lab, unsigned hosts, double l2, uint64_t seed)
{
	uint32_t count, capacity = (uint32_t)(lab->blocks * l2);
	uint64_t sum = 0;

	for (unsigned h = 0; h < hosts; h++)
		cache_open(&lab->cache[h], lab->blocks, capacity, LISTS, false);
	for (uint32_t r = 0; r < lab->trace.requests; r++) {
		const uint32_t *block = request(lab, r, &count);
		struct cache *c;

		lab->at[r] = (uint32_t)(mix64(mix64(seed) + r) % hosts);
		c = &lab->cache[lab->at[r]];
		lab->served[r] = 0;
		while (lab->served[r] < count && cache_has(c, block[lab->served[r]]))
			lab->served[r]++;
		sum += lab->served[r];
		for (uint32_t i = count; capacity && i--;)
			lru_set(c, block[i]);
	}
	for (unsigned h = 0; h < hosts; h++)
		cache_close(&lab->cache[h]);
	memset(lab->uses, 0xff, lab->blocks * sizeof(*lab->uses));
	for (uint32_t r = lab->trace.requests; r--;) {
		const uint32_t *block = request(lab, r, &count);

		for (uint32_t i = 0; i < count; i++)
			lab->next[lab->trace.first[r] + i] = lab->uses[block[i]];
		for (uint32_t i = lab->served[r]; i < count; i++)
			lab->uses[block[i]] = r;
	}
	return sum;
}

/* The pool that has the block; NULL: none has it. */
static struct cache *pool_with(struct lab *lab, uint32_t block)
{
	struct cache *c = &lab->cache[lab->home[block]];

	return cache_has(c, block) ? c : NULL;
}

static void blocks_touch(
	struct lab *lab, const struct policy *policy, const uint32_t *block, uint32_t count)
{
	calls_ns += 1000000000;
	for (uint32_t i = 0; i < count; i++) {
		/* the engine does it itself: what is touched next goes before what was touched */
		uint32_t next = block[policy->call == 1 ? count - 1 - i : i];

		if (pool_with(lab, next))
			policy->touch(pool_with(lab, next), next);
	}
}

/* Stores the blocks that no pool has in the host's one, and touches the others. */
static void blocks_set(struct lab *lab, const struct policy *policy, unsigned host,
	const uint32_t *block, uint32_t count)
{
	struct cache *c = &lab->cache[host];
	uint32_t missing[CALL_PAGES], n;

	for (uint32_t done = 0; done < count; done += n) {
		const uint32_t *call = block + (policy->call == 1 ? count - 1 - done : done);

		n = count - done < policy->call ? count - done : policy->call;
		blocks_touch(lab, policy, call, n);
		c->left = 0;
		c->calls++;
		c->before = NONE;
		for (uint32_t i = 0; i < n; i++)
			if (!pool_with(lab, call[i]))
				missing[c->left++] = call[i];
		for (uint32_t *next = missing; c->left; c->left--, next++) {
			if (pool_with(lab, *next))
				continue; /* twice in this call */
			policy->set(c, *next);
			lab->home[*next] = host;
			lab->writes[policy - policies] += cache_has(c, *next);
		}
	}
}

/* Replays the trace with pools of one policy. The optimum has one pool for all hosts. */
static void replay(struct lab *lab, unsigned hosts, double share, unsigned p)
{
	bool optimum = p == POLICY_OPTIMUM;
	uint32_t lists = optimum ? lab->trace.requests + FIRST + 1 : LISTS, count;
	unsigned pools = optimum ? 1 : hosts;

	memset(lab->home, 0, lab->blocks * sizeof(*lab->home));
	for (unsigned h = 0; h < pools; h++) {
		cache_open(&lab->cache[h], lab->blocks, (uint32_t)(lab->blocks * share) / pools,
			lists, p == POLICY_ENGINE);
		lab->cache[h].uses = lab->uses;
		lab->cache[h].ghosts = &lab->ghosts;
		lab->cache[h].entries = (uint64_t)(lab->blocks * share);
		lab->cache[h].weight.value = USED_WEIGHT_MIN;
	}
	for (uint32_t r = 0; r < lab->trace.requests; r++) {
		const uint32_t *block = request(lab, r, &count);
		uint32_t served = lab->served[r], hits = served;

		while (hits < count && pool_with(lab, block[hits]))
			hits++;
		lab->hits[p] += hits - served;
		for (uint32_t i = 0; i < count && optimum; i++)
			lab->uses[block[i]] = lab->next[lab->trace.first[r] + i];
		/* the optimum, a bound, may also store what L2 served */
		if (optimum)
			blocks_touch(lab, &policies[p], block, count);
		else
			blocks_touch(lab, &policies[p], block + served, hits - served);
		hits = optimum ? 0 : hits;
		lab->cache[lab->at[r]].gap = false;
		for (uint32_t i = 0; i < served && p == POLICY_ENGINE; i++)
			lab->cache[lab->at[r]].gap |= !pool_with(lab, block[i]);
		blocks_touch(lab, &policies[p], block, served);
		blocks_set(lab, &policies[p], optimum ? 0 : lab->at[r], block + hits, count - hits);
	}
	for (unsigned h = 0; h < pools; h++)
		cache_close(&lab->cache[h]);
	ghosts_close(&lab->ghosts);
}

/* ---- the results ----------------------------------------------------------------------------- */

static double ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

/* Replays one cell of the table; prints its row, and adds it to `list`. */
static void cell_run(struct lab *lab, unsigned cell, json_object *list)
{
	unsigned hosts = (unsigned)lab->host[cell / lab->pools / lab->l2s];
	double l2 = lab->l2[cell / lab->pools % lab->l2s], share = lab->pool[cell % lab->pools];
	json_object *o = json_object_new_object(), *hit = json_object_new_object(),
		    *write = json_object_new_object();
	uint64_t seeds = hosts > 1 ? lab->seeds : 1, served = 0, best = 0, *hits = lab->hits;
	uint64_t asked = lab->trace.blocks * seeds;

	memset(lab->hits, 0, sizeof(lab->hits));
	memset(lab->writes, 0, sizeof(lab->writes));
	for (uint64_t s = 0; s < seeds; s++) {
		served += serve_l2(lab, hosts, l2, lab->seed + s);
		for (unsigned p = 0; p < POLICIES; p++)
			if (lab->policy[p])
				replay(lab, hosts, share, p);
	}
	if (lab->table)
		printf("%5u %4g%% %5g%%  %.3f", hosts, l2 * 100, share * 100, ratio(served, asked));
	for (unsigned p = 0; p < POLICIES; p++) {
		if (!lab->policy[p])
			continue;
		add_real(hit, policies[p].name, ratio(hits[p], asked));
		add_real(write, policies[p].name, ratio(lab->writes[p], asked));
		if (lab->table)
			printf("  %.3f %.3f", ratio(hits[p], asked), ratio(lab->writes[p], asked));
		if (p > POLICY_ENGINE && p < POLICY_OPTIMUM && hits[p] > best)
			best = hits[p];
	}
	add_number(o, "hosts", hosts);
	add_real(o, "l2", l2);
	add_real(o, "pool", share);
	add_real(o, "l2_ratio", ratio(served, asked));
	add_real(o, "engine_to_best", ratio(hits[POLICY_ENGINE], best));
	json_object_object_add(o, "hit_ratio", hit);
	json_object_object_add(o, "write_ratio", write);
	json_object_array_add(list, o);
	if (lab->table)
		printf("  %7.3f  %.3f\n", json_real(o, "engine_to_best"),
			ratio(hits[POLICY_ENGINE], hits[POLICY_OPTIMUM]));
}

/* Replays one trace (NULL: a generated one), prints its table, and adds it to `traces`. */
static void trace_run(struct lab *lab, const char *path, json_object *traces)
{
	json_object *o = json_object_new_object(), *cells = json_object_new_array();
	bool shown = isatty(STDERR_FILENO) && !(lab->table && isatty(STDOUT_FILENO));
	unsigned all = lab->hosts * lab->l2s * lab->pools;
	uint32_t requests = (uint32_t)lab->requests_max;
	const char *name = path ? path : "generated";
	double room;

	if (path)
		trace_load(path, requests, &lab->trace);
	else
		trace_generate(requests ? requests : 2000, lab->seed, &lab->trace);
	requests = lab->trace.requests;
	lab->block = trace_number(&lab->trace, &lab->blocks);
	lab->at = calloc(2ull * (requests + lab->blocks) + lab->trace.blocks, sizeof(*lab->at));
	if (!lab->blocks || !lab->at)
		die("trace %s: %s", name,
			lab->at ? "its requests have no blocks" : "out of memory");
	lab->served = lab->at + requests;
	lab->home = lab->served + requests;
	lab->uses = lab->home + lab->blocks;
	lab->next = lab->uses + lab->blocks;
	room = ratio(trace_summarize(&lab->trace).prefix_hits, lab->trace.blocks);
	add_text(o, "trace", name);
	add_number(o, "requests", requests);
	add_number(o, "blocks", lab->trace.blocks);
	add_number(o, "different_blocks", lab->blocks);
	add_real(o, "prefix_ratio", room);
	json_object_object_add(o, "cells", cells);
	json_object_array_add(traces, o);
	if (lab->table)
		printf("%s: %u requests, %lu blocks, %u different; with room for all %.3f hits\n"
		       "Of the blocks asked: those in L2; by policy usable hits, pages written\n"
		       "hosts    L2   pool  in L2",
			name, requests, lab->trace.blocks, lab->blocks, room);
	for (unsigned p = 0; p < POLICIES && lab->table; p++)
		if (lab->policy[p])
			printf(" %12s", policies[p].name);
	if (lab->table)
		printf("  of best, optimum\n");
	for (unsigned i = 0; i < all; i++) {
		if (shown)
			fprintf(stderr, "\rcell %u of %u%s", i + 1, all, i + 1 < all ? "" : "\n");
		cell_run(lab, i, cells);
	}
	free(lab->block);
	free(lab->at);
	trace_free(&lab->trace);
}

/* ---- the command ----------------------------------------------------------------------------- */

static const char help[] =
	"Usage: peercache-bench policy [OPTION]... [TRACE]...\n"
	"Says how many usable hits pools of given sizes have on a trace of requests: with the\n"
	"engine's own eviction, with other policies, and at best. Needs no engine and no memory\n"
	"for pages. A hit is usable if all blocks of its request before it are hits.\n\n"
	"TRACE has lines of JSON with \"hash_ids\", as Mooncake's public traces; without one,\n"
	"conversations are generated that grow by turns and share a few system prompts.\n\n"
	"Options:\n"
	"  --pool LIST     sizes of all pools together, in percent of the trace's different\n"
	"                  blocks (default 5%,10%,25%,50%)\n"
	"  --hosts LIST    numbers of hosts, each with a pool (default 1,4)\n"
	"  --l2 LIST       sizes of each host's L2, like --pool (default 0%,2%,5%)\n"
	"  --policy LIST   engine, lru, clock, slru (half for blocks that were used again),\n"
	"                  s3fifo, arc, optimum (knows the future; one pool for all hosts)\n"
	"  --seeds N       with several hosts: assign requests to hosts N times (default 3)\n"
	"  --requests N    replay at most N requests of a trace, or generate N (2000)\n"
	"  --seed S        first seed of hosts, and that of a generated trace (default 1)\n"
	"  --json FILE     also write the results as JSON (\"-\": only JSON, to standard output)\n"
	"  --help          print this text\n\n"
	"Exit status:\n"
	"  0  success\n"
	"  2  wrong usage, no trace, or the output could not be written\n\n"
	"Examples:\n"
	"  $ peercache-bench policy conversation_trace.jsonl\n"
	"  $ peercache-bench policy trace.jsonl --pool 10% --hosts 4 --l2 2% --policy engine,lru\n";

/* Parses percentages from `least` on, or numbers of hosts. Returns how many. */
static unsigned list_parse(const char *option, char *list, double least, double *ret)
{
	unsigned n = 0;

	for (char *text, *end; (text = strsep(&list, ",")); n++) {
		double value = strtod(text, &end);

		if (n == LIST_MAX)
			die("%s: more than %u values", option, LIST_MAX);
		if (least == 1) {
			ret[n] = (double)parse_number(option, text, 1, HOSTS_LIMIT);
			continue;
		}
		if (end == text || strcmp(end, "%") || !(value >= least) || value > 100)
			die("%s: \"%s\" is not from %g%% to 100%%", option, text, least);
		ret[n] = value / 100;
	}
	return n;
}

static void policies_parse(char *list, bool *ret)
{
	memset(ret, 0, POLICIES * sizeof(*ret));
	for (char *text; (text = strsep(&list, ","));) {
		unsigned p = 0;

		while (p < POLICIES && strcmp(policies[p].name, text))
			p++;
		if (p == POLICIES)
			die("--policy: \"%s\" is none of those that --help names", text);
		ret[p] = true;
	}
}

static void parse(struct lab *lab, int argc, char **argv)
{
	static const struct option options[] = {{"pool", 1, NULL, 'p'}, {"hosts", 1, NULL, 'n'},
		{"l2", 1, NULL, 'l'}, {"policy", 1, NULL, 'y'}, {"seeds", 1, NULL, 'c'},
		{"requests", 1, NULL, 'r'}, {"seed", 1, NULL, 's'}, {"json", 1, NULL, 'j'},
		{"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'p': lab->pools = list_parse("--pool", optarg, 0.001, lab->pool); break;
		case 'n': lab->hosts = list_parse("--hosts", optarg, 1, lab->host); break;
		case 'l': lab->l2s = list_parse("--l2", optarg, 0, lab->l2); break;
		case 'y': policies_parse(optarg, lab->policy); break;
		case 'c': lab->seeds = parse_number("--seeds", optarg, 1, 1000); break;
		case 'r':
			lab->requests_max = parse_number("--requests", optarg, 1, 1u << 30);
			break;
		case 's': lab->seed = parse_number("--seed", optarg, 0, UINT64_MAX); break;
		case 'j': lab->json_path = optarg; break;
		case 'h': fputs(help, stdout); exit(0);
		default: die("see peercache-bench policy --help");
		}
	}
	lab->table = !lab->json_path || strcmp(lab->json_path, "-");
}

int bench_policy(int argc, char **argv)
{
	static struct lab lab = {.pools = 4,
		.pool = {0.05, 0.1, 0.25, 0.5},
		.hosts = 2,
		.host = {1, 4},
		.l2s = 3,
		.l2 = {0, 0.02, 0.05},
		.policy = {true, true, true, true, true, true, true},
		.seeds = 3,
		.seed = 1};
	json_object *o = json_object_new_object(), *traces = json_object_new_array();

	log_level_set(LOG_WARN); /* not of the time that a large pool takes to open */
	parse(&lab, argc, argv);
	for (int i = optind; i < argc || i == optind; i++)
		trace_run(&lab, i < argc ? argv[i] : NULL, traces);
	json_object_object_add(o, "traces", traces);
	json_versions_add(o);
	if (lab.json_path)
		write_json(o, lab.json_path);
	json_object_put(o);
	return 0;
}
