/* SPDX-License-Identifier: Apache-2.0 */
/* engine/abi/crc32c.c against the vectors of RFC 3720 and against the polynomial itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "engine/abi/crc32c.h"

/* One bit at a time, as the polynomial defines it. */
static uint32_t by_bits(const uint8_t *data, size_t bytes)
{
	uint32_t crc = ~0u;

	for (size_t i = 0; i < bytes; i++) {
		crc ^= data[i];
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
	}
	return ~crc;
}

static void known_vectors_have_their_values(void **state)
{
	uint8_t bytes[32];

	assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(crc32c_table(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43);
	for (unsigned i = 0; i < 32; i++)
		bytes[i] = (uint8_t)i;
	assert_int_equal(crc32c(0, bytes, 32), 0x46dd794e);
	assert_int_equal(crc32c(0, bytes, 0), 0);
}

static void every_length_and_alignment_equals_the_polynomial(void **state)
{
	static uint8_t data[9000];
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

	printf("SEED=%u\n", seed);
	srandom(seed);
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)random();
	for (unsigned round = 0; round < 600; round++) {
		size_t from = (size_t)random() % 16, bytes, cut;
		uint32_t expected;

		bytes = (size_t)random() % (round % 2 ? 200 : sizeof(data) - 16);
		expected = by_bits(data + from, bytes);
		assert_int_equal(crc32c(0, data + from, bytes), expected);
		assert_int_equal(crc32c_table(0, data + from, bytes), expected);
		assert_int_equal(crc32c_instruction(0, data + from, bytes), expected);
		cut = bytes ? (size_t)random() % bytes : 0;
		assert_int_equal(
			crc32c(crc32c(0, data + from, cut), data + from + cut, bytes - cut),
			expected);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(known_vectors_have_their_values),
		cmocka_unit_test(every_length_and_alignment_equals_the_polynomial),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
