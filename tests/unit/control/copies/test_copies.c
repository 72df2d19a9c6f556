/* SPDX-License-Identifier: Apache-2.0 */
/* The copier with real pools and a real index. The test plays the rails and the holder. */
#define TEST_OF_COPIES
#include "engine/control/copies/copies.h"

#include "engine/abi/crc32c.h"
#include "engine/abi/run.h"
#include "engine/control/pages/pages_inner.h"
#include "tests/unit/control/ctl_world.h"

#define PAGE 65536u
#define POOL_PAGES (POOL_BYTES / PAGE)

/* What a rail was told, and what it answers. */
static struct {
	struct rail_channel *channel;
	struct rail_region region[RAILS];
	unsigned keys; /* commands RAIL_REGION_KEY */
	bool stops;
} rails[RAILS];
static uint32_t client_runs; /* of clients, in flight on rail 0 */
static struct status_segment *status;

/* ---- stubs ----------------------------------------------------------------------------------- */

bool outbox_send(struct control *c, unsigned rail, const struct rail_command *command)
{
	(void)c;
	switch (command->kind) {
	case RAIL_CHANNEL_ADD:
		assert_null(rails[rail].channel);
		rails[rail].channel = command->object;
		break;
	case RAIL_CHANNEL_STOP: rails[rail].stops = true; break;
	case RAIL_REGION_KEY: rails[rail].keys++; /* fall through */
	case RAIL_REGION_ADD:
		assert_in_range(command->region.id, REGION_OWN_0, REGION_OWN_0 + RAILS - 1);
		rails[rail].region[command->region.id - REGION_OWN_0] = command->region;
		break;
	default: fail_msg("command %u", command->kind);
	}
	return true;
}

uint32_t rail_in_flight(const struct rail *rail)
{
	uint32_t runs = rail == control.rail[0].rail ? client_runs : 0;

	for (unsigned i = 0; i < RAILS; i++)
		if (rail == control.rail[i].rail && rails[i].channel)
			runs += rails[i].channel->in_flight;
	return runs;
}

static uint64_t nic_bits; /* of each rail a second; 0: not known */

void dv_attributes(const struct dv_device *device, struct dv_attributes *ret)
{
	(void)device;
	*ret = (struct dv_attributes){.bits_per_second = nic_bits};
}

/* ---- the world ------------------------------------------------------------------------------- */

static int begin(void **state)
{
	static struct rail *const rail[RAILS] = {(void *)&rails[0], (void *)&rails[1]};

	setup(state);
	memset(rails, 0, sizeof(rails));
	client_runs = 0;
	settings.copies_mib_per_second = 1;
	nic_bits = 0;
	settings.copies_hot_percent = 6;
	peer.known = true;
	status = calloc(1, sizeof(*status));
	status->page_bytes_max = PAGE;
	control.status = status;
	for (unsigned i = 0; i < RAILS; i++) {
		status->pool_bytes[i] = POOL_BYTES;
		control.rail[i].rail = rail[i];
		control.rail[i].kick = -1;
		for (unsigned p = 0; p < RAILS; p++) {
			const struct huge *memory = pool_memory(control.rail[p].pool);

			control.rail[i].exported[REGION_POOL_0 + p] = (struct dv_mr){
				.base = memory->base, .length = memory->bytes, .lkey = 100 * i + p};
		}
	}
	assert_int_equal(copies_open(&control), 0);
	return 0;
}

static int end(void **state)
{
	copies_close(&control);
	free(status);
	return teardown(state);
}

static enum op_status wish(uint64_t n)
{
	return copies_ask(&control, &(struct copy_wish){.key = key_of(n),
					    .from = {PEER_REF, place_make(1, (uint32_t)n), 5},
					    .length = PAGE,
					    .crc = (uint32_t)n,
					    .proven = true,
					    .why = PAGE_PREFETCHED});
}

static unsigned turn(void)
{
	unsigned work = copies_turn(&control);

	turns();
	return work;
}

