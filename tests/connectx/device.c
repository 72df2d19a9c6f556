/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The emulated ConnectX ports of this process: their settings from SOFT_CONNECTX_*, the number that
 * identifies each on this host and, while a context is open, its software NIC with its thread.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "tests/connectx/testing.h"
#include "tests/connectx/uverbs.h"

#define NUMBER_FIRST 1u
#define NUMBER_LAST 0xbfffu /* largest number of a NIC: the last unicast LID */
#define SPINS 128u          /* idle steps of the device's thread before its first sleep */
/* steps of the device's thread between two polls of its message socket */
#define QUIET_STEPS 8u
/* nice value of the device's thread: a device must not wait for programs */
#define NICE (-15)
/* shortest sleep of the device's thread; a message ends the sleep, a doorbell does not */
#define SLEEP_MIN_NS 20000u
#define SLEEP_MAX_NS 500000u
/* a sleep of the device's thread lasts at most 1/64 of the time without work */
#define SLEEP_SHARE 64u

pthread_mutex_t uv_lock = PTHREAD_MUTEX_INITIALIZER;

static struct uv_device devices[UV_DEVICES_MAX];
static unsigned device_count;

unsigned uv_devices(void)
{
	return device_count;
}

struct uv_device *uv_device(unsigned index)
{
	return index < device_count ? &devices[index] : NULL;
}

struct uv_device *uv_device_of(struct dv_device *nic)
{
	return nic->foreign;
}

/*
 * Returns number `index` of the comma-separated list in variable `name`; the last one holds for
 * later indices.
 */
static long list_at(const char *name, unsigned index, long otherwise)
{
	const char *at = getenv(name);
	char *end;
	long value = otherwise;

	for (unsigned i = 0; at && *at && i <= index; i++) {
		value = strtol(at, &end, 0);
		at = *end == ',' ? end + 1 : NULL;
	}
	return value;
}

static bool list_has(const char *name, const char *word)
{
	const char *at = getenv(name);
	size_t bytes = strlen(word);

	while (at && *at) {
		if (strncmp(at, word, bytes) == 0 && (at[bytes] == ',' || !at[bytes]))
			return true;
		at = strchr(at, ',');
		at = at ? at + 1 : NULL;
	}
	return false;
}

/*
 * Takes a number that is free on this host: it is held by binding its socket, until the process
 * ends.
 */
static int take_number(struct uv_device *device)
{
	uint32_t start = (uint32_t)getpid() * UV_DEVICES_MAX + device->index;

	for (uint32_t i = 0; i < NUMBER_LAST; i++) {
		uint16_t number = (uint16_t)(NUMBER_FIRST + (start + i) % NUMBER_LAST);
		int fd = uv_message_open(number);

		if (fd >= 0) {
			device->number = number;
			device->message_fd = fd;
			return 0;
		}
		if (fd != -EADDRINUSE)
			return fd;
	}
	return -EADDRINUSE;
}

static unsigned odd_of(void)
{
	static const char *const names[] = {"tail", "stale", "torn", "order", "syndrome", "way",
		"mtu", "segments", "nobf", "qps", "gids", "relaxed", "vlan", "bond"};
	unsigned odd = 0;

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (list_has("SOFT_CONNECTX_ODD", names[i]))
			odd |= 1u << i;
	return odd;
}

/* Reads the configuration of the devices, once. The caller holds uv_lock. */
int uv_devices_open(void)
{
	const char *link = getenv("SOFT_CONNECTX_LINK");
	long count = list_at("SOFT_CONNECTX_DEVICES", 0, 1);

	if (device_count || count < 1)
		return 0;
	if (count > (long)UV_DEVICES_MAX)
		count = UV_DEVICES_MAX;
	for (unsigned i = 0; i < (unsigned)count; i++) {
		struct uv_device *device = &devices[i];
		char name[UV_NAME_BYTES];
		int rc;

		device->index = i;
		device->odd = odd_of();
		device->gids_moved = device->odd & UV_ODD_GIDS;
		uv_device_name(device, name);
		device->infiniband = !link || strcmp(link, "roce") != 0;
		device->down = list_has("SOFT_CONNECTX_DOWN", name);
		device->gone = list_has("SOFT_CONNECTX_GONE", name);
		device->maps = list_at("SOFT_CONNECTX_MAP", i, 1) != 0;
		device->move_max =
			(uint64_t)list_at("SOFT_CONNECTX_MOVE_MAX", i, (long)UV_MR_BYTES_MAX);
		device->numa_node = (int)list_at("SOFT_CONNECTX_NUMA", i, 0);
		device->gbits = (unsigned)list_at("SOFT_CONNECTX_GBITS", i, 400);
		device->mr_bytes_max =
			(uint64_t)list_at("SOFT_CONNECTX_MR_BYTES", i, (long)UV_MR_BYTES_MAX);
		rc = take_number(device);
		if (rc) {
			fprintf(stderr, "soft-connectx: %s: binding the socket of its number: %s\n",
				name, strerror(-rc));
			return rc;
		}
	}
	device_count = (unsigned)count;
	uv_yield_open();
	return 0;
}

