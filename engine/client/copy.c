/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies payload with non-temporal stores, because this core does not use a stored or a read page
 * again. Non-temporal stores are weakly ordered: callers execute shm_fence_stream() before they
 * tell another thread.
 *
 * Another process may overwrite the source during the copy (an evicted page); the page head reveals
 * that afterwards. The race is intended: the loops are not instrumented for it and do not call
 * memcpy().
 */
#include "engine/abi/crc32c.h"
#include "engine/client/client.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define RACY __attribute__((no_sanitize("thread")))
/*
 * shortest piece that is copied with non-temporal stores, bytes; shorter ones go through the cache
 */
#define STREAM_MIN 4096u
/*
 * Long pieces are copied in STRANDS interleaved streams of one memory page each, so that several
 * DRAM pages are open at one time.
 */
#define STRANDS 8u
#define STRAND_BYTES 4096u
/*
 * How many bytes before the end of a round the next one is prefetched: the processor's own prefetch
 * begins again with each memory page, and eight of them begin at the same time.
 */
#define EXPECT_BYTES 512u
#define EXPECT_LINES 2u /* cache lines of each strand that are prefetched */
/* bytes copied through the cache before their CRC is computed */
#define PENDING_BYTES 4096u

RACY static void copy_bytes(unsigned char *to, const unsigned char *from, size_t bytes)
{
	while (bytes >= 8) {
		uint64_t word;

		__builtin_memcpy(&word, from, 8);
		__builtin_memcpy(to, &word, 8);
		to += 8;
		from += 8;
		bytes -= 8;
	}
	for (; bytes; bytes--)
		*(volatile unsigned char *)to++ = *(const volatile unsigned char *)from++;
}

#if defined(__x86_64__)
/*
 * Copy with non-temporal stores: `to` is aligned to the vector, and `bytes` is a multiple of 128.
 */
RACY __attribute__((target("avx2"))) static inline void stream_128(
	unsigned char *to, const unsigned char *from)
{
	__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
	__m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
	__m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + 64));
	__m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + 96));

	_mm256_stream_si256((__m256i *)(void *)to, a);
	_mm256_stream_si256((__m256i *)(void *)(to + 32), b);
	_mm256_stream_si256((__m256i *)(void *)(to + 64), c);
	_mm256_stream_si256((__m256i *)(void *)(to + 96), d);
}

RACY __attribute__((target("avx2"))) static void stream_avx2(
	unsigned char *to, const unsigned char *from, size_t bytes)
{
	const size_t together = STRANDS * STRAND_BYTES;

	for (; bytes >= together; bytes -= together, to += together, from += together)
		for (size_t at = 0; at < STRAND_BYTES; at += 128)
			for (size_t strand = 0; strand < together; strand += STRAND_BYTES)
				stream_128(to + strand + at, from + strand + at);
	for (; bytes; bytes -= 128, to += 128, from += 128)
		stream_128(to, from);
}

/*
 * As stream_avx2(); `crc` and the result are those of crc32c(). The CRC of a round follows its
 * copy: the source is in the cache then, and the stores drain meanwhile. Within the loop of the
 * copy, the instruction for CRC32C was measured to be slower.
 */
uint32_t copy_crc_avx2(uint32_t crc, unsigned char *to, const unsigned char *from, size_t bytes)
{
	while (bytes) {
		size_t n = bytes < STRANDS * STRAND_BYTES ? bytes : STRANDS * STRAND_BYTES;

		stream_avx2(to, from, n);
		crc = crc32c(crc, from, n);
		to += n;
		from += n;
		bytes -= n;
	}
	return crc;
}

/*
 * CRC by folding, in the registers of the copy (Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction", Intel, 2009). A register of 64 bytes stands for all
 * bytes of its strand so far: a message of 64 bytes with the same remainder. To append 64 bytes,
 * each 128-bit lane is multiplied by x^512 modulo the polynomial, in two halves of 64 bits, and
 * added to them. Two multiplications for 64 bytes take less time than the memory needs.
 */
#define FOLDING __attribute__((target("avx512f,vpclmulqdq")))
#define FOLD_LOW 0x740eef02  /* x^(512 + 32) modulo the polynomial, reflected */
#define FOLD_HIGH 0x9e4addf8 /* x^(512 - 32) */

RACY FOLDING static inline __m512i fold_64(
	__m512i sum, __m512i by, unsigned char *to, const unsigned char *from)
{
	__m512i data = _mm512_loadu_si512(from);

	_mm512_stream_si512((__m512i *)(void *)to, data);
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, by, 0x00),
		_mm512_clmulepi64_epi128(sum, by, 0x11), data, 0x96); /* XOR of the three */
}

