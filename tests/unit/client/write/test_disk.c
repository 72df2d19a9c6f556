/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that the directory names on a disk: their holder brings them into memory for a get. */
#include "tests/unit/client/rig.h"

static unsigned char *memory(void)
{
	void *at = NULL;

	assert_int_equal(pc_memory_alloc(pc, 1 << 20, &at), 0);
	return at;
}

/*
 * The page is on the disk of `node`; a promote brings it to the place that is returned. Its entry
 * in the directory is that of the page on disk.
 */
static uint32_t on_disk(const char *name, uint32_t node)
{
	struct page_key key = fake_key(name);
	uint32_t place = fake_page(&fake, name, node, 0, PAGE_BYTES);
	uint32_t owner[REPLICAS_MAX], n = fake_owners(&fake, &key, owner);

	fake_lock(&fake);
	for (uint32_t k = 0; k < n; k++)
		for (unsigned which = 0; which < 2; which++) {
			uint32_t first = dir_bucket_first(&key, FAKE_BITS);
			uint32_t at =
				which ? dir_bucket_other(first, dir_tag(&key), FAKE_BITS) : first;
			struct bucket *b = &fake.node[owner[k]].shard[at];

			for (unsigned e = 0; e < BUCKET_ENTRIES; e++)
				if (b->entry[e].tag == dir_tag(&key)) {
					b->entry[e].place = place_make(PLACE_DISK, 77);
					b->entry[e].generation = 3;
				}
		}
	fake.promote_place = place;
	fake.promote_generation = 7;
	fake_unlock(&fake);
	return place;
}

static void a_page_on_the_disk_of_another_host_is_promoted_and_read(void **state)
{
	unsigned char *at = memory();

	on_disk("key-1", FAKE_A);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, PAGE_BYTES));
	assert_int_equal(SEEN(promotes), 1);
	assert_int_equal(fake.last_promote.ref, FAKE_REF(FAKE_A));
	assert_int_equal(fake.last_promote.length, PAGE_BYTES);
	assert_int_equal(fake.last_promote.count, 0);
	/* the touch that ends its pin is sent, and is not left out for the next page either */
	SEEN_SOON(touches);
	assert_int_equal(SEEN(touches), 1);
	assert_int_equal(counts().hits_remote, 1);
	/* its new place is remembered */
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(promotes), 1);
	assert_int_equal(SEEN(stales), 0);
}

/* A pin must end although the location cache has told the engine of the page a moment ago. */
static void the_touch_of_a_promoted_page_is_never_left_out(void **state)
{
	unsigned char *at = memory();
	uint32_t place;

	place = fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	SEEN_SOON(touches);
	fake_lock(&fake);
	page_head_retire(fake_head(&fake, FAKE_A, place));
	fake_unlock(&fake);
	on_disk("key-1", FAKE_A);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(promotes), 1);
	for (unsigned n = 0; n < PATIENCE_MS && SEEN(touches) < 2; n++)
		usleep(1000);
	assert_int_equal(SEEN(touches), 2);
}

static void a_page_on_this_hosts_disk_is_copied_from_its_pool(void **state)
{
	unsigned char *at = calloc(1, PAGE_BYTES);

	on_disk("key-1", FAKE_SELF);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, PAGE_BYTES));
	assert_int_equal(fake.last_promote.ref, FAKE_REF(FAKE_SELF));
	assert_int_equal(counts().hits_local, 1);
	free(at);
}

static void a_page_in_memory_is_preferred_to_one_on_disk(void **state)
{
	unsigned char *at = memory();
	struct page_key key = fake_key("key-1");

	fake_page(&fake, "key-1", FAKE_B, 0, PAGE_BYTES);
	for (uint32_t node = 0; node < FAKE_NODES; node++)
		fake_insert(&fake, &key, node,
			&(struct dir_entry){.ref = FAKE_REF(FAKE_SELF),
				.place = place_make(PLACE_DISK, 1),
				.generation = 3});
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(promotes) + SEEN(wants), 0);
}

static void an_exists_is_a_hit_and_a_hint(void **state)
{
	on_disk("key-1", FAKE_A);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	SEEN_SOON(wants);
	assert_int_equal(SEEN(wants), 1);
	assert_int_equal(SEEN(promotes), 0);
	assert_int_equal(fake.last_promote.ref, FAKE_REF(FAKE_A));
}

static void a_set_of_another_length_searches_no_disk(void **state)
{
	unsigned char *at = calloc(1, PAGE_BYTES);

	LET(status->disk, 1);
	fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(set_one("key-1", at, PAGE_BYTES - 1, PATIENCE_MS), PC_INVALID);
	assert_int_equal(SEEN(promotes), 0);
	free(at);
}

static void a_set_stores_the_page_in_memory_all_the_same(void **state)
{
	unsigned char *at = calloc(1, PAGE_BYTES);

	on_disk("key-1", FAKE_A);
	fill("key-1", at, PAGE_BYTES);
	assert_int_equal(set_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(publishes), 1);
	assert_int_equal(SEEN(promotes), 0);
	free(at);
}

/* How the engine answers each CTL_PROMOTE, as a fake_ctl_hook. */
static uint32_t promote_answer;

static uint32_t answer_promote(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_PROMOTE ? promote_answer : FAKE_DO;
}

static void answer_with(uint32_t status)
{
	fake_lock(&fake);
	promote_answer = status;
	fake.on_ctl = answer_promote;
	fake_unlock(&fake);
}

