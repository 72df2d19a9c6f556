/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events of the NICs, told to the log. The loop's thread; the devices are open meanwhile.
 */
#ifndef CONTROL_DEVICE_EVENT_H
#define CONTROL_DEVICE_EVENT_H

#include <errno.h>

#include "engine/control/control.h"

int device_event_open(struct control *control);
void device_event_close(struct control *control);
/* Its device is closed soon: nothing of it is watched any more. */
void device_event_forget(struct control *control, unsigned rail);

#endif
