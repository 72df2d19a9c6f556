/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages in GPU memory, on a stand-in for the CUDA driver (tests/hardware/libcuda.c): a CPU that
 * touches that memory ends the program, and copies are executed late.
 */
#include "engine/abi/crc32c.h"
#include "engine/client/call/call.h"
#include "engine/client/device.h"
#include "tests/unit/client/rig.h"

#include <errno.h>
#include <poll.h>

int cuCtxPushCurrent_v2(void *context);
int cuMemAlloc_v2(uint64_t *at, size_t bytes);
int cuMemFree_v2(uint64_t at);
int cuMemcpy(uint64_t to, uint64_t from, size_t bytes);
uint32_t standInFlushed(void);
uint32_t standInPins(void);
uint32_t standInRetained(void);

enum { BYTES = 16 << 20, BATCH = 200 };

static unsigned char *gpu; /* BYTES of GPU memory, from an odd address on */
static unsigned char host[BYTES];

static int setup(void **state)
{
	uint64_t at = 0;
	int context;

	setenv("STAND_IN_CUDA", "no-dma-buf", 1);
	rig_options.verify = PC_VERIFY_NEVER;
	rig_setup(state);
	assert_int_equal(cuCtxPushCurrent_v2(&context), 0);
	assert_int_equal(cuMemAlloc_v2(&at, BYTES + 64), 0);
	gpu = (unsigned char *)(uintptr_t)at + 24;
	assert_int_equal(pc_memory_register(pc, gpu, BYTES, -1, 0), 1);
	assert_non_null(strstr(pc_error(), "CUDA_ERROR_NOT_SUPPORTED"));
	return 0;
}

static int teardown(void **state)
{
	setenv("STAND_IN_CUDA", "", 1);
	rig_teardown(state);
	assert_int_equal(standInPins(), 0);
	assert_int_equal(standInRetained(), 0);
	assert_int_equal(cuMemFree_v2((uintptr_t)gpu - 24), 0);
	return 0;
}

static bool gpu_has(const char *name, size_t at, uint32_t bytes)
{
	assert_int_equal(cuMemcpy((uintptr_t)host, (uintptr_t)gpu + at, bytes), 0);
	return same(name, host, 0, bytes);
}

static void gpu_fill(const char *name, size_t at, uint32_t bytes)
{
	fill(name, host, bytes);
	assert_int_equal(cuMemcpy((uintptr_t)gpu + at, (uintptr_t)host, bytes), 0);
}

/* A page of another node with its CRC in the head. Returns its place. */
static uint32_t proven(const char *name, unsigned rail)
{
	uint32_t place = fake_page(&fake, name, FAKE_A, rail, PAGE_BYTES);
	struct page_key key = fake_key(name);

	fake_lock(&fake);
	page_head_prove(fake_head(&fake, FAKE_A, place), &key, PAGE_BYTES,
		crc32c(0, fake.node[FAKE_A].pool[rail] + place_offset(place), PAGE_BYTES));
	fake_unlock(&fake);
	return place;
}

/* BATCH pages of another node, each in two pieces of GPU memory. */
static struct {
	struct one one[BATCH];
	struct pc_segment segment[BATCH][2];
	struct pc_page page[BATCH];
	enum pc_result result[BATCH];
	uint32_t place[BATCH];
} many;

static void many_make(void)
{
	for (unsigned i = 0; i < BATCH; i++) {
		char name[32];

		sprintf(name, "many-%u", i);
		many.place[i] = proven(name, i % 2);
		many.page[i] = *one_page(&many.one[i], name, gpu, PAGE_BYTES);
		many.segment[i][0] =
			(struct pc_segment){gpu + (size_t)i * PAGE_BYTES, PAGE_BYTES / 2};
		many.segment[i][1] = (struct pc_segment){
			gpu + (size_t)i * PAGE_BYTES + PAGE_BYTES / 2, PAGE_BYTES / 2};
		many.page[i].segments = many.segment[i];
		many.page[i].segment_count = 2;
	}
}

static void assert_many(void)
{
	for (unsigned i = 0; i < BATCH; i++) {
		assert_int_equal(many.result[i], PC_HIT);
		assert_true(gpu_has(many.one[i].name, (size_t)i * PAGE_BYTES, PAGE_BYTES));
	}
}

