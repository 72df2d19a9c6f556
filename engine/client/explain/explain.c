/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pc_explain(): asks all owners of one key, as a look-up does one after the other, and then READs
 * the page head at each place that they name and asks the engine of this host where it has the
 * page. From the answers it concludes what a get of this host returns, by the rule of abi/map.h,
 * which look-ups follow, too, and writes all as JSON; peercache.h lists the members. It uses no
 * location cache and reports nothing to the control plane, so looking changes nothing.
 *
 * A peek is a READ of a bucket or a page head of another engine, which is copied out of its scratch
 * slot, or the question to the engine of this host. Peeks are the "pages" of a batch of their own
 * kind, so the deadline, a lost engine and a failed rail are handled as for every other batch.
 * look.c makes the READs, ctl.c asks the question. Channel thread.
 */
#include "config/clock.h"
#include "config/limits.h"
#include "engine/abi/bucket.h"
#include "engine/abi/map.h"
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/abi/ring.h"
#include "engine/client/attach/attach.h"
#include "engine/client/page/batch.h"
#include "engine/client/call/call.h"
#include "engine/client/constants.h"
#include "engine/client/lookup/lookup.h"
#include "engine/client/error.h"
#include "engine/client/explain/explain.h"
#include "engine/client/page/key.h"
#include "engine/client/peercache.h"
#include "engine/client/attach/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAP_ATTEMPTS 3 /* to load owners that are those of the channel's copy of the members */

/* ---- peeks ----------------------------------------------------------------------------------- */

/*
 * READs all of `peek`, at most PEEKS_MAX, and returns when each has its status, which is at the
 * deadline or ANSWER_GRACE_NS later. The channel is attached. -ENOMEM: no status was written.
 */
static int peek_all(struct pc_channel *ch, struct peek *peek, uint32_t count, uint64_t deadline_ns)
{
	enum pc_result results[PEEKS_MAX];
	struct pc_batch *b = batch_make(ch, BATCH_PEEK, count, results, deadline_ns);

	if (!b)
		return -ENOMEM;
	b->peek = peek;
	memset(b->work, 0, count * sizeof(b->work[0]));
	for (uint32_t i = 0; i < count; i++) {
		peek[i].status = OP_TIMEOUT;
		results[i] = PC_PENDING;
		b->work[i].key = peek[i].key;
		page_queue(b, i, peek[i].engine ? PAGE_DISK : PAGE_HEAD);
	}
	wait_for(ch, b, UINT64_MAX);
	for (uint32_t i = 0; i < count; i++)
		if (results[i] == PC_GONE || results[i] == PC_PENDING)
			peek[i].status = OP_CANCELLED;
	batch_free(b);
	return 0;
}

/* ---- the owners ------------------------------------------------------------------------------ */

static void explain_owner_add(
	const struct pc_channel *ch, struct explain *x, const struct map_member *m, unsigned bit)
{
	struct explain_owner *o;
	uint32_t bits;

	for (unsigned k = 0; k < x->owners; k++)
		if (x->owner[k].ref == m->ref)
			return;
	o = &x->owner[x->owners++];
	o->ref = m->ref;
	o->here = m->ref == ch->session->ref;
	o->bit = (uint8_t)bit;
	o->suspect = !o->here && map_suspect(&ch->session->status->map, m->peer);
	bits = o->here ? ch->session->bucket_bits : m->bucket_bits;
	o->bucket[0] = dir_bucket_first(&x->key, bits);
	o->bucket[1] = dir_bucket_other(o->bucket[0], dir_tag(&x->key), bits);
}

/* Loads the owners by the map of which the channel has the members. False: it keeps changing. */
static bool explain_owners_load(struct pc_channel *ch, uint32_t slot, struct map_owners *ret)
{
	bool loaded = false;

	for (unsigned n = 0; !loaded && n < MAP_ATTEMPTS; n++) {
		map_refresh(ch);
		loaded = ch->map && map_owners_load(&ch->session->status->map, slot, ret) &&
			 ret->epoch == ch->map_epoch;
	}
	return loaded;
}

static void explain_owners_find(struct pc_channel *ch, struct explain *x)
{
	struct map_owners owners;

	x->slot = map_slot_of(&x->key);
	x->known = explain_owners_load(ch, x->slot, &owners) && ch->map->members;
	if (!x->known)
		return;
	x->epoch = ch->map_epoch;
	x->members = ch->map->members;
	for (unsigned k = 0; k < owners.owners; k++) {
		const struct map_member *m = map_known(ch, &owners.member[k]);

		if (m)
			explain_owner_add(ch, x, m, k);
		else
			x->known = false;
	}
	x->known &= x->owners > 0;
}

