/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warm restart: the memory of the pools outlives the engine's process, and the next process adopts
 * the pages in it. The process that started the engine (peercache-keeper, systemd) stores the
 * descriptors, under these names:
 *
 *   state                      struct warm_state, which every engine over this memory has locked
 *   pool-R, heads-R, slots-R   the pool of rail R, its page heads and its struct pool_state
 *   shard, shard-state         the directory shard, and struct shard_state
 *   epochs                     struct epochs_shared
 *   process-P                  a pidfd of a client's process
 *   channel-P-N                the segment of a channel of process P; N is the channel's number as
 *                              an owner of slots
 *
 * Who owns a page slot after the engine was killed: a page and a free slot belong to the next
 * engine, and so do the slots that were granted to clients: the engine stores `stopped` in the
 * segments of their channels before it takes them. Only the slot that a segment names as `copying`
 * stays the client's, until its thread has left it or `process-P` has exited, whatever the children
 * of that process hold (abi/segment.h; a child of fork() has no mapping of the pools). A slot into
 * which the disk tier reads stays the kernel's until the locks of all
 * paths are taken, which the kernel holds until the last I/O has ended.
 *
 * Directory entries name this engine by its ref, the low half of the incarnation. A warm restart
 * keeps the ref, so the entries that other hosts have stay right, and the high half is the number
 * of the life, so other hosts see an engine that was restarted: QPs, rkeys and health are new. A
 * ref is kept only with the heads of all pools, because a place and a generation must name one use
 * of a slot under one ref, for ever; and only if no other member has the same one, which is given
 * up then (control.kept_ref). Control plane's thread only.
 */
#include "engine/control/pages/pages_inner.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "config/log.h"
#include "engine/abi/segment.h"
#include "engine/control/members/members.h"
#include "engine/control/net/net.h"
#include "engine/control/pages/pages.h"
#include "engine/keeper/service.h"

#define STATE_NAME "state"
#define EPOCHS_NAME "epochs"
#define PROCESS_PREFIX "process-"
#define STORED_NAME_BYTES 32u /* of a name and its zero byte */
/* memory of a rail, as stored; the index in rail_names */
enum { STORED_POOL, STORED_HEADS, STORED_SLOTS, STORED_RAIL };

#define WARM_MAGIC 0x50435753u /* "PCWS" */
#define WARM_LAYOUT 2u         /* raised when a field changes its place or meaning */
#define WARM_STATE_BYTES 4096u
/* after this number of crashes in turn during the start, the next engine starts cold */
#define WARM_CRASHES_MAX 3u
/* longest wait for the process that stores descriptors, at the start */
#define WARM_BARRIER_MS 5000u
#define WARM_READS_NS 10000000000ull /* after which no READ of an earlier engine is in flight */
#define WARM_LEFT_US 10000           /* between two looks at clients of earlier engines that copy */

struct warm_state {
	uint32_t magic, layout;
	uint32_t pid;  /* of the engine that locked the memory last */
	uint32_t life; /* number of that engine, counted from 1 */
	/* the number that the next owner of slots gets; never given twice */
	uint32_t next_owner;
	uint32_t disk_owner; /* owner of the slots into which the disk tier reads; 0: none yet */
	uint64_t disk_paths; /* hash of the setting disk.paths that disk_owner stands for */
	uint32_t crashes;    /* engines in turn that began to start with this memory and crashed */
	/*
	 * the engine's ref, which its successor takes over; 0: it chooses one. Written when the
	 * pools are adopted and stored, cleared before that.
	 */
	uint32_t ref;
	/*
	 * addresses of members, for the engine that is started next. The state of a version without
	 * them has zeros here, which are none.
	 */
	struct remembered remembered[REMEMBERED_MAX];
};
static_assert(sizeof(struct warm_state) <= WARM_STATE_BYTES, "it is a page");

static const char *const rail_names[STORED_RAIL] = {"pool", "heads", "slots"};
static const char *const shard_names[] = {"shard", "shard-state"};

/* A channel of an earlier engine whose client may still write to a slot. */
struct left_channel {
	LIST_ENTRY(left_channel) next;
	struct control *control;
	uint32_t process, owner;       /* numbers of the client's process and of the channel */
	struct channel_header *header; /* of its segment; NULL: of another version */
	int pidfd;                     /* of the client's process; -1: it cannot be watched */
};

