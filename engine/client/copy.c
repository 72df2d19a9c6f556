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
#include "engine/client/copy.h"
#include "engine/client/peercache.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define RACY __attribute__((no_sanitize("thread")))
/*
 * shortest piece that is copied with non-temporal stores, bytes; shorter ones go through the cache
 */
#define STREAM_MIN 4096u
/* bytes copied with non-temporal stores before their CRC is computed, without VPCLMULQDQ */
#define ROUND_BYTES 4096u
/* bytes copied through the cache before their CRC is computed */
#define PENDING_BYTES 4096u
/*
 * How far ahead of the loads the source is prefetched into the second-level cache, bytes. The
 * processor's own prefetching stops at each page of 4 KiB.
 */
#define AHEAD_BYTES 4096u

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
struct four_256 {
	__m256i a, b, c, d;
};

/* Copies 128 bytes and returns them. All loads first: more of them are in flight. */
RACY __attribute__((target("avx2"))) static inline struct four_256 stream_four_256(
	unsigned char *to, const unsigned char *from)
{
	struct four_256 v = {_mm256_loadu_si256((const __m256i *)(const void *)from),
		_mm256_loadu_si256((const __m256i *)(const void *)(from + 32)),
		_mm256_loadu_si256((const __m256i *)(const void *)(from + 64)),
		_mm256_loadu_si256((const __m256i *)(const void *)(from + 96))};

	_mm256_stream_si256((__m256i *)(void *)to, v.a);
	_mm256_stream_si256((__m256i *)(void *)(to + 32), v.b);
	_mm256_stream_si256((__m256i *)(void *)(to + 64), v.c);
	_mm256_stream_si256((__m256i *)(void *)(to + 96), v.d);
	return v;
}

/*
 * Copy with non-temporal stores: `to` is aligned to the vector, and `bytes` is a multiple of 128.
 * Straight on through the memory: eight interleaved streams were measured to be slower by a fifth.
 */
RACY __attribute__((target("avx2"))) static void stream_avx2(
	unsigned char *to, const unsigned char *from, size_t bytes)
{
	for (; bytes; bytes -= 128, to += 128, from += 128)
		(void)stream_four_256(to, from);
}

/*
 * As stream_avx2(); `crc` and the result are those of crc32c(). The CRC of a round follows its
 * copy: the source is in the first-level cache then, and the stores drain meanwhile. Longer rounds,
 * and the instruction for CRC32C within the loop of the copy, were measured to be slower.
 */
uint32_t copy_crc_avx2(uint32_t crc, unsigned char *to, const unsigned char *from, size_t bytes)
{
	while (bytes) {
		size_t n = bytes < ROUND_BYTES ? bytes : ROUND_BYTES;

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
 * Polynomials Using PCLMULQDQ Instruction", Intel, 2009). A register of 64 bytes (with AVX2, two of
 * 32 bytes) stands for all bytes so far: a message of its length with the same remainder. To append
 * 64 bytes of data, each 128-bit lane is multiplied by x^512 modulo the polynomial, in two halves
 * of 64 bits, and added to it. With AVX-512, several chains were measured to be slower than one.
 */
#define FOLD_LOW 0x740eef02  /* x^(512 + 32) modulo the polynomial, reflected */
#define FOLD_HIGH 0x9e4addf8 /* x^(512 - 32) */

/* The CRC register (not inverted) of the message in a register of 64 bytes. */
static inline uint32_t fold_end(const uint64_t word[8])
{
	uint64_t crc = 0;

	for (unsigned i = 0; i < 8; i++)
		crc = __builtin_ia32_crc32di(crc, word[i]);
	return (uint32_t)crc;
}

/*
 * Prefetches `count` bytes, AHEAD_BYTES behind from + at; behind the end of `from` the start of
 * `next`.
 */
static inline void prefetch_ahead(
	const unsigned char *from, size_t at, size_t bytes, const unsigned char *next, size_t count)
{
	const unsigned char *ahead = from + at + AHEAD_BYTES;

	if (at + AHEAD_BYTES >= bytes)
		ahead = next + (at + AHEAD_BYTES - bytes);
	for (size_t k = 0; k < count; k += 64)
		__builtin_prefetch(ahead + k, 0, 2);
}

#define FOLDING_512 __attribute__((target("avx512f,vpclmulqdq")))

FOLDING_512 static inline __m512i fold_512(__m512i sum, __m512i by, __m512i data)
{
	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, by, 0x00),
		_mm512_clmulepi64_epi128(sum, by, 0x11), data, 0x96); /* XOR of the three */
}

