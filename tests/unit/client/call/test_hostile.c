/* SPDX-License-Identifier: Apache-2.0 */
/* An engine that violates the protocol can end its session, but cannot harm the client. */
#include "config/clock.h"
#include "engine/client/attach/attach.h"
#include "engine/client/rings/channel.h"
#include "engine/client/constants.h"
#include "engine/client/rings/rings.h"
#include "tests/unit/client/rig_clock.h"

#include <errno.h>
#include <unistd.h>

/* The shared indices of a ring of channel 0, in the fake engine's mapping. Tests corrupt them. */
static struct ring_shared *shared(size_t offset)
{
	return (struct ring_shared *)(void *)(fake.channel[0].base + offset);
}

static void invalid_ring_indices_end_only_the_session(void **state)
{
	struct channel_layout l = channel_layout(FAKE_RAILS);
	const size_t op[] = {l.op[0], l.op[1], l.ctl};

	for (unsigned n = 0; n < 3; n++) {
		enum pc_result result = PC_PENDING;
		unsigned char from[100] = {1};
		char name[32];

		fake_lock(&fake);
		shm_store(&shared(op[n])->head, 0x12345678);
		fake_unlock(&fake);
		/* The client loads the index only when its ring looks full: make it look full. */
		ch->rail[0].ops.head_seen -= n == 0 ? OP_RING_SLOTS : 0;
		ch->rail[1].ops.head_seen -= n == 1 ? OP_RING_SLOTS : 0;
		ch->ctl.head_seen -= n == 2 ? CTL_RING_SLOTS : 0;
		/* With 64 keys, other nodes own some of them and each rail is used. */
		for (unsigned k = 0; k < 64; k++) {
			sprintf(name, "key-%u-%u", n, k);
			result = set_one(name, from, sizeof(from), PATIENCE_MS);
			if (result != PC_HIT)
				break;
		}
		assert_int_equal(result, PC_GONE);
		rig_pass_ms(250);
		assert_int_equal(set_one(name, from, sizeof(from), PATIENCE_MS), PC_HIT);
	}
}

/* Writes an answer of a rail, or of the control plane, into a ring of the channel. */
static void run_done_forge(uint32_t cookie, uint8_t kind)
{
	struct run_done d = {.cookie = cookie, .hit = 1, .kind = kind};

	memcpy(ring_slot_new(&fake.channel[0].done[0], 0), &d, sizeof(d));
	ring_publish(&fake.channel[0].done[0], 1);
}

static void ctl_done_forge(uint64_t cookie, uint8_t kind)
{
	struct ctl_done d = {.cookie = cookie, .kind = kind};

	memcpy(ring_slot_new(&fake.channel[0].ctl_done, 0), &d, sizeof(d));
	ring_publish(&fake.channel[0].ctl_done, 1);
}

static void answers_without_a_request_are_ignored(void **state)
{
	static const uint64_t ctl_cookie[] = {
		0, 1, UINT64_MAX, 1ull << 32, 1ull << 32 | 5000000, 2ull << 32, 7ull << 32 | 3};
	static const uint32_t cookie[] = {
		0, 1, UINT32_MAX, 1u << 16, 1u << 16 | 5000, 2u << 16, 7u << 16 | 3};
	static const uint8_t kind[] = {0, 77, OP_PAGE};
	unsigned char at[5000];
	uint32_t idle = ch->requests - 1; /* the next request that is taken is another one */

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(ch->request[idle].kind, REQUEST_FREE);
	assert_int_not_equal(ch->request_free, idle);
	fake_lock(&fake);
	for (unsigned k = 0; k < sizeof(cookie) / sizeof(cookie[0]); k++) {
		run_done_forge(cookie[k], OP_PAGE);
		ctl_done_forge(ctl_cookie[k], (uint8_t)(k + 1));
	}
	for (unsigned k = 0; k < sizeof(kind); k++)
		run_done_forge(request_cookie(ch, idle), kind[k]);
	fake_unlock(&fake);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(ch->rail[0].in_flight + ch->rail[1].in_flight, 0);
	assert_int_equal(ch->rail[0].bytes + ch->rail[1].bytes, 0);
	assert_int_equal(ch->ctl_awaited, 0);
}

static void an_answer_to_a_request_behind_the_last_is_ignored(void **state)
{
	unsigned char at[5000];
	uint32_t last;

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	last = --ch->requests; /* what lies behind looks like a request */
	ch->request[last].kind = REQUEST_FETCH;
	fake_lock(&fake);
	run_done_forge(request_cookie(ch, last), OP_PAGE);
	fake_unlock(&fake);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(ch->rail[0].in_flight + ch->rail[1].in_flight, 0);
	assert_int_equal(ch->request[last].kind, REQUEST_FETCH);
	ch->request[last].kind = REQUEST_FREE;
	ch->requests++;
}

