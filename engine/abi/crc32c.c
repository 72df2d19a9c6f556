/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C by folding, by instruction or by table. The tables are computed before main() and constant
 * after it; any thread.
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
/* The CRC register after BLOCK_BYTES more zero bytes, as a sum of one entry of each table. */
static uint32_t block_table[4][256];

static uint32_t crc_byte(uint32_t crc, uint8_t byte)
{
	return crc >> 8 ^ byte_table[0][(crc ^ byte) & 0xff];
}

/* The skip is linear: the entries are sums of those of the 32 single bits. */
static void block_table_make(void)
{
	for (unsigned bit = 0; bit < 32; bit++) {
		uint32_t *table = block_table[bit / 8], crc = 1u << bit, one = 1u << bit % 8;

		for (unsigned zero = 0; zero < BLOCK_BYTES; zero++)
			crc = crc_byte(crc, 0);
		for (uint32_t n = 0; n < one; n++)
			table[one + n] = table[n] ^ crc;
	}
}

static uint32_t block_skip(uint32_t crc)
{
	return block_table[0][crc & 0xff] ^ block_table[1][crc >> 8 & 0xff] ^
	       block_table[2][crc >> 16 & 0xff] ^ block_table[3][crc >> 24];
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
	block_table_make();
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
#include <immintrin.h>
#define HARDWARE
#define crc_word(crc, word) ((uint32_t)_mm_crc32_u64(crc, word))
#define crc_supported 1 /* x86-64-v2, which the build requires, has it */
#else
#include <arm_acle.h>
#include <sys/auxv.h>
#define HARDWARE __attribute__((target("+crc")))
#define crc_word(crc, word) __builtin_aarch64_crc32cx(crc, word)
static int crc_supported; /* written before main() */
__attribute__((constructor)) static void crc_probe(void)
{
	crc_supported = (getauxval(AT_HWCAP) & 1ul << 7) != 0; /* HWCAP_CRC32 */
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
		crc = block_skip(block_skip(crc) ^ second) ^ third;
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

#if defined(__x86_64__)
/*
 * CRC by folding (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction", Intel, 2009). Four registers of 64 bytes stand for all bytes so far: a message of
 * 256 bytes with the same remainder. To append 256 bytes, each 128-bit lane is multiplied by x^2048
 * modulo the polynomial, in two halves of 64 bits, and added to them.
 */
#define FOLDING __attribute__((target("avx512f,vpclmulqdq")))
#define FOLD_BYTES 256u

FOLDING static inline __m512i fold(__m512i sum, __m512i by, __m512i data)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, by, 0x00),
		_mm512_clmulepi64_epi128(sum, by, 0x11), data, 0x96); /* XOR of the three */
}

FOLDING static inline __m512i fold_by(long long low, long long high)
{
	return _mm512_set_epi64(high, low, high, low, high, low, high, low);
}

/* `bytes` is a multiple of FOLD_BYTES, not 0; registers that are not inverted. */
FOLDING static uint32_t crc_folding(uint32_t crc, const uint8_t *data, size_t bytes)
{
	const __m512i by_2048 = fold_by(0xdcb17aa4, 0xb9e02b86);
	const __m512i by_512 = fold_by(0x740eef02, 0x9e4addf8);
	__m512i a = _mm512_loadu_si512(data), b = _mm512_loadu_si512(data + 64);
	__m512i c = _mm512_loadu_si512(data + 128), d = _mm512_loadu_si512(data + 192);
	uint64_t word[8];

	/* the register is added to the first four bytes */
	a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
	for (size_t at = FOLD_BYTES; at < bytes; at += FOLD_BYTES) {
		a = fold(a, by_2048, _mm512_loadu_si512(data + at));
		b = fold(b, by_2048, _mm512_loadu_si512(data + at + 64));
		c = fold(c, by_2048, _mm512_loadu_si512(data + at + 128));
		d = fold(d, by_2048, _mm512_loadu_si512(data + at + 192));
	}
	_mm512_storeu_si512(word, fold(fold(fold(a, by_512, b), by_512, c), by_512, d));
	crc = 0;
	for (unsigned i = 0; i < 8; i++)
		crc = crc_word(crc, word[i]);
	return crc;
}

static uint32_t crc_fastest(uint32_t crc, const uint8_t *data, size_t bytes)
{
	if (bytes >= (size_t)2 * FOLD_BYTES && __builtin_cpu_supports("avx512f") &&
		__builtin_cpu_supports("vpclmulqdq")) {
		size_t body = bytes & ~(size_t)(FOLD_BYTES - 1);

		crc = ~crc_folding(~crc, data, body);
		data += body;
		bytes -= body;
	}
	return crc_hardware(crc, data, bytes);
}
#else
#define crc_fastest crc_hardware
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return crc_supported ? crc_fastest(crc, data, bytes) : crc32c_table(crc, data, bytes);
}

uint32_t crc32c_instruction(uint32_t crc, const void *data, size_t bytes)
{
	return crc_supported ? crc_hardware(crc, data, bytes) : crc32c_table(crc, data, bytes);
}

#else

uint32_t crc32c_instruction(uint32_t crc, const void *data, size_t bytes)
{
	return crc32c_table(crc, data, bytes);
}

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes)
{
	return crc32c_table(crc, data, bytes);
}

#endif
