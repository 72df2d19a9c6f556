/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of payload. Any thread. */
#ifndef CLIENT_COPY_H
#define CLIENT_COPY_H

#include <stddef.h>
#include <stdint.h>

struct pc_segment;

void copy_stream(void *to, const void *from, size_t bytes);
/*
 * Returns the CRC32C of the bytes stored at `to`. `next`: what the caller copies next, which is
 * prefetched; NULL: not known.
 */
uint32_t copy_gather(unsigned char *to, const struct pc_segment *segments, unsigned count,
	const unsigned char *next);
#if defined(__x86_64__)
/*
 * copy_gather()'s ways without AVX-512, and without VPCLMULQDQ, for tests. `to` is 32-byte aligned,
 * `bytes` % 128 is 0, and not 0 in the first.
 */
uint32_t copy_crc_fold_avx2(uint32_t crc, unsigned char *to, const unsigned char *from,
	size_t bytes, const unsigned char *next);
uint32_t copy_crc_avx2(uint32_t crc, unsigned char *to, const unsigned char *from, size_t bytes);
#endif
/* Copies `bytes` bytes to the segments, from their byte `at` on. */
void copy_scatter(
	const struct pc_segment *segments, size_t at, const unsigned char *from, size_t bytes);
/* Copies `bytes` bytes to the segments, from the start; returns their CRC32C. */
uint32_t copy_scatter_crc(
	const struct pc_segment *segments, const unsigned char *from, size_t bytes);

#endif
