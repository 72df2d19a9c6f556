/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_set() by runs: slots that one answer grants, pages that one request publishes, and answers
 * that no correct engine gives.
 */
#include "config/clock.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/rings/rings.h"
#include "engine/client/write/write.h"
#include "tests/unit/client/rig.h"

#include <unistd.h>

#define PAGES 64u

static unsigned char from[PAGES][PAGE_BYTES];
static struct one one[PAGES];
static struct pc_page pages[PAGES];
static enum pc_result result[PAGES];

/* Makes pages "<stem>-<k>" of PAGE_BYTES bytes. */
static void make(const char *stem, unsigned count)
{
	for (unsigned k = 0; k < count; k++) {
		char name[32];

		sprintf(name, "%s-%u", stem, k);
		fill(name, from[k], PAGE_BYTES);
		pages[k] = *one_page(&one[k], name, from[k], PAGE_BYTES);
	}
}

/* Of calls that must succeed. Once one has timed out, the next tests fail without this wait. */
static unsigned patience_ms = PATIENCE_MS;

/* Nothing is awaited: no credit, no answer, no request. */
static void assert_idle(void)
{
	unsigned credits = 0;

	for (uint64_t start_ns = clock_monotonic_ns();
		ch->ctl_awaited && elapsed_ms(start_ns) < patience_ms;)
		channel_step(ch);
	assert_int_equal(ch->ctl_awaited, 0);
	for (uint32_t i = 0; i < ch->requests; i++)
		assert_int_equal(ch->request[i].kind, REQUEST_FREE);
	for (uint32_t k = 0; k < CLASSES_MAX; k++)
		for (uint32_t r = 0; ch->stock[k] && r < ch->rails; r++) {
			assert_int_equal(ch->stock[k]->rail[r].asked, 0);
			credits += ch->stock[k]->rail[r].have;
		}
	assert_int_equal(ch->credits, credits);
}

/*
 * Sets the pages. The engine answers, so none times out and what was requested has its answers: a
 * request that is lost fails here, not when the next call waits for it.
 */
static void set_all(unsigned count)
{
	assert_int_equal(pc_set(ch, pages, count, patience_ms, result), 0);
	for (unsigned k = 0; k < count; k++) {
		if (result[k] == PC_TIMEOUT)
			patience_ms = 100;
		assert_int_not_equal(result[k], PC_TIMEOUT);
	}
	if (!ch->broken)
		assert_idle();
}

static void assert_read_back(unsigned k)
{
	static unsigned char at[PAGE_BYTES];

	assert_int_equal(get_one(one[k].name, at, one[k].segment.bytes, PATIENCE_MS), PC_HIT);
	assert_memory_equal(at, from[k], one[k].segment.bytes);
}

static void pages_of_one_length_are_published_in_one_request(void **state)
{
	make("warm", 2 * CTL_PAGES_MAX);
	set_all(2 * CTL_PAGES_MAX); /* the stock grows */
	make("warm2", 2 * CTL_PAGES_MAX);
	set_all(2 * CTL_PAGES_MAX);
	LET(publishes, 0);
	LET(publish_runs, 0);
	fake_lock(&fake);
	fake.channel[0].ctl_answers = 0;
	fake_unlock(&fake);
	make("key", 2 * CTL_PAGES_MAX);
	set_all(2 * CTL_PAGES_MAX);
	for (unsigned k = 0; k < 2 * CTL_PAGES_MAX; k++) {
		assert_int_equal(result[k], PC_HIT);
		assert_read_back(k);
	}
	assert_int_equal(SEEN(publishes), 2 * CTL_PAGES_MAX);
	/*
	 * A set publishes by runs: after each SET_PUBLISH_BYTES, and what it has when it waits for
	 * credits, which come in some pieces on a busy machine.
	 */
	assert_in_range(SEEN(publish_runs), 2, 2 * CTL_PAGES_MAX / 4);
	/* an answer for each request, and a few for credits */
	assert_in_range(SEEN(channel[0].ctl_answers), 2, 16);
	assert_int_equal(counts().sets, 6 * CTL_PAGES_MAX);
}

