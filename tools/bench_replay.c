/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache-bench replay: replays a request trace over several engines like SGLang, and verifies
 * every byte of every page that it reads. One thread; it has one session and one channel for each
 * engine.
 *
 * Requests are assigned to the engines in turn. For each request the replay calls exists for its
 * blocks, gets the leading blocks that exist, and sets the others.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench.h"
#include "tools/common.h"
#include "tools/trace.h"

#define CALL_PAGES 128u /* pages in one call, as many as in a call of SGLang's cache controller */

/* ---- the replay ------------------------------------------------------------------------------ */

/* One engine over which the trace is replayed. */
struct replay_node {
	struct pc *pc;
	struct pc_channel *channel;
	struct batch batch; /* of CALL_PAGES pages */
};

struct replay {
	/* options of the command line */
	const char *trace_path, *json_path, *name_space;
	uint32_t requests_max;
	uint64_t page_bytes, seed;
	uint64_t bytes_per_s; /* of all calls together; 0: as fast as possible */
	unsigned timeout_ms, nodes;
	bool quiet, private_memory, describe;
	/* state of the replay */
	struct replay_node node[SOCKETS_MAX];
	struct trace trace;
	/* results of the replay */
	uint64_t requests, blocks, hits, wrong, late, failed, bytes, get_ns;
	struct histogram exists_ns, get, set;
	uint64_t started_ns, moved; /* moved: bytes of the pages of all calls */
};

static const char help[] =
	"Usage: peercache-bench replay [OPTION]...\n"
	"Replays a request trace over one or more engines and verifies every page read.\n\n"
	"Options:\n"
	"  --sockets LIST     engines' sockets, comma separated (default: $PEERCACHE_SOCKETS)\n"
	"  --trace FILE       JSON lines with \"hash_ids\"; default: generated conversations\n"
	"  --requests N       replay at most N requests of the trace, or generate N (1000)\n"
	"  --page-bytes B     bytes of the page of one block (default 16KiB)\n"
	"  --timeout-ms T     deadline of each call (default 5000)\n"
	"  --namespace TEXT   namespace of the keys (default \"replay\")\n"
	"  --seed S           seed of the generated trace (default 1)\n"
	"  --bytes-per-s B    get and set at most B bytes a second (default: no limit)\n"
	"  --private-memory   read into memory that the engines cannot map, through staging\n"
	"  --crc MODE         compare pages with their CRC32C: never, sample (the default; one\n"
	"                     in 1000), sample:N (one in N) or always\n"
	"  --describe         only print the size of the trace; needs no engine\n"
	"  --json FILE        also write the summary as JSON (\"-\": standard output)\n"
	"  --quiet            print no progress\n"
	"  --help             print this text\n\n"

	"Exit status:\n"
	"  0  success\n"
	"  1  a page had wrong bytes, or a call was late\n"
	"  2  wrong usage, no engine, or the output could not be written\n\n"
	"Examples:\n"
	"  $ peercache-bench replay --trace conversation_trace.jsonl --page-bytes 16KiB --json out.json\n"
	"  $ peercache-bench replay --sockets /run/a.sock,/run/b.sock --requests 500\n";

/*
 * A call counts as late this long after its deadline. The margin is necessary because the engine
 * drains a queue pair before it returns a buffer.
 */
#define LATE_NS 1500000000ull

/* Makes the first pages of the node's batch those of the blocks (of the trace) `id`. */
static void prepare(struct replay_node *node, const uint64_t *id, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		batch_set(&node->batch, i, id[i]);
}

/* Waits until the pages that were moved so far are not too many for --bytes-per-s. */
static void pace(struct replay *r, uint64_t pages)
{
	uint64_t due_ns, at_ns = now_ns();

	r->moved += pages * r->page_bytes;
	if (!r->bytes_per_s)
		return;
	due_ns = r->started_ns + (uint64_t)((double)r->moved * 1e9 / (double)r->bytes_per_s);
	if (due_ns > at_ns)
		nanosleep(&(struct timespec){.tv_sec = (time_t)((due_ns - at_ns) / 1000000000),
				  .tv_nsec = (long)((due_ns - at_ns) % 1000000000)},
			NULL);
}

/* Makes one call, measures its latency and checks its deadline. Returns the latency in ns. */
static uint64_t call(struct replay *r, struct replay_node *node, page_call function, uint32_t count,
	struct histogram *times)
{
	uint64_t from = now_ns(), took;

