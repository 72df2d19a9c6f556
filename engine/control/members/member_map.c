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

#define SECOND_NS 1000000000ull
#define FORMER_SECONDS (MAP_FORMER_NS / SECOND_NS)
#define NO_NUMBER UINT16_MAX

/* ---- owner numbers --------------------------------------------------------------------------- */

/* One change of the map. */
struct publication {
	struct slots *slots;
	struct map_shared *shared;
	const struct map_view *view;
	uint64_t second; /* now, CLOCK_MONOTONIC */
	/* by owner number: its member has left, or it is taken from a former owner */
	bool gone[OWNERS_MAX];
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

/* The number that has been free for the longest time. */
static uint16_t owner_number_free(const struct slots *slots)
{
	uint16_t found = NO_NUMBER;

	for (uint16_t n = 0; n < OWNERS_MAX; n++)
		if (!slots->bound[n] &&
			(found == NO_NUMBER || slots->freed[n] < slots->freed[found]))
			found = n;
	return found;
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

/* Frees the numbers of members that have left, none of which owns slots; no word names them. */
static void numbers_free(struct publication *p)
{
	for (unsigned n = 0; n < OWNERS_MAX; n++)
		if (p->gone[n]) {
			p->slots->bound[n] = 0;
			p->slots->freed[n] = ++p->slots->frees;
			p->gone[n] = false;
		}
}

static void numbers_look(const struct control *control, struct publication *p)
{
	for (unsigned n = 0; n < OWNERS_MAX; n++)
		p->gone[n] = p->slots->bound[n] && !member_by_ref(control, p->slots->bound[n]);
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

static bool view_owns(const struct map_view *view, uint32_t ref)
{
	for (uint32_t i = 0; i < view->owners; i++)
		if (view->owner[i].ref == ref)
			return true;
	return false;
}

/* Takes `lack` numbers from members that own nothing any more, beside those that have left. */
static void numbers_take(struct publication *p, int lack)
{
	for (unsigned n = 0; n < OWNERS_MAX; n++)
		lack -= p->gone[n];
	for (unsigned n = 0; n < OWNERS_MAX && lack > 0; n++)
		if (!p->gone[n] && p->slots->bound[n] && !view_owns(p->view, p->slots->bound[n])) {
			p->gone[n] = true;
			lack--;
		}
}

static void numbers_bind(const struct control *control, struct publication *p)
{
	for (uint32_t i = 0; i < p->view->owners; i++) {
		const struct member_record *record = member_by_ref(control, p->view->owner[i].ref);
		uint16_t number = p->number[i];

		if (number == NO_NUMBER)
			number = owner_number_free(p->slots);
		if (record && number != NO_NUMBER)
			number_bind(p, number, record);
		p->number[i] = number;
	}
}

/* ---- words of slots -------------------------------------------------------------------------- */

static bool numbers_name(const uint8_t *numbers, unsigned count, uint8_t number)
{
	for (unsigned i = 0; i < count; i++)
		if (numbers[i] == number)
			return true;
	return false;
}

/* A slot's word while it is made. */
struct making {
	struct map_slot slot;
	unsigned owners, formers;
};

/* The oldest former owner gives way: most of its entries have moved. */
static void former_add(struct making *m, uint8_t number)
{
	if (numbers_name(m->slot.owner, m->owners, number) ||
		numbers_name(m->slot.former, m->formers, number))
		return;
	if (m->formers == MAP_FORMERS_MAX) {
		memmove(m->slot.former, m->slot.former + 1, MAP_FORMERS_MAX - 1);
		m->formers--;
	}
	m->slot.former[m->formers++] = number;
}

static void slot_since_now(struct publication *p, uint32_t slot)
{
	p->slots->since[slot] = (uint8_t)p->second;
}

static uint8_t slot_age(const struct publication *p, uint32_t slot)
{
	return (uint8_t)(p->second - p->slots->since[slot]);
}

static void word_store(struct publication *p, uint32_t slot, struct making *m)
{
	uint64_t word;

	m->slot.counts = map_slot_counts(m->owners, m->formers);
	word = map_slot_pack(&m->slot);
	if (shm_load64(&p->shared->slot[slot]) != word)
		shm_store_release64(&p->shared->slot[slot], word);
	p->slots->migrating += m->formers != 0;
}

/* The former owners that the slot's word has now, and its owners up to now. */
static void formers_keep(struct publication *p, const struct map_slot *was, struct making *m)
{
	unsigned formers = map_slot_formers(was), owners = map_slot_owners(was);

	for (unsigned i = 0; i < formers; i++)
		if (!p->gone[was->former[i]])
			former_add(m, was->former[i]);
	for (unsigned i = 0; i < owners; i++)
		if (!p->gone[was->owner[i]])
			former_add(m, was->owner[i]);
}

static void slot_publish(struct publication *p, uint32_t slot)
{
	struct map_slot was = map_slot_unpack(shm_load64(&p->shared->slot[slot]));
	struct making m = {.owners = 0};
	const uint8_t *ranked = map_view_slot(p->view, slot);
	unsigned owners = map_owning(p->view);
	bool same = true; /* compared while the owners are in registers */

	for (unsigned i = 0; i < owners; i++) {
		uint16_t number = p->number[ranked[i]];

		if (number == NO_NUMBER)
			continue;
		same &= was.owner[m.owners] == number;
		m.slot.owner[m.owners++] = (uint8_t)number;
	}
	same &= map_slot_owners(&was) == m.owners;
	if (same && was.counts == m.owners)
		return; /* nothing has changed, and there are no former owners */
	formers_keep(p, &was, &m);
	if (!same)
		slot_since_now(p, slot);
	word_store(p, slot, &m);
}

/* Stores words that do not name numbers which are needed now. */
static void slot_release(struct publication *p, uint32_t slot)
{
	struct map_slot was = map_slot_unpack(shm_load64(&p->shared->slot[slot]));
	unsigned owners = map_slot_owners(&was), formers = map_slot_formers(&was);
	struct making m = {.owners = 0};

	for (unsigned i = 0; i < owners; i++)
		if (!p->gone[was.owner[i]])
			m.slot.owner[m.owners++] = was.owner[i];
	for (unsigned i = 0; i < formers; i++)
		if (!p->gone[was.former[i]])
			m.slot.former[m.formers++] = was.former[i];
	word_store(p, slot, &m);
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
static void slots_publish(
	struct control *control, struct slots *slots, const struct map_view *view, uint64_t now_ns)
{
	struct map_shared *shared = &control->status->map;
	struct publication p = {
		.slots = slots, .shared = shared, .view = view, .second = now_ns / SECOND_NS};
	int lack;

	/* Members first: a reader that knows them can ask the owners that the words name. */
	shm_store(&shared->replicas, view->replicas);
	members_publish(control, shared);
	numbers_look(control, &p);
	lack = numbers_find(&p);
	if (lack > 0) {
		numbers_take(&p, lack);
		for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
			slot_release(&p, slot);
		numbers_free(&p);
	}
	numbers_bind(control, &p);
	if (!slots->migrating)
		slots->due = now_ns / SECOND_NS + FORMER_SECONDS;
	slots->migrating = 0;
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++)
		slot_publish(&p, slot);
	numbers_free(&p);
}

unsigned slots_formers(
	const struct control *control, uint32_t slot, uint32_t ret_ref[MAP_FORMERS_MAX])
{
	const struct slots *slots = control->members->slots;
	struct map_slot word;
	unsigned count = 0;

	if (!control->status)
		return 0;
	word = map_slot_unpack(shm_load64(&control->status->map.slot[slot]));
	for (unsigned i = 0; i < map_slot_formers(&word); i++)
		if (slots->bound[word.former[i]])
			ret_ref[count++] = slots->bound[word.former[i]];
	return count;
}

/* Ends the time of former owners. */
static void slots_tick(struct control *control, struct slots *slots, uint64_t now_ns)
{
	uint64_t second = now_ns / SECOND_NS;
	struct publication p = {.slots = slots, .shared = &control->status->map, .second = second};
	uint8_t oldest = 0; /* age of the slot whose former owners' time ends next */

	if (!slots->migrating || second < slots->due)
		return;
	slots->migrating = 0;
	for (uint32_t slot = 0; slot < MAP_SLOTS; slot++) {
		struct map_slot was = map_slot_unpack(shm_load64(&p.shared->slot[slot]));
		uint8_t age = slot_age(&p, slot);
		struct making m = {.slot = was, .owners = map_slot_owners(&was)};

		if (was.counts == m.owners)
			continue;
		if (age < FORMER_SECONDS) {
			slots->migrating++;
			oldest = age > oldest ? age : oldest;
			continue;
		}
		memset(m.slot.former, 0, sizeof(m.slot.former));
		word_store(&p, slot, &m);
	}
	slots->due = second + FORMER_SECONDS - oldest;
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
	uint64_t now_ns = net_now();

	if (!view) {
		log_error("no memory for a change of the cluster map: it stays as it was");
		return;
	}
	map_view_drop(members->current);
	members->current = view;
	if (members->serving <= 1)
		members->sole_last_ns = now_ns;
	if (control->status)
		slots_publish(control, members->slots, view, now_ns);
	control->member_events->map_changed(control);
}

void member_map_tick(struct control *control, uint64_t now_ns)
{
	if (control->status)
		slots_tick(control, control->members->slots, now_ns);
}

struct map_view *member_map(const struct control *control)
{
	return control->members->current;
}
