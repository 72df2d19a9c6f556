/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test hooks of the control plane: the settings test.fault_file and test.clock_file. Only in a
 * build with -Dtest_hooks=true. Control plane's thread only.
 */
#ifndef CONTROL_TEST_HOOKS_H
#define CONTROL_TEST_HOOKS_H

#include "engine/control/base/control.h"

/* Returns 0 or a negative errno; then nothing stays open. */
int test_hooks_open(struct control *control);
void test_hooks_close(struct control *control);

#endif
