/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads what a path holds: its path file, the headers of its segments, and the pages of those that
 * are not sealed. Changes nothing but files that the path does not use. Blocks; runs on the thread
 * that opens the path.
 */
#ifndef DISK_SCAN_H
#define DISK_SCAN_H

#include <stdlib.h>

#include "engine/disk/store.h"

enum scan_kind {
	SCAN_EMPTY,   /* no life of this path in it, or one without blocks */
	SCAN_MISSING, /* no such file */
	SCAN_OPEN,    /* not sealed: the headers that can be read, without keys of wrong pages */
	SCAN_SEALED,  /* all its headers */
};

struct scan_segment {
	enum scan_kind kind;
	uint64_t epoch, ordinal;
	struct disk_block *block; /* its headers, in order; allocated */
	uint32_t blocks;
};

struct scan {
	struct store_path *path;
	enum path_file_fault fault; /* of the path file, which path->file is */
	struct scan_segment *segment;
	uint64_t sequence, ordinal; /* the highest ones */
	int rc;                     /* 0, or -errno: the path cannot be used */
	bool removing;              /* rc is that of removing a file, not of reading */
};

/* Fills in *scan, whose `path` is set; reports by scan->rc. */
void scan_path(struct scan *scan);
static inline void scan_free(struct scan *scan)
{
	for (uint32_t i = 0; scan->segment && i < scan->path->segments; i++)
		free(scan->segment[i].block);
	free(scan->segment);
	scan->segment = NULL;
}
/*
 * Reads, or with `op` another operation, on behalf of recovery. Returns the result, or
 * -ETIMEDOUT; bytes behind the end of the file are zero. Six parameters: those of one I/O, as for
 * pread().
 */
int64_t scan_call(struct store_path *path, enum device_op op, uint32_t file, uint32_t unit,
	void *units, uint32_t count);

#endif