/* The rail takes the next run; false: there is none. */
static bool taken(unsigned rail, struct run *ret, struct run_entry *ret_entry)
{
	struct rail_channel *c = rails[rail].channel;
	struct run_line line;

	if (!c || ring_ready(&c->ops) <= 0)
		return false;
	memcpy(&line, ring_slot_old(&c->ops, 0), sizeof(line));
	run_decode(&line.header, now, ret);
	*ret_entry = line.half[1];
	ring_release(&c->ops, 1);
	c->in_flight++;
	return true;
}

static void answer(unsigned rail, uint32_t cookie, bool hit, bool stale, enum op_status status_is)
{
	struct run_done done = {.cookie = cookie,
		.hit = hit,
		.stale = stale,
		.status = (uint8_t)status_is,
		.kind = OP_PAGE};

	memcpy(ring_slot_new(&rails[rail].channel->done, 0), &done, sizeof(done));
	ring_publish(&rails[rail].channel->done, 1);
	rails[rail].channel->in_flight--;
}

/* Answers whatever the rails have got. Returns how many. */
static unsigned serve(void)
{
	struct run_entry entry;
	unsigned served = 0;
	struct run run;

	for (unsigned i = 0; i < RAILS; i++)
		while (taken(i, &run, &entry)) {
			answer(i, run.cookie, true, false, OP_HIT);
			served++;
		}
	return served;
}

static const struct index_entry *here(uint64_t n)
{
	const struct page_key key = key_of(n);

	return index_find(control.index, &key);
}

