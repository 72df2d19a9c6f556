/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of leases share: a rail that validates by lease, a client, and a connection whose
 * peer announced L. The test's thread.
 */
#ifndef TEST_RAIL_LEASE_WORLD_H
#define TEST_RAIL_LEASE_WORLD_H

#include "engine/abi/page.h"
#include "tests/unit/rail/runs.h"

#define CLIENT_NUMBER 63
#define CLIENT_OWN_SETUP
#include "tests/unit/rail/client_world.h"

#define LIMBO (20 * MS)          /* L of the peer */
#define LEASE (LIMBO / 100 * 95) /* the first span that proves nothing */

static inline struct world *lease_setup(void **state, unsigned qps)
{
	struct world *w = client_setup(state, qps);

	w->rail->options.lease = true;
	handle->limbo_ns = LIMBO;
	return w;
}

static inline int setup(void **state)
{
	struct world *w = lease_setup(state, 4);

	rail_conn_add(w, handle);
	return 0;
}

static inline int setup_one_qp(void **state)
{
	struct world *w = lease_setup(state, 1);

	rail_conn_add(w, handle);
	return 0;
}

static inline void advance(struct world *w, uint64_t ns)
{
	clock_test_set(w->now_ns += ns);
}

/* Runs until nothing is left to do; returns how often the rail waited for the NIC. */
static inline unsigned round_trips(struct world *w)
{
	unsigned n = 0;

	for (post(w); w->wqes; post(w), n++)
		while (w->wqes)
			nic_complete(w, 0, 0);
	return n;
}

static inline uint64_t expired(struct world *w)
{
	return world_counter(w, COUNTER_leases_expired);
}

/* A run of `n` pages `stride` units apart. */
static inline struct draft submit_pages(struct world *w, uint32_t cookie, uint32_t unit,
	uint32_t stride, unsigned n, uint32_t bytes)
{
	struct draft d;

	pages_put(w, unit, stride, n, bytes);
	d = draft_of(w, cookie, unit, stride, n, bytes);
	draft_submit(client, &d);
	return d;
}

static inline void assert_arrived(struct world *w, const struct draft *d)
{
	for (unsigned i = 0; i < d->run.pages; i++)
		assert_true(page_arrived(w, d->entry[i].unit, d->run.page_bytes, d->entry[i].to));
}

/* The rail gets a new connection in place of the one that broke, which it has reported. */
static inline void reconnect(struct world *w)
{
	world_event(w, RAIL_CONN_BROKEN);
	rail_conn_drop(w, handle);
	world_settle(w);
	world_event(w, RAIL_CONN_RETURNED);
	for (unsigned q = 0; q < handle->qps; q++)
		container_of(handle->sq[q], struct fake_qp, stub.sq)->error = false;
	rail_conn_add(w, handle);
	world_settle(w);
}

#endif
