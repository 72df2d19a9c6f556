/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map: made anew as members join and leave, kept here, and stored in the status segment
 * for clients. Control plane's thread only.
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/member.h"

/* The live members as candidates. Returns their number. */
static unsigned candidates(const struct member *member, struct placed *ret)
{
	unsigned count = 0;

	for (unsigned i = 0; i < member->table.entries && count < member->alive; i++) {
		const struct member_entry *entry = member_at(&member->table, i);

		if (entry->state == MEMBER_ALIVE)
			ret[count++] = (struct placed){.hash = member_entry_hash(entry),
				.ref = entry->record.ref,
				.bucket_bits = entry->record.bucket_bits};
	}
	return count;
}

/* Makes a view of the live members. NULL: no memory. */
static struct map_view *view_make(const struct control *control)
{
	const struct member *member = control->member;
	struct placed *owner = calloc(member->alive, sizeof(*owner));
	struct map_view *view = NULL;
	unsigned owners;

	if (owner) {
		owners = placement_choose(owner, candidates(member, owner));
		view = (control->status ? map_view_make : map_view_lazy)(member->current, owner,
			owners, (unsigned)control->settings->cluster_replicas);
	}
	free(owner);
	return view;
}

static void words_publish(struct control *control, uint64_t now_ns)
{
	struct member *member = control->member;

	slots_publish(control, member->slots, member->current,
		now_ns - member->opened_ns < MAP_OPENING_NS, now_ns);
}

void member_map_rebuild(struct control *control)
{
	struct member *member = control->member;
	struct map_view *view = view_make(control);

	if (!view) {
		log_error("no memory for a change of the cluster map: it stays as it was");
		return;
	}
	map_view_drop(member->current);
	member->current = view;
	if (member->alive <= 1)
		member->opened_ns = net_now();
	if (control->status)
		words_publish(control, net_now());
	if (control->directory)
		directory_map_changed(control);
}

void member_map_tick(struct control *control, uint64_t now_ns)
{
	if (control->status)
		slots_tick(control, control->member->slots, now_ns);
}

struct map_view *member_map(const struct control *control)
{
	return control->member->current;
}
