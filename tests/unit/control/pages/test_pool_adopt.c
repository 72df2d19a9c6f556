/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption of a pool under random kills: a pool lives several lives over the same memory, each of
 * which ends at a random moment, also in the middle of a call. A model knows which units a client
 * may write, until when a slot rests, and which pages exist.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/control/pages/pool_inner.h"
#include "tests/unit/control/pages/pool_clock.h"

#define RAIL 3u
#define BYTES (16u << 20)
#define UNITS (BYTES / PAGE_UNIT)
#define LIVES 60u
#define STEPS 400u
#define CREDITS 24u /* credits that clients hold at most */

enum state { NOTHING, CREDIT, PAGE };

struct dir_target {
	enum state state;
	uint32_t units, generation, length, owner;
	struct page_key key;
	bool seen; /* adopt_page() or adopt_quarantined() has told of it */
};

static struct pool *pool;
static struct page_head *heads; /* the test's own mapping, which outlives each life */
static uint64_t random_state, now_ns, limbo_ns;
static struct dir_target at[UNITS]; /* by first unit */
static uint64_t rest_ns[UNITS];     /* no slot with this unit may be handed out before */
static uint32_t given[UNITS];       /* the last generation that was given out at this unit */
static uint32_t held[CREDITS + 1];  /* first units of the credits of clients */
static unsigned credits;
static uint64_t keys, adopted, quarantined, refused_pages;

static uint32_t any(uint32_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state % below);
}

static struct page_head *head_of(uint32_t unit)
{
	return &heads[unit];
}

static void prove(uint32_t unit, const struct dir_target *item)
{
	page_head_prove(head_of(unit), &item->key, item->length, any(1000));
}

static void rest(uint32_t unit, uint64_t until_ns)
{
	for (uint32_t i = 0; i < at[unit].units; i++)
		if (rest_ns[unit + i] < until_ns)
			rest_ns[unit + i] = until_ns;
	at[unit].state = NOTHING;
}

/* ---- the life of a pool ---------------------------------------------------------------------- */

static bool adopt_page(void *context, const struct page_head *head, uint32_t place)
{
	struct dir_target *item = &at[place_unit(place)];

	assert_null(context);
	assert_int_equal(place_rail(place), RAIL);
	assert_int_equal(item->state, PAGE);
	assert_false(item->seen);
	assert_int_equal(head->generation, item->generation);
	assert_int_equal(head->length, item->length);
	assert_true(page_key_equal(&head->key, &item->key));
	item->seen = true;
	adopted++;
	if (any(50))
		return true;
	refused_pages++; /* as if another slot had the key */
	rest(place_unit(place), now_ns + limbo_ns);
	return false;
}

static void adopt_quarantined(void *context, const struct pool_quarantined *slot)
{
	struct dir_target *item = &at[place_unit(slot->place)];

	assert_int_equal(item->state, CREDIT);
	assert_int_equal(item->generation, slot->generation);
	assert_int_equal(item->owner, slot->owner);
	/* its class may be that of longer pages */
	assert_in_range(slot->length, item->units * PAGE_UNIT, 2 * item->units * PAGE_UNIT);
	assert_false(item->seen);
	item->seen = true;
	quarantined++;
}

static int open_life(struct pool_adopt *adopt, uint64_t bytes)
{
	struct pool_options options = {.rail = RAIL,
		.bytes = bytes,
		.numa_node = 0,
		.limbo_ns = limbo_ns,
		.want_state = true,
		.adopt = adopt,
		.clock_ns = pool_time};

	pool_time_ns = now_ns;
	return pool_open(&options, &pool);
}

/* The first life. */
static void create(void)
{
	assert_int_equal(open_life(NULL, BYTES), 0);
	heads = mmap(NULL, UNITS * sizeof(*heads), PROT_READ | PROT_WRITE, MAP_SHARED,
		pool_heads(pool)->fd, 0);
	assert_ptr_not_equal(heads, MAP_FAILED);
}

static struct pool_adopt leftovers(void)
{
	return (struct pool_adopt){.memory_fd = dup(pool_memory(pool)->fd),
		.heads_fd = dup(pool_heads(pool)->fd),
		.state_fd = dup(pool_state_memory(pool)->fd),
		.page = adopt_page,
		.quarantined = adopt_quarantined};
}

