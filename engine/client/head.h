/* SPDX-License-Identifier: Apache-2.0 */
/* READs the head of a page that was stale, or that verify.c compares. Channel thread. */
#ifndef CLIENT_HEAD_H
#define CLIENT_HEAD_H

#include <stdint.h>

struct page_head;
struct pc_batch;
struct pc_channel;

void head_step(struct pc_batch *b);
void head_answer(struct pc_batch *b, uint32_t i, const struct page_head *head, uint32_t status);

#endif
