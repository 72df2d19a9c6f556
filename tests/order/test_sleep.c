/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sleep protocol under stress. A lost wake-up needs a store that is still in its core's store
 * buffer while a later load of that core is done, which happens on x86 too. Two threads on two
 * cores play rounds: one side goes to sleep while the other publishes and looks for sleepers. A
 * round is lost when the sleeper slept and got no kick. This is decided after the round from what
 * both sides recorded, so that a loaded machine cannot make a correct program fail.
 *
 * Before each round both sides store to cold cache lines: their next stores wait in the store
 * buffer behind those. A random delay shifts the two sides against each other.
 *
 *   test_sleep             every case for SECONDS; fails when a round is lost
 *   test_sleep MUTANT CASE built with that mutant (mutants.py): fails unless a round of the case is
 *                          lost within SECONDS_MUTANT
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "engine/abi/segment.h"
#include "numa/clock.h"
#include "tests/order/sides.h"

#define SECONDS 3u
#define SECONDS_MUTANT 60u
#define COLD_BYTES (64u << 20)
#define COLD_STORES_MAX 64u
/* bytes between two cold stores: each store hits another memory page and another cache set */
#define COLD_STRIDE 4160u
#define DELAY_MAX 256u
/* number of spins at a barrier before the thread yields the core to the other thread */
#define SPIN 2000u

static struct status_segment *status;
static struct client_side *client;
static struct rail_side *rail;
static struct ring_consumer ctl; /* consumer end of the ctl ring, which the client's thread fills */

/* ---- the two sides --------------------------------------------------------------------------- */

struct side {
	/* owner: the side's thread; the other thread reads slept and kicked after the round */
	_Alignas(64) bool slept;
	bool kicked[KICKS - KICK_RAIL];
	uint64_t seed;
	unsigned char *cold;
	uint32_t cold_at;
	/* owner: the side's thread; the other side's thread polls both counters */
	_Alignas(64) uint32_t arrived; /* number of barriers that this side has reached */
	/* number of barriers that the side had reached when it last finished its part of a round */
	uint32_t acted;
};
static_assert(offsetof(struct side, arrived) == 64,
	"polling `arrived` does not touch the side's other line");

static struct side sides[2]; /* sides[0] is the client's side, sides[1] the rail's */
static _Thread_local unsigned me;

static void wait_for_the_other(const uint32_t *word, uint32_t value)
{
	for (unsigned n = 0; (int32_t)(shm_load_acquire(word) - value) < 0; n++)
		if (n > SPIN)
			sched_yield();
}

static void meet(void)
{
	uint32_t mine = sides[me].arrived + 1;

	shm_store_release(&sides[me].arrived, mine);
	wait_for_the_other(&sides[!me].arrived, mine);
}

static void sleep_until_the_other_acted(void)
{
	sides[me].slept = true;
	wait_for_the_other(&sides[!me].acted, sides[me].arrived);
}

int note_poll(struct pollfd *fds, unsigned long count, int timeout_ms)
{
	(void)fds, (void)count, (void)timeout_ms;
	sleep_until_the_other_acted();
	return 0;
}

int note_ppoll(
	struct pollfd *fds, unsigned long count, const struct timespec *span, const sigset_t *mask)
{
	(void)fds, (void)count, (void)span, (void)mask;
	sleep_until_the_other_acted();
	return 0;
}

ssize_t note_write(int fd, const void *bytes, size_t count)
{
	(void)bytes;
	sides[me].kicked[fd - KICK_RAIL] = true;
	return (ssize_t)count;
}

ssize_t note_read(int fd, void *bytes, size_t count)
{
	(void)fd, (void)bytes;
	return (ssize_t)count;
}

ssize_t note_recv(int fd, void *bytes, size_t count, int flags)
{
	(void)flags;
	return note_read(fd, bytes, count);
}

ssize_t note_send(int fd, const void *bytes, size_t count, int flags)
{
	(void)flags;
	return note_write(fd, bytes, count);
}

ssize_t note_preadv2(int fd, const struct iovec *into, int count, off_t at, int flags)
{
	(void)fd, (void)count, (void)at, (void)flags;
	return (ssize_t)into->iov_len;
}

/* ---- the cases: what the client's thread and the rail's thread do in a round ----------------- */

static void client_flush(void)
{
	client_side_flush(client);
}

static void client_flush_ctl(void)
{
	client_side_flush_ctl(client);
}

static void client_sleep(void)
{
	client_side_sleep(client);
}

/* sends the rail a command; the client's thread does it in place of the control plane */
static void client_tell(void)
{
	rail_side_tell(rail);
}

static void rail_rest(void)
{
	rail_side_rest(rail);
}

static void rail_turn(void)
{
	rail_side_turn(rail);
}

/* Lets the control plane go to sleep, by the same steps as in engine/control/loop.c. */
static void control_sleep(void)
{
	shm_store(&status->control_sleeps, 1);
	shm_fence_sleep();
	if (ring_ready(&ctl) == 0)
		sleep_until_the_other_acted();
	shm_store(&status->control_sleeps, 0);
}

static void write_op(void)
{
	client_side_write(client);
}

static void publish_op(void)
{
	client_side_write(client);
	client_side_flush(client);
}

