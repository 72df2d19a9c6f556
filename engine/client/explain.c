/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_explain(): asks all owners of one key, as a look-up does one after the other, and then READs
 * the page head at each place that they name and asks the engine of this host where it has the
 * page. explain_reader.c draws the conclusion. It uses no location cache and reports nothing to the
 * control plane, so looking changes nothing. Channel thread.
 */
#include "config/clock.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/attach.h"
#include "engine/client/batch.h"
#include "engine/client/channel.h"
#include "engine/client/directory.h"
#include "engine/client/error.h"
#include "engine/client/explain.h"
#include "engine/client/key.h"
#include "engine/client/page.h"
#include "engine/client/peek.h"
#include "engine/client/peercache.h"
#include "engine/client/session.h"
#include "engine/client/wait.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAP_ATTEMPTS 3 /* to load owners that are those of the channel's copy of the members */

/*
 * READs all of `peek`, at most PEEKS_MAX, and returns when each has its status, which is at the
 * deadline or ANSWER_GRACE_NS later. The channel is attached. -ENOMEM: no status was written.
 */
static int peek_all(struct pc_channel *ch, struct peek *peek, uint32_t count, uint64_t deadline_ns)
{
	enum pc_result results[PEEKS_MAX];
	struct pc_batch *b = batch_make(ch, count);

	if (!b)
		return -ENOMEM;
	b->kind = BATCH_PEEK;
	b->peek = peek;
	b->results = results;
	b->submitted_ns = clock_monotonic_ns();
	b->deadline_ns = deadline_ns;
	if (deadline_ns < ch->due_ns)
		ch->due_ns = deadline_ns;
	memset(b->work, 0, count * sizeof(b->work[0]));
	for (uint32_t i = 0; i < count; i++) {
		peek[i].status = OP_TIMEOUT;
		results[i] = PC_PENDING;
		page_queue(b, i, PAGE_HEAD);
	}
	wait_for(ch, b, UINT64_MAX);
	for (uint32_t i = 0; i < count; i++)
		if (results[i] == PC_GONE || results[i] == PC_PENDING)
			peek[i].status = OP_CANCELLED;
	batch_free(b);
	return 0;
}

/* ---- the owners ------------------------------------------------------------------------------ */

static void add_owner(
	const struct pc_channel *ch, struct explain *x, const struct map_member *m, unsigned bit)
{
	struct explain_owner *o;
	uint32_t bits;

	for (unsigned k = 0; k < x->owners; k++)
		if (x->owner[k].ref == m->ref)
			return;
	o = &x->owner[x->owners++];
	o->ref = m->ref;
	o->peer = m->peer;
	o->here = m->ref == ch->session->ref;
	o->bit = (uint8_t)bit;
	o->former = bit >= REPLICAS_MAX;
	o->suspect = !o->here && map_suspect(&ch->session->status->map, m->peer);
	bits = o->here ? ch->session->bucket_bits : m->bucket_bits;
	o->bucket[0] = dir_bucket_first(&x->key, bits);
	o->bucket[1] = dir_bucket_other(o->bucket[0], dir_tag(&x->key), bits);
}

/* Loads the owners by the map of which the channel has the members. False: it keeps changing. */
static bool owners_load(struct pc_channel *ch, uint32_t slot, struct map_owners *ret)
{
	bool loaded = false;

	for (unsigned n = 0; !loaded && n < MAP_ATTEMPTS; n++) {
		map_refresh(ch);
		loaded = ch->map && map_owners_load(&ch->session->status->map, slot, ret) &&
			 ret->epoch == ch->map_epoch;
	}
	return loaded;
}

