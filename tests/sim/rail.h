/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs of clients, and the rails of simulated engines, which post them on the connections that
 * engine/control/conns makes: it implements engine/rail/rail.h for that room, with the rules of
 * engine/rail/conn.c. In worlds without keepers engines have no connections, and a READ needs a
 * network only. One thread.
 */
#ifndef TESTS_SIM_RAIL_H
#define TESTS_SIM_RAIL_H

#include <stdbool.h>
#include <stdint.h>

#define RAIL_READ_NS 300000000ull /* after which a READ without an answer has failed */

struct rail_read {
	unsigned reader; /* the node whose client READs */
	uint32_t ref;    /* of the process whose memory it READs */
	unsigned region; /* of abi/op.h */
	/*
	 * The NIC of `node` reads its memory now, whatever its process does. False: it has not got
	 * what the READ is for. Not called if the READ fails before.
	 */
	bool (*sample)(void *context, unsigned node);
	/* Called once, later than rail_read(). */
	void (*done)(void *context, bool answered);
	void *context;
};

/* The client tries each rail in use at most once. */
void rail_read(const struct rail_read *what);

/* A process starts: its rails have no connection. */
void rails_open(unsigned node);
/* The process ends, whatever its rails have. */
void rails_close(unsigned node);
/* The loop takes the events of the rails. Returns how many. */
unsigned rails_turn(unsigned node);

/* ---- what the checkers see ------------------------------------------------------------------- */

struct rail_seen {
	bool wants;         /* READs wait for a connection to this process */
	bool connected;     /* the rail has a connection to it, */
	bool open;          /* which takes READs, */
	bool paired;        /* and all its QPs have the other end */
	uint64_t posted_ns; /* when the last READ was posted on it */
};

void rail_look(unsigned node, unsigned rail, uint32_t ref, struct rail_seen *ret);
/* Number of the rail's connections, whatever their state. */
unsigned rail_connections(unsigned node, unsigned rail);
/* Since when a connection that ended is not returned, the oldest one; 0: there is none. */
uint64_t rail_ended_ns(unsigned node, unsigned rail);
/* READs that the rail has. */
unsigned rail_reads(unsigned node, unsigned rail);

#endif