static void take(void)
{
	static const uint32_t sizes[] = {1, 1, 2, 5, 64};
	uint32_t bytes = (sizes[any(5)] - 1) * PAGE_UNIT + 1 + any(PAGE_UNIT), place, generation;
	uint32_t unit, units = (bytes - 1) / PAGE_UNIT + 1;

	if (credits == CREDITS || take_at(pool, bytes, now_ns, &place, &generation) != 0)
		return;
	unit = place_unit(place);
	for (uint32_t i = 0; i < units; i++)
		assert_true(now_ns >= rest_ns[unit + i]);
	for (uint32_t other = unit < 64 ? 0 : unit - 64; other < unit + units; other++)
		if (at[other].state != NOTHING)
			assert_true(other + at[other].units <= unit);
	assert_true(generation > given[unit]);
	given[unit] = generation;
	at[unit] = (struct dir_target){.state = CREDIT,
		.units = units,
		.generation = generation,
		.length = bytes,
		.owner = 1 + any(UINT32_MAX),
		.key = {{++keys, 7}}};
	pool_own(pool, place, at[unit].owner);
	held[credits++] = unit;
}

/* Takes a random credit from those that clients hold, and returns its first unit. */
static uint32_t drop_credit(void)
{
	uint32_t i = any(credits), unit = held[i];

	held[i] = held[--credits];
	return unit;
}

static void publish_or_return(void)
{
	uint32_t unit, place;
	struct dir_target *item;

	if (!credits)
		return;
	unit = drop_credit();
	place = place_make(RAIL, unit);
	item = &at[unit];
	if (any(4) && !item->seen) { /* a client of an earlier life publishes nothing any more */
		prove(unit, item);
		assert_int_equal(
			pool_publish(pool, place, item->generation, &item->key, item->length), 0);
		item->state = PAGE;
		return;
	}
	assert_int_equal(return_at(pool, place, item->generation, now_ns), 0);
	rest(unit, now_ns + limbo_ns);
}

static void evict(void)
{
	struct pool_victim victim[4];
	unsigned n = pool_victims(pool, (1 + any(5)) * PAGE_UNIT, false, 4, victim);

	for (unsigned i = 0; i < n; i++) {
		uint32_t unit = place_unit(victim[i].place);

		assert_int_equal(at[unit].state, PAGE);
		assert_int_equal(retire_at(pool, victim[i].place, victim[i].generation, now_ns), 0);
		rest(unit, now_ns + limbo_ns);
	}
}

/* A kill between two stores of a call: leaves what the call has written until then. */
static void kill_inside(void)
{
	uint32_t *owner = pool_state_owners(pool_state_memory(pool)->base);
	uint32_t unit = credits ? held[any(credits)] : 0;
	struct dir_target *item = &at[unit];

	switch (any(5)) {
	case 0: /* of pool_publish(): the proof only */
		if (credits && !item->seen)
			prove(unit, item);
		break;
	case 1: /* of pool_publish(): half of the key is missing */
		if (credits && !item->seen) {
			prove(unit, item);
			head_of(unit)->length = item->length;
			head_of(unit)->key.word[0] = item->key.word[0];
		}
		break;
	case 2: /* of pool_publish(): the slot is still marked as owned */
		for (unit = any(UNITS); unit < UNITS; unit++) {
			if (at[unit].state == PAGE) {
				owner[unit] = 1;
				break;
			}
		}
		break;
	case 3: /* of pool_retire(): the new generation only */
		for (unit = any(UNITS); unit < UNITS; unit++) {
			if (at[unit].state == PAGE) {
				head_of(unit)->generation++;
				given[unit] = at[unit].generation;
				rest(unit, now_ns + 1);
				break;
			}
		}
		break;
	default: break;
	}
}

/*
 * Every page and every credit of the model was adopted; what was in limbo at the kill, or was
 * retired by half, rests anew.
 */
