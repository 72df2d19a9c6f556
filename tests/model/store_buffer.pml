/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory with store buffers. A store waits in the buffer of its CPU until the process drain() of
 * that CPU moves it to memory. A store may overtake earlier stores to other words, as on arm64; on
 * x86-64 none does. A release store overtakes nothing. A fence waits until the buffer is empty. No
 * process loads what it stored itself, so store forwarding is not modelled.
 */
#define PLACES 4

typedef Buffer {
	byte word[PLACES];
	byte value[PLACES];
	bool release[PLACES];
	byte n;
}

byte memory[WORDS];
Buffer buffer[CPUS];

inline store_as(cpu, to, what, as_release)
{
	atomic {
		buffer[cpu].n < PLACES ->
		buffer[cpu].word[buffer[cpu].n] = to;
		buffer[cpu].value[buffer[cpu].n] = what;
		buffer[cpu].release[buffer[cpu].n] = as_release;
		buffer[cpu].n++
	}
}

#define store(cpu, to, what)         store_as(cpu, to, what, false)
#define store_release(cpu, to, what) store_as(cpu, to, what, true)
#define fence(cpu)                   (buffer[cpu].n == 0)

#define OTHER(cpu, i, j) (buffer[cpu].word[i] != buffer[cpu].word[j])
#define PASSES(cpu, i)   (buffer[cpu].n > i && !buffer[cpu].release[i])

inline commit(cpu, i)
{
	memory[buffer[cpu].word[i]] = buffer[cpu].value[i];
	j = i;
	do
	:: j + 1 < buffer[cpu].n ->
		buffer[cpu].word[j] = buffer[cpu].word[j + 1];
		buffer[cpu].value[j] = buffer[cpu].value[j + 1];
		buffer[cpu].release[j] = buffer[cpu].release[j + 1];
		j++
	:: else -> break
	od;
	/* clears the freed entry, so that equal states compare equal */
	buffer[cpu].n--;
	buffer[cpu].word[buffer[cpu].n] = 0;
	buffer[cpu].value[buffer[cpu].n] = 0;
	buffer[cpu].release[buffer[cpu].n] = false;
	j = 0
}

proctype drain(byte cpu)
{
	byte j;

end:	do
	:: atomic { buffer[cpu].n > 0 -> commit(cpu, 0) }
	:: atomic { PASSES(cpu, 1) && OTHER(cpu, 1, 0) -> commit(cpu, 1) }
	:: atomic { PASSES(cpu, 2) && OTHER(cpu, 2, 0) && OTHER(cpu, 2, 1) -> commit(cpu, 2) }
	:: atomic {
		PASSES(cpu, 3) && OTHER(cpu, 3, 0) && OTHER(cpu, 3, 1) && OTHER(cpu, 3, 2) ->
		commit(cpu, 3)
	}
	od
}
