/* SPDX-License-Identifier: Apache-2.0 */
/* Hints for the compiler: which way a branch usually goes. */
#ifndef CONFIG_LIKELY_H
#define CONFIG_LIKELY_H

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
