/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thousands of random ops, overwrites, completions in any order, errors, deadlines and
 * reconnections, compared with a model. Invariants: every op is answered exactly once; a hit has
 * the bytes of its key; the NIC writes to no destination whose op is answered; at the end every
 * resource is free. SEED=n repeats a run, ROUNDS=n makes it longer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/unit/rail/world.h"

#define SLOTS 64u /* number of destinations in `home`; one op at a time uses each */
#define SLOT_BYTES (WORLD_HOME_BYTES / SLOTS)
#define PAGES 32u
#define PAGE_STRIDE 32u /* units from page to page; pages have up to 128 KiB */
/* number of pages of up to 8 KiB that are adjacent, so that one READ reads their heads */
#define CLOSE_PAGES 16u
#define PEERS 3u
#define CLIENTS 3u

struct page {
	uint64_t key;        /* key of the page; 0: the page is being overwritten */
	uint64_t retired_ns; /* when its head was retired last */
	uint32_t length;
};

/* The op that uses a destination in `home`. */
struct flight {
	bool live; /* true: the op is submitted and not answered */
	uint64_t cookie;
	struct op op;
	unsigned client;
	unsigned segments;
	struct op_segment segment[40];
};

static uint64_t random_state;
/* L: pages are validated by lease, and bytes change L after their head was retired; 0: by tail */
static uint64_t limbo_ns;
static struct page page[PAGES];
static struct flight flight[SLOTS];
static struct client *client[CLIENTS];
/* the newest connection to each peer; NULL: the peer has none */
static struct rail_conn *handle[PEERS];
/* connections that were dropped and that the rail has not returned yet */
static struct rail_conn *draining[1024];
static unsigned drainings;
static uint64_t cookie_next, key_next, status_seen[OP_STATUS_COUNT];
static uint32_t ref[PEERS]; /* ref of each peer's current incarnation */

/* Returns a random number below n. */
static uint32_t chance(uint32_t n)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(map_mix(random_state) % n);
}

static uint32_t unit_of(unsigned i)
{
	return i < CLOSE_PAGES ? 2 * i : i * PAGE_STRIDE;
}

/* Changes some bytes of a page. */
static void page_spoil(struct world *w, unsigned i)
{
	for (uint32_t at = chance(page[i].length); at < page[i].length; at += 97)
		w->pool[unit_of(i) * PAGE_UNIT + at] ^= 0x55;
}

/*
 * Retires a random page and changes some bytes, or publishes it anew. The head is retired before
 * the bytes change; a reader may sample any moment in between.
 */
static void overwrite(struct world *w)
{
	unsigned i = chance(PAGES);
	uint32_t unit = unit_of(i);

	if (page[i].key) {
		page_head_retire(&w->heads[unit]);
		page[i].key = 0;
		page[i].retired_ns = w->now_ns;
		if (!limbo_ns)
			page_spoil(w, i);
		return;
	}
	if (w->now_ns - page[i].retired_ns < limbo_ns)
		return;
	page[i].key = ++key_next;
	page[i].length = 1 + chance(i < CLOSE_PAGES || chance(2) ? 5000 : PAGE_STRIDE * PAGE_UNIT);
	page_put(w, unit, page[i].length, page[i].key);
}

static unsigned scatter(struct flight *f, unsigned slot, uint32_t length)
{
	uint32_t done = 0;
	unsigned n = 0;

	while (done < length) {
		uint32_t bytes = n == 39 ? length - done : 1 + chance(length - done);

		f->segment[n++] = home_at((uint64_t)slot * SLOT_BYTES + done, bytes);
		done += bytes;
	}
	return n;
}

