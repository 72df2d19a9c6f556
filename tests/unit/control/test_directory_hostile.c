/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparisons at bad moments: members that come back at once, links that close, owners that are
 * behind, other wire versions. A node is one control plane in the test's process; time is
 * simulated.
 */
#include "engine/abi/wire.h"
#include "engine/control/member.h"
#include "tests/unit/control/holder_world.h"

/* ---- wire version 8 -------------------------------------------------------------------------- */

static int join_as_8(void)
{
	Pc__Member self = PC__MEMBER__INIT;
	Pc__Hello hello = PC__HELLO__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	int fd = raw_open(0);

	self.name = "raw";
	self.incarnation = 0x1234567890;
	self.address = "127.0.0.1";
	self.port = 9;
	self.rails = 2;
	self.bucket_bits = 10;
	member_agree_say(&node[0].control, &hello);
	hello.version = 8;
	hello.newest = 8;
	hello.self = &self;
	message.body_case = PC__MESSAGE__BODY_HELLO;
	message.hello = &hello;
	raw_message(fd, &message);
	assert_true(nodes_until(member_by_ref(&node[0].control, 0x34567890), 1000));
	return fd;
}

/* What version 8 reads of a Digest: field 2 has the sums, 2^bits of them or none. */
static void an_engine_of_version_8_gets_no_digest_of_version_9(void **state)
{
	static uint8_t bytes[1 << 20];
	struct page_key key = key_of(1);
	Pc__DigestAsk body = PC__DIGEST_ASK__INIT;
	Pc__Message message = PC__MESSAGE__INIT;
	size_t have = 0, more, at = 0;
	uint32_t length;
	int fd;

	(void)state;
	assert_int_equal(node_open(0, NULL), 0);
	fd = join_as_8();
	assert_int_equal(member_find(node[0].control.members, "raw")->contact->wire, 8);
	assert_int_equal(shard_insert(&node[0].control.shard, &key, 0x34567890, 1, 1), 0);
	body.serial = 77;
	message.body_case = PC__MESSAGE__BODY_DIGEST_ASK;
	message.digest_ask = &body;
	raw_message(fd, &message);
	while (have < sizeof(bytes) &&
		(more = raw_read(fd, bytes + have, sizeof(bytes) - have, 100)))
		have += more;
	for (; have - at >= 4; at += 4 + length) {
		Pc__Message *got;

		memcpy(&length, bytes + at, 4);
		length = ntohl(length);
		if (have - at - 4 < length)
			break;
		got = pc__message__unpack(NULL, length, bytes + at + 4);
		assert_non_null(got);
		if (got->body_case == PC__MESSAGE__BODY_DIGEST) {
			assert_int_equal(got->digest->slots.len, 0);
		}
		pc__message__free_unpacked(got, NULL);
	}
	close(fd);
}

#define T(name) cmocka_unit_test_setup_teardown(name, begin, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		T(an_engine_of_version_8_gets_no_digest_of_version_9),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
