/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what a software NIC reads from the TCP link before it knows the sender: requests, which
 * need the token of a queue pair. The first byte says in pieces of how many bytes they come; each
 * 72 bytes of the rest are a change of a request that may be served: what is 0 stays. An answer has
 * the bytes that were requested, only of memory that is open, and only for a request with the
 * token. Runs with libFuzzer when built for it; otherwise main() replays changes. One thread beside
 * the NIC's own, which has no connection.
 */
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "config/log.h"
#include "dv/setup.h"
#include "dv/soft/soft.h"
#include "dv/soft/tcp.h"
#include "tests/fuzz/require.h"

#define REQUESTS_MAX 64u
#define OPEN_BYTES 4096u

static uint8_t memory[2 * OPEN_BYTES]; /* the second half is registered for the NIC alone */
static struct dv_device *nic;
static struct tcp_request valid;
static unsigned long served, refused, closed;

static void open_once(void)
{
	static struct dv_cq cq;
	static struct dv_mr mr[2];
	struct dv_options options = {.name = "soft", .link = "tcp"};
	struct dv_memory part = {
		.base = memory, .length = OPEN_BYTES, .access = DV_REMOTE_READ, .memfd = -1};
	struct dv_address address;
	struct dv_qp *qp;
	struct dv_sq *sq;

	if (nic)
		return;
	log_level_set(LOG_ERROR);
	for (unsigned i = 0; i < sizeof(memory); i++)
		memory[i] = i < OPEN_BYTES ? (uint8_t)(i * 7 + (i >> 8)) : 0;
	require(dv_open(&options, &nic) == 0 && dv_cq_create(nic, 64, &cq) == 0);
	require(dv_qp_create(nic, &cq, 16, &qp, &sq) == 0);
	dv_qp_address(qp, &address);
	require(dv_qp_connect(qp, &address) == 0 && dv_mr_register(nic, &part, &mr[0]) == 0);
	part.base = memory + OPEN_BYTES;
	part.access = DV_LOCAL_WRITE;
	require(dv_mr_register(nic, &part, &mr[1]) == 0);
	valid = (struct tcp_request){.magic = TCP_MAGIC,
		.opcode = MLX5_OPCODE_RDMA_READ,
		.ask = {.dest_qpn = address.qpn,
			.dest_psn = address.psn,
			.src_qpn = address.qpn,
			.src_psn = address.psn,
			.rkey = mr[0].rkey,
			.access = DV_REMOTE_READ,
			.address = (uintptr_t)memory,
			.length = 64}};
	memcpy(valid.token, address.token, DV_TOKEN_BYTES);
}

/* The whole answers among these bytes; returns the number of bytes that they take. */
static size_t answers_check(const uint8_t *got, size_t bytes, const struct tcp_request *request)
{
	size_t at = 0;
	struct tcp_answer answer;

	while (bytes - at >= sizeof(answer)) {
		const struct tcp_request *of;

		memcpy(&answer, got + at, sizeof(answer));
		require(answer.magic == TCP_MAGIC && answer.id < REQUESTS_MAX);
		require(answer.length <= OPEN_BYTES);
		if (bytes - at < sizeof(answer) + answer.length)
			break;
		of = &request[answer.id];
		served += answer.result == 0;
		refused += answer.result != 0;
		require(answer.length == (answer.result == 0 ? of->ask.length : 0));
		require(answer.result != 0 || !memcmp(of->token, valid.token, DV_TOKEN_BYTES));
		require(!answer.length || of->ask.rkey == valid.ask.rkey);
		require(!answer.length ||
			!memcmp(got + at + sizeof(answer),
				memory + (of->ask.address - (uintptr_t)memory), answer.length));
		at += sizeof(answer) + answer.length;
	}
	return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct tcp_request request[REQUESTS_MAX];
	static uint8_t got[REQUESTS_MAX * (sizeof(struct tcp_answer) + OPEN_BYTES)];
	size_t piece = size ? data[0] + 1u : 1, count = size / sizeof(valid), have = 0;
	struct soft_conn conn = {.gone = false};
	bool alive = true;
	int fd[2];

	open_once();
	if (count > REQUESTS_MAX)
		count = REQUESTS_MAX;
	for (size_t i = 0; i < count; i++) {
		uint8_t *to = (uint8_t *)&request[i];

		request[i] = valid;
		for (size_t b = 0; b < sizeof(valid) && 1 + i * sizeof(valid) + b < size; b++)
			to[b] ^= data[1 + i * sizeof(valid) + b];
		request[i].id = i;
	}
	require(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd));
	conn.fd = fd[0];
	conn.serve = soft_serve_open();
	require(conn.serve);
	for (size_t at = 0; at < count * sizeof(valid) && alive; at += piece) {
		size_t left = count * sizeof(valid) - at;
		ssize_t n;

		require(send(fd[1], (uint8_t *)request + at, left < piece ? left : piece, 0) > 0);
		alive = soft_serve(nic, &conn);
		while ((n = recv(fd[1], got + have, sizeof(got) - have, MSG_DONTWAIT)) > 0)
			have += (size_t)n;
	}
	require(answers_check(got, have, request) == have || !alive);
	closed += !alive;
	free(conn.serve);
	close(fd[0]);
	close(fd[1]);
	return 0;
}

#ifndef FUZZ_LIBFUZZER

/* Changes of up to three fields in one of a few requests. SEED repeats the run that printed it. */
int main(void)
{
	static uint8_t data[1 + 8 * sizeof(valid)];
	const char *given = getenv("SEED");
	unsigned seed = given ? (unsigned)atoi(given) : (unsigned)time(NULL);

	printf("SEED=%u\n", seed);
	srandom(seed);
	for (unsigned round = 0; round < 20000; round++) {
		memset(data, 0, sizeof(data));
		data[0] = (uint8_t)random();
		for (unsigned n = (unsigned)random() % 4; n; n--)
			data[1 + (size_t)random() % (sizeof(data) - 1)] =
				(uint8_t)(random() % 2 ? 1u << random() % 8 : (unsigned)random());
		LLVMFuzzerTestOneInput(data, sizeof(data));
	}
	printf("%lu requests served, %lu refused, %lu connections closed\n", served, refused,
		closed);
	return served && refused && closed ? 0 : 1;
}

#endif