static void submit(struct world *w)
{
	unsigned slot = chance(SLOTS), i = chance(PAGES), p = chance(PEERS);
	struct flight *f = &flight[slot];

	if (f->live || !page[i].key)
		return;
	f->op = page_op(w, ++cookie_next, unit_of(i), page[i].length, page[i].key);
	f->op.peer = (uint16_t)p;
	f->op.peer_ref = ref[p];
	f->op.deadline_ns = w->now_ns + (chance(10) ? 1000000000ull : chance(1000000));
	f->segments = scatter(f, slot, page[i].length);
	f->op.segments = (uint16_t)f->segments;
	f->client = chance(CLIENTS);
	if (ring_room(&client[f->client]->ops, op_page_lines(f->segments)) <
		(int32_t)op_page_lines(f->segments))
		return;
	f->live = true;
	f->cookie = cookie_next;
	client_submit(client[f->client], &f->op, f->segment);
}

static void check_hit(struct world *w, const struct flight *f, unsigned slot)
{
	const uint8_t *at = w->home + (size_t)slot * SLOT_BYTES;

	for (uint32_t i = 0; i < f->op.length; i++)
		if (at[i] != (uint8_t)map_mix(f->op.key.word[0] * 1000003 + i))
			fail_msg("a hit with wrong bytes at %u of %u", i, f->op.length);
}

static void answers(struct world *w)
{
	struct op_done done;

	for (unsigned c = 0; c < CLIENTS; c++)
		while (client_done(client[c], &done)) {
			unsigned slot = 0;

			while (slot < SLOTS && !(flight[slot].live && flight[slot].client == c &&
						       flight[slot].cookie == done.cookie))
				slot++;
			if (slot == SLOTS)
				fail_msg("cookie %lu was answered twice",
					(unsigned long)done.cookie);
			flight[slot].live = false;
			status_seen[done.status]++;
			if (done.status == OP_HIT)
				check_hit(w, &flight[slot], slot);
			assert_true(done.status != OP_INVALID);
		}
}

static void complete(struct world *w, unsigned n)
{
	nic_pull(w);
	while (n-- && w->wqes) {
		unsigned i = chance(w->wqes);
		const struct dv_sge *s = &w->wqe[i].sge[0];

		/* a QP completes its WQEs in order, so the oldest WQE of this QP is completed */
		for (unsigned j = 0; j < i; j++)
			if (w->wqe[j].qp == w->wqe[i].qp)
				i = j;
		s = &w->wqe[i].sge[0];
		if (s->lkey == WORLD_LKEY)
			assert_true(flight[(s->address - (uintptr_t)w->home) / SLOT_BYTES].live);
		nic_complete(w, i, chance(500) ? 0 : DV_SYNDROME_REMOTE_ACCESS);
	}
}

static void drop_peer(struct world *w, unsigned p)
{
	if (!handle[p])
		return;
	nic_pull(w);
	for (unsigned q = 0; q < handle[p]->qps; q++)
		container_of(handle[p]->sq[q], struct fake_qp, stub.sq)->error = true;
	rail_conn_drop(w, handle[p]);
	draining[drainings++] = handle[p];
	handle[p] = NULL;
}

static void answer_wanted(struct world *w, const struct rail_event *event)
{
	unsigned p = event->peer;

	/* The event names an incarnation of the peer that no longer exists. */
	if (event->ref != ref[p] || chance(4) == 0) {
		world_command(w,
			(struct rail_command){
				.kind = RAIL_CONN_REFUSE, .peer = event->peer, .ref = event->ref});
		return;
	}
	drop_peer(w, p);
	handle[p] = rail_conn_new(w, (uint16_t)p, ref[p], 1 + chance(3));
	handle[p]->limbo_ns = limbo_ns;
	world_command(w, (struct rail_command){.kind = RAIL_CONN_ADD, .object = handle[p]});
}

static void returned(struct world *w, struct rail_conn *gone)
{
	unsigned i = 0;

	while (i < drainings && draining[i] != gone)
		i++;
	assert_true(i < drainings);
	for (unsigned q = 0; q < gone->qps; q++)
		assert_int_equal(gone->sq[q]->ci, gone->sq[q]->pi);
	draining[i] = draining[--drainings];
	rail_conn_free(w, gone);
}

