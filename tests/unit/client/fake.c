/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake engine's memory, map, pages and thread. fake_attach.c serves the attach socket,
 * fake_rings.c serves the rings.
 */
#include "engine/client/page/key.h"
#include "tests/unit/client/fake_inside.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define MUST(x)                                                                                    \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			perror(#x);                                                                \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

void *fake_memory(size_t bytes, int *ret_fd)
{
	void *at;

	*ret_fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	MUST(*ret_fd >= 0 && ftruncate(*ret_fd, (off_t)bytes) == 0);
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
	MUST(at != MAP_FAILED);
	return at;
}

static uint64_t rank(uint32_t member, uint32_t slot)
{
	return map_mix(map_mix(slot + 1ull) ^ (member + 1ull) << 32);
}

/* The owner numbers of a slot: rendezvous hashing without weights. */
static struct map_slot slot_of_members(uint32_t slot, unsigned members, uint32_t replicas)
{
	struct map_slot ret = {.owners = 0};

	for (uint32_t m = 0; m < members; m++) {
		unsigned above = 0;

		for (uint32_t other = 0; other < members; other++)
			above += rank(other, slot) > rank(m, slot);
		if (above < replicas)
			ret.owner[above] = (uint8_t)m;
	}
	ret.owners = (uint8_t)(members < replicas ? members : replicas);
	return ret;
}

void fake_map(struct fake *f, unsigned members, uint32_t replicas)
{
	struct map_shared *map = &f->status->map;

	fake_lock(f);
	for (uint32_t m = 0; m < NODES_MAX; m++) {
		struct map_member member = {.ref = FAKE_REF(m),
			.peer = (uint16_t)m,
			.rails = FAKE_RAILS,
			.bucket_bits = FAKE_BITS};
		uint64_t word = m < members ? map_member_pack(&member) : 0;

		shm_store64(&map->member[m], word);
		if (m < members)
			shm_store64(&map->owner[m], word);
	}
	map->peers = map->members = members;
	map->replicas = replicas;
	shm_store_release(&map->epoch, map->epoch + 1);
	for (uint32_t i = 0; i < MAP_SLOTS; i++) {
		struct map_slot slot = slot_of_members(i, members, replicas);

		shm_store_release64(&map->slot[i], map_slot_pack(&slot));
	}
	fake_unlock(f);
}

struct page_key fake_key(const char *name)
{
	struct key_space name_space;
	struct page_key key;
	struct key_text text;

	(void)key_name_space(NULL, "tests", &name_space);
	key_text_init(&text, &name_space, &(struct epoch){0, 0});
	key_hash(&text, name, strlen(name), &key);
	return key;
}

unsigned fake_owners(struct fake *f, const struct page_key *key, uint32_t ret_owner[REPLICAS_MAX])
{
	struct map_slot slot = map_slot_unpack(f->status->map.slot[map_slot_of(key)]);
	unsigned owners = map_slot_owners(&slot);

	for (unsigned k = 0; k < owners; k++)
		ret_owner[k] = slot.owner[k];
	return owners;
}

uint32_t fake_owner(struct fake *f, const char *name)
{
	struct page_key key = fake_key(name);
	uint32_t owner[REPLICAS_MAX];

	fake_owners(f, &key, owner);
	return owner[0];
}

void fake_name_owned(struct fake *f, const char *stem, uint32_t node, unsigned *at,
	char ret_name[FAKE_NAME_BYTES])
{
	do
		snprintf(ret_name, FAKE_NAME_BYTES, "%s-%u", stem, (*at)++);
	while (fake_owner(f, ret_name) != node);
}

static bool put_in(struct bucket *bucket, const struct dir_entry *entry)
{
	for (unsigned k = 0; k < BUCKET_ENTRIES; k++) {
		struct dir_entry *e = &bucket->entry[k];

		if (e->tag && (e->tag != entry->tag || e->ref != entry->ref))
			continue;
		*e = *entry;
		return true;
	}
	return false;
}

