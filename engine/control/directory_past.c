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

unsigned past_owners(
	const struct past *past, const struct page_key *key, uint32_t ret_ref[REPLICAS_MAX])
{
	uint32_t owner[REPLICAS_MAX];
	unsigned owners = past->view ? map_owners(past->view, key, owner) : 0, count = 0;

	for (unsigned i = 0; i < owners; i++)
		if (!(past->without[owner[i] / 64] >> owner[i] % 64 & 1))
			ret_ref[count++] = past->view->owner[owner[i]].ref;
	return count;
}

bool past_has(const struct past *past, uint32_t ref)
{
	for (uint32_t i = 0; past->view && i < past->view->owners; i++)
		if (past->view->owner[i].ref == ref)
			return !(past->without[i / 64] >> i % 64 & 1);
	return false;
}