static const struct round_case {
	const char *name;
	void (*prepare)(void); /* the client's thread runs it before the round */
	void (*client)(void);
	void (*rail)(void);
	bool client_sleeps;
	int kick;
} cases[] = {
	{"flush", write_op, client_flush, rail_rest, false, KICK_RAIL},
	{"tell", NULL, client_tell, rail_rest, false, KICK_RAIL},
	{"flush_ctl", NULL, client_flush_ctl, control_sleep, false, KICK_CONTROL},
	{"answer", publish_op, client_sleep, rail_turn, true, KICK_CLIENT},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

/* ---- rounds ---------------------------------------------------------------------------------- */

/* written by the client's thread between rounds; the rail's thread reads them */
static uint32_t which, over;

static uint32_t draw(struct side *side, uint32_t below)
{
	side->seed ^= side->seed << 13;
	side->seed ^= side->seed >> 7;
	side->seed ^= side->seed << 17;
	return (uint32_t)((side->seed >> 32) * below >> 32);
}

/*
 * Makes a lost wake-up likely: a delay shifts the two sides against each other, cold stores fill
 * the store buffer.
 */
static void widen_window(struct side *side)
{
	uint32_t stores = draw(side, COLD_STORES_MAX), delay = draw(side, DELAY_MAX);
	static const uint32_t nothing;

	while (delay--)
		(void)*(const volatile uint32_t *)&nothing;
	while (stores--) {
		side->cold_at = (side->cold_at + COLD_STRIDE) % (COLD_BYTES - 4);
		side->cold[side->cold_at] = (unsigned char)stores;
	}
}

static void play(void (*act)(void))
{
	struct side *side = &sides[me];

	side->slept = false;
	memset(side->kicked, 0, sizeof(side->kicked));
	meet();
	widen_window(side);
	act();
	shm_store_release(&side->acted, side->arrived);
	meet();
}

static void *rail_main(void *argument)
{
	(void)argument;
	me = 1;
	for (;;) {
		meet();
		if (over)
			return NULL;
		play(cases[which].rail);
		while (!rail_side_idle(rail))
			;
		meet();
	}
}

/* Plays one round of a sleeper against a waker. Returns true if the wake-up was lost. */
static bool play_round(unsigned number)
{
	const struct round_case *c = &cases[number];
	bool lost;

	which = number;
	if (c->prepare)
		c->prepare();
	meet();
	play(c->client);
	lost = sides[!c->client_sleeps].slept &&
	       !sides[c->client_sleeps].kicked[c->kick - KICK_RAIL];
	meet();
	while (client_side_done(client))
		;
	while (ring_ready(&ctl) > 0)
		ring_release(&ctl, 1);
	return lost;
}

/* ---- set-up and main ------------------------------------------------------------------------- */

static void *zeroed(size_t bytes)
{
	void *at = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);

	if (!at)
		abort();
	memset(at, 0, bytes);
	return at;
}

static bool pin(pthread_t thread, const cpu_set_t *may, int nth)
{
	cpu_set_t one;

	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (!CPU_ISSET(i, may) || nth--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(i, &one);
		return pthread_setaffinity_np(thread, sizeof(one), &one) == 0;
	}
	return false;
}

static void set_up(uint64_t seed)
{
	void *ops = zeroed(ring_bytes(OP_RING_SLOTS, sizeof(struct run_line)));
	void *done = zeroed(ring_bytes(DONE_RING_SLOTS, sizeof(struct run_done)));
	void *ctl_memory = zeroed(ring_bytes(CTL_RING_SLOTS, sizeof(struct ctl_op)));
	uint32_t *client_waits;

	status = zeroed(sizeof(*status));
	client = client_side_new(status, ops, done, ctl_memory, &client_waits);
	rail = rail_side_new(status, ops, done, client_waits);
	ring_consumer_init(&ctl, ctl_memory, CTL_RING_SLOTS, sizeof(struct ctl_op));
	for (unsigned i = 0; i < 2; i++) {
		sides[i].cold = zeroed(COLD_BYTES);
		sides[i].seed = seed * 2 + i + 1;
	}
}

/*
 * Plays rounds until the time is over, or, with `wanted`, until the wake-up of that case is lost.
 */
static int run(const char *mutant, const char *wanted)
{
	uint64_t begun = clock_now_ns();
	uint64_t end = begun + (mutant ? SECONDS_MUTANT : SECONDS) * 1000000000ull;
	uint64_t rounds[CASES] = {0}, lost[CASES] = {0};
	bool failed = mutant != NULL;

	for (unsigned i = 0; clock_now_ns() < end; i = (i + 1) % CASES) {
		if (wanted && strcmp(cases[i].name, wanted) != 0)
			continue;
		for (unsigned n = 0; n < 1000; n++) {
			rounds[i]++;
			lost[i] += play_round(i);
		}
		if (lost[i] && mutant)
			break;
	}
	for (unsigned i = 0; i < CASES; i++) {
		if (!rounds[i])
			continue;
		printf("%s %s: %lu wake-ups lost in %lu rounds, %lu ms\n",
			mutant ? mutant : "engine", cases[i].name, lost[i], rounds[i],
			(clock_now_ns() - begun) / 1000000);
		failed = mutant ? !lost[i] : failed || lost[i];
	}
	return failed;
}

int main(int argc, char **argv)
{
	const char *text = getenv("SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : clock_now_ns();
	pthread_t thread;
	cpu_set_t may;
	int failed;

	if (sched_getaffinity(0, sizeof(may), &may) < 0 || CPU_COUNT(&may) < 2) {
		printf("skipped: only one core is available and the two sides must run at the same time\n");
		return 77;
	}
	printf("SEED=%lu\n", seed);
	set_up(seed);
	if (pthread_create(&thread, NULL, rail_main, NULL) != 0 || !pin(pthread_self(), &may, 0) ||
		!pin(thread, &may, 1)) {
		printf("starting or pinning the two threads failed\n");
		return 1;
	}
	failed = run(argc > 2 ? argv[1] : NULL, argc > 2 ? argv[2] : NULL);
	over = 1;
	meet();
	pthread_join(thread, NULL);
	return failed;
}
