/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs that the NIC moves in one batch: a doorbell rings several, each with bytes of its own. A
 * READ that fails in the middle stops its queue pair there: the READs before it are done, those
 * after it are flushed and have written nothing.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define SIDE_DEPTH 64u
#include "tests/verbs/side.h"

#define PAGE 4096u
#define READS 16u
#define UNTOUCHED 0xee

static struct side s;

static int setup(void **state)
{
	side_open(&s);
	memset(s.local, UNTOUCHED, SIDE_BYTES);
	for (unsigned i = 0; i < SIDE_BYTES; i++)
		s.remote[i] = (uint8_t)(i / PAGE * 31 + i % PAGE * 7 + 1);
	return 0;
}

static int teardown(void **state)
{
	side_close(&s);
	return 0;
}

static void post(enum dv_opcode opcode, uint32_t to, uint32_t from, uint32_t bytes, uint8_t flags)
{
	struct dv_sge sge = {(uintptr_t)s.local + to, bytes, s.local_mr.lkey};

	dv_post(s.sq, opcode, (uintptr_t)s.remote + from, s.remote_mr.rkey, &sge, 1,
		(uint8_t)(DV_CE_ALWAYS | flags));
}

static void reap_good(unsigned count)
{
	while (count--)
		assert_int_equal(side_reap(&s), 0);
}

static bool untouched(uint32_t from, uint32_t bytes)
{
	for (uint32_t i = from; i < from + bytes; i++)
		if (s.local[i] != UNTOUCHED)
			return false;
	return true;
}

static void reads_of_one_doorbell_each_get_their_own_bytes(void **state)
{
	static const uint32_t sizes[] = {PAGE, 32, 1, PAGE - 1, 3 * PAGE, 64, 100, 2 * PAGE};
	uint32_t seed = 1;

	for (unsigned round = 0; round < 200; round++) {
		uint32_t from[READS], bytes[READS], half = READS * 4 * PAGE;
		uint32_t base = round % 2 * half;

		memset(s.local, UNTOUCHED, 2 * half);
		for (unsigned i = 0; i < READS; i++) {
			seed = seed * 1664525 + 1013904223;
			bytes[i] = sizes[seed >> 29];
			/*
			 * often adjacent to the previous READ: the NIC can read both as one piece
			 */
			from[i] = i && seed & 0x10000 ? from[i - 1] + bytes[i - 1]
						      : (seed >> 8) % (SIDE_BYTES / 2);
			post(DV_READ, base + i * 4 * PAGE, from[i], bytes[i], 0);
		}
		dv_ring(s.sq);
		reap_good(READS);
		for (unsigned i = 0; i < READS; i++) {
			uint32_t to = base + i * 4 * PAGE;

			assert_memory_equal(s.local + to, s.remote + from[i], bytes[i]);
			assert_true(untouched(to + bytes[i], 4 * PAGE - bytes[i]));
		}
		/* the NIC wrote nothing to the destinations of the previous round */
		assert_true(untouched(half - base, half));
	}
}

static void reads_of_several_segments_are_scattered(void **state)
{
	for (unsigned i = 0; i < READS; i++) {
		uint64_t at = (uintptr_t)s.local + i * 2 * PAGE;
		struct dv_sge sge[3] = {{at, 10, s.local_mr.lkey}, {at + 100, 1, s.local_mr.lkey},
			{at + PAGE, 1000, s.local_mr.lkey}};

		dv_post(s.sq, DV_READ, (uintptr_t)s.remote + i * 1011, s.remote_mr.rkey, sge,
			i % 2 ? 3 : 2, DV_CE_ALWAYS);
	}
	dv_ring(s.sq);
	for (unsigned i = 0; i < READS; i++) {
		const uint8_t *at = s.local + i * 2 * PAGE, *from = s.remote + i * 1011;

		assert_non_null(side_cqe(&s.cq, i, PATIENCE_NS));
		assert_memory_equal(at, from, 10);
		assert_int_equal(at[100], from[10]);
		if (i % 2)
			assert_memory_equal(at + PAGE, from + 11, 1000);
		assert_true(untouched(i * 2 * PAGE + 10, 90));
	}
}

/* Each WRITE sends the bytes that the READ before it has read; the next READ gets them back. */
static void reads_and_writes_take_turns(void **state)
{
	for (unsigned round = 0; round < 100; round++) {
		memset(s.remote, (int)round, PAGE);
		for (uint32_t i = 0; i < 8; i++) {
			/* a small READ that the NIC can gather together with the next one */
			post(DV_READ, (2 * i + 1) * PAGE, 0, 8, 0);
			post(DV_READ, 2 * i * PAGE, i * PAGE, PAGE, 0);
			post(DV_WRITE, 2 * i * PAGE, (i + 1) * PAGE, PAGE, 0);
		}
		dv_ring(s.sq);
		reap_good(24);
		for (uint32_t i = 0; i < PAGE; i++)
			assert_int_equal(s.remote[8 * PAGE + i], (uint8_t)round);
	}
}

