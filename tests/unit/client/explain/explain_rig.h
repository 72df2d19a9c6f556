/* SPDX-License-Identifier: Apache-2.0 */
/* For the tests of pc_explain(): calls it, counts words in its answer, makes keys and entries. */
#ifndef TESTS_CLIENT_EXPLAIN_RIG_H
#define TESTS_CLIENT_EXPLAIN_RIG_H

#include "tests/unit/client/rig.h"

static char *text; /* of the last explain(); freed by the next one */

static inline int explain(const char *name, unsigned timeout_ms)
{
	free(text);
	text = NULL;
	return pc_explain(ch, name, strlen(name), timeout_ms, &text);
}

/* How often `part` is in the text. */
static inline unsigned times(const char *part)
{
	unsigned n = 0;

	for (const char *at = text; (at = strstr(at, part)); at++)
		n++;
	return n;
}

static inline void expect(const char *name)
{
	assert_int_equal(explain(name, PATIENCE_MS), 0);
}

/* Finds a name whose owners are FAKE_A, then FAKE_B. */
static inline void name_of_a_and_b(const char *stem, char *ret_name)
{
	uint32_t owner[REPLICAS_MAX] = {0};
	unsigned n = 0;

	do {
		struct page_key key;

		fake_name_owned(&fake, stem, FAKE_A, &n, ret_name);
		key = fake_key(ret_name);
		assert_true(fake_owners(&fake, &key, owner) >= 2);
	} while (owner[1] != FAKE_B);
}

static inline void insert(const char *name, uint32_t owner, uint32_t ref, uint32_t place)
{
	struct page_key key = fake_key(name);

	fake_insert(&fake, &key, owner,
		&(struct dir_entry){.ref = ref, .place = place, .generation = 7});
}

#endif
