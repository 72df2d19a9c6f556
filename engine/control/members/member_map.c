/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster map: made anew as members join and leave, kept here, and stored in the status segment
 * for clients. Control plane's thread only.
 */
#include <stdlib.h>

#include "config/log.h"
#include "engine/control/directory/directory.h"
#include "engine/control/members/member.h"

/* The live members as candidates. Returns their number. */
static unsigned candidates(const struct members *members, struct placed *ret)
{
	unsigned count = 0;

	for (unsigned i = 0; i < members->table.entries && count < members->alive; i++) {
		const struct member *member = member_at(&members->table, i);

		if (member->state == MEMBER_ALIVE)
			ret[count++] = (struct placed){.hash = member_hash(member),
				.ref = member->record.ref,
				.bucket_bits = member->record.bucket_bits};
	}
	return count;
}

/* Makes a view of the live members. NULL: no memory. */
static struct map_view *view_make(const struct control *control)
{
	const struct members *members = control->members;
	struct placed *owner = calloc(members->alive, sizeof(*owner));
	struct map_view *view = NULL;
	unsigned owners;

	if (owner) {
		owners = placement_choose(owner, candidates(members, owner));
		view = (control->status ? map_view_make : map_view_lazy)(members->current, owner,
			owners, (unsigned)control->settings->cluster_replicas);
	}
	free(owner);
	return view;
}

static void words_publish(struct control *control, uint64_t now_ns)
{
	struct members *members = control->members;

	slots_publish(control, members->slots, members->current,
		now_ns - members->opened_ns < MAP_OPENING_NS, now_ns);
}

void member_map_rebuild(struct control *control)
{
	struct members *members = control->members;
	struct map_view *view = view_make(control);

	if (!view) {
		log_error("no memory for a change of the cluster map: it stays as it was");
		return;
	}
	map_view_drop(members->current);
	members->current = view;
	if (members->alive <= 1)
		members->opened_ns = net_now();
	if (control->status)
		words_publish(control, net_now());
	if (control->directory)
		directory_map_changed(control);
}

void member_map_tick(struct control *control, uint64_t now_ns)
{
	if (control->status)
		slots_tick(control, control->members->slots, now_ns);
}

struct map_view *member_map(const struct control *control)
{
	return control->members->current;
}