void fake_insert(
	struct fake *f, const struct page_key *key, uint32_t only, const struct dir_entry *entry)
{
	struct dir_entry e = *entry;
	uint32_t owner[REPLICAS_MAX], n, first = dir_bucket_first(key, FAKE_BITS);

	fake_lock(f);
	e.tag = dir_tag(key);
	n = fake_owners(f, key, owner);
	if (only < FAKE_NODES) {
		owner[0] = only;
		n = 1;
	}
	for (uint32_t k = 0; k < n; k++) {
		struct bucket *shard = f->node[owner[k]].shard;

		if (!put_in(&shard[first], &e))
			put_in(&shard[dir_bucket_other(first, e.tag, FAKE_BITS)], &e);
	}
	fake_unlock(f);
}

unsigned char fake_byte(const char *name, uint32_t at)
{
	return (unsigned char)(map_mix(at + 1 + (unsigned char)name[strlen(name) - 1]) >> 16);
}

struct page_head *fake_head(struct fake *f, uint32_t node, uint32_t place)
{
	return &f->node[node].heads[place_rail(place)][place_unit(place)];
}

uint32_t fake_page(struct fake *f, const char *name, uint32_t node, uint32_t rail, uint32_t bytes)
{
	struct fake_node *n = &f->node[node];
	uint32_t units = (bytes + PAGE_UNIT - 1) / PAGE_UNIT;
	struct page_key key = fake_key(name);
	struct page_head *head;
	unsigned char *at;
	uint32_t place;

	fake_lock(f);
	place = place_make(rail, n->units_used[rail]);
	head = fake_head(f, node, place);
	at = n->pool[rail] + place_offset(place);
	n->units_used[rail] += units;
	for (uint32_t k = 0; k < bytes; k++)
		at[k] = fake_byte(name, k);
	head->generation = 7;
	page_head_publish(head, &key, bytes);
	fake_insert(f, &key, FAKE_NODES,
		&(struct dir_entry){.ref = FAKE_REF(node), .place = place, .generation = 7});
	fake_unlock(f);
	return place;
}

