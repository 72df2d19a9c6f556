/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The links to other processes, shared memory and TCP. A forked child serves READs while its main
 * thread reads commands from a socket; one test kills it with READs in flight.
 */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "config/clock.h"
#include "dv/soft/tcp.h"
#include "tests/emulated.h"
#include "tests/sanitized.h"
#include "tests/soft/child.h"

/* ---- tests that run over each link ----------------------------------------------------------- */

static void memory_of_another_process_is_read(void **state)
{
	static const uint32_t sizes[] = {1, 31, 32, 4096, 65536, 262144, 1000003, 3u << 20};
	struct child child;
	static struct end a;

	both_open(&a, &child, *state);
	for (unsigned i = 0; i < 8; i++) {
		end_post(&a, i % 2, DV_READ, 13, child.card.base + 4097 * i, child.card.rkey,
			sizes[i], DV_CE_ALWAYS);
		dv_ring(a.sqs[i % 2]);
		end_wait(&a, NULL, i + 1);
		assert_int_equal(a.done[i].syndrome, 0);
		expect_bytes(&a, 13, 4097 * i, sizes[i]);
	}
	end_close(&a);
	child_stop(&child, false);
}

static void many_scattered_reads_are_in_flight_at_once(void **state)
{
	struct child child;
	static struct end a;
	unsigned count = 0;

	both_open(&a, &child, *state);
	for (unsigned round = 0; round < 40; round++) {
		for (unsigned i = 0; i < 50; i++) {
			uint64_t at = (uintptr_t)a.memory + i * 40000;
			struct dv_sge sges[3] = {{at, 7000, a.mr.lkey}, {at + 7000, 1, a.mr.lkey},
				{at + 7001, 20000, a.mr.lkey}};

			if (i < 25)
				dv_post(a.sqs[i % 2], DV_READ, child.card.base + i * 1000 + round,
					child.card.rkey, sges, 3, i % 5 == 4 ? DV_CE_ALWAYS : 0);
			else
				dv_post(a.sqs[i % 2], DV_READ, child.card.base + i * 1000 + round,
					child.card.rkey, sges, 1, i >= 48 ? DV_CE_ALWAYS : 0);
		}
		dv_ring(a.sqs[0]);
		dv_ring(a.sqs[1]);
		end_wait(&a, NULL, count += 7);
		for (unsigned i = 0; i < 50; i++)
			expect_bytes(&a, i * 40000, i * 1000 + round, i < 25 ? 27001 : 7000);
		memset(a.memory, 0, 50 * 40000);
	}
	end_close(&a);
	child_stop(&child, false);
}

static void memory_of_another_process_is_written(void **state)
{
	struct child child;
	static struct end a;

	both_open(&a, &child, *state);
	memset(a.memory, 0, 200000);
	end_post(&a, 0, DV_WRITE, 0, child.card.base, child.card.rkey, 200000, DV_CE_ERROR_ONLY);
	memset(a.memory + 300000, 0x77, 100000);
	end_post(&a, 0, DV_WRITE, 300000, child.card.base + 5000, child.card.rkey, 100000, 0);
	/* the READ returns the bytes that the WRITE before it on this queue pair has written */
	end_post(&a, 0, DV_READ, 500000, child.card.base + 5000, child.card.rkey, 100000,
		DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, 0);
	assert_int_equal(child_tell(&child, 'v', NULL, 0), 1);
	assert_memory_equal(a.memory + 300000, a.memory + 500000, 100000);
	end_close(&a);
	child_stop(&child, false);
}

static void a_read_before_a_write_returns_the_bytes_before_the_write(void **state)
{
	struct child child;
	static struct end a;

	both_open(&a, &child, *state);
	/* the READs move far more bytes than a socket buffer holds */
	for (unsigned i = 0; i < 4; i++)
		end_post(&a, 0, DV_READ, 0, child.card.base, child.card.rkey, 3u << 20, 0);
	end_post(&a, 0, DV_WRITE, 3u << 20, child.card.base + (2u << 20), child.card.rkey, 500000,
		DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, 0);
	expect_bytes(&a, 0, 0, 3u << 20);
	end_post(&a, 0, DV_READ, 0, child.card.base + (2u << 20), child.card.rkey, 500000,
		DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 2);
	assert_memory_equal(a.memory, a.memory + (3u << 20), 500000);
	end_close(&a);
	child_stop(&child, false);
}