/* Copies 64 bytes and appends them. */
RACY FOLDING_512 static inline __m512i fold_one_512(
	__m512i sum, __m512i by, unsigned char *to, const unsigned char *from)
{
	__m512i data = _mm512_loadu_si512(from);

	_mm512_stream_si512((__m512i *)(void *)to, data);
	return fold_512(sum, by, data);
}

/* The same for 256 bytes. All loads first: more of them are in flight than one by one. */
RACY FOLDING_512 static inline __m512i fold_four_512(
	__m512i sum, __m512i by, unsigned char *to, const unsigned char *from)
{
	__m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
	__m512i c = _mm512_loadu_si512(from + 128), d = _mm512_loadu_si512(from + 192);

	_mm512_stream_si512((__m512i *)(void *)to, a);
	_mm512_stream_si512((__m512i *)(void *)(to + 64), b);
	_mm512_stream_si512((__m512i *)(void *)(to + 128), c);
	_mm512_stream_si512((__m512i *)(void *)(to + 192), d);
	return fold_512(fold_512(fold_512(fold_512(sum, by, a), by, b), by, c), by, d);
}

/*
 * As copy_crc_avx2(); `to` is aligned to 64 bytes, and `bytes` is not 0. `next`: what will be
 * copied next; its start is prefetched behind the end of `from`.
 */
RACY FOLDING_512 static uint32_t copy_crc_fold_avx512(uint32_t crc, unsigned char *to,
	const unsigned char *from, size_t bytes, const unsigned char *next)
{
	const __m512i by = _mm512_set_epi64(
		FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW);
	__m512i first = _mm512_loadu_si512(from), sum;
	uint64_t word[8];
	size_t at;

	/* the register is added to the first four bytes */
	sum = _mm512_xor_si512(first, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc)));
	_mm512_stream_si512((__m512i *)(void *)to, first);
	for (at = 64; at % 256 != bytes % 256; at += 64)
		sum = fold_one_512(sum, by, to + at, from + at);
	for (; at < bytes; at += 256) {
		prefetch_ahead(from, at, bytes, next, 256);
		sum = fold_four_512(sum, by, to + at, from + at);
	}
	_mm512_storeu_si512(word, sum);
	return ~fold_end(word);
}

#define FOLDING_256 __attribute__((target("avx2,vpclmulqdq")))

FOLDING_256 static inline __m256i fold_256(__m256i sum, __m256i by, __m256i data)
{
	__m256i low = _mm256_clmulepi64_epi128(sum, by, 0x00);

	return _mm256_xor_si256(
		_mm256_xor_si256(low, data), _mm256_clmulepi64_epi128(sum, by, 0x11));
}

/* A register of 64 bytes in two halves: two chains, each of which has half of the data. */
struct sum_256 {
	__m256i a, b;
};

/* Copies 128 bytes and appends them. All loads first: more of them are in flight. */
RACY FOLDING_256 static inline struct sum_256 fold_four_256(
	struct sum_256 sum, __m256i by, unsigned char *to, const unsigned char *from)
{
	struct four_256 v = stream_four_256(to, from);

	sum.a = fold_256(fold_256(sum.a, by, v.a), by, v.c);
	sum.b = fold_256(fold_256(sum.b, by, v.b), by, v.d);
	return sum;
}

