/* SPDX-License-Identifier: Apache-2.0 */
/* warm.h: what an engine stores for its successor, and what it takes from its predecessor. */
#include "engine/control/pages/warm_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "config/log.h"
#include "engine/control/clients/clients.h"
#include "engine/control/directory/directory.h"
#include "engine/keeper/service.h"
#include "numa/clock.h"

#define STATE_NAME "state"
#define REMOVALS_NAME "removals"
/* memory of a rail, as stored; the index in rail_names */
enum { STORED_POOL, STORED_HEADS, STORED_SLOTS, STORED_RAIL };

static const char *const rail_names[STORED_RAIL] = {"pool", "heads", "slots"};

/* ---- state ----------------------------------------------------------------------------------- */

static int state_map(struct warm *warm)
{
	void *base = mmap(NULL, WARM_STATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, warm->fd, 0);

	if (base == MAP_FAILED)
		return -errno;
	warm->state = base;
	return 0;
}

/*
 * Locks an open file description of its own. The stored descriptor is no use for that: all
 * processes that it was passed to share one.
 */
static int state_lock(struct warm *warm)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", warm->fd);
	warm->lock_fd = open(path, O_RDWR | O_CLOEXEC);
	if (warm->lock_fd < 0)
		return -errno;
	if (flock(warm->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno != EWOULDBLOCK)
		return -errno;
	log_error(
		"the memory that was passed to this engine is in use by the engine with pid %u: end that one first",
		shm_load(&warm->state->pid));
	return -EBUSY;
}