static uint64_t count(enum counter counter)
{
	return control.counter[counter];
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void a_page_is_read_into_a_slot_and_published(void **state)
{
	const struct index_entry *e;
	struct pool_proven proven;
	struct run_entry entry;
	struct run run;

	(void)state;
	assert_int_equal(wish(3), OP_HIT);
	assert_int_equal(wish(3), OP_HIT); /* it is being brought already */
	turn();
	assert_true(taken(0, &run, &entry));
	assert_false(taken(0, &run, &entry));
	assert_int_equal(run.kind, OP_PAGE);
	assert_int_equal(run.peer_ref, PEER_REF);
	assert_int_equal(run.region, REGION_POOL_0 + 1);
	assert_int_equal(run.to_region, REGION_OWN_0);
	assert_int_equal(run.page_bytes, PAGE);
	assert_int_equal(run.stride_or_to, PAGE);
	assert_int_equal(entry.unit, 3);
	assert_int_equal(entry.generation, 5);
	assert_null(here(3));
	answer(0, run.cookie, true, false, OP_HIT);
	turn();
	e = here(3);
	assert_non_null(e);
	assert_int_equal(place_offset(e->place), entry.to & (RUN_TO_MAX - 1));
	assert_int_equal(pool_why(control.rail[0].pool, e->place, e->generation), PAGE_PREFETCHED);
	assert_true(pool_proven(control.rail[0].pool, e->place, e->generation, &proven));
	assert_int_equal(proven.crc, 3);
	assert_int_equal(directory.published, 1);
	assert_int_equal(count(COUNTER_copies_made), 1);
	assert_int_equal(count(COUNTER_copies_bytes), PAGE);
	assert_int_equal(control.evict->credits, 0);
	assert_int_equal(wish(3), OP_HIT);
	assert_int_equal(turn(), 0);
	/* the owner says that another host has it, too: it is not evicted first for that */
	page_again(&control, &(struct location){.place = e->place, .generation = e->generation},
		EVICTED_COPY);
	assert_int_equal(count(COUNTER_pages_copied), 0);
}

/* rail.validate = crc. The test's NIC moves nothing, so a slot has zeroes. */
static void a_copy_with_another_crc_than_its_head_s_is_not_published(void **state)
{
	static const unsigned char zeroes[PAGE];
	struct copy_wish wishes[] = {{.crc = 1, .proven = true}, {.crc = crc32c(0, zeroes, PAGE)},
		{.crc = crc32c(0, zeroes, PAGE), .proven = true}};

	(void)state;
	settings.rail_validate = VALIDATE_CRC;
	for (unsigned i = 0; i < 3; i++) {
		wishes[i].key = key_of(i + 1);
		wishes[i].from = (struct location){PEER_REF, place_make(1, i + 1), 5};
		wishes[i].length = PAGE;
		assert_int_equal(copies_ask(&control, &wishes[i]), OP_HIT);
		turn();
		assert_int_equal(serve(), 1);
		turn();
		assert_int_equal(here(i + 1) != NULL, i == 2);
	}
	assert_int_equal(count(COUNTER_copies_failed), 2);
	settings.rail_validate = VALIDATE_AUTO;
}

static void a_slot_goes_back_only_after_the_answer(void **state)
{
	struct run_entry entry;
	struct run run;

	(void)state;
	assert_int_equal(wish(1), OP_HIT);
	turn();
	assert_true(taken(0, &run, &entry));
	assert_int_equal(control.evict->credits, 1);
	pass_time(60 * 1000000000ull);
	turn();
	assert_int_equal(control.evict->credits, 1); /* the NIC may still write it */
	answer(0, run.cookie, false, true, OP_HIT);
	turn();
	assert_int_equal(control.evict->credits, 0);
	assert_null(here(1));
	assert_int_equal(count(COUNTER_copies_failed), 1);
	assert_int_equal(pool_pages(control.rail[0].pool), 0);
}

static void a_key_that_is_removed_meanwhile_is_not_published(void **state)
{
	const struct page_key removed = key_of(1), nine = key_of(9);
	struct page_key other;
	uint64_t n = 100;

	(void)state;
	assert_int_equal(wish(1), OP_HIT);
	assert_int_equal(wish(2), OP_HIT);
	turn();
	assert_false(page_forget(&control, &removed));
	assert_int_equal(serve(), 2);
	turn();
	assert_null(here(1));
	assert_non_null(here(2));
	/* also a copy that comes shortly after: its holder may not have been told yet */
	assert_int_equal(wish(1), OP_NO_SPACE);
	pass_time(COPIES_FORGOT_NS + 1);
	/* however long the copy takes, and whatever else is removed meanwhile */
	assert_int_equal(wish(9), OP_HIT);
	turn();
	(void)page_forget(&control, &nine);
	pass_time(COPIES_FORGOT_NS + 1);
	do
		other = key_of(++n);
	while ((map_mix(other.word[0]) ^ map_mix(nine.word[0])) % 16384); /* the same place */
	copies_forget(&control, &other);
	assert_int_equal(serve(), 1);
	turn();
	assert_null(here(9));
	pass_time(COPIES_FORGOT_NS + 1);
	assert_int_equal(wish(1), OP_HIT);
}

static void a_clear_of_this_host_ends_copies(void **state)
{
	(void)state;
	assert_int_equal(wish(1), OP_HIT);
	turn();
	copies_cleared(&control);
	assert_int_equal(serve(), 1);
	turn();
	assert_null(here(1));
	assert_int_equal(control.evict->credits, 0);
	pass_time(1);
	assert_int_equal(wish(1), OP_HIT);
	turn();
	assert_int_equal(serve(), 1);
	turn();
	assert_non_null(here(1));
}

/* The end of a prompt is evicted before its start. */
static void pages_that_are_requested_together_keep_their_order(void **state)
{
	struct pool_victim victim[4];

	(void)state;
	for (uint64_t n = 0; n < 8; n++)
		assert_int_equal(wish(n), OP_HIT);
	turn();
	assert_int_equal(serve(), 8);
	turn();
	for (unsigned rail = 0; rail < RAILS; rail++) {
		assert_int_equal(pool_victims(control.rail[rail].pool, PAGE, false, 4, victim), 4);
		for (unsigned i = 1; i < 4; i++)
			assert_true(victim[i].key.word[1] < victim[i - 1].key.word[1]);
	}
}

/* A slot that becomes free while clients wait for one is theirs. */
static void clients_that_wait_for_a_slot_come_first(void **state)
{
	static struct client client;
	struct ctl_done done;

	(void)state;
	client_open(&client, 3);
	for (unsigned n = 0; n < RAILS * POOL_PAGES; n++)
		assert_int_equal(take(&client, (uint8_t)(n % RAILS), PAGE).status, OP_HIT);
	put(&client, (struct ctl_op){.kind = CTL_CREDIT, .rail = 0, .count = 1, .length = PAGE});
	turns();
	assert_false(got(&client, &done));
	assert_int_equal(wish(1), OP_HIT);
	turn();
	/* the slot leaves limbo */
	put(&client, (struct ctl_op){.kind = CTL_RETURN, .place = 0, .generation = 1});
	turns();
	now += 2 * LIMBO_MS * 1000000ull;
	clock_test_set(now);
	(void)copies_turn(&control);
	assert_int_equal(serve(), 0);
	pass_time(1);
	assert_true(got(&client, &done));
	assert_int_equal(done.status, OP_HIT);
	client_close(&client);
}

static void a_failed_rail_is_replaced_by_another_in_the_same_slot(void **state)
{
	struct run_entry first, second;
	struct run run;

	(void)state;
	assert_int_equal(wish(1), OP_HIT);
	turn();
	assert_true(taken(0, &run, &first));
	answer(0, run.cookie, false, false, OP_NIC_ERROR);
	turn();
	assert_true(taken(1, &run, &second));
	assert_memory_equal(&first.to, &second.to, 6);
	assert_int_equal(run.to_region, REGION_OWN_0);
	answer(1, run.cookie, false, false, OP_PEER_DOWN);
	turn();
	assert_int_equal(count(COUNTER_copies_failed), 1);
	assert_int_equal(control.evict->credits, 0);
	/* a rail that is out of use READs nothing; a NIC that was opened anew has another key */
	status->peer_rails_out[peer.member.record.peer] = 1;
	control.rail[1].exported[REGION_POOL_0 + 1].lkey = 77;
	assert_int_equal(wish(2), OP_HIT);
	turn();
	assert_false(taken(0, &run, &first));
	assert_true(taken(1, &run, &second));
	assert_int_equal(rails[1].region[1].lkey, 77);
	answer(1, run.cookie, true, false, OP_HIT);
	turn();
	assert_non_null(here(2));
}

/* The client stores `count` pages from number `first` on, on the rails in turn. */
static void fill(struct client *client, uint64_t first, uint64_t count)
{
	for (uint64_t n = 0; n < count; n++) {
		struct ctl_done done;

		put(client, (struct ctl_op){.kind = CTL_CREDIT,
				    .rail = (first + n) % RAILS,
				    .count = 1,
				    .length = PAGE});
		turns();
		while (!got(client, &done))
			pass_time(5 * 1000000ull);
		publish_at(client, first + n, done.place, done.generation, PAGE);
	}
}

static void a_group_at_its_quota_gives_its_own_pages_for_copies(void **state)
{
	static struct client client;
	const struct page_key key = key_of(0);
	struct group_limits limits = {.ttl_s = -1};
	struct copy_wish spare = {
		.from = {PEER_REF, place_make(1, 1), 5}, .length = PAGE, .spare = true};
	struct index_group *group;
	uint64_t n = 20000, others;

	(void)state;
	client_open(&client, 3);
	fill(&client, 1000, 4 * POOL_PAGES);
	for (unsigned i = 0; i < 8; i++)
		fill(&client, n = of_group(n + 1), 1);
	group = index_group(control.index, epoch_group(&key));
	limits.quota = (int64_t)group->bytes;
	assert_int_equal(index_limit(control.index, group->number, &limits), 0);
	others = index_count(control.index) - group->pages;
	for (unsigned made = 0; made < 96; made++) { /* more than the reserve of free slots */
		assert_int_equal(wish(n = of_group(n + 1)), OP_HIT);
		for (unsigned i = 0; i < 1000 && count(COUNTER_copies_made) == made; i++) {
			turn();
			serve();
			turn();
			pass_time(5 * 1000000ull);
		}
	}
	assert_int_equal(count(COUNTER_copies_made), 96);
	assert_int_equal(index_count(control.index) - group->pages, others);
	assert_in_range(group->evicted, 32, 96);
	/* what a drained host offers is refused */
	spare.key = key_of(of_group(n + 1));
	assert_int_equal(copies_ask(&control, &spare), OP_HIT);
	turn();
	assert_int_equal(serve(), 0);
	assert_int_equal(count(COUNTER_copies_refused), 1);
	assert_int_equal(group->coming, 0);
	client_close(&client);
}

static void a_full_pool_evicts_the_oldest_and_no_more_than_an_eighth_waits(void **state)
{
	static struct client client;
	unsigned asked = 0;

	(void)state;
	client_open(&client, 3);
	control.evict->weight.used = 1; /* pages go by their last use */
	fill(&client, 1000, 4 * POOL_PAGES);
	while (wish(asked) == OP_HIT)
		asked++;
	assert_int_equal(wish(asked), OP_NO_SPACE);
	assert_int_equal(count(COUNTER_copies_refused), 2);
	assert_in_range(asked, RAILS * POOL_PAGES / 8 - 1, RAILS * POOL_PAGES / 8 + 1);
	for (unsigned i = 0; i < 1000 && count(COUNTER_copies_made) < asked; i++) {
		turn();
		serve();
		turn();
		pass_time(5 * 1000000ull);
	}
	assert_int_equal(count(COUNTER_copies_made), asked);
	for (uint64_t n = 0; n < asked; n++)
		assert_non_null(here(n));
	assert_non_null(here(1000 + 4 * POOL_PAGES - 1));
	client_close(&client);
}

static void beside_a_client_copies_keep_their_rate(void **state)
{
	uint64_t began = now;

	(void)state;
	client_runs = 1;
	for (uint64_t n = 0; n < 20; n++)
		assert_int_equal(wish(n), OP_HIT);
	while (count(COUNTER_copies_made) < 20) {
		turn();
		assert_true(serve() <= COPIES_BESIDE_BYTES / PAGE);
		turn();
		pass_time(1000000);
		assert_true(now - began < 10 * 1000000000ull);
	}
	/* 19 pages of 64 KiB at 1 MiB/s after the first one */
	assert_in_range(now - began, 1150 * 1000000ull, 1400 * 1000000ull);
	client_runs = 0;
	pass_time(2 * COPIES_BESIDE_NS);
	for (uint64_t n = 20; n < 40; n++)
		assert_int_equal(wish(n), OP_HIT);
	turn();
	assert_int_equal(serve(), 20); /* at once */
	turn();
}

/* ---- hot pages ------------------------------------------------------------------------------- */

/* Clients of host `ref` have used the page at this place. Returns how many pages it is offered. */
static size_t used_by(uint32_t ref, uint32_t place)
{
	struct rpc_link link = {.member = &peer.member};
	Pc__Touch touch = PC__TOUCH__INIT;
	size_t before = peer.offered;

	touch.n_places = 1;
	touch.places = &place;
	peer.ref = ref;
	assert_true(copies_serve_touch(&control, &link, &touch));
	peer.ref = 0;
	return peer.offered - before;
}

static void a_page_that_several_hosts_use_is_offered_to_two_of_them(void **state)
{
	static struct client client;
	size_t offered = 0;
	uint32_t place;

	(void)state;
	client_open(&client, 3);
	place = store(&client, 1, PAGE);
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(used_by(77, place), 0); /* one host alone */
	pass_time(10 * 1000000000ull);
	for (unsigned n = 0; n < 3; n++)
		assert_int_equal(used_by(77 + n % 2, place), 0);
	assert_int_equal(used_by(78, place), 1);
	assert_true(peer.hot);
	assert_int_equal(used_by(77, place), 0);
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(used_by(78, place), 0); /* it was offered the page already */
	for (unsigned n = 0; n < 100; n++)
		offered += used_by(77 + n % 2, place);
	assert_int_equal(offered, 1);
	assert_int_equal(count(COUNTER_hot_offered), 2);
	/* seldom: no */
	pass_time(60 * 1000000000ull);
	for (unsigned n = 0; n < 100; n++) {
		pass_time(5 * 1000000000ull);
		assert_int_equal(used_by(77 + n % 2, place), 0);
	}
	/* often again: its copies may have been evicted; not while this host is drained */
	copies_drain(&control, 1000000000);
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(used_by(77 + n % 2, place), 0);
	copies_drain(&control, 0);
	for (unsigned n = 0; n < 100; n++)
		offered += used_by(77 + n % 2, place);
	assert_int_equal(offered, 3);
	assert_int_equal(used_by(77, place_make(0, 12345)), 0);
	client_close(&client);
}

static void offer(uint64_t n, bool hot)
{
	struct rpc_link link = {.member = &peer.member};
	Pc__OfferPage page = PC__OFFER_PAGE__INIT, *at = &page;
	const struct page_key key = key_of(n);
	Pc__Offer m = PC__OFFER__INIT;

	page.key0 = key.word[0];
	page.key1 = key.word[1];
	page.place = place_make(1, (uint32_t)n);
	page.generation = 5;
	page.bytes = PAGE;
	m.hot = hot;
	m.n_pages = 1;
	m.pages = &at;
	assert_true(copies_serve_offer(&control, &link, &m));
	turn();
	serve();
	turn();
}

static void copies_of_hot_pages_go_first_and_have_a_share_of_the_pools(void **state)
{
	const unsigned most = 2 * POOL_PAGES * 6 / 100;
	static struct client client;
	struct copies_counts counts;
	struct pool_victim victim;
	uint64_t n = 1;

	(void)state;
	client_open(&client, 3);
	control.evict->weight.used = 1; /* pages go by their last use */
	store(&client, 1000, PAGE);
	offer(n, true);
	assert_non_null(here(n));
	assert_int_equal(
		pool_why(control.rail[0].pool, here(n)->place, here(n)->generation), PAGE_HOT);
	assert_int_equal(count(COUNTER_copies_hot), 1);
	assert_int_equal(pool_victims(control.rail[0].pool, PAGE, false, 1, &victim), 1);
	assert_int_equal(victim.place, here(n)->place);
	/* it makes no copies of its own */
	for (unsigned k = 0; k < 100; k++)
		assert_int_equal(used_by(77 + k % 2, here(n)->place), 0);
	page_touched(&control, here(n)->place); /* used here: it stays */
	assert_int_equal(pool_victims(control.rail[0].pool, PAGE, false, 1, &victim), 1);
	assert_int_not_equal(victim.place, here(n)->place);
	evict_take_away(control.evict, &(struct page_key){{map_mix(2), 2}}, here(n)->place,
		here(n)->generation);
	copies_counts(&control, &counts);
	assert_int_equal(counts.hot_bytes, 0);
	/* a full pool: no more than the share */
	fill(&client, 2000, 2 * POOL_PAGES - 1);
	for (n = 100; n < 100 + 3 * most; n++) {
		offer(n, true);
		for (unsigned k = 0; k < 20; k++) {
			pass_time(5 * 1000000ull);
			turn();
			serve();
		}
		turn();
		if (here(n))
			page_touched(&control, here(n)->place);
	}
	copies_counts(&control, &counts);
	assert_in_range(counts.hot_bytes, PAGE * (most - 1), PAGE * (most + 1));
	/* none, if this host makes none */
	settings.copies_hot_percent = 0;
	copies_close(&control);
	memset(rails, 0, sizeof(rails)); /* their channels are gone */
	assert_int_equal(copies_open(&control), 0);
	offer(7, true);
	assert_null(here(7));
	client_close(&client);
}

static void a_host_that_is_drained_is_marked_for_readers(void **state)
{
	struct rpc_link link = {.member = &peer.member};
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;
	uint16_t number = peer.member.record.peer;

	(void)state;
	beat.drained = true;
	assert_true(copies_serve_heartbeat(&control, &link, &beat));
	assert_true(map_leaving(&status->map, number));
	beat.drained = false;
	assert_true(copies_serve_heartbeat(&control, &link, &beat));
	assert_false(map_leaving(&status->map, number));
	copies_drain(&control, 1000000000);
	assert_true(control.drained);
	copies_drain(&control, 0);
	assert_false(control.drained);
}

/* The setting is for fast NICs: beside a client, slow ones carry few copies. */
static void copies_leave_slow_nics_to_clients(void **state)
{
	uint64_t began = now;

	(void)state;
	settings.copies_mib_per_second = 0;
	nic_bits = 32ull * 8 * PAGE * 100; /* a hundred pages a second are a 64th of two */
	client_runs = 1;
	for (uint64_t n = 0; n < 20; n++)
		assert_int_equal(wish(n), OP_HIT);
	while (count(COUNTER_copies_made) < 20) {
		turn();
		serve();
		turn();
		pass_time(1000000);
		assert_true(now - began < 10 * 1000000000ull);
	}
	assert_in_range(now - began, 185 * 1000000ull, 250 * 1000000ull);
}

static void what_waits_for_too_long_or_has_no_holder_ends(void **state)
{
	static struct client client;
	struct copies_counts counts;
	uint64_t refused;

	(void)state;
	peer.known = false;
	assert_int_equal(wish(1), OP_PEER_DOWN);
	peer.known = true;
	assert_int_equal(wish(1), OP_HIT);
	peer.known = false;
	turn();
	assert_int_equal(count(COUNTER_copies_failed), 1);
	peer.known = true;
	assert_int_equal(copies_ask(&control, &(struct copy_wish){.key = key_of(1),
						      .from = {PEER_REF, 0, 1},
						      .length = PAGE + 1}),
		OP_NO_SPACE);
	/* no slot: a client has them all */
	pass_time(2 * LIMBO_MS * 1000000ull);
	client_open(&client, 3);
	for (unsigned n = 0; n < RAILS * POOL_PAGES; n++)
		assert_int_equal(take(&client, (uint8_t)(n % RAILS), PAGE).status, OP_HIT);
	for (uint64_t n = 2; n < 20; n++)
		assert_int_equal(wish(n), OP_HIT);
	refused = count(COUNTER_copies_refused);
	turn();
	pass_time(COPIES_WAIT_NS / 2);
	turn();
	copies_counts(&control, &counts);
	assert_int_equal(counts.waiting, 18);
	pass_time(COPIES_WAIT_NS / 2 + 1);
	for (unsigned n = 0; n < 40; n++)
		turn();
	copies_counts(&control, &counts);
	assert_int_equal(counts.waiting + counts.flying, 0);
	assert_int_equal(count(COUNTER_copies_refused), refused + 18);
	client_close(&client);
}

static void a_stop_ends_copies_when_every_rail_has_returned_the_channel(void **state)
{
	(void)state;
	assert_true(copies_rest(&control));
	assert_int_equal(wish(1), OP_HIT);
	assert_int_equal(wish(2), OP_HIT);
	turn();
	assert_int_equal(control.evict->credits, 2);
	control.stopping = true;
	copies_stop(&control);
	assert_int_equal(wish(3), OP_PEER_DOWN);
	assert_true(rails[0].stops && rails[1].stops);
	copies_returned(&control);
	assert_false(copies_rest(&control));
	assert_int_equal(control.evict->credits, 2);
	copies_returned(&control);
	assert_true(copies_rest(&control));
	assert_int_equal(control.evict->credits, 0);
	assert_null(here(1));
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_page_is_read_into_a_slot_and_published),
		TEST(a_copy_with_another_crc_than_its_head_s_is_not_published),
		TEST(a_slot_goes_back_only_after_the_answer),
		TEST(a_key_that_is_removed_meanwhile_is_not_published),
		TEST(a_clear_of_this_host_ends_copies),
		TEST(pages_that_are_requested_together_keep_their_order),
		TEST(clients_that_wait_for_a_slot_come_first),
		TEST(a_failed_rail_is_replaced_by_another_in_the_same_slot),
		TEST(a_group_at_its_quota_gives_its_own_pages_for_copies),
		TEST(a_full_pool_evicts_the_oldest_and_no_more_than_an_eighth_waits),
		TEST(beside_a_client_copies_keep_their_rate),
		TEST(copies_leave_slow_nics_to_clients),
		TEST(what_waits_for_too_long_or_has_no_holder_ends),
		TEST(a_page_that_several_hosts_use_is_offered_to_two_of_them),
		TEST(copies_of_hot_pages_go_first_and_have_a_share_of_the_pools),
		TEST(a_host_that_is_drained_is_marked_for_readers),
		TEST(a_stop_ends_copies_when_every_rail_has_returned_the_channel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