static void open_memory(struct fake *f)
{
	f->status = fake_memory(sizeof(*f->status), &f->status_fd);
	f->status->magic = STATUS_MAGIC;
	f->status->version = ABI_VERSION;
	f->status->incarnation = f->status->ref = FAKE_REF(FAKE_SELF);
	f->status->rails = FAKE_RAILS;
	f->status->bucket_bits = FAKE_BITS;
	f->status->page_bytes_max = 16u << 20;
	f->node[FAKE_SELF].shard = fake_memory(sizeof(struct bucket) << FAKE_BITS, &f->shard_fd);
	f->control_kick = eventfd(0, EFD_NONBLOCK);
	for (unsigned r = 0; r < FAKE_RAILS; r++) {
		f->status->pool_bytes[r] = FAKE_POOL_BYTES;
		f->node[FAKE_SELF].pool[r] = fake_memory(FAKE_POOL_BYTES, &f->pool_fd[r]);
		f->node[FAKE_SELF].heads[r] =
			fake_memory(FAKE_UNITS * sizeof(struct page_head), &f->heads_fd[r]);
		f->kick[r] = eventfd(0, EFD_NONBLOCK);
	}
	for (unsigned n = 1; n < FAKE_NODES; n++) {
		f->node[n].shard = aligned_alloc(64, sizeof(struct bucket) << FAKE_BITS);
		memset(f->node[n].shard, 0, sizeof(struct bucket) << FAKE_BITS);
		for (unsigned r = 0; r < FAKE_RAILS; r++) {
			/* mapped: $MALLOC_PERTURB_, which Meson sets, fills what is allocated */
			f->node[n].pool[r] = mmap(NULL, FAKE_POOL_BYTES, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			MUST(f->node[n].pool[r] != MAP_FAILED);
			f->node[n].heads[r] = calloc(FAKE_UNITS, sizeof(struct page_head));
		}
	}
}

void fake_lock(struct fake *f)
{
	pthread_mutex_lock(&f->lock);
}

void fake_unlock(struct fake *f)
{
	pthread_mutex_unlock(&f->lock);
}

/*
 * Waits for a kick or a request, and looks around each millisecond, because tests change the
 * engine's state. Rails that never sleep get no kicks.
 */
static void rest(struct fake *f)
{
	const struct timespec awake = {.tv_nsec = 50000}, asleep = {.tv_nsec = 1000000};
	struct pollfd p[FAKE_RAILS + 2];
	unsigned n = 0;
	bool no_sleep;

	fake_lock(f);
	no_sleep = f->no_sleep;
	for (unsigned r = 0; r < FAKE_RAILS; r++)
		p[n++].fd = f->kick[r];
	if (!f->deaf)
		p[n++].fd = f->control_kick;
	if (!f->mute && !f->stalled)
		p[n++].fd = f->connection >= 0 ? f->connection : f->listener;
	fake_unlock(f);
	for (unsigned i = 0; i < n; i++)
		p[i].events = POLLIN;
	(void)ppoll(p, n, no_sleep ? &awake : &asleep, NULL);
}

static void *run(void *context)
{
	struct fake *f = context;
	bool stop = false;

	while (!stop) {
		unsigned work;

		fake_lock(f);
		if (!f->still)
			shm_store(&f->status->beat, f->status->beat + 1);
		work = fake_serve_socket(f) + fake_serve_rings(f);
		stop = f->stop;
		fake_unlock(f);
		if (!work)
			rest(f);
	}
	return NULL;
}

void fake_start(struct fake *f)
{
	pthread_mutexattr_t attributes;

	memset(f, 0, sizeof(*f));
	f->staging = 8u << 20;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&f->lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
	f->connection = f->listener = -1;
	f->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	f->version = ABI_VERSION;
	f->rails_said = FAKE_RAILS;
	f->credits_left = UINT32_MAX;
	f->opens_max = UINT32_MAX;
	snprintf(f->path, sizeof(f->path), "/tmp/peercache-fake-%d.sock", getpid());
	open_memory(f);
	fake_map(f, FAKE_NODES, 2);
	fake_revive(f);
	MUST(pthread_create(&f->thread, NULL, run, f) == 0);
}

void fake_stop(struct fake *f)
{
	fake_lock(f);
	f->stop = true;
	fake_unlock(f);
	pthread_join(f->thread, NULL);
	fake_die(f);
	for (unsigned n = 0; n < FAKE_NODES; n++) {
		for (unsigned r = 0; r < FAKE_RAILS && n; r++) {
			munmap(f->node[n].pool[r], FAKE_POOL_BYTES);
			free(f->node[n].heads[r]);
		}
		if (n)
			free(f->node[n].shard);
	}
	munmap(f->status, sizeof(*f->status));
	munmap(f->node[0].shard, sizeof(struct bucket) << FAKE_BITS);
	for (unsigned r = 0; r < FAKE_RAILS; r++) {
		munmap(f->node[0].pool[r], FAKE_POOL_BYTES);
		munmap(f->node[0].heads[r], FAKE_UNITS * sizeof(struct page_head));
		close(f->pool_fd[r]);
		close(f->heads_fd[r]);
		close(f->kick[r]);
	}
	close(f->status_fd);
	close(f->shard_fd);
	close(f->control_kick);
	if (f->pidfd >= 0)
		close(f->pidfd);
	pthread_mutex_destroy(&f->lock);
}

void fake_die(struct fake *f)
{
	fake_lock(f);
	fake_hang_up(f);
	if (f->listener >= 0)
		close(f->listener);
	f->listener = -1;
	unlink(f->path);
	fake_unlock(f);
}

void fake_revive(struct fake *f)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	fake_lock(f);
	strcpy(address.sun_path, f->path);
	unlink(f->path);
	f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	MUST(bind(f->listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	MUST(listen(f->listener, 4) == 0);
	fake_unlock(f);
}
