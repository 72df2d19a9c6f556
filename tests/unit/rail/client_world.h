/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rail with a client and a peer that has two queue pairs and a page of 8 KiB at unit 8: what most
 * tests of a rail begin with. CLIENT_NUMBER, defined before: the client's channel.
 */
#ifndef TESTS_CLIENT_WORLD_H
#define TESTS_CLIENT_WORLD_H

#include "tests/unit/rail/world.h"

#ifndef CLIENT_NUMBER
#define CLIENT_NUMBER 5
#endif

static struct client *client;
static struct rail_peer *peer;

static int setup(void **state)
{
	struct world *w;

	world_setup(state);
	w = *state;
	client = client_new(w, CLIENT_NUMBER, WORLD_SESSION);
	peer = peer_new(w, 3, 33, 2);
	peer_add(w, peer);
	world_settle(w);
	page_put(w, 8, 8192, 77);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	peer_free(w, peer);
	client_free(client);
	return world_teardown(state);
}

#endif
