/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue pair set to error returns every WQE once and writes nothing afterwards: WQEs posted, WQEs
 * in flight, and READs whose answer is half received over TCP.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "config/clock.h"
#include "dv/soft/tcp.h"
#include "tests/soft/pair.h"

/*
 * Returns the opcode in the CQE at `index`: libmlx5 tells from it the operation, flushed or done.
 */
static enum dv_opcode opcode_of(const struct end *end, uint32_t index)
{
	const struct dv_cq *cq = &end->cq;
	const uint8_t *next = cq->buf + ((index & (cq->cqe_cnt - 1)) + 1) * (size_t)cq->cqe_size;
	const struct mlx5_cqe64 *cqe = (const void *)(next - sizeof(*cqe));

	return be32toh(cqe->sop_drop_qpn) >> 24;
}

static void every_posted_wqe_is_flushed_with_one_cqe(void **state)
{
	static struct end a, b;
	struct dv_soft_stats stats;

	pair_open(&a, &b, "shm", 1);
	for (unsigned i = 0; i < 20; i++)
		end_post(&a, 0, i % 2 ? DV_WRITE : DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 64,
			DV_CE_ERROR_ONLY);
	dv_ring(a.sqs[0]);
	/* the NIC is not stepped between the posting and this error */
	pair_good(dv_qp_error(a.qps[0]));
	assert_int_equal(end_reap(&a), 20);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(a.done[i].syndrome, DV_SYNDROME_FLUSHED);
		assert_int_equal(a.done[i].wqe_counter, i);
		assert_int_equal(opcode_of(&a, i), i % 2 ? DV_WRITE : DV_READ);
	}
	assert_int_equal(a.sqs[0]->ci, a.sqs[0]->pi);
	/* a WQE that is posted to a queue pair in error is flushed as well */
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 64, DV_CE_ERROR_ONLY);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 21);
	assert_int_equal(a.done[20].syndrome, DV_SYNDROME_FLUSHED);
	dv_soft_stats(a.device, &stats);
	assert_int_equal(stats.flushed, 21);
	assert_int_equal(stats.reads, 0);
	/* a second dv_qp_error() on the queue pair flushes nothing more */
	pair_good(dv_qp_error(a.qps[0]));
	assert_int_equal(end_reap(&a), 0);
	end_close(&a);
	end_close(&b);
}

/*
 * An error completion also says that the unsignalled READs before it are done; the rail relies on
 * it.
 */
static void an_error_among_unsignalled_reads_is_reported_and_earlier_ones_are_done(void **state)
{
	static struct end a, b;
	struct dv_fault fault = {.error_at = 3, .error_syndrome = DV_SYNDROME_REMOTE_ACCESS};

	pair_open(&a, &b, "shm", 1);
	end_fill(&b, 1);
	for (unsigned i = 0; i < 8; i++)
		end_post(&a, 0, DV_READ, 64 * i, (uintptr_t)b.memory + 64 * i, b.mr.rkey, 64,
			DV_CE_ERROR_ONLY);
	dv_signal_last(a.sqs[0]);
	fault.error_qpn = a.sqs[0]->qpn;
	dv_soft_faults(a.device, &fault);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 5);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(a.done[i].wqe_counter, 3 + i);
		assert_int_equal(
			a.done[i].syndrome, i ? DV_SYNDROME_FLUSHED : DV_SYNDROME_REMOTE_ACCESS);
	}
	assert_int_equal(a.sqs[0]->ci, a.sqs[0]->pi);
	assert_memory_equal(a.memory, b.memory, 3 * 64);
	for (unsigned i = 3 * 64; i < 8 * 64; i++)
		assert_int_equal(a.memory[i], 0);
	end_close(&a);
	end_close(&b);
}

static void the_completion_of_the_last_read_covers_all_before_it(void **state)
{
	static struct end a, b;

	pair_open(&a, &b, "shm", 1);
	end_fill(&b, 1);
	for (unsigned i = 0; i < 8; i++)
		end_post(&a, 0, DV_READ, 64 * i, (uintptr_t)b.memory + 64 * i, b.mr.rkey, 64,
			DV_CE_ERROR_ONLY);
	dv_signal_last(a.sqs[0]);
	dv_ring(a.sqs[0]);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].wqe_counter, 7);
	assert_int_equal(a.done[0].syndrome, 0);
	assert_int_equal(a.sqs[0]->ci, a.sqs[0]->pi);
	assert_memory_equal(a.memory, b.memory, 8 * 64);
	end_close(&a);
	end_close(&b);
}

