/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h. A set that finds an entry reads the page head before it says hit. An engine that is
 * stopped serves what is in its rings when it runs again, although the call has ended. One thread.
 */
#include "tests/sim/client.h"

#include <stdlib.h>

#include "engine/abi/op.h"
#include "engine/control/pages/pages.h"
#include "tests/sim/channel.h"
#include "tests/sim/rail.h"
#include "tests/sim/run.h"
#include "tests/sim/world.h"

#define CALL_NS SIM_S          /* deadline of the engine's part, */
#define LATE_NS (10 * SIM_MS)  /* and when the client ends the call without the engine */
#define WRITE_NS 5000u         /* for which a client writes a page into its slot */
#define STOPPED_NS (4 * SIM_S) /* for which a client is stopped, at most */
#define CACHE_FRESH_NS SIM_S   /* FRESH_NS of engine/client */
#define CACHE_PAGES 65536u     /* pages with a higher number are not cached */

struct call {
	struct thing thing; /* first */
	struct call_for what;
	uint64_t incarnation; /* of the engine that the client is attached to */
	struct page_key key;
	struct location wrong, at[BUCKET_ENTRIES]; /* the last one of `at` is being read */
	LIST_ENTRY(call) waits;                    /* in `waiting`, until the engine answers */
	struct location stored;  /* of a set: the slot that it has a credit for, then its page */
	struct channel *channel; /* with which that slot is written */
	struct ctl_op *publish;  /* in the ring until the engine has taken it */
	uint64_t deadline_ns;    /* of the node's clock */
	unsigned count;
	bool retried, saw_stale, saw_failure;
	bool searched; /* the disks of this host */
	bool right;    /* the READ found the page */
	bool busy;     /* a look-up, a READ, an answer or the end of a write will follow */
	bool ended;    /* `done` was called */
	struct call_result result;
	call_done done;
	void *context;
};

struct cached {
	struct location at; /* ref 0: none */
	uint64_t seen_ns;
};

static struct cached *cache[SIM_NODES_MAX];
static LIST_HEAD(, call) waiting[SIM_NODES_MAX];

static struct cached *cached_at(const struct call *call)
{
	struct cached **of = &cache[call->what.node];

	if (call->what.number >= CACHE_PAGES)
		return NULL;
	if (!*of)
		*of = calloc(CACHE_PAGES, sizeof(**of));
	if (!*of)
		abort();
	return &(*of)[call->what.number];
}

static void cache_put(const struct call *call, const struct location *at)
{
	struct cached *cached = cached_at(call);

	if (cached)
		*cached = (struct cached){*at, world.now_ns};
}

static void cache_drop(const struct call *call)
{
	struct cached *cached = cached_at(call);

	if (cached)
		cached->at.ref = 0;
}