/* Takes the state of an earlier engine. Returns 1, 0: there is none that can be used, or -errno. */
static int state_adopt(struct warm *warm)
{
	struct stat st;
	int rc;

	warm->fd = service_stored(STATE_NAME);
	if (warm->fd < 0)
		return 0;
	if (fstat(warm->fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != WARM_STATE_BYTES) {
		log_warn("warm restart: the stored state is no state of an engine; starting cold");
		return 0;
	}
	rc = state_map(warm);
	if (rc == 0)
		rc = state_lock(warm);
	if (rc < 0)
		return rc;
	if (warm->state->magic == WARM_MAGIC && warm->state->layout == WARM_LAYOUT) {
		if (warm->state->crashes < WARM_CRASHES_MAX)
			return 1;
		log_error(
			"warm restart: %u engines in turn crashed when they started with the stored memory; starting cold",
			warm->state->crashes);
		return 0;
	}
	log_warn(
		"warm restart: the stored state has layout %u, not %u: another version of the engine wrote it; starting cold",
		warm->state->layout, WARM_LAYOUT);
	return 0;
}

static void state_drop(struct warm *warm)
{
	if (warm->state)
		munmap(warm->state, WARM_STATE_BYTES);
	if (warm->lock_fd >= 0)
		close(warm->lock_fd);
	if (warm->fd >= 0)
		close(warm->fd);
	warm->state = NULL;
	warm->fd = warm->lock_fd = -1;
}

static int state_new(struct warm *warm)
{
	int rc;

	warm->fd = memfd_create("peercache-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (warm->fd < 0 || ftruncate(warm->fd, WARM_STATE_BYTES) < 0)
		return -errno;
	rc = state_map(warm);
	if (rc == 0)
		rc = state_lock(warm);
	if (rc < 0)
		return rc;
	*warm->state =
		(struct warm_state){.magic = WARM_MAGIC, .layout = WARM_LAYOUT, .next_owner = 1};
	service_unstore(STATE_NAME);
	service_store(STATE_NAME, warm->fd);
	return 0;
}

/* An owner stands for one value of disk.paths: the locks of other paths would prove nothing. */
static void disk_owner_choose(struct warm *warm, const char *paths)
{
	uint64_t hash = XXH3_64bits(paths, strlen(paths));

	if (warm->state->disk_owner == 0 || warm->state->disk_paths != hash) {
		shm_store(&warm->state->disk_owner, 0);
		shm_store64(&warm->state->disk_paths, hash);
		shm_store(&warm->state->disk_owner, owner_number(warm));
	}
	warm->disk_owner = warm->state->disk_owner;
}

int warm_open(struct control *control)
{
	struct warm *warm;
	int rc;

	if (!service_stores())
		return 0;
	warm = calloc(1, sizeof(*warm));
	if (!warm)
		return -ENOMEM;
	warm->fd = warm->lock_fd = -1;
	LIST_INIT(&warm->left);
	rc = state_adopt(warm);
	warm->adopts = rc == 1;
	if (rc == 0) {
		state_drop(warm);
		rc = state_new(warm);
	}
	if (rc < 0) {
		state_drop(warm);
		free(warm);
		return rc;
	}
	shm_store(&warm->state->pid, (uint32_t)getpid());
	shm_store(&warm->state->life, warm->state->life + 1);
	shm_store(&warm->state->crashes, warm->state->crashes + 1);
	warm->ref = warm->adopts ? warm->state->ref : 0;
	shm_store(&warm->state->ref, 0);
	disk_owner_choose(warm, control->settings->disk_paths);
	control->warm = warm;
	return 0;
}

/* ---- pools ----------------------------------------------------------------------------------- */

static bool on_page(void *context, const struct page_head *head, uint32_t place)
{
	struct control *control = context;
	const struct index_entry entry = {.key = head->key,
		.place = place,
		.generation = head->generation,
		.length = head->length};

	if (index_put(control->index, &entry, NULL) < 0)
		return false;
	control->warm->adopted++;
	return true;
}

static void on_quarantined(void *context, const struct pool_quarantined *slot)
{
	struct warm *warm = ((struct control *)context)->warm;

	if (warm->slots == warm->room) {
		uint32_t room = warm->room ? warm->room * 2 : 1024;
		void *more = realloc(warm->slot, room * sizeof(*warm->slot));

		if (!more) {
			warm->forgotten++;
			return;
		}
		warm->slot = more;
		warm->room = room;
	}
	warm->slot[warm->slots++] = *slot;
}

static void rail_name(char name[STORED_NAME_BYTES], unsigned kind, unsigned rail)
{
	snprintf(name, STORED_NAME_BYTES, "%s-%u", rail_names[kind], rail);
}

/*
 * Takes the memory of a rail and adopts it. Returns 1, 0 if there is none that can be adopted, or
 * -errno.
 */
static int pool_adopt(
	struct control *control, const struct pool_options *options, struct pool **ret_pool)
{
	struct pool_adopt adopt = {
		.page = on_page, .quarantined = on_quarantined, .context = control};
	struct pool_options with = *options;
	char name[STORED_NAME_BYTES];
	int fd[STORED_RAIL], rc;
	bool all = true;

	for (unsigned kind = 0; kind < STORED_RAIL; kind++) {
		rail_name(name, kind, options->rail);
		fd[kind] = service_stored(name);
		all &= fd[kind] >= 0;
	}
	if (!all || !control->warm->adopts) {
		for (unsigned kind = 0; kind < STORED_RAIL; kind++)
			if (fd[kind] >= 0)
				close(fd[kind]);
		return 0;
	}
	adopt.memory_fd = fd[STORED_POOL];
	adopt.heads_fd = fd[STORED_HEADS];
	adopt.state_fd = fd[STORED_SLOTS];
	with.adopt = &adopt;
	rc = pool_open(&with, ret_pool);
	if (rc == 0)
		return 1;
	if (rc != -EPROTO)
		return rc;
	log_warn(
		"warm restart: the memory of rail %u has another size, layout or NUMA node, or not all of it was stored; its pages are lost",
		options->rail);
	return 0;
}

static void pool_store(const struct pool *pool, unsigned rail)
{
	const struct huge *const memory[STORED_RAIL] = {
		pool_memory(pool), pool_heads(pool), pool_state_memory(pool)};
	char name[STORED_NAME_BYTES];

	for (unsigned kind = 0; kind < STORED_RAIL; kind++) {
		rail_name(name, kind, rail);
		service_unstore(name);
		service_store(name, memory[kind]->fd);
	}
}

int warm_pool_open(
	struct control *control, const struct pool_options *options, struct pool **ret_pool)
{
	struct pool_options with = *options;
	uint64_t began_ns = clock_now_ns(), before;
	int rc;

	if (!control->warm)
		return pool_open(options, ret_pool);
	before = control->warm->adopted;
	with.want_state = true;
	with.owners = huge_number(control->warm->fd);
	rc = pool_adopt(control, &with, ret_pool);
	if (rc == 1) {
		log_info("warm restart: rail %u has %" PRIu64
			 " pages of the engine before, adopted in %" PRIu64 " ms",
			options->rail, control->warm->adopted - before,
			(clock_now_ns() - began_ns) / 1000000);
		return 0;
	}
	control->warm->ref = 0;
	if (rc == 0)
		rc = pool_open(&with, ret_pool);
	if (rc == 0)
		pool_store(*ret_pool, options->rail);
	return rc;
}

static const char *const shard_names[] = {"shard", "shard-state"};

/* Returns 1, 0 if there is no shard that can be adopted, or -errno. */
static int shard_take(struct control *control, uint64_t entries)
{
	struct warm *warm = control->warm;
	int memory = service_stored(shard_names[0]), state = service_stored(shard_names[1]), rc;

	if (memory < 0 || state < 0 || !warm->adopts) {
		if (memory >= 0)
			close(memory);
		if (state >= 0)
			close(state);
		return 0;
	}
	rc = shard_adopt(entries, memory, state, huge_number(warm->fd), &control->shard);
	if (rc == 0)
		return 1;
	if (rc != -EPROTO)
		return rc;
	log_warn(
		"warm restart: the directory shard has another size or layout, or was being changed when the engine before ended; it is filled again by the other members");
	return 0;
}

int warm_shard_open(struct control *control, uint64_t entries, int numa_node, bool want_huge)
{
	struct warm *warm = control->warm;
	int rc = warm ? shard_take(control, entries) : 0;

	if (rc == 1)
		return 0;
	if (rc == 0)
		rc = shard_open(entries, numa_node, want_huge, &control->shard);
	if (rc < 0 || !warm)
		return rc;
	shard_keep(&control->shard, huge_number(warm->fd));
	service_unstore(shard_names[0]);
	service_unstore(shard_names[1]);
	service_store(shard_names[0], control->shard.memory.fd);
	service_store(shard_names[1], control->shard.state_memory.fd);
	return 0;
}

int warm_removals_open(
	struct control *control, size_t bytes, struct huge *ret_memory, bool *ret_adopted)
{
	int fd = control->warm ? service_stored(REMOVALS_NAME) : -1, rc = -EINVAL;

	*ret_adopted = false;
	if (fd >= 0 && control->warm->adopts)
		rc = huge_adopt(fd, bytes, ret_memory);
	else if (fd >= 0)
		close(fd);
	*ret_adopted = rc == 0;
	if (rc == -EINVAL)
		rc = huge_open("peercache-removals", bytes, -1, false, ret_memory);
	if (rc < 0 || !control->warm || *ret_adopted)
		return rc;
	service_unstore(REMOVALS_NAME);
	service_store(REMOVALS_NAME, ret_memory->fd);
	return 0;
}

int warm_identity(struct control *control)
{
	struct warm *warm = control->warm;

	if (!warm)
		return 0;
	if (warm->ref)
		control->ref = warm->ref;
	control->incarnation = (uint64_t)warm->state->life << 32 | control->ref;
	control->status->incarnation = control->incarnation;
	control->status->ref = control->ref;
	shm_store(&warm->state->ref, control->ref);
	control->kept_ref = &warm->state->ref;
	return 0;
}

/* ---- begin and end --------------------------------------------------------------------------- */

static void adopted_count(struct control *control)
{
	const struct warm *warm = control->warm;
	struct index_entry entry[64];
	uint64_t cursor = 0;

	do {
		unsigned count = index_walk(control->index, &cursor, 64, entry);

		for (unsigned i = 0; i < count; i++)
			ctl_hold(control->ctl, place_rail(entry[i].place), entry[i].length, 1);
	} while (cursor);
	for (uint32_t i = 0; i < warm->slots; i++)
		ctl_hold(control->ctl, place_rail(warm->slot[i].place), warm->slot[i].length, 1);
	control->ctl->credits += warm->slots;
	control->counter[COUNTER_pages_adopted] += warm->adopted;
	/* no owner has them, not even this host's own shard */
	if (warm->adopted)
		directory_forgotten(control, control->ref);
}

void warm_end(struct control *control)
{
	if (control->warm)
		left_forget(control);
}

int warm_begin(struct control *control)
{
	struct warm *warm = control->warm;
	int rc;

	if (!warm)
		return 0;
	adopted_count(control);
	rc = left_watch(control);
	if (rc < 0) {
		warm_end(control);
		return rc;
	}
	lost_tell(warm);
	if (service_barrier(WARM_BARRIER_MS) < 0)
		log_warn(
			"warm restart: the process that started this engine has not stored its memory within %u ms; a restart may lose the pages",
			WARM_BARRIER_MS);
	shm_store(&warm->state->crashes, 0);
	return 0;
}

void warm_close(struct control *control)
{
	struct warm *warm = control->warm;

	if (!warm)
		return;
	control->warm = NULL;
	control->kept_ref = NULL;
	shm_store(&warm->state->crashes, 0);
	state_drop(warm);
	free(warm->slot);
	free(warm);
}

/* ---- figures --------------------------------------------------------------------------------- */

void warm_counts(const struct control *control, struct warm_counts *ret)
{
	const struct warm *warm = control->warm;

	*ret = (struct warm_counts){0};
	if (!warm)
		return;
	ret->life = warm->state->life;
	ret->adopted = warm->adopted;
	ret->reserved = warm->slots + warm->forgotten;
}
