/* SPDX-License-Identifier: Apache-2.0 */
/* channel.h. One thread. */
#include "tests/sim/channel.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/abi/crc32c.h"
#include "engine/abi/segment.h"
#include "engine/control/clients/ctl_inner.h"
#include "engine/control/pages/pages.h"
#include "tests/sim/client.h"
#include "tests/sim/world.h"

#define WAKE_NS 2000u /* from an answer in the ring to the client that reads it */

struct channel {
	struct thing thing; /* first; of the event that reads the answers */
	unsigned node;
	struct ctl_channel engine;
	struct ring_producer ops;
	struct ring_consumer done;
	struct channel_header *header;
	size_t bytes;
	/* the client's mapping of the pools */
	struct {
		unsigned char *base;
		size_t bytes;
	} pool[SIM_RAILS];
	uint32_t length; /* of a page */
	bool writes;     /* a client writes into a slot */
	bool woken, closed;
};

static struct channel *of_node[SIM_NODES_MAX];

static void *map_shared(int fd, size_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		abort();
	return at;
}

/* The segment, with the file that warm.c stores. */
static int segment_open(struct channel *c)
{
	int fd = memfd_create("sim-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	c->bytes = channel_layout(SIM_RAILS).staging + STAGING_BYTES_MIN;
	if (fd < 0 || ftruncate(fd, (off_t)c->bytes) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))
		abort();
	c->header = map_shared(fd, c->bytes);
	*c->header = (struct channel_header){
		.magic = CHANNEL_MAGIC, .version = ABI_VERSION, .rails = SIM_RAILS};
	return fd;
}

static void rings_open(struct channel *c)
{
	const struct channel_layout layout = channel_layout(SIM_RAILS);
	unsigned char *ctl = (unsigned char *)c->header + layout.ctl;
	unsigned char *done = (unsigned char *)c->header + layout.ctl_done;

	ring_producer_init(&c->ops, ctl, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_consumer_init(&c->engine.ops, ctl, CTL_RING_SLOTS, sizeof(struct ctl_op));
	ring_producer_init(&c->engine.done, done, CTL_DONE_SLOTS, sizeof(struct ctl_done));
	ring_consumer_init(&c->done, done, CTL_DONE_SLOTS, sizeof(struct ctl_done));
}

void channel_open(unsigned node)
{
	struct node *n = &world.node[node];
	struct channel *c = calloc(1, sizeof(*c));
	int segment, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
	uint32_t process = 0;

	if (!c || pidfd < 0)
		abort();
	c->node = node;
	c->length = n->pages.length;
	segment = segment_open(c);
	rings_open(c);
	for (unsigned rail = 0; rail < n->control.rails; rail++) {
		const struct huge *memory = pool_memory(n->control.rail[rail].pool);

		c->pool[rail].bytes = memory->bytes;
		c->pool[rail].base = map_shared(memory->fd, memory->bytes);
	}
	c->engine.header = c->header;
	c->engine.wake = -1;
	c->engine.owner = warm_owner_new(&n->control, segment, pidfd, &process);
	close(segment);
	close(pidfd);
	ctl_channel_open(&n->control, &c->engine);
	of_node[node] = c;
}

static void channel_release(struct channel *c)
{
	if (!c->closed || c->writes)
		return;
	for (unsigned rail = 0; rail < SIM_RAILS; rail++)
		if (c->pool[rail].base)
			munmap(c->pool[rail].base, c->pool[rail].bytes);
	munmap(c->header, c->bytes);
	thing_close(&c->thing);
}

void channel_close(unsigned node)
{
	struct channel *c = of_node[node];
	struct ctl *ctl = world.node[node].control.ctl;

	if (!c)
		return;
	of_node[node] = NULL;
	ctl_requests_drop(ctl, &c->engine);
	credits_free(&c->engine.credits);
	ctl->channel[c->engine.id] = NULL;
	c->closed = true;
	client_gone(node);
	channel_release(c);
}

/* ---- ops and answers ------------------------------------------------------------------------- */

/* The loop of the engine turns, as after each event. */
static void wake_engine(struct thing *thing, uint64_t word)
{
	(void)thing;
	(void)word;
}

struct ctl_op *channel_put(unsigned node, const struct ctl_op *op)
{
	struct channel *c = of_node[node];
	struct ctl_op *entry;

	if (ring_room(&c->ops, 1) < 1)
		return NULL;
	entry = ring_slot_new(&c->ops, 0);
	memcpy(entry, op, sizeof(*op));
	entry = (void *)(c->ops.slots + ring_at(c->ops.capacity, c->ops.slot_bytes, c->ops.tail));
	ring_publish(&c->ops, 1);
	world_at(world.now_ns, node, NULL, 0, wake_engine);
	return entry;
}

bool channel_has(unsigned node, const struct ctl_op *entry)
{
	const struct channel *c = of_node[node];
	uint32_t index = (uint32_t)(entry - (const struct ctl_op *)(const void *)c->ops.slots);
	uint32_t head = c->engine.ops.head;

	return ((index - head) & (c->ops.capacity - 1)) < c->ops.tail - head;
}

static void answers_read(struct thing *thing, uint64_t word)
{
	struct channel *c = (struct channel *)(void *)thing;
	struct ctl_done done;

	(void)word;
	c->woken = false;
	while (!c->closed && ring_ready(&c->done) > 0) {
		memcpy(&done, ring_slot_old(&c->done, 0), sizeof(done));
		ring_release(&c->done, 1);
		client_answered(c->node, &done);
	}
}

void channel_look(unsigned node)
{
	struct channel *c = of_node[node];

	if (!c || c->woken || ring_ready(&c->done) <= 0)
		return;
	c->woken = true;
	world_always(world.now_ns + WAKE_NS, node, &c->thing, 0, answers_read);
}

/* ---- bytes of a page ------------------------------------------------------------------------- */

struct channel *channel_enter(unsigned node, uint32_t place, uint32_t generation)
{
	struct channel *c = of_node[node];

	if (!c || c->writes || shm_load(&c->header->stopped))
		return NULL;
	c->writes = true;
	if (world.mutant != MUTANT_NO_QUARANTINE)
		shm_store64(&c->header->copying, slot_name(place, generation));
	return c;
}

void channel_leave(struct channel *c)
{
	shm_store_release64(&c->header->copying, 0);
	c->writes = false;
	channel_release(c);
}

uint32_t channel_write(struct channel *c, uint32_t place, const struct content *content)
{
	unsigned char *bytes = c->pool[place_rail(place)].base + place_offset(place);

	for (uint32_t at = 0; at < c->length; at += PAGE_UNIT)
		memcpy(bytes + at, content, sizeof(*content));
	return crc32c(0, bytes, c->length);
}

void channels_free(void)
{
	for (unsigned i = 0; i < SIM_NODES_MAX; i++)
		if (of_node[i])
			channel_close(i);
}
