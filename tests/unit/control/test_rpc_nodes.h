/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network side of several control planes in one process, each with its own event loop; the
 * test's only thread runs the loops in turn. NICs and rails are stubs that record the commands they
 * get. Used by the tests of rpc, member, directory and connect, and by the fuzz target. A node is
 * one control plane in the test's process.
 */
#ifndef TESTS_UNIT_CONTROL_TEST_RPC_NODES_H
#define TESTS_UNIT_CONTROL_TEST_RPC_NODES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/control/clients/clients.h"
#include "engine/control/conns/conns.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/members.h"
#include "engine/control/members/members_inner.h"
#include "engine/control/net/rpc.h"
#include "engine/control/observe/observe.h"
#include "engine/control/observe/view_inner.h"
#include "engine/control/pages/pages.h"
#include "numa/clock.h"

#define NODES 6
#define TOLD_MAX 64

/* The stub of a rail: records the commands that rail_command_send() gets, in order. */
struct fake_rail {
	struct rail_command told[TOLD_MAX];
	unsigned tells;
	bool full; /* true: rail_command_send() returns false, as if the inbox were full */
	/* results that the stubs of rail_counters(), rail_in_flight() and rail_stalls() return */
	uint64_t counter[COUNTER_COUNT];
	uint32_t in_flight, stalls;
	unsigned blocked; /* number of its dv_qp_connect() calls that are blocked */
};

struct node {
	/* must be first: the stubs cast a struct control pointer to struct node */
	struct control control;
	struct settings settings;
	struct shard shard;
	struct statistics statistics;
	struct fake_rail rail[RAILS_MAX];
	bool bare;         /* the node is opened without rails: a seed only */
	uint32_t keep_ref; /* not 0: the node is opened with this ref, as after a warm restart */
	struct remembered *remembered; /* the addresses that it keeps for the next one; or NULL */
	unsigned doors_opened;         /* of epochs.h */
	bool open;
	bool stalled; /* true: the node's event loop gets no turn, as if its host were suspended */
	unsigned touches;
	uint32_t touched;
	/* pages that it was told were evicted lately; the newest one first */
	unsigned agains;
	uint32_t again_place[8];
	enum evicted again_from[8];
	/* the pages on its disk */
	struct disk_page *disk;
	unsigned disk_pages;
	bool disk_opens; /* it is being opened */
	unsigned reports;
	struct page_report reported;
	unsigned dones;
	enum op_status status; /* status with which the last call to the directory was answered */
	unsigned hits;
};

extern struct node node[NODES];

/* Counters of the calls to the stub NICs, shared by all nodes. */
enum stub_call {
	QPS_ALIVE,
	QPS_CONNECTS,
	QPS_ERRORS,
	QPS_KILLS,
	CUTS,
	EVENT_READS,
	PORT_LOOKS,
	REOPENS,
	NIC_CLOSES,
	STUB_CALLS
};
unsigned stub_count(enum stub_call which);
/* sets all counters to 0, except QPS_ALIVE, the number of existing QPs */
void stub_counts_clear(void);
#define qps_alive stub_count(QPS_ALIVE)
#define qps_connects stub_count(QPS_CONNECTS)
#define qps_errors stub_count(QPS_ERRORS)
#define qps_kills stub_count(QPS_KILLS)
#define device_cuts stub_count(CUTS)
extern int qp_create_status, qp_connect_status, qp_error_status, qp_kill_status, cut_status;
extern uint64_t ack_ns;
/*
 * While connects_blocked is set, dv_qp_connect() does not return, and the simulated time of the
 * nodes goes on without it.
 */
extern unsigned connects_blocked;
/* This number of calls of dv_qp_connect() return at once before any call blocks */
extern unsigned connects_free;
/* after the calls of connects_free, this number of calls block; all later calls return */
extern unsigned connects_held;
extern unsigned regions_retried;
/* results that the stubs of dv_event_fd() and dv_event_next() return */
extern int event_fd, event_status;
extern uint64_t port_bits_per_second;
/* result of dv_port_look(); QPs up to this number are stale */
extern int port_look_status;
/* the stub NICs are hardware; results of dv_reopen(), rail_nic_open(), client_memory_renew() */
extern bool nics_come_back;
extern int reopen_status, nic_open_status, renew_left;
extern unsigned sessions_lent; /* what clients_lent() returns */
extern uint32_t qps_stale_to;

