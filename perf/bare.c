/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare loop: one thread posts READs with dv/hot.h and polls their completions over software
 * NICs whose peers are in another process. There are no rings, no validation and no engine, so the
 * cost is only that of the NIC and the link. saturate.py compares the engine with it.
 *
 *   bare --rails N --qps N --bytes N --window BYTES --seconds N [--heads] [--model MODEL]
 *        [--leave-out]
 *
 * --heads: after each completed READ, one READ of 32 bytes, as the engine reads page heads. Prints
 * one line of JSON. The time inside dv_step() is measured separately from the rest. With
 * --leave-out it does not count: rates are by the clock of the modelled port, which stands still
 * during dv_step(). MODEL is as in the engine's setting soft.model; its words doorbell and line
 * charge this thread for doorbells, and for CQEs and page heads.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/limits.h"
#include "dv/hot.h"
#include "dv/setup.h"
#include "numa/clock.h"

/* Bytes of page heads at the start of the pool; pages begin behind them */
#define HEADS (64u << 10)
#define POOL_BYTES ((64u << 20) + HEADS)
#define HEAD_BYTES 32u
#define WARM_NS 200000000u
#define POLL_BURST 64u
#define WQES_MAX (QPS_PER_PEER_MAX * QP_DEPTH)

static struct options {
	unsigned rails, qps, bytes, window;
	double seconds;
	bool heads, leave_out;
	struct port_model model;
} options = {.rails = 1, .qps = 2, .bytes = 128u << 10, .window = 2u << 20, .seconds = 1};

/* What each process tells the other about one rail. */
struct card {
	struct dv_address address[QPS_PER_PEER_MAX];
	uint64_t base;
	uint32_t rkey;
};

struct end {
	struct dv_device *device;
	struct dv_cq cq;
	struct dv_qp *qp[QPS_PER_PEER_MAX];
	struct dv_sq *sq[QPS_PER_PEER_MAX];
	struct dv_mr mr;
	struct card peer;
	unsigned turn;                         /* index of the QP that posts next */
	uint32_t posted;                       /* payload READs in flight */
	uint32_t heads;                        /* READs of heads still to be posted */
	uint64_t at;                           /* offset of the next page in the pool */
	bool head[QPS_PER_PEER_MAX][QP_DEPTH]; /* true: the READ at this WQE index reads a head */
};

static struct end end[RAILS_MAX];
static uint64_t reads, head_reads;
/* ns charged so far for doorbells, CQEs and heads, and not yet added to the ports' clock */
static uint64_t charge_ns;

