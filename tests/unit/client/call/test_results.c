/* SPDX-License-Identifier: Apache-2.0 */
/* Results have names and texts, and a page that is invalid has its reason in pc_error(). */
#include "tests/unit/client/rig.h"

#include <sys/mman.h>

#define KEY_LONGEST 1024u

static void every_result_has_a_name_and_a_text_of_its_own(void **state)
{
	for (unsigned r = PC_HIT; r <= PC_LONGER; r++) {
		assert_true(strlen(pc_result_name(r)) > 2 && strlen(pc_result_text(r)) > 10);
		for (unsigned other = PC_HIT; other < r; other++) {
			assert_string_not_equal(pc_result_name(r), pc_result_name(other));
			assert_string_not_equal(pc_result_text(r), pc_result_text(other));
		}
	}
	assert_string_equal(pc_result_name(PC_LONGER + 1), "unknown");
	assert_string_equal(pc_result_text((enum pc_result) - 1), "not a result");
}

/* Calls with one page; true if the page is invalid and pc_error() has this part. */
static bool invalid(__typeof__(pc_get) *call, const struct pc_page *page, const char *part)
{
	enum pc_result result = PC_PENDING;
	struct one o;
	char at[10];

	/* another text, so that the part is not that of the call before */
	assert_int_equal(pc_get(ch, one_page(&o, "", at, sizeof(at)), 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
	assert_int_equal(call(ch, page, 1, PATIENCE_MS, &result), 0);
	return result == PC_INVALID && strstr(pc_error(), part);
}

static void an_invalid_argument_is_named(void **state)
{
	static unsigned char at[PC_SEGMENTS_MAX + 1];
	static char key[KEY_LONGEST + 1];
	struct pc_segment segment[PC_SEGMENTS_MAX + 1];
	struct pc_page page = {.key = key, .key_bytes = sizeof(key), segment, 1};

	for (unsigned k = 0; k <= PC_SEGMENTS_MAX; k++)
		segment[k] = (struct pc_segment){at + k, 1};
	assert_true(invalid(pc_exists, &page, "has 1025 bytes; give 1 to 1024"));
	assert_true(invalid(pc_set, &page, "has 1025 bytes; give 1 to 1024"));
	page.key_bytes = KEY_LONGEST;
	page.segment_count = PC_SEGMENTS_MAX + 1;
	assert_true(invalid(pc_set, &page, "has 1025 segments; give 1 to 1024"));
	page.segment_count = 0;
	assert_true(invalid(pc_get, &page, "has 0 segments"));
	page.segment_count = PC_SEGMENTS_MAX;
	segment[1].bytes = 0;
	assert_true(invalid(pc_get, &page, "without address or length"));
	segment[1].bytes = SIZE_MAX;
	assert_true(invalid(pc_set, &page, "without address or length, or more than"));
	page.segments = NULL;
	assert_true(invalid(pc_set, &page, "has 0 segments"));
	page.key = NULL;
	assert_true(invalid(pc_remove, &page, "has 0 bytes"));
}

static void a_page_that_no_pool_holds_names_the_setting(void **state)
{
	size_t bytes = pc_page_bytes_max(pc) + 1;
	unsigned char *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct one o;

	assert_true(invalid(pc_set, one_page(&o, "key-1", at, bytes), "raise engine.pool_bytes"));
	munmap(at, bytes);
}

static void another_length_under_the_key_is_named(void **state)
{
	static const char part[] = "of 5001 bytes was given, but 5000 bytes are stored";
	static unsigned char at[5001];
	struct one o;

	fake_page(&fake, "remote", FAKE_A, 0, 5000);
	fake_page(&fake, "local", FAKE_SELF, 0, 5000);
	assert_true(invalid(pc_get, one_page(&o, "remote", at, 5001), part));
	assert_true(invalid(pc_get, one_page(&o, "local", at, 5001), part));
	assert_true(invalid(pc_set, one_page(&o, "remote", at, 5001), part));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(every_result_has_a_name_and_a_text_of_its_own),
		RIG_TEST(an_invalid_argument_is_named),
		RIG_TEST(a_page_that_no_pool_holds_names_the_setting),
		RIG_TEST(another_length_under_the_key_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