struct warm {
	int fd, lock_fd; /* the state, and its lock: an open file description of its own */
	struct warm_state *state;
	bool adopts;  /* an earlier engine has left the state */
	uint32_t ref; /* the earlier engine's; 0: not known, or a rail was not adopted */
	uint32_t disk_owner;
	uint64_t adopted;
	/* slots that earlier engines granted and that were not returned since */
	struct pool_quarantined *slot;
	uint32_t slots, room;
	uint32_t forgotten; /* further slots: there was no memory to note them */
	LIST_HEAD(, left_channel) left;
	struct net_timer *left_timer; /* looks at them again; armed while there is one */
};

/* ---- the state ------------------------------------------------------------------------------- */

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
		"warm restart: the stored state has layout %u, this engine %u: another version of the engine wrote it; starting cold, its pages are lost",
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
	if (warm->fd < 0 || fchmod(warm->fd, 0600) < 0 || ftruncate(warm->fd, WARM_STATE_BYTES) < 0)
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

/* Returns a number that no owner of slots in this memory has had. */
static uint32_t owner_number(struct warm *warm)
{
	uint32_t owner = warm->state->next_owner;

	/* The last number is given to all further owners: their slots are never freed early. */
	if (owner != UINT32_MAX)
		shm_store(&warm->state->next_owner,
			owner + 1 == POOL_OWNER_COPIES ? UINT32_MAX : owner + 1);
	return owner;
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

void warm_close(struct control *control)
{
	struct warm *warm = control->warm;

	if (!warm)
		return;
	control->warm = NULL;
	control->kept_ref = NULL;
	control->remembered = NULL;
	shm_store(&warm->state->crashes, 0);
	state_drop(warm);
	free(warm->slot);
	free(warm);
}

/* ---- pools ----------------------------------------------------------------------------------- */

static bool warm_on_page(void *context, const struct page_head *head, uint32_t place)
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

static void warm_on_quarantined(void *context, const struct pool_quarantined *slot)
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

static void stored_rail_name(char name[STORED_NAME_BYTES], unsigned kind, unsigned rail)
{
	snprintf(name, STORED_NAME_BYTES, "%s-%u", rail_names[kind], rail);
}

/*
 * Takes the memory of a rail and adopts it. Returns 1, 0 if there is none that can be adopted, or
 * -errno.
 */
static int warm_pool_adopt(
	struct control *control, const struct pool_options *options, struct pool **ret_pool)
{
	struct pool_adopt adopt = {
		.page = warm_on_page, .quarantined = warm_on_quarantined, .context = control};
	struct pool_options with = *options;
	char name[STORED_NAME_BYTES];
	int fd[STORED_RAIL], rc;
	bool all = true;

	for (unsigned kind = 0; kind < STORED_RAIL; kind++) {
		stored_rail_name(name, kind, options->rail);
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

static void warm_pool_store(const struct pool *pool, unsigned rail)
{
	const struct huge *const memory[STORED_RAIL] = {
		pool_memory(pool), pool_heads(pool), pool_state_memory(pool)};
	char name[STORED_NAME_BYTES];

	for (unsigned kind = 0; kind < STORED_RAIL; kind++) {
		stored_rail_name(name, kind, rail);
		service_unstore(name);
		service_store(name, memory[kind]->fd);
	}
}

int warm_pool_open(
	struct control *control, const struct pool_options *options, struct pool **ret_pool)
{
	struct pool_options with = *options;
	uint64_t began_ns = net_now(), before;
	int rc;

	if (!control->warm)
		return pool_open(options, ret_pool);
	before = control->warm->adopted;
	with.want_state = true;
	with.owners = huge_number(control->warm->fd);
	rc = warm_pool_adopt(control, &with, ret_pool);
	if (rc == 1) {
		log_info("warm restart: rail %u has %" PRIu64
			 " pages of the engine before, adopted in %" PRIu64 " ms",
			options->rail, control->warm->adopted - before,
			(net_now() - began_ns) / 1000000);
		return 0;
	}
	control->warm->ref = 0;
	if (rc == 0)
		rc = pool_open(&with, ret_pool);
	if (rc == 0)
		warm_pool_store(*ret_pool, options->rail);
	return rc;
}

/* ---- the shard, removals, and the name of the engine ----------------------------------------- */

/* Returns 1, 0 if there is no shard that can be adopted, or -errno. */
static int warm_shard_take(struct control *control, uint64_t entries)
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
	rc = shard_adopt(entries, memory, state, huge_number(warm->fd), control->shard);
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
	int rc = warm ? warm_shard_take(control, entries) : 0;

	if (rc == 1)
		return 0;
	if (rc == 0)
		rc = shard_open(entries, numa_node, want_huge, control->shard);
	if (rc < 0 || !warm)
		return rc;
	shard_keep(control->shard, huge_number(warm->fd));
	service_unstore(shard_names[0]);
	service_unstore(shard_names[1]);
	service_store(shard_names[0], control->shard->memory.fd);
	service_store(shard_names[1], control->shard->state_memory.fd);
	return 0;
}

int warm_epochs_open(
	struct control *control, size_t bytes, struct huge *ret_memory, bool *ret_adopted)
{
	int fd = control->warm ? service_stored(EPOCHS_NAME) : -1, rc = -EINVAL;

	*ret_adopted = false;
	if (fd >= 0 && control->warm->adopts)
		rc = huge_adopt(fd, bytes, ret_memory);
	else if (fd >= 0)
		close(fd);
	*ret_adopted = rc == 0;
	if (rc == -EINVAL)
		rc = huge_open("peercache-epochs", bytes, -1, false, ret_memory);
	if (rc < 0 || !control->warm || *ret_adopted)
		return rc;
	service_unstore(EPOCHS_NAME);
	service_store(EPOCHS_NAME, ret_memory->fd);
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
	control->remembered = warm->state->remembered;
	return 0;
}

/* ---- owners of this engine's slots ----------------------------------------------------------- */

static void process_name(char name[STORED_NAME_BYTES], uint32_t process)
{
	snprintf(name, STORED_NAME_BYTES, PROCESS_PREFIX "%" PRIu32, process);
}

static void channel_prefix(char name[STORED_NAME_BYTES], uint32_t process)
{
	snprintf(name, STORED_NAME_BYTES, "channel-%" PRIu32 "-", process);
}

static void channel_name(char name[STORED_NAME_BYTES], uint32_t process, uint32_t owner)
{
	snprintf(name, STORED_NAME_BYTES, "channel-%" PRIu32 "-%" PRIu32, process, owner);
}

/* The process of a channel gets a number, too; without a pidfd it has no credits. */
static uint32_t process_store(struct warm *warm, int pidfd)
{
	char name[STORED_NAME_BYTES];
	uint32_t process = owner_number(warm);

	process_name(name, process);
	if (process != UINT32_MAX)
		service_store(name, pidfd);
	return process;
}

uint32_t warm_owner_new(struct control *control, int segment, int pidfd, uint32_t *process)
{
	char name[STORED_NAME_BYTES];
	uint32_t owner;

	if (!control->warm)
		return POOL_OWNER_NONE;
	/* both are stored before the first slot is granted */
	if (!*process && pidfd >= 0)
		*process = process_store(control->warm, pidfd);
	owner = owner_number(control->warm);
	channel_name(name, *process, owner);
	if (*process && owner != UINT32_MAX)
		service_store(name, segment);
	return owner;
}

void warm_owner_end(struct control *control, uint32_t owner, uint32_t process)
{
	char name[STORED_NAME_BYTES];

	if (!control->warm || owner == POOL_OWNER_NONE || owner == UINT32_MAX || !process)
		return;
	channel_name(name, process, owner);
	service_unstore(name);
}

void warm_process_end(struct control *control, uint32_t process)
{
	char name[STORED_NAME_BYTES];

	if (!control->warm || !process || process == UINT32_MAX)
		return;
	process_name(name, process);
	service_unstore(name);
}

uint32_t warm_owner_disk(const struct control *control)
{
	return control->warm ? control->warm->disk_owner : POOL_OWNER_NONE;
}

uint32_t warm_owner_copies(const struct control *control)
{
	return control->warm ? POOL_OWNER_COPIES : POOL_OWNER_NONE;
}

/* ---- slots of earlier engines ---------------------------------------------------------------- */

/* Returns the slots of an owner to their pools, but not the one named `but`. Returns how many. */
static uint32_t owner_slots_return(struct control *control, uint32_t owner, uint64_t but)
{
	struct warm *warm = control->warm;
	uint32_t kept = 0, before = warm->slots;

	for (uint32_t i = 0; i < before; i++) {
		const struct pool_quarantined *slot = &warm->slot[i];

		if (slot->owner == owner && slot_name(slot->place, slot->generation) != but)
			evict_give_back(
				control->evict, slot->place, slot->generation, slot->length);
		else
			warm->slot[kept++] = *slot;
	}
	warm->slots = kept;
	return before - kept;
}

static uint32_t owner_slots(const struct warm *warm, uint32_t owner)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < warm->slots; i++)
		count += warm->slot[i].owner == owner;
	return count;
}

