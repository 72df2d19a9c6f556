/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three nodes whose links a test cuts, with one owner per key, and a member that the test plays by
 * hand. A node is one control plane in the test's process; time is simulated.
 */
#ifndef TESTS_RELAY_WORLD_H
#define TESTS_RELAY_WORLD_H

#include "tests/unit/control/test_rpc_nodes.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/control/pages/pages.h"
#include "tests/unit/control/directory/still_world.h"

#define BEAT_MS 20
#define DEAD_MS 300
#define KEYS 300u
#define RAW_REF 0x34567890u

static int raw = -1;

static inline int setup(void **state)
{
	(void)state;
	nodes_setup(BEAT_MS, DEAD_MS);
	for (unsigned i = 0; i < 3; i++) {
		node[i].settings.cluster_replicas = 1;
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	}
	assert_true(nodes_until(all_agree(), 3000));
	for (unsigned i = 0; i < 3; i++)
		assert_true(nodes_until(still(node[i].control.directory), 3000));
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	if (raw >= 0)
		close(raw);
	raw = -1;
	nodes_teardown();
	return 0;
}

static inline struct member *entry_of(unsigned i, unsigned j)
{
	const struct member_record *record = member_by_ref(&node[i].control, node[j].control.ref);

	assert_non_null(record);
	return member_peer(&node[i].control, record->peer);
}

static inline struct owner *owner_seen(unsigned i, unsigned j)
{
	return owner_at(node[i].control.directory, entry_of(i, j)->record.peer);
}

/* Ends the connections of two nodes and their attempts at new ones. */
static inline void cut(unsigned i, unsigned j)
{
	const unsigned end[2][2] = {{i, j}, {j, i}};

	for (unsigned e = 0; e < 2; e++) {
		struct member *entry = entry_of(end[e][0], end[e][1]);

		member_dial_stop(entry);
		member_links_close(entry);
	}
}

static inline void heal(unsigned i, unsigned j)
{
	member_dial(&node[i].control, entry_of(i, j), false);
}

static inline unsigned found(unsigned from, unsigned count)
{
	unsigned sum = 0;

	for (unsigned k = from; k < from + count; k++)
		sum += found_at_owners(0, 0, k);
	return sum;
}

static inline void put(unsigned from, unsigned count)
{
	for (unsigned k = from; k < from + count; k++)
		node_put(0, k, 1, 1000);
}

static inline unsigned anywhere(unsigned k)
{
	struct dir_entry at[2 * BUCKET_ENTRIES];
	struct page_key key = key_of(k);
	unsigned sum = 0;

	for (unsigned n = 0; n < 3; n++)
		sum += shard_find(node[n].control.shard, &key, at, 2 * BUCKET_ENTRIES);
	return sum;
}

static inline void drop(unsigned k)
{
	struct page_key key = key_of(k);
	const struct index_entry *entry = index_find(node[0].control.index, &key);

	if (!entry)
		return;
	directory_remove(&node[0].control, &key,
		&(struct location){.place = entry->place, .generation = entry->generation});
	index_remove(node[0].control.index, &key);
}

static inline void raw_join(unsigned i)
{
	raw = raw_open(i);
	raw_hello(raw, "raw", 0x1200000000 + RAW_REF, 9, NULL);
	assert_true(nodes_until(member_by_ref(&node[i].control, RAW_REF), 1000));
}

#endif