/* Capacity, in entries, of the shard of each node that is opened after this is set. */
extern uint64_t nodes_entries;

/*
 * Sets up settings, ports and names of all nodes and opens none. `heartbeat_ms`: small; no seeds.
 */
void nodes_setup(int heartbeat_ms, int dead_after_ms);
/* Closes all open nodes. */
void nodes_teardown(void);
/*
 * Opens node i with a new incarnation. `seeds` as in cluster.seeds, NULL: none. Returns 0 or
 * -errno.
 */
int node_open(unsigned i, const char *seeds);
void node_close(unsigned i);
/* Returns "127.0.0.1:port" of node i. The text is in a static buffer of that node. */
const char *node_at(unsigned i);

/*
 * The nodes have simulated time: this program's clock_gettime() replaces libc's for the engine and
 * for libevent. Time advances only with the turns, so no machine is too slow for a test.
 */
/* Runs one turn of the event loop of every node that is not stalled. */
void nodes_turn(void);
/*
 * True, as after nodes_setup(): members that the test plays serve, as if they answered each probe
 * at once.
 */
extern bool raw_serves;
void nodes_run(unsigned ms);
/* Advances the time by `ms` without a turn of any node, as if the host were suspended. */
void nodes_pass(unsigned ms);
/* Runs turns of the nodes until the condition holds; false if it does not hold after `ms`. */
#define nodes_until(condition, ms)                                                                 \
	({                                                                                         \
		uint64_t until_ns_ = clock_now_ns() + (uint64_t)(ms)*1000000;                      \
		bool holds_;                                                                       \
		while (!(holds_ = (condition)) && clock_now_ns() < until_ns_)                      \
			nodes_turn();                                                              \
		holds_;                                                                            \
	})

/*
 * sees(): node i's map contains node j's present incarnation. sees_count(): node i's map has
 * exactly `count` members.
 */
bool sees(unsigned i, unsigned j);
bool sees_count(unsigned i, unsigned count);
/* True if the map of every open node contains exactly the open nodes. */
bool all_agree(void);

struct page_key key_of(uint64_t number);
/*
 * Adds key `number` with (place, generation) to node i's index and publishes it; the result is
 * counted in the node.
 */
void node_put(unsigned i, uint64_t number, uint32_t generation, unsigned deadline_ms);
/*
 * Returns the number of owners, by node `reader`'s map, that have the entry of node i's present
 * page of the key.
 */
unsigned found_at_owners(unsigned reader, unsigned i, uint64_t number);
/*
 * Returns the number of nodes, owners or not, that have the entry of node i's present page of the
 * key.
 */
unsigned found_anywhere(unsigned i, uint64_t number);
void node_done(void *context, uint64_t cookie, enum op_status status);

/*
 * Opens a TCP connection to node i on which the test writes and reads the bytes itself (a raw
 * connection).
 */
int raw_open(unsigned i);
void raw_bytes(int fd, const void *bytes, size_t count);
void raw_message(int fd, const Pc__Message *message);
/*
 * Sends a Hello that node 0 accepts, with this name, incarnation and port, and with `extra` as
 * gossip.
 */
void raw_hello(int fd, const char *name, uint64_t incarnation, uint16_t port, Pc__Member *extra);
/* A heartbeat of a member that has the list of node 0; a record of this member. */
void raw_beat(int fd);
void raw_record(int fd, Pc__Member *member, enum record_state state, uint32_t admission);
/*
 * Runs turns of the nodes until the node has closed the raw connection; discards what it sends.
 * False after `ms`.
 */
bool raw_closed(int fd, unsigned ms);
/*
 * Runs turns of the nodes until bytes have arrived on the raw connection. Returns their number; 0
 * after `ms`.
 */
size_t raw_read(int fd, void *bytes, size_t room, unsigned ms);
/*
 * Reads frames of the raw connection until one is of that kind: the caller frees it. Drops the
 * others, and what came with it. NULL after `ms` without a byte.
 */
Pc__Message *raw_await(int fd, Pc__Message__BodyCase kind, unsigned ms);

#endif
