/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages whose bytes do not have the CRC32C in their head: with verify always none is a hit, with a
 * sample as many as expected are, and each one found is reported to the engine. An engine may have
 * all compared.
 */
#include <errno.h>

#include "engine/abi/crc32c.h"
#include "engine/client/attach/attach.h"
#include "tests/unit/client/rig.h"

static struct ctl_op reported; /* the last CTL_CORRUPT; under the fake's lock */
static unsigned reports;

static uint32_t count_reports(struct fake *f, const struct ctl_op *op)
{
	if (op->kind != CTL_CORRUPT)
		return FAKE_DO;
	reported = *op;
	reports++;
	return FAKE_HOLD; /* no answer */
}

static int setup(void **state)
{
	int rc = rig_setup(state);

	reports = 0;
	LET(on_ctl, count_reports);
	return rc;
}

static int setup_always(void **state)
{
	rig_options.verify = PC_VERIFY_ALWAYS;
	return setup(state);
}

static int setup_never(void **state)
{
	rig_options.verify = PC_VERIFY_NEVER;
	return setup(state);
}

/* The engine says that all are compared, the client none. */
static int setup_engine(void **state)
{
	int rc = setup_never(state);

	LET(compare_all, true);
	pc_channel_close(ch);
	assert_int_equal(pc_channel_open(pc, &ch), 0);
	return rc;
}

static int setup_sample(void **state)
{
	rig_options.verify = PC_VERIFY_SAMPLE;
	rig_options.verify_one_in = 4;
	return setup(state);
}

/* A page of the cluster with its CRC in the head. Returns its place. */
static uint32_t proven(const char *name, uint32_t node, uint32_t rail, uint32_t bytes)
{
	uint32_t place = fake_page(&fake, name, node, rail, bytes);
	struct page_key key = fake_key(name);
	unsigned char *at;

	fake_lock(&fake);
	at = fake.node[node].pool[rail] + place_offset(place);
	page_head_prove(fake_head(&fake, node, place), &key, bytes, crc32c(0, at, bytes));
	fake_unlock(&fake);
	return place;
}

static void flip(uint32_t node, uint32_t place, uint32_t byte)
{
	fake_lock(&fake);
	fake.node[node].pool[place_rail(place)][place_offset(place) + byte] ^= 0x10;
	fake_unlock(&fake);
}

static unsigned char *memory(size_t bytes)
{
	void *at = NULL;

	assert_int_equal(pc_memory_alloc(pc, bytes, &at), 0);
	return at;
}

static unsigned reports_seen(void)
{
	unsigned n;

	fake_lock(&fake);
	n = reports;
	fake_unlock(&fake);
	return n;
}

static void is_reported(uint32_t node, uint32_t place)
{
	for (unsigned n = 0; n < PATIENCE_MS && !reports_seen(); n++)
		usleep(1000);
	fake_lock(&fake);
	assert_true(reports > 0);
	assert_int_equal(reported.ref, FAKE_REF(node));
	assert_int_equal(reported.place, place);
	assert_int_equal(reported.generation, 7);
	fake_unlock(&fake);
}

/* One page of the node, read into registered memory and through staging; then one bit flips. */
static void damaged_page_is_a_miss(uint32_t node, uint32_t bytes)
{
	unsigned char *registered = memory(bytes), *other = calloc(1, bytes);
	unsigned char *to[] = {registered, other};
	uint32_t place = proven("key-1", node, 1, bytes);

	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(get_one("key-1", to[i], bytes, PATIENCE_MS), PC_HIT);
		assert_true(same("key-1", to[i], 0, bytes));
	}
	assert_int_equal(verified().verified, 2);
	assert_int_equal(verified().corrupt, 0);
	assert_int_equal(reports_seen(), 0);
	flip(node, place, bytes - 1);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(get_one("key-1", to[i], bytes, PATIENCE_MS), PC_MISS);
	assert_int_equal(verified().verified, 2);
	assert_true(verified().corrupt >= 2);
	assert_int_equal(counts().misses, 2);
	is_reported(node, place);
	assert_int_equal(SEEN(stales), 0);
	free(other);
}

static void a_damaged_page_of_another_host_is_a_miss(void **state)
{
	damaged_page_is_a_miss(FAKE_A, PAGE_BYTES);
}

static void a_damaged_page_in_slices_is_a_miss(void **state)
{
	damaged_page_is_a_miss(FAKE_A, 3 * SLICE_BYTES + 4097);
}

static void a_damaged_page_of_this_host_is_a_miss(void **state)
{
	damaged_page_is_a_miss(FAKE_SELF, PAGE_BYTES);
}

/* Segments of lengths that are no multiple of anything, from here and from elsewhere. */
static void segments_are_compared_in_page_order(void **state)
{
	static const uint32_t bytes[] = {1, 4099, 37, 9000, 7343};
	struct pc_segment segment[5];
	unsigned char *at = memory(1 << 20);
	enum pc_result result;

	for (unsigned node = FAKE_SELF; node <= FAKE_A; node++) {
		const char *name = node == FAKE_SELF ? "here" : "there";
		struct pc_page page = {name, strlen(name), segment, 5};
		uint32_t place = proven(name, node, 0, PAGE_BYTES), from = 0;

		for (unsigned s = 0; s < 5; s++)
			segment[s] = (struct pc_segment){at + s * 16384 + s, bytes[s]};
		assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
		assert_int_equal(result, PC_HIT);
		assert_int_equal(verified().verified, node + 1);
		for (unsigned s = 0; s < 5; from += bytes[s++])
			assert_true(same(name, segment[s].base, from, bytes[s]));
		assert_int_equal(from, PAGE_BYTES);
		flip(node, place, 4099);
		assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
		assert_int_equal(result, PC_MISS);
	}
}

