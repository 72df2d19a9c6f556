/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a get of this host returns for a key, from the answers that pc_explain() has: the reader
 * asks owners by the rule of abi/owner.h, which look-ups follow, too. Any thread.
 */
#include "config/limits.h"
#include "engine/abi/op.h"
#include "engine/abi/owner.h"
#include "engine/client/explain.h"

/* What the reader has learned so far. */
struct reader {
	bool hit, stale, answered;
	enum explain_cause cause;
};

static void cause_add(struct reader *r, enum explain_cause cause)
{
	if (r->cause == CAUSE_NONE || cause < r->cause)
		r->cause = cause;
}

/* The reader has the answer of an owner, and tries the places that it names. */
static void reader_take(const struct explain *x, struct reader *r, const struct explain_owner *o)
{
	if (!o->present && o->status != OP_HIT) {
		cause_add(r, CAUSE_OWNER);
		return;
	}
	r->answered = true;
	for (unsigned k = 0; k < o->entries; k++) {
		const struct explain_holder *h = &x->holder[o->holder[k]];

		if (explain_has(x, h))
			r->hit = true;
		else if (h->on_map && !h->impossible && h->status != OP_HIT)
			cause_add(r, CAUSE_HOLDER);
		else if (h->on_map)
			r->stale = true;
	}
}

static enum owner_rank rank_of(const struct explain_owner *o)
{
	return o->here ? RANK_HERE : owner_rank_remote(false, o->suspect);
}

static struct explain_owner *reader_consider(
	struct explain *x, bool former, unsigned asked, struct owner_choice *best)
{
	struct explain_owner *found = NULL;

	for (unsigned k = 0; k < x->owners; k++) {
		struct explain_owner *o = &x->owner[k];

		if (o->former == former && owner_consider(best, asked, o->bit, rank_of(o)))
			found = o;
	}
	return found;
}

/* The owner that the reader asks next; NULL: none, by the rule of absence. */
static struct explain_owner *reader_owner(struct explain *x, unsigned asked, struct reader *r)
{
	struct owner_choice best = {.rank = RANKS};
	struct explain_owner *owner = reader_consider(x, false, asked, &best), *former = NULL;
	enum owner_verdict verdict;

	if (owner_former_due(&best))
		former = reader_consider(x, true, asked, &best);
	verdict = owner_verdict(&best, r->answered, !x->proves || r->cause != CAUSE_NONE);
	if (verdict == OWNER_UNREACHABLE)
		cause_add(r, best.rank == RANK_RESTS ? CAUSE_SUSPECT : CAUSE_UNPROVEN);
	if (verdict != OWNER_ASK)
		return NULL;
	return former ? former : owner;
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
		cause_add(&r, CAUSE_ENGINE);
	x->result = r.hit                   ? EXPLAIN_HIT
		    : r.cause != CAUSE_NONE ? EXPLAIN_UNREACHABLE
		    : r.stale               ? EXPLAIN_STALE
					    : EXPLAIN_MISS;
	x->cause = r.hit ? CAUSE_NONE : r.cause;
}
