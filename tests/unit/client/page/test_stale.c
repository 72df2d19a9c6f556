/* SPDX-License-Identifier: Apache-2.0 */
/* Directory entries that are wrong or out of date: their pages are never hits. */
#include "engine/client/attach/attach.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/attach/session.h"
#include "tests/unit/client/rig.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char *memory(size_t bytes)
{
	void *at = NULL;

	assert_int_equal(pc_memory_alloc(pc, bytes, &at), 0);
	return at;
}

static void retire(uint32_t node, uint32_t place)
{
	fake_lock(&fake);
	page_head_retire(fake_head(&fake, node, place));
	fake_unlock(&fake);
}

static void a_page_that_changed_before_a_local_copy_is_stale(void **state)
{
	unsigned char *at = calloc(1, PAGE_BYTES);
	uint32_t place = fake_page(&fake, "key-1", FAKE_SELF, 0, PAGE_BYTES);

	page_head_retire(fake_head(&fake, FAKE_SELF, place));
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_STALE);
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_MISS);
	free(at);
}

/*
 * Evicts the source of a copy during the copy: the copy faults on a write-protected memory page of
 * its destination, and the signal handler retires the page head and removes the protection.
 */
static struct {
	unsigned char *guard;
	struct page_head *head;
} trap;

static void retire_and_go_on(int number)
{
	(void)number;
	page_head_retire(trap.head);
	mprotect(trap.guard, 4096, PROT_READ | PROT_WRITE);
}

static void a_page_that_changes_during_a_local_copy_is_never_a_hit(void **state)
{
	struct sigaction before, action = {.sa_handler = retire_and_go_on};
	struct page_key key = fake_key("key-1");
	uint32_t bytes = 1u << 20, place;
	unsigned char *at =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	place = fake_page(&fake, "key-1", FAKE_SELF, 0, bytes);
	trap.head = fake_head(&fake, FAKE_SELF, place);
	/* Protect the first, a middle and the last memory page of the destination. */
	for (unsigned k = 0; k < 3; k++) {
		trap.guard = at + (bytes - 4096) / 8192 * k * 4096;
		shm_store(&trap.head->generation, 7);
		page_head_publish(trap.head, &key, bytes);
		mprotect(trap.guard, 4096, PROT_READ);
		sigaction(SIGSEGV, &action, &before);
		assert_int_equal(get_one("key-1", at, bytes, 5000), PC_STALE);
		sigaction(SIGSEGV, &before, NULL);
		/* A generation of 8 proves that the signal handler ran during the copy. */
		assert_int_equal(shm_load(&trap.head->generation), 8);
	}
	assert_int_equal(counts().hits_local, 0);
	munmap(at, bytes);
}

static void a_stale_page_is_reported_and_looked_up_again(void **state)
{
	unsigned char *at = memory(1 << 20);
	uint32_t old = fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES), place;

	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	fake_lock(&fake);
	retire(FAKE_A, old);
	place = fake_page(&fake, "key-1", FAKE_A, 1, PAGE_BYTES);
	fake_unlock(&fake);
	assert_int_not_equal(place, old);
	memset(at, 0, PAGE_BYTES);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, PAGE_BYTES));
	assert_int_equal(SEEN(stales), 1);
	assert_int_equal(fake.last_stale.place, old);
	assert_int_equal(fake.last_stale.ref, FAKE_REF(FAKE_A));
	assert_int_equal(fake.last_stale.generation, 7);
}

static void a_page_that_stays_stale_is_looked_up_once_more(void **state)
{
	unsigned char *at = memory(1 << 20);
	uint32_t place = fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);

	retire(FAKE_A, place);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_STALE);
	assert_int_equal(SEEN(pages[0]) + SEEN(pages[1]), 1);
	assert_int_equal(counts().stale, 1);
}

static void another_copy_is_read_when_the_first_is_stale(void **state)
{
	unsigned char *at = memory(1 << 20);
	uint32_t a = fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	uint32_t b = fake_page(&fake, "key-1", FAKE_B, 0, PAGE_BYTES);

	(void)b;
	retire(FAKE_A, a);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, PAGE_BYTES));
}

static void a_copy_of_another_length_hides_no_other_copy(void **state)
{
	static const uint32_t length[] = {PAGE_BYTES, PAGE_BYTES - 4096, PAGE_BYTES + 4096};
	unsigned char *at = memory(1 << 20);

	for (uint32_t node = FAKE_SELF; node <= FAKE_B; node++)
		fake_page(&fake, "key-1", node, 0, length[node]);
	for (uint32_t node = FAKE_SELF; node <= FAKE_B; node++) {
		memset(at, 0, PAGE_BYTES + 4096);
		assert_int_equal(get_one("key-1", at, length[node], PATIENCE_MS), PC_HIT);
		assert_true(same("key-1", at, 0, length[node]));
		assert_int_equal(set_one("key-1", at, length[node], PATIENCE_MS), PC_HIT);
	}
	assert_int_equal(get_one("key-1", at, PAGE_BYTES - 1, PATIENCE_MS), PC_INVALID);
	assert_int_equal(set_one("key-1", at, PAGE_BYTES - 1, PATIENCE_MS), PC_INVALID);
	assert_int_equal(SEEN(publishes), 0);
	assert_int_equal(SEEN(stales), 0);
}

static void a_local_place_outside_the_pool_is_refused(void **state)
{
	struct page_key key = fake_key("key-1");
	unsigned char at[64];

	for (unsigned rail = 0; rail < RAILS_MAX; rail += 2) {
		fake_insert(&fake, &key, FAKE_NODES,
			&(struct dir_entry){.ref = FAKE_REF(FAKE_SELF),
				.place = place_make(rail, PAGE_UNITS_MAX - 1),
				.generation = 7});
		assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_STALE);
	}
}