void client_close(void)
{
	for (unsigned i = 0; i < SIM_NODES_MAX; i++) {
		free(cache[i]);
		cache[i] = NULL;
	}
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void call_release(struct call *call)
{
	if (call->ended && !call->busy && !call->thing.closed)
		thing_close(&call->thing);
}

static void call_end(struct call *call, enum call_end end)
{
	if (!call->ended) {
		call->ended = true;
		call->result.end = end;
		world_trace((uint64_t)end << 8 | call->what.kind);
		call->done(call->context, &call->result);
	}
	call_release(call);
}

static void deadline_over(struct thing *thing, uint64_t word)
{
	(void)word;
	if (!thing->closed)
		call_end((struct call *)(void *)thing, CALL_TIMEOUT);
}

static bool attached(const struct call *call)
{
	const struct node *n = &world.node[call->what.node];

	return n->running && n->control.incarnation == call->incarnation && !n->control.door_shut;
}

/* ---- the engine's part ----------------------------------------------------------------------- */

/*
 * Sends an op about the page of the call. If the ring is full, as that of an engine which is
 * stopped, the call ends at its deadline. Returns the entry in the ring.
 */
static struct ctl_op *engine_ask(struct call *call, struct ctl_op op)
{
	struct ctl_op *entry;

	if (!attached(call)) {
		call_end(call, CALL_GONE);
		return NULL;
	}
	op.cookie = (uintptr_t)call;
	op.key = call->key;
	op.length = world.node[call->what.node].pages.length;
	op.deadline_ns = call->deadline_ns;
	entry = channel_put(call->what.node, &op);
	call->busy = entry != NULL;
	if (entry)
		LIST_INSERT_HEAD(&waiting[call->what.node], call, waits);
	else
		call_release(call);
	return entry;
}

/* Sends an op that is not answered, if the ring has room. */
static void tell(const struct call *call, enum ctl_kind kind, const struct location *at)
{
	if (attached(call))
		(void)channel_put(call->what.node, &(struct ctl_op){.kind = (uint8_t)kind,
							   .key = call->key,
							   .ref = at->ref,
							   .place = at->place,
							   .generation = at->generation});
}

static void credit_return(struct call *call)
{
	tell(call, CTL_RETURN, &call->stored);
	call_release(call);
}

/* The page is in its slot. */
static void written(struct thing *thing, uint64_t word)
{
	struct call *call = (struct call *)(void *)thing;
	const struct content content = {call->what.number + 1, *call->what.value};
	uint32_t crc = channel_write(call->channel, call->stored.place, &content);

	(void)word;
	channel_leave(call->channel);
	call->busy = false;
	if (attached(call) && call->ended)
		credit_return(call);
	else
		call->publish = engine_ask(call, (struct ctl_op){.kind = CTL_PUBLISH,
							 .count = 1,
							 .publish = 1,
							 .crc = crc,
							 .place = call->stored.place,
							 .generation = call->stored.generation});
}

static uint64_t write_ns(unsigned node)
{
	if (world.stopped_writer != node + 1)
		return WRITE_NS;
	return WRITE_NS + world_random() % STOPPED_NS;
}

static void write_begin(struct thing *thing, uint64_t word)
{
	struct call *call = (struct call *)(void *)thing;

	(void)word;
	if (!attached(call)) {
		call->busy = false;
		call_end(call, CALL_GONE);
		return;
	}
	call->channel = channel_enter(call->what.node, call->stored.place, call->stored.generation);
	world_always(world.now_ns + write_ns(call->what.node), call->what.node, thing, 0,
		call->channel ? written : write_begin);
}

static void engine_done(struct call *call, enum op_status status)
{
	static const uint8_t end[OP_STATUS_COUNT] = {[OP_HIT] = CALL_HIT,
		[OP_MISS] = CALL_MISS,
		[OP_STALE] = CALL_STALE,
		[OP_PEER_DOWN] = CALL_UNREACHABLE,
		[OP_TIMEOUT] = CALL_TIMEOUT,
		[OP_NO_SPACE] = CALL_FULL,
		[OP_CANCELLED] = CALL_GONE};

	if (call->what.kind >= CALL_REMOVE)
		cache_drop(call);
	else if (status == OP_HIT)
		cache_put(call, &call->stored);
	if (call->what.kind == CALL_REMOVE && world.mutant == MUTANT_NO_PROMISE)
		status = OP_PEER_DOWN;
	call_end(call, (enum call_end)end[status]);
}

static void credited(struct call *call, const struct ctl_done *done)
{
	if (done->status != OP_HIT) {
		engine_done(call, (enum op_status)done->status);
		return;
	}
	call->stored = (struct location){
		world.node[call->what.node].control.ref, done->place, done->generation};
	call->result.holder = call->what.node;
	call->busy = true;
	write_begin(&call->thing, 0);
}

static void promoted(struct call *call, const struct ctl_done *done);

void client_answered(unsigned node, const struct ctl_done *done)
{
	struct call *call;

	LIST_FOREACH (call, &waiting[node], waits)
		if ((uintptr_t)call == done->cookie)
			break;
	check(call && done->status < OP_STATUS_COUNT, "each answer has a request");
	if (!call)
		return;
	LIST_REMOVE(call, waits);
	call->busy = false;
	if (done->kind == CTL_CREDIT)
		credited(call, done);
	else if (done->kind == CTL_PROMOTE)
		promoted(call, done);
	else
		engine_done(call, (enum op_status)done->status);
}

void client_gone(unsigned node)
{
	struct call *call;

	while ((call = LIST_FIRST(&waiting[node]))) {
		LIST_REMOVE(call, waits);
		call->publish = NULL;
		call->busy = false;
		call_end(call, CALL_GONE);
	}
}

/*
 * A set stores the value that the page has when the engine takes it: a removal may have come after
 * the call.
 */
void client_turn_begin(unsigned node)
{
	struct call *call;

	LIST_FOREACH (call, &waiting[node], waits) {
		const struct content content = {call->what.number + 1, *call->what.value};

		if (!call->publish)
			continue;
		call->publish->crc = channel_write(call->channel, call->stored.place, &content);
		call->result.value = content.value;
	}
}

/* The page may have been there already. */
void client_turn_end(unsigned node)
{
	struct control *control = &world.node[node].control;
	struct call *call;

	LIST_FOREACH (call, &waiting[node], waits) {
		const struct index_entry *entry;
		struct content content;

		if (!call->publish || channel_has(node, call->publish))
			continue;
		call->publish = NULL;
		entry = index_find(control->index, &call->key);
		/* it may have been evicted in the same turn */
		if (!entry || !page_of(node, call->what.number, &content))
			continue;
		call->stored = (struct location){control->ref, entry->place, entry->generation};
		call->result.value = content.value;
	}
}

/* ---- the page is found, or is not ------------------------------------------------------------ */

static void look(struct call *call);
static void try_next(struct call *call);

static const struct status_segment *status_of(const struct call *call)
{
	return world.node[call->what.node].control.status;
}

/* Asks the engine for a page that is on a disk of the engine `at`; ref 0: of this host, perhaps. */
static void disk_ask(struct call *call)
{
	(void)engine_ask(call, (struct ctl_op){.kind = CTL_PROMOTE,
				       .count = PROMOTE_GET,
				       .ref = call->at[call->count].ref});
}

/* As page_search_disk(). */
static void disk_search(struct call *call)
{
	call->searched = true;
	call->count = 0;
	call->at[0] = (struct location){.ref = 0};
	disk_ask(call);
}

/* As page_absent(). */
static void absent(struct call *call)
{
	if (call->what.kind == CALL_SET)
		(void)engine_ask(call, (struct ctl_op){.kind = CTL_CREDIT,
					       .rail = (uint8_t)(world_random() % SIM_RAILS),
					       .count = 1});
	else if (!call->searched && attached(call) && status_of(call)->disk)
		disk_search(call);
	else if (call->saw_stale)
		call_end(call, CALL_STALE);
	else
		call_end(call, call->saw_failure ? CALL_UNREACHABLE : CALL_MISS);
}

/* As page_wrong(). */
static void wrong(struct call *call)
{
	call->wrong = call->at[call->count];
	cache_drop(call);
	if (call->count) {
		try_next(call);
	} else if (!call->retried) {
		call->retried = true;
		look(call);
	} else {
		absent(call);
	}
}

/* The READ of a page head, with its page or without. */
static void head_done(void *context, bool answered)
{
	struct call *call = context;
	const struct location *at = &call->at[call->count];
	int holder = node_by_ref(at->ref);

	call->busy = false;
	if (call->ended) {
		call_release(call);
		return;
	}
	if (!attached(call)) {
		call_end(call, CALL_GONE);
		return;
	}
	if (holder >= 0 && holder != (int)call->what.node)
		look_read(call->what.node, (unsigned)holder, !answered);
	if (answered && call->right) {
		tell(call, CTL_TOUCH, at);
		call_end(call, CALL_HIT);
		return;
	}
	call->saw_failure |= !answered;
	call->saw_stale |= answered;
	if (answered)
		tell(call, CTL_STALE, at);
	wrong(call);
}

static bool head_sample(void *context, unsigned holder)
{
	struct call *call = context;
	struct content content;

	if (call->ended)
		return false;
	call->right = page_read(holder, &call->key, &call->at[call->count], &content);
	if (call->right) {
		call->result.value = content.value;
		call->result.mixed = content.number != call->what.number + 1;
	}
	call->result.holder = holder;
	return true;
}

static void page_head_ask(struct call *call)
{
	const struct location *at = &call->at[call->count];
	bool far = at->ref != world.node[call->what.node].control.ref;

	if (far && call->what.kind == CALL_SET && world.mutant == MUTANT_NO_VERIFY) {
		call->result.unread = true;
		call->result.holder = (unsigned)node_by_ref(at->ref) % world.nodes;
		call_end(call, CALL_HIT);
		return;
	}
	call->busy = true;
	rail_read(&(struct rail_read){.reader = call->what.node,
		.ref = at->ref,
		.region = REGION_HEADS_0 + place_rail(at->place),
		.sample = head_sample,
		.done = head_done,
		.context = call});
}

static void try_next(struct call *call)
{
	const struct location *at = &call->at[--call->count];

	if (place_on_disk(at->place)) {
		disk_ask(call);
		return;
	}
	page_head_ask(call);
}

/* As disk_answer() of client/ctl.c. */
static void promoted(struct call *call, const struct ctl_done *done)
{
	struct location *at = &call->at[call->count];
	bool here = !at->ref;

	if (call->ended) {
		call_release(call);
	} else if (done->status == OP_HIT && done->generation) {
		*at = (struct location){here ? world.node[call->what.node].control.ref : at->ref,
			done->place, done->generation};
		cache_drop(call);
		page_head_ask(call);
	} else if (done->status == OP_TIMEOUT &&
		   (here || node_now(call->what.node) >= call->deadline_ns)) {
		call_end(call, CALL_TIMEOUT);
	} else if (here) {
		absent(call);
	} else {
		call->saw_stale |= done->status == OP_MISS;
		call->saw_failure |= done->status != OP_MISS;
		if (done->status == OP_MISS)
			tell(call, CTL_STALE, at);
		wrong(call);
	}
}

static void looked(void *context, const struct looked *looked)
{
	struct call *call = context;

	call->busy = false;
	if (call->ended) {
		call_release(call);
		return;
	}
	call->saw_failure |= looked->how == LOOK_UNREACHABLE;
	if (looked->how != LOOK_HIT) {
		absent(call);
		return;
	}
	if (!place_on_disk(looked->at[0].place))
		cache_put(call, &looked->at[0]);
	for (call->count = 0; call->count < looked->count; call->count++)
		call->at[call->count] = looked->at[looked->count - 1 - call->count];
	try_next(call);
}

static void look(struct call *call)
{
	call->busy = true;
	look_find(
		&(struct look_for){
			.key = call->key, .reader = call->what.node, .wrong = call->wrong},
		looked, call);
}

/* As lookup_cached() of look.c: a get believes any location, because it reads the page head. */
static bool cache_find(struct call *call)
{
	const struct cached *cached = cached_at(call);

	if (!cached || !cached->at.ref ||
		!member_by_ref(&world.node[call->what.node].control, cached->at.ref) ||
		(call->what.kind == CALL_SET && world.now_ns - cached->seen_ns >= CACHE_FRESH_NS))
		return false;
	call->at[0] = cached->at;
	call->count = 1;
	return true;
}

void call_start(const struct call_for *what, call_done done, void *context)
{
	struct call *call = calloc(1, sizeof(*call));

	if (!call)
		abort();
	call->what = *what;
	call->incarnation = world.node[what->node].control.incarnation;
	call->key = node_key_of(what->node, what->number);
	call->deadline_ns = node_now(what->node) + CALL_NS;
	call->done = done;
	call->context = context;
	world_always(world.now_ns + CALL_NS + LATE_NS, what->node, &call->thing, 0, deadline_over);
	if (!attached(call))
		call_end(call, CALL_GONE);
	else if (what->kind == CALL_REMOVE)
		(void)engine_ask(call, (struct ctl_op){.kind = CTL_REMOVE});
	else if (what->kind == CALL_CLEAR)
		(void)engine_ask(
			call, (struct ctl_op){.kind = CTL_CLEAR,
				      .count = CLEAR_CLUSTER | (what->number ? CLEAR_ALL : 0)});
	else if (cache_find(call))
		try_next(call);
	else
		look(call);
}
