/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing entries with an owner that was off the map: it may still have all entries of this
 * engine, because this engine was restarted warm, or because a link was cut for a moment. The
 * holder asks the owner for digests of its entries, and computes the same from its index. Of slots
 * whose digests differ, the walk of the owner (directory_walk.c) publishes the entries, and the
 * owner shows those that it has (directory_show.c). Control plane's thread only.
 *
 * The holder counts its index after the last map change, since the owners of a key depend on the
 * map. The owner reads its shard at about the same time. An entry that changes meanwhile is
 * published by its own update, whatever the digests say; the slot that it is in differs, so its
 * entries are written once more, which changes nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/control/directory_state.h"
#include "engine/control/member.h"

/* ---- the holder ------------------------------------------------------------------------------ */

static uint64_t *ours_of(struct digest *digest)
{
	return digest->sums + ((size_t)1 << digest->bits);
}

uint64_t digest_differs(const struct digest *digest)
{
	size_t slots = (size_t)1 << digest->bits;
	uint64_t differ = 0;

	for (size_t i = 0; digest->answered && i < slots; i++)
		differ += digest->sums[i] != digest->sums[slots + i];
	return differ;
}

void digest_forgotten(struct owner *owner)
{
	digest_drop(owner);
	owner->removing = owner_removing(owner);
}

void digest_drop(struct owner *owner)
{
	free(owner->digest);
	owner->digest = NULL;
}

/* log2 of the number of slots of which each has about DIGEST_SLOT_ENTRIES entries at one owner. */
static unsigned bits_for(const struct directory *dir)
{
	const struct map_view *view = member_map(dir->control);
	uint64_t entries = pages_count(dir) * map_owning(view) / view->owners;
	unsigned bits = 0;

	while (bits < DIGEST_BITS_MAX && entries >> bits > DIGEST_SLOT_ENTRIES)
		bits++;
	return bits;
}

/* NULL: this owner cannot be asked now; all its entries are published. */
static struct rpc_link *link_to_ask(const struct directory *dir, const struct owner *owner)
{
	struct rpc_link *link = member_link(dir->control, owner->ref);

	return owner->removing ? NULL : link;
}

bool digest_ask(struct directory *dir, struct owner *owner)
{
	struct rpc_link *link = link_to_ask(dir, owner);
	unsigned bits = bits_for(dir);
	Pc__DigestAsk body = PC__DIGEST_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	struct digest *digest;

	if (!link)
		return false;
	digest = calloc(1, sizeof(*digest) + ((size_t)2 << bits) * sizeof(digest->sums[0]));
	if (!digest)
		return false;
	digest->serial = body.serial = ++dir->serial;
	digest->bits = body.bits = bits;
	digest->via = link;
	digest->asked_ns = net_now();
	message.body_case = PC__MESSAGE__BODY_DIGEST_ASK;
	message.digest_ask = &body;
	if (rpc_send(link, &message))
		owner->digest = digest;
	else
		free(digest);
	return owner->digest != NULL;
}

bool digests_ask(struct directory *dir)
{
	const struct map_view *view = member_map(dir->control);
	bool any = false;

	if (!publishes(dir))
		return false;
	for (uint32_t i = 0; i < view->owners; i++) {
		struct owner *owner = owner_of(dir, view->owner[i].ref);

		if (owner && owner->fresh)
			any |= digest_ask(dir, owner);
	}
	return any;
}

static bool to_count(const struct directory *dir, const struct owner *owner)
{
	(void)dir;
	return owner->digest && !owner->digest->counted;
}

static bool digest_wants(struct directory *dir, uint32_t slot)
{
	return slot_any(dir, slot) && slot_owner_any(dir, slot, to_count);
}

static void digest_complete(struct directory *dir, struct owner *owner)
{
	if (owner->digest->answered && owner->digest->counted)
		show_begin(dir, owner);
}

void digests_counted(struct directory *dir)
{
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (owner->digest) {
			owner->digest->counted = true;
			digest_complete(dir, owner);
		}
}

static void digest_count(struct directory *dir, const struct index_entry *entry)
{
	const struct map_view *view = member_map(dir->control);
	uint32_t at[REPLICAS_MAX], tag = dir_tag(&entry->key);
	unsigned owners = map_owners(view, &entry->key, at);

	for (unsigned i = 0; i < owners; i++) {
		struct owner *owner = owner_of(dir, view->owner[at[i]].ref);

		if (owner && to_count(dir, owner) && owner_takes(dir, owner->ref, entry->place))
			ours_of(owner->digest)[shard_slot(tag, owner->digest->bits)] +=
				shard_entry_hash(tag, entry->place, entry->generation);
	}
}

const struct slots_reading digest_reading = {digest_wants, digest_count, NULL};

static bool unanswered(const struct digest *digest, uint64_t limit_ns)
{
	return digest && !digest->answered && net_now() - digest->asked_ns < limit_ns;
}

