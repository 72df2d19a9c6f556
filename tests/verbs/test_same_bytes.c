/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each WQE is posted twice: through ibv_post_send() and through dv/hot.h. The bytes in the two send
 * queues must be equal except for the queue pair's number, the CQEs except for that and the user
 * index, and ibv_poll_cq() must report the same as dv_poll().
 */
#include "tests/verbs/side.h"

struct work {
	enum dv_opcode opcode;
	unsigned sges;
	uint32_t bytes[DV_SGES_MAX];
	bool quiet;
	/* offsets that are added to the correct rkey and lkey of the work request */
	uint32_t rkey_off, lkey_off;
	uint64_t remote_off, local_off;
	uint8_t syndrome; /* syndrome that its completion must have */
};

static struct side s;
static uint32_t ibv_pi; /* WQEBBs posted through libmlx5, whose own producer index cannot be read */

static int setup(void **state)
{
	side_open(&s);
	ibv_pi = 0;
	return 0;
}

static int teardown(void **state)
{
	side_close(&s);
	return 0;
}

static void fill_sges(const struct work *work, struct dv_sge *sge)
{
	uint64_t at = (uintptr_t)s.local + work->local_off;

	for (unsigned i = 0; i < work->sges; i++) {
		sge[i] = (struct dv_sge){at, work->bytes[i], s.local_mr.lkey + work->lkey_off};
		at += work->bytes[i];
	}
}

static void post_ibv(const struct work *work, uint64_t id)
{
	struct ibv_sge sges[DV_SGES_MAX];
	struct dv_sge sge[DV_SGES_MAX];
	struct ibv_send_wr *bad,
		wr = {
			.wr_id = id,
			.sg_list = sges,
			.num_sge = (int)work->sges,
			.opcode = work->opcode == DV_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
			.send_flags = work->quiet ? 0u : IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = (uintptr_t)s.remote + work->remote_off,
				.rkey = s.remote_mr.rkey + work->rkey_off},
		};

	fill_sges(work, sge);
	for (unsigned i = 0; i < work->sges; i++)
		sges[i] = (struct ibv_sge){sge[i].address, sge[i].bytes, sge[i].lkey};
	assert_int_equal(ibv_post_send(s.ibv, &wr, &bad), 0);
	ibv_pi += dv_wqe_blocks(work->sges);
}

static uint32_t post_hot(const struct work *work)
{
	struct dv_sge sge[DV_SGES_MAX];
	uint32_t index;

	fill_sges(work, sge);
	index = dv_post(s.sq, work->opcode, (uintptr_t)s.remote + work->remote_off,
		s.remote_mr.rkey + work->rkey_off, sge, work->sges,
		work->quiet ? DV_CE_ERROR_ONLY : DV_CE_ALWAYS);
	dv_ring(s.sq);
	return index;
}

/*
 * Compares the WQEs at `index`, which is the same in both queues because both started at WQEBB 0.
 */
static void compare_wqe(uint32_t index, unsigned sges)
{
	const uint8_t *ibv = s.ibv_queue.sq.buf;
	size_t queue = (size_t)SIDE_DEPTH * DV_WQEBB;

	for (size_t i = 0; i < (2 + sges) * DV_SEGMENT; i++) {
		size_t at = ((size_t)(index & (SIDE_DEPTH - 1)) * DV_WQEBB + i) % queue;

		if (i >= 4 && i < 7)
			/*
			 * these bytes contain the queue pair's number, which differs between the
			 * two queues
			 */
			continue;
		if (ibv[at] != s.sq->buf[at])
			fail_msg("WQE at %u, byte %zu: libmlx5 0x%02x, dv/hot.h 0x%02x", index, i,
				ibv[at], s.sq->buf[at]);
	}
}

static void compare_raw_cqes(unsigned count)
{
	for (unsigned n = 0; n < count; n++) {
		const uint8_t *a = (const void *)side_cqe(&s.ibv_cq, n, PATIENCE_NS);
		const uint8_t *b = (const void *)side_cqe(&s.cq, n, PATIENCE_NS);

		assert_non_null(a);
		assert_non_null(b);
		for (unsigned i = 0; i < 64; i++) {
			bool may_differ = (i >= 32 && i < 36) || (i >= 57 && i < 60);

			if (!may_differ && a[i] != b[i])
				fail_msg("CQE %u, byte %u: 0x%02x and 0x%02x", n, i, a[i], b[i]);
		}
	}
}

