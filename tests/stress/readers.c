/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads pages while they are evicted. One writer thread refills a small pool continuously, so that
 * every page is evicted repeatedly. Reader threads on another engine read the same keys by RDMA
 * READ and compare every byte of each page that is reported as a hit.
 *
 * test_stress.py starts this program with two engines: the writer uses the first socket, the
 * readers use the second. Prints JSON; `wrong` counts hits with wrong bytes. Exit status 0: the
 * readers have read the requested number of pages.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi/ring.h"
#include "tools/common.h"

#define BATCH 32u

struct stress {
	uint64_t page_bytes, keys, reads_wanted; /* reads_wanted: by each reader */
	unsigned readers;                        /* number of reader threads */
	uint64_t end_ns; /* time at which the readers stop; clock of now_ns() */
	struct pc *writer_pc, *reader_pc;
	uint32_t stop;   /* nonzero: the writer ends; written by the main thread */
	uint64_t stored; /* pages stored; written by the writer */
};

struct reader {
	struct stress *stress;
	unsigned index;
	pthread_t thread;
	/* owner: the reader thread; the main thread reads them after it has ended */
	alignas(64) uint64_t reads;      /* pages that a READ transferred */
	uint64_t wrong;                  /* hits with wrong bytes */
	uint64_t result[PC_PENDING + 1]; /* pages with each result */
	struct pc_counts counts;
};
static_assert(sizeof(struct reader) % 64 == 0, "readers share no cache line");

struct pages {
	struct pc_page page[BATCH];
	struct pc_segment segment[BATCH];
	char key[BATCH][KEY_TEXT_BYTES];
	enum pc_result result[BATCH];
	unsigned char *memory;
};

static void prepare(struct stress *s, struct pages *p, unsigned i, uint64_t id)
{
	p->segment[i] = (struct pc_segment){p->memory + i * s->page_bytes, s->page_bytes};
	p->page[i] = (struct pc_page){p->key[i], KEY_TEXT_BYTES, &p->segment[i], 1};
	key_text(id, p->key[i]);
}

static struct pages *pages_open(struct stress *s, struct pc *pc)
{
	struct pages *p = calloc(1, sizeof(*p));
	void *memory;

	if (!p || pc_memory_alloc(pc, s->page_bytes * BATCH, &memory))
		die("%s", p ? pc_error() : "out of memory");
	p->memory = memory;
	return p;
}

static void *write_without_rest(void *argument)
{
	struct stress *s = argument;
	struct pages *p = pages_open(s, s->writer_pc);
	struct pc_channel *channel;
	uint64_t next = 0;

	if (pc_channel_open(s->writer_pc, &channel))
		die("%s", pc_error());
	while (!shm_load_acquire(&s->stop)) {
		for (unsigned i = 0; i < BATCH; i++, next = (next + 1) % s->keys) {
			prepare(s, p, i, next);
			content_fill(p->segment[i].base, s->page_bytes, next);
		}
		if (pc_set(channel, p->page, BATCH, 5000, p->result))
			die("%s", pc_error());
		for (unsigned i = 0; i < BATCH; i++)
			s->stored += p->result[i] == PC_HIT;
	}
	pc_channel_close(channel);
	free(p);
	return NULL;
}

static void *read_and_verify(void *argument)
{
	struct reader *r = argument;
	struct stress *s = r->stress;
	struct pages *p = pages_open(s, s->reader_pc);
	struct pc_channel *channel;
	uint64_t random = r->index;
	uint64_t id[BATCH];

	if (pc_channel_open(s->reader_pc, &channel))
		die("%s", pc_error());
	while (r->reads < s->reads_wanted && now_ns() < s->end_ns) {
		for (unsigned i = 0; i < BATCH; i++) {
			random += 0x9e3779b97f4a7c15ull;
			id[i] = mix64(random) % s->keys;
			prepare(s, p, i, id[i]);
		}
		if (pc_get(channel, p->page, BATCH, 5000, p->result))
			die("%s", pc_error());
		for (unsigned i = 0; i < BATCH; i++) {
			bool hit = p->result[i] == PC_HIT;

			r->result[p->result[i] < PC_PENDING ? p->result[i] : PC_PENDING]++;
			r->wrong += hit && !content_is(p->segment[i].base, s->page_bytes, id[i]);
		}
		pc_channel_counts(channel, &r->counts);
		/* Hits and stale pages were transferred by a READ; misses were not. */
		r->reads = r->result[PC_HIT] + r->counts.stale;
	}
	pc_channel_close(channel);
	free(p);
	return NULL;
}