/*
 * A thread that keeps writing, like the owner of a page: each generation first into the head, then
 * into the payload.
 */
static void *bump(void *argument)
{
	uint32_t *head = (void *)(s.remote + 8 * PAGE), *payload = (void *)s.remote;

	for (uint32_t generation = 1; !dv_hint_load(argument); generation++) {
		/* the head gets the new generation before the payload is written */
		dv_guard_open(head, generation);
		for (unsigned i = 0; i < PAGE / sizeof(*payload); i++)
			dv_guard_open(&payload[i], generation);
	}
	return NULL;
}

static void a_head_is_never_older_than_the_payload_before_it(void **state)
{
	const uint32_t *word = (void *)s.local;
	uint32_t stop = 0, words = PAGE / sizeof(*word);
	pthread_t writer;

	memset(s.remote, 0, 9 * PAGE);
	assert_int_equal(pthread_create(&writer, NULL, bump, &stop), 0);
	for (unsigned round = 0; round < 300; round++) {
		for (uint32_t i = 0; i < 8; i++) {
			post(DV_READ, i * PAGE, 0, PAGE, 0);
			post(DV_READ, (8 + i) * PAGE, 8 * PAGE, 4, 0);
		}
		dv_ring(s.sq);
		reap_good(READS);
		for (uint32_t i = 0; i < 8; i++)
			for (uint32_t at = 0; at < words; at++)
				assert_true(word[(8 + i) * words] >= word[i * words + at]);
	}
	dv_hint_store(&stop, 1);
	pthread_join(writer, NULL);
}

/* ---- a READ fails in the middle -------------------------------------------------------------- */

/*
 * Checks all results: READ `bad` fails with `syndrome`, earlier ones are done, later ones are
 * flushed.
 */
static void ends_at(unsigned bad, uint8_t syndrome)
{
	dv_ring(s.sq);
	for (unsigned i = 0; i < READS; i++) {
		int expected = i < bad ? 0 : i == bad ? syndrome : DV_SYNDROME_FLUSHED;

		assert_int_equal(side_reap(&s), expected);
		if (i < bad)
			assert_memory_equal(s.local + i * 2 * PAGE, s.remote + i * PAGE, PAGE);
		else if (i > bad)
			assert_true(untouched(i * 2 * PAGE, 2 * PAGE));
	}
}

/* Makes the page of memory as inaccessible as an unmapped one, but keeps its address reserved. */
static void hide(uint8_t *page)
{
	assert_int_equal(mprotect(page, PAGE, PROT_NONE), 0);
}

static void again(void)
{
	teardown(NULL);
	setup(NULL);
}

static void a_bad_key_stops_the_batch_there(void **state)
{
	for (unsigned bad = 0; bad < READS; bad++) {
		for (unsigned i = 0; i < READS; i++) {
			struct dv_sge sge = {(uintptr_t)s.local + i * 2 * PAGE, PAGE,
				s.local_mr.lkey + (i == bad && bad % 2)};

			dv_post(s.sq, DV_READ, (uintptr_t)s.remote + i * PAGE,
				s.remote_mr.rkey + (i == bad && bad % 2 == 0), &sge, 1,
				DV_CE_ALWAYS);
		}
		ends_at(bad, bad % 2 ? DV_SYNDROME_LOCAL_PROTECTION : DV_SYNDROME_REMOTE_ACCESS);
		assert_true(untouched(bad * 2 * PAGE, 2 * PAGE));
		again();
	}
}

static void a_source_past_its_region_stops_the_batch_there(void **state)
{
	for (unsigned i = 0; i < READS; i++)
		post(DV_READ, i * 2 * PAGE, i == 5 ? SIDE_BYTES - PAGE + 1 : i * PAGE, PAGE, 0);
	ends_at(5, DV_SYNDROME_REMOTE_ACCESS);
	assert_true(untouched(5 * 2 * PAGE, PAGE));
}

/* All remote bytes are adjacent: they form one piece, which ends early at an unmapped page. */
static void an_unmapped_source_page_stops_the_batch_there(void **state)
{
	for (unsigned bad = 0; bad < READS; bad += 5) {
		for (unsigned i = 0; i < READS; i++)
			post(DV_READ, i * 2 * PAGE, i * PAGE, PAGE, 0);
		hide(s.remote + bad * PAGE);
		ends_at(bad, DV_SYNDROME_REMOTE_ACCESS);
		again();
	}
}

static void an_unmapped_destination_stops_the_batch_there(void **state)
{
	for (unsigned i = 0; i < READS; i++)
		post(DV_READ, i * 2 * PAGE, i * PAGE, PAGE, 0);
	hide(s.local + 2 * 9 * PAGE);
	ends_at(9, DV_SYNDROME_REMOTE_ACCESS);
}

/* ---- a peer that dies ------------------------------------------------------------------------ */

