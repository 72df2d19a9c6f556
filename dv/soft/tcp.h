/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of two software NICs over TCP, in host byte order: the magic number does not match
 * if the other host has another byte order or another version.
 *
 *   requester -> server   request, of a READ
 *   requester <- server   answer; with result DONE, the payload follows it
 *
 * The server answers the requests of a connection in order. A request without the token of the QP
 * that it names ends the connection, and so does silence: a requester connects when it has a
 * request.
 */
#ifndef DV_SOFT_TCP_H
#define DV_SOFT_TCP_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "dv/soft/export.h"

#define TCP_MAGIC 0x32635470u /* the bytes "pTc2" */

struct tcp_request {
	uint32_t magic;
	uint32_t opcode; /* MLX5_OPCODE_RDMA_READ */
	struct soft_ask ask;
	uint64_t id;                   /* number of the request, which the answer repeats */
	uint8_t token[DV_TOKEN_BYTES]; /* of the server's QP: struct dv_address */
};

struct tcp_answer {
	uint32_t magic;
	uint32_t result; /* result, enum soft_result: DONE, RETRY, REFUSED */
	uint64_t id;
	uint64_t length; /* bytes of payload that follow the answer */
};
static_assert(sizeof(struct tcp_request) == 72 && sizeof(struct tcp_answer) == 24, "no padding");

struct dv_device;
struct soft_conn;
struct soft_peer;
struct soft_serve;

/* receive_tcp.c */
void soft_tcp_receive(struct dv_device *nic, struct soft_peer *peer);

/* serve_tcp.c */
/* The caller frees it. NULL: out of memory. */
struct soft_serve *soft_serve_open(void);
/* Returns the events for which the service thread must poll() the connection's socket. */
short soft_serve_events(const struct soft_serve *serve);
/*
 * Marks the connections that show no token in time as `gone`, and those whose QPs were destroyed.
 * Returns the milliseconds until the next one is due; -1: none.
 */
int soft_serve_tend(struct dv_device *nic);
/*
 * Reads requests from the connection and sends answers until its socket would block; false: close
 * it.
 */
bool soft_serve(struct dv_device *nic, struct soft_conn *conn);

#endif
