/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short ways of a batch do what the long ones do: keys hashed four at a time, runs of look-ups
 * of every length at every place of an op ring, answers of plain runs. $SEED repeats a random test.
 */
#include "config/clock.h"
#include "engine/client/page/batch.h"
#include "engine/client/page/cache.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/page/key.h"
#include "engine/client/attach/memory.h"
#include "tests/unit/client/rig.h"

#include <time.h>

#define KEYS 45u
#define LOOKUPS 70u

static uint64_t seed_of(const char *what)
{
	const char *text = getenv("SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);

	print_message("%s: SEED=%llu\n", what, (unsigned long long)seed);
	return seed;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static unsigned char key[KEYS][KEY_BYTES_MAX];

/*
 * Hashes `count` keys in one batch and compares each with its hash alone. `odd`: one key in this
 * number is of another length, or its page is invalid; 0: none.
 */
static void hash_batch(struct pc_channel *channel, unsigned count, unsigned odd, bool invalid)
{
	static struct pc_page pages[KEYS];
	struct pc_batch *b = calloc(1, sizeof(*b) + KEYS * sizeof(b->work[0]));

	assert_non_null(b);
	b->channel = channel;
	b->pages = pages;
	b->count = b->left = count;
	for (unsigned i = 0; i < count; i++) {
		bool other = odd && i % odd == odd - 1;

		pages[i] = (struct pc_page){
			key[i], other && !invalid ? 1 + i : KEY_BYTES_USUAL, NULL, 0};
		if (!other || !invalid)
			continue;
		pages[i].key = NULL;
		b->work[i].phase = PAGE_DONE;
		b->left--;
	}
	keys_hash(b);
	for (unsigned i = 0; i < count; i++) {
		struct page_key alone;

		if (b->work[i].phase == PAGE_DONE)
			continue;
		key_hash(&channel->key_text, key[i], pages[i].key_bytes, &alone);
		assert_true(page_key_equal(&alone, &b->work[i].key));
		assert_int_equal(b->work[i].cached, cache_index(&alone));
	}
	free(b);
}

static void keys_hashed_together_hash_as_each_alone(void **state)
{
	struct pc_channel *channel = calloc(1, sizeof(*channel));
	uint64_t seed = seed_of("keys");
	static const struct key_secret secret = {32, "0123456789abcdef0123456789abcdef"};
	struct key_space digest[2] = {0};

	assert_non_null(channel);
	channel->cache = calloc(CACHE_SETS, sizeof(*channel->cache)); /* only prefetched */
	assert_int_equal(key_name_space(NULL, "llama-70b/bf16", &digest[0]), 0);
	assert_int_equal(key_name_space(&secret, "llama-70b/bf16", &digest[1]), 0);
	for (unsigned round = 0; round < 200; round++) {
		key_text_init(&channel->key_text, &digest[round / 2 % 2], &(struct epoch){0, 0});
		for (unsigned i = 0; i < KEYS; i++)
			for (unsigned k = 0; k < KEY_BYTES_USUAL; k++)
				key[i][k] = (unsigned char)map_mix(seed++);
		if (round == 0) /* extremes: carries of all sums */
			memset(key, 0xff, sizeof(key));
		hash_batch(channel, 1 + round % KEYS, 0, false);
		hash_batch(channel, KEYS, 1 + round % 9, false);
		hash_batch(channel, KEYS, 1 + round % 9, true);
	}
	free(channel->cache);
	free(channel);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* Makes a batch of two pages, the second at `at`. Returns whether that may be READ into. */
static bool second_is_registered(struct pc_channel *channel, uintptr_t at, uint64_t *ret_to)
{
	struct pc_segment segment[2] = {
		{(void *)channel->memory[0].base, 4096}, {(void *)at, 4096}};
	struct pc_page pages[2] = {{"a", 1, &segment[0], 1}, {"b", 1, &segment[1], 1}};
	struct pc_batch *b = calloc(1, sizeof(*b) + 2 * sizeof(b->work[0]));
	enum pc_result results[2];
	bool registered;

	assert_non_null(b);
	b->channel = channel;
	b->kind = BATCH_GET;
	b->pages = pages;
	b->results = results;
	b->count = b->left = 2;
	pages_init(b, false);
	assert_true(b->work[0].regular);
	assert_int_equal(b->left, 2);
	registered = b->work[1].flags & PAGE_REGISTERED;
	assert_int_equal(registered, b->work[1].regular);
	assert_int_equal(registered, b->alike);
	*ret_to = b->work[1].to;
	free(b);
	return registered;
}

/* The bounds of the page before are those of a page that is like it. */
static void a_page_that_leaves_its_range_is_not_read_into(void **state)
{
	struct memory_view range = {.base = 1 << 20, .bytes = 3 * 4096 + 100, .region = 70};
	struct pc_channel *channel = calloc(1, sizeof(*channel));
	uintptr_t end = range.base + range.bytes;
	uint64_t to;

	assert_non_null(channel);
	channel->cache = calloc(CACHE_SETS, sizeof(*channel->cache));
	channel->memory = &range;
	channel->memories = 1;
	assert_true(second_is_registered(channel, range.base, &to));
	assert_true(to == (uint64_t)70 << OP_TO_BITS);
	assert_true(second_is_registered(channel, end - 4096, &to));
	assert_true(to == ((uint64_t)70 << OP_TO_BITS | (range.bytes - 4096)));
	assert_false(second_is_registered(channel, end - 4095, &to));
	assert_false(second_is_registered(channel, end, &to));
	assert_false(second_is_registered(channel, range.base - 1, &to));
	free(channel->cache);
	free(channel);
}

/* ---- look-ups -------------------------------------------------------------------------------- */

static void forget_all(void)
{
	memset(ch->cache, 0, CACHE_SETS * sizeof(*ch->cache));
}

/*
 * Every third key is absent. The calls take more ring entries than an op ring has, so that runs of
 * every length begin at many places of it.
 */
static void lookup_runs_of_every_length_find_their_keys(void **state)
{
	static char name[LOOKUPS][FAKE_NAME_BYTES];
	static struct pc_page pages[LOOKUPS];
	static enum pc_result results[LOOKUPS];
	unsigned at = 0;

	fake_map(&fake, FAKE_NODES, 1);
	for (unsigned i = 0; i < LOOKUPS; i++) {
		fake_name_owned(&fake, "look", FAKE_A + i % 2, &at, name[i]);
		pages[i] = (struct pc_page){name[i], strlen(name[i]), NULL, 0};
		if (i % 3)
			fake_page(&fake, name[i], FAKE_A, i % FAKE_RAILS, 4096);
	}
	for (unsigned round = 0; round < 30; round++)
		for (unsigned n = 1; n <= LOOKUPS; n++) {
			forget_all();
			assert_int_equal(pc_exists(ch, pages, n, PATIENCE_MS, results), 0);
			for (unsigned i = 0; i < n; i++)
				assert_int_equal(results[i], i % 3 ? PC_HIT : PC_MISS);
		}
}

/* An entry of another owner names a page of this host, which has been overwritten since. */
static void a_page_of_this_host_is_looked_at(void **state)
{
	char name[FAKE_NAME_BYTES];
	struct page_key own;
	unsigned at = 0;

	fake_map(&fake, FAKE_NODES, 1);
	fake_name_owned(&fake, "own", FAKE_A, &at, name);
	own = fake_key(name);
	fake_insert(&fake, &own, FAKE_A,
		&(struct dir_entry){
			.ref = FAKE_REF(FAKE_SELF), .place = place_make(0, 3), .generation = 5});
	assert_int_equal(exists_one(name, PATIENCE_MS), PC_MISS);
	SEEN_SOON(stales);
	assert_int_not_equal(SEEN(stales), 0);
}

/* ---- room ------------------------------------------------------------------------------------ */

#define MANY 8000u /* pages whose runs need more entries than two op rings have */
#define SMALL 64u  /* bytes of each */

static uint32_t say_hit(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? OP_HIT : FAKE_DO;
}

static void runs_wait_for_room_in_an_op_ring(void **state)
{
	static char name[MANY][16];
	static struct pc_page pages[MANY];
	static struct pc_segment segments[MANY];
	static enum pc_result results[MANY];
	struct location at = {FAKE_REF(FAKE_A), 0, 7};
	struct pc_batch *batch;
	void *memory;

	assert_true(MANY / RUN_PAGES_MAX * RUN_LINES_MAX > FAKE_RAILS * OP_RING_SLOTS);
	assert_int_equal(pc_memory_alloc(pc, MANY * SMALL, &memory), 0);
	assert_int_equal(exists_one("none", PATIENCE_MS), PC_MISS); /* the channel reads the map */
	for (unsigned i = 0; i < MANY; i++) {
		struct page_key of;

		snprintf(name[i], sizeof(name[i]), "%015u", i);
		of = fake_key(name[i]);
		at.place = place_make(0, i);
		cache_put(ch, &of, &at, 0);
		segments[i] = (struct pc_segment){(char *)memory + i * SMALL, SMALL};
		pages[i] = (struct pc_page){name[i], strlen(name[i]), &segments[i], 1};
	}
	fake_lock(&fake); /* the rails take nothing */
	fake.on_op = say_hit;
	assert_int_equal(pc_submit_get(ch, pages, MANY, PATIENCE_MS, results, &batch), 0);
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		assert_in_range(ch->rail[r].ops.tail - ch->rail[r].ops.shared->head,
			OP_RING_SLOTS - RUN_LINES_MAX, OP_RING_SLOTS);
	assert_false(ch->broken);
	fake_unlock(&fake);
	pc_wait(batch);
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(results[i], PC_HIT);
}

/* ---- answers --------------------------------------------------------------------------------- */

static uint32_t hold(struct fake *f, uint32_t rail, const struct op *op)
{
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

/*
 * Another key takes the entry of `mine`: after it was dropped, or because the set is full and it is
 * the oldest. *ret_ms: when the other key was seen, 4 to 5 s ago.
 */
static struct page_key replace(const struct page_key *mine, bool drop, uint32_t *ret_ms)
{
	uint32_t old_ms = (uint32_t)(clock_monotonic_ns() / 1000000) - 5000;
	struct location at = {FAKE_REF(FAKE_B), place_make(0, 1), 7};
	struct cache_set *set = cache_set(ch, mine);
	struct page_key other = *mine;

	if (drop)
		cache_drop(ch, mine);
	else
		set->seen_ms[cache_way(set, mine)] = old_ms - 1;
	for (unsigned k = 0; k < (drop ? 1 : CACHE_WAYS); k++) {
		other.word[0] += 1ull << 32; /* the same set, another key */
		other.word[1] += 1ull << 52;
		*ret_ms = old_ms + 100 * k;
		cache_put(ch, &other, &at, *ret_ms);
	}
	return other;
}

/*
 * While a page is READ, another key takes its entry of the location cache: the hit does not confirm
 * the location of that key.
 */
static void hit_after_replace(const char *name, bool drop)
{
	struct page_key mine = fake_key(name), other;
	struct cache_set *set = cache_set(ch, &mine);
	enum pc_result result;
	struct pc_batch *batch;
	struct one one;
	void *memory;
	uint32_t way, seen_ms;

	assert_int_equal(pc_memory_alloc(pc, PAGE_BYTES, &memory), 0);
	one_page(&one, name, memory, PAGE_BYTES);
	fake_page(&fake, name, FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(pc_exists(ch, &one.page, 1, PATIENCE_MS, &result), 0);
	way = cache_way(set, &mine);
	assert_int_not_equal(way, CACHE_WAYS);
	LET(on_op, hold);
	assert_int_equal(pc_submit_get(ch, &one.page, 1, PATIENCE_MS, &result, &batch), 0);
	SEEN_SOON(held_runs);
	other = replace(&mine, drop, &seen_ms);
	assert_int_equal(cache_way(set, &other), way);
	fake_lock(&fake);
	fake.on_op = NULL;
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	assert_int_equal(result, PC_HIT);
	assert_true(page_key_equal(&set->entry[way].key, &other));
	assert_int_equal(set->seen_ms[way], seen_ms);
	assert_int_equal(set->entry[way].touched_ms, 0);
	assert_non_null(cache_find(ch, &mine));
}

static void a_hit_confirms_no_location_but_its_own(void **state)
{
	hit_after_replace("dropped", true);
	hit_after_replace("replaced", false);
}

static uint64_t last_deadline_ns;

static void note_deadline(
	struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	if (run->head.kind == OP_RUN)
		last_deadline_ns = run->head.deadline_ns;
}

/* Reads a page in a run of its own. Returns the time that the run was given, ms. */
static uint32_t run_time(const char *name, void *memory)
{
	uint64_t now_ns = clock_monotonic_ns();

	LET(on_run, note_deadline);
	assert_int_equal(get_one(name, memory, PAGE_BYTES, 10000), PC_HIT);
	LET(on_run, NULL);
	return (uint32_t)((last_deadline_ns - now_ns) / 1000000);
}

static void a_page_with_another_location_gets_half_of_the_time(void **state)
{
	void *memory;

	assert_int_equal(pc_memory_alloc(pc, PAGE_BYTES, &memory), 0);
	fake_page(&fake, "one", FAKE_A, 0, PAGE_BYTES);
	fake_page(&fake, "two", FAKE_A, 0, PAGE_BYTES);
	fake_page(&fake, "two", FAKE_B, 0, PAGE_BYTES);
	assert_in_range(run_time("one", memory), 9000, 12000);
	assert_in_range(run_time("two", memory), 3000, 6000);
	assert_in_range(run_time("two", memory), 9000, 12000); /* from the cache: one location */
}

static void fail_run(struct fake *f, uint32_t rail, const struct fake_run *run, struct run_done *d)
{
	if (run->head.kind != OP_RUN)
		return;
	d->hit = d->stale = 0;
	d->status = OP_TIMEOUT;
}

/* Each page of a run that failed counts against the peer that was READ. */
static void a_failed_run_rests_its_peer_alone(void **state)
{
	struct one one[4];
	struct pc_page pages[4];
	enum pc_result results[4];
	unsigned char *memory;

	assert_int_equal(pc_memory_alloc(pc, 4 * PAGE_BYTES, (void **)&memory), 0);
	for (unsigned i = 0; i < 4; i++) {
		char name[FAKE_NAME_BYTES];

		snprintf(name, sizeof(name), "rest-%u", i);
		fake_page(&fake, name, FAKE_B, 0, PAGE_BYTES);
		pages[i] = *one_page(&one[i], name, memory + i * PAGE_BYTES, PAGE_BYTES);
	}
	assert_int_equal(pc_exists(ch, pages, 4, PATIENCE_MS, results), 0);
	LET(on_run, fail_run);
	assert_int_equal(pc_get(ch, pages, 4, PATIENCE_MS, results), 0);
	assert_true(SEEN(run_pages_max) > 1);
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(results[i], PC_UNREACHABLE);
	assert_true(ch->peer_rest_until_ns[FAKE_B]);
	assert_true(!ch->peer_rest_until_ns[FAKE_SELF] && !ch->peer_rest_until_ns[FAKE_A]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_hashed_together_hash_as_each_alone),
		cmocka_unit_test(a_page_that_leaves_its_range_is_not_read_into),
		RIG_TEST(lookup_runs_of_every_length_find_their_keys),
		RIG_TEST(a_page_of_this_host_is_looked_at),
		RIG_TEST(runs_wait_for_room_in_an_op_ring),
		RIG_TEST(a_hit_confirms_no_location_but_its_own),
		RIG_TEST(a_page_with_another_location_gets_half_of_the_time),
		RIG_TEST(a_failed_run_rests_its_peer_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
