/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous events of the NICs: logs them and takes rails out of use (rail_health.c). Control
 * plane's thread only; the devices must be open from device_event_open() to device_event_close().
 */
#ifndef CONTROL_DEVICE_EVENT_H
#define CONTROL_DEVICE_EVENT_H

#include <errno.h>

#include "engine/control/base/control.h"

int device_event_open(struct control *control);
void device_event_close(struct control *control);

#endif
