/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous events of the NICs: logs them and informs conn_events.c. Control plane's thread
 * only; the devices must be open from device_event_open() to device_event_close().
 */
#ifndef CONTROL_DEVICE_EVENT_H
#define CONTROL_DEVICE_EVENT_H

#include <errno.h>

#include "engine/control/base/control.h"

int device_event_open(struct control *control);
void device_event_close(struct control *control);
/* Stops watching the device of the rail's NIC, because the device is about to be closed. */
void device_event_forget(struct control *control, unsigned rail);

#endif
