/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Validation by lease, as in DESIGN, not implemented yet: the owner overwrites a slot no earlier
 * than LIMBO after the new generation is visible. A reader whose READs all fall within less than
 * LIMBO needs no order between payload and head. If they took longer, the reader reads the head
 * again after everything else.
 *
 *   OWNER_WITHOUT_FENCE  the owner reads the clock while the generation is in the store buffer
 *   CLOCK_FIRST          the owner reads the clock before it changes the generation
 *   OVERWRITE_EARLY      the slot does not rest in limbo
 *   START_LATE           the reader reads its first clock value after it posted a READ
 *   END_EARLY            the reader's second clock value is from before its last CQE
 *   NO_SECOND_HEAD       a reader that took too long does not read the head again
 *   ONE_TICK_MORE        the reader accepts up to and including LIMBO
 */
#define CPUS  1
#define WORDS 2
#define GENERATION 0
#define PAYLOAD    1
#define LIMBO 2
#define CLOCK_MAX 8

#include "store_buffer.pml"

byte clock;
bool over;

proctype time()
{
end:	do
	:: clock < CLOCK_MAX -> clock++
	:: clock == CLOCK_MAX -> break
	od
}

proctype owner()
{
	byte since;

#ifdef CLOCK_FIRST
	since = clock;
#endif
	store(0, GENERATION, 2);
#ifndef OWNER_WITHOUT_FENCE
	fence(0);
#endif
#ifndef CLOCK_FIRST
	since = clock;
#endif
#ifndef OVERWRITE_EARLY
end:	clock >= since + LIMBO; /* the owner waits for limbo, or time ends first */
#endif
	memory[PAYLOAD] = 2 /* another core overwrites the slot */
}

#ifdef ONE_TICK_MORE
#define IN_TIME (end_ticks - begin <= LIMBO)
#else
#define IN_TIME (end_ticks - begin < LIMBO)
#endif

proctype reader()
{
	byte begin, end_ticks, payload, generation;
	bool first, second;

#ifndef START_LATE
	begin = clock;
#endif
#ifdef END_EARLY
	end_ticks = clock;
#endif
	do
	:: !first -> payload = memory[PAYLOAD]; first = true;
#ifdef START_LATE
		if
		:: !second -> begin = clock
		:: else
		fi
#endif
	:: !second -> generation = memory[GENERATION]; second = true;
#ifdef START_LATE
		if
		:: !first -> begin = clock
		:: else
		fi
#endif
	:: first && second -> break
	od;
#ifndef END_EARLY
	end_ticks = clock;
#endif
	if
	:: IN_TIME
#ifdef NO_SECOND_HEAD
	:: else
#else
	:: else -> generation = memory[GENERATION]
#endif
	fi;
	assert(generation != 1 || payload == 1)
}

init {
	atomic {
		memory[GENERATION] = 1;
		memory[PAYLOAD] = 1;
		run drain(0);
		run time();
		run owner();
		run reader()
	}
}
