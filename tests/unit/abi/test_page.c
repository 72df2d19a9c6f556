/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places and page heads (engine/abi/page.h): what page_head_is() answers for each state in which
 * the control plane leaves a head.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "engine/abi/page.h"

static const struct page_key key = {{11, 22}}, other = {{11, 23}}, no_key = {{0, 0}};

static void a_place_contains_its_rail_and_unit(void **state)
{
	for (uint32_t rail = 0; rail < RAILS_MAX; rail++)
		for (uint32_t unit = 1; unit < PAGE_UNITS_MAX; unit = unit * 3 + 1) {
			uint32_t place = place_make(rail, unit);

			assert_int_equal(place_rail(place), rail);
			assert_int_equal(place_unit(place), unit);
			assert_true(place_offset(place) == (uint64_t)unit * PAGE_UNIT);
		}
	/* whatever the unit, a place on disk names no rail, and no place of a rail is on disk */
	for (uint32_t unit = 1; unit < PAGE_UNITS_MAX; unit = unit * 3 + 1) {
		assert_int_equal(place_rail(place_make(PLACE_DISK, unit)), PLACE_DISK);
		assert_true(place_rail(place_make(PLACE_DISK, unit)) >= RAILS_MAX);
	}
	assert_true(place_offset(place_make(15, PAGE_UNITS_MAX - 1)) == (1ull << 40) - PAGE_UNIT);
}

static void a_published_head_matches_its_own_key_generation_and_length_only(void **state)
{
	struct page_head shared = {.generation = 5}, head;

	page_head_publish(&shared, &key, 4096);
	head = page_head_load(&shared);
	assert_true(page_head_is(&head, &key, 5, 4096));
	assert_false(page_head_is(&head, &other, 5, 4096));
	assert_false(page_head_is(&head, &key, 4, 4096));
	assert_false(page_head_is(&head, &key, 5, 4095));
	assert_false(page_head_is_proven(&head));
}

static void a_retired_head_matches_no_key_and_has_a_new_generation(void **state)
{
	struct page_head shared = {.generation = UINT32_MAX}, head;

	page_head_publish(&shared, &key, 4096);
	assert_int_equal(page_head_retire(&shared), 0);
	head = page_head_load(&shared);
	assert_false(page_head_is(&head, &key, UINT32_MAX, 4096));
	assert_false(page_head_is(&head, &key, 0, 4096));
	assert_true(page_key_equal(&head.key, &no_key));
}

static void a_key_published_again_in_its_old_place_has_a_new_generation(void **state)
{
	struct page_head shared = {.generation = 5}, head;
	uint32_t generation;

	page_head_publish(&shared, &key, 4096);
	generation = page_head_retire(&shared);
	page_head_publish(&shared, &key, 4096);
	head = page_head_load(&shared);
	assert_false(page_head_is(&head, &key, 5, 4096));
	assert_true(page_head_is(&head, &key, generation, 4096));
}

static void a_proof_is_of_every_word_of_the_head_and_ends_with_the_generation(void **state)
{
	struct page_head shared = {.generation = 5}, head, torn;

	page_head_prove(&shared, &key, 4096, 0xe3069283);
	head = page_head_load(&shared);
	assert_false(page_head_is_proven(&head));
	page_head_publish(&shared, &key, 4096);
	head = page_head_load(&shared);
	assert_true(page_head_is_proven(&head));
	assert_int_equal(head.crc, 0xe3069283);
	for (unsigned bit = 0; bit < 8 * sizeof(head); bit++) {
		torn = head;
		((unsigned char *)&torn)[bit / 8] ^= (unsigned char)(1u << bit % 8);
		assert_false(page_head_is_proven(&torn));
	}
	for (unsigned word = 0; word < 2; word++) {
		torn = head;
		torn.key.word[word] = 0;
		assert_false(page_head_is_proven(&torn));
	}
	page_head_retire(&shared);
	page_head_publish(&shared, &key, 4096);
	head = page_head_load(&shared);
	assert_false(page_head_is_proven(&head));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_proof_is_of_every_word_of_the_head_and_ends_with_the_generation),
		cmocka_unit_test(a_place_contains_its_rail_and_unit),
		cmocka_unit_test(a_published_head_matches_its_own_key_generation_and_length_only),
		cmocka_unit_test(a_retired_head_matches_no_key_and_has_a_new_generation),
		cmocka_unit_test(a_key_published_again_in_its_old_place_has_a_new_generation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
