/* SPDX-License-Identifier: Apache-2.0 */
/* The former name of peercache.h, for programs that include it. Installed beside it. */
#include "peercache.h"