/* As copy_crc_fold_avx512(). `bytes` is a multiple of 128. */
RACY FOLDING_256 uint32_t copy_crc_fold_avx2(uint32_t crc, unsigned char *to,
	const unsigned char *from, size_t bytes, const unsigned char *next)
{
	const __m256i by = _mm256_set_epi64x(FOLD_HIGH, FOLD_LOW, FOLD_HIGH, FOLD_LOW);
	struct four_256 first = stream_four_256(to, from);
	struct sum_256 sum;
	uint64_t word[8];

	sum.a = _mm256_xor_si256(first.a, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)~crc)));
	sum.a = fold_256(sum.a, by, first.c);
	sum.b = fold_256(first.b, by, first.d);
	for (size_t at = 128; at < bytes; at += 128) {
		prefetch_ahead(from, at, bytes, next, 128);
		sum = fold_four_256(sum, by, to + at, from + at);
	}
	_mm256_storeu_si256((__m256i *)(void *)word, sum.a);
	_mm256_storeu_si256((__m256i *)(void *)(word + 4), sum.b);
	return ~fold_end(word);
}

/* As crc32c(), and copies; `to` is aligned to 64 bytes, and `bytes` is a multiple of 128. */
static uint32_t stream_crc(uint32_t crc, unsigned char *to, const unsigned char *from, size_t bytes,
	const unsigned char *next)
{
	if (!__builtin_cpu_supports("vpclmulqdq"))
		return copy_crc_avx2(crc, to, from, bytes);
	return __builtin_cpu_supports("avx512f") ? copy_crc_fold_avx512(crc, to, from, bytes, next)
						 : copy_crc_fold_avx2(crc, to, from, bytes, next);
}
#endif

void copy_stream(void *to, const void *from, size_t bytes)
{
	unsigned char *t = to;
	const unsigned char *f = from;

#if defined(__x86_64__)
	if (bytes >= STREAM_MIN && __builtin_cpu_supports("avx2")) {
		size_t front = -(uintptr_t)t & 63;
		size_t body = (bytes - front) & ~(size_t)127;

		copy_bytes(t, f, front);
		stream_avx2(t + front, f + front, body);
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
		*pending;          /* the bytes from here to `to` are in the cache, without CRC */
	const unsigned char *next; /* what is copied after the present piece */
	uint32_t crc;              /* of the bytes before `pending` */
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
		g->crc = stream_crc(g->crc, g->to, from + front, body, g->next);
		g->to += body;
		g->pending = g->to;
		from += front + body;
		bytes -= front + body;
	}
#endif
	gather_short(g, from, bytes);
}

RACY uint32_t copy_gather(unsigned char *to, const struct pc_segment *segments, unsigned count,
	const unsigned char *next)
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
		g.next = s + 1 < count ? segments[s + 1].base : next ? next : segments[s].base;
		gather(&g, segments[s].base, bytes);
		to = g.to;
		end = g.pending + PENDING_BYTES;
	}
	g.to = to;
	gather_pending(&g);
	return g.crc;
}

void copy_scatter(
	const struct pc_segment *segments, size_t at, const unsigned char *from, size_t bytes)
{
	for (; bytes; segments++) {
		size_t n;

		if (at >= segments->bytes) {
			at -= segments->bytes;
			continue;
		}
		n = segments->bytes - at < bytes ? segments->bytes - at : bytes;
		copy_stream((unsigned char *)segments->base + at, from, n);
		from += n;
		bytes -= n;
		at = 0;
	}
}

uint32_t copy_scatter_crc(
	const struct pc_segment *segments, const unsigned char *from, size_t bytes)
{
	uint32_t crc = 0;

	for (; bytes; segments++) {
		size_t n = segments->bytes < bytes ? segments->bytes : bytes;
		struct gather g = {.to = segments->base,
			.pending = segments->base,
			.crc = crc,
			.next = from + n};

		gather(&g, from, n);
		gather_pending(&g);
		crc = g.crc;
		from += n;
		bytes -= n;
	}
	return crc;
}