static void pages_of_another_node_go_through_staging(void **state)
{
	many_make();
	for (unsigned turn = 0; turn < 2; turn++) {
		gpu_fill("other", 0, BATCH * PAGE_BYTES);
		assert_int_equal(pc_get(ch, many.page, BATCH, PATIENCE_MS, many.result), 0);
		assert_many();
	}
	assert_int_equal(counts().bytes_staged, 2 * BATCH * PAGE_BYTES);
	assert_int_equal(standInPins(), 1);
}

static void a_page_larger_than_staging_goes_through_it(void **state)
{
	uint32_t bytes = 12u << 20;

	fake_page(&fake, "key-1", FAKE_A, 0, bytes);
	assert_int_equal(get_one("key-1", gpu, bytes, PATIENCE_MS), PC_HIT);
	assert_true(gpu_has("key-1", 0, bytes));
}

static void a_page_partly_in_gpu_memory_is_whole(void **state)
{
	unsigned char plain[100];
	struct pc_segment segment[2] = {{plain, 100}, {gpu, 100}};
	struct pc_page page = {
		.key = "key-1", .key_bytes = 5, .segments = segment, .segment_count = 2};
	enum pc_result result;

	fake_page(&fake, "key-1", FAKE_A, 0, 200);
	assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_HIT);
	assert_int_equal(cuMemcpy((uintptr_t)host, (uintptr_t)gpu, 100), 0);
	assert_true(same("key-1", plain, 0, 100) && same("key-1", host, 100, 100));
}

static void a_segment_partly_in_gpu_memory_is_refused(void **state)
{
	unsigned char plain[200];
	struct pc_segment segment[2] = {{plain, 100}, {gpu, 100}};
	struct pc_page page = {
		.key = "key-1", .key_bytes = 5, .segments = segment, .segment_count = 2};
	enum pc_result result;

	fake_page(&fake, "key-1", FAKE_A, 0, 200);
	for (unsigned i = 0; i < 4; i++) {
		segment[i % 2].base = i < 2 ? gpu - 99 : gpu + BYTES - 1;
		assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
		assert_int_equal(result, PC_INVALID);
		assert_non_null(strstr(pc_error(), "page 0 has a segment of which a part is"));
		assert_int_equal(pc_set(ch, &page, 1, PATIENCE_MS, &result), 0);
		assert_int_equal(result, PC_INVALID);
		assert_true(pc_memory_gpu(pc, segment, 2));
		segment[i % 2].base = plain + 100;
	}
	segment[0].base = plain;
	assert_false(pc_memory_gpu(pc, segment, 2));
	segment[1].base = gpu - 100; /* what is beside it is memory as any other */
	assert_false(pc_memory_gpu(pc, segment, 2));
	assert_int_equal(get_one("key-1", gpu - 1, 200, PATIENCE_MS), PC_INVALID);
	assert_int_equal(get_one("key-1", gpu, 200, PATIENCE_MS), PC_HIT);
}

