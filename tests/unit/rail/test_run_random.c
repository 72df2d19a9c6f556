/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thousands of random runs, overwrites, samples and completions in any order, errors, deadlines and
 * reconnections, compared with a model, by tail and by lease; and runs with random bits.
 * Invariants: every run is answered exactly once; a hit has the bytes of its key; a stale page has
 * changed; the NIC writes to no destination whose run is answered; at the end every resource is
 * free. SEED=n repeats a test, ROUNDS=n makes it longer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/unit/rail/runs.h"

#define SLOTS 16u /* number of destinations in `home`; one run at a time uses each */
#define SLOT_BYTES (WORLD_HOME_BYTES / SLOTS)
#define PEERS 3u
#define CLIENTS 3u
#define CLASSES 3u
#define LIMBO (2 * MS)

/* Pages of one length, side by side in the pool. */
static const struct {
	uint32_t unit, pages, bytes, run_max;
} classes[CLASSES] = {{0, 64, 4096, 32}, {256, 32, 16384, 16}, {512, 8, 65536, 4}};

struct page {
	uint64_t key;      /* 0: the page is being overwritten */
	uint64_t changes;  /* how often its head has changed */
	uint64_t rests_ns; /* not 0: retired, but nothing may overwrite it before this time */
};

/* The run that uses a destination in `home`. */
struct flight {
	bool live;
	unsigned client, class;
	struct draft d;
	unsigned page[RUN_PAGES_MAX];
	uint64_t key[RUN_PAGES_MAX], changes[RUN_PAGES_MAX];
};

static uint64_t random_state, key_next, hits, stales, status_seen[OP_STATUS_COUNT], partial;
static struct page page[CLASSES][64];
static struct flight flight[SLOTS];
static struct client *client[CLIENTS];
static struct rail_conn *handle[PEERS], *draining[1024];
static unsigned drainings;
static uint32_t cookie_next, ref[PEERS];
/* L that the peers announce, and the time for which retired pages rest; 0: tail */
static uint64_t announced_ns, rest_ns;
static bool expect_wrong; /* hits with wrong bytes are counted, and do not fail the test */
static uint64_t wrong;

static uint32_t chance(uint32_t n)
{
	random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(map_mix(random_state) % n);
}

/* Takes the seed of round `again` of a test: SEED or the time, plus `again`. */
static void seed_take(unsigned again)
{
	const char *seed = getenv("SEED");

	random_state = (seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL)) + again;
	print_message("SEED=%llu\n", (unsigned long long)random_state);
}

static unsigned long rounds(unsigned long n)
{
	const char *text = getenv("ROUNDS");

	return text ? strtoul(text, NULL, 0) : n;
}

static uint32_t unit_of(unsigned class, unsigned i)
{
	return classes[class].unit + i * (classes[class].bytes / PAGE_UNIT);
}

/* Retires a random page and changes its bytes, or publishes it anew. */
static void overwrite(struct world *w)
{
	unsigned class = chance(CLASSES), i = chance(classes[class].pages);
	uint32_t unit = unit_of(class, i), bytes = classes[class].bytes;
	struct page *p = &page[class][i];

	if (p->rests_ns)
		return;
	p->changes++;
	if (p->key) {
		page_head_retire(&w->heads[unit]);
		p->key = 0;
		p->rests_ns = rest_ns ? w->now_ns + rest_ns : 0;
		if (!rest_ns)
			memset(w->pool + (size_t)unit * PAGE_UNIT, 0x55, bytes);
		return;
	}
	p->key = ++key_next;
	page_put(w, unit, bytes, p->key);
}

/* Overwrites the pages that have rested. */
static void reuse(struct world *w)
{
	for (unsigned class = 0; class < CLASSES; class ++)
		for (unsigned i = 0; i < classes[class].pages; i++) {
			struct page *p = &page[class][i];

			if (!p->rests_ns || p->rests_ns > w->now_ns)
				continue;
			p->rests_ns = 0;
			memset(w->pool + (size_t)unit_of(class, i) * PAGE_UNIT, 0x55,
				classes[class].bytes);
		}
}