void warm_disk_locked(struct control *control)
{
	uint32_t slots =
		control->warm ? owner_slots_return(control, control->warm->disk_owner, 0) : 0;

	if (slots)
		log_debug(
			"warm restart: the disks have ended the I/O of the engine before; %" PRIu32
			" slots are free",
			slots);
}

/*
 * READs of the engine before into slots have ended: nothing was posted after its exit, and a NIC
 * gives up each READ in less time than this, also if a client still has the NIC's device open.
 */
static void copies_release(struct control *control)
{
	if (net_now() - control->pace.started_ns > WARM_READS_NS)
		(void)owner_slots_return(control, POOL_OWNER_COPIES, 0);
}

static bool process_exited(int pidfd)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};

	return pidfd >= 0 && poll(&p, 1, 0) > 0;
}

/*
 * The first page of a channel's segment, which only this engine and the client have mapped. NULL:
 * it cannot be mapped, or another version of the engine made it.
 */
static struct channel_header *header_map(int segment)
{
	struct channel_header *header;
	struct stat st;
	void *base;

	if (fstat(segment, &st) < 0 || st.st_size < (off_t)PAGE_UNIT ||
		!(fcntl(segment, F_GET_SEALS) & F_SEAL_SHRINK))
		return NULL;
	base = mmap(NULL, PAGE_UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, segment, 0);
	if (base == MAP_FAILED)
		return NULL;
	header = base;
	if (header->magic == CHANNEL_MAGIC && header->version == ABI_VERSION)
		return header;
	munmap(base, PAGE_UNIT);
	return NULL;
}
static_assert(sizeof(struct channel_header) <= PAGE_UNIT, "one page is mapped");

