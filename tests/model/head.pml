/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine/abi/page.h: an owner takes a slot from its page, overwrites it and publishes it again,
 * twice, for the same key. A NIC reads the payload, its words in any order, then the head, its
 * words in any order. If the head matches, no word of the payload was overwritten.
 *
 *   RETIRE_WITHOUT_FENCE  page_head_retire() without shm_fence_store()
 *   HEAD_BESIDE_PAYLOAD   runs_post_heads() of rail/run_post.c posts the READ of the head before it saw the payload's CQE
 *   SAME_GENERATION       page_head_retire() does not change the generation
 */
#define CPUS  1
#define WORDS 4
#define GENERATION 0
#define KEY        1
#define PAYLOAD    2 /* two words; each holds the number of its page */

#include "store_buffer.pml"

proctype owner()
{
	byte page = 1;

	do
	:: page < 3 ->
		page++;
		/* page_head_retire() */
#ifndef SAME_GENERATION
		store(0, GENERATION, page);
#endif
#ifndef RETIRE_WITHOUT_FENCE
		fence(0);
#endif
		store(0, KEY, 0);
		/*
		 * The next writer of the slot is this core, later in program order, or a client to
		 * which this core gives the slot later.
		 */
		store(0, PAYLOAD, page);
		store(0, PAYLOAD + 1, page);
		/* page_head_publish() */
		fence(0);
		store(0, KEY, 1)
	:: else -> break
	od
}

proctype reader()
{
	byte payload[2], generation, key;
	bool first, second, third, fourth;

	do
	:: !first -> payload[0] = memory[PAYLOAD]; first = true
	:: !second -> payload[1] = memory[PAYLOAD + 1]; second = true
#ifdef HEAD_BESIDE_PAYLOAD
	:: !third ->
#else
	:: !third && first && second -> /* the CQE of the payload was seen */
#endif
		generation = memory[GENERATION]; third = true
#ifdef HEAD_BESIDE_PAYLOAD
	:: !fourth ->
#else
	:: !fourth && first && second ->
#endif
		key = memory[KEY]; fourth = true
	:: first && second && third && fourth -> break
	od;
	assert(!(generation == 1 && key == 1) || (payload[0] == 1 && payload[1] == 1))
}

init {
	atomic {
		memory[GENERATION] = 1;
		memory[KEY] = 1;
		memory[PAYLOAD] = 1;
		memory[PAYLOAD + 1] = 1;
		run drain(0);
		run owner();
		run reader()
	}
}
