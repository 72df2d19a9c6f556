/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what pc_explain() found out as JSON; peercache.h lists the members. Any thread. */
#include "engine/abi/op.h"
#include "engine/abi/page.h"
#include "engine/client/explain.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *truth(bool value)
{
	return value ? "true" : "false";
}

/* Why a READ has no result. "": it has one. */
static const char *why(uint8_t status)
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

/* ---- owners ---------------------------------------------------------------------------------- */

static const char *answer(const struct explain_owner *o)
{
	if (o->present)
		return "present";
	return o->status == OP_HIT ? "absent" : "unreachable";
}

static void put_owner(FILE *out, const struct explain *x, const struct explain_owner *o)
{
	fprintf(out, "{\"ref\":\"%08x\",\"here\":%s,\"former\":%s,\"answer\":\"%s\",\"why\":\"%s\"",
		o->ref, truth(o->here), truth(o->former), answer(o), why(o->status));
	fprintf(out, ",\"buckets\":[%u,%u],\"read\":%u,\"asked\":%s,\"entries\":[", o->bucket[0],
		o->bucket[1], o->read, truth(o->asked));
	for (unsigned k = 0; k < o->entries; k++)
		fprintf(out, "%s{\"ref\":\"%08x\",\"holder\":%u}", k ? "," : "",
			x->holder[o->holder[k]].at.ref, o->holder[k]);
	fprintf(out, "]}");
}

/* ---- holders --------------------------------------------------------------------------------- */

static const char *state(const struct explain *x, const struct explain_holder *h)
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

bool explain_has(const struct explain *x, const struct explain_holder *h)
{
	const char *it = state(x, h);

	return !strcmp(it, "page") || !strcmp(it, "on disk");
}

static void put_holder(FILE *out, const struct explain *x, const struct explain_holder *h)
{
	fprintf(out, "{\"here\":%s,\"ref\":\"%08x\",\"rail\":%u,\"unit\":%u,\"generation\":%u",
		truth(h->here), h->at.ref, place_rail(h->at.place), place_unit(h->at.place),
		h->at.generation);
	fprintf(out, ",\"state\":\"%s\",\"why\":\"%s\"", state(x, h),
		!h->on_map      ? "no member of the map has this ref"
		: h->impossible ? "the member has no place with this number"
		: h->on_disk    ? ""
				: why(h->status));
	if (h->on_map && !h->impossible && !h->on_disk && h->status == OP_HIT)
		fprintf(out, ",\"head_generation\":%u,\"bytes\":%u,\"crc\":\"%08x\",\"proven\":%s",
			h->head.generation, h->head.length, h->head.crc,
			truth(page_head_is_proven(&h->head)));
	fprintf(out, "}");
}

/* ---- what a reader gets ---------------------------------------------------------------------- */

static const char *here(const struct explain *x)
{
	if (x->here_status == OP_MISS)
		return "nowhere";
	if (x->here_status != OP_HIT)
		return "not known";
	return x->here_generation ? "memory" : "disk";
}

static void put_reader(FILE *out, const struct explain *x)
{
	static const char *const results[] = {[EXPLAIN_HIT] = "hit",
		[EXPLAIN_STALE] = "stale",
		[EXPLAIN_MISS] = "miss",
		[EXPLAIN_UNREACHABLE] = "unreachable"};
	static const char *const causes[] = {[CAUSE_NONE] = "",
		[CAUSE_NO_MAP] = "no map",
		[CAUSE_HOLDER] = "holder",
		[CAUSE_OWNER] = "owner",
		[CAUSE_SUSPECT] = "suspect owner",
		[CAUSE_UNPROVEN] = "new owners",
		[CAUSE_ENGINE] = "this engine"};

	fprintf(out, ",\"here\":\"%s\",\"result\":\"%s\",\"cause\":\"%s\",\"left_s\":%u", here(x),
		results[x->result], causes[x->cause], x->left_s);
}

/* ---- the whole ------------------------------------------------------------------------------- */

char *explain_text(const struct explain *x)
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
		truth(x->disk));
	put_reader(out, x);
	fprintf(out, ",\"owners\":[");
	for (unsigned k = 0; k < x->owners; k++) {
		fputs(k ? "," : "", out);
		put_owner(out, x, &x->owner[k]);
	}
	fprintf(out, "],\"holders\":[");
	for (unsigned k = 0; k < x->holders; k++) {
		fputs(k ? "," : "", out);
		put_holder(out, x, &x->holder[k]);
	}
	fprintf(out, "]}\n");
	failed = ferror(out) != 0;
	if (fclose(out) || failed) {
		free(text);
		return NULL;
	}
	return text;
}
