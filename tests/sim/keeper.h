/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that starts the engine of a simulated host and stores its memory: it implements
 * engine/keeper/service.h for the node that runs. One thread.
 */
#ifndef TESTS_SIM_KEEPER_H
#define TESTS_SIM_KEEPER_H

#include <stddef.h>

/* A process starts: it is given what the node has stored. */
void keeper_start(unsigned node);
/* Drops all that the node has stored: its next process starts cold. */
void keeper_drop(unsigned node);
/* The stored memory of a rail under this name, mapped; NULL: there is none. */
const void *keeper_memory(unsigned node, const char *name, unsigned rail, size_t *ret_bytes);
void keeper_close(void);

#endif
