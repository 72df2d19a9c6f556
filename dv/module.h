/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs module (peercache-verbs.so) exports. It takes dv_fail() and the log from the
 * program that loads it. Included by dv/ only; constant data, any thread.
 */
#ifndef DV_MODULE_H
#define DV_MODULE_H

#include "dv/ops.h"

#define DV_MODULE_NAME "dv_verbs_module" /* name of the exported struct dv_module */

struct dv_module {
	uint32_t bytes;   /* size of this structure */
	char version[28]; /* version of the build, which must be that of the program */
	const struct dv_ops *ops;
};
static_assert(sizeof(struct dv_module) == 40, "read from another file");

#endif
