/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random READs and WRITEs under random faults, checked against a model of every byte and every
 * completion. A seed as its argument runs one case. Otherwise it runs a fixed set and one more,
 * with the seed of $SEED or a new one, and prints each seed that fails.
 */
#include "config/clock.h"
#include "tests/soft/pair.h"

#define QPS 4u
#define SLOT_BYTES 8192u
/* data slots of each QP, in the requester's memory and in the second half of the server's */
#define SLOTS 64u
#define QP_DEPTH_HERE 64u
#define RUBBISH 0xd5
#define SETTLED 0x11

struct expected {
	uint16_t index;
	uint8_t opcode, sges;
	bool signalled;
	unsigned slot;
	/* offset that the READ reads from, in the first half of the server's memory */
	uint32_t remote;
	uint32_t bytes, first; /* bytes of all segments together, and of the first segment */
};

struct model_qp {
	struct expected in_flight[256];
	unsigned head, tail;
	unsigned slot_next;
	bool failed;
};

static struct end a, b;
static struct card card_a, card_b;
static struct model_qp model[QPS];
static uint64_t random_state, case_seed;
static unsigned flushes, errors, successes;

static bool reads_only; /* over TCP */

static uint64_t draw(uint64_t below)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % below;
}

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fail_msg("seed %llu: %s", (unsigned long long)case_seed, #condition);      \
	} while (0)

static uint8_t *slot_at(struct end *end, unsigned qp, unsigned slot)
{
	return end->memory + END_BYTES / 2 + (qp * SLOTS + slot) * SLOT_BYTES;
}

static void post(unsigned qp)
{
	struct model_qp *m = &model[qp];
	struct expected *e = &m->in_flight[m->tail % 256];
	uint8_t *slot;
	struct dv_sge sges[3];
	uint64_t remote;
	uint8_t flags;

	*e = (struct expected){.opcode = reads_only || draw(4) ? DV_READ : DV_WRITE,
		.sges = (uint8_t)(1 + draw(3)),
		.signalled = draw(3) == 0};
	if (dv_sq_room(a.sqs[qp]) < dv_wqe_blocks(e->sges) || m->tail - m->head >= SLOTS)
		return;
	e->slot = m->slot_next++ % SLOTS;
	slot = slot_at(&a, qp, e->slot);
	for (unsigned i = 0; m->slot_next > SLOTS && i < SLOT_BYTES; i += 61)
		/* the NIC did not write to the slot after its WQE completed */
		CHECK(slot[i] == SETTLED);
	e->bytes = e->first = 1 + (uint32_t)draw(2000);
	sges[0] = (struct dv_sge){(uintptr_t)slot, e->first, a.mr.lkey};
	for (unsigned i = 1; i < e->sges; i++) {
		uint32_t bytes = 1 + (uint32_t)draw(2000);

		sges[i] = (struct dv_sge){(uintptr_t)slot + e->bytes, bytes, a.mr.lkey};
		e->bytes += bytes;
	}
	if (e->opcode == DV_READ) {
		e->remote = (uint32_t)draw(END_BYTES / 2 - 8192);
		remote = card_b.base + e->remote;
		memset(slot, RUBBISH, SLOT_BYTES);
	} else {
		memset(slot, (int)m->tail, SLOT_BYTES);
		memset(slot_at(&b, qp, e->slot), RUBBISH, SLOT_BYTES);
		remote = (uintptr_t)slot_at(&b, qp, e->slot);
	}
	flags = e->signalled ? DV_CE_ALWAYS : 0;
	e->index = (uint16_t)dv_post(
		a.sqs[qp], (enum dv_opcode)e->opcode, remote, card_b.rkey, sges, e->sges, flags);
	m->tail++;
}