static void memory_registered_after_connecting_is_read_until_deregistered(void **state)
{
	struct child child;
	static struct end a;
	struct card extra;

	both_open(&a, &child, *state);
	end_post(&a, 0, DV_READ, 0, child.card.base, child.card.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	extra = child_register(&child, 'e');
	for (unsigned i = 0; i < 2; i++) {
		end_post(&a, 0, DV_READ, 0, extra.base, extra.rkey, 65536, DV_CE_ALWAYS);
		dv_ring(a.sqs[0]);
		end_wait(&a, NULL, 2 + i);
		assert_int_equal(a.done[1 + i].syndrome, 0);
		assert_int_equal(a.memory[0] & a.memory[65535], 0xe7);
	}
	child_tell(&child, 'x', NULL, 0);
	end_post(&a, 0, DV_READ, 0, extra.base, extra.rkey, 64, DV_CE_ALWAYS);
	end_post(&a, 1, DV_READ, 0, child.card.base, child.card.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 4);
	assert_int_equal(a.done[3].syndrome, DV_SYNDROME_REMOTE_ACCESS);
	dv_ring(a.sqs[1]);
	end_wait(&a, NULL, 5); /* queue pair 1 still works after the error on queue pair 0 */
	assert_int_equal(a.done[4].syndrome, 0);
	end_close(&a);
	child_stop(&child, false);
}

static void bounds_and_rights_are_checked_by_the_responder(void **state)
{
	struct child child;
	static struct end a;
	struct card extra;
	/* over TCP the requester refuses each WRITE */
	bool sent = strcmp(*state, "shm") == 0;

	both_open(&a, &child, *state);
	extra = child_register(&child, 'e');
	end_post(&a, 0, DV_READ, 0, child.card.base + END_BYTES - 10, child.card.rkey, 11,
		DV_CE_ALWAYS);
	end_post(&a, 1, DV_WRITE, 0, extra.base, extra.rkey, 8, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	dv_ring(a.sqs[1]);
	end_wait(&a, NULL, 2);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_REMOTE_ACCESS);
	assert_int_equal(
		a.done[1].syndrome, sent ? DV_SYNDROME_REMOTE_ACCESS : DV_SYNDROME_LOCAL_QP_OP);
	end_close(&a);
	child_stop(&child, false);
}

static void memory_without_a_memfd_is_refused_over_shm_and_served_over_tcp(void **state)
{
	bool tcp = strcmp(*state, "tcp") == 0;
	struct dv_soft_stats stats;
	struct child child;
	static struct end a;
	struct card extra;

	both_open(&a, &child, *state);
	extra = child_register(&child, 'n');
	end_post(&a, 0, DV_READ, 0, extra.base, extra.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	dv_soft_stats(a.device, &stats);
	assert_int_equal(a.done[0].syndrome, tcp ? 0 : DV_SYNDROME_REMOTE_ACCESS);
	assert_int_equal(stats.unmappable, !tcp);
	end_close(&a);
	child_stop(&child, false);
}

/* Fills both send queues with READs. Returns the number of READs posted. */
static unsigned keep_reading(struct end *a, const struct child *child)
{
	unsigned posted = 0;

	for (unsigned q = 0; q < 2; q++) {
		while (dv_sq_room(a->sqs[q]) > 32) {
			end_post(a, q, DV_READ, 0, child->card.base, child->card.rkey, 262144,
				DV_CE_ALWAYS);
			posted++;
		}
		dv_ring(a->sqs[q]);
	}
	return posted;
}

static void every_read_ends_soon_after_the_peer_is_killed(void **state)
{
	unsigned posted = 0, failed = 0;
	uint64_t deadline = clock_monotonic_ns() + PATIENCE_NS;
	struct child child;
	static struct end a;
	int status;

	both_open(&a, &child, *state);
	/* the time limit of the NIC is one hour, so only the loss of the link can end the READs */
	dv_soft_patience(a.device, 3600000000000ull, 0);
	while (a.done_count < 200) {
		posted += keep_reading(&a, &child);
		dv_step(a.device);
		end_reap(&a);
	}
	kill(child.pid, SIGKILL);
	while (failed < 2) {
		posted += keep_reading(&a, &child);
		dv_step(a.device);
		end_reap(&a);
		failed = 0;
		for (unsigned i = 0; i < a.done_count; i++)
			failed += a.done[i].syndrome == DV_SYNDROME_RETRY_EXCEEDED;
		/*
		 * the kernel closes the socket late, so more READs succeed: the oldest 3500
		 * completions leave the list
		 */
		if (a.done_count > 3500) {
			memmove(a.done, a.done + 3500, (a.done_count - 3500) * sizeof(a.done[0]));
			a.done_count -= 3500;
			posted -= 3500;
		}
		assert_true(clock_monotonic_ns() < deadline);
	}
	end_wait(&a, NULL, posted); /* waits until all remaining READs are flushed */
	for (unsigned q = 0; q < 2; q++)
		assert_int_equal(a.sqs[q]->ci, a.sqs[q]->pi);
	waitpid(child.pid, &status, 0);
	close(child.socket);
	end_close(&a);
}

static void a_restarted_peer_is_reached_with_a_new_address(void **state)
{
	struct child child;
	struct card card;
	static struct end a;

#ifdef DV_UNDER_TSAN
	/* ThreadSanitizer does not support threads in a child forked from a threaded process */
	skip();
#endif
	/* AddressSanitizer: the child hangs in calloc() if the thread of `a` was in it */
	if (ADDRESS_SANITIZED)
		skip();
	both_open(&a, &child, *state);
	for (unsigned round = 0; round < 3; round++) {
		uint8_t first = 5;

		a.done_count = 0;
		end_post(&a, 0, DV_READ, 0, child.card.base, child.card.rkey, 4096, DV_CE_ALWAYS);
		dv_ring(a.sqs[0]);
		end_wait(&a, NULL, 1);
		assert_int_equal(a.done[0].syndrome, 0);
		expect_bytes(&a, 0, 0, 4096);
		child_stop(&child, true);
		end_post(&a, 0, DV_READ, 0, child.card.base, child.card.rkey, 4096, DV_CE_ALWAYS);
		dv_ring(a.sqs[0]);
		/*
		 * On a shm link the memory outlives the process that owned it: one or two READs may
		 * still succeed.
		 */
		end_wait(&a, NULL, 2);
		for (unsigned q = 0; q < 2; q++) {
			pair_good(dv_qp_error(a.qps[q]));
			end_reap(&a);
			end_renew(&a, q);
		}
		child_start(&child, *state);
		end_card(&a, &card);
		end_connect(&a, &child.card);
		child_tell(&child, 'c', &card, sizeof(card));
		child_tell(&child, 'f', &first, 1);
	}
	end_close(&a);
	child_stop(&child, false);
}

static void a_read_from_an_absent_peer_is_retried_and_then_fails(void **state)
{
	struct child child;
	static struct end a;

	child_start(&child, *state);
	child_stop(&child, true); /* the child process is killed before any end connects to it */
	end_open(&a, *state, 2);
	end_connect(&a, &child.card);
	dv_soft_patience(a.device, 0, 1000);
	end_post(&a, 0, DV_READ, 0, child.card.base, child.card.rkey, 64, DV_CE_ERROR_ONLY);
	end_post(&a, 0, DV_READ, 0, child.card.base, child.card.rkey, 64, DV_CE_ERROR_ONLY);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 2);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_RETRY_EXCEEDED);
	assert_int_equal(a.done[1].syndrome, DV_SYNDROME_FLUSHED);
	end_close(&a);
}

