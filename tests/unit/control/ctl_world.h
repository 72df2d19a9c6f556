/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of ctl*.c with real pools and a real index. The test plays the clients and the
 * directory, which answers when the test says so. One thread; the test sets the time.
 */
#ifndef TESTS_PUBLISH_WORLD_H
#define TESTS_PUBLISH_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/abi/epoch.h"
#include "engine/abi/message.pb-c.h"
#include "engine/control/clients/ctl_inner.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/pages/pages.h"
#include "engine/control/net/net.h"
#include "engine/control/net/rpc.h"
#include "numa/clock.h"
#ifndef TEST_OF_COPIES
#include "tests/unit/control/copies_stub.h"
#endif
#include "tests/unit/control/epoch_stub.h"
#include "tests/unit/control/warm_stub.h"

#define POOL_BYTES (8u << 20)
#define LIMBO_MS 20
#define RAILS 2
#define PEER_REF 9u

/* ---- stubs ----------------------------------------------------------------------------------- */

enum { HELD_MAX = 8192 };

static struct {
	bool hold; /* true: the stub of directory.c keeps its answers until directory_answer() */
	struct waiter held[HELD_MAX];
	unsigned helds, published, removed, stale, forgotten, touched, reported;
	unsigned on_disk, off_disk, opened; /* entries of pages on disk: published, removed; */
	bool busy;
	struct disk_page page; /* the last one of these */
	uint32_t place, generation, ref;
} directory;

/*
 * Messages that promote_ask.c and tier_promote.c sent to the peer, and the link to it. `other`: a
 * link to another one, of whose messages only the number of pages and the last id are kept.
 */
static struct {
	struct rpc_link link, other;
	size_t other_pages;
	uint64_t other_id;
	struct member member;
	bool known; /* it is a member */
	bool full;  /* the link takes no more */
	unsigned promotes, promoteds;
	/* the last message of each kind */
	Pc__PromotePage asked[64];
	Pc__PromotedPage answered[64];
	size_t pages;
	uint32_t ref; /* of the host at the other end of the link; 0: PEER_REF */
	size_t offered;
	bool hot; /* the last Offer */
} peer;

static unsigned broken_calls;
static uint32_t broken_channel;

static inline void answer_or_hold(const struct waiter *waiter)
{
	if (!waiter)
		return;
	if (!directory.hold) {
		waiter->done(waiter->context, waiter->cookie, OP_HIT);
		return;
	}
	assert_true(directory.helds < HELD_MAX);
	directory.held[directory.helds++] = *waiter;
}

static inline void directory_answer(enum op_status status)
{
	for (unsigned i = 0; i < directory.helds; i++)
		directory.held[i].done(directory.held[i].context, directory.held[i].cookie, status);
	directory.helds = 0;
}

void directory_publish(struct control *control, const struct page_key *key,
	const struct location *at, const struct waiter *waiter)
{
	(void)control, (void)key;
	directory.published++;
	directory.place = at->place;
	directory.generation = at->generation;
	answer_or_hold(waiter);
}

bool directory_on_disk(struct control *control, const struct disk_page *page)
{
	directory.on_disk++;
	directory.page = *page;
	return true;
}

void directory_disk_opened(struct control *control)
{
	directory.opened++;
}

void directory_forgotten(struct control *control, uint32_t ref)
{
	(void)control, (void)ref;
}

bool directory_busy(const struct control *control)
{
	return directory.busy;
}

struct member *member_table_ref(const struct member_table *table, uint32_t ref)
{
	(void)table, (void)ref;
	return NULL;
}

const struct member_table *members_table(const struct control *c)
{
	static const struct member_table none;

	return &none;
}

struct rpc_link *member_link(struct control *c, uint32_t ref)
{
	peer.link.member = &peer.member;
	return ref == PEER_REF || ref == peer.ref ? &peer.link : NULL;
}

struct rpc_link *member_link_now(const struct control *c, uint32_t ref)
{
	(void)c, (void)ref;
	return NULL;
}

uint32_t member_link_ref(const struct rpc_link *link)
{
	return peer.ref ? peer.ref : PEER_REF;
}

bool rpc_send(struct rpc_link *link, const Pc__Message *message)
{
	bool asks = message->body_case == PC__MESSAGE__BODY_PROMOTE;

	if (message->body_case == PC__MESSAGE__BODY_OFFER) {
		peer.offered += message->offer->n_pages;
		peer.hot = message->offer->hot;
		return true;
	}
	if (message->body_case == PC__MESSAGE__BODY_OFFERED)
		return true;
	assert_true(asks || message->body_case == PC__MESSAGE__BODY_PROMOTED);
	if (link == &peer.other) {
		assert_false(asks);
		peer.other_pages += message->promoted->n_pages;
		peer.other_id = message->promoted->pages[0]->id;
		return true;
	}
	assert_ptr_equal(link, &peer.link);
	if (peer.full)
		return false;
	peer.promotes += asks;
	peer.promoteds += !asks;
	peer.pages = asks ? message->promote->n_pages : message->promoted->n_pages;
	for (size_t i = 0; i < peer.pages && i < 64; i++)
		if (asks)
			peer.asked[i] = *message->promote->pages[i];
		else
			peer.answered[i] = *message->promoted->pages[i];
	return true;
}