RACY FOLDING static inline __m512i fold_128(
	__m512i sum, __m512i by, unsigned char *to, const unsigned char *from)
{
	return fold_64(fold_64(sum, by, to, from), by, to + 64, from + 64);
}

/* The CRC register (not inverted) of a strand that began with the register 0. */
FOLDING static inline uint32_t fold_end(__m512i sum)
{
	uint64_t word[8], crc = 0;

	_mm512_storeu_si512(word, sum);
	for (unsigned i = 0; i < 8; i++)
		crc = __builtin_ia32_crc32di(crc, word[i]);
	return (uint32_t)crc;
}

static struct crc32c_skip strand_skip; /* written before main() */

__attribute__((constructor)) static void strand_skip_make(void)
{
	crc32c_skip_make(&strand_skip, STRAND_BYTES);
}

/* Prefetches the start of two of a round's strands; a step of EXPECT_BYTES / 128 that cover all. */
static inline void expect_strands(const unsigned char *round, size_t at)
{
	const unsigned char *strand = round + (at / 128 % (EXPECT_BYTES / 128)) * 2 * STRAND_BYTES;

	for (unsigned line = 0; line < EXPECT_LINES; line++) {
		__builtin_prefetch(strand + line * 64);
		__builtin_prefetch(strand + STRAND_BYTES + line * 64);
	}
}
static_assert(EXPECT_BYTES / 128 * 2 == STRANDS, "all strands are prefetched");
static_assert(STRAND_BYTES % EXPECT_BYTES == 0, "from the first strand on");

/*
 * Copies one round of strands; `crc` is a register, not inverted. What follows the round is
 * prefetched: the next round, or behind the last one often the next page. It need not be mapped.
 */
RACY FOLDING static uint32_t fold_strands(
	uint32_t crc, __m512i by, unsigned char *to, const unsigned char *from)
{
	__m512i sum[STRANDS];

	for (unsigned s = 0; s < STRANDS; s++)
		sum[s] = _mm512_setzero_si512();
	for (size_t at = 0; at < STRAND_BYTES; at += 128) {
		unsigned char *t = to + at;
		const unsigned char *f = from + at;

		if (at >= STRAND_BYTES - EXPECT_BYTES)
			expect_strands(from + STRANDS * STRAND_BYTES, at);
		/* unrolled, so that the sums stay in registers */
		sum[0] = fold_128(sum[0], by, t, f);
		sum[1] = fold_128(sum[1], by, t + STRAND_BYTES, f + STRAND_BYTES);
		sum[2] = fold_128(sum[2], by, t + 2 * STRAND_BYTES, f + 2 * STRAND_BYTES);
		sum[3] = fold_128(sum[3], by, t + 3 * STRAND_BYTES, f + 3 * STRAND_BYTES);
		sum[4] = fold_128(sum[4], by, t + 4 * STRAND_BYTES, f + 4 * STRAND_BYTES);
		sum[5] = fold_128(sum[5], by, t + 5 * STRAND_BYTES, f + 5 * STRAND_BYTES);
		sum[6] = fold_128(sum[6], by, t + 6 * STRAND_BYTES, f + 6 * STRAND_BYTES);
		sum[7] = fold_128(sum[7], by, t + 7 * STRAND_BYTES, f + 7 * STRAND_BYTES);
	}
	for (unsigned s = 0; s < STRANDS; s++)
		crc = crc32c_skip(&strand_skip, crc) ^ fold_end(sum[s]);
	return crc;
}
static_assert(STRANDS == 8, "fold_strands() names each");

/* As copy_crc_avx2(); `to` is aligned to 64 bytes. */
RACY FOLDING static uint32_t stream_crc_fold(
	uint32_t crc, unsigned char *to, const unsigned char *from, size_t bytes)
{
	const size_t together = STRANDS * STRAND_BYTES;
	const __m512i by = _mm512_set_epi64(
		FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW);

	crc = ~crc;
	for (; bytes >= together; bytes -= together, to += together, from += together)
		crc = fold_strands(crc, by, to, from);
	if (bytes) {
		/* the register is added to the first four bytes */
		__m512i first = _mm512_loadu_si512(from);
		__m512i sum = _mm512_xor_si512(
			first, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));

		_mm512_stream_si512((__m512i *)(void *)to, first);
		sum = fold_64(sum, by, to + 64, from + 64);
		for (size_t at = 128; at < bytes; at += 128)
			sum = fold_128(sum, by, to + at, from + at);
		crc = fold_end(sum);
	}
	return ~crc;
}