	if (function(node->channel, node->batch.page, count, r->timeout_ms, node->batch.result))
		die("%s", pc_error());
	took = now_ns() - from;
	histogram_add(times, took);
	if (took > r->timeout_ms * 1000000ull + LATE_NS)
		r->late++;
	return took;
}

/* Calls exists for the blocks `id`; returns how many leading ones exist. */
static uint32_t ask(struct replay *r, struct replay_node *node, const uint64_t *id, uint32_t count)
{
	uint32_t found = 0;

	for (uint32_t from = 0; from < count && found == from; from += CALL_PAGES) {
		uint32_t n = count - from < CALL_PAGES ? count - from : CALL_PAGES;

		prepare(node, id + from, n);
		call(r, node, pc_exists, n, &r->exists_ns);
		for (uint32_t i = 0; i < n && node->batch.result[i] == PC_HIT; i++)
			found++;
	}
	return found;
}

/*
 * Reads the first `count` blocks and verifies their pages; returns how many leading ones were hits.
 */
static uint32_t read_back(
	struct replay *r, struct replay_node *node, const uint64_t *id, uint32_t count)
{
	uint32_t hits = 0;

	for (uint32_t from = 0; from < count && hits == from; from += CALL_PAGES) {
		uint32_t n = count - from < CALL_PAGES ? count - from : CALL_PAGES;
		bool run = true;

		prepare(node, id + from, n);
		r->get_ns += call(r, node, pc_get, n, &r->get);
		for (uint32_t i = 0; i < n; i++) {
			run = run && node->batch.result[i] == PC_HIT;
			hits += run;
			if (node->batch.result[i] != PC_HIT)
				continue;
			r->bytes += r->page_bytes;
			if (!content_is(node->batch.segment[i].base, (size_t)r->page_bytes,
				    id[from + i]))
				r->wrong++;
		}
		pace(r, n);
	}
	return hits;
}

/* Stores `count` blocks, one page each. */
static void write_rest(
	struct replay *r, struct replay_node *node, const uint64_t *id, uint32_t count)
{
	for (uint32_t from = 0; from < count; from += CALL_PAGES) {
		uint32_t n = count - from < CALL_PAGES ? count - from : CALL_PAGES;

		prepare(node, id + from, n);
		for (uint32_t i = 0; i < n; i++)
			content_fill(
				node->batch.segment[i].base, (size_t)r->page_bytes, id[from + i]);
		call(r, node, pc_set, n, &r->set);
		for (uint32_t i = 0; i < n; i++)
			r->failed += node->batch.result[i] != PC_HIT;
		pace(r, n);
	}
}

/* Prints progress to stderr: a bar on a terminal, otherwise one line for each tenth. */
static void progress(struct replay *r, bool last)
{
	static uint64_t shown_ns;
	static unsigned shown_tenth;
	unsigned tenth = (unsigned)(r->requests * 10 / r->trace.requests);
	bool terminal = isatty(STDERR_FILENO);

	if (r->quiet || (!last && terminal && now_ns() - shown_ns < 100000000) ||
		(!terminal && tenth == shown_tenth))
		return;
	shown_ns = now_ns();
	shown_tenth = tenth;
	fprintf(stderr, "%s[%-20.*s] %lu/%u requests, %lu hits, %lu wrong%s", terminal ? "\r" : "",
		(int)(r->requests * 20 / r->trace.requests), "####################", r->requests,
		r->trace.requests, r->hits, r->wrong, terminal && !last ? "" : "\n");
}

static void run(struct replay *r)
{
	r->started_ns = now_ns();
	for (uint32_t i = 0; i < r->trace.requests; i++) {
		struct replay_node *node = &r->node[i % r->nodes];
		const uint64_t *id = r->trace.id + r->trace.first[i];
		uint32_t count = (uint32_t)(r->trace.first[i + 1] - r->trace.first[i]);
		uint32_t hits = read_back(r, node, id, ask(r, node, id, count));

		r->hits += hits;
		write_rest(r, node, id + hits, count - hits);
		r->blocks += count;
		r->requests++;
		progress(r, false);
	}
	progress(r, true);
}

static void add_times(json_object *o, const char *name, const struct histogram *h)
{
	static const struct {
		const char *name;
		double fraction;
	} points[] = {{"p50", 0.5}, {"p99", 0.99}, {"p999", 0.999}};
	char field[64];

	for (unsigned i = 0; i < 3; i++) {
		snprintf(field, sizeof(field), "%s_%s_us", name, points[i].name);
		add_real(o, field, histogram_us(h, points[i].fraction));
	}
}

