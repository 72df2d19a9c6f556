/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake engine's control plane. It acts as a correct engine does unless a hook decides
 * otherwise. It runs in the fake engine's thread, under its lock.
 */
#include "engine/client/rings/channel.h"
#include "tests/unit/client/fake_inside.h"

#include <stdlib.h>
#include <string.h>

static void ctl_put(
	struct fake *f, struct fake_channel *ch, const struct ctl_op *op, struct ctl_done d)
{
	d.cookie = op->cookie;
	d.kind = op->kind;
	d.length = op->length;
	if (f->on_ctl_done)
		f->on_ctl_done(f, &d);
	if (ring_room(&ch->ctl_done, 1) < 1)
		abort();
	memcpy(ring_slot_new(&ch->ctl_done, 0), &d, sizeof(d));
	ring_publish(&ch->ctl_done, 1);
	ch->ctl_answers++;
	fake_wake_waiting(ch);
}

static void ctl_done(struct fake *f, struct fake_channel *ch, const struct ctl_op *op,
	uint32_t status, uint32_t place, uint32_t generation)
{
	ctl_put(f, ch, op,
		(struct ctl_done){.status = status, .place = place, .generation = generation});
}

static void grant(struct fake *f, struct fake_channel *ch, const struct ctl_op *op)
{
	uint32_t units = (op->length + PAGE_UNIT - 1) / PAGE_UNIT;
	struct fake_node *node = &f->node[FAKE_SELF];

	struct ctl_done run = {.count = 0};
	unsigned left = op->count;

	for (; left && f->credits_left; left--) {
		uint32_t place = place_make(op->rail, node->units_used[op->rail]);
		uint32_t generation;

		if (place_unit(place) + units > FAKE_UNITS)
			break;
		generation = shm_load(&fake_head(f, 0, place)->generation);
		if (run.count && (generation != run.generation || run.count == f->grant_max)) {
			ctl_put(f, ch, op, run);
			run.count = 0;
		}
		if (!run.count)
			run = (struct ctl_done){.status = OP_HIT,
				.stride = (uint16_t)units,
				.place = place,
				.generation = generation};
		run.count++;
		f->credits_left--;
		node->units_used[op->rail] += units;
	}
	if (run.count)
		ctl_put(f, ch, op, run);
	if (left)
		ctl_put(f, ch, op,
			(struct ctl_done){.status = OP_NO_SPACE, .count = (uint16_t)left});
}

static void publish(struct fake *f, const struct ctl_op *op)
{
	f->publishes++;
	if (op->publish & PUBLISH_CRC)
		page_head_prove(fake_head(f, 0, op->place), &op->key, op->length, op->crc);
	page_head_publish(fake_head(f, 0, op->place), &op->key, op->length);
	fake_insert(f, &op->key, FAKE_NODES,
		&(struct dir_entry){
			.ref = FAKE_REF(0), .place = op->place, .generation = op->generation});
}

/*
 * Gives each page of a publish, as an op of its own, to the hook, and publishes it or uses the
 * hook's status for it. Writes an answer for each status.
 */
static void publish_run(struct fake *f, struct fake_channel *ch, const struct ctl_op *op,
	const struct ctl_page *page)
{
	uint32_t ended[FAKE_HOLD + 1] = {0};

	f->publish_runs++;
	for (uint32_t k = 0; k < op->count; k++) {
		struct ctl_op one = *op;
		uint32_t status;

		one.count = 1;
		one.key = page[k].key;
		one.place = page[k].place;
		one.generation = page[k].generation;
		one.crc = page[k].crc;
		status = f->on_ctl ? f->on_ctl(f, &one) : FAKE_DO;
		if (status == FAKE_DO) {
			publish(f, &one);
			status = OP_HIT;
		}
		if (status <= FAKE_HOLD)
			ended[status] |= 1u << k;
		else /* a status that a correct engine does not have */
			ctl_put(f, ch, op, (struct ctl_done){.status = status, .pages = 1u << k});
	}
	for (uint32_t status = 0; status < FAKE_HOLD; status++)
		if (ended[status])
			ctl_put(f, ch, op,
				(struct ctl_done){.status = status, .pages = ended[status]});
}

/* Takes the ctl ring's next op, a CTL_PUBLISH. */
static void take_publish(struct fake *f, struct fake_channel *ch, const struct ctl_op *op)
{
	struct ctl_page page[CTL_PAGES_MAX] = {
		{.place = op->place, .generation = op->generation, .crc = op->crc, .key = op->key}};

	if (op->count < 1 || op->count > CTL_PAGES_MAX ||
		ring_ready_now(&ch->ctl) < (int32_t)ctl_lines(op->count))
		abort(); /* all entries of an op must be published together */
	for (uint32_t k = 1; k < op->count; k++) {
		const struct ctl_page *line = ring_slot_old(&ch->ctl, ctl_page_line(k));

		page[k] = line[ctl_page_half(k)];
	}
	ring_release(&ch->ctl, ctl_lines(op->count));
	publish_run(f, ch, op, page);
}

static void obey(struct fake *f, struct fake_channel *ch, const struct ctl_op *op)
{
	uint32_t status = f->on_ctl ? f->on_ctl(f, op) : FAKE_DO;
	uint32_t owner[REPLICAS_MAX], n;

	f->touches += op->kind == CTL_TOUCH;
	if (op->kind == CTL_TOUCHES) {
		f->touches += op->count;
		return;
	}
	f->returned += op->kind == CTL_RETURN;
	f->credits_left += op->kind == CTL_RETURN && f->credits_left != UINT32_MAX;
	if (op->kind == CTL_STALE) {
		f->stales++;
		f->last_stale = *op;
	}
	f->promotes += op->kind == CTL_PROMOTE;
	f->wants += op->kind == CTL_WANT;
	if (op->kind == CTL_PROMOTE || op->kind == CTL_WANT)
		f->last_promote = *op;
	if (status == FAKE_HOLD || op->kind == CTL_TOUCH || op->kind == CTL_RETURN ||
		op->kind == CTL_STALE || op->kind == CTL_WANT)
		return;
	if (status != FAKE_DO) {
		ctl_put(f, ch, op, (struct ctl_done){.status = status, .count = op->count});
		return;
	}
	if (op->kind == CTL_CREDIT) {
		grant(f, ch, op);
	} else if (op->kind == CTL_PROMOTE && op->count == PROMOTE_LOOK && !f->here) {
		ctl_done(f, ch, op, OP_MISS, 0, 0);
	} else if (op->kind == CTL_PROMOTE) {
		ctl_done(f, ch, op, OP_HIT, f->promote_place, f->promote_generation);
	} else {
		bool had = false;

		f->removes++;
		n = fake_owners(f, &op->key, owner);
		for (uint32_t k = 0; k < n; k++) {
			struct bucket *b =
				&f->node[owner[k]].shard[dir_bucket_first(&op->key, FAKE_BITS)];

			for (unsigned e = 0; e < BUCKET_ENTRIES; e++) {
				if (b->entry[e].tag != dir_tag(&op->key))
					continue;
				memset(&b->entry[e], 0, sizeof(b->entry[e]));
				had = true;
			}
		}
		ctl_done(f, ch, op, had ? OP_HIT : OP_MISS, 0, 0);
	}
}

void fake_obey(struct fake *f, struct fake_channel *ch)
{
	struct ctl_op op;

	memcpy(&op, ring_slot_old(&ch->ctl, 0), sizeof(op));
	if (op.kind == CTL_PUBLISH) {
		take_publish(f, ch, &op);
		return;
	}
	ring_release(&ch->ctl, 1);
	obey(f, ch, &op);
}