/* ---- what they answer ------------------------------------------------------------------------ */

static uint8_t explain_holder_add(
	struct pc_channel *ch, struct explain *x, const struct dir_entry *e)
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
		h->on_map = true;
		h->here = m->ref == ch->session->ref;
		h->on_disk = place_on_disk(e->place);
		h->impossible = !h->on_disk && place_rail(e->place) >= m->rails;
	}
	return (uint8_t)x->holders++;
}

static void explain_bucket_take(struct pc_channel *ch, struct explain *x, struct explain_owner *o,
	const struct bucket *bucket)
{
	if (!o->read++)
		o->full = !bucket_has_empty(bucket);
	for (unsigned k = 0; k < BUCKET_ENTRIES; k++) {
		const struct dir_entry *e = &bucket->entry[k];

		if (e->tag != dir_tag(&x->key))
			continue;
		o->holder[o->entries] = explain_holder_add(ch, x, e);
		o->present |= x->holder[o->holder[o->entries++]].on_map;
	}
}

/* A look-up goes on to the second bucket if the first one is full and has no entry of the key. */
static bool explain_bucket_due(const struct explain_owner *o, unsigned which)
{
	return !which || (o->read == 1 && o->full && !o->present && o->status == OP_HIT);
}

/*
 * Reads one bucket of each owner. The second ones in a batch after the first ones, because entries
 * move from the first to the second bucket only.
 */
static int explain_owners_ask(
	struct pc_channel *ch, struct explain *x, unsigned which, uint64_t deadline_ns)
{
	unsigned of[PEEKS_MAX], peeks = 0;

	for (unsigned k = 0; k < x->owners; k++) {
		struct explain_owner *o = &x->owner[k];
		struct bucket bucket;

		if (!explain_bucket_due(o, which))
			continue;
		if (!o->here) {
			of[peeks] = k;
			x->peek[peeks++] = (struct peek){
				.ref = o->ref, .region = REGION_SHARD, .bucket = o->bucket[which]};
		} else {
			bucket = bucket_load(&ch->session->shard[o->bucket[which]]);
			o->status = OP_HIT;
			explain_bucket_take(ch, x, o, &bucket);
		}
	}
	if (peeks && peek_all(ch, x->peek, peeks, deadline_ns))
		return -ENOMEM;
	if (!ch->session) /* the engine was lost during the wait; some READs may have ended */
		return -ENOTCONN;
	for (unsigned p = 0; p < peeks; p++) {
		x->owner[of[p]].status = x->peek[p].status;
		if (x->peek[p].status == OP_HIT)
			explain_bucket_take(ch, x, &x->owner[of[p]], &x->peek[p].data.bucket);
	}
	return 0;
}

/* ---- the holders ----------------------------------------------------------------------------- */