static struct run_done lie;
static unsigned lies;

static uint32_t answer_a_lie(struct fake *f, uint32_t rail, const struct op *op)
{
	if (op->kind != OP_PAGE)
		return FAKE_DO;
	lie.cookie = (uint32_t)op->cookie;
	lie.kind = OP_PAGE;
	lies++;
	fake_done(&f->channel[0], rail, &lie);
	return FAKE_HOLD; /* the page is not read */
}

static void an_answer_that_says_no_hit_of_a_page_is_none(void **state)
{
	static const struct run_done answer[] = {{.status = OP_HIT}, {.status = OP_HIT, .hit = ~1u},
		{.status = OP_HIT, .hit = 1, .stale = 1}, {.status = OP_STALE}, {.status = 200}};
	unsigned char at[5000];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	for (unsigned k = 0; k < sizeof(answer) / sizeof(answer[0]); k++) {
		lie = answer[k];
		lies = 0;
		LET(on_op, answer_a_lie);
		assert_int_not_equal(get_one("key-1", at, sizeof(at), 100), PC_HIT);
		assert_true(lies > 0);
	}
	LET(on_op, NULL);
}

static void an_engine_of_another_version_is_refused(void **state)
{
	struct pc *other = NULL;
	char ours[32], theirs[32];

	pc_channel_close(ch);
	ch = NULL;
	pc_close(pc);
	pc = NULL;
	LET(version, ABI_VERSION + 1);
	assert_int_equal(pc_open(&(struct pc_options){.socket = fake.path}, &other), -EPROTO);
	snprintf(ours, sizeof(ours), "library version %u", ABI_VERSION);
	snprintf(theirs, sizeof(theirs), "speaks version %u", ABI_VERSION + 1);
	assert_non_null(strstr(pc_error(), ours));
	assert_non_null(strstr(pc_error(), theirs));
	LET(version, ABI_VERSION);
	usleep(10000);
	fake_lock(&fake);
	fake.status->magic = 1;
	fake_unlock(&fake);
	assert_int_equal(pc_open(&(struct pc_options){.socket = fake.path}, &other), -EPROTO);
}

static void an_invalid_hello_reply_is_refused(void **state)
{
	static const uint64_t rails[] = {
		0, 1, 3, RAILS_MAX, RAILS_MAX + 1, 1ull << 32 | 2, UINT64_MAX};
	struct pc *other = NULL;

	pc_channel_close(ch);
	ch = NULL;
	pc_close(pc);
	pc = NULL;
	for (unsigned k = 0; k < sizeof(rails) / sizeof(rails[0]); k++) {
		LET(rails_said, rails[k]);
		assert_int_equal(
			pc_open(&(struct pc_options){.socket = fake.path}, &other), -EPROTO);
		usleep(5000);
	}
}

static void a_region_number_beyond_the_table_is_refused(void **state)
{
	static const uint64_t number[] = {1, REGION_CLIENT_0 - 1, REGIONS_MAX, REGIONS_MAX + 1,
		1ull << 16 | REGION_CLIENT_0, 1ull << 32 | REGION_CLIENT_0, UINT64_MAX};
	struct pc_channel *other = NULL;
	void *at = NULL;

	for (unsigned k = 0; k < sizeof(number) / sizeof(number[0]); k++) {
		LET(region_said, number[k]);
		assert_int_equal(pc_channel_open(pc, &other), -EPROTO);
		assert_int_equal(pc_memory_alloc(pc, 4096, &at), -EPROTO);
	}
	LET(region_said, 0);
	assert_int_equal(pc_memory_alloc(pc, 4096, &at), 0);
}

static void a_channel_with_a_segment_or_files_that_are_wrong_is_refused(void **state)
{
	struct pc_channel *other = NULL;

	LET(staging, STAGING_BYTES_MIN - PAGE_UNIT);
	assert_int_equal(pc_channel_open(pc, &other), -EPROTO);
	LET(staging, STAGING_BYTES_MAX + PAGE_UNIT);
	assert_int_equal(pc_channel_open(pc, &other), -EPROTO);
	LET(staging, STAGING_BYTES_MIN);
	LET(surplus, 1);
	assert_int_equal(pc_channel_open(pc, &other), -EPROTO);
	LET(surplus, 0);
	assert_int_equal(pc_channel_open(pc, &other), 0);
	assert_int_equal(other->staging.bytes, STAGING_BYTES_MIN);
	pc_channel_close(other);
}

static uint32_t first_cookie;
static unsigned pages_seen;