static void executed_reads_complete_and_the_rest_is_flushed(void **state)
{
	static struct end a, b;
	struct dv_fault fault = {.seed = 3, .piece_bytes = 4096};

	pair_open(&a, &b, "shm", 1);
	end_fill(&b, 1);
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 4096, DV_CE_ALWAYS);
	end_post(&a, 0, DV_READ, 65536, (uintptr_t)b.memory, b.mr.rkey, 65536, DV_CE_ALWAYS);
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 4096, DV_CE_ALWAYS);
	dv_soft_faults(a.device, &fault);
	dv_ring(a.sqs[0]);
	for (unsigned i = 0; i < 5; i++)
		dv_step(a.device); /* this step ends in the middle of the second READ */
	pair_good(dv_qp_error(a.qps[0]));
	assert_int_equal(end_reap(&a), 3);
	assert_int_equal(a.done[0].syndrome, 0);
	assert_int_equal(a.done[1].syndrome, DV_SYNDROME_FLUSHED);
	assert_int_equal(a.done[2].syndrome, DV_SYNDROME_FLUSHED);
	memset(a.memory, 0, 131072);
	for (unsigned i = 0; i < 30; i++)
		dv_step(a.device);
	for (unsigned i = 0; i < 131072; i++)
		assert_int_equal(a.memory[i], 0);
	end_close(&a);
	end_close(&b);
}

static void a_delayed_completion_is_not_lost(void **state)
{
	static struct end a, b;
	struct dv_fault fault = {.seed = 3, .delay_steps_max = 100000};

	pair_open(&a, &b, "shm", 1);
	dv_soft_faults(a.device, &fault);
	end_post(&a, 0, DV_READ, 0, (uintptr_t)b.memory, b.mr.rkey, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	dv_step(a.device);
	assert_int_equal(end_reap(&a), 0);
	pair_good(dv_qp_error(a.qps[0]));
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.done[0].syndrome, 0);
	end_close(&a);
	end_close(&b);
}

/* ---- a server that stops in the middle of an answer ------------------------------------------ */

struct server {
	int listen_fd, fd;
	struct dv_address address;
	struct tcp_request request;
};

static void server_open(struct server *server)
{
	struct sockaddr_in name = {.sin_family = AF_INET};
	socklen_t bytes = sizeof(name);

	name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	server->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(server->listen_fd, (void *)&name, sizeof(name)), 0);
	assert_int_equal(listen(server->listen_fd, 1), 0);
	assert_int_equal(getsockname(server->listen_fd, (void *)&name, &bytes), 0);
	server->address = (struct dv_address){.version = 1,
		.kind = 3,
		.qpn = 1,
		.tcp_port = ntohs(name.sin_port),
		.gid = {[10] = 0xff, 0xff, 127, 0, 0, 1}};
}

/*
 * Accepts the connection of the NIC under test and steps `end` until the NIC's request has arrived.
 */
static void server_take(struct server *server, struct end *end)
{
	while ((server->fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC)) < 0)
		dv_step(end->device);
	while (recv(server->fd, &server->request, sizeof(server->request),
		       MSG_DONTWAIT | MSG_PEEK) != sizeof(server->request))
		dv_step(end->device);
	assert_int_equal(recv(server->fd, &server->request, sizeof(server->request), 0),
		sizeof(server->request));
}

static void server_send(struct server *server, const void *bytes, size_t count)
{
	assert_int_equal(send(server->fd, bytes, count, MSG_NOSIGNAL), count);
}

/*
 * Reads a byte that the NIC may be writing. The race is intended, so ThreadSanitizer must ignore
 * this function.
 */
__attribute__((no_sanitize("thread"))) static uint8_t peek(const volatile uint8_t *at)
{
	return *at;
}

static void a_half_received_read_writes_nothing_after_it_was_flushed(void **state)
{
	static struct end a;
	static uint8_t payload[65536];
	struct tcp_answer answer = {.magic = TCP_MAGIC, .length = sizeof(payload)};
	uint64_t deadline = clock_monotonic_ns() + PATIENCE_NS;
	struct server server;
	uint8_t byte;

	server_open(&server);
	end_open(&a, "tcp", 1);
	pair_good(dv_qp_connect(a.qps[0], &server.address));
	end_post(&a, 0, DV_READ, 0, 4096, 77, sizeof(payload), DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	server_take(&server, &a);
	assert_int_equal(server.request.ask.rkey, 77);
	assert_int_equal(server.request.ask.length, sizeof(payload));
	answer.id = server.request.id;
	memset(payload, 0x99, sizeof(payload));
	server_send(&server, &answer, sizeof(answer));
	server_send(&server, payload, 20000);
	/* waits until the first part of the payload has arrived */
	while (peek(&a.memory[19999]) != 0x99)
		assert_true(clock_monotonic_ns() < deadline);
	pair_good(dv_qp_error(a.qps[0]));
	assert_int_equal(end_reap(&a), 1);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_FLUSHED);
	memset(a.memory, 0, sizeof(payload));
	server_send(&server, payload, sizeof(payload) - 20000);
	/*
	 * An answer that no request waits for and that is invalid: the NIC closes the link once it
	 * has read everything before it.
	 */
	memset(&answer, 0, sizeof(answer));
	server_send(&server, &answer, sizeof(answer));
	assert_true(recv(server.fd, &byte, 1, 0) <= 0);
	for (size_t i = 0; i < sizeof(payload); i++)
		assert_int_equal(a.memory[i], 0);
	end_close(&a);
	close(server.fd);
	close(server.listen_fd);
}

