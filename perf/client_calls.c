/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures libpeercache calls of one client thread against running engines, for set.py and
 * lookup.py: calls that the tools do not make in this form. The engines' sockets are in
 * $PEERCACHE_SOCKETS.
 *
 *   client_calls set BYTES BATCH PAGES ROUNDS WINDOW EVICT
 *       Each round copies PAGES pages with memcpy, with non-temporal stores, with pc_set() in
 *       blocking batches, and with pc_set() with WINDOW batches in flight. All ways have the same
 *       source and destinations of one size. "slots" is libpeercache's own streaming copy of the
 *       pages of the windowed sets, into the slots that these sets chose and in their order: all
 *       that a set must do to the memory. EVICT 0: the pages are removed after each round, so the
 *       pool always has room.
 *   client_calls lookup KEYS BATCH ROUNDS
 *       Looks up keys, all of whose directory owners are other engines, with pc_exists(): first
 *       keys that are stored, then keys that are not. There are more keys than the channel
 *       remembers.
 *
 * Prints one line "NAME VALUE" per result: the medians of the rounds.
 */
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/copy.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"
#include "tools/common.h"

#define ROUNDS_MAX 100
#define SOURCE_BYTES (256ull << 20)
#define SINK_BYTES (1ull << 30) /* destination of the plain copies; as large as the pool */
/* Bytes stored before the measurement; more than the pool holds */
#define WARM_BYTES (1200ull << 20)
#define WINDOW_MAX 16
#define LENGTH 64 /* length of the pages that are only looked up */

static uint64_t seed;

struct batch_memory {
	struct pc_page *page;
	struct pc_segment *segment;
	char (*key)[KEY_TEXT_BYTES];
	enum pc_result *result;
};

static void *must(void *memory)
{
	if (!memory || memory == MAP_FAILED)
		die("out of memory");
	return memory;
}

static struct batch_memory batch_new(unsigned count)
{
	struct batch_memory b = {.page = must(calloc(count, sizeof(*b.page))),
		.segment = must(calloc(count, sizeof(*b.segment))),
		.key = must(calloc(count, sizeof(*b.key))),
		.result = must(calloc(count, sizeof(*b.result)))};

	for (unsigned i = 0; i < count; i++)
		b.page[i] = (struct pc_page){b.key[i], KEY_TEXT_BYTES, &b.segment[i], 1};
	return b;
}

static double median(double *value, unsigned count)
{
	for (unsigned i = 1; i < count; i++)
		for (unsigned k = i; k > 0 && value[k - 1] > value[k]; k--) {
			double other = value[k];

			value[k] = value[k - 1];
			value[k - 1] = other;
		}
	return count ? value[count / 2] : 0;
}

/* ---- set ------------------------------------------------------------------------------------- */

enum { COPY, STREAM, BLOCKING, WINDOWED, WAYS };
static const char *const way_name[WAYS] = {"memcpy", "nontemporal", "blocking", "windowed"};
/* an own copy is void if the channel does not know the places of more than 1 / 16 of the pages */
#define UNKNOWN_SHARE 16

struct store {
	struct pc_channel *channel;
	unsigned char *source, *sink;
	uint64_t bytes, source_pages, next, copied, failed;
	unsigned batch, pages, window;
	bool evict;
	char (*key)[KEY_TEXT_BYTES]; /* keys of a round's pages, made before its clock starts */
	struct batch_memory memory[WINDOW_MAX];
};

__attribute__((target("avx2"))) static void copy_nontemporal(
	unsigned char *to, const unsigned char *from, uint64_t bytes)
{
	for (; bytes; bytes -= 128, to += 128, from += 128)
		for (unsigned k = 0; k < 4; k++)
			_mm256_stream_si256((__m256i *)(void *)to + k,
				_mm256_loadu_si256((const __m256i *)(const void *)from + k));
	_mm_sfence();
}

static void fill(struct store *s, struct batch_memory *m)
{
	for (unsigned i = 0; i < s->batch; i++) {
		uint64_t id = s->next++;

		m->page[i].key = s->key[id % s->pages];
		m->segment[i].base = s->source + id % s->source_pages * s->bytes;
		m->segment[i].bytes = s->bytes;
	}
}

