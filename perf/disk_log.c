/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes pages to the segment log of engine/disk, opens it again, and reads them in random order;
 * prints rates, CPU time and the time of the start.
 *
 *   disk_log PAGE_BYTES PAGES DEPTH DIRECTORY...
 *
 * Each directory is used as a path and keeps its files; DEPTH is of all paths together. One thread
 * besides those of the tier.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "config/log.h"
#include "engine/disk/disk.h"
#include "numa/clock.h"

static struct disk *disk;
static uint32_t page_bytes, pages, depth;
static struct disk_request *request;

static struct page_key key_of(uint32_t number)
{
	return (struct page_key){{(number + 1) * UINT64_C(0x9e3779b97f4a7c15),
		(number + 1) * UINT64_C(0xbf58476d1ce4e5b9)}};
}

static double cpu_seconds(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void start(struct disk_request *one, enum disk_op op, uint32_t number)
{
	one->op = op;
	one->key = key_of(
		op == DISK_READ ? (uint32_t)((uint64_t)number * 2654435761u % pages) : number);
	one->length = page_bytes;
	if (op == DISK_WRITE)
		memcpy(one->data, &number, sizeof(number));
	disk_submit(disk, one);
}

/* All pages once, `depth` at a time. Returns how many were answered with DISK_OK. */
static uint32_t run(enum disk_op op, const char *name)
{
	uint64_t began = clock_now_ns();
	double cpu = cpu_seconds(), seconds, gigabytes;
	uint32_t next = 0, done = 0, ok = 0;

	while (next < depth && next < pages) {
		start(&request[next], op, next);
		next++;
	}
	while (done < pages) {
		struct disk_request *finished = disk_reap(disk);

		if (!finished) {
			struct pollfd readable = {.fd = disk_fd(disk), .events = POLLIN};

			(void)poll(&readable, 1, 1000);
			continue;
		}
		done++;
		ok += finished->status == DISK_OK;
		if (next < pages)
			start(finished, op, next++);
	}
	seconds = (double)(clock_now_ns() - began) / 1e9;
	gigabytes = (double)ok * page_bytes / 1e9;
	printf("%s: %u pages, %.3f GB/s, %.0f pages/s, %.2f CPU s/GB\n", name, ok,
		gigabytes / seconds, ok / seconds, (cpu_seconds() - cpu) / gigabytes);
	return ok;
}

static void report(void)
{
	double written = 0, of_pages = 0;
	struct disk_report report;

	disk_report(disk, &report);
	for (unsigned i = 0; i < report.paths; i++) {
		written += (double)report.path[i].bytes_written;
		of_pages += (double)report.path[i].page_bytes;
	}
	printf("bytes written / page bytes: %.4f; index: %.2f bytes a page (%u pages)\n",
		written / of_pages, (double)report.index_bytes / report.pages, report.pages);
}

int main(int argc, char **argv)
{
	struct disk_options options = {
		.segment_bytes = DISK_SEGMENT_BYTES, .owner = "disk_log", .timeout_ms = 60000};
	uint64_t began;

	if (argc < 5 || argc > 4 + DISK_PATHS_MAX) {
		fprintf(stderr, "usage: disk_log PAGE_BYTES PAGES DEPTH DIRECTORY...\n");
		return 2;
	}
	page_bytes = (uint32_t)strtoul(argv[1], NULL, 10);
	pages = (uint32_t)strtoul(argv[2], NULL, 10);
	depth = (uint32_t)strtoul(argv[3], NULL, 10);
	if (!page_bytes || page_bytes > PAGE_BYTES_MAX || page_bytes % PAGE_UNIT || !pages ||
		!depth)
		return 2;
	options.paths = (unsigned)argc - 4;
	for (unsigned i = 0; i < options.paths; i++) {
		options.path[i].directory = argv[4 + i];
		options.path[i].bytes = (uint64_t)page_bytes * pages / options.paths * 11 / 10 +
					8ull * DISK_SEGMENT_BYTES;
	}
	request = calloc(depth, sizeof(*request));
	for (uint32_t i = 0; request && i < depth; i++) {
		request[i].data = aligned_alloc(PAGE_UNIT, page_bytes);
		if (!request[i].data)
			return 1;
		memset(request[i].data, (int)i, page_bytes);
	}
	if (!request || disk_open(&options, &disk))
		return 1;
	run(DISK_WRITE, "write");
	report();
	if (disk_close(disk))
		return 1;
	began = clock_now_ns();
	if (disk_open(&options, &disk))
		return 1;
	printf("open: %.3f s\n", (double)(clock_now_ns() - began) / 1e9);
	report();
	run(DISK_READ, "read");
	return disk_close(disk) ? 1 : 0;
}
