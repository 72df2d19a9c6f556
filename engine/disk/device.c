/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that do not depend on the kind of device. Runs on the thread that uses the device.
 */
#include "engine/disk/device.h"

#include <errno.h>
#include <stddef.h>

#include "numa/clock.h"

unsigned device_dispatch(struct device *device)
{
	struct device_io *io;
	unsigned n = 0;

	while ((io = device->reap(device))) {
		io->done(io);
		n++;
	}
	return n;
}

static void call_done(struct device_io *io)
{
	if (io->context) /* else device_call() has returned -ETIMEDOUT */
		*(bool *)io->context = true;
}

int64_t device_call(struct device *device, struct device_io *io, uint64_t timeout_ns)
{
	uint64_t until = clock_now_ns() + timeout_ns;
	bool done = false;

	io->context = &done;
	io->done = call_done;
	device->submit(device, io);
	for (;;) {
		uint64_t now;

		device_dispatch(device);
		if (done)
			return io->result;
		now = clock_now_ns();
		if (now >= until) {
			io->context = NULL;
			return -ETIMEDOUT;
		}
		device->wait(device, until - now);
	}
}
