/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's look-up, with the rule of abi/map.h: absent only when all owners of the key's slot
 * answered. Each READ samples one 64-byte bucket at its own instant, also on a stopped node, and no
 * line of a host that is gray, silent or cut off. One thread.
 */
#include <stdlib.h>

#include "engine/abi/map.h"
#include "engine/control/directory/directory_state.h"
#include "tests/sim/rail.h"
#include "tests/sim/world.h"

#define REST_NS SIM_S /* PEER_REST_NS of the client */

/* per reader, and by owner: the reader asks the owner last until then */
static uint64_t *rest_until_ns[SIM_NODES_MAX];

struct look {
	look_done done;
	void *context;
	struct page_key key;
	unsigned reader;
	struct location wrong; /* not to be found */
	struct map_owners to;  /* owners of the key's slot */
	unsigned bits_asked;
	uint32_t chosen;
	struct looked looked;
	bool second, answered;
	int asked;            /* node of the READ in flight; -1: its process has ended */
	uint8_t bits;         /* log2 of its buckets, from the reader's map */
	struct bucket sample; /* what the READ found */
};

static uint64_t *rest_of(unsigned reader, unsigned owner)
{
	if (!rest_until_ns[reader])
		rest_until_ns[reader] = calloc(world.nodes, sizeof(uint64_t));
	if (!rest_until_ns[reader])
		abort();
	return &rest_until_ns[reader][owner];
}

bool look_failed_lately(unsigned reader, unsigned owner)
{
	return *rest_of(reader, owner) > world.now_ns;
}

void look_read(unsigned reader, unsigned owner, bool failed)
{
	*rest_of(reader, owner) = failed ? world.now_ns + REST_NS : 0;
}

void look_close(void)
{
	for (unsigned i = 0; i < SIM_NODES_MAX; i++) {
		free(rest_until_ns[i]);
		rest_until_ns[i] = NULL;
	}
}

static void ask(struct look *look);
static void read_bucket(struct look *look);

static const struct member_record *by_ref(unsigned reader, uint32_t ref)
{
	return member_by_ref(&world.node[reader].control, ref);
}

/*
 * As the client: a word that changes starts the look-up again, and an owner that is no member
 * cannot be asked.
 */
static void owners_load(struct look *look)
{
	const struct map_shared *map = &world.node[look->reader].control.status->map;
	struct map_owners to;

	if (!map_owners_load(map, map_slot_of(&look->key), &to))
		abort(); /* nothing writes meanwhile */
	if (to.word != look->to.word)
		look->bits_asked = 0;
	look->to = to;
}

static void end(struct look *look, enum look_end how)
{
	look->looked.how = how;
	world_trace(how);
	look->done(look->context, &look->looked);
	free(look);
}

static bool is_wrong(const struct look *look, const struct dir_entry *e)
{
	return e->ref == look->wrong.ref && e->place == look->wrong.place &&
	       e->generation == look->wrong.generation;
}

/* The locations in the bucket, the one of this host first. */
static bool match(struct look *look)
{
	uint32_t tag = dir_tag(&look->key);
	struct looked *looked = &look->looked;

	looked->count = 0;
	for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
		const struct dir_entry *e = &look->sample.entry[i];
		struct location at = {e->ref, e->place, e->generation};

		if (e->tag != tag || !e->ref || is_wrong(look, e) ||
			(world.mutant != MUTANT_ANY_REF && !by_ref(look->reader, e->ref)))
			continue;
		looked->at[looked->count++] = at;
		if (e->ref != world.node[look->reader].control.ref)
			continue;
		looked->at[looked->count - 1] = looked->at[0];
		looked->at[0] = at;
	}
	return looked->count > 0;
}

/* The result of the READ of one bucket; if it was answered, `sample` is valid. */
static void bucket_done(void *context, bool answered)
{
	struct look *look = context;

	if (!world.node[look->reader].running) {
		look->looked.failed = true;
		end(look, LOOK_UNREACHABLE);
		return;
	}
	if (look->asked >= 0)
		look_read(look->reader, (unsigned)look->asked, !answered);
	if (answered && match(look)) {
		end(look, LOOK_HIT);
		return;
	}
	if (answered && !look->second && !bucket_has_empty(&look->sample)) {
		look->second = true;
		read_bucket(look);
		return;
	}
	look->second = false;
	look->looked.failed |= !answered;
	look->answered |= answered;
	ask(look);
}

/* False: the shard is not as large as the reader's map says. */
static bool bucket_sample(void *context, unsigned node)
{
	const struct shard *shard = world.node[node].control.shard;
	struct look *look = context;
	uint32_t bucket;

	if (look->bits != shard->bits)
		return false;
	bucket = dir_bucket_first(&look->key, look->bits);
	if (look->second)
		bucket = dir_bucket_other(bucket, dir_tag(&look->key), look->bits);
	look->sample = shard->bucket[bucket];
	return true;
}

static void read_bucket(struct look *look)
{
	const struct member_record *m = by_ref(look->reader, look->chosen);

	look->asked = node_by_ref(look->chosen);
	look->bits = m ? m->bucket_bits : 0;
	rail_read(&(struct rail_read){.reader = look->reader,
		.ref = look->chosen,
		.region = REGION_SHARD,
		.sample = bucket_sample,
		.done = bucket_done,
		.context = look});
}

/* What the reader's engine shows its clients: map_suspect() of abi/map.h. */
static bool is_suspect(const struct look *look, uint32_t ref)
{
	const struct member_record *m = by_ref(look->reader, ref);
	const struct directory *dir = world.node[look->reader].control.directory;

	return m && suspect_steers(owner_at(dir, m->peer)->why);
}

static enum owner_rank rank_of(const struct look *look, uint32_t ref)
{
	int node = node_by_ref(ref);

	if (node == (int)look->reader)
		return RANK_HERE;
	return owner_rank_remote(node >= 0 && look_failed_lately(look->reader, (unsigned)node),
		is_suspect(look, ref));
}

static void consider(struct look *look, unsigned k, struct owner_choice *best)
{
	uint32_t ref = look->to.member[k].ref;

	if (!by_ref(look->reader, ref))
		look->looked.failed = true;
	else
		(void)owner_consider(best, look->bits_asked, k, rank_of(look, ref));
}

static void ask(struct look *look)
{
	struct owner_choice best = {.rank = RANKS};
	enum owner_verdict verdict;

	owners_load(look);
	for (unsigned k = 0; k < look->to.owners; k++)
		consider(look, k, &best);
	verdict = owner_verdict(&best, look->answered, look->looked.failed || !look->to.owners);
	if (look->answered && world.mutant == MUTANT_FIRST_ABSENT)
		verdict = OWNER_ABSENT;
	if (verdict == OWNER_UNREACHABLE)
		look->looked.failed = true;
	if (verdict != OWNER_ASK) {
		end(look, verdict == OWNER_ABSENT ? LOOK_ABSENT : LOOK_UNREACHABLE);
		return;
	}
	look->bits_asked |= 1u << best.bit;
	look->chosen = look->to.member[best.bit].ref;
	read_bucket(look);
}

void look_find(const struct look_for *what, look_done done, void *context)
{
	struct look *look = calloc(1, sizeof(*look));

	if (!look)
		abort();
	look->done = done;
	look->context = context;
	look->key = what->key;
	look->reader = what->reader;
	look->wrong = what->wrong;
	ask(look);
}
