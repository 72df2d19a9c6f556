/* SPDX-License-Identifier: Apache-2.0 */
/* Planted mistakes in the directory's walks and shards (ld --wrap). One thread. */
#include "engine/control/directory/directory.h"
#include "engine/control/directory/directory_state.h"
#include "engine/control/members/members.h"
#include "engine/control/pages/pages_inner.h"
#include "tests/sim/world.h"

void __real_directory_map_changed(struct control *control);
void __wrap_directory_map_changed(struct control *control);
void __wrap_directory_map_changed(struct control *control)
{
	struct directory *dir = control->directory;
	struct owner *owner;

	__real_directory_map_changed(control);
	if (world.mutant == MUTANT_FRESH_TRUSTED) {
		memset(&dir->lack, 0, sizeof(dir->lack));
		dir->self->walk.slots = 0;
		STAILQ_FOREACH (owner, &dir->owners, next)
			owner->walk.slots = 0;
	}
	if (world.mutant != MUTANT_WALK_RESTART)
		return;
	/* What is known of the owners is forgotten: they are walked for all slots. */
	STAILQ_FOREACH (owner, &dir->owners, next)
		lacks_all(dir, owner);
}

/* As if the limit of one owner were the limit of all owners together. */
static bool all_full(const struct directory *dir)
{
	const struct owner *owner;
	uint64_t background = 0;

	STAILQ_FOREACH (owner, &dir->owners, next)
		background += owner->background;
	return background + MOVE_PART > OWNER_WALK_MAX;
}

void __real_move_slice(void *context);
void __wrap_move_slice(void *context);
void __wrap_move_slice(void *context)
{
	struct directory *dir = context;

	if (world.mutant == MUTANT_GLOBAL_CAP && all_full(dir)) {
		dir->move.soon = false;
		move_soon(dir);
		return;
	}
	__real_move_slice(context);
}

__typeof__(shard_remove) __real_shard_remove, __wrap_shard_remove;

bool __wrap_shard_remove(struct shard *shard, const struct page_key *key, uint32_t ref,
	uint32_t place, uint32_t generation)
{
	bool lost = world.mutant == MUTANT_LOST_REMOVE ||
		    (world.mutant == MUTANT_DISK_REMOVE && place_on_disk(place));

	if (lost && ref != world.node[world.current].control.ref)
		return true;
	return __real_shard_remove(shard, key, ref, place, generation);
}

__typeof__(evict_give_back) __real_evict_give_back, __wrap_evict_give_back;

void __wrap_evict_give_back(
	struct evict *evict, uint32_t place, uint32_t generation, uint32_t length)
{
	if (world.mutant != MUTANT_LOST_RETURN)
		__real_evict_give_back(evict, place, generation, length);
}

__typeof__(pool_write_end) __real_pool_write_end, __wrap_pool_write_end;

void __wrap_pool_write_end(struct pool *pool, uint32_t place, uint32_t generation, bool on_disk)
{
	if (world.mutant != MUTANT_LOST_WRITE || place_unit(place) % 64)
		__real_pool_write_end(pool, place, generation, on_disk);
}

__typeof__(tier_forget) __real_tier_forget, __wrap_tier_forget;

bool __wrap_tier_forget(struct control *control, const struct page_key *key)
{
	return world.mutant != MUTANT_NO_TOMBSTONE && __real_tier_forget(control, key);
}

__typeof__(directory_on_disk) __real_directory_on_disk, __wrap_directory_on_disk;

bool __wrap_directory_on_disk(struct control *control, const struct disk_page *page)
{
	return world.mutant == MUTANT_DISK_UNTOLD || __real_directory_on_disk(control, page);
}

__typeof__(show_begin) __real_show_begin, __wrap_show_begin;

void __wrap_show_begin(struct directory *dir, struct owner *owner)
{
	if (world.mutant != MUTANT_NO_SHOW)
		__real_show_begin(dir, owner);
}

__typeof__(epochs_heard) __real_epochs_heard, __wrap_epochs_heard;

void __wrap_epochs_heard(struct control *control, const Pc__Hello *hello)
{
	Pc__Hello heard = *hello;

	if (world.mutant == MUTANT_DEAF_EPOCH)
		heard.n_epochs = 0;
	__real_epochs_heard(control, &heard);
}

__typeof__(epochs_serve) __real_epochs_serve, __wrap_epochs_serve;

bool __wrap_epochs_serve(struct control *control, struct rpc_link *link, const Pc__Epochs *message)
{
	return world.mutant == MUTANT_DEAF_EPOCH || __real_epochs_serve(control, link, message);
}

__typeof__(epochs_open) __real_epochs_open, __wrap_epochs_open;

int __wrap_epochs_open(struct control *control, void (*opened)(struct control *control))
{
	int rc = __real_epochs_open(control, opened);

	control->door_shut &= world.mutant != MUTANT_OPEN_DOOR;
	return rc;
}

__typeof__(epoch_past) __real_epoch_past, __wrap_epoch_past;

bool __wrap_epoch_past(const struct control *control, const struct page_key *key)
{
	return world.mutant != MUTANT_NO_SWEEP && __real_epoch_past(control, key);
}
