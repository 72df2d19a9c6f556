/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the CUDA driver: the functions of libcuda.so.1 that libpeercache and
 * tests/hardware/gpu.py call. Its GPU memory is a memfd of which the program has only a mapping
 * without access, at the address that it gets, so that a CPU which touches it ends the program. A
 * copy is executed late: when its event or its stream is waited for, or when its event is queried
 * again. A buffer that is used again, or a result that is read, too early, has wrong bytes.
 *
 * $STAND_IN_CUDA: "no-dma-buf" gives none; "failing" fails all copies; "unordered" has a GPU whose
 * memory NICs write in no order; "mapped": memory has no context; "second": the next memory is that
 * of a second GPU.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define RANGES_MAX 64
#define COPIES_MAX 65536u

enum { INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, READY_NOT = 600, UNSUPPORTED = 801 };

struct copy {
	uint64_t to, from;
	size_t bytes;
};

struct event {
	uint32_t copies; /* that were begun before it was recorded */
	bool asked;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range {
	uint8_t *at, *behind;
	size_t bytes;
	int fd, device;
} ranges[RANGES_MAX];
static struct copy copies[COPIES_MAX];
static uint32_t begun, ended, flushes, pins, retained;
static _Thread_local unsigned contexts; /* of this thread */
static unsigned second, flushed;        /* its context; the GPU that was flushed last */
static _Thread_local bool on_second;

static bool is(const char *what)
{
	const char *set = getenv("STAND_IN_CUDA");

	return set && !strcmp(set, what);
}

static struct range *range_of(uint64_t at)
{
	for (struct range *r = ranges; r < ranges + RANGES_MAX; r++)
		if (r->at && at - (uintptr_t)r->at < r->bytes)
			return r;
	return NULL;
}

static void *reach(uint64_t at)
{
	const struct range *r = range_of(at);

	return r ? r->behind + (at - (uintptr_t)r->at) : (void *)(uintptr_t)at;
}

/* Executes the copies in front of this one. */
static void copies_end(uint32_t until)
{
	for (; (int32_t)(until - ended) > 0; ended++) {
		const struct copy *c = &copies[ended % COPIES_MAX];

		memcpy(reach(c->to), reach(c->from), c->bytes);
	}
}

static int copy_begin(uint64_t to, uint64_t from, size_t bytes)
{
	if (!contexts)
		return NO_CONTEXT;
	if (is("failing"))
		return INVALID;
	pthread_mutex_lock(&lock);
	if (begun - ended == COPIES_MAX)
		copies_end(ended + 1);
	copies[begun++ % COPIES_MAX] = (struct copy){to, from, bytes};
	pthread_mutex_unlock(&lock);
	return 0;
}

static int wait_until(uint32_t copy)
{
	pthread_mutex_lock(&lock);
	copies_end(copy);
	pthread_mutex_unlock(&lock);
	return 0;
}

API int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
	return flags ? INVALID : 0;
}

API int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal)
{
	*device = 0;
	return ordinal ? 101 : 0;
}

API int cuDeviceGetName(char *name, int bytes, int device);
int cuDeviceGetName(char *name, int bytes, int device)
{
	(void)device;
	strncpy(name, "stand-in", (size_t)bytes);
	return 0;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	*value = attribute == 117 && !is("unordered"); /* writes are flushed by the host */
	return 0;
}

API int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = &contexts;
	__atomic_add_fetch(&retained, 1, __ATOMIC_SEQ_CST);
	return device ? INVALID : 0;
}

API int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxRelease_v2(int device)
{
	__atomic_sub_fetch(&retained, 1, __ATOMIC_SEQ_CST);
	return device ? INVALID : 0;
}

/* contexts that are retained now */
API uint32_t standInRetained(void);
uint32_t standInRetained(void)
{
	return __atomic_load_n(&retained, __ATOMIC_SEQ_CST);
}

API int cuCtxPushCurrent_v2(void *context);
int cuCtxPushCurrent_v2(void *context)
{
	contexts++;
	on_second = context == &second;
	return context ? 0 : INVALID;
}

API int cuCtxPopCurrent_v2(void **context);
int cuCtxPopCurrent_v2(void **context)
{
	*context = &contexts;
	return contexts ? contexts--, 0 : NO_CONTEXT;
}

API int cuMemAlloc_v2(uint64_t *at, size_t bytes);
int cuMemAlloc_v2(uint64_t *at, size_t bytes)
{
	struct range r = {.bytes = (bytes + 4095) & ~(size_t)4095, .device = is("second")};
	int rc = NO_MEMORY;

	if (!contexts)
		return NO_CONTEXT;
	r.fd = memfd_create("stand-in-gpu", MFD_CLOEXEC);
	if (ftruncate(r.fd, (off_t)r.bytes))
		return NO_MEMORY;
	r.at = mmap(NULL, r.bytes, PROT_NONE, MAP_SHARED, r.fd, 0);
	r.behind = mmap(NULL, r.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd, 0);
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < RANGES_MAX && rc; i++)
		if (!ranges[i].at) {
			ranges[i] = r;
			rc = 0;
		}
	pthread_mutex_unlock(&lock);
	*at = (uintptr_t)r.at;
	return rc;
}

