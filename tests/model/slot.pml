/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A page slot whose session ends while the client copies into it: slot_enter() and slot_leave() of
 * client/set.c, publish_channel_close() and publish_channel_release() of control/publish.c. The
 * engine gives the slot to another page; a store of the first client that reaches memory after that
 * corrupts that page. Limbo is left out: it makes the error rarer, but not impossible.
 *
 *   CLIENT_WITHOUT_FENCE   slot_enter() without shm_fence_store_load()
 *   CLIENT_WITHOUT_LOOK    the client copies although the engine has stopped the channel
 *   LEAVE_WITHOUT_DRAIN    slot_leave() without shm_fence_stream() and release
 *   ENGINE_WITHOUT_FENCE   publish_channel_close() without shm_fence_store_load()
 *   ENGINE_WITHOUT_LOOK    the engine frees the slot although the client copies into it
 */
#define CPUS    2
#define WORDS   3
#define COPYING 0 /* 1: the channel segment names the slot as being filled */
#define STOPPED 1
#define PAGE    2 /* 0: empty; 1: the first client's bytes; 2: the next page's bytes */
#define CLIENT 0
#define ENGINE 1

#include "store_buffer.pml"

bool client_done;

proctype client()
{
	store(CLIENT, COPYING, 1);
#ifndef CLIENT_WITHOUT_FENCE
	fence(CLIENT);
#endif
	if
#ifdef CLIENT_WITHOUT_LOOK
	:: true ->
#else
	:: memory[STOPPED] == 1
	:: memory[STOPPED] == 0 ->
#endif
		store(CLIENT, PAGE, 1);
#ifndef LEAVE_WITHOUT_DRAIN
		fence(CLIENT)
#endif
	fi;
#ifdef LEAVE_WITHOUT_DRAIN
	store(CLIENT, COPYING, 0);
#else
	store_release(CLIENT, COPYING, 0);
#endif
	fence(CLIENT);
	client_done = true
}

proctype engine()
{
	store(ENGINE, STOPPED, 1);
#ifndef ENGINE_WITHOUT_FENCE
	fence(ENGINE);
#endif
#ifndef ENGINE_WITHOUT_LOOK
	(memory[COPYING] == 0); /* true at once, or when quarantine ends */
#endif
	store(ENGINE, PAGE, 2);
	fence(ENGINE);
	client_done;
	assert(memory[PAGE] == 2)
}

init {
	atomic {
		run drain(CLIENT);
		run drain(ENGINE);
		run client();
		run engine()
	}
}