/* Checks the bytes of a completed WQE. After this only the test may write to the WQE's slot. */
static void settle(unsigned qp, const struct expected *e, bool success)
{
	uint8_t *slot = slot_at(&a, qp, e->slot);

	if (success && e->opcode == DV_READ)
		CHECK(memcmp(slot, b.memory + e->remote, e->bytes) == 0);
	if (success && e->opcode == DV_WRITE)
		CHECK(memcmp(slot, slot_at(&b, qp, e->slot), e->bytes) == 0);
	if (e->opcode == DV_READ)
		for (unsigned i = e->bytes; i < SLOT_BYTES; i += 97)
			CHECK(slot[i] == RUBBISH);
	memset(slot, SETTLED, SLOT_BYTES);
}

static void take_completion(const struct dv_completion *done)
{
	struct model_qp *m;
	unsigned qp = 0;

	while (qp < QPS && dv_qp_number(a.qps[qp]) != done->qpn)
		qp++;
	CHECK(qp < QPS);
	m = &model[qp];
	for (;;) {
		struct expected *e = &m->in_flight[m->head % 256];
		bool named;

		CHECK(m->head != m->tail);
		named = e->index == done->wqe_counter;
		/*
		 * completions come in the order of the WQEs, and no signalled WQE lacks its
		 * completion
		 */
		CHECK(named || (!e->signalled && !m->failed));
		m->head++;
		settle(qp, e, !named || !done->syndrome);
		if (!named) {
			successes++;
			continue;
		}
		if (!done->syndrome) {
			CHECK(!m->failed && e->signalled);
			successes++;
		} else if (done->syndrome == DV_SYNDROME_FLUSHED) {
			flushes++;
			m->failed = true;
		} else {
			/* a queue pair fails once; all its later completions are flushes */
			CHECK(!m->failed);
			CHECK(done->syndrome == DV_SYNDROME_REMOTE_OP ||
				done->syndrome == DV_SYNDROME_RETRY_EXCEEDED);
			errors++;
			m->failed = true;
		}
		return;
	}
}

static void reap(void)
{
	a.done_count = 0;
	end_reap(&a);
	for (unsigned i = 0; i < a.done_count; i++)
		take_completion(&a.done[i]);
}

static void step_both(unsigned count)
{
	while (count--) {
		dv_step(a.device);
		dv_step(b.device);
	}
	reap();
}

static void new_faults(void)
{
	struct dv_fault fault = {.seed = draw(1u << 30)};

	if (draw(2))
		fault.delay_steps_max = (unsigned)draw(20);
	if (draw(2))
		fault.piece_bytes = 1 + (unsigned)draw(1500);
	if (draw(2))
		fault.retransmit_percent = (unsigned)draw(101);
	fault.shuffle = draw(2);
	fault.link_down = draw(8) == 0;
	if (draw(6) == 0) {
		fault.error_qpn = dv_qp_number(a.qps[draw(QPS)]);
		fault.error_at = (uint32_t)draw(10);
		fault.error_syndrome = DV_SYNDROME_REMOTE_OP;
	}
	dv_soft_faults(a.device, &fault);
}

/* Drains the queue pairs of both ends, makes new ones and connects them. */
static void revive(unsigned qp)
{
	struct model_qp *m = &model[qp];

	dv_ring(a.sqs[qp]);
	pair_good(dv_qp_error(a.qps[qp]));
	reap();
	/*
	 * All signalled WQEs are complete; unsignalled ones done before the error have no
	 * completion.
	 */
	while (m->head != m->tail) {
		settle(qp, &m->in_flight[m->head++ % 256], true);
		successes++;
	}
	end_renew(&a, qp);
	end_renew(&b, qp);
	end_card(&a, &card_a);
	end_card(&b, &card_b);
	pair_good(dv_qp_connect(a.qps[qp], &card_b.addresses[qp]));
	pair_good(dv_qp_connect(b.qps[qp], &card_a.addresses[qp]));
	m->failed = false;
}

