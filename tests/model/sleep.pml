/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sleep protocol: client/submit.c and rail/poll_core.c rest(), and the other way with an
 * exchange of the flag (-DEXCHANGE): rail/wake.c and client/wait.c. A lost wake-up is a state in
 * which the sleeper waits for a kick for ever: an invalid end state.
 *
 *   WAKER_WITHOUT_FENCE    submit.c, wake() of poll_core.c, rail_tell(), publish_flush()
 *   SLEEPER_WITHOUT_FENCE  sleep_until() of wait.c, rest() of poll_core.c, sleep_or_work()
 *   SLEEPER_WITHOUT_LOOK   does not look at the ring again after the flag is up
 */
#define MESSAGES 3
#define CPUS  2
#define WORDS 2
#define RING  0 /* messages published */
#define FLAG  1 /* 1: kick me */
#define WAKER   0
#define SLEEPER 1

#include "store_buffer.pml"

bool kicked; /* the eventfd */

proctype waker()
{
	byte sent;

	do
	:: sent < MESSAGES ->
		sent++;
		store_release(WAKER, RING, sent);
#ifndef WAKER_WITHOUT_FENCE
		fence(WAKER);
#endif
		if
		:: memory[FLAG] == 1 ->
#ifdef EXCHANGE
			fence(WAKER); /* a locked instruction */
			if
			:: atomic { memory[FLAG] == 1 -> memory[FLAG] = 0 };
				kicked = true
			:: memory[FLAG] == 0
			fi
#else
			kicked = true
#endif
		:: memory[FLAG] == 0
		fi
	:: else -> break
	od
}

proctype sleeper()
{
	byte seen;

	do
	:: seen == MESSAGES -> break
	:: else ->
		if
		:: atomic { memory[RING] != seen -> seen = memory[RING] }
		:: memory[RING] == seen ->
			store(SLEEPER, FLAG, 1);
#ifndef SLEEPER_WITHOUT_FENCE
			fence(SLEEPER);
#endif
			if
#ifndef SLEEPER_WITHOUT_LOOK
			:: memory[RING] != seen
			:: memory[RING] == seen ->
#else
			:: true ->
#endif
				atomic { kicked -> kicked = false } /* poll(), read() */
			fi;
			store(SLEEPER, FLAG, 0)
		fi
	od
}

init {
	atomic {
		run drain(WAKER);
		run drain(SLEEPER);
		run waker();
		run sleeper()
	}
}
