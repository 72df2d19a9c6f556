/* SPDX-License-Identifier: Apache-2.0 */
/* The one symbol of the verbs module: dv/module.h. Constant data, any thread. */
#include "dv/module.h"

__attribute__((visibility("default"))) extern const struct dv_module dv_verbs_module;
const struct dv_module dv_verbs_module = {
	.bytes = sizeof(dv_verbs_module), .build = DV_BUILD, .ops = &dv_verbs_ops};
