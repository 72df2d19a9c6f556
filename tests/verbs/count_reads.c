/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs of 64 bytes on a queue pair that libmlx5 created: 32 are posted per doorbell and polled at
 * once, through libibverbs or through dv/hot.h, on the same device. test_instructions.py counts
 * them with callgrind; perf/wqe.py times them. One thread, besides those of the NICs.
 *
 *   count_reads hot|verbs ROUNDS
 */
#define SIDE_DEPTH 256u
#include "tests/verbs/side.h"

#define BATCH 32u

static struct side s;
static struct ibv_send_wr wrs[BATCH];
static struct ibv_sge sges[BATCH];

/*
 * The four functions whose instructions, with those of their callees, callgrind counts. None of
 * them waits.
 */
__attribute__((noinline)) static void count_verbs_post(void)
{
	struct ibv_send_wr *bad;

	if (ibv_post_send(s.ibv, wrs, &bad))
		abort();
}

__attribute__((noinline)) static void count_verbs_poll(void)
{
	struct ibv_wc wc[BATCH];

	if (ibv_poll_cq(s.ibv_cq_object, BATCH, wc) != BATCH)
		abort();
}

__attribute__((noinline)) static void count_hot_post(void)
{
	for (unsigned i = 0; i < BATCH; i++) {
		struct dv_sge sge = {sges[i].addr, sges[i].length, sges[i].lkey};

		dv_post(s.sq, DV_READ, wrs[i].wr.rdma.remote_addr, wrs[i].wr.rdma.rkey, &sge, 1,
			DV_CE_ALWAYS);
	}
	dv_ring(s.sq);
}

__attribute__((noinline)) static void count_hot_poll(void)
{
	struct dv_completion done[BATCH];

	if (dv_poll(&s.cq, done, BATCH) != BATCH)
		abort();
	s.sq->ci = s.sq->pi;
}

static void prepare(void)
{
	for (unsigned i = 0; i < BATCH; i++) {
		sges[i] = (struct ibv_sge){
			.addr = (uintptr_t)s.local + i * 64, .length = 64, .lkey = s.local_mr.lkey};
		wrs[i] = (struct ibv_send_wr){
			.wr_id = i,
			.next = i + 1 < BATCH ? &wrs[i + 1] : NULL,
			.sg_list = &sges[i],
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_READ,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {.remote_addr = (uintptr_t)s.remote + i * 64,
				.rkey = s.remote_mr.rkey},
		};
	}
}

int main(int argc, char **argv)
{
	bool hot = argc > 1 && strcmp(argv[1], "hot") == 0;
	long rounds = argc > 2 ? strtol(argv[2], NULL, 0) : 100;
	uint64_t post_ns = 0, poll_ns = 0;

	setenv("SOFT_CONNECTX_DEVICES", "2", 1);
	side_open(&s);
	prepare();
	for (long i = 0; i < rounds; i++) {
		struct dv_cq *cq = hot ? &s.cq : &s.ibv_cq;
		uint64_t started = now_ns();

		hot ? count_hot_post() : count_verbs_post();
		post_ns += now_ns() - started;
		if (!side_cqe(cq, BATCH - 1, PATIENCE_NS))
			return 1;
		started = now_ns();
		hot ? count_hot_poll() : count_verbs_poll();
		poll_ns += now_ns() - started;
		if (!hot)
			cq->ci += BATCH;
	}
	printf("reads %ld post_ns %.1f poll_ns %.1f\n", rounds * BATCH,
		(double)post_ns / (double)(rounds * BATCH),
		(double)poll_ns / (double)(rounds * BATCH));
	return 0;
}
