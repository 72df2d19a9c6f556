/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two page slots whose session ends while the client copies into one after the other: slot_enter()
 * and slot_leave() of client/set.c, ctl_channel_close() and ctl_channel_release() of
 * control/clients/ctl.c; after a restart channel_end() and left_release() of control/pages/warm.c. The
 * engine gives the slots to other pages; a store of the first client that reaches memory after that
 * corrupts that page. Limbo is left out: it makes the error rarer, but not impossible.
 *
 *   CLIENT_WITHOUT_FENCE   slot_enter() without shm_fence_store_load()
 *   NEXT_WITHOUT_DRAIN     slot_enter() without shm_fence_stream()
 *   CLIENT_WITHOUT_LOOK    the client copies although the engine has stopped the channel
 *   LEAVE_WITHOUT_DRAIN    slot_leave() without shm_fence_stream() and release
 *   ENGINE_WITHOUT_FENCE   ctl_channel_close() without shm_fence_store_load()
 *   ENGINE_WITHOUT_LOOK    the engine frees the slot although the client copies into it
 */
#define CPUS    2
#define WORDS   4
#define COPYING 0 /* the slot, 1 or 2, that the channel segment names as being filled; 0: none */
#define STOPPED 1
#define PAGE(slot) (1 + slot) /* 0: empty; 1: the first client's bytes; 2: the next page's bytes */
#define CLIENT 0
#define ENGINE 1

#include "store_buffer.pml"

bool client_done;

proctype client()
{
	byte slot = 1;

	do
	:: slot <= 2 ->
#ifndef NEXT_WITHOUT_DRAIN
		fence(CLIENT);
#endif
		store(CLIENT, COPYING, slot);
#ifndef CLIENT_WITHOUT_FENCE
		fence(CLIENT);
#endif
		if
#ifdef CLIENT_WITHOUT_LOOK
		:: true ->
#else
		:: memory[STOPPED] == 1 -> break
		:: memory[STOPPED] == 0 ->
#endif
			store(CLIENT, PAGE(slot), 1)
		fi;
		slot++
	:: else -> break
	od;
#ifdef LEAVE_WITHOUT_DRAIN
	store(CLIENT, COPYING, 0);
#else
	fence(CLIENT);
	store_release(CLIENT, COPYING, 0);
#endif
	fence(CLIENT);
	client_done = true
}

proctype engine()
{
	byte kept = 0;

	store(ENGINE, STOPPED, 1);
#ifndef ENGINE_WITHOUT_FENCE
	fence(ENGINE);
#endif
#ifndef ENGINE_WITHOUT_LOOK
	kept = memory[COPYING];
#endif
	if
	:: kept != 1 -> store(ENGINE, PAGE(1), 2)
	:: else
	fi;
	if
	:: kept != 2 -> store(ENGINE, PAGE(2), 2)
	:: else
	fi;
	if
	:: kept ->
		(memory[COPYING] != kept); /* the quarantine ends */
		store(ENGINE, PAGE(kept), 2)
	:: else
	fi;
	fence(ENGINE);
	client_done;
	assert(memory[PAGE(1)] == 2);
	assert(memory[PAGE(2)] == 2)
}

init {
	atomic {
		run drain(CLIENT);
		run drain(ENGINE);
		run client();
		run engine()
	}
}
