/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's state as JSON text, for tools and tests: engine, members, rails, counters, clients.
 * Control plane's thread only.
 */
#ifndef CONTROL_REPORT_H
#define CONTROL_REPORT_H

#include <stddef.h>

struct control;

/*
 * Returns 0 with a zero-terminated text of *ret_bytes characters, which the caller frees, or
 * -ENOMEM.
 */
int report_make(const struct control *control, char **ret_text, size_t *ret_bytes);

#endif
