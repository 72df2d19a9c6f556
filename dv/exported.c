/* SPDX-License-Identifier: Apache-2.0 */
/* The one symbol of the verbs module: dv/module.h. Constant data, any thread. */
#include <assert.h>

#include "config/version.h"
#include "dv/module.h"

static_assert(
	sizeof(PEERCACHE_VERSION) <= sizeof(((struct dv_module *)0)->version), "the version fits");

__attribute__((visibility("default"))) extern const struct dv_module dv_verbs_module;
const struct dv_module dv_verbs_module = {
	.bytes = sizeof(dv_verbs_module), .version = PEERCACHE_VERSION, .ops = &dv_verbs_ops};
