/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The short ways of a batch do what the long ones do: keys hashed four at a time, runs of look-ups
 * of every length at every place of an op ring, answers of plain runs. $SEED repeats a random test.
 */
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
	keys_hash(channel, b);
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
	struct page_key digest;

	(void)state;
	assert_non_null(channel);
	channel->cache = calloc(CACHE_SETS, sizeof(*channel->cache)); /* only prefetched */
	key_name_space("llama-70b/bf16", &digest);
	key_text_init(&channel->key_text, &digest);
	for (unsigned round = 0; round < 200; round++) {
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

	(void)state;
	fake_map(&fake, FAKE_NODES, 1, false);
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

/* ---- answers --------------------------------------------------------------------------------- */

static uint32_t hold(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f;
	(void)rail;
	return op->kind == OP_PAGE ? FAKE_HOLD : FAKE_DO;
}

/*
 * While a page is READ, another key takes its entry of the location cache: the hit does not confirm
 * the location of that key.
 */
static void a_hit_confirms_no_location_but_its_own(void **state)
{
	uint32_t old_ms = (uint32_t)(clock_now_ns() / 1000000) - 5000;
	struct location at = {FAKE_REF(FAKE_B), place_make(0, 1), 7};
	struct page_key mine = fake_key("page"), other = mine;
	struct cache_set *set;
	struct pc_batch *batch;
	enum pc_result result;
	struct one one;
	void *memory;
	uint32_t way;

	(void)state;
	assert_int_equal(pc_memory_alloc(pc, PAGE_BYTES, &memory), 0);
	fake_page(&fake, "page", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(
		pc_exists(ch, one_page(&one, "page", memory, PAGE_BYTES), 1, PATIENCE_MS, &result),
		0);
	set = cache_set(ch, &mine);
	way = cache_way(set, &mine);
	assert_int_not_equal(way, CACHE_WAYS);
	LET(on_op, hold);
	assert_int_equal(pc_submit_get(ch, one_page(&one, "page", memory, PAGE_BYTES), 1,
				 PATIENCE_MS, &result, &batch),
		0);
	SEEN_SOON(held_runs);
	cache_drop(ch, &mine);
	other.word[0] ^= 1;
	other.word[1] ^= 1; /* the same set */
	cache_put(ch, &other, &at, old_ms);
	assert_int_equal(cache_way(set, &other), way);
	fake_lock(&fake);
	fake.on_op = NULL;
	fake_answer_held(&fake);
	fake_unlock(&fake);
	pc_wait(batch);
	assert_int_equal(result, PC_HIT);
	assert_true(page_key_equal(&set->entry[way].key, &other));
	assert_int_equal(set->seen_ms[way], old_ms);
	assert_int_equal(set->entry[way].touched_ms, 0);
	assert_non_null(cache_find(ch, &mine));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(keys_hashed_together_hash_as_each_alone),
		RIG_TEST(lookup_runs_of_every_length_find_their_keys),
		RIG_TEST(a_hit_confirms_no_location_but_its_own),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