static enum ibv_wc_status status_of(uint8_t syndrome)
{
	switch (syndrome) {
	case 0: return IBV_WC_SUCCESS;
	case DV_SYNDROME_LOCAL_LENGTH: return IBV_WC_LOC_LEN_ERR;
	case DV_SYNDROME_LOCAL_PROTECTION: return IBV_WC_LOC_PROT_ERR;
	case DV_SYNDROME_FLUSHED: return IBV_WC_WR_FLUSH_ERR;
	case DV_SYNDROME_REMOTE_ACCESS: return IBV_WC_REM_ACCESS_ERR;
	case DV_SYNDROME_RETRY_EXCEEDED: return IBV_WC_RETRY_EXC_ERR;
	default: return IBV_WC_GENERAL_ERR;
	}
}

/* Consumes `count` completions of each of the two queues; returns the syndromes. */
static void reap(unsigned count, const uint32_t *indices, uint8_t *ret_syndromes)
{
	compare_raw_cqes(count);
	for (unsigned n = 0; n < count; n++) {
		struct dv_completion done = {0};
		struct ibv_wc wc = {0};

		assert_int_equal(ibv_poll_cq(s.ibv_cq_object, 1, &wc), 1);
		assert_int_equal(dv_poll(&s.cq, &done, 1), 1);
		s.ibv_cq.ci++;
		assert_int_equal(wc.status, status_of(done.syndrome));
		assert_int_equal((uint16_t)wc.wr_id, done.wqe_counter);
		assert_int_equal((uint16_t)indices[n], done.wqe_counter);
		assert_int_equal(done.qpn, s.sq->qpn);
		assert_int_equal(wc.qp_num, s.ibv->qp_num);
		s.sq->ci += (uint16_t)(done.wqe_counter - s.sq->ci) + 1u;
		ret_syndromes[n] = done.syndrome;
	}
	assert_int_equal(ibv_poll_cq(s.ibv_cq_object, 1, &(struct ibv_wc){0}), 0);
	assert_false(dv_cq_has(&s.cq));
}

/*
 * Posts all work requests to both queues, compares the WQEs, and reaps the completions of signalled
 * and failed ones.
 */
static void both(const struct work *works, unsigned count)
{
	uint32_t indices[SIDE_DEPTH] = {0}, pi = s.sq->pi;
	uint8_t syndromes[SIDE_DEPTH];
	unsigned loud = 0;
	bool failed = false;

	assert_int_equal(pi, ibv_pi);
	for (unsigned i = 0; i < count; i++) {
		uint32_t index = s.sq->pi;

		post_ibv(&works[i], index);
		assert_int_equal(post_hot(&works[i]), index);
		compare_wqe(index, works[i].sges);
		failed |= works[i].syndrome != 0;
		if (!works[i].quiet || failed)
			indices[loud++] = index;
	}
	reap(loud, indices, syndromes);
	for (unsigned i = 0, n = 0; i < count && n < loud; i++)
		if (!works[i].quiet || works[i].syndrome)
			assert_int_equal(syndromes[n++], works[i].syndrome);
	s.sq->ci = s.sq->pi;
}

static void reads_and_writes_of_every_shape_are_the_same(void **state)
{
	static const struct work works[] = {
		{.opcode = DV_READ, .sges = 1, .bytes = {64}},
		{.opcode = DV_WRITE, .sges = 1, .bytes = {64}},
		{.opcode = DV_READ, .sges = 2, .bytes = {1, 4095}},
		{.opcode = DV_WRITE, .sges = 2, .bytes = {65536, 3}},
		{.opcode = DV_READ, .sges = 3, .bytes = {16, 32, 64}},
		{.opcode = DV_WRITE, .sges = 3, .bytes = {5, 6, 7}},
		{.opcode = DV_READ, .sges = 1, .bytes = {SIDE_BYTES}},
	};

	for (unsigned i = 0; i < sizeof(works) / sizeof(works[0]); i++)
		both(&works[i], 1);
}

/* The queue has SIDE_DEPTH WQEBBs, so every length starts at every position and wraps. */
static void any_number_of_segments_at_any_position_is_the_same(void **state)
{
	static const struct work one = {.opcode = DV_READ, .sges = 1, .bytes = {64}};

	for (unsigned sges = 1; sges <= DV_SGES_MAX; sges++) {
		struct work work = {.opcode = sges % 2 ? DV_READ : DV_WRITE, .sges = sges};

		for (unsigned i = 0; i < sges; i++)
			work.bytes[i] = 1 + i * 37;
		for (unsigned start = 0; start < SIDE_DEPTH; start++) {
			while (s.sq->pi % SIDE_DEPTH != start)
				both(&one, 1);
			both(&work, 1);
		}
	}
}

static void a_read_moves_the_bytes_unchanged(void **state)
{
	static const struct work read = {.opcode = DV_READ, .sges = 2, .bytes = {4096, 100}};

	for (unsigned i = 0; i < 8192; i++)
		s.remote[i] = (uint8_t)(i * 7 + 1);
	both(&read, 1);
	assert_memory_equal(s.local, s.remote, 4196);
}

