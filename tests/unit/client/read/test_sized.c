/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_get_sized(): pages shorter than their room, as long, and longer; here, elsewhere and on a
 * disk. Behind the room nothing is written, and no byte of a hit is another page's.
 */
#include "engine/abi/crc32c.h"
#include "engine/abi/statistics.h"
#include "tests/unit/client/rig.h"

#define ROOM (1u << 20)
#define GUARD 0xa5

static unsigned char *registered;
static unsigned char *plain;

static int setup(void **state)
{
	int rc = rig_setup(state);
	void *at = NULL;

	assert_int_equal(pc_memory_alloc(pc, 4 * ROOM, &at), 0);
	registered = at;
	plain = malloc(4 * ROOM);
	return rc;
}

static int teardown(void **state)
{
	free(plain);
	return rig_teardown(state);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* A page of the cluster, with its CRC in its head. */
static uint32_t proven(const char *name, uint32_t node, uint32_t rail, uint32_t bytes)
{
	uint32_t place = fake_page(&fake, name, node, rail, bytes);
	struct page_key key = fake_key(name);

	fake_lock(&fake);
	page_head_prove(fake_head(&fake, node, place), &key, bytes,
		crc32c(0, fake.node[node].pool[rail] + place_offset(place), bytes));
	fake_unlock(&fake);
	return place;
}

/* A page without it. */
static uint32_t unproven(const char *name, uint32_t node, uint32_t rail, uint32_t bytes)
{
	return fake_page(&fake, name, node, rail, bytes);
}

/* Gets the page into `room` bytes at `at`, and looks at the bytes behind them. */
static enum pc_result get_sized(const char *name, unsigned char *at, uint32_t room, uint64_t *bytes)
{
	enum pc_result result = PC_PENDING;
	struct one o;

	memset(at, GUARD, room + 4096);
	*bytes = 77;
	assert_int_equal(
		pc_get_sized(ch, one_page(&o, name, at, room), 1, PATIENCE_MS, &result, bytes), 0);
	for (unsigned k = 0; k < 4096; k++)
		assert_int_equal(at[room + k], GUARD);
	return result;
}

static void hit(const char *name, unsigned char *at, uint32_t room, uint32_t stored)
{
	uint64_t bytes;

	assert_int_equal(get_sized(name, at, room, &bytes), PC_HIT);
	assert_int_equal(bytes, stored);
	assert_true(same(name, at, 0, stored));
}

static unsigned pages_read(void)
{
	return SEEN(pages[0]) + SEEN(pages[1]);
}

static void pages_of_any_length_are_hits_with_their_length(void **state)
{
	static const uint32_t stored[] = {1, 4095, 4096, 20000, SLICE_BYTES, 2 * SLICE_BYTES + 5};
	char name[64];

	for (unsigned n = 0; n < 2 * sizeof(stored) / sizeof(stored[0]); n++) {
		uint32_t bytes = stored[n / 2];

		for (unsigned node = FAKE_SELF; node <= FAKE_A; node++) {
			snprintf(name, sizeof(name), "page-%u-%u", n, node);
			(n % 2 ? proven : unproven)(name, node, n % 2, bytes);
			for (unsigned k = 0; k < 2; k++) {
				unsigned char *at = k ? registered : plain;

				hit(name, at, bytes, bytes);
				hit(name, at, bytes + 1, bytes);
				hit(name, at, 4096 + 2 * bytes, bytes);
				hit(name, at, 2 * ROOM, bytes);
			}
		}
	}
	assert_int_equal(SEEN(stales), 0);
}

static void a_shorter_page_costs_a_head_and_a_full_room_nothing(void **state)
{
	proven("key-1", FAKE_A, 0, 20000);
	fake_page(&fake, "key-2", FAKE_A, 0, 20000);
	hit("key-1", registered, 20000, 20000);
	assert_int_equal(pages_read(), 1);
	assert_int_equal(SEEN(head_reads), 0);
	hit("key-1", registered, 30000, 20000);
	hit("key-1", plain, 30000, 20000);
	assert_int_equal(pages_read(), 3);
	assert_int_equal(SEEN(head_reads), 2);
	hit("key-2", registered, 30000, 20000); /* no CRC proves what the first READ has brought */
	assert_int_equal(pages_read(), 5);
	assert_int_equal(SEEN(head_reads), 3);
	assert_int_equal(counts().bytes_read, 80000);
}

/* The pages that the channel's statistics count as failures. */
static unsigned others(void)
{
	return (unsigned)shm_load64(
		&ch->statistics->words.calls[STATISTICS_GET].result[STATISTICS_OTHER]);
}

static void a_longer_page_is_named_with_its_length(void **state)
{
	uint64_t bytes;

	fake_page(&fake, "here", FAKE_SELF, 0, 20000);
	fake_page(&fake, "there", FAKE_A, 0, 20000);
	assert_int_equal(get_sized("here", plain, 19999, &bytes), PC_LONGER);
	assert_int_equal(bytes, 20000);
	assert_int_equal(get_sized("there", registered, 1, &bytes), PC_LONGER);
	assert_int_equal(bytes, 20000);
	assert_int_equal(get_sized("there", plain, 19999, &bytes), PC_LONGER);
	assert_int_equal(bytes, 20000);
	assert_int_equal(get_sized("absent", plain, 20000, &bytes), PC_MISS);
	assert_int_equal(bytes, 0);
	assert_int_equal(others(), 0); /* it is an answer, no failure */
	assert_int_equal(get_one("there", plain, 30000, PATIENCE_MS), PC_INVALID);
	assert_int_equal(others(), 1);
	assert_int_equal(SEEN(stales), 0);
	assert_int_equal(pc_get_sized(ch, NULL, 0, 0, NULL, NULL), 0);
}

/* The READ of the room would leave the pool: its rail refuses it, also the run that it is in. */
static void a_page_at_the_end_of_its_pool_is_a_hit(void **state)
{
	enum pc_result result[3];
	uint64_t bytes[3];
	struct pc_page page[3];
	struct one o[3];

	for (unsigned i = 0; i < 3; i++) {
		char name[16];

		snprintf(name, sizeof(name), "key-%u", i);
		LET(node[FAKE_B].units_used[0], FAKE_UNITS - 3 + i);
		proven(name, FAKE_B, 0, 100 + i);
		page[i] = *one_page(&o[i], name, registered + i * 16384, 4097);
		page[i].key = o[i].name;
		page[i].segments = &o[i].segment;
	}
	assert_int_equal(pc_get_sized(ch, page, 3, PATIENCE_MS, result, bytes), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(result[i], PC_HIT);
		assert_int_equal(bytes[i], 100 + i);
		assert_true(same(o[i].name, registered + i * 16384, 0, 100 + i));
	}
	assert_int_equal(SEEN(stales), 0);
}

static unsigned failed;

/* The first READ of a page in its own length fails on its rail. */
static uint32_t fail_once(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f, (void)rail;
	return op->kind == OP_PAGE && op->page_bytes % 5000 && !failed++ ? OP_NIC_ERROR : FAKE_DO;
}

/* Segments of 5,000 bytes: the page ends in each of them once. Half of the pages have a CRC. */
static void a_shorter_page_fills_its_first_segments(void **state)
{
	enum { SEGMENTS = 4, EACH = 5000 };
	struct pc_segment segment[SEGMENTS];
	struct pc_page page = {.segments = segment, .segment_count = SEGMENTS};

	LET(on_op, fail_once);
	for (unsigned n = 0; n < 8 * SEGMENTS; n++) {
		unsigned char *at = n % 2 ? registered : plain;
		uint32_t bytes = n / 8 * EACH + 1 + n % 2 * 3000, left = bytes;
		uint64_t length = 0;
		enum pc_result result;
		char name[64];

		snprintf(name, sizeof(name), "key-%u", n);
		(n & 4 ? proven : unproven)(name, n & 2 ? FAKE_A : FAKE_SELF, 0, bytes);
		failed = 0;
		page.key = name;
		page.key_bytes = strlen(name);
		for (unsigned s = 0; s < SEGMENTS; s++)
			segment[s] = (struct pc_segment){at + s * 10000, EACH};
		assert_int_equal(pc_get_sized(ch, &page, 1, PATIENCE_MS, &result, &length), 0);
		assert_int_equal(result, PC_HIT);
		assert_int_equal(length, bytes);
		for (unsigned s = 0; left; s++) {
			uint32_t part = left < EACH ? left : EACH;

			assert_true(same(name, segment[s].base, bytes - left, part));
			left -= part;
		}
	}
}

static void a_holder_whose_page_is_longer_is_not_the_last(void **state)
{
	uint64_t bytes;

	proven("key-1", FAKE_A, 0, 9000);
	proven("key-1", FAKE_B, 0, 3000);
	hit("key-1", registered, 8000, 3000);
	hit("key-1", plain, 8000, 3000);
	assert_int_equal(get_sized("key-1", plain, 2000, &bytes), PC_LONGER);
	assert_true(bytes == 3000 || bytes == 9000);
}

static uint32_t a_lies(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f, (void)rail;
	return op->kind == OP_PAGE && op->peer == FAKE_A ? OP_STALE : FAKE_DO;
}

/* The rail of A calls each READ stale and brings nothing; then B has a longer page, which fits. */
static void what_a_stale_read_did_not_bring_is_no_page(void **state)
{
	uint64_t bytes;

	proven("key-1", FAKE_A, 0, 3000);
	fake_page(&fake, "key-2", FAKE_A, 0, 3000);
	LET(on_op, a_lies);
	for (unsigned k = 0; k < 2; k++) {
		assert_int_equal(
			get_sized("key-1", k ? plain : registered, 8000, &bytes), PC_STALE);
		assert_int_equal(bytes, 0);
		assert_int_equal(
			get_sized("key-2", k ? plain : registered, 8000, &bytes), PC_STALE);
	}
	proven("key-1", FAKE_B, 1, 8000);
	for (unsigned k = 0; k < 2; k++)
		hit("key-1", k ? plain : registered, 8000, 8000);
}

static void a_damaged_shorter_page_is_no_hit_if_pages_are_compared(void **state)
{
	uint32_t place = proven("key-1", FAKE_A, 0, 3000);
	uint64_t bytes;

	fake_lock(&fake);
	fake.node[FAKE_A].pool[0][place_offset(place) + 2999] ^= 1;
	fake_unlock(&fake);
	assert_int_equal(get_sized("key-1", registered, 8000, &bytes), PC_MISS);
	assert_int_equal(get_sized("key-1", plain, 8000, &bytes), PC_MISS);
	assert_int_equal(bytes, 0);
	assert_true(verified().corrupt >= 1);
}

static int setup_always(void **state)
{
	int rc;

	rig_options.verify = PC_VERIFY_ALWAYS;
	rc = setup(state);
	rig_options.verify = PC_VERIFY_NEVER;
	return rc;
}

/* All three at once, in runs: shorter, as long as the room, longer. */
static void a_batch_of_all_lengths(void **state)
{
	enum { PAGES = 96 };
	static struct one o[PAGES];
	static struct pc_page page[PAGES];
	enum pc_result result[PAGES];
	uint64_t bytes[PAGES];
	struct pc_batch *b;

	for (unsigned i = 0; i < PAGES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "key-%u", i);
		proven(name, i / 3 % FAKE_NODES, i % 2, 7999 + i % 3);
		page[i] = *one_page(&o[i], name, registered + i * 8192, 8000);
		page[i].key = o[i].name;
		page[i].segments = &o[i].segment;
	}
	assert_int_equal(pc_submit_get_sized(ch, page, PAGES, PATIENCE_MS, result, bytes, &b), 0);
	pc_wait(b);
	for (unsigned i = 0; i < PAGES; i++) {
		assert_int_equal(result[i], i % 3 == 2 ? PC_LONGER : PC_HIT);
		assert_int_equal(bytes[i], 7999 + i % 3);
		if (i % 3 < 2)
			assert_true(same(o[i].name, registered + i * 8192, 0, 7999 + i % 3));
	}
}