void directory_remove(
	struct control *control, const struct page_key *key, const struct location *at)
{
	const struct page_head *heads;
	struct page_head head;

	if (place_on_disk(at->place)) {
		directory.off_disk++;
		directory.page = (struct disk_page){*key, at->place, at->generation, 0};
		return;
	}
	/*
	 * The key is removed from the directory before its generation changes, so before the slot
	 * can be overwritten.
	 */
	heads = pool_heads(control->rail[place_rail(at->place)].pool)->base;
	head = page_head_load(heads + place_unit(at->place));
	assert_int_equal(head.generation, at->generation);
	directory.removed++;
}

void directory_evicted(struct control *control, const struct page_key *key,
	const struct location *at, enum evicted from)
{
	assert_true(from == EVICTED_NEW || from == EVICTED_USED);
	directory_remove(control, key, at);
}

const struct member_record *member_by_ref(const struct control *c, uint32_t ref)
{
	return peer.known && ref == PEER_REF ? &peer.member.record : NULL;
}

void directory_report(struct control *control, uint32_t ref, const struct page_report *report)
{
	(void)control, (void)ref, (void)report;
	directory.reported++;
}

void directory_stale(struct control *control, const struct page_key *key, const struct location *at)
{
	(void)control, (void)key, (void)at;
	directory.stale++;
}

void directory_forget(
	struct control *control, const struct page_key *key, const struct waiter *waiter)
{
	const struct index_entry *entry = index_find(control->index, key);

	directory.forgotten++;
	if (entry)
		directory_remove(control, key,
			&(struct location){.place = entry->place, .generation = entry->generation});
	page_forget(control, key);
	answer_or_hold(waiter);
}

void directory_touch(struct control *control, uint32_t ref, uint32_t place)
{
	directory.touched++;
	directory.ref = ref;
	directory.place = place;
}

void client_deny(struct control *control, uint32_t channel, const char *text)
{
	assert_non_null(strstr(text, "half of a pool"));
	control->counter[COUNTER_clients_denied]++;
}

void client_channel_broken(struct control *control, uint32_t channel)
{
	broken_calls++;
	broken_channel = channel;
	ctl_channel_close(control, control->ctl->channel[channel]);
}

/* The table of upward.c, which would link all rooms. */
static const struct pages_events pages_events = {
#define EVENT(member, function) .member = function,
#include "engine/control/upward_pages.def"
#undef EVENT
};

/* ---- the control plane under test and its clients -------------------------------------------- */

struct client {
	struct ctl_channel channel;
	struct ring_producer ctl;
	struct ring_consumer done;
	unsigned char *memory;
	struct channel_header header;
	struct ctl_done
		run; /* slots of the last answer to a CTL_CREDIT that got() has not returned */
	int woken;
};

static struct settings settings;
static struct control control;
static uint64_t now;

