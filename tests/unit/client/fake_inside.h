/* SPDX-License-Identifier: Apache-2.0 */
/* Shared declarations of the fake engine's own files. */
#ifndef TESTS_CLIENT_FAKE_INSIDE_H
#define TESTS_CLIENT_FAKE_INSIDE_H

#include "tests/unit/client/fake.h"

void *fake_memory(size_t bytes, int *ret_fd);
/* Both functions return the amount of work done. The caller holds the lock. */
unsigned fake_serve_socket(struct fake *f);
unsigned fake_serve_rings(struct fake *f);
/* Closes the connection and frees its channels and regions. */
void fake_hang_up(struct fake *f);

#endif
