/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C (Castagnoli, reflected polynomial 0x82f63b78, as in iSCSI and ext4) of page bytes and of
 * the blocks of the disk tier. Any thread.
 *
 * Uses carry-less multiplication of 512 bits where the processor has it (AVX-512, VPCLMULQDQ), or
 * its instruction for CRC32C (SSE4.2, ARMv8 CRC) in three chains at a time; without them, a table.
 * All give the same value.
 *
 *   crc = crc32c(0, page, length);              the CRC of a whole page
 *   crc = crc32c(crc32c(0, a, n), b, m);        the same of a page in two pieces
 */
#ifndef ABI_CRC32C_H
#define ABI_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the CRC of `bytes` bytes that follow bytes whose CRC is `crc`; 0: no bytes before. */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/*
 * The CRC register after `bytes` more zero bytes, for one `bytes`: four look-ups. Combines chains
 * that ran over adjacent pieces: with registers (not inverted) a of the first piece and b, started
 * at 0, of the second, crc32c_skip(a) ^ b is that of both.
 */
struct crc32c_skip {
	uint32_t table[4][256];
};

/*
 * Fills `ret` for pieces of `bytes` bytes, in time proportional to `bytes`. Not before constructors
 * without priority run, because the tables may not be there.
 */
void crc32c_skip_make(struct crc32c_skip *ret, size_t bytes);

static inline uint32_t crc32c_skip(const struct crc32c_skip *skip, uint32_t crc)
{
	return skip->table[0][crc & 0xff] ^ skip->table[1][crc >> 8 & 0xff] ^
	       skip->table[2][crc >> 16 & 0xff] ^ skip->table[3][crc >> 24];
}

/*
 * As crc32c() with the processor's instruction, without folding, and with the table only, for
 * processors without them; tests compare all.
 */
uint32_t crc32c_instruction(uint32_t crc, const void *data, size_t bytes);
uint32_t crc32c_table(uint32_t crc, const void *data, size_t bytes);

#endif