API int cuMemFree_v2(uint64_t at);
int cuMemFree_v2(uint64_t at)
{
	struct range *r;

	pthread_mutex_lock(&lock);
	copies_end(begun);
	r = range_of(at);
	if (r) {
		munmap(r->at, r->bytes);
		munmap(r->behind, r->bytes);
		close(r->fd);
		r->at = NULL;
	}
	pthread_mutex_unlock(&lock);
	return r ? 0 : INVALID;
}

API int cuPointerGetAttribute(void *value, int attribute, uint64_t at);
int cuPointerGetAttribute(void *value, int attribute, uint64_t at)
{
	const struct range *r = range_of(at);

	if (!r || (attribute == 1 && is("mapped")))
		return INVALID;
	if (attribute == 1)
		*(void **)value = r->device ? &second : &contexts;
	else
		*(int *)value = attribute == 2 ? 2 : r->device;
	return 0;
}

API int cuMemGetHandleForAddressRange(
	void *fd, uint64_t at, size_t bytes, int type, unsigned long long flags);
int cuMemGetHandleForAddressRange(
	void *fd, uint64_t at, size_t bytes, int type, unsigned long long flags)
{
	const struct range *r = range_of(at);

	/* a real one begins at the address: here that is the start of the memory */
	if (!r || (uintptr_t)r->at != at || bytes > r->bytes || type != 1 || flags ||
		is("no-dma-buf"))
		return UNSUPPORTED;
	*(int *)fd = dup(r->fd);
	return 0;
}

API int cuFlushGPUDirectRDMAWrites(int target, int scope);
int cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	__atomic_add_fetch(&flushes, 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&flushed, on_second, __ATOMIC_SEQ_CST);
	return target || scope != 100 ? INVALID : contexts ? 0 : NO_CONTEXT;
}

API uint32_t standInFlushes(void);
uint32_t standInFlushes(void)
{
	return __atomic_load_n(&flushes, __ATOMIC_SEQ_CST);
}

API uint32_t standInFlushed(void);
uint32_t standInFlushed(void)
{
	return __atomic_load_n(&flushed, __ATOMIC_SEQ_CST);
}

/* ranges of memory that are pinned now */
API uint32_t standInPins(void);
uint32_t standInPins(void)
{
	return __atomic_load_n(&pins, __ATOMIC_SEQ_CST);
}

API int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
	if (!at || !bytes || flags)
		return INVALID;
	__atomic_add_fetch(&pins, 1, __ATOMIC_SEQ_CST);
	return 0;
}

API int cuMemHostUnregister(void *at);
int cuMemHostUnregister(void *at)
{
	__atomic_sub_fetch(&pins, 1, __ATOMIC_SEQ_CST);
	return at ? 0 : INVALID;
}

API int cuStreamCreate(void **stream, unsigned flags);
int cuStreamCreate(void **stream, unsigned flags)
{
	*stream = &ranges;
	return flags == 1 && contexts ? 0 : INVALID;
}

API int cuStreamSynchronize(void *stream);
int cuStreamSynchronize(void *stream)
{
	return stream ? wait_until(begun) : INVALID;
}

API int cuStreamDestroy_v2(void *stream);
int cuStreamDestroy_v2(void *stream)
{
	return stream ? 0 : INVALID; /* its copies go on */
}

API int cuEventCreate(void **event, unsigned flags);
int cuEventCreate(void **event, unsigned flags)
{
	(void)flags;
	*event = calloc(1, sizeof(struct event));
	return *event ? 0 : NO_MEMORY;
}

API int cuEventRecord(void *event, void *stream);
int cuEventRecord(void *event, void *stream)
{
	*(struct event *)event = (struct event){.copies = begun};
	return stream ? 0 : INVALID;
}

API int cuEventQuery(void *event);
int cuEventQuery(void *event)
{
	struct event *e = event;

	if (!e->asked) {
		e->asked = true;
		return READY_NOT;
	}
	return wait_until(e->copies);
}

API int cuEventSynchronize(void *event);
int cuEventSynchronize(void *event)
{
	return wait_until(((struct event *)event)->copies);
}

API int cuEventDestroy_v2(void *event);
int cuEventDestroy_v2(void *event)
{
	free(event);
	return 0;
}

API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
	return stream ? copy_begin(to, from, bytes) : INVALID;
}

API int cuMemcpy(uint64_t to, uint64_t from, size_t bytes);
int cuMemcpy(uint64_t to, uint64_t from, size_t bytes)
{
	if (!contexts)
		return NO_CONTEXT;
	memcpy(reach(to), reach(from), bytes);
	return 0;
}

API int cuGetErrorName(int error, const char **name);
int cuGetErrorName(int error, const char **name)
{
	*name = error == INVALID       ? "CUDA_ERROR_INVALID_VALUE"
		: error == UNSUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED"
		: error == NO_CONTEXT  ? "CUDA_ERROR_INVALID_CONTEXT"
				       : "CUDA_ERROR_UNKNOWN";
	return 0;
}
