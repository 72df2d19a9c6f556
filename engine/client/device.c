/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver of this process, libcuda.so.1, if the process has loaded it: else no address is
 * one of GPU memory. Names and numbers are those of cuda.h, whose ABI is stable; it is not needed
 * to build this.
 *
 * cuMemcpyAsync() takes addresses of any memory. A copy from or to memory that is not pinned ends
 * within the call, so only staging memory is pinned. Every channel has a stream of its own that
 * does not wait for those of the caller.
 */
#include "engine/client/constants.h"
#include "engine/client/device.h"
#include "engine/client/error.h"
#include "engine/client/peercache.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_READY 600          /* CUDA_ERROR_NOT_READY */
#define CONTEXT 1              /* CU_POINTER_ATTRIBUTE_CONTEXT */
#define MEMORY_TYPE 2          /* CU_POINTER_ATTRIBUTE_MEMORY_TYPE */
#define ORDINAL 9              /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
#define TYPE_DEVICE 2          /* CU_MEMORYTYPE_DEVICE */
#define FLUSH_OPTIONS 117      /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS */
#define FLUSH_BY_HOST 1        /* CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST */
#define WRITES_ORDERING 118    /* CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING */
#define ORDERED_FOR_OWNER 100  /* CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER */
#define HANDLE_DMA_BUF 1       /* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
#define STREAM_NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING */
#define EVENT_NO_TIMING 2u     /* CU_EVENT_DISABLE_TIMING */

static struct {
	int (*pointer_attribute)(void *to, int attribute, uintptr_t at);
	int (*device_attribute)(int *to, int attribute, int device);
	int (*export)(void *to, uintptr_t at, size_t bytes, int type, unsigned long long flags);
	int (*flush)(int target, int scope);
	int (*primary_retain)(void **context, int device);
	int (*primary_release)(int device);
	int (*push)(void *context);
	int (*pop)(void **context);
	int (*stream_create)(void **stream, unsigned flags);
	int (*stream_wait)(void *stream);
	int (*stream_destroy)(void *stream);
	int (*event_create)(void **event, unsigned flags);
	int (*event_record)(void *event, void *stream);
	int (*event_query)(void *event);
	int (*event_wait)(void *event);
	int (*event_destroy)(void *event);
	int (*copy)(uintptr_t to, uintptr_t from, size_t bytes, void *stream);
	int (*pin)(void *at, size_t bytes, unsigned flags);
	int (*unpin)(void *at);
	int (*name_of)(int error, const char **name);
	bool loaded;
} cuda;

struct device_copies {
	void *context, *stream;
	int retained; /* the GPU whose context this one retains; -1: it is the caller's */
	void *pinned; /* NULL: staging memory could not be pinned: copies from it end in the call */
	/* free-running numbers of the oldest copy in flight and of the next one */
	uint32_t first, last;
	struct {
		void *event;
		uint32_t tag;
	} copy[STAGING_BLOCKS];
};

/* True if the driver's answer is 0; else it is the error text. */
static bool good(int rc, const char *what)
{
	const char *name = NULL;

	if (rc == 0)
		return true;
	if (cuda.name_of(rc, &name) || !name)
		name = "unknown error";
	error_set(-EIO, "the CUDA driver refused %s: %s", what, name);
	return false;
}

