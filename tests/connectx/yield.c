/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sched_yield() of the program: a thread that yields its core most likely waits for a completion,
 * so it steps the devices of the process. Where threads outnumber cores, a step costs less than the
 * switches to the device's thread and back, and far less than the time slice of a third program.
 * The time of these steps is that of the ports: perf/compare_side.py reads it from a memfd.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/connectx/testing.h"
#include "tests/connectx/uverbs.h"

/* steps in one yield, at most: with SOFT_STEP_BYTES of each, 1 MiB */
#define YIELD_STEPS 4u
/* threads whose time is counted; the last entry has that of all further ones */
#define ACCOUNTS 64u

struct account {
	uint64_t thread, ns; /* thread id; CPU time of its steps, ns */
};

static struct account *accounts; /* NULL: no memory for them, nothing is counted */
static unsigned account_count;   /* under uv_lock */
static _Thread_local struct account *own;
/* true: this thread is in a step, or is the thread of a device: its yields do not step */
static _Thread_local bool stepping;

/* The caller holds uv_lock. */
void uv_yield_open(void)
{
	size_t bytes = ACCOUNTS * sizeof(*accounts);
	int fd = memfd_create("soft-connectx-yields", MFD_CLOEXEC);
	void *at = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)
		at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		accounts = at;
	else if (fd >= 0)
		close(fd);
}

void uv_yield_never(void)
{
	stepping = true;
}

static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void account_add(uint64_t ns)
{
	if (!accounts)
		return;
	if (!own) {
		own = &accounts[account_count < ACCOUNTS - 1 ? account_count++ : ACCOUNTS - 1];
		dv_hint_store64(&own->thread, (uint64_t)syscall(SYS_gettid));
	}
	dv_hint_store64(&own->ns, own->ns + ns);
}

static unsigned step_device(struct uv_device *device)
{
	unsigned work = 0, done;

	/* before the first step, which may wait for one of the device's thread */
	dv_hint_add(&device->yields, 1);
	for (unsigned step = 0; step < YIELD_STEPS; step++) {
		done = device->nic->ops->step_all(&device->nic, 1);
		if (!done)
			break;
		work += done;
	}
	return work;
}

bool uv_yield(void)
{
	unsigned work = 0;
	uint64_t from_ns;

	if (stepping || pthread_mutex_trylock(&uv_lock))
		return false;
	stepping = true;
	from_ns = cpu_ns();
	for (unsigned i = 0; i < uv_devices(); i++)
		if (uv_device(i)->nic)
			work += step_device(uv_device(i));
	if (work)
		account_add(cpu_ns() - from_ns);
	stepping = false;
	pthread_mutex_unlock(&uv_lock);
	return work;
}

uint64_t soft_connectx_yield_ns(void)
{
	return own ? own->ns : 0;
}
