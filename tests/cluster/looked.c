/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that are looked up on another host are evicted after pages that are not. Stores three
 * groups of pages through the first engine of $PEERCACHE_SOCKETS: one that nothing looks up, one
 * that is looked up once through the second engine, and one that is looked up there all the time.
 * Then it stores new pages through the first engine, several times as many as its pool holds,
 * slowly: a page is reported as used once a second at most, and eviction must not be faster. Half
 * of the new pages are looked up as well, so that used pages leave in the end, too.
 *
 * Prints one JSON object: `stored`, the pages that were stored; `lost`, the looks that did not find
 * a page of the last group; `idle` and `once`, the pages of the others that were found when a
 * group had left; `late`, those of the second that were found in the end. Started by
 * test_touches.py.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common.h"

#define PAGE_BYTES (256u << 10)
#define GROUP 16u
#define BATCH 4u
#define TIMEOUT_MS 20000u
#define FILL_US 6000000u /* time in which as many pages are stored as the pool has slots */
#define FILLS 4u
enum group { IDLE, ONCE, LOOKED, FRESH };

static unsigned char bytes[PAGE_BYTES];

/* Calls `function` for `n` pages of a group, from number `from` on. Returns how many are hits. */
static unsigned call(
	struct pc_channel *channel, page_call function, enum group group, uint64_t from, unsigned n)
{
	char key[GROUP][KEY_TEXT_BYTES];
	struct pc_segment segment = {bytes, PAGE_BYTES};
	struct pc_page page[GROUP];
	enum pc_result result[GROUP];
	unsigned hits = 0;

	for (unsigned i = 0; i < n; i++) {
		key_text((uint64_t)group << 32 | (from + i), key[i]);
		page[i] = (struct pc_page){key[i], KEY_TEXT_BYTES, &segment, 1};
	}
	if (function(channel, page, n, TIMEOUT_MS, result))
		die("%s", pc_error());
	for (unsigned i = 0; i < n; i++)
		hits += result[i] == PC_HIT;
	return hits;
}

int main(int argc, char **argv)
{
	const char *socket[SOCKETS_MAX];
	json_object *all = json_object_new_object();
	struct pc_channel *here, *there;
	struct pc *near, *far;
	unsigned slots, idle = GROUP, once = 0, stored = 0;
	uint64_t lost = 0;

	if (argc != 2 || parse_sockets(NULL, socket) != 2)
		die("usage: looked SLOTS, with two engines in $PEERCACHE_SOCKETS");
	slots = (unsigned)parse_number("SLOTS", argv[1], 4 * GROUP, 65536);
	near = open_session(socket[0], "looked");
	far = open_session(socket[1], "looked");
	if (pc_channel_open(near, &here) || pc_channel_open(far, &there))
		die("%s", pc_error());
	for (enum group g = IDLE; g <= LOOKED; g++)
		stored += call(here, pc_set, g, 0, GROUP);
	lost += GROUP - call(there, pc_exists, ONCE, 0, GROUP);
	for (uint64_t n = 0; n < FILLS * slots; n += BATCH) {
		lost += GROUP - call(there, pc_exists, LOOKED, 0, GROUP);
		usleep(FILL_US / slots * BATCH);
		stored += call(here, pc_set, FRESH, n, BATCH);
		call(there, pc_exists, FRESH, n, BATCH / 2);
		/* the pool was full after slots - 3 * GROUP, and a group or more has left since; a
		 * page that was used goes when it is twice as old as those that were not */
		if (n == (slots - 2 * GROUP) / BATCH * BATCH) {
			idle = call(there, pc_exists, IDLE, 0, GROUP);
			once = call(there, pc_exists, ONCE, 0, GROUP);
		}
	}
	add_number(all, "stored", stored);
	add_number(all, "lost", lost);
	add_number(all, "idle", idle);
	add_number(all, "once", once);
	add_number(all, "late", call(there, pc_exists, ONCE, 0, GROUP));
	write_json(all, "-");
	json_object_put(all);
	pc_channel_close(there);
	pc_channel_close(here);
	pc_close(far);
	pc_close(near);
	return 0;
}
