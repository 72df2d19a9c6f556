/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NICs of simulated hosts, SIM_RAILS each: it implements dv/setup.h for engine/control/conns. A
 * queue pair (QP) serves READs until its process ends, whether that process runs or not. One
 * thread.
 */
#ifndef TESTS_SIM_NIC_H
#define TESTS_SIM_NIC_H

#include <stdbool.h>
#include <stdint.h>

#include "dv/setup.h"
#include "tests/sim/pages.h"

#define NIC_NODES_MAX 64u               /* hosts whose NICs are simulated */
#define NIC_ACK_NS 4000000ull           /* ACK time-out of a QP */
#define NIC_RETRY_NS (8 * NIC_ACK_NS)   /* after which a READ without an answer is an error */
#define NIC_DRIVER_NS (20 * 1000000ull) /* longest time of a call of the driver */

enum nic_answer {
	NIC_SERVED,
	NIC_LOST,    /* no answer: the NIC sends the request again */
	NIC_REFUSED, /* the other end refuses it */
};

/* Makes the NICs of all hosts, without a fault. */
void nics_open(void);
void nics_close(void);
struct dv_device *nic_of(unsigned node, unsigned rail);
/* A process starts: registers its memory and fills control->rail[].exported. */
void nic_export(unsigned node);
/* The process has ended: the kernel has destroyed its QPs. Their handles stay valid. */
void nics_process_ends(unsigned node);

/* The port loses its link, or has it again. The process gets an event. */
void nic_port(unsigned node, unsigned rail, bool up);
/* It has, and the device lives. */
bool nic_has_link(unsigned node, unsigned rail);
/* Packets from and to the port are lost, and no event says so. */
void nic_mute(unsigned node, unsigned rail, bool mute);
/* QPs in the error state do not complete what was posted. */
void nic_stuck(unsigned node, unsigned rail, bool stuck);
/* A QP of the NIC fails: the process gets an event. */
void nic_qp_fails(unsigned node, unsigned rail);
/* The device dies: the process gets an event. */
void nic_dies(unsigned node, unsigned rail);
/* Packets of this port reach that one. */
bool nic_reaches(unsigned node, unsigned rail, unsigned to, unsigned to_rail);

/* A request of the QP arrives at the host that it is connected to. `rkey`: of what it reads. */
enum nic_answer nic_serve(const struct dv_qp *qp, uint32_t rkey, unsigned *ret_node);
/* The answer arrives. */
bool nic_answers(const struct dv_qp *qp);
/* The NIC does not complete what was posted to the QP. */
bool nic_hangs(const struct dv_qp *qp);
/* The QP is in the error state. */
bool nic_qp_failed(const struct dv_qp *qp);
/* A request failed: the NIC moves the QP to the error state. */
void nic_qp_error(struct dv_qp *qp);
/* The other end exists, and is connected to this one. */
bool nic_qp_paired(const struct dv_qp *qp);
/* The host that the QP is connected to. */
unsigned nic_qp_to(const struct dv_qp *qp);

/* ---- what the checkers see ------------------------------------------------------------------- */

struct nic_qp_seen {
	unsigned node, rail;
	unsigned to, to_rail; /* the other end, if `connected` */
	bool connected;
	bool reads;           /* it posts READs; false: it serves them */
	bool paired;          /* the other end exists and is connected to this one */
	uint64_t unpaired_ns; /* since when not; the caller's */
};
/* Calls back for each QP of a process that has not ended. */
void nic_each_qp(void (*call)(struct nic_qp_seen *seen));
unsigned nic_qps(unsigned node);

#endif
