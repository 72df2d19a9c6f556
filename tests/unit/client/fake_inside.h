/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake engine's own files share. */
#ifndef TESTS_CLIENT_FAKE_INSIDE_H
#define TESTS_CLIENT_FAKE_INSIDE_H

#include "tests/unit/client/fake.h"

void *fake_memory(size_t bytes, int *ret_fd);
/* Both: what was done, counted; the caller holds the lock. */
unsigned fake_serve_socket(struct fake *f);
unsigned fake_serve_rings(struct fake *f);
/* Drops the connection, its channels and regions. */
void fake_hang_up(struct fake *f);

#endif
