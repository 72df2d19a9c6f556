/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several control planes' network sides in one process, each with an event loop of its own, driven
 * by the test's one thread; NICs and rails are stubs that note what they were told. For the tests
 * of rpc, member, directory and connect, and for the fuzz target.
 */
#ifndef TESTS_UNIT_CONTROL_TEST_RPC_NODES_H
#define TESTS_UNIT_CONTROL_TEST_RPC_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/control/connect.h"
#include "engine/control/directory.h"
#include "engine/control/member.h"
#include "engine/control/rpc.h"
#include "numa/clock.h"

#define NODES 6
#define TOLD_MAX 64

/* What the stub rail was told, in order. */
struct fake_rail {
	struct rail_command told[TOLD_MAX];
	unsigned tells;
	bool full; /* rail_tell() says no */
	/* what rail_counters() and rail_in_flight() say */
	uint64_t counter[COUNTER_COUNT];
	uint32_t in_flight;
};

struct node {
	struct control control; /* first: the stubs find the node by it */
	struct settings settings;
	struct fake_rail rail[RAILS_MAX];
	bool open;
	bool stalled; /* its loop does not run, as if the host were suspended */
	unsigned touches;
	uint32_t touched;
	unsigned dones;
	enum op_status status; /* of the last done */
	unsigned hits;
};

extern struct node node[NODES];

/* What the stub NICs count and do. */
enum stub_call { QPS_ALIVE, QPS_CONNECTS, QPS_ERRORS, QPS_KILLS, CUTS, EVENT_READS, STUB_CALLS };
unsigned stub_count(enum stub_call which);
void stub_counts_clear(void); /* all but those alive */
#define qps_alive stub_count(QPS_ALIVE)
#define qps_connects stub_count(QPS_CONNECTS)
#define qps_errors stub_count(QPS_ERRORS)
#define qps_kills stub_count(QPS_KILLS)
#define device_cuts stub_count(CUTS)
extern int qp_create_status, qp_connect_status, qp_error_status, qp_kill_status, cut_status;
extern uint64_t ack_ns;
/* While set, dv_qp_connect() does not come back, and the nodes' time does not wait for it. */
extern unsigned connects_blocked;
extern unsigned connects_free; /* so many come back first */
extern unsigned connects_held; /* and so many do not; the others do */
extern unsigned regions_retried;
extern int event_fd, event_status; /* of dv_event_fd(), dv_event_next() */
extern uint64_t port_bits_per_second;

/* Directory entries that the shard of a node opened from now on has room for. */
extern uint64_t nodes_entries;

/* Settings, ports and names for all; nothing is open. `heartbeat_ms` small; no seeds. */
void nodes_setup(int heartbeat_ms, int dead_after_ms);
/* Closes what is open. */
void nodes_teardown(void);
/* A new incarnation each time. `seeds` as in the settings, NULL: none. 0 or -errno. */
int node_open(unsigned i, const char *seeds);
void node_close(unsigned i);
/* "127.0.0.1:port" of node i; a static buffer per i. */
const char *node_at(unsigned i);

/*
 * Time is the nodes' own: this program's clock_gettime() stands in for libc's, for the engine and
 * for libevent. It goes on with the turns and with nothing else, so that no machine is too slow.
 */
/* One turn of every loop that is not stalled. */
void nodes_turn(void);
void nodes_run(unsigned ms);
/* Time passes and nobody has a turn, as if the host were suspended. */
void nodes_pass(unsigned ms);
/* Turns until the condition holds; false after `ms`. */
#define nodes_until(condition, ms)                                                                 \
	({                                                                                         \
		uint64_t until_ns_ = clock_now_ns() + (uint64_t)(ms)*1000000;                      \
		bool holds_;                                                                       \
		while (!(holds_ = (condition)) && clock_now_ns() < until_ns_)                      \
			nodes_turn();                                                              \
		holds_;                                                                            \
	})

/* Does node i have node j's present incarnation on its map, or exactly `count` members? */
bool sees(unsigned i, unsigned j);
bool sees_count(unsigned i, unsigned count);
/* Everybody open sees everybody open and nobody else. */
bool all_agree(void);

struct page_key key_of(uint64_t number);
/* Node i has key `number` at (place, generation) and publishes it; done is counted in the node. */
void node_put(unsigned i, uint64_t number, uint32_t generation, unsigned deadline_ms);
/* By node `reader`'s map: how many owners hold node i's present entry of the key. */
unsigned found_at_owners(unsigned reader, unsigned i, uint64_t number);
/* On all nodes, owners or not. */
unsigned found_anywhere(unsigned i, uint64_t number);
void node_done(void *context, uint64_t cookie, enum op_status status);

/* A bare TCP connection to node i. */
int raw_open(unsigned i);
void raw_bytes(int fd, const void *bytes, size_t count);
void raw_message(int fd, const Pc__Message *message);
/* A Hello that node 0 accepts, under this name and incarnation, with `extra` as gossip. */
void raw_hello(int fd, const char *name, uint64_t incarnation, uint16_t port, Pc__Member *extra);
/* Turns until the node has closed the connection, reading what it says. */
bool raw_closed(int fd, unsigned ms);
/* Bytes that have come, turning until some have. */
size_t raw_read(int fd, void *bytes, size_t room, unsigned ms);

#endif
