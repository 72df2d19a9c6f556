/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs implementation linked in, not loaded as a module, so that sanitizers check it. */
#include "dv/ops.h"

const struct dv_ops *dv_verbs(void)
{
	return &dv_verbs_ops;
}
