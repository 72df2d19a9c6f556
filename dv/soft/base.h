/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all files of this folder call and what calls none of them (base.c): the lock and the clock
 * of a NIC, its counters, how a WQE fails and a peer is lost, the remedy of an error. soft.h
 * includes it.
 */
#ifndef DV_SOFT_BASE_H
#define DV_SOFT_BASE_H

#include <stddef.h>
#include <stdint.h>

struct dv_device;
struct dv_qp;
struct soft_ask;
struct soft_op;
struct soft_peer;

/* What makes room for a descriptor, behind a text with %m: "" unless the error is -EMFILE. */
const char *soft_remedy(int error);
void soft_lock(struct dv_device *nic);
void soft_unlock(struct dv_device *nic);
/* The time of this step, which it reads or is given. */
uint64_t soft_step_ns(struct dv_device *nic);
void soft_step_at(struct dv_device *nic, uint64_t now_ns);
uint64_t soft_random(struct dv_device *nic);
/* Counts a mistake of the poll core in *counter and stores its text in nic->stats.reason. */
void soft_blame(struct dv_device *nic, uint64_t *counter, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void soft_op_fail(struct soft_op *op, uint8_t syndrome, uint8_t vendor);
void soft_ask_of(const struct dv_qp *qp, const struct soft_op *op, struct soft_ask *ret_ask);
/* Copies like memcpy(), but may race with the owner of the memory: see base.c. */
void soft_copy(void *to, const void *from, size_t bytes);
/* Cancels a WQE's request: its destination is not written after this returns. Under nic->lock. */
void soft_tcp_cancel(struct dv_qp *qp, struct soft_op *op);
void soft_link_wake(struct dv_device *nic);
/* A WQE waits for the peer: tells the service thread to connect to it. */
void soft_link_want(struct dv_device *nic, struct soft_peer *peer);
/* Marks the link to the peer as lost: every QP on it gets SOFT_DEAD. Under nic->lock. */
void soft_peer_dead(struct dv_device *nic, struct soft_peer *peer);

#endif
