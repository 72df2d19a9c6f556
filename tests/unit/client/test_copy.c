/* SPDX-License-Identifier: Apache-2.0 */
/* The copies with non-temporal stores: the bytes and their CRC32C, for any length and alignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "config/limits.h"
#include "engine/abi/crc32c.h"
#include "engine/abi/map.h"
#include "engine/abi/ring.h"
#include "engine/client/copy.h"
#include "engine/client/peercache.h"

static void copies_of_any_length_and_alignment_are_exact(void **state)
{
	unsigned char *from = malloc(70000), *to = malloc(70000);

	for (unsigned k = 0; k < 70000; k++)
		from[k] = (unsigned char)map_mix(k);
	for (unsigned turn = 0; turn < 3000; turn++) {
		uint64_t r = map_mix(turn + 99);
		size_t bytes = turn < 300 ? turn : r % 66000, at = r >> 20 & 63, of = r >> 30 & 63;

		memset(to, 0xee, at + bytes + 64);
		copy_stream(to + at, from + of, bytes);
		shm_fence_stream();
		assert_memory_equal(to + at, from + of, bytes);
		for (unsigned k = 0; k < at; k++)
			assert_int_equal(to[k], 0xee);
		for (unsigned k = 0; k < 64; k++)
			assert_int_equal(to[at + bytes + k], 0xee);
	}
	free(from);
	free(to);
}

/* Cuts `bytes` into segments: a few long ones, many short ones, or a mixture. */
static unsigned cut(struct pc_segment *segment, unsigned char *from, size_t bytes)
{
	size_t most = random() % 3 == 0 ? 300 : random() % 2 ? 9000 : 140000, n;
	unsigned count = 0;

	for (size_t at = 0; at < bytes; at += n) {
		n = 1 + (size_t)random() % most;
		if (n > bytes - at || count + 1 == SEGMENTS_MAX)
			n = bytes - at;
		segment[count++] = (struct pc_segment){from + at, n};
	}
	return count;
}

static void the_copy_of_any_segments_returns_the_crc_of_the_page(void **state)
{
	static struct pc_segment segment[SEGMENTS_MAX];
	enum { MOST = 300000 };
	unsigned char *from = malloc(MOST + 64), *to = malloc(MOST + 64);
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

	printf("SEED=%u\n", seed);
	srandom(seed);
	for (size_t i = 0; i < MOST + 64; i++)
		from[i] = (unsigned char)random();
	for (unsigned round = 0; round < 400; round++) {
		unsigned char *source = from + random() % 64, *at = to + random() % 64;
		size_t bytes = 1 + (size_t)random() % (round % 2 ? 10000 : MOST);
		unsigned count = cut(segment, source, bytes);

		at[bytes] = 0x5a;
		assert_int_equal(copy_gather(at, segment, count, round % 3 ? from : NULL),
			crc32c_table(0, source, bytes));
		shm_fence_stream();
		assert_memory_equal(at, source, bytes);
		assert_int_equal(at[bytes], 0x5a);
	}
	free(from);
	free(to);
}

#if defined(__x86_64__)
/* copy_crc_avx2() in the form of copy_crc_fold_avx2() */
static uint32_t copy_rounds(uint32_t crc, unsigned char *to, const unsigned char *from,
	size_t bytes, const unsigned char *next)
{
	return copy_crc_avx2(crc, to, from, bytes);
}

static void check_copy_crc(uint32_t (*copy)(uint32_t crc, unsigned char *to,
	const unsigned char *from, size_t bytes, const unsigned char *next))
{
	enum { MOST = 100096 };
	static unsigned char from[MOST + 64];
	static _Alignas(64) unsigned char to[MOST + 1];

	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)random();
	for (size_t bytes = 128; bytes <= MOST; bytes += 128 * (1 + (size_t)random() % 40)) {
		const unsigned char *source = from + random() % 64;
		uint32_t before = (uint32_t)random();

		to[bytes] = 0x5a;
		assert_int_equal(
			copy(before, to, source, bytes, from), crc32c_table(before, source, bytes));
		shm_fence_stream();
		assert_memory_equal(to, source, bytes);
		assert_int_equal(to[bytes], 0x5a);
	}
}
#endif

static void the_copies_without_avx512_return_the_same_crc(void **state)
{
#if defined(__x86_64__)
	if (!__builtin_cpu_supports("avx2"))
		skip();
	check_copy_crc(copy_rounds);
	if (__builtin_cpu_supports("vpclmulqdq"))
		check_copy_crc(copy_crc_fold_avx2);
#else
	skip();
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_of_any_length_and_alignment_are_exact),
		cmocka_unit_test(the_copy_of_any_segments_returns_the_crc_of_the_page),
		cmocka_unit_test(the_copies_without_avx512_return_the_same_crc),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
