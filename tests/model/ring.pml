/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/abi/ring.h: a producer publishes ops of one and two slots; a consumer takes each op when
 * it sees the turn (the sequence number) of its first slot. The consumer must then see all of the
 * op, and the producer must not overwrite slots that are still being read.
 *
 *   PUBLISH_RELAXED  ring_publish() stores the first turn without release
 *   LOOK_RELAXED     ring_look() loads the turn without acquire: the data may be loaded before it
 *   RELEASE_RELAXED  ring_release() stores its index without release: data may be loaded after it
 *   TURNS_FORWARD    ring_publish() stores the first slot's turn before the others
 */
#define SLOTS 4
#define OPS   5
#define CPUS  1
#define WORDS (2 * SLOTS + 1)
#define DATA(i)  ((i) % SLOTS)
#define TURN(i)  (SLOTS + (i) % SLOTS)
#define HEAD     (2 * SLOTS)
#define ROUND(i) (1 + (i) / SLOTS)
#define WHAT(i)  (1 + (i)) /* content of the i-th slot */

#include "store_buffer.pml"

#ifdef PUBLISH_RELAXED
#define publish(to, what) store(0, to, what)
#else
#define publish(to, what) store_release(0, to, what)
#endif

proctype producer()
{
	byte tail, op;

	do
	:: op < OPS ->
		if
		:: op % 2 == 0 ->
			SLOTS - (tail - memory[HEAD]) >= 1; /* ring_room() */
			store(0, DATA(tail), WHAT(tail));
			publish(TURN(tail), ROUND(tail));
			tail = tail + 1
		:: else ->
			SLOTS - (tail - memory[HEAD]) >= 2;
			store(0, DATA(tail + 1), WHAT(tail + 1));
#ifdef TURNS_FORWARD
			store(0, DATA(tail), WHAT(tail));
			publish(TURN(tail), ROUND(tail));
			publish(TURN(tail + 1), ROUND(tail + 1));
#else
			store(0, TURN(tail + 1), ROUND(tail + 1));
			store(0, DATA(tail), WHAT(tail));
			publish(TURN(tail), ROUND(tail));
#endif
			tail = tail + 2
		fi;
		op++
	:: else -> break
	od
}

inline take(i, data)
{
#ifndef LOOK_RELAXED
	data = memory[DATA(i)];
#endif
	assert(data == WHAT(i))
}

proctype consumer()
{
	byte head, op, first, second;

	do
	:: op < OPS ->
#ifdef LOOK_RELAXED
		first = memory[DATA(head)];
		second = memory[DATA(head + 1)];
#endif
		memory[TURN(head)] == ROUND(head); /* ring_ready() */
#ifdef RELEASE_RELAXED
		memory[HEAD] = head + 1 + op % 2;
#endif
		take(head, first);
		if
		:: op % 2 == 1 ->
			assert(memory[TURN(head + 1)] == ROUND(head + 1));
			take(head + 1, second)
		:: else
		fi;
		head = head + 1 + op % 2;
		op++;
		first = 0;
		second = 0;
		memory[HEAD] = head /* ring_release() */
	:: else -> break
	od
}

init {
	atomic {
		run drain(0);
		run producer();
		run consumer()
	}
}