/* This host's own engine knows better than the directory. */
static void an_exists_of_a_page_on_this_hosts_disk_asks_the_engine(void **state)
{
	on_disk("key-1", FAKE_SELF);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	answer_with(OP_MISS);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
	assert_int_equal(SEEN(wants), 0);
}

static void a_page_that_its_holder_does_not_have_is_reported_and_a_miss(void **state)
{
	unsigned char *at = memory();

	on_disk("key-1", FAKE_A);
	answer_with(OP_MISS);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_STALE);
	SEEN_SOON(stales);
	assert_int_equal(SEEN(promotes), 1);
	assert_int_equal(SEEN(stales), 1);
	assert_int_equal(fake.last_stale.ref, FAKE_REF(FAKE_A));
	assert_int_equal(fake.last_stale.place, place_make(PLACE_DISK, 77));
	assert_int_equal(fake.last_stale.generation, 3);
}

/* Not a miss: the page may be there. And no report: the entry may be right. */
static void a_holder_that_cannot_serve_now_makes_the_page_unreachable(void **state)
{
	unsigned char *at = memory();

	on_disk("key-1", FAKE_A);
	answer_with(OP_TIMEOUT);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_UNREACHABLE);
	answer_with(OP_PEER_DOWN);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_UNREACHABLE);
	assert_int_equal(SEEN(stales), 0);
	LET(on_ctl, NULL);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
}

/* The disk of A has the page with another length. */
static uint32_t differ_at_a(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_PROMOTE && op->ref != FAKE_REF(FAKE_B) ? OP_INVALID : FAKE_DO;
}

static void a_page_of_another_length_on_one_disk_hides_no_other_disk(void **state)
{
	unsigned char *at = memory();
	struct page_key key = fake_key("key-1");

	on_disk("key-1", FAKE_B);
	for (uint32_t node = 0; node < FAKE_NODES; node++)
		for (uint32_t holder = FAKE_SELF; holder <= FAKE_A; holder++)
			fake_insert(&fake, &key, node,
				&(struct dir_entry){.ref = FAKE_REF(holder),
					.place = place_make(PLACE_DISK, 5),
					.generation = 4});
	LET(on_ctl, differ_at_a);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, PAGE_BYTES));
	assert_int_equal(SEEN(stales), 0);
}

static void a_page_of_another_length_on_every_disk_is_invalid(void **state)
{
	unsigned char *at = memory();

	LET(status->disk, 1);
	answer_with(OP_INVALID);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_INVALID);
	assert_int_equal(SEEN(promotes), 1);
	on_disk("key-1", FAKE_A);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_INVALID);
	assert_int_equal(SEEN(stales), 0);
}

static void without_an_answer_the_call_ends_at_its_deadline(void **state)
{
	unsigned char *at = memory();

	on_disk("key-1", FAKE_A);
	answer_with(FAKE_HOLD);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, 50), PC_TIMEOUT);
}

/* The second holder has it in memory: half of the time is kept for it. */
static void a_holder_that_does_not_answer_leaves_time_for_another(void **state)
{
	unsigned char *at = memory();
	struct page_key key = fake_key("key-1");

	on_disk("key-1", FAKE_A);
	answer_with(OP_TIMEOUT);
	for (uint32_t node = 0; node < FAKE_NODES; node++)
		fake_insert(&fake, &key, node,
			&(struct dir_entry){.ref = FAKE_REF(FAKE_B),
				.place = place_make(PLACE_DISK, 5),
				.generation = 4});
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_UNREACHABLE);
	/* each holder once, and after the second look-up, which leaves the last one out, one */
	assert_int_equal(SEEN(promotes), 3);
}

/* An answer that names a disk again would lead to the same request for ever. */
static void an_answer_with_a_place_on_disk_is_none(void **state)
{
	unsigned char *at = memory();

	on_disk("key-1", FAKE_A);
	LET(promote_place, place_make(PLACE_DISK, 1));
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_UNREACHABLE);
	assert_true(SEEN(promotes) <= 2);
}

/* The promoted page was evicted before it was READ: the head tells. */
static void a_place_that_is_stale_already_is_reported(void **state)
{
	unsigned char *at = memory();

	on_disk("key-1", FAKE_A);
	LET(promote_generation, 6);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_STALE);
	SEEN_SOON(stales);
	assert_true(SEEN(stales) >= 1);
	assert_true(SEEN(promotes) <= 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_page_on_the_disk_of_another_host_is_promoted_and_read),
		RIG_TEST(the_touch_of_a_promoted_page_is_never_left_out),
		RIG_TEST(a_page_on_this_hosts_disk_is_copied_from_its_pool),
		RIG_TEST(a_page_in_memory_is_preferred_to_one_on_disk),
		RIG_TEST(an_exists_is_a_hit_and_a_hint),
		RIG_TEST(an_exists_of_a_page_on_this_hosts_disk_asks_the_engine),
		RIG_TEST(a_set_of_another_length_searches_no_disk),
		RIG_TEST(a_set_stores_the_page_in_memory_all_the_same),
		RIG_TEST(a_page_that_its_holder_does_not_have_is_reported_and_a_miss),
		RIG_TEST(a_holder_that_cannot_serve_now_makes_the_page_unreachable),
		RIG_TEST(a_page_of_another_length_on_one_disk_hides_no_other_disk),
		RIG_TEST(a_page_of_another_length_on_every_disk_is_invalid),
		RIG_TEST(without_an_answer_the_call_ends_at_its_deadline),
		RIG_TEST(a_holder_that_does_not_answer_leaves_time_for_another),
		RIG_TEST(an_answer_with_a_place_on_disk_is_none),
		RIG_TEST(a_place_that_is_stale_already_is_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
