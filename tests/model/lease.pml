/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validation by lease (engine/abi/page.h). The owner, control/pages/pool.c, takes two slots from their
 * pages: it increments both generations, runs one fence, reads the clock, and overwrites no slot
 * before LIMBO has passed; a client on another core does that. It may be stopped anywhere. The
 * reader posts the READs of payload (two words) and head in any order; the NIC may sample each word
 * again as long as no CQE was seen, and the last sample counts. If the head matches and less than
 * LEASE has passed, no word was overwritten. If more time has passed, the reader reads the head
 * again after everything else.
 *
 *   OWNER_WITHOUT_FENCE  pool_rest() without shm_fence_clock()
 *   CLOCK_FIRST          the owner reads the clock before it changes the generations
 *   CLOCK_BETWEEN        the owner reads the clock when it has changed the first generation only
 *   OVERWRITE_EARLY      the slots do not rest in limbo
 *   LIMBO_SHORT          the slots rest for one tick less than the announced LIMBO
 *   START_LATE           the reader reads T0 after it posted a READ
 *   END_EARLY            the reader reads T1 before its last CQE, from a cached clock
 *   NO_SECOND_HEAD       a reader that took too long does not read the head again
 *   ONE_TICK_MORE        the reader accepts up to and including LIMBO
 *   SECOND_HEAD_EARLY    the second READ of the head is posted before the payload's CQE
 */
#define CPUS  1
#define WORDS 6
#define GENERATION(slot)    (slot)
#define PAYLOAD(slot, word) (2 + 2 * (slot) + (word))
#ifndef LIMBO
#define LIMBO 2
#endif
#define CLOCK_MAX 6

#include "store_buffer.pml"

byte clock;

proctype time()
{
end:	do
	:: clock < CLOCK_MAX -> clock++
	:: clock == CLOCK_MAX -> break
	od
}

#ifdef LIMBO_SHORT
#define REST (LIMBO - 1)
#else
#define REST LIMBO
#endif

proctype owner()
{
	byte since;

#ifdef CLOCK_FIRST
	since = clock;
#endif
	store(0, GENERATION(0), 2);
#ifdef CLOCK_BETWEEN
	fence(0);
	since = clock;
#endif
	store(0, GENERATION(1), 2);
#ifndef OWNER_WITHOUT_FENCE
	fence(0);
#endif
#if !defined(CLOCK_FIRST) && !defined(CLOCK_BETWEEN)
	since = clock;
#endif
#ifndef OVERWRITE_EARLY
end:	clock >= since + REST; /* limbo ends, or time ends first */
#endif
	/* other cores overwrite the slots */
	if
	:: memory[PAYLOAD(0, 0)] = 2; memory[PAYLOAD(0, 1)] = 2
	:: memory[PAYLOAD(1, 0)] = 2; memory[PAYLOAD(1, 1)] = 2
	fi
}

#ifdef ONE_TICK_MORE
#define IN_TIME (t1 - t0 <= LIMBO)
#else
#define IN_TIME (t1 - t0 < LIMBO)
#endif

/* Two samples are taken again, of any words: retransmissions. */
#define SAMPLE(taken) atomic { !taken || again < 2
#define TAKEN(taken)  again = again + taken; taken = true }

proctype reader(byte slot)
{
	byte again;
	byte t0, t1, payload[2], generation;
	bool first, second, third;

#ifndef START_LATE
	t0 = clock;
#endif
#ifdef END_EARLY
	t1 = clock;
#endif
	do
	:: SAMPLE(first) -> payload[0] = memory[PAYLOAD(slot, 0)]; TAKEN(first)
	:: SAMPLE(second) -> payload[1] = memory[PAYLOAD(slot, 1)]; TAKEN(second)
	:: SAMPLE(third) -> generation = memory[GENERATION(slot)]; TAKEN(third)
	:: first && second && third -> break /* the last CQE was seen */
	od;
#ifdef START_LATE
	t0 = clock;
#endif
#ifndef END_EARLY
	t1 = clock;
#endif
	if
	:: IN_TIME
#if defined(NO_SECOND_HEAD)
	:: else
#elif defined(SECOND_HEAD_EARLY)
	:: else -> generation = memory[GENERATION(slot)];
		if
		:: payload[0] = memory[PAYLOAD(slot, 0)] /* a retransmission after the head */
		:: true
		fi
#else
	:: else -> generation = memory[GENERATION(slot)]
#endif
	fi;
	assert(generation != 1 || (payload[0] == 1 && payload[1] == 1))
}

init {
	atomic {
		memory[GENERATION(0)] = 1;
		memory[GENERATION(1)] = 1;
		memory[PAYLOAD(0, 0)] = 1;
		memory[PAYLOAD(0, 1)] = 1;
		memory[PAYLOAD(1, 0)] = 1;
		memory[PAYLOAD(1, 1)] = 1;
		run drain(0);
		run time();
		run owner();
		if
		:: run reader(0)
		:: run reader(1)
		fi
	}
}
