/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's last resort: memory that a NIC may still write can only be made safe by ending the
 * process, and a loop that stands still answers no client any more.
 */
#ifndef CONTROL_FATAL_H
#define CONTROL_FATAL_H

/*
 * Logs, then aborts; a core dump has no pools in it (MADV_DONTDUMP). Any thread. Does not hang when
 * the log cannot be written.
 */
__attribute__((noreturn, format(printf, 1, 2))) void engine_abort(const char *format, ...);

#endif
