/* SPDX-License-Identifier: Apache-2.0 */
/* Macros for tests that an emulator cannot run (qemu-user, see tools/cross-arm64.txt). */
#ifndef TESTS_EMULATED_H
#define TESTS_EMULATED_H

#ifdef TESTS_EMULATED
#define EMULATED 1
#else
#define EMULATED 0
#endif

/* In a cmocka test: skips the test under the emulator and prints why. */
#define SKIP_EMULATED(why)                                                                         \
	do {                                                                                       \
		if (EMULATED) {                                                                    \
			print_message("skipped under qemu-user: %s\n", why);                       \
			skip();                                                                    \
		}                                                                                  \
	} while (0)

#endif
