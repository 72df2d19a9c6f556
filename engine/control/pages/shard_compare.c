/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holders learn of their entries in this host's shard: digests, and the entries themselves.
 * Nothing here changes the shard. The control plane's thread only.
 */
#include "engine/control/pages/shard.h"

void shard_digest(
	const struct shard *shard, uint32_t *cursor, uint32_t buckets, uint32_t ref, uint64_t *sums)
{
	uint32_t mask = (1u << shard->bits) - 1;

	for (; buckets; buckets--, *cursor = (*cursor + 1) & mask)
		for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
			const struct dir_entry *entry = &shard->bucket[*cursor & mask].entry[i];

			if (entry->tag && entry->ref == ref)
				sums[shard->side[*cursor & mask].slot[i]] += shard_entry_hash(
					entry->tag, entry->place, entry->generation);
		}
}

static bool part_wants(const struct shard_part *part, uint32_t slot)
{
	return !part->slots || part->slots[slot / 8] >> slot % 8 & 1;
}

static void part_step(const struct shard *shard, struct shard_part *part)
{
	part->entry = 0;
	part->buckets--;
	if (++part->bucket >> shard->bits)
		part->bucket = part->buckets = 0;
}

const struct dir_entry *shard_show(const struct shard *shard, struct shard_part *part, uint32_t ref)
{
	if (part->bucket >> shard->bits)
		part->bucket = part->buckets = 0;
	for (; part->buckets; part_step(shard, part))
		while (part->entry < BUCKET_ENTRIES) {
			unsigned i = part->entry++;
			const struct dir_entry *entry = &shard->bucket[part->bucket].entry[i];

			if (!entry->tag || entry->ref != ref ||
				!part_wants(part, shard->side[part->bucket].slot[i]))
				continue;
			part->first = part->bucket;
			if (shard->side[part->bucket].second & 1u << i)
				part->first =
					dir_bucket_other(part->bucket, entry->tag, shard->bits);
			return entry;
		}
	return NULL;
}