/* Returns the slots that the client cannot write to any more; true if that is all of them. */
static bool left_release(struct left_channel *left)
{
	struct control *control = left->control;
	uint64_t but = 0;
	uint32_t slots;

	/* Without the header it is not known which slot the client copies into: all stay. */
	if (!process_exited(left->pidfd)) {
		if (!left->header)
			return !owner_slots(control->warm, left->owner);
		/* This acquire load pairs with slot_leave() in client/write/set.c. */
		but = shm_load_acquire64(&left->header->copying);
	}
	slots = owner_slots_return(control, left->owner, but);
	if (slots)
		log_debug("warm restart: %" PRIu32
			  " slots that the engine before had granted to a client are free",
			slots);
	return !owner_slots(control->warm, left->owner);
}

static void left_free(struct left_channel *left)
{
	if (left->header)
		munmap(left->header, PAGE_UNIT);
	if (left->pidfd >= 0)
		close(left->pidfd);
	free(left);
}

static bool process_has_left(const struct warm *warm, uint32_t process)
{
	const struct left_channel *left;

	LIST_FOREACH (left, &warm->left, next)
		if (left->process == process)
			return true;
	return false;
}

static void left_timer_start(struct warm *warm)
{
	bool waits = !LIST_EMPTY(&warm->left) || owner_slots(warm, POOL_OWNER_COPIES);

	if (waits && net_timer_set(warm->left_timer, WARM_LEFT_US) < 0)
		log_error("warm restart: no memory for a timer; slots stay reserved");
}