static bool load(void)
{
	static const struct {
		const char *name;
		size_t at;
	} functions[] = {
		{"cuPointerGetAttribute", offsetof(typeof(cuda), pointer_attribute)},
		{"cuDeviceGetAttribute", offsetof(typeof(cuda), device_attribute)},
		{"cuMemGetHandleForAddressRange", offsetof(typeof(cuda), export)},
		{"cuFlushGPUDirectRDMAWrites", offsetof(typeof(cuda), flush)},
		{"cuDevicePrimaryCtxRetain", offsetof(typeof(cuda), primary_retain)},
		{"cuDevicePrimaryCtxRelease_v2", offsetof(typeof(cuda), primary_release)},
		{"cuCtxPushCurrent_v2", offsetof(typeof(cuda), push)},
		{"cuCtxPopCurrent_v2", offsetof(typeof(cuda), pop)},
		{"cuStreamCreate", offsetof(typeof(cuda), stream_create)},
		{"cuStreamSynchronize", offsetof(typeof(cuda), stream_wait)},
		{"cuStreamDestroy_v2", offsetof(typeof(cuda), stream_destroy)},
		{"cuEventCreate", offsetof(typeof(cuda), event_create)},
		{"cuEventRecord", offsetof(typeof(cuda), event_record)},
		{"cuEventQuery", offsetof(typeof(cuda), event_query)},
		{"cuEventSynchronize", offsetof(typeof(cuda), event_wait)},
		{"cuEventDestroy_v2", offsetof(typeof(cuda), event_destroy)},
		{"cuMemcpyAsync", offsetof(typeof(cuda), copy)},
		{"cuMemHostRegister_v2", offsetof(typeof(cuda), pin)},
		{"cuMemHostUnregister", offsetof(typeof(cuda), unpin)},
		{"cuGetErrorName", offsetof(typeof(cuda), name_of)},
	};
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	void *library;
	bool all = true;

	pthread_mutex_lock(&once);
	library = cuda.loaded ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
	for (size_t i = 0; library && i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *function = dlsym(library, functions[i].name);

		memcpy((char *)&cuda + functions[i].at, &function, sizeof(function));
		/* a driver older than CUDA 11.7 has no dma-buf: its memory is staged */
		all &= function || functions[i].at == offsetof(typeof(cuda), export) ||
		       functions[i].at == offsetof(typeof(cuda), flush);
	}
	if (library)
		cuda.loaded = all;
	pthread_mutex_unlock(&once);
	return cuda.loaded;
}

/* ---- for NICs -------------------------------------------------------------------------------- */

/* Whether the GPU sees what a NIC has written, if need be after device_flush(). */
static bool is_ordered(const void *at)
{
	int device = 0, ordering = 0, options = 0;

	if (!cuda.flush ||
		!good(cuda.pointer_attribute(&device, ORDINAL, (uintptr_t)at),
			"cuPointerGetAttribute") ||
		!good(cuda.device_attribute(&ordering, WRITES_ORDERING, device),
			"cuDeviceGetAttribute") ||
		!good(cuda.device_attribute(&options, FLUSH_OPTIONS, device),
			"cuDeviceGetAttribute"))
		return false;
	return ordering >= ORDERED_FOR_OWNER || options & FLUSH_BY_HOST;
}

uint32_t device_at(const void *base)
{
	int type = 0, device = 0;

	if (!load() || cuda.pointer_attribute(&type, MEMORY_TYPE, (uintptr_t)base) ||
		type != TYPE_DEVICE || cuda.pointer_attribute(&device, ORDINAL, (uintptr_t)base))
		return 0;
	return 1u << (device & 31);
}

int device_export(const void *base, uint64_t bytes, uint64_t *ret_offset)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)base & ~(page - 1);
	uintptr_t end = ((uintptr_t)base + bytes + page - 1) & ~(page - 1);
	int fd = -1;

	if (!cuda.export)
		return error_set(-EOPNOTSUPP,
			"the CUDA driver gives no dma-buf to NICs: version 11.7 or later does");
	if (!is_ordered(base))
		return error_set(-EOPNOTSUPP, "this GPU does not order what NICs write to it");
	if (!good(cuda.export(&fd, at, end - at, HANDLE_DMA_BUF, 0),
		    "cuMemGetHandleForAddressRange"))
		return -EOPNOTSUPP;
	*ret_offset = (uintptr_t)base - at;
	return fd;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* The context that has the memory; memory mapped by the caller has none: that of its device. */
static bool context_find(struct device_copies *d, const void *at)
{
	int device = 0;

	d->retained = -1;
	if (cuda.pointer_attribute(&d->context, CONTEXT, (uintptr_t)at) == 0 && d->context)
		return true;
	if (!good(cuda.pointer_attribute(&device, ORDINAL, (uintptr_t)at),
		    "cuPointerGetAttribute") ||
		!good(cuda.primary_retain(&d->context, device), "cuDevicePrimaryCtxRetain"))
		return false;
	d->retained = device;
	return true;
}

static struct device_copies *context_leave(struct device_copies *d)
{
	if (d->retained >= 0)
		(void)cuda.primary_release(d->retained);
	free(d);
	return NULL;
}

static bool enter(const struct device_copies *d)
{
	return d && good(cuda.push(d->context), "cuCtxPushCurrent");
}

static void leave(void)
{
	void *context;

	(void)cuda.pop(&context);
}