/* Copies the page head of a place in this host's pools. */
static void explain_head_load(const struct client_session *session, struct explain_holder *h)
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
static int explain_holders_look(struct pc_channel *ch, struct explain *x, uint64_t deadline_ns)
{
	unsigned of[PEEKS_MAX], peeks = 0;

	for (unsigned k = 0; k < x->holders; k++) {
		struct explain_holder *h = &x->holder[k];

		if (!h->on_map || h->impossible || h->on_disk)
			continue;
		if (h->here) {
			explain_head_load(ch->session, h);
			continue;
		}
		of[peeks] = k;
		x->peek[peeks++] = (struct peek){
			.ref = h->at.ref, .region = REGION_HEADS_0, .bucket = h->at.place};
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
	x->here_why = x->peek[peeks].data.here.why;
	return ch->session ? 0 : -ENOTCONN;
}

/* ---- the text -------------------------------------------------------------------------------- */

static const char *text_bool(bool value)
{
	return value ? "true" : "false";
}

/* Why a READ has no result. "": it has one. */
static const char *text_why(uint8_t status)
{
	switch (status) {
	case OP_HIT: return "";
	case OP_TIMEOUT: return "no answer in time";
	case OP_PEER_DOWN: return "no connection";
	case OP_NIC_ERROR: return "the READ failed";
	case OP_CANCELLED: return "the engine of this host ended the READ";
	default: return "the READ was refused";
	}
}

static const char *text_answer(const struct explain_owner *o)
{
	if (o->present)
		return "present";
	return o->status == OP_HIT ? "absent" : "unreachable";
}

static void text_put_owner(FILE *out, const struct explain *x, const struct explain_owner *o)
{
	fprintf(out, "{\"ref\":\"%08x\",\"here\":%s,\"answer\":\"%s\",\"why\":\"%s\"", o->ref,
		text_bool(o->here), text_answer(o), text_why(o->status));
	fprintf(out, ",\"buckets\":[%u,%u],\"read\":%u,\"asked\":%s,\"entries\":[", o->bucket[0],
		o->bucket[1], o->read, text_bool(o->asked));
	for (unsigned k = 0; k < o->entries; k++)
		fprintf(out, "%s{\"ref\":\"%08x\",\"holder\":%u}", k ? "," : "",
			x->holder[o->holder[k]].at.ref, o->holder[k]);
	fprintf(out, "]}");
}

static const char *text_state(const struct explain *x, const struct explain_holder *h)
{
	if (!h->on_map)
		return "dead";
	if (h->on_disk)
		return h->here && x->here_status == OP_MISS ? "evicted" : "on disk";
	if (h->impossible)
		return "evicted";
	if (h->status != OP_HIT)
		return "unreachable";
	if (page_head_is(&h->head, &x->key, h->at.generation, h->head.length) && h->head.length)
		return "page";
	if (h->head.generation == h->at.generation && h->head.length)
		return "other key";
	return "evicted";
}

/* True if the page is at the place that the entry names, as far as was READ. */
static bool explain_has(const struct explain *x, const struct explain_holder *h)
{
	const char *it = text_state(x, h);

	return !strcmp(it, "page") || !strcmp(it, "on disk");
}

static void text_put_holder(FILE *out, const struct explain *x, const struct explain_holder *h)
{
	fprintf(out, "{\"here\":%s,\"ref\":\"%08x\",\"rail\":%u,\"unit\":%u,\"generation\":%u",
		text_bool(h->here), h->at.ref, place_rail(h->at.place), place_unit(h->at.place),
		h->at.generation);
	fprintf(out, ",\"state\":\"%s\",\"why\":\"%s\"", text_state(x, h),
		!h->on_map      ? "no member of the map has this ref"
		: h->impossible ? "the member has no place with this number"
		: h->on_disk    ? ""
				: text_why(h->status));
	if (h->on_map && !h->impossible && !h->on_disk && h->status == OP_HIT)
		fprintf(out, ",\"head_generation\":%u,\"bytes\":%u,\"crc\":\"%08x\",\"proven\":%s",
			h->head.generation, h->head.length, h->head.crc,
			text_bool(page_head_is_proven(&h->head)));
	fprintf(out, "}");
}

/* ---- what a reader gets ---------------------------------------------------------------------- */

/* What the reader has learned so far. */
struct reader {
	bool hit, stale, answered;
	enum explain_cause cause;
};

static void reader_cause_add(struct reader *r, enum explain_cause cause)
{
	if (r->cause == CAUSE_NONE || cause < r->cause)
		r->cause = cause;
}

/* The reader has the answer of an owner, and tries the places that it names. */
static void reader_take(const struct explain *x, struct reader *r, const struct explain_owner *o)
{
	if (!o->present && o->status != OP_HIT) {
		reader_cause_add(r, CAUSE_OWNER);
		return;
	}
	r->answered = true;
	for (unsigned k = 0; k < o->entries; k++) {
		const struct explain_holder *h = &x->holder[o->holder[k]];

		if (explain_has(x, h))
			r->hit = true;
		else if (h->on_map && !h->impossible && h->status != OP_HIT)
			reader_cause_add(r, CAUSE_HOLDER);
		else if (h->on_map)
			r->stale = true;
	}
}

static enum owner_rank reader_rank(const struct explain_owner *o)
{
	return o->here ? RANK_HERE : owner_rank_remote(false, o->suspect);
}

/* The owner that the reader asks next; NULL: none, by the rule of absence. */
static struct explain_owner *reader_owner(struct explain *x, unsigned asked, struct reader *r)
{
	struct owner_choice best = {.rank = RANKS};
	struct explain_owner *owner = NULL;
	enum owner_verdict verdict;

	for (unsigned k = 0; k < x->owners; k++)
		if (owner_consider(&best, asked, x->owner[k].bit, reader_rank(&x->owner[k])))
			owner = &x->owner[k];
	verdict = owner_verdict(&best, r->answered, r->cause != CAUSE_NONE);
	if (verdict == OWNER_UNREACHABLE && best.rank == RANK_RESTS)
		reader_cause_add(r, CAUSE_SUSPECT);
	return verdict == OWNER_ASK ? owner : NULL;
}

void explain_reader(struct explain *x)
{
	struct reader r = {.cause = x->known ? CAUSE_NONE : CAUSE_NO_MAP};
	struct explain_owner *o;
	unsigned asked = 0;

	while (!r.hit && (o = reader_owner(x, asked, &r))) {
		asked |= 1u << o->bit;
		o->asked = true;
		reader_take(x, &r, o);
	}
	/* what no owner knows, a reader searches for on this host's disk, if there is one */
	r.hit |= x->disk && x->here_status == OP_HIT;
	if (x->disk && x->here_status != OP_MISS)
		reader_cause_add(&r, CAUSE_ENGINE);
	x->result = r.hit                   ? EXPLAIN_HIT
		    : r.cause != CAUSE_NONE ? EXPLAIN_UNREACHABLE
		    : r.stale               ? EXPLAIN_STALE
					    : EXPLAIN_MISS;
	x->cause = r.hit ? CAUSE_NONE : r.cause;
}

/* ---- the text of the whole ------------------------------------------------------------------- */

static const char *text_here(const struct explain *x)
{
	if (x->here_status == OP_MISS)
		return "nowhere";
	if (x->here_status != OP_HIT)
		return "not known";
	return x->here_generation ? "memory" : "disk";
}

static void text_put_reader(FILE *out, const struct explain *x)
{
	static const char *const whys[PAGE_WHYS] = {[PAGE_STORED] = "stored",
		[PAGE_PREFETCHED] = "prefetched",
		[PAGE_DRAINED] = "drained",
		[PAGE_KEPT] = "kept for others",
		[PAGE_HOT] = "hot"};
	static const char *const results[] = {[EXPLAIN_HIT] = "hit",
		[EXPLAIN_STALE] = "stale",
		[EXPLAIN_MISS] = "miss",
		[EXPLAIN_UNREACHABLE] = "unreachable"};
	static const char *const causes[] = {[CAUSE_NONE] = "",
		[CAUSE_NO_MAP] = "no map",
		[CAUSE_HOLDER] = "holder",
		[CAUSE_OWNER] = "owner",
		[CAUSE_SUSPECT] = "suspect owner",
		[CAUSE_ENGINE] = "this engine"};

	fprintf(out, ",\"here\":\"%s\",\"result\":\"%s\",\"cause\":\"%s\"", text_here(x),
		results[x->result], causes[x->cause]);
	if (x->here_status == OP_HIT && x->here_generation && x->here_why < PAGE_WHYS)
		fprintf(out, ",\"here_why\":\"%s\"", whys[x->here_why]);
}

/* Returns the text, which the caller frees with free(); NULL: out of memory. */
static char *explain_text(const struct explain *x)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *out = open_memstream(&text, &bytes);
	bool failed;

	if (!out)
		return NULL;
	fprintf(out, "{\"hash\":\"%016" PRIx64 "%016" PRIx64 "\",\"slot\":%u", x->key.word[0],
		x->key.word[1], x->slot);
	fprintf(out, ",\"epoch\":%u,\"members\":%u,\"disk\":%s", x->epoch, x->members,
		text_bool(x->disk));
	text_put_reader(out, x);
	fprintf(out, ",\"owners\":[");
	for (unsigned k = 0; k < x->owners; k++) {
		fputs(k ? "," : "", out);
		text_put_owner(out, x, &x->owner[k]);
	}
	fprintf(out, "],\"holders\":[");
	for (unsigned k = 0; k < x->holders; k++) {
		fputs(k ? "," : "", out);
		text_put_holder(out, x, &x->holder[k]);
	}
	fprintf(out, "]}\n");
	failed = ferror(out) != 0;
	if (fclose(out) || failed) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- the call -------------------------------------------------------------------------------- */

/* The first buckets get half of the time, because an owner that does not answer takes all of it. */
static int explain_key(struct pc_channel *ch, struct explain *x, uint64_t ns)
{
	uint64_t start_ns = clock_monotonic_ns();
	int rc;

	x->disk = shm_load(&ch->session->status->disk) != 0;
	explain_owners_find(ch, x);
	rc = explain_owners_ask(ch, x, 0, start_ns + ns / 2);
	if (!rc)
		rc = explain_owners_ask(ch, x, 1, start_ns + ns * 3 / 4);
	if (!rc)
		rc = explain_holders_look(ch, x, start_ns + ns);
	if (!rc)
		explain_reader(x);
	return rc;
}

int pc_explain(struct pc_channel *ch, const void *key, size_t key_bytes, unsigned timeout_ms,
	char **ret_json)
{
	uint64_t ns = timeout_ns(timeout_ms);
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
	channel_epoch(ch);
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