static void check_adopted(uint64_t killed_ns, uint64_t longest_ns)
{
	for (uint32_t unit = 0; unit < UNITS; unit++) {
		if (at[unit].state != NOTHING)
			assert_true(at[unit].seen);
		if (rest_ns[unit] > killed_ns && rest_ns[unit] < now_ns + longest_ns)
			rest_ns[unit] = now_ns + longest_ns;
		/* pages may be evicted; credits of earlier lives are only ever returned */
		if (at[unit].state == PAGE)
			at[unit].seen = false;
	}
}

static void begin(void)
{
	const char *seed = getenv("SEED");

	random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL) * 2 + 1;
	printf("SEED=%llu\n", (unsigned long long)random_state);
	memset(at, 0, sizeof(at));
	memset(rest_ns, 0, sizeof(rest_ns));
	memset(given, 0, sizeof(given));
	credits = 0;
	now_ns = 1;
	limbo_ns = 20;
	adopted = quarantined = refused_pages = 0;
}

static void pools_survive_random_kills(void **state)
{
	struct pool_adopt adopt;

	begin();
	create();
	for (unsigned life = 0; life < LIVES; life++) {
		uint64_t before_ns = limbo_ns, killed_ns;

		for (unsigned step = any(STEPS); step > 0; step--) {
			now_ns += any(4);
			switch (any(4)) {
			case 0:
			case 1: take(); break;
			case 2: publish_or_return(); break;
			default: evict(); break;
			}
		}
		kill_inside();
		killed_ns = now_ns;
		adopt = leftovers();
		pool_close(pool);
		now_ns += any(10);
		limbo_ns = 1 + any(40);
		for (uint32_t unit = 0; unit < UNITS; unit++)
			at[unit].seen = false;
		assert_int_equal(open_life(&adopt, BYTES), 0);
		check_adopted(killed_ns, before_ns > limbo_ns ? before_ns : limbo_ns);
	}
	pool_close(pool);
	printf("%u lives: %llu pages adopted, %llu not wanted, %llu slots in quarantine\n", LIVES,
		(unsigned long long)adopted, (unsigned long long)refused_pages,
		(unsigned long long)quarantined);
	assert_true(adopted && quarantined && refused_pages);
	munmap(heads, UNITS * sizeof(*heads));
}

/* Opens the leftovers after `damage` changed them; the pool must be refused, and not changed. */
static void refuse(uint64_t bytes, size_t offset, uint32_t value)
{
	struct pool_adopt adopt;
	uint32_t *word, before;
	struct pool *first;

	begin();
	create();
	for (unsigned i = 0; i < 20; i++)
		take();
	adopt = leftovers();
	word = (uint32_t *)((char *)pool_state_memory(pool)->base + offset);
	before = *word;
	*word = value;
	first = pool;
	assert_int_equal(open_life(&adopt, bytes), -EPROTO);
	*word = before;
	pool = first;
	adopt = leftovers();
	first = pool;
	assert_int_equal(open_life(&adopt, BYTES), 0);
	assert_int_equal(quarantined, credits);
	pool_close(pool);
	pool_close(first);
	munmap(heads, UNITS * sizeof(*heads));
}

static void a_pool_of_another_layout_or_geometry_is_refused_unchanged(void **state)
{
	const size_t units = sizeof(struct pool_state);

	refuse(BYTES, offsetof(struct pool_state, magic), 1);
	refuse(BYTES, offsetof(struct pool_state, layout), POOL_STATE_LAYOUT + 1);
	refuse(BYTES, offsetof(struct pool_state, rail), RAIL + 1);
	refuse(BYTES, offsetof(struct pool_state, chunks), 1);
	refuse(BYTES, offsetof(struct pool_state, chunk_units), 1);
	refuse(BYTES, offsetof(struct pool_state, numa_node), 1);
	refuse(BYTES, offsetof(struct pool_state, memory), 1);
	refuse(BYTES, offsetof(struct pool_state, heads), 1);
	refuse(BYTES, offsetof(struct pool_state, owners), 1);
	refuse(BYTES, units, UINT32_MAX);
	refuse(BYTES, units, BYTES / PAGE_UNIT + 1);
	refuse(2 * BYTES, units, 1);
	refuse(BYTES / 2, units, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pools_survive_random_kills),
		cmocka_unit_test(a_pool_of_another_layout_or_geometry_is_refused_unchanged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
