/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that only the fake engine's own files use: fake.c, fake_attach.c, fake_ctl.c, ... */
#ifndef TESTS_CLIENT_FAKE_INSIDE_H
#define TESTS_CLIENT_FAKE_INSIDE_H

#include "tests/unit/client/fake.h"

/* A new memfd that may be sealed, and its mapping. Aborts the test if it cannot be made. */
void *fake_memory(size_t bytes, int *ret_fd);
/* Returns the number of requests served, 0 when idle. The caller holds the lock. */
unsigned fake_serve_socket(struct fake *f);
/* Closes the connection and frees its channels and regions. */
void fake_hang_up(struct fake *f);

/* Wakes the client of the channel if it waits. */
void fake_wake_waiting(struct fake_channel *ch);
/* Takes the next op of the channel's ctl ring, which has one. */
void fake_obey(struct fake *f, struct fake_channel *ch);

#endif
