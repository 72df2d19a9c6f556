/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the tests are built with AddressSanitizer, by gcc or by clang. */
#ifndef TESTS_SANITIZED_H
#define TESTS_SANITIZED_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define ADDRESS_SANITIZED 1
#else
#define ADDRESS_SANITIZED 0
#endif

#endif