static void find_owners(struct pc_channel *ch, struct explain *x)
{
	const struct map_shared *shared = &ch->session->status->map;
	struct map_owners owners;

	x->slot = map_slot_of(&x->key);
	x->known = owners_load(ch, x->slot, &owners) && ch->map->members;
	if (!x->known)
		return;
	x->epoch = ch->map_epoch;
	x->members = ch->map->members;
	x->proves = owners.proves;
	if (!x->proves) {
		x->left_s = map_slot_left_s(shared, x->slot, clock_monotonic_ns());
		x->left_s += !x->left_s; /* the engine is about to end it */
	}
	for (unsigned k = 0; k < owners.all; k++) {
		const struct map_member *m = map_known(ch, &owners.member[k]);
		unsigned bit = k < owners.owners ? k : REPLICAS_MAX + k - owners.owners;

		if (m)
			add_owner(ch, x, m, bit);
		else
			x->known = false;
	}
	x->known &= x->owners > 0;
}

/* ---- what they answer ------------------------------------------------------------------------ */

static uint8_t add_holder(struct pc_channel *ch, struct explain *x, const struct dir_entry *e)
{
	const struct map_member *m = map_by_ref(ch, e->ref);
	struct explain_holder *h;

	for (unsigned k = 0; k < x->holders; k++) {
		const struct location *at = &x->holder[k].at;

		if (at->ref == e->ref && at->place == e->place && at->generation == e->generation)
			return (uint8_t)k;
	}
	h = &x->holder[x->holders];
	h->at = (struct location){e->ref, e->place, e->generation};
	if (m) {
		h->peer = m->peer;
		h->on_map = true;
		h->here = m->ref == ch->session->ref;
		h->on_disk = place_on_disk(e->place);
		h->impossible = !h->on_disk && place_rail(e->place) >= m->rails;
	}
	return (uint8_t)x->holders++;
}

static void take_bucket(struct pc_channel *ch, struct explain *x, struct explain_owner *o,
	const struct bucket *bucket)
{
	if (!o->read++)
		o->full = !bucket_has_empty(bucket);
	for (unsigned k = 0; k < BUCKET_ENTRIES; k++) {
		const struct dir_entry *e = &bucket->entry[k];

		if (e->tag != dir_tag(&x->key))
			continue;
		o->holder[o->entries] = add_holder(ch, x, e);
		o->present |= x->holder[o->holder[o->entries++]].on_map;
	}
}

/* A look-up goes on to the second bucket if the first one is full and has no entry of the key. */
static bool wants(const struct explain_owner *o, unsigned which)
{
	return !which || (o->read == 1 && o->full && !o->present && o->status == OP_HIT);
}

/*
 * Reads one bucket of each owner. The second ones in a batch after the first ones, because entries
 * move from the first to the second bucket only.
 */
static int ask_owners(
	struct pc_channel *ch, struct explain *x, unsigned which, uint64_t deadline_ns)
{
	unsigned of[PEEKS_MAX], peeks = 0;

	for (unsigned k = 0; k < x->owners; k++) {
		struct explain_owner *o = &x->owner[k];
		struct bucket bucket;

		if (!wants(o, which))
			continue;
		if (!o->here) {
			of[peeks] = k;
			x->peek[peeks++] = (struct peek){.peer = o->peer,
				.ref = o->ref,
				.region = REGION_SHARD,
				.offset = (uint64_t)o->bucket[which] * sizeof(struct bucket),
				.bytes = sizeof(struct bucket)};
		} else {
			bucket = bucket_load(&ch->session->shard[o->bucket[which]]);
			o->status = OP_HIT;
			take_bucket(ch, x, o, &bucket);
		}
	}
	if (peeks && peek_all(ch, x->peek, peeks, deadline_ns))
		return -ENOMEM;
	for (unsigned p = 0; p < peeks; p++) {
		x->owner[of[p]].status = x->peek[p].status;
		if (x->peek[p].status == OP_HIT)
			take_bucket(ch, x, &x->owner[of[p]], &x->peek[p].data.bucket);
	}
	return ch->session ? 0 : -ENOTCONN;
}

/* ---- the holders ----------------------------------------------------------------------------- */