struct card {
	struct dv_address address;
	uint64_t base;
	uint32_t rkey;
};

/* The server process: registers its memory, connects, and serves READs until it is killed. */
static void serve(int from, int to)
{
	struct dv_options options = {.name = "mlx5_0", .gid_index = -1};
	struct dv_device *device;
	struct dv_address there;
	struct card card = {0};
	struct dv_cq cq;
	struct dv_qp *qp;
	struct dv_sq *sq;
	struct dv_mr mr;

	good(dv_open(&options, &device));
	good(dv_cq_create(device, 64, &cq));
	good(dv_qp_create(device, &cq, SIDE_DEPTH, &qp, &sq));
	memset(side_memory(device, DV_LOCAL_WRITE | DV_REMOTE_READ, &mr), 0x5a, SIDE_BYTES);
	dv_qp_address(qp, &card.address);
	card.base = (uintptr_t)mr.base;
	card.rkey = mr.rkey;
	if (write(to, &card, sizeof(card)) != sizeof(card) ||
		read(from, &there, sizeof(there)) != sizeof(there))
		_exit(1);
	good(dv_qp_connect(qp, &there));
	if (write(to, "", 1) != 1)
		_exit(1);
	/* the parent kills this process; if the parent exits first, read() returns 0 */
	_exit(read(from, &there, 1) != 0);
}

static void must_read(int fd, void *to, size_t bytes)
{
	assert_int_equal(read(fd, to, bytes), bytes);
}

/* Starts this program again as the server process, which opens ports of its own. */
static int start_server(void **state)
{
	static int pipes[3];
	char texts[2][16];
	int to[2], from[2];

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	snprintf(texts[0], sizeof(texts[0]), "%d", to[0]);
	snprintf(texts[1], sizeof(texts[1]), "%d", from[1]);
	pipes[0] = fork();
	if (!pipes[0]) {
		close(to[1]);
		execl("/proc/self/exe", "serve", texts[0], texts[1], (char *)NULL);
		_exit(2);
	}
	close(to[0]);
	close(from[1]);
	pipes[1] = to[1];
	pipes[2] = from[0];
	*state = pipes;
	return 0;
}

static void a_peer_killed_during_reads_gives_no_wrong_bytes(void **state)
{
	const int *pipes = *state;
	unsigned done = 0, failed = 0;
	struct dv_address here;
	struct card card;
	uint8_t byte;

	must_read(pipes[2], &card, sizeof(card));
	setup(NULL);
	side_renew(s.near, &s.cq, &s.hot, &s.sq);
	dv_qp_address(s.hot, &here);
	good(dv_qp_connect(s.hot, &card.address));
	assert_int_equal(write(pipes[1], &here, sizeof(here)), sizeof(here));
	must_read(pipes[2], &byte, 1);
	for (unsigned round = 0; !failed; round++) {
		memset(s.local, UNTOUCHED, READS * PAGE);
		for (unsigned i = 0; i < READS; i++) {
			struct dv_sge sge = {(uintptr_t)s.local + i * PAGE, PAGE, s.local_mr.lkey};

			dv_post(s.sq, DV_READ, card.base + i % 3 * PAGE, card.rkey, &sge, 1,
				DV_CE_ALWAYS);
		}
		dv_ring(s.sq);
		if (round == 20)
			kill(pipes[0], SIGKILL);
		for (unsigned i = 0; i < READS; i++) {
			int syndrome = side_reap(&s);

			if (!syndrome) {
				assert_false(failed);
				for (unsigned at = 0; at < PAGE; at++)
					assert_int_equal(s.local[i * PAGE + at], 0x5a);
				done++;
				continue;
			}
			/*
			 * its memory vanishes before its socket: the first failed READ may find
			 * either
			 */
			assert_true(failed++ ? syndrome == DV_SYNDROME_FLUSHED
					     : syndrome == DV_SYNDROME_RETRY_EXCEEDED ||
						       syndrome == DV_SYNDROME_REMOTE_ACCESS);
		}
	}
	assert_true(done >= 20 * READS);
	waitpid(pipes[0], NULL, 0);
	teardown(NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(int count, char **arguments)
{
	const struct CMUnitTest tests[] = {
		CASE(reads_of_one_doorbell_each_get_their_own_bytes),
		CASE(reads_of_several_segments_are_scattered),
		CASE(reads_and_writes_take_turns),
		CASE(a_head_is_never_older_than_the_payload_before_it),
		CASE(a_bad_key_stops_the_batch_there),
		CASE(a_source_past_its_region_stops_the_batch_there),
		CASE(an_unmapped_source_page_stops_the_batch_there),
		CASE(an_unmapped_destination_stops_the_batch_there),
		cmocka_unit_test_setup(
			a_peer_killed_during_reads_gives_no_wrong_bytes, start_server),
	};

	if (count == 3)
		serve(atoi(arguments[1]), atoi(arguments[2]));
	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