static void an_answer_of_another_length_closes_the_link(void **state)
{
	static struct end a;
	struct tcp_answer answer = {.magic = TCP_MAGIC, .length = 65};
	struct server server;
	uint8_t byte;

	server_open(&server);
	end_open(&a, "tcp", 1);
	pair_good(dv_qp_connect(a.qps[0], &server.address));
	end_post(&a, 0, DV_READ, 0, 4096, 77, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	server_take(&server, &a);
	answer.id = server.request.id;
	server_send(&server, &answer, sizeof(answer));
	assert_true(recv(server.fd, &byte, 1, 0) <= 0);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_RETRY_EXCEEDED);
	end_close(&a);
	close(server.fd);
	close(server.listen_fd);
}

static void a_read_from_a_silent_server_fails_after_the_timeout(void **state)
{
	static struct end a;
	struct server server;

	server_open(&server);
	end_open(&a, "tcp", 1);
	dv_soft_patience(a.device, 100000000, 0);
	pair_good(dv_qp_connect(a.qps[0], &server.address));
	end_post(&a, 0, DV_READ, 0, 4096, 77, 64, DV_CE_ALWAYS);
	dv_ring(a.sqs[0]);
	server_take(&server, &a);
	end_wait(&a, NULL, 1);
	assert_int_equal(a.done[0].syndrome, DV_SYNDROME_RETRY_EXCEEDED);
	end_close(&a);
	close(server.fd);
	close(server.listen_fd);
}

/* ---- setup calls beside a stepping thread ---------------------------------------------------- */

static void *step_and_count(void *argument)
{
	struct end *end = argument;
	uint64_t deadline = clock_monotonic_ns() + PATIENCE_NS;
	struct dv_completion done[64];
	uintptr_t count = 0;

	while (count < 5000 && clock_monotonic_ns() < deadline) {
		while (dv_sq_room(end->sqs[0]) > 0)
			end_post(end, 0, DV_READ, 0, (uintptr_t)end->memory + 65536, end->mr.rkey,
				4096, DV_CE_ALWAYS);
		dv_ring(end->sqs[0]);
		dv_step(end->device);
		for (unsigned n = dv_poll(&end->cq, done, 64); n; n--, count++)
			end->sqs[0]->ci++;
	}
	return (void *)count;
}

static void setup_calls_neither_disturb_a_poll_core_nor_starve(void **state)
{
	static struct end a;
	struct card card;
	pthread_t thread;
	void *count;

	end_open(&a, "shm", 1);
	end_card(&a, &card);
	end_connect(&a, &card);
	assert_int_equal(pthread_create(&thread, NULL, step_and_count, &a), 0);
	for (unsigned i = 0; i < 300; i++) {
		struct dv_cq cq;
		struct dv_qp *qp;
		struct dv_sq *sq;
		struct dv_mr mr;

		pair_good(dv_mr_register(a.device,
			&(struct dv_memory){.base = a.memory,
				.length = 4096,
				.access = DV_REMOTE_READ,
				.memfd = a.memfd},
			&mr));
		pair_good(dv_cq_create(a.device, 16, &cq));
		pair_good(dv_qp_create(a.device, &cq, 16, &qp, &sq));
		pair_good(dv_qp_connect(qp, &card.addresses[0]));
		pair_good(dv_qp_error(qp));
		dv_qp_destroy(qp);
		dv_cq_destroy(a.device, &cq);
		pair_good(dv_mr_deregister(a.device, &mr));
	}
	pthread_join(thread, &count);
	assert_true((uintptr_t)count >= 5000);
	end_close(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_posted_wqe_is_flushed_with_one_cqe),
		cmocka_unit_test(
			an_error_among_unsignalled_reads_is_reported_and_earlier_ones_are_done),
		cmocka_unit_test(the_completion_of_the_last_read_covers_all_before_it),
		cmocka_unit_test(executed_reads_complete_and_the_rest_is_flushed),
		cmocka_unit_test(a_delayed_completion_is_not_lost),
		cmocka_unit_test(a_half_received_read_writes_nothing_after_it_was_flushed),
		cmocka_unit_test(an_answer_of_another_length_closes_the_link),
		cmocka_unit_test(a_read_from_a_silent_server_fails_after_the_timeout),
		cmocka_unit_test(setup_calls_neither_disturb_a_poll_core_nor_starve),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