/* What the engine answers for a page, and what the caller is told. */
static const struct {
	uint8_t status;
	enum pc_result result;
} ends[] = {{OP_HIT, PC_HIT}, {OP_MISS, PC_UNREACHABLE}, {OP_STALE, PC_STALE},
	{OP_PEER_DOWN, PC_UNREACHABLE}, {OP_TIMEOUT, PC_TIMEOUT}, {OP_NIC_ERROR, PC_UNREACHABLE},
	{OP_NO_SPACE, PC_FULL}, {OP_CANCELLED, PC_GONE}};
enum { ENDS = sizeof(ends) / sizeof(ends[0]) };

static struct page_key ending[ENDS];

static uint32_t end_each(struct fake *f, const struct ctl_op *op)
{
	for (unsigned k = 1; op->kind == CTL_PUBLISH && k < ENDS; k++)
		if (page_key_equal(&op->key, &ending[k]))
			return ends[k].status;
	return FAKE_DO;
}

static void each_status_of_a_publish_is_told_as_what_it_is(void **state)
{
	make("key", ENDS);
	for (unsigned k = 0; k < ENDS; k++)
		ending[k] = fake_key(one[k].name);
	LET(on_ctl, end_each);
	assert_int_equal(pc_set(ch, pages, ENDS, PATIENCE_MS, result), 0);
	for (unsigned k = 0; k < ENDS; k++)
		assert_int_equal(result[k], ends[k].result);
	LET(on_ctl, NULL);
	assert_int_equal(counts().sets, 1);
}

/* Its answers would find no place: a stock has room for what it has and what it has requested. */
static void a_credit_beyond_the_room_of_its_stock_is_returned(void **state)
{
	struct stock_rail *s = NULL;
	struct stock_credit credit;
	uint32_t have, credits;

	for (unsigned round = 0; round < 3; round++) { /* the stock grows */
		make(round == 0 ? "a" : round == 1 ? "b" : "c", 16);
		set_all(16);
	}
	for (uint32_t r = 0; r < ch->rails; r++)
		if (ch->stock[0]->rail[r].have)
			s = &ch->stock[0]->rail[r];
	assert_non_null(s);
	have = s->have;
	credits = ch->credits;
	/* one is taken, and its place is requested before it comes back */
	credit = s->credit[s->first];
	s->first = (s->first + 1) % CREDIT_STOCK_MAX;
	s->have--;
	ch->credits--;
	s->asked += CREDIT_STOCK_MAX - s->have;
	credit_put(ch, PAGE_BYTES, &credit);
	assert_int_equal(s->have, have - 1);
	assert_int_equal(ch->credits, credits - 1);
	s->asked = 0;
	credit_put(ch, PAGE_BYTES, &s->credit[s->first]);
	assert_int_equal(s->have, have);
	s->first = (s->first + 1) % CREDIT_STOCK_MAX;
	s->have--;
	ch->credits--;
}

static void slots_that_come_in_several_runs_are_all_used(void **state)
{
	LET(grant_max, 3);
	make("key", 32);
	set_all(32);
	for (unsigned k = 0; k < 32; k++) {
		assert_int_equal(result[k], PC_HIT);
		assert_read_back(k);
	}
	assert_idle();
}

/* One answer may refuse several credits: all of them are missing, and may be requested again. */
static void a_refusal_of_several_credits_ends_their_request(void **state)
{
	make("key", 32);
	LET(credits_left, 5);
	set_all(32);
	for (unsigned round = 0; round < 40; round++) {
		usleep(1000);
		set_all(32);
	}
	assert_idle();
	LET(credits_left, UINT32_MAX);
	usleep(50000); /* REFUSED_NS */
	set_all(32);
	for (unsigned k = 0; k < 32; k++)
		assert_int_equal(result[k], PC_HIT);
	assert_idle();
}

/* ---- answers of a wrong engine --------------------------------------------------------------- */

static uint8_t wrong_kind; /* the next answer of this kind is changed: */
static uint32_t wrong_pages;
static uint16_t wrong_count, wrong_stride;

