/* SPDX-License-Identifier: Apache-2.0 */
/* epochs.c for tests of single parts: nothing was ever cleared. */
#ifndef TEST_EPOCH_STUB_H
#define TEST_EPOCH_STUB_H

#include "engine/control/directory/directory.h"

uint32_t epochs_version(const struct control *control)
{
	return 0;
}

bool epoch_past(const struct control *control, const struct page_key *key)
{
	(void)control, (void)key;
	return false;
}

uint64_t epoch_raise(struct control *control, uint32_t *group)
{
	(void)control, (void)group;
	return 0;
}

uint64_t epoch_raise_to(struct control *control, uint32_t group, uint64_t epoch)
{
	(void)control, (void)group;
	return epoch;
}

bool epochs_storing(const struct control *control)
{
	return false;
}

#endif