static int raw_connect(const struct dv_address *address)
{
	struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons(address->tcp_port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(&name.sin_addr, address->gid + 12, 4);
	assert_int_equal(connect(fd, (struct sockaddr *)&name, sizeof(name)), 0);
	return fd;
}

static void invalid_bytes_on_a_socket_close_only_that_socket(void **state)
{
	uint8_t nonsense[512], byte;
	struct card card;
	static struct end a;

	end_open(&a, "tcp", 1);
	end_card(&a, &card);
	end_connect(&a, &card);
	for (unsigned i = 0; i < 20; i++) {
		struct tcp_request request = {
			.magic = TCP_MAGIC, .opcode = MLX5_OPCODE_RDMA_READ, .ask = {.length = 64}};
		int fd = raw_connect(&card.addresses[0]);

		memset(nonsense, (int)(i * 13), sizeof(nonsense));
		if (i == 0) /* sends a request with another protocol version */
			request.magic++;
		else if (i == 1)
			request.opcode = MLX5_OPCODE_SEND;
		else if (i == 2)
			request.ask.length = (1ull << 31) + 1;
		else if (i == 3)
			request.opcode = MLX5_OPCODE_RDMA_WRITE;
		else if (i == 4) { /* all but the token */
			request.ask.dest_qpn = request.ask.src_qpn = card.addresses[0].qpn;
			request.ask.dest_psn = request.ask.src_psn = card.addresses[0].psn;
			request.ask.rkey = card.rkey;
			request.ask.address = card.base;
		}
		if (i < 5)
			memcpy(nonsense, &request, sizeof(request));
		must_write(fd, nonsense, i < 5 ? sizeof(request) : sizeof(request) + i * 20);
		assert_true(read(fd, &byte, 1) <= 0);
		close(fd);
	}
	end_post(&a, 0, DV_READ, 0, card.base + 4096, card.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, 0);
	end_close(&a);
}

static void a_request_over_tcp_reads_only_what_may_be_read(void **state)
{
	struct tcp_request request = {.magic = TCP_MAGIC, .opcode = MLX5_OPCODE_RDMA_READ, .id = 1};
	struct tcp_answer answer;
	struct card card;
	static struct end a;
	struct dv_mr mr;
	int fd;

	end_open(&a, "tcp", 1);
	end_card(&a, &card);
	end_connect(&a, &card);
	pair_good(dv_mr_register(a.device,
		&(struct dv_memory){.base = a.memory,
			.length = 4096,
			.access = DV_LOCAL_WRITE | DV_REMOTE_WRITE,
			.memfd = a.memfd},
		&mr));
	memcpy(request.token, card.addresses[0].token, sizeof(request.token));
	request.ask = (struct soft_ask){.dest_qpn = card.addresses[0].qpn,
		.dest_psn = card.addresses[0].psn,
		.src_qpn = card.addresses[0].qpn,
		.src_psn = card.addresses[0].psn,
		.rkey = mr.rkey,
		.access = DV_REMOTE_WRITE, /* what the request says of it does not count */
		.address = (uintptr_t)a.memory,
		.length = 64};
	fd = raw_connect(&card.addresses[0]);
	for (unsigned i = 0; i < 2; i++) {
		must_write(fd, &request, sizeof(request));
		must_read(fd, &answer, sizeof(answer));
		assert_int_equal(answer.length, i ? 64 : 0);
		assert_int_equal(answer.result == 0, i);
		request.ask.rkey = card.rkey; /* the second one may be read */
	}
	close(fd);
	pair_good(dv_mr_deregister(a.device, &mr));
	end_close(&a);
}

#define OVER(test, link)                                                                           \
	{                                                                                          \
		.name = #test "_over_" link, .test_func = test,                                    \
		.initial_state = (void *)(uintptr_t)link                                           \
	}
#define OVER_BOTH(test) OVER(test, "shm"), OVER(test, "tcp")

int main(void)
{
	if (EMULATED) {
		puts("skipped: qemu-user cannot start threads in a forked process");
		return 77;
	}
	const struct CMUnitTest tests[] = {
		OVER_BOTH(memory_of_another_process_is_read),
		OVER_BOTH(many_scattered_reads_are_in_flight_at_once),
		OVER(memory_of_another_process_is_written, "shm"),
		OVER(a_read_before_a_write_returns_the_bytes_before_the_write, "shm"),
		OVER_BOTH(memory_registered_after_connecting_is_read_until_deregistered),
		OVER_BOTH(bounds_and_rights_are_checked_by_the_responder),
		OVER_BOTH(memory_without_a_memfd_is_refused_over_shm_and_served_over_tcp),
		OVER_BOTH(every_read_ends_soon_after_the_peer_is_killed),
		OVER_BOTH(a_restarted_peer_is_reached_with_a_new_address),
		OVER_BOTH(a_read_from_an_absent_peer_is_retried_and_then_fails),
		cmocka_unit_test(invalid_bytes_on_a_socket_close_only_that_socket),
		cmocka_unit_test(a_request_over_tcp_reads_only_what_may_be_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
