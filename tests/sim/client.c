/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h. A set that finds an entry reads the page head before it says hit. An engine that is
 * stopped serves what is in its rings when it runs again, although the call has ended. One thread.
 */
#include "tests/sim/client.h"

#include <stdlib.h>

#include "engine/control/directory/directory.h"
#include "engine/control/pages/pages.h"
#include "tests/sim/world.h"

#define CALL_NS SIM_S         /* deadline of the engine's part, */
#define LATE_NS (10 * SIM_MS) /* and when the client ends the call without the engine */
#define CACHE_FRESH_NS SIM_S  /* FRESH_NS of engine/client */
#define CACHE_PAGES 65536u    /* pages with a higher number are not cached */

struct call {
	struct thing thing; /* first */
	struct call_for what;
	uint64_t incarnation; /* of the engine that the client is attached to */
	struct page_key key;
	struct location wrong, at[BUCKET_ENTRIES]; /* the last one of `at` is being read */
	struct location stored;
	unsigned count;
	bool retried, saw_stale, saw_failure;
	bool busy;  /* a look-up or the engine will call back */
	bool ended; /* `done` was called */
	struct call_result result;
	call_done done;
	void *context;
};

/* A client's report of a stale entry, in the ring of its engine. */
struct stale {
	struct thing thing; /* first */
	uint64_t incarnation;
	unsigned node;
	struct page_key key;
	struct location at;
};

struct cached {
	struct location at; /* ref 0: none */
	uint64_t seen_ns;
};

static struct cached *cache[SIM_NODES_MAX];

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

static void late(struct thing *thing, uint64_t word)
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

static void engine_done(void *context, uint64_t cookie, enum op_status status)
{
	struct call *call = context;
	static const uint8_t end[OP_STATUS_COUNT] = {[OP_HIT] = CALL_HIT,
		[OP_MISS] = CALL_MISS,
		[OP_STALE] = CALL_STALE,
		[OP_PEER_DOWN] = CALL_UNREACHABLE,
		[OP_TIMEOUT] = CALL_TIMEOUT,
		[OP_NO_SPACE] = CALL_FULL,
		[OP_CANCELLED] = CALL_GONE};

	(void)cookie;
	call->busy = false;
	if (call->what.kind == CALL_REMOVE)
		cache_drop(call);
	else if (status == OP_HIT)
		cache_put(call, &call->stored);
	if (call->what.kind == CALL_REMOVE && world.mutant == MUTANT_SURE_REMOVE)
		status = status == OP_PEER_DOWN ? OP_MISS : status;
	if (call->what.kind == CALL_REMOVE && world.mutant == MUTANT_NO_PROMISE)
		status = OP_PEER_DOWN;
	call_end(call, (enum call_end)end[status]);
}

static void engine_set(struct call *call, const struct waiter *waiter)
{
	struct control *control = &world.node[call->what.node].control;
	const struct slot *slot =
		page_put(call->what.node, call->what.number, *call->what.value, &call->stored);

	call->result.value = slot->value;
	call->result.stored = true;
	call->result.holder = call->what.node;
	call->stored.ref = control->ref;
	directory_publish(control, &call->key, &call->stored, waiter);
}

static void engine_serve(struct thing *thing, uint64_t word)
{
	struct call *call = (struct call *)(void *)thing;
	const struct waiter waiter = {
		.deadline_ns = net_now() + CALL_NS, .done = engine_done, .context = call};

	(void)word;
	if (!attached(call)) {
		call->busy = false;
		call_end(call, CALL_GONE);
	} else if (call->what.kind == CALL_SET) {
		engine_set(call, &waiter);
	} else {
		cache_drop(call);
		directory_forget(&world.node[call->what.node].control, &call->key, &waiter);
	}
}

static void engine_ask(struct call *call)
{
	call->busy = true;
	world_at(world.now_ns, call->what.node, &call->thing, 0, engine_serve);
}

