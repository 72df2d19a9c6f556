/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's look-up, with the rule of abi/owner.h: the owners of the key's slot, then its former
 * owners; absent only when all of them answered. Each READ samples one 64-byte bucket at
 * its own instant, also on a stopped node, and no line of a host that is gray, silent or cut off.
 * One thread.
 */
#include <stdlib.h>

#include "engine/abi/owner.h"
#include "engine/control/directory_state.h"
#include "tests/sim/world.h"

#define READ_TIMEOUT_NS (300 * SIM_MS)
#define REST_NS SIM_S /* PEER_REST_NS of the client */

/* per reader, and by owner: the reader asks the owner last until then */
static uint64_t *rest_until_ns[SIM_NODES_MAX];

struct look {
	struct thing thing; /* first */
	struct looks *looks;
	struct page_key key;
	unsigned reader, holder;
	struct map_owners to; /* owners of the key's slot, then the former ones */
	unsigned bits_asked;
	uint32_t chosen;
	uint32_t found; /* ref of the entry that was found */
	bool second, failed, answered;
	int asked;            /* node of the READ in flight; -1: there is none */
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

/*
 * The oracle: the page is there, its holder serves this reader, and the reader's map has the
 * holder; so "absent" is wrong.
 */
static bool is_there(const struct look *look)
{
	const struct node *holder = &world.node[look->holder];

	return node_holds(look->holder, &look->key) && !holder->gray &&
	       node_sees(look->reader, look->holder) && wire_reaches(look->reader, look->holder) &&
	       wire_reaches(look->holder, look->reader);
}

static void end(struct look *look, enum look_end how)
{
	look->looks->count[how]++;
	look->looks->foreign += how == LOOK_HIT && !by_ref(look->reader, look->found);
	look->looks->open--;
	if (how != LOOK_HIT && !node_holds(look->holder, &look->key))
		look->looks->true_absent++;
	else if (how != LOOK_HIT && !is_there(look))
		look->looks->unserved++;
	else if (how == LOOK_ABSENT)
		look->looks->false_absent++;
	else if (how == LOOK_UNREACHABLE && !look->failed)
		look->looks->unproven++;
	world_trace(how);
	thing_close(&look->thing);
}

static bool match(struct look *look)
{
	uint32_t tag = dir_tag(&look->key);

	for (unsigned i = 0; i < BUCKET_ENTRIES; i++) {
		const struct dir_entry *e = &look->sample.entry[i];

		if (e->tag != tag || !e->ref ||
			(world.mutant != MUTANT_ANY_REF && !by_ref(look->reader, e->ref)))
			continue;
		look->found = e->ref;
		return true;
	}
	return false;
}

/* The result of the READ of one bucket: word 1, no answer; word 2, `sample` is valid. */
static void answered(struct thing *thing, uint64_t word)
{
	struct look *look = (struct look *)(void *)thing;

	if (!world.node[look->reader].running) {
		look->failed = true;
		end(look, LOOK_UNREACHABLE);
		return;
	}
	if (look->asked >= 0)
		*rest_of(look->reader, (unsigned)look->asked) =
			word == 1 ? world.now_ns + REST_NS : 0;
	if (word == 2 && match(look)) {
		end(look, LOOK_HIT);
		return;
	}
	if (word == 2 && !look->second && !bucket_has_empty(&look->sample)) {
		look->second = true;
		read_bucket(look);
		return;
	}
	look->second = false;
	look->failed |= word == 1;
	look->answered |= word == 2;
	ask(look);
}

static bool serves(unsigned reader, unsigned node)
{
	return wire_reaches(reader, node) && wire_reaches(node, reader) &&
	       world.node[node].running && !world.node[node].gray;
}

/* The NIC of the owner samples the line, whatever its processes do. */
static void sample(struct thing *thing, uint64_t word)
{
	struct look *look = (struct look *)(void *)thing;
	const struct shard *shard;
	uint32_t bucket;

	(void)word;
	if (look->asked < 0 || !serves(look->reader, (unsigned)look->asked) ||
		look->bits != world.node[look->asked].control.shard.bits) {
		world_always(world.now_ns + READ_TIMEOUT_NS, look->reader, thing, 1, answered);
		return;
	}
	shard = &world.node[look->asked].control.shard;
	bucket = dir_bucket_first(&look->key, look->bits);
	if (look->second)
		bucket = dir_bucket_other(bucket, dir_tag(&look->key), look->bits);
	look->sample = shard->bucket[bucket];
	world_always(world.now_ns + wire_latency(look->reader), look->reader, thing, 2, answered);
}

static void read_bucket(struct look *look)
{
	const struct member_record *m = by_ref(look->reader, look->chosen);
	unsigned to;

	look->asked = node_by_ref(look->chosen);
	look->bits = m ? m->bucket_bits : 0;
	look->looks->reads++;
	to = look->asked < 0 ? look->reader : (unsigned)look->asked;
	world_always(world.now_ns + wire_latency(to), look->reader, &look->thing, 0, sample);
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
	return owner_rank_remote(node >= 0 && *rest_of(look->reader, (unsigned)node) > world.now_ns,
		is_suspect(look, ref));
}

static void consider(struct look *look, unsigned k, struct owner_choice *best)
{
	uint32_t ref = look->to.member[k].ref;

	if (!by_ref(look->reader, ref))
		look->failed = true;
	else
		(void)owner_consider(best, look->bits_asked, k, rank_of(look, ref));
}

static void ask(struct look *look)
{
	struct owner_choice best = {.rank = RANKS};
	enum owner_verdict verdict;
	unsigned k;

	owners_load(look);
	for (k = 0; k < look->to.owners; k++)
		consider(look, k, &best);
	if (owner_former_due(&best))
		for (; k < look->to.all; k++)
			consider(look, k, &best);
	verdict = owner_verdict(&best, look->answered, look->failed || !look->to.proves);
	if (look->answered && world.mutant == MUTANT_FIRST_ABSENT)
		verdict = OWNER_ABSENT;
	if (verdict == OWNER_UNREACHABLE)
		look->failed = true;
	if (verdict != OWNER_ASK) {
		end(look, verdict == OWNER_ABSENT ? LOOK_ABSENT : LOOK_UNREACHABLE);
		return;
	}
	look->bits_asked |= 1u << best.bit;
	look->chosen = look->to.member[best.bit].ref;
	read_bucket(look);
}

void look_start(unsigned reader, unsigned holder, uint64_t number, struct looks *looks)
{
	struct look *look = calloc(1, sizeof(*look));

	if (!look)
		abort();
	look->looks = looks;
	look->key = node_key(number);
	look->reader = reader;
	look->holder = holder;
	looks->open++;
	ask(look);
}