/* Fills the run of a flight with pages, in sequence or in any order, some of them wrong. */
static void fill(struct world *w, struct flight *f, unsigned slot, unsigned n)
{
	uint32_t bytes = classes[f->class].bytes, parts = 1u << (chance(2) ? 0 : chance(5));
	uint32_t spread = parts > 1 || chance(3) == 0 ? 2 : 1;
	unsigned at = chance(classes[f->class].pages), in_order = chance(2);

	f->d = draft_of(w, ++cookie_next, 0, 0, n, bytes);
	f->d.run.segments = (uint16_t)parts;
	f->d.run.stride_or_to = parts > 1 ? 2 * (bytes / parts) : 0;
	for (unsigned i = 0; i < n; i++) {
		unsigned p = in_order ? at++ : chance(classes[f->class].pages);

		p %= classes[f->class].pages;
		f->page[i] = p;
		f->key[i] = page[f->class][p].key;
		f->changes[i] = page[f->class][p].changes;
		f->d.entry[i] = entry_at(w, unit_of(f->class, p),
			(uint64_t)slot * SLOT_BYTES + (uint64_t)i * bytes * spread);
		f->d.entry[i].key = (struct page_key){{f->key[i], ~f->key[i]}};
	}
}

static void submit(struct world *w)
{
	unsigned slot = chance(SLOTS), p = chance(PEERS);
	struct flight *f = &flight[slot];
	struct client *c;

	if (f->live)
		return;
	f->class = chance(CLASSES);
	f->client = chance(CLIENTS);
	c = client[f->client];
	if (chance(8) == 0) {
		f->d = lookup_of(w, ++cookie_next, chance(500), 1 + chance(10), 1 + chance(32));
		f->d.run.stride_or_to = slot * SLOT_BYTES;
	} else {
		fill(w, f, slot, 1 + chance(classes[f->class].run_max));
	}
	f->d.run.peer = (uint16_t)p;
	f->d.run.peer_ref = ref[p];
	f->d.run.deadline_ns = w->now_ns + (chance(10) ? 1000 * MS : chance(20 * MS));
	f->live = true;
	draft_submit(c, &f->d);
}

static void check_page(struct world *w, const struct flight *f, unsigned i)
{
	uint32_t bytes = f->d.run.page_bytes, part = bytes / f->d.run.segments;

	for (uint32_t at = 0; at < bytes; at += 61) {
		const uint8_t *byte =
			w->home + f->d.entry[i].to + at / part * f->d.run.stride_or_to + at % part;

		if (*byte == (uint8_t)map_mix(f->key[i] * 1000003 + at))
			continue;
		wrong++;
		if (!expect_wrong)
			fail_msg("page %u: a hit with wrong bytes at %u of %u", i, at, bytes);
	}
}

static void check_answer(struct world *w, struct flight *f, const struct run_done *done)
{
	uint32_t n = f->d.run.pages, all = run_mask(0, n);

	assert_int_equal(done->kind, f->d.run.kind);
	assert_int_equal(done->hit & done->stale, 0);
	assert_int_equal((done->hit | done->stale) & ~all, 0);
	assert_true(done->status < OP_STATUS_COUNT && done->status != OP_STALE);
	assert_int_equal(done->status == OP_HIT, (done->hit | done->stale) == all);
	status_seen[done->status]++;
	partial += done->status != OP_HIT && done->hit;
	for (unsigned i = 0; i < n; i++) {
		if (f->d.run.kind == OP_LOOKUP) {
			if (done->hit >> i & 1)
				assert_memory_equal(w->home + f->d.run.stride_or_to + 64 * i,
					&w->shard[f->d.bucket[i]], 64);
			continue;
		}
		if (done->hit >> i & 1)
			check_page(w, f, i);
		if (done->stale >> i & 1)
			assert_true(
				!f->key[i] || f->changes[i] != page[f->class][f->page[i]].changes);
	}
	hits += (unsigned)__builtin_popcount(done->hit);
	stales += (unsigned)__builtin_popcount(done->stale);
	f->live = false;
}