/* Reports a port event to every context that has doorbell pages: libmlx5 creates one in each. */
void uv_port_changed(struct uv_device *device, bool up)
{
	if (device->down == !up)
		return;
	device->down = !up;
	if (device->nic)
		uv_uar_tell(device->nic, 1, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void uv_gids_moved(struct uv_device *device, bool moved)
{
	if (device->gids_moved == moved)
		return;
	device->gids_moved = moved;
	if (!device->down && device->nic)
		uv_uar_tell(device->nic, 1, IBV_EVENT_GID_CHANGE);
}

bool uv_context_dead(const struct uv_context *context)
{
	return context->life != dv_hint_load(&context->device->life);
}

void uv_device_removed(struct uv_device *device, bool gone)
{
	struct dv_device *nic = device->nic;

	if (device->gone == gone)
		return;
	device->gone = gone;
	if (gone)
		dv_hint_add(&device->life, 1);
	if (gone && nic) {
		for (unsigned i = 0; i < nic->qp_count; i++)
			soft_qp_hide(nic->qps[i]);
		nic->fault.dead |= DV_DEAD_CQES;
		uv_uar_tell(nic, 0, IBV_EVENT_DEVICE_FATAL);
	} else if (nic) {
		nic->fault.dead &= ~(unsigned)DV_DEAD_CQES;
	}
	uv_sysfs_show(device, !gone);
}

/* ---- the NIC's thread ------------------------------------------------------------------------ */

/*
 * Steps before this thread polls for messages again: the poll is a system call, and READs need
 * none. Only the NIC's own thread skips polls; other threads that step poll in every step.
 */
static _Thread_local unsigned quiet, quiet_steps;

static void sleep_idle(const struct uv_device *device, uint64_t ns)
{
	struct pollfd message = {.fd = device->message_fd, .events = POLLIN};
	struct timespec nap = {.tv_nsec = (long)ns};

	ppoll(&message, 1, &nap, NULL);
	quiet = 0;
}

/* How long the device's thread sleeps after it found no work for `idle_ns`. */
static uint64_t nap_ns(uint64_t idle_ns)
{
	uint64_t ns = idle_ns / SLEEP_SHARE;

	if (ns < SLEEP_MIN_NS)
		return SLEEP_MIN_NS;
	return ns < SLEEP_MAX_NS ? ns : SLEEP_MAX_NS;
}

/*
 * Doorbells are plain memory, so they must be polled, and two polling programs may share two cores
 * with two of these threads. After work the thread polls a few more times, then sleeps for a short
 * time, which grows while it stays idle. The scheduler runs a thread that slept before one that
 * polls; a thread that only yields would wait for whole time slices. While threads of the program
 * step the device (yield.c), this one sleeps for long.
 */
static void *run(void *argument)
{
	struct uv_device *device = argument;
	uint64_t since_ns = 0;
	unsigned idle = 0;
	uint32_t yields = 0;

	uv_yield_never();
	quiet_steps = QUIET_STEPS - 1;
	/* perf/compare counts the CPU time of soft-* threads separately */
	prctl(PR_SET_NAME, "soft-connectx");
	/* These two calls may fail: without permission for the first, the thread is only slower. */
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
	prctl(PR_SET_TIMERSLACK, 1000ul);
	while (!dv_hint_load(&device->stop)) {
		if (dv_hint_load(&device->yields) != yields) {
			yields = dv_hint_load(&device->yields);
			idle = 0;
			sleep_idle(device, SLEEP_MAX_NS);
			continue;
		}
		if (device->nic->ops->step_all(&device->nic, 1)) {
			idle = 0;
			continue;
		}
		if (++idle < SPINS)
			continue;
		if (idle == SPINS)
			since_ns = clock_monotonic_ns();
		sleep_idle(device, nap_ns(clock_monotonic_ns() - since_ns));
	}
	return NULL;
}

static unsigned step(struct dv_device *nic)
{
	unsigned work = uv_uar_scan(nic);

	uv_cq_arm_scan(nic);
	uv_odd_step(nic);
	if (!quiet) {
		work += uv_message_poll(nic);
		quiet = quiet_steps;
	} else {
		quiet--;
	}
	return work;
}

static const struct soft_hooks hooks = {
	.step = step,
	.knows = uv_knows,
	.decode = uv_decode,
	.keys_good = uv_keys_good,
	.move = uv_move,
	.gathered = uv_gathered,
	.completed = uv_cq_completed,
	.overrun = uv_cq_overrun,
};

/*
 * Adds a context to the device; the first one opens the NIC and starts its thread. The caller holds
 * uv_lock.
 */
int uv_device_get(struct uv_device *device)
{
	struct dv_options options = {.link = "shm"};
	uint8_t gid[16];
	char name[UV_NAME_BYTES];
	int rc;

	if (device->contexts++)
		return 0;
	uv_device_name(device, name);
	options.name = name;
	uv_name(device->number, gid);
	rc = soft_nic_open(&options, gid, &hooks, &device->nic);
	if (rc)
		goto fail;
	if (device->odd & UV_ODD_ORDER)
		dv_soft_faults(device->nic,
			&(struct dv_fault){
				.seed = 1, .retransmit_percent = 100, .retransmit_ns = 100000});
	device->nic->foreign = device;
	device->stop = 0;
	rc = -pthread_create(&device->runner, NULL, run, device);
	if (!rc)
		return 0;
	device->nic->ops->close(device->nic);
fail:
	device->contexts--;
	device->nic = NULL;
	return rc;
}

void uv_device_put(struct uv_device *device)
{
	if (--device->contexts)
		return;
	dv_hint_add(&device->stop, 1);
	pthread_join(device->runner, NULL);
	device->nic->ops->close(device->nic);
	device->nic = NULL;
}

/* ---- for tests ------------------------------------------------------------------------------- */

struct dv_device *soft_connectx_nic(unsigned index)
{
	return index < device_count ? devices[index].nic : NULL;
}

void soft_connectx_port(unsigned index, bool up)
{
	struct dv_device *nic = soft_connectx_nic(index);

	if (!nic)
		return;
	soft_lock(nic);
	uv_port_changed(&devices[index], up);
	soft_unlock(nic);
}

void soft_connectx_dies(unsigned index)
{
	uv_uar_tell(soft_connectx_nic(index), 0, IBV_EVENT_DEVICE_FATAL);
}

void soft_connectx_qp_fails(unsigned index, uint32_t qpn)
{
	struct dv_device *nic = soft_connectx_nic(index);
	struct uv_qp *uq;

	soft_lock(nic);
	uq = soft_qp_find(nic, qpn)->foreign;
	uq->async_events++;
	uv_async(uq->object.context, uq->user_handle, IBV_EVENT_QP_FATAL);
	soft_unlock(nic);
}

void soft_connectx_removed(unsigned index, bool removed)
{
	struct dv_device *nic;

	pthread_mutex_lock(&uv_lock);
	nic = soft_connectx_nic(index);
	if (nic)
		soft_lock(nic);
	uv_device_removed(&devices[index], removed);
	if (nic)
		soft_unlock(nic);
	pthread_mutex_unlock(&uv_lock);
}

bool soft_connectx_mapped(unsigned index, bool writable)
{
	struct dv_device *nic = soft_connectx_nic(index);
	bool mapped = false;

	soft_lock(nic);
	for (struct soft_peer *peer = nic->peers; peer; peer = peer->next)
		for (unsigned i = 0; i < peer->mapping_count; i++)
			mapped |= !peer->mappings[i].missing &&
				  peer->mappings[i].writable == writable;
	soft_unlock(nic);
	return mapped;
}

int soft_connectx_shared(const void *at, uint64_t bytes, uint64_t *ret_offset)
{
	return uv_shared_open((uintptr_t)at, bytes, ret_offset);
}
