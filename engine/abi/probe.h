/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static probes (USDT) of provider `peercache`: places where perf, bpftrace, SystemTap or gdb may
 * look in. One nop each while nobody does; nothing at all where sys/sdt.h is missing or Meson's
 * option `usdt` is off. Any thread.
 *
 * `channel` is the engine's number of the client thread's channel; with `cookie` it names one
 * operation from the client's submit to the rail's completion. `rail` is the rail's index. Recipes
 * that use them are in perf/recipes; tests/unit/abi/test_probe.py reads this table.
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
 * `status` is enum op_status (abi/op.h), `syndrome` the error completion's, 0 for none. rail_down
 * fires when a rail's connection with one peer breaks, and in the control plane with peer
 * NODES_MAX when the whole rail goes out of use.
 */
#ifndef ABI_PROBE_H
#define ABI_PROBE_H

#if defined(PEERCACHE_USDT)
#include <sys/sdt.h>
#define PROBE_3(name, a, b, c) DTRACE_PROBE3(peercache, name, a, b, c)
#define PROBE_5(name, a, b, c, d, e) DTRACE_PROBE5(peercache, name, a, b, c, d, e)
#else
/* Looked at by the compiler, evaluated by nobody. */
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
