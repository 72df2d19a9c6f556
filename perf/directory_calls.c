/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures what the promises of the directory cost one client thread, for directory.py: sets of
 * pages that are stored already, and removes. The engines' sockets are in $PEERCACHE_SOCKETS; the
 * client calls the first engine, and "there" is the last one. It uses the public calls only, so it
 * compiles against other versions of the library, too.
 *
 * Each line on standard input runs one round, so that several processes can take turns. A round
 * prints one line of "NAME VALUE" pairs:
 *
 *   store           ns a page of 128 KiB with a new key, in batches of BATCH
 *   here, there     ns a page of a set of pages that this host or the other one has, and whose
 *                   remembered locations are too old for a set
 *   here_known, there_known    the same pages at once again: their locations are remembered
 *   remove_here_50, _99, remove_there_50, _99    us of removing one page of this host, of the other
 *   remove_batch    ns a page of removing the pages of `store`, in batches of BATCH
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common.h"

#define PAGES 1024u
#define BYTES (128u << 10)
#define BATCH 32u
#define SMALL 4096u
#define REMOVES 400u
#define FORGET_US 1100000u /* longer than a set trusts a location that was found before */

static unsigned char source[BYTES];
static char key[BATCH][KEY_TEXT_BYTES];
static struct pc_segment segment[BATCH];
static struct pc_page page[BATCH];
static enum pc_result result[BATCH];
static uint64_t next;

static struct pc_channel *channel_new(struct pc *pc)
{
	struct pc_channel *ch;

	if (pc_channel_open(pc, &ch))
		die("%s", pc_error());
	key_text(~0ull, key[0]);
	if (pc_exists(ch, page, 1, 10000, result)) /* the channel reads its map */
		die("%s", pc_error());
	return ch;
}

/* Calls `call` for `count` pages from `first` on, in batches. Returns ns a page. */
static double pages_call(
	struct pc_channel *ch, page_call call, uint64_t first, unsigned count, unsigned bytes)
{
	uint64_t took = 0;

	for (unsigned done = 0; done < count; done += BATCH) {
		unsigned n = count - done < BATCH ? count - done : BATCH;
		uint64_t from;

		for (unsigned i = 0; i < n; i++) {
			key_text(first + done + i, key[i]);
			segment[i].bytes = bytes;
		}
		from = now_ns();
		if (call(ch, page, n, 10000, result))
			die("%s", pc_error());
		took += now_ns() - from;
		for (unsigned i = 0; i < n; i++)
			if (result[i] != PC_HIT)
				die("a page is \"%s\"", pc_result_name(result[i]));
	}
	return (double)took / count;
}

/* The pages are there already. */
static void present(struct pc_channel *ch, const char *name, uint64_t first)
{
	printf("%s %.1f ", name, pages_call(ch, pc_set, first, PAGES, BYTES));
	printf("%s_known %.1f ", name, pages_call(ch, pc_set, first, PAGES, BYTES));
}

/* Stores small pages at `holder`, and removes them one by one. */
static void removes(struct pc_channel *holder, struct pc_channel *ch, const char *name)
{
	struct histogram all = {0};

	pages_call(holder, pc_set, next, REMOVES, SMALL);
	for (unsigned i = 0; i < REMOVES; i++) {
		uint64_t from;

		key_text(next++, key[0]);
		from = now_ns();
		if (pc_remove(ch, page, 1, 10000, result))
			die("%s", pc_error());
		histogram_add(&all, now_ns() - from);
		if (result[0] != PC_HIT)
			die("a removed page is \"%s\"", pc_result_name(result[0]));
	}
	printf("%s_50 %.2f %s_99 %.2f ", name, histogram_us(&all, 0.5), name,
		histogram_us(&all, 0.99));
}

int main(void)
{
	const char *socket[SOCKETS_MAX];
	char line[64];
	unsigned sockets = parse_sockets(NULL, socket);
	struct pc *near = open_session(socket[0], "perf");
	struct pc *far = open_session(socket[sockets - 1], "perf");
	struct pc_channel *here, *there;
	uint64_t there_first;

	for (unsigned i = 0; i < BATCH; i++) {
		segment[i].base = source;
		page[i] = (struct pc_page){key[i], KEY_TEXT_BYTES, &segment[i], 1};
	}
	memset(source, 1, sizeof(source));
	here = channel_new(near);
	there = channel_new(far);
	pages_call(here, pc_set, next, PAGES, BYTES);
	next += PAGES;
	there_first = next;
	pages_call(there, pc_set, next, PAGES, BYTES);
	next += PAGES;
	while (fgets(line, sizeof(line), stdin)) {
		usleep(FORGET_US);
		printf("store %.1f ", pages_call(here, pc_set, next, PAGES, BYTES));
		present(here, "here", 0);
		present(here, "there", there_first);
		printf("remove_batch %.1f ", pages_call(here, pc_remove, next, PAGES, BYTES));
		next += PAGES;
		removes(here, here, "remove_here");
		removes(there, here, "remove_there");
		printf("\n");
		fflush(stdout);
	}
	pc_channel_close(there);
	pc_channel_close(here);
	pc_close(far);
	pc_close(near);
	return 0;
}