static void answers(struct world *w)
{
	struct run_done done;

	for (unsigned c = 0; c < CLIENTS; c++)
		while (client_run_done(client[c], &done)) {
			unsigned slot = 0;

			while (slot < SLOTS && !(flight[slot].live && flight[slot].client == c &&
						       flight[slot].d.run.cookie == done.cookie))
				slot++;
			if (slot == SLOTS)
				fail_msg("cookie %u was answered twice", done.cookie);
			check_answer(w, &flight[slot], &done);
		}
}

static void complete(struct world *w, unsigned n)
{
	nic_pull(w);
	for (unsigned s = chance(4); s && w->wqes; s--) {
		unsigned i = chance(w->wqes);

		if (!w->wqe[i].sampled)
			nic_sample(w, i);
	}
	while (n-- && w->wqes) {
		unsigned i = chance(w->wqes);
		const struct dv_sge *s;

		for (unsigned j = 0; j < i; j++) /* a QP completes its WQEs in order */
			if (w->wqe[j].qp == w->wqe[i].qp)
				i = j;
		s = &w->wqe[i].sge[0];
		if (s->lkey == WORLD_LKEY)
			assert_true(flight[(s->address - (uintptr_t)w->home) / SLOT_BYTES].live);
		nic_complete(w, i, chance(400) ? 0 : DV_SYNDROME_REMOTE_ACCESS);
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

static void returned(struct world *w, struct rail_conn *gone)
{
	unsigned i = 0;

	while (i < drainings && draining[i] != gone)
		i++;
	assert_true(i < drainings);
	draining[i] = draining[--drainings];
	rail_conn_free(w, gone);
}

static void control_plane(struct world *w)
{
	struct rail_event event;

	while (rail_event_take(w->rail, &event)) {
		unsigned p = event.peer;

		if (event.kind == RAIL_CONN_WANTED && (event.ref != ref[p] || chance(4) == 0)) {
			world_command(w, (struct rail_command){.kind = RAIL_CONN_REFUSE,
						 .peer = event.peer,
						 .ref = event.ref});
		} else if (event.kind == RAIL_CONN_WANTED) {
			drop_peer(w, p);
			handle[p] = rail_conn_new(w, (uint16_t)p, ref[p], 1 + chance(4));
			handle[p]->limbo_ns = announced_ns;
			world_command(w,
				(struct rail_command){.kind = RAIL_CONN_ADD, .object = handle[p]});
		} else if (event.kind == RAIL_CONN_BROKEN) {
			if (handle[p] == event.object)
				drop_peer(w, p);
		} else {
			assert_int_equal(event.kind, RAIL_CONN_RETURNED);
			returned(w, event.object);
		}
	}
	if (chance(300) == 0)
		drop_peer(w, chance(PEERS));
	if (chance(500) == 0)
		ref[chance(PEERS)]++;
}

static void drain(struct world *w)
{
	for (unsigned i = 0; i < 3000; i++) {
		for (unsigned p = 0; p < PEERS; p++)
			drop_peer(w, p);
		rail_step(w->rail, 0);
		nic_pull(w);
		while (w->wqes)
			nic_complete(w, 0, 0);
		answers(w);
		control_plane(w);
	}
	for (unsigned slot = 0; slot < SLOTS; slot++)
		assert_false(flight[slot].live);
	assert_int_equal(drainings, 0);
	assert_runs_free(w);
	assert_int_equal(w->rail->conns_free, RAIL_CONNECTIONS_MAX);
}

/* Runs `n` rounds with peers that announce L, and whose pages rest for `rests`. */
static void random_rounds(
	struct world *w, unsigned long n, unsigned again, uint64_t announced, uint64_t rests)
{
	announced_ns = announced;
	rest_ns = rests;
	w->rail->options.lease = announced != 0;
	hits = stales = wrong = partial = 0;
	memset(status_seen, 0, sizeof(status_seen));
	memset(page, 0, sizeof(page));
	memset(flight, 0, sizeof(flight));
	seed_take(again);
	for (unsigned p = 0; p < PEERS; p++)
		ref[p] = 33;
	for (unsigned c = 0; c < CLIENTS; c++)
		client[c] = client_new(w, c * 70, WORLD_SESSION);
	for (unsigned i = 0; i < 200; i++)
		overwrite(w);
	for (unsigned long i = 0; i < n; i++) {
		if (chance(6) == 0)
			overwrite(w);
		reuse(w);
		for (unsigned j = chance(4); j; j--)
			submit(w);
		rail_step(w->rail, 0);
		complete(w, chance(10));
		answers(w);
		control_plane(w);
		clock_test_set(w->now_ns += chance(chance(50) ? 100000 : 10000000));
	}
	drain(w);
	print_message("%u runs, %llu hits, %llu stale, %llu failed in part;", cookie_next,
		(unsigned long long)hits, (unsigned long long)stales, (unsigned long long)partial);
	for (unsigned s = 0; s < OP_STATUS_COUNT; s++)
		print_message(" %llu", (unsigned long long)status_seen[s]);
	print_message("; %llu leases expired, %llu wrong\n",
		(unsigned long long)world_counter(w, COUNTER_leases_expired),
		(unsigned long long)wrong);
	assert_true(hits && stales && partial && status_seen[OP_HIT] && status_seen[OP_PEER_DOWN] &&
		    status_seen[OP_TIMEOUT] && status_seen[OP_NIC_ERROR]);
	for (unsigned c = 0; c < CLIENTS; c++)
		client_free(client[c]);
}

static void every_run_is_answered_once_and_every_hit_has_the_right_bytes(void **state)
{
	random_rounds(*state, rounds(20000), 0, 0, 0);
}

static void the_same_holds_with_leases(void **state)
{
	struct world *w = *state;

	random_rounds(w, rounds(20000), 0, LIMBO, LIMBO);
	assert_true(world_counter(w, COUNTER_leases_expired) > 0);
	assert_true(world_counter(w, COUNTER_leases_expired) < hits / 2);
}

/*
 * The invariant can fail: readers who believe in ten times the limbo time get wrong pages. About
 * one seed in 150 shows none, so the next seed is tried then.
 */
static void leases_longer_than_limbo_give_wrong_pages(void **state)
{
	expect_wrong = true;
	wrong = 0;
	for (unsigned again = 0; again < 50 && !wrong; again++) {
		if (again) {
			world_teardown(state);
			world_setup(state);
		}
		random_rounds(*state, rounds(20000), again, 10 * LIMBO, LIMBO);
	}
	expect_wrong = false;
	assert_true(wrong > 0);
}

/* ---- random bits ---------------------------------------------------------------------------- */

/* Flips bits of the unpublished lines, half of them in the first one. */
static void lines_flip(struct client *c, uint32_t lines)
{
	for (uint32_t flips = 1 + chance(4); flips; flips--) {
		uint8_t *line = ring_slot_new(&c->ops, chance(2) ? 0 : chance(lines));

		line[chance(RUN_LINE_BYTES)] ^= (uint8_t)(1u << chance(8));
	}
}

/* An OP_PAGE of the page at `unit`, whose destination is a list of 2 to 40 segments. */
static void hostile_page(struct world *w, struct client *c, uint32_t unit)
{
	struct op op = page_op(w, 1, unit, 8192, RUN_KEY(unit));
	struct op_segment segment[40];
	uint32_t n = 2 + chance(39), bytes = 8192 / n, lines;

	for (uint32_t i = 0; i < n; i++)
		segment[i] = home_at(i * 300u, i + 1 < n ? bytes : 8192 - i * bytes);
	op.segments = (uint16_t)n;
	lines = op_page_lines(n);
	for (uint32_t i = 0; i < lines; i++)
		memset(ring_slot_new(&c->ops, i), 0, RUN_LINE_BYTES);
	op_write(&c->ops, 0, &op, segment);
	lines_flip(c, lines);
	ring_publish(&c->ops, lines);
}

static void hostile_submit(struct client *c, const struct draft *d)
{
	uint32_t lines = run_lines(d->run.kind, d->run.pages);

	for (uint32_t i = 0; i < lines; i++)
		memset(ring_slot_new(&c->ops, i), 0, RUN_LINE_BYTES);
	run_encode(&d->run, ring_slot_new(&c->ops, 0));
	for (uint32_t i = 0; i < d->run.pages; i++)
		if (d->run.kind == OP_RUN)
			*run_entry_new(&c->ops, 0, i) = d->entry[i];
		else
			*run_bucket_new(&c->ops, 0, i) = d->bucket[i];
	lines_flip(c, lines);
	ring_publish(&c->ops, lines);
}

/* Ends the channel of a client whose lines broke it, or do not end. */
static struct client *client_again(struct world *w, struct client *c)
{
	struct rail_event event;

	world_command(w, (struct rail_command){.kind = RAIL_CHANNEL_STOP, .object = &c->channel});
	clock_test_set(w->now_ns += 2000 * MS);
	world_run(w);
	do {
		assert_true(rail_event_take(w->rail, &event));
	} while (event.kind != RAIL_CHANNEL_RETURNED);
	client_free(c);
	return client_new(w, 5, WORLD_SESSION);
}

/* The fake NIC checks that each READ lies in the peer's exports and in the session's region. */
static void no_bits_in_a_run_make_the_nic_leave_its_regions(void **state)
{
	struct world *w = *state;
	struct client *c = client_new(w, 5, WORLD_SESSION);
	struct rail_conn *only = rail_conn_new(w, 3, 33, 4);
	unsigned long n = rounds(20000), answered = 0, invalid = 0;
	struct run_done done;
	struct rail_event event;

	seed_take(0);
	rail_conn_add(w, only);
	pages_put(w, 64, 2, 32, 8192);
	for (unsigned long i = 0; i < n; i++) {
		struct draft d = draft_of(w, 1, 64, 2, 1 + chance(32), 8192);

		if (chance(4) == 0)
			d = lookup_of(w, 1, 5, 3, 1 + chance(32));
		if (chance(2) == 0 && d.run.kind == OP_RUN) {
			d.run.segments = 4;
			d.run.stride_or_to = 300000;
		}
		if (chance(4))
			hostile_submit(c, &d);
		else
			hostile_page(w, c, 64 + 2 * chance(32));
		world_run(w);
		while (client_run_done(c, &done)) {
			answered++;
			invalid += done.status == OP_INVALID;
		}
		while (rail_event_take(w->rail, &event))
			;
		if (c->channel.broken || i % 100 == 99)
			c = client_again(w, c);
	}
	c = client_again(w, c);
	while (rail_event_take(w->rail, &event))
		;
	print_message("%lu answers, %lu of them: invalid\n", answered, invalid);
	assert_true(invalid > n / 20 && answered - invalid > n / 20);
	assert_runs_free(w);
	rail_conn_free(w, only);
	client_free(c);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
	const struct CMUnitTest tests[] = {
		TEST(every_run_is_answered_once_and_every_hit_has_the_right_bytes),
		TEST(the_same_holds_with_leases),
		TEST(leases_longer_than_limbo_give_wrong_pages),
		TEST(no_bits_in_a_run_make_the_nic_leave_its_regions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
