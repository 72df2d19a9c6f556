/* SPDX-License-Identifier: Apache-2.0 */
/* The one request of pc_clear(). Channel thread. */
#ifndef CLIENT_CLEAR_H
#define CLIENT_CLEAR_H

#include <stdint.h>

#include "engine/abi/page.h"

struct ctl_done;
struct pc_batch;

struct clear {
	struct page_key group; /* bits of the group */
	bool all;              /* all pages, of whatever group */
	uint64_t pages;        /* answer: number of pages that were removed */
};

void clear_step(struct pc_batch *b);
void clear_answer(struct pc_batch *b, const struct ctl_done *done, uint32_t status);

#endif