/* Returns the summary: adds up the counters of the channels and of the engines' reports. */
static json_object *summary(struct replay *r)
{
	json_object *o = json_object_new_object();
	struct pc_counts sum = {0};
	struct pc_verify_counts verify = {0};
	uint64_t evictions = 0, unreachable_engines = 0, hits_disk = 0, drops = 0;
	double seconds = (double)(now_ns() - r->started_ns) / 1e9;

	for (unsigned i = 0; i < r->nodes; i++) {
		struct pc_counts c;
		struct pc_verify_counts v;
		json_object *report = engine_report(r->node[i].pc);

		pc_channel_counts(r->node[i].channel, &c);
		pc_channel_verify_counts(r->node[i].channel, &v);
		sum.hits_local += c.hits_local;
		sum.hits_remote += c.hits_remote;
		sum.sets += c.sets;
		sum.stale += c.stale;
		sum.unreachable += c.unreachable;
		sum.timeouts += c.timeouts;
		verify.verified += v.verified;
		verify.corrupt += v.corrupt;
		sum.bytes_staged += c.bytes_staged;
		evictions += (uint64_t)json_number(json_get(report, "counters"), "pages_evicted");
		hits_disk += (uint64_t)json_number(json_get(report, "counters"), "disk_hits");
		drops += (uint64_t)json_number(json_get(report, "counters"), "disk_drops");
		unreachable_engines += !report;
		json_object_put(report);
	}
	add_number(o, "requests", r->requests);
	add_number(o, "blocks", r->blocks);
	add_number(o, "hits", r->hits);
	add_number(o, "hits_local", sum.hits_local);
	add_number(o, "hits_remote", sum.hits_remote);
	add_number(o, "hits_disk", hits_disk);
	add_number(o, "drops", drops);
	add_number(o, "sets", sum.sets);
	add_number(o, "sets_failed", r->failed);
	add_number(o, "wrong", r->wrong);
	add_number(o, "late", r->late);
	add_number(o, "stale", sum.stale);
	add_number(o, "unreachable", sum.unreachable);
	add_number(o, "timeouts", sum.timeouts);
	add_number(o, "verified", verify.verified);
	add_number(o, "corrupt", verify.corrupt);
	add_number(o, "evictions", evictions);
	add_number(o, "engines_gone", unreachable_engines);
	add_real(o, "hit_ratio", r->blocks ? (double)r->hits / (double)r->blocks : 0);
	add_number(o, "get_bytes", r->bytes);
	add_number(o, "get_bytes_staged", sum.bytes_staged);
	add_real(o, "get_gbps", r->get_ns ? (double)r->bytes / (double)r->get_ns : 0);
	add_times(o, "get", &r->get);
	add_times(o, "set", &r->set);
	add_times(o, "exists", &r->exists_ns);
	add_real(o, "seconds", seconds);
	return o;
}

static void print_summary(struct replay *r, json_object *o)
{
	printf("requests %lu  blocks %lu  hits %lu (%.1f%%; pages read: local %ld, remote %ld)\n",
		r->requests, r->blocks, r->hits, 100 * json_real(o, "hit_ratio"),
		json_number(o, "hits_local"), json_number(o, "hits_remote"));
	printf("sets %ld (%lu failed)  evictions %ld  stale %ld  unreachable %ld  timeouts %ld\n",
		json_number(o, "sets"), r->failed, json_number(o, "evictions"),
		json_number(o, "stale"), json_number(o, "unreachable"), json_number(o, "timeouts"));
	if (json_number(o, "hits_disk") || json_number(o, "drops"))
		printf("pages from disk %ld  pages dropped because the disk was slower %ld\n",
			json_number(o, "hits_disk"), json_number(o, "drops"));
	printf("get %.2f GB/s; a call of up to %u pages: p50 %.0f us, p99 %.0f us, p99.9 %.0f us\n",
		r->get_ns ? (double)r->bytes / (double)r->get_ns : 0, CALL_PAGES,
		histogram_us(&r->get, 0.5), histogram_us(&r->get, 0.99),
		histogram_us(&r->get, 0.999));
	printf("wrong pages %lu  late calls %lu  (%.1f s)\n", r->wrong, r->late,
		json_real(o, "seconds"));
}

