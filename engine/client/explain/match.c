/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_match(): which hosts have the pages of a list of keys. It is an exists on a channel that has a
 * struct match (BATCH_MATCH): look.c takes nothing from the location cache, and of the owner that
 * has the key it notes all entries; a key whose first bucket is full is looked up in the second
 * one, too. Peer numbers name the holders; one that leaves meanwhile is none. Channel thread.
 */
#include "engine/abi/map.h"
#include "engine/client/attach/session.h"
#include "engine/client/error.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/page/batch.h"
#include "engine/client/peercache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a peer has of the list. */
struct match_peer {
	uint32_t prefix, pages, disk;
};

/* NULL: no memory. */
static struct match *match_make(uint32_t count)
{
	size_t keys = count * sizeof(struct match_key);
	struct match *match;

	match = malloc(sizeof(*match) + keys + count * sizeof(match->result[0]));
	if (!match)
		return NULL;
	match->count = count;
	match->result = (enum pc_result *)(void *)((char *)match->key + keys);
	for (uint32_t i = 0; i < count; i++)
		match->key[i].holders = match->key[i].disk = 0;
	return match;
}
static_assert(
	sizeof(struct match_key) % sizeof(enum pc_result) == 0, "the results follow the keys");

/* Adds a holder to those that are sorted, the best first; the last one gives way. */
static void match_rank(struct pc_match *ret, const struct pc_holder *h)
{
	unsigned at = ret->holders;

	while (at && (ret->holder[at - 1].prefix < h->prefix ||
			     (ret->holder[at - 1].prefix == h->prefix &&
				     ret->holder[at - 1].pages < h->pages)))
		at--;
	if (at == PC_HOLDERS_MAX)
		return;
	if (ret->holders < PC_HOLDERS_MAX)
		ret->holders++;
	memmove(&ret->holder[at + 1], &ret->holder[at],
		(ret->holders - 1 - at) * sizeof(ret->holder[0]));
	ret->holder[at] = *h;
}

/* Counts what each of `peers` has, by the list. The map may have fewer than when it was noted. */
static void match_count(const struct match *match, struct match_peer *peer, uint32_t peers)
{
	for (uint32_t i = 0; i < match->count; i++) {
		const struct match_key *key = &match->key[i];

		for (unsigned k = 0; k < key->holders; k++) {
			struct match_peer *p = &peer[key->peer[k]];

			if (key->peer[k] >= peers)
				continue;
			p->pages++;
			p->prefix += p->prefix == i;
			p->disk += key->disk >> k & 1;
		}
	}
}

/* What some host has, and of what is not known. -EINVAL: a key is wrong, pc_error() tells which. */
static int match_results(const struct match *match, struct pc_match *ret)
{
	ret->prefix = ret->unknown = ret->holders = ret->holders_all = 0;
	for (uint32_t i = 0; i < match->count; i++) {
		enum pc_result result = match->result[i];

		if (result == PC_INVALID)
			return -EINVAL;
		ret->prefix += ret->prefix == i && result == PC_HIT;
		ret->unknown += result != PC_HIT && result != PC_MISS;
	}
	return 0;
}

static int match_holders(
	const struct pc_channel *ch, const struct match *match, struct pc_match *ret)
{
	/* none: the engine was lost */
	uint32_t peers = ch->map && ch->session ? ch->map->peers : 0;
	struct match_peer *peer = calloc(peers + 1, sizeof(*peer));

	if (!peer)
		return error_set(-ENOMEM, "out of memory for a match");
	match_count(match, peer, peers);
	for (uint32_t i = 0; i < peers; i++) {
		uint32_t ref = ch->map->member[i].ref;
		struct pc_holder h = {.ref = ref,
			.here = ref == ch->session->ref,
			.prefix = peer[i].prefix,
			.pages = peer[i].pages,
			.pages_on_disk = peer[i].disk};

		if (!h.pages || !ref) /* it has left meanwhile */
			continue;
		ret->holders_all++;
		match_rank(ret, &h);
	}
	free(peer);
	return 0;
}

int pc_match(struct pc_channel *ch, const struct pc_page *pages, unsigned count,
	unsigned timeout_ms, struct pc_match *ret_match, enum pc_result *ret_results)
{
	struct match *match;
	int rc;

	if (!ch || !ret_match || count > PC_BATCH_MAX)
		return error_set(-EINVAL,
			"a match needs a channel, at most %u keys and a place for its result",
			PC_BATCH_MAX);
	match = match_make(count);
	if (!match)
		return error_set(-ENOMEM, "out of memory for a match of %u keys", count);
	ch->match = match;
	rc = pc_exists(ch, pages, count, timeout_ms, match->result);
	ch->match = NULL;
	if (!rc)
		rc = match_results(match, ret_match);
	if (!rc)
		rc = match_holders(ch, match, ret_match);
	if (!rc && ret_results)
		memcpy(ret_results, match->result, count * sizeof(*ret_results));
	free(match);
	return rc;
}