static void put(json_object *o, const char *name, uint64_t value)
{
	json_object_object_add(o, name, json_object_new_int64((int64_t)value));
}

/* `other`: results that are none of hit, miss and stale; "failures" has those that are not 0. */
static void put_results(json_object *o, const struct reader *sum)
{
	json_object *failures = json_object_new_object();
	uint64_t other = 0;

	for (unsigned k = PC_STALE + 1; k <= PC_PENDING; k++) {
		if (sum->result[k])
			put(failures, pc_result_name((enum pc_result)k), sum->result[k]);
		other += sum->result[k];
	}
	put(o, "hits", sum->result[PC_HIT]);
	put(o, "other", other);
	json_object_object_add(o, "failures", failures);
}

static int report(struct stress *s, struct reader *readers, double seconds)
{
	struct reader sum = {0};
	json_object *o = json_object_new_object();

	for (unsigned i = 0; i < s->readers; i++) {
		sum.reads += readers[i].reads;
		sum.wrong += readers[i].wrong;
		for (unsigned k = 0; k <= PC_PENDING; k++)
			sum.result[k] += readers[i].result[k];
		sum.counts.stale += readers[i].counts.stale;
		sum.counts.hits_remote += readers[i].counts.hits_remote;
		sum.counts.misses += readers[i].counts.misses;
	}
	put(o, "reads", sum.reads);
	put_results(o, &sum);
	put(o, "wrong", sum.wrong);
	put(o, "stale", sum.counts.stale);
	put(o, "misses", sum.counts.misses);
	put(o, "hits_remote", sum.counts.hits_remote);
	put(o, "stored", s->stored);
	json_object_object_add(o, "seconds", json_object_new_double(seconds));
	write_json(o, "-");
	json_object_put(o);
	return sum.reads >= s->reads_wanted * s->readers ? 0 : 1;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"sockets", 1, NULL, 's'}, {"reads", 1, NULL, 'n'},
		{"readers", 1, NULL, 'r'}, {"keys", 1, NULL, 'k'}, {"page-bytes", 1, NULL, 'b'},
		{"seconds", 1, NULL, 'd'}, {NULL, 0, NULL, 0}};
	struct stress s = {.page_bytes = 4096, .keys = 4096, .reads_wanted = 1000000, .readers = 4};
	const char *list = NULL, *socket[SOCKETS_MAX];
	uint64_t seconds = 300, started;
	struct reader *readers;
	pthread_t writer;
	int o, status;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 's': list = optarg; break;
		case 'n': s.reads_wanted = parse_number("--reads", optarg, 1, 1ull << 40); break;
		case 'r': s.readers = (unsigned)parse_number("--readers", optarg, 1, 64); break;
		case 'k': s.keys = parse_number("--keys", optarg, BATCH, 1u << 30); break;
		case 'b': s.page_bytes = parse_size("--page-bytes", optarg, 8, 1 << 20); break;
		case 'd': seconds = parse_number("--seconds", optarg, 1, 3600); break;
		default: die("unknown option; main() in tests/stress/readers.c has the list");
		}
	}
	if (parse_sockets(list, socket) != 2)
		die("needs two engines: --sockets A,B");
	s.reads_wanted = (s.reads_wanted + s.readers - 1) / s.readers;
	started = now_ns();
	s.end_ns = started + seconds * 1000000000ull;
	s.writer_pc = open_session(socket[0], "stress");
	s.reader_pc = open_session(socket[1], "stress");
	readers = aligned_alloc(64, s.readers * sizeof(*readers));
	if (!readers || pthread_create(&writer, NULL, write_without_rest, &s))
		die("cannot start");
	memset(readers, 0, s.readers * sizeof(*readers));
	for (unsigned i = 0; i < s.readers; i++) {
		readers[i].stress = &s;
		readers[i].index = i + 1;
		if (pthread_create(&readers[i].thread, NULL, read_and_verify, &readers[i]))
			die("cannot start reader %u", i);
	}
	for (unsigned i = 0; i < s.readers; i++)
		pthread_join(readers[i].thread, NULL);
	shm_store_release(&s.stop, 1);
	pthread_join(writer, NULL);
	status = report(&s, readers, (double)(now_ns() - started) / 1e9);
	free(readers);
	pc_close(s.reader_pc);
	pc_close(s.writer_pc);
	return status;
}