static void change(struct fake *f, struct ctl_done *answer)
{
	if (answer->kind != wrong_kind || answer->status != OP_HIT)
		return;
	if (answer->kind == CTL_PUBLISH) {
		answer->pages = wrong_pages;
	} else {
		answer->count = wrong_count;
		answer->stride = wrong_stride;
	}
}

static void assert_ends_session(void)
{
	make("key", 4);
	LET(on_ctl_done, change);
	set_all(4);
	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(result[k], PC_GONE);
	LET(on_ctl_done, NULL);
}

static void an_answer_without_pages_ends_the_session(void **state)
{
	wrong_kind = CTL_PUBLISH;
	wrong_pages = 0;
	assert_ends_session();
}

static void an_answer_for_a_page_that_is_not_in_the_run_ends_the_session(void **state)
{
	wrong_kind = CTL_PUBLISH;
	wrong_pages = 1u << 31;
	assert_ends_session();
}

static void a_grant_of_no_slot_ends_the_session(void **state)
{
	wrong_kind = CTL_CREDIT;
	wrong_count = 0;
	wrong_stride = 1;
	assert_ends_session();
}

static void a_grant_of_more_slots_than_requested_ends_the_session(void **state)
{
	wrong_kind = CTL_CREDIT;
	wrong_count = CREDIT_STOCK_MAX + 1;
	wrong_stride = 0;
	assert_ends_session();
}

static void slots_beyond_the_end_of_the_pool_end_the_session(void **state)
{
	wrong_kind = CTL_CREDIT;
	wrong_count = 2;
	wrong_stride = FAKE_UNITS - PAGE_BYTES / PAGE_UNIT + 1; /* the last slot's end is outside */
	assert_ends_session();
}

static uint32_t hold_publishes(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_PUBLISH ? FAKE_HOLD : FAKE_DO;
}

/* They are copied, but there is no room for the answers to their publishes. */
static void pages_that_are_not_published_in_time_give_their_slots_back(void **state)
{
	uint32_t credits;

	for (unsigned round = 0; round < 3; round++) { /* the stock grows */
		make(round == 0 ? "a" : round == 1 ? "b" : "c", 16);
		set_all(16);
	}
	credits = ch->credits;
	assert_true(credits >= 4);
	make("key", 4);
	ch->ctl_awaited += CTL_DONE_SLOTS;
	assert_int_equal(pc_set(ch, pages, 4, 50, result), 0);
	ch->ctl_awaited -= CTL_DONE_SLOTS;
	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(result[k], PC_TIMEOUT);
	assert_int_equal(SEEN(publishes), 3 * 16);
	assert_int_equal(ch->credits, credits);
	set_all(4);
	assert_int_equal(result[0], PC_HIT);
}

static void answers_after_the_deadline_are_taken(void **state)
{
	make("key", 8);
	LET(on_ctl, hold_publishes);
	assert_int_equal(pc_set(ch, pages, 8, 100, result), 0);
	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(result[k], PC_TIMEOUT);
	LET(on_ctl, NULL);
	make("next", 8);
	/* not set_all(): the fake keeps the answers that it holds */
	assert_int_equal(pc_set(ch, pages, 8, PATIENCE_MS, result), 0);
	for (unsigned k = 0; k < 8; k++)
		assert_int_equal(result[k], PC_HIT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(pages_of_one_length_are_published_in_one_request),
		RIG_TEST(each_status_of_a_publish_is_told_as_what_it_is),
		RIG_TEST(a_credit_beyond_the_room_of_its_stock_is_returned),
		RIG_TEST(slots_that_come_in_several_runs_are_all_used),
		RIG_TEST(a_refusal_of_several_credits_ends_their_request),
		RIG_TEST(an_answer_without_pages_ends_the_session),
		RIG_TEST(an_answer_for_a_page_that_is_not_in_the_run_ends_the_session),
		RIG_TEST(a_grant_of_no_slot_ends_the_session),
		RIG_TEST(a_grant_of_more_slots_than_requested_ends_the_session),
		RIG_TEST(slots_beyond_the_end_of_the_pool_end_the_session),
		RIG_TEST(pages_that_are_not_published_in_time_give_their_slots_back),
		RIG_TEST(answers_after_the_deadline_are_taken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