bool digest_waits(const struct owner *owner)
{
	return owner->digest &&
	       (!owner->digest->counted || unanswered(owner->digest, DIGEST_WAIT_NS));
}

bool digests_wait(const struct directory *dir, uint64_t limit_ns)
{
	const struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (unanswered(owner->digest, limit_ns))
			return true;
	return false;
}

void digests_leave(struct directory *dir)
{
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next)
		if (digest_waits(owner))
			owner->behind = owner->walk.slots != 0;
}

void digests_stale(struct directory *dir)
{
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next) {
		owner->fresh |= owner->digest && !owner->digest->repair;
		digest_drop(owner);
	}
}

void digests_end(struct directory *dir)
{
	struct owner *owner;

	STAILQ_FOREACH (owner, &dir->owners, next) {
		owner->removing = false;
		/* an answer that is to come tells which entries are wrong */
		if (!owner->walk.slots && !unanswered(owner->digest, DIGEST_WAIT_NS))
			digest_drop(owner);
	}
}

void digest_spoil(struct owner *owner, const struct page_key *key)
{
	if (owner->digest)
		ours_of(owner->digest)[shard_slot(dir_tag(key), owner->digest->bits)]++;
}

bool digest_equal(struct owner *owner, const struct page_key *key)
{
	struct digest *digest = owner->digest;
	uint32_t slot;

	if (!digest || !digest->answered)
		return false;
	slot = shard_slot(dir_tag(key), digest->bits);
	return digest->sums[slot] == ours_of(digest)[slot];
}

bool directory_serve_digest(
	struct control *control, struct rpc_link *link, const Pc__Digest *answer)
{
	struct owner *owner = owner_at(control->directory, link->member->record.peer);
	struct digest *digest = owner->digest;

	/* The answer may be late: the map has changed, or the walk did not wait. */
	if (!digest || digest->serial != answer->serial || digest->via != link)
		return answer->n_sums <= 1u << DIGEST_BITS_MAX;
	if (digest->answered || (answer->n_sums && answer->n_sums != (size_t)1 << digest->bits))
		return false;
	if (answer->n_sums)
		memcpy(digest->sums, answer->sums, answer->n_sums * sizeof(digest->sums[0]));
	digest->answered = true;
	digest->none = answer->n_sums == 0;
	digest_complete(control->directory, owner);
	move_soon(control->directory);
	return true;
}

/* ---- the owner ------------------------------------------------------------------------------- */

static void reply(struct rpc_link *link, uint64_t serial, uint64_t *sums, size_t count)
{
	Pc__Digest body = PC__DIGEST__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	body.serial = serial;
	body.sums = sums;
	body.n_sums = count;
	message.body_case = PC__MESSAGE__BODY_DIGEST;
	message.digest = &body;
	rpc_reply(link, &message);
}

bool directory_serve_digest_ask(
	struct control *control, struct rpc_link *link, const Pc__DigestAsk *ask)
{
	struct directory *dir = control->directory;
	struct asked *asked;

	if (ask->bits > DIGEST_BITS_MAX)
		return false;
	digests_unask(dir, link);
	asked = control->shard.entries ? calloc(1, sizeof(*asked)) : NULL;
	if (!asked) {
		/* Also without memory: then the sender publishes everything again. */
		reply(link, ask->serial, NULL, 0);
		return true;
	}
	asked->link = link;
	asked->serial = ask->serial;
	asked->ref = member_link_ref(link);
	asked->bits = ask->bits;
	asked->left = 1ull << control->shard.bits;
	TAILQ_INSERT_TAIL(&dir->asked, asked, next);
	move_soon(dir);
	return true;
}

void digests_unask(struct directory *dir, const struct rpc_link *link)
{
	struct asked *asked, *next;

	for (asked = TAILQ_FIRST(&dir->asked); asked; asked = next) {
		next = TAILQ_NEXT(asked, next);
		if (link && asked->link != link)
			continue;
		TAILQ_REMOVE(&dir->asked, asked, next);
		free(asked->sums);
		free(asked);
	}
}

/* Reads the next part of the shard. False: there is more to read. Without memory nothing is. */
static bool count_part(const struct shard *shard, struct asked *asked)
{
	uint32_t buckets = asked->left < DIGEST_BUCKETS ? (uint32_t)asked->left : DIGEST_BUCKETS;

	if (!asked->sums)
		asked->sums = calloc((size_t)1 << asked->bits, sizeof(asked->sums[0]));
	if (!asked->sums)
		return true;
	shard_digest(shard, &asked->cursor, buckets, asked->ref, asked->bits, asked->sums);
	asked->left -= buckets;
	return asked->left == 0;
}

void digests_slice(struct directory *dir)
{
	struct asked *asked = TAILQ_FIRST(&dir->asked);

	if (!asked || !count_part(&dir->control->shard, asked))
		return;
	TAILQ_REMOVE(&dir->asked, asked, next);
	reply(asked->link, asked->serial, asked->sums, asked->sums ? (size_t)1 << asked->bits : 0);
	free(asked->sums);
	free(asked);
}
