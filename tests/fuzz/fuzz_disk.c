/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the checks of what a disk returns: header block, footer, path file. The bytes get a right
 * CRC first, so that the checks behind it are reached; what is accepted must fit its segment. Runs
 * with libFuzzer when built for it; otherwise main() replays a small corpus with bytes changed. One
 * thread.
 */
#include <string.h>
#include <time.h>

#include "engine/disk/layout.h"
#include "tests/fuzz/require.h"

static unsigned long accepted, refused;

static void check_block(const struct disk_block *block, const struct disk_geometry *geometry)
{
	uint64_t end;

	if (!layout_block_valid(block, geometry)) {
		refused++;
		return;
	}
	accepted++;
	require(block->entries <= DISK_BLOCK_PAGES && block->unit < geometry->units);
	end = (uint64_t)block->unit + 1;
	for (uint32_t i = 0; i < block->entries; i++) {
		require(block->entry[i].length <= PAGE_BYTES_MAX);
		require(block->entry[i].sequence < DISK_SEQUENCE_MAX);
		end += ((uint64_t)block->entry[i].length + PAGE_UNIT - 1) / PAGE_UNIT;
	}
	require(end == (uint64_t)block->unit + 1 + layout_block_payload(block));
	require(end <= geometry->units - 1);
	require(block->path_id == geometry->path_id && block->segment == geometry->segment);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static _Alignas(4096) struct disk_block block;
	static _Alignas(4096) struct disk_footer footer;
	static _Alignas(4096) struct disk_path_file file;
	struct disk_geometry geometry = {7, 3, 64};

	memset(&block, 0, sizeof(block));
	memcpy(&block, data, size < sizeof(block) ? size : sizeof(block));
	check_block(&block, &geometry);
	layout_block_seal(&block);
	check_block(&block, &geometry);
	geometry.units = 65536;
	check_block(&block, &geometry);

	memcpy(&footer, &block, sizeof(footer));
	layout_footer_seal(&footer);
	if (layout_footer_valid(&footer, &geometry))
		require(footer.blocks && footer.blocks < geometry.units && footer.path_id == 7);

	memcpy(&file, &block, sizeof(file));
	layout_path_file_seal(&file);
	if (layout_path_file_check(&file, DISK_SEGMENT_BYTES) == PATH_FILE_OK)
		require(file.path_id && file.segment_bytes == DISK_SEGMENT_BYTES);
	return 0;
}

#ifndef FUZZ_LIBFUZZER

/* Replays the corpus. The environment variable SEED repeats the run that printed it. */
int main(void)
{
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);
	static struct disk_block corpus, changed;

	printf("SEED=%u\n", seed);
	srandom(seed);
	corpus.path_id = 7;
	corpus.segment = 3;
	corpus.epoch = 99;
	corpus.ordinal = 5;
	corpus.unit = 2;
	corpus.entries = 20;
	for (uint32_t i = 0; i < corpus.entries; i++)
		corpus.entry[i] = (struct disk_entry){.sequence = i + 1, .length = i * 700};
	layout_block_seal(&corpus);
	for (unsigned round = 0; round < 60000; round++) {
		uint8_t *bytes = (uint8_t *)&changed;

		changed = corpus;
		for (unsigned n = (unsigned)random() % 4; n; n--) {
			size_t at = (size_t)random() % (random() % 2 ? 48 : 48 + 20 * 32);

			bytes[at] = random() % 3 ? (uint8_t)random() : random() % 2 ? 0xff : 0;
		}
		LLVMFuzzerTestOneInput(
			bytes, round % 50 ? sizeof(changed) : round % sizeof(changed));
	}
	printf("replayed: %lu blocks accepted, %lu refused\n", accepted, refused);
	return accepted && refused ? 0 : 1;
}

#endif
