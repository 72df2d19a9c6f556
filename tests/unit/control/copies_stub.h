/* SPDX-License-Identifier: Apache-2.0 */
/* What other rooms call of the copier, for tests without it: nothing is copied. */
#ifndef TEST_COPIES_STUB_H
#define TEST_COPIES_STUB_H

#include "engine/control/copies/copies.h"

enum op_status copies_ask(struct control *control, const struct copy_wish *wish)
{
	(void)control, (void)wish;
	return OP_PEER_DOWN;
}

void copies_forget(struct control *control, const struct page_key *key)
{
	(void)control, (void)key;
}

void copies_cleared(struct control *control)
{
	(void)control;
}

void copies_counts(const struct control *control, struct copies_counts *ret)
{
	(void)control;
	*ret = (struct copies_counts){0};
}

#endif
