/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rail_open() and rail_close(): the rail's memory, CQ and page-head MR; and the control plane's
 * ends of its inbox. Control plane's thread, except for the read-only functions at the end, which
 * any thread may call.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dv/setup.h"
#include "engine/rail/core.h"

static_assert(sizeof(struct rail_command) == sizeof(struct rail_event), "one size for both rings");

/* ---- memory --------------------------------------------------------------------------------- */

static size_t inbox_ring_bytes(void)
{
	return ring_bytes(INBOX_SLOTS, sizeof(struct rail_command));
}

static void inbox_init(struct rail *rail)
{
	unsigned char *commands = rail->inbox_memory;
	unsigned char *events = commands + inbox_ring_bytes();
	uint32_t bytes = sizeof(struct rail_command);

	ring_producer_init(&rail->inbox.command_out, commands, INBOX_SLOTS, bytes);
	ring_consumer_init(&rail->inbox.command_in, commands, INBOX_SLOTS, bytes);
	ring_producer_init(&rail->inbox.event_out, events, INBOX_SLOTS, bytes);
	ring_consumer_init(&rail->inbox.event_in, events, INBOX_SLOTS, bytes);
}

/*
 * Initialises a zeroed rail. The stacks are filled so that low numbers come first, so that few
 * pages of the mapping are touched.
 */
static void rail_init(struct rail *rail, const struct rail_options *options)
{
	rail->options = *options;
	rail->nearest_ns = UINT64_MAX;
	list_init(&rail->waiting);
	list_init(&rail->conns);
	for (unsigned i = 0; i < RAIL_RUNS; i++) {
		rail->run[i].number = (uint16_t)i;
		rail->run_stack[i] = &rail->run[RAIL_RUNS - 1 - i];
	}
	rail->runs_free = RAIL_RUNS;
	for (unsigned i = 0; i < RAIL_LANDINGS; i++)
		rail->landing_stack[i] = (uint16_t)(RAIL_LANDINGS - 1 - i);
	rail->landings_free = RAIL_LANDINGS;
	for (unsigned i = 0; i < RAIL_CONNECTIONS_MAX; i++)
		rail->conn_stack[i] = (uint16_t)(RAIL_CONNECTIONS_MAX - 1 - i);
	rail->conns_free = RAIL_CONNECTIONS_MAX;
	inbox_init(rail);
}

static int rail_heads_register(struct rail *rail, struct dv_device *device)
{
	return dv_mr_register(device,
		&(struct dv_memory){.base = rail->head,
			.length = sizeof(rail->head),
			.access = DV_LOCAL_WRITE,
			.memfd = -1},
		rail->heads_handle);
}

int rail_open(const struct rail_options *options, struct rail **ret_rail)
{
	struct rail *rail;
	int error;

	if (options->index >= RAILS_MAX || !options->status)
		return -EINVAL;
	/* An anonymous mapping: zeroed, page-aligned, and most pages are first touched by the
	 * poll core, so they come from its NUMA node. */
	rail = mmap(
		NULL, sizeof(*rail), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (rail == MAP_FAILED)
		return -errno;
	error = -ENOMEM;
	rail->inbox_memory = aligned_alloc(64, 2 * inbox_ring_bytes());
	if (!rail->inbox_memory)
		goto unmap;
	memset(rail->inbox_memory, 0, 2 * inbox_ring_bytes());
	rail->heads_handle = calloc(1, sizeof(struct dv_mr));
	if (!rail->heads_handle)
		goto free_inbox;
	error = rail_heads_register(rail, options->device);
	if (error)
		goto free_heads;
	error = dv_cq_create(options->device, CQ_DEPTH, &rail->cq);
	if (error && error != -ENODEV)
		goto deregister;
	rail->cq_made = rail->cq;
	if (error)
		rail_without_nic(rail);
	rail->heads_lkey = ((struct dv_mr *)rail->heads_handle)->lkey;
	rail->device_steps = dv_needs_step(options->device);
	rail_init(rail, options);
	*ret_rail = rail;
	return 0;

deregister:
	dv_mr_deregister(options->device, rail->heads_handle);
free_heads:
	free(rail->heads_handle);
free_inbox:
	free(rail->inbox_memory);
unmap:
	munmap(rail, sizeof(*rail));
	return error;
}

int rail_nic_open(struct rail *rail)
{
	int error;

	/* what it named went with the closed device, and so did the registration of the heads */
	rail->cq_made = (struct dv_cq){.handle = NULL};
	error = rail_heads_register(rail, rail->options.device);
	if (error)
		return error;
	rail->heads_lkey_made = ((struct dv_mr *)rail->heads_handle)->lkey;
	return dv_cq_create(rail->options.device, CQ_DEPTH, &rail->cq_made);
}

void rail_nic_close(struct rail *rail)
{
	dv_cq_destroy(rail->options.device, &rail->cq_made);
	(void)dv_mr_deregister(rail->options.device, rail->heads_handle);
}

void rail_close(struct rail *rail)
{
	if (!rail)
		return;
	rail_nic_close(rail);
	free(rail->heads_handle);
	free(rail->inbox_memory);
	munmap(rail, sizeof(*rail));
}

/* ---- the control plane's ends --------------------------------------------------------------- */

struct dv_cq *rail_cq(struct rail *rail)
{
	return &rail->cq_made;
}

bool rail_command_send(struct rail *rail, const struct rail_command *command)
{
	struct ring_producer *out = &rail->inbox.command_out;
	uint64_t one = 1;

	if (ring_room(out, 1) < 1)
		return false;
	memcpy(ring_slot_new(out, 0), command, sizeof(*command));
	ring_publish(out, 1);
	/* Pairs with the fence of poll_sleep() in poll_core.c: the poll core raises its sleep flag,
	 * fences and looks at the inbox once more before it sleeps. */
	shm_fence_sleep();
	if (shm_load(&rail->options.status->rail[rail->options.index].sleeps)) {
		ssize_t n = write(rail->options.kick, &one, sizeof(one));

		/* the write fails only if the eventfd is full; it is readable then, so it wakes
		 * the poll core as well */
		(void)n;
	}
	return true;
}

bool rail_event_take(struct rail *rail, struct rail_event *ret_event)
{
	struct ring_consumer *in = &rail->inbox.event_in;

	if (ring_ready(in) < 1)
		return false;
	memcpy(ret_event, ring_slot_old(in, 0), sizeof(*ret_event));
	ring_release(in, 1);
	return true;
}

void rail_counters(const struct rail *rail, uint64_t ret_counters[COUNTER_COUNT])
{
	for (unsigned i = 0; i < COUNTER_COUNT; i++)
		ret_counters[i] = shm_load64(&rail->counter[i]);
}

void rail_latency(
	const struct rail *rail, uint64_t ret_latency[LATENCY_BUCKETS], uint64_t *ret_ns_sum)
{
	*ret_ns_sum = shm_load64(&rail->latency_ns_sum);
	for (unsigned i = 0; i < LATENCY_BUCKETS; i++)
		ret_latency[i] = shm_load64(&rail->latency[i]);
}

uint32_t rail_in_flight(const struct rail *rail)
{
	return shm_load(&rail->in_flight);
}

uint32_t rail_stalls(const struct rail *rail)
{
	return shm_load(&rail->stalls);
}
