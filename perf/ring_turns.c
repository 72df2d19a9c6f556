/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures what passes between two threads, each alone on a core: a bare cache line back and forth,
 * a message through two rings of abi/ring.h, an op through a running rail and back, and messages in
 * one direction at full rate. ring.py runs it.
 *
 *   ring_turns TURNS RUNS       prints one line "NAME NANOSECONDS" per kind, the median of the runs;
 *                               rates as nanoseconds per message
 *
 * Every run measures all kinds one after the other, so that a disturbance affects all of them.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "dv/setup.h"
#include "engine/rail/rail.h"
#include "numa/clock.h"
#include "numa/pin.h"

#define MEMORY_BYTES (1u << 20)
#define DONE_AT (MEMORY_BYTES / 2)
#define RUNS_MAX 101

enum kind { BARE_ONE, BARE_TWO, RINGS, RAIL, STREAM_1, STREAM_8, STREAM_32, KINDS };
static const char *const kind_name[KINDS] = {
	"bare_one_line", "bare_two_lines", "rings", "rail", "stream_1", "stream_8", "stream_32"};
static const unsigned kind_batch[KINDS] = {[STREAM_1] = 1, [STREAM_8] = 8, [STREAM_32] = 32};

static unsigned char *memory; /* an op ring, and behind it a done ring or the second cache line */
static enum kind kind;
static uint32_t turns;
static pthread_barrier_t start;
static struct status_segment *status;
static struct dv_device *device;
static struct rail *rail;
static struct poll_core *poll_core;
static struct rail_channel channel;

