/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of pages of other hosts: those that wait, those that are READ, and the channel to the
 * rails. Control plane's thread only.
 *
 *   waiting --slot of a pool--> flying --the rail says hit--> published
 *      |                           |
 *      '------- no room, late ----- '--- stale, failed, removed meanwhile --> the slot goes back
 *
 * A slot that is READ into is a credit of the copier. It is returned or published only when the
 * rail has answered its run, which it does when the NIC holds nothing of it.
 */
#include "engine/control/copies/copies_inner.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/abi/crc32c.h"
#include "engine/abi/map.h"
#include "engine/abi/run.h"
#include "engine/control/base/control.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"

#define COPY_CHAINS 4096u       /* of the hash table; a power of two */
#define COPY_FORGOTTEN 16384u   /* removed keys that are remembered; a power of two */
#define COPY_PROMPT_NS 1000000u /* copies that are requested within this time follow each other */
/* the session of the copier's channel and regions; no client has it */
#define COPIES_SESSION UINT32_MAX

/* One more Offer of a page that is being copied. */
struct copy_also {
	SLIST_ENTRY(copy_also) next;
	struct copy_offer *offer;
	uint32_t page;
};

struct copy {
	SLIST_HEAD(, copy_also) also;
	TAILQ_ENTRY(copy) next; /* of those that wait */
	LIST_ENTRY(copy) same;
	struct copy_wish wish;
	uint64_t since_ns;
	bool forgotten; /* the key was removed since */
	/* from here on: while it is READ */
	unsigned pool; /* that it comes into */
	uint32_t place, generation;
	uint32_t tried; /* bit per rail */
};

/* The copier's end of a rail's channel, and the rail's end, which the rail owns. */
struct copies_rail {
	struct rail_channel channel;
	struct ring_producer ops;
	struct ring_consumer done;
	void *memory; /* of both rings */
	bool has;     /* the rail has the channel */
	/* the key under which its NIC knows each pool, as the rail was told; valid where `known` */
	uint32_t lkey[RAILS_MAX];
	uint32_t known;
};

struct copies {
	struct control *control;
	TAILQ_HEAD(, copy) waiting;
	LIST_HEAD(, copy) copy_of[COPY_CHAINS];
	uint32_t waits, flying;
	uint64_t waiting_bytes, flying_bytes, pools_bytes;
	struct copy *flight[COPIES_FLIGHTS_MAX];
	unsigned turn; /* the pool that gets the next copy */
	/* the first one that waits is counted in `waiting` of this class; NULL: it is not */
	struct evict_class *class;
	bool own;           /* then: its group is above its quota, and gives pages of its own */
	uint64_t stuck_ns;  /* since then no copy has got a slot that needed one; 0: it got one */
	uint64_t rate;      /* beside clients, bytes a second */
	uint64_t rated_ns;  /* when it was computed */
	uint64_t next_ns;   /* when the next READ may begin then */
	uint64_t beside_ns; /* when a client was seen to READ last */
	bool beside;        /* a client READs */
	struct net_timer *timer;
	bool joined; /* the rails were given the channel */
	unsigned left;
	struct copies_rail *rail[RAILS_MAX];
	/* raised while copies fly: the rail clears it and writes to `wake` */
	uint32_t sleeps;
	int wake[2];
	struct event *woken;
	uint64_t cleared_ns; /* when pages of this host were cleared last */
	/* the last copy that came into each pool: its place, and when it was requested */
	uint32_t last[RAILS_MAX];
	uint64_t last_ns[RAILS_MAX];
	/* by a hash of the key: when a key was removed last; `word` 0: several */
	struct {
		uint64_t word, ns;
	} forgot[COPY_FORGOTTEN];
};

static unsigned copy_chain(const struct page_key *key)
{
	return (unsigned)(map_mix(key->word[1]) & (COPY_CHAINS - 1));
}

static struct copy *copy_find(struct copies *c, const struct page_key *key)
{
	struct copy *copy;