static void left_on_timer(void *context)
{
	struct control *control = context;
	struct warm *warm = control->warm;
	struct left_channel *left = LIST_FIRST(&warm->left), *next;

	copies_release(control);
	for (; left; left = next) {
		next = LIST_NEXT(left, next);
		if (!left_release(left))
			continue;
		LIST_REMOVE(left, next);
		warm_owner_end(control, left->owner, left->process);
		if (!process_has_left(warm, left->process))
			warm_process_end(control, left->process);
		left_free(left);
	}
	left_timer_start(warm);
}

/*
 * Ends a channel of an earlier engine as ctl_channel_close() ends one of this engine: the client
 * begins no copy any more. Only the slot that it copies into now stays reserved.
 */
static int channel_end(
	struct control *control, uint32_t process, uint32_t owner, int pidfd, int segment)
{
	struct left_channel *left = calloc(1, sizeof(*left));

	if (!left)
		return -ENOMEM;
	*left = (struct left_channel){.control = control,
		.process = process,
		.owner = owner,
		.header = header_map(segment),
		.pidfd = fcntl(pidfd, F_DUPFD_CLOEXEC, 0)};
	LIST_INSERT_HEAD(&control->warm->left, left, next);
	if (left->header) {
		shm_store(&left->header->stopped, 1);
		shm_fence_store_load(); /* pairs with slot_enter() in client/write/set.c */
	}
	return 0;
}

/* Ends the channels that earlier engines stored, and watches clients that copy. 0 or -ENOMEM. */
static int left_watch(struct control *control)
{
	struct warm *warm = control->warm;
	char prefix[STORED_NAME_BYTES];
	uint32_t process, owner;
	int pidfd, segment, rc = 0;

	warm->left_timer = net_timer_new(control->base, false, left_on_timer, control);
	if (!warm->left_timer)
		return -ENOMEM;
	while (!rc && (pidfd = service_stored_number(PROCESS_PREFIX, &process)) >= 0) {
		channel_prefix(prefix, process);
		while (!rc && (segment = service_stored_number(prefix, &owner)) >= 0) {
			rc = channel_end(control, process, owner, pidfd, segment);
			close(segment);
		}
		if (!process_has_left(warm, process))
			warm_process_end(control, process);
		close(pidfd);
	}
	if (!rc)
		left_on_timer(control);
	return rc;
}

/* Logs how many slots are never free again: their owner is no watched channel and no disk. */
static void lost_tell(const struct warm *warm)
{
	uint32_t lost = warm->forgotten + warm->slots - owner_slots(warm, warm->disk_owner) -
			owner_slots(warm, POOL_OWNER_COPIES);
	const struct left_channel *left;

	LIST_FOREACH (left, &warm->left, next)
		lost -= owner_slots(warm, left->owner);
	if (lost)
		log_warn(
			"warm restart: %" PRIu32
			" page slots stay reserved until a cold start: it is not known who may write to them",
			lost);
}

static void left_forget(struct control *control)
{
	struct warm *warm = control->warm;
	struct left_channel *left;

	while ((left = LIST_FIRST(&warm->left))) {
		LIST_REMOVE(left, next);
		left_free(left);
	}
	net_timer_free(warm->left_timer);
	warm->left_timer = NULL;
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
			evict_hold(control->evict, place_rail(entry[i].place), entry[i].length, 1);
	} while (cursor);
	for (uint32_t i = 0; i < warm->slots; i++)
		evict_hold(
			control->evict, place_rail(warm->slot[i].place), warm->slot[i].length, 1);
	control->evict->credits += warm->slots;
	control->counter[COUNTER_pages_adopted] += warm->adopted;
	/* no owner has them, not even this host's own shard */
	if (warm->adopted)
		control->pages_events->forgotten(control, control->ref);
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

/* ---- figures --------------------------------------------------------------------------------- */

void warm_counts(const struct control *control, struct warm_counts *ret)
{
	const struct warm *warm = control->warm;

	*ret = (struct warm_counts){0};
	if (!warm)
		return;
	ret->life = control->keeper_gone ? 0 : warm->state->life;
	ret->adopted = warm->adopted;
	ret->reserved = warm->slots + warm->forgotten;
}
