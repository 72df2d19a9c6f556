/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A member, played by hand over a raw connection, that sends heartbeats and acknowledges only if it
 * is told to. Shared by the tests of owners that do not keep up. A node is one control plane in the
 * test's process.
 */
#ifndef TESTS_MUTE_WORLD_H
#define TESTS_MUTE_WORLD_H

#include "tests/unit/control/test_rpc_nodes.h"

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/pages/pages.h"
#include "tests/unit/control/directory/still_world.h"

#define KEYS 20000

static struct {
	int fd;
	uint64_t incarnation;
	bool answers;
	bool no_digests; /* it answers, but no DigestAsk */
	/* keys that node 0 published to the mute member and that it acknowledged */
	struct index *told;
	uint8_t *bytes;
	size_t have;
} mute;

static inline int teardown(void **state)
{
	if (mute.fd > 0)
		close(mute.fd);
	index_close(mute.told);
	free(mute.bytes);
	memset(&mute, 0, sizeof(mute));
	nodes_teardown();
	log_test_capture(NULL, 0);
	return 0;
}

/* ---- the mute member ------------------------------------------------------------------------- */

static inline void mute_join(void)
{
	mute.bytes = malloc(2 * MESSAGE_BYTES_MAX);
	assert_int_equal(index_open(KEYS, &mute.told), 0);
	mute.incarnation = 0x1234567890;
	mute.fd = raw_open(0);
	raw_hello(mute.fd, "mute", mute.incarnation, 9, NULL);
	assert_true(nodes_until(member_by_ref(&node[0].control, (uint32_t)mute.incarnation), 1000));
}

static inline void acknowledge(uint64_t serial)
{
	Pc__Ack ack = PC__ACK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	ack.serial = serial;
	message.body_case = PC__MESSAGE__BODY_ACK;
	message.ack = &ack;
	raw_message(mute.fd, &message);
}

/* Answers a DigestAsk; `sums` has MAP_SLOTS, NULL: it has no entry. */
static inline void digest_send(uint64_t serial, const uint64_t *sums)
{
	static uint64_t packed[MAP_SLOTS];
	static uint8_t slots[MAP_SLOTS / 8];
	Pc__Digest digest = PC__DIGEST__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	memset(slots, 0, sizeof(slots));
	for (uint32_t slot = 0; sums && slot < MAP_SLOTS; slot++)
		if (sums[slot]) {
			slots[slot / 8] |= (uint8_t)(1u << slot % 8);
			packed[digest.n_sums++] = sums[slot];
		}
	digest.serial = serial;
	digest.sums = packed;
	if (digest.n_sums)
		digest.slots = (ProtobufCBinaryData){sizeof(slots), slots};
	message.body_case = PC__MESSAGE__BODY_DIGEST;
	message.digest = &digest;
	raw_message(mute.fd, &message);
}

static inline void note(const Pc__Publish *publish)
{
	for (size_t i = 0; i < publish->n_entries; i++) {
		const Pc__Entry *told = publish->entries[i];
		struct index_entry entry = {
			.key = {.word = {told->key0, told->key1}}, .generation = told->generation};
		struct index_entry *there;

		assert_true(index_put(mute.told, &entry, &there) != -ENOMEM);
		there->generation = told->generation; /* the last one counts */
	}
	acknowledge(publish->serial);
}

/*
 * Also acknowledges the requests that were sent before it began to answer: they are still in the
 * socket.
 */
static inline void mute_serve(void)
{
	Pc__Message *message;
	uint32_t length;
	ssize_t got;

	while ((got = recv(mute.fd, mute.bytes + mute.have, 2 * MESSAGE_BYTES_MAX - mute.have, 0)) >
		0) {
		size_t at = 0;

		for (mute.have += (size_t)got; mute.have - at >= 4; at += 4 + length) {
			memcpy(&length, mute.bytes + at, 4);
			length = ntohl(length);
			if (mute.have - at - 4 < length)
				break;
			message = pc__message__unpack(NULL, length, mute.bytes + at + 4);
			assert_non_null(message);
			if (message->body_case == PC__MESSAGE__BODY_PUBLISH)
				note(message->publish);
			else if (message->body_case == PC__MESSAGE__BODY_REMOVE)
				acknowledge(message->remove->serial);
			else if (message->body_case == PC__MESSAGE__BODY_DIGEST_ASK &&
				 !mute.no_digests)
				digest_send(message->digest_ask->serial, NULL); /* it has none */
			pc__message__free_unpacked(message, NULL);
		}
		mute.have -= at;
		memmove(mute.bytes, mute.bytes + at, mute.have);
	}
}

static inline void mute_beat(void)
{
	Pc__Heartbeat beat = PC__HEARTBEAT__INIT;
	Pc__Message message = PC__MESSAGE__INIT;

	message.body_case = PC__MESSAGE__BODY_HEARTBEAT;
	message.heartbeat = &beat;
	raw_message(mute.fd, &message);
}

/*
 * Runs the nodes until the condition holds; meanwhile sends heartbeats and, with mute.answers,
 * acks.
 */
#define mute_until(condition, ms)                                                                  \
	({                                                                                         \
		bool met_ = false;                                                                 \
		for (unsigned past_ = 0; !(met_ = (condition)) && past_ < (ms); past_ += 10) {     \
			mute_beat();                                                               \
			if (mute.answers)                                                          \
				mute_serve();                                                      \
			nodes_run(10);                                                             \
		}                                                                                  \
		met_;                                                                              \
	})

static inline struct owner *mute_owner(void)
{
	return owner_at(node[0].control.directory,
		member_by_ref(&node[0].control, (uint32_t)mute.incarnation)->peer);
}

/* It lacks nothing, and has acknowledged all. */
static inline bool mute_all_sent(void)
{
	return !mute_owner()->walk.slots && mute_owner()->background == 0;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static inline bool owned_by(uint32_t ref, uint64_t number)
{
	const struct map_view *map = member_map(&node[0].control);
	struct page_key key = key_of(number);
	uint32_t at[REPLICAS_MAX];

	for (unsigned i = map_owners(map, &key, at); i > 0; i--)
		if (map->owner[at[i - 1]].ref == ref)
			return true;
	return false;
}

static inline unsigned missing_at_mute(uint64_t keys)
{
	unsigned missing = 0;

	for (uint64_t k = 0; k < keys; k++) {
		struct page_key key = key_of(k);

		missing += owned_by((uint32_t)mute.incarnation, k) && !index_find(mute.told, &key);
	}
	return missing;
}

static inline void open_nodes(unsigned count, int dead_after_ms, int replicas)
{
	nodes_setup(20, dead_after_ms);
	nodes_entries = 4 * KEYS;
	for (unsigned i = 0; i < NODES; i++)
		node[i].settings.cluster_replicas = replicas;
	for (unsigned i = 0; i < count; i++)
		assert_int_equal(node_open(i, i ? node_at(0) : NULL), 0);
	assert_true(nodes_until(all_agree(), 3000));
}

static inline void publish_one(
	const struct page_key *key, uint32_t place, uint32_t generation, unsigned deadline_ms)
{
	directory_publish(&node[0].control, key,
		&(struct location){.place = place, .generation = generation},
		&(struct waiter){.deadline_ns = clock_now_ns() + deadline_ms * 1000000ull,
			.done = node_done,
			.context = &node[0]});
}

static inline void publish(uint64_t from, unsigned count, unsigned deadline_ms)
{
	for (uint64_t k = from; k < from + count; k++) {
		struct page_key key = key_of(k);

		publish_one(&key, place_make(0, (uint32_t)k & 0xffff), 1, deadline_ms);
	}
}

#endif