static void control_plane(struct world *w)
{
	struct rail_event event;

	while (rail_event_take(w->rail, &event)) {
		if (event.kind == RAIL_CONN_WANTED) {
			answer_wanted(w, &event);
		} else if (event.kind == RAIL_CONN_BROKEN) {
			if (handle[event.peer] == event.object)
				drop_peer(w, event.peer);
		} else if (event.kind == RAIL_CONN_RETURNED) {
			returned(w, event.object);
		} else {
			fail_msg("the rail sent an event of the unexpected kind %u", event.kind);
		}
	}
	if (chance(200) == 0)
		drop_peer(w, chance(PEERS));
	if (chance(500) == 0)
		ref[chance(PEERS)]++;
}

static void drain(struct world *w)
{
	for (unsigned p = 0; p < PEERS; p++)
		drop_peer(w, p);
	for (unsigned i = 0; i < 10000; i++) {
		rail_step(w->rail, 0);
		nic_pull(w);
		while (w->wqes)
			nic_complete(w, 0, 0);
		answers(w);
		control_plane(w);
		for (unsigned p = 0; p < PEERS; p++)
			drop_peer(w, p);
	}
	for (unsigned slot = 0; slot < SLOTS; slot++)
		assert_false(flight[slot].live);
	assert_int_equal(drainings, 0);
	assert_int_equal(w->rail->taken_bytes, 0);
	assert_int_equal(w->rail->posted_bytes, 0);
	assert_int_equal(w->rail->parked, 0);
	assert_int_equal(w->rail->wqes, 0);
	assert_int_equal(w->rail->runs_free, RAIL_RUNS);
	assert_int_equal(w->rail->conns_free, RAIL_CONNECTIONS_MAX);
	assert_int_equal(w->rail->region[WORLD_REGION].users, 0);
	assert_int_equal(rail_in_flight(w->rail), 0);
}

static void random_ops(struct world *w, uint64_t limbo)
{
	const char *seed = getenv("SEED"), *rounds = getenv("ROUNDS");
	unsigned long n = rounds ? strtoul(rounds, NULL, 0) : 12000;

	random_state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	print_message("SEED=%llu\n", (unsigned long long)random_state);
	limbo_ns = limbo;
	w->rail->options.lease = limbo != 0;
	memset(page, 0, sizeof(page));
	memset(status_seen, 0, sizeof(status_seen));
	cookie_next = 0;
	for (unsigned p = 0; p < PEERS; p++)
		ref[p] = 33;
	for (unsigned c = 0; c < CLIENTS; c++)
		client[c] = client_new(w, c * 70, WORLD_SESSION);
	for (unsigned i = 0; i < 2 * PAGES; i++)
		overwrite(w);
	for (unsigned long i = 0; i < n; i++) {
		if (chance(4) == 0)
			overwrite(w);
		for (unsigned j = chance(6); j; j--)
			submit(w);
		rail_step(w->rail, 0);
		complete(w, chance(8));
		answers(w);
		control_plane(w);
		clock_test_set(w->now_ns += chance(chance(50) ? 100000 : 10000000));
	}
	drain(w);
	print_message("%llu ops:", (unsigned long long)cookie_next);
	for (unsigned s = 0; s < OP_STATUS_COUNT; s++)
		print_message(" %llu", (unsigned long long)status_seen[s]);
	print_message("\n");
	assert_true(status_seen[OP_HIT] && status_seen[OP_STALE] && status_seen[OP_PEER_DOWN] &&
		    status_seen[OP_TIMEOUT] && status_seen[OP_NIC_ERROR]);
	for (unsigned c = 0; c < CLIENTS; c++)
		client_free(client[c]);
}

static void every_op_is_answered_once_and_every_hit_has_the_right_bytes(void **state)
{
	random_ops(*state, 0);
}

static void the_same_holds_with_leases(void **state)
{
	struct world *w = *state;

	random_ops(w, 5000000);
	assert_true(world_counter(w, COUNTER_leases_expired) > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			every_op_is_answered_once_and_every_hit_has_the_right_bytes, world_setup,
			world_teardown),
		cmocka_unit_test_setup_teardown(
			the_same_holds_with_leases, world_setup, world_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