static uint32_t refuse_promotes(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_PROMOTE ? OP_INVALID : FAKE_DO;
}

static void say_length(struct fake *f, struct ctl_done *answer)
{
	if (answer->kind == CTL_PROMOTE)
		answer->length = 12345;
}

static void a_page_on_disk_is_asked_for_with_its_room(void **state)
{
	uint64_t bytes;

	fake_lock(&fake);
	shm_store(&fake.status->disk, 1);
	fake.promote_place = 0;
	fake.promote_generation = 0;
	fake_unlock(&fake);
	(void)get_sized("key-1", plain, 8000, &bytes);
	assert_int_equal(SEEN(last_promote.count), PROMOTE_ROOM);
	assert_int_equal(SEEN(last_promote.length), 8000);
	LET(on_ctl, refuse_promotes);
	LET(on_ctl_done, say_length);
	assert_int_equal(get_sized("key-1", plain, 8000, &bytes), PC_LONGER);
	assert_int_equal(bytes, 12345);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pages_of_any_length_are_hits_with_their_length),
		TEST(a_shorter_page_costs_a_head_and_a_full_room_nothing),
		TEST(a_longer_page_is_named_with_its_length),
		TEST(a_page_at_the_end_of_its_pool_is_a_hit),
		TEST(a_shorter_page_fills_its_first_segments),
		TEST(a_holder_whose_page_is_longer_is_not_the_last),
		TEST(what_a_stale_read_did_not_bring_is_no_page),
		cmocka_unit_test_setup_teardown(
			a_damaged_shorter_page_is_no_hit_if_pages_are_compared, setup_always,
			teardown),
		TEST(a_batch_of_all_lengths),
		TEST(a_page_on_disk_is_asked_for_with_its_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