	LIST_FOREACH (copy, &c->copy_of[copy_chain(key)], same)
		if (page_key_equal(&copy->wish.key, key))
			return copy;
	return NULL;
}

static struct pool *copy_pool(const struct copies *c, const struct copy *copy)
{
	return c->control->rail[copy->pool].pool;
}

/* ---- the channel ----------------------------------------------------------------------------- */

static void copies_on_wake(evutil_socket_t fd, short what, void *context)
{
	char bytes[64];

	(void)what, (void)context; /* copies_turn() follows in this turn of the loop */
	while (read((int)fd, bytes, sizeof(bytes)) > 0)
		continue;
}

static int wake_open(struct copies *c)
{
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, c->wake) < 0)
		return -errno;
	c->woken = event_new(c->control->base, c->wake[1], EV_READ | EV_PERSIST, copies_on_wake, c);
	return c->woken && event_add(c->woken, NULL) == 0 ? 0 : -ENOMEM;
}

/* Makes the rings of one rail. */
static int rings_open(struct copies *c, unsigned rail)
{
	size_t ops = ring_bytes(OP_RING_SLOTS, sizeof(struct run_line)),
	       done = ring_bytes(DONE_RING_SLOTS, sizeof(struct run_done));
	struct copies_rail *r = calloc(1, sizeof(*r));
	unsigned char *memory = aligned_alloc(64, ops + done);

	if (!r || !memory) {
		free(r);
		free(memory);
		return -ENOMEM;
	}
	memset(memory, 0, ops + done);
	r->memory = memory;
	r->channel = (struct rail_channel){.id = CHANNEL_COPIES,
		.session = COPIES_SESSION,
		.client_waits = &c->sleeps,
		.wake = c->wake[0]};
	ring_producer_init(&r->ops, memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_consumer_init(&r->channel.ops, memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_consumer_init(&r->done, memory + ops, DONE_RING_SLOTS, sizeof(struct run_done));
	ring_producer_init(
		&r->channel.done, memory + ops, DONE_RING_SLOTS, sizeof(struct run_done));
	c->rail[rail] = r;
	return 0;
}
static_assert(sizeof(struct run_line) % 64 == 0 && DONE_RING_SLOTS % 4 == 0, "whole lines");

/* Gives the rails the copier's channel, when the first copy is requested. */
static int copies_join(struct copies *c)
{
	struct control *control = c->control;
	int rc = c->woken ? 0 : wake_open(c);

	for (unsigned i = 0; i < control->rails && rc == 0; i++)
		rc = c->rail[i] ? 0 : rings_open(c, i);
	if (rc < 0) {
		log_error(
			"copies: no channel to the rails: %s; pages of other hosts are not copied",
			strerror(-rc));
		return rc;
	}
	for (unsigned i = 0; i < control->rails; i++) {
		struct rail_command add = {
			.kind = RAIL_CHANNEL_ADD, .object = &c->rail[i]->channel};

		c->rail[i]->has = outbox_send(control, i, &add);
		c->left += c->rail[i]->has;
	}
	c->joined = true;
	return 0;
}

/*
 * Informs the rail of the pools as its NIC has them registered: once, and again when a NIC was
 * opened anew. False: its NIC has not registered this pool.
 */
static bool pool_tell(struct copies *c, unsigned via, unsigned pool)
{
	struct control *control = c->control;
	const struct dv_mr *mr = &control->rail[via].exported[REGION_POOL_0 + pool];
	struct copies_rail *r = c->rail[via];
	bool known = r->known >> pool & 1;
	struct rail_command command = {.kind = known ? RAIL_REGION_KEY : RAIL_REGION_ADD,
		.region = {.base = (uintptr_t)mr->base,
			.length = mr->length,
			.lkey = mr->lkey,
			.session = COPIES_SESSION,
			.id = REGION_OWN_0 + pool}};

	if (!mr->length)
		return false;
	if (known && r->lkey[pool] == mr->lkey)
		return true;
	if (!outbox_send(control, via, &command))
		return false;
	r->lkey[pool] = mr->lkey;
	r->known |= 1u << pool;
	return true;
}

static void read_kick(struct control *control, unsigned rail)
{
	uint64_t one = 1;

	/* pairs with the poll core's fence between its flag and its last look at the rings */
	shm_fence_sleep();
	if (shm_load(&control->status->rail[rail].sleeps) &&
		write(control->rail[rail].kick, &one, sizeof(one)) < 0)
		return; /* the eventfd's counter is full, so the rail is being woken already */
}

/* ---- the end of a copy ----------------------------------------------------------------------- */

/* The first copy that waits needs no slot any more, or has got it. */
static void class_leave(struct copies *c)
{
	if (c->class)
		evict_wait(c->class, -1, c->own);
	c->class = NULL;
}

/* Takes the copy out of those that wait. */
static void copy_leave(struct copies *c, struct copy *copy)
{
	if (copy == TAILQ_FIRST(&c->waiting))
		class_leave(c);
	TAILQ_REMOVE(&c->waiting, copy, next);
	c->waits--;
	c->waiting_bytes -= copy->wish.length;
	if (!c->waits)
		c->stuck_ns = 0;
}

/* `made`: this host has the page. */
static void copy_free(struct copies *c, struct copy *copy, bool made)
{
	struct copy_also *also;

	LIST_REMOVE(copy, same);
	if (copy->wish.offer)
		offer_copy_ended(c->control, copy->wish.offer, copy->wish.page, made);
	while ((also = SLIST_FIRST(&copy->also))) {
		SLIST_REMOVE_HEAD(&copy->also, next);
		offer_copy_ended(c->control, also->offer, also->page, made);
		free(also);
	}
	free(copy);
}

/* Ends a copy that is in no list. */
static void copy_end(struct copies *c, struct copy *copy, enum op_status status)
{
	uint64_t *counter = c->control->counter;

	if (status == OP_HIT) {
		counter[COUNTER_copies_made]++;
		counter[COUNTER_copies_bytes] += copy->wish.length;
	} else {
		counter[status == OP_NO_SPACE ? COUNTER_copies_refused : COUNTER_copies_failed]++;
	}
	copy_free(c, copy, status == OP_HIT);
}

/* Nothing writes to the slot any more, and it has no page. */
static void slot_return(struct copies *c, const struct copy *copy)
{
	evict_give_back(c->control->evict, copy->place, copy->generation, copy->wish.length);
}

static unsigned forgot_place(const struct page_key *key)
{
	return (unsigned)(map_mix(key->word[0]) & (COPY_FORGOTTEN - 1));
}

/* Was the key cleared, or removed after the copy was requested, or shortly before? */
static bool copy_is_void(const struct copies *c, const struct copy *copy)
{
	const struct page_key *key = &copy->wish.key;
	unsigned at = forgot_place(key);
	uint64_t forgot_ns = c->forgot[at].ns, word = c->forgot[at].word;

	return (forgot_ns && (!word || word == key->word[0]) &&
		       forgot_ns + COPIES_FORGOT_NS > copy->since_ns) ||
	       copy->forgotten || copy->since_ns <= c->cleared_ns || epoch_past(c->control, key) ||
	       index_ends(c->control->index, key) || c->control->door_shut;
}

/* rail.validate = crc: has the slot the bytes that the holder's head tells of? */
static bool copy_is_whole(const struct copies *c, const struct copy *copy)
{
	const struct copy_wish *wish = &copy->wish;
	const unsigned char *pool = pool_memory(copy_pool(c, copy))->base;

	if (c->control->settings->rail_validate != VALIDATE_CRC)
		return true;
	if (!wish->proven)
		return false;
	if (crc32c(0, pool + place_offset(copy->place), wish->length) == wish->crc)
		return true;
	scrub_read(c->control, wish->from.ref,
		&(struct page_report){.key = wish->key,
			.place = wish->from.place,
			.generation = wish->from.generation});
	return false;
}

/* The page is in the slot: publishes it. False: not possible; the slot is still a credit. */
static bool copy_publish(struct copies *c, const struct copy *copy)
{
	struct control *control = c->control;
	const struct copy_wish *wish = &copy->wish;
	const struct location at = {.place = copy->place, .generation = copy->generation};
	struct index_entry entry = {.key = wish->key,
		.place = at.place,
		.generation = at.generation,
		.length = wish->length};
	struct pool *pool = copy_pool(c, copy);

	if (copy_is_void(c, copy) || !copy_is_whole(c, copy) ||
		index_put(control->index, &entry, NULL) < 0)
		return false;
	if (wish->proven)
		(void)pool_prove(pool, &(struct pool_proven){.key = wish->key,
					       .place = at.place,
					       .generation = at.generation,
					       .length = wish->length,
					       .crc = wish->crc});
	/* the pages of a prompt are requested in order: its end is evicted before its start */
	if (copy->since_ns - c->last_ns[copy->pool] < COPY_PROMPT_NS)
		pool_order(pool, c->last[copy->pool]);
	if (pool_publish(pool, at.place, at.generation, &wish->key, wish->length) < 0) {
		index_remove(control->index, &wish->key);
		return false;
	}
	control->evict->credits--;
	pool_why_set(pool, at.place, at.generation, wish->why);
	if (wish->why == PAGE_HOT) /* it goes first, unless it is used here */
		control->counter[COUNTER_copies_hot] += pool_yield(pool, at.place, at.generation);
	c->last[copy->pool] = at.place;
	c->last_ns[copy->pool] = copy->since_ns;
	tier_replaced(control, &wish->key, wish->length);
	tier_published(control);
	if (control->evict->rail[copy->pool].requests)
		control->evict->rail[copy->pool].retry = true;
	directory_publish(control, &wish->key, &at, NULL);
	return true;
}

/* ---- READs ----------------------------------------------------------------------------------- */

/* The rail for the READ: that of the pool, or the next one that is in use. RAILS_MAX: none. */
static unsigned rail_choose(struct copies *c, const struct copy *copy, uint16_t peer)
{
	const struct control *control = c->control;
	uint32_t out = shm_load(&control->status->rails_out) |
		       shm_load(&control->status->peer_rails_out[peer]) | copy->tried;

	for (unsigned k = 0; k < control->rails; k++) {
		unsigned via = (copy->pool + k) % control->rails;

		if (!(out >> via & 1) && c->rail[via]->has &&
			ring_room(&c->rail[via]->ops, 1) > 0 && pool_tell(c, via, copy->pool))
			return via;
	}
	return RAILS_MAX;
}

/* Posts the READ of flight `number`, which has a slot. False: no rail can READ it. */
static bool read_post(struct copies *c, unsigned number)
{
	struct copy *copy = c->flight[number];
	const struct location *from = &copy->wish.from;
	const struct member_record *member = member_by_ref(c->control, from->ref);
	struct run run = {.cookie = number,
		.peer_ref = from->ref,
		.kind = OP_PAGE,
		.pages = 1,
		.segments = 1,
		.to_region = (uint16_t)(REGION_OWN_0 + copy->pool),
		.region = (uint8_t)(REGION_POOL_0 + place_rail(from->place)),
		.page_bytes = copy->wish.length,
		.stride_or_to = copy->wish.length,
		.deadline_ns = net_now() + COPIES_READ_NS};
	const struct run_entry entry = {.unit = place_unit(from->place),
		.generation = from->generation,
		.to = place_offset(copy->place),
		.key = copy->wish.key};
	unsigned via = member ? rail_choose(c, copy, member->peer) : RAILS_MAX;
	struct ring_producer *ops;

	if (via == RAILS_MAX)
		return false;
	ops = &c->rail[via]->ops;
	run.peer = member->peer;
	copy->tried |= 1u << via;
	run_encode(&run, ring_slot_new(ops, 0));
	*run_entry_new(ops, 0, 0) = entry;
	ring_publish(ops, op_page_lines(1));
	read_kick(c->control, via);
	return true;
}

static void flight_end(struct copies *c, unsigned number, enum op_status status)
{
	struct copy *copy = c->flight[number];

	c->flight[number] = NULL;
	c->flying--;
	c->flying_bytes -= copy->wish.length;
	index_coming(c->control->index, &copy->wish.key, -(int64_t)index_bytes(copy->wish.length));
	if (status == OP_HIT && !copy_publish(c, copy))
		status = OP_MISS;
	if (status != OP_HIT)
		slot_return(c, copy);
	if (status != OP_HIT && index_find(c->control->index, &copy->wish.key))
		copy_free(c, copy, true); /* a client has stored it meanwhile */
	else
		copy_end(c, copy, status);
}

/* A rail has answered. */
static void read_done(struct copies *c, const struct run_done *done)
{
	unsigned number = done->cookie % COPIES_FLIGHTS_MAX;
	bool rail_failed = done->status == OP_NIC_ERROR || done->status == OP_PEER_DOWN;

	if (!c->flight[number])
		return;
	if (done->hit & 1)
		flight_end(c, number, OP_HIT);
	else if (done->stale & 1)
		flight_end(c, number, OP_STALE);
	else if (c->control->stopping || !rail_failed || !read_post(c, number))
		flight_end(c, number, done->status);
}

static unsigned copies_reap(struct copies *c)
{
	unsigned reaped = 0;

	for (unsigned i = 0; i < c->control->rails; i++) {
		struct ring_consumer *ring = &c->rail[i]->done;
		int32_t n = ring_ready(ring);

		for (int32_t k = 0; k < n; k++) {
			struct run_done done;

			memcpy(&done, ring_slot_old(ring, (uint32_t)k), sizeof(done));
			read_done(c, &done);
		}
		if (n > 0)
			ring_release(ring, (uint32_t)n);
		reaped += (unsigned)n;
	}
	return reaped;
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* Has the pool a free slot that is not of the reserve? */
static bool slot_is_spare(const struct copies *c, const struct copy *copy)
{
	uint64_t bytes = c->control->status->pool_bytes[copy->pool];
	uint32_t length = copy->wish.length;

	return pool_free(copy_pool(c, copy), length) > evict_reserve(bytes / length);
}

/* Takes a slot of a pool in which no client waits for one. -ENOSPC: none is free. */
static int slot_of(struct copies *c, struct copy *copy, unsigned pool)
{
	uint32_t length = copy->wish.length;
	struct evict_class *class = evict_class_of(c->control->evict, pool, length);

	copy->pool = pool;
	if (class->waiting > (class == c->class) || (copy->wish.spare && !slot_is_spare(c, copy)))
		return -ENOSPC;
	return pool_take(copy_pool(c, copy), length, &copy->place, &copy->generation);
}

/*
 * Takes a slot for the first copy that waits. -ENOSPC: none is free yet, and pages are evicted for
 * it as for a set; -EDQUOT: it evicts none, and gets none or its group is at its quota; or -errno.
 */
static int slot_take(struct copies *c, struct copy *copy, uint64_t now_ns)
{
	struct evict *evict = c->control->evict;
	unsigned rails = c->control->rails;
	uint32_t length = copy->wish.length;
	struct index_group *group;
	int rc = -ENOSPC;

	group = index_above(c->control->index, &copy->wish.key, index_bytes(length));
	if (group && copy->wish.spare)
		return -EDQUOT;
	for (unsigned k = 0; k < rails && rc == -ENOSPC; k++)
		rc = slot_of(c, copy, (c->turn + k) % rails);
	if (rc == 0) {
		pool_own(copy_pool(c, copy), copy->place, warm_owner_copies(c->control));
		evict->credits++;
		evict_hold(evict, copy->pool, length, 1);
		c->turn++;
		c->stuck_ns = 0;
	}
	if (copy->wish.spare) /* it makes no room, not even for the reserve */
		return rc == -ENOSPC ? -EDQUOT : rc;
	if (rc == 0 && !group)
		evict_class_of(evict, copy->pool, length)->taken++;
	if (rc == -ENOSPC)
		copy->pool = c->turn % rails;
	if (rc == -ENOSPC && !c->class) {
		c->class = evict_class_of(evict, copy->pool, length);
		c->own = group;
		evict_wait(c->class, 1, c->own);
		c->class->waited |= !c->own;
		c->class->slowed |= !c->own;
		if (!c->stuck_ns)
			c->stuck_ns = now_ns;
	}
	evict_refill_by(evict, copy->pool, length, group, index_bytes(length), now_ns);
	return rc;
}

/* ---- pace ------------------------------------------------------------------------------------ */

static bool clients_read(const struct copies *c)
{
	uint32_t runs = 0;

	for (unsigned i = 0; i < c->control->rails; i++)
		runs += rail_in_flight(c->control->rail[i].rail);
	return runs > c->flying;
}

/*
 * May a copy of `bytes` bytes be READ now? Beside clients that READ at the rate of
 * copies.mib_per_second at most, and few at a time, so that their READs do not queue behind copies.
 */
static bool pace_allows(struct copies *c, uint32_t bytes, uint64_t now_ns)
{
	uint64_t most;

	if (clients_read(c))
		c->beside_ns = now_ns;
	c->beside = c->beside_ns && now_ns - c->beside_ns < COPIES_BESIDE_NS;
	most = c->beside ? COPIES_BESIDE_BYTES : COPIES_FLIGHT_BYTES;
	if (c->flying && (c->flying == COPIES_FLIGHTS_MAX || c->flying_bytes + bytes > most))
		return false;
	return !c->beside || now_ns >= c->next_ns;
}

/* Bytes a second beside clients. What NICs carry may change. */
static uint64_t pace_rate(struct copies *c, uint64_t now_ns)
{
	uint64_t set = (uint64_t)c->control->settings->copies_mib_per_second << 20, bits = 0;
	struct dv_attributes nic;

	if (set || (c->rate && now_ns - c->rated_ns < COPIES_RATED_NS))
		return set ? set : c->rate;
	for (unsigned i = 0; i < c->control->rails; i++) {
		dv_attributes(c->control->rail[i].device, &nic);
		bits += nic.bits_per_second;
	}
	c->rated_ns = now_ns;
	c->rate = bits / 8 / COPIES_BESIDE_SHARE ? bits / 8 / COPIES_BESIDE_SHARE : COPIES_RATE;
	return c->rate;
}

/* A copy begins. A loop that came late makes up for COPIES_LATE_NS at most. */
static void pace_charge(struct copies *c, uint32_t bytes, uint64_t now_ns)
{
	bool late = !c->beside || c->next_ns + COPIES_LATE_NS < now_ns;

	c->next_ns =
		(late ? now_ns : c->next_ns) + (uint64_t)bytes * 1000000000 / pace_rate(c, now_ns);
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void copies_on_timer(void *context)
{
	(void)context; /* copies_turn() follows in this turn of the loop */
}

static void copy_begin(struct copies *c, struct copy *copy, uint64_t now_ns)
{
	unsigned number = 0;

	copy_leave(c, copy);
	pace_charge(c, copy->wish.length, now_ns);
	while (c->flight[number])
		number++;
	c->flight[number] = copy;
	c->flying++;
	c->flying_bytes += copy->wish.length;
	index_coming(c->control->index, &copy->wish.key, (int64_t)index_bytes(copy->wish.length));
	if (!read_post(c, number))
		flight_end(c, number, OP_PEER_DOWN);
}

/* Ends the first copy that waits, if there is no use in its READ. */
static bool copy_refuse(struct copies *c, struct copy *copy, uint64_t now_ns)
{
	bool here = index_find(c->control->index, &copy->wish.key);
	bool late = c->class && now_ns - c->stuck_ns > COPIES_WAIT_NS;

	if (!here && !late && !copy_is_void(c, copy))
		return false;
	copy_leave(c, copy);
	if (here)
		copy_free(c, copy, true); /* a client has stored it meanwhile */
	else
		copy_end(c, copy, late ? OP_NO_SPACE : OP_MISS);
	return true;
}

unsigned copies_turn(struct control *control)
{
	struct copies *c = control->copies;
	unsigned work = 0;
	uint64_t now_ns;
	struct copy *copy;
	int rc = 0;

	work = storage_turn(control);
	if (!c || !c->joined || !(c->waits + c->flying))
		return work;
	work += copies_reap(c);
	now_ns = net_now();
	while (!control->stopping && (copy = TAILQ_FIRST(&c->waiting)) && rc == 0) {
		if (copy_refuse(c, copy, now_ns))
			continue;
		if (!pace_allows(c, copy->wish.length, now_ns)) {
			class_leave(c); /* clients do not wait behind it meanwhile */
			break;
		}
		rc = slot_take(c, copy, now_ns);
		if (rc == 0) {
			copy_begin(c, copy, now_ns);
			work++;
		} else if (rc != -ENOSPC) {
			copy_leave(c, copy);
			copy_end(c, copy, OP_NO_SPACE);
			rc = 0;
		}
	}
	if (c->flying) {
		shm_store(&c->sleeps, 1);
		/* pairs with the poll core's, before it looks at the flag */
		shm_fence_sleep();
		work += copies_reap(c);
	}
	if (c->waits && !control->stopping)
		(void)net_timer_set(c->timer, COPIES_SOON_US);
	return work;
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool wish_is_possible(const struct copy_wish *wish)
{
	return !page_key_none(&wish->key) && wish->length && wish->length <= PAGE_BYTES_MAX &&
	       !place_on_disk(wish->from.place) && place_rail(wish->from.place) < RAILS_MAX;
}

/* Will no more be taken at present? */
static bool copies_full(const struct copies *c, const struct copy_wish *wish)
{
	return wish->length > c->control->status->page_bytes_max ||
	       c->waits == COPIES_WAITING_MAX ||
	       (c->waits && !wish->offer &&
		       c->waiting_bytes + wish->length > c->pools_bytes / COPIES_WAITING_SHARE);
}

/* The page is being copied already; an Offer learns of the end. */
static enum op_status copy_join(struct copy *copy, const struct copy_wish *wish)
{
	struct copy_also *also = wish->offer ? malloc(sizeof(*also)) : NULL;

	if (!wish->offer)
		return OP_HIT;
	if (!also)
		return OP_NO_SPACE;
	*also = (struct copy_also){.offer = wish->offer, .page = wish->page};
	SLIST_INSERT_HEAD(&copy->also, also, next);
	offer_copy_began(wish->offer);
	return OP_HIT;
}

enum op_status copies_ask(struct control *control, const struct copy_wish *wish)
{
	struct copies *c = control->copies;
	const struct index_entry *e = index_find(control->index, &wish->key);
	struct copy *copy;

	if (!c || control->exporting || control->stopping)
		return OP_PEER_DOWN;
	if (e) {
		(void)pool_touch(control->rail[place_rail(e->place)].pool, e->place);
		return OP_HIT;
	}
	if (!wish_is_possible(wish))
		return OP_INVALID;
	copy = copy_find(c, &wish->key);
	if (copy)
		return copy_join(copy, wish);
	if (wish->from.ref == control->ref || !member_by_ref(control, wish->from.ref))
		return OP_PEER_DOWN;
	copy = copies_full(c, wish) ? NULL : calloc(1, sizeof(*copy));
	if (!copy || (!c->joined && copies_join(c) < 0)) {
		free(copy);
		control->counter[COUNTER_copies_refused]++;
		return OP_NO_SPACE;
	}
	copy->wish = *wish;
	copy->since_ns = net_now();
	if (copy_is_void(c, copy)) {
		free(copy);
		return OP_NO_SPACE; /* another time */
	}
	LIST_INSERT_HEAD(&c->copy_of[copy_chain(&wish->key)], copy, same);
	if (wish->offer)
		offer_copy_began(wish->offer);
	TAILQ_INSERT_TAIL(&c->waiting, copy, next);
	c->waits++;
	c->waiting_bytes += wish->length;
	(void)net_timer_set(c->timer, 0);
	return OP_HIT;
}

void copies_forget(struct control *control, const struct page_key *key)
{
	struct copies *c = control->copies;
	unsigned at = forgot_place(key);
	uint64_t now_ns = net_now();
	struct copy *copy;

	if (!c || epoch_past(control, key))
		return;
	copy = copy_find(c, key);
	if (copy)
		copy->forgotten = true;
	if (c->forgot[at].ns + COPIES_FORGOT_NS <= now_ns)
		c->forgot[at].word = key->word[0];
	else if (c->forgot[at].word != key->word[0])
		c->forgot[at].word = 0;
	c->forgot[at].ns = now_ns;
}

void copies_cleared(struct control *control)
{
	if (control->copies)
		control->copies->cleared_ns = net_now();
}

uint64_t copies_taken(const struct control *control)
{
	const struct copies *c = control->copies;

	return c ? c->waiting_bytes + c->flying_bytes : 0;
}

void copies_counts(const struct control *control, struct copies_counts *ret)
{
	const struct copies *c = control->copies;

	*ret = (struct copies_counts){0};
	if (c)
		*ret = (struct copies_counts){.waiting = c->waits,
			.flying = c->flying,
			.bytes = c->waiting_bytes + c->flying_bytes};
	for (unsigned i = 0; i < control->rails; i++)
		ret->hot_bytes += pool_hot_bytes(control->rail[i].pool);
	storage_counts(control, ret);
}

/* ---- open and close -------------------------------------------------------------------------- */

int copies_open(struct control *control)
{
	struct copies *c;

	if (!control->rails)
		return 0;
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->control = control;
	TAILQ_INIT(&c->waiting);
	c->wake[0] = c->wake[1] = -1;
	for (unsigned i = 0; i < control->rails; i++)
		c->pools_bytes += control->status->pool_bytes[i];
	c->timer = net_timer_new(control->base, false, copies_on_timer, c);
	if (!c->timer) {
		free(c);
		return -ENOMEM;
	}
	control->copies = c;
	if (drain_open(control) == 0 && storage_open(control) == 0 && hot_open(control) == 0)
		return 0;
	copies_close(control);
	return -ENOMEM;
}

void copies_stop(struct control *control)
{
	struct copies *c = control->copies;

	for (unsigned i = 0; c && i < control->rails; i++) {
		struct rail_command stop = {.kind = RAIL_CHANNEL_STOP};

		if (!c->rail[i] || !c->rail[i]->has)
			continue;
		stop.object = &c->rail[i]->channel;
		(void)outbox_send(control, i, &stop);
	}
}

bool copies_rest(const struct control *control)
{
	return !control->copies || !control->copies->left;
}

/*
 * The NICs write nothing for the copier any more once all rails have returned its channel: the
 * slots of copies in flight are free.
 */
void copies_returned(struct control *control)
{
	struct copies *c = control->copies;

	if (--c->left)
		return;
	for (unsigned i = 0; i < COPIES_FLIGHTS_MAX; i++)
		if (c->flight[i])
			flight_end(c, i, OP_CANCELLED);
}

void copies_close(struct control *control)
{
	struct copies *c = control->copies;
	struct copy *copy;

	if (!c)
		return;
	while ((copy = TAILQ_FIRST(&c->waiting))) {
		copy_leave(c, copy);
		copy_end(c, copy, OP_CANCELLED);
	}
	/* without an answer: the slots stay reserved, also for the next engine */
	for (unsigned i = 0; i < COPIES_FLIGHTS_MAX; i++)
		if (c->flight[i])
			copy_free(c, c->flight[i], false);
	drain_close(control);
	storage_close(control);
	hot_close(control);
	for (unsigned i = 0; i < control->rails; i++) {
		if (c->rail[i])
			free(c->rail[i]->memory);
		free(c->rail[i]);
	}
	if (c->woken)
		event_free(c->woken);
	for (unsigned i = 0; i < 2; i++)
		if (c->wake[i] >= 0)
			close(c->wake[i]);
	net_timer_free(c->timer);
	free(c);
	control->copies = NULL;
}
