/* SPDX-License-Identifier: Apache-2.0 */
/* More page sizes than a pool has records of them: what waits is counted where it was. */
#include "tests/unit/control/ctl_world.h"

#define LENGTH (64u << 10)
#define OTHER (32u << 10)

static struct client client, other;

static struct evict_class *class_at(unsigned i)
{
	return &control.evict->rail[0].class[i];
}

/* Credits of one size take all of the pool; the other records belong to sizes with pages. */
static void fill_pool_and_records(void)
{
	while (pool_free(control.rail[0].pool, LENGTH))
		assert_int_equal(take(&client, 0, LENGTH).status, OP_HIT);
	for (unsigned i = 0; i < CLASSES_MAX; i++)
		if (!class_at(i)->units)
			*class_at(i) = (struct evict_class){.units = 1000 + i, .held = 1};
}

static struct evict_class *record_free(void)
{
	for (unsigned i = 0; i < CLASSES_MAX; i++)
		if (class_at(i)->units >= 1000 && !class_at(i)->waiting) {
			class_at(i)->held = 0;
			return class_at(i);
		}
	return NULL;
}

static uint64_t waiting(void)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < CLASSES_MAX; i++)
		sum += class_at(i)->waiting;
	return sum;
}

static void request(struct client *c, unsigned count, uint64_t deadline_ns)
{
	put(c, (struct ctl_op){.kind = CTL_CREDIT,
		       .count = (uint16_t)count,
		       .length = OTHER,
		       .deadline_ns = deadline_ns});
	turns();
}

/* It shares the record of another size; then it gets one of its own, in which nothing waits. */
static void a_request_ends_in_the_record_in_which_it_waits(void **state)
{
	const uint64_t deadline_ns = now + 1000000000ull;
	struct ctl_done done;

	client_open(&client, 1);
	client_open(&other, 2);
	fill_pool_and_records();
	request(&other, 3, deadline_ns);
	assert_int_equal(waiting(), 3);
	assert_non_null(record_free());
	request(&client, 2, deadline_ns);
	assert_int_equal(waiting(), 5);
	client_close(&other);
	assert_int_equal(waiting(), 2);
	/* one slot is found, the other one is refused at the deadline */
	assert_non_null(record_free());
	pass_time_to(deadline_ns + 1, deadline_ns + 1);
	assert_int_equal(waiting(), 0);
	assert_true(got(&client, &done));
	assert_int_equal(done.status, OP_NO_SPACE);
	client_close(&client);
}

/* What is known of a size outlives its last page, as long as no other size needs its record. */
static void a_record_is_not_reused_while_one_is_unused(void **state)
{
	struct evict_class *mine = evict_class_of(control.evict, 0, LENGTH);

	for (uint32_t units = 1000; units < 1000 + CLASSES_MAX - 1; units++)
		assert_ptr_not_equal(evict_class_of(control.evict, 0, units * PAGE_UNIT), mine);
	assert_ptr_equal(evict_class_of(control.evict, 0, LENGTH), mine);
}

/* A record in which something waits is given to no other size. */
static void a_record_is_not_reused_while_something_waits_in_it(void **state)
{
	struct evict_class *mine;

	client_open(&client, 1);
	fill_pool_and_records();
	mine = record_free();
	request(&client, 3, now + 1000000000ull);
	assert_int_equal(mine->units, OTHER / PAGE_UNIT);
	assert_int_equal(mine->waiting, 3);
	mine->held = 0;
	for (uint32_t units = 2000; units < 2000 + 2 * CLASSES_MAX; units++)
		(void)evict_class_of(control.evict, 0, units * PAGE_UNIT);
	assert_int_equal(mine->units, OTHER / PAGE_UNIT);
	client_close(&client);
	assert_int_equal(waiting(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_request_ends_in_the_record_in_which_it_waits),
		TEST(a_record_is_not_reused_while_one_is_unused),
		TEST(a_record_is_not_reused_while_something_waits_in_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
