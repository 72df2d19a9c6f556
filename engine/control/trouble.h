/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of software rails on purpose, for tests and benchmarks: test.fault_file. The loop's
 * thread.
 */
#ifndef CONTROL_TROUBLE_H
#define CONTROL_TROUBLE_H

#include "engine/control/control.h"

int trouble_open(struct control *control);
void trouble_close(struct control *control);

#endif