static inline void client_open(struct client *c, uint32_t id)
{
	size_t ctl = ring_bytes(CTL_RING_SLOTS, sizeof(struct ctl_op));
	size_t done = ring_bytes(CTL_DONE_SLOTS, sizeof(struct ctl_done));
	int ends[2];

	memset(c, 0, sizeof(*c));
	c->memory = aligned_alloc(64, ctl + done);
	assert_non_null(c->memory);
	memset(c->memory, 0, ctl + done);
	ring_producer_init(&c->ctl, c->memory, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_consumer_init(&c->done, c->memory + ctl, CTL_DONE_SLOTS, sizeof(struct ctl_done));
	c->channel.id = id;
	c->channel.header = &c->header;
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	c->channel.wake = ends[0];
	c->woken = ends[1];
	ring_consumer_init(&c->channel.ops, c->memory, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_producer_init(
		&c->channel.done, c->memory + ctl, CTL_DONE_SLOTS, sizeof(struct ctl_done));
	ctl_channel_open(&control, &c->channel);
}

static inline void turns(void)
{
	while (ctl_turn(&control))
		;
	ctl_flush(&control);
}

static inline void client_close(struct client *c)
{
	ctl_channel_close(&control, &c->channel);
	turns(); /* the event loop turns after each event */
	close(c->channel.wake);
	close(c->woken);
	free(c->memory);
}

static inline void put(struct client *c, struct ctl_op op)
{
	assert_true(ring_room(&c->ctl, 1) >= 1);
	if (!op.deadline_ns)
		op.deadline_ns = now + 1000000000ull;
	memcpy(ring_slot_new(&c->ctl, 0), &op, sizeof(op));
	ring_publish(&c->ctl, 1);
}

/* The next answer as it is in the ring. */
static inline bool got_run(struct client *c, struct ctl_done *ret)
{
	if (ring_ready(&c->done) <= 0)
		return false;
	memcpy(ret, ring_slot_old(&c->done, 0), sizeof(*ret));
	ring_release(&c->done, 1);
	return true;
}

/* The next answer; one for each slot that is granted. */
static inline bool got(struct client *c, struct ctl_done *ret)
{
	if (!c->run.count) {
		if (!got_run(c, ret))
			return false;
		if (ret->kind != CTL_CREDIT || ret->status != OP_HIT)
			return true;
		assert_true(ret->count > 0);
		c->run = *ret;
	}
	*ret = c->run;
	ret->count = 1;
	c->run.count--;
	c->run.place += c->run.stride;
	return true;
}

static inline void pass_time_to(uint64_t now_ns, uint64_t raw_ns)
{
	now = now_ns;
	clock_test_set(now);
	clock_test_set_raw(raw_ns);
	net_defer(control.ctl->timer);
	event_base_loop(control.base, EVLOOP_NONBLOCK);
	turns();
}

static inline void pass_time(uint64_t ns)
{
	pass_time_to(now + ns, now + ns);
}

static inline struct page_key key_of(uint64_t n)
{
	return (struct page_key){{map_mix(n + 1), n + 1}};
}

/* The first number from `n` on whose key is of the group of key 0. */
static inline uint64_t of_group(uint64_t n)
{
	const struct page_key first = key_of(0);
	struct page_key key = key_of(n);

	while (epoch_group(&key) != epoch_group(&first))
		key = key_of(++n);
	return n;
}

static inline struct ctl_done get_one(struct client *c)
{
	struct ctl_done done = {.kind = 0};

	turns();
	assert_true(got(c, &done));
	return done;
}

static inline struct ctl_done take(struct client *c, uint8_t rail, uint32_t length)
{
	put(c, (struct ctl_op){.kind = CTL_CREDIT, .rail = rail, .count = 1, .length = length});
	return get_one(c);
}

static inline struct ctl_done publish_at(
	struct client *c, uint64_t n, uint32_t place, uint32_t generation, uint32_t length)
{
	put(c, (struct ctl_op){.kind = CTL_PUBLISH,
		       .count = 1,
		       .cookie = n,
		       .key = key_of(n),
		       .place = place,
		       .generation = generation,
		       .length = length});
	return get_one(c);
}

/* Requests a credit and publishes a page in its slot. Returns the place. */
static inline uint32_t store(struct client *c, uint64_t n, uint32_t length)
{
	struct ctl_done credit = take(c, 0, length);

	assert_int_equal(credit.status, OP_HIT);
	assert_int_equal(publish_at(c, n, credit.place, credit.generation, length).status, OP_HIT);
	return credit.place;
}

static inline int setup(void **state)
{
	/* a shard of one bucket, which publishes prefetch and nothing reads */
	static struct bucket bucket;
	static struct shard_side side;
	static struct shard shard;

	memset(&control, 0, sizeof(control));
	shard = (struct shard){.bucket = &bucket, .side = &side};
	control.shard = &shard;
	memset(&directory, 0, sizeof(directory));
	memset(&peer, 0, sizeof(peer));
	peer.member.record.rails = RAILS;
	memset(&settings, 0, sizeof(settings));
	broken_calls = 0;
	now = 1000000000000ull;
	clock_test_set(now);
	settings.engine_limbo_ms = LIMBO_MS;
	control.settings = &settings;
	control.rails = RAILS;
	control.ref = 7;
	control.base = event_base_new();
	for (unsigned i = 0; i < RAILS; i++) {
		const struct pool_options options = {.rail = i,
			.bytes = POOL_BYTES,
			.numa_node = -1,
			.limbo_ns = LIMBO_MS * 1000000ull};

		assert_int_equal(pool_open(&options, &control.rail[i].pool), 0);
	}
	assert_int_equal(index_open(64, &control.index), 0);
	control.pages_events = &pages_events;
	assert_int_equal(ctl_open(&control), 0);
	assert_int_equal(promote_open(&control), 0);
	return 0;
}

static inline int teardown(void **state)
{
	promote_close(&control);
	ctl_close(&control);
	ctl_free(control.ctl);
	index_close(control.index);
	for (unsigned i = 0; i < RAILS; i++)
		pool_close(control.rail[i].pool);
	event_base_free(control.base);
	clock_test_set(0);
	return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
