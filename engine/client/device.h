/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPU memory, which the CPU cannot read: copies by the CUDA driver, and descriptors by which NICs
 * reach it. Only a driver that the process itself has loaded is used.
 */
#ifndef CLIENT_DEVICE_H
#define CLIENT_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pc_segment;
struct device_copies; /* those of one channel, by its thread */

/* The GPU whose memory is at `base`, as one bit; 0: it is no memory of a GPU. Any thread. */
uint32_t device_at(const void *base);
/*
 * Returns a dma-buf of a range of a GPU; *ret_offset: the range's offset in it. Errors, with the
 * error text: NICs cannot write to it. Any thread.
 */
int device_export(const void *base, uint64_t bytes, uint64_t *ret_offset);

/*
 * Opens copies to and from GPU memory such as that at `at`. Pins the staging memory, so that copies
 * from it run beside this thread. NULL: the driver refused.
 */
struct device_copies *device_open(const void *at, void *staging, size_t bytes);
/* Unpins the memory. All copies have ended. NULL is allowed. */
void device_close(struct device_copies *d);
/*
 * Copies to the segments, from their byte `at` on, or from them; some may be in memory of the CPU.
 * False: the driver failed, as the error text says, or d is NULL. With a tag the copy goes on, and
 * device_ended() returns the tag; at most STAGING_BLOCKS do. CLIENT_NONE: it has ended.
 */
bool device_scatter(struct device_copies *d, const struct pc_segment *segments, size_t at,
	const unsigned char *from, size_t bytes, uint32_t tag);
bool device_gather(struct device_copies *d, const struct pc_segment *segments, size_t at,
	unsigned char *to, size_t bytes);
/*
 * Returns the tag of the oldest copy if it has ended, `wait`: when it has; CLIENT_NONE: none has.
 */
uint32_t device_ended(struct device_copies *d, bool wait, bool *ret_failed);
bool device_busy(const struct device_copies *d);
/* What NICs have written is visible to the GPU from here on. */
void device_flush(struct device_copies *d);

#endif
