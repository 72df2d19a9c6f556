/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures what one page costs a rail's poll core: ops enter through a client's ring, answers leave
 * through its done ring, and the device is a stub that completes everything at once and moves
 * nothing but page heads. Only the time inside rail_step() is the result; the device's and the
 * client's time in the same run are measured separately. rail.py runs this program natively and
 * under callgrind.
 *
 *   rail_cost --pages N --runs N --qps N --bytes N [--segments N] [--scattered] [--other-core]
 *             [--bare]
 *
 * The poll core is the main thread. The client is the same thread, or with --other-core a second
 * one. --bare: the same READs by dv/hot.h alone, without rail and rings.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "dv/setup.h"
#include "engine/rail/core.h"

#define UNITS 4096u /* units of the simulated peer's pool */
#define SESSION 7u
#define HOME REGION_CLIENT_0
#define HOME_BYTES (1ull << 30) /* address range of the destinations; its memory is never touched */
#define BATCH 32u
#define POOL_RKEY 0x1000u
#define HEADS_RKEY 0x2000u

static struct options {
	uint64_t pages;
	unsigned runs, qps, bytes, window, segments;
	bool scattered, other_core, bare;
} options = {.pages = 200000, .runs = 9, .qps = 4, .bytes = 4096, .window = 512, .segments = 1};

static void die(const char *what)
{
	fprintf(stderr, "rail_cost: %s\n", what);
	exit(1);
}

static void *zeroed(size_t bytes)
{
	void *at = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);

	if (!at)
		die("out of memory");
	memset(at, 0, bytes);
	return at;
}

/* ---- the stub device: the functions of dv/setup.h that a rail calls, and a step -------------- */

struct instant_qp {
	struct dv_sq sq;
	uint32_t record[2];
	uint64_t bf[2];
	uint32_t seen;
};

static struct instant_qp *qp;
static uint8_t *cqes;
static uint32_t cqe_cnt, cq_pi, cq_record[2];
static uint64_t wqes, cqe_count;

int dv_cq_create(struct dv_device *device, unsigned depth, struct dv_cq *ret_cq)
{
	(void)device;
	cqes = zeroed((size_t)depth * 64);
	cqe_cnt = depth;
	for (unsigned i = 0; i < depth; i++)
		cqes[i * 64 + 63] = MLX5_CQE_INVALID << 4;
	*ret_cq = (struct dv_cq){
		.buf = cqes, .record = (__be32 *)cq_record, .cqe_cnt = depth, .cqe_size = 64};
	return 0;
}

void dv_cq_destroy(struct dv_device *device, struct dv_cq *cq)
{
	(void)device;
	free(cq->buf);
}

int dv_mr_register(struct dv_device *device, void *base, size_t length, unsigned access, int memfd,
	uint64_t memfd_offset, struct dv_mr *ret_mr)
{
	(void)device, (void)access, (void)memfd, (void)memfd_offset;
	*ret_mr = (struct dv_mr){.base = base, .length = length, .lkey = 1};
	return 0;
}

int dv_mr_deregister(struct dv_device *device, struct dv_mr *mr)
{
	(void)device, (void)mr;
	return 0;
}

unsigned dv_step_all(struct dv_device *const *devices, unsigned count)
{
	(void)devices, (void)count;
	return 0;
}

void dv_leave_out(struct dv_device *const *devices, unsigned count, uint64_t ns)
{
	(void)devices, (void)count, (void)ns;
}

bool dv_needs_step(const struct dv_device *device)
{
	(void)device;
	return false;
}

uint64_t dv_due_ns(const struct dv_device *device)
{
	(void)device;
	return UINT64_MAX;
}

static void qps_open(void)
{
	qp = zeroed(options.qps * sizeof(*qp));
	for (unsigned i = 0; i < options.qps; i++)
		qp[i].sq = (struct dv_sq){.buf = zeroed(QP_DEPTH * DV_WQEBB),
			.record = (__be32 *)qp[i].record,
			.bf_reg = (uint8_t *)qp[i].bf,
			.wqe_cnt = QP_DEPTH,
			.qpn = 0x100 + i,
			.bf_size = 8};
}

static void cqe_write(const struct instant_qp *q, uint32_t index)
{
	uint8_t *at = cqes + (size_t)(cq_pi & (cqe_cnt - 1)) * 64;
	struct mlx5_cqe64 *cqe = (void *)at;

	cqe->sop_drop_qpn = htobe32(q->sq.qpn);
	cqe->wqe_counter = htobe16((uint16_t)index);
	dv_device_store_owner(at + 63, (uint8_t)(MLX5_CQE_REQ << 4 | !!(cq_pi & cqe_cnt)));
	cq_pi++;
	cqe_count++;
}