static uint32_t b_is_stale(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f, (void)rail;
	return op->kind == OP_PAGE && op->peer == FAKE_B ? OP_STALE : FAKE_DO;
}

/* The head of the second copy, whose READ brought nothing, proves nothing of the first one. */
static void bytes_of_a_damaged_copy_are_not_those_of_the_next(void **state)
{
	unsigned char *at = memory(1 << 20);

	flip(FAKE_A, proven("key-1", FAKE_A, 0, PAGE_BYTES), 5);
	fake_page(&fake, "key-1", FAKE_B, 0, PAGE_BYTES); /* without a CRC */
	LET(on_op, b_is_stale);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_STALE);
	assert_true(verified().corrupt >= 10);
	assert_int_equal(verified().verified, 0);
}

static void where_all_are_compared_a_page_without_a_crc_is_no_hit(void **state)
{
	unsigned char *at = memory(1 << 20);

	fake_page(&fake, "here", FAKE_SELF, 0, PAGE_BYTES);
	fake_page(&fake, "there", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(get_one("here", at, PAGE_BYTES, PATIENCE_MS), PC_MISS);
	assert_int_equal(get_one("there", at, PAGE_BYTES, PATIENCE_MS), PC_MISS);
	proven("proven", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(get_one("proven", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(verified().verified, 1);
}

static void without_verification_no_head_is_read(void **state)
{
	unsigned char *at = memory(1 << 20);
	uint32_t place = proven("key-1", FAKE_A, 0, PAGE_BYTES);

	flip(FAKE_A, place, 0);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(head_reads), 0);
	assert_int_equal(verified().verified + verified().corrupt, 0);
}

/*
 * Batches of pages that all are good: about one in four is compared, wherever it stands in its
 * batch. The bounds hold but for one run in more than 10^12: the distances are independent, with
 * mean 4 and variance 4.
 */
static void a_sample_compares_the_share_that_was_chosen(void **state)
{
	enum { PAGES = 32, ROUNDS = 200 };
	unsigned char *at = memory(PAGES * 4096);
	struct one one[PAGES];
	struct pc_page page[PAGES];
	enum pc_result result[PAGES];

	for (unsigned i = 0; i < PAGES; i++) {
		char name[16];

		snprintf(name, sizeof(name), "key-%u", i);
		proven(name, i % 2 ? FAKE_A : FAKE_SELF, i / 2 % 2, 4096);
		page[i] = *one_page(&one[i], name, at + i * 4096, 4096);
		page[i].key = one[i].name;
		page[i].segments = &one[i].segment;
	}
	for (unsigned round = 0; round < ROUNDS; round++) {
		assert_int_equal(pc_get(ch, page, PAGES, PATIENCE_MS, result), 0);
		for (unsigned i = 0; i < PAGES; i++)
			assert_int_equal(result[i], PC_HIT);
	}
	/* 6,400 hits: 1,600 on average, with a standard deviation of 20 */
	assert_in_range(verified().verified, 1600 - 160, 1600 + 160);
	assert_true(SEEN(head_reads) > 0);
	assert_true(SEEN(head_reads) < verified().verified);
}

static void a_sample_finds_a_damaged_page_in_the_end(void **state)
{
	unsigned char *at = memory(1 << 20);
	uint32_t place = proven("key-1", FAKE_A, 0, PAGE_BYTES);
	unsigned wrong = 0;

	flip(FAKE_A, place, 0);
	/* the distance is at most 7 */
	while (get_one("key-1", at, PAGE_BYTES, PATIENCE_MS) == PC_HIT)
		assert_true(++wrong < 8);
	assert_int_equal(verified().corrupt, 1);
	is_reported(FAKE_A, place);
}

static void wrong_options_are_refused(void **state)
{
	struct pc_options options = rig_options;
	struct pc *other;

	options.verify = 3;
	assert_int_equal(pc_open(&options, &other), -EINVAL);
	options.verify = PC_VERIFY_SAMPLE;
	options.verify_one_in = PC_VERIFY_ONE_IN_MAX + 1;
	assert_int_equal(pc_open(&options, &other), -EINVAL);
	assert_non_null(strstr(pc_error(), "1000000"));
}

#define ALWAYS(f) cmocka_unit_test_setup_teardown(f, setup_always, rig_teardown)
#define NEVER(f) cmocka_unit_test_setup_teardown(f, setup_never, rig_teardown)
#define ENGINE(f) cmocka_unit_test_setup_teardown(f, setup_engine, rig_teardown)
#define SAMPLE(f) cmocka_unit_test_setup_teardown(f, setup_sample, rig_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ALWAYS(a_damaged_page_of_another_host_is_a_miss),
		ALWAYS(a_damaged_page_in_slices_is_a_miss),
		ALWAYS(a_damaged_page_of_this_host_is_a_miss),
		ALWAYS(segments_are_compared_in_page_order),
		ALWAYS(bytes_of_a_damaged_copy_are_not_those_of_the_next),
		ENGINE(a_damaged_page_of_another_host_is_a_miss),
		ENGINE(a_damaged_page_in_slices_is_a_miss),
		ENGINE(a_damaged_page_of_this_host_is_a_miss),
		ENGINE(where_all_are_compared_a_page_without_a_crc_is_no_hit),
		NEVER(without_verification_no_head_is_read),
		SAMPLE(a_sample_compares_the_share_that_was_chosen),
		SAMPLE(a_sample_finds_a_damaged_page_in_the_end),
		ALWAYS(wrong_options_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
