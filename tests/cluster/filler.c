/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores ever new pages through the engine of $PEERCACHE_SOCKETS, so that its pool is full and each
 * set needs an eviction, with a deadline that may be shorter than one takes. Runs until it is
 * killed, or for --batches calls; then prints the results of the pages as one JSON object.
 *
 * Started by test_suspect.py and tests/served.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common.h"

#define PAGE_BYTES (256u << 10)
#define PAGES 64u

int main(int argc, char **argv)
{
	static const struct option options[] = {{"timeout-ms", 1, NULL, 't'},
		{"batches", 1, NULL, 'n'}, {"pages", 1, NULL, 'p'}, {NULL, 0, NULL, 0}};
	static char key[PAGES][KEY_TEXT_BYTES];
	struct pc_segment segment = {.bytes = PAGE_BYTES};
	uint64_t outcome[PC_PENDING + 1] = {0}, batches = UINT64_MAX;
	json_object *all = json_object_new_object();
	struct pc_page page[PAGES];
	enum pc_result result[PAGES];
	struct pc_channel *channel;
	const char *socket[SOCKETS_MAX];
	unsigned timeout_ms = 1, pages = PAGES;
	struct pc *pc;
	int o;

	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 't':
			timeout_ms = (unsigned)parse_number("--timeout-ms", optarg, 1, 60000);
			break;
		case 'p': pages = (unsigned)parse_number("--pages", optarg, 1, PAGES); break;
		case 'n': batches = parse_number("--batches", optarg, 1, UINT32_MAX); break;
		default: die("usage: filler [--timeout-ms N] [--pages N] [--batches N]");
		}
	}
	if (parse_sockets(NULL, socket) != 1)
		die("needs one engine in $PEERCACHE_SOCKETS");
	segment.base = calloc(1, PAGE_BYTES);
	if (!segment.base)
		die("out of memory");
	pc = open_session(socket[0], "filler");
	if (pc_channel_open(pc, &channel))
		die("%s", pc_error());
	for (uint64_t n = 0; n < batches; n++) {
		for (unsigned i = 0; i < pages; i++) {
			key_text(n * pages + i, key[i]);
			page[i] = (struct pc_page){key[i], KEY_TEXT_BYTES, &segment, 1};
		}
		if (pc_set(channel, page, pages, timeout_ms, result))
			die("%s", pc_error());
		for (unsigned i = 0; i < pages; i++)
			outcome[result[i]]++;
	}
	for (unsigned r = 0; r <= PC_PENDING; r++)
		if (outcome[r])
			add_number(all, pc_result_name((enum pc_result)r), outcome[r]);
	write_json(all, "-");
	json_object_put(all);
	pc_channel_close(channel);
	pc_close(pc);
	free(segment.base);
	return 0;
}
