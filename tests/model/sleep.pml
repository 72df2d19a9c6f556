/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sleep protocol: client/submit.c against poll_sleep() of rail/poll_core.c and, with the flag taken
 * by an exchange (-DEXCHANGE), poll_wake() of that file against client/wait.c. A lost wake-up is a
 * state in which the sleeper waits for a kick for ever: Spin reports it as an invalid end state.
 *
 *   WAKER_WITHOUT_FENCE    submit.c, poll_wake() of poll_core.c, rail_command_send(), ctl_flush()
 *   SLEEPER_WITHOUT_FENCE  sleep_until() of wait.c, poll_sleep(), loop_sleep_or_work()
 *   SLEEPER_WITHOUT_LOOK   the sleeper does not check the ring again after it set the flag
 */
#define MESSAGES 3
#define CPUS  2
#define WORDS 2
#define RING  0 /* number of messages published */
#define FLAG  1 /* 1: the sleeper requests a kick */
#define WAKER   0
#define SLEEPER 1

#include "store_buffer.pml"

bool kicked; /* the eventfd's state: a kick was written */

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
			/* the exchange is a locked instruction, which is a full fence */
			fence(WAKER);
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
				/* poll() and read() of the eventfd */
				atomic { kicked -> kicked = false }
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