static void the_queue_wraps_the_same_in_the_middle_of_a_wqe(void **state)
{
	static const struct work one = {.opcode = DV_READ, .sges = 1, .bytes = {64}};
	static const struct work three = {.opcode = DV_WRITE, .sges = 3, .bytes = {9, 9, 9}};

	for (unsigned i = 0; i < SIDE_DEPTH - 1; i++)
		both(&one, 1);
	assert_int_equal(s.sq->pi % SIDE_DEPTH, SIDE_DEPTH - 1);
	both(&three, 1); /* the third segment of this WQE wraps to the first WQEBB of the queue */
	for (unsigned i = 0; i < 5 * SIDE_DEPTH; i++)
		both(i % 3 ? &one : &three, 1);
}

static void unsignalled_work_completes_with_the_next_signalled_wqe(void **state)
{
	static const struct work works[] = {
		{.opcode = DV_READ, .sges = 1, .bytes = {64}, .quiet = true},
		{.opcode = DV_WRITE, .sges = 1, .bytes = {64}, .quiet = true},
		{.opcode = DV_READ, .sges = 1, .bytes = {64}, .quiet = true},
		{.opcode = DV_READ, .sges = 1, .bytes = {64}},
	};

	for (unsigned i = 0; i < 20; i++)
		both(works, 4);
}

static void fails_with(struct work work, uint8_t syndrome)
{
	struct work works[4] = {
		{.opcode = DV_READ, .sges = 1, .bytes = {64}},
		work,
		{.opcode = DV_READ, .sges = 1, .bytes = {64}, .syndrome = DV_SYNDROME_FLUSHED},
		{.opcode = DV_WRITE,
			.sges = 1,
			.bytes = {64},
			.quiet = true,
			.syndrome = DV_SYNDROME_FLUSHED},
	};

	works[1].syndrome = syndrome;
	both(works, 4);
}

static void a_bad_rkey_fails_and_flushes_the_same(void **state)
{
	fails_with((struct work){.opcode = DV_READ, .sges = 1, .bytes = {64}, .rkey_off = 1},
		DV_SYNDROME_REMOTE_ACCESS);
}

static void a_remote_address_past_its_region_fails_and_flushes_the_same(void **state)
{
	fails_with((struct work){.opcode = DV_WRITE,
			   .sges = 1,
			   .bytes = {64},
			   .quiet = true,
			   .remote_off = SIDE_BYTES - 63},
		DV_SYNDROME_REMOTE_ACCESS);
}

static void a_bad_lkey_fails_and_flushes_the_same(void **state)
{
	fails_with((struct work){.opcode = DV_READ, .sges = 2, .bytes = {8, 8}, .lkey_off = 1},
		DV_SYNDROME_LOCAL_PROTECTION);
}

static void a_stopped_peer_fails_and_flushes_the_same(void **state)
{
	struct work works[2] = {
		{.opcode = DV_READ,
			.sges = 1,
			.bytes = {64},
			.syndrome = DV_SYNDROME_RETRY_EXCEEDED},
		{.opcode = DV_READ, .sges = 1, .bytes = {64}, .syndrome = DV_SYNDROME_FLUSHED},
	};

	good(dv_qp_error(s.answers[0]));
	good(dv_qp_error(s.answers[1]));
	both(works, 2);
}

static void a_queue_pair_that_starts_anew_writes_the_same_bytes(void **state)
{
	static const struct work read = {.opcode = DV_READ, .sges = 1, .bytes = {64}};
	static const struct work bad = {.opcode = DV_READ, .sges = 1, .bytes = {64}, .rkey_off = 1};

	for (unsigned round = 0; round < 3; round++) {
		fails_with(bad, DV_SYNDROME_REMOTE_ACCESS);
		side_reconnect(&s);
		ibv_pi = 0;
		both(&read, 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			reads_and_writes_of_every_shape_are_the_same, setup, teardown),
		cmocka_unit_test_setup_teardown(
			any_number_of_segments_at_any_position_is_the_same, setup, teardown),
		cmocka_unit_test_setup_teardown(a_read_moves_the_bytes_unchanged, setup, teardown),
		cmocka_unit_test_setup_teardown(
			the_queue_wraps_the_same_in_the_middle_of_a_wqe, setup, teardown),
		cmocka_unit_test_setup_teardown(
			unsignalled_work_completes_with_the_next_signalled_wqe, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_bad_rkey_fails_and_flushes_the_same, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_remote_address_past_its_region_fails_and_flushes_the_same, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			a_bad_lkey_fails_and_flushes_the_same, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_stopped_peer_fails_and_flushes_the_same, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_queue_pair_that_starts_anew_writes_the_same_bytes, setup, teardown),
	};

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
