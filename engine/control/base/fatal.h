/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_abort(): ends the process when it cannot go on safely. Memory that a NIC may still write
 * becomes safe only when the process ends, and a loop that makes no progress answers no client any
 * more.
 */
#ifndef CONTROL_FATAL_H
#define CONTROL_FATAL_H

/*
 * Logs the message, then aborts the process. A core dump does not contain the pools
 * (MADV_DONTDUMP). Any thread may call it. It ends the process within 2 s even if the log cannot be
 * written.
 */
__attribute__((noreturn, format(printf, 1, 2))) void engine_abort(const char *format, ...);

#endif