static void count(struct store *s, const struct batch_memory *m)
{
	for (unsigned i = 0; i < s->batch; i++)
		s->failed += m->result[i] != PC_HIT;
}

static void set_windowed(struct store *s)
{
	struct pc_batch *batch[WINDOW_MAX] = {NULL};
	unsigned batches = s->pages / s->batch;

	for (unsigned n = 0; n < batches + s->window; n++) {
		struct batch_memory *m = &s->memory[n % s->window];

		if (n >= s->window) {
			pc_wait(batch[n % s->window]);
			count(s, m);
		}
		if (n >= batches)
			continue;
		fill(s, m);
		if (pc_submit_set(
			    s->channel, m->page, s->batch, 10000, m->result, &batch[n % s->window]))
			die("%s", pc_error());
	}
}

static void set_blocking(struct store *s)
{
	for (unsigned n = 0; n < s->pages; n += s->batch) {
		fill(s, &s->memory[0]);
		if (pc_set(s->channel, s->memory[0].page, s->batch, 10000, s->memory[0].result))
			die("%s", pc_error());
		count(s, &s->memory[0]);
	}
}

static void copy_all(struct store *s, bool stream)
{
	for (unsigned i = 0; i < s->pages; i++, s->copied++) {
		unsigned char *to = s->sink + s->copied % (SINK_BYTES / s->bytes) * s->bytes;
		const unsigned char *from = s->source + s->copied % s->source_pages * s->bytes;

		if (stream)
			copy_nontemporal(to, from, s->bytes);
		else
			memcpy(to, from, s->bytes);
	}
}

static void remove_all(struct store *s, uint64_t from)
{
	struct batch_memory *m = &s->memory[0];

	for (uint64_t id = from; id < s->next; id += s->batch) {
		for (unsigned i = 0; i < s->batch; i++)
			m->page[i].key = s->key[(id + i) % s->pages];
		if (pc_remove(s->channel, m->page, s->batch, 10000, m->result))
			die("%s", pc_error());
	}
	usleep(50000); /* evicted slots rest in limbo before they are reused */
}

/*
 * Copies the pages stored since `first` into their slots once more, with the same bytes. Returns
 * bytes per ns; 0: too few places are known. Only this process reads these pages.
 */
static double copy_slots(struct store *s, uint64_t first)
{
	unsigned char **to = must(calloc(s->next - first, sizeof(*to)));
	uint64_t copied = 0, from_ns;
	char text[KEY_TEXT_BYTES];

	for (uint64_t id = first; id < s->next; id++) {
		const struct cache_entry *e;
		struct page_key key;

		key_text(mix64(seed) + id, text);
		key_hash(&s->channel->key_text, text, KEY_TEXT_BYTES, &key);
		e = cache_find(s->channel, &key);
		if (e && local_length(s->channel->session, &key, &e->at))
			to[id - first] = s->channel->session->rail[place_rail(e->at.place)].pool +
					 place_offset(e->at.place);
	}
	from_ns = now_ns();
	for (uint64_t id = first; id < s->next; id++) {
		if (!to[id - first])
			continue;
		copy_stream(to[id - first], s->source + id % s->source_pages * s->bytes, s->bytes);
		copied++;
	}
	shm_fence_stream();
	from_ns = now_ns() - from_ns;
	free(to);
	if ((s->next - first - copied) * UNKNOWN_SHARE > s->next - first)
		return 0;
	return (double)(copied * s->bytes) / (double)from_ns;
}

/* `ret_slots`: rate of the copy into the slots, after windowed sets; bytes per ns. */
static double way_seconds(struct store *s, unsigned way, double *ret_slots)
{
	uint64_t first = s->next, from;

	for (unsigned i = 0; i < s->pages; i++)
		key_text(mix64(seed) + first + i, s->key[(first + i) % s->pages]);
	from = now_ns();
	if (way == COPY || way == STREAM)
		copy_all(s, way == STREAM);
	else if (way == BLOCKING)
		set_blocking(s);
	else
		set_windowed(s);
	from = now_ns() - from;
	if (way == WINDOWED)
		*ret_slots = copy_slots(s, first);
	if (!s->evict && s->next != first)
		remove_all(s, first);
	return (double)from / 1e9;
}

