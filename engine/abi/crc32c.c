/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C by instruction or by table. The tables are computed before main() and constant after it;
 * any thread.
 *
 * The instruction has a latency of three cycles and a throughput of one per cycle, so that one
 * chain uses a third of the unit. Three chains over three adjacent blocks use all of it. They are
 * combined by advancing the CRC of a block over as many zero bytes as the following block has; this
 * is linear, so four look-ups by byte do it.
 */
#include "engine/abi/crc32c.h"

#include <string.h>

#define POLYNOMIAL 0x82f63b78u
#define BLOCK_BYTES 1360u /* length of one chain; three of them are just below 4 KiB */

static uint32_t byte_table[8][256]; /* CRC of byte n followed by [i] zero bytes */
static uint32_t skip_table[4][256]; /* the CRC with byte i = n, after BLOCK_BYTES zero bytes */

static uint32_t skip(uint32_t crc)
{
	return skip_table[0][crc & 0xff] ^ skip_table[1][crc >> 8 & 0xff] ^
	       skip_table[2][crc >> 16 & 0xff] ^ skip_table[3][crc >> 24];
}

static uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
	return crc >> 8 ^ byte_table[0][(crc ^ byte) & 0xff];
}

__attribute__((constructor)) static void tables_make(void)
{
	for (uint32_t n = 0; n < 256; n++) {
		uint32_t crc = n;

		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
		byte_table[0][n] = crc;
	}
	for (uint32_t n = 0; n < 256; n++)
		for (unsigned i = 1; i < 8; i++)
			byte_table[i][n] = byte_table[i - 1][n] >> 8 ^
					   byte_table[0][byte_table[i - 1][n] & 0xff];
	for (unsigned i = 0; i < 4; i++)
		for (uint32_t n = 0; n < 256; n++) {
			uint32_t crc = n << 8 * i;

			for (unsigned zero = 0; zero < BLOCK_BYTES; zero++)
				crc = crc_byte(crc, 0);
			skip_table[i][n] = crc;
		}
}

static uint64_t word_at(const uint8_t *data)
{
	uint64_t word;

	memcpy(&word, data, sizeof(word));
	return word;
}

uint32_t crc32c_table(uint32_t crc, const void *data, size_t bytes)
{
	const uint8_t *at = data;

	crc = ~crc;
	for (; bytes >= 8; bytes -= 8, at += 8) {
		uint64_t word = word_at(at) ^ crc;

		crc = 0;
		for (unsigned i = 0; i < 8; i++)
			crc ^= byte_table[7 - i][word >> 8 * i & 0xff];
	}
	for (; bytes; bytes--)
		crc = crc_byte(crc, *at++);
	return ~crc;
}

#if defined(__SSE4_2__) || defined(__aarch64__)

#if defined(__SSE4_2__)
#include <nmmintrin.h>
#define HARDWARE
#define crc_word(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))
static int crc_supported(void)
{
	return 1; /* x86-64-v2, which the build requires, has it */
}
#else
#include <arm_acle.h>
#include <sys/auxv.h>
#define HARDWARE __attribute__((target("+crc")))
#define crc_word(crc, word) __builtin_aarch64_crc32cx(crc, word)
static int crc_supported(void)
{
	return (getauxval(AT_HWCAP) & 1ul << 7) != 0; /* HWCAP_CRC32 */
}
#endif

HARDWARE static uint32_t crc_chains(uint32_t crc, const uint8_t **data, size_t *bytes)
{
	const uint8_t *at = *data;

	for (; *bytes >= (size_t)3 * BLOCK_BYTES; *bytes -= (size_t)3 * BLOCK_BYTES) {
		uint32_t second = 0, third = 0;

		for (unsigned i = 0; i < BLOCK_BYTES; i += 8) {
			crc = crc_word(crc, word_at(at + i));
			second = crc_word(second, word_at(at + BLOCK_BYTES + i));
			third = crc_word(third, word_at(at + 2 * BLOCK_BYTES + i));
		}
		crc = skip(skip(crc) ^ second) ^ third;
		at += (size_t)3 * BLOCK_BYTES;
	}
	*data = at;
	return crc;
}

HARDWARE static uint32_t crc_hardware(uint32_t crc, const uint8_t *data, size_t bytes)
{
	crc = crc_chains(~crc, &data, &bytes);
	for (; bytes >= 8; bytes -= 8, data += 8)
		crc = crc_word(crc, word_at(data));
	for (; bytes; bytes--)
		crc = crc_byte(crc, *data++);
	return ~crc;
}

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return crc_supported() ? crc_hardware(crc, data, bytes) : crc32c_table(crc, data, bytes);
}

#else

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return crc32c_table(crc, data, bytes);
}

#endif