static void parse(struct replay *r, int argc, char **argv, const char **ret_sockets)
{
	static const struct option options[] = {{"sockets", 1, NULL, 's'}, {"trace", 1, NULL, 't'},
		{"requests", 1, NULL, 'n'}, {"page-bytes", 1, NULL, 'b'},
		{"timeout-ms", 1, NULL, 'd'}, {"namespace", 1, NULL, 'k'}, {"seed", 1, NULL, 'r'},
		{"bytes-per-s", 1, NULL, 'B'}, {"private-memory", 0, NULL, 'p'},
		{"crc", 1, NULL, 'c'}, {"json", 1, NULL, 'j'}, {"quiet", 0, NULL, 'q'},
		{"describe", 0, NULL, 'D'}, {"help", 0, NULL, 'h'}, {NULL, 0, NULL, 0}};
	const char *sockets = NULL;
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 's': sockets = optarg; break;
		case 't': r->trace_path = optarg; break;
		case 'n':
			r->requests_max = (uint32_t)parse_number("--requests", optarg, 1, 1u << 30);
			break;
		case 'b': r->page_bytes = parse_size("--page-bytes", optarg, 1, 64u << 20); break;
		case 'd':
			r->timeout_ms = (unsigned)parse_number("--timeout-ms", optarg, 1, 600000);
			break;
		case 'k': r->name_space = optarg; break;
		case 'r': r->seed = parse_number("--seed", optarg, 0, UINT64_MAX); break;
		case 'B':
			r->bytes_per_s = parse_size("--bytes-per-s", optarg, 1, 1ull << 50);
			break;
		case 'p': r->private_memory = true; break;
		case 'c': parse_crc(optarg); break;
		case 'j': r->json_path = optarg; break;
		case 'q': r->quiet = true; break;
		case 'D': r->describe = true; break;
		case 'h': fputs(help, stdout); exit(0);
		default: die("see peercache-bench replay --help");
		}
	}
	if (optind < argc)
		die("unexpected argument \"%s\"; see peercache-bench replay --help", argv[optind]);
	r->nodes = parse_sockets(sockets, ret_sockets);
}

static void open_node(struct replay *r, struct replay_node *node, const char *socket)
{
	node->pc = open_session(socket, r->name_space);
	if (r->page_bytes > pc_page_bytes_max(node->pc))
		die("--page-bytes %lu: the largest page that fits this engine's pools has %lu bytes; raise engine.pool_bytes",
			r->page_bytes, pc_page_bytes_max(node->pc));
	batch_open(&node->batch, r->private_memory ? NULL : node->pc, (size_t)r->page_bytes,
		CALL_PAGES);
	if (pc_channel_open(node->pc, &node->channel))
		die("%s", pc_error());
}

/* --describe: prints the size of the trace as JSON to standard output. */
static void describe(const struct replay *r)
{
	json_object *o = json_object_new_object();
	struct trace_summary sum = trace_summarize(&r->trace);

	add_number(o, "requests", r->trace.requests);
	add_number(o, "blocks", r->trace.blocks);
	add_number(o, "different_blocks", sum.different);
	add_number(o, "prefix_hits", sum.prefix_hits);
	add_number(o, "longest_request", r->trace.longest);
	json_versions_add(o);
	write_json(o, "-");
	json_object_put(o);
}

int bench_replay(int argc, char **argv)
{
	static struct replay r = {
		.name_space = "replay", .page_bytes = 16384, .seed = 1, .timeout_ms = 5000};
	const char *socket[SOCKETS_MAX];
	json_object *o;

	parse(&r, argc, argv, socket);
	if (r.trace_path)
		trace_load(r.trace_path, r.requests_max, &r.trace);
	else
		trace_generate(r.requests_max ? r.requests_max : 1000, r.seed, &r.trace);
	if (r.describe) {
		describe(&r);
		trace_free(&r.trace);
		return 0;
	}
	for (unsigned i = 0; i < r.nodes; i++)
		open_node(&r, &r.node[i], socket[i]);
	run(&r);
	o = summary(&r);
	print_summary(&r, o);
	json_versions_add(o);
	if (r.json_path)
		write_json(o, r.json_path);
	json_object_put(o);
	for (unsigned i = 0; i < r.nodes; i++) {
		pc_channel_close(r.node[i].channel);
		batch_close(&r.node[i].batch);
		pc_close(r.node[i].pc);
	}
	trace_free(&r.trace);
	return r.wrong || r.late ? 1 : 0;
}
