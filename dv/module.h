/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the verbs module (peercache-verbs.so) exports. It takes dv_fail() and the log from the
 * program that loads it. Included by dv/ only; constant data, any thread.
 */
#ifndef DV_MODULE_H
#define DV_MODULE_H

#include "config/version.h"
#include "dv/interface.h"
#include "dv/ops.h"

#define DV_MODULE_NAME "dv_verbs_module" /* name of the exported struct dv_module */

/*
 * Version and interface: a hash of the headers that both files were compiled with. TEST_HOOKS is
 * the one option that changes a structure in them. Others do not matter: the processor's ABI rules
 * the layouts, and what was optimized differently works together.
 */
#ifdef TEST_HOOKS
#define DV_HOOKS "+hooks"
#else
#define DV_HOOKS ""
#endif
#define DV_BUILD PEERCACHE_VERSION "-" DV_INTERFACE DV_HOOKS

struct dv_module {
	uint32_t bytes; /* size of this structure */
	char build[60]; /* DV_BUILD, which must be that of the program */
	const struct dv_ops *ops;
};
static_assert(sizeof(DV_BUILD) <= sizeof(((struct dv_module *)0)->build), "the text fits");
static_assert(sizeof(struct dv_module) == 72, "read from another file");

#endif