/* Copies the page head of a place in this host's pools. */
static void load_head(const struct client_session *session, struct explain_holder *h)
{
	uint32_t rail = place_rail(h->at.place);

	h->impossible = rail >= session->rails ||
			place_offset(h->at.place) >= session->rail[rail].pool_bytes;
	if (h->impossible)
		return;
	h->head = page_head_load(&session->rail[rail].heads[place_unit(h->at.place)]);
	h->status = OP_HIT;
}

/* READs the page heads and asks the engine of this host, which knows its own memory and disk. */
static int look_at_places(struct pc_channel *ch, struct explain *x, uint64_t deadline_ns)
{
	unsigned of[PEEKS_MAX], peeks = 0;

	for (unsigned k = 0; k < x->holders; k++) {
		struct explain_holder *h = &x->holder[k];

		if (!h->on_map || h->impossible || h->on_disk)
			continue;
		if (h->here) {
			load_head(ch->session, h);
			continue;
		}
		of[peeks] = k;
		x->peek[peeks++] = (struct peek){.peer = h->peer,
			.ref = h->at.ref,
			.region = (uint8_t)(REGION_HEADS_0 + place_rail(h->at.place)),
			.offset = (uint64_t)place_unit(h->at.place) * sizeof(struct page_head),
			.bytes = sizeof(struct page_head)};
	}
	x->peek[peeks] = (struct peek){.engine = true, .key = x->key};
	if (peek_all(ch, x->peek, peeks + 1, deadline_ns))
		return -ENOMEM;
	for (unsigned p = 0; p < peeks; p++) {
		x->holder[of[p]].status = x->peek[p].status;
		x->holder[of[p]].head = x->peek[p].data.head;
	}
	x->here_status = x->peek[peeks].status;
	x->here_place = x->peek[peeks].data.here.place;
	x->here_generation = x->peek[peeks].data.here.generation;
	return ch->session ? 0 : -ENOTCONN;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* The first buckets get half of the time, because an owner that does not answer takes all of it. */
static int explain_key(struct pc_channel *ch, struct explain *x, uint64_t ns)
{
	uint64_t start_ns = clock_monotonic_ns();
	int rc;

	x->disk = shm_load(&ch->session->status->disk) != 0;
	find_owners(ch, x);
	rc = ask_owners(ch, x, 0, start_ns + ns / 2);
	if (!rc)
		rc = ask_owners(ch, x, 1, start_ns + ns * 3 / 4);
	if (!rc)
		rc = look_at_places(ch, x, start_ns + ns);
	if (!rc)
		explain_reader(x);
	return rc;
}

int pc_explain(struct pc_channel *ch, const void *key, size_t key_bytes, unsigned timeout_ms,
	char **ret_json)
{
	uint64_t ns = (timeout_ms ? timeout_ms : PC_TIMEOUT_MS_DEFAULT) * 1000000ull;
	uint64_t start_ns = clock_monotonic_ns(), spent_ns;
	struct explain *x;
	char *text = NULL;
	int rc;

	error_clear();
	if (!ch || !key || key_bytes - 1 >= KEY_BYTES_MAX || !ret_json)
		return error_set(-EINVAL,
			"pc_explain() needs a channel, a key of 1 to %u bytes and a "
			"place for its result",
			KEY_BYTES_MAX);
	if (!channel_ready(ch, start_ns + ns))
		return pc_no_session(ch->pc);
	x = aligned_alloc(64, sizeof(*x));
	if (!x)
		return error_set(-ENOMEM, "out of memory");
	memset(x, 0, sizeof(*x));
	key_hash(&ch->key_text, key, key_bytes, &x->key);
	spent_ns = clock_monotonic_ns() - start_ns;
	rc = explain_key(ch, x, spent_ns < ns ? ns - spent_ns : 0);
	if (!rc)
		text = explain_text(x);
	free(x);
	if (rc == -ENOTCONN)
		return error_set(rc, "the engine ended meanwhile");
	if (!text)
		return error_set(-ENOMEM, "out of memory");
	*ret_json = text;
	return 0;
}