static void die(const char *what)
{
	fprintf(stderr, "ring_turns: %s\n", what);
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

/* ---- the other core -------------------------------------------------------------------------- */

static void echo_line(uint32_t *in, uint32_t *out)
{
	uint32_t step = in == out ? 2 : 1;

	for (uint32_t i = 0; i < turns; i++) {
		while (shm_load_acquire(in) != i * step + 1)
			shm_pause();
		shm_store_release(out, i * step + step);
	}
}

static void echo_rings(void)
{
	struct ring_consumer ops;
	struct ring_producer done;

	ring_consumer_init(&ops, memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_producer_init(&done, memory + DONE_AT, DONE_RING_SLOTS, sizeof(struct run_done));
	for (uint32_t i = 0; i < turns; i++) {
		struct run_line op;
		struct run_done answer = {.status = OP_HIT};

		while (ring_ready(&ops) < 1)
			shm_pause();
		memcpy(&op, ring_slot_old(&ops, 0), sizeof(op));
		ring_release(&ops, 1);
		answer.cookie = op.header.cookie;
		while (ring_room(&done, 1) < 1)
			shm_pause();
		memcpy(ring_slot_new(&done, 0), &answer, sizeof(answer));
		ring_publish(&done, 1);
	}
}

static void drain(void)
{
	struct ring_consumer ops;

	ring_consumer_init(&ops, memory, OP_RING_SLOTS, sizeof(struct run_line));
	for (uint32_t i = 0; i < turns;) {
		int32_t ready = ring_ready(&ops);

		for (int32_t k = 0; k < ready; k++) {
			struct run_line op;

			memcpy(&op, ring_slot_old(&ops, (uint32_t)k), sizeof(op));
			if (op.header.cookie != i++)
				die("a message is out of order");
		}
		if (ready > 0)
			ring_release(&ops, (uint32_t)ready);
		else
			shm_pause();
	}
}

static void *other(void *unused)
{
	(void)unused;
	pin_self(1);
	pthread_barrier_wait(&start);
	if (kind == BARE_ONE || kind == BARE_TWO)
		echo_line((uint32_t *)(void *)memory,
			(uint32_t *)(void *)(memory + (kind == BARE_TWO ? DONE_AT : 0)));
	else if (kind == RINGS)
		echo_rings();
	else
		drain();
	return NULL;
}

/* ---- this core ------------------------------------------------------------------------------- */

static void turn_line(uint32_t *out, uint32_t *in)
{
	uint32_t step = in == out ? 2 : 1;

	for (uint32_t i = 0; i < turns; i++) {
		shm_store_release(out, i * step + 1);
		while (shm_load_acquire(in) != i * step + step)
			shm_pause();
	}
}

static void turn_rings(void)
{
	struct ring_producer ops;
	struct ring_consumer done;

	ring_producer_init(&ops, memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_consumer_init(&done, memory + DONE_AT, DONE_RING_SLOTS, sizeof(struct run_done));
	for (uint32_t i = 0; i < turns; i++) {
		struct run_line op = {.header = {.cookie = i, .kind = OP_PAGE}};
		struct run_done answer;

		while (ring_room(&ops, 1) < 1)
			shm_pause();
		memcpy(ring_slot_new(&ops, 0), &op, sizeof(op));
		ring_publish(&ops, 1);
		while (ring_ready(&done) < 1)
			shm_pause();
		memcpy(&answer, ring_slot_old(&done, 0), sizeof(answer));
		ring_release(&done, 1);
		if (answer.cookie != i)
			die("an answer is another message's");
	}
}

static void stream(unsigned batch)
{
	struct ring_producer ops;

	ring_producer_init(&ops, memory, OP_RING_SLOTS, sizeof(struct run_line));
	for (uint32_t i = 0; i < turns; i += batch) {
		while (ring_room(&ops, batch) < (int32_t)batch)
			shm_pause();
		for (uint32_t k = 0; k < batch; k++) {
			struct run_line op = {.header = {.cookie = i + k, .kind = OP_PAGE}};

			memcpy(ring_slot_new(&ops, k), &op, sizeof(op));
		}
		ring_publish(&ops, batch);
	}
}

static void tell(struct rail_command command)
{
	while (!rail_command_send(rail, &command))
		shm_pause();
}

static void await(enum rail_event_kind what)
{
	struct rail_event event;

	do
		while (!rail_event_take(rail, &event))
			shm_pause();
	while (event.kind != what);
}

static void rail_up(void)
{
	struct dv_options nic = {.name = "soft", .gid_index = -1};
	struct poll_core_options busy = {.core = 1, .busy = true};
	struct rail_options options = {.index = 0};
	static uint32_t client_waits;

	if (dv_open(&nic, &device))
		die(dv_error());
	options.device = device;
	options.status = status = zeroed(sizeof(*status));
	options.kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	options.control_kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (rail_open(&options, &rail) || poll_core_start(&busy, &rail, 1, &poll_core))
		die("cannot start a rail");
	channel = (struct rail_channel){.id = 1, .session = 1, .client_waits = &client_waits};
	ring_consumer_init(&channel.ops, memory, OP_RING_SLOTS, sizeof(struct run_line));
	ring_producer_init(
		&channel.done, memory + DONE_AT, DONE_RING_SLOTS, sizeof(struct run_done));
	tell((struct rail_command){.kind = RAIL_CHANNEL_ADD, .object = &channel});
}

static void rail_down(void)
{
	tell((struct rail_command){.kind = RAIL_CHANNEL_STOP, .object = &channel});
	await(RAIL_CHANNEL_RETURNED);
	tell((struct rail_command){.kind = RAIL_STOP});
	await(RAIL_STOPPED);
	poll_core_close(poll_core);
	rail_close(rail);
	dv_close(device);
	free(status);
}

/*
 * An op that names no segment: the rail takes it, checks it, refuses it and answers, without using
 * a NIC.
 */
static double through_a_rail(void)
{
	uint64_t from;

	rail_up();
	from = clock_now_ns();
	turn_rings();
	from = clock_now_ns() - from;
	rail_down();
	return (double)from / turns;
}

static double between_threads(void)
{
	pthread_t thread;
	uint64_t from;

	if (pthread_create(&thread, NULL, other, NULL))
		die("cannot start a thread");
	pthread_barrier_wait(&start);
	from = clock_now_ns();
	if (kind == BARE_ONE || kind == BARE_TWO)
		turn_line((uint32_t *)(void *)memory,
			(uint32_t *)(void *)(memory + (kind == BARE_TWO ? DONE_AT : 0)));
	else if (kind == RINGS)
		turn_rings();
	else
		stream(kind_batch[kind]);
	pthread_join(thread, NULL);
	return (double)(clock_now_ns() - from) / turns;
}

static int by_value(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return left < right ? -1 : left > right;
}

int main(int argc, char **argv)
{
	static double took[KINDS][RUNS_MAX];
	unsigned runs = argc == 3 ? (unsigned)atoi(argv[2]) : 0;

	turns = argc == 3 ? (uint32_t)atoi(argv[1]) / 32 * 32 : 0;
	if (!turns || runs < 1 || runs > RUNS_MAX)
		die("usage: ring_turns TURNS RUNS, TURNS at least 32, RUNS 1 to 101");
	clock_start();
	pin_self(0);
	pthread_barrier_init(&start, NULL, 2);
	memory = zeroed(MEMORY_BYTES);
	for (unsigned run = 0; run < runs; run++) {
		for (kind = 0; kind < KINDS; kind++) {
			memset(memory, 0, MEMORY_BYTES);
			took[kind][run] = kind == RAIL ? through_a_rail() : between_threads();
		}
	}
	for (kind = 0; kind < KINDS; kind++) {
		qsort(took[kind], runs, sizeof(took[kind][0]), by_value);
		printf("%s %.1f\n", kind_name[kind], took[kind][runs / 2]);
	}
	free(memory);
	return 0;
}
