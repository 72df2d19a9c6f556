/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static probes (USDT) of provider `peercache`, to which perf, bpftrace, SystemTap or gdb can
 * attach. A probe without a tracer is one nop. Without sys/sdt.h, or with Meson's option `usdt`
 * off, it is no code at all. Any thread may pass a probe.
 *
 * `channel` is the engine's number of the channel; together with `cookie` it identifies one op
 * from the client's submit to the rail's completion. `rail` is the rail's index, `peer` is
 * map_member.peer, `qpn` a QP number; lengths and offsets are in bytes. perf/recipes has scripts
 * that use the probes; tests/unit/abi/test_probe.py reads this table.
 *
 *   probe       where             arguments
 *   submit      client library    channel, cookie, rail, peer, length
 *   take        poll core         channel, cookie, rail, peer, length
 *   post        poll core         channel, cookie, rail, qpn, bytes
 *   completion  poll core         channel, cookie, rail, status, length
 *   stale       poll core         channel, cookie, rail, peer, offset
 *   evict       control plane     rail, place, length
 *   rail_down   poll core         rail, peer, syndrome
 *
 * post fires once for a READ, or for a series of READs of one run, with the bytes of its payload.
 * `status` is enum op_status (abi/op.h): that of run_done, or OP_STALE for a lone page
 * (rail/run.h) that is stale. `syndrome` is that of the error CQE, 0 if there was none.
 * rail_down fires in the poll core when a rail's connection to one peer breaks, and in the control
 * plane with peer NODES_MAX when a whole rail goes out of use.
 */
#ifndef ABI_PROBE_H
#define ABI_PROBE_H

#if defined(PEERCACHE_USDT)
#include <sys/sdt.h>
#define PROBE_3(name, a, b, c) DTRACE_PROBE3(peercache, name, a, b, c)
#define PROBE_5(name, a, b, c, d, e) DTRACE_PROBE5(peercache, name, a, b, c, d, e)
#else
/* Without USDT: the compiler checks the arguments but does not evaluate them. */
#define PROBE_3(name, a, b, c) ((void)sizeof((a) + (b) + (c)))
#define PROBE_5(name, a, b, c, d, e) ((void)sizeof((a) + (b) + (c) + (d) + (e)))
#endif

#define PROBE_SUBMIT(channel, cookie, rail, peer, length)                                          \
	PROBE_5(submit, channel, cookie, rail, peer, length)
#define PROBE_TAKE(channel, cookie, rail, peer, length)                                            \
	PROBE_5(take, channel, cookie, rail, peer, length)
#define PROBE_POST(channel, cookie, rail, qpn, bytes)                                              \
	PROBE_5(post, channel, cookie, rail, qpn, bytes)
#define PROBE_COMPLETION(channel, cookie, rail, status, length)                                    \
	PROBE_5(completion, channel, cookie, rail, status, length)
#define PROBE_STALE(channel, cookie, rail, peer, offset)                                           \
	PROBE_5(stale, channel, cookie, rail, peer, offset)
#define PROBE_EVICT(rail, place, length) PROBE_3(evict, rail, place, length)
#define PROBE_RAIL_DOWN(rail, peer, syndrome) PROBE_3(rail_down, rail, peer, syndrome)

#endif