static void a_context_of_the_library_is_given_back(void **state)
{
	setenv("STAND_IN_CUDA", "mapped", 1);
	fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(get_one("key-1", gpu, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(standInRetained(), 1);
	assert_true(gpu_has("key-1", 0, PAGE_BYTES));
	setenv("STAND_IN_CUDA", "no-dma-buf", 1);
}

static void a_set_from_gpu_memory_comes_back_at_home(void **state)
{
	unsigned char *at = malloc(PAGE_BYTES);

	ch->pc->verify_one_in = 1; /* of what is compared with its CRC: all */
	verify_open(ch);
	gpu_fill("key-1", 0, PAGE_BYTES);
	assert_int_equal(set_one("key-1", gpu, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	gpu_fill("other", 0, PAGE_BYTES);
	assert_int_equal(get_one("key-1", gpu, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(gpu_has("key-1", 0, PAGE_BYTES));
	assert_int_equal(get_one("key-1", at, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(same("key-1", at, 0, PAGE_BYTES));
	assert_int_equal(counts().hits_local, 2);
	assert_int_equal(verified().verified, 2);
	assert_int_equal(verified().corrupt, 0);
	free(at);
}

static void bytes_in_gpu_memory_are_compared_with_their_crc(void **state)
{
	ch->pc->verify_one_in = 1;
	verify_open(ch);
	many_make();
	assert_int_equal(pc_get(ch, many.page, BATCH, PATIENCE_MS, many.result), 0);
	assert_many();
	assert_int_equal(verified().verified, BATCH);
	fake_lock(&fake);
	fake.node[FAKE_A].pool[1][place_offset(many.place[7]) + 99] ^= 1;
	fake_unlock(&fake);
	assert_int_equal(pc_get(ch, many.page, BATCH, PATIENCE_MS, many.result), 0);
	assert_int_not_equal(many.result[7], PC_HIT);
	assert_true(verified().corrupt >= 1);
}

static void a_shorter_page_is_read_again_alone(void **state)
{
	enum pc_result result;
	uint64_t bytes;
	struct one o;

	fake_page(&fake, "key-1", FAKE_A, 0, PAGE_BYTES);
	one_page(&o, "key-1", gpu, 2 * PAGE_BYTES);
	assert_int_equal(pc_get_sized(ch, &o.page, 1, PATIENCE_MS, &result, &bytes), 0);
	assert_int_equal(result, PC_HIT);
	assert_int_equal(bytes, PAGE_BYTES);
	assert_true(gpu_has("key-1", 0, PAGE_BYTES));
}

static void a_driver_that_fails_is_no_hit(void **state)
{
	gpu_fill("key-1", 0, PAGE_BYTES);
	fake_page(&fake, "far", FAKE_A, 0, PAGE_BYTES);
	assert_int_equal(set_one("near", gpu, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	LET(credits_left, 2); /* one that is not returned is missed */
	setenv("STAND_IN_CUDA", "failing", 1);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(set_one("key-1", gpu, PAGE_BYTES, PATIENCE_MS), PC_INVALID);
	assert_non_null(strstr(pc_error(), "CUDA_ERROR_INVALID_VALUE"));
	assert_int_equal(get_one("near", gpu, PAGE_BYTES, PATIENCE_MS), PC_INVALID);
	assert_int_equal(get_one("far", gpu, PAGE_BYTES, PATIENCE_MS), PC_INVALID);
	setenv("STAND_IN_CUDA", "no-dma-buf", 1);
	assert_int_equal(set_one("key-1", gpu, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_int_equal(get_one("far", gpu, PAGE_BYTES, PATIENCE_MS), PC_HIT);
	assert_true(gpu_has("far", 0, PAGE_BYTES));
}

/* Submits the batch and steps the channel until a copy has begun and is not executed. */
static struct pc_batch *copying(void)
{
	struct pc_batch *batch;

	many_make();
	gpu_fill("other", 0, BATCH * PAGE_BYTES);
	assert_int_equal(pc_submit_get(ch, many.page, BATCH, PATIENCE_MS, many.result, &batch), 0);
	while (!device_busy(ch->device))
		assert_false(pc_poll(batch));
	assert_int_equal(pc_memory_release(pc, gpu), -EBUSY);
	return batch;
}

static void a_channel_serves_one_gpu_after_another(void **state)
{
	uint64_t at = 0;
	unsigned char *second;
	struct pc_segment segment[2] = {{gpu, 100}, {NULL, 100}};
	struct pc_page page = {
		.key = "key-1", .key_bytes = 5, .segments = segment, .segment_count = 2};
	struct pc_page pages[2] = {page, page};
	enum pc_result result, results[2];
	struct pc_batch *batch;
	struct one one;

	setenv("STAND_IN_CUDA", "second", 1);
	assert_int_equal(cuMemAlloc_v2(&at, PAGE_BYTES), 0);
	setenv("STAND_IN_CUDA", "no-dma-buf", 1);
	second = (unsigned char *)(uintptr_t)at;
	assert_int_equal(pc_memory_register(pc, second, PAGE_BYTES, -1, 0), 1);
	fake_page(&fake, "key-1", FAKE_A, 0, 200);
	for (unsigned i = 0; i < 3; i++) {
		unsigned char *to = i == 1 ? second : gpu;

		assert_int_equal(get_one("key-1", to, 200, PATIENCE_MS), PC_HIT);
		assert_int_equal(cuMemcpy((uintptr_t)host, (uintptr_t)to, 200), 0);
		assert_true(same("key-1", host, 0, 200));
		assert_int_equal(standInPins(), 1);
		assert_int_equal(standInFlushed(), i == 1);
	}
	segment[1].base = second;
	assert_int_equal(pc_get(ch, &page, 1, PATIENCE_MS, &result), 0);
	assert_int_equal(result, PC_INVALID);
	assert_non_null(strstr(pc_error(), "use a channel for each GPU"));
	batch = copying();
	assert_int_equal(get_one("key-1", second, 200, PATIENCE_MS), PC_INVALID);
	pc_wait(batch);
	assert_many();
	assert_int_equal(get_one("key-1", second, 200, PATIENCE_MS), PC_HIT);
	batch = copying();
	while (batch->left) /* it ends, and nothing has waited for it */
		channel_step(ch);
	segment[0].base = second - 1; /* of a page that is refused */
	segment[1].base = gpu;
	pages[0] = *one_page(&one, "key-1", second, 200);
	assert_int_equal(pc_get(ch, pages, 2, PATIENCE_MS, results), 0);
	assert_int_equal(results[0], PC_HIT);
	assert_int_equal(results[1], PC_INVALID);
	assert_int_equal(standInFlushed(), 1);
	pc_wait(batch);
	assert_many();
	assert_int_equal(pc_memory_release(pc, second), 0);
	assert_int_equal(cuMemFree_v2(at), 0);
}

static void a_channel_that_closes_waits_for_copies(void **state)
{
	copying();
	pc_channel_close(ch);
	for (unsigned i = 0; i < BATCH; i++)
		assert_true(many.result[i] == PC_TIMEOUT ||
			    gpu_has(many.one[i].name, (size_t)i * PAGE_BYTES, PAGE_BYTES));
	assert_int_equal(standInPins(), 0);
	assert_int_equal(pc_memory_release(pc, gpu), 0);
	assert_int_equal(pc_channel_open(pc, &ch), 0);
}

static void an_engine_that_is_lost_waits_for_copies(void **state)
{
	unsigned hits = 0;
	struct pc_batch *batch = copying();

	fake_die(&fake);
	ch->broken = true; /* the next step leaves the session, with copies in flight */
	pc_wait(batch);
	for (unsigned i = 0; i < BATCH; i++) {
		hits += many.result[i] == PC_HIT;
		assert_true(many.result[i] == PC_GONE ||
			    gpu_has(many.one[i].name, (size_t)i * PAGE_BYTES, PAGE_BYTES));
	}
	assert_in_range(hits, 1, BATCH);
}

static void a_deadline_waits_for_copies(void **state)
{
	struct pc_batch *batch = copying();

	batch->deadline_ns = 1; /* it has passed long ago */
	ch->due_ns = 0;
	pc_wait(batch);
	for (unsigned i = 0; i < BATCH; i++)
		assert_true(many.result[i] == PC_TIMEOUT ||
			    gpu_has(many.one[i].name, (size_t)i * PAGE_BYTES, PAGE_BYTES));
}

static void the_descriptor_tells_of_copies(void **state)
{
	struct pollfd p = {.fd = pc_channel_fd(ch), .events = POLLIN};
	struct pc_batch *batch = copying();

	while (!pc_poll(batch))
		assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
	assert_many();
}

#define GPU_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {GPU_TEST(pages_of_another_node_go_through_staging),
		GPU_TEST(a_page_larger_than_staging_goes_through_it),
		GPU_TEST(a_page_partly_in_gpu_memory_is_whole),
		GPU_TEST(a_segment_partly_in_gpu_memory_is_refused),
		GPU_TEST(a_channel_serves_one_gpu_after_another),
		GPU_TEST(a_context_of_the_library_is_given_back),
		GPU_TEST(a_set_from_gpu_memory_comes_back_at_home),
		GPU_TEST(bytes_in_gpu_memory_are_compared_with_their_crc),
		GPU_TEST(a_shorter_page_is_read_again_alone),
		GPU_TEST(a_driver_that_fails_is_no_hit),
		GPU_TEST(a_channel_that_closes_waits_for_copies),
		GPU_TEST(an_engine_that_is_lost_waits_for_copies),
		GPU_TEST(a_deadline_waits_for_copies), GPU_TEST(the_descriptor_tells_of_copies)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