struct device_copies *device_open(const void *at, void *staging, size_t bytes)
{
	struct device_copies *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	if (!context_find(d, at) || !enter(d))
		return context_leave(d);
	if (good(cuda.stream_create(&d->stream, STREAM_NON_BLOCKING), "cuStreamCreate") &&
		cuda.pin(staging, bytes, 0) == 0)
		d->pinned = staging;
	leave();
	return d->stream ? d : context_leave(d);
}

void device_close(struct device_copies *d)
{
	if (!d)
		return;
	if (enter(d)) {
		for (uint32_t i = 0; i < STAGING_BLOCKS && d->copy[i].event; i++)
			(void)cuda.event_destroy(d->copy[i].event);
		(void)cuda.stream_destroy(d->stream);
		if (d->pinned)
			(void)cuda.unpin(d->pinned);
		leave();
	}
	(void)context_leave(d);
}

/* Starts the copies. `to`: they go to the segments. The context is current. */
static bool begin(const struct device_copies *d, const struct pc_segment *segments, size_t at,
	uintptr_t bytes, size_t count, bool to)
{
	for (size_t n; count; segments++) {
		uintptr_t far = (uintptr_t)segments->base + at;

		if (at >= segments->bytes) {
			at -= segments->bytes;
			continue;
		}
		n = segments->bytes - at < count ? segments->bytes - at : count;
		if (!good(cuda.copy(to ? far : bytes, to ? bytes : far, n, d->stream),
			    "cuMemcpyAsync"))
			return false;
		bytes += n;
		count -= n;
		at = 0;
	}
	return true;
}

static bool move(struct device_copies *d, const struct pc_segment *segments, size_t at,
	uintptr_t bytes, size_t count, bool to)
{
	bool begun, ended;

	if (!enter(d))
		return false;
	begun = begin(d, segments, at, bytes, count, to);
	ended = good(cuda.stream_wait(d->stream), "cuStreamSynchronize");
	leave();
	return begun && ended;
}

/* The same without waiting. */
static bool move_later(struct device_copies *d, const struct pc_segment *segments, size_t at,
	uintptr_t from, size_t bytes, uint32_t tag)
{
	void **event;
	bool begun;

	if (!enter(d))
		return false;
	event = &d->copy[d->last % STAGING_BLOCKS].event;
	begun = (*event || good(cuda.event_create(event, EVENT_NO_TIMING), "cuEventCreate")) &&
		begin(d, segments, at, from, bytes, true) &&
		good(cuda.event_record(*event, d->stream), "cuEventRecord");
	if (begun)
		d->copy[d->last++ % STAGING_BLOCKS].tag = tag;
	else /* some of them may have begun */
		(void)cuda.stream_wait(d->stream);
	leave();
	return begun;
}

bool device_scatter(struct device_copies *d, const struct pc_segment *segments, size_t at,
	const unsigned char *from, size_t bytes, uint32_t tag)
{
	return tag == CLIENT_NONE ? move(d, segments, at, (uintptr_t)from, bytes, true)
				  : move_later(d, segments, at, (uintptr_t)from, bytes, tag);
}

bool device_gather(struct device_copies *d, const struct pc_segment *segments, size_t at,
	unsigned char *to, size_t bytes)
{
	return move(d, segments, at, (uintptr_t)to, bytes, false);
}

uint32_t device_ended(struct device_copies *d, bool wait, bool *ret_failed)
{
	*ret_failed = false;
	if (!device_busy(d))
		return CLIENT_NONE;
	if (enter(d)) {
		void *event = d->copy[d->first % STAGING_BLOCKS].event;
		int rc = wait ? cuda.event_wait(event) : cuda.event_query(event);

		leave();
		if (rc == NOT_READY)
			return CLIENT_NONE;
		*ret_failed = !good(rc, "cuEventQuery");
	} else { /* the caller has destroyed the context, and with it the copies */
		*ret_failed = true;
	}
	return d->copy[d->first++ % STAGING_BLOCKS].tag;
}

bool device_busy(const struct device_copies *d)
{
	return d && d->first != d->last;
}

void device_flush(struct device_copies *d)
{
	if (!cuda.flush || !enter(d))
		return;
	(void)cuda.flush(0, ORDERED_FOR_OWNER); /* nothing to do where writes are ordered */
	leave();
}
