/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The setup of most rail tests: a rail with a client, and a connection with two QPs to a peer that
 * has a page of 8 KiB (key 77) at unit 8. A test may define CLIENT_NUMBER, the channel id of the
 * client, and CLIENT_OWN_SETUP, if it has a setup() of its own that calls client_setup(), before it
 * includes this header.
 */
#ifndef TESTS_CLIENT_WORLD_H
#define TESTS_CLIENT_WORLD_H

#include "tests/unit/rail/world.h"

#ifndef CLIENT_NUMBER
#define CLIENT_NUMBER 5
#endif

static struct client *client;
static struct rail_conn *handle;

/* Creates the world, the client, and a connection of `qps` QPs that the rail does not know yet. */
static struct world *client_setup(void **state, unsigned qps)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, CLIENT_NUMBER, WORLD_SESSION);
	handle = rail_conn_new(w, 3, 33, qps);
	return w;
}

#ifndef CLIENT_OWN_SETUP
static int setup(void **state)
{
	struct world *w = client_setup(state, 2);

	rail_conn_add(w, handle);
	world_settle(w);
	page_put(w, 8, 8192, 77);
	return 0;
}
#endif

static int teardown(void **state)
{
	struct world *w = *state;

	rail_conn_free(w, handle);
	client_free(client);
	return world_teardown(state);
}

#endif