static void must(int rc)
{
	if (!rc)
		return;
	fprintf(stderr, "bare: %s\n", dv_error());
	exit(1);
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint8_t *memory_new(int *ret_fd)
{
	uint8_t *at = MAP_FAILED;

	*ret_fd = memfd_create("bare", MFD_CLOEXEC);
	if (*ret_fd >= 0 && ftruncate(*ret_fd, POOL_BYTES) == 0)
		at = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	if (at == MAP_FAILED)
		die("bare: memory");
	memset(at, 1, POOL_BYTES);
	return at;
}

static void ends_open(unsigned access, struct card *ret_cards)
{
	int memfd;
	uint8_t *memory = memory_new(&memfd);

	for (unsigned r = 0; r < options.rails; r++) {
		struct dv_options nic = {.name = "soft", .model = options.model};
		struct end *e = &end[r];

		e->at = HEADS;
		must(dv_open(&nic, &e->device));
		must(dv_cq_create(e->device, WQES_MAX, &e->cq));
		must(dv_mr_register(e->device,
			&(struct dv_memory){.base = memory,
				.length = POOL_BYTES,
				.access = access,
				.memfd = memfd},
			&e->mr));
		ret_cards[r] = (struct card){.base = (uintptr_t)memory, .rkey = e->mr.rkey};
		for (unsigned q = 0; q < options.qps; q++) {
			must(dv_qp_create(e->device, &e->cq, QP_DEPTH, &e->qp[q], &e->sq[q]));
			dv_qp_address(e->qp[q], &ret_cards[r].address[q]);
		}
	}
}

static void ends_connect(const struct card *cards)
{
	for (unsigned r = 0; r < options.rails; r++) {
		end[r].peer = cards[r];
		for (unsigned q = 0; q < options.qps; q++)
			must(dv_qp_connect(end[r].qp[q], &cards[r].address[q]));
	}
}

static void swap_cards(int fd, struct card *cards)
{
	size_t bytes = options.rails * sizeof(*cards);
	struct card theirs[RAILS_MAX];

	if (write(fd, cards, bytes) != (ssize_t)bytes ||
		recv(fd, theirs, bytes, MSG_WAITALL) != (ssize_t)bytes)
		die("bare: the other process");
	memcpy(cards, theirs, bytes);
}

/* The process that owns the pages: its NICs answer READs without using a CPU. */
static void serve(int fd)
{
	struct card cards[RAILS_MAX];
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	ends_open(DV_REMOTE_READ, cards);
	swap_cards(fd, cards);
	ends_connect(cards);
	_exit(read(fd, &byte, 1) != 0);
}

static void post_one(struct end *e, uint32_t bytes, bool head)
{
	struct dv_sge sge = {.bytes = bytes, .lkey = e->mr.lkey};
	struct dv_sq *sq = e->sq[e->turn];
	uint64_t at = head ? head_reads * HEAD_BYTES % HEADS : e->at;
	uint32_t index;

	sge.address = (uintptr_t)e->mr.base + at;
	index = dv_post(sq, DV_READ, e->peer.base + at, e->peer.rkey, &sge, 1, DV_CE_ALWAYS);
	e->head[e->turn][index % QP_DEPTH] = head;
	if (!head)
		e->at = e->at + 2ull * options.bytes <= POOL_BYTES ? e->at + options.bytes : HEADS;
	e->turn = e->turn + 1 < options.qps ? e->turn + 1 : 0;
}

static void post(struct end *e)
{
	while (e->heads && dv_sq_room(e->sq[e->turn])) {
		post_one(e, HEAD_BYTES, true);
		e->heads--;
	}
	while (((uint64_t)e->posted + 1) * options.bytes <= options.window &&
		dv_sq_room(e->sq[e->turn])) {
		post_one(e, options.bytes, false);
		e->posted++;
	}
	for (unsigned q = 0; q < options.qps; q++) {
		charge_ns += e->sq[q]->pi != e->sq[q]->rung ? options.model.doorbell_ns : 0;
		dv_ring(e->sq[q]);
	}
}

static unsigned reap(struct end *e)
{
	struct dv_completion done[POLL_BURST];
	unsigned n = dv_poll(&e->cq, done, POLL_BURST);

	for (unsigned i = 0; i < n; i++) {
		unsigned q = 0;

		if (done[i].syndrome) {
			fprintf(stderr, "bare: %s\n", dv_syndrome(done[i].syndrome));
			exit(1);
		}
		while (e->sq[q]->qpn != done[i].qpn)
			q++;
		e->sq[q]->ci++;
		charge_ns += options.model.line_ns;
		if (e->head[q][done[i].wqe_counter % QP_DEPTH]) {
			head_reads++;
			charge_ns += options.model.line_ns;
			continue;
		}
		reads++;
		e->posted--;
		e->heads += options.heads;
	}
	return n;
}

/*
 * Runs the loop until `until`; returns the time spent in those dv_step() calls that did some work.
 */
static uint64_t turn(uint64_t until)
{
	struct dv_device *nic[RAILS_MAX];
	uint64_t inside = 0, now = 0;

	for (unsigned r = 0; r < options.rails; r++)
		nic[r] = end[r].device;
	while (now < until)
		for (unsigned r = 0; r < options.rails; r++) {
			uint64_t from;
			unsigned work;

			post(&end[r]);
			from = clock_now_ns();
			work = dv_step(end[r].device);
			now = clock_now_ns();
			if (work) {
				uint64_t span = now - from;

				if (options.leave_out) {
					uint64_t paid = charge_ns < span ? charge_ns : span;

					charge_ns -= paid;
					span -= paid;
					dv_leave_out(nic, options.rails, span);
				}
				inside += span;
			}
			reap(&end[r]);
		}
	return inside;
}

static void measure(void)
{
	uint64_t from = clock_now_ns(), inside, took;

	turn(from + WARM_NS);
	reads = head_reads = 0;
	from = clock_now_ns();
	inside = turn(from + (uint64_t)(options.seconds * 1e9));
	took = clock_now_ns() - from;
	if (options.leave_out)
		took -= inside;
	printf("{\"reads\": %lu, \"reads_per_s\": %.0f, \"gbps\": %.3f, \"ns_per_wqe\": %.1f, \"nic_ns_per_wqe\": %.1f}\n",
		reads, (double)reads * 1e9 / (double)took,
		(double)reads * options.bytes / (double)took,
		(double)took / (double)(reads + head_reads),
		(double)inside / (double)(reads + head_reads));
}

static void parse(int argc, char **argv)
{
	static const struct option names[] = {{"rails", 1, 0, 'n'}, {"qps", 1, 0, 'q'},
		{"bytes", 1, 0, 'b'}, {"window", 1, 0, 'w'}, {"seconds", 1, 0, 's'},
		{"heads", 0, 0, 'h'}, {"model", 1, 0, 'm'}, {"leave-out", 0, 0, 'o'}, {0}};
	char why[256];
	int o;

	while ((o = getopt_long(argc, argv, "", names, NULL)) != -1) {
		unsigned value = optarg ? (unsigned)strtoul(optarg, NULL, 0) : 0;

		switch (o) {
		case 'n': options.rails = value; break;
		case 'q': options.qps = value; break;
		case 'b': options.bytes = value; break;
		case 'w': options.window = value; break;
		case 's': options.seconds = strtod(optarg, NULL); break;
		case 'h': options.heads = true; break;
		case 'm':
			if (port_model_parse(optarg, &options.model, why, sizeof(why)) < 0) {
				fprintf(stderr, "bare: --model %s: %s\n", optarg, why);
				exit(2);
			}
			break;
		case 'o': options.leave_out = true; break;
		default: exit(2);
		}
	}
	if (!options.rails || options.rails > RAILS_MAX || !options.qps ||
		options.qps > QPS_PER_PEER_MAX || !options.bytes ||
		options.bytes > POOL_BYTES / 2 || options.window < options.bytes) {
		fprintf(stderr,
			"bare: --rails, --qps, --bytes or --window is out of range; --window is at least --bytes\n");
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct card cards[RAILS_MAX];
	int sockets[2], status = 1;
	pid_t child;

	parse(argc, argv);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets))
		die("bare: socketpair");
	child = fork();
	if (child < 0)
		die("bare: fork");
	if (child == 0) {
		close(sockets[0]);
		serve(sockets[1]);
	}
	close(sockets[1]);
	ends_open(DV_LOCAL_WRITE, cards);
	swap_cards(sockets[0], cards);
	ends_connect(cards);
	measure();
	close(sockets[0]);
	waitpid(child, &status, 0);
	return status != 0;
}