/* Executes one WQE; returns its number of 64-byte blocks. */
static uint32_t execute(const struct instant_qp *q, uint32_t index)
{
	const uint8_t *block = dv_sq_block(&q->sq, index);
	const struct mlx5_wqe_ctrl_seg *ctrl = (const void *)block;
	const struct mlx5_wqe_raddr_seg *raddr = (const void *)(block + DV_SEGMENT);
	const struct mlx5_wqe_data_seg *data = (const void *)(block + 2 * DV_SEGMENT);

	if (raddr->rkey == htobe32(HEADS_RKEY))
		memcpy((void *)(uintptr_t)be64toh(data->addr),
			(const void *)(uintptr_t)be64toh(raddr->raddr), be32toh(data->byte_count));
	wqes++;
	if (ctrl->fm_ce_se & DV_CE_ALWAYS)
		cqe_write(q, index);
	return dv_wqe_blocks((be32toh(ctrl->qpn_ds) & 0x3f) - 2);
}

static void device_step(void)
{
	for (unsigned i = 0; i < options.qps; i++) {
		struct instant_qp *q = &qp[i];
		uint32_t told;

		if (!(dv_device_take_doorbell(&q->bf[0]) | dv_device_take_doorbell(&q->bf[1])))
			continue;
		told = dv_device_load_record((__be32 *)&q->record[DV_DBREC_SEND]);
		while ((q->seen & 0xffff) != told)
			q->seen += execute(q, q->seen);
	}
}

/* ---- the peer and the client ----------------------------------------------------------------- */

static struct page_head *heads;
static uint64_t sent, answered;
static struct ring_producer ops;
static struct ring_consumer done;

static uint32_t unit_of(uint64_t page)
{
	uint32_t stride = (options.bytes + PAGE_UNIT - 1) / PAGE_UNIT;
	uint32_t pages = UNITS / stride;

	/*
	 * 1021 is prime and does not divide a power of two: every page is read once before any is
	 * read twice.
	 */
	return (uint32_t)(options.scattered ? page * 1021 : page) % pages * stride;
}

static void heads_open(void)
{
	heads = zeroed(UNITS * sizeof(*heads));
	for (uint32_t i = 0; i < UNITS; i++)
		heads[i] = (struct page_head){
			.key = {{i, ~(uint64_t)i}}, .generation = i, .length = options.bytes};
}

/* Writes one op into the ring; returns the number of slots it takes. */
static uint32_t op_write(uint64_t page, uint64_t deadline_ns, uint32_t at)
{
	uint32_t unit = unit_of(page);
	struct op op = {.cookie = page,
		.kind = OP_PAGE,
		.segments = (uint16_t)options.segments,
		.peer = 3,
		.region = REGION_POOL_0,
		.offset = (uint64_t)unit * PAGE_UNIT,
		.peer_ref = 33,
		.length = options.bytes,
		.key = {{unit, ~(uint64_t)unit}},
		.deadline_ns = deadline_ns,
		.generation = unit,
		.page_bytes = options.bytes};
	uint32_t bytes = options.bytes / options.segments;
	struct op_segment segment[SEGMENTS_MAX] = {{.region = HOME}};

	for (unsigned i = 0; i < options.segments; i++)
		segment[i] = (struct op_segment){.region = HOME,
			.length = bytes,
			.offset = (page % 4096 * options.bytes + i * 2 * bytes) % (HOME_BYTES / 2)};
	op_encode(&op, segment, ring_slot_new(&ops, at));
	for (unsigned i = 1; i < op_slots(options.segments); i++)
		memcpy(ring_slot_new(&ops, at + i), &segment[(i - 1) * 4],
			sizeof(struct op_segments));
	return op_slots(options.segments);
}

