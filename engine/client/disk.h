/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the engine for pages that no member has in memory. Channel thread. */
#ifndef CLIENT_DISK_H
#define CLIENT_DISK_H

#include <stdbool.h>
#include <stdint.h>

struct ctl_done;
struct pc_batch;
struct pc_channel;

void disk_step(struct pc_batch *b);
void disk_answer(struct pc_batch *b, uint32_t i, const struct ctl_done *done, uint32_t status);

#endif
