/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map: made anew as members join and leave (placement.h says who owns what), kept here,
 * and stored as words in shared memory for clients. The order of the stores is part of the rules in
 * abi/map.h. member.c decides when. Without memory the map stays as it was. The control plane's
 * thread only.
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/net.h"

#define NO_NUMBER UINT16_MAX

/* ---- owner numbers --------------------------------------------------------------------------- */

/* One change of the map. */
struct publication {
	struct slots *slots;
	struct map_shared *shared;
	const struct map_view *view;
	bool gone[OWNERS_MAX]; /* by owner number: its member owns nothing by the view */
	/* owner numbers by index of an owner in `view` */
	uint16_t number[OWNERS_MAX];
};

static uint16_t owner_number(const struct slots *slots, uint32_t ref)
{
	for (uint16_t n = 0; n < OWNERS_MAX; n++)
		if (slots->bound[n] == ref)
			return n;
	return NO_NUMBER;
}

static struct map_member map_member_of(const struct member_record *record)
{
	return (struct map_member){.ref = record->ref,
		.peer = record->peer,
		.rails = record->rails,
		.bucket_bits = record->bucket_bits};
}

static void number_bind(struct publication *p, uint16_t number, const struct member_record *record)
{
	struct map_member member = map_member_of(record);

	p->slots->bound[number] = member.ref;
	shm_store_release64(&p->shared->owner[number], map_member_pack(&member));
}

/* Frees the numbers of members that own nothing; no word names them. */
static void numbers_free(struct publication *p)
{
	for (unsigned n = 0; n < OWNERS_MAX; n++)
		if (p->gone[n]) {
			p->slots->bound[n] = 0;
			p->gone[n] = false;
		}
}

static bool view_owns(const struct map_view *view, uint32_t ref)
{
	for (uint32_t i = 0; i < view->owners; i++)
		if (view->owner[i].ref == ref)
			return true;
	return false;
}

static void numbers_look(struct publication *p)
{
	for (unsigned n = 0; n < OWNERS_MAX; n++)
		p->gone[n] = p->slots->bound[n] && !view_owns(p->view, p->slots->bound[n]);
}

/* Finds the owners' numbers. Returns how many have none, less the numbers that are free. */
static int numbers_find(struct publication *p)
{
	int lack = 0;

	for (uint32_t i = 0; i < p->view->owners; i++) {
		p->number[i] = owner_number(p->slots, p->view->owner[i].ref);
		lack += p->number[i] == NO_NUMBER;
	}
	for (unsigned n = 0; n < OWNERS_MAX; n++)
		lack -= p->slots->bound[n] == 0;
	return lack;
}

static void numbers_bind(const struct control *control, struct publication *p)
{
	for (uint32_t i = 0; i < p->view->owners; i++) {
		const struct member_record *record = member_by_ref(control, p->view->owner[i].ref);
		uint16_t number = p->number[i];

		if (number == NO_NUMBER)
			number = owner_number(p->slots, 0); /* a free one */
		if (record && number != NO_NUMBER)
			number_bind(p, number, record);
		p->number[i] = number;
	}
}

/* ---- words of slots -------------------------------------------------------------------------- */

static void word_store(struct map_shared *shared, uint32_t slot, const struct map_slot *owners)
{
	uint64_t word = map_slot_pack(owners);

	if (shm_load64(&shared->slot[slot]) != word)
		shm_store_release64(&shared->slot[slot], word);
}

static void slot_publish(const struct publication *p, uint32_t slot)
{
	const uint8_t *ranked = map_view_slot(p->view, slot);
	struct map_slot now = {.owners = 0};

	for (unsigned i = 0; i < map_owning(p->view); i++)
		if (p->number[ranked[i]] != NO_NUMBER)
			now.owner[now.owners++] = (uint8_t)p->number[ranked[i]];
	word_store(p->shared, slot, &now);
}

/* Stores a word that does not name numbers which are needed now. */
static void slot_release(const struct publication *p, uint32_t slot)
{
	struct map_slot was = map_slot_unpack(shm_load64(&p->shared->slot[slot]));
	struct map_slot now = {.owners = 0};

	for (unsigned i = 0; i < map_slot_owners(&was); i++)
		if (!p->gone[was.owner[i]])
			now.owner[now.owners++] = was.owner[i];
	word_store(p->shared, slot, &now);
}

/* ---- words of members ------------------------------------------------------------------------ */

static void members_publish(const struct control *control, struct map_shared *shared)
{
	uint32_t before = shm_load(&shared->peers), peers = 0, members = 0;

	for (uint32_t peer = 0;
		peer < NODES_MAX && (peer < before || members < control->members->alive); peer++) {
		const struct member_record *record = member_by_peer(control, (uint16_t)peer);
		struct map_member member = {.ref = 0};

		if (record) {
			member = map_member_of(record);
			peers = peer + 1;
			members++;
		}
		shm_store64(&shared->member[peer], map_member_pack(&member));
	}
	shm_store(&shared->peers, peers);
	shm_store(&shared->members, members);
	shm_store_release(&shared->epoch, shm_load(&shared->epoch) + 1);
}

/* ---- all words ------------------------------------------------------------------------------- */

/* Stores the words of a changed map. */
static void slots_publish(struct control *control, struct slots *slots, const struct map_view *view)
{
	struct map_shared *shared = &control->status->map;
	struct publication p = {.slots = slots, .shared = shared, .view = view};

	/* Members first: a reader that knows them can ask the owners that the words name. */
	shm_store(&shared->replicas, view->replicas);
	members_publish(control, shared);
	numbers_look(&p);
	if (numbers_find(&p) > 0) {
		for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
			slot_release(&p, slot);
		numbers_free(&p);
	}
	numbers_bind(control, &p);
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		slot_publish(&p, slot);
	numbers_free(&p);
}

/* ---- views of the live members --------------------------------------------------------------- */

/*
 * The live members with rails as candidates: the memory of one without rails cannot be READ.
 * Returns their number.
 */
static unsigned map_candidates(const struct members *members, struct placed *ret)
{
	unsigned count = 0;

	for (unsigned i = 0; i < members->table.entries && count < members->alive; i++) {
		const struct member *member = member_at(&members->table, i);

		if (member->state == MEMBER_ALIVE && member->record.rails)
			ret[count++] = (struct placed){.hash = member_hash(member),
				.ref = member->record.ref,
				.bucket_bits = member->record.bucket_bits};
	}
	return count;
}

/* Makes a view of the live members. NULL: no memory. */
static struct map_view *map_view_of_members(const struct control *control)
{
	struct members *members = control->members;
	struct placed *owner = calloc(members->alive, sizeof(*owner));
	struct map_view *view = NULL;
	unsigned owners;

	if (owner) {
		members->serving = map_candidates(members, owner);
		owners = placement_choose(owner, members->serving);
		view = (control->status ? map_view_make : map_view_lazy)(members->current, owner,
			owners, (unsigned)control->settings->cluster_replicas);
	}
	free(owner);
	return view;
}

void member_map_rebuild(struct control *control)
{
	struct members *members = control->members;
	struct map_view *view = map_view_of_members(control);

	if (!view) {
		log_error("no memory for a change of the cluster map: it stays as it was");
		return;
	}
	map_view_drop(members->current);
	members->current = view;
	if (members->serving <= 1)
		members->sole_last_ns = net_now();
	if (control->status)
		slots_publish(control, members->slots, view);
	control->member_events->map_changed(control);
}

struct map_view *member_map(const struct control *control)
{
	return control->members->current;
}