/* Takes all answers, and submits batches as long as the window has room. */
static void client_turn(uint64_t pages)
{
	int32_t ready = ring_ready_now(&done);

	for (int32_t i = 0; i < ready; i++) {
		const struct op_done *d = ring_slot_old(&done, (uint32_t)i);

		if (d->status != OP_HIT)
			die("a page is not a hit");
	}
	answered += (uint64_t)ready;
	ring_release(&done, (uint32_t)ready);
	while (sent < pages && sent + BATCH - answered <= options.window) {
		uint64_t deadline_ns = clock_now_ns() + 10000000000ull;

		uint32_t slots = BATCH * op_slots(options.segments), at = 0;

		if (ring_room(&ops, slots) < (int32_t)slots)
			return;
		for (uint32_t i = 0; i < BATCH; i++)
			at += op_write(sent + i, deadline_ns, at);
		ring_publish(&ops, slots);
		sent += BATCH;
	}
}

static void *client_main(void *argument)
{
	const uint64_t *pages = argument;

	while (answered < *pages)
		client_turn(*pages);
	return NULL;
}

/* ---- the rail -------------------------------------------------------------------------------- */

static struct rail *rail;

static void tell(struct rail_command command)
{
	if (!rail_tell(rail, &command))
		die("the inbox is full");
	rail_step(rail, 0);
}

static struct rail_channel *channel_open(void)
{
	struct rail_channel *channel = zeroed(sizeof(*channel));
	void *op_memory = zeroed(ring_bytes(OP_RING_SLOTS, sizeof(struct op_slot)));
	void *done_memory = zeroed(ring_bytes(DONE_RING_SLOTS, sizeof(struct op_done)));

	ring_producer_init(&ops, op_memory, OP_RING_SLOTS, sizeof(struct op_slot));
	ring_consumer_init(&done, done_memory, DONE_RING_SLOTS, sizeof(struct op_done));
	*channel = (struct rail_channel){.id = 5, .session = SESSION, .wake = -1};
	channel->client_waits = zeroed(64);
	ring_consumer_init(&channel->ops, op_memory, OP_RING_SLOTS, sizeof(struct op_slot));
	ring_producer_init(&channel->done, done_memory, DONE_RING_SLOTS, sizeof(struct op_done));
	return channel;
}

static void rail_make(void)
{
	struct rail_options rail_options = {
		.kick = -1, .control_kick = -1, .status = zeroed(sizeof(struct status_segment))};
	struct rail_region home = {.id = HOME,
		.session = SESSION,
		.base = 1ull << 40,
		.length = HOME_BYTES,
		.lkey = 2};
	struct rail_peer *peer = zeroed(sizeof(*peer));

	if (rail_open(&rail_options, &rail))
		die("rail_open");
	*peer = (struct rail_peer){.peer = 3, .ref = 33, .qps = options.qps};
	for (unsigned i = 0; i < options.qps; i++)
		peer->sq[i] = &qp[i].sq;
	peer->region[REGION_POOL_0] = (struct rail_remote){
		.base = 1ull << 41, .length = (uint64_t)UNITS * PAGE_UNIT, .rkey = POOL_RKEY};
	peer->region[REGION_HEADS_0] = (struct rail_remote){
		.base = (uintptr_t)heads, .length = UNITS * sizeof(*heads), .rkey = HEADS_RKEY};
	tell((struct rail_command){.kind = RAIL_REGION_ADD, .region = home});
	tell((struct rail_command){.kind = RAIL_CHANNEL_ADD, .object = channel_open()});
	tell((struct rail_command){.kind = RAIL_PEER_ADD, .object = peer});
}

/* A function of its own, so that callgrind can count its instructions. */
__attribute__((noinline)) static unsigned measured_step(void)
{
	return rail_step(rail, 0);
}

struct times {
	uint64_t rail, device, client, all;
};

/*
 * Runs until all pages are read. Steps without work are not counted: they mean that the client was
 * slow.
 */
static void rail_run(uint64_t pages, struct times *ret)
{
	uint64_t started = clock_now_ns(), t0 = started, t1;
	pthread_t thread;

	sent = answered = 0;
	*ret = (struct times){0};
	if (options.other_core && pthread_create(&thread, NULL, client_main, &pages))
		die("pthread_create");
	while (options.other_core ? rail->counter[COUNTER_pages_read] < pages : answered < pages) {
		unsigned work = measured_step();

		t1 = clock_now_ns();
		ret->rail += work ? t1 - t0 : 0;
		device_step();
		t0 = clock_now_ns();
		ret->device += t0 - t1;
		if (options.other_core)
			continue;
		client_turn(pages);
		t1 = clock_now_ns();
		ret->client += t1 - t0;
		t0 = t1;
	}
	if (options.other_core)
		pthread_join(thread, NULL);
	rail->counter[COUNTER_pages_read] = 0;
	ret->all = clock_now_ns() - started;
}

