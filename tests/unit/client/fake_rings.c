/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake engine's rails, and the loop that serves them and the control plane (fake_ctl.c). They
 * act as a correct engine does unless a hook decides otherwise. They run in the fake engine's
 * thread, under its lock.
 */
#include "config/clock.h"
#include "engine/client/rings/channel.h"
#include "tests/unit/client/fake_inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void fake_wake(struct fake_channel *ch)
{
	(void)!send(ch->wake, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void fake_wake_waiting(struct fake_channel *ch)
{
	struct channel_header *header = (struct channel_header *)(void *)ch->base;

	shm_fence_sleep();
	if (shm_exchange(&header->client_waits, 0))
		fake_wake(ch);
}

void fake_done(struct fake_channel *ch, uint32_t rail, const struct run_done *answer)
{
	if (ring_room(&ch->done[rail], 1) < 1)
		abort(); /* the client must keep room in the done ring for every answer */
	ch->answers++;
	memcpy(ring_slot_new(&ch->done[rail], 0), answer, sizeof(*answer));
	ring_publish(&ch->done[rail], 1);
	fake_wake_waiting(ch);
}

static void done(struct fake_channel *ch, uint32_t rail, uint64_t cookie, uint32_t status)
{
	bool decided = status == OP_HIT || status == OP_STALE;

	fake_done(ch, rail,
		&(struct run_done){.cookie = (uint32_t)cookie,
			.hit = status == OP_HIT,
			.stale = status == OP_STALE,
			.status = decided ? OP_HIT : (uint8_t)status,
			.kind = OP_PAGE});
}

static void scatter(struct fake *f, const unsigned char *from, const struct op *op,
	const struct op_segment *segment)
{
	uint32_t left = op->length;

	for (unsigned s = 0; s < op->segments; s++) {
		struct fake_region *region = &f->region[segment[s].region];

		if (!region->base || segment[s].offset + segment[s].length > region->bytes)
			abort(); /* the client named memory that is not registered */
		memcpy(region->base + segment[s].offset, from, segment[s].length);
		from += segment[s].length;
		left -= segment[s].length;
	}
	if (left)
		abort(); /* a rail refuses segments that do not add up */
}

static uint32_t execute(struct fake *f, const struct op *op, const struct op_segment *segment)
{
	struct fake_node *node = &f->node[op->peer];
	uint32_t rail = op->region - REGION_POOL_0;
	struct page_head *head;

	if (op->peer >= FAKE_NODES || op->peer == FAKE_SELF || op->peer_ref != FAKE_REF(op->peer))
		return OP_PEER_DOWN;
	if (op->kind == OP_LOOKUP && op->region == REGION_SHARD) {
		f->reads++;
		scatter(f, (unsigned char *)node->shard + op->offset, op, segment);
		return OP_HIT;
	}
	if (op->kind == OP_LOOKUP) {
		uint32_t of = op->region - REGION_HEADS_0;

		if (of >= FAKE_RAILS ||
			op->offset + op->length > FAKE_UNITS * sizeof(struct page_head))
			return OP_INVALID;
		scatter(f, (unsigned char *)node->heads[of] + op->offset, op, segment);
		return OP_HIT;
	}
	if (rail >= FAKE_RAILS || op_start(op) + op->length > FAKE_POOL_BYTES)
		return OP_INVALID;
	scatter(f, node->pool[rail] + op_start(op), op, segment);
	head = &node->heads[rail][op->offset / PAGE_UNIT];
	return page_head_is(head, &op->key, op->generation, op->page_bytes) ? OP_HIT : OP_STALE;
}

static bool touches(const struct op_segment *a, const struct op_segment *b)
{
	return a->region == b->region && a->offset < b->offset + b->length &&
	       b->offset < a->offset + a->length;
}

/* Counts an op into memory that an op or a run without an answer may still write. */
static void count_overlap(struct fake *f, const struct op *op, const struct op_segment *segment)
{
	struct op_segment other[SEGMENTS_MAX];
	struct op about;
	bool any = false;

	for (unsigned h = 0; h < f->held_ops; h++)
		for (unsigned s = 0; s < op->segments; s++)
			for (unsigned k = 0; k < f->held[h].op.segments; k++)
				any |= touches(&segment[s], &f->held[h].segment[k]);
	for (unsigned h = 0; h < f->held_runs; h++)
		for (uint32_t i = 0; i < f->held_run[h].run.head.pages; i++) {
			fake_run_op(&f->held_run[h].run, i, &about, other);
			for (unsigned s = 0; s < op->segments; s++)
				for (unsigned k = 0; k < about.segments; k++)
					any |= touches(&segment[s], &other[k]);
		}
	f->overlaps += any;
}

static void take(struct fake *f, struct fake_channel *ch, uint32_t rail, const struct op *op,
	const struct op_segment *segment)
{
	uint32_t status = f->on_op ? f->on_op(f, rail, op) : FAKE_DO;

	if (op->segments > f->segments_max)
		f->segments_max = op->segments;
	f->pages[rail] += op->kind == OP_PAGE;
	f->head_reads += op->kind == OP_LOOKUP && op->region != REGION_SHARD;
	f->op_lines += op_page_lines(op->segments);
	count_overlap(f, op, segment);
	if (status == FAKE_HOLD) {
		if (f->held_ops == 64)
			abort();
		f->held[f->held_ops].channel = ch;
		f->held[f->held_ops].rail = rail;
		f->held[f->held_ops].op = *op;
		f->held_count++;
		memcpy(f->held[f->held_ops++].segment, segment, op->segments * sizeof(*segment));
		return;
	}
	done(ch, rail, op->cookie, status == FAKE_DO ? execute(f, op, segment) : status);
}

/*
 * Gives each page of a run, as the op that reads it alone, to the hook, and executes it or uses the
 * hook's status for it. The first status of a page that is neither hit nor stale is the run's.
 */
static void run_execute(struct fake *f, struct fake_channel *ch, uint32_t rail,
	const struct fake_run *run, bool held)
{
	struct run_done d = {.cookie = run->head.cookie, .kind = run->head.kind};
	struct op_segment segment[SEGMENTS_MAX];

	for (uint32_t k = 0; k < run->head.pages; k++) {
		struct op op;
		uint32_t status;

		fake_run_op(run, k, &op, segment);
		if (!held)
			count_overlap(f, &op, segment);
		status = f->on_op && !held ? f->on_op(f, rail, &op) : FAKE_DO;
		if (status == FAKE_HOLD) {
			if (f->held_runs == 64 || k)
				abort(); /* a hook holds a run at its first page, or not at all */
			f->held_run[f->held_runs].channel = ch;
			f->held_run[f->held_runs].rail = rail;
			f->held_run[f->held_runs++].run = *run;
			f->held_count++;
			return;
		}
		if (status == FAKE_DO)
			status = execute(f, &op, segment);
		if (status == OP_HIT)
			d.hit |= 1u << k;
		else if (status == OP_STALE)
			d.stale |= 1u << k;
		else if (!d.status)
			d.status = (uint8_t)status;
	}
	if (d.kind == OP_LOOKUP && d.status == OP_INVALID)
		d.hit = 0; /* one impossible bucket refuses the run */
	if (f->on_run)
		f->on_run(f, rail, run, &d);
	fake_done(ch, rail, &d);
}

void fake_run_op(
	const struct fake_run *run, uint32_t k, struct op *ret, struct op_segment *ret_segment)
{
	const struct run *h = &run->head;
	uint32_t length =
		h->kind == OP_RUN ? h->page_bytes / h->segments : (uint32_t)sizeof(struct bucket);

	*ret = (struct op){.cookie = h->cookie,
		.kind = h->kind == OP_RUN ? OP_PAGE : OP_LOOKUP,
		.segments = h->kind == OP_RUN ? h->segments : 1,
		.peer = h->peer,
		.region = h->region,
		.peer_ref = h->peer_ref,
		.length = h->kind == OP_RUN ? h->page_bytes : length,
		.page_bytes = h->page_bytes,
		.deadline_ns = h->deadline_ns};
	if (h->kind == OP_LOOKUP) {
		ret->offset = (uint64_t)run->bucket[k] * sizeof(struct bucket);
		if (h->region != REGION_SHARD) {
			ret->region += (uint8_t)place_rail(run->bucket[k]);
			ret->offset = place_unit(run->bucket[k]) / 2 * sizeof(struct bucket);
		}
		*ret_segment = (struct op_segment){.offset = h->stride_or_to + 64ull * k,
			.length = length,
			.region = h->to_region};
		return;
	}
	ret->offset = (uint64_t)run->entry[k].unit * PAGE_UNIT;
	ret->generation = run->entry[k].generation;
	ret->key = run->entry[k].key;
	for (uint32_t s = 0; s < h->segments; s++)
		ret_segment[s] = (struct op_segment){
			.offset = (run->entry[k].to & (RUN_TO_MAX - 1)) + s * h->stride_or_to,
			.length = length,
			.region = h->to_region};
}

void fake_answer_held(struct fake *f)
{
	for (unsigned h = 0; h < f->held_ops; h++)
		done(f->held[h].channel, f->held[h].rail, f->held[h].op.cookie,
			execute(f, &f->held[h].op, f->held[h].segment));
	f->held_ops = 0;
	for (unsigned h = 0; h < f->held_runs; h++)
		run_execute(
			f, f->held_run[h].channel, f->held_run[h].rail, &f->held_run[h].run, true);
	f->held_runs = f->held_count = 0;
}

/* Copies a run out of its lines. Aborts if the client wrote one that no rail would execute. */
static void run_copy(const struct ring_consumer *ring, struct fake_run *ret)
{
	struct run_line line[RUN_LINES_MAX];
	uint32_t lines;

	memcpy(&line[0], ring_slot_old(ring, 0), sizeof(line[0]));
	run_decode(&line[0].header, clock_monotonic_ns(), &ret->head);
	if (ret->head.pages < 1 || ret->head.pages > RUN_PAGES_MAX)
		abort();
	lines = run_lines(ret->head.kind, ret->head.pages);
	for (uint32_t n = 1; n < lines; n++)
		memcpy(&line[n], ring_slot_old(ring, n), sizeof(line[n]));
	if (ret->head.kind == OP_RUN &&
		(ret->head.segments < 1 || ret->head.segments > SEGMENTS_MAX ||
			ret->head.page_bytes % ret->head.segments ||
			ret->head.page_bytes > RUN_PAGE_BYTES_MAX || !ret->head.page_bytes ||
			(ret->head.segments > 1 &&
				ret->head.stride_or_to <
					ret->head.page_bytes / ret->head.segments)))
		abort();
	for (uint32_t k = 0; k < ret->head.pages; k++) {
		ret->entry[k] = line[run_entry_line(k)].half[run_entry_half(k)];
		ret->bucket[k] = line[run_bucket_line(k)].bucket[run_bucket_word(k)];
	}
}

/* Takes a run out of the ring and executes it. Returns the number of its ring entries. */
static uint32_t serve_run(
	struct fake *f, struct fake_channel *ch, uint32_t rail, const struct run_header *header)
{
	struct ring_consumer *ring = &ch->ops[rail];
	uint32_t lines = run_lines(header->kind, header->pages);
	struct fake_run run;

	if (ring_ready_now(ring) < (int32_t)lines)
		abort(); /* all lines of a run must be published together */
	run_copy(ring, &run);
	if (header->kind == OP_RUN) {
		f->runs++;
		f->run_lines += lines;
		f->pages[rail] += run.head.pages;
		if (run.head.pages > f->run_pages_max)
			f->run_pages_max = run.head.pages;
		if (run.head.segments > f->segments_max)
			f->segments_max = run.head.segments;
	} else if (run.head.region != REGION_SHARD) {
		f->head_runs++;
		f->head_reads += run.head.pages;
	} else {
		f->look_runs++;
	}
	run_execute(f, ch, rail, &run, false);
	return lines;
}

/* Copies an OP_PAGE out of its lines. Aborts if they are not all published. */
static uint32_t page_copy(struct ring_consumer *ring, struct op *ret, struct op_segment *segment)
{
	struct run_line line;
	struct run run;
	uint32_t lines;

	memcpy(&line, ring_slot_old(ring, 0), sizeof(line));
	run_decode(&line.header, clock_monotonic_ns(), &run);
	if (run.segments < 1 || run.segments > SEGMENTS_MAX)
		abort();
	lines = op_page_lines(run.segments);
	if (ring_ready_now(ring) < (int32_t)lines)
		abort(); /* all lines of a run must be published together */
	*ret = (struct op){.cookie = run.cookie,
		.kind = OP_PAGE,
		.slice = run.slice,
		.segments = run.segments,
		.peer = run.peer,
		.region = run.region,
		.offset = (uint64_t)line.half[1].unit * PAGE_UNIT,
		.peer_ref = run.peer_ref,
		.length = (uint32_t)run.stride_or_to,
		.key = line.half[1].key,
		.deadline_ns = run.deadline_ns,
		.generation = line.half[1].generation,
		.page_bytes = run.page_bytes};
	*segment = (struct op_segment){.region = run.to_region,
		.length = ret->length,
		.offset = line.half[1].to & (RUN_TO_MAX - 1)};
	for (uint32_t n = 1; n < lines; n++)
		memcpy(&segment[(n - 1) * OP_LINE_SEGMENTS], ring_slot_old(ring, n),
			sizeof(struct op_segments));
	return lines;
}

static unsigned serve_rail(struct fake *f, struct fake_channel *ch, uint32_t rail)
{
	struct ring_consumer *ring = &ch->ops[rail];
	struct op_segment segment[SEGMENTS_MAX + OP_LINE_SEGMENTS];
	unsigned taken = 0;

	if (ring_ready_now(ring) > (int32_t)f->in_flight_max)
		f->in_flight_max = (unsigned)ring_ready_now(ring);
	for (; ring_ready(ring) > 0; taken++) {
		struct run_line line;
		struct op op;

		memcpy(&line, ring_slot_old(ring, 0), sizeof(line));
		if (line.header.kind == OP_PAGE) {
			ring_release(ring, page_copy(ring, &op, segment));
			take(f, ch, rail, &op, segment);
		} else {
			ring_release(ring, serve_run(f, ch, rail, &line.header));
		}
	}
	return taken;
}

static bool rail_awake(struct fake *f, uint32_t rail)
{
	uint64_t kicks;

	if (f->no_sleep || !shm_load(&f->status->rail[rail].sleeps))
		return true;
	if (read(f->kick[rail], &kicks, sizeof(kicks)) != sizeof(kicks))
		return false;
	f->kicked++;
	return true;
}

/*
 * Serves the rings of all channels. Rails and control plane set their sleep flag whenever the rings
 * are empty, so the client must kick after every publish.
 */
unsigned fake_serve_rings(struct fake *f)
{
	unsigned work = 0;
	uint64_t kicks;

	for (uint32_t r = 0; r < FAKE_RAILS; r++) {
		unsigned taken = 0;

		if (!rail_awake(f, r))
			continue;
		shm_store(&f->status->rail[r].sleeps, 0);
		for (unsigned c = 0; c < FAKE_CHANNELS; c++)
			if (f->channel[c].used)
				taken += serve_rail(f, &f->channel[c], r);
		work += taken;
		shm_store(&f->status->rail[r].sleeps, !f->no_sleep);
		shm_fence_sleep();
		for (unsigned c = 0; c < FAKE_CHANNELS; c++)
			if (f->channel[c].used && ring_ready_now(&f->channel[c].ops[r]) > 0)
				shm_store(&f->status->rail[r].sleeps, 0);
	}
	if (f->deaf)
		return work;
	if (shm_load(&f->status->control_sleeps) &&
		read(f->control_kick, &kicks, sizeof(kicks)) != sizeof(kicks))
		return work;
	shm_store(&f->status->control_sleeps, 0);
	for (unsigned c = 0; c < FAKE_CHANNELS; c++) {
		struct fake_channel *ch = &f->channel[c];

		while (ch->used && ring_ready(&ch->ctl) > 0) {
			fake_obey(f, ch);
			work++;
		}
	}
	shm_store(&f->status->control_sleeps, 1);
	shm_fence_sleep();
	for (unsigned c = 0; c < FAKE_CHANNELS; c++)
		if (f->channel[c].used && ring_ready_now(&f->channel[c].ctl) > 0)
			shm_store(&f->status->control_sleeps, 0);
	return work;
}