/* Its head says so: it is in shared memory. */
static void a_local_page_that_begins_in_the_pool_and_ends_outside_is_refused(void **state)
{
	uint32_t place = place_make(0, FAKE_UNITS - 1);
	struct page_key key = fake_key("key-1");
	unsigned char at[2 * PAGE_UNIT];

	fake_lock(&fake);
	fake_head(&fake, FAKE_SELF, place)->generation = 7;
	page_head_publish(fake_head(&fake, FAKE_SELF, place), &key, sizeof(at));
	fake_unlock(&fake);
	fake_insert(&fake, &key, FAKE_NODES,
		&(struct dir_entry){.ref = FAKE_REF(FAKE_SELF), .place = place, .generation = 7});
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_STALE);
}

static void a_local_place_of_a_rail_that_the_engine_does_not_have_is_refused(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_SELF, FAKE_RAILS - 1, sizeof(at));
	pc->session->rails--;
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_STALE);
	pc->session->rails++;
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
}

static void two_stale_copies_are_tried_once_each(void **state)
{
	unsigned char *at = memory(1 << 20);

	retire(FAKE_A, fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES));
	retire(FAKE_B, fake_page(&fake, "key-1", FAKE_B, 0, PAGE_BYTES));
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_STALE);
	assert_true(SEEN(pages[0]) <= 4);
}

static void a_stale_location_is_not_remembered(void **state)
{
	struct page_key key = fake_key("key-1");
	unsigned char *at = memory(1 << 20);

	retire(FAKE_A, fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES));
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_STALE);
	fake_lock(&fake);
	for (unsigned n = 0; n < FAKE_NODES; n++)
		memset(&fake.node[n].shard[dir_bucket_first(&key, FAKE_BITS)], 0,
			sizeof(struct bucket));
	fake_unlock(&fake);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_MISS);
}

static void a_remote_page_of_another_length_is_invalid_and_stays(void **state)
{
	unsigned char *at = memory(1 << 20);

	fake_page(&fake, "key-1", FAKE_A, 1, PAGE_BYTES);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES - 1, PATIENCE_MS), PC_INVALID);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES + 1, PATIENCE_MS), PC_INVALID);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(stales), 0);
}

/* The first READ of the page, and the first of its head, fail. */
static unsigned page_reads, head_reads;

static uint32_t fail_once(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f;
	(void)rail;
	if (op->kind == OP_PAGE)
		return page_reads++ ? FAKE_DO : OP_NIC_ERROR;
	if (op->region != REGION_SHARD)
		return head_reads++ ? FAKE_DO : OP_NIC_ERROR;
	return FAKE_DO;
}

/* The rail that failed to READ the page may READ its head, after the other one failed to. */
static void a_page_of_another_length_stays_when_each_rail_failed_once(void **state)
{
	unsigned char *at = memory(1 << 20);

	fake_page(&fake, "key-1", FAKE_A, 1, PAGE_BYTES);
	page_reads = head_reads = 0;
	LET(on_op, fail_once);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES - 1, PATIENCE_MS), PC_INVALID);
	LET(on_op, NULL);
	assert_true(page_reads > 1 && head_reads > 1);
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(SEEN(stales), 0);
}

static uint32_t page_status;

static uint32_t answer_pages(struct fake *f, uint32_t rail, const struct op *op)
{
	(void)f;
	(void)rail;
	return op->kind == OP_PAGE ? page_status : FAKE_DO;
}

static void a_refused_read_of_a_valid_page_is_invalid(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	page_status = OP_INVALID;
	LET(on_op, answer_pages);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_INVALID);
	fake_lock(&fake);
	page_status = OP_STALE; /* a wrong answer: the page head is valid */
	fake_unlock(&fake);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_STALE);
}

/* Some of the refs share a slot of the library's hash table with the ref of a live member. */
static void the_ref_of_a_dead_node_finds_no_live_member(void **state)
{
	struct page_key key = fake_key("key-1");
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	for (unsigned node = 0; node < FAKE_NODES; node++)
		memset(&fake.node[node].shard[dir_bucket_first(&key, FAKE_BITS)], 0,
			sizeof(struct bucket));
	assert_int_equal(exists_one("other", PATIENCE_MS), PC_MISS);
	for (uint32_t ref = 0x10000; ref < 0x13000; ref++)
		assert_null(map_by_ref(ch, ref));
	assert_non_null(map_by_ref(ch, FAKE_REF(FAKE_B)));
	assert_null(map_by_ref(ch, 0));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(a_page_that_changed_before_a_local_copy_is_stale),
		RIG_TEST(a_page_that_changes_during_a_local_copy_is_never_a_hit),
		RIG_TEST(a_stale_page_is_reported_and_looked_up_again),
		RIG_TEST(a_page_that_stays_stale_is_looked_up_once_more),
		RIG_TEST(another_copy_is_read_when_the_first_is_stale),
		RIG_TEST(a_copy_of_another_length_hides_no_other_copy),
		RIG_TEST(a_local_place_outside_the_pool_is_refused),
		RIG_TEST(a_local_page_that_begins_in_the_pool_and_ends_outside_is_refused),
		RIG_TEST(a_local_place_of_a_rail_that_the_engine_does_not_have_is_refused),
		RIG_TEST(two_stale_copies_are_tried_once_each),
		RIG_TEST(a_stale_location_is_not_remembered),
		RIG_TEST(a_remote_page_of_another_length_is_invalid_and_stays),
		RIG_TEST(a_page_of_another_length_stays_when_each_rail_failed_once),
		RIG_TEST(a_refused_read_of_a_valid_page_is_invalid),
		RIG_TEST(the_ref_of_a_dead_node_finds_no_live_member),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