static void run_case(uint64_t seed, const char *link)
{
	struct dv_options options = {.name = "soft", .link = link};
	struct dv_soft_stats stats;

	case_seed = seed;
	reads_only = strcmp(link, "tcp") == 0;
	random_state = seed * 2654435761u + 88172645463325252ull;
	memset(model, 0, sizeof(model));
	end_open_with(&a, &options, QPS, QP_DEPTH_HERE, 512);
	end_open_with(&b, &options, QPS, QP_DEPTH_HERE, 512);
	end_card(&a, &card_a);
	end_card(&b, &card_b);
	end_connect(&a, &card_b);
	end_connect(&b, &card_a);
	end_fill(&b, (uint8_t)seed);
	dv_soft_patience(a.device, 0, 5000);
	for (unsigned turn = 0; turn < 1500; turn++) {
		unsigned qp = (unsigned)draw(QPS);

		if (turn % 50 == 0)
			new_faults();
		for (uint64_t n = draw(6); n; n--)
			post(qp);
		if (draw(2))
			dv_ring(a.sqs[qp]);
		step_both((unsigned)draw(8));
		if (model[qp].failed || draw(200) == 0)
			revive(qp);
	}
	for (unsigned qp = 0; qp < QPS; qp++)
		revive(qp);
	dv_soft_stats(a.device, &stats);
	if (stats.reason[0])
		fail_msg("seed %llu: %s", (unsigned long long)seed, stats.reason);
	end_close(&a);
	end_close(&b);
}

static uint64_t wanted_seed;

static void every_byte_and_completion_matches_the_model(void **state)
{
	const char *given = getenv("SEED");
	uint64_t fresh = given ? strtoull(given, NULL, 0) : clock_monotonic_ns() % 1000000;

	if (wanted_seed) {
		run_case(wanted_seed, *state);
		return;
	}
	for (uint64_t seed = 1; seed <= 10; seed++)
		run_case(seed, *state);
	print_message("SEED=%llu\n", (unsigned long long)fresh);
	run_case(fresh, *state);
	/* checks that the injected faults did occur */
	assert_true(successes > 1000 && flushes > 10 && errors > 0);
}

/* The same seed of the fault injection gives the same completions in the same steps. */
static void the_same_seed_gives_the_same_completions(void **state)
{
	uint64_t trace[2] = {0, 0};

	for (unsigned run = 0; run < 2; run++) {
		struct dv_fault fault = {.seed = 99,
			.delay_steps_max = 9,
			.shuffle = true,
			.retransmit_percent = 50,
			.piece_bytes = 700};

		pair_open(&a, &b, "shm", QPS);
		dv_soft_faults(a.device, &fault);
		for (unsigned i = 0; i < 40; i++)
			end_post(&a, i % QPS, DV_READ, 4096 * i, (uintptr_t)b.memory, b.mr.rkey,
				4000, DV_CE_ALWAYS);
		for (unsigned q = 0; q < QPS; q++)
			dv_ring(a.sqs[q]);
		for (unsigned step = 0; a.done_count < 40; step++) {
			unsigned before = a.done_count;

			dv_step(a.device);
			end_reap(&a);
			for (unsigned i = before; i < a.done_count; i++)
				trace[run] = trace[run] * 31 + step * 1000 +
					     a.done[i].wqe_counter * 10 + a.done[i].qpn % 8;
		}
		end_close(&a);
		end_close(&b);
	}
	assert_true(trace[0] == trace[1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		{.name = "every_byte_and_completion_matches_the_model",
			.test_func = every_byte_and_completion_matches_the_model,
			.initial_state = (void *)(uintptr_t) "shm"},
		{.name = "every_byte_and_completion_matches_the_model_over_tcp",
			.test_func = every_byte_and_completion_matches_the_model,
			.initial_state = (void *)(uintptr_t) "tcp"},
		cmocka_unit_test(the_same_seed_gives_the_same_completions),
	};

	wanted_seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 0;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
