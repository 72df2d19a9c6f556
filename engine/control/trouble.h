/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault injection into software rails, for tests and benchmarks: the setting test.fault_file.
 * Control plane's thread only.
 */
#ifndef CONTROL_TROUBLE_H
#define CONTROL_TROUBLE_H

#include "engine/control/control.h"

int trouble_open(struct control *control);
void trouble_close(struct control *control);

#endif