/* Answers the second page only with the cookie of the first page. */
static uint32_t answer_the_first_twice(struct fake *f, uint32_t rail, const struct op *op)
{
	struct run_done d = {.hit = 1, .kind = OP_PAGE};

	if (op->kind != OP_PAGE)
		return FAKE_DO;
	if (!pages_seen++) {
		first_cookie = (uint32_t)op->cookie;
		return FAKE_DO;
	}
	d.cookie = first_cookie;
	memcpy(ring_slot_new(&f->channel[0].done[rail], 0), &d, sizeof(d));
	ring_publish(&f->channel[0].done[rail], 1);
	return FAKE_HOLD;
}

static void a_repeated_answer_completes_no_other_page(void **state)
{
	unsigned char at[64];

	fake_page(&fake, "key-1", FAKE_A, 0, sizeof(at));
	fake_page(&fake, "key-2", FAKE_A, 0, sizeof(at));
	assert_int_equal(exists_one("key-1", PATIENCE_MS), PC_HIT);
	assert_int_equal(exists_one("key-2", PATIENCE_MS), PC_HIT);
	pages_seen = 0;
	LET(on_op, answer_the_first_twice);
	assert_int_equal(get_one("key-1", at, sizeof(at), PATIENCE_MS), PC_HIT);
	assert_int_equal(get_one("key-2", at, sizeof(at), 100), PC_TIMEOUT);
}

static uint32_t nonsense(struct fake *f, const struct ctl_op *op)
{
	return op->kind == CTL_PUBLISH ? 77 : op->kind == CTL_REMOVE ? 0x7fffffff : FAKE_DO;
}

static void an_unknown_status_of_the_control_plane_is_no_hit(void **state)
{
	unsigned char at[64] = {1};
	enum pc_result result;
	struct one o;

	LET(on_ctl, nonsense);
	assert_int_equal(set_one("key-1", at, sizeof(at), PATIENCE_MS), PC_INVALID);
	one_page(&o, "key-1", NULL, 0);
	assert_int_equal(pc_remove(ch, &o.page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
}

static void a_refusing_engine_is_asked_at_a_limited_rate_and_its_answer_kept(void **state)
{
	uint64_t start_ns;
	char *json;

	fake_die(&fake);
	while (exists_one("key-1", 100) != PC_GONE)
		usleep(1000);
	assert_string_equal(pc_refusal(pc), "");
	LET(version, ABI_VERSION + 1);
	LET(hellos, 0);
	fake_revive(&fake);
	start_ns = clock_monotonic_ns();
	while (elapsed_ms(start_ns) < 500 || !SEEN(hellos)) {
		assert_int_equal(exists_one("key-1", 100), PC_GONE);
		rig_pass_ms(1);
	}
	assert_in_range(SEEN(hellos), 1, 1 + (clock_monotonic_ns() - start_ns) / REATTACH_NS);
	while (!*pc_refusal(pc)) /* a call may have ended at its deadline, before the answer */
		usleep(1000);
	assert_non_null(strstr(pc_refusal(pc), "restart the engine with its newer program"));
	assert_string_equal(pc_refusal(pc), pc_error());
	assert_int_equal(pc_report(pc, &json), -ENOTCONN);
	assert_non_null(strstr(pc_error(), "speaks version"));
	/* without an engine the answer of the former one is no reason any more */
	fake_die(&fake);
	while (*pc_refusal(pc))
		(void)exists_one("key-1", 100);
	/* and one of this version has the process back */
	LET(version, ABI_VERSION + 1);
	fake_revive(&fake);
	while (!*pc_refusal(pc))
		(void)exists_one("key-1", 100);
	LET(version, ABI_VERSION);
	while (exists_one("key-1", 1000) != PC_MISS)
		usleep(1000);
	assert_string_equal(pc_refusal(pc), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_TEST(invalid_ring_indices_end_only_the_session),
		RIG_TEST(answers_without_a_request_are_ignored),
		RIG_TEST(an_answer_to_a_request_behind_the_last_is_ignored),
		RIG_TEST(an_answer_that_says_no_hit_of_a_page_is_none),
		RIG_TEST(an_engine_of_another_version_is_refused),
		RIG_TEST(an_invalid_hello_reply_is_refused),
		RIG_TEST(a_region_number_beyond_the_table_is_refused),
		RIG_TEST(a_channel_with_a_segment_or_files_that_are_wrong_is_refused),
		RIG_TEST(a_repeated_answer_completes_no_other_page),
		RIG_TEST(an_unknown_status_of_the_control_plane_is_no_hit),
		RIG_TEST(a_refusing_engine_is_asked_at_a_limited_rate_and_its_answer_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
