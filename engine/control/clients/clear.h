/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes the pages of a group of namespaces, or all, from this host: CTL_CLEAR. The requests are
 * served one after another, in parts of a turn each, so that clients of other groups go on. The
 * control plane's thread only.
 */
#ifndef CONTROL_CLEAR_H
#define CONTROL_CLEAR_H

#include <stdint.h>

struct control;
struct ctl_channel;
struct ctl_op;

#define CLEARS_MAX 1024u     /* requests that wait; further ones are refused */
#define CLEAR_BURST 256u     /* pages that a turn looks at */
#define CLEAR_SYNC_MAX 8192u /* tombstones that are being written at a time */

void clear_serve(struct control *control, struct ctl_channel *c, const struct ctl_op *op);
/* Once in each turn of the loop. Returns how much it did. */
unsigned clear_turn(struct control *control);
/* Drops the requests; their clients get no answer. */
void clear_close(struct control *control);

#endif
