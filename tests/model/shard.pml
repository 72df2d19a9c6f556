/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control/pages/shard.c makes room in a full bucket: it moves an entry from the first bucket of its key
 * to the second (cell_displace()), then another key's entry takes its cell (cell_store()). A reader
 * READs the first bucket, then the second, each as it is at one moment. It finds the moved entry in
 * one of them, and never the tag of one entry with the place of the other.
 *
 *   MOVE_WITHOUT_FENCE   cell_store() without its first shm_fence_store()
 *   CLEAR_WITHOUT_FENCE  cell_store() without the fence after it has cleared the tag
 *   FILL_WITHOUT_FENCE   cell_store() without the fence before it writes the tag
 *   FILL_WITHOUT_CLEAR   cell_store() does not clear the tag first
 *   READER_BACKWARDS     the reader looks at the second bucket first
 */
#define CPUS  1
#define WORDS 4
#define FIRST  0 /* cell in the first bucket: {tag, place} */
#define SECOND 2 /* cell in the second bucket */

#include "store_buffer.pml"

#ifdef FILL_WITHOUT_FENCE
#define FILL_FENCE
#else
#define FILL_FENCE fence(0);
#endif

proctype owner()
{
	/* the moved entry, 1, gets an empty cell */
	fence(0);
	store(0, SECOND + 1, 1);
	FILL_FENCE
	store(0, SECOND, 1);
	/* the new entry, 2, gets the cell of the moved one */
#ifndef MOVE_WITHOUT_FENCE
	fence(0);
#endif
#ifndef FILL_WITHOUT_CLEAR
	store(0, FIRST, 0);
#endif
#ifndef CLEAR_WITHOUT_FENCE
	fence(0);
#endif
	store(0, FIRST + 1, 2);
	FILL_FENCE
	store(0, FIRST, 2)
}

#define NO_MIX(tag, place) (tag == 0 || tag == place)

proctype reader()
{
	byte tag1, place1, tag2, place2;

#ifdef READER_BACKWARDS
	d_step { tag2 = memory[SECOND]; place2 = memory[SECOND + 1] };
	d_step { tag1 = memory[FIRST]; place1 = memory[FIRST + 1] };
#else
	d_step { tag1 = memory[FIRST]; place1 = memory[FIRST + 1] };
	d_step { tag2 = memory[SECOND]; place2 = memory[SECOND + 1] };
#endif
	assert(NO_MIX(tag1, place1) && NO_MIX(tag2, place2));
	assert(tag1 == 1 || tag2 == 1)
}

init {
	atomic {
		memory[FIRST] = 1;
		memory[FIRST + 1] = 1;
		run drain(0);
		run owner();
		run reader()
	}
}
