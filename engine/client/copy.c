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

void copy_gather(unsigned char *to, const struct pc_segment *segments, unsigned count)
{
	for (unsigned s = 0; s < count; s++) {
		copy_stream(to, segments[s].base, segments[s].bytes);
		to += segments[s].bytes;
	}
}

void copy_scatter(const struct pc_segment *segments, unsigned count, const unsigned char *from)
{
	for (unsigned s = 0; s < count; s++) {
		copy_stream(segments[s].base, from, segments[s].bytes);
		from += segments[s].bytes;
	}
}
