/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The port that a software NIC simulates: the setting soft.model. WQEs complete at the times and in
 * the order of a real port with these parameters. Results measured with a model are marked
 * *modelled*.
 */
#ifndef CONFIG_PORT_MODEL_H
#define CONFIG_PORT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct port_model {
	uint32_t rate_gbps; /* Gbit/s of the port; 0: no model, WQEs complete at once */
	uint32_t rtt_ns;    /* round-trip time: start of a WQE to the first byte of its response */
	uint32_t reads_per_qp;      /* READs that one QP may have in flight: 1 to 16 */
	uint32_t qp_messages_per_s; /* WQEs that one QP starts per second; 0: unlimited */
	uint32_t messages_per_s;    /* WQEs that the port starts per second; 0: unlimited */
	uint32_t mtu;               /* payload bytes of a packet, a power of two */
	/* bytes of a packet besides the payload, including the inter-packet gap */
	uint32_t header_bytes;
	/* time that registering memory takes, ms per GiB; also with rate_gbps 0 */
	uint32_t register_ms_per_gib;
#ifdef TEST_HOOKS
	/* true: READs of 4096 bytes and more take simulated time but copy no data */
	bool still;
	/* time of the poll core that a doorbell costs, and to read a CQE or page head that the NIC
	 * wrote, ns; only with test.clock_file */
	uint32_t doorbell_ns;
	uint32_t line_ns;
	/* number of the ports of this machine, whose links answers to others cross, too; 0: they do
	 * not */
	uint32_t far_ports;
#endif
};

/*
 * Parses a model: words separated by commas, in any order, each at most once. Words that are not
 * there have their defaults.
 *
 *   400G            rate of the port, 1G to 100000G (Gbit/s); without it there is no model
 *   rtt=5us         round-trip time, 0 to 1 s; times take ns, us, ms or s
 *   reads=16        READs that one queue pair has in flight, 1 to 16
 *   qp_rate=2.5M    READs that one queue pair starts per second, at most 1000M; 0: unlimited
 *   port_rate=100M  READs that one port starts per second, at most 1000M; 0: unlimited
 *   mtu=4096        payload of one packet: 256, 512, 1024, 2048 or 4096 bytes
 *   header=82       header bytes of one packet, 0 to 4096: 82 for RoCE v2 over IPv4 including the
 *                   inter-packet gap, 26 for InfiniBand
 *   register=0ms    time to register one GiB of memory, at most 10000 s; also without a rate
 *
 * For measurements, only in a build with test hooks:
 *   still           READs of 4096 bytes and more copy no data, so pages hold wrong bytes
 *   doorbell=0ns    time of the poll core that a doorbell costs, about 80 ns on a real port
 *   line=0ns        time of the poll core to read a CQE or page head that the NIC wrote, about 30
 *                   ns on a real port; both count only with test.clock_file
 *   far=0           a number, the same for all engines of a measurement: an answer of several
 *                   packets crosses the link of the port that it comes from, too, behind its
 *                   answers to all others; in /dev/shm/peercache-ports-NUMBER
 *
 * Returns 0, or -EINVAL with "what is wrong; what to do" in `why` and *ret unchanged. Any thread.
 */
int port_model_parse(const char *text, struct port_model *ret, char *why, size_t why_bytes);

#endif
