/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the fuzz targets: what must hold. One thread. */
#ifndef TESTS_FUZZ_REQUIRE_H
#define TESTS_FUZZ_REQUIRE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Says what does not hold: libFuzzer keeps the input. */
#define require(condition)                                                                         \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "does not hold: %s\n", #condition);                        \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

#endif