/* As ctl_serve_stale() of ctl.c. */
static void stale_serve(struct thing *thing, uint64_t word)
{
	struct stale *stale = (struct stale *)(void *)thing;
	struct node *n = &world.node[stale->node];
	const struct index_entry *ours;

	(void)word;
	thing_close(thing);
	if (!n->running || n->control.incarnation != stale->incarnation)
		return;
	ours = index_find(n->control.index, &stale->key);
	if (stale->at.ref == n->control.ref && ours && ours->place == stale->at.place &&
		ours->generation == stale->at.generation)
		return;
	directory_stale(&n->control, &stale->key, &stale->at);
}

static void stale_tell(const struct call *call, const struct location *at)
{
	struct stale *stale = calloc(1, sizeof(*stale));

	if (!stale)
		abort();
	stale->incarnation = call->incarnation;
	stale->node = call->what.node;
	stale->key = call->key;
	stale->at = *at;
	world_at(world.now_ns, call->what.node, &stale->thing, 0, stale_serve);
}

/* ---- the page is found, or is not ------------------------------------------------------------ */

static void look(struct call *call);
static void try_next(struct call *call);

/* As page_absent(). */
static void absent(struct call *call)
{
	if (call->what.kind == CALL_SET)
		engine_ask(call);
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

/* The READ of a page head, with its page or without: 0 failed, 1 stale, 2 right. */
static void head_read(struct thing *thing, uint64_t word)
{
	struct call *call = (struct call *)(void *)thing;
	const struct location *at = &call->at[call->count];
	int holder = node_by_ref(at->ref);

	if (call->ended)
		return;
	if (!attached(call)) {
		call_end(call, CALL_GONE);
		return;
	}
	if (holder >= 0 && holder != (int)call->what.node)
		look_read(call->what.node, (unsigned)holder, word == 0);
	if (word == 2) {
		call_end(call, CALL_HIT);
		return;
	}
	call->saw_failure |= word == 0;
	call->saw_stale |= word == 1;
	if (word == 1)
		stale_tell(call, at);
	wrong(call);
}

/* The NIC of the holder reads its memory, whatever its process does. */
static void head_sample(struct thing *thing, uint64_t word)
{
	struct call *call = (struct call *)(void *)thing;
	const struct location *at = &call->at[call->count];
	int holder = node_by_ref(at->ref);
	const struct slot *slot;

	(void)word;
	if (holder < 0 || !look_serves(call->what.node, (unsigned)holder)) {
		world_always(world.now_ns + LOOK_READ_NS, call->what.node, thing, 0, head_read);
		return;
	}
	slot = page_at((unsigned)holder, &call->key, at);
	if (slot)
		call->result.value = slot->value;
	call->result.holder = (unsigned)holder;
	world_always(world.now_ns + wire_latency(call->what.node), call->what.node, thing,
		slot ? 2 : 1, head_read);
}

static void try_next(struct call *call)
{
	const struct location *at = &call->at[--call->count];
	bool far = at->ref != world.node[call->what.node].control.ref;
	uint64_t wait_ns = far ? wire_latency(call->what.node) : 0;

	if (far && call->what.kind == CALL_SET && world.mutant == MUTANT_NO_VERIFY) {
		call->result.unread = true;
		call->result.holder = (unsigned)node_by_ref(at->ref) % world.nodes;
		call_end(call, CALL_HIT);
		return;
	}
	world_always(world.now_ns + wait_ns, call->what.node, &call->thing, 0, head_sample);
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
	call->key = node_key(what->number);
	call->done = done;
	call->context = context;
	world_always(world.now_ns + CALL_NS + LATE_NS, what->node, &call->thing, 0, late);
	if (!attached(call))
		call_end(call, CALL_GONE);
	else if (what->kind == CALL_REMOVE)
		engine_ask(call);
	else if (cache_find(call))
		try_next(call);
	else
		look(call);
}
