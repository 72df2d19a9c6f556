/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to the control plane that get one answer, and all answers of it. Channel thread. */
#ifndef CLIENT_CTL_H
#define CLIENT_CTL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/client/request.h"

struct ctl_op;
struct pc_batch;
struct pc_channel;

/*
 * Sends a request for page i of the batch, which gets one answer; sets its cookie. False: no room;
 * the page is again first in its queue.
 */
bool ctl_ask(struct pc_batch *b, uint32_t i, enum request_kind kind, struct ctl_op *op);
/* Sends the requests that wait, as far as there is room: to read a page from disk, to remove. */
void ctl_step(struct pc_batch *b);
/* Takes all answers of the control plane. */
void reap_ctl(struct pc_channel *ch);

#endif
