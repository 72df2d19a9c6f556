/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The copier of simulated engines: engine/control/copies with the sim's rails. In worlds with
 * copies only. One thread.
 */
#ifndef TESTS_SIM_COPIER_H
#define TESTS_SIM_COPIER_H

#include <stdint.h>

struct rail_channel;

/* A process starts, or ends. */
void copier_open(unsigned node);
void copier_close(unsigned node);
/* A rail of the node was given the copier's channel. */
void copier_channel(unsigned node, unsigned rail, struct rail_channel *channel);
/* The loop: as copies_turn(); the rails take what it has written. */
unsigned copier_turn(unsigned node);
/* A client of the node prefetches the page, if another node has it in memory. */
void copier_wish(unsigned node, uint64_t number);
/* Copies that nodes have made. */
uint64_t copier_made(void);

#endif
