/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The geometry of pools and shard, and the memory that an engine takes with it. Pure: any thread.
 */
#include "engine/control/pages/sizes.h"

#include <inttypes.h>

#include "engine/abi/bucket.h"
#include "engine/abi/page.h"

#define CHUNK_BYTES_MIN (2ull << 20)
#define CHUNKS_WANTED 32
#define CHUNKS_MIN 4
#define SMALL_BYTES 4096u

/*
 * Resident without pages and clients, measured: code and libraries, status segment, tables of fixed
 * size; and what each rail adds.
 */
#define PROGRAM_BYTES (8ull << 20)
#define SECURE_BYTES (4ull << 20) /* with a key or certificates, of OpenSSL most of all */
#define RAIL_BYTES (4ull << 20)

#define SHARD_ENTRIES_MAX (1ull << 26)
#define SHARD_DISK_PAGE 16384u /* bytes on disk for which there is an entry */
/*
 * The fewest bits of a shard: with 0 bits there is one bucket, so a key's two candidate buckets
 * would be the same.
 */
#define BITS_MIN 6u
#define BITS_MAX 31u

struct pool_geometry pool_geometry(uint64_t pool_bytes)
{
	uint64_t bytes = CHUNK_BYTES_MIN;

	while (bytes < PAGE_BYTES_MAX && bytes * CHUNKS_WANTED * 2 <= pool_bytes)
		bytes *= 2;
	while (bytes > PAGE_UNIT && pool_bytes / bytes < CHUNKS_MIN)
		bytes /= 2;
	return (struct pool_geometry){.chunks = (uint32_t)(pool_bytes / bytes),
		.chunk_units = (uint32_t)(bytes / PAGE_UNIT)};
}

static uint64_t pool_units(uint64_t pool_bytes)
{
	struct pool_geometry g = pool_geometry(pool_bytes);

	return (uint64_t)g.chunks * g.chunk_units;
}

/* Size of all files of the disk tier. */
static uint64_t disk_bytes(const struct settings *s)
{
	unsigned paths = s->disk_paths[0] != '\0';

	for (const char *c = s->disk_paths; *c; c++)
		paths += *c == ',';
	return paths * s->disk_bytes;
}

uint64_t shard_entries(const struct settings *s, unsigned rails)
{
	uint64_t entries = rails * pool_units(s->engine_pool_bytes);

	if (!rails)
		return 0; /* it owns no slots */
	if (s->engine_directory_entries)
		return (uint64_t)s->engine_directory_entries;
	entries += disk_bytes(s) / SHARD_DISK_PAGE;
	entries *= (uint64_t)s->cluster_replicas;
	return entries < SHARD_ENTRIES_MAX ? entries : SHARD_ENTRIES_MAX;
}

uint32_t shard_bits(uint64_t entries)
{
	uint32_t bits = BITS_MIN;

	if (entries > (uint64_t)BUCKET_ENTRIES << BITS_MAX >> 1)
		return 0;
	while ((uint64_t)BUCKET_ENTRIES << bits < 2 * entries)
		bits++;
	return bits;
}

/* ---- what an engine allocates ---------------------------------------------------------------- */

static struct memory_part part(const char *what, int rail, int node, uint64_t bytes, bool huge)
{
	uint64_t page = huge ? SIZES_HUGE_BYTES : SMALL_BYTES;

	return (struct memory_part){what, rail, node, (bytes + page - 1) & ~(page - 1), huge};
}

unsigned memory_parts(
	const struct settings *s, const struct plan *plan, struct memory_part ret[MEMORY_PARTS_MAX])
{
	struct pool_geometry g = pool_geometry(s->engine_pool_bytes);
	uint64_t units = pool_units(s->engine_pool_bytes);
	uint64_t buckets = 1ull << shard_bits(shard_entries(s, plan->rails));
	unsigned n = 0;
	bool huge = s->engine_huge_pages && plan->rails;

	for (unsigned i = 0; i < plan->rails && i < RAILS_MAX; i++) {
		int rail = (int)i, node = plan->rail[i].numa_node;
		uint64_t slots = POOL_STATE_BYTES + (g.chunks + units) * sizeof(uint32_t);

		ret[n++] = part("pool", rail, node, units * PAGE_UNIT, s->engine_huge_pages);
		ret[n++] = part("heads", rail, node, units * sizeof(struct page_head),
			s->engine_huge_pages);
		ret[n++] = part("slots", rail, node, slots, false);
	}
	ret[n++] =
		part("shard", -1, plan->rail[0].numa_node, buckets * sizeof(struct bucket), huge);
	ret[n++] = part("shard-state", -1, plan->rail[0].numa_node,
		SHARD_STATE_BYTES + buckets * SHARD_SIDE_BYTES, false);
	return n;
}

uint64_t memory_process_bytes(const struct settings *s, unsigned rails)
{
	uint64_t pages = rails * pool_units(s->engine_pool_bytes);
	bool secure = s->cluster_psk_file[0] || s->cluster_tls_dir[0];

	return PROGRAM_BYTES + (secure ? SECURE_BYTES : 0) + rails * RAIL_BYTES +
	       pages * (POOL_SLOT_BYTES + INDEX_ENTRY_BYTES) +
	       disk_bytes(s) / SHARD_DISK_PAGE * DISK_ENTRY_BYTES;
}

unsigned memory_nodes(
	const struct settings *s, const struct plan *plan, struct memory_node ret[RAILS_MAX + 1])
{
	struct memory_part parts[MEMORY_PARTS_MAX];
	unsigned count = memory_parts(s, plan, parts), nodes = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned at = 0;

		while (at < nodes && ret[at].node < parts[i].node)
			at++;
		if (at == nodes || ret[at].node != parts[i].node) {
			for (unsigned j = nodes++; j > at; j--)
				ret[j] = ret[j - 1];
			ret[at] = (struct memory_node){.node = parts[i].node};
		}
		ret[at].bytes += parts[i].bytes;
		ret[at].huge_pages += parts[i].huge ? parts[i].bytes / SIZES_HUGE_BYTES : 0;
	}
	return nodes;
}

static void memory_line(FILE *out, const char *node, uint64_t bytes, uint64_t huge_pages)
{
	fprintf(out, "%-8s %-16" PRIu64 " %-10.2f %" PRIu64 "\n", node, bytes,
		(double)bytes / (1u << 30), huge_pages);
}

void memory_print(const struct settings *s, const struct plan *plan, FILE *out)
{
	struct memory_node nodes[RAILS_MAX + 1], sum = {.node = -1};
	uint64_t process = memory_process_bytes(s, plan->rails);
	unsigned count = memory_nodes(s, plan, nodes);
	char node[16];

	fprintf(out, "%-8s %-16s %-10s %s\n", "node", "memory bytes", "GiB", "huge pages of 2 MiB");
	for (unsigned i = 0; i < count; i++) {
		snprintf(node, sizeof(node), "%d", nodes[i].node);
		memory_line(
			out, nodes[i].node < 0 ? "any" : node, nodes[i].bytes, nodes[i].huge_pages);
		sum.bytes += nodes[i].bytes;
		sum.huge_pages += nodes[i].huge_pages;
	}
	sum.bytes += process;
	memory_line(out, "process", process, 0);
	memory_line(out, "sum", sum.bytes, sum.huge_pages);
}