/* ---- dv/hot.h alone -------------------------------------------------------------------------- */

/*
 * For each page, one READ of the payload and one of the head, all of them signalled, 64 pages per
 * step.
 */
static void bare_run(uint64_t pages, struct times *ret)
{
	static struct dv_completion completion[2 * RAIL_REAP_BURST];
	static struct dv_cq cq;
	static struct page_head head[2 * RAIL_REAP_BURST];
	uint64_t t0, t1;

	if (!cq.buf)
		dv_cq_create(NULL, CQ_DEPTH, &cq);
	*ret = (struct times){0};
	t0 = clock_now_ns();
	for (uint64_t at = 0; at < pages; at += RAIL_REAP_BURST) {
		unsigned n, left = 2 * RAIL_REAP_BURST;

		for (unsigned i = 0; i < 2 * RAIL_REAP_BURST; i++) {
			bool is_head = i >= RAIL_REAP_BURST;
			uint32_t unit = unit_of(at + i % RAIL_REAP_BURST);
			uint64_t remote = is_head ? (uintptr_t)&heads[unit]
						  : (1ull << 41) + (uint64_t)unit * PAGE_UNIT;
			struct dv_sge sge = {is_head ? (uintptr_t)&head[i] : 1ull << 40,
				is_head ? sizeof(*head) : options.bytes, is_head ? 1 : 2};

			dv_post(&qp[i % options.qps].sq, DV_READ, remote,
				is_head ? HEADS_RKEY : POOL_RKEY, &sge, 1, DV_CE_ALWAYS);
		}
		for (unsigned i = 0; i < options.qps; i++)
			dv_ring(&qp[i].sq);
		t1 = clock_now_ns();
		ret->rail += t1 - t0;
		device_step();
		t0 = clock_now_ns();
		ret->device += t0 - t1;
		while (left && (n = dv_poll(&cq, completion, left)))
			left -= n;
		if (left)
			die("the device lost a completion");
	}
	ret->rail += clock_now_ns() - t0;
}

/* ---- main ------------------------------------------------------------------------------------ */

static void parse(int argc, char **argv)
{
	static const struct option long_options[] = {{"pages", 1, NULL, 'n'},
		{"runs", 1, NULL, 'r'}, {"qps", 1, NULL, 'q'}, {"bytes", 1, NULL, 'b'},
		{"scattered", 0, NULL, 's'}, {"other-core", 0, NULL, 'o'}, {"bare", 0, NULL, 'a'},
		{"window", 1, NULL, 'w'}, {"segments", 1, NULL, 'g'}, {0}};
	int o;

	while ((o = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (o) {
		case 'n': options.pages = strtoull(optarg, NULL, 0); break;
		case 'r': options.runs = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'q': options.qps = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'b': options.bytes = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'w': options.window = (unsigned)strtoul(optarg, NULL, 0); break;
		case 'g': options.segments = (unsigned)strtoul(optarg, NULL, 0); break;
		case 's': options.scattered = true; break;
		case 'o': options.other_core = true; break;
		case 'a': options.bare = true; break;
		default:
			die("unknown option; the options are listed at the top of perf/rail_cost.c");
		}
	}
	if (!options.qps || options.qps > QPS_PER_PEER_MAX || !options.runs || !options.bytes)
		die("--qps, --runs or --bytes is out of range");
	/* A batch must fit the op ring. */
	if (!options.segments || BATCH * op_slots(options.segments) > OP_RING_SLOTS / 2 ||
		options.bytes % options.segments)
		die("--segments is 1 to 120 and divides --bytes");
	options.pages = options.pages / (2 * RAIL_REAP_BURST) * (2 * RAIL_REAP_BURST);
}

/*
 * Prints one line per run: nanoseconds per page in rail, device and client, then WQEs and CQEs per
 * page.
 */
int main(int argc, char **argv)
{
	parse(argc, argv);
	clock_start();
	heads_open();
	qps_open();
	if (!options.bare)
		rail_make();
	for (unsigned run = 0; run < options.runs; run++) {
		double pages = (double)options.pages;
		struct times t;

		wqes = cqe_count = 0;
		(options.bare ? bare_run : rail_run)(options.pages, &t);
		printf("%.1f %.1f %.1f %.3f %.3f\n", (double)t.rail / pages,
			(double)t.device / pages, (double)t.client / pages, (double)wqes / pages,
			(double)cqe_count / pages);
	}
	return 0;
}
