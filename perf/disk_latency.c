/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Latency of single gets of pages that are on the disk of a host, by a client of that host and by
 * one of another host; and of the parts of that time. Started by disk_remote.py.
 *
 *   disk_latency PAGE_BYTES PAGES REST_US       $PEERCACHE_SOCKETS: the holder, the reader
 *
 * Stores PAGES pages through the holder, in batches of 16 with pauses of REST_US, then gets pages
 * of the first half one by one in random order: even ones through the reader, odd ones through the
 * holder. A round trip of the control plane is a set of one small page through the reader, which is
 * answered when the holder has acknowledged its entry. Prints one JSON object. One thread.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common.h"

#define BATCH 16u
#define TRIPS 2000u
#define TIMEOUT_MS 10000u
#define SMALL_BYTES 64u

struct side {
	struct pc *pc;
	struct pc_channel *channel;
	struct histogram hit;
	uint64_t misses, wrong;
};

static struct side holder, reader;
static unsigned char *memory;
static size_t page_bytes;

static void side_open(struct side *s, const char *socket)
{
	s->pc = open_session(socket, "disk-latency");
	if (pc_channel_open(s->pc, &s->channel))
		die("%s", pc_error());
}

static enum pc_result one(page_call function, struct pc_channel *channel, uint64_t id, size_t bytes)
{
	char key[KEY_TEXT_BYTES];
	struct pc_segment segment = {memory, bytes};
	struct pc_page page = {key, KEY_TEXT_BYTES, &segment, 1};
	enum pc_result result;

	key_text(id, key);
	if (function(channel, &page, 1, TIMEOUT_MS, &result))
		die("%s", pc_error());
	return result;
}

static void store(uint64_t pages, unsigned rest_us)
{
	for (uint64_t id = 0; id < pages; id++) {
		content_fill(memory, page_bytes, id);
		if (one(pc_set, holder.channel, id, page_bytes) != PC_HIT)
			die("page %llu was not stored", (unsigned long long)id);
		if (id % BATCH == BATCH - 1)
			usleep(rest_us);
	}
}

static void get(struct side *s, uint64_t id)
{
	uint64_t start_ns = now_ns(), took_ns;
	enum pc_result result = one(pc_get, s->channel, id, page_bytes);

	took_ns = now_ns() - start_ns;
	if (result != PC_HIT) {
		s->misses++;
		return;
	}
	s->wrong += !content_is(memory, page_bytes, id);
	histogram_add(&s->hit, took_ns);
}

static void round_trips(struct histogram *ret)
{
	for (unsigned n = 0; n < TRIPS; n++) {
		uint64_t start_ns = now_ns();

		if (one(pc_set, reader.channel, (uint64_t)1 << 40 | n, SMALL_BYTES) != PC_HIT)
			die("a small page was not stored");
		histogram_add(ret, now_ns() - start_ns);
	}
}

static void add_side(json_object *all, const char *name, const struct side *s)
{
	json_object *o = json_object_new_object();

	add_number(o, "hits", s->hit.total);
	add_number(o, "misses", s->misses);
	add_number(o, "wrong", s->wrong);
	add_real(o, "p50_us", histogram_us(&s->hit, 0.5));
	add_real(o, "p90_us", histogram_us(&s->hit, 0.9));
	add_real(o, "p99_us", histogram_us(&s->hit, 0.99));
	json_object_object_add(all, name, o);
}

/* Gets the pages of the first half in random order: those with the lowest hashes first. */
static void get_all(uint64_t pages)
{
	uint64_t half = pages / 2, *order = malloc(half * sizeof(*order)), at;

	if (!order)
		die("out of memory");
	for (uint64_t i = 0; i < half; i++) {
		at = mix64(i) % (i + 1);
		order[i] = order[at];
		order[at] = i;
	}
	for (uint64_t i = 0; i < half; i++)
		get(order[i] % 2 ? &holder : &reader, order[i]);
	free(order);
}

int main(int argc, char **argv)
{
	json_object *all = json_object_new_object();
	static struct histogram trips;
	const char *socket[SOCKETS_MAX];
	uint64_t pages;

	if (argc != 4 || parse_sockets(NULL, socket) != 2)
		die("usage: see the top of disk_latency.c");
	page_bytes = parse_size("PAGE_BYTES", argv[1], SMALL_BYTES, 64u << 20);
	pages = parse_number("PAGES", argv[2], 2, 1u << 30);
	side_open(&holder, socket[0]);
	side_open(&reader, socket[1]);
	memory = aligned_alloc(4096, (page_bytes + 4095) / 4096 * 4096);
	if (!memory)
		die("out of memory");
	store(pages, (unsigned)parse_number("REST_US", argv[3], 0, 999999));
	round_trips(&trips);
	get_all(pages);
	add_side(all, "local", &holder);
	add_side(all, "remote", &reader);
	add_real(all, "round_trip_us", histogram_us(&trips, 0.5));
	write_json(all, "-");
	pc_channel_close(holder.channel);
	pc_channel_close(reader.channel);
	pc_close(holder.pc);
	pc_close(reader.pc);
	json_object_put(all);
	free(memory);
	return 0;
}
