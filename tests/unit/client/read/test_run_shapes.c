/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of many shapes in one batch: holders, pools, lengths, segments, distances and registered
 * ranges are random, so that pages meet that must not be in one run. Each byte must land in its
 * place, and no byte elsewhere.
 */
#include "tests/unit/client/read/run_rig.h"

#define ROUNDS 40u
#define AREA 16384u /* bytes of memory around each page, between and behind its segments */

struct shape {
	struct one one;
	struct pc_segment segment[4];
	unsigned char *area;
};

static struct shape shape[COUNT];
static unsigned char *other; /* a second registered range */

/* `length`: the two lengths of this round, each a multiple of 4. */
static void make(struct shape *s, unsigned i, unsigned round, const uint32_t length[2])
{
	static const unsigned counts[] = {1, 2, 4};
	unsigned segments = counts[roll(3)];
	uint32_t bytes = length[roll(2)], part = bytes / segments, stride = part + roll(2) * 64;
	char name[FAKE_NAME_BYTES];

	snprintf(name, sizeof(name), "s-%u-%u", round, i);
	s->area = (roll(2) ? memory : other) + i * AREA;
	page[i] = *one_page(&s->one, name, s->area, bytes);
	for (unsigned k = 0; k < segments; k++)
		s->segment[k] = (struct pc_segment){s->area + k * stride, part};
	if (segments == 4 && stride > part && roll(2)) { /* at one distance, not of one length */
		s->segment[1].bytes += 32;
		s->segment[2].bytes -= 32;
	}
	page[i].segments = s->segment;
	page[i].segment_count = segments;
	memset(s->area, 0xee, AREA);
	fake_page(&fake, name, roll(2) ? FAKE_A : FAKE_B, roll(FAKE_RAILS), bytes);
}

static void check(const struct shape *s, const struct pc_page *of)
{
	const unsigned char *at = s->area;
	uint32_t from = 0;

	for (unsigned k = 0; k < of->segment_count; k++) {
		const struct pc_segment *part = &of->segments[k];

		for (; at < (unsigned char *)part->base; at++)
			assert_int_equal(*at, 0xee);
		assert_true(same(s->one.name, at, from, (uint32_t)part->bytes));
		from += (uint32_t)part->bytes;
		at += part->bytes;
	}
	for (; at < s->area + AREA; at++)
		assert_int_equal(*at, 0xee);
}

static void pages_of_any_shape_land_where_they_belong(void **state)
{
	void *at;

	assert_int_equal(pc_memory_alloc(pc, COUNT * AREA, &at), 0);
	other = at;
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint32_t length[2] = {4 * (64 + roll(1000)), 4 * (64 + roll(1000))};

		for (unsigned i = 0; i < COUNT; i++)
			make(&shape[i], i, round, length);
		if (round % 2)
			look_up_all();
		assert_int_equal(pc_get(ch, page, COUNT, PATIENCE_MS, result), 0);
		for (unsigned i = 0; i < COUNT; i++) {
			assert_int_equal(result[i], PC_HIT);
			check(&shape[i], &page[i]);
		}
	}
	assert_true(SEEN(runs) > 0);
	assert_int_equal(SEEN(stales) + SEEN(head_reads), 0); /* no page was in a wrong run */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pages_of_any_shape_land_where_they_belong),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
