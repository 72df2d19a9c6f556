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
 * As crc32c() with the processor's instruction, without folding, and with the table only, for
 * processors without them; tests compare all.
 */
uint32_t crc32c_instruction(uint32_t crc, const void *data, size_t bytes);
uint32_t crc32c_table(uint32_t crc, const void *data, size_t bytes);

#endif
