/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered ranges that another thread replaces between pages_init(), which finds them, and
 * pages_pin(): pages.c is included, and the replacement comes where the keys are hashed, between
 * the two.
 */
#include "engine/client/page/batch.h"
#include "engine/client/page/key.h"

#include <sys/mman.h>

static void keys_hash_and_replace(struct pc_batch *b);

#define keys_hash keys_hash_and_replace
#include "engine/client/call/pages.c"
#undef keys_hash

#include "tests/unit/client/rig_clock.h"

#define PAGES 4u
#define HALF_BYTES (1u << 20)

static unsigned char *range; /* two halves of one memfd */
static int range_fd;
static bool replaces;

static void range_register(unsigned from, unsigned halves)
{
	assert_int_equal(pc_memory_register(pc, range + from * HALF_BYTES, halves * HALF_BYTES,
				 range_fd, from * HALF_BYTES),
		0);
}

/* Each half gets a registration of its own in place of the one for both. */
static void keys_hash_and_replace(struct pc_batch *b)
{
	keys_hash(b);
	if (!replaces)
		return;
	replaces = false;
	assert_int_equal(pc_memory_release(pc, range), 0);
	range_register(0, 1);
	range_register(1, 1);
}

static void range_open(void)
{
	range_fd = memfd_create("pins", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	assert_int_equal(ftruncate(range_fd, 2 * HALF_BYTES), 0);
	range = mmap(NULL, 2 * HALF_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, range_fd, 0);
	assert_true(range != MAP_FAILED);
	range_register(0, 2);
}

static void pages_of_a_range_that_is_replaced_land_in_their_segments(void **state)
{
	struct one one[PAGES];
	struct pc_page page[PAGES];
	enum pc_result result[PAGES];

	range_open();
	for (unsigned k = 0; k < PAGES; k++) {
		unsigned char *at = range + k % 2 * HALF_BYTES + k / 2 * PAGE_BYTES;
		char name[16];

		snprintf(name, sizeof(name), "key-%u", k);
		fake_page(&fake, name, FAKE_A, 0, PAGE_BYTES);
		page[k] = *one_page(&one[k], name, at, PAGE_BYTES);
	}
	for (unsigned turn = 0; turn < 2; turn++) {
		replaces = turn == 1;
		memset(range, 0, 2 * HALF_BYTES);
		assert_int_equal(pc_get(ch, page, PAGES, PATIENCE_MS, result), 0);
		for (unsigned k = 0; k < PAGES; k++) {
			assert_int_equal(result[k], PC_HIT);
			assert_true(same(one[k].name, one[k].segment.base, 0, PAGE_BYTES));
		}
		assert_false(replaces);
		assert_int_equal(counts().bytes_staged, 0);
	}
	munmap(range, 2 * HALF_BYTES);
	close(range_fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(pages_of_a_range_that_is_replaced_land_in_their_segments),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