/* As crc32c(), and copies; `to` is aligned to 64 bytes, and `bytes` is a multiple of 128. */
static uint32_t stream_crc(uint32_t crc, unsigned char *to, const unsigned char *from, size_t bytes)
{
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
		return stream_crc_fold(crc, to, from, bytes);
	return copy_crc_avx2(crc, to, from, bytes);
}

RACY static void stream_sse2(unsigned char *to, const unsigned char *from, size_t bytes)
{
	for (; bytes; bytes -= 64, to += 64, from += 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)from);
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(from + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(from + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(from + 48));

		_mm_stream_si128((__m128i *)(void *)to, a);
		_mm_stream_si128((__m128i *)(void *)(to + 16), b);
		_mm_stream_si128((__m128i *)(void *)(to + 32), c);
		_mm_stream_si128((__m128i *)(void *)(to + 48), d);
	}
}
#endif

void copy_stream(void *to, const void *from, size_t bytes)
{
	unsigned char *t = to;
	const unsigned char *f = from;

#if defined(__x86_64__)
	if (bytes >= STREAM_MIN) {
		size_t front = -(uintptr_t)t & 31;
		size_t body = (bytes - front) & ~(size_t)127;

		copy_bytes(t, f, front);
		if (__builtin_cpu_supports("avx2"))
			stream_avx2(t + front, f + front, body);
		else
			stream_sse2(t + front, f + front, body);
		t += front + body;
		f += front + body;
		bytes -= front + body;
	}
#endif
	copy_bytes(t, f, bytes);
}

/* The stores of a page in a pool. */
struct gather {
	unsigned char *to; /* where the next byte goes */
	const unsigned char
		*pending; /* the bytes from here to `to` are in the cache, without CRC */
	uint32_t crc;     /* of the bytes before `pending` */
};

static void gather_pending(struct gather *g)
{
	g->crc = crc32c(g->crc, g->pending, (size_t)(g->to - g->pending));
	g->pending = g->to;
}

/*
 * Copies a piece through the cache. The CRC is computed from the stored bytes, which are in the
 * cache, and over several short pieces at a time.
 */
static void gather_short(struct gather *g, const unsigned char *from, size_t bytes)
{
	while (bytes) {
		size_t n = PENDING_BYTES - (size_t)(g->to - g->pending);

		if (n > bytes)
			n = bytes;
		copy_bytes(g->to, from, n);
		g->to += n;
		from += n;
		bytes -= n;
		if (g->to - g->pending == PENDING_BYTES)
			gather_pending(g);
	}
}

static void gather(struct gather *g, const unsigned char *from, size_t bytes)
{
#if defined(__x86_64__)
	if (bytes >= STREAM_MIN && __builtin_cpu_supports("avx2")) {
		size_t front = -(uintptr_t)g->to & 63;
		size_t body = (bytes - front) & ~(size_t)127;

		gather_short(g, from, front);
		gather_pending(g);
		g->crc = stream_crc(g->crc, g->to, from + front, body);
		g->to += body;
		g->pending = g->to;
		from += front + body;
		bytes -= front + body;
	}
#endif
	gather_short(g, from, bytes);
}

RACY uint32_t copy_gather(unsigned char *to, const struct pc_segment *segments, unsigned count)
{
	struct gather g = {.to = to, .pending = to};
	const unsigned char *end = to + PENDING_BYTES; /* of the room before the next CRC */

	for (unsigned s = 0; s < count; s++) {
		size_t bytes = segments[s].bytes;

		/* The common short piece needs neither g nor a call. */
		if (bytes < STREAM_MIN && bytes <= (size_t)(end - to)) {
			copy_bytes(to, segments[s].base, bytes);
			to += bytes;
			continue;
		}
		g.to = to;
		gather(&g, segments[s].base, bytes);
		to = g.to;
		end = g.pending + PENDING_BYTES;
	}
	g.to = to;
	gather_pending(&g);
	return g.crc;
}

void copy_scatter(const struct pc_segment *segments, unsigned count, const unsigned char *from)
{
	for (unsigned s = 0; s < count; s++) {
		copy_stream(segments[s].base, from, segments[s].bytes);
		from += segments[s].bytes;
	}
}

uint32_t copy_scatter_crc(
	const struct pc_segment *segments, unsigned count, const unsigned char *from)
{
	uint32_t crc = 0;

	for (unsigned s = 0; s < count; s++) {
		struct gather g = {.to = segments[s].base, .pending = segments[s].base, .crc = crc};

		gather(&g, from, segments[s].bytes);
		gather_pending(&g);
		crc = g.crc;
		from += segments[s].bytes;
	}
	return crc;
}
