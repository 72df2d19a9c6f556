/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of earlier times. Control plane's thread only. */
#include "engine/control/directory_past.h"

void past_set(struct past *past, const struct past *from)
{
	struct map_view *was = past->view;

	*past = *from;
	if (past->view)
		map_view_share(past->view);
	map_view_drop(was);
}

void past_drop(struct past *past)
{
	map_view_drop(past->view);
	*past = (struct past){.view = NULL};
}

void past_forget(struct past *past, uint32_t ref)
{
	for (uint32_t i = 0; past->view && i < past->view->owners; i++)
		if (past->view->owner[i].ref == ref)
			past->without[i / 64] |= 1ull << i % 64;
}

bool past_is(const struct past *past, const struct map_view *view)
{
	for (unsigned i = 0; i < OWNERS_MAX / 64; i++)
		if (past->without[i])
			return false;
	return past->view == view;
}