static int set(struct pc *pc, char **argument)
{
	struct store s = {.bytes = parse_size("BYTES", argument[0], 4096, 64u << 20),
		.batch = (unsigned)parse_number("BATCH", argument[1], 1, 65536),
		.pages = (unsigned)parse_number("PAGES", argument[2], 1, 1u << 24),
		.window = (unsigned)parse_number("WINDOW", argument[4], 1, WINDOW_MAX),
		.evict = argument[5][0] != '0'};
	unsigned rounds = (unsigned)parse_number("ROUNDS", argument[3], 1, ROUNDS_MAX);
	double rate[WAYS][ROUNDS_MAX], slots[ROUNDS_MAX], ratio[ROUNDS_MAX];
	void *source;

	s.pages = (s.pages + s.batch - 1) / s.batch * s.batch;
	s.source_pages = SOURCE_BYTES / s.bytes;
	if (pc_memory_alloc(pc, SOURCE_BYTES, &source) || pc_channel_open(pc, &s.channel))
		die("%s", pc_error());
	s.source = source;
	s.key = must(calloc(s.pages, sizeof(*s.key)));
	memset(source, 1, SOURCE_BYTES);
	s.sink = must(mmap(NULL, SINK_BYTES, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
	for (unsigned w = 0; w < s.window; w++)
		s.memory[w] = batch_new(s.batch);
	/*
	 * Writes every slot of the pool before the clock starts, as in an engine that has run for a
	 * while.
	 */
	for (uint64_t warm = 0; warm < WARM_BYTES; warm += s.bytes * s.pages)
		way_seconds(&s, WINDOWED, &slots[0]);
	/* The same for the shard, which a port's memory registration allocates. */
	madvise((void *)(uintptr_t)s.channel->session->shard, s.channel->session->shard_bytes,
		MADV_POPULATE_READ);
	s.failed = 0;
	for (unsigned r = 0; r < rounds; r++) {
		for (unsigned way = 0; way < WAYS; way++)
			rate[way][r] =
				(double)s.bytes * s.pages / way_seconds(&s, way, &slots[r]) / 1e9;
		ratio[r] = slots[r] > 0 ? rate[WINDOWED][r] / slots[r] : 0;
	}
	printf("slots %.4f\nslots_ratio %.4f\n", median(slots, rounds), median(ratio, rounds));
	for (unsigned way = 0; way < WAYS; way++)
		printf("%s %.4f\n", way_name[way], median(rate[way], rounds));
	printf("failed %lu\n", s.failed);
	pc_channel_close(s.channel);
	return 0;
}

/* ---- lookup ---------------------------------------------------------------------------------- */

static bool owned_elsewhere(struct pc_channel *ch, const char *key)
{
	struct map_owners owners;
	struct page_key hash;

	key_hash(&ch->key_text, key, KEY_TEXT_BYTES, &hash);
	if (!map_owners_load(&ch->session->status->map, map_slot_of(&hash), &owners))
		return false;
	for (unsigned k = 0; k < owners.owners; k++)
		if (owners.member[k].ref == ch->session->ref)
			return false;
	return true;
}

static void store_keys(struct pc *pc, char (*key)[KEY_TEXT_BYTES], unsigned keys)
{
	unsigned char bytes[LENGTH] = {1};
	struct batch_memory m = batch_new(1024);
	struct pc_channel *ch;

	if (pc_channel_open(pc, &ch))
		die("%s", pc_error());
	for (unsigned from = 0; from < keys; from += 1024) {
		unsigned n = keys - from < 1024 ? keys - from : 1024;

		for (unsigned i = 0; i < n; i++) {
			m.segment[i] = (struct pc_segment){bytes, LENGTH};
			memcpy(m.key[i], key[from + i], KEY_TEXT_BYTES);
		}
		if (pc_set(ch, m.page, n, 10000, m.result))
			die("%s", pc_error());
		for (unsigned i = 0; i < n; i++)
			if (m.result[i] != PC_HIT)
				die("a page was not stored: %s", pc_result_name(m.result[i]));
	}
	pc_channel_close(ch);
}

/*
 * Looks up `keys` keys and checks that each result is `expected`. Returns the number of keys per
 * second that were looked up through a rail.
 */
static double look_up(struct pc_channel *ch, struct batch_memory *m, unsigned batch,
	char (*key)[KEY_TEXT_BYTES], unsigned keys, enum pc_result expected)
{
	struct pc_counts before, after;
	uint64_t took = 0;

	pc_channel_counts(ch, &before);
	for (unsigned from = 0; from + batch <= keys; from += batch) {
		uint64_t start;

		for (unsigned i = 0; i < batch; i++)
			m->page[i].key = key[from + i];
		start = now_ns();
		if (pc_exists(ch, m->page, batch, 10000, m->result))
			die("%s", pc_error());
		took += now_ns() - start;
		for (unsigned i = 0; i < batch; i++)
			if (m->result[i] != expected)
				die("a key is \"%s\"", pc_result_name(m->result[i]));
	}
	pc_channel_counts(ch, &after);
	if (after.lookups - before.lookups < (uint64_t)keys / 10 * 9)
		die("the location cache answered more than a tenth of %u KEYS: use more", keys);
	return (double)(after.lookups - before.lookups) * 1e9 / (double)took;
}

static int lookup(struct pc *pc, struct pc *far, char **argument)
{
	unsigned keys = (unsigned)parse_number("KEYS", argument[0], 1, 1u << 24);
	unsigned batch = (unsigned)parse_number("BATCH", argument[1], 1, 65536);
	unsigned rounds = (unsigned)parse_number("ROUNDS", argument[2], 1, ROUNDS_MAX);
	char(*key)[KEY_TEXT_BYTES] = must(malloc(2ull * keys * sizeof(*key)));
	double rate[2][ROUNDS_MAX];
	struct batch_memory m = batch_new(batch);
	struct pc_channel *ch;
	enum pc_result result;
	uint64_t id = 0;

	if (pc_channel_open(pc, &ch))
		die("%s", pc_error());
	key_text(0, key[0]);
	m.page[0].key = key[0];
	pc_exists(ch, m.page, 1, 10000, &result); /* makes the channel read its map */
	if (!ch->map || ch->map->members <= ch->session->status->map.replicas)
		die("looking up needs more engines than cluster.replicas");
	for (unsigned k = 0; k < 2 * keys; id++) {
		key_text(mix64(seed) + id, key[k]);
		k += owned_elsewhere(ch, key[k]);
	}
	store_keys(far, key, keys);
	for (unsigned r = 0; r < rounds; r++) {
		rate[0][r] = look_up(ch, &m, batch, key, keys, PC_HIT);
		rate[1][r] = look_up(ch, &m, batch, key + keys, keys, PC_MISS);
	}
	printf("present %.0f\nabsent %.0f\n", median(rate[0], rounds), median(rate[1], rounds));
	pc_channel_close(ch);
	return 0;
}

int main(int argc, char **argv)
{
	const char *socket[SOCKETS_MAX];
	unsigned sockets = parse_sockets(NULL, socket);
	struct pc *near = open_session(socket[0], "perf");
	struct pc *far = sockets > 1 ? open_session(socket[sockets - 1], "perf") : near;
	int status = 2;

	seed = now_ns();
	if (argc == 8 && !strcmp(argv[1], "set"))
		status = set(near, argv + 2);
	else if (argc == 5 && !strcmp(argv[1], "lookup"))
		status = lookup(near, far, argv + 2);
	else
		fprintf(stderr,
			"client_calls: wrong arguments; they are listed at the top of perf/client_calls.c\n");
	if (far != near)
		pc_close(far);
	pc_close(near);
	return status;
}
